//! Whether a checkpoint is healthy: one read for CRC, digests, NaN, infinity, zero tensors and
//! improbable statistics.

mod checks;
mod hyperparameters;
mod options;
mod outcomes;
mod parts;
mod pass;
mod report;
mod work;

use apr_core::Progress;
use apr_registry::{CheckpointReader, Pipeline, Result};

pub(crate) use options::Known;
pub use options::ValidateOptions;
pub(crate) use outcomes::{finite_detail, undecoded_names};
pub use parts::PartFindings;
pub(crate) use parts::{check_all, no_such_units, validate_part, validate_units, validated};
use pass::Pass;
pub(crate) use pass::beside_siblings;
pub(crate) use report::is_valid;
pub use report::{Check, CheckOutcome, Finding, Status, ValidateReport};

pub use crate::physics::Level;
use crate::physics::Sibling;

/// Checks the bytes of an opened checkpoint in one read.
///
/// # Errors
/// E002 and E007 when bytes can't be read; what is wrong with bytes that can is in the report.
pub(crate) fn validate<P: Pipeline>(
    reader: &dyn CheckpointReader,
    file: &str,
    known: Known<'_>,
    options: ValidateOptions<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<ValidateReport> {
    let (pass, bytes_read) = read(reader, file, known, options, pipeline, progress)?;
    Ok(pass.report(bytes_read))
}

/// Checks a shard as [`validate`] does, but for its layers: their weights are returned, to be
/// compared with those of the other shards.
///
/// # Errors
/// Those of [`validate`].
pub(crate) fn validate_shard<P: Pipeline>(
    reader: &dyn CheckpointReader,
    file: &str,
    known: Known<'_>,
    options: ValidateOptions<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<(ValidateReport, Vec<Sibling>)> {
    let (mut pass, bytes_read) = read(reader, file, known, options, pipeline, progress)?;
    let siblings = std::mem::take(&mut pass.siblings);
    Ok((pass.report(bytes_read), siblings))
}

/// Reads a checkpoint; returns what was seen, and the number of bytes read.
fn read<'a, P: Pipeline>(
    reader: &'a dyn CheckpointReader,
    file: &'a str,
    known: Known<'a>,
    options: ValidateOptions<'a>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<(Pass<'a>, u64)> {
    let mut pass = Pass::new(reader, file, known, options);
    pass.check_front()?;
    let tasks = pass.tasks()?;
    let bytes_read = pass.read_tasks(&tasks, pipeline, progress)?;
    pass.check_parts(pipeline)?;
    Ok((pass, bytes_read))
}

/// Bytes that a validation will read, for a progress bar.
#[must_use]
pub fn bytes_to_read(reader: &dyn CheckpointReader) -> u64 {
    reader.files().iter().map(|file| file.len).sum()
}
