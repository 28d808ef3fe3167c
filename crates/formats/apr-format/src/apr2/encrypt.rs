//! Encryption as the writer meets it: the ENCR block, and tensors chunk by chunk.

use alloc::vec::Vec;
use core::{fmt, mem};

use apr_core::{DType, Metadata, TensorInfo, keys};

use super::header::mac_header;
use crate::crypto::{EncrBlock, FileKey, SEALED_CHUNK, TAG_LEN};

/// Metadata that stay readable: the keys that readers require to locate tensors and to identify the
/// model.
const OPEN: [&str; 4] = [keys::APR_VERSION, keys::MODEL_TYPE, keys::ARCHITECTURE, keys::TIED];

/// Encryption of a file: a random key, and the locks that hold it.
#[derive(Clone)]
pub struct Encrypt {
    /// The key's locks.
    pub block: EncrBlock,
    /// The key that encrypts the tensors.
    pub key: FileKey,
    /// Encrypts all metadata except the required keys.
    pub hide_metadata: bool,
}

impl fmt::Debug for Encrypt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypt")
            .field("hide_metadata", &self.hide_metadata)
            .finish_non_exhaustive()
    }
}

impl Encrypt {
    /// Returns `true` if metadata are to be encrypted.
    pub(super) fn hides_metadata(&self) -> bool {
        self.hide_metadata
    }

    /// Bytes of the ENCR block.
    pub(super) fn block_len(&self) -> u64 {
        self.block.encode().len() as u64
    }

    /// The ENCR block over header, metadata and index.
    pub(super) fn encr_block(&self, header: &[u8; 32], [metadata, index]: [&[u8]; 2]) -> Vec<u8> {
        let mut block = self.block.clone();
        block.authenticate(&self.key, &[&mac_header(header), metadata, index]);
        block.encode()
    }

    /// Appends the encrypted form of bytes of a tensor, from a chunk's start on; all chunks are
    /// whole but the tensor's last.
    pub(super) fn seal(
        &self,
        name: &str,
        first: u64,
        to_end: bool,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) {
        let cipher = self.key.tensor(&self.block.salt(), name);
        let chunks = bytes.len().div_ceil(SEALED_CHUNK);
        out.reserve(bytes.len() + chunks * TAG_LEN);
        for (number, chunk) in (first..).zip(bytes.chunks(SEALED_CHUNK)) {
            cipher.seal(number, to_end && number + 1 == first + chunks as u64, chunk, out);
        }
    }

    /// Moves most of the metadata into a tensor of its own if metadata are to be encrypted.
    pub(super) fn hide(&self, metadata: &mut Metadata) -> Option<(TensorInfo, Vec<u8>)> {
        if !self.hide_metadata {
            return None;
        }

        let mut open = metadata.clone();
        open.retain(|key| OPEN.contains(&key));
        let mut hidden = mem::replace(metadata, open);
        hidden.retain(|key| !OPEN.contains(&key));
        let json = hidden.to_json();
        let shape = [json.len() as u64].into();
        Some((TensorInfo { name: keys::HIDDEN_TENSOR.into(), dtype: DType::U8, shape }, json))
    }
}
