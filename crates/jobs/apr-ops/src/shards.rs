//! Validating a model of several files, each with a checksum of its own: one read of every file,
//! one report.

use std::ops::Range;

use apr_core::{Progress, StoredRange, counted};
use apr_registry::{CheckpointReader, Error, FileInfo, Pipeline, Result, TensorInfo};

use crate::coded::{coded_in_parts, coded_units, validate_coded, validate_coded_part};
use crate::validate::{
    Check, CheckOutcome, Finding, Known, Level, PartFindings, Status, ValidateOptions,
    ValidateReport, beside_siblings, check_all, finite_detail, is_valid, no_such_units,
    undecoded_names, validate, validate_part, validate_shard, validate_units, validated,
};

/// Checks an opened checkpoint like [`validate`], and every shard with all its bytes.
///
/// Each shard must exist and be the one that its manifest describes. Its checksum, digests and
/// values are checked. Names and shapes are checked for the whole model.
///
/// # Errors
/// E002 and E007 when bytes can't be read; missing or wrong shards are in the report.
pub(crate) fn validate_all<P: Pipeline>(
    reader: &dyn CheckpointReader,
    file: &str,
    known: Known<'_>,
    options: ValidateOptions<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<ValidateReport> {
    if let Some(undecoded) = reader.container().undecoded() {
        let readers = (reader, &**undecoded);
        return validate_coded(readers, file, known, options, pipeline, progress);
    }
    let shards = reader.container().shard_count();
    if shards == 0 {
        return validate(reader, file, known, options, pipeline, progress);
    }
    let whole = validate(reader, file, known, of_the_whole(options), pipeline, progress)?;
    let found = validate_shards(reader, known, options, 0..shards, pipeline, progress)?;
    Ok(put_together(whole, found, reader, options))
}

/// The pieces that a validation can be cut into, each as the ranges of its bytes: shards, or what a
/// single file consists of; of weights in codes and scales, then their values.
///
/// # Errors
/// E001 when dtype and shape of a tensor do not go together.
pub(crate) fn units(
    reader: &dyn CheckpointReader,
    options: ValidateOptions<'_>,
) -> Result<Vec<Vec<StoredRange>>> {
    if let Some(undecoded) = reader.container().undecoded() {
        return coded_units((reader, &**undecoded), options);
    }
    let shards = reader.container().shard_count();
    if shards == 0 {
        return Ok(validate_units(reader, options)?.into_iter().map(|unit| unit.ranges).collect());
    }
    // The manifest is the first of the files.
    let first = reader.files().len().saturating_sub(shards);
    let files = reader.files().iter().enumerate().skip(first);
    let whole = |(file, info): (usize, &FileInfo)| StoredRange { file, offset: 0, len: info.len };
    Ok(files.map(|file| vec![whole(file)]).collect())
}

/// Does a part of a validation: some of its [`units`].
///
/// # Errors
/// Those of [`validate_all`]; E001 for missing units.
pub(crate) fn validate_units_of<P: Pipeline>(
    reader: &dyn CheckpointReader,
    (file, known): (&str, Known<'_>),
    options: ValidateOptions<'_>,
    wanted: Range<usize>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<PartFindings> {
    if let Some(undecoded) = reader.container().undecoded() {
        let readers = (reader, &**undecoded);
        return validate_coded_part(readers, (file, known), options, wanted, pipeline, progress);
    }
    if reader.container().shard_count() == 0 {
        return validate_part(reader, (file, known), options, wanted, pipeline, progress);
    }
    if wanted.end > reader.container().shard_count() {
        return Err(no_such_units());
    }
    validate_shards(reader, known, options, wanted, pipeline, progress)
}

/// Builds the report of [`validate_all`] from the findings of the parts, which must be in order.
///
/// # Errors
/// Returns the same errors as [`validate_all`]; E001 when the parts have not checked everything.
pub(crate) fn validated_in_parts<P: Pipeline>(
    reader: &dyn CheckpointReader,
    (file, known): (&str, Known<'_>),
    options: ValidateOptions<'_>,
    parts: Vec<PartFindings>,
    pipeline: &P,
) -> Result<ValidateReport> {
    if let Some(undecoded) = reader.container().undecoded() {
        return coded_in_parts((reader, &**undecoded), (file, known), options, parts, pipeline);
    }
    if reader.container().shard_count() == 0 {
        return validated(reader, (file, known), options, parts);
    }
    check_all(&parts, reader.container().shard_count())?;
    let whole = validate(reader, file, known, of_the_whole(options), pipeline, &())?;
    let mut found = PartFindings::default();
    parts.into_iter().for_each(|part| found.add(part));
    Ok(put_together(whole, found, reader, options))
}

/// Returns the options for checking the manifest.
fn of_the_whole(options: ValidateOptions<'_>) -> ValidateOptions<'_> {
    ValidateOptions { checksum: false, nan: false, zero: false, physics: false, ..options }
}

fn validate_shards<P: Pipeline>(
    reader: &dyn CheckpointReader,
    Known { model, families, .. }: Known<'_>,
    options: ValidateOptions<'_>,
    shards: Range<usize>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<PartFindings> {
    // The manifest's signatures cover the shards.
    let of_a_shard = ValidateOptions {
        shapes: false,
        strict: false,
        require_signature: false,
        trusted: &[],
        ..options
    };

    let mut found = PartFindings { units: shards.len(), ..PartFindings::default() };
    for number in shards {
        let shard = match reader.container().shard(number) {
            Ok(shard) => shard,
            Err(error) => {
                found.findings.push(of_error(&error));
                continue;
            }
        };

        let name = shard.files().first().map_or("", |file| file.name.as_str());
        let family = model.and_then(|model| families.find(model.family().name()));
        let part =
            family.map(|family| families.apply(family.name(), shard.tensors(), reader.metadata()));
        let part = part.transpose()?;
        let known = Known { model: part.as_ref(), families, graphs: None };
        let (report, siblings) =
            validate_shard(shard, name, known, of_a_shard, pipeline, progress)?;
        let findings = report.findings.into_iter();
        found.findings.extend(
            findings
                .map(|finding| Finding { file: finding.file.or(Some(name.to_owned())), ..finding }),
        );
        found.siblings.extend(siblings);
        found.checks.extend(report.checks);
        found.bytes_read += report.bytes_read;
    }

    Ok(found)
}

/// Joins the reports on the whole model and on its shards into one report.
fn put_together(
    mut whole: ValidateReport,
    found: PartFindings,
    reader: &dyn CheckpointReader,
    options: ValidateOptions<'_>,
) -> ValidateReport {
    if found
        .findings
        .iter()
        .any(|finding| finding.check == Check::Structure && finding.level == Level::Error)
    {
        // What opening the manifest only warned about is reported in full now.
        whole.findings.retain(|finding| finding.check != Check::Structure);
    }
    whole.findings.extend(found.findings);
    whole.findings.extend(beside_siblings(reader, &whole.path, &found.siblings));
    whole.bytes_read = whole.bytes_read.saturating_add(found.bytes_read);
    let seen = Seen::of(reader, &whole.findings);
    let combine = |outcome: &CheckOutcome| {
        let of_shards: Vec<&CheckOutcome> =
            found.checks.iter().filter(|other| other.check == outcome.check).collect();
        combined(outcome, &of_shards, &whole.findings, &seen)
    };
    whole.checks = whole.checks.iter().flat_map(combine).collect();
    whole.valid = is_valid(&whole.findings, options.strict);
    whole
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

/// Numbers of tensors that could and could not be checked.
struct Seen {
    /// Number of tensors in existing shards.
    present: usize,
    /// Number of these tensors that have a digest.
    digests: usize,
    /// Number of these tensors whose bytes can't be decoded.
    undecoded: usize,
    /// Number of tensors in missing or wrong shards.
    absent: usize,
    /// `true` if tensors in missing shards are not described elsewhere.
    is_described_by_shards: bool,
    /// Noun for the shards.
    parts: &'static str,
}

impl Seen {
    fn of(reader: &dyn CheckpointReader, findings: &[Finding]) -> Self {
        let container = reader.container();
        let (mut present, mut digests, mut undecoded) = (0, 0, 0);
        let undecoded_names = undecoded_names(findings);
        for shard in (0..container.shard_count()).filter_map(|shard| container.shard(shard).ok()) {
            let tensors = shard.tensors().len();
            present += tensors;
            let has_digest = |&tensor: &usize| shard.stored(tensor).digest().is_some();
            digests += (0..tensors).filter(has_digest).count();
            // Tensors of shards that don't open are absent.
            let is_undecoded = |info: &&TensorInfo| undecoded_names.contains(info.name.as_str());
            undecoded += shard.tensors().iter().filter(is_undecoded).count();
        }
        let listed = reader.tensors().len().saturating_sub(present);
        let absent = listed
            + container.absence().map_or(0, |absence| {
                usize::try_from(absence.tensors).unwrap_or(usize::MAX - listed)
            });
        let is_described_by_shards = container.absence().is_some();
        // Entries of an archive have one file.
        let is_archive = reader.files().windows(2).all(|pair| pair[0].name == pair[1].name);
        let parts = if is_archive { "entries" } else { "shards" };
        Self { present, digests, undecoded, absent, is_described_by_shards, parts }
    }

    /// Tensors whose values were looked at.
    fn decoded(&self) -> String {
        counted((self.present - self.undecoded) as u64, "tensor")
    }

    /// Returns skipped outcomes for tensors that a check could not read, with the reasons.
    fn unread(&self, check: Check) -> Vec<CheckOutcome> {
        let reads_values = matches!(check, Check::Finite | Check::Zeros | Check::Physics);
        let absent = (self.absent, format!("their {} are absent or damaged", self.parts));
        let undecoded = if reads_values { self.undecoded } else { 0 };
        let undecoded = (undecoded, "bytes that don't decode".to_owned());
        let unread = [absent, undecoded].into_iter().filter(|(tensors, _)| *tensors > 0);
        let outcome = |(tensors, why): (usize, String)| CheckOutcome {
            check,
            status: Status::Skipped,
            detail: format!("{} not read: {why}", counted(tensors as u64, "tensor")),
        };
        unread.map(outcome).collect()
    }
}

/// Combines the outcomes of a check for the whole model and for its shards.
///
/// Adds skipped outcomes for tensors that could not be checked.
fn combined(
    whole: &CheckOutcome,
    shards: &[&CheckOutcome],
    findings: &[Finding],
    seen: &Seen,
) -> Vec<CheckOutcome> {
    let check = whole.check;
    let outcome = |detail: String| CheckOutcome::of(check, findings, detail);
    let found = outcome(String::new());
    if found.status != Status::Pass {
        return vec![found];
    }

    // A shard without a tensor of a kind has nothing to check, the others may.
    let mut all = shards.iter().copied().chain([whole]);
    let Some(passed) = all.find(|shard| shard.status == Status::Pass) else {
        let is_of_shards = matches!(
            check,
            Check::Checksum | Check::Digests | Check::Finite | Check::Zeros | Check::Physics
        );
        let skipped = shards.first().copied().filter(|_| is_of_shards);
        return vec![skipped.unwrap_or(whole).clone()];
    };
    let detail = match check {
        Check::Checksum => {
            let passed = shards.iter().filter(|shard| shard.status == Status::Pass).count();
            format!("CRC-32 of {}", counted(passed as u64, "shard"))
        }
        Check::Digests if seen.digests == 0 => {
            format!("CRC-32 of {}", counted(seen.present as u64, "tensor"))
        }
        Check::Digests => format!("BLAKE3 of {}", counted(seen.digests as u64, "tensor")),
        Check::Finite => finite_detail(&seen.decoded(), 0),
        Check::Zeros => seen.decoded(),
        Check::Physics => passed.detail.clone(),
        // Names and shapes of all tensors are known, unless the shards alone describe them.
        Check::Shapes if seen.is_described_by_shards => whole.detail.clone(),
        _ => return vec![whole.clone()],
    };

    let mut outcomes = vec![outcome(detail)];
    outcomes.extend(seen.unread(check));
    outcomes
}
