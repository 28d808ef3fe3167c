//! Running programs, what they say, and where things are.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::{fs, io};

use crate::steps::{Outcome, Stop, in_ci};

/// Returns the root of the workspace in which `cargo xtask` was called.
///
/// It is determined at run time, because checkouts may share build outputs.
pub(crate) fn workspace() -> PathBuf {
    let xtask =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().map_or_else(|| ".".into(), Path::to_path_buf)
}

/// Returns the folders of all crates, which are in the folders of their groups.
///
/// # Errors
///
/// The error of the system.
pub(crate) fn crates() -> io::Result<Vec<PathBuf>> {
    let mut crates = Vec::new();
    for group in fs::read_dir(workspace().join("crates"))? {
        let group = group?.path();
        let inside = if group.is_dir() { fs::read_dir(&group)?.collect() } else { Vec::new() };
        for entry in inside {
            crates.push(entry?.path());
        }
    }
    crates.retain(|folder| folder.join("Cargo.toml").is_file());
    crates.sort();
    Ok(crates)
}

pub(crate) fn target_dir() -> PathBuf {
    workspace().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Returns a command that runs in the workspace root, without standard input.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(workspace()).stdin(Stdio::null());
    command
}

/// The cargo that runs this program. In CI the lock file must be up to date.
pub(crate) fn cargo<'a>(subcommand: &str, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand);
    if in_ci() {
        command.arg("--locked");
    }
    command.args(arguments);
    command
}

thread_local! {
    /// Held output of this thread, if it must not mix with the output of another one.
    static HELD: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Prints a line, or keeps it while this thread's lines are [held](hold).
pub(crate) fn say(line: impl Display) {
    HELD.with_borrow_mut(|held| match held {
        Some(held) => *held += &format!("{line}\n"),
        None => println!("{line}"),
    });
}

/// Holds back further output of this thread and of its programs.
pub(crate) fn hold() {
    HELD.with_borrow_mut(|held| *held = Some(String::new()));
}

/// Prints the held output. Further output is held again.
pub(crate) fn show_held() {
    HELD.with_borrow_mut(|held| {
        if let Some(held) = held {
            print!("{}", std::mem::take(held));
        }
    });
}

/// Runs a program to its end, showing what it prints.
pub(crate) fn run(command: &mut Command) -> Outcome {
    say(format_args!("    {}", shown(command)));
    let name = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    match status(command) {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Stop::failed(format!("{name}: {status}"))),
        Err(error) => Err(Stop::failed(format!("{name}: {error}"))),
    }
}

fn status(command: &mut Command) -> io::Result<ExitStatus> {
    if HELD.with_borrow(Option::is_none) {
        return command.status();
    }
    let output = command.output()?;
    for printed in [&output.stdout, &output.stderr] {
        let printed = String::from_utf8_lossy(printed);
        printed.lines().for_each(say);
    }
    Ok(output.status)
}

/// Returns the output of a program, or `None` if it fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output =
        command.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The first file in the search path whose name fits.
pub(crate) fn find_program(fits: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&path)
        .filter_map(|folder| folder.read_dir().ok())
        .flatten()
        .flatten();
    files.map(|file| file.path()).find(|file| {
        let name = file.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| {
            fits(name.strip_suffix(std::env::consts::EXE_SUFFIX).unwrap_or(name))
        })
    })
}

/// The command with the environment it adds, as a shell would take it.
fn shown(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value?.to_string_lossy())))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    variables.chain(words.map(|word| quoted(&word.to_string_lossy()))).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    if word.contains([' ', '"', '$']) { format!("'{word}'") } else { word.to_string() }
}
