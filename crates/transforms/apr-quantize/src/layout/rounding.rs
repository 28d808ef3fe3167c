//! Values of a layout one at a time: the scale of a group, and the value nearest to another.

use apr_core::DType;
use apr_tensor::drift::Drift;
use apr_tensor::half_float::{
    bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, round_to_bf16, round_to_f16,
};

use super::{Layout, affine, scale_dtype};

/// The scale of a group, and the code of zero or what is added to the products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Stored scale, divided by the global scale.
    pub(super) scale: f32,
    /// 0 in symmetric layouts.
    pub(super) zero: f32,
    /// 0 in layouts without biases.
    pub(super) bias: f32,
}

impl Scale {
    const fn of(scale: f32) -> Self {
        Self { scale, zero: 0.0, bias: 0.0 }
    }
}

/// A weight that was rounded before it is laid out: its values are stored exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounded {
    /// Rounding of the values.
    pub rounding: Rounding,
    /// Quantization error of the weight.
    pub drift: Drift,
}

/// Rounding rules of a layout. The values of a group share one scale, which depends on all of them.
///
/// GPTQ chooses codes by more than the values. It rounds the weights one at a time with these rules
/// and passes them to [`Laid`](super::Laid) as [rounded](super::Chosen::rounded). `Laid` then finds
/// the scale of which all values are multiples, and stores exactly these values.
///
/// ```
/// use apr_core::DType;
/// use apr_quantize::Layout;
///
/// let rounding = Layout::W8A8.rounding(DType::F32, 1.0);
/// let scale = rounding.scale(&[0.51, -0.2, 0.1], None);
/// assert!((rounding.round(-0.2, scale) + 0.2).abs() < 0.002);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounding {
    pub(super) layout: Layout,
    /// The dtype of MLX's scales.
    pub(super) scales: DType,
    /// Factor for the scales before they are stored; 1 in layouts without such a factor.
    pub(super) global: f32,
}

impl Layout {
    /// Returns the rounding rules for a weight of this dtype.
    ///
    /// Its scales are multiplied by `global` before they are stored
    /// ([`global_scale`](super::global_scale)).
    #[must_use]
    pub const fn rounding(self, weight: DType, global: f32) -> Rounding {
        let global = if self.has_global() { global } else { 1.0 };
        Rounding { layout: self, scales: scale_dtype(weight), global }
    }

    /// Returns `true` if the scale of a group is the best of several by the errors of the values.
    #[must_use]
    pub const fn searches_scales(self) -> bool {
        matches!(self, Self::W4A16 | Self::W4A16Asym | Self::MxFp4 | Self::Gptq4)
    }
}

impl Rounding {
    /// Returns the number of columns per scale, or `None` if a scale covers a whole row.
    #[must_use]
    pub const fn group(self) -> Option<u64> {
        self.layout.group()
    }

