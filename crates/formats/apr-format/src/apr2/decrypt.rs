//! Encryption as the reader meets it: the keys that open an ENCR block, and tensors chunk by chunk.

use alloc::vec::Vec;

use apr_core::{ByteSource, Error, Result};

use super::header::{Header, mac_header};
use super::layout::EntryRange;
pub(super) use crate::crypto::Unlock;
use crate::crypto::{EncrBlock, FileKey, SEALED_CHUNK, TAG_LEN};

/// Message for reads of tensors without a key.
pub(super) const LOCKED: &str = "the model is encrypted, and no key or password was given";

/// The key to a file's tensors.
pub(super) struct Opened {
    key: FileKey,
    salt: [u8; 16],
}

/// Tries keys on the ENCR block of a file. Returns the opened key, or `None` if `keys` is empty,
/// and the number of locks. `front` is metadata and index.
///
/// # Errors
/// E002 when the block does not add up, E003 for a version this crate does not read, E005 when no
/// key fits or the front is not what was encrypted, E008 for a password that costs too much to try.
pub(super) fn unlock(
    block: &[u8],
    header: &Header,
    [metadata, index]: [&[u8]; 2],
    keys: &[Unlock],
    max_memory: u64,
) -> Result<(Option<Opened>, usize)> {
    let block = EncrBlock::decode(block)?;
    let locks = block.stanzas().len();
    if keys.is_empty() {
        return Ok((None, locks));
    }
    let key = block.unlock_within(keys, max_memory)?;
    block.verify(&key, &[&mac_header(&header.encode()), metadata, index])?;
    Ok((Some(Opened { key, salt: block.salt() }), locks))
}

impl Opened {
    /// The ENCR block with the MAC of another front.
    ///
    /// # Errors
    /// As [`unlock`], of the block.
    pub(super) fn authenticate(
        &self,
        block: &[u8],
        header: &Header,
        [metadata, index]: [&[u8]; 2],
    ) -> Result<Vec<u8>> {
        let mut block = EncrBlock::decode(block)?;
        block.authenticate(&self.key, &[&mac_header(&header.encode()), metadata, index]);
        Ok(block.encode())
    }

    /// Decrypts whole chunks of a tensor that was encrypted as `name`, from one on; the tensor's
    /// last is among them if `to_end`. `buf` is as long as they are without their tags.
    ///
    /// # Errors
    /// E005 when the bytes are not what was encrypted.
    pub(super) fn open(
        &self,
        name: &str,
        first: u64,
        to_end: bool,
        sealed: &[u8],
        buf: &mut [u8],
    ) -> Result<()> {
        self.key.tensor(&self.salt, name).open_chunks(first, to_end, sealed, buf)
    }

    /// Fills `buf` with decrypted bytes of a tensor that was encrypted as `name`; the range is
    /// within it.
    ///
    /// # Errors
    /// As [`open`](Self::open), and E007 when they can't be read.
    pub(super) fn read(
        &self,
        source: &dyn ByteSource,
        place: EntryRange,
        name: &str,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let cipher = self.key.tensor(&self.salt, name);
        let chunk = SEALED_CHUNK as u64;
        let whole = chunk + TAG_LEN as u64;
        let last = place.len.div_ceil(whole).saturating_sub(1);
        let (mut sealed, mut plain) = (Vec::new(), Vec::new());
        let (mut done, mut position) = (0, offset);
        while done < buf.len() {
            let number = position / chunk;
            let start = number * whole;
            let len = to_usize(whole.min(place.len - start));
            sealed.resize(len, 0);
            source.read_at(place.offset + start, &mut sealed)?;
            let opened = len - TAG_LEN;
            let skip = to_usize(position - number * chunk);
            let wanted = (opened - skip).min(buf.len() - done);
            let target = &mut buf[done..done + wanted];
            let at = |error: Error| error.at(place.offset + start);
            if wanted == opened {
                cipher.open(number, number == last, &sealed, target).map_err(at)?;
            } else {
                // A chunk is authentic as a whole or not at all, so it is opened beside the target.
                plain.resize(opened, 0);
                cipher.open(number, number == last, &sealed, &mut plain).map_err(at)?;
                target.copy_from_slice(&plain[skip..skip + wanted]);
            }

            done += wanted;
            position += wanted as u64;
        }
        Ok(())
    }
}

/// Converts a number that is at most the length of a chunk.
fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
