//! Encryption as the writer meets it: the ENCR block, and tensors chunk by chunk.

use alloc::vec::Vec;

#[cfg(feature = "encryption")]
use apr_core::{DType, keys};
use apr_core::{Metadata, TensorInfo};

#[cfg(feature = "encryption")]
use super::options::Encrypt;
use super::options::WriteOptions;
#[cfg(feature = "encryption")]
use crate::sealed::SEALED_CHUNK;

/// Metadata that stay readable: what readers need to place tensors, and to say what the model is.
#[cfg(feature = "encryption")]
const OPEN: [&str; 4] = [keys::APR_VERSION, keys::MODEL_TYPE, keys::ARCHITECTURE, keys::TIED];

/// Encryption of one file, or none.
pub(super) struct Sealing {
    #[cfg(feature = "encryption")]
    with: Option<Encrypt>,
}

#[cfg(feature = "encryption")]
impl Sealing {
    pub(super) fn new(options: &WriteOptions) -> Self {
        Self { with: options.encryption.clone() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.with.is_some()
    }

    pub(super) fn block_len(&self) -> u64 {
        self.with.as_ref().map_or(0, |with| with.block.encode().len() as u64)
    }

    /// The ENCR block over header, metadata and index.
    pub(super) fn block(&self, header: &[u8; 32], [metadata, index]: [&[u8]; 2]) -> Vec<u8> {
        let Some(Encrypt { block, key, .. }) = &self.with else { return Vec::new() };
        let mut block = block.clone();
        block.authenticate(key, &[&crate::crypto::mac_header(header), metadata, index]);
        block.encode()
    }

    pub(super) fn seal(
        &self,
        name: &str,
        first: u64,
        to_end: bool,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) {
        let Some(Encrypt { block, key, .. }) = &self.with else { return };
        let cipher = key.tensor(&block.salt(), name);
        let chunks = bytes.len().div_ceil(SEALED_CHUNK);
        out.reserve(bytes.len() + chunks * crate::crypto::TAG_LEN);
        for (number, chunk) in (first..).zip(bytes.chunks(SEALED_CHUNK)) {
            cipher.seal(number, to_end && number + 1 == first + chunks as u64, chunk, out);
        }
    }

    pub(super) fn hide(&self, metadata: &mut Metadata) -> Option<(TensorInfo, Vec<u8>)> {
        self.with.as_ref().filter(|with| with.hide_metadata)?;
        let mut open = metadata.clone();
        open.retain(|key| OPEN.contains(&key));
        let mut hidden = core::mem::replace(metadata, open);
        hidden.retain(|key| !OPEN.contains(&key));
        let json = hidden.to_json();
        let shape = [json.len() as u64].into();
        Some((TensorInfo { name: keys::HIDDEN_TENSOR.into(), dtype: DType::U8, shape }, json))
    }
}

#[cfg(not(feature = "encryption"))]
#[allow(clippy::unused_self, reason = "as with the feature")]
impl Sealing {
    pub(super) fn new(_options: &WriteOptions) -> Self {
        Self {}
    }

    pub(super) fn is_on(&self) -> bool {
        false
    }

    pub(super) fn block_len(&self) -> u64 {
        0
    }

    pub(super) fn block(&self, _header: &[u8; 32], _sections: [&[u8]; 2]) -> Vec<u8> {
        Vec::new()
    }

    pub(super) fn seal(
        &self,
        _name: &str,
        _first: u64,
        _to_end: bool,
        _bytes: &[u8],
        _out: &mut Vec<u8>,
    ) {
    }

    pub(super) fn hide(&self, _metadata: &mut Metadata) -> Option<(TensorInfo, Vec<u8>)> {
        None
    }
}
