//! What a job does to the weights: casts, quantization, and back.

use std::collections::BTreeMap;

use apr_quantize::{
    Casts, Choices, Layout, QualityGate, Quantization, Rounded, Scheme, SchemeKind, TensorTarget,
    TensorType, Weighting, plan, record, record_cast, record_dequantized,
};
use apr_registry::{
    CheckpointReader, Convention, DType, Format, QuantizedTypes, TensorInfo, apr2, onnx,
    safetensors,
};
use apr_source::Source;
use apr_tensor::cast::can_cast;
use apr_view::{NamePattern, View, states_quantization};

use super::error::JobError;
use crate::convert::{ConvertOptions, Fixed};
use crate::products::Ranges;

/// Dtypes that a target format requires, by position.
type Dtypes = Vec<Option<DType>>;

/// Treatment of the weights.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    /// Quantization of the weights.
    pub quantize: Option<Quantization>,
    /// Turn quantized tensors and floats of 8 bits into floats of this dtype.
    pub dequantize: Option<DType>,
    /// Cast floats of 8 to 64 bits to this dtype.
    pub precision: Option<DType>,
    /// The source was computed in [`precision`](Self::precision), which has its effect there.
    pub is_computed: bool,
    /// Limits for the difference between output and source, for any cause: see [`Job::gate`].
    ///
    /// [`Job::gate`]: super::Job::gate
    pub gate: Option<QualityGate>,
    /// Report exceeded limits of the gate, but write the output anyway.
    pub gate_only_tells: bool,
    /// Decompress tensors that are otherwise unchanged.
    ///
    /// By default they keep their stored form in the native container.
    pub decompress: bool,
    /// Store sparse tensors and factors dense, which keep their layout in the native container
    /// otherwise.
    pub dense: bool,
    /// Weights of the source, by name, that were rounded for a layout before the job, by inputs of
    /// a calibration run: see [`Job::laid_weights`].
    ///
    /// [`Job::laid_weights`]: super::Job::laid_weights
    pub rounded: BTreeMap<String, Rounded>,
    /// The output would be a copy of the source without the requested types: a request that
    /// changes no tensor is then an error instead of a warning.
    pub must_change: bool,
    /// Ranges of activations, measured before the job, for integer products that quantize their
    /// activations by them: see [`multiplies_integers`].
    pub ranges: Option<Ranges>,
    /// Names of nodes that compute in single precision, in graphs with products of integers and in
    /// graphs that compute in halves.
    pub exclude_nodes: Vec<NamePattern>,
    /// Warnings about the request, which are added to the report.
    pub warnings: Vec<String>,
}

impl Weights {
    /// Returns `true` if tensors change their dtypes.
    pub(super) fn change_dtypes(&self) -> bool {
        self.quantize.is_some() || self.dequantize.is_some() || self.precision.is_some()
    }

    /// The layout of codes and scales that the weights get in this format.
    #[must_use]
    pub fn layout(&self, format: &Format) -> Option<Layout> {
        layout_of(self.quantize.as_ref()?.choices.scheme, format)
    }

    /// Readers of llama.cpp's files count on norms in single precision: a cast is then one of the
    /// weights, as a scheme is.
    fn cast_of_weights(&self, format: &Format) -> Option<Scheme> {
        if format.convention != Convention::LlamaCpp || self.quantize.is_some() {
            return None;
        }
        match self.precision? {
            DType::F32 => Some(Scheme::Fp32),
            DType::F16 => Some(Scheme::Fp16),
            DType::BF16 => Some(Scheme::Bf16),
            _ => None,
        }
    }

