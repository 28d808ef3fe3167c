//! Conversions between 16-bit floats, `f32` and `f64`, without branches so that loops over them
//! vectorise.
//!
//! The `half` crate's slice conversions need aligned input and F16C instructions to be fast. Its
//! scalar conversions from `f64` go through `f32` (to f16) or drop the lower 32 bits (to bf16),
//! either of which can miss the nearest value. It serves the tests as a second opinion.

/// Returns an `f16` as `f32`. Exact; a NaN keeps its sign and payload.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    // f32's exponent bias exceeds f16's by 112.
    const REBIAS: u32 = 112 << 23;
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let normal = (magnitude << 13) + REBIAS;
    // The largest exponent becomes f32's largest: infinity stays infinity.
    let special = normal + REBIAS;
    let subnormal = (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let widened = if magnitude >= 0x7c00 { special } else { normal };
    f32::from_bits(sign | if magnitude < 0x0400 { subnormal } else { widened })
}

/// Returns a `bf16` as `f32`. Exact; a NaN keeps its sign and payload.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest `f16`, ties to even. A NaN keeps its sign and becomes quiet.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the shifts leave 16 bits")]
pub fn f32_to_f16(value: f32) -> u16 {
    // Adding 0.5 to a value below 2^-14 leaves it in the sum's low bits in units of 2^-24, rounded
    // by the addition.
    const SUBNORMAL: f32 = 0.5;

    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0x0fff + odd) >> 13;
    let subnormal =
        (f32::from_bits(magnitude) + SUBNORMAL).to_bits().wrapping_sub(SUBNORMAL.to_bits());
    let rounded = if magnitude < 113 << 23 { subnormal } else { normal };

    // From 65520 = 2^16 - 2^4 on, the nearest value would be 2^16.
    let bounded = if magnitude >= 65520_f32.to_bits() { 0x7c00 } else { rounded };
    let nan = 0x7e00 | (magnitude >> 13 & 0x03ff);
    sign | (if magnitude > f32::INFINITY.to_bits() { nan } else { bounded }) as u16
}

/// Rounds to the nearest half-precision value, ties to even, and returns it in single precision.
///
/// NaN stays NaN.
#[inline(always)]
pub fn round_to_f16(value: f32) -> f32 {
    // Sums with 0.5 are in units of 2^-24, as halves below 2^-14 are.
    const SUBNORMAL: f32 = 0.5;

    let magnitude = value.to_bits() & 0x7fff_ffff;
    let odd = magnitude >> 13 & 1;
    let normal = f32::from_bits(magnitude.wrapping_add(0x0fff + odd) & !0x1fff);
    let magnitude = f32::from_bits(magnitude);
    let subnormal = (magnitude + SUBNORMAL) - SUBNORMAL;
    let rounded = if magnitude < f32::from_bits(113 << 23) { subnormal } else { normal };
    // From 65520 = 2^16 - 2^4 on, the nearest value would be 2^16. A NaN stays one in a sum.
    let bounded = if magnitude < 65520.0 { rounded } else { magnitude + f32::INFINITY };
    f32::from_bits(bounded.to_bits() | value.to_bits() & 0x8000_0000)
}

/// Rounds to the nearest `bf16`, ties to even. A NaN keeps its sign and becomes quiet.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd);
    let quiet = bits | 0x0040_0000;
    ((if value.is_nan() { quiet } else { rounded }) >> 16) as u16
}

/// Rounds to the nearest `bf16`, ties to even, and returns it in single precision.
///
/// NaN stays NaN.
#[inline(always)]
pub fn round_to_bf16(value: f32) -> f32 {
    bf16_to_f32(f32_to_bf16(value))
}

/// Truncated, with the last bit set if anything was cut off.
///
/// Rounding the result to at most 22 bits gives what rounding `value` itself would (Boldo and
/// Melquiond 2008), which rounding to nearest twice does not.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
pub(crate) fn f64_to_f32_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    let truncated = nearest.to_bits() - u32::from(back.abs() > value.abs());
    // NaN compares unequal in both ways, so it needs its own test.
    let inexact = (back != value) & !value.is_nan();
    f32::from_bits(truncated | u32::from(inexact))
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_16_bit_pattern_widens_as_in_half() {
        for bits in 0..=u16::MAX {
            for (ours, theirs) in [
                (f16_to_f32(bits), f16::from_bits(bits).to_f32_const()),
                (bf16_to_f32(bits), bf16::from_bits(bits).to_f32_const()),
            ] {
                assert!(
                    ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                    "{bits:#06x}"
                );
            }
        }
    }

    #[test]
    fn f32_narrows_as_in_half() {
        // Every exponent and sign with many mantissas, those around ties among them.
        for upper in 0..=u16::MAX {
            for lower in [
                0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xb000,
                0xffff,
            ] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                let (half, brain) = (f16::from_f32_const(value), bf16::from_f32_const(value));
                assert_eq!(f32_to_f16(value), half.to_bits(), "{value:e}");
                assert_eq!(f32_to_bf16(value), brain.to_bits(), "{value:e}");
                let rounded = round_to_f16(value);
                let is_same = rounded.to_bits() == half.to_f32_const().to_bits();
                assert!(is_same || rounded.is_nan() && half.is_nan(), "{value:e}");
                let rounded = round_to_bf16(value);
                let is_same = rounded.to_bits() == brain.to_f32_const().to_bits();
                assert!(is_same || rounded.is_nan() && brain.is_nan(), "{value:e}");
            }
        }
    }

    #[test]
    fn truncation_of_f64_is_marked_in_the_last_bit() {
        for (value, odd) in [
            (1.0, 1.0_f32.to_bits()),
            (1.0 + f64::EPSILON, 1.0_f32.to_bits() + 1),
            (-1.0 - f64::EPSILON, (-1.0_f32).to_bits() + 1),
            (1.0 - f64::EPSILON, 1.0_f32.to_bits() - 1),
            (1e300, f32::MAX.to_bits()),
            (f64::INFINITY, f32::INFINITY.to_bits()),
            (1e-300, 1),
            (0.0, 0),
        ] {
            assert_eq!(f64_to_f32_odd(value).to_bits(), odd, "{value:e}");
        }
        assert!(f64_to_f32_odd(f64::NAN).is_nan());
    }
}
