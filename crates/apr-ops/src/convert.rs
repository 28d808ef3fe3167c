//! Conversion: one pass from a reader to a writer, in chunks.
//!
//! ```
//! use apr::{CheckpointReader, Limits, PlanOptions, Serial, TargetFormat};
//! use apr_ops::convert::{ConvertOptions, plan};
//!
//! let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 8]);
//! let model = apr::open(file, "model.safetensors", &Limits::default())?;
//!
//! let mut converted = Vec::new();
//! let target = PlanOptions::new(TargetFormat::Apr2, "model.apr");
//! let conversion = plan(&*model, &ConvertOptions::default(), &target)?;
//! conversion.run(&*model, &mut converted, &Serial, &())?;
//! assert!(converted.starts_with(b"APR2"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use apr::apr2::CompanionFile;
use apr::digest::{ChunkSums, Crc32, TensorDigest};
use apr::{
    CheckpointReader, CheckpointWriter, DType, Error, FormatId, Loss, Metadata, Notes, Pipeline, PlanOptions, Result,
    Sink, TargetFormat, TensorInfo, keys,
};
use apr_tensor::cast::{CastCounts, can_cast, cast_float};
use apr_tensor::element::is_decodable;
use apr_tensor::stats::{Moments, Scratch};
use serde::Serialize;
use serde_json::json;

use crate::chunks::{Chunk, chunks, take};
use crate::inline::{InlineValidator, ValidationConfig, ValidationError, ValidationReport};
use crate::{Progress, counted};

/// Why a conversion ended early.
#[derive(Debug)]
pub enum ConvertError {
    /// The source can't be read or the target not be written.
    Model(Error),
    /// A tensor is not what a healthy model has, and errors end the job.
    Invalid(ValidationError),
}

impl From<Error> for ConvertError {
    fn from(error: Error) -> Self {
        Self::Model(error)
    }
}

impl From<ValidationError> for ConvertError {
    fn from(error: ValidationError) -> Self {
        Self::Invalid(error)
    }
}

impl std::fmt::Display for ConvertError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConvertError {}

/// What a conversion changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConvertOptions {
    /// Cast tensors of 16 to 64 bit floats to this dtype.
    pub precision: Option<DType>,
}

/// A tensor's way through a conversion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConvertedTensor {
    /// Name in the target.
    pub name: String,
    /// Dtype in the source.
    pub from: DType,
    /// Dtype in the target.
    pub to: DType,
    /// Bytes in the source.
    pub bytes_before: u64,
    /// Bytes in the target.
    pub bytes_after: u64,
}

/// What a conversion did, or would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConvertReport {
    /// Format read.
    pub from: FormatId,
    /// Files written, or to be written, with their lengths in bytes.
    pub files: Vec<apr_core::FileInfo>,
    /// The tensors, in the order they are written.
    pub tensors: Vec<ConvertedTensor>,
    /// Tensors that are another one's bytes, and not written again.
    pub tied: usize,
    /// Bytes of tensors read.
    pub bytes_in: u64,
    /// Bytes of all files written.
    pub bytes_out: u64,
    /// Rounding of casts, in elements.
    pub rounding: Rounding,
    /// What the target can't hold.
    pub losses: Vec<Loss>,
    /// What the tensors' values are like, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<ValidationReport>,
    /// What is odd about the source.
    pub warnings: Vec<String>,
}

/// How many elements a cast changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Rounding {
    /// Not representable, rounded to the nearest value.
    pub inexact: u64,
    /// Too small, became zero.
    pub flushed: u64,
    /// Too large, became infinite.
    pub overflowed: u64,
}

/// A planned conversion: sizes are known, nothing was read or written.
pub struct Conversion {
    writer: Box<dyn CheckpointWriter>,
    casts: Vec<Option<DType>>,
    validator: InlineValidator,
    report: ConvertReport,
}

/// Plans a conversion from headers alone.
///
/// # Errors
/// E001 when the target can't hold a tensor, E007 and E008 when a companion can't be read.
pub fn plan(reader: &dyn CheckpointReader, options: &ConvertOptions, target: &PlanOptions) -> Result<Conversion> {
    let casts: Vec<Option<DType>> =
        reader.tensors().iter().map(|info| options.precision.and_then(|to| cast_of(info.dtype, to))).collect();
    let target_infos: Vec<TensorInfo> = reader
        .tensors()
        .iter()
        .zip(&casts)
        .map(|(info, cast)| TensorInfo { dtype: cast.unwrap_or(info.dtype), ..info.clone() })
        .collect();

    // Order is part of a safetensors file's identity only while its entries are the source's.
    let changed = casts.iter().any(Option::is_some);
    let foreign = reader.metadata().get(keys::SAFETENSORS).is_none();
    let target = PlanOptions { canonical: target.canonical || changed || foreign, ..target.clone() };
    let metadata = target_metadata(reader, &target);
    let writer = apr::plan(&target_infos, &metadata, read_companions(reader)?, &target)?;

    let tensors = describe(reader, &target_infos, &*writer);
    let report = ConvertReport {
        from: reader.format(),
        files: writer.layout().files.clone(),
        bytes_in: tensors.iter().map(|tensor| tensor.bytes_before).sum(),
        bytes_out: writer.layout().total_len(),
        tied: target_infos.len() - tensors.len(),
        tensors,
        rounding: Rounding::default(),
        losses: writer.layout().losses.clone(),
        validation: None,
        warnings: warnings(reader),
    };
    let validator = InlineValidator::new(ValidationConfig::off());
    Ok(Conversion { writer, casts, validator, report })
}

