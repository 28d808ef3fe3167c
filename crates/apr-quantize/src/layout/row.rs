//! A row of a weight in codes and scales.

use apr_core::DType;
use apr_tensor::cast::cast_values;
use apr_tensor::element::widen_f32;

use super::{Layout, scale_dtype};

/// A row that is encoded.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// Bytes of its codes, scales and biases.
    pub(super) codes: Vec<u8>,
    pub(super) scales: Vec<u8>,
    pub(super) biases: Vec<u8>,
    /// The values that these stand for.
    pub(super) values: Vec<f32>,
}

impl Row {
    /// Encodes the values of a row. `global` is what scales are multiplied by, where the layout has
    /// that; `dtype` is the weight's.
    pub(super) fn of(layout: Layout, dtype: DType, global: f32, values: &[f32]) -> Self {
        let mut row = Self::default();
        match layout {
            Layout::Fp8 => row.fp8(values),
            Layout::W8A8 => row.w8a8(values),
            Layout::W4A16 => {
                values.chunks(128).for_each(|group| row.four_bits(group, DType::BF16));
            }
            Layout::Gptq4 => {
                values.chunks(128).for_each(|group| row.four_bits(group, DType::F16));
            }
            Layout::NvFp4 => values.chunks(16).for_each(|group| row.nvfp4(group, global)),
            Layout::Mlx(bits) => row.mlx(bits, scale_dtype(dtype), values),
        }
        row
    }

    /// Takes a scale, as it is stored: never as zero, by which nothing can be divided.
    fn scale(&mut self, scale: f32, dtype: DType) -> f32 {
        let (bytes, scale) = stored(scale.max(smallest(dtype)), dtype);
        self.scales.extend(bytes);
        scale
    }

    fn fp8(&mut self, values: &[f32]) {
        let scale = self.scale(unless_zero(largest(values) / 448.0), DType::BF16);
        let scaled: Vec<f32> = values.iter().map(|value| value / scale).collect();
        cast_values(&scaled, DType::F8_E4M3, &mut self.codes);
        widen_f32(DType::F8_E4M3, &self.codes, &mut self.values);
        self.values.iter_mut().for_each(|value| *value = rounded(*value * scale));
    }

    fn w8a8(&mut self, values: &[f32]) {
        let scale = self.scale(unless_zero(largest(values) / 127.5), DType::BF16);
        for value in values {
            let code = nearest(value / scale).clamp(-128.0, 127.0);
            #[expect(clippy::cast_possible_truncation, reason = "it was clamped to 8 bits")]
            self.codes.push((code as i8).cast_unsigned());
            self.values.push(rounded(code * scale));
        }
    }

    /// A group of 4-bit integers, with the scale of this dtype by which it is nearest.
    fn four_bits(&mut self, values: &[f32], dtype: DType) {
        let code = |value: f32, scale: f32| nearest(value / scale).clamp(-8.0, 7.0);
        let error = |scale: f32| -> f64 {
            let of = |value: &f32| f64::from(value - code(*value, scale) * scale).powi(2);
            values.iter().map(of).sum()
        };
        let whole = unless_zero(largest(values) / 7.5);
        let tried = STEPS.iter().map(|step| stored(whole * step, dtype).1);
        let best = tried
            .filter(|scale| *scale > 0.0)
            .map(|scale| (error(scale), scale))
            .min_by(|(a, _), (b, _)| a.total_cmp(b));
        let scale = self.scale(best.map_or(whole, |(_, scale)| scale), dtype);
        for pair in values.chunks(2) {
            let mut byte = 0;
            for (at, value) in pair.iter().enumerate() {
                let code = code(*value, scale);
                self.values.push(stored(code * scale, dtype).1);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it was clamped to 4 bits"
                )]
                let stored = (code + 8.0) as u8;
                byte |= stored << (4 * at);
            }
            self.codes.push(byte);
        }
    }

    fn nvfp4(&mut self, values: &[f32], global: f32) {
        let wanted = global * (largest(values) / 6.0);
        let scale = self.scale(wanted.min(448.0), DType::F8_E4M3) / global;
        for pair in values.chunks(2) {
            let mut byte = 0;
            for (at, value) in pair.iter().enumerate() {
                let code = e2m1(value / scale);
                self.values.push(rounded(E2M1[usize::from(code & 7)] * sign(code) * scale));
                byte |= code << (4 * at);
            }
            self.codes.push(byte);
        }
    }

    /// Groups of 64 as MLX makes them: the edge of larger magnitude is a code exactly.
    fn mlx(&mut self, bits: u32, dtype: DType, values: &[f32]) {
        let most = f32::from((1_u16 << bits) - 1);
        let (mut word, mut filled) = (0_u64, 0);
        for group in values.chunks(64) {
            let (low, high) = group.iter().fold((f32::MAX, f32::MIN), |(low, high), value| {
                (low.min(*value), high.max(*value))
            });
            let mut scale = ((high - low) / most).max(1e-7);
            let is_low = low.abs() > high.abs();
            scale = if is_low { scale } else { -scale };
            let edge = if is_low { low } else { high };
            let first = nearest(edge / scale);
            let bias = if first == 0.0 {
                0.0
            } else {
                scale = edge / first;
                edge
            };
            let (stored_scale, stored_bias) = (stored(scale, dtype), stored(bias, dtype));
            self.scales.extend(stored_scale.0);
            self.biases.extend(stored_bias.0);
            for value in group {
                let code = nearest((value - bias) / scale).clamp(0.0, most);
                let product = stored(code * stored_scale.1, dtype).1;
                self.values.push(stored(product + stored_bias.1, dtype).1);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it was clamped to so many bits"
                )]
                let code = code as u64;
                word |= code << filled;
                filled += bits;
                while filled >= 8 {
                    self.codes.push((word & 0xff) as u8);
                    word >>= 8;
                    filled -= 8;
                }
            }
        }
    }
}

/// The least number above zero that a dtype of scales has.
const fn smallest(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 1.0 / 16_777_216.0,
        DType::F8_E4M3 => 1.0 / 512.0,
        _ => f32::from_bits(1 << 16),
    }
}

/// Parts of the scale with which no value is cut, that are tried.
const STEPS: [f32; 12] = [1.0, 1.04, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.81, 0.78, 0.75];

/// The values of the codes of 4-bit floats without a sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The nearest 4-bit float; halfway, the one with the even code.
fn e2m1(value: f32) -> u8 {
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

const fn sign(code: u8) -> f32 {
    if code & 8 == 0 { 1.0 } else { -1.0 }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// A scale, or 1 where all values are zero.
fn unless_zero(scale: f32) -> f32 {
    if scale > 0.0 { scale } else { 1.0 }
}

/// The integer next to a number, and of two the even one.
fn nearest(value: f32) -> f32 {
    value.round_ties_even()
}

/// The bytes of a number in a dtype, and the number that they are.
fn stored(value: f32, dtype: DType) -> (Vec<u8>, f32) {
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    cast_values(&[value], dtype, &mut bytes);
    widen_f32(dtype, &bytes, &mut values);
    (bytes, values.first().copied().unwrap_or_default())
}

/// A number in the dtype in which libraries multiply.
fn rounded(value: f32) -> f32 {
    stored(value, DType::BF16).1
}
