//! What an edit did.

use std::io::{self, Write};
use std::path::Path;

use apr_registry::Escaped;
use serde::Serialize;

use crate::documents::Document;

/// What became of the file.
#[derive(Serialize)]
pub(super) struct EditReport {
    pub(super) path: String,
    /// Whether the model differs from what it was.
    pub(super) changed: bool,
    /// Whether a file was written.
    pub(super) written: bool,
    /// Whether only the two ends of the file were written.
    pub(super) in_place: bool,
    pub(super) dropped_tensors: usize,
    pub(super) dropped_signatures: usize,
    pub(super) dropped_licence: bool,
    /// Whether all that was done is to undo a change that had been interrupted.
    pub(super) undone: bool,
}

impl Document for EditReport {
    const SCHEMA: &'static str = "edit";
}

impl EditReport {
    /// Of an edit that changed nothing.
    pub(super) fn of(path: &Path) -> Self {
        Self {
            path: path.display().to_string(),
            changed: false,
            written: false,
            in_place: false,
            dropped_tensors: 0,
            dropped_signatures: 0,
            dropped_licence: false,
            undone: false,
        }
    }

    /// Of an edit that an interrupted change was undone and asked for none of its own.
    pub(super) fn undone(model: &Path) -> Self {
        Self { changed: true, written: true, in_place: true, undone: true, ..Self::of(model) }
    }
}

pub(super) fn render(out: &mut dyn Write, report: &EditReport) -> io::Result<()> {
    let how = match report {
        EditReport { undone: true, .. } => "an interrupted change was undone",
        EditReport { written: false, .. } => "unchanged: already up to date",
        EditReport { in_place: true, .. } => "changed in place",
        _ => "written",
    };
    write!(out, "{}: {how}", Escaped(&report.path))?;
    if report.dropped_tensors > 0 {
        write!(out, ", without {}", apr_core::counted(report.dropped_tensors as u64, "tensor"))?;
    }
    writeln!(out)
}
