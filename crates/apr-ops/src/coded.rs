//! Validating a model whose weights are in codes and scales: the bytes as they lie in its files,
//! and the values that they stand for.

use apr_core::Progress;
use apr_registry::{CheckpointReader, Error, Pipeline, Result};

use crate::shards::validate_all;
use crate::validate::{
    Check, CheckOutcome, Finding, Known, Level, Status, ValidateOptions, ValidateReport, is_valid,
    validate,
};

/// What is said of values that nobody looked at.
const UNREAD: &str = "not read: files are damaged or absent";

/// Checks the files as [`validate_all`] does, without taking codes for values, then the values.
///
/// # Errors
/// Those of [`validate_all`].
pub(crate) fn validate_coded<P: Pipeline>(
    (reader, undecoded): (&dyn CheckpointReader, &dyn CheckpointReader),
    file: &str,
    known: Known<'_>,
    options: ValidateOptions<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<ValidateReport> {
    let of_bytes =
        ValidateOptions { nan: false, zero: false, shapes: false, physics: false, ..options };
    let no_family = Known { model: None, graphs: None, ..known };
    let bytes = validate_all(undecoded, file, no_family, of_bytes, pipeline, progress)?;

    let of_values =
        ValidateOptions { checksum: false, require_signature: false, trusted: &[], ..options };
    let is_damaged = |finding: &Finding| {
        finding.level == Level::Error && matches!(finding.check, Check::Structure | Check::Digests)
    };
    let values = if bytes.findings.iter().any(is_damaged) {
        let front = ValidateOptions { nan: false, zero: false, physics: false, ..of_values };
        let mut values = validate(reader, file, known, front, pipeline, &())?;
        let reads = |check: Check| matches!(check, Check::Finite | Check::Zeros | Check::Physics);
        for outcome in values.checks.iter_mut().filter(|outcome| reads(outcome.check)) {
            UNREAD.clone_into(&mut outcome.detail);
        }
        values
    } else {
        validate(reader, file, known, of_values, pipeline, progress)?
    };
    Ok(joined(bytes, values, options.strict))
}

/// Two reports as one: what is about bytes is the first's.
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

/// Refuses to validate a part of such a model: its files have other tensors than it has weights.
///
/// # Errors
/// E003 where there are such weights.
pub(crate) fn check_parts_apply(reader: &dyn CheckpointReader) -> Result<()> {
    match reader.container().undecoded() {
        Some(_) => Err(Error::version(
            "weights in codes and scales are validated in one piece: `apr validate` without parts",
        )),
        None => Ok(()),
    }
}
