//! The JSON documents that commands print.

use std::path::Path;

use serde::Serialize;

use crate::failure::{Failure, FailureReport, Outcome};
use crate::printer::write_document;

/// A report that is printed as a JSON object.
pub(crate) trait Document: Serialize {
    /// Kind of the document, as stored in its key `schema`.
    const SCHEMA: &'static str;
    /// Version of the schema. It increases if a key is removed or changes its meaning, not if one
    /// is added.
    const VERSION: u32 = 1;
}

/// The failure of a command.
#[derive(Serialize)]
pub(crate) struct FailureDocument<'f> {
    /// Report of the failure.
    error: FailureReport<'f>,
    /// The model, if the command has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

impl Document for FailureDocument<'_> {
    const SCHEMA: &'static str = "error";
}

impl<'f> FailureDocument<'f> {
    /// The document of a failure, and of the model of several that it is about.
    pub(crate) fn of(failure: &'f Failure, model: Option<&Path>) -> Self {
        let file = model.map(|model| model.display().to_string());
        Self { error: failure.to_report(), path: file }
    }

    /// Prints the document on standard output, like a report.
    pub(crate) fn print(&self) -> Outcome {
        write_document(&mut std::io::stdout().lock(), self, false)
    }
}
