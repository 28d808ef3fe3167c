//! What a writer is asked for.

use alloc::string::String;
use alloc::vec::Vec;

use apr_core::StoredForm;

use super::compression::Choice;
use super::encrypt::Encrypt;
use super::signing::{SigningKey, signatures_len};

/// Maximum length in bytes of the front of a file with the STREAMING flag (`docs/format/apr2.md`,
/// "Header").
pub const STREAMING_FRONT: u32 = 8 << 20;

/// Options of the file layout.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Start tensors at multiples of 32 bytes as GGUF does, instead of 64.
    pub align_32: bool,
    /// The file is one of several that a manifest names.
    pub sharded: bool,
    /// Tensors are stored in the order of their first use. The flag is set if the front is within
    /// [`STREAMING_FRONT`].
    pub streaming: bool,
    /// Name of the file in the layout.
    pub file_name: String,
    /// Stored form of each tensor whose bytes arrive in that form; empty for none. They are stored
    /// unchanged, or compressed if the form is only a layout.
    pub forms: Vec<Option<StoredForm>>,
    /// Compress the other tensors.
    pub compression: Option<Choice>,
    /// Encrypt all tensors.
    pub encryption: Option<Encrypt>,
    /// Sign with each of these.
    pub signers: Vec<SigningKey>,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            align_32: false,
            file_name: "model.apr".into(),
            sharded: false,
            streaming: false,
            forms: Vec::new(),
            compression: None,
            encryption: None,
            signers: Vec::new(),
        }
    }
}

impl WriteOptions {
    /// Returns `true` if tensors are to be compressed.
    #[must_use]
    pub fn compresses(&self) -> bool {
        self.compression.is_some()
    }

    /// Returns `true` if tensors are to be encrypted.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        self.encryption.is_some()
    }

    /// Returns `true` if the file is to be signed.
    #[must_use]
    pub fn signs(&self) -> bool {
        !self.signers.is_empty()
    }

    /// Returns `true` if tensors are to be compressed, encrypted or signed.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.compresses() || self.encrypts() || self.signs()
    }

    /// Returns `true` if metadata are to be encrypted.
    pub(super) fn hides_metadata(&self) -> bool {
        self.encryption.as_ref().is_some_and(Encrypt::hides_metadata)
    }

    /// Bytes of the SIGN block; 0 without signers.
    pub(super) fn signatures_len(&self) -> u64 {
        if self.signs() { signatures_len(self.signers.len()) } else { 0 }
    }
}
