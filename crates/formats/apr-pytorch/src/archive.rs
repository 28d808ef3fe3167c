//! ZIP files: an exported program, or a state dict.

use std::sync::Arc;

use apr_archive::Archive;
use apr_core::{ByteSource, Limits, Result};

use crate::contents::Contents;
use crate::options::OpenOptions;
use crate::program;
use crate::state_dict::read_state_dict;

/// Opens an archive; gives the source that the places in its contents refer to.
pub(crate) fn read(
    source: Box<dyn ByteSource>,
    options: &OpenOptions,
    limits: &Limits,
) -> Result<(Contents, Box<dyn ByteSource>)> {
    let archive = Archive::read(&*source, limits)?;
    let source: Arc<dyn ByteSource> = Arc::from(source);
    match program::weights(&archive)? {
        Some(weights) => program::read(&source, &archive, weights, options, limits),
        None => read_state_dict(source, archive, options, limits),
    }
}
