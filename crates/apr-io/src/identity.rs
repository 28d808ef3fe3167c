//! Which file a descriptor or a path leads to, and in what state it is.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use apr_core::{Error, IoCause, Result};
use rustix::fs::OFlags;

use crate::io_error;

/// A file and its state: what a later look is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    pub(crate) len: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// Whether both are one file, in whatever state.
    pub(crate) fn is_file_of(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Opens a regular file. A pipe or a device is refused and never waited for, even if it takes the
/// file's place meanwhile.
///
/// # Errors
/// E007.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> Result<File> {
    // The check precedes the opening too: opening some devices does something.
    check_regular(&path.metadata().map_err(|error| io_error(&error, path))?, path)?;
    let file = options
        .custom_flags(flags(OFlags::NONBLOCK))
        .open(path)
        .map_err(|error| io_error(&error, path))?;
    check_regular(&file.metadata().map_err(|error| io_error(&error, path))?, path)?;
    Ok(file)
}

/// Opens a regular file that must not be a link; `None` where there is no such file.
pub(crate) fn open_own(path: &Path) -> io::Result<Option<File>> {
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    let flags = flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

#[allow(clippy::cast_possible_wrap, reason = "the flags are bits")]
fn flags(flags: OFlags) -> i32 {
    flags.bits() as i32
}

fn check_regular(metadata: &Metadata, path: &Path) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let message = if metadata.is_dir() {
        "this is a folder, where a regular file is needed"
    } else {
        "this is a pipe or a device, where a regular file is needed; a model is read from standard \
         input as `-`: `< PIPE`"
    };
    Err(Error::io(IoCause::Other, message).in_file(path.display()))
}
