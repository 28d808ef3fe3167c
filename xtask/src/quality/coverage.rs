//! Line coverage of layers 0-2 by cargo-llvm-cov, which takes the compiler's own counters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::builds::PORTABLE;
use crate::process::{output, program, run as run_program, target_dir, workspace};
use crate::quality::report::{self, percent};
use crate::steps::{Outcome, Steps, Stop};
use crate::tools::Tool;

const CARGO_LLVM_COV: Tool = Tool::new("cargo-llvm-cov", "0.9.1");

/// Target in percent of each crate's lines.
const WANTED: f64 = 95.0;

/// Crates above layer 2 whose tests also run layers 0-2: commands, files, threads.
const ABOVE: [&str; 3] = ["apr-io", "apr", "apr-cli"];

pub(crate) fn run(steps: &mut Steps) {
    let tool = steps.run("cargo-llvm-cov and LLVM's tools", || {
        let tool = CARGO_LLVM_COV.installed_or_install()?;
        llvm_tools()?;
        Ok(tool)
    });
    let Some(tool) = tool else { return };
    let tests = steps.run("tests of layers 0-2 and of what stands on them, counting lines", || {
        let packages = PORTABLE.iter().chain(&ABOVE).flat_map(|name| ["--package", name]);
        let what =
            ["--no-report", "--no-fail-fast", "--all-features", "--lib", "--bins", "--tests"];
        run_program(llvm_cov(&tool).args(what).args(packages))
    });

    if tests.is_some() {
        steps.run("line coverage of layers 0-2", || {
            let folder = target_dir().join("quality");
            fs::create_dir_all(&folder).map_err(Stop::failed)?;
            let lcov = folder.join("coverage.lcov");
            // Tests kill some of the programs that they start, which leaves counters that can't be
            // read.
            run_program(
                llvm_cov(&tool)
                    .args(["report", "--lcov", "--failure-mode", "all", "--output-path"])
                    .arg(&lcov),
            )?;
            let lines = lines(&fs::read_to_string(&lcov).map_err(Stop::failed)?);
            let uncovered = folder.join("uncovered.txt");
            fs::write(&uncovered, list_uncovered(&lines)).map_err(Stop::failed)?;
            println!("    the lines that no test runs: {}", uncovered.display());
            report::write("coverage", &figures(&lines))
        });
    }
}

/// Without debug information, which the counters don't need and which is most of a build's size.
fn llvm_cov(tool: &Path) -> Command {
    let mut command = program(tool);
    command.arg("llvm-cov").env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    // A few files that processes add to, instead of one for each of thousands of processes.
    command.env("LLVM_PROFILE_FILE_NAME", "apr-%8m.profraw");
    command
}

/// Readers of the counters, of the compiler's own version of LLVM: no other reads them.
fn llvm_tools() -> Outcome {
    let find = || {
        let libraries = output(program("rustc").args(["--print", "target-libdir"]))?;
        Some(Path::new(&libraries).parent()?.join("bin/llvm-profdata")).filter(|path| path.exists())
    };
    if find().is_some()
        || run_program(program("rustup").args(["component", "add", "llvm-tools"])).is_ok()
    {
        return Ok(());
    }
    Err(Stop::skipped(
        "the toolchain has no llvm-tools",
        "run `rustup component add llvm-tools` where it can be had",
    ))
}

/// For each file of layers 0-2, the lines with code, and `true` for lines that a test ran.
type Lines = BTreeMap<String, BTreeMap<usize, bool>>;

fn lines(lcov: &str) -> Lines {
    let root = workspace().canonicalize().unwrap_or_else(|_| workspace());
    let mut lines = Lines::new();
    let (mut file, mut end) = (String::new(), usize::MAX);
    for line in lcov.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let path = Path::new(path);
            file = path.strip_prefix(&root).unwrap_or(path).to_string_lossy().into_owned();
            end = if is_counted(&file) { tests_of(path) } else { 0 };
        } else if let Some((number, count)) =
            line.strip_prefix("DA:").and_then(|line| line.split_once(','))
        {
            let number = number.parse().unwrap_or(usize::MAX);
            if number < end {
                *lines.entry(file.clone()).or_default().entry(number).or_default() |= count != "0";
            }
        }
    }

    lines
}

fn is_counted(file: &str) -> bool {
    crate_of(file).is_some_and(|name| PORTABLE.contains(&name))
        && file.contains("/src/")
        && !file.ends_with("/tests.rs")
        && !file.contains("/tests/")
        && (has_avx512() || !is_for_avx512(file))
}

/// Returns `true` if a file has only kernels for AVX-512, which other processors cannot run.
fn is_for_avx512(file: &str) -> bool {
    file.ends_with("/avx512.rs") || file.ends_with("/wide.rs")
}

fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

fn crate_of(file: &str) -> Option<&str> {
    file.strip_prefix("crates/")?.split('/').nth(1)
}

/// Returns the line at which a file's own tests begin, which are not measured.
fn tests_of(path: &Path) -> usize {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let begin = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].ends_with("mod tests {"));
    begin.map_or(usize::MAX, |at| at + 1)
}

fn figures(lines: &Lines) -> String {
    let mut crates = BTreeMap::<&str, (usize, usize)>::new();
    for (file, lines) in lines {
        let sums = crates.entry(crate_of(file).unwrap_or_default()).or_default();
        sums.0 += lines.values().filter(|&&ran| ran).count();
        sums.1 += lines.len();
    }

    let mut text = "| crate | lines with code | run by tests | |\n|---|---|---|---|\n".to_string();
    for name in PORTABLE {
        let Some(&(ran, all)) = crates.get(name) else { continue };
        let verdict = if percent(ran, all) < WANTED { "below what is wanted" } else { "" };
        let _ = writeln!(text, "| `{name}` | {all} | {:.1} % | {verdict} |", percent(ran, all));
    }

    let (ran, all) = crates.values().fold((0, 0), |sums, each| (sums.0 + each.0, sums.1 + each.1));
    let _ = writeln!(text, "| together | {all} | {:.1} % | |", percent(ran, all));
    if !has_avx512() {
        text += "\nMeasured on a processor without AVX-512, whose kernels are left out.\n";
    }
    text
}

/// `file: 12-14, 20`, a line for each file.
fn list_uncovered(lines: &Lines) -> String {
    let mut text = String::new();
    for (file, lines) in lines {
        let missed: BTreeSet<_> =
            lines.iter().filter(|(_, ran)| !**ran).map(|(&number, _)| number).collect();
        let begins = missed.iter().filter(|&&number| !missed.contains(&number.wrapping_sub(1)));
        let ranges = begins.map(|&begin| {
            let end =
                (begin..).take_while(|number| missed.contains(number)).last().unwrap_or(begin);
            if begin == end { begin.to_string() } else { format!("{begin}-{end}") }
        });
        let ranges: Vec<_> = ranges.collect();
        if !ranges.is_empty() {
            let _ = writeln!(text, "{file}: {}", ranges.join(", "));
        }
    }

    text
}
