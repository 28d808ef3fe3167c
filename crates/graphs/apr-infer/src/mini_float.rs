//! Floats of 8 and 4 bits, by their layouts.
//!
//! Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0, OCP Microscaling Formats (MX) 1.0;
//! Noune et al. 2022 for the `fnuz` variants; what becomes of values that do not fit is ONNX's
//! table of `Cast`.

use apr_graph::ElementType;

/// Codes that are not numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// The largest exponent means infinity and NaN.
    Ieee,
    /// NaN with all bits set, no infinity.
    AllOnes,
    /// NaN in place of negative zero, no infinity.
    NegativeZero,
    /// Every code is a number.
    None,
}

/// A float with its sign in the highest bit, then the exponent, then the mantissa.
#[derive(Clone, Copy)]
pub(crate) struct MiniFloat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

impl MiniFloat {
    pub(crate) fn of(element: ElementType) -> Option<Self> {
        let of = |exponent_bits, mantissa_bits, bias, special| {
            Some(Self { exponent_bits, mantissa_bits, bias, special })
        };
        match element {
            ElementType::F8E4M3 => of(4, 3, 7, Special::AllOnes),
            ElementType::F8E4M3Fnuz => of(4, 3, 8, Special::NegativeZero),
            ElementType::F8E5M2 => of(5, 2, 15, Special::Ieee),
            ElementType::F8E5M2Fnuz => of(5, 2, 16, Special::NegativeZero),
            ElementType::F4E2M1 => of(2, 1, 1, Special::None),
            _ => None,
        }
    }

    fn sign(self) -> u8 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The code of the largest number.
    fn largest(self) -> u8 {
        match self.special {
            Special::Ieee => self.infinity() - 1,
            Special::AllOnes => self.sign() - 2,
            Special::NegativeZero | Special::None => self.sign() - 1,
        }
    }

    fn infinity(self) -> u8 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    fn nan(self) -> u8 {
        match self.special {
            Special::Ieee => self.infinity() | 1 << (self.mantissa_bits - 1),
            Special::AllOnes => self.sign() - 1,
            Special::NegativeZero => self.sign(),
            // There is none: what is not a number becomes negative zero.
            Special::None => self.sign(),
        }
    }

    /// The value of a code.
    pub(crate) fn decode(self, code: u8) -> f32 {
        let magnitude = code & (self.sign() - 1);
        let negative = code & self.sign() != 0;
        let is_nan = match self.special {
            Special::Ieee => magnitude > self.infinity(),
            Special::AllOnes => magnitude == self.sign() - 1,
            Special::NegativeZero => negative && magnitude == 0,
            Special::None => false,
        };

        if is_nan {
            return f32::NAN;
        }

        let value = if self.special == Special::Ieee && magnitude == self.infinity() {
            f32::INFINITY
        } else {
            self.magnitude(magnitude)
        };
        if negative { -value } else { value }
    }

    fn magnitude(self, code: u8) -> f32 {
        let one = 1 << self.mantissa_bits;
        let (exponent, mantissa) = (i32::from(code >> self.mantissa_bits), i32::from(code) % one);
        let (significand, exponent) =
            if exponent == 0 { (mantissa, 1) } else { (one + mantissa, exponent) };
        significand as f32 * power(exponent - self.bias - self.mantissa_bits as i32)
    }

    /// The nearest code, ties to even. Numbers beyond the largest become that one if `saturate`,
    /// else infinity or NaN.
    pub(crate) fn encode(self, value: f32, saturate: bool) -> u8 {
        if value.is_nan() {
            return self.nan();
        }
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        match self.nearest(value.abs()) {
            Some(code) => self.with_sign(sign, code),
            None if saturate || self.special == Special::None => sign | self.largest(),
            None if self.special == Special::Ieee => sign | self.infinity(),
            None => self.with_sign(sign, self.nan()),
        }
    }

    /// Returns the code nearest to a non-negative number, or `None` if the nearest would be one
    /// past the largest.
    fn nearest(self, magnitude: f32) -> Option<u8> {
        // Codes are in the order of their values, so the nearest is one of two neighbours.
        let code =
            (0..=self.largest()).rfind(|&code| self.magnitude(code) <= magnitude).unwrap_or(0);
        let below = magnitude - self.magnitude(code);
        let is_last = code == self.largest();

        // Past the largest, the next code would be as far away as the one before.
        let step = match is_last {
            true => self.magnitude(code) - self.magnitude(code - 1),
            false => self.magnitude(code + 1) - self.magnitude(code),
        };
        let rounds_up = below > step / 2.0 || below == step / 2.0 && code & 1 == 1;
        match rounds_up {
            false => Some(code),
            true if is_last => None,
            true => Some(code + 1),
        }
    }

