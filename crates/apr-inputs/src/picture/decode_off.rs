//! Where the program was built without the feature `images`.

use apr_core::{Error, Result};

use super::Picture;

/// Refuses: there is nothing to read a picture file with.
///
/// # Errors
/// E003 always.
pub fn decode(_: &[u8], _: u64) -> Result<Picture> {
    Err(Error::version("image files need the feature `images`, which this build lacks"))
}
