//! Packing and unpacking the payload (`docs/format/older.md`, B).

#[cfg(feature = "compression")]
mod codecs;
#[cfg(not(feature = "compression"))]
#[path = "codecs_off.rs"]
mod codecs;

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;

use apr_core::{Error, Result};

use super::Compression;

/// Unpacked bytes that are allowed for any file, however small it is.
const FREE: u64 = 64 << 20;
/// Unpacked bytes that are allowed per stored byte, in addition to [`FREE`].
const MAX_RATIO: u64 = 1024;

/// Packs a payload.
///
/// # Errors
/// E003 in a build without compression, E008 for an LZ4 payload of 4 GiB.
pub(super) fn pack(payload: &[u8], compression: Compression) -> Result<Cow<'_, [u8]>> {
    match compression {
        Compression::None => Ok(Cow::Borrowed(payload)),
        _ => codecs::pack(payload, compression).map(Cow::Owned),
    }
}

/// Unpacks a payload to the `len` bytes that the header states.
///
/// # Errors
/// E002 when the bytes don't decode to exactly that many, E003 in a build without compression, E008
/// when so many are not justified by the size of the file.
pub(super) fn unpack(stored: Vec<u8>, compression: Compression, len: u32) -> Result<Vec<u8>> {
    let allowed = FREE + MAX_RATIO * stored.len() as u64;
    if compression != Compression::None && u64::from(len) > allowed {
        let message = format!(
            "{} bytes unpack to {len} by their header; {allowed} are allowed",
            stored.len()
        );
        return Err(Error::memory(message).at(16));
    }

    let payload = match compression {
        Compression::None => stored,
        _ => codecs::unpack(&stored, compression, len as usize)?,
    };
    if payload.len() as u64 != u64::from(len) {
        let message =
            format!("the payload has {} bytes, but the header states {len}", payload.len());
        return Err(Error::corrupt(message).at(16));
    }

    Ok(payload)
}
