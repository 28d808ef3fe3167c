//! A build that reads Zstandard and does not write it.

use alloc::vec::Vec;

pub(crate) fn encode(_bytes: &[u8], _level: i32) -> Option<Vec<u8>> {
    None
}
