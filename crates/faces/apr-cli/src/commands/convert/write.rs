//! Doing a job, and reporting it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use apr::job::{Output, Written};
use apr_lora::{AdaptReport, CombineReport};
use apr_lowrank::RoundingReport;
use apr_lowrank::{ExtractReport, FactorReport};
use apr_merge::MergeReport;
use apr_merge::moe::MoeReport;
use apr_ops::convert::ConvertReport;
use apr_ops::extraction::Extracted;
use apr_ops::halves::Halves;
use apr_ops::job::{Job, Planned};
use apr_ops::products::IntegerProducts;
use apr_ops::simplify::Simplified;
use apr_prune::{LayerReport, PruneReport, SparseReport, WidthReport};
use apr_registry::{CheckpointReader, Escaped};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::gates::{Gates, Judged, name_of, render_drift};
use super::render::{
    SHOWN, WriteReport, render, render_coded, render_extracted, render_family, render_halves,
    render_plan, render_products, render_renamed, render_simplified, render_validation,
};
use crate::args::WriteArgs;
use crate::commands::{canary, distill, lora, lowrank, merge, prune, search};
use crate::context::Context;
use crate::documents::Document;
use crate::engine::{DistillReport, SearchReport};
use crate::failure::{Failure, Outcome};
use crate::model::{Model, compare_tensors};
use crate::options::in_options;
use crate::printer::BOLD;
use crate::progress::Bar;
use crate::{human, model, secrets, signals};

/// Destination of an output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination<'a> {
    pub(crate) output: Option<&'a Path>,
    /// Overwrite an existing output.
    pub(crate) replace: bool,
    /// `true` for a dry run, which reports what would be written and writes nothing.
    pub(crate) dry_run: bool,
    /// A canary file that the output must pass before it appears.
    pub(crate) canary: Option<&'a Path>,
    /// Write it although it passes no gate.
    pub(crate) despite_gates: bool,
}

impl<'a> Destination<'a> {
    /// Returns the destination for a path; an existing output is replaced if `replace` is set.
    pub(crate) fn at(output: &'a Path, replace: bool) -> Self {
        Self { output: Some(output), replace, dry_run: false, canary: None, despite_gates: false }
    }

    pub(crate) fn of(args: &'a WriteArgs) -> Self {
        Self {
            output: args.output.as_deref(),
            replace: args.overwrite,
            dry_run: args.dry_run,
            canary: args.canary.as_deref(),
            despite_gates: args.force,
        }
    }
}

/// Model that a job reads.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) reader: &'a dyn CheckpointReader,
    pub(crate) name: &'a str,
    /// Notes that the user saw while the model was fetched.
    pub(crate) notes: &'a [String],
}

impl<'a> Subject<'a> {
    fn of(model: &'a Model) -> Self {
        Self { reader: &*model.reader, name: &model.name, notes: &model.notes }
    }
}

/// Parts of a report in addition to the result of the job.
#[derive(Default)]
pub(crate) struct Extras<'a> {
    /// Report of a merge, available once the merge is done.
    pub(crate) merge: Option<&'a dyn Fn() -> MergeReport>,
    /// Composition of a mixture of experts.
    pub(crate) moe: Option<MoeReport>,
    /// Reports of adapters, available once they are applied.
    pub(crate) adapters: Option<&'a dyn Fn() -> Vec<AdaptReport>>,
    /// Changes that the job makes to the source, in words.
    pub(crate) changes: Vec<String>,
    /// Search that chose the types of tensors.
    pub(crate) search: Option<SearchReport>,
    /// Changes made to the model before it is written.
    pub(crate) changed: Changed,
    /// Adapter that was extracted.
    pub(crate) extracted: Option<ExtractReport>,
    /// Adapter that was made from others.
    pub(crate) combined: Option<CombineReport>,
    /// The requested job and the model as it was opened, if the job reads a different model.
    pub(crate) origin: Option<(&'a Job, &'a Model)>,
}

/// Changes made to a model before it is written.
#[derive(Default, Serialize)]
pub(crate) struct Changed {
    /// Weights set to zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pruning: Option<PruneReport>,
    /// Layers removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) layers: Option<LayerReport>,
    /// Attention heads and neurons removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) widths: Option<WidthReport>,
    /// Weights replaced by low-rank factors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lowrank: Option<FactorReport>,
    /// Training of a smaller model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) distillation: Option<DistillReport>,
    /// Weights rounded to codes by calibrated rounding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calibrated_rounding: Option<RoundingReport>,
    /// Tensors stored without their zeros.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sparse: Option<SparseReport>,
}

impl Changed {
    /// Returns `true` if the report on the changes depends on values of weights.
    fn is_measured(&self) -> bool {
        self.pruning.is_some()
            || self.widths.is_some()
            || self.lowrank.is_some()
            || self.sparse.is_some()
    }

