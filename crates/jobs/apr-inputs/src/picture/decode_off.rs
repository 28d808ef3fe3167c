//! Where the program was built without the feature `images`.

use apr_core::{Error, Result};

use super::Picture;

/// Returns an error, because this build can't read image files.
///
/// # Errors
/// E003 always.
pub fn decode(_: &[u8], _: u64) -> Result<Picture> {
    Err(Error::version("image files need the feature `images`, which this build lacks"))
}
