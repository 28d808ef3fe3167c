//! Casts between floating-point precisions.

use alloc::vec::Vec;

use apr_core::DType;

use crate::half_float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_f32_odd};
use crate::kernel;
use crate::small_float::{F8_E4M3, F8_E5M2, f32_to_f8_e4m3, f32_to_f8_e5m2};
use crate::wire::{self, Wire};

/// What a cast changed. A NaN stays a NaN and is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CastCounts {
    /// Finite values that became infinite or, in the 8-bit floats, the greatest value although they are beyond it.
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

/// Whether [`cast_float`] takes a pair: from `f64`, `f32`, `f16`, `bf16` or an 8-bit float, to `f32`, `f16`, `bf16`,
/// `f8_e4m3` or `f8_e5m2`.
#[must_use]
pub const fn can_cast(from: DType, to: DType) -> bool {
    let eight_bits =
        matches!(from, DType::F8_E4M3 | DType::F8_E5M2 | DType::F8_E4M3FNUZ | DType::F8_E5M2FNUZ | DType::F8_E8M0);
    (from.is_float() || eight_bits)
        && matches!(to, DType::F32 | DType::F16 | DType::BF16 | DType::F8_E4M3 | DType::F8_E5M2)
}

/// Replaces the contents of `out` by the elements in `bytes`, each rounded once, to nearest, ties to even.
///
/// Values too large become infinite, values too small become zero (IEEE 754-2019, section 4.3.1). The 8-bit floats
/// saturate instead (the saturating conversion of OFP8 1.0): finite values too large become ±448 or ±57344, which users
/// of weights expect rather than the NaN that `f8_e4m3` would have for them, and are counted as overflowed. An infinity
/// stays one in `f8_e5m2` and becomes NaN in `f8_e4m3`, so that damage stays visible. Input and output are
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
        DType::F16 => {
            with_f32_wire!(from, W => cast_by::<W, 2>(kernel::narrow_to_f16::<W>, bytes.as_chunks().0, out), {
                cast::<wire::F64, ToF16, 2>(bytes.as_chunks().0, out)
            })
        }
        DType::F8_E4M3 => cast_to::<ToF8E4m3, 1>(from, bytes, out),
        DType::F8_E5M2 => cast_to::<ToF8E5m2, 1>(from, bytes, out),
        _ => cast_to::<ToBf16, 2>(from, bytes, out),
    }
}

/// Replaces the contents of `out` by values rounded to a dtype that [`cast_float`] casts to.
///
/// # Panics
///
/// For a dtype that `f32` [can't be cast](can_cast) to.
pub fn cast_values(values: &[f32], to: DType, out: &mut Vec<u8>) -> CastCounts {
    assert!(can_cast(DType::F32, to), "there is no cast to {to}");
    match to {
        DType::F32 => cast::<wire::NativeF32, ToF32, 4>(values, out),
        DType::F16 => cast_by::<wire::NativeF32, 2>(kernel::narrow_to_f16::<wire::NativeF32>, values, out),
        DType::F8_E4M3 => cast::<wire::NativeF32, ToF8E4m3, 1>(values, out),
        DType::F8_E5M2 => cast::<wire::NativeF32, ToF8E5m2, 1>(values, out),
        _ => cast::<wire::NativeF32, ToBf16, 2>(values, out),
    }
}

fn cast_to<N: Narrow<Stored = [u8; B]>, const B: usize>(from: DType, bytes: &[u8], out: &mut Vec<u8>) -> CastCounts {
    with_f32_wire!(from, W => cast::<W, N, B>(bytes.as_chunks().0, out), {
        cast::<wire::F64, N, B>(bytes.as_chunks().0, out)
    })
}

fn cast<W: Wire, N: Narrow<Stored = [u8; B]>, const B: usize>(stored: &[W::Stored], out: &mut Vec<u8>) -> CastCounts {
    cast_by::<W, B>(kernel::narrow::<W, N>, stored, out)
}

fn cast_by<W: Wire, const B: usize>(
    narrow: impl Fn(&[W::Stored], &mut [[u8; B]]) -> CastCounts,
    stored: &[W::Stored],
    out: &mut Vec<u8>,
) -> CastCounts {
    // Passes come with chunks of one length: then this neither allocates nor fills.
    out.resize(stored.len() * B, 0);
    let mut counts = CastCounts::default();
    for (stored, rounded) in stored.chunks(kernel::BLOCK).zip(out.as_chunks_mut().0.chunks_mut(kernel::BLOCK)) {
        counts.merge(narrow(stored, rounded));
    }
    counts
}

/// A dtype that values are rounded to.
pub(crate) trait Narrow {
    /// One element, little-endian.
    type Stored: Copy;
    /// The nearest element and its value.
    fn round(value: f64) -> (Self::Stored, f32);

    /// Whether a value that was rounded is beyond the dtype's finite values.
    #[inline(always)]
    fn overflows(value: f64, rounded: f64) -> bool {
        rounded.is_infinite() & value.is_finite()
    }
}

pub(crate) struct ToF32;
pub(crate) struct ToF16;
pub(crate) struct ToBf16;
pub(crate) struct ToF8E4m3;
pub(crate) struct ToF8E5m2;

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

impl Narrow for ToF8E4m3 {
    type Stored = [u8; 1];

    #[inline(always)]
    fn round(value: f64) -> ([u8; 1], f32) {
        let code = f32_to_f8_e4m3(f64_to_f32_odd(value));
        ([code], F8_E4M3[usize::from(code)])
    }

    #[inline(always)]
    fn overflows(value: f64, _: f64) -> bool {
        value.is_finite() & (value.abs() > 464.0)
    }
}

impl Narrow for ToF8E5m2 {
    type Stored = [u8; 1];

    #[inline(always)]
    fn round(value: f64) -> ([u8; 1], f32) {
        let code = f32_to_f8_e5m2(f64_to_f32_odd(value));
        ([code], F8_E5M2[usize::from(code)])
    }

    #[inline(always)]
    fn overflows(value: f64, _: f64) -> bool {
        value.is_finite() & (value.abs() >= 61440.0)
    }
}