fn cast_of(from: DType, to: DType) -> Option<DType> {
    (from != to && from.is_float() && can_cast(from, to)).then_some(to)
}

fn target_metadata(reader: &dyn CheckpointReader, target: &PlanOptions) -> Metadata {
    let mut metadata = reader.metadata().clone();
    if target.format == TargetFormat::Apr2 {
        let file = reader.files().first().map_or("", |file| file.name.as_str());
        let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let tool = concat!("apr ", env!("CARGO_PKG_VERSION"));
        let mut source = metadata.object(keys::SOURCE).cloned().unwrap_or_default();
        for (key, value) in [("format", json!(reader.format())), ("file", json!(file)), ("tool", json!(tool))] {
            source.entry(key).or_insert(value);
        }
        metadata.set(keys::SOURCE, source);
    }
    metadata
}

fn read_companions(reader: &dyn CheckpointReader) -> Result<Vec<CompanionFile>> {
    let companions = reader.companions().iter().enumerate();
    companions
        .map(|(position, companion)| {
            Ok(CompanionFile { name: companion.name.clone(), bytes: reader.read_companion(position)? })
        })
        .collect()
}

fn warnings(reader: &dyn CheckpointReader) -> Vec<String> {
    let mut warnings = reader.warnings().to_vec();
    if !reader.left_out().is_empty() {
        warnings.push(format!("not carried along: {}", reader.left_out().join(", ")));
    }
    warnings
}

fn describe(
    reader: &dyn CheckpointReader,
    target_infos: &[TensorInfo],
    writer: &dyn CheckpointWriter,
) -> Vec<ConvertedTensor> {
    let planned = writer.layout().tensors.iter();
    planned
        .map(|planned| {
            let source = &reader.tensors()[planned.source];
            ConvertedTensor {
                name: target_infos[planned.source].name.clone(),
                from: source.dtype,
                to: target_infos[planned.source].dtype,
                bytes_before: source.byte_len().unwrap_or_default(),
                bytes_after: planned.len,
            }
        })
        .collect()
}

/// One chunk on its way; the buffers are reused.
#[derive(Default)]
struct Slot {
    input: Vec<u8>,
    output: Vec<u8>,
    input_sums: Option<ChunkSums>,
    output_sums: Option<ChunkSums>,
    counts: CastCounts,
    scratch: Scratch,
    moments: Option<Moments>,
}

/// A chunk and the tensor it belongs to.
#[derive(Clone, Copy)]
struct Job {
    tensor: usize,
    chunk: Chunk,
    len: u64,
}

impl Conversion {
    /// What will be done.
    #[must_use]
    pub fn report(&self) -> &ConvertReport {
        &self.report
    }

    /// Judges each tensor while it is converted; the validator's tensors are the reader's.
    #[must_use]
    pub fn validated_by(self, validator: InlineValidator) -> Self {
        Self { validator, ..self }
    }

