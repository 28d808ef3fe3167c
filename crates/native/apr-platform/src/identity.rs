//! Which file a handle or a path leads to, and in what state it is.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::system;

/// A file and its state, for later comparison.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    pub(crate) volume: u64,
    pub(crate) index: u64,
    pub(crate) len: u64,
    /// Seconds and nanoseconds; on Windows the time in one number.
    pub(crate) modified: (i64, i64),
    /// Time at which the system last noted a change, which no program can set, if the system has
    /// it.
    pub(crate) noted: Option<(i64, i64)>,
    pub(crate) links: u64,
}

impl Identity {
    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// The error of the system.
    pub fn of_file(file: &File) -> io::Result<Self> {
        system::identity_of_file(file)
    }

    /// Returns the identity of the file that a path leads to.
    ///
    /// # Errors
    /// The error of the system, for example `NotFound`.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        system::identity_of_path(path)
    }

    /// Returns the identity of the file with this name, even if it is a link.
    ///
    /// # Errors
    /// The errors of [`of_path`](Self::of_path).
    pub fn of_name(path: &Path) -> io::Result<Self> {
        system::identity_of_name(path)
    }

    /// Returns `true` if both are the same file, in any state.
    #[must_use]
    pub fn is_file_of(&self, other: &Self) -> bool {
        (self.volume, self.index) == (other.volume, other.index)
    }

    /// Returns `true` if both are the same file in the same state: of equal length, and not
    /// modified since.
    #[must_use]
    pub fn is_unchanged_since(&self, before: &Self) -> bool {
        self.is_file_of(before) && (self.len, self.modified) == (before.len, before.modified)
    }

    /// Returns `true` if both are in the same file system, so that one can replace the other.
    #[must_use]
    pub fn is_on_volume_of(&self, other: &Self) -> bool {
        self.volume == other.volume
    }

    /// Returns the number that the file has in its file system. Another file gets it once this one
    /// is gone.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.index
    }

    /// Returns the file and its state as text, for a comparison after other programs have ended:
    /// the number of the file, its length, its modification time, and on Unix the time of the last
    /// change of the file or its attributes.
    ///
    /// Programs that restore a modification time can't restore that other time.
    #[must_use]
    pub fn state(&self) -> String {
        let Self { index, len, modified: (seconds, rest), noted, .. } = self;
        let (noted, part) = noted.unwrap_or_default();
        format!("{index} {len} {seconds} {rest} {noted} {part}")
    }

    /// Returns the length of the file in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is a number that is compared")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number of hard links to the file.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.links
    }
}
