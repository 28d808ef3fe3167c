//! The cost of the features of the crate `apr`, and of the first command of the README: the crates
//! that are compiled for each, and the time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{cargo, output, run as run_program, say, target_dir, workspace};
use crate::steps::{Outcome, Steps, Stop};

/// Library whose documentation has the table.
const LIBRARY: &str = "crates/faces/apr/src/lib.rs";

/// Features that are counted alone.
///
/// The others are counted with `native` and `simd`, as in programs.
const ALONE: [&str; 3] = ["none", "std", "simd"];

/// Maximum number of crates for the feature that reads and writes `.apr` and safetensors files.
const SMALLEST: (&str, usize) = ("native", 60);

/// Build of the README's first command, with its budgets.
///
/// The gate counts crates and source text, which do not depend on other load. `cargo xtask features
/// --times` measures the seconds.
const FIRST: First =
    First { features: "lean", profile: "lean", crates: 150, kilobytes: 13_200, seconds: 180.0 };

struct First {
    features: &'static str,
    profile: &'static str,
    /// Maximum number of crates.
    crates: usize,
    /// Maximum size of the source text of the workspace's crates, without tests.
    kilobytes: u64,
    /// Maximum processor seconds.
    seconds: f64,
}

/// Recounts the crates and writes the numbers into the table.
///
/// With `times`, also measures each build.
pub(crate) fn run(steps: &mut Steps, times: bool) {
    steps.run("features: crates", || {
        let text = fs::read_to_string(library()).map_err(Stop::failed)?;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for line in &mut lines {
            let Some((feature, mut cells)) = row_of(line) else { continue };
            let features = asked(feature);
            cells[2] = crates_of("apr", &features)?.to_string();
            if times {
                cells[3] = format!("{:.0}", build("apr", &features, &["--release"])?);
            }
            *line = format!("//! | {} |", cells.join(" | "));
            say(format_args!("    {line}"));
        }
        fs::write(library(), lines.join("\n") + "\n").map_err(Stop::failed)
    });
    steps.run("the first command of the README: crates and source text", || {
        match beyond_budget()?.as_slice() {
            [] => Ok(()),
            wrong => Err(Stop::failed(wrong.join("; "))),
        }
    });
    if times {
        steps.run("the first command of the README: processor seconds", || {
            let seconds = build("apr-cli", FIRST.features, &["--profile", FIRST.profile])?;
            say(format_args!("    {seconds:.0} of at most {:.0}", FIRST.seconds));
            if seconds > FIRST.seconds {
                return Err(Stop::failed("the first command takes too long to build"));
            }
            Ok(())
        });
    }
}

/// Compares the table with the crates that are compiled.
pub(crate) fn check() -> Outcome {
    let text = fs::read_to_string(library()).map_err(Stop::failed)?;
    let mut wrong = Vec::new();
    for (feature, cells) in text.lines().filter_map(row_of) {
        let found = crates_of("apr", &asked(feature))?;
        if cells[2] != found.to_string() {
            wrong.push(format!("{feature} has {found} crates and not {}", cells[2]));
        }
        if feature == SMALLEST.0 && found > SMALLEST.1 {
            wrong.push(format!("{feature} has more than {} crates", SMALLEST.1));
        }
    }
    wrong.extend(beyond_budget()?);
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Stop::failed(format!("run `cargo xtask features`: {}", wrong.join("; "))))
}

/// Returns the budgets that the first command exceeds, other than that of seconds.
fn beyond_budget() -> Outcome<Vec<String>> {
    let (crates, text) =
        (crates_of("apr-cli", FIRST.features)?, text_of("apr-cli", FIRST.features)?);
    say(format_args!(
        "    the first command: {crates} crates of at most {}, {text} kB of source text of {}",
        FIRST.crates, FIRST.kilobytes
    ));
    let mut wrong = Vec::new();
    if crates > FIRST.crates {
        wrong.push(format!("the first command has {crates} crates, more than {}", FIRST.crates));
    }
    if text > FIRST.kilobytes {
        wrong.push(format!(
            "the first command compiles {text} kB of the workspace, more than {}: measure it with \
             --times, and leave something out or raise the budget",
            FIRST.kilobytes
        ));
    }
    Ok(wrong)
}

fn library() -> PathBuf {
    workspace().join(LIBRARY)
}

/// A row of the table: the feature, and the cells.
fn row_of(line: &str) -> Option<(&str, Vec<String>)> {
    let row = line.strip_prefix("//! | ")?.strip_suffix(" |")?;
    let cells: Vec<String> = row.split(" | ").map(str::to_owned).collect();
    let is_count = |cell: &String| cell.parse::<usize>().is_ok();
    if cells.len() != 4 || !is_count(&cells[2]) {
        return None;
    }
    let name = row.split(" | ").next()?;
    Some((name.trim_matches('`'), cells))
}

/// Returns the features to pass to cargo.
fn asked(feature: &str) -> String {
    match feature {
        "none" => String::new(),
        "native" => "native,simd".to_owned(),
        _ if ALONE.contains(&feature) => feature.to_owned(),
        _ => format!("native,simd,{feature}"),
    }
}

/// Lists the crates that are compiled, one a line, some more than once.
fn tree(package: &str, features: &str) -> Result<String, Stop> {
    let mut tree = cargo("tree", ["--package", package, "--edges", "normal,build"]);
    tree.args(["--no-default-features", "--features", features, "--prefix", "none"]);
    output(&mut tree).ok_or_else(|| Stop::failed("cargo tree ends with an error"))
}

/// Size of the source text of the workspace's crates that are compiled, without tests, in kB.
fn text_of(package: &str, features: &str) -> Result<u64, Stop> {
    let listed = tree(package, features)?;
    let folder = |line: &str| Some(line.split_once(" (/")?.1.split_once(')')?.0.to_owned());
    let folders: BTreeSet<String> = listed.lines().filter_map(folder).collect();
    let sizes = folders.iter().map(|folder| text_below(&Path::new("/").join(folder).join("src")));
    Ok(sizes.sum::<Outcome<u64>>()? / 1000)
}

/// Size of the source files in a folder and its subfolders, without tests, in bytes.
fn text_below(folder: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(Stop::failed)?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "tests" {
            bytes += text_below(&path)?;
        } else if path.extension().is_some_and(|it| it == "rs") && name != "tests.rs" {
            bytes += entry.metadata().map_err(Stop::failed)?.len();
        }
    }
    Ok(bytes)
}

fn crates_of(package: &str, features: &str) -> Result<usize, Stop> {
    let listed = tree(package, features)?;
    let named = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    };
    Ok(listed.lines().filter_map(named).collect::<BTreeSet<_>>().len())
}

/// Returns the processor seconds of a clean build.
///
/// They depend less on other load than the elapsed time.
fn build(package: &str, features: &str, profile: &[&str]) -> Result<f64, Stop> {
    let folder = target_dir().join("features");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Stop::failed)?;
    }
    let mut build = cargo("build", ["--package", package, "--quiet"]);
    build.args(profile).args(["--no-default-features", "--features", features, "--target-dir"]);
    build.arg(&folder);
    let before = of_children()?;
    run_program(&mut build)?;
    Ok(of_children()? - before)
}

/// Processor seconds of all processes that this one waited for, by proc(5).
fn of_children() -> Result<f64, Stop> {
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").map_err(Stop::failed)?;
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    // Fields 16 and 17, counted from 1; the rest begins with the third.
    let ticks: f64 = fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS)
}
