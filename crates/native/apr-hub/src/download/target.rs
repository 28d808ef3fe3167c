//! Where a file of the cache goes, and how the cache says that it is there.

use std::path::{Path, PathBuf};

use apr_core::Result;
use sha2::{Digest, Sha256};

use crate::digest::{Checked, hex, is_digest};
use crate::hub_cache::SnapshotEntry;
use crate::url_cache::ListedEntry;

/// Destination of a download.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Path of the complete and checked file.
    pub(crate) path: PathBuf,
    /// The file whose lock is held meanwhile.
    pub(crate) lock: PathBuf,
    /// Digest that the file is checked with, or its ETag if the server provides no digest.
    pub(crate) etag: String,
    /// Record that is made when the file is complete.
    pub(crate) entry: Entry,
}

impl Target {
    /// Returns the destination of a file of a commit with this ETag.
    pub(crate) fn in_snapshot(entry: &SnapshotEntry, etag: &str) -> Self {
        // What is no digest may be the same for two files, as where a server makes it of length and
        // time.
        let blob = if is_digest(etag) {
            etag.to_owned()
        } else {
            format!("{etag}-{}", &hex(&Sha256::digest(&entry.name))[..16])
        };
        let (path, lock) = (entry.folder.blob(&blob), entry.folder.lock(&blob));
        Self { path, lock, etag: etag.to_owned(), entry: Entry::Snapshot(entry.clone()) }
    }
}

/// The way in which a cache records a file.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// A file of a commit that a revision points to.
    Snapshot(SnapshotEntry),
    /// An entry in the list of files from other servers.
    Listed(ListedEntry),
}

impl Entry {
    /// Returns `true` if the complete file is in the cache.
    pub(super) fn is_there(&self, path: &Path, len: u64) -> bool {
        match self {
            Self::Snapshot(_) => {
                path.metadata().is_ok_and(|found| found.is_file() && found.len() == len)
            }
            Self::Listed(entry) => entry.is_there(len),
        }
    }

    /// Records that apr fetched the file, if the cache is shared with other programs.
    pub(super) fn fetched(&self, path: &Path) {
        if let Self::Snapshot(entry) = self {
            entry.fetched(path);
        }
    }

    pub(super) fn add(&self, path: &Path, checked: Option<&Checked>) -> Result<()> {
        match self {
            Self::Snapshot(entry) => entry.add(path),
            Self::Listed(entry) => entry.add(path, checked),
        }
    }
}

impl Target {
    /// Returns the path of the partial file. No other program uses its name, since none could know
    /// of its holes.
    pub(super) fn partial(&self) -> PathBuf {
        self.with_end("apr-part")
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.with_end("apr-journal")
    }

    /// Returns the path of a file that did not match its digest.
    pub(super) fn rejected(&self) -> PathBuf {
        self.with_end("apr-rejected")
    }

    fn with_end(&self, end: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!("{name}.{end}"))
    }
}
