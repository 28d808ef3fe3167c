//! What a writer is asked for.

use alloc::string::String;
use alloc::vec::Vec;

use apr_core::StoredForm;

/// The front of a file with the STREAMING flag ends within so many bytes (`docs/format/apr2.md`,
/// "Header").
pub const STREAMING_FRONT: u32 = 8 << 20;

/// How to lay the file out.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Start tensors at multiples of 32 bytes as GGUF does, instead of 64.
    pub align_32: bool,
    /// The file is one of several that a manifest names.
    pub sharded: bool,
    /// The tensors come in the order of their first use; flagged as such where the front is within
    /// [`STREAMING_FRONT`].
    pub streaming: bool,
    /// Name of the file in the layout.
    pub file_name: String,
    /// The stored form of each tensor whose bytes come in that form, to be stored as they are;
    /// empty for none.
    pub forms: Vec<Option<StoredForm>>,
    /// Compress the other tensors.
    #[cfg(feature = "compression")]
    pub compression: Option<crate::codec::Choice>,
    /// Encrypt all tensors.
    #[cfg(feature = "encryption")]
    pub encryption: Option<Encrypt>,
    /// Sign with each of these.
    #[cfg(feature = "signing")]
    pub signers: Vec<crate::crypto::SigningKey>,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            align_32: false,
            file_name: "model.apr".into(),
            sharded: false,
            streaming: false,
            forms: Vec::new(),
            #[cfg(feature = "compression")]
            compression: None,
            #[cfg(feature = "encryption")]
            encryption: None,
            #[cfg(feature = "signing")]
            signers: Vec::new(),
        }
    }
}

impl WriteOptions {
    /// Whether tensors are to be compressed.
    #[must_use]
    pub fn compresses(&self) -> bool {
        #[cfg(feature = "compression")]
        return self.compression.is_some();
        #[cfg(not(feature = "compression"))]
        false
    }

    /// Whether tensors are to be encrypted.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        #[cfg(feature = "encryption")]
        return self.encryption.is_some();
        #[cfg(not(feature = "encryption"))]
        false
    }

    /// Whether the file is to be signed.
    #[must_use]
    pub fn signs(&self) -> bool {
        #[cfg(feature = "signing")]
        return !self.signers.is_empty();
        #[cfg(not(feature = "signing"))]
        false
    }

    /// Whether tensors are to be compressed, encrypted or signed.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.compresses() || self.encrypts() || self.signs()
    }

    /// Whether metadata are to be encrypted.
    pub(super) fn hides_metadata(&self) -> bool {
        #[cfg(feature = "encryption")]
        return self.encryption.as_ref().is_some_and(|with| with.hide_metadata);
        #[cfg(not(feature = "encryption"))]
        false
    }

    /// Bytes of the SIGN block; 0 without signers.
    pub(super) fn signatures_len(&self) -> u64 {
        #[cfg(feature = "signing")]
        if !self.signers.is_empty() {
            return crate::crypto::SignBlock::encoded_len(self.signers.len());
        }
        0
    }
}

/// How to encrypt a file: a random key, and the locks that hold it.
#[cfg(feature = "encryption")]
#[derive(Clone)]
pub struct Encrypt {
    /// The key's locks.
    pub block: crate::crypto::EncrBlock,
    /// The key that encrypts the tensors.
    pub key: crate::crypto::FileKey,
    /// Encrypt all metadata but the required keys, too.
    pub hide_metadata: bool,
}

#[cfg(feature = "encryption")]
impl core::fmt::Debug for Encrypt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Encrypt")
            .field("hide_metadata", &self.hide_metadata)
            .finish_non_exhaustive()
    }
}