    /// Renders the changes in words.
    fn render(&self, out: &mut dyn Write) -> io::Result<()> {
        self.layers.iter().try_for_each(|found| prune::render_layers(out, found))?;
        self.widths.iter().try_for_each(|found| prune::render_widths(out, found))?;
        self.pruning.iter().try_for_each(|found| prune::render(out, found))?;
        self.lowrank.iter().try_for_each(|found| lowrank::render(out, found))?;
        self.distillation.iter().try_for_each(|found| distill::render(out, found))?;
        self.calibrated_rounding
            .iter()
            .try_for_each(|found| lowrank::render_rounding(out, found))?;
        self.sparse.iter().try_for_each(|found| prune::render_sparse(out, found))
    }
}

/// Report of a dry run.
#[derive(Serialize)]
struct DryReport<'r> {
    /// Path or location of the model, as given; for a merge, of all models.
    path: &'r str,
    /// File or folder that would be written, if it is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    #[serde(flatten)]
    plan: &'r ConvertReport,
    /// Part of the graph that would be extracted.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<&'r Extracted>,
    /// New names of values by the old ones.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    renamed_values: &'r BTreeMap<String, String>,
    /// Graphs that would be simplified.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    simplified: &'r [Simplified],
    /// Products that would multiply integers.
    #[serde(skip_serializing_if = "Option::is_none")]
    products: Option<&'r IntegerProducts>,
    /// Nodes that would compute in halves.
    #[serde(skip_serializing_if = "Option::is_none")]
    halves: Option<&'r Halves>,
    /// Search that chose the types of tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    search: Option<&'r SearchReport>,
    #[serde(flatten)]
    changed: &'r Changed,
    /// Adapter that would be extracted.
    #[serde(skip_serializing_if = "Option::is_none")]
    extracted: Option<&'r ExtractReport>,
    /// Adapter that would be made from others.
    #[serde(skip_serializing_if = "Option::is_none")]
    combined: Option<&'r CombineReport>,
    /// Composition of a mixture of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    moe: Option<&'r MoeReport>,
}

impl Document for DryReport<'_> {
    const SCHEMA: &'static str = "convert.dry-run";
}

/// Runs a job, or with `--dry-run` reports what would be written.
pub(crate) fn write(
    job: &Job,
    model: &Model,
    to: Destination<'_>,
    extras: Extras<'_>,
    context: &Context,
) -> Outcome {
    write_subject(job, Subject::of(model), to, extras, context)
}

