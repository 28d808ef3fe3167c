//! A validation in parts: each looks at some of the file, and finds what one process finds there.

use std::ops::Range;

use apr_arch::Families;
use apr_core::{ExtentKind, Progress, StoredRange};
use apr_registry::digest::Crc32;
use apr_registry::{CheckpointReader, Error, Pipeline, Result};
use serde::{Deserialize, Serialize};

use super::pass::Pass;
use super::work::FileChunk;
use super::{CheckOutcome, Finding, Known, ValidateOptions, ValidateReport};
use crate::physics::Sibling;

/// Smallest unit that a part of a validation checks: a tensor, or bytes between tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValidateUnit {
    /// Ranges of its bytes.
    pub(crate) ranges: Vec<StoredRange>,
}

/// Findings of a part of a validation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PartFindings {
    /// Number of units checked.
    pub units: usize,
    /// Errors and warnings, in the order of the file.
    pub findings: Vec<Finding>,
    /// Weights of layers, which are compared with those in the other parts.
    pub siblings: Vec<Sibling>,
    /// Outcomes of the checks of shards.
    pub checks: Vec<CheckOutcome>,
    /// CRC-32 of the bytes that the file's checksum covers.
    pub crc32: u32,
    /// Number of these bytes.
    pub summed: u64,
    /// Number of bytes read.
    pub bytes_read: u64,
    /// Findings in the values of weights in codes and scales.
    ///
    /// The other fields then describe the bytes of the weights' parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Box<Self>>,
}

impl PartFindings {
    /// Adds what another part found of units behind these, but for the sum of their bytes.
    pub(crate) fn add(&mut self, other: Self) {
        self.units = self.units.saturating_add(other.units);
        self.findings.extend(other.findings);
        self.siblings.extend(other.siblings);
        self.checks.extend(other.checks);
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
    }
}

/// Returns the units that a validation of a single file is split into, in order.
///
/// # Errors
/// E001 when dtype and shape of a tensor do not match.
pub(crate) fn validate_units(
    reader: &dyn CheckpointReader,
    options: ValidateOptions<'_>,
) -> Result<Vec<ValidateUnit>> {
    // Nothing is judged here, so that no family has to be known.
    let families = Families::default();
    let known = Known { model: None, families: &families, graphs: None };
    let tasks = Pass::new(reader, "", known, options).tasks()?;
    Ok(units(&tasks)
        .into_iter()
        .map(|unit| ValidateUnit { ranges: ranges_of(reader, &tasks[unit]) })
        .collect())
}

/// Groups tasks into units: all tasks of a piece of the file, up to its last.
fn units(tasks: &[FileChunk]) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut units = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        if task.chunk.last {
            units.push(start..at + 1);
            start = at + 1;
        }
    }
    units
}

fn ranges_of(reader: &dyn CheckpointReader, tasks: &[FileChunk]) -> Vec<StoredRange> {
    match tasks.first() {
        Some(FileChunk { kind: ExtentKind::Tensor(tensor), .. }) => {
            reader.stored(*tensor).ranges().to_vec()
        }
        Some(task) => vec![StoredRange { file: 0, offset: task.base, len: task.len }],
        None => Vec::new(),
    }
}

/// Looks at some of the units of a file.
///
/// # Errors
/// Those of [`validate`](super::validate); E001 for missing units.
pub(crate) fn validate_part<P: Pipeline>(
    reader: &dyn CheckpointReader,
    (file, known): (&str, Known<'_>),
    options: ValidateOptions<'_>,
    wanted: Range<usize>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<PartFindings> {
    let mut pass = Pass::new(reader, file, known, options);

    // What is odd about the front is found when the parts are put together.
    pass.findings.clear();
    let tasks = pass.tasks()?;
    let units = units(&tasks);
    let own = units.get(wanted.clone()).ok_or_else(no_such_units)?;
    let own = own.first().map_or(0, |unit| unit.start)..own.last().map_or(0, |unit| unit.end);
    let tasks = &tasks[own];
    let bytes_read = pass.read_tasks(tasks, pipeline, progress)?;

    // Tensors of several parts may share them: they are compared once, with the last part.
    if wanted.end == units.len() {
        pass.check_parts(pipeline)?;
    }

    let is_summed =
        |task: &&FileChunk| pass.checksum.is_some() && task.summed && pass.is_in_file(**task);
    let summed = tasks.iter().filter(is_summed).map(|task| task.chunk.len as u64).sum();
    Ok(PartFindings {
        units: wanted.len(),
        checks: Vec::new(),
        crc32: pass.crc.value(),
        summed,
        bytes_read,
        siblings: pass.siblings,
        findings: pass.findings,
        values: None,
    })
}

/// Returns the error for a plan that was made for another model.
pub(crate) fn no_such_units() -> Error {
    Error::format("the plan has parts that the model lacks")
}

/// Checks that the parts have looked at everything: a plan that leaves something out must not make
/// a model valid.
///
/// # Errors
/// E001.
pub(crate) fn check_all(parts: &[PartFindings], units: usize) -> Result<()> {
    let seen = parts.iter().map(|part| part.units).fold(0, usize::saturating_add);
    if seen == units {
        return Ok(());
    }
    Err(Error::format(format!("the parts have looked at {seen} of {units} pieces of the model")))
}

/// Builds the report on all units from the findings of the parts, as a single process would.
///
/// # Errors
/// Returns the same errors as [`validate`](super::validate); E001 when the parts have not checked
/// everything.
pub(crate) fn validated(
    reader: &dyn CheckpointReader,
    (file, known): (&str, Known<'_>),
    options: ValidateOptions<'_>,
    parts: Vec<PartFindings>,
) -> Result<ValidateReport> {
    check_all(&parts, validate_units(reader, options)?.len())?;
    let mut pass = Pass::new(reader, file, known, options);
    pass.check_front()?;
    let mut found = PartFindings::default();
    for part in parts {
        // The CRC-32 of a whole follows from those of its pieces and their lengths.
        pass.crc.append_crc(&Crc32::of_known(part.crc32, part.summed));
        found.add(part);
    }
    pass.findings.extend(found.findings);
    pass.siblings.extend(found.siblings);
    Ok(pass.report(found.bytes_read))
}
