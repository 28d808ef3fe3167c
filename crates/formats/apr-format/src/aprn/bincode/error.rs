//! Why a payload can't be written or read.

use alloc::string::{String, ToString};
use core::fmt;

/// An error in a value or its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadError(pub(super) String);

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for PayloadError {}

impl serde::ser::Error for PayloadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl serde::de::Error for PayloadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}
