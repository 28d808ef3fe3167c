//! Casts between floating-point precisions.

use alloc::vec::Vec;

use apr_core::DType;

use crate::half_float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_f32_odd};
use crate::kernel;
use crate::wire::{self, Wire};

/// What a cast changed. A NaN stays a NaN and is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CastCounts {
    /// Finite values that became infinite.
    pub overflowed: u64,
    /// Values other than zero that became zero.
    pub flushed: u64,
    /// Values that are not equal to what they were, including the overflowed and the flushed.
    pub inexact: u64,
}

impl CastCounts {
    /// Adds the counts of another part of the tensor.
    pub fn merge(&mut self, other: Self) {
        self.overflowed += other.overflowed;
        self.flushed += other.flushed;
        self.inexact += other.inexact;
    }
}

/// Whether [`cast_float`] takes a pair: from `f64`, `f32`, `f16`, `bf16` or an 8-bit float, to `f32`, `f16` or `bf16`.
#[must_use]
pub const fn can_cast(from: DType, to: DType) -> bool {
    let eight_bits =
        matches!(from, DType::F8_E4M3 | DType::F8_E5M2 | DType::F8_E4M3FNUZ | DType::F8_E5M2FNUZ | DType::F8_E8M0);
    (from.is_float() || eight_bits) && matches!(to, DType::F32 | DType::F16 | DType::BF16)
}

/// Replaces the contents of `out` by the elements in `bytes`, each rounded once, to nearest, ties to even.
///
/// Values too large become infinite, values too small become zero (IEEE 754-2019, section 4.3.1). Input and output are
/// little-endian; bytes after the last whole element are ignored. Equal dtypes are copied.
///
/// # Panics
///
/// If the pair is not one that [`can_cast`].
///
/// ```
/// use apr_core::DType;
/// use apr_tensor::cast::cast_float;
///
/// let bytes: Vec<u8> = [1.0_f32, 1e-30, 1e30].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let mut out = Vec::new();
/// let counts = cast_float(DType::F32, DType::F16, &bytes, &mut out);
/// assert_eq!(out, [0x00, 0x3c, 0x00, 0x00, 0x00, 0x7c]);
/// assert_eq!((counts.overflowed, counts.flushed, counts.inexact), (1, 1, 2));
/// ```
pub fn cast_float(from: DType, to: DType, bytes: &[u8], out: &mut Vec<u8>) -> CastCounts {
    assert!(can_cast(from, to), "there is no cast from {from} to {to}");
    match to {
        _ if from == to => {
            let whole = bytes.len() - bytes.len() % crate::element::len_of(from, 1);
            out.clear();
            out.extend_from_slice(&bytes[..whole]);
            CastCounts::default()
        }
        DType::F32 => cast_to::<ToF32, 4>(from, bytes, out),
        DType::F16 => cast_to::<ToF16, 2>(from, bytes, out),
        _ => cast_to::<ToBf16, 2>(from, bytes, out),
    }
}

fn cast_to<N: Narrow<Stored = [u8; B]>, const B: usize>(from: DType, bytes: &[u8], out: &mut Vec<u8>) -> CastCounts {
    with_f32_wire!(from, W => cast::<W, N, B>(bytes.as_chunks().0, out), {
        cast::<wire::F64, N, B>(bytes.as_chunks().0, out)
    })
}

fn cast<W: Wire, N: Narrow<Stored = [u8; B]>, const B: usize>(stored: &[W::Stored], out: &mut Vec<u8>) -> CastCounts {
    // Passes come with chunks of one length: then this neither allocates nor fills.
    out.resize(stored.len() * B, 0);
    let mut counts = CastCounts::default();
    for (stored, rounded) in stored.chunks(kernel::BLOCK).zip(out.as_chunks_mut().0.chunks_mut(kernel::BLOCK)) {
        counts.merge(kernel::narrow::<W, N>(stored, rounded));
    }
    counts
}

/// A dtype that values are rounded to.
pub(crate) trait Narrow {
    /// One element, little-endian.
    type Stored: Copy;
    /// The nearest element and its value.
    fn round(value: f64) -> (Self::Stored, f32);
}

pub(crate) struct ToF32;
pub(crate) struct ToF16;
pub(crate) struct ToBf16;

impl Narrow for ToF32 {
    type Stored = [u8; 4];

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    fn round(value: f64) -> ([u8; 4], f32) {
        let nearest = value as f32;
        (nearest.to_le_bytes(), nearest)
    }
}

impl Narrow for ToF16 {
    type Stored = [u8; 2];

    #[inline(always)]
    fn round(value: f64) -> ([u8; 2], f32) {
        let bits = f32_to_f16(f64_to_f32_odd(value));
        (bits.to_le_bytes(), f16_to_f32(bits))
    }
}

impl Narrow for ToBf16 {
    type Stored = [u8; 2];

    #[inline(always)]
    fn round(value: f64) -> ([u8; 2], f32) {
        let bits = f32_to_bf16(f64_to_f32_odd(value));
        (bits.to_le_bytes(), bf16_to_f32(bits))
    }
}
