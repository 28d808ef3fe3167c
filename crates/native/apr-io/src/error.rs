use std::io;
use std::path::{Path, PathBuf};

use apr_core::{Error, IoCause, Result};

/// Converts an operating system error on `path`: to E008 if memory is exhausted, otherwise to E007.
#[must_use]
pub fn io_error(error: &io::Error, path: &Path) -> Error {
    if apr_platform::is_lock_violation(error) {
        return busy(path);
    }
    if error.kind() == io::ErrorKind::OutOfMemory {
        return Error::memory(apr_core::foreign(&error)).in_file(path.display());
    }
    let cause = match error.kind() {
        io::ErrorKind::NotFound => IoCause::NotFound,
        io::ErrorKind::AlreadyExists => IoCause::AlreadyExists,
        io::ErrorKind::BrokenPipe => IoCause::BrokenPipe,
        io::ErrorKind::Interrupted => IoCause::Interrupted,
        _ => IoCause::Other,
    };
    Error::io(cause, apr_core::foreign(&error)).in_file(path.display())
}

/// E007 for a file that another process has locked to change it.
pub(crate) fn busy(path: &Path) -> Error {
    let message = "another process is changing the file; try again when it is done";
    Error::io(IoCause::Other, message).in_file(path.display())
}

/// Creates a folder, and the folders around it if necessary. Returns those that were created, the
/// outermost first.
///
/// # Errors
/// E007, which names the file if there is one in place of a folder.
pub fn create_folders(folder: &Path) -> Result<Vec<PathBuf>> {
    check_folders(folder)?;
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing = folder.ancestors().take_while(is_missing);
    let mut missing: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
    missing.reverse();
    std::fs::create_dir_all(folder).map_err(|error| io_error(&error, folder))?;
    Ok(missing)
}

/// Checks that a folder is there or can be created: nothing on its path is a file.
///
/// # Errors
/// E007.
pub fn check_folders(folder: &Path) -> Result<()> {
    let nearest = folder.ancestors().find(|path| path.symlink_metadata().is_ok());
    let Some(path) = nearest.filter(|path| !path.is_dir()) else { return Ok(()) };
    let what = match path.exists() {
        true => "this is a file, not a folder",
        false => "this is a link to a folder that does not exist",
    };
    Err(Error::io(IoCause::Other, what).in_file(path.display()))
}
