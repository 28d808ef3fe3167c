//! A row of a weight in codes and scales.

use apr_core::DType;
use apr_tensor::cast::cast_values;
use apr_tensor::element::widen_f32;

use super::rounding::{Scale, bounds, e2m1, e8m0, most, of_e2m1};
use super::{Layout, Part, Rounding};

/// Encoder for the rows of a weight in a layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoder {
    pub(super) rounding: Rounding,
    /// `true` if the values were rounded before and must be stored exactly.
    pub(super) is_rounded: bool,
}

/// Codes of a row and the values that they represent.
#[derive(Debug, Default)]
pub(super) struct Codes {
    pub(super) bytes: Vec<u8>,
    pub(super) values: Vec<f32>,
}

/// Scales and offsets for the codes of a row, one for each group.
#[derive(Debug, Default)]
struct Scales {
    /// Scales in stored form.
    scales: Numbers,
    /// Biases in stored form; empty if the layout has no biases.
    biases: Numbers,
    /// Codes that represent zero; empty if the code is 0.
    zeros: Vec<f32>,
    /// The scale and bias by which codes are chosen: MLX has them before they are rounded.
    chosen_by: Vec<(f32, f32)>,
}

/// Numbers in a dtype.
#[derive(Debug, Default)]
struct Numbers {
    bytes: Vec<u8>,
    /// Values of the stored bytes.
    values: Vec<f32>,
}

impl Numbers {
    fn of(numbers: &[f32], dtype: DType) -> Self {
        let mut made = Self::default();
        cast_values(numbers, dtype, &mut made.bytes);
        widen_f32(dtype, &made.bytes, &mut made.values);
        made
    }
}

impl Rounding {
    /// Returns the values that the codes of a row represent, as libraries round them.
    /// `importance` weights the errors of the values.
    #[must_use]
    pub fn held(self, row: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
        Encoder { rounding: self, is_rounded: false }.codes(row, importance).values
    }
}

impl Encoder {
    /// Returns the bytes of the scales or biases of a row. `weights` weights the errors of
    /// `values`.
    pub(super) fn numbers(self, part: Part, values: &[f32], weights: Option<&[f32]>) -> Vec<u8> {
        let Scales { scales, biases, .. } = self.scales(values, weights);
        if part == Part::Biases { biases.bytes } else { scales.bytes }
    }

    /// The zero points of a row with these values, from 0 on.
    pub(super) fn zero_points(self, values: &[f32], weights: Option<&[f32]>) -> Vec<u8> {
        let zeros = self.scales(values, weights).zeros;
        zeros.into_iter().map(|zero| byte_of(zero + 8.0)).collect()
    }

    /// Returns the codes of a row. `weights` weights the errors of `values`.
    pub(super) fn codes(self, values: &[f32], weights: Option<&[f32]>) -> Codes {
        let scales = self.scales(values, weights);
        let group = self.group(values);
        let each = values.chunks(group).zip(&scales.chosen_by);
        let codes = each.flat_map(|(group, &(scale, bias))| {
            group.iter().map(move |value| (value - bias) / scale)
        });
        let (bytes, codes): (Vec<u8>, Vec<f32>) = match self.rounding.layout {
            Layout::Fp8 => {
                // A scale that was rounded down leaves the largest beyond what there is.
                let codes = codes.map(|code| code.clamp(-448.0, 448.0)).collect::<Vec<_>>();
                let codes = Numbers::of(&codes, DType::F8_E4M3);
                (codes.bytes, codes.values)
            }
            Layout::NvFp4 | Layout::MxFp4 => {
                let codes: Vec<u8> = codes.map(e2m1).collect();
                let values = codes.iter().copied().map(of_e2m1).collect();
                (packed(&codes, 4), values)
            }
            layout => {
                // Integers are stored from the lowest on, but for those of a byte.
                let (bits, low) = match layout {
                    Layout::W8A8 => (8, -128.0),
                    Layout::Mlx(bits) => (bits, 0.0),
                    _ => (4, -8.0),
                };
                let high = low + f32::from((1_u16 << bits) - 1);
                let zero = |at: usize| scales.zeros.get(at / group).copied().unwrap_or_default();
                let mut codes: Vec<f32> = codes
                    .enumerate()
                    .map(|(at, code)| (code.round_ties_even() + zero(at)).clamp(low, high))
                    .collect();
                let first = if layout == Layout::W8A8 { 0.0 } else { low };
                let stored: Vec<u8> = codes.iter().map(|code| byte_of(code - first)).collect();
                codes.iter_mut().enumerate().for_each(|(at, code)| *code -= zero(at));
                (packed(&stored, bits), codes)
            }
        };
        Codes { bytes, values: self.values(codes, &scales) }
    }

