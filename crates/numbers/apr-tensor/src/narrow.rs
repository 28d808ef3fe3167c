//! Rounding to narrower floats, and what it changes.

use crate::half_float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_f32_odd};
use crate::small_float::{F8_E4M3, F8_E5M2, f32_to_f8_e4m3, f32_to_f8_e5m2};
use crate::wire::Wire;

/// Numbers of values that a cast changed. A NaN stays a NaN and is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CastCounts {
    /// Finite values that became infinite or, in the 8-bit floats, the greatest value although they
    /// are beyond it.
    pub overflowed: u64,
    /// Values other than zero that became zero.
    pub flushed: u64,
    /// Number of values that changed, including the overflowed and the flushed.
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

/// A dtype that values are rounded to.
pub(crate) trait Narrow {
    /// One element, little-endian.
    type Stored: Copy;
    /// The nearest element and its value.
    fn round(value: f64) -> (Self::Stored, f32);

    /// Returns `true` if a rounded value exceeds the dtype's finite values.
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

/// Rounds `stored` into `rounded`, which must be as long: the loop that kernels compile for their
/// processors.
#[inline(always)]
pub(crate) fn narrow_anywhere<W: Wire, N: Narrow>(
    stored: &[W::Stored],
    rounded: &mut [N::Stored],
) -> CastCounts {
    let (mut overflowed, mut flushed, mut inexact) = (0_u32, 0_u32, 0_u32);
    for (rounded, &stored) in rounded.iter_mut().zip(stored) {
        let exact: f64 = W::load(stored).into();
        let (bytes, value) = N::round(exact);
        let value = f64::from(value);
        *rounded = bytes;
        overflowed += u32::from(N::overflows(exact, value));
        flushed += u32::from((value == 0.0) & (exact != 0.0));
        inexact += u32::from((value != exact) & !exact.is_nan());
    }
    CastCounts { overflowed: overflowed.into(), flushed: flushed.into(), inexact: inexact.into() }
}
