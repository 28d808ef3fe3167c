//! Keys, encryption, signatures and licences, against published vectors and against keys that
//! Python and openssl made.
#![cfg(all(feature = "encryption", feature = "signing"))]

mod blocks;
mod chunks;
mod keys;
mod vectors;

use apr_core::{Code, Result};
use apr_testkit::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes from hex.
fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| {
        char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).expect("hex")
    };
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn array<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().expect("a test vector of the right length")
}

/// The code a call failed with.
fn code<T>(result: Result<T>) -> Code {
    result.err().expect("it should fail").code()
}

/// Bytes that differ from each other, in place of random ones.
fn counted() -> impl FnMut(&mut [u8]) -> Result<()> {
    let mut next = 0_u8;
    move |bytes: &mut [u8]| {
        bytes.fill_with(|| {
            next = next.wrapping_mul(5).wrapping_add(131);
            next
        });
        Ok(())
    }
}
