//! Conversion: one pass from a reader to a writer, in chunks.
//!
//! ```
//! use apr_registry::{CheckpointReader, Limits, PlanOptions, Serial};
//! use apr_ops::convert::{ConvertOptions, plan};
//!
//! let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 8]);
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! let mut converted = Vec::new();
//! let target = PlanOptions::new(&apr_registry::apr2::FORMAT, "model.apr");
//! let conversion = plan(&*model, &ConvertOptions::default(), &target)?;
//! conversion.run(&*model, &mut converted, &Serial, &())?;
//! assert!(converted.starts_with(b"APR2"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod judge;
mod receive;
mod recipe;
mod report;
mod work;

use apr_core::json::{from_python, to_python};
use apr_core::{Layout, Phase, Progress, Unlisted, counted, state_dtype, torch_name};
use apr_quantize::TensorTarget;
use apr_registry::apr2::CompanionFile;
use apr_registry::{
    CheckpointReader, CheckpointWriter, Convention, DType, Escaped, Loss, Metadata, Notes,
    Pipeline, PlanOptions, Result, Sink, TensorInfo, keys, onnx,
};
use apr_tensor::cast::can_cast;
use serde_json::json;

pub use error::ConvertError;
pub use report::{ConvertReport, ConvertedTensor, Learnt, Rounding};

use self::judge::Judge;
use self::receive::{Received, Receiver, Target};
use self::recipe::{Recipe, keep_forms, recipe};
use self::work::{ChunkBuffers, ChunkTask, Measures, TaskKind, Worker};
use crate::inline::{InlineValidator, ValidationConfig, ValidationReport};

/// The companion that states what the weights are.
const CONFIGURATION: &str = "config.json";

/// Changes that a conversion makes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConvertOptions {
    /// Target dtype of floats with 8 to 64 bits, except the tensor that an import added.
    pub precision: Option<DType>,
    /// Target dtype (16 or 32 bits) of quantized tensors and 8-bit floats.
    ///
    /// Quantized tensors are stored in blocks, or in codes and scales. The tensor that an import
    /// added is not converted.
    pub dequantize: Option<DType>,
    /// Target of each tensor, by position. The other options apply to tensors without one.
    ///
    /// If it is empty, no tensor has a target.
    pub targets: Vec<Option<TensorTarget>>,
    /// Warnings from choosing the targets, for the report.
    pub warnings: Vec<String>,
    /// Decompress tensors that are otherwise unchanged.
    ///
    /// By default they keep their stored form in the native container.
    pub decompress: bool,
    /// Store sparse tensors and factors dense.
    ///
    /// By default they keep their layout in the native container.
    pub dense: bool,
    /// Write weights in codes and scales in their stored form: see [`apr_view::Apart`].
    pub keeps_codes: bool,
}

impl ConvertOptions {
    /// Returns the target of a tensor.
    fn target(&self, tensor: usize, info: &TensorInfo, fixed: &Fixed<'_>) -> TensorTarget {
        if let Some(Some(target)) = self.targets.get(tensor) {
            return target.clone();
        }
        let from = info.dtype;
        if fixed.has(info) {
            return from.into();
        }
        let cast = |to: DType| from.is_float() && can_cast(from, to);
        let dequantize = self.dequantize.filter(|_| fixed.is_decoded(tensor, info));
        let to = dequantize.or(self.precision.filter(|&to| cast(to))).unwrap_or(from);
        to.into()
    }
}

/// Tensors that casts skip or treat differently.
///
/// These are the tensor that an import added, which stays unchanged, and weights in codes and
/// scales.
pub(crate) struct Fixed<'t> {
    auxiliary: Option<&'t str>,
    coded: Vec<bool>,
}

impl<'t> Fixed<'t> {
    pub(crate) fn of(reader: &'t dyn CheckpointReader) -> Self {
        let positions = 0..reader.tensors().len();
        let coded = positions.map(|at| reader.stored(at).coding().is_some()).collect();
        Self { auxiliary: reader.metadata().auxiliary_tensor(), coded }
    }

    pub(crate) fn has(&self, info: &TensorInfo) -> bool {
        self.auxiliary == Some(info.name.as_str())
    }

    /// Returns `true` if the weight at this position is stored in codes and scales.
    pub(crate) fn is_coded(&self, tensor: usize) -> bool {
        self.coded.get(tensor).copied().unwrap_or(false)
    }

    /// Returns `true` if dequantizing decodes the tensor at this position to other floats.
    pub(crate) fn is_decoded(&self, tensor: usize, info: &TensorInfo) -> bool {
        let dtype = info.dtype;
        self.is_coded(tensor)
            || dtype.is_quantized()
            || dtype.is_float() && dtype.block_bytes() == 1
    }
}

