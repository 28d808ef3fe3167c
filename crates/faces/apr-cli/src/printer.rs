//! Everything that is shown: reports on standard output, remarks on standard error.

use std::io::{BufWriter, Write};
use std::mem::take;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use anstream::adapter::strip_bytes;
use anstyle::{AnsiColor, Style};
use apr_io::Committed;
use apr_ops::convert::ConvertReport;
use apr_ops::document::{Headed, write_json, write_json_line};
use apr_registry::Escaped;
use serde::Serialize;
use serde_json::Value;
use terminal_size::{Height, Width, terminal_size_of};

use crate::args::MarkdownArgs;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::markdown;
use crate::options::in_options;

/// Minimum importance of messages that are shown.
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

/// Returns the columns for a report: of the terminal, or `COLUMNS`; `None` for a file or a program.
pub(crate) fn columns() -> Option<usize> {
    let stated = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    stated
        .or_else(|| columns_of(terminal_size_of(std::io::stdout())))
        .filter(|&columns| columns > 0)
}

/// Returns the columns of the terminal on standard error, or `None` if it is not a terminal.
pub(crate) fn columns_of_remarks() -> Option<usize> {
    columns_of(terminal_size_of(std::io::stderr()))
}

fn columns_of(size: Option<(Width, Height)>) -> Option<usize> {
    size.map(|(Width(columns), _)| usize::from(columns))
}

/// Returns emphasized text: bold if the output supports it, and otherwise between asterisks.
pub(crate) fn strong(text: &str) -> String {
    match anstream::AutoStream::choice(&std::io::stdout()) {
        anstream::ColorChoice::Never => format!("**{text}**"),
        _ => format!("{BOLD}{text}{BOLD:#}"),
    }
}

/// Warnings that were shown, for reports that do not contain them.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Warnings about the command, which each of several reports has.
static SHARED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Folders that were made for outputs, for reports that do not list them by themselves.
static MADE_FOLDERS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Files and folders that were written beside a report that does not list them by itself.
static OUTPUTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// `true` if weights are used in computations without being compared with their checksums.
static UNVERIFIED: AtomicBool = AtomicBool::new(false);

/// Reports on the terminal and in every report that weights were not compared with their checksums.
pub(crate) fn note_unverified(level: Level) {
    UNVERIFIED.store(true, Ordering::Relaxed);
    if level >= Level::Warn {
        let message = "tensors are not compared with their checksums (--no-verify)";
        let _ = writeln!(anstream::stderr(), "{ODD}unverified{ODD:#}: {message}");
    }
}

/// Report with the envelope in which it is printed.
#[derive(Serialize)]
struct Enveloped<'r, R> {
    #[serde(flatten)]
    headed: Headed<'r, R>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    made_folders: Vec<String>,
    /// The written file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// The second of two.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_output: Option<String>,
    /// Data that were not compared with the checksums in their files.
    #[serde(skip_serializing_if = "Option::is_none")]
    unverified: Option<&'static str>,
}

