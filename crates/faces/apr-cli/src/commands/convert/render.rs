//! What a conversion did, in words.

use std::collections::BTreeMap;
use std::io::{self, Write};

use apr_core::counted;
use apr_lora::{AdaptReport, CombineReport};
use apr_lowrank::ExtractReport;
use apr_merge::MergeReport;
use apr_merge::moe::MoeReport;
use apr_ops::convert::ConvertReport;
use apr_ops::extraction::Extracted;
use apr_ops::halves::Halves;
use apr_ops::inline::ValidationReport;
use apr_ops::job::JobReport;
use apr_ops::physics::Level;
use apr_ops::products::{Activations, IntegerProducts};
use apr_ops::simplify::{PassReport, Simplified};
use apr_quantize::{Quality, QuantizationReport, TensorQuality, TypeQuality};
use apr_registry::{DType, Escaped, Loss};
use serde::Serialize;

use super::write::Changed;
use crate::documents::Document;
use crate::engine::{CanaryReport, SearchReport};
use crate::human;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD, columns};

/// Losses shown before the rest is only counted.
pub(super) const SHOWN: usize = 20;

/// Report of a written output.
#[derive(Serialize)]
pub(super) struct WriteReport {
    #[serde(flatten)]
    pub(super) job: JobReport,
    /// Changes that the job makes to the source, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) changes: Vec<String>,
    /// Search that chose the types of tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) search: Option<SearchReport>,
    /// Changes made before writing.
    #[serde(flatten)]
    pub(super) changed: Changed,
    /// Adapter that was extracted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extracted: Option<ExtractReport>,
    /// Adapter that was made from others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) combined: Option<CombineReport>,
    /// Changes by adapters, for each model that has adapters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) adapters: Vec<AdaptReport>,
    /// Merge, and the distance of the result from the base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) merge: Option<MergeReport>,
    /// Composition of a mixture of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) moe: Option<MoeReport>,
    /// Answers of the output to the inputs of a canary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) canary: Option<CanaryReport>,
}

impl Document for WriteReport {
    const SCHEMA: &'static str = "convert";
}

pub(super) fn render_family(out: &mut dyn Write, report: &WriteReport) -> io::Result<()> {
    let Some(family) = &report.job.family else {
        // What an export writes was judged when it came in.
        if let Some(adapter) = &report.job.adapter {
            return writeln!(out, "  {}, names unchanged", Escaped(&adapter.to_string()));
        }
        let judged = report.job.conversion.validation.is_some();
        return if judged {
            writeln!(out, "  unknown family, names unchanged (--arch-file FILE defines one)")
        } else {
            Ok(())
        };
    };

    let renamed = match family.renamed {
        0 => "names unchanged".to_owned(),
        renamed => format!("{} renamed", counted(renamed as u64, "tensor")),
    };
    let guessed = if family.guessed { " (guessed from tensor names)" } else { "" };
    writeln!(out, "  {} family{guessed}, {renamed}", Escaped(&family.title))
}

/// Renders the new names of a graph's values.
pub(super) fn render_renamed(
    out: &mut dyn Write,
    renamed: &BTreeMap<String, String>,
) -> io::Result<()> {
    const SHOWN: usize = 4;
    if renamed.is_empty() {
        return Ok(());
    }
    let pairs = renamed.iter().take(SHOWN);
    let pairs: Vec<String> = pairs
        .map(|(old, new)| format!("{} -> {}", Escaped::short(old), Escaped::short(new)))
        .collect();
    let more = if renamed.len() > SHOWN { ", ..." } else { "" };
    let values = counted(renamed.len() as u64, "value");
    writeln!(out, "  {values} renamed: {}{more}", pairs.join(", "))
}

/// Renders which part of a graph was extracted.
pub(super) fn render_extracted(out: &mut dyn Write, part: &Extracted) -> io::Result<()> {
    let names = |names: &[String]| {
        let names: Vec<String> =
            names.iter().map(|name| Escaped::short(name).to_string()).collect();
        names.join(", ")
    };
    let nodes = counted(part.nodes_before, "node");
    let (inputs, outputs) = (names(&part.inputs), names(&part.outputs));
    writeln!(out, "  {} of {nodes}, from {inputs} to {outputs}", part.nodes)?;
    if !part.dropped_outputs.is_empty() {
        let dropped = names(&part.dropped_outputs);
        writeln!(out, "  {ODD}outputs of the model left out{ODD:#}: {dropped}")?;
    }
    Ok(())
}

