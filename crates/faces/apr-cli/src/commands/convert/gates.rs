//! What an output must pass before it appears: one process asks it of what it wrote, and
//! `apr finish` of what the parts did.

use std::io::{self, Write};
use std::path::Path;

use apr::job::Output;
use apr_core::counted;
use apr_ops::diff::DriftReport;
use apr_ops::job::{Gate, Job};
use apr_registry::{CheckpointReader, Code};
use apr_source::Source;
use serde_json::{Map, Value, json};

use super::write::Destination;
use crate::commands::canary::{self, CanaryFile};
use crate::context::Context;
use crate::engine::CanaryReport;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;
use crate::{model, secrets};

/// The gates of a job.
pub(crate) struct Gates<'g> {
    /// Limit on the difference between the values of the output and of the source.
    drift: Option<Gate<'g>>,
    /// Answers that the output must reproduce.
    canary: Option<CanaryFile>,
    /// `true` if failed gates are only reported, and the output is written anyway.
    only_tell: bool,
}

/// Result of gates that let the output pass.
#[derive(Default)]
pub(crate) struct Judged {
    pub(crate) drift: Option<DriftReport>,
    pub(crate) canary: Option<CanaryReport>,
    /// Failures that are only reported as warnings.
    pub(crate) warnings: Vec<String>,
}

impl<'g> Gates<'g> {
    /// Returns the gates of a job before any work is done, and rejects gates that cannot be
    /// evaluated.
    ///
    /// `origin` is the model as it was opened, before any changes that the job's reader applies.
    pub(crate) fn of(
        job: &Job,
        origin: &Source<'g>,
        to: &Destination<'_>,
        context: &Context,
    ) -> Outcome<Self> {
        let only_tell = to.despite_gates;
        let given = [
            (to.canary.is_some(), "--canary"),
            (job.weights.gate.is_some(), "--max-drift or --quality-check"),
        ];
        let Some((_, option)) = given.iter().find(|(is_given, _)| *is_given) else {
            return Ok(Self { drift: None, canary: None, only_tell });
        };

        if to.output.is_some_and(Output::is_stream_at) {
            return Err(Failure::Usage(format!(
                "{option} reads an output back before it appears: name a file or a folder"
            )));
        }
        if !only_tell && to.output.is_some() && !to.dry_run {
            check_opens(job, option, context)?;
        }
        let canary = to.canary.map(|file| CanaryFile::read(file, context)).transpose()?;
        Ok(Self { drift: job.gate(origin)?, canary, only_tell })
    }

    /// Judges an output, which `open` opens as it will be opened when it is in place. `measured` is
    /// what was found out on the way, for whoever reads why it was refused.
    pub(crate) fn judge(
        &self,
        open: &dyn Fn() -> Outcome<Box<dyn CheckpointReader>>,
        name: &str,
        measured: &dyn Fn() -> Map<String, Value>,
        context: &Context,
    ) -> Outcome<Judged> {
        let mut judged = Judged::default();
        if let Some(gate) = &self.drift {
            let found = self.or_told(&mut judged, "the drift was not measured", || {
                let bar = Bar::new(&context.printer, 0);
                let found = gate.judge(&*open()?, &context.pipeline()?, &bar)?;
                context.sources.check_unchanged()?;
                Ok(found)
            })?;
            if let Some((drift, failures)) = found {
                let report = || ("drift", json!(drift));
                self.settle(&mut judged, failures, &report, measured)?;
                judged.drift = Some(drift);
            }
        }
        if let Some(canary) = &self.canary {
            let found = self.or_told(&mut judged, "the canary was not checked", || {
                canary.check_written(model::opened(open()?, name.to_owned(), context)?, context)
            })?;
            if let Some(report) = found {
                // What a report shows in a line of its own is no warning.
                let failures = if self.only_tell { Vec::new() } else { canary::failures(&report) };
                self.settle(&mut judged, failures, &|| ("canary", json!(report)), measured)?;
                judged.canary = Some(report);
            }
        }
        Ok(judged)
    }

    /// Returns the result of a gate.
    ///
    /// A gate that cannot be evaluated is an error, or a warning if the output is written despite
    /// failed gates.
    fn or_told<R>(
        &self,
        judged: &mut Judged,
        what: &str,
        find: impl FnOnce() -> Outcome<R>,
    ) -> Outcome<Option<R>> {
        match find() {
            Ok(found) => Ok(Some(found)),
            Err(failure) if self.only_tell && !failure.is_interruption() => {
                judged.warnings.push(format!("{what}: {}", failure.message()));
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    fn settle(
        &self,
        judged: &mut Judged,
        failures: Vec<String>,
        report: &dyn Fn() -> (&'static str, Value),
        measured: &dyn Fn() -> Map<String, Value>,
    ) -> Outcome {
        if failures.is_empty() || self.only_tell {
            judged.warnings.extend(failures);
            return Ok(());
        }
        let mut measured = measured();
        let (key, report) = report();
        measured.insert(key.to_owned(), report);
        Err(Failure::Gate { of_parts: false, failures, measured: Box::new(measured) })
    }
}

/// Rejects gates for an encrypted output that could not be opened for them.
fn check_opens(job: &Job, option: &str, context: &Context) -> Outcome {
    let Some(encryption) = &job.target.apr2.encryption else { return Ok(()) };
    let keys = &context.options.keys;
    match secrets::check_opens(encryption, keys) {
        Ok(()) => Ok(()),
        Err(error) if error.code() == Code::Decrypt => Err(Failure::Usage(format!(
            "{option} needs a key to read the encrypted output: pass --key FILE or \
             --password-file FILE, set APR_PASSWORD, or skip the check with --force"
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Renders the drift that a gate measured.
///
/// An output that exceeds a limit was not written, unless the user forced it, with a warning.
pub(crate) fn render_drift(out: &mut dyn Write, drift: &DriftReport) -> io::Result<()> {
    let DriftReport { tensor_count, changed, total, .. } = drift;
    let (tensors, percent) =
        (counted(*tensor_count as u64, "tensor"), 100.0 * total.relative_error);
    if drift.is_idle() {
        return writeln!(out, "  drift: none of {tensors} changed");
    }
    writeln!(out, "  drift: {changed} of {tensors} changed, relative error {percent:.3} %")
}

/// Returns the name of an output in reports.
pub(crate) fn name_of(output: Option<&Path>) -> String {
    output.unwrap_or(Path::new("-")).display().to_string()
}