impl<'r, R> Enveloped<'r, R> {
    /// Returns the same envelope for another report.
    fn around<S>(self, report: &'r S) -> Enveloped<'r, S> {
        let Self { headed, warnings, made_folders, output, other_output, unverified } = self;
        let headed = headed.around(report);
        Enveloped { headed, warnings, made_folders, output, other_output, unverified }
    }
}

/// The words of the command, once they are known.
static COMMAND: OnceLock<String> = OnceLock::new();

/// Stores the words of the command for the reports.
pub(crate) fn set_command(words: String) {
    // It is called once.
    let _ = COMMAND.set(words);
}

/// Writes a report as JSON, with the warnings that were shown, and the folders that were made, that
/// it does not list by itself: indented; or on one line where it is one of several, of which each
/// has its own and those of the command.
pub(crate) fn write_document<R: Document>(
    out: &mut dyn Write,
    report: &R,
    is_line: bool,
) -> Outcome {
    let noted = |list: &Mutex<Vec<String>>| {
        let noted = |mut list: MutexGuard<'_, Vec<String>>| match is_line {
            true => take(&mut *list),
            false => list.clone(),
        };
        list.lock().map(noted).unwrap_or_default()
    };
    let mut warnings = SHARED.lock().map(|shared| shared.clone()).unwrap_or_default();
    warnings.extend(noted(&WARNINGS));
    let mut made_folders = noted(&MADE_FOLDERS);
    // Reports are kept as they are where nothing is added to them: a value has no order of keys.
    let own = match warnings.is_empty() && made_folders.is_empty() {
        true => None,
        false => {
            with_notes(report, [("warnings", &mut warnings), ("made_folders", &mut made_folders)])?
        }
    };
    let command = COMMAND.get().map_or("", String::as_str);
    let mut outputs = OUTPUTS.lock().map(|outputs| outputs.clone()).unwrap_or_default().into_iter();
    let envelope = Enveloped {
        headed: Headed::new(R::SCHEMA, R::VERSION, command, report),
        warnings,
        made_folders,
        output: outputs.next(),
        other_output: outputs.next(),
        unverified: UNVERIFIED.load(Ordering::Relaxed).then_some("tensors"),
    };
    let write = |out: &mut dyn Write| match (own, is_line) {
        (None, false) => write_json(out, &envelope),
        (None, true) => write_json_line(out, &envelope),
        (Some(report), false) => write_json(out, &envelope.around(&report)),
        (Some(report), true) => write_json_line(out, &envelope.around(&report)),
    };
    write(out)?;
    Ok(writeln!(out)?)
}

/// A report whose own lists have the notes that they lacked, which are taken; `None` for a report
/// without such lists.
fn with_notes<R: Document>(
    report: &R,
    notes: [(&str, &mut Vec<String>); 2],
) -> Outcome<Option<Value>> {
    let mut document = serde_json::to_value(report).map_err(std::io::Error::from)?;
    let mut has_own = false;
    for (key, list) in notes {
        let Some(own) = document.get_mut(key).and_then(Value::as_array_mut) else { continue };
        let told: Vec<_> = own.iter().filter_map(Value::as_str).map(in_options).collect();
        let new = take(list).into_iter().filter(|note| !told.contains(note));
        own.extend(new.map(Value::from));
        has_own = true;
    }
    Ok(has_own.then_some(document))
}

/// The text of a report without its colours, and the warnings that were shown beside it.
fn with_warnings(styled: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(&strip_bytes(styled).into_vec()).into_owned();
    let warnings = WARNINGS.lock().map(|warnings| warnings.clone()).unwrap_or_default();
    for warning in warnings.iter().map(|warning| Escaped(warning)) {
        text.push_str(&format!("\nwarning: {warning}"));
    }
    text
}

/// Prints reports and remarks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    level: Level,
    json: bool,
    markdown: bool,
    /// `true` if standard output carries something other than the report.
    aside: bool,
}

impl Printer {
    pub(crate) fn new(level: Level, json: bool) -> Self {
        Self { level, json, markdown: false, aside: false }
    }

    /// Returns a copy that prints reports as Markdown if that is requested.
    pub(crate) fn in_markdown(self, args: &MarkdownArgs) -> Self {
        let markdown = args.markdown;
        Self { json: self.json && !markdown, markdown, ..self }
    }

    /// Returns a copy that prints reports to standard error, because standard output carries other
    /// data.
    pub(crate) fn aside(self) -> Self {
        Self { aside: true, ..self }
    }

    /// Returns `true` if progress bars are shown.
    pub(crate) fn shows_progress(&self) -> bool {
        self.level >= Level::Info
    }

    /// Returns `true` if more detail was requested.
    pub(crate) fn shows_detail(&self) -> bool {
        self.level >= Level::Debug
    }

    /// Prints a report: as JSON if that is requested, and otherwise with `text`.
    pub(crate) fn report<R: Document>(
        &self,
        report: &R,
        text: impl FnOnce(&mut dyn Write, &R) -> std::io::Result<()>,
    ) -> Outcome {
        self.print(report, text, None)
    }

    /// Like [`report`](Self::report), for one that decides: the command ends with exit code 5
    /// unless it passes.
    pub(crate) fn judge<R: Document>(
        &self,
        report: &R,
        text: impl FnOnce(&mut dyn Write, &R) -> std::io::Result<()>,
        passes: bool,
    ) -> Outcome {
        self.print(report, text, Some(passes))?;
        if passes { Ok(()) } else { Err(Failure::Validation) }
    }