    /// Returns the values that codes represent, rounded in the way libraries round them.
    fn values(self, mut codes: Vec<f32>, scales: &Scales) -> Vec<f32> {
        let group = self.group(&codes);
        for (codes, scale) in codes.chunks_mut(group).zip(&scales.scales.values) {
            codes.iter_mut().for_each(|code| *code *= scale / self.rounding.global);
        }
        let dtype = match self.rounding.layout {
            // Sums that were rounded before are exact.
            Layout::Mlx(_) if !self.is_rounded => self.rounding.scales,
            _ => self.rounding.dtype(),
        };
        let mut values = Numbers::of(&codes, dtype).values;
        if scales.biases.values.is_empty() {
            return values;
        }
        for (values, bias) in values.chunks_mut(group).zip(&scales.biases.values) {
            values.iter_mut().for_each(|value| *value += bias);
        }
        Numbers::of(&values, dtype).values
    }

    /// Columns with one scale.
    fn group(self, row: &[f32]) -> usize {
        let group = self.rounding.layout.group().and_then(|group| usize::try_from(group).ok());
        group.unwrap_or(row.len()).max(1)
    }

    fn scales(self, values: &[f32], weights: Option<&[f32]>) -> Scales {
        let group = self.group(values);
        if let (Layout::Mlx(bits), false) = (self.rounding.layout, self.is_rounded) {
            return of_mlx(bits, self.rounding.scales, values.chunks(group));
        }
        let weights = |at: usize| weights?.chunks(group).nth(at);
        let groups = values.chunks(group).enumerate();
        let found = groups.map(|(at, values)| {
            let exact = if self.is_rounded { self.rounding.exact(values) } else { None };
            exact.unwrap_or_else(|| self.rounding.scale(values, weights(at)))
        });
        let found: Vec<Scale> = found.collect();
        let stored: Vec<f32> =
            found.iter().map(|found| found.scale * self.rounding.global).collect();
        let scales = match self.rounding.layout {
            Layout::MxFp4 => {
                Numbers { bytes: stored.iter().map(|scale| e8m0(*scale)).collect(), values: stored }
            }
            layout => Numbers::of(
                &stored,
                match layout {
                    Layout::NvFp4 => DType::F8_E4M3,
                    Layout::Mlx(_) => self.rounding.scales,
                    _ => self.rounding.dtype(),
                },
            ),
        };
        let biases = match self.rounding.layout {
            Layout::Mlx(_) => {
                let biases: Vec<f32> = found.iter().map(|found| found.bias).collect();
                Numbers::of(&biases, self.rounding.scales)
            }
            _ => Numbers::default(),
        };
        let zeros = found.iter().map(|found| found.zero).collect();
        let chosen_by = found.iter().map(|found| (found.scale, found.bias)).collect();
        Scales { scales, biases, zeros, chosen_by }
    }
}

/// Scales and biases as MLX makes them: the edge of larger magnitude is a code exactly.
fn of_mlx<'v>(bits: u32, dtype: DType, groups: impl Iterator<Item = &'v [f32]>) -> Scales {
    let most = most(bits);
    let chosen = groups.map(|group| {
        let (low, high) = bounds(group);
        let is_low = low.abs() > high.abs();
        let edge = if is_low { low } else { high };
        let scale = ((high - low) / most).max(1e-7) * if is_low { 1.0 } else { -1.0 };
        let first = (edge / scale).round_ties_even();
        if first == 0.0 { (scale, 0.0) } else { (edge / first, edge) }
    });
    let chosen_by: Vec<(f32, f32)> = chosen.collect();
    let (scales, biases): (Vec<f32>, Vec<f32>) = chosen_by.iter().copied().unzip();
    let [scales, biases] = [scales, biases].map(|numbers| Numbers::of(&numbers, dtype));
    Scales { scales, biases, chosen_by, ..Scales::default() }
}

/// Packs codes of 4, 6 or 8 bits, lowest bits first.
fn packed(codes: &[u8], bits: u32) -> Vec<u8> {
    let (mut word, mut filled, mut bytes) = (0_u32, 0, Vec::new());
    for code in codes {
        word |= u32::from(*code) << filled;
        filled += bits;
        while filled >= 8 {
            bytes.push((word & 0xff) as u8);
            word >>= 8;
            filled -= 8;
        }
    }
    bytes
}

/// The byte of an integer of 8 bits, signed or not.
fn byte_of(code: f32) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "codes have 8 bits")]
    let code = code as i16;
    code.to_le_bytes()[0]
}
