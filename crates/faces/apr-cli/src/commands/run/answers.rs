//! How texts that a model writes leave the program: on a terminal as lines, anywhere else byte for
//! byte.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use apr_io::io_error;

use super::job::Job;
use crate::failure::Outcome;

/// The answers of a run, one after the other.
pub(super) struct Answers<'a> {
    job: &'a Job<'a>,
    separator: &'a str,
    is_terminal: bool,
    /// Number of answers begun.
    count: usize,
    /// `true` if one of the answers contains the separator.
    is_mixed: bool,
}

impl<'a> Answers<'a> {
    pub(super) fn of(job: &'a Job<'a>) -> Self {
        let separator = job.args.separator.as_ref().map_or("\n", |separator| separator.0.as_str());
        let is_terminal = io::stdout().is_terminal();
        Self { job, separator, is_terminal, count: 0, is_mixed: false }
    }

    /// Begins an answer.
    pub(super) fn begin(&mut self) -> apr_registry::Result<()> {
        let is_first = self.count == 0;
        self.count += 1;
        if is_first { Ok(()) } else { self.bytes(self.separator.as_bytes()) }
    }

    /// Writes a part of the answer.
    pub(super) fn write(&self, part: &[u8]) -> apr_registry::Result<()> {
        if !self.is_terminal {
            return self.bytes(part);
        }
        // A model may write what steers a terminal.
        let shown: String = String::from_utf8_lossy(part)
            .chars()
            .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
            .collect();
        self.bytes(shown.as_bytes())
    }

    /// Ends an answer, whose whole text is `answer`.
    pub(super) fn end(&mut self, answer: &str) {
        self.is_mixed |= !self.separator.is_empty() && answer.contains(self.separator);
        self.is_mixed |= self.separator.is_empty();
    }

    /// Ends the last answer, and warns if the answers cannot be told apart.
    pub(super) fn finish(self) -> Outcome {
        if self.is_terminal {
            self.bytes(b"\n")?;
        }
        if self.is_mixed && self.count > 1 && !self.job.context.json {
            self.job.warn("an answer contains the separator: use --json, or another --separator");
        }
        Ok(())
    }

    fn bytes(&self, text: &[u8]) -> apr_registry::Result<()> {
        if self.job.context.json {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        let written = out.write_all(text).and_then(|()| out.flush());
        written.map_err(|error| io_error(&error, Path::new("standard output")))
    }
}
