//! Everything that is shown: reports on standard output, remarks on standard error.

use std::io::{BufWriter, Write};

use anstyle::{AnsiColor, Style};
use apr::Escaped;
use serde::Serialize;

use crate::Outcome;

/// What is important enough to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// A heading.
pub(crate) const BOLD: Style = Style::new().bold();
/// Something good.
pub(crate) const GOOD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
/// Something odd.
pub(crate) const ODD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
/// Something wrong.
pub(crate) const BAD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
/// Something secondary.
pub(crate) const DIM: Style = Style::new().dimmed();

/// Prints reports and remarks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    level: Level,
    json: bool,
}

impl Printer {
    pub(crate) fn new(level: Level, json: bool) -> Self {
        Self { level, json }
    }

    /// Whether a progress bar would be welcome.
    pub(crate) fn shows_progress(&self) -> bool {
        self.level >= Level::Info
    }

    /// Whether more detail was asked for.
    pub(crate) fn shows_detail(&self) -> bool {
        self.level >= Level::Debug
    }

    /// Prints a report: as JSON where that was asked for, otherwise by `text`.
    pub(crate) fn report<R: Serialize>(
        &self,
        report: &R,
        text: impl FnOnce(&mut dyn Write, &R) -> std::io::Result<()>,
    ) -> Outcome {
        let mut out = BufWriter::new(anstream::stdout().lock());
        if self.json {
            serde_json::to_writer_pretty(&mut out, report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        } else if self.level > Level::Error {
            text(&mut out, report)?;
        }
        Ok(out.flush()?)
    }

    /// Like [`report`](Self::report), where standard output carries the model itself.
    pub(crate) fn report_aside<R: Serialize>(
        &self,
        report: &R,
        text: impl FnOnce(&mut dyn Write, &R) -> std::io::Result<()>,
    ) -> Outcome {
        let mut err = anstream::stderr().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut err, report).map_err(std::io::Error::from)?;
            writeln!(err)?;
        } else if self.level >= Level::Info {
            text(&mut err, report)?;
        }
        Ok(())
    }

    /// Something odd that does not stop the command. Text from files is escaped here. A standard error that can't be written
    /// to does not stop it either.
    pub(crate) fn warn(&self, message: &str) {
        if self.level >= Level::Warn {
            let _ = writeln!(anstream::stderr(), "{ODD}warning{ODD:#}: {}", Escaped(message));
        }
    }

    /// Something that only the curious want to know.
    pub(crate) fn detail(&self, message: &str) {
        if self.level >= Level::Debug {
            let _ = writeln!(anstream::stderr(), "{DIM}{}{DIM:#}", Escaped(message));
        }
    }
}