    /// Returns a dtype that represents the values, which is the one that libraries compute in.
    ///
    /// For MLX, it is the dtype in which sums of products and biases are exact.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self.layout {
            Layout::Gptq4 => DType::F16,
            Layout::Mlx(_) => DType::F32,
            _ => DType::BF16,
        }
    }

    /// Returns a dtype that represents the values of codes as libraries round them.
    #[must_use]
    pub const fn held_dtype(self) -> DType {
        match self.layout {
            Layout::Mlx(_) => self.scales,
            _ => self.dtype(),
        }
    }

    /// Returns the scale for the values of a group.
    ///
    /// If scales are searched, `importance` weights the errors of the values.
    #[must_use]
    pub fn scale(self, values: &[f32], importance: Option<&[f32]>) -> Scale {
        match self.layout {
            Layout::Fp8 => self.symmetric(unless_zero(largest(values) / 448.0)),
            Layout::W8A8 => self.symmetric(unless_zero(largest(values) / 127.5)),
            // None is zero, by which nothing can be divided.
            Layout::NvFp4 => {
                let scale = (self.global * (largest(values) / 6.0)).clamp(1.0 / 512.0, 448.0);
                Scale::of(e4m3(scale) / self.global)
            }
            _ => self.searched(values, importance),
        }
    }

    /// The product of a code and the scale that is nearest to a value. Libraries round it to
    /// [`dtype`](Self::dtype), unless they multiply codes and apply the scale to the sums.
    #[must_use]
    pub fn round(self, value: f32, scale: Scale) -> f32 {
        (self.code(value, scale) - scale.zero) * scale.scale + scale.bias
    }

    /// The code nearest to a value.
    fn code(self, value: f32, Scale { scale, zero, bias }: Scale) -> f32 {
        let code = (value - bias) / scale;
        match self.layout {
            Layout::Fp8 => e4m3(code),
            Layout::MxFp4 | Layout::NvFp4 => of_e2m1(e2m1(code)),
            Layout::Mlx(bits) => code.round_ties_even().clamp(0.0, most(bits)),
            Layout::W8A8 => code.round_ties_even().clamp(-128.0, 127.0),
            _ => (code.round_ties_even() + zero).clamp(-8.0, 7.0),
        }
    }

    /// Rounds a scale to its stored precision. The result is never zero, because values are divided
    /// by it.
    fn stored(self, scale: f32) -> f32 {
        match self.layout {
            Layout::Gptq4 => round_to_f16(scale.max(SMALLEST_F16)),
            Layout::Mlx(_) if self.scales == DType::F16 => self.short(scale.max(SMALLEST_F16)),
            Layout::Mlx(_) => self.short(scale.max(SMALLEST_BF16)),
            _ => round_to_bf16(scale.max(SMALLEST_BF16)),
        }
    }

    /// The nearest number in the dtype of MLX's scales that has few enough digits for products with
    /// codes to be exact in `f32`.
    fn short(self, number: f32) -> f32 {
        match self.scales {
            DType::BF16 => round_to_bf16(number),
            DType::F16 => round_to_f16(number),
            _ => {
                let cut = 1 << 12;
                f32::from_bits((number.to_bits() + cut / 2) & !(cut - 1))
            }
        }
    }

    fn symmetric(self, scale: f32) -> Scale {
        Scale::of(self.stored(scale))
    }

    /// Scales that are tried for the values of a group.
    fn tried(self, values: &[f32]) -> Vec<Scale> {
        match self.layout {
            Layout::MxFp4 => {
                // The largest value is 4 or more, and may be cut at 6; or none is cut.
                let exponent = (largest(values).to_bits() >> 23).saturating_sub(2);
                let zeros = largest(values) == 0.0;
                let exponents = if zeros { [127; 2] } else { [exponent, exponent + 1] };
                exponents.map(|exponent| Scale::of(of_e8m0(exponent))).to_vec()
            }
            Layout::W4A16Asym => {
                let (low, high) = bounds(values);
                let (low, high) = (low.min(0.0), high.max(0.0));
                let whole = unless_zero((high - low) / 15.0);
                let tried = STEPS.iter().map(|step| {
                    let scale = self.stored(whole * step);
                    let first = (low * step / scale).round_ties_even();
                    Scale { scale, zero: (-8.0 - first).clamp(-8.0, 7.0), bias: 0.0 }
                });
                tried.collect()
            }
            Layout::Mlx(bits) => {
                let (low, high) = bounds(values);
                // Biases of more steps would leave no digits for the codes.
                let least = largest(values) / 1024.0;
                let whole = unless_zero(((high - low) / most(bits)).max(least));
                let tried = STEPS.iter().map(|step| {
                    let scale = self.stored(whole * step);
                    // A multiple of the scale: zero is a code where it is in between.
                    let middle = low + (high - low) * (1.0 - step) / 2.0;
                    let bias = self.short((middle / scale).round_ties_even() * scale);
                    Scale { scale, zero: 0.0, bias }
                });
                tried.collect()
            }
            _ => {
                let whole = unless_zero(largest(values) / 7.5);
                STEPS.iter().map(|step| self.symmetric(whole * step)).collect()
            }
        }
    }

    /// Returns the tried scale with the smallest sum of cubed errors.
    ///
    /// Squared errors would clip the largest weights, which harms models more than the sum of
    /// squares shows (`docs/decisions.md`).
    fn searched(self, values: &[f32], importance: Option<&[f32]>) -> Scale {
        let tried = self.tried(values);
        let mut best = None;
        for scales in tried.chunks(LANES) {
            // Where there are fewer, the last one is computed several times.
            let lanes = std::array::from_fn(|lane| scales[lane.min(scales.len() - 1)]);
            let errors = self.errors(values, importance, &lanes);
            for (scale, error) in scales.iter().zip(errors) {
                if best.is_none_or(|(_, least): (Scale, f64)| error.total_cmp(&least).is_lt()) {
                    best = Some((*scale, error));
                }
            }
        }
        best.map_or(self.symmetric(1.0), |(scale, _)| scale)
    }

    /// Sums of cubed errors of values with several scales.
    fn errors(
        self,
        values: &[f32],
        importance: Option<&[f32]>,
        scales: &[Scale; LANES],
    ) -> [f64; LANES] {
        match self.layout {
            Layout::MxFp4 => cubes(values, importance, scales, |code, _| nearest_e2m1(code)),
            Layout::Mlx(bits) => {
                let most = most(bits);
                cubes(values, importance, scales, |code, _| nearest_integer(code).clamp(0.0, most))
            }
            _ => cubes(values, importance, scales, |code, zero| {
                (nearest_integer(code) + zero).clamp(-8.0, 7.0)
            }),
        }
    }

    /// The scale of which all values are multiples by codes, if there is one.
    pub(super) fn exact(self, values: &[f32]) -> Option<Scale> {
        /// Neighbours of a quotient among which the scale is: quotient and value are rounded.
        const NEAR: u16 = 2;

        let stored = |value: f32| match self.layout {
            Layout::Gptq4 => round_to_f16(value),
            _ => round_to_bf16(value),
        };
        match self.layout {
            // The search finds the power of two.
            Layout::MxFp4 => return None,
            Layout::Mlx(bits) => return affine::exact(values, bits, |number| self.short(number)),
            _ => {}
        }
        let most = largest(values);
        if most == 0.0 || values.iter().any(|value| stored(*value) != *value) {
            return None;
        }
        let near = |code: f32| {
            let bits = match self.layout {
                Layout::Gptq4 => f32_to_f16(most / code),
                _ => f32_to_bf16(most / code),
            };
            (bits.saturating_sub(NEAR).max(1)..=bits.saturating_add(NEAR)).map(|bits| {
                match self.layout {
                    Layout::Gptq4 => f16_to_f32(bits),
                    _ => bf16_to_f32(bits),
                }
            })
        };
        let is_exact = |scale: &Scale| {
            scale.scale.is_finite()
                && values.iter().all(|value| stored(self.round(*value, *scale)) == *value)
        };
        let scales = Scale::of;
        match self.layout {
            Layout::NvFp4 => {
                let stored = (1..=126_u8).rev().map(of_e4m3);
                stored.map(|scale| scales(scale / self.global)).find(is_exact)
            }
            Layout::Fp8 => {
                // From 448 on downwards: the larger a code, the more precise is the scale.
                let codes = (1..=126_u8).rev().map(of_e4m3);
                codes.flat_map(near).map(scales).find(is_exact)
            }
            Layout::W8A8 => {
                let codes = (1..=128_u8).rev().map(f32::from);
                codes.flat_map(near).map(scales).find(is_exact)
            }
            Layout::W4A16Asym => {
                let codes = (1..=15_u8).rev().map(f32::from);
                codes.flat_map(near).filter_map(|scale| with_zero(values, scale)).find(is_exact)
            }
            _ => {
                let codes = (1..=8_u8).rev().map(f32::from);
                codes.flat_map(near).map(scales).find(is_exact)
            }
        }
    }
}

