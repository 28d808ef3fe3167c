//! What can be said about the code without running it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::builds::PORTABLE;
use crate::features;
use crate::interop;
use crate::package;
use crate::process::{cargo, crates, output, program, run as run_program, say, workspace};
use crate::steps::{Outcome, Steps, Stop, in_ci};
use crate::tools::Tool;

/// The version CI installs.
pub(crate) const CARGO_DENY: Tool = Tool::new("cargo-deny", "0.20.2");

/// Security advisories about crates.
const ADVISORIES: &str = "https://github.com/RustSec/advisory-db";

/// Workspaces, each with a lock file. The package for Python is in the first.
const LOCKED: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];

/// Git's hashes of the files that dependencies follow from, as they were when cargo-deny last
/// agreed with them. It takes minutes to build and a second to run, so it is asked again only when
/// one of them has changed.
const CHECKED: &str = "xtask/dependencies.checked";

/// Groups of crates, in the order of dependence.
const GROUPS: [&str; 10] = [
    "contracts",
    "numbers",
    "graphs",
    "formats",
    "models",
    "transforms",
    "jobs",
    "native",
    "development",
    "faces",
];

/// First line of a library in layers 0-2.
const DENIES: &str =
    "#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]";

pub(crate) fn run(steps: &mut Steps) {
    steps.run("formatting", || {
        run_program(program("cargo").args(["fmt", "--all", "--check"]))?;
        lines_of_code_fit()
    });
    steps.run("clippy", || {
        // apr-interop needs candle, and is checked where it is run.
        let everything =
            ["--workspace", "--exclude", "apr-interop", "--all-targets", "--all-features"];
        run_program(cargo("clippy", everything).args(["--", "-D", "warnings"]))
    });

    // The README's first command, and the smallest one of docs/install.md. Nothing else in the gate
    // leaves features out.
    steps.run("the commands of `cargo apr` and without features compile", || {
        let smallest = ["--package", "apr-cli", "--no-default-features"];
        run_program(cargo("check", smallest).args(["--features", "lean"]))?;
        run_program(&mut cargo("check", smallest))
    });

    // What clippy.toml bans is allowed where a library does not deny it.
    steps.run("layers 0-2 deny files, threads, clocks and processes", || {
        let forgot: Vec<&str> =
            PORTABLE.into_iter().filter(|name| !denies_the_system(name)).collect();
        if forgot.is_empty() {
            Ok(())
        } else {
            Err(Stop::failed(format!("this line is missing in {}: {DENIES}", forgot.join(", "))))
        }
    });
    steps.run("crates depend on crates of their group and earlier ones", groups_are_in_order);
    steps.run("libraries name settings, not options", no_library_spells_an_option);
    steps.run("dependencies: bans, licences, sources", dependencies);
    steps.run("dependencies: security advisories", advisories_if_reachable);
    steps.run("features: the table is true", features::check);
    steps.run("manifests and readmes of published crates", package::check);
    steps.run("live peers: parts of interop that are due", interop::list_due);
    steps.run("documentation", || {
        let mut doc = cargo(
            "doc",
            ["--workspace", "--exclude", "apr-interop", "--all-features", "--no-deps"],
        );
        run_program(doc.env("RUSTDOCFLAGS", "-D warnings"))
    });
}

/// Runs all dependency checks. Fails if the database of advisories cannot be reached.
pub(crate) fn all_of_dependencies(steps: &mut Steps) {
    steps.run("dependencies: bans, licences, sources", || {
        cargo_deny(&["bans", "licenses", "sources"])
    });
    steps.run("dependencies: security advisories", compare_with_advisories);
}

/// Compares with the database of advisories, if it can be reached.
///
/// The gate also runs on machines that can only reach registries, which do not have the database.
/// cargo-deny takes minutes to build, so it is installed only if there is something to compare
/// with.
fn advisories_if_reachable() -> Outcome {
    if advisories_are_reachable() {
        compare_with_advisories()
    } else {
        Err(Stop::out_of_reach(format!("{ADVISORIES} can't be reached; nothing was compared")))
    }
}

pub(crate) fn advisories_are_reachable() -> bool {
    let mut ask = program("git");
    ask.args(["ls-remote", "--quiet", ADVISORIES, "HEAD"]).env("GIT_TERMINAL_PROMPT", "0");
    output(&mut ask).is_some()
}

/// Holds what ships and the fuzz targets, as their lock files have them, against the advisories of
/// today and against what was yanked.
pub(crate) fn compare_with_advisories() -> Outcome {
    let cargo_deny = CARGO_DENY.installed_or_install()?;
    LOCKED.into_iter().try_for_each(|manifest| {
        let mut check = program(&cargo_deny);
        check.args(["--config", "deny.toml", "--manifest-path", manifest]);
        if in_ci() {
            check.arg("--locked");
        }
        run_program(check.args(["--log-level", "error", "check", "advisories"]))
    })
}

/// Checks the lengths of lines that rustfmt does not break: comments, texts and macros.
///
/// A row of a table in a comment cannot be broken.
fn lines_of_code_fit() -> Outcome {
    const MOST: usize = 100;

    let mut files = Vec::new();
    for folder in ["crates", "examples", "fixtures", "fuzz", "xtask"] {
        code_below(&workspace().join(folder), &mut files).map_err(Stop::failed)?;
    }

    let mut long = Vec::new();
    for file in files {
        let code = fs::read_to_string(&file).map_err(Stop::failed)?;
        for (at, line) in code.lines().enumerate() {
            let text = line.trim_start();
            let is_row = ["//! |", "/// |"].iter().any(|row| text.starts_with(row));
            if line.chars().count() > MOST && !is_row {
                let name = file.strip_prefix(workspace()).unwrap_or(&file);
                long.push(format!("{}:{}", name.display(), at + 1));
            }
        }
    }

    if long.is_empty() {
        return Ok(());
    }

    let long = long.join(", ");
    Err(Stop::failed(format!("lines of more than {MOST} characters: {long}")))
}

