//! `apr quantize`, and what `--quantize` means elsewhere.

use std::path::Path;

use apr::{ByteSource, CheckpointReader, Code, Convention, DType, Error, Escaped, Format, QuantizedTypes, read_vec};
use apr_io::io_error;
use apr_ops::convert::ConvertOptions;
use apr_quantize::{
    Casts, Choices, Imatrix, QualityGate, Quantization, Scheme, SchemeKind, TensorTarget, Weighting,
    importance_from_csv, plan, record, record_cast, record_dequantized,
};
use apr_view::{View, parse_filter};

use super::convert::{self, Request};
use crate::args::{QuantizeArgs, QuantizeOptions};
use crate::context::Context;
use crate::failure::Failure;
use crate::{Outcome, model};

/// What is asked for about the types of tensors.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) scheme: Option<Scheme>,
    pub(super) dequantize: Option<DType>,
    pub(super) precision: Option<DType>,
    pub(super) options: &'a QuantizeOptions,
}

/// Quantizes a model.
pub(super) fn run(args: &QuantizeArgs, context: &Context) -> Outcome {
    convert::run(
        &Request {
            model: &args.model,
            prefix: args.prefix.as_deref(),
            format: args.format,
            write: &args.write,
            shard_size: args.shard_size,
            align: None,
            streaming: false,
            wanted: Wanted {
                scheme: Some(args.scheme),
                dequantize: None,
                precision: args.write.precision.map(crate::args::Precision::dtype),
                options: &args.options,
            },
            judged: true,
            changes: None,
        },
        context,
    )
}

impl Wanted<'_> {
    /// Decides about the tensors of a view, and writes down there what becomes of them. `dtypes` are those that the target
    /// format wants, by position.
    pub(super) fn apply(
        &self,
        view: &mut View<'_>,
        dtypes: Vec<Option<DType>>,
        format: &'static Format,
        context: &Context,
    ) -> Outcome<ConvertOptions> {
        self.check()?;
        let this = self.for_format(format);
        this.apply_checked(view, dtypes, format, context)
    }

    /// Readers of GGUF files count on their norms in single precision: a cast is then one of the weights, as a scheme is.
    fn for_format(&self, format: &'static Format) -> Self {
        let scheme = match self.precision.filter(|_| format.convention == Convention::LlamaCpp && self.scheme.is_none())
        {
            Some(DType::F32) => Some(Scheme::Fp32),
            Some(DType::F16) => Some(Scheme::Fp16),
            Some(DType::BF16) => Some(Scheme::Bf16),
            _ => return *self,
        };
        Self { scheme, precision: None, ..*self }
    }

    fn apply_checked(
        &self,
        view: &mut View<'_>,
        dtypes: Vec<Option<DType>>,
        format: &'static Format,
        context: &Context,
    ) -> Outcome<ConvertOptions> {
        let mut warnings = Vec::new();
        let mut targets: Vec<Option<TensorTarget>> = dtypes.into_iter().map(|dtype| dtype.map(Into::into)).collect();
        if let Some(scheme) = self.scheme {
            is_held(scheme, format)?;
            let quantization = self.quantization(scheme, format, context)?;
            warnings.extend(self.without_blocks(scheme));
            let family = context.family_of(view)?;
            let planned = plan(view, family.as_ref(), &quantization).map_err(unsuited)?;
            warnings.extend(planned.warnings);
            targets.resize(planned.targets.len(), None);
            for (target, (info, planned)) in targets.iter_mut().zip(view.tensors().iter().zip(planned.targets)) {
                let Some(planned) = planned else { continue };
                match target {
                    // What the scheme leaves alone still gets the type that the format wants.
                    Some(target) if planned.dtype == info.dtype => target.why = planned.why,
                    _ => *target = Some(planned),
                }
            }
            let bits = bits_per_weight(view, &targets);
            record(view, &quantization, bits, format)?;
        } else if let Some(dtype) =
            self.dequantize.filter(|_| view.tensors().iter().any(|info| info.dtype.is_quantized()))
        {
            record_dequantized(view, dtype)?;
        } else if let Some(dtype) =
            self.precision.filter(|_| view.tensors().iter().all(|info| !info.dtype.is_quantized()))
        {
            record_cast(view, dtype)?;
        }
        let QuantizeOptions { quality_check, max_drift, .. } = *self.options;
        let gate = max_drift.map(QualityGate::with_max_drift).or(quality_check.then(QualityGate::default));
        let (precision, dequantize) = (self.precision, self.dequantize);
        Ok(ConvertOptions { precision, dequantize, targets, gate, warnings, decompress: false })
    }

    /// Options that would do nothing, or say two things at once.
    fn check(&self) -> Outcome {
        let QuantizeOptions {
            embedding_type, output_type, tensor_type, pure, requantize, imatrix, calibration, ..
        } = self.options;
        let QuantizeOptions { quality_check, max_drift, .. } = self.options;
        let given = [
            ("--embedding-type", embedding_type.is_some()),
            ("--output-type", output_type.is_some()),
            ("--tensor-type", !tensor_type.is_empty()),
            ("--pure", *pure),
            ("--requantize", *requantize),
            ("--imatrix", imatrix.is_some()),
            ("--calibration", calibration.is_some()),
            ("--quality-check", *quality_check),
            ("--max-drift", max_drift.is_some()),
        ];
        let refuse = |message: String| Err(Failure::Usage(message));
        let Some(scheme) = self.scheme else {
            return match given.iter().find(|(_, given)| *given) {
                Some((option, _)) => refuse(format!("{option} is about quantizing; --quantize TYPE asks for that")),
                None => Ok(()),
            };
        };
        if self.precision.is_some() {
            return refuse(format!("--precision and {scheme} are two types for the same tensors"));
        }
        Ok(())
    }

    /// That weights of errors have no use without blocks, as llama.cpp takes them for floats without a word.
    fn without_blocks(&self, scheme: Scheme) -> Option<String> {
        let options = self.options;
        let given = [("--imatrix", options.imatrix.is_some()), ("--calibration", options.calibration.is_some())];
        let (option, _) = given.iter().find(|(_, given)| *given && scheme.kind() != SchemeKind::Blocks)?;
        Some(format!("{option} changed nothing: it weighs errors in blocks, and {scheme} has none"))
    }

    fn quantization(&self, scheme: Scheme, format: &'static Format, context: &Context) -> Outcome<Quantization> {
        let options = self.options;
        let overrides = options.tensor_type.iter();
        let usage = |error: Error| Failure::Usage(error.message().to_owned());
        let overrides = overrides.map(|(pattern, dtype)| Ok((parse_filter(pattern).map_err(usage)?, *dtype)));
        let choices = Choices {
            embedding_type: options.embedding_type,
            output_type: options.output_type,
            overrides: overrides.collect::<Outcome<_>>()?,
            pure: options.pure,
            requantize: options.requantize,
            casts: if format.convention == Convention::LlamaCpp { Casts::Weights } else { Casts::Everything },
            ..Choices::new(scheme)
        };
        if scheme.kind() != SchemeKind::Blocks {
            return Ok(Quantization { choices, weighting: None });
        }
        let weighting = match (&options.imatrix, &options.calibration) {
            (Some(path), _) => {
                Some(Weighting::Matrix { matrix: read_imatrix(path, context)?, file: path.display().to_string() })
            }
            (None, Some(path)) => {
                let bytes = std::fs::read(path).map_err(|error| io_error(&error, path))?;
                let columns = importance_from_csv(&bytes).map_err(|error| error.in_file(path.display()))?;
                Some(Weighting::Columns(columns))
            }
            (None, None) => None,
        };
        Ok(Quantization { choices, weighting })
    }
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

