//! Floats of 8 and 4 bits, by their layouts.
//!
//! Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0, OCP Microscaling Formats (MX) 1.0; Noune et al. 2022 for the
//! `fnuz` variants; what becomes of values that do not fit is ONNX's table of `Cast`.

use apr_graph::ElementType;

/// Codes that are not numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// The largest exponent means infinity and NaN.
    Ieee,
    /// All ones mean NaN; there is no infinity.
    AllOnes,
    /// The code of negative zero means NaN; there is no infinity.
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
        let of =
            |exponent_bits, mantissa_bits, bias, special| Some(Self { exponent_bits, mantissa_bits, bias, special });
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
        let (significand, exponent) = if exponent == 0 { (mantissa, 1) } else { (one + mantissa, exponent) };
        significand as f32 * power(exponent - self.bias - self.mantissa_bits as i32)
    }

    /// The nearest code, ties to even. Numbers beyond the largest become that one if `saturate`, else infinity or NaN.
    pub(crate) fn encode(self, value: f32, saturate: bool) -> u8 {
        if value.is_nan() {
            return self.nan();
        }
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        let magnitude = value.abs();
        let beyond =
            if self.special == Special::Ieee { sign | self.infinity() } else { self.with_sign(sign, self.nan()) };
        let saturated = sign | self.largest();
        if magnitude.is_infinite() {
            return if saturate || self.special == Special::None { saturated } else { beyond };
        }
        // Codes are in the order of their values, so the nearest is found between two neighbours.
        let mut code = (0..=self.largest()).rfind(|&code| self.magnitude(code) <= magnitude).unwrap_or(0);
        if code == self.largest() {
            let step = self.magnitude(code) - self.magnitude(code - 1);
            let fits = magnitude - self.magnitude(code) < step / 2.0
                || magnitude - self.magnitude(code) == step / 2.0 && code & 1 == 0;
            return if fits || saturate || self.special == Special::None { saturated } else { beyond };
        }
        let (below, above) = (magnitude - self.magnitude(code), self.magnitude(code + 1) - magnitude);
        if above < below || above == below && code & 1 == 1 {
            code += 1;
        }
        self.with_sign(sign, code)
    }

    /// Where negative zero means NaN, zero has no sign, and neither has NaN.
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

/// How a value between two powers of two is rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PowerRounding {
    Up,
    Down,
    Nearest,
}

/// The power of two that stands for a positive value.
pub(crate) fn encode_e8m0(value: f32, saturate: bool, rounding: PowerRounding) -> u8 {
    let magnitude = value.abs();
    if value.is_nan() || magnitude.is_infinite() && !saturate {
        return 255;
    }
    if magnitude.is_infinite() {
        return 254;
    }
    let exponent = i32::from((magnitude.to_bits() >> 23) as u8);
    let mantissa = magnitude.to_bits() & 0x007f_ffff;
    let up = match rounding {
        PowerRounding::Up => mantissa > 0,
        PowerRounding::Down => false,
        PowerRounding::Nearest if exponent == 0 => mantissa >= 0x0060_0000,
        PowerRounding::Nearest => mantissa >= 0x0040_0000,
    };
    // Below the smallest normal float, code 0 is 2^-127, and half of the mantissa's range is below it.
    let up = if exponent == 0 && rounding == PowerRounding::Up { mantissa > 0x0040_0000 } else { up };
    let code = exponent + i32::from(up);
    if code > 254 { if saturate { 254 } else { 255 } } else { code as u8 }
}

#[cfg(test)]
mod tests {
    use apr_core::DType;
    use apr_tensor::cast::cast_values;
    use apr_tensor::element::widen_f32;

    use super::*;

    #[test]
    fn codes_mean_what_the_decoders_of_files_say() {
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
                assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{element} {code}");
                if !ours.is_nan() && ours.is_finite() {
                    assert_eq!(mini.encode(ours, true), code, "{element} {ours}");
                }
            }
        }
    }

    #[test]
    fn values_round_as_other_casts_do() {
        let values: Vec<f32> =
            (0..2000).map(|n| (n as f32 - 1000.0) * 0.37).chain([449.0, 463.9, 464.0, 60000.0]).collect();
        for (element, dtype) in [(ElementType::F8E4M3, DType::F8_E4M3), (ElementType::F8E5M2, DType::F8_E5M2)] {
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
