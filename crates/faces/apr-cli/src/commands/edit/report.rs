//! What an edit did.

use std::io::{self, Write};
use std::path::Path;

use apr_registry::Escaped;
use serde::Serialize;

use crate::documents::Document;
use crate::revise::render_unverified;

/// Result of an edit.
#[derive(Serialize)]
pub(super) struct EditReport {
    /// Path of the model, as given.
    pub(super) path: String,
    /// The written file or folder; absent if the model was changed in place or not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<String>,
    /// `true` if the edit changed the model.
    pub(super) changed: bool,
    /// `true` if a file was written.
    pub(super) written: bool,
    /// `true` if only the two ends of the file were written.
    pub(super) in_place: bool,
    /// Number of tensors that were removed.
    pub(super) dropped_tensors: usize,
    /// Number of signatures that were removed because they are no longer valid.
    pub(super) dropped_signatures: usize,
    /// `true` if a licence was removed because it is no longer valid.
    pub(super) dropped_licence: bool,
    /// `true` if the edit only undid an interrupted change.
    pub(super) undone: bool,
    /// Parts of the model that were not read and are therefore unverified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unverified: Option<&'static str>,
}

impl Document for EditReport {
    const SCHEMA: &'static str = "edit";
}

impl EditReport {
    /// Returns the report of an edit that changed nothing.
    pub(super) fn of(path: &Path, output: Option<&Path>) -> Self {
        Self {
            path: path.display().to_string(),
            output: output.map(|output| output.display().to_string()),
            changed: false,
            written: false,
            in_place: false,
            dropped_tensors: 0,
            dropped_signatures: 0,
            dropped_licence: false,
            undone: false,
            unverified: None,
        }
    }

    /// Returns the report of an edit that undid an interrupted change and requested no change
    /// itself.
    pub(super) fn undone(model: &Path) -> Self {
        Self { changed: true, written: true, in_place: true, undone: true, ..Self::of(model, None) }
    }
}

pub(super) fn render(out: &mut dyn Write, report: &EditReport) -> io::Result<()> {
    let how = match report {
        EditReport { undone: true, .. } => "an interrupted change was undone",
        EditReport { written: false, .. } => "unchanged: already up to date",
        EditReport { in_place: true, .. } => "changed in place",
        _ => "written",
    };
    let place = report.output.as_ref().unwrap_or(&report.path);
    write!(out, "{}: {how}", Escaped(place))?;
    if report.dropped_tensors > 0 {
        write!(out, ", without {}", apr_core::counted(report.dropped_tensors as u64, "tensor"))?;
    }
    writeln!(out)?;
    render_unverified(out, report.unverified)
}
