//! What an edit did.

use std::io::{self, Write};

use apr::Escaped;
use serde::Serialize;

/// What became of the file.
#[derive(Serialize)]
pub(super) struct EditReport {
    pub(super) file: String,
    /// Whether the model differs from what it was.
    pub(super) changed: bool,
    /// Whether a file was written.
    pub(super) written: bool,
    /// Whether only the two ends of the file were written.
    pub(super) in_place: bool,
    pub(super) dropped_tensors: usize,
    pub(super) dropped_signatures: usize,
    pub(super) dropped_licence: bool,
}

pub(super) fn render(out: &mut dyn Write, report: &EditReport) -> io::Result<()> {
    let how = match report {
        EditReport { written: false, .. } => "unchanged: it is so already",
        EditReport { in_place: true, .. } => "changed in place",
        _ => "written",
    };
    write!(out, "{}: {how}", Escaped(&report.file))?;
    if report.dropped_tensors > 0 {
        write!(out, ", without {}", apr_core::counted(report.dropped_tensors as u64, "tensor"))?;
    }
    writeln!(out)
}
