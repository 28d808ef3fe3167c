//! Verdicts on whole files, beside what a reader of PyTorch's says of them.

use apr_core::{Error, Limits};
use apr_scan::{ScanReport, scan_pickles};

mod bounded;
mod checkpoints;
mod folders;
mod formats;
mod hostile;
mod malicious;
mod texts;

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

/// A file that torch wrote, of the PyTorch reader's tests.
fn golden(name: &str) -> Vec<u8> {
    let folder = apr_testkit::locate::workspace().join("crates/formats/apr-pytorch/tests/golden");
    std::fs::read(folder.join(name)).expect("the fixture is in the repository")
}

fn refused(file: Vec<u8>) -> Error {
    let opened = apr_pytorch::open(file, "model.pt", &Limits::default());
    opened.map(drop).expect_err("the file is refused")
}

fn scan(file: Vec<u8>) -> ScanReport {
    scan_pickles(file, "model.pt", &Limits::default()).expect("a file in memory is readable")
}

/// Names that a scan lists, without repetition.
fn names(report: &ScanReport) -> Vec<String> {
    let mut names: Vec<_> =
        report.findings().map(|finding| format!("{}.{}", finding.module, finding.name)).collect();
    names.sort();
    names.dedup();
    names
}