/// Scales that are tried at a time, for vector instructions: the sum of each is added up in the
/// order of the values, so that it has the same bits as alone.
const LANES: usize = 4;

/// Sums of cubed errors of values that are rounded by several scales.
///
/// `nearest` returns the code that is nearest to a quotient, for a code of zero.
#[inline]
fn cubes(
    values: &[f32],
    importance: Option<&[f32]>,
    scales: &[Scale; LANES],
    nearest: impl Fn(f32, f32) -> f32,
) -> [f64; LANES] {
    let mut sums = [0.0; LANES];
    let mut add = |value: f32, weight: f64| {
        for (sum, Scale { scale, zero, bias }) in sums.iter_mut().zip(scales) {
            let code = nearest((value - bias) / scale, *zero);
            let moved = f64::from(value - ((code - zero) * scale + bias)).abs();
            *sum += moved * moved * moved * weight;
        }
    };
    match importance {
        Some(weights) => {
            values.iter().zip(weights).for_each(|(value, weight)| add(*value, f64::from(*weight)));
        }
        None => values.iter().for_each(|value| add(*value, 1.0)),
    }
    sums
}

/// The nearest integer, or one beyond all codes; halfway, the even one.
///
/// It is the rounding of a sum, which all processors have for vectors.
#[inline]
fn nearest_integer(number: f32) -> f32 {
    /// Where floats are 1 apart, and codes are far away.
    const WHOLE: f32 = 12_582_912.0;
    const FAR: f32 = 65_536.0;
    number.clamp(-FAR, FAR) + WHOLE - WHOLE
}

/// The nearest 4-bit float; halfway, the one with the even code.
#[inline]
fn nearest_e2m1(value: f32) -> f32 {
    let size = value.abs().min(6.0);
    let step = f32::from_bits(size.to_bits() & 0x7f80_0000).max(1.0) / 2.0;
    (nearest_integer(size / step) * step).copysign(value)
}

/// A scale with a zero point by which all values have codes, if there is one.
fn with_zero(values: &[f32], scale: f32) -> Option<Scale> {
    let codes = values.iter().map(|value| (value / scale).round_ties_even());
    let (low, high) =
        codes.fold((0.0_f32, 0.0_f32), |(low, high), code| (low.min(code), high.max(code)));
    let (least, most) = (-8.0 - low, 7.0 - high);
    (least <= most).then(|| Scale { scale, zero: 0.0_f32.clamp(least, most), bias: 0.0 })
}

