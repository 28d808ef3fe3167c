//! What ENCR, SIGN and LICN have in common: a head of 16 bytes, a body, zeros up to a multiple
//! of 64.

use alloc::format;
use alloc::vec::Vec;

use apr_core::{Error, Result};

/// Length of a block's head in bytes.
pub(crate) const HEAD_LEN: usize = 16;
const VERSION: u32 = 1;
const ALIGNMENT: usize = 64;

/// Length of a block with a body of `body_len` bytes, padding included; none when it is past 2^64.
pub(crate) fn block_len(body_len: u64) -> Option<u64> {
    body_len.checked_add(HEAD_LEN as u64)?.checked_next_multiple_of(ALIGNMENT as u64)
}

/// The block around `body`.
pub(crate) fn encode_block(kind: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_LEN + body.len() + ALIGNMENT);
    out.extend_from_slice(&kind);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}

/// Length of the body that a head announces, in bytes.
///
/// # Errors
/// E002 when this is not a `kind` block, E003 for another version of it.
pub(crate) fn decode_head(kind: [u8; 4], head: &[u8; HEAD_LEN]) -> Result<u64> {
    let [k0, k1, k2, k3, v0, v1, v2, v3, len @ ..] = *head;
    let name = kind.escape_ascii();
    if [k0, k1, k2, k3] != kind {
        return Err(Error::corrupt(format!("there should be a block '{name}' here")));
    }
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    if version != VERSION {
        return Err(Error::version(format!(
            "version {version} of the block '{name}' is not supported"
        )));
    }
    Ok(u64::from_le_bytes(len))
}

/// The body of a whole block, padding included.
///
/// # Errors
/// E002 when the bytes are not exactly one `kind` block, E003 for another version of it.
pub(crate) fn decode_block(kind: [u8; 4], bytes: &[u8]) -> Result<&[u8]> {
    let name = kind.escape_ascii();
    let Some((head, rest)) = bytes.split_first_chunk() else {
        return Err(Error::corrupt(format!("the block '{name}' is cut off")));
    };
    let len = decode_head(kind, head)?;
    if block_len(len) != Some(bytes.len() as u64) {
        return Err(Error::corrupt(format!(
            "the block '{name}' claims {len} bytes, which does not fit its place of {}",
            bytes.len()
        )));
    }

    let body = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len));
    match body {
        Some((body, padding)) if padding.iter().all(|&byte| byte == 0) => Ok(body),
        _ => Err(Error::corrupt(format!("the block '{name}' is not padded with zeros"))),
    }
}

/// Takes fields off the front of a body.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    /// The next `N` bytes.
    ///
    /// # Errors
    /// E002 when there are fewer.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (array, rest) = self
            .0
            .split_first_chunk()
            .ok_or_else(|| Error::corrupt("a block ends in the middle of a field"))?;
        self.0 = rest;
        Ok(*array)
    }

    /// The next little-endian u32.
    ///
    /// # Errors
    /// E002 when fewer than four bytes are left.
    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }
}
