//! Who may read a file that is created.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::path::Path;

use crate::system;

/// Read permissions of a new file. On Windows, the folder determines them instead.
#[derive(Debug, Clone)]
pub enum Access {
    /// The process's default permissions.
    Usual,
    /// Access for the owner only.
    Private,
    /// These permissions.
    As(Permissions),
    /// The process's default permissions, without access for anyone that these permissions exclude.
    Within(Permissions),
}

impl Access {
    /// Excludes everyone that other permissions exclude from the access.
    #[must_use]
    pub fn within(self, others: &Permissions) -> Self {
        match self {
            Self::Usual => Self::Within(others.clone()),
            Self::Private => Self::Private,
            Self::As(own) => Self::As(system::narrowed(&own, others)),
            Self::Within(own) => Self::Within(system::narrowed(&own, others)),
        }
    }

    /// Creates a file with a free name. Only its owner can read it before [`apply`](Self::apply),
    /// unless the access is usual.
    ///
    /// # Errors
    /// The error of the system, for example `AlreadyExists`.
    pub fn create_new(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        system::with_access(&mut options, self).open(path)
    }

    /// Sets the permissions. Given permissions are not restricted by the process's mask.
    ///
    /// # Errors
    /// The error of the system.
    pub fn apply(&self, file: &File) -> io::Result<()> {
        system::apply_access(self, file)
    }
}