/// Checks that no library text names a command line option, because library users have none.
///
/// Texts name settings, which front ends reword (`apr_core::setting`). Tests that follow the code
/// are skipped.
fn no_library_spells_an_option() -> Outcome {
    const FRONT_ENDS: [&str; 3] = ["apr-cli", "apr-qa", "apr-tui"];
    const OF_TESTS: [&str; 3] = ["apr-testkit", "apr-fuzz-bodies", "apr-interop"];

    let mut files = Vec::new();
    for library in crates().map_err(Stop::failed)? {
        let is_other = FRONT_ENDS.iter().chain(&OF_TESTS).any(|name| library.ends_with(name));
        if library.join("src").is_dir() && !is_other {
            code_below(&library.join("src"), &mut files).map_err(Stop::failed)?;
        }
    }
    files.retain(|file| !file.ends_with("tests.rs"));

    let mut spelled = Vec::new();
    for file in files {
        let code = fs::read_to_string(&file).map_err(Stop::failed)?;
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        for (at, line) in code.lines().enumerate() {
            if !line.trim_start().starts_with("//") && has_option(line) {
                let name = file.strip_prefix(workspace()).unwrap_or(&file);
                spelled.push(format!("{}:{}", name.display(), at + 1));
            }
        }
    }

    if spelled.is_empty() {
        return Ok(());
    }
    Err(Stop::failed(format!("options of the command line: {}", spelled.join(", "))))
}

/// Returns `true` if a line contains something like `--option`.
fn has_option(line: &str) -> bool {
    line.match_indices("--").any(|(at, dashes)| {
        let is_joined =
            line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '-');
        !is_joined && line[at + dashes.len()..].starts_with(|next: char| next.is_ascii_lowercase())
    })
}

fn code_below(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            code_below(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Checks the dependencies of each crate, without those of its tests.
fn groups_are_in_order() -> Outcome {
    let folders = crates().map_err(Stop::failed)?;
    let group = |folder: &Path| {
        let group = folder.parent().and_then(Path::file_name).unwrap_or_default().to_owned();
        GROUPS.iter().position(|known| group == **known)
    };
    let mut wrong = Vec::new();
    for folder in &folders {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).map_err(Stop::failed)?;
        let mut is_listed = false;
        for line in manifest.lines() {
            if line.starts_with('[') {
                is_listed = line.ends_with("dependencies]") && !line.contains("dev-");
            }
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let used = folders.iter().find(|other| is_listed && other.ends_with(name));
            if used.is_some_and(|used| group(used) > group(folder)) {
                let from = folder.file_name().unwrap_or_default().to_string_lossy();
                wrong.push(format!("{from} uses {name}"));
            }
        }
        if group(folder).is_none() {
            wrong.push(format!("{} is in no group", folder.display()));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Stop::failed(wrong.join(", "))),
    }
}

fn denies_the_system(name: &str) -> bool {
    let crates = crates().unwrap_or_default();
    let folder = crates.iter().find(|folder| folder.ends_with(name));
    let library = folder.map(|folder| fs::read_to_string(folder.join("src/lib.rs")));
    library.is_some_and(|code| code.is_ok_and(|code| code.lines().any(|line| line == DENIES)))
}

fn dependencies() -> Outcome {
    let now = dependency_hashes();
    let recorded = fs::read_to_string(workspace().join(CHECKED)).ok();
    if now.is_some() && now == recorded {
        say(format_args!("    nothing changed since cargo-deny agreed ({CHECKED})"));
        return Ok(());
    }
    cargo_deny(&["bans", "licenses", "sources"])?;
    match now {
        Some(now) => fs::write(workspace().join(CHECKED), now).map_err(Stop::failed),
        None => Ok(()),
    }
}

/// Returns a line with the hash of each file, or `None` if Git cannot list the files.
fn dependency_hashes() -> Option<String> {
    let files = [
        "Cargo.lock",
        "Cargo.toml",
        "deny.toml",
        "crates/*/*/Cargo.toml",
        "examples/*/Cargo.toml",
        "python/Cargo.toml",
    ];
    let names = output(program("git").args(["ls-files", "--"]).args(files))?;
    let hashes =
        output(program("git").args(["hash-object", "--no-filters", "--"]).args(names.lines()))?;
    let lines = hashes.lines().zip(names.lines()).map(|(hash, name)| format!("{hash}  {name}\n"));
    Some(lines.collect()).filter(|lines: &String| !lines.is_empty())
}

fn cargo_deny(checks: &[&str]) -> Outcome {
    let cargo_deny = match CARGO_DENY.installed() {
        Some(path) => path,
        None if in_ci() => CARGO_DENY.install()?,
        None => {
            let how =
                format!("run `cargo install --locked --version {} cargo-deny`", CARGO_DENY.version);
            return Err(Stop::skipped("cargo-deny is not installed", how));
        }
    };
    run_program(program(cargo_deny).args(["--log-level", "error", "check"]).args(checks))
}
