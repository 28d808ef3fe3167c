//! Notes of unfinished work in what is tracked.

use crate::process::{program, run as run_program};
use crate::quality::report;
use crate::steps::{Steps, Stop};

/// Pattern with brackets, so that it does not match itself.
const PATTERN: &str = r"\b(TO[D]O|FIX[M]E|XX[X])\b|\b(to[d]o|unimplemente[d])!";

pub(crate) fn run(steps: &mut Steps) {
    steps.run("no notes of unfinished work in tracked files", || {
        let mut grep = program("git");
        grep.args(["grep", "-n", "-I", "-E", PATTERN, "--", "."]);
        // The page that forbids them names one; fixtures are data.
        grep.args([":!CONTRIBUTING.md", ":!fixtures", ":!*/tests/golden"]);
        match grep.status().map_err(Stop::failed)?.code() {
            Some(1) => report::write("words", "None in tracked files."),
            Some(0) => Err(Stop::failed("the lines above have one")),
            _ => run_program(&mut grep),
        }
    });
}
