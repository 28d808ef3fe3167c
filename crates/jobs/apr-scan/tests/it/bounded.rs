//! Broken files: a report within bounded memory, whatever they are.

use std::path::PathBuf;

use apr_testkit::{corrupt, locate, peak_memory};

use super::*;

#[test]
fn broken_files_of_any_wrapping_are_scanned_within_bounded_memory() {
    let folder = locate::fixture("scan");
    let listed = |folder: PathBuf| std::fs::read_dir(folder).expect("it is in the repository");
    for file in listed(folder.clone()).chain(listed(folder.join("content"))) {
        let path = file.expect("listed").path();
        if path.is_dir() {
            continue;
        }
        let (name, file) =
            (path.to_string_lossy().into_owned(), std::fs::read(&path).expect("readable"));
        let step = 1 + file.len() / 60;
        let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(8 * step + 3);
        for broken in corrupt::truncations(&file).step_by(step).chain(flips) {
            let (report, peak) = peak_memory(|| scan_pickles(broken, &name, &Limits::default()));
            report.expect("a file in memory is readable");
            assert!(peak < 96 << 20, "{name}: {peak}");
        }
    }
}

#[test]
fn broken_checkpoints_are_scanned_within_bounded_memory() {
    for file in ["tied.pt", "tied_legacy.pt"].map(golden) {
        let flips = corrupt::bit_flips(&file, 0..file.len().min(4096));
        for broken in corrupt::truncations(&file).chain(flips) {
            let (report, peak) =
                peak_memory(|| scan_pickles(broken, "model.pt", &Limits::default()));
            report.expect("a file in memory is readable");
            assert!(peak < 64 << 20, "a scan held {peak} bytes");
        }
    }
}
