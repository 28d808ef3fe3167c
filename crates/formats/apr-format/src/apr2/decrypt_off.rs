//! A build without encryption: nobody can make a key, and encrypted tensors are listed, not read.

use alloc::vec::Vec;

use apr_core::{ByteSource, Result};

use super::header::Header;
use super::layout::EntryRange;

pub(super) const LOCKED: &str = "the model is encrypted, and this build has no encryption";

/// A password or a private key: none.
#[derive(Debug, Clone)]
pub enum Unlock {}

pub(super) enum Opened {}

#[allow(clippy::unnecessary_wraps, reason = "as with encryption")]
pub(super) fn unlock(
    _block: &[u8],
    _header: &Header,
    _front: [&[u8]; 2],
    _keys: &[Unlock],
    _max_memory: u64,
) -> Result<(Option<Opened>, usize)> {
    Ok((None, 0))
}

impl Opened {
    pub(super) fn authenticate(
        &self,
        _block: &[u8],
        _header: &Header,
        _front: [&[u8]; 2],
    ) -> Result<Vec<u8>> {
        match *self {}
    }

    pub(super) fn open(
        &self,
        _name: &str,
        _first: u64,
        _to_end: bool,
        _sealed: &[u8],
        _buf: &mut [u8],
    ) -> Result<()> {
        match *self {}
    }

    pub(super) fn read(
        &self,
        _source: &dyn ByteSource,
        _place: EntryRange,
        _name: &str,
        _offset: u64,
        _buf: &mut [u8],
    ) -> Result<()> {
        match *self {}
    }
}
