//! Everything that is shown: reports on standard output, remarks on standard error.

use std::io::{BufWriter, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use apr_ops::document::write_json;
use apr_registry::Escaped;
use serde::Serialize;
use serde_json::Value;
use terminal_size::{Height, Width, terminal_size_of};

use crate::failure::Outcome;
use crate::options::in_options;

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

/// Columns that a report may take: those of the terminal, or of `COLUMNS`; `None` where it goes to
/// a file or a program.
pub(crate) fn columns() -> Option<usize> {
    let stated = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    stated
        .or_else(|| columns_of(terminal_size_of(std::io::stdout())))
        .filter(|&columns| columns > 0)
}

/// Columns of the terminal that standard error goes to; `None` for anything else.
pub(crate) fn columns_of_remarks() -> Option<usize> {
    columns_of(terminal_size_of(std::io::stderr()))
}

fn columns_of(size: Option<(Width, Height)>) -> Option<usize> {
    size.map(|(Width(columns), _)| usize::from(columns))
}

/// Text that is meant to stand out: bold where the output shows it, between asterisks elsewhere.
pub(crate) fn strong(text: &str) -> String {
    match anstream::AutoStream::choice(&std::io::stdout()) {
        anstream::ColorChoice::Never => format!("**{text}**"),
        _ => format!("{BOLD}{text}{BOLD:#}"),
    }
}

/// Warnings that were shown, for reports that say nothing of them by themselves.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether weights are computed with that were not compared with their checksums.
static UNVERIFIED: AtomicBool = AtomicBool::new(false);

/// Says on the terminal and in every report that weights were not compared with their checksums.
pub(crate) fn note_unverified(level: Level) {
    UNVERIFIED.store(true, Ordering::Relaxed);
    if level >= Level::Warn {
        let message = "tensors are not compared with their checksums (--no-verify)";
        let _ = writeln!(anstream::stderr(), "{ODD}unverified{ODD:#}: {message}");
    }
}

/// A report with the warnings that were shown on the way.
#[derive(Serialize)]
struct Warned<'r, R> {
    #[serde(flatten)]
    report: &'r R,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// What was not compared with the checksums that the files state of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unverified: Option<&'static str>,
}

/// Writes a report as JSON; where it is an object, with the warnings that were shown and that it
/// does not have by itself.
fn write_warned<R: Serialize>(out: &mut dyn Write, report: &R) -> Outcome {
    let mut warnings = WARNINGS.lock().map(|warnings| warnings.clone()).unwrap_or_default();
    let unverified = UNVERIFIED.load(Ordering::Relaxed).then_some("tensors");
    if warnings.is_empty() && unverified.is_none() {
        write_json(&mut *out, report)?;
        return Ok(writeln!(out)?);
    }

    let mut document = serde_json::to_value(report).map_err(std::io::Error::from)?;
    match (document.is_object(), document.get_mut("warnings").and_then(Value::as_array_mut)) {
        (true, None) => write_json(&mut *out, &Warned { report, warnings, unverified })?,
        (true, Some(own)) => {
            let told: Vec<_> = own.iter().filter_map(Value::as_str).map(in_options).collect();
            warnings.retain(|warning| !told.contains(warning));
            own.extend(warnings.into_iter().map(Value::from));
            let warnings = Vec::new();
            write_json(&mut *out, &Warned { report: &document, warnings, unverified })?;
        }
        (false, _) => write_json(&mut *out, report)?,
    }
    Ok(writeln!(out)?)
}

/// Prints reports and remarks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    level: Level,
    json: bool,
    /// Whether standard output carries something else.
    aside: bool,
}

impl Printer {
    pub(crate) fn new(level: Level, json: bool) -> Self {
        Self { level, json, aside: false }
    }

    /// The same, where standard output carries something else than the report: that goes to
    /// standard error.
    pub(crate) fn aside(self) -> Self {
        Self { aside: true, ..self }
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
        if self.aside {
            return self.report_aside(report, text);
        }
        let mut out = BufWriter::new(anstream::stdout().lock());
        if self.json {
            write_warned(&mut out, report)?;
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
            write_warned(&mut err, report)?;
        } else if self.level >= Level::Info {
            text(&mut err, report)?;
        }
        Ok(())
    }

    /// Something odd that does not stop the command. Text from files is escaped here. A standard
    /// error that can't be written to does not stop it either.
    pub(crate) fn warn(&self, message: &str) {
        let message = in_options(message);
        if let Ok(mut warnings) = WARNINGS.lock() {
            warnings.push(message.clone());
        }
        if self.level >= Level::Warn {
            let _ = writeln!(anstream::stderr(), "{ODD}warning{ODD:#}: {}", Escaped(&message));
        }
    }

    /// Several odd things, one a line.
    pub(crate) fn warn_all(&self, messages: impl IntoIterator<Item = String>) {
        messages.into_iter().for_each(|message| self.warn(&message));
    }

    /// Something that only the curious want to know.
    pub(crate) fn detail(&self, message: &str) {
        if self.level >= Level::Debug {
            let _ = writeln!(anstream::stderr(), "{DIM}{}{DIM:#}", Escaped(message));
        }
    }
}
