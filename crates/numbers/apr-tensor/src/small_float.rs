//! Floats of 4 to 8 bits, decoded by tables that are computed from the layouts at compile time.
//!
//! Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0 for `f8_e4m3` and `f8_e5m2`; OCP
//! Microscaling Formats (MX) 1.0 for `f8_e8m0`, `f6_*` and `f4_e2m1`; Noune et al. 2022, "8-bit
//! Numerical Formats for Deep Neural Networks", for the `fnuz` variants. The names follow
//! `ml_dtypes`.

use crate::half_float::f16_to_f32;

/// Codes that are not numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// The largest exponent means infinity and NaN, as in IEEE 754.
    Ieee,
    /// Only the code of all ones (with either sign) is NaN; there is no infinity.
    AllOnesNan,
    /// The code of negative zero means NaN; there is neither infinity nor negative zero.
    NegativeZeroNan,
    /// Every code is a number.
    None,
}

impl Special {
    /// Returns `true` if a mantissa below `one` is a number for the largest exponent.
    const fn is_number(self, mantissa: usize, one: usize) -> bool {
        match self {
            Self::Ieee => false,
            Self::AllOnesNan => mantissa != one - 1,
            Self::NegativeZeroNan | Self::None => true,
        }
    }

    /// Returns the value of the largest exponent with a mantissa that is not a number.
    const fn beyond(self, mantissa: usize) -> f32 {
        match self {
            Self::Ieee if mantissa == 0 => f32::INFINITY,
            _ => f32::NAN,
        }
    }
}

/// OFP8 E4M3, largest value 448.
pub(crate) static F8_E4M3: [f32; 256] = table(4, 3, 7, Special::AllOnesNan);
/// OFP8 E5M2, largest value 57344.
pub(crate) static F8_E5M2: [f32; 256] = table(5, 2, 15, Special::Ieee);
/// Largest value 240.
pub(crate) static F8_E4M3FNUZ: [f32; 256] = table(4, 3, 8, Special::NegativeZeroNan);
/// Largest value 57344.
pub(crate) static F8_E5M2FNUZ: [f32; 256] = table(5, 2, 16, Special::NegativeZeroNan);
/// MX FP6 E2M3, largest value 7.5.
pub(crate) static F6_E2M3: [f32; 64] = table(2, 3, 1, Special::None);
/// MX FP6 E3M2, largest value 28.
pub(crate) static F6_E3M2: [f32; 64] = table(3, 2, 3, Special::None);
/// MX FP4 E2M1, largest value 6.
pub(crate) static F4_E2M1: [f32; 16] = table(2, 1, 1, Special::None);

/// The values of all codes of a float with its sign in the highest bit, then the exponent, then the
/// mantissa.
#[expect(clippy::cast_possible_truncation, reason = "a code has 8 bits at most")]
const fn table<const CODES: usize>(
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
) -> [f32; CODES] {
    let largest_exponent = (1 << exponent_bits) - 1;
    let unit = -bias - mantissa_bits as i32;
    let one = 1 << mantissa_bits;
    let sign = 1 << (exponent_bits + mantissa_bits);
    let mut values = [0.0; CODES];
    let mut code = 0;
    while code < CODES {
        let mantissa = code % one;
        let exponent = (code / one) as i32 % (largest_exponent + 1);
        let magnitude = if exponent == largest_exponent && !special.is_number(mantissa, one) {
            special.beyond(mantissa)
        } else if exponent == 0 {
            scaled(mantissa, 1 + unit)
        } else {
            scaled(one + mantissa, exponent + unit)
        };
        values[code] = if code >= sign && !magnitude.is_nan() { -magnitude } else { magnitude };
        code += 1;
    }

    if matches!(special, Special::NegativeZeroNan) {
        values[sign] = f32::NAN;
    }

    values
}

/// `significand * 2^exponent`, for powers of two that are normal in `f32`.
const fn scaled(significand: usize, exponent: i32) -> f32 {
    significand as f32 * f32::from_bits(((127 + exponent) as u32) << 23)
}