/// Refuses a scheme whose types the target format does not have.
fn is_held(scheme: Scheme, format: &'static Format) -> Outcome {
    let is_quantized = matches!(scheme.kind(), SchemeKind::Rows | SchemeKind::Blocks);
    let Some(target) = format.target else { return Ok(()) };
    let advice = match target.quantized {
        QuantizedTypes::Ggml if scheme.file_type().is_none() => {
            format!("GGUF has no type like {scheme}: q8_0 and q4_0 are near int8 and int4, fp16 and bf16 are floats")
        }
        QuantizedTypes::Unpacked if is_quantized => format!(
            "{} has no type like {scheme}: write an .apr or .gguf file; `apr export` makes integers and scales of it",
            format.name
        ),
        QuantizedTypes::None if is_quantized => {
            format!("{} has no type like {scheme}: write an .apr or .gguf file", format.name)
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(advice))
}

/// What is asked for does not go with the model: nothing is wrong with the file.
fn unsuited(error: Error) -> Failure {
    match error.tensor().filter(|_| error.code() == Code::Format && error.file().is_none()) {
        Some(tensor) => Failure::Usage(format!("tensor '{}': {}", Escaped::short(tensor), Escaped(error.message()))),
        None => error.into(),
    }
}

/// An importance matrix in either of its forms.
fn read_imatrix(path: &Path, context: &Context) -> Outcome<Imatrix> {
    let in_file = |error: Error| error.in_file(path.display());
    let file = context.sources.open_file(path)?;
    let head = read_vec(&file, 0, file.len().min(4)).map_err(in_file)?;
    if head == *b"GGUF" {
        let model = model::open(path, context)?;
        return Ok(Imatrix::from_checkpoint(&*model.reader).map_err(in_file)?);
    }
    let bytes = read_vec(&file, 0, file.len()).map_err(in_file)?;
    Ok(Imatrix::from_legacy(&bytes).map_err(in_file)?)
}
