//! Without the feature `hub` there is no network.

use std::path::{Path, PathBuf};

use apr_core::{ByteSource, Result};
use apr_io::{Interrupt, Sources};
use serde::Serialize;

use crate::args::RemoteArgs;
use crate::config::Config;
use crate::failure::Outcome;
use crate::progress::Bar;

/// Returns the sources of files.
pub(crate) fn sources(_args: &RemoteArgs, config: &Config, _interrupt: &Interrupt) -> Sources {
    // A file of a user's machine is read by every build.
    let _ = config.hub.timeout;
    Sources::default()
}

/// A repository of a hub: none is looked up.
pub(crate) enum Repository {}

impl Repository {
    /// Returns `None`: opening a remote path reports why it is not supported.
    pub(crate) fn at(_path: &Path, _sources: &Sources) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn names(&self) -> Outcome<Vec<String>> {
        match *self {}
    }

    pub(crate) fn left_out(&self) -> usize {
        match *self {}
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        match *self {}
    }

    pub(crate) fn location(&self) -> String {
        match *self {}
    }

    pub(crate) fn open(&self, _file: &str) -> Result<Box<dyn ByteSource>> {
        match *self {}
    }
}

/// Cached files of a model; never created in this build.
#[derive(Debug, Serialize)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) file_count: u64,
    pub(crate) bytes: u64,
    pub(crate) partial: u64,
    pub(crate) days: Option<u64>,
    #[serde(skip)]
    pub(crate) own: (u64, u64),
    pub(crate) shared: bool,
}

pub(crate) fn hub_folder() -> Outcome<Option<PathBuf>> {
    Ok(None)
}

pub(crate) fn cached_paths() -> Outcome<Vec<PathBuf>> {
    Ok(Vec::new())
}

pub(crate) fn models(_name: Option<&str>) -> Outcome<Vec<Model>> {
    Ok(Vec::new())
}

pub(crate) fn clear(_models: &[Model], _all: bool) -> Outcome<Vec<String>> {
    Ok(Vec::new())
}

pub(crate) fn verify(
    _models: &[Model],
    _bar: &Bar,
    _interrupt: &Interrupt,
) -> Outcome<Vec<PathBuf>> {
    Ok(Vec::new())
}
