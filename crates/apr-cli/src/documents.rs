//! The JSON documents that commands print.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::failure::{Failure, Outcome};
use crate::printer::write_document;

/// A report that is printed as a JSON object.
pub(crate) trait Document: Serialize {
    /// Its kind, as the key `schema` names it.
    const SCHEMA: &'static str;
    /// Raised when a key goes or gets another meaning, not when one is added.
    const VERSION: u32 = 1;
}

/// The failure of a command.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct FailureDocument(Value);

impl Document for FailureDocument {
    const SCHEMA: &'static str = "error";
}

impl FailureDocument {
    /// Of a failure, and the model of several that it is about.
    pub(crate) fn of(failure: &Failure, model: Option<&Path>) -> Self {
        let mut document = failure.to_json();
        if let Some(model) = model {
            document["file"] = model.display().to_string().into();
        }
        Self(document)
    }

    /// Prints it where reports go.
    pub(crate) fn print(&self) -> Outcome {
        write_document(&mut std::io::stdout().lock(), self, false)
    }
}
