//! Which file a handle or a path leads to, and in what state it is.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::system;

/// A file and its state: what a later look is compared with.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    pub(crate) volume: u64,
    pub(crate) index: u64,
    pub(crate) len: u64,
    /// Seconds and nanoseconds; on Windows the time in one number.
    pub(crate) modified: (i64, i64),
    pub(crate) links: u64,
}

impl Identity {
    /// That of a file that is open.
    ///
    /// # Errors
    /// What the system says.
    pub fn of_file(file: &File) -> io::Result<Self> {
        system::identity_of_file(file)
    }

    /// That of what a path leads to.
    ///
    /// # Errors
    /// What the system says, `NotFound` among others.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        system::identity_of_path(path)
    }

    /// That of what has the name, even if it is a link.
    ///
    /// # Errors
    /// Those of [`of_path`](Self::of_path).
    pub fn of_name(path: &Path) -> io::Result<Self> {
        system::identity_of_name(path)
    }

    /// Whether both are one file, in whatever state.
    #[must_use]
    pub fn is_file_of(&self, other: &Self) -> bool {
        (self.volume, self.index) == (other.volume, other.index)
    }

    /// Whether both are one file in one state: of the same length, and not written to since.
    #[must_use]
    pub fn is_unchanged_since(&self, before: &Self) -> bool {
        self.is_file_of(before) && (self.len, self.modified) == (before.len, before.modified)
    }

    /// Whether both are in one file system, so that one can take the other's place.
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

    /// The file and its state as a text, for a program that looks again after others have ended:
    /// the number of the file, its length and when it was last written to.
    #[must_use]
    pub fn state(&self) -> String {
        let Self { index, len, modified: (seconds, rest), .. } = self;
        format!("{index} {len} {seconds} {rest}")
    }

    /// Bytes of the file.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is a number that is compared")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// How many names the file has.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.links
    }
}
