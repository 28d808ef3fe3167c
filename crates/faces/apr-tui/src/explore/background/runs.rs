//! What needs the model to run: a trace, and the outputs of two models.

use std::sync::{Mutex, PoisonError};

use apr_core::{Error, Phase, Progress, Serial};
use apr_io::NativeHost;
use apr_ops::tensors::{TensorsOptions, list};
use apr_quality::{ComparisonReport, Subject as Judged, Thresholds, built_in, compare};
use apr_run::{Facts, Host, Remedy, RunError, RunOptions, RunResult, with_runner};
use apr_trace::{Payload, Subject, Trace, TraceOptions, trace};

use super::half;
use super::meter::Watch;
use super::reports::Bench;

/// A report on a run.
pub(crate) struct Ran<R> {
    pub(crate) report: R,
    /// Warnings of the run, each with its remedy.
    pub(crate) warnings: Warnings,
}

pub(crate) type Warnings = Vec<(String, Option<Remedy>)>;

/// The surroundings of a run, with a place for warnings.
fn with_host<R>(
    bench: &Bench<'_>,
    watch: &Watch,
    run: impl FnOnce(&dyn Host) -> RunResult<R>,
) -> RunResult<Ran<R>> {
    let warnings = Mutex::new(Warnings::new());
    let warn = |text: &str, remedy| {
        warnings.lock().unwrap_or_else(PoisonError::into_inner).push((text.to_owned(), remedy));
    };
    let host = NativeHost::new(half(bench.job.threads), watch.interrupt().clone(), warn);
    let report = run(&host)?;
    drop(host);
    Ok(Ran { report, warnings: warnings.into_inner().unwrap_or_else(PoisonError::into_inner) })
}

/// Returns the report of `apr trace --trace-payload --weights` on a prompt, or on the payload from
/// the front end.
pub(super) fn traced(
    bench: &Bench<'_>,
    prompt: Option<&str>,
    watch: &Watch,
) -> RunResult<Ran<Trace>> {
    let typed =
        prompt.map(|prompt| Payload::Text { prompt: prompt.to_owned(), chat: None, context: None });
    let Some(payload) = typed.as_ref().or(bench.job.payload.as_ref()) else {
        return Err(RunError::request("nothing to trace: type a prompt"));
    };

    let mut run = RunOptions::reading();
    run.max_memory = bench.job.max_memory / 2;
    let mut options = TraceOptions::new(run);
    (options.payload, options.weights) = (true, true);
    let source = bench.job.model.source();
    let facts = Facts::of_source(&source)?;
    let subject = Subject { source: &source, facts: &facts };
    with_host(bench, watch, |host| trace(subject, payload, &options, host, None))
}

/// Returns the report of `apr validate A B --quality` on the outputs of two models.
pub(super) fn outputs(bench: &Bench<'_>, watch: &Watch) -> RunResult<Ran<ComparisonReport>> {
    let mut options = RunOptions::reading();
    // Both models are there at once, in the half that the work may take.
    options.max_memory = bench.job.max_memory / 4;
    let (one, two) = (bench.model.source(), bench.second().source());
    let facts = [Facts::of(one.reader())?, Facts::of(two.reader())?];
    let bits = |reader| {
        let tensors = list(reader, "", &TensorsOptions::default(), &Serial, &())?;
        Ok::<_, Error>(tensors.narrowest_bits())
    };
    let thresholds = Thresholds::of_bits(bits(one.reader())?, bits(two.reader())?);
    with_host(bench, watch, |host| {
        with_runner(one, &facts[0], &options, host, |left| {
            with_runner(two, &facts[1], &options, host, |right| {
                let samples = built_in(left);
                watch.meter().begin(Phase::Comparing, samples.len() as u64);
                let subjects = [Judged::of(left)?, Judged::of(right)?];
                let mut done = |_| watch.meter().advance(1);
                compare(&subjects[0], &subjects[1], &samples, thresholds, &mut done)
            })
        })
    })
}
