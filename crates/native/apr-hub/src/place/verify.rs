//! Files of the cache are compared with their digests where what is read of them is written down.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use apr_core::Result;

use super::ResolvedLocation;
use crate::digest::{damaged, file_agrees, is_digest};
use crate::source::RemoteSource;

/// A file that is read directly from the cache.
pub(super) struct CachedFile {
    path: PathBuf,
    digest: String,
    /// Result of the comparison, once it was made.
    found: Mutex<Option<Result<()>>>,
}

impl CachedFile {
    /// Compares the file with its digest, once. Concurrent callers wait for the result.
    fn check(&self, interrupt: &AtomicBool) -> Result<()> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.get_or_insert_with(|| self.compare(interrupt)).clone()
    }

    fn compare(&self, interrupt: &AtomicBool) -> Result<()> {
        if file_agrees(&self.path, &self.digest, &(), interrupt)? {
            Ok(())
        } else {
            Err(damaged(&self.path, &self.digest))
        }
    }
}

impl ResolvedLocation {
    /// Records that a file is read directly from the cache.
    pub(super) fn remember_cached(&self, name: &str, path: &Path, digest: Option<String>) {
        let Some(digest) = digest.filter(|digest| is_digest(digest)) else { return };
        let file = || {
            let path = path.to_path_buf();
            Arc::new(CachedFile { path, digest, found: Mutex::default() })
        };
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.entry(name.to_owned()).or_insert_with(file);
    }

    /// Returns the digest of a file that is read directly from the cache.
    pub(super) fn cached_digest(&self, name: &str) -> Option<String> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.get(name).map(|file| file.digest.clone())
    }

    fn cached_files(&self) -> Vec<Arc<CachedFile>> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.values().cloned().collect()
    }

    /// The names of files whose digests were given out.
    pub(super) fn claimed(&self) -> BTreeSet<String> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins to compare the files that are read in the cache.
    pub(super) fn check_cached(&self) {
        let files = self.cached_files();
        let interrupt = Arc::clone(&self.hub.client.settings.interrupt);
        if !files.is_empty() {
            std::thread::spawn(move || {
                files.iter().for_each(|file| drop(file.check(&interrupt)));
            });
        }
    }

    /// Waits until all of them were compared.
    ///
    /// # Errors
    /// E004 for a file that is damaged, E007 for one that can't be read.
    pub(super) fn finish_cached(&self) -> Result<()> {
        let interrupt = &self.hub.client.settings.interrupt;
        self.cached_files().iter().try_for_each(|file| file.check(interrupt))
    }

    /// Starts to keep a file that is opened after other files are already being kept.
    pub(super) fn begin_late(&self, source: &RemoteSource) {
        if self.reading.keeps() {
            drop(source.download());
        }
    }
}
