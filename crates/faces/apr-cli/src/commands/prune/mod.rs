//! `apr convert --prune` and its kin: the model that a job reads, with weights or layers less.

#[cfg(feature = "infer")]
pub(in crate::commands) mod gradients;
#[cfg(feature = "linalg")]
mod second_order;

use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::Path;

use apr_core::counted;
use apr_ops::job::Job;
use apr_prune::{
    Amount, LayerChoice, LayerReport, Left, PruneReport, PrunedTensor, Pruning, Scope,
    SparseReport, Sparsity, WidthChoice, WidthReport, least_influential, plan, plan_layers,
    plan_widths, sparsify,
};
use apr_registry::{Error, Escaped};
use apr_view::parse_filter;

use super::convert::Changed;
use super::imatrix;
#[cfg(not(feature = "infer"))]
use super::without_engine::gradients;
#[cfg(not(feature = "linalg"))]
use super::without_linalg::second_order;
use crate::args::{ConvertArgs, PruneArgs, PruneMethod, PruneScope, QuantizeOptions};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::printer::{DIM, ODD};
use crate::progress::Bar;
use crate::{human, signals};

/// Tensors with the largest errors that are shown.
const SHOWN: usize = 10;

/// Returns the pruned model that a job reads, and the job without a dequantization that was for
/// pruning.
pub(super) fn pruned(
    args: &ConvertArgs,
    (mut job, mut model): (Job, Model),
    context: &Context,
) -> Outcome<(Job, Model, Changed)> {
    let mut found = Changed::default();
    let (options, path) = (&args.requantize.options, args.model.as_path());
    check(args)?;
    let args = &args.prune;
    let chosen = chosen_layers(args, (path, options.calibration.as_deref()), context)?;
    if let Some((layers, influence)) = chosen {
        let source = context.source(&*model.reader, &model.name)?;
        let planned = plan_layers(&source, &layers).map_err(unsuited)?;
        let planned = match influence {
            Some(influence) => planned.with_influence(influence),
            None => planned,
        };
        drop(source);
        let (reader, report) = planned.apply(model.reader)?;
        model.reader = reader;
        found.layers = Some(report);
    }
    if args.prune_heads.is_some() || args.prune_neurons.is_some() {
        let count = |number: Option<NonZeroU64>| number.map_or(0, NonZeroU64::get);
        let mut choice = WidthChoice::default();
        (choice.heads, choice.neurons) = (count(args.prune_heads), count(args.prune_neurons));
        signals::stop_cleanly(&context.interrupt)?;
        let gradients = match (&args.prune_method, &options.calibration) {
            (Some(PruneMethod::Fisher), Some(data)) => {
                let (gradients, told) = gradients::of_texts((path, data), context)?;
                job.weights.warnings.extend(told);
                Some(gradients)
            }
            _ => None,
        };
        let source = context.source(&*model.reader, &model.name)?;
        let pipeline = context.pipeline()?;
        let planned = plan_widths(&source, choice, gradients.as_ref(), &pipeline, &());
        let planned = planned.map_err(unsuited)?;
        drop(source);
        let (reader, report) = planned.apply(model.reader)?;
        model.reader = reader;
        job.weights.warnings.extend(more_heads(choice.heads, &report));
        found.widths = Some(report);
    }
    let (job, model) = zeroed(args, options, path, (job, model), &mut found, context)?;
    Ok((job, model, found))
}

/// Returns the note that more heads were removed than requested, if they were.
fn more_heads(asked: u64, report: &WidthReport) -> Option<String> {
    let [before, now] = report.heads?;
    let gone = before - now;
    (gone > asked).then(|| {
        format!(
            "{gone} heads dropped instead of {asked}: query heads that share a key-value head are \
             dropped together"
        )
    })
}

/// Returns the layers to remove.
///
/// With calibration data, these are the layers that change their input least, and the measured
/// changes are returned, too.
fn chosen_layers(
    args: &PruneArgs,
    (path, data): (&Path, Option<&Path>),
    context: &Context,
) -> Outcome<Option<(LayerChoice, Option<Vec<f64>>)>> {
    let Some(choice) = &args.prune_layers else { return Ok(None) };
    let (LayerChoice::Count(count), Some(data)) = (choice, data) else {
        return Ok(Some((choice.clone(), None)));
    };
    let influence = imatrix::influence(data, path, context)?;
    let choice = least_influential(&influence, *count).map_err(unsuited)?;
    Ok(Some((choice, Some(influence))))
}

