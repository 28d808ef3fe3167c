//! What a pass tells whoever waits for it.

/// Hears how far a pass is.
pub trait Progress {
    /// `bytes` more are done.
    fn advance(&self, bytes: u64);
}

/// Nobody listens.
impl Progress for () {
    fn advance(&self, _bytes: u64) {}
}
