//! Files that one process at a time changes.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apr_core::{Error, IoCause, Result};
use apr_platform::{Identity, canonicalize};

use crate::error::busy;
use crate::regular::open_regular;
use crate::{FileSource, io_error, undo};

/// Maximum number of tries if a file is replaced between its opening and its locking.
const ATTEMPTS: usize = 16;

/// A file that is open to be changed. It is locked before anything of it is read, so that no other
/// process that takes the lock changes it until this is dropped.
#[derive(Debug)]
pub struct LockedFile {
    pub(crate) file: Arc<File>,
    /// Path of the file, with links resolved.
    pub(crate) path: PathBuf,
    /// Identity of the file when the lock was taken.
    before: Identity,
    undone: bool,
}

impl LockedFile {
    /// Opens and locks a regular file, and undoes a change of it that was interrupted.
    ///
    /// # Errors
    /// E007 when it can't be opened for reading and writing, when another process holds the lock,
    /// or when what an interrupted change left is not of the file as it is.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, path) = lock_path(path)?;
        let undone = undo::roll_back(&file, &path)?;
        let before = identity(&file, &path)?;
        Ok(Self { file: Arc::new(file), path, before, undone })
    }

    /// Undoes an interrupted change of a file. Returns `false` if there was none. A file without an
    /// undo file next to it is not opened.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn undo_interrupted(path: &Path) -> Result<bool> {
        let is_left = |path: PathBuf| undo::path_of(&path).symlink_metadata().is_ok();
        if !canonicalize(path).is_ok_and(is_left) {
            return Ok(false);
        }
        Self::open(path).map(|locked| locked.was_undone())
    }

    /// Returns `true` if an interrupted change was undone.
    #[must_use]
    pub fn was_undone(&self) -> bool {
        self.undone
    }

    /// Returns the bytes of the locked file, read through the descriptor that holds the lock.
    ///
    /// # Errors
    /// E007.
    pub fn source(&self) -> Result<FileSource> {
        FileSource::share(&self.file, &self.path)
    }

    /// Returns `true` if a path leads to the locked file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        Identity::of_path(path).is_ok_and(|found| found.is_file_of(&self.before))
    }

    /// Returns an error if a program that does not take the lock changed or replaced the file.
    ///
    /// # Errors
    /// E007.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let now = identity(&self.file, &self.path)?;
        if now.is_unchanged_since(&self.before) && self.is_at(&self.path) {
            return Ok(());
        }
        Err(changed(&self.path))
    }
}

fn lock_path(path: &Path) -> Result<(File, PathBuf)> {
    let path = canonicalize(path).map_err(|error| io_error(&error, path))?;
    for _ in 0..ATTEMPTS {
        let file = open_regular(&path, OpenOptions::new().read(true).write(true))?;
        lock(&file, &path)?;
        let locked = identity(&file, &path)?;
        // Another process may have put a new file in its place before the lock was taken.
        if Identity::of_path(&path).is_ok_and(|found| found.is_file_of(&locked)) {
            return Ok((file, path));
        }
    }
    Err(busy(&path))
}

fn lock(file: &File, path: &Path) -> Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => busy(path),
        TryLockError::Error(error) => {
            let message = format!(
                "the file can't be locked against changes by other processes ({error}); -o \
                    writes a copy"
            );
            Error::io(IoCause::Other, message).in_file(path.display())
        }
    })
}

/// Locks a file that is about to be replaced. Returns `None` if it does not exist or can't be
/// locked.
///
/// # Errors
/// E007 when another process changes it.
pub(crate) fn lock_to_replace(path: &Path) -> Result<Option<File>> {
    for _ in 0..ATTEMPTS {
        let Ok(file) = open_regular(path, OpenOptions::new().read(true)) else { return Ok(None) };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy(path)),
            Err(TryLockError::Error(_)) => return Ok(None),
        }
        let locked = identity(&file, path)?;
        if Identity::of_path(path).is_ok_and(|found| found.is_file_of(&locked)) {
            return Ok(Some(file));
        }
    }
    Err(busy(path))
}

fn identity(file: &File, path: &Path) -> Result<Identity> {
    Identity::of_file(file).map_err(|error| io_error(&error, path))
}

pub(crate) fn changed(path: &Path) -> Error {
    let message =
        "the file was changed by another program meanwhile; nothing was written, try again";
    Error::io(IoCause::Other, message).in_file(path.display())
}