/// Renders the results of simplifying graphs.
pub(super) fn render_simplified(out: &mut dyn Write, parts: &[Simplified]) -> io::Result<()> {
    for part in parts {
        let name = match parts.len() {
            1 => String::new(),
            _ => format!("{}: ", Escaped::short(&part.name)),
        };
        let (before, after) = (part.nodes_before(), part.nodes_after());
        if part.changed {
            write!(out, "  {name}{before} -> {}", counted(after, "node"))?;
            let folded = counted(part.tensors_folded, "tensor");
            let sign = if part.bytes_added < 0 { "-" } else { "+" };
            let added = human::bytes(part.bytes_added.unsigned_abs());
            writeln!(out, ", {folded} folded, {sign}{added} of tensors")?;
        } else {
            let nodes = counted(after, "node");
            writeln!(out, "  {name}{ODD}nothing to simplify{ODD:#} in {nodes}")?;
        }
        for PassReport { name, changes, nodes, .. } in &part.passes {
            if *changes > 0 {
                let changes = counted(*changes, "change");
                writeln!(out, "    {name}: {nodes:+} nodes ({changes})")?;
            }
        }
        for (operator, before) in &part.before {
            let after = part.after.get(operator).copied().unwrap_or_default();
            if after != *before {
                writeln!(out, "    {}  {before} -> {after}", Escaped(operator))?;
            }
        }
        if !part.too_large.is_empty() {
            let nodes = counted(part.too_large.len() as u64, "node");
            let first = Escaped::short(&part.too_large[0]);
            writeln!(
                out,
                "    {ODD}not folded{ODD:#}: {nodes} with a large output, such as {first}"
            )?;
        }
        if let Some(compared) = &part.compared {
            let outputs = counted(compared.outputs, "output");
            match compared.identical {
                true => writeln!(out, "    {GOOD}{outputs} bit-identical{GOOD:#}")?,
                false => {
                    let difference = compared.difference;
                    writeln!(out, "    {GOOD}{outputs} equal{GOOD:#} within {difference:.1e}")?;
                }
            }
        }
    }
    Ok(())
}

/// Renders which products of a graph multiply integers, and why others do not.
pub(super) fn render_products(out: &mut dyn Write, report: &IntegerProducts) -> io::Result<()> {
    let activations = match (report.activations, report.calibration.as_deref()) {
        (Activations::Static, None | Some("minmax")) => {
            "activations by the ranges of the calibration runs".to_owned()
        }
        (Activations::Static, Some(method)) => {
            format!("activations by the ranges of the calibration runs, {method}")
        }
        _ => "activations by their range in each run".to_owned(),
    };
    let products = counted(report.products, "product");
    writeln!(out, "  {} of {products} multiply 8-bit integers: {activations}", report.quantized)?;
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for product in &report.unchanged {
        let named = format!("{} '{}'", product.op, Escaped(&product.node));
        reasons.entry(&product.why).or_default().push(named);
    }
    for (why, products) in reasons {
        let more = match products.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        writeln!(out, "  {ODD}unchanged: {}{more}: {}{ODD:#}", products[0], Escaped(why))?;
    }
    Ok(())
}

/// Renders which nodes of a graph compute in halves, and why others do not.
pub(super) fn render_halves(out: &mut dyn Write, report: &Halves) -> io::Result<()> {
    let nodes = counted(report.nodes, "node");
    let casts = counted(report.casts, "cast");
    let io = if report.io_kept { "inputs and outputs in f32" } else { "inputs and outputs in f16" };
    writeln!(out, "  {} of {nodes} compute in f16, with {casts}; {io}", report.halves)?;
    for (why, operators) in &report.unchanged {
        let operators: Vec<String> =
            operators.iter().map(|(op, count)| format!("{count} {}", Escaped(op))).collect();
        writeln!(out, "  {ODD}in f32: {}: {why}{ODD:#}", operators.join(", "))?;
    }
    if report.clamped > 0 {
        let numbers = counted(report.clamped, "constant");
        writeln!(out, "  {ODD}clamped to the range of f16: {numbers}{ODD:#}")?;
    }
    Ok(())
}

