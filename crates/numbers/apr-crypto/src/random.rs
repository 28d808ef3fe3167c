//! Where random bytes come from: the caller, since this crate knows no operating system.

use apr_core::Result;

/// A source of unpredictable random bytes. Any closure with this signature implements it.
pub trait Random {
    /// Fills `bytes` with random bytes.
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
