//! Locks that Hugging Face's Python client takes too: `flock` on a file beside what is changed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use apr_core::{Error, IoCause, Result};
use apr_platform::{Identity, new_shared};

use crate::notes::Notes;
use crate::retry::sleep;

/// Time between two tries to take a lock that another process holds.
const PAUSE: Duration = Duration::from_millis(50);

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for a lock.
    ///
    /// # Errors
    /// E007 when its file can't be made, and when the user interrupts.
    pub(crate) fn take(
        path: &Path,
        what: &str,
        notes: &Notes,
        interrupt: &AtomicBool,
    ) -> Result<Self> {
        loop {
            match try_take(path).map_err(|error| disk(&error, path))? {
                Some(lock) => return Ok(lock),
                None => notes.add(format!("{what}: waiting for the download by another process")),
            }
            sleep(PAUSE, interrupt).map_err(|error| error.in_file(what))?;
        }
    }

    /// Takes a lock, or returns `None` if another process holds it.
    ///
    /// # Errors
    /// E007 when its file can't be made.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Self>> {
        try_take(path).map_err(|error| disk(&error, path))
    }
}

fn try_take(path: &Path) -> io::Result<Option<Lock>> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }

    // A group may share the cache: each of its members has to be able to take the lock.
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = new_shared(&mut options).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }

    // Who held it before may have removed the file: then it is no lock of anything.
    let locked = Identity::of_file(&file)?;
    let is_there = Identity::of_path(path).is_ok_and(|named| named.is_file_of(&locked));
    Ok(is_there.then_some(Lock { _file: file }))
}

/// Returns E007 for an error of the file system.
pub(crate) fn disk(error: &io::Error, path: &Path) -> Error {
    let cause =
        if error.kind() == io::ErrorKind::NotFound { IoCause::NotFound } else { IoCause::Other };
    Error::io(cause, error.to_string()).in_file(path.display())
}
