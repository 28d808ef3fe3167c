//! What opens a protected file.

use alloc::format;
use alloc::vec::Vec;

use apr_core::{ByteSource, Code, Error, Result};

use super::container::Container;
use super::header::Flags;
use super::pack::unpack;
use super::{Secret, seal};

/// Keys for encrypted and signed files.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// The password of an encrypted payload.
    pub password: Option<Secret>,
    /// The X25519 secret key of a recipient, 32 bytes.
    pub identity: Option<Secret>,
    /// Ed25519 public keys. If there are any, only a file signed by one of them is opened.
    ///
    /// Without them, a signature is checked against the key in the file itself. That proves that
    /// the file is unchanged, but not who signed it.
    pub trusted_keys: Vec<[u8; 32]>,
}

impl LoadOptions {
    /// Returns `true` if there is an identity or a password to decrypt with.
    pub(super) fn can_decrypt(&self) -> bool {
        self.password.is_some() || self.identity.is_some()
    }

    /// Verifies the signature of the file.
    ///
    /// # Errors
    /// E006 when no trusted key signed it, or the signature is not one of these bytes.
    pub(super) fn check_signature(
        &self,
        container: &Container,
        source: &dyn ByteSource,
    ) -> Result<()> {
        let trusted = &self.trusted_keys;
        let at = container.payload.end;
        let Some((signature, key)) = &container.signature else {
            let unsigned = || Error::new(Code::Signature, "the file is not signed").at(at);
            return if trusted.is_empty() { Ok(()) } else { Err(unsigned()) };
        };

        // Without the codec a signature can't be checked; only who asked for it is told.
        if trusted.is_empty() && cfg!(not(feature = "signing")) {
            return Ok(());
        }

        if !trusted.is_empty() && !trusted.contains(key) {
            let message = format!(
                "the file is signed by {}, which is not a trusted key",
                base16ct::lower::encode_string(key)
            );
            return Err(Error::new(Code::Signature, message).at(at));
        }

        seal::verify(&container.read_signed(source)?, signature, key).map_err(|error| error.at(at))
    }

    /// The payload, decrypted and unpacked. The checksum must have been checked before.
    ///
    /// # Errors
    /// E002 when it does not unpack to what the header says, E003 for what this build leaves out,
    /// E005 without the right key.
    pub(super) fn open_payload(
        &self,
        container: &Container,
        source: &dyn ByteSource,
    ) -> Result<Vec<u8>> {
        let stored = container.read_payload(source)?;
        let header = &container.header;
        let packed = match header.flags.contains(Flags::ENCRYPTED) {
            true => self.decrypt(&stored).map_err(|error| error.at(container.payload.start))?,
            false => stored,
        };
        unpack(packed, header.compression, header.uncompressed_size)
    }

    /// Decrypts a payload. The file does not state which kind of key it requires. The identity is
    /// tried before the password, because it is never a guess.
    fn decrypt(&self, stored: &[u8]) -> Result<Vec<u8>> {
        match (&self.identity, &self.password) {
            (Some(identity), Some(password)) => seal::open_for_identity(stored, identity)
                .or_else(|_| seal::open_with_password(stored, password)),
            (Some(identity), None) => seal::open_for_identity(stored, identity),
            (None, Some(password)) => seal::open_with_password(stored, password),
            (None, None) => Err(locked()),
        }
    }
}

/// E005 for an encrypted payload and no key.
pub(super) fn locked() -> Error {
    Error::new(Code::Decrypt, "the payload is encrypted, and no password or secret key was given")
}
