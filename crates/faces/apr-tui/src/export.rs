//! Reports and pictures as files.

use std::path::Path;

use apr_core::{Escaped, IoCause, Sink};
use apr_io::{AtomicOutput, Target};
use apr_ops::document::{Headed, write_json};
use apr_registry::Result;
use serde::Serialize;

use crate::prompt::Prompt;

/// A report as the command's `--json` prints it.
pub(crate) fn json<R: Serialize>(report: &R) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write_json(&mut bytes, report)
        .map_err(|error| apr_io::io_error(&error, Path::new("the report")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// A report with the keys that it has in the `--json` of its command, whose name is its kind.
pub(crate) fn headed<'r, R>(command: &'r str, report: &'r R) -> Headed<'r, R> {
    Headed::new(command, 1, command, report)
}

/// Result of writing a file.
pub(crate) enum Written {
    /// The file was written: its path, and notes on the way it was written.
    Told(String),
    /// A file with this name exists; nothing was written.
    Exists,
}

/// Writes a file as a whole or not at all.
pub(crate) fn write(path: &Path, bytes: &[u8], overwrite: bool) -> Result<Written> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let target = Target::File(path.to_path_buf());
    let created = AtomicOutput::create(target, overwrite, [&*name]);
    let mut output = match created {
        Err(error) if error.cause() == Some(IoCause::AlreadyExists) => return Ok(Written::Exists),
        created => created?,
    };
    output.write_all(bytes)?;
    let committed = match output.commit() {
        Err(error) if error.cause() == Some(IoCause::AlreadyExists) => return Ok(Written::Exists),
        committed => committed?,
    };
    let written = format!("wrote {}", Escaped(&path.to_string_lossy()));
    let made = committed.made_folders().last();
    let made = made.map(|made| format!("made the folder {}", Escaped(&made.to_string_lossy())));
    let told = [written].into_iter().chain(made).chain(committed.warnings());
    Ok(Written::Told(told.collect::<Vec<_>>().join("; ")))
}

/// The question whether a file that is there is replaced.
pub(crate) fn overwrites(path: &str) -> Prompt {
    Prompt::question(&format!("{} exists: y replaces it, n keeps it", Escaped(path)), path)
}
