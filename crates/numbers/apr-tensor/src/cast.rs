//! Casts between floating-point precisions.

use alloc::vec::Vec;

use apr_core::DType;

use crate::kernel;
pub use crate::narrow::CastCounts;
use crate::narrow::{Narrow, ToBf16, ToF8E4m3, ToF8E5m2, ToF16, ToF32};
use crate::wire::{self, Wire};

/// Returns `true` if [`cast_float`] supports a pair of dtypes.
///
/// It casts from `f64`, `f32`, `f16`, `bf16` or an 8-bit float, to `f32`, `f16`, `bf16`, `f8_e4m3`
/// or `f8_e5m2`.
#[must_use]
pub const fn can_cast(from: DType, to: DType) -> bool {
    (from.is_float() || matches!(from, DType::F8_E8M0))
        && matches!(to, DType::F32 | DType::F16 | DType::BF16 | DType::F8_E4M3 | DType::F8_E5M2)
}

/// Replaces the contents of `out` by the elements in `bytes`, each rounded once, to nearest, ties
/// to even.
///
/// Values too large become infinite, values too small become zero (IEEE 754-2019, section 4.3.1).
/// The 8-bit floats saturate instead (the saturating conversion of OFP8 1.0): finite values too
/// large become ±448 or ±57344, which users of weights expect rather than the NaN that `f8_e4m3`
/// would have for them, and are counted as overflowed. An infinity stays one in `f8_e5m2` and
/// becomes NaN in `f8_e4m3`, so that damage stays visible. Input and output are little-endian;
/// bytes after the last whole element are ignored. Equal dtypes are copied.
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
    assert!(can_cast(from, to), "no cast from {from} to {to}");
    match to {
        _ if from == to => {
            let whole = bytes.len() - bytes.len() % crate::element::len_of(from, 1);
            out.clear();
            out.extend_from_slice(&bytes[..whole]);
            CastCounts::default()
        }
        DType::F32 => cast_to::<ToF32, 4>(from, bytes, out),
        DType::F16 => {
            with_f32_wire!(
                from,
                W => cast_by::<W, 2>(kernel::narrow_to_f16::<W>, bytes.as_chunks().0, out),
                cast::<wire::F64, ToF16, 2>(bytes.as_chunks().0, out)
            )
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
    assert!(can_cast(DType::F32, to), "no cast to {to}");
    match to {
        DType::F32 => cast::<wire::NativeF32, ToF32, 4>(values, out),
        DType::F16 => {
            cast_by::<wire::NativeF32, 2>(kernel::narrow_to_f16::<wire::NativeF32>, values, out)
        }
        DType::F8_E4M3 => cast::<wire::NativeF32, ToF8E4m3, 1>(values, out),
        DType::F8_E5M2 => cast::<wire::NativeF32, ToF8E5m2, 1>(values, out),
        _ => cast::<wire::NativeF32, ToBf16, 2>(values, out),
    }
}

fn cast_to<N: Narrow<Stored = [u8; B]>, const B: usize>(
    from: DType,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> CastCounts {
    with_f32_wire!(from, W => cast::<W, N, B>(bytes.as_chunks().0, out), {
        cast::<wire::F64, N, B>(bytes.as_chunks().0, out)
    })
}

fn cast<W: Wire, N: Narrow<Stored = [u8; B]>, const B: usize>(
    stored: &[W::Stored],
    out: &mut Vec<u8>,
) -> CastCounts {
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
    for (stored, rounded) in
        stored.chunks(kernel::BLOCK).zip(out.as_chunks_mut().0.chunks_mut(kernel::BLOCK))
    {
        counts.merge(narrow(stored, rounded));
    }
    counts
}