/// Returns the model that a job reads, with tensors in sparse layouts if they are requested.
pub(super) fn stored_sparse(
    args: &PruneArgs,
    (mut job, mut model, mut found): (Job, Model, Changed),
    context: &Context,
) -> Outcome<(Job, Model, Changed)> {
    let Some(layout) = args.sparse else { return Ok((job, model, found)) };
    check_sparse(&job)?;
    let targets = args.target.as_deref().map(parse_filter).transpose().map_err(unsuited)?;
    signals::stop_cleanly(&context.interrupt)?;
    let bar = Bar::new(&context.printer, bytes(&model));
    let sparsity = Sparsity { layout, targets };
    let (reader, report) = sparsify(model.reader, &sparsity, &context.pipeline()?, &bar)?;
    drop(bar);
    model.reader = reader;
    if report.tensors.is_empty() {
        let idle = "--sparse has no effect: no tensor is smaller without its zeros";
        job.weights.warnings.push(idle.to_owned());
    }
    found.sparse = Some(report);
    Ok((job, model, found))
}

fn bytes(model: &Model) -> u64 {
    let bytes = model.reader.tensors().iter().map(|info| info.byte_len().unwrap_or_default());
    bytes.fold(0, u64::saturating_add)
}

/// Rejects sparse tensors if the output cannot store them, or if the job would change their dtype.
fn check_sparse(job: &Job) -> Outcome {
    let wrong = [
        (!job.target.target()?.seals, "--sparse is for .apr output"),
        (
            job.weights.quantize.is_some(),
            "--sparse stores floats, and --quantize makes blocks: choose one",
        ),
        (
            job.weights.precision.is_some() || job.weights.dequantize.is_some(),
            "--sparse stores tensors unchanged: cast or dequantize them in an earlier run",
        ),
    ];
    match wrong.iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, message)) => Err(Failure::Usage((*message).to_owned())),
        None => Ok(()),
    }
}

/// Returns the model with weights set to zero, if that is requested.
fn zeroed(
    args: &PruneArgs,
    options: &QuantizeOptions,
    path: &Path,
    (job, mut model): (Job, Model),
    found: &mut Changed,
    context: &Context,
) -> Outcome<(Job, Model)> {
    let Some(amount) = amount(args) else { return Ok((job, model)) };
    let mut pruning = Pruning::new(amount);
    pruning.targets = args.target.as_deref().map(parse_filter).transpose().map_err(unsuited)?;
    pruning.dequantize = job.weights.dequantize;
    let mut notes = Vec::new();
    pruning.updates = args.prune_method == Some(PruneMethod::Sparsegpt);
    let calibration = options.calibration.as_deref();
    let by_gradients = args.prune_method == Some(PruneMethod::Fisher);
    if let Some(data) = calibration.filter(|_| by_gradients) {
        let (gradients, told) = gradients::of_texts((path, data), context)?;
        pruning.gradients = Some(gradients);
        notes = told;
    } else if let Some(data) = calibration.filter(|_| !pruning.updates) {
        let (matrix, told) = imatrix::calibrated(data, path, context)?;
        pruning.importance = Some(matrix);
        notes = told;
    }
    let source = context.source(&*model.reader, &model.name)?;
    let updates = pruning.updates;
    let planned = plan(&source, pruning).map_err(|error| unsuited_weights(error, &model))?;
    drop(source);

    let report = match calibration.filter(|_| updates) {
        Some(data) => {
            let report;
            (model, report) = second_order::prune(planned, (path, data), model, context)?;
            report
        }
        None => {
            signals::stop_cleanly(&context.interrupt)?;
            let bar = Bar::new(&context.printer, bytes(&model));
            let (reader, report) = planned.apply(model.reader, &context.pipeline()?, &bar)?;
            model.reader = reader;
            report
        }
    };
    let mut job = job;
    if !model.reader.tensors().iter().any(|info| info.dtype.is_quantized()) {
        job.weights.dequantize = None;
    }
    job.weights.warnings.extend(notes);
    let scheme = job.weights.quantize.as_ref().map(|quantize| quantize.choices.scheme);
    if let Some(scheme) = scheme.filter(|scheme| !scheme.keeps_zeros()) {
        job.weights
            .warnings
            .push(format!("{scheme} can't represent zero: pruned weights become small numbers"));
    }
    found.pruning = Some(report);
    Ok((job, model))
}