/// To nearest, ties to even; finite values beyond 448 become that, infinities and NaN become NaN.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the shifts leave 8 bits")]
pub(crate) fn f32_to_f8_e4m3(value: f32) -> u8 {
    // Adding 2^14 to a value below 2^-6 leaves it in the sum's low bits in units of 2^-9, rounded
    // by the addition.
    const SUBNORMAL: f32 = 16384.0;

    let magnitude = value.to_bits() & 0x7fff_ffff;

    // f32's exponent bias exceeds this one's by 120, and its mantissa has 20 bits more.
    let odd = magnitude >> 20 & 1;
    let normal = magnitude.wrapping_sub(120 << 23).wrapping_add(0x0007_ffff + odd) >> 20;
    let subnormal =
        (f32::from_bits(magnitude) + SUBNORMAL).to_bits().wrapping_sub(SUBNORMAL.to_bits());
    let rounded = if magnitude < 121 << 23 { subnormal } else { normal };

    // What would be 480 has the code of NaN.
    let bounded = if magnitude > 448_f32.to_bits() { 0x7e } else { rounded };
    let code = if magnitude >= f32::INFINITY.to_bits() { 0x7f } else { bounded };
    (value.to_bits() >> 24 & 0x80 | code) as u8
}

/// Rounds to nearest, ties to even.
///
/// Finite values beyond 57344 become 57344, infinities stay infinite, and a NaN stays NaN.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the shifts leave 8 bits")]
pub(crate) fn f32_to_f8_e5m2(value: f32) -> u8 {
    // Adding 2^7 to a value below 2^-14 leaves it in the sum's low bits in units of 2^-16, rounded
    // by the addition.
    const SUBNORMAL: f32 = 128.0;

    let magnitude = value.to_bits() & 0x7fff_ffff;

    // f32's exponent bias exceeds this one's by 112, and its mantissa has 21 bits more.
    let odd = magnitude >> 21 & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0x000f_ffff + odd) >> 21;
    let subnormal =
        (f32::from_bits(magnitude) + SUBNORMAL).to_bits().wrapping_sub(SUBNORMAL.to_bits());
    let rounded = if magnitude < 113 << 23 { subnormal } else { normal };
    let bounded = if magnitude > 57344_f32.to_bits() { 0x7b } else { rounded };
    let infinity = f32::INFINITY.to_bits();
    let special = if magnitude > infinity { 0x7e } else { 0x7c };
    let code = if magnitude >= infinity { special } else { bounded };
    (value.to_bits() >> 24 & 0x80 | code) as u8
}

/// The value in [`F8_E4M3`], without a table, so that loops vectorise.
#[inline(always)]
pub(crate) fn f8_e4m3_to_f32(code: u8) -> f32 {
    // f32's exponent bias exceeds this one's by 120, and its mantissa has 20 bits more.
    const REBIAS: f32 = f32::from_bits((127 + 120) << 23);
    let magnitude = u32::from(code & 0x7f);
    let value = f32::from_bits(magnitude << 20) * REBIAS;
    let signed = f32::from_bits(value.to_bits() | u32::from(code & 0x80) << 24);
    if magnitude == 0x7f { f32::NAN } else { signed }
}

/// The value in [`F8_E5M2`], the upper half of half precision; a NaN is the one that table has.
#[inline(always)]
pub(crate) fn f8_e5m2_to_f32(code: u8) -> f32 {
    let value = f16_to_f32(u16::from(code) << 8);
    if code & 0x7f > 0x7c { f32::NAN } else { value }
}

/// MX scale: `2^(code - 127)`, NaN for 255. The smallest is subnormal in `f32`.
#[inline(always)]
pub(crate) const fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits((code as u32) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_without_a_table_have_the_bits_of_the_tables() {
        for code in 0..=u8::MAX {
            let at = usize::from(code);
            assert_eq!(f8_e4m3_to_f32(code).to_bits(), F8_E4M3[at].to_bits(), "{code:#x}");
            assert_eq!(f8_e5m2_to_f32(code).to_bits(), F8_E5M2[at].to_bits(), "{code:#x}");
        }
    }
}
