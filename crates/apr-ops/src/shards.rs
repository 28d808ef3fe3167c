//! Validating a model of several files, each with a checksum of its own: one read of every file, one report.

use apr_arch::{Families, FamilyModel};
use apr_core::{Progress, counted};
use apr_registry::{CheckpointReader, Error, Pipeline, Result};

use crate::validate::{Check, CheckOutcome, Finding, Level, Status, ValidateOptions, ValidateReport, validate};

/// Checks an opened checkpoint as [`validate`] does, and where it is sharded, every shard with all its bytes: that it is
/// there, that it is the one its manifest means, its checksum, its digests and its values. Names and shapes are those of
/// the whole.
///
/// # Errors
/// E002 and E007 when bytes can't be read; shards that are absent or wrong are in the report.
pub fn validate_all<P: Pipeline>(
    reader: &dyn CheckpointReader,
    file: &str,
    (model, families): (Option<&FamilyModel<'_>>, &Families),
    options: ValidateOptions<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<ValidateReport> {
    let options = ValidateOptions { families: Some(families), ..options };
    if reader.container().shard_count() == 0 {
        return validate(reader, file, model, options, pipeline, progress);
    }
    let of_the_whole = ValidateOptions { checksum: false, nan: false, zero: false, physics: false, ..options };
    // The manifest's signatures cover the shards.
    let of_a_shard =
        ValidateOptions { shapes: false, strict: false, require_signature: false, trusted: &[], ..options };
    let mut whole = validate(reader, file, model, of_the_whole, pipeline, progress)?;
    let mut merged = Merged::default();
    for number in 0..reader.container().shard_count() {
        let shard = match reader.container().shard(number) {
            Ok(shard) => shard,
            Err(error) => {
                merged.findings.push(of_error(&error));
                continue;
            }
        };
        let name = shard.files().first().map_or("", |file| file.name.as_str());
        let family = model.and_then(|model| families.find(model.family().name()));
        let part = family.map(|family| families.apply(family.name(), shard.tensors(), reader.metadata()));
        let report = validate(shard, name, part.transpose()?.as_ref(), of_a_shard, pipeline, progress)?;
        merged.add(report, name);
    }
    if merged.findings.iter().any(|finding| finding.check == Check::Structure && finding.level == Level::Error) {
        // What opening the manifest only warned about is reported in full now.
        whole.findings.retain(|finding| finding.check != Check::Structure);
    }
    whole.findings.extend(merged.findings);
    whole.bytes_read += merged.bytes_read;
    let Merged { checks, .. } = merged;
    for outcome in &mut whole.checks {
        let of_shards: Vec<&CheckOutcome> = checks.iter().filter(|other| other.check == outcome.check).collect();
        *outcome = combined(outcome, &of_shards, &whole.findings, reader);
    }
    let has = |level: Level| whole.findings.iter().any(|finding| finding.level == level);
    let worst = if options.strict { Level::Warning } else { Level::Error };
    whole.valid = !has(Level::Error) && !has(worst);
    Ok(whole)
}

/// What the shards' reports say.
#[derive(Default)]
struct Merged {
    findings: Vec<Finding>,
    checks: Vec<CheckOutcome>,
    bytes_read: u64,
}

impl Merged {
    fn add(&mut self, report: ValidateReport, name: &str) {
        let findings = report.findings.into_iter();
        self.findings
            .extend(findings.map(|finding| Finding { file: finding.file.or(Some(name.to_owned())), ..finding }));
        self.checks.extend(report.checks);
        self.bytes_read += report.bytes_read;
    }
}

fn of_error(error: &Error) -> Finding {
    Finding {
        level: Level::Error,
        check: Check::Structure,
        code: Some(error.code().id()),
        tensor: error.tensor().map(str::to_owned),
        file: error.file().map(str::to_owned),
        offset: error.offset(),
        message: error.message().to_owned(),
    }
}

/// A check of the whole and of its shards as one.
fn combined(
    whole: &CheckOutcome,
    shards: &[&CheckOutcome],
    findings: &[Finding],
    reader: &dyn CheckpointReader,
) -> CheckOutcome {
    let check = whole.check;
    let found = |level: Level| {
        findings.iter().filter(|finding| finding.check == check && finding.level == level).count() as u64
    };
    let outcome = |status: Status, detail: String| CheckOutcome { check, status, detail };
    match (found(Level::Error), found(Level::Warning)) {
        (0, 0) => {}
        (0, warnings) => return outcome(Status::Warn, counted(warnings, "warning")),
        (errors, _) => return outcome(Status::Fail, counted(errors, "error")),
    }
    // A shard without a tensor of a kind has nothing to check, the others may.
    let Some(passed) = shards.iter().find(|shard| shard.status == Status::Pass) else { return whole.clone() };
    let tensors = || counted(reader.tensors().len() as u64, "tensor");
    let detail = match check {
        Check::Checksum => format!("CRC-32 of {}", counted(shards.len() as u64, "shard")),
        Check::Digests => format!("BLAKE3 of {}", tensors()),
        Check::Finite => format!("no NaN, no infinity in {}", tensors()),
        Check::Zeros => tensors(),
        Check::Physics => passed.detail.clone(),
        _ => return whole.clone(),
    };
    outcome(Status::Pass, detail)
}
