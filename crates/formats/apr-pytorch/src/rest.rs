//! Pickles beside the checkpoint's own: bytes after it, and others in its archive.
//!
//! `torch.load` does not read them and `torch.jit.load` reads some, so a name in one that is not
//! allowed refuses the file. Values of theirs are not looked into: what would read a value as a
//! pickle is itself a name that is not allowed. `apr-scan` looks into them.

use apr_core::{ByteSource, Error, Escaped, Limits, Result};

use crate::pickle::survey::PickleSurvey;
use crate::pickle::uses::{Finding, Verdict};

/// Number of pickles to examine in any file, plus one per [`BYTES_OF_A_LOOK`] bytes of the file.
const FREE_LOOKS: u64 = 10_000;
const BYTES_OF_A_LOOK: u64 = 64;

/// Refuses pickles between `start` and `end` that use a name which is not allowed. Gives a warning
/// where bytes follow that are not a pickle.
///
/// # Errors
/// Those of [`Rest::check`].
pub(crate) fn check_rest(
    source: &dyn ByteSource,
    start: u64,
    end: u64,
    limits: &Limits,
) -> Result<Vec<String>> {
    Rest::new(source, limits).check(start, end)
}

/// A checker for pickles next to the checkpoint's pickle. All of them share one budget.
pub(crate) struct Rest<'a> {
    source: &'a dyn ByteSource,
    limits: &'a Limits,
    looks: u64,
}

impl<'a> Rest<'a> {
    pub(crate) fn new(source: &'a dyn ByteSource, limits: &'a Limits) -> Self {
        let looks = FREE_LOOKS.saturating_add(source.len() / BYTES_OF_A_LOOK);
        Self { source, limits, looks }
    }

    /// Does the same as [`check_rest`], with the remaining budget.
    ///
    /// # Errors
    /// E001 for a name that is not allowed, E008 when there is too much to look through.
    pub(crate) fn check(&mut self, start: u64, end: u64) -> Result<Vec<String>> {
        let mut position = start;
        while position < end {
            if self.looks == 0 {
                let message =
                    "there are more entries next to the checkpoint's pickle than are examined";
                return Err(Error::memory(message).at(start));
            }
            self.looks -= 1;
            let survey = self.survey(position, end, true);
            refuse(survey.findings.iter())?;

            // `pickle.load` takes the bytes of joblib's arrays for opcodes.
            if survey.has_file_arrays {
                let plain = self.survey(position, end, false);
                let new = |finding: &&Finding| {
                    survey.findings.iter().all(|known| known.offset != finding.offset)
                };
                let findings: Vec<Finding> = plain.findings.iter().filter(new).cloned().collect();
                if plain.would_run(&findings) {
                    refuse(findings.iter())?;
                }
            }

            if !survey.is_whole() {
                break;
            }
            position = survey.end;
        }

        let left = end.saturating_sub(start);
        let warning = format!("{left} bytes after the checkpoint's pickle are not read");
        Ok(if left > 0 { vec![warning] } else { Vec::new() })
    }

    fn survey(&self, start: u64, end: u64, joblib: bool) -> PickleSurvey {
        PickleSurvey::read(self.source, (start, end), joblib, self.limits)
    }
}

fn refuse<'f>(mut findings: impl Iterator<Item = &'f Finding>) -> Result<()> {
    let Some(found) = findings.find(|finding| finding.verdict != Verdict::Allowed) else {
        return Ok(());
    };
    let (module, name) = (Escaped::short(&found.module), Escaped::short(&found.name));
    let message = format!("a pickle in the file imports {module}.{name}; nothing was executed");
    Err(Error::format(message).at(found.offset))
}

/// Names under which PyTorch's archives have pickles: the folder may be called `archive.pt`.
pub(crate) fn is_pickle_in_archive(name: &str) -> bool {
    let suffix = name.rsplit_once('.').map(|(_, suffix)| suffix);
    suffix.is_some_and(|suffix| {
        suffix.eq_ignore_ascii_case("pkl") || suffix.eq_ignore_ascii_case("pickle")
    })
}
