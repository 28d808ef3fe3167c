//! Programs of others that take too long to build or start for every test run: torch, llama.cpp.
//!
//! `cargo xtask interop` asks them. The digests of the files that they agreed with are kept in
//! `fixtures/peers/`, and the ordinary tests check that we still write those very files. So a
//! change of one byte sends us back to the peer.

use std::fmt::Write;
use std::path::PathBuf;

use crate::locate;

/// Returns `true` if this run compares with other programs: `cargo xtask interop` sets
/// `APR_INTEROP`.
#[must_use]
pub fn are_asked() -> bool {
    std::env::var_os("APR_INTEROP").is_some()
}

/// Asserts that these files, each with a label, are the ones that a peer agreed with.
///
/// Where peers [are asked](are_asked), `judge` asks this one and panics if it disagrees; its
/// consent is then recorded as `fixtures/peers/RECORD.blake3`.
///
/// # Panics
/// When a file differs from the recorded one, or the record can't be written.
#[track_caller]
pub fn agreed(record: &str, files: &[(String, Vec<u8>)], judge: impl FnOnce()) {
    let mut found = String::new();
    for (label, bytes) in files {
        writeln!(found, "{}  {label}", blake3::hash(bytes).to_hex()).expect("a string takes all");
    }

    let path = path_of(record);
    if are_asked() {
        judge();
        let folder = path.parent().expect("inside the fixtures");
        std::fs::create_dir_all(folder).expect("the repository is writable");
        std::fs::write(&path, &found).expect("the repository is writable");
        return;
    }

    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    for (found, recorded) in found.lines().zip(recorded.lines().chain(std::iter::repeat(""))) {
        assert_eq!(
            found, recorded,
            "{record} changed since the peer agreed with it: run `cargo xtask interop`"
        );
    }

    assert_eq!(
        found.lines().count(),
        recorded.lines().count(),
        "{record}: the peer agreed with another list of files"
    );
}

fn path_of(record: &str) -> PathBuf {
    locate::fixture("peers").join(record).with_extension("blake3")
}