    /// Decides about the tensors of a view, and writes down there what becomes of them. `dtypes`
    /// are those that the target format wants, by position.
    pub(super) fn apply(
        &self,
        view: &mut View<'_>,
        dtypes: Dtypes,
        format: &'static Format,
        source: &Source<'_>,
    ) -> Result<ConvertOptions, JobError> {
        if let (Some(quantize), Some(_)) = (&self.quantize, self.precision) {
            let message = format!(
                "`precision` and {} are two types for the same tensors",
                quantize.choices.scheme
            );
            return Err(JobError::Request(message));
        }

        let cast = self.cast_of_weights(format).map(Quantization::to);
        let precision = self.precision.filter(|_| cast.is_none());
        let mut options = ConvertOptions {
            precision,
            dequantize: self.dequantize,
            targets: dtypes.into_iter().map(|dtype| dtype.map(TensorTarget::from)).collect(),
            warnings: self.warnings.clone(),
            decompress: self.decompress,
            dense: self.dense,
            keeps_codes: self.keeps_codes(format, source.reader()),
        };

        let fixed = Fixed::of(view);
        let mut infos = view.tensors().iter().enumerate();
        let has_blocks = infos.any(|(at, info)| fixed.is_decoded(at, info));
        let mut idle = self.idle(view, source.reader(), &options);
        if self.layout(format).is_some() {
            // What is laid out is a reader of its own.
        } else if let Some(quantize) = self.quantize.as_ref().or(cast.as_ref()) {
            quantize_into(quantize, view, &mut options, format, source)?;
            let same = |(target, info): (&Option<TensorTarget>, &TensorInfo)| {
                target.as_ref().is_none_or(|target| target.dtype == info.dtype)
            };
            if idle.is_empty() && options.targets.iter().zip(view.tensors()).all(same) {
                idle.push(format!(
                    "{} has no effect: no tensor changes its type",
                    quantize.choices.scheme
                ));
            }
        } else if let Some(dtype) = self.dequantize.filter(|_| has_blocks) {
            record_dequantized(view.metadata_mut(), dtype)?;
        } else if let Some(dtype) = precision.filter(|_| !has_blocks) {
            record_cast(view, dtype)?;
        }

        // llama-quantize writes a copy, too.
        let copies = self.quantize.is_some() && format.convention == Convention::LlamaCpp;
        let is_same = *source.reader().format() == *format && !copies;
        let asked = [self.quantize.is_some(), self.dequantize.is_some(), self.precision.is_some()];
        let is_idle = idle.len() >= asked.into_iter().filter(|asked| *asked).count();
        match idle.first() {
            Some(message) if self.must_change && is_same && is_idle => {
                Err(JobError::Request(message.clone()))
            }
            _ => {
                options.warnings.extend(idle);
                Ok(options)
            }
        }
    }

    /// Returns a warning if it is requested to dequantize, and no tensor is decoded.
    pub(super) fn idle_dequantize(
        &self,
        decodes: bool,
        source: &dyn CheckpointReader,
    ) -> Option<String> {
        // What a configuration states of weights that are plain is removed.
        let is_idle = !decodes && self.quantize.is_none() && !states_quantization(source);
        self.dequantize.filter(|_| is_idle).map(|to| {
            format!("`dequantize` {to} has no effect: no tensor is quantized or of 8-bit floats")
        })
    }

    /// Returns warnings about requested casts that have no effect.
    fn idle(
        &self,
        view: &View<'_>,
        source: &dyn CheckpointReader,
        options: &ConvertOptions,
    ) -> Vec<String> {
        let is_own = |at: usize| !matches!(options.targets.get(at), Some(Some(_)));
        let tensors = view.tensors();
        let fixed = Fixed::of(view);
        let is_kept = |at: usize| options.keeps_codes && fixed.is_coded(at);
        let free = tensors.iter().enumerate();
        let free = free.filter(|(at, info)| is_own(*at) && !fixed.has(info) && !is_kept(*at));
        let decodes = free.clone().any(|(at, info)| fixed.is_decoded(at, info));
        let is_cast = |to: DType| {
            let new = |dtype: DType| dtype != to && dtype.is_float() && can_cast(dtype, to);
            free.clone().any(|(_, info)| new(info.dtype))
        };

        let mut idle: Vec<_> = self.idle_dequantize(decodes, source).into_iter().collect();
        if let Some(to) = self.precision.filter(|&to| !self.is_computed && !is_cast(to)) {
            let infos = tensors.iter().enumerate();
            let quantized = infos.filter(|(at, info)| info.dtype.is_quantized() || is_kept(*at));
            let quantized = quantized.count();
            let why = match quantized {
                0 => format!("all floats are {to} before"),
                count => {
                    let count = apr_core::counted(count as u64, "tensor");
                    format!("{count} are quantized, which `dequantize` changes")
                }
            };
            idle.push(format!("`precision` {to} has no effect: {why}"));
        }
        idle
    }
}

/// Returns `true` if a scheme turns the products of a graph into products of integers in this
/// format, as [`products`](crate::products) describes.
#[must_use]
pub fn multiplies_integers(scheme: Scheme, format: &Format) -> bool {
    matches!(scheme, Scheme::W8A8 | Scheme::Int8) && *format == onnx::FORMAT
}

/// The layout of codes and scales that a scheme means in a format. The native container keeps
/// those that it has no blocks for, for a folder that is written of it later.
#[must_use]
pub fn layout_of(scheme: Scheme, format: &Format) -> Option<Layout> {
    let is_laid = match format.convention {
        Convention::Canonical => *format == apr2::FORMAT && scheme.kind() == SchemeKind::Layout,
        _ => *format == safetensors::FORMAT,
    };
    Layout::of(scheme).filter(|_| is_laid)
}