/// A planned conversion: sizes are known, but no data has been read or written.
pub struct Conversion {
    writer: Box<dyn CheckpointWriter>,
    recipes: Vec<Recipe>,
    validator: InlineValidator,
    /// The tensors as they will be.
    outputs: Vec<TensorInfo>,
    report: ConvertReport,
}

/// Plans a conversion from headers alone.
///
/// # Errors
/// E001 when the target can't hold a tensor, E007 and E008 when a companion can't be read.
pub fn plan(
    reader: &dyn CheckpointReader,
    options: &ConvertOptions,
    target: &PlanOptions,
) -> Result<Conversion> {
    let fixed = Fixed::of(reader);
    let infos = reader.tensors().iter().enumerate();
    let targets: Vec<TensorTarget> =
        infos.map(|(tensor, info)| options.target(tensor, info, &fixed)).collect();
    let recipes = targets.iter().enumerate().map(|(tensor, target)| recipe(reader, tensor, target));
    let recipes = recipes.collect::<Result<Vec<_>>>()?;
    let target_infos: Vec<TensorInfo> = reader
        .tensors()
        .iter()
        .zip(&targets)
        .map(|(info, target)| TensorInfo { dtype: target.dtype, ..info.clone() })
        .collect();

    let mut target = target.clone();
    let recipes = keep_forms(reader, recipes, options, &mut target);

    // Order is part of a safetensors file's identity only while its entries are the source's.
    let changed = recipes.iter().any(|recipe| !matches!(recipe, Recipe::Keep | Recipe::Stored(_)));
    let foreign = reader.metadata().get(keys::SAFETENSORS).is_none();
    let target = PlanOptions { canonical: target.canonical || changed || foreign, ..target };
    let mut metadata = target_metadata(reader, &target);
    let mut companions = read_companions(reader)?;
    let decoded = options.dequantize.filter(|_| fixed.coded.contains(&true));
    if let Some(dtype) = decoded.or_else(|| written_dtype(reader, &target_infos)) {
        let files = companions.iter_mut().filter(|file| file.name == CONFIGURATION);
        files.for_each(|file| restate(&mut file.bytes, dtype));
        if let Some(mut architecture) = metadata.object(keys::ARCHITECTURE).cloned()
            && !state_dtype(&mut architecture, dtype).is_empty()
        {
            metadata.set(keys::ARCHITECTURE, architecture);
        }
    }
    let writer = apr_registry::plan(&target_infos, &metadata, companions, &target)?;

    let tensors = describe(reader, &target_infos, &targets, &*writer);
    let elements =
        writer.layout().tensors.iter().map(|planned| target_infos[planned.source].shape.elements());
    let report = ConvertReport {
        format: reader.format(),
        files: writer.layout().files.clone(),
        made_folders: Vec::new(),
        elements: elements.map(Option::unwrap_or_default).fold(0, u64::saturating_add),
        bytes_in: tensors.iter().map(|tensor| tensor.bytes_before).sum(),
        bytes_out: writer.layout().total_len(),
        // Whoever writes one shard does not look at the tensors of others.
        tied: if target.shard.is_some() { 0 } else { target_infos.len() - tensors.len() },
        tensors,
        rounding: Rounding::default(),
        quantization: None,
        losses: losses(reader, &*writer),
        validation: None,
        warnings: warnings(reader)
            .into_iter()
            .chain(options.warnings.iter().cloned())
            .chain(multiplied_out(reader, &recipes, options, &target))
            .chain(decoded.and_then(|to| kept_beside(to, &target_infos, &fixed, &target)))
            .collect(),
        learnt: Learnt::default(),
    };

    let validator = InlineValidator::new(ValidationConfig::integrity());
    Ok(Conversion { writer, recipes, validator, outputs: target_infos, report })
}

/// Returns a warning if the output lacks the graph that explains infinite tensors.
fn without_graph(validation: &ValidationReport, losses: &[Loss]) -> Option<String> {
    let first = validation.by_graph.first()?;
    let is_lost = losses.iter().any(|loss| loss.name == onnx::skeleton::COMPANION);
    is_lost.then(|| {
        format!(
            "the output lacks the graph, which uses {} as masks or limits: without it, they are \
             infinite weights; the first is '{}'",
            counted(validation.by_graph.len() as u64, "infinite tensor"),
            Escaped::short(first)
        )
    })
}

