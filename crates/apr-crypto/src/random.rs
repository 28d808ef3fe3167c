//! Where random bytes come from: the caller, since this crate knows no operating system.

use apr_core::Result;

/// A source of random bytes that nobody can predict; any closure of this shape is one.
pub trait Random {
    /// Fills `bytes`.
    ///
    /// # Errors
    /// E007 when the system has no randomness to give.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()>;
}

impl<F: FnMut(&mut [u8]) -> Result<()>> Random for F {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self(bytes)
    }
}
