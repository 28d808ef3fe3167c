//! Files that commands write beside their reports: logs in SARIF, pictures of graphs.

use std::io::{self, Write};
use std::path::Path;

use apr::job::Output;
use apr_io::{AtomicOutput, StreamSink, Target, io_error};
use apr_ops::document::write_json;
use apr_registry::Sink;

use crate::context::Context;
use crate::failure::Outcome;
use crate::printer::Printer;

/// Returns the printer of the report: standard error if the log is written to standard output.
pub(super) fn beside_log(log: Option<&Path>, context: &Context) -> Printer {
    if log.is_some_and(Output::is_stdout) { context.printer.aside() } else { context.printer }
}

pub(super) fn write_json_beside(
    path: &Path,
    log: &serde_json::Value,
    printer: &Printer,
) -> Outcome {
    let mut text = Vec::new();
    write_json(&mut text, log)?;
    text.push(b'\n');
    write_text(path, &text, true, printer)
}

/// Writes a file beside the report.
///
/// A regular file is written completely or not at all. The path can also be a pipe or another
/// stream, or `-` for standard output.
pub(super) fn write_text(path: &Path, text: &[u8], overwrite: bool, printer: &Printer) -> Outcome {
    TextFile::create(path, overwrite)?.write(text, printer)
}

/// Target of [`write_text`], opened before the text exists.
pub(super) enum TextFile<'p> {
    Stdout,
    Stream(&'p Path),
    File(Box<AtomicOutput>),
}

impl<'p> TextFile<'p> {
    /// Opens the target before the work begins.
    ///
    /// An existing file is rejected unless `overwrite` is set, and so is a folder that cannot be
    /// written to.
    pub(super) fn create(path: &'p Path, overwrite: bool) -> Outcome<Self> {
        if Output::is_stdout(path) {
            return Ok(Self::Stdout);
        }
        if StreamSink::is_for(path) {
            return Ok(Self::Stream(path));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut output = AtomicOutput::create(Target::File(path.into()), overwrite, [&*name])?;
        output.write_all(&[])?;
        Ok(Self::File(Box::new(output)))
    }

    pub(super) fn write(self, text: &[u8], printer: &Printer) -> Outcome {
        match self {
            Self::Stdout => io::stdout().lock().write_all(text)?,
            Self::Stream(path) => {
                std::fs::write(path, text).map_err(|error| io_error(&error, path))?;
            }
            Self::File(mut output) => {
                output.write_all(text)?;
                printer.committed(&output.commit()?);
            }
        }
        Ok(())
    }
}
