use std::io;
use std::path::Path;

use apr_core::{Error, IoCause};

/// Converts an operating system error on `path`: to E008 if memory is exhausted, otherwise to E007.
#[must_use]
pub fn io_error(error: &io::Error, path: &Path) -> Error {
    if apr_platform::is_lock_violation(error) {
        return busy(path);
    }
    if error.kind() == io::ErrorKind::OutOfMemory {
        return Error::memory(error.to_string()).in_file(path.display());
    }
    let cause = match error.kind() {
        io::ErrorKind::NotFound => IoCause::NotFound,
        io::ErrorKind::AlreadyExists => IoCause::AlreadyExists,
        io::ErrorKind::BrokenPipe => IoCause::BrokenPipe,
        io::ErrorKind::Interrupted => IoCause::Interrupted,
        _ => IoCause::Other,
    };
    Error::io(cause, error.to_string()).in_file(path.display())
}

/// E007 for a file that another process has locked to change it.
pub(crate) fn busy(path: &Path) -> Error {
    let message = "another process is changing the file; try again when it is done";
    Error::io(IoCause::Other, message).in_file(path.display())
}
