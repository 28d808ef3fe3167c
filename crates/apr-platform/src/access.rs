//! Who may read a file that is created.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::path::Path;

use crate::system;

/// Who may read a new file. On Windows the folder says so, whatever is asked for.
#[derive(Debug, Clone)]
pub enum Access {
    /// Whoever the process lets read new files.
    Usual,
    /// Its owner alone.
    Private,
    /// Whoever these permissions let read it.
    As(Permissions),
    /// Whoever the process lets read new files, but nobody whom these permissions keep out.
    Within(Permissions),
}

impl Access {
    /// The access without those whom other permissions keep out.
    #[must_use]
    pub fn within(self, others: &Permissions) -> Self {
        match self {
            Self::Usual => Self::Within(others.clone()),
            Self::Private => Self::Private,
            Self::As(own) => Self::As(system::narrowed(&own, others)),
            Self::Within(own) => Self::Within(system::narrowed(&own, others)),
        }
    }

    /// Creates a file with a free name, which nobody but its owner can read before
    /// [`apply`](Self::apply), unless the access is usual.
    ///
    /// # Errors
    /// What the system says, `AlreadyExists` among others.
    pub fn create_new(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        system::with_access(&mut options, self).open(path)
    }

    /// Sets the permissions, for which the process's mask does not hold where they are given.
    ///
    /// # Errors
    /// What the system says.
    pub fn apply(&self, file: &File) -> io::Result<()> {
        system::apply_access(self, file)
    }
}