/// Renders the result for weights stored as codes and scales.
pub(super) fn render_coded(out: &mut dyn Write, report: &WriteReport) -> io::Result<()> {
    let Some(coded) = &report.job.coded else { return Ok(()) };
    let weights = counted(coded.weights as u64, "weight");
    let stored = coded.stored.join("; ");
    if coded.kept {
        return writeln!(out, "  {weights} kept as stored, values not judged: {stored}");
    }
    if let Some(in_blocks) = &coded.in_blocks {
        let weights = counted(in_blocks.weights as u64, "weight");
        let stored = in_blocks.stored.join("; ");
        writeln!(out, "  {weights} moved to blocks with the same codes: {stored}")?;
        if !in_blocks.not_rounded_to.is_empty() {
            let dtypes = in_blocks.not_rounded_to.join(" and ");
            writeln!(
                out,
                "  their values are not rounded to {dtypes}, as the method's library rounds them"
            )?;
        }
    }
    if coded.weights > 0 {
        writeln!(out, "  {weights} decoded: {stored}")?;
    }
    if coded.left_out > 0 {
        let scales = counted(coded.left_out as u64, "scale");
        writeln!(out, "  {ODD}left out{ODD:#}: {scales} of activations")?;
    }
    Ok(())
}

pub(super) fn render_validation(out: &mut dyn Write, report: &WriteReport) -> io::Result<()> {
    let Some(validation) = &report.job.conversion.validation else { return Ok(()) };
    let checked = counted(validation.checked as u64, "tensor");
    let errors = validation.errors.len() + report.job.misfits.len();
    let (style, verdict) = match (errors, validation.warnings.len()) {
        (0, 0) => (GOOD, healthy(validation, report)),
        (0, warnings) => (ODD, findings(&checked, 0, warnings)),
        (errors, warnings) => (BAD, findings(&checked, errors, warnings)),
    };
    writeln!(out, "  {style}{verdict}{style:#}")?;
    let named = validation
        .errors
        .iter()
        .map(|error| (BAD, error))
        .chain(validation.warnings.iter().map(|e| (ODD, e)));
    for (style, error) in named.take(SHOWN) {
        let word = if error.level == Level::Error { "error" } else { "warning" };
        writeln!(out, "  {style}{word}{style:#}: {error}")?;
    }

    let total = validation.errors.len() + validation.warnings.len();
    if total > SHOWN {
        writeln!(out, "  {DIM}and {} more; --json lists them all{DIM:#}", total - SHOWN)?;
    }

    Ok(())
}

/// Returns the summary of a validation with findings, of which a tensor may have several.
pub(in crate::commands) fn findings(checked: &str, errors: usize, warnings: usize) -> String {
    let errors = (errors > 0).then(|| counted(errors as u64, "error"));
    let warnings = (warnings > 0).then(|| counted(warnings as u64, "warning"));
    let found: Vec<String> = errors.into_iter().chain(warnings).collect();
    format!("{checked} checked: {}", found.join(", "))
}

/// Returns the summary of a validation that found no problems.
fn healthy(validation: &ValidationReport, report: &WriteReport) -> String {
    let ValidationReport { checked, infinite, .. } = *validation;
    if checked == 0 && !report.job.conversion.tensors.is_empty() {
        return "compressed tensors copied as stored, digests checked".to_owned();
    }
    let is_part = checked < report.job.conversion.tensors.len();
    let checked = counted(checked as u64, "tensor");
    // The source was looked at; a cast may have made infinite what was finite there.
    let when = match report.job.conversion.rounding.overflowed {
        0 => "",
        _ => " before the cast",
    };
    match (&report.job.family, infinite) {
        (Some(_), _) if report.changed.lowrank.is_some() && is_part => {
            format!("{checked} valid; factors are not judged")
        }
        (Some(_), _) => format!("{checked} valid"),
        (None, 0) => format!("{checked} without NaN or infinity{when}; shapes not checked"),
        (None, some) => format!(
            "{checked} without NaN, and without infinity but for {}{when}; shapes not checked",
            counted(some as u64, "constant")
        ),
    }
}

/// Renders the written, cast, quantized and lost tensors; with `all`, every tensor that a line
/// counts.
pub(super) fn render(out: &mut dyn Write, report: &ConvertReport, all: bool) -> io::Result<()> {
    let mut tensors = counted((report.tensors.len() + report.tied) as u64, "tensor");
    if report.tied > 0 {
        tensors.push_str(&format!(" ({} tied)", report.tied));
    }
    let (before, after) = (human::bytes(report.bytes_in), human::bytes(report.bytes_out));
    let files = match report.files.len() {
        1 => String::new(),
        many => format!(" in {many} files"),
    };
    writeln!(out, "  {tensors}, {before} of weights, {after} written{files}")?;
    if let Some(folder) = report.made_folders.last() {
        writeln!(out, "  made the folder {}", Escaped(folder))?;
    }
    render_casts(out, report)?;
    render_quantization(out, report, all)?;
    render_losses(out, report)
}

