//! Signatures and licence of a file that is changed.

use alloc::vec::Vec;

/// SIGN and LICN blocks, the number of signatures in them, and the signatures and licence that are
/// dropped.
pub(super) struct Seals {
    pub(super) blocks: Vec<u8>,
    pub(super) signatures: usize,
    pub(super) dropped_signatures: usize,
    pub(super) dropped_licence: bool,
}
