//! Regular files, opened without waiting for what only looks like one.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

use apr_core::{Error, IoCause, Result};
use apr_platform::{is_stream, unfollowed, unwaiting};

use crate::io_error;

/// Opens a regular file. A pipe or a device is refused and never waited for, even if it takes the
/// file's place meanwhile.
///
/// # Errors
/// E007.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> Result<File> {
    // The check precedes the opening too: opening some devices does something.
    if is_stream(path) {
        return Err(not_regular(path, STREAM));
    }
    check_regular(&path.metadata().map_err(|error| io_error(&error, path))?, path)?;
    let file = unwaiting(options).open(path).map_err(|error| io_error(&error, path))?;
    check_regular(&file.metadata().map_err(|error| io_error(&error, path))?, path)?;
    Ok(file)
}

/// Opens a regular file that must not be a link. Returns `None` if there is no such file.
pub(crate) fn open_own(path: &Path) -> io::Result<Option<File>> {
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    let file = unfollowed(OpenOptions::new().read(true)).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

const FOLDER: &str = "this is a folder, and a regular file is required";

const STREAM: &str = "this is a pipe or a device, not a regular file; to read a model from a \
                      pipe, pass `-`: `< PIPE`";

fn check_regular(metadata: &Metadata, path: &Path) -> Result<()> {
    match metadata {
        metadata if metadata.is_file() => Ok(()),
        metadata if metadata.is_dir() => Err(not_regular(path, FOLDER)),
        _ => Err(not_regular(path, STREAM)),
    }
}

fn not_regular(path: &Path, message: &'static str) -> Error {
    Error::io(IoCause::Other, message).in_file(path.display())
}
