//! Without the feature `hub` nothing is opened over the network.

use std::path::Path;

use apr_core::{ByteSource, CheckpointReader, Error, Metadata, Result};
use apr_registry::OpenOptions;

use crate::Sources;

/// Whether a path names a model on a hub or server.
#[must_use]
pub fn is_remote(path: &Path) -> bool {
    let schemes = ["hf://", "https://", "http://", "s3://"];
    schemes.iter().any(|scheme| path.to_string_lossy().to_lowercase().starts_with(scheme))
}

impl Sources {
    /// Whether any file is one of a hub or a server: there are none.
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

    /// Tensors of a remote model are going to be read: there are none.
    pub fn expect_tensors(
        &self,
        _path: &Path,
        _reader: &dyn CheckpointReader,
        _tensors: impl IntoIterator<Item = usize>,
    ) {
    }

    /// Whether a remote path stands for several files.
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

    /// What the user should know of how files were fetched: nothing was.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Notes what is kept of files that were not fetched to their end: nothing is.
    pub fn note_kept(&self) {}

    /// Where a model comes from: known of remote ones alone.
    #[must_use]
    pub fn provenance(&self, _path: &Path) -> Option<Metadata> {
        None
    }

    /// Where a remote model is: there are none.
    #[must_use]
    pub fn state(&self, _path: &Path, _files: &[&str]) -> Option<(String, Vec<Option<String>>)> {
        None
    }

    /// Compares what is written down of a model's source with what is there.
    ///
    /// # Errors
    /// E001: nothing is opened over the network.
    pub fn check_provenance(&self, _source: &Metadata) -> Result<String> {
        Err(no_network(Path::new("the source")))
    }

    /// The companions of models that are opened from now on are going to be read.
    pub fn expect_companions(&self) {}

    /// All of the models that are opened from now on is going to be read.
    pub fn expect_whole(&self) {}

    /// All of the models that are open is going to be read.
    pub fn read_whole(&self) {}

    /// The same.
    pub fn keep_whole(&self) {}

    /// Waits until what is kept in the cache is whole: nothing is.
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
