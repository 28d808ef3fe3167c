//! Findings of `apr scan` that were looked at and accepted, by the digests of their files.

use std::path::Path;

use apr_registry::Error;
use apr_scan::{FileVerdict, ScanReport};
use serde::{Deserialize, Serialize};

use super::beside::write_text;
use crate::context::Context;
use crate::failure::Outcome;

/// The files that are accepted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Baseline {
    files: Vec<AcceptedFile>,
}

/// File that is accepted in its current state.
#[derive(Debug, Serialize, Deserialize)]
struct AcceptedFile {
    path: String,
    sha256: String,
    /// The verdict that was accepted; a worse one is a new finding.
    verdict: FileVerdict,
}

impl Baseline {
    pub(super) fn read(path: &Path) -> Outcome<Self> {
        let text = std::fs::read(path).map_err(|error| apr_io::io_error(&error, path))?;
        let baseline = serde_json::from_slice(&text).map_err(|error| {
            Error::format(format!("not a baseline of apr scan: {}", apr_core::foreign(&error)))
                .in_file(path.display())
        })?;
        Ok(baseline)
    }

    /// Marks a report as accepted if the baseline has its file, of which `digest` is the SHA-256.
    pub(super) fn accept(
        &self,
        report: &mut ScanReport,
        digest: impl FnOnce() -> Outcome<String>,
    ) -> Outcome {
        if report.verdict > FileVerdict::NotRun && !self.files.is_empty() {
            let digest = digest()?;
            report.accepted = self
                .files
                .iter()
                .any(|file| file.sha256 == digest && report.verdict <= file.verdict);
        }
        Ok(())
    }

    /// Accepts a file in its current state.
    pub(super) fn add(
        &mut self,
        report: &mut ScanReport,
        digest: impl FnOnce() -> Outcome<String>,
    ) -> Outcome {
        if report.verdict > FileVerdict::NotRun {
            let (sha256, verdict) = (digest()?, report.verdict);
            self.files.push(AcceptedFile { path: report.path.clone(), sha256, verdict });
            report.accepted = true;
        }
        Ok(())
    }

    pub(super) fn write(&self, path: &Path, context: &Context) -> Outcome {
        let mut text =
            serde_json::to_vec_pretty(self).map_err(|error| Error::format(error.to_string()))?;
        text.push(b'\n');
        write_text(path, &text, true, &context.printer)
    }
}