    /// Adds the sign to a code. If negative zero means NaN, zero and NaN have no sign.
    fn with_sign(self, sign: u8, code: u8) -> u8 {
        match self.special {
            Special::NegativeZero if code == 0 || code == self.nan() => code,
            _ => sign | code,
        }
    }
}

fn power(exponent: i32) -> f32 {
    libm::ldexpf(1.0, exponent)
}

/// `2^(code - 127)`, NaN for 255.
pub(crate) fn decode_e8m0(code: u8) -> f32 {
    if code == 255 { f32::NAN } else { libm::ldexpf(1.0, i32::from(code) - 127) }
}

/// Rounding of a value between two powers of two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PowerRounding {
    Up,
    Down,
    Nearest,
}

/// Returns the code of the power of two that represents a positive value.
pub(crate) fn encode_e8m0(value: f32, saturate: bool, rounding: PowerRounding) -> u8 {
    let magnitude = value.abs();
    if value.is_nan() || magnitude.is_infinite() && !saturate {
        return 255;
    }
    if magnitude.is_infinite() {
        return 254;
    }
    // The code of a power is the exponent of its `f32`: both have the bias 127.
    let exponent = i32::from((magnitude.to_bits() >> 23) as u8);
    let mantissa = magnitude.to_bits() & 0x007f_ffff;
    let code = exponent + i32::from(rounding.goes_up(exponent == 0, mantissa));
    if code > 254 { if saturate { 254 } else { 255 } } else { code as u8 }
}

impl PowerRounding {
    /// Returns `true` if a mantissa is rounded up to the next power. Below the smallest normal
    /// float, code 0 is 2^-127, and half of the mantissa's range is below it.
    fn goes_up(self, is_subnormal: bool, mantissa: u32) -> bool {
        match (self, is_subnormal) {
            (Self::Up, false) => mantissa > 0,
            (Self::Up, true) => mantissa > 0x0040_0000,
            (Self::Down, _) => false,
            (Self::Nearest, true) => mantissa >= 0x0060_0000,
            (Self::Nearest, false) => mantissa >= 0x0040_0000,
        }
    }
}

#[cfg(test)]
mod tests {
    use apr_core::DType;
    use apr_tensor::cast::cast_values;
    use apr_tensor::element::widen_f32;

    use super::*;

    #[test]
    fn codes_match_the_decoders_of_files() {
        for (element, dtype) in [
            (ElementType::F8E4M3, DType::F8_E4M3),
            (ElementType::F8E4M3Fnuz, DType::F8_E4M3FNUZ),
            (ElementType::F8E5M2, DType::F8_E5M2),
            (ElementType::F8E5M2Fnuz, DType::F8_E5M2FNUZ),
        ] {
            let mini = MiniFloat::of(element).unwrap();
            let mut expected = Vec::new();
            widen_f32(dtype, &(0..=255).collect::<Vec<u8>>(), &mut expected);
            for code in 0..=255 {
                let (ours, theirs) = (mini.decode(code), expected[usize::from(code)]);
                assert!(
                    ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                    "{element} {code}"
                );
                if !ours.is_nan() && ours.is_finite() {
                    assert_eq!(mini.encode(ours, true), code, "{element} {ours}");
                }
            }
        }
    }

    #[test]
    fn values_round_as_other_casts_do() {
        let values: Vec<f32> = (0..2000)
            .map(|n| (n as f32 - 1000.0) * 0.37)
            .chain([449.0, 463.9, 464.0, 60000.0])
            .collect();
        for (element, dtype) in
            [(ElementType::F8E4M3, DType::F8_E4M3), (ElementType::F8E5M2, DType::F8_E5M2)]
        {
            let mut expected = Vec::new();
            cast_values(&values, dtype, &mut expected);
            let mini = MiniFloat::of(element).unwrap();
            let ours: Vec<u8> = values.iter().map(|value| mini.encode(*value, true)).collect();
            assert_eq!(ours, expected);
        }
    }

    #[test]
    fn powers_of_two_stand_for_themselves() {
        for code in 1..=254 {
            assert_eq!(encode_e8m0(decode_e8m0(code), true, PowerRounding::Nearest), code);
        }
    }
}
