//! Which files of the Hugging Face cache apr fetched: the cache is shared, and what other programs
//! fetched is theirs.
//!
//! ```text
//! ~/.cache/apr/fetched/HUB/models--ORG--REPO/ETAG        which file the blob was: number and birth
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use apr_platform::Identity;
use sha2::{Digest, Sha256};

use crate::digest::hex;

/// The record of one Hugging Face cache.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    folder: PathBuf,
}

impl Fetched {
    /// Creates the record of the cache `hub`, in apr's own folder.
    pub(crate) fn new(cache: &Path, hub: &Path) -> Self {
        let hub = std::path::absolute(hub).unwrap_or_else(|_| hub.to_path_buf());
        let name = hex(&Sha256::digest(hub.as_os_str().as_encoded_bytes()));
        Self { folder: cache.join("fetched").join(&name[..16]) }
    }

    /// Records a complete blob. If that fails, the blob counts as another program's and is kept
    /// when the cache is cleared.
    pub(crate) fn add(&self, blob: &Path) {
        let Some(path) = self.record(blob) else { return };
        if let (Some(folder), Some(file)) = (path.parent(), file_of(blob)) {
            let _ = fs::create_dir_all(folder);
            let _ = fs::write(path, file);
        }
    }

    /// Returns `true` if apr fetched a blob and no other program has replaced it since.
    pub(crate) fn has(&self, blob: &Path) -> bool {
        let name = blob.file_name().unwrap_or_default().to_string_lossy();
        // What was not fetched to the end has a name that only apr uses.
        if [".apr-part", ".apr-journal", ".apr-rejected"].iter().any(|end| name.ends_with(end)) {
            return true;
        }
        let known = self.record(blob).and_then(|path| fs::read_to_string(path).ok());
        known.is_some() && known == file_of(blob)
    }

    /// Forgets a blob that was removed.
    pub(crate) fn forget(&self, blob: &Path) {
        if let Some(path) = self.record(blob) {
            let _ = fs::remove_file(&path);
            // The repository's folder goes with the last of them.
            let _ = path.parent().map(fs::remove_dir);
        }
    }

    /// Returns the path of the record of `models--ORG--REPO/blobs/ETAG`.
    fn record(&self, blob: &Path) -> Option<PathBuf> {
        let repository = blob.parent()?.parent()?.file_name()?;
        Some(self.folder.join(repository).join(blob.file_name()?))
    }
}

/// Returns the identity of a blob's file. A blob that another program removed and fetched again is
/// another file.
fn file_of(blob: &Path) -> Option<String> {
    let number = Identity::of_path(blob).ok()?.number();
    let born = blob.metadata().ok()?.created().ok();
    let born = born.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    Some(format!("{number} {}", born.unwrap_or_default().as_nanos()))
}