/// The least scales that are stored.
const SMALLEST_F16: f32 = 1.0 / 16_777_216.0;
const SMALLEST_BF16: f32 = f32::from_bits(1 << 16);

/// Parts of the scale with which no value is cut, that are tried.
const STEPS: [f32; 12] = [1.0, 1.04, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.81, 0.78, 0.75];

/// The nearest 8-bit float with 4 bits of exponent; beyond the largest, that.
fn e4m3(value: f32) -> f32 {
    let size = value.abs().min(448.0);
    let step = f32::from_bits(size.to_bits() & 0x7f80_0000).max(1.0 / 64.0) / 8.0;
    ((size / step).round_ties_even() * step).copysign(value)
}

/// The value of an 8-bit float without a sign.
fn of_e4m3(bits: u8) -> f32 {
    let (exponent, fraction) = (bits >> 3, f32::from(bits & 7));
    match exponent {
        0 => fraction / 512.0,
        _ => (8.0 + fraction) / 1024.0 * f32::from_bits((u32::from(exponent) + 127) << 23),
    }
}

/// The power of two of an exponent of 8 bits.
const fn of_e8m0(exponent: u32) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        1..=254 => f32::from_bits(exponent << 23),
        _ => f32::from_bits(254 << 23),
    }
}

/// The exponent of a power of two, as 8 bits.
pub(super) fn e8m0(power: f32) -> u8 {
    u8::try_from(power.to_bits() >> 23).unwrap_or(u8::MAX)
}

/// The values of the codes of 4-bit floats without a sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The nearest 4-bit float; halfway, the one with the even code.
pub(super) fn e2m1(value: f32) -> u8 {
    const HALFWAY: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let size = value.abs();
    let mut code = 0;
    for (at, halfway) in (0_u8..).zip(HALFWAY) {
        if size > halfway || (size == halfway && at % 2 == 1) {
            code = at + 1;
        }
    }
    if value.is_sign_negative() { code | 8 } else { code }
}

/// The value of a 4-bit float.
pub(super) fn of_e2m1(code: u8) -> f32 {
    let size = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// The least and the greatest of some values.
pub(super) fn bounds(values: &[f32]) -> (f32, f32) {
    values
        .iter()
        .fold((f32::MAX, f32::MIN), |(low, high), value| (low.min(*value), high.max(*value)))
}

/// Returns the largest code of `bits` bits.
pub(super) fn most(bits: u32) -> f32 {
    f32::from((1_u16 << bits) - 1)
}

pub(super) fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// Returns the scale, or 1 if it is zero because all values are zero.
fn unless_zero(scale: f32) -> f32 {
    if scale > 0.0 { scale } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scale with the smallest sum of cubed errors, one value at a time.
    fn one_by_one(rounding: Rounding, values: &[f32], importance: Option<&[f32]>) -> Scale {
        let error = |scale: Scale| -> f64 {
            let each = values.iter().enumerate().map(|(at, value)| {
                let weight = importance.map_or(1.0, |weights| f64::from(weights[at]));
                f64::from(value - rounding.round(*value, scale)).abs().powi(3) * weight
            });
            each.sum()
        };
        let tried = rounding.tried(values).into_iter().map(|scale| (error(scale), scale));
        tried.min_by(|(a, _), (b, _)| a.total_cmp(b)).expect("a scale").1
    }

    #[test]
    fn scales_that_are_tried_together_are_those_that_are_tried_one_by_one() {
        let layouts = [
            Layout::W4A16,
            Layout::W4A16Asym,
            Layout::Gptq4,
            Layout::MxFp4,
            Layout::Mlx(4),
            Layout::Mlx(8),
        ];
        let mut state = 7_u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        for round in 0..200 {
            let size = [1.0, 1e-6, 3e4, 0.0][round % 4];
            let values: Vec<f32> = (0..128).map(|_| number().powi(3) * size).collect();
            let weights: Vec<f32> = (0..128).map(|_| number().abs()).collect();
            for layout in layouts {
                let rounding = layout.rounding(DType::BF16, 1.0);
                for importance in [None, Some(&weights[..])] {
                    let found = rounding.searched(&values, importance);
                    assert_eq!(found, one_by_one(rounding, &values, importance), "{layout:?}");
                }
            }
        }
    }

    #[test]
    fn floats_of_four_bits_are_rounded_as_their_codes_are() {
        for step in 0..=1600_u16 {
            for value in [f32::from(step) / 200.0, -f32::from(step) / 200.0] {
                let of_code = of_e2m1(e2m1(value));
                assert_eq!(nearest_e2m1(value).to_bits(), of_code.to_bits(), "{value}");
            }
        }
    }
}
