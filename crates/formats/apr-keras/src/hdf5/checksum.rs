//! Checksums of structures: Bob Jenkins' `lookup3` over the bytes before them.

use apr_core::{Error, Result};

/// Bytes of a checksum.
pub(crate) const LEN: usize = 4;

/// Splits the checksum off the end of a structure that was read from `at`, and compares it.
///
/// # Errors
/// E002 where the structure is shorter than a checksum, E004 where the bytes are others.
pub(crate) fn checked(mut structure: Vec<u8>, at: u64) -> Result<Vec<u8>> {
    let len = structure.len().checked_sub(LEN);
    let len = len.ok_or_else(|| Error::corrupt("an HDF5 structure has no checksum").at(at))?;
    let stated = structure.split_off(len);
    compare(&structure, &stated, at)?;
    Ok(structure)
}

/// Compares a structure with its stated checksum.
///
/// # Errors
/// E004 where they differ.
pub(crate) fn compare(structure: &[u8], stated: &[u8], at: u64) -> Result<()> {
    if lookup3(structure).to_le_bytes()[..] == *stated {
        return Ok(());
    }
    Err(Error::checksum("the checksum of an HDF5 structure does not match its bytes").at(at))
}

/// Returns `hashlittle` of the bytes, with an initial value of 0.
fn lookup3(bytes: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    let mut state = [start; 3];
    // The last block, whole or not, is mixed another way; without bytes, nothing is.
    let last = bytes.len().saturating_sub(1) / 12 * 12;
    let (whole, rest) = bytes.split_at(last);
    for block in whole.chunks_exact(12) {
        add(&mut state, block);
        mix(&mut state);
    }
    if !rest.is_empty() {
        add(&mut state, rest);
        finish(&mut state);
    }
    state[2]
}

/// Adds up to twelve bytes, as little-endian words that are filled up with zeros.
fn add(state: &mut [u32; 3], block: &[u8]) {
    for (at, &byte) in block.iter().enumerate() {
        state[at / 4] = state[at / 4].wrapping_add(u32::from(byte) << (8 * (at % 4)));
    }
}

fn mix([a, b, c]: &mut [u32; 3]) {
    let step = |x: &mut u32, y: u32, z: &mut u32, bits| {
        *x = x.wrapping_sub(*z) ^ z.rotate_left(bits);
        *z = z.wrapping_add(y);
    };
    step(a, *b, c, 4);
    step(b, *c, a, 6);
    step(c, *a, b, 8);
    step(a, *b, c, 16);
    step(b, *c, a, 19);
    step(c, *a, b, 4);
}

fn finish([a, b, c]: &mut [u32; 3]) {
    let step = |x: &mut u32, y: u32, bits| *x = (*x ^ y).wrapping_sub(y.rotate_left(bits));
    step(c, *b, 14);
    step(a, *c, 11);
    step(b, *a, 25);
    step(c, *b, 16);
    step(a, *c, 4);
    step(b, *a, 14);
    step(c, *b, 24);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_equal_those_of_lookup3() {
        // From the self-test of the reference, lookup3.c (driver5).
        assert_eq!(lookup3(b""), 0xdead_beef);
        assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
    }

    #[test]
    fn a_changed_byte_is_an_error_of_the_checksum() {
        let sound =
            [&b"OCHK and what follows"[..], &lookup3(b"OCHK and what follows").to_le_bytes()];
        let sound = sound.concat();
        assert!(checked(sound.clone(), 0).is_ok());
        for at in 0..sound.len() {
            let mut changed = sound.clone();
            changed[at] ^= 4;
            let error = checked(changed, 7).expect_err("another byte");
            assert_eq!((error.code(), error.offset()), (apr_core::Code::Checksum, Some(7)));
        }
        assert!(checked(vec![1, 2], 0).is_err());
    }
}