/// Losses that only differ in their name share a paragraph.
fn render_losses(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    let alike = |a: &Loss, b: &Loss| (&a.what, &a.why) == (&b.what, &b.why);
    for group in report.losses.chunk_by(alike).take(SHOWN) {
        let names: Vec<String> =
            group.iter().take(SHOWN).map(|loss| Escaped::short(&loss.name).to_string()).collect();
        let more = if group.len() > SHOWN {
            format!(" and {} more", group.len() - SHOWN)
        } else {
            String::new()
        };
        let (what, why) = (Escaped(&group[0].what), Escaped(&group[0].why));
        writeln!(out, "  {ODD}lost{ODD:#}: {}{more} ({what}): {why}", names.join(", "))?;
    }
    Ok(())
}

fn render_casts(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    let mut to: Vec<(DType, u64)> = Vec::new();
    for tensor in report.tensors.iter().filter(|tensor| tensor.is_cast && !tensor.to.is_quantized())
    {
        match to.iter_mut().find(|(dtype, _)| *dtype == tensor.to) {
            Some((_, count)) => *count += 1,
            None => to.push((tensor.to, 1)),
        }
    }
    if to.is_empty() {
        return Ok(());
    }

    let casts: Vec<String> = to
        .iter()
        .map(|(dtype, count)| format!("{} to {dtype}", counted(*count, "tensor")))
        .collect();
    let rounding = report.rounding;
    let changes = [
        (rounding.inexact, "rounded"),
        (rounding.flushed, "became zero"),
        (rounding.overflowed, "became infinite"),
    ];
    let changes = changes.iter().filter(|(count, _)| *count > 0);
    let changes: Vec<String> =
        changes.map(|(count, what)| format!("{} {what}", counted(*count, "value"))).collect();
    let changes = if changes.is_empty() { "exact".to_owned() } else { changes.join(", ") };
    writeln!(out, "  cast {} ({changes})", casts.join(", "))
}

/// Columns of the table of quantization errors, without the first one.
const WITHOUT_TYPE: usize = 72;

/// Renders the quantization error: one line for each dtype, and the total.
///
/// With `all`, it also renders the worst tensors and the reasons for their types.
fn render_quantization(out: &mut dyn Write, report: &ConvertReport, all: bool) -> io::Result<()> {
    let Some(quantization) = &report.quantization else {
        let others = report.tensors.iter().filter(|tensor| tensor.why.is_some()).count();
        if others > 0 {
            let others = counted(others as u64, "tensor");
            writeln!(out, "  {ODD}{others} of another type than requested{ODD:#}:")?;
        }
        return render_exceptions(out, report);
    };
    let bits = report.bits_per_weight().unwrap_or_default();
    let tensors = counted(quantization.tensors.len() as u64, "tensor");
    writeln!(out, "  {tensors} quantized; {bits:.2} bits per weight over all tensors")?;
    let name_of = |of_type: &TypeQuality| {
        of_type.layout.as_ref().map_or(of_type.dtype.name(), |layout| layout.name)
    };
    let names = quantization.by_type.iter().map(|of_type| name_of(of_type).len());
    let width = names.chain([9]).max().unwrap_or_default();
    // Absolute errors are left out if the columns would exceed the terminal.
    let is_narrow = columns().is_some_and(|columns| columns < width + WITHOUT_TYPE);
    let wide = |text: String| if is_narrow { String::new() } else { format!(" {text:>11}") };
    let (rmse, most) = (wide("RMSE".to_owned()), wide("Max error".to_owned()));
    writeln!(
        out,
        "  {BOLD}{:<width$} {:>7} {:>9} {:>6}{rmse} {:>9}{most} {:>9}{BOLD:#}",
        "Type", "Tensors", "Weights", "Bits", "Relative", "Cosine"
    )?;
    let quality = |quality: &Quality| {
        let Quality { rmse, relative_error, max_error, cosine } = quality;
        let (rmse, most) = (wide(format!("{rmse:.3e}")), wide(format!("{max_error:.3e}")));
        format!("{rmse} {:>8.3}%{most} {cosine:>9.6}", 100.0 * relative_error)
    };
    for of_type in &quantization.by_type {
        let TypeQuality { tensor_count: tensors, elements, bits_per_weight, .. } = of_type;
        let (name, weights) = (name_of(of_type), human::count(*elements));
        let cost = quality(&of_type.quality);
        writeln!(out, "  {name:<width$} {tensors:>7} {weights:>9} {bits_per_weight:>6.3}{cost}")?;
    }
    writeln!(
        out,
        "  {:<width$} {:>7} {:>9} {:>6}{}",
        "all",
        "",
        "",
        "",
        quality(&quantization.total)
    )?;
    if let Some(degradation) = &quantization.degradation {
        writeln!(out, "  {ODD}{degradation}{ODD:#}")?;
    }

    if !all {
        return render_rest_of_quantization(out, report, quantization);
    }
    writeln!(out, "  {DIM}largest errors:{DIM:#}")?;
    for TensorQuality { name, dtype, layout, quality: cost } in &quantization.worst {
        let (relative, cosine) = (100.0 * cost.relative_error, cost.cosine);
        let of = layout.unwrap_or(dtype.name());
        writeln!(
            out,
            "    {relative:>7.3}%  cosine {cosine:.6}  {of:<8}  {}",
            Escaped::short(name)
        )?;
    }

    render_exceptions(out, report)
}

