//! How long a completion took, and how much memory the process did.

use std::time::Duration;

use apr_run::Completion;
use serde::Serialize;

use super::job::Job;
use crate::documents::Document;
use crate::human;

/// Time from the start of the command until the model was ready.
pub(super) struct Loaded(Duration);

/// Completion with the time and memory of the process.
#[derive(Serialize)]
pub(super) struct Timed {
    /// Path or location of the model, as given.
    path: String,
    /// Path of the vision tower and projector, if they are in another file.
    #[serde(skip_serializing_if = "Option::is_none")]
    mmproj: Option<String>,
    /// Number of the prompt, from 0, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    /// The prompt as given; absent for tokens and messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    #[serde(flatten)]
    completion: Completion,
    /// Time from the start of the command until the model was ready, in seconds.
    load_seconds: f64,
    /// Peak memory of the process so far, if the system reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_memory_bytes: Option<u64>,
}

/// The prompt of a completion.
#[derive(Default)]
pub(super) struct Given<'t> {
    /// Number of the prompt, from 0, if there are several.
    pub(super) index: Option<usize>,
    /// The text, if the prompt is one.
    pub(super) text: Option<&'t str>,
}

impl Document for Timed {
    const SCHEMA: &'static str = "run";
}

impl Loaded {
    pub(super) fn of(job: &Job<'_>) -> Self {
        Self(job.begun.elapsed())
    }

    /// The completion with the times, which `--verbose` shows.
    pub(super) fn report(&self, job: &Job<'_>, of: &Given<'_>, completion: Completion) -> Timed {
        let load_seconds = self.0.as_secs_f64();
        let peak_memory_bytes = peak_memory();
        if let Some(timings) = completion.timings.filter(|_| !job.context.json) {
            let mut parts = vec![format!("load {load_seconds:.2} s")];
            for (name, timing) in [("prefill", timings.prefill), ("decode", timings.decode)] {
                let (tokens, rate) = (timing.tokens, timing.tokens_per_second);
                parts.push(format!("{name} {tokens} tokens, {rate:.1} tokens/s"));
            }
            if let Some(reused) = completion.reused {
                parts.push(format!("{reused} tokens reused"));
            }
            if let Some(batch) = completion.batch {
                parts.push(format!("batch {batch}"));
            }
            if let Some(bytes) = peak_memory_bytes {
                parts.push(format!("peak memory {}", human::bytes(bytes)));
            }
            parts.push(format!("arithmetic {}", completion.arithmetic));
            parts.push(format!("cache type {}", completion.cache_type));
            job.context.printer.detail(&parts.join("; "));
        }
        Timed {
            path: job.name.to_owned(),
            mmproj: job.args.mmproj.as_ref().map(|part| part.display().to_string()),
            index: of.index,
            input: of.text.map(str::to_owned),
            completion,
            load_seconds,
            peak_memory_bytes,
        }
    }
}

/// Report on a run with the memory of the process.
#[derive(Serialize)]
pub(in crate::commands) struct WithMemory<R> {
    #[serde(flatten)]
    pub(in crate::commands) report: R,
    /// Peak memory of the process so far, if the system reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_memory_bytes: Option<u64>,
}

impl<R> WithMemory<R> {
    pub(in crate::commands) fn of(report: R) -> Self {
        Self { report, peak_memory_bytes: peak_memory() }
    }
}

/// Returns the peak memory of the process in bytes: `VmHWM` on Linux.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_reports_the_peak_memory() {
        if cfg!(target_os = "linux") {
            assert!(peak_memory().is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
