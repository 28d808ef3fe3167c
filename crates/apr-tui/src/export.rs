//! Reports as files.

use std::path::Path;

use apr_core::{Escaped, Sink};
use apr_io::{AtomicOutput, Target};
use apr_ops::document::write_json;
use apr_registry::Result;
use serde::Serialize;

/// Writes a report as JSON, as the command's `--json` prints it. What to tell the user. A file
/// that exists is an error.
pub(crate) fn export<R: Serialize>(path: &Path, report: &R) -> Result<String> {
    let mut bytes = Vec::new();
    write_json(&mut bytes, report).map_err(|error| apr_io::io_error(&error, path))?;
    bytes.push(b'\n');
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut output = AtomicOutput::create(Target::File(path.to_path_buf()), false, [&*name])?;
    output.write_all(&bytes)?;
    let committed = output.commit()?;
    let written = format!("wrote {}", Escaped(&path.to_string_lossy()));
    Ok([written].into_iter().chain(committed.warnings()).collect::<Vec<_>>().join("; "))
}
