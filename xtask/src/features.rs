//! The cost of the features of the crate `apr`, and of the first command of the README: the crates
//! that are compiled for each, and the time.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

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

/// Build of the README's first command, with its maximum numbers of crates and processor seconds.
///
/// `cargo xtask features --times` measures the seconds.
const FIRST: First = First { features: "lean", profile: "lean", crates: 150, seconds: 180.0 };

struct First {
    features: &'static str,
    profile: &'static str,
    crates: usize,
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
    let first = crates_of("apr-cli", FIRST.features)?;
    if first > FIRST.crates {
        wrong.push(format!("the first command has {first} crates, more than {}", FIRST.crates));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Stop::failed(format!("run `cargo xtask features`: {}", wrong.join("; "))))
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

fn crates_of(package: &str, features: &str) -> Result<usize, Stop> {
    let mut tree = cargo("tree", ["--package", package, "--edges", "normal,build"]);
    tree.args(["--no-default-features", "--features", features, "--prefix", "none"]);
    let listed = output(&mut tree).ok_or_else(|| Stop::failed("cargo tree ends with an error"))?;
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