/// Rejects options that would have no effect, and measurements that would be of removed layers.
fn check(args: &ConvertArgs) -> Outcome {
    let (requantize, factorizes) = (&args.requantize, args.lowrank.is_asked());
    let (options, args) = (&requantize.options, &args.prune);
    if args.target.is_some() && !args.has_zeros() && args.sparse.is_none() && !factorizes {
        return Err(Failure::Usage(
            "--target applies to --prune, --prune-nm, --prune-threshold, --lowrank and --sparse"
                .to_owned(),
        ));
    }
    let units = args.prune_heads.is_some() || args.prune_neurons.is_some();
    let has_method = args.has_zeros() || args.weighs_units();
    if args.prune_method.is_some() && (options.calibration.is_none() || !has_method) {
        return Err(Failure::Usage(
            "--prune-method requires --calibration, and --prune or --prune-nm; fisher also \
             supports --prune-heads and --prune-neurons"
                .to_owned(),
        ));
    }
    if args.prune_method == Some(PruneMethod::Sparsegpt) && requantize.dequantize.is_some() {
        return Err(Failure::Usage(
            "--prune-method sparsegpt requires float weights: dequantize in an earlier run"
                .to_owned(),
        ));
    }
    if options.calibration.is_some() && args.has_less() {
        let is_alone = !args.has_zeros() && !units;
        if !(args.counts_layers() && is_alone || args.weighs_units()) {
            return Err(Failure::Usage(
                "--calibration can't be combined with dropping layers, heads or neurons: use two \
                 runs (exceptions: --prune-layers N alone, and --prune-method fisher)"
                    .to_owned(),
            ));
        }
    }
    let by_rows = options.calibration.is_some() && args.prune_method != Some(PruneMethod::Fisher);
    if by_rows && args.prune_scope == Some(PruneScope::Global) {
        return Err(Failure::Usage(
            "--calibration ranks the weights of each row: use it with --prune-scope tensor or \
             --prune-nm"
                .to_owned(),
        ));
    }
    if options.calibration.is_some() && args.threshold().is_some() {
        return Err(Failure::Usage(
            "--calibration ranks the weights of each row: --prune-threshold applies to magnitudes \
             only"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Turns errors about the model as a whole into usage errors; errors that name a tensor stay model
/// errors.
fn unsuited(error: Error) -> Failure {
    match error.tensor() {
        Some(_) => Failure::Model(error),
        None => Failure::Usage(error.message().to_owned()),
    }
}

/// Same as [`unsuited`], but advises `--dequantize` for quantized weights, which must be floats to
/// be pruned.
fn unsuited_weights(error: Error, model: &Model) -> Failure {
    let tensors = model.reader.tensors().iter();
    let mut quantized = tensors.filter(|info| info.dtype.is_quantized());
    match error.tensor() {
        Some(name) if quantized.any(|info| info.name == *name) => {
            Failure::Usage(format!("{error}; pass --dequantize f16"))
        }
        _ => unsuited(error),
    }
}

fn amount(args: &PruneArgs) -> Option<Amount> {
    let scope = match args.prune_scope {
        Some(PruneScope::Global) => Scope::Global,
        Some(PruneScope::Tensor) | None => Scope::Tensor,
    };
    let share = args.prune.map(|share| Amount::Share { share, scope });
    let pattern = args.prune_nm.map(|pattern| {
        let (keep, of) = (pattern.keep, pattern.of);
        Amount::Pattern { keep, of }
    });
    share.or(pattern).or_else(|| args.threshold().map(Amount::Threshold))
}

/// Renders the removed layers in words.
pub(super) fn render_layers(out: &mut dyn Write, report: &LayerReport) -> io::Result<()> {
    let dropped: Vec<String> = report.dropped.iter().map(u64::to_string).collect();
    writeln!(
        out,
        "  dropped {} of {} layers{} ({}): {}, {}",
        report.dropped.len(),
        report.layers,
        if report.of_decoder { " of the decoder" } else { "" },
        dropped.join(", "),
        counted(report.tensor_count as u64, "tensor"),
        human::bytes(report.bytes)
    )?;
    if let Some(influence) = &report.influence {
        writeln!(
            out,
            "  {DIM}influence of each layer (1 - cosine of its input and output):{DIM:#}"
        )?;
        for (layer, influence) in influence.iter().enumerate() {
            let went = report.dropped.contains(&(layer as u64));
            let mark = if went { "dropped" } else { "" };
            writeln!(out, "    {layer:>4}  {influence:.6}  {mark}")?;
        }
    }
    writeln!(out, "  {DIM}renumbered: {}{DIM:#}", Escaped(&report.configuration.join(", ")))
}

/// Renders the removed heads and neurons in words.
pub(super) fn render_widths(out: &mut dyn Write, report: &WidthReport) -> io::Result<()> {
    let parts = [("heads", report.heads), ("neurons", report.neurons)];
    let parts = parts.iter().filter_map(|(what, count)| count.map(|count| (what, count)));
    let parts: Vec<String> =
        parts.map(|(what, [before, now])| format!("{now} of {before} {what}")).collect();
    let by = if report.method == "fisher" { "gradients" } else { "magnitude" };
    writeln!(
        out,
        "  {} left in each of {}, {} less; chosen by {by}",
        parts.join(" and "),
        counted(report.layers.len() as u64, "layer"),
        human::bytes(report.bytes)
    )?;
    writeln!(out, "  {DIM}renumbered: {}{DIM:#}", Escaped(&report.configuration.join(", ")))
}

/// Renders the tensors that are stored without zeros.
pub(super) fn render_sparse(out: &mut dyn Write, report: &SparseReport) -> io::Result<()> {
    let before = report.tensors.iter().map(|tensor| tensor.bytes_before).sum();
    let now = report.tensors.iter().map(|tensor| tensor.bytes).sum();
    writeln!(
        out,
        "  {} stored as {}: {} instead of {}; {} dense, which is smaller",
        counted(report.tensors.len() as u64, "tensor"),
        report.layout,
        human::bytes(now),
        human::bytes(before),
        counted(report.not_smaller as u64, "tensor")
    )?;
    render_left(out, "not sparse", &report.left)
}

/// Tensors that were left alone.
fn render_left(out: &mut dyn Write, what: &str, left: &[Left]) -> io::Result<()> {
    let more = match left.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = left.iter().take(SHOWN).map(|left| format!("{} ({})", left.name, left.why));
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {ODD}{what}{ODD:#}: {}{more}", Escaped(&named.join(", ")))
}

/// Renders the weights that were set to zero, and the error.
pub(super) fn render(out: &mut dyn Write, report: &PruneReport) -> io::Result<()> {
    let total = &report.total;
    writeln!(
        out,
        "  pruned {} by {}: {:.2} % of {} weights are zero (before: {:.2} %), relative error \
         {:.2} %",
        counted(report.tensors.len() as u64, "tensor"),
        report.method,
        100.0 * total.share(),
        human::count(total.elements),
        100.0 * total.zeros_before as f64 / total.elements.max(1) as f64,
        100.0 * total.relative_error
    )?;
    let mut worst: Vec<&PrunedTensor> = report.tensors.iter().collect();
    worst.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    writeln!(out, "  {DIM}largest errors:{DIM:#}")?;
    for tensor in worst.into_iter().take(SHOWN) {
        let of_outputs = tensor.output_error;
        let of_outputs = of_outputs
            .map(|error| format!("outputs {:>6.2}%  ", 100.0 * error))
            .unwrap_or_default();
        writeln!(
            out,
            "    {:>7.2}%  {of_outputs}cosine {:.6}  {:>6.2} % zero  {}",
            100.0 * tensor.relative_error,
            tensor.cosine,
            100.0 * tensor.share(),
            Escaped::short(&tensor.name)
        )?;
    }
    render_left(out, "not pruned", &report.left)
}
