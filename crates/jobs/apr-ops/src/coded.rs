//! Validating a model whose weights are in codes and scales: the bytes as they lie in its files,
//! and the values that they stand for.

use std::ops::Range;

use apr_core::{Progress, StoredRange};
use apr_registry::{CheckpointReader, Pipeline, Result};

use crate::shards::{units, validate_all, validate_units_of, validated_in_parts};
use crate::validate::{
    Check, CheckOutcome, Finding, Known, Level, PartFindings, Status, ValidateOptions,
    ValidateReport, check_all, is_valid, validate, validate_part, validate_units, validated,
};

/// Text reported for values that were not read.
const UNREAD: &str = "not read: files are damaged or absent";

/// A model and the same with the tensors of its files, which are parts of weights.
type Readers<'a> = (&'a dyn CheckpointReader, &'a dyn CheckpointReader);

/// Returns the options for checking the bytes of the files.
fn of_bytes<'o>(options: ValidateOptions<'o>) -> ValidateOptions<'o> {
    ValidateOptions { nan: false, zero: false, shapes: false, physics: false, ..options }
}

/// Returns the options for checking the values.
fn of_values(options: ValidateOptions<'_>) -> ValidateOptions<'_> {
    ValidateOptions { checksum: false, require_signature: false, trusted: &[], ..options }
}

/// Returns `known` without a family model and graphs, to validate the tensors of the files.
fn of_no_family<'k>(known: Known<'k>) -> Known<'k> {
    Known { model: None, graphs: None, ..known }
}

/// Checks the files as [`validate_all`] does, without taking codes for values, then the values.
///
/// # Errors
/// Those of [`validate_all`].
pub(crate) fn validate_coded<P: Pipeline>(
    (reader, undecoded): Readers<'_>,
    file: &str,
    known: Known<'_>,
    options: ValidateOptions<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<ValidateReport> {
    let (of_files, asked) = (of_no_family(known), of_bytes(options));
    let bytes = validate_all(undecoded, file, of_files, asked, pipeline, progress)?;
    let values = if is_damaged(&bytes) {
        unread_values(reader, (file, known), options, pipeline)?
    } else {
        validate(reader, file, known, of_values(options), pipeline, progress)?
    };
    Ok(joined(bytes, values, options.strict))
}

/// Returns the units that such a validation can be split into: first the files, then the weights.
///
/// # Errors
/// Returns the same errors as [`units`].
pub(crate) fn coded_units(
    (reader, undecoded): Readers<'_>,
    options: ValidateOptions<'_>,
) -> Result<Vec<Vec<StoredRange>>> {
    let mut all = units(undecoded, of_bytes(options))?;
    let values = validate_units(reader, of_values(options))?;
    all.extend(values.into_iter().map(|unit| unit.ranges));
    Ok(all)
}

/// Does a part of such a validation: some of its [`coded_units`].
///
/// # Errors
/// Those of [`validate_coded`]; E001 for missing units.
pub(crate) fn validate_coded_part<P: Pipeline>(
    (reader, undecoded): Readers<'_>,
    (file, known): (&str, Known<'_>),
    options: ValidateOptions<'_>,
    wanted: Range<usize>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<PartFindings> {
    let asked = of_bytes(options);
    let count = units(undecoded, asked)?.len();
    let (of_files, of_weights) = (
        wanted.start.min(count)..wanted.end.min(count),
        Range { start: wanted.start.max(count) - count, end: wanted.end.max(count) - count },
    );
    // Files without pieces are looked at once, with the first part.
    let has_files = !of_files.is_empty() || count + wanted.start == 0;
    let mut found = if has_files {
        let known = (file, of_no_family(known));
        validate_units_of(undecoded, known, asked, of_files, pipeline, progress)?
    } else {
        PartFindings::default()
    };
    if !of_weights.is_empty() {
        let asked = of_values(options);
        let values = validate_part(reader, (file, known), asked, of_weights, pipeline, progress)?;
        found.values = Some(Box::new(values));
    }
    Ok(found)
}

/// Builds the report of [`validate_coded`] from the findings of the parts, which must be in order.
///
/// # Errors
/// Returns the same errors as [`validate_coded`]; E001 when the parts have not checked everything.
pub(crate) fn coded_in_parts<P: Pipeline>(
    (reader, undecoded): Readers<'_>,
    (file, known): (&str, Known<'_>),
    options: ValidateOptions<'_>,
    mut parts: Vec<PartFindings>,
    pipeline: &P,
) -> Result<ValidateReport> {
    let asked = of_values(options);
    let found: Vec<PartFindings> =
        parts.iter_mut().filter_map(|part| part.values.take()).map(|values| *values).collect();
    check_all(&found, validate_units(reader, asked)?.len())?;
    let of_files = (file, of_no_family(known));
    let bytes = validated_in_parts(undecoded, of_files, of_bytes(options), parts, pipeline)?;
    let values = if is_damaged(&bytes) {
        unread_values(reader, (file, known), options, pipeline)?
    } else {
        validated(reader, (file, known), asked, found)?
    };
    Ok(joined(bytes, values, options.strict))
}

/// Returns `true` if the structure or digest checks failed, so that reading values is pointless.
fn is_damaged(bytes: &ValidateReport) -> bool {
    let is_damage = |finding: &Finding| {
        finding.level == Level::Error && matches!(finding.check, Check::Structure | Check::Digests)
    };
    bytes.findings.iter().any(is_damage)
}

/// Validates the weights without reading their values.
fn unread_values<P: Pipeline>(
    reader: &dyn CheckpointReader,
    (file, known): (&str, Known<'_>),
    options: ValidateOptions<'_>,
    pipeline: &P,
) -> Result<ValidateReport> {
    let front = ValidateOptions { nan: false, zero: false, physics: false, ..of_values(options) };
    let mut values = validate(reader, file, known, front, pipeline, &())?;
    let reads = |check: Check| matches!(check, Check::Finite | Check::Zeros | Check::Physics);
    for outcome in values.checks.iter_mut().filter(|outcome| reads(outcome.check)) {
        UNREAD.clone_into(&mut outcome.detail);
    }
    Ok(values)
}

/// Joins two reports: checks of bytes are taken from the first one.
fn joined(bytes: ValidateReport, values: ValidateReport, strict: bool) -> ValidateReport {
    let of_bytes = |check: Check| {
        let is_theirs = matches!(check, Check::Checksum | Check::Digests | Check::Signature);
        bytes.checks.iter().filter(move |outcome| is_theirs && outcome.check == check).cloned()
    };
    let mut checks: Vec<CheckOutcome> = Vec::new();
    for outcome in values.checks {
        let found = of_bytes(outcome.check).collect::<Vec<_>>();
        match (outcome.check, bytes.checks.iter().find(|it| it.check == Check::Structure)) {
            (Check::Structure, Some(files)) if files.status == Status::Fail => {
                checks.push(files.clone());
            }
            _ if found.is_empty() => checks.push(outcome),
            _ => checks.extend(found),
        }
    }

    let mut findings = bytes.findings;
    for finding in values.findings {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    let valid = is_valid(&findings, strict);
    let bytes_read = bytes.bytes_read.saturating_add(values.bytes_read);
    ValidateReport { valid, checks, findings, bytes_read, ..values }
}
