//! Exact decoding of dtypes whose elements stand for themselves.
//!
//! Elements narrower than a byte are packed from the lowest bits up. `f4_e2m1`: element 0 is the
//! low nibble of byte 0, element 1 the high one. `f6_*`: four elements are one little-endian
//! integer of 24 bits, element 0 in its lowest 6.

use alloc::vec::Vec;

use apr_core::{DType, DTypeKind};

use crate::wire::{Real, Wire};
use crate::{kernel, small_float};

/// Returns `true` if this module decodes a dtype: all without blocks or rows with scales.
#[must_use]
pub const fn is_decodable(dtype: DType) -> bool {
    !matches!(dtype.kind(), DTypeKind::Quantized)
}

/// The number of bytes by which passes cut a tensor so that no element and no packed group is
/// split: [`apr_core::digest::CHUNK_LEN`], or three quarters of it for the 6-bit floats.
///
/// Quantized dtypes, which passes only copy, are cut at the same length without regard to their
/// blocks.
#[must_use]
pub const fn chunk_len(dtype: DType) -> usize {
    match dtype {
        DType::F6_E2M3 | DType::F6_E3M2 => apr_core::digest::CHUNK_LEN / 4 * 3,
        _ => apr_core::digest::CHUNK_LEN,
    }
}

/// Bytes of `elements` elements, a multiple of 4, of a decodable dtype.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a block of a decodable dtype has at most 8 bytes"
)]
pub(crate) const fn len_of(dtype: DType, elements: usize) -> usize {
    elements / dtype.block_len() as usize * dtype.block_bytes() as usize
}

/// Replaces the contents of `out` by the elements in `bytes`, exactly.
///
/// Takes the dtypes whose every value is an `f32`: `f32`, `f16`, `bf16`, the floats of 8, 6 and 4
/// bits, `i8`, `u8`, `i16`, `u16`, `bool` (any byte but 0 is 1) and `c64` (real and imaginary parts
/// in turn). Bytes after the last whole element or packed group are ignored.
///
/// # Panics
///
/// For all other dtypes.
///
/// ```
/// use apr_core::DType;
/// use apr_tensor::element::widen_f32;
///
/// let mut out = Vec::new();
/// widen_f32(DType::F8_E4M3, &[0x38, 0x7e, 0x80], &mut out);
/// assert_eq!(out, [1.0, 448.0, -0.0]);
/// widen_f32(DType::F4_E2M1, &[0x21], &mut out);
/// assert_eq!(out, [0.5, 1.0]);
/// ```
pub fn widen_f32(dtype: DType, bytes: &[u8], out: &mut Vec<f32>) {
    if dtype == DType::F16 {
        let stored = bytes.as_chunks().0;
        out.resize(stored.len(), 0.0);
        kernel::widen_f16(stored, out);
        return;
    }
    with_f32_wire!(dtype, W => widen::<W, f32>(bytes.as_chunks().0, out), {
        assert!(unpack(dtype, bytes, out), "elements of dtype {dtype} are not exact in f32");
    });
}

/// Replaces the contents of `out` by the elements in `bytes`, exactly but for `i64` and `u64`,
/// which are rounded to nearest even beyond 2^53.
///
/// Takes every dtype that [`is_decodable`]; see [`widen_f32`].
///
/// # Panics
///
/// For quantized dtypes.
///
/// ```
/// use apr_core::DType;
/// use apr_tensor::element::widen_f64;
///
/// let mut out = Vec::new();
/// widen_f64(DType::I16, &[0xff, 0xff, 0x00, 0x01], &mut out);
/// assert_eq!(out, [-1.0, 256.0]);
/// ```
pub fn widen_f64(dtype: DType, bytes: &[u8], out: &mut Vec<f64>) {
    with_f64_wire!(dtype, W => widen::<W, f64>(bytes.as_chunks().0, out), {
        with_f32_wire!(dtype, W => widen::<W, f64>(bytes.as_chunks().0, out), {
            assert!(unpack(dtype, bytes, out), "elements of dtype {dtype} need their blocks' \
                scales");
        });
    });
}

fn widen<W: Wire<Value: Into<R>>, R: Real>(stored: &[W::Stored], out: &mut Vec<R>) {
    // Passes come with chunks of one length: then this neither allocates nor fills.
    out.resize(stored.len(), R::ZERO);
    kernel::widen::<W, R>(stored, out);
}

/// Decodes dtypes with elements narrower than a byte; false for others.
fn unpack<R: From<f32>>(dtype: DType, bytes: &[u8], out: &mut Vec<R>) -> bool {
    let six_bits = |table: &'static [f32; 64]| {
        bytes.as_chunks::<3>().0.iter().flat_map(move |&[a, b, c]| {
            let group = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
            [0, 6, 12, 18].map(|shift| table[group >> shift & 63].into())
        })
    };

    out.clear();
    match dtype {
        DType::F6_E2M3 => out.extend(six_bits(&small_float::F6_E2M3)),
        DType::F6_E3M2 => out.extend(six_bits(&small_float::F6_E3M2)),
        DType::F4_E2M1 => out.extend(bytes.iter().flat_map(|&byte| {
            [byte & 15, byte >> 4].map(|code| small_float::F4_E2M1[usize::from(code)].into())
        })),
        _ => return false,
    }

    true
}