    fn print<R: Document>(
        &self,
        report: &R,
        text: impl FnOnce(&mut dyn Write, &R) -> std::io::Result<()>,
        passes: Option<bool>,
    ) -> Outcome {
        if self.aside {
            return self.report_aside(report, text);
        }
        let mut out = BufWriter::new(anstream::stdout().lock());
        if self.markdown {
            let mut styled = Vec::new();
            text(&mut styled, report)?;
            let command = COMMAND.get().map_or("", String::as_str);
            markdown::write(&mut out, command, passes, &with_warnings(&styled))?;
        } else if self.json {
            write_document(&mut out, report, false)?;
        } else if self.level > Level::Error {
            text(&mut out, report)?;
        }
        Ok(out.flush()?)
    }

    /// Like [`report`](Self::report), for one of several: as JSON, each is a line.
    pub(crate) fn report_each<R: Document>(
        &self,
        report: &R,
        text: impl FnOnce(&mut dyn Write, &R) -> std::io::Result<()>,
    ) -> Outcome {
        if !self.json {
            return self.report(report, text);
        }
        let mut out = BufWriter::new(std::io::stdout().lock());
        write_document(&mut out, report, true)?;
        Ok(out.flush()?)
    }

    /// Like [`report`](Self::report), but on standard error because standard output carries the
    /// model.
    pub(crate) fn report_aside<R: Document>(
        &self,
        report: &R,
        text: impl FnOnce(&mut dyn Write, &R) -> std::io::Result<()>,
    ) -> Outcome {
        let mut err = anstream::stderr().lock();
        if self.json {
            write_document(&mut err, report, false)?;
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

    /// Adds the warnings so far, which are about the command, to each of several reports.
    pub(crate) fn share_warnings(&self) {
        if let (Ok(mut warnings), Ok(mut shared)) = (WARNINGS.lock(), SHARED.lock()) {
            shared.append(&mut warnings);
        }
    }

    /// Several odd things, one a line.
    pub(crate) fn warn_all(&self, messages: impl IntoIterator<Item = String>) {
        messages.into_iter().for_each(|message| self.warn(&message));
    }

    /// The odd things of a report that were not shown yet.
    pub(crate) fn warn_new(&self, messages: &[String]) {
        let shown = WARNINGS.lock().map(|shown| shown.clone()).unwrap_or_default();
        let is_new = |message: &&String| !shown.contains(&in_options(message));
        self.warn_all(messages.iter().filter(is_new).cloned());
    }

    /// Reports what became of files beside the report itself: warnings, and folders that were made
    /// for them.
    pub(crate) fn committed(&self, committed: &Committed) {
        self.warn_all(committed.warnings());
        let made = committed.made_folders().iter();
        self.made(&made.map(|made| made.display().to_string()).collect::<Vec<_>>());
    }

    /// Reports what became of an output whose own report is not printed; its first warnings were
    /// shown before.
    pub(crate) fn converted(&self, report: &ConvertReport, shown: usize) {
        self.warn_all(report.warnings.iter().skip(shown).cloned());
        self.made(&report.made_folders);
    }

    /// Adds a file or a folder that was written to a report that has no key for it.
    pub(crate) fn wrote(&self, output: &Path) {
        if let Ok(mut outputs) = OUTPUTS.lock() {
            outputs.push(output.display().to_string());
        }
    }

    /// Reports folders that were made, from the outermost on.
    pub(crate) fn made(&self, folders: &[String]) {
        let Some(last) = folders.last() else { return };
        if self.level >= Level::Info {
            let _ = writeln!(anstream::stderr(), "made the folder {}", Escaped(last));
        }
        if let Ok(mut made) = MADE_FOLDERS.lock() {
            made.extend_from_slice(folders);
        }
    }

    /// Prints a detail, which only the level `debug` shows.
    pub(crate) fn detail(&self, message: &str) {
        if self.level >= Level::Debug {
            let _ = writeln!(anstream::stderr(), "{DIM}{}{DIM:#}", Escaped(message));
        }
    }
}
