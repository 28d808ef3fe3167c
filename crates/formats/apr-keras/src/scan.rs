//! What loading a file of Keras would run or open besides the file itself.

use std::sync::Arc;

use apr_core::{ByteSource, Limits, Result};

use crate::hdf5::{File, find_signature};
use crate::walk::Contents;

/// Content of an HDF5 file that affects its loader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scan {
    /// Configurations in JSON, by the names of their attributes: loaders make what they name.
    pub configs: Vec<(String, String)>,
    /// Objects whose values are in other files: their paths, and the file.
    pub outside: Vec<(String, String)>,
    /// The library that wrote the file, if it unpickles attributes or values: PyTables, hickle.
    pub unpickles: Option<&'static str>,
    /// Attributes that could not be read.
    pub warnings: Vec<String>,
}

/// Lists this content, or returns `None` if the source is not an HDF5 file.
///
/// Does not execute anything, and does not open any other file.
///
/// # Errors
/// E002 for a damaged file, E003 for a version that is not known, E007 when reading fails, E008
/// over the budget.
pub fn scan(source: &dyn ByteSource, limits: &Limits) -> Result<Option<Scan>> {
    if find_signature(source)?.is_none() {
        return Ok(None);
    }
    let file = File::open(Arc::new(source), limits)?;
    let contents = Contents::of(&file)?;
    let mut configs: Vec<_> = contents.texts.into_iter().collect();
    configs.retain(|(name, _)| name.ends_with("_config"));
    configs.sort();
    let Contents { outside, unpickles, warnings, .. } = contents;
    Ok(Some(Scan { configs, outside, unpickles, warnings }))
}
