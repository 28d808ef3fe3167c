//! Encryption as the reader meets it: the ENCR block, the keys that open it, tensors chunk by
//! chunk.

use alloc::format;
use alloc::vec::Vec;

use apr_core::{ByteSource, Code, Error, Result, read_vec};

use super::decrypt::{LOCKED, Opened, Unlock, unlock};
use super::header::{Flags, Header};
use super::layout::{BLOCK_ALIGNMENT, align};
use crate::crypto::plain_len;

/// Stanzas for some ten thousand recipients; a longer block is not one.
const MAX_ENCR_LEN: u64 = 1 << 20;

/// First bytes of the block.
const ENCR: [u8; 4] = *b"ENCR";

/// Keys for an encrypted model: passwords and private keys, tried in order.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Passwords and private keys.
    pub unlock: Vec<Unlock>,
    /// Maximum memory in bytes for deriving a key from a password. The file states how much it
    /// requires.
    pub max_memory: u64,
}

impl Default for Keys {
    /// Returns no keys and a memory limit of 1 GiB, the most that a file can require.
    fn default() -> Self {
        Self { unlock: Vec::new(), max_memory: 1 << 30 }
    }
}

/// Encryption of the tensors, and their key.
pub(super) enum Seal {
    /// The tensors are not encrypted.
    None,
    /// The tensors are encrypted, and no matching key was given.
    Locked,
    /// The tensors are encrypted, and this opens them.
    Open(Opened),
}

/// ENCR block, and the result of trying the keys.
pub(super) struct Encryption {
    pub(super) seal: Seal,
    /// Bytes of the block, padding included; 0 in a plain file.
    pub(super) block_len: u64,
    /// Number of locks.
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
        let (opened, locks) = unlock(&block, header, front, &keys.unlock, keys.max_memory)
            .map_err(|error| error.at(start))?;
        Ok(Self { seal: opened.map_or(Seal::Locked, Seal::Open), block_len, locks })
    }
}

impl Seal {
    /// Returns the length before encryption of `sealed` stored bytes.
    pub(super) fn opened_len(&self, sealed: u64) -> u64 {
        match self {
            Self::None => sealed,
            // Lengths that chunks don't add up to were refused with the index.
            _ => plain_len(sealed).unwrap_or(0),
        }
    }

    /// The key.
    ///
    /// # Errors
    /// E005 without it.
    pub(super) fn opened(&self) -> Result<&Opened> {
        match self {
            Self::Open(opened) => Ok(opened),
            Self::None | Self::Locked => Err(locked()),
        }
    }
}

/// Returns the error for reading encrypted bytes without a key.
pub(super) fn locked() -> Error {
    Error::new(Code::Decrypt, LOCKED)
}
