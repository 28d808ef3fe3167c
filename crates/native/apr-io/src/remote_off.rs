//! Without the feature `hub` nothing is opened over the network.

use std::path::Path;

use apr_core::{ByteSource, CheckpointReader, Error, Metadata, Result};
use apr_registry::OpenOptions;

use crate::Sources;

/// Returns `true` if a path names a model on a hub or server.
#[must_use]
pub fn is_remote(path: &Path) -> bool {
    let schemes = ["hf://", "https://", "http://", "s3://"];
    schemes.iter().any(|scheme| path.to_string_lossy().to_lowercase().starts_with(scheme))
}

impl Sources {
    /// Returns `false`: this build opens no remote files.
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn has_remote(&self) -> bool {
        false
    }

    pub(crate) fn open_remote(
        &self,
        path: &Path,
        _with_companions: bool,
        _options: &OpenOptions,
    ) -> Result<Box<dyn CheckpointReader>> {
        Err(no_network(path))
    }

    /// Does nothing: this build opens no remote models.
    pub fn expect_tensors(
        &self,
        _path: &Path,
        _reader: &dyn CheckpointReader,
        _tensors: impl IntoIterator<Item = usize>,
    ) {
    }

    /// Fails, because this build opens no remote paths.
    ///
    /// # Errors
    /// E001: nothing is opened over the network.
    pub fn is_remote_set(&self, path: &Path) -> Result<bool> {
        Err(no_network(path))
    }

    /// Opens the bytes of one remote file.
    ///
    /// # Errors
    /// E001: nothing is opened over the network.
    pub fn open_remote_file(&self, path: &Path) -> Result<Box<dyn ByteSource>> {
        Err(no_network(path))
    }

    /// Returns no notes: this build fetches no files.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Does nothing: this build fetches no files.
    pub fn note_kept(&self) {}

    /// Returns `None`, because only remote models have a recorded origin.
    #[must_use]
    pub fn provenance(&self, _path: &Path) -> Option<Metadata> {
        None
    }

    /// Returns `None`: this build opens no remote models.
    #[must_use]
    pub fn state(&self, _path: &Path, _files: &[&str]) -> Option<(String, Vec<Option<String>>)> {
        None
    }

    /// Fails, because this build can't compare a model with its source.
    ///
    /// # Errors
    /// E001: nothing is opened over the network.
    pub fn check_provenance(&self, _source: &Metadata) -> Result<String> {
        Err(no_network(Path::new("the source")))
    }

    /// Does nothing: this build opens no remote models.
    pub fn expect_companions(&self) {}

    /// Does nothing: this build opens no remote models.
    pub fn expect_whole(&self) {}

    /// Does nothing: this build opens no remote models.
    pub fn read_whole(&self) {}

    /// Does nothing: this build opens no remote models.
    pub fn keep_whole(&self) {}

    /// Returns at once: this build keeps no files in a cache.
    ///
    /// # Errors
    /// None.
    pub fn finish(&self) -> Result<()> {
        Ok(())
    }
}

fn no_network(path: &Path) -> Error {
    let message = "this build has no network support (feature `hub`); download the model first";
    Error::format(message).in_file(path.display())
}
