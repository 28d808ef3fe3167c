//! A build without encryption: nobody can make an [`Encrypt`].

use alloc::vec::Vec;

use apr_core::{Metadata, TensorInfo};

/// Encryption of a file. This build has no encryption, so there is none.
#[derive(Debug, Clone)]
pub enum Encrypt {}

impl Encrypt {
    pub(super) fn hides_metadata(&self) -> bool {
        match *self {}
    }

    pub(super) fn block_len(&self) -> u64 {
        match *self {}
    }

    pub(super) fn encr_block(&self, _header: &[u8; 32], _sections: [&[u8]; 2]) -> Vec<u8> {
        match *self {}
    }

    pub(super) fn seal(
        &self,
        _name: &str,
        _first: u64,
        _to_end: bool,
        _bytes: &[u8],
        _out: &mut Vec<u8>,
    ) {
        match *self {}
    }

    pub(super) fn hide(&self, _metadata: &mut Metadata) -> Option<(TensorInfo, Vec<u8>)> {
        match *self {}
    }
}