    /// Reads, converts and writes everything. Bytes of a source with digests are checked against them on the way.
    ///
    /// # Errors
    /// E004 when a tensor's bytes don't match its digest, the first violation that the validator does not let pass,
    /// otherwise what reader and sink say; the output is then incomplete and must be dropped.
    pub fn run<P: Pipeline>(
        self,
        reader: &dyn CheckpointReader,
        sink: &mut dyn Sink,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<ConvertReport, ConvertError> {
        let Self { mut writer, casts, validator, mut report } = self;
        let wanted = Wanted { sums: writer.wants_sums(), moments: validator.config().reads_values() };
        let jobs = jobs(reader, &*writer)?;
        let produce = |at: usize, slot: &mut Slot| produce(reader, jobs[at], casts[jobs[at].tensor], wanted, slot);

        let mut digest = TensorDigest::new();
        let mut judge = Judge { validator, crc: Crc32::new(), moments: Moments::default() };
        let mut counts = CastCounts::default();
        let mut losses = Vec::new();
        let mut violation = None;
        writer.begin(sink)?;
        let outcome = pipeline.run(jobs.len(), produce, |at, slot| {
            let Job { tensor, chunk, .. } = jobs[at];
            let info = &reader.tensors()[tensor];
            let input = &slot.input[..chunk.len];
            check_digest(reader, tensor, chunk, input, slot.input_sums, &mut digest)?;
            if let Err(error) = judge.see(reader, jobs[at], slot) {
                violation = Some(error);
                // The pipeline's errors are the model's; what is meant is told below.
                return Err(Error::corrupt("a violation ended the job").for_tensor(&info.name));
            }
            let cast = casts[tensor];
            writer.write_chunk(sink, if cast.is_some() { &slot.output } else { input }, slot.output_sums)?;
            progress.advance(chunk.len as u64);
            if let Some(to) = cast {
                counts.merge(slot.counts);
                if chunk.last {
                    let counts = std::mem::take(&mut counts);
                    report.rounding.add(counts);
                    losses.extend(overflow_loss(&info.name, to, counts));
                }
            }
            Ok(())
        });
        if let Some(violation) = violation {
            return Err(violation.into());
        }
        outcome?;
        let validation = judge.validator.finish();
        let violations = validation.errors.iter().filter_map(|error| serde_json::to_value(error).ok()).collect();
        let notes = Notes { losses, violations };
        writer.finish(sink, &notes)?;
        report.losses.extend(notes.losses);
        report.validation = (wanted.moments || !validation.errors.is_empty()).then_some(validation);
        Ok(report)
    }
}

/// Puts the parts of a tensor together and hands it to the validator when it is complete.
struct Judge {
    validator: InlineValidator,
    crc: Crc32,
    moments: Moments,
}

impl Judge {
    fn see(&mut self, reader: &dyn CheckpointReader, job: Job, slot: &Slot) -> Result<(), ValidationError> {
        let Job { tensor, chunk, .. } = job;
        let name = &reader.tensors()[tensor].name;
        if let Some(stated) = reader.crc32(tensor) {
            match slot.input_sums {
                Some(sums) => self.crc.append(sums),
                None => self.crc.update(&slot.input[..chunk.len]),
            }
            if chunk.last {
                let found = std::mem::take(&mut self.crc).value();
                self.validator.validate_checksum(tensor, name, (stated, found))?;
            }
        }
        if let Some(part) = &slot.moments {
            self.moments.merge(part);
            if chunk.last {
                let stats = std::mem::take(&mut self.moments).finish();
                self.validator.validate_stats(tensor, name, &stats)?;
            }
        }
        Ok(())
    }
}

/// What to compute of each chunk.
#[derive(Clone, Copy)]
struct Wanted {
    sums: bool,
    moments: bool,
}

fn jobs(reader: &dyn CheckpointReader, writer: &dyn CheckpointWriter) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for planned in &writer.layout().tensors {
        let info = &reader.tensors()[planned.source];
        let len = info.byte_len()?;
        jobs.extend(chunks(info, len).map(|chunk| Job { tensor: planned.source, chunk, len }));
    }
    // Empty tensors have no chunk to write.
    jobs.retain(|job| job.len > 0);
    Ok(jobs)
}

fn produce(
    reader: &dyn CheckpointReader,
    job: Job,
    cast: Option<DType>,
    wanted: Wanted,
    slot: &mut Slot,
) -> Result<()> {
    let Job { tensor, chunk, len } = job;
    let input = take(&mut slot.input, chunk.len);
    reader.read_tensor(tensor, chunk.offset, input)?;
    let input = &*input;
    let check = chunk.summable && reader.digest(tensor).is_some();
    slot.input_sums =
        (check || (wanted.sums && cast.is_none() && chunk.summable)).then(|| ChunkSums::of(input, chunk.offset, len));
    slot.output_sums = slot.input_sums;
    let from = reader.tensors()[tensor].dtype;
    slot.moments = (wanted.moments && is_decodable(from)).then(|| Moments::of(from, input, &mut slot.scratch));
    if let Some(to) = cast {
        slot.counts = cast_float(from, to, input, &mut slot.output);
        let scaled = |bytes: u64| bytes / from.block_bytes() * to.block_bytes();
        slot.output_sums = wanted.sums.then(|| ChunkSums::of(&slot.output, scaled(chunk.offset), scaled(len)));
    }
    Ok(())
}

fn check_digest(
    reader: &dyn CheckpointReader,
    tensor: usize,
    chunk: Chunk,
    bytes: &[u8],
    sums: Option<ChunkSums>,
    digest: &mut TensorDigest,
) -> Result<()> {
    let Some(expected) = reader.digest(tensor) else { return Ok(()) };
    match sums {
        Some(sums) => digest.append(sums),
        None => digest.update(bytes),
    }
    if chunk.last && std::mem::take(digest).value() != expected {
        let file = reader.files().first().map_or("", |file| file.name.as_str());
        return Err(Error::checksum("its bytes do not match its digest")
            .for_tensor(&reader.tensors()[tensor].name)
            .at(reader.stored(tensor).offset)
            .in_file(file));
    }
    Ok(())
}

fn overflow_loss(name: &str, to: DType, counts: CastCounts) -> Option<Loss> {
    (counts.overflowed > 0).then(|| Loss {
        name: name.to_owned(),
        what: format!("{} became infinite", counted(counts.overflowed, "value")),
        why: format!("they exceed the range of {to}"),
    })
}

impl Rounding {
    fn add(&mut self, counts: CastCounts) {
        self.inexact += counts.inexact;
        self.flushed += counts.flushed;
        self.overflowed += counts.overflowed;
    }
}
