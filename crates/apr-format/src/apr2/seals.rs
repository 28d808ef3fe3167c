//! Signatures and licence of a file that is changed.

use alloc::vec::Vec;

/// SIGN and LICN block, how many signatures are in them, and how many and whether a licence are
/// left out.
pub(super) struct Seals {
    pub(super) blocks: Vec<u8>,
    pub(super) signatures: usize,
    pub(super) dropped_signatures: usize,
    pub(super) dropped_licence: bool,
}