/// Returns a warning about floats of other dtypes beside codes that are decoded to `to`.
fn kept_beside(
    to: DType,
    infos: &[TensorInfo],
    fixed: &Fixed<'_>,
    target: &PlanOptions,
) -> Option<String> {
    // llama.cpp's norms are always single precision.
    if target.format.convention == Convention::LlamaCpp {
        return None;
    }
    let is_other = |(at, info): &(usize, &TensorInfo)| {
        !fixed.is_coded(*at) && torch_name(info.dtype).is_some() && info.dtype != to
    };
    let others: Vec<&TensorInfo> =
        infos.iter().enumerate().filter(is_other).map(|(_, info)| info).collect();
    let first = others.first()?;
    Some(format!(
        "{} not quantized and keep their dtypes (such as {}), which libraries load as {to}; \
         `precision` {to} also casts them",
        match others.len() {
            1 => "1 tensor is".to_owned(),
            many => format!("{many} tensors are"),
        },
        first.dtype
    ))
}

/// Returns a warning if factors are written as their products although `dense` is not set.
fn multiplied_out(
    reader: &dyn CheckpointReader,
    recipes: &[Recipe],
    options: &ConvertOptions,
    target: &PlanOptions,
) -> Option<String> {
    if options.dense || !target.format.target.is_some_and(|target| target.seals) {
        return None;
    }
    let is_lost = |(tensor, recipe): (usize, &Recipe)| {
        let form = reader.stored(tensor).form();
        !matches!(recipe, Recipe::Stored(_)) && form.is_some_and(|form| form.is_factors())
    };
    let lost = recipes.iter().enumerate().filter(|found| is_lost(*found)).count() as u64;
    (lost > 0).then(|| {
        let tensors = apr_core::counted(lost, "factorized tensor");
        format!("{tensors} written dense: the dtype or the compression of factors can't change")
    })
}

/// Returns the dtype that most elements have in the output, for the configuration to state.
///
/// Returns it only if some tensor changes to another float dtype, and if most elements are floats
/// of 16 bits or more.
fn written_dtype(reader: &dyn CheckpointReader, infos: &[TensorInfo]) -> Option<DType> {
    let of_floats = |dtype: DType| torch_name(dtype).is_some();
    let is_new =
        |(from, to): (&TensorInfo, &TensorInfo)| from.dtype != to.dtype && of_floats(to.dtype);
    reader.tensors().iter().zip(infos).any(is_new).then_some(())?;

    let mut elements: Vec<(DType, u64)> = Vec::new();
    for info in infos.iter().filter(|info| info.dtype.is_float() || info.dtype.is_quantized()) {
        let count = info.shape.elements().unwrap_or_default();
        match elements.iter_mut().find(|(dtype, _)| *dtype == info.dtype) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => elements.push((info.dtype, count)),
        }
    }
    let (most, _) = elements.into_iter().max_by_key(|(_, count)| *count)?;
    Some(most).filter(|&dtype| of_floats(dtype))
}

/// Writes a dtype into the bytes of a configuration that states another one.
fn restate(bytes: &mut Vec<u8>, dtype: DType) {
    let Ok(mut config) = from_python(bytes) else { return };
    if !state_dtype(&mut config, dtype).is_empty() {
        *bytes = to_python(&config);
    }
}

fn target_metadata(reader: &dyn CheckpointReader, target: &PlanOptions) -> Metadata {
    let mut metadata = reader.metadata().clone();
    if target.format.target.is_some_and(|target| target.self_contained) {
        let file = reader.files().first().map_or("", |file| file.name.as_str());
        let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let tool = concat!("apr ", env!("CARGO_PKG_VERSION"));
        let mut source = metadata.object(keys::SOURCE).cloned().unwrap_or_default();
        for (key, value) in
            [("format", json!(reader.format())), ("file", json!(file)), ("tool", json!(tool))]
        {
            // A file that was converted before keeps what it says of its first source.
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
            Ok(CompanionFile {
                name: companion.name.clone(),
                bytes: reader.read_companion(position)?,
            })
        })
        .collect()
}

fn warnings(reader: &dyn CheckpointReader) -> Vec<String> {
    let mut warnings = reader.warnings().to_vec();
    if !reader.left_out().is_empty() {
        warnings.push(format!("not copied: {}", reader.left_out().join(", ")));
    }
    warnings
}

/// Returns the data that the target can't store.
///
/// If it drops the graph of an ONNX file, this includes the data that only the graph holds.
fn losses(reader: &dyn CheckpointReader, writer: &dyn CheckpointWriter) -> Vec<Loss> {
    let mut losses = writer.layout().losses.clone();
    let graph = losses.iter().find(|loss| loss.name == onnx::skeleton::COMPANION).cloned();
    let unlisted = reader.container().unlisted().iter().filter(|data| !data.names.is_empty());
    losses.extend(graph.iter().flat_map(|graph| {
        unlisted.clone().map(|Unlisted { what, names }| Loss {
            name: names.iter().take(3).cloned().collect::<Vec<_>>().join(", "),
            what: format!("{} of the graph: {what}", names.len()),
            why: graph.why.clone(),
        })
    }));
    losses
}

