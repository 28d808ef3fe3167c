//! Encryption as the reader meets it: the ENCR block, the keys that open it, tensors chunk by
//! chunk.

use alloc::format;

use apr_core::{ByteSource, Code, Error, Result, read_vec};

use super::header::{Flags, Header};
use super::layout::{BLOCK_ALIGNMENT, Place, align};
use crate::sealed::plain_len;
#[cfg(feature = "encryption")]
use crate::sealed::{SEALED_CHUNK, TAG_LEN};

/// Stanzas for some ten thousand recipients; a longer block is not one.
const MAX_ENCR_LEN: u64 = 1 << 20;

/// First bytes of the block.
const ENCR: [u8; 4] = *b"ENCR";

/// What opens an encrypted model: passwords and private keys, each tried in turn.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// Passwords and private keys.
    #[cfg(feature = "encryption")]
    pub unlock: alloc::vec::Vec<crate::crypto::Unlock>,
}

/// Whether the tensors are encrypted, and the key to them.
pub(super) enum Seal {
    /// They are not.
    None,
    /// They are, and nothing that would open them was given.
    Locked,
    /// They are, and this opens them.
    #[cfg(feature = "encryption")]
    Open { key: crate::crypto::FileKey, salt: [u8; 16] },
}

/// The ENCR block and what came of the keys.
pub(super) struct Encryption {
    pub(super) seal: Seal,
    /// Bytes of the block, padding included; 0 in a plain file.
    pub(super) block_len: u64,
    /// How many locks there are.
    pub(super) locks: usize,
}

impl Encryption {
    /// Reads the ENCR block of a file that has one and tries the keys. `front` is metadata and
    /// index.
    ///
    /// # Errors
    /// E002 when the block is missing or does not add up, E003 for a version this crate does not
    /// read, E005 when no key fits or the front is not what was encrypted, E008 for a password that
    /// costs too much to try.
    pub(super) fn open(
        source: &dyn ByteSource,
        header: &Header,
        front: [&[u8]; 2],
        keys: &Keys,
    ) -> Result<Self> {
        if !header.flags.contains(Flags::ENCRYPTED) {
            return Ok(Self { seal: Seal::None, block_len: 0, locks: 0 });
        }

        let start = u64::from(header.data_offset);
        let head = read_vec(source, start, 16).map_err(|error| error.at(start))?;
        let (kind, rest) = head.split_at(4);
        if kind != ENCR {
            return Err(Error::corrupt(
                "the header flags encryption, but the data section has no ENCR block",
            )
            .at(start));
        }

        let len = rest[4..].iter().rev().fold(0, |len, &byte| len << 8 | u64::from(byte));
        if len > MAX_ENCR_LEN {
            return Err(Error::corrupt(format!("the ENCR block claims {len} bytes")).at(start));
        }

        let block_len = align(16 + len, BLOCK_ALIGNMENT).unwrap_or(u64::MAX);
        let block = read_vec(source, start, block_len)?;
        let (seal, locks) = unlock(&block, header, front, keys).map_err(|error| error.at(start))?;
        Ok(Self { seal, block_len, locks })
    }
}

#[cfg(feature = "encryption")]
fn unlock(
    block: &[u8],
    header: &Header,
    [metadata, index]: [&[u8]; 2],
    keys: &Keys,
) -> Result<(Seal, usize)> {
    use crate::crypto::{EncrBlock, mac_header};
    let block = EncrBlock::decode(block)?;
    let locks = block.stanzas().len();
    if keys.unlock.is_empty() {
        return Ok((Seal::Locked, locks));
    }
    let key = block.unlock(&keys.unlock)?;
    block.verify(&key, &[&mac_header(&header.encode()), metadata, index])?;
    Ok((Seal::Open { key, salt: block.salt() }, locks))
}

#[cfg(not(feature = "encryption"))]
fn unlock(
    _block: &[u8],
    _header: &Header,
    _front: [&[u8]; 2],
    _keys: &Keys,
) -> Result<(Seal, usize)> {
    Ok((Seal::Locked, 0))
}

impl Seal {
    /// Bytes before encryption of so many as they lie in the file.
    pub(super) fn opened_len(&self, sealed: u64) -> u64 {
        match self {
            Self::None => sealed,
            // Lengths that chunks don't add up to were refused with the index.
            _ => plain_len(sealed).unwrap_or(0),
        }
    }

    /// The ENCR block with the MAC of another front.
    ///
    /// # Errors
    /// E005 without the key.
    pub(super) fn authenticate(
        &self,
        block: &[u8],
        header: &Header,
        front: [&[u8]; 2],
    ) -> Result<alloc::vec::Vec<u8>> {
        match self {
            #[cfg(feature = "encryption")]
            Self::Open { key, .. } => {
                let mut block = crate::crypto::EncrBlock::decode(block)?;
                block.authenticate(
                    key,
                    &[&crate::crypto::mac_header(&header.encode()), front[0], front[1]],
                );
                Ok(block.encode())
            }
            _ => {
                let _ = (block, header, front);
                Err(locked())
            }
        }
    }

    /// Decrypts whole chunks of a tensor that was encrypted as `name`, from one on; the tensor's
    /// last is among them if `to_end`. `buf` is as long as they are without their tags.
    pub(super) fn open(
        &self,
        name: &str,
        first: u64,
        to_end: bool,
        sealed: &[u8],
        buf: &mut [u8],
    ) -> Result<()> {
        match self {
            #[cfg(feature = "encryption")]
            Self::Open { key, salt } => {
                key.tensor(salt, name).open_chunks(first, to_end, sealed, buf)
            }
            _ => {
                let _ = (name, first, to_end, sealed, buf);
                Err(locked())
            }
        }
    }

    /// Fills `buf` with decrypted bytes of a tensor that was encrypted as `name`; the range is
    /// within it.
    pub(super) fn read(
        &self,
        source: &dyn ByteSource,
        place: Place,
        name: &str,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let _ = (source, place, name, offset, &buf);
        match self {
            #[cfg(feature = "encryption")]
            Self::Open { key, salt } => {
                let cipher = key.tensor(salt, name);
                let chunk = SEALED_CHUNK as u64;
                let whole = chunk + TAG_LEN as u64;
                let last = place.len.div_ceil(whole).saturating_sub(1);
                let (mut sealed, mut plain) = (alloc::vec::Vec::new(), alloc::vec::Vec::new());
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
                        plain.resize(opened, 0);
                        cipher.open(number, number == last, &sealed, &mut plain).map_err(at)?;
                        target.copy_from_slice(&plain[skip..skip + wanted]);
                    }

                    done += wanted;
                    position += wanted as u64;
                }
                Ok(())
            }
            _ => Err(locked()),
        }
    }
}

/// Of a number that is at most the length of a chunk.
#[cfg(feature = "encryption")]
fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// What reading encrypted bytes without a key comes to.
pub(super) fn locked() -> Error {
    let message = if cfg!(feature = "encryption") {
        "the model is encrypted, and no key or password was given"
    } else {
        "the model is encrypted, and this build has no encryption"
    };
    Error::new(Code::Decrypt, message)
}