/// Gives every tensor of the view its type, and writes into the view's metadata how it was
/// quantized.
fn quantize_into(
    asked: &Quantization,
    view: &mut View<'_>,
    options: &mut ConvertOptions,
    format: &'static Format,
    source: &Source<'_>,
) -> Result<(), JobError> {
    let scheme = asked.choices.scheme;
    check_types(scheme, format)?;
    let laid = |(_, wanted): &&(NamePattern, TensorType)| wanted.dtype().is_none();
    if let Some((pattern, wanted)) = asked.choices.overrides.iter().find(laid) {
        return Err(JobError::Request(format!(
            "`tensor_type` {}={wanted}: a layout of codes and scales, beside {scheme}",
            pattern.text()
        )));
    }
    let quantization = for_format(asked, format);
    options
        .warnings
        .extend(asked.weighting.as_ref().and_then(|weighting| without_blocks(weighting, scheme)));
    let family = source.family_in(view)?;
    let planned = plan(view, family.as_ref(), &quantization).map_err(JobError::unsuited)?;

    // It borrows the view, which gets a record below.
    drop(family);
    options.warnings.extend(planned.warnings);
    let targets = &mut options.targets;
    targets.resize(planned.targets.len(), None);
    for (target, (info, planned)) in
        targets.iter_mut().zip(view.tensors().iter().zip(planned.targets))
    {
        let Some(planned) = planned else { continue };
        match target {
            // What the scheme leaves alone still gets the type that the format wants.
            Some(target) if planned.dtype == info.dtype => target.why = planned.why,
            _ => *target = Some(planned),
        }
    }
    let bits = bits_per_weight(view, targets);
    Ok(record(view, &quantization, bits, format)?)
}

/// Returns the requested quantization as it applies to a target of this format.
fn for_format(asked: &Quantization, format: &Format) -> Quantization {
    let casts = if format.convention == Convention::LlamaCpp {
        Casts::Weights
    } else {
        asked.choices.casts
    };
    let weighting =
        asked.weighting.clone().filter(|_| asked.choices.scheme.kind() == SchemeKind::Blocks);
    Quantization { choices: Choices { casts, ..asked.choices.clone() }, weighting }
}

/// Returns a warning that importance weights have no effect without blocks.
///
/// llama.cpp does not warn.
fn without_blocks(weighting: &Weighting, scheme: Scheme) -> Option<String> {
    let has_blocks = scheme.kind() == SchemeKind::Blocks;
    (!has_blocks).then(|| format!("{} has no effect: {scheme} has no blocks", called(weighting)))
}

/// Returns the name of a weighting in reports.
pub(super) const fn called(weighting: &Weighting) -> &'static str {
    match weighting {
        Weighting::Matrix { .. } => "the importance matrix",
        Weighting::Columns(_) => "the calibration",
    }
}

/// Refuses a scheme whose types the target format does not have.
fn check_types(scheme: Scheme, format: &Format) -> Result<(), JobError> {
    let is_quantized = matches!(scheme.kind(), SchemeKind::Rows | SchemeKind::Blocks);
    let Some(target) = format.target else { return Ok(()) };
    let advice = match target.quantized {
        _ if scheme.kind() == SchemeKind::Layout => format!(
            "{scheme} is a layout of safetensors folders: write one with `format` safetensors, or \
             an .apr file for one; {} has blocks, such as q8_0 and q4_k_m",
            format.name
        ),
        QuantizedTypes::Ggml if scheme.file_type().is_none() => format!(
            "{} does not support {scheme}: q8_0 and q4_0 are near int8 and int4, fp16 and bf16 \
             are floats",
            format.name
        ),
        // Blocks of other schemes, or of the types that their mixes have, are more than that.
        QuantizedTypes::Unpacked if scheme == Scheme::Q8_0 => format!(
            "{} does not support {scheme}: write an .apr or .gguf file; `apr export` makes \
             integers and scales of it",
            format.name
        ),
        QuantizedTypes::Unpacked if is_quantized => format!(
            "{} does not support {scheme}: write an .apr or .gguf file, or one of the layouts \
             that servers load: fp8, w8a8, w4a16, mxfp4, mlx-4",
            format.name
        ),
        QuantizedTypes::None if is_quantized => {
            format!("{} does not support {scheme}: write an .apr or .gguf file", format.name)
        }
        _ => return Ok(()),
    };

    Err(JobError::Request(advice))
}

/// Bits that an element of the tensors that get quantized takes, scales included.
fn bits_per_weight(view: &View<'_>, targets: &[Option<TensorTarget>]) -> Option<f64> {
    let (mut bytes, mut elements) = (0.0, 0.0);
    for (info, target) in view.tensors().iter().zip(targets) {
        let dtype = target.as_ref().map_or(info.dtype, |target| target.dtype);
        if let (true, Some(len), Some(count)) =
            (dtype.is_quantized(), dtype.stored_len(&info.shape), info.shape.elements())
        {
            bytes += len as f64;
            elements += count as f64;
        }
    }
    (elements > 0.0).then(|| bytes * 8.0 / elements)
}