fn describe(
    reader: &dyn CheckpointReader,
    target_infos: &[TensorInfo],
    targets: &[TensorTarget],
    writer: &dyn CheckpointWriter,
) -> Vec<ConvertedTensor> {
    let planned = writer.layout().tensors.iter();
    planned
        .map(|planned| {
            let source = &reader.tensors()[planned.source];
            let converted = reader.stored(planned.source).before();
            let own = || (source.dtype, source.byte_len().unwrap_or_default());
            let (from, bytes_before) = converted.unwrap_or_else(own);
            ConvertedTensor {
                name: target_infos[planned.source].name.clone(),
                from,
                to: target_infos[planned.source].dtype,
                bytes_before,
                is_cast: source.dtype != target_infos[planned.source].dtype,
                bytes_after: planned.len,
                why: targets[planned.source].why.clone(),
            }
        })
        .collect()
}

impl Conversion {
    /// Returns the report of the planned conversion.
    #[must_use]
    pub fn report(&self) -> &ConvertReport {
        &self.report
    }

    /// The tensors as they will be, in the reader's order.
    #[must_use]
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// Returns the layout of the tensors in the output.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.writer.layout()
    }

    /// Returns the file that lists all other files, as far as it is known: see
    /// [`CheckpointWriter::manifest`].
    #[must_use]
    pub fn manifest(&self) -> Option<Vec<u8>> {
        self.writer.manifest()
    }

    /// Judges each tensor while it is converted; the validator's tensors are the reader's.
    #[must_use]
    pub fn validated_by(self, validator: InlineValidator) -> Self {
        Self { validator, ..self }
    }

    /// Adds warnings from before the conversion to the report.
    #[must_use]
    pub fn after_warning(mut self, warnings: Vec<String>) -> Self {
        self.report.warnings.extend(warnings);
        self
    }

    /// Adds losses from before the conversion to the report.
    #[must_use]
    pub fn after_losing(mut self, losses: Vec<Loss>) -> Self {
        self.report.losses.splice(0..0, losses);
        self
    }

    /// Reads, converts and writes everything. Bytes of a source with digests are checked against
    /// them on the way.
    ///
    /// # Errors
    /// E004 when a tensor's bytes don't match its digest, the first violation that the validator
    /// does not let pass, otherwise what reader and sink say; the output is then incomplete and
    /// must be dropped.
    pub fn run<P: Pipeline>(
        self,
        reader: &dyn CheckpointReader,
        sink: &mut dyn Sink,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<ConvertReport, ConvertError> {
        let Self { mut writer, recipes, validator, mut report, .. } = self;
        let encoder = writer.encoder();
        let measures =
            Measures { sums: writer.wants_sums(), moments: validator.config().reads_values() };
        let worker = Worker { reader, recipes: &recipes, measures, encoder: encoder.as_deref() };
        worker.learn(&*writer, pipeline)?;
        let (tasks, checks) = worker.tasks(&*writer)?;
        let produce = |at: usize, slot: &mut ChunkBuffers| worker.produce(tasks[at], &checks, slot);

        let written = |task: &&ChunkTask| matches!(task.kind, TaskKind::Write | TaskKind::Encode);
        let total = tasks.iter().filter(written).map(|task| task.chunk.len as u64).sum();
        progress.begin(Phase::Converting, total);
        writer.begin(sink)?;
        let target = Target { writer: &mut *writer, sink: &mut *sink, progress };
        let mut receiver = Receiver::new(worker, &checks, target, Judge::new(validator));
        let outcome =
            pipeline.run(tasks.len(), produce, |at, slot| receiver.receive(tasks[at], slot));
        let Received { validator, rounding, quality, losses, mismatches } =
            receiver.finish(outcome)?;

        report.rounding = rounding;
        report.learnt.measured = quality.measured().to_vec();
        report.quantization = quality.finish();
        let validation = validator.finish();
        let violations: Vec<_> =
            validation.errors.iter().filter_map(|error| serde_json::to_value(error).ok()).collect();
        (report.learnt.losses, report.learnt.violations) = (losses.clone(), violations.clone());
        let degradation =
            report.quantization.as_ref().and_then(|report| report.degradation.as_ref());
        let degradation =
            degradation.and_then(|degradation| serde_json::to_value(degradation).ok());
        let notes = Notes { losses, violations, degradation };
        writer.finish(sink, &notes)?;
        report.measure(writer.layout(), mismatches + writer.mismatches());
        report.losses.extend(notes.losses);
        report.warnings.extend(without_graph(&validation, &report.losses));
        let silent = validation.errors.is_empty() && validation.warnings.is_empty();
        report.validation = (measures.moments || !silent).then_some(validation);
        Ok(report)
    }
}
