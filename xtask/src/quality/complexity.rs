//! Cyclomatic complexity of the functions of layers 0-2, counted by `xtask/complexity`.

use std::fmt::Write;

use crate::builds::PORTABLE;
use crate::process::{cargo, output, program};
use crate::quality::report;
use crate::steps::{Outcome, Steps, Stop};

const BOUND: usize = 10;

pub(crate) fn run(steps: &mut Steps) {
    steps.run(&format!("cyclomatic complexity of layers 0-2, at most {BOUND}"), measure);
}

/// A function above the bound, as the counter prints it.
struct Above {
    complexity: usize,
    arms: usize,
    file: String,
    name: String,
}

impl Above {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let mut number = || fields.next()?.parse().ok();
        let (complexity, arms) = (number()?, number()?);
        let (file, _line, name) =
            (fields.next()?.to_string(), fields.next()?, fields.next()?.to_string());
        Some(Self { complexity, arms, file, name })
    }

    /// Returns `true` if most of the complexity is arms of `match`.
    ///
    /// The rest must be within the bound.
    ///
    /// Such a function is a table in the form of code.
    fn is_table(&self) -> bool {
        self.complexity - self.arms <= BOUND && self.arms * 4 >= self.complexity * 3
    }
}

fn measure() -> Outcome {
    let sources = PORTABLE.map(|name| format!("crates/*/{name}/src/*.rs"));
    let files = output(program("git").args(["ls-files", "--"]).args(sources));
    let files = files.ok_or_else(|| Stop::failed("Git can't list the files"))?;
    let files =
        files.lines().filter(|file| !file.ends_with("/tests.rs") && !file.contains("/tests/"));
    let bound = BOUND.to_string();
    let mut counter = cargo("run", ["--quiet", "--package", "apr-complexity", "--", &bound]);
    let printed = output(counter.args(files))
        .ok_or_else(|| Stop::failed("the counter failed; run it by hand"))?;
    let (list, looked_at) = printed.rsplit_once('\n').unwrap_or(("", &printed));
    let mut above: Vec<_> = list.lines().filter_map(Above::parse).collect();
    above.sort_by_key(|function| std::cmp::Reverse(function.complexity));
    report::write("complexity", &figures(&above, looked_at))
}

fn figures(above: &[Above], looked_at: &str) -> String {
    let tables = above.iter().filter(|function| function.is_table()).count();
    let mut text = format!(
        "{} of {looked_at} functions are above {BOUND}; {tables} of those are tables, at least \
         three quarters arms of `match`.\n\n| complexity | of it arms | function | file |\n\
         |---|---|---|---|\n",
        above.len()
    );
    for Above { complexity, arms, file, name } in above {
        let file = file.strip_prefix("crates/").unwrap_or(file);
        let _ = writeln!(text, "| {complexity} | {arms} | `{name}` | `{file}` |");
    }
    text
}
