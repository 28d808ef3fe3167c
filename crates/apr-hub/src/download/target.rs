//! Where a file of the cache goes, and how the cache says that it is there.

use std::path::{Path, PathBuf};

use apr_core::Result;
use sha2::{Digest, Sha256};

use crate::digest::{Checked, hex, is_digest};
use crate::hub_cache::SnapshotEntry;
use crate::url_cache::ListedEntry;

/// Where a file goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Its name when it is whole and checked.
    pub(crate) path: PathBuf,
    /// The file whose lock is held meanwhile.
    pub(crate) lock: PathBuf,
    /// By what it is checked; the state of a file whose server gives no digest.
    pub(crate) etag: String,
    /// What is done when it is there.
    pub(crate) entry: Entry,
}

impl Target {
    /// Where the bytes of this state of a file of a commit go.
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

/// How a cache says that a file is there.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// As a file of a commit, for which a revision stands.
    Snapshot(SnapshotEntry),
    /// In the list of what came from other servers.
    Listed(ListedEntry),
}

impl Entry {
    /// Whether the file is there as a whole.
    pub(super) fn is_there(&self, path: &Path, len: u64) -> bool {
        match self {
            Self::Snapshot(_) => {
                path.metadata().is_ok_and(|found| found.is_file() && found.len() == len)
            }
            Self::Listed(entry) => entry.is_there(len),
        }
    }

    /// Notes that apr fetched the file, where other programs share the cache.
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
    /// What was fetched so far. The name is none that other programs use, which could not know of
    /// the holes in it.
    pub(super) fn partial(&self) -> PathBuf {
        self.with_end("apr-part")
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.with_end("apr-journal")
    }

    /// What did not agree with its digest.
    pub(super) fn rejected(&self) -> PathBuf {
        self.with_end("apr-rejected")
    }

    fn with_end(&self, end: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!("{name}.{end}"))
    }
}
