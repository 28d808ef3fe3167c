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

use apr_arch::FamilyModel;
use apr_core::Progress;
use apr_registry::{CheckpointReader, Pipeline, Result};

pub use options::ValidateOptions;
pub use parts::{PartFindings, ValidateUnit, validate_units};
pub(crate) use parts::{check_all, no_such_units, validate_part, validated};
use pass::Pass;
pub use report::{Check, CheckOutcome, Finding, Status, ValidateReport};

pub use crate::physics::Level;

/// Checks an opened checkpoint in one read, as a member of a family where that is known.
///
/// # Errors
/// E002 and E007 when bytes can't be read; what is wrong with bytes that can is in the report.
pub fn validate<P: Pipeline>(
    reader: &dyn CheckpointReader,
    file: &str,
    model: Option<&FamilyModel<'_>>,
    options: ValidateOptions<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<ValidateReport> {
    let mut pass = Pass::new(reader, file, model, options);
    pass.check_front()?;
    let tasks = pass.tasks()?;
    let bytes_read = pass.read_tasks(&tasks, pipeline, progress)?;
    pass.check_parts(pipeline)?;
    Ok(pass.report(bytes_read))
}

/// Bytes that [`validate`] will read, for a progress bar.
#[must_use]
pub fn bytes_to_read(reader: &dyn CheckpointReader) -> u64 {
    reader.files().iter().map(|file| file.len).sum()
}
