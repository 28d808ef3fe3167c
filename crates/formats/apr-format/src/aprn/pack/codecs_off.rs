//! A build without compression.

use alloc::format;
use alloc::vec::Vec;

use apr_core::{Error, Result};

use crate::aprn::Compression;

pub(super) fn pack(_payload: &[u8], compression: Compression) -> Result<Vec<u8>> {
    Err(absent(compression))
}

pub(super) fn unpack(_stored: &[u8], compression: Compression, _len: usize) -> Result<Vec<u8>> {
    Err(absent(compression))
}

fn absent(compression: Compression) -> Error {
    Error::version(format!("this build has no codec for {} payloads", compression.name())).at(20)
}
