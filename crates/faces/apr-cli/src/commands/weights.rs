//! What is asked to become of the weights: a cast, quantization, or neither.

use std::path::Path;

use apr_io::io_error;
use apr_ops::job::{Job, Weights, layout_of, multiplies_integers};
use apr_quantize::{
    Choices, Imatrix, Layout, QualityGate, Quantization, Scheme, SchemeKind, Weighting,
    importance_from_csv,
};
use apr_registry::{ByteSource, Error, Format, read_vec};
use apr_view::parse_selection;

use super::imatrix;
use crate::args::{
    Compress, ContainerArgs, Dequantized, Precision, QuantizeOptions, RequantizeArgs, WriteArgs,
};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model;

/// Returns the changes that a command that may quantize makes to the weights.
pub(super) fn asked(
    (model, format): (&Path, &'static Format),
    args: &RequantizeArgs,
    write: &WriteArgs,
    container: &ContainerArgs,
    context: &Context,
) -> Outcome<Weights> {
    let dequantize = args.dequantize.map(Dequantized::dtype);
    let weights = Weights { dequantize, ..changes(&args.options, write, container) };
    let Some(scheme) = args.quantize else {
        check_idle(&args.options, false)?;
        return Ok(weights);
    };
    with_scheme(scheme, (model, format), &args.options, &weights, context)
}

/// Returns the same as [`asked`] for a model that is also pruned or factorized; this may use
/// calibration.
pub(super) fn asked_to_change(
    (model, format): (&Path, &'static Format),
    args: &RequantizeArgs,
    write: &WriteArgs,
    container: &ContainerArgs,
    context: &Context,
) -> Outcome<Weights> {
    if args.quantize.is_some() {
        return asked((model, format), args, write, container, context);
    }
    check_idle(&args.options, true)?;
    let dequantize = args.dequantize.map(Dequantized::dtype);
    Ok(Weights { dequantize, ..changes(&args.options, write, container) })
}

/// Returns the changes to the weights by quantizing and other options.
pub(super) fn quantized(
    scheme: Scheme,
    (model, format): (&Path, &'static Format),
    options: &QuantizeOptions,
    write: &WriteArgs,
    container: &ContainerArgs,
    context: &Context,
) -> Outcome<Weights> {
    let changes = changes(options, write, container);
    with_scheme(scheme, (model, format), options, &changes, context)
}

/// Returns the changes by quantizing to types that a search chose.
pub(super) fn chosen(
    mut quantization: Quantization,
    options: &QuantizeOptions,
    write: &WriteArgs,
    container: &ContainerArgs,
) -> Weights {
    quantization.choices.requantize = options.requantize;
    Weights { quantize: Some(quantization), ..changes(options, write, container) }
}

/// Adds quantization to the changes of the weights.
fn with_scheme(
    scheme: Scheme,
    (model, format): (&Path, &'static Format),
    options: &QuantizeOptions,
    weights: &Weights,
    context: &Context,
) -> Outcome<Weights> {
    let layout = layout_of(scheme, format);
    let (quantize, notes) = quantize((scheme, layout), model, options, context)?;
    let given = [
        ("--imatrix", options.imatrix.is_some()),
        ("--calibration", options.calibration.is_some()),
    ];
    let is_idle = scheme.kind() != SchemeKind::Blocks
        && layout.is_none()
        && !multiplies_integers(scheme, format);
    let is_measured = measured(options).is_some() && multiplies_integers(scheme, format);
    if options.calibration_method.is_some() && !is_measured {
        let message = "--calibration-method applies to --quantize w8a8 of ONNX files only";
        return Err(Failure::Usage(message.to_owned()));
    }
    let idle = given.iter().find(|(_, given)| *given && is_idle);
    let idle = idle.map(|(option, _)| format!("{option} has no effect: {scheme} has no blocks"));
    Ok(Weights {
        quantize: Some(quantize),
        warnings: idle.into_iter().chain(notes).collect(),
        ..weights.clone()
    })
}

/// Calibration data that the model is run on.
fn measured(options: &QuantizeOptions) -> Option<&Path> {
    options.calibration.as_deref().filter(|path| !is_table(path))
}

/// Returns the data for measuring the ranges of activations, if a job quantizes activations by
/// them.
pub(super) fn activations<'o>(job: &Job, options: &'o QuantizeOptions) -> Option<&'o Path> {
    let scheme = job.weights.quantize.as_ref()?.choices.scheme;
    measured(options).filter(|_| multiplies_integers(scheme, job.target.format))
}

/// Returns the data for calibrated rounding of a job's weights, or `None` without it.
pub(super) fn rounding<'o>(job: &Job, options: &'o QuantizeOptions) -> Option<&'o Path> {
    job.weights.layout(job.target.format).and(measured(options))
}

