//! Why a typed model does not load (`docs/format/older.md`, B).

use core::fmt;

use apr_core::{Code, Error};

/// Reason for rejecting a model (`docs/format/older.md`, B).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// Not APRN, parts missing, or a payload that is not of the requested type: E001, E002.
    InvalidFormat,
    /// The checksum does not match the bytes; the payload was not examined: E004.
    ChecksumMismatch,
    /// No trusted key signed these bytes: E006.
    SignatureInvalid,
    /// No key, or not the right one: E005.
    DecryptionFailed,
    /// A version or feature that this build does not read: E003.
    UnsupportedVersion,
    /// The file holds a model of another type: E001.
    ModelTypeMismatch,
    /// Reading failed, or a limit was met: E007, E008.
    Other,
}

/// A signal, and the error with its code and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Andon {
    signal: Signal,
    error: Error,
}

impl Andon {
    pub(super) fn model_type_mismatch(message: alloc::string::String) -> Self {
        Self { signal: Signal::ModelTypeMismatch, error: Error::format(message).at(6) }
    }

    /// Returns the signal.
    #[must_use]
    pub const fn signal(&self) -> Signal {
        self.signal
    }

    /// Returns the error.
    #[must_use]
    pub const fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the error without the signal.
    #[must_use]
    pub fn into_error(self) -> Error {
        self.error
    }

    /// Adds the file's name to the error.
    #[must_use]
    pub fn in_file(self, file: impl fmt::Display) -> Self {
        Self { error: self.error.in_file(file), ..self }
    }
}

impl From<Error> for Andon {
    fn from(error: Error) -> Self {
        let signal = match error.code() {
            Code::Format | Code::Corrupt => Signal::InvalidFormat,
            Code::Version => Signal::UnsupportedVersion,
            Code::Checksum => Signal::ChecksumMismatch,
            Code::Decrypt => Signal::DecryptionFailed,
            Code::Signature => Signal::SignatureInvalid,
            _ => Signal::Other,
        };
        Self { signal, error }
    }
}

impl fmt::Display for Andon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl core::error::Error for Andon {}