/// The tensor with the largest error, and the number of tensors whose type has a reason.
fn render_rest_of_quantization(
    out: &mut dyn Write,
    report: &ConvertReport,
    quantization: &QuantizationReport,
) -> io::Result<()> {
    if let Some(TensorQuality { name, dtype, layout, quality: cost }) = quantization.worst.first() {
        let (error, name) = (100.0 * cost.relative_error, Escaped::short(name));
        let of = layout.unwrap_or(dtype.name());
        writeln!(out, "  largest error: {error:.3}% in {name} ({of})")?;
    }
    let others = report.tensors.iter().filter(|tensor| tensor.why.is_some()).count();
    match others {
        0 if quantization.worst.len() < 2 => Ok(()),
        0 => writeln!(out, "  {DIM}-v lists the largest errors{DIM:#}"),
        others => {
            let others = counted(others as u64, "tensor");
            writeln!(
                out,
                "  {others} of another type than requested; {DIM}-v lists them, the reasons and \
                 the largest errors{DIM:#}"
            )
        }
    }
}

/// Renders the tensors that got another dtype than the requested one, grouped by the reason.
fn render_exceptions(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, why) in
        report.tensors.iter().filter_map(|tensor| Some((&tensor.name, tensor.why.as_deref()?)))
    {
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    for (why, names) in reasons.iter().take(SHOWN) {
        let shown: Vec<String> =
            names.iter().take(SHOWN).map(|name| Escaped::short(name).to_string()).collect();
        let more = names.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        writeln!(out, "  {}: {}{more}", Escaped(why), shown.join(", "))?;
    }

    Ok(())
}

pub(super) fn render_plan(out: &mut dyn Write, report: &ConvertReport) -> io::Result<()> {
    /// Columns beside the name.
    const OTHERS: usize = 44;
    /// Minimum characters of a name for it to be recognizable.
    const LEAST: usize = 8;

    // On a terminal names lose their middle where they must; elsewhere longer ones stand out of
    // their column.
    let room = columns().map(|columns| columns.saturating_sub(OTHERS).max(LEAST));
    let names: Vec<String> =
        report.tensors.iter().map(|tensor| Escaped(&tensor.name).to_string()).collect();
    let names = match room {
        Some(room) => human::shortened_apart(&names, room),
        None => names,
    };
    let width =
        names.iter().map(|name| name.chars().count()).chain([6]).max().unwrap_or_default().min(80);
    writeln!(
        out,
        "{BOLD}{:<width$}  {:<8}  {:<8}  {:>10}  {:>10}{BOLD:#}",
        "Tensor", "From", "To", "Before", "After"
    )?;
    for (tensor, name) in report.tensors.iter().zip(&names) {
        let (before, after) = (human::bytes(tensor.bytes_before), human::bytes(tensor.bytes_after));
        let why = tensor
            .why
            .as_deref()
            .map(|why| format!("  {DIM}{}{DIM:#}", Escaped(why)))
            .unwrap_or_default();
        writeln!(
            out,
            "{name:<width$}  {:<8}  {:<8}  {before:>10}  {after:>10}{why}",
            tensor.from, tensor.to
        )?;
    }

    let (before, after) = (
        human::bytes(report.bytes_in),
        human::bytes(report.tensors.iter().map(|t| t.bytes_after).sum()),
    );
    writeln!(
        out,
        "{BOLD}{:<width$}  {:<8}  {:<8}  {before:>10}  {after:>10}{BOLD:#}",
        "Total", "", ""
    )?;
    if let Some(bits) = report.bits_per_weight() {
        writeln!(out, "{bits:.2} bits per weight")?;
    }

    for file in &report.files {
        writeln!(
            out,
            "{DIM}would write {}: {}{DIM:#}",
            Escaped(&file.name),
            human::bytes(file.len)
        )?;
    }

    render_losses(out, report)
}