/// Rejects calibrated rounding if the model is changed beforehand.
pub(super) fn check_rounding(job: &Job, options: &QuantizeOptions) -> Outcome {
    match rounding(job, options) {
        None => Ok(()),
        Some(_) => Err(Failure::Usage(
            "--calibration rounds weights by their inputs in the unchanged model: write the \
             changed model first, then quantize it"
                .to_owned(),
        )),
    }
}

/// Returns the requested changes other than quantization.
fn changes(options: &QuantizeOptions, write: &WriteArgs, container: &ContainerArgs) -> Weights {
    let gate = options.quality_check.then(QualityGate::default);
    Weights {
        precision: write.precision.map(Precision::dtype),
        gate: options.max_drift.map(QualityGate::with_max_drift).or(gate),
        gate_only_tells: write.force,
        exclude_nodes: options.exclude_node.clone(),
        decompress: container.compress == Some(Compress(None)),
        ..Weights::default()
    }
}

/// Rejects options that have no effect without quantization; `changes` is `true` if weights are
/// pruned or factorized.
fn check_idle(options: &QuantizeOptions, changes: bool) -> Outcome {
    let given = [
        ("--embedding-type", options.embedding_type.is_some()),
        ("--output-type", options.output_type.is_some()),
        ("--tensor-type", !options.tensor_type.is_empty()),
        ("--pure", options.pure),
        ("--requantize", options.requantize),
        ("--imatrix", options.imatrix.is_some()),
        ("--calibration", options.calibration.is_some() && !changes),
        ("--calibration-method", options.calibration_method.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(Failure::Usage(format!(
            "{option} applies to quantization only: pass --quantize TYPE"
        ))),
        None => Ok(()),
    }
}

fn quantize(
    (scheme, layout): (Scheme, Option<Layout>),
    model: &Path,
    options: &QuantizeOptions,
    context: &Context,
) -> Outcome<(Quantization, Vec<String>)> {
    let usage = |error: Error| Failure::Usage(error.message().to_owned());
    let overrides = options.tensor_type.iter();
    let overrides =
        overrides.map(|(pattern, wanted)| Ok((parse_selection(pattern).map_err(usage)?, *wanted)));
    let mut notes = Vec::new();
    let weighting = match (&options.imatrix, &options.calibration) {
        _ if scheme.kind() != SchemeKind::Blocks && layout.is_none() => None,
        (Some(path), _) => Some(Weighting::Matrix {
            matrix: read_imatrix(path, context)?,
            file: path.display().to_string(),
        }),
        // The model is run when the job is known.
        (None, Some(path)) if layout.is_some() && !is_table(path) => None,
        (None, Some(path)) => {
            let (weighting, found) = calibration(path, model, context)?;
            notes = found;
            Some(weighting)
        }
        (None, None) => None,
    };

    let choices = Choices {
        embedding_type: options.embedding_type,
        output_type: options.output_type,
        overrides: overrides.collect::<Outcome<_>>()?,
        pure: options.pure,
        requantize: options.requantize,
        ..Choices::new(scheme)
    };

    Ok((Quantization { choices, weighting }, notes))
}

/// Importance by calibration data, a table of samples or what the model is run on to measure it;
/// and what the report has to say of it.
fn calibration(path: &Path, model: &Path, context: &Context) -> Outcome<(Weighting, Vec<String>)> {
    if is_table(path) {
        let bytes = std::fs::read(path).map_err(|error| io_error(&error, path))?;
        let columns = importance_from_csv(&bytes).map_err(|error| error.in_file(path.display()))?;
        return Ok((Weighting::Columns(columns), Vec::new()));
    }
    let (matrix, notes) = imatrix::calibrated(path, model, context)?;
    Ok((Weighting::Matrix { matrix, file: path.display().to_string() }, notes))
}

/// Returns `true` if calibration data are a table of samples, on which a model is not run.
fn is_table(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
    ["csv", "tsv"].iter().any(|table| end.eq_ignore_ascii_case(table))
}

/// Rejects options that would repeat a measurement for each part of a job.
pub(super) fn check_for_parts(options: &QuantizeOptions) -> Outcome {
    let Some(path) = &options.calibration else { return Ok(()) };
    match is_table(path) {
        true => Ok(()),
        false => Err(Failure::Usage(
            "--calibration would run the model again in each part: measure with `apr imatrix`, and \
             pass --imatrix"
                .to_owned(),
        )),
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