/// Runs a job on a [`Subject`], which need not be a [`Model`].
pub(crate) fn write_subject(
    job: &Job,
    model: Subject<'_>,
    to: Destination<'_>,
    extras: Extras<'_>,
    context: &Context,
) -> Outcome {
    let source = context.source(model.reader, model.name)?;
    let gates = match extras.origin {
        Some((job, origin)) => {
            Gates::of(job, &context.source(&*origin.reader, &origin.name)?, &to, context)?
        }
        None => Gates::of(job, &source, &to, context)?,
    };
    warn_of_idle_password(job, model.reader, context);
    let planned = job.plan(&source)?;
    let Some(path) = to.output.filter(|_| !to.dry_run) else {
        if extras.changed.is_measured() {
            compare_tensors(model.reader)?;
        }
        show_warnings(&planned, context);
        let mut plan = planned.report().clone();
        name_options(&mut plan);
        let report = DryReport {
            path: model.name,
            output: to.output.map(|path| path.display().to_string()),
            plan: &plan,
            part: planned.extracted(),
            renamed_values: planned.renamed_values(),
            simplified: planned.simplified(),
            products: planned.products(),
            halves: planned.halves(),
            search: extras.search.as_ref(),
            changed: &extras.changed,
            extracted: extras.extracted.as_ref(),
            combined: extras.combined.as_ref(),
            moe: extras.moe.as_ref(),
        };
        return context.printer.report(&report, |out, report| {
            render_plan(out, report.plan)?;
            render_renamed(out, report.renamed_values)?;
            report.part.iter().try_for_each(|part| render_extracted(out, part))?;
            render_simplified(out, report.simplified)?;
            report.products.iter().try_for_each(|products| render_products(out, products))?;
            report.halves.iter().try_for_each(|halves| render_halves(out, halves))?;
            report.changed.render(out)?;
            report.extracted.iter().try_for_each(|found| lora::render(out, found))?;
            report.combined.iter().try_for_each(|found| lora::render_combined(out, found))?;
            report.moe.iter().try_for_each(|found| merge::render_moe(out, found))?;
            report.search.iter().try_for_each(|found| search::render(out, found))
        });
    };
    planned.check()?;
    let told = show_warnings(&planned, context);
    signals::stop_cleanly(&context.interrupt)?;
    if Output::is_stdout(path) && std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "binary output to a terminal; redirect standard output".to_owned(),
        ));
    }
    let (target, files) = (planned.target(), &planned.report().files);
    let output = Output::create(path, target, files, to.replace, &context.interrupt)?;
    let aside = output.is_stream();
    let bar = Bar::new(&context.printer, planned.report().bytes_in);
    let mut written = output.run(planned, &context.sources, &context.pipeline()?, &bar)?;
    let seconds = bar.elapsed().as_secs_f64();
    drop(bar);
    let judged = gates.judge(
        &|| Ok(written.open(&context.options)?),
        &name_of(to.output),
        &|| measured(&written, &extras.changed),
        context,
    )?;
    let Judged { drift, canary, warnings } = judged;
    written.judged(drift, warnings);
    let mut job = written.commit()?;

    // The first of them were shown before it began.
    job.conversion.warnings.iter().skip(told).for_each(|warning| context.printer.warn(warning));
    context.printer.detail(&format!(
        "wrote {} in {seconds:.3} s, {:.2} GB/s",
        human::bytes(job.conversion.bytes_out),
        job.conversion.bytes_out as f64 / seconds / 1e9
    ));
    if context.json {
        // On a terminal they are shown when they arise.
        job.conversion.warnings.extend(model.notes.iter().cloned().chain(context.tell_notes()));
    }
    name_options(&mut job.conversion);
    let Extras { changes, search, changed, extracted, combined, merge, moe, adapters, .. } = extras;
    let merge = merge.map(|merged| merged());
    let adapters = adapters.map(|adapted| adapted()).unwrap_or_default();
    let report = WriteReport {
        job,
        changes,
        search,
        changed,
        extracted,
        combined,
        adapters,
        merge,
        moe,
        canary,
    };
    let summary = |out: &mut dyn Write, report: &WriteReport| {
        let target = path.display().to_string();
        writeln!(
            out,
            "{BOLD}{}{BOLD:#} -> {BOLD}{}{BOLD:#}",
            Escaped(model.name),
            Escaped(&target)
        )?;
        report.changes.iter().try_for_each(|change| writeln!(out, "  {}", Escaped(change)))?;
        report.changed.render(out)?;
        report.extracted.iter().try_for_each(|found| lora::render(out, found))?;
        report.combined.iter().try_for_each(|found| lora::render_combined(out, found))?;
        render(out, &report.job.conversion, context.printer.shows_detail())?;
        let is_all = report.merge.is_none();
        report.adapters.iter().try_for_each(|found| merge::render_adapters(out, found, is_all))?;
        report.merge.iter().try_for_each(|merge| merge::render(out, merge))?;
        report.moe.iter().try_for_each(|found| merge::render_moe(out, found))?;
        report.search.iter().try_for_each(|found| search::render(out, found))?;
        render_renamed(out, &report.job.renamed_values)?;
        report.job.part.iter().try_for_each(|part| render_extracted(out, part))?;
        render_simplified(out, &report.job.simplified)?;
        let products = report.job.products.iter();
        products.into_iter().try_for_each(|products| render_products(out, products))?;
        report.job.halves.iter().try_for_each(|halves| render_halves(out, halves))?;
        render_coded(out, report)?;
        render_family(out, report)?;
        report.job.drift.iter().try_for_each(|drift| render_drift(out, drift))?;
        report.canary.iter().try_for_each(|canary| canary::render_line(out, canary))?;
        render_validation(out, report)
    };
    if aside {
        context.printer.report_aside(&report, summary)
    } else {
        context.printer.report(&report, summary)
    }
}

/// Returns the measurements of an output that fails its gates.
fn measured(written: &Written, changed: &Changed) -> Map<String, Value> {
    let mut measured = match serde_json::to_value(changed) {
        Ok(Value::Object(changed)) => changed,
        _ => Map::new(),
    };
    if let Some(quantization) = &written.report().conversion.quantization {
        measured.insert("quantization".to_owned(), json!(quantization));
    }
    measured
}

/// Warns if a password file had no effect, because the user may believe that the output is
/// encrypted.
fn warn_of_idle_password(job: &Job, reader: &dyn CheckpointReader, context: &Context) {
    if !context.has_password_file || model::is_encrypted(reader) {
        return;
    }
    let advice = match &job.target.apr2.encryption {
        Some(encryption) if secrets::takes_password(encryption) => return,
        Some(_) => "only recipients can decrypt the output; add --encrypt to also use the password",
        None => "the output is not encrypted; add --encrypt to use the password",
    };
    context.printer.warn(&format!("--password-file has no effect: {advice}"));
}

/// Replaces the names of settings in warnings by the names of options.
fn name_options(report: &mut ConvertReport) {
    report.warnings.iter_mut().for_each(|warning| *warning = in_options(warning));
}

/// Shows the warnings of a job before it begins, and returns the number of warnings from its
/// report.
pub(crate) fn show_warnings(planned: &Planned<'_>, context: &Context) -> usize {
    let (warnings, misfits) = (&planned.report().warnings, planned.misfits());
    warnings.iter().for_each(|warning| context.printer.warn(warning));
    misfits.iter().take(SHOWN).for_each(|misfit| context.printer.warn(&misfit.to_string()));
    if misfits.len() > SHOWN {
        context.printer.warn(&format!("and {} more; --json lists them all", misfits.len() - SHOWN));
    }
    warnings.len()
}
