//! The steps of a task: announced, timed, counted.

use std::fmt::Display;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use crate::process::{hold, say, show_held};

/// Reason for the early end of a step.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(String),
    Skipped {
        why: String,
        how_to_get_it: String,
    },
    /// The step needs something that no machine is certain to reach.
    ///
    /// It is reported and counted, but is not a failure in CI. `docs/decisions.md` lists these
    /// steps.
    OutOfReach(String),
}

impl Stop {
    pub(crate) fn failed(what: impl Display) -> Self {
        Self::Failed(what.to_string())
    }

    pub(crate) fn out_of_reach(what: impl Display) -> Self {
        Self::OutOfReach(what.to_string())
    }

    pub(crate) fn skipped(why: impl Display, how_to_get_it: impl Display) -> Self {
        Self::Skipped { why: why.to_string(), how_to_get_it: how_to_get_it.to_string() }
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Returns `true` in CI, where a skip is a failure.
pub(crate) fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

#[derive(Debug)]
pub(crate) struct Steps {
    start: Instant,
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
    out_of_reach: Vec<String>,
    /// Seconds of each step, with its name.
    times: Vec<(f32, String)>,
}

/// Number of slowest steps that are listed at the end.
const SLOWEST: usize = 5;

impl Steps {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            passed: 0,
            failed: Vec::new(),
            skipped: Vec::new(),
            out_of_reach: Vec::new(),
            times: Vec::new(),
        }
    }

    /// Runs a step. Returns its result if it passed.
    pub(crate) fn run<T>(&mut self, what: &str, step: impl FnOnce() -> Outcome<T>) -> Option<T> {
        say(format_args!("\n==> {what}"));
        let start = Instant::now();
        let outcome = step();
        let seconds = start.elapsed().as_secs_f32();
        self.times.push((seconds, what.to_string()));
        let passed = match outcome {
            Ok(value) => {
                self.passed += 1;
                say(format_args!("passed: {what} ({seconds:.1} s)"));
                Some(value)
            }
            Err(Stop::Failed(why)) => {
                self.failed.push(format!("failed: {what}: {why}"));
                say(format_args!("failed: {what}: {why} ({seconds:.1} s)"));
                None
            }
            Err(Stop::Skipped { why, how_to_get_it }) => {
                let line = format!("skipped: {what}: {why}, {how_to_get_it}");
                say(&line);
                self.skipped.push(line);
                None
            }
            Err(Stop::OutOfReach(why)) => {
                let line = format!("skipped: {what}: {why}");
                say(&line);
                self.out_of_reach.push(line);
                None
            }
        };

        show_held();
        passed
    }

    /// Runs `others` in another thread, parallel to `own`. Its output is printed step by step.
    pub(crate) fn beside(
        &mut self,
        others: impl FnOnce(&mut Self) + Send,
        own: impl FnOnce(&mut Self),
    ) {
        let others = thread::scope(|scope| {
            let others = scope.spawn(|| {
                hold();
                let mut steps = Self::new();
                others(&mut steps);
                steps
            });
            own(self);
            others.join()
        });

        match others {
            Ok(others) => self.take(others),
            Err(_) => self.failed.push("failed: a step panicked".to_string()),
        }
    }

    fn take(&mut self, others: Self) {
        self.passed += others.passed;
        self.failed.extend(others.failed);
        self.skipped.extend(others.skipped);
        self.out_of_reach.extend(others.out_of_reach);
        self.times.extend(others.times);
    }

    /// The number of steps that did not pass so far.
    pub(crate) fn missed(&self) -> usize {
        self.failed.len() + self.skipped.len() + self.out_of_reach.len()
    }

    /// Prints the sums.
    pub(crate) fn finish(mut self) -> ExitCode {
        println!();
        println!("{:.0} s in all; the slowest steps:", self.start.elapsed().as_secs_f32());
        self.times.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (seconds, what) in self.times.iter().take(SLOWEST) {
            println!("{seconds:7.1} s  {what}");
        }

        for line in self.out_of_reach.iter().chain(&self.skipped).chain(&self.failed) {
            println!("{line}");
        }

        let forbidden = in_ci() && !self.skipped.is_empty();
        if forbidden {
            println!("CI is set: nothing may be skipped");
        }

        println!(
            "{} steps passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len() + self.out_of_reach.len()
        );
        if self.failed.is_empty() && !forbidden { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
