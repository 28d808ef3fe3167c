//! Whether tests notice a change of the code: the share of cargo-mutants' changes that make one
//! fail.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{output, program, target_dir};
use crate::quality::report::{self, percent};
use crate::steps::{Outcome, Steps, Stop};
use crate::tools::Tool;

const CARGO_MUTANTS: Tool = Tool::new("cargo-mutants", "27.1.0");

/// The crates that read what strangers wrote, and the numbers that everything else relies on.
const CRATES: [&str; 3] = ["apr-format", "apr-safetensors", "apr-tensor"];

/// Target in percent of the mutants that build.
const WANTED: f64 = 85.0;

pub(crate) fn run(steps: &mut Steps, sample: usize) {
    let Some(tool) = steps.run("cargo-mutants", || CARGO_MUTANTS.installed_or_install()) else {
        return;
    };
    for name in CRATES {
        steps.run(&format!("{name}: some {sample} mutants"), || {
            let score = Score::measure(&tool, name, sample)?;
            report::write(&format!("mutants of {name}"), &score.figures())
        });
    }
}

struct Score {
    /// Mutants that the crate has.
    all: usize,
    /// Mutants for which a test failed or did not finish.
    caught: usize,
    missed: Vec<String>,
    unviable: usize,
}

impl Score {
    /// Takes every n-th mutant of the crate: the same ones each time, over all of its files.
    fn measure(tool: &Path, name: &str, sample: usize) -> Outcome<Self> {
        let list = output(mutants(tool, name).arg("--list"))
            .ok_or_else(|| Stop::failed("the mutants can't be listed"))?;
        let all = list.lines().count();
        let shards = (all / sample).max(1);
        let folder = target_dir().join("quality").join(name);
        fs::create_dir_all(&folder).map_err(Stop::failed)?;
        let mut command = mutants(tool, name);
        command.args([
            "--shard",
            &format!("0/{shards}"),
            "--sharding",
            "round-robin",
            "--no-shuffle",
            "--output",
        ]);

        // One place for all crates and mutants, so that dependencies are built once.
        command.arg(&folder).env("CARGO_TARGET_DIR", target_dir().join("quality/mutants"));
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").args(["--", "--lib", "--tests"]);

        // 2: some were missed; 3: some did not come to an end.
        match command.status().map_err(Stop::failed)?.code() {
            Some(0 | 2 | 3) => {}
            code => return Err(Stop::failed(format!("cargo-mutants ended with {code:?}"))),
        }

        let read = |what: &str| outcomes(folder.join("mutants.out").join(what));
        let caught = read("caught.txt")?.len() + read("timeout.txt")?.len();
        Ok(Self { all, caught, missed: read("missed.txt")?, unviable: read("unviable.txt")?.len() })
    }

    fn figures(&self) -> String {
        let Self { all, caught, missed, unviable } = self;
        let viable = caught + missed.len();
        let score = percent(*caught, viable);
        let verdict = if score < WANTED { ", below what is wanted" } else { "" };
        let mut text = format!(
            "{} of {all} mutants tried; {unviable} do not build, {caught} of the other {viable} \
             were caught: {score:.1} %{verdict}.",
            viable + unviable
        );
        if !missed.is_empty() {
            text.push_str(" Missed:\n\n");
        }

        for mutant in missed {
            let _ = writeln!(text, "- `{mutant}`");
        }

        text
    }
}

fn mutants(tool: &Path, name: &str) -> Command {
    let mut command = program(tool);
    command.args(["mutants", "--package", name, "--all-features"]);
    command
}

fn outcomes(path: PathBuf) -> Outcome<Vec<String>> {
    let text = fs::read_to_string(path).map_err(Stop::failed)?;
    Ok(text.lines().map(str::to_string).collect())
}
