//! What the library `apr` promises: the list of its public items, and whether a change breaks it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::process::{cargo, output, program, run as run_program, say, target_dir, workspace};
use crate::steps::{Outcome, Steps, Stop};
use crate::tools::Tool;

const PUBLIC_API: Tool = Tool::new("cargo-public-api", "0.51.0");
const SEMVER_CHECKS: Tool = Tool::new("cargo-semver-checks", "0.51.0");

/// The list, beside what it is of.
const LIST: &str = "crates/faces/apr/public-api.txt";

/// Environment variable that updates golden files.
const RENEW: &str = "UPDATE_GOLDEN";

/// Compares the public items with the list.
///
/// With a revision, also reports incompatible changes since.
pub(crate) fn run(steps: &mut Steps, revision: Option<&str>) {
    steps.run("the library's public items are those of the list", compare);
    if let Some(revision) = revision {
        steps.run(&format!("nothing is incompatible with {revision}"), || semver(revision));
    }
}

fn compare() -> Outcome {
    let mut public_api = program(PUBLIC_API.installed_or_install()?);
    public_api.arg("--rustdoc-json").arg(described()?).arg("-sss");
    let found = output(&mut public_api)
        .ok_or_else(|| Stop::failed("cargo public-api ends with an error"))?;
    let path = workspace().join(LIST);
    if std::env::var_os(RENEW).is_some() {
        return fs::write(path, found + "\n").map_err(Stop::failed);
    }

    let listed = fs::read_to_string(path).map_err(Stop::failed)?;
    let without = |lines: &str, others: &str, sign: &str| {
        let missing = |line: &&str| !others.lines().any(|other| other == *line);
        lines.lines().filter(missing).map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    let mut changes = without(&listed, &found, "-");
    changes.extend(without(&found, &listed, "+"));
    if changes.is_empty() {
        return Ok(());
    }
    changes.iter().for_each(|change| say(format_args!("    {change}")));
    Err(Stop::failed(format!("{LIST} differs; {RENEW}=1 renews it")))
}

/// Describes the library's items for programs. cargo-public-api would do so itself, but with a
/// nightly toolchain alone. In a folder of its own: build scripts look at the variable that
/// [`stable`] sets, and everything else would be built again.
fn described() -> Outcome<PathBuf> {
    let folder = target_dir().join("surface");
    let mut describe = stable(cargo("rustdoc", ["--package", "apr", "--lib", "--all-features"]));
    describe.arg("--target-dir").arg(&folder);
    describe.args(["--", "-Z", "unstable-options", "--output-format", "json"]);
    run_program(&mut describe)?;
    Ok(folder.join("doc/apr.json"))
}

fn semver(revision: &str) -> Outcome {
    SEMVER_CHECKS.installed_or_install()?;
    let mut check = stable(cargo("semver-checks", ["--package", "apr", "--all-features"]));
    run_program(check.args(["--baseline-rev", revision]))
}

/// Descriptions of items are an unstable output of rustdoc, which a stable one makes for whoever
/// says so.
fn stable(mut command: Command) -> Command {
    command.env("RUSTC_BOOTSTRAP", "1");
    command
}
