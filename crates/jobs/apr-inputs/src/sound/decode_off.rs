//! Where the program was built without the feature `audio`.

use apr_core::{Error, Result};

use super::Sound;

/// Returns an error, because this build can't read audio files.
///
/// # Errors
/// E003 always.
pub fn decode(_: Vec<u8>, _: usize) -> Result<(Sound, Vec<String>)> {
    Err(Error::version("audio files need the feature `audio`, which this build lacks"))
}
