//! Writing what was prepared, and telling about it.

use std::io::Write;

use apr::{Escaped, Loss, PlanOptions};
use apr_ops::convert::{ConvertError, ConvertOptions, plan};
use apr_ops::import::Prepared;

use super::SHOWN;
use super::render::{WriteReport, render, render_family, render_plan, render_validation};
use crate::args::WriteArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::printer::BOLD;
use crate::progress::Bar;
use crate::{Outcome, human, signals};

/// What is to be written.
pub(crate) struct Job<'a> {
    pub(crate) prepared: Prepared<'a>,
    /// The source, as the user wrote it.
    pub(crate) name: &'a str,
    pub(crate) args: &'a WriteArgs,
    pub(crate) target: &'a PlanOptions,
    /// What the target has no place for.
    pub(crate) losses: Vec<Loss>,
    /// What happens to the tensors.
    pub(crate) options: ConvertOptions,
    /// What the conversion does to the source, where the report is to tell.
    pub(crate) changes: Vec<String>,
}

/// Writes it, or with `--dry-run` tells what would be written.
pub(crate) fn write(job: Job<'_>, context: &Context) -> Outcome {
    let Job { prepared, name, args, target, losses, mut options, changes } = job;
    // With --force the gate only tells.
    let gate = options.gate;
    options.gate = gate.filter(|_| !args.force);
    let Prepared { view, validator, family, misfits, warnings } = prepared;
    if validator.config().stop && !misfits.is_empty() && !args.dry_run {
        let family = family.map(|family| family.title);
        return Err(Failure::Misfit { file: name.to_owned(), family, misfits });
    }
    let conversion = plan(&view, &options, target)?.validated_by(validator);
    let conversion = conversion.after_losing(losses).after_warning(warnings);
    conversion.report().warnings.iter().for_each(|warning| context.printer.warn(warning));
    misfits.iter().take(SHOWN).for_each(|misfit| context.printer.warn(&misfit.to_string()));
    if misfits.len() > SHOWN {
        context.printer.warn(&format!("and {} more; --json lists them all", misfits.len() - SHOWN));
    }
    let Some(path) = args.output.as_ref().filter(|_| !args.dry_run) else {
        return context.printer.report(conversion.report(), render_plan);
    };

    signals::stop_cleanly(&context.interrupt)?;
    let mut output = Output::create(path, target, &conversion.report().files, args.force, context)?;
    let aside = output.is_stream();
    let bar = Bar::new(&context.printer, conversion.report().bytes_in);
    let report = conversion.run(&view, output.sink(), &context.pipeline()?, &bar);
    // What was read in two states may look damaged.
    context.sources.check_unchanged()?;
    let report = report.map_err(|error| match error {
        ConvertError::Model(error) => error.into(),
        ConvertError::Invalid(error) => {
            Failure::Unhealthy { file: name.to_owned(), error: Box::new(error), unfit: None }
        }
        ConvertError::Unfit { error, dtype } => {
            Failure::Unhealthy { file: name.to_owned(), error: Box::new(error), unfit: Some(dtype) }
        }
        ConvertError::Gate { failures, report } => Failure::Gate { failures, report },
    })?;
    if let (Some(gate), Some(quantization)) = (gate, &report.quantization) {
        gate.failures(quantization).iter().for_each(|failure| context.printer.warn(failure));
    }
    output.commit(context)?;
    let seconds = bar.elapsed().as_secs_f64();
    drop(bar);

    context.printer.detail(&format!(
        "wrote {} in {seconds:.3} s, {:.2} GB/s",
        human::bytes(report.bytes_out),
        report.bytes_out as f64 / seconds / 1e9
    ));
    let report = WriteReport { family, misfits, changes, conversion: report };
    let summary = |out: &mut dyn Write, report: &WriteReport| {
        let target = path.display().to_string();
        writeln!(out, "{BOLD}{}{BOLD:#} -> {BOLD}{}{BOLD:#}", Escaped(name), Escaped(&target))?;
        report.changes.iter().try_for_each(|change| writeln!(out, "  {}", Escaped(change)))?;
        render(out, &report.conversion)?;
        render_family(out, report)?;
        render_validation(out, report)
    };
    if aside { context.printer.report_aside(&report, summary) } else { context.printer.report(&report, summary) }
}
