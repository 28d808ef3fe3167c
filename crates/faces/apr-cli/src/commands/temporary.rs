//! Temporary folders for what becomes an output.

use std::io;
use std::path::Path;

use apr_io::{check_folders, io_error};
use tempfile::TempDir;

use crate::failure::Outcome;

/// Creates a temporary folder on the file system of a target.
///
/// It is in the nearest folder that exists: missing folders are created when the target is
/// written. A target whose folders can't be created is rejected.
pub(super) fn temporary_folder(target: &Path, prefix: &str) -> Outcome<TempDir> {
    check_folders(target.parent().unwrap_or(target))?;
    let folders = target.ancestors().skip(1).filter(|folder| folder.is_dir());
    let folder = folders.map(Path::to_path_buf).next().unwrap_or_else(|| ".".into());
    let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&folder);
    // The error of the library names the temporary folder.
    Ok(made.map_err(|error| io_error(&io::Error::from(error.kind()), &folder))?)
}
