//! Values of a layout one at a time: the scale of a group, and the value nearest to another.

use apr_core::DType;
use half::{bf16, f16};

use super::Layout;

/// The scale of a group, and the code of zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// As it is stored.
    pub(super) scale: f32,
    /// 0 in symmetric layouts.
    pub(super) zero: f32,
}

/// How a layout rounds values: those of a group have one scale, which is chosen by all of them.
///
/// What chooses codes by more than the values (GPTQ) rounds weights so, one at a time, and gives
/// them to [`Laid`](super::Laid) as [moved](super::Chosen::moved): it finds the scale of which they
/// all are multiples, and stores exactly these values.
///
/// ```
/// use apr_quantize::Layout;
///
/// let rounding = Layout::W8A8.rounding().expect("its values are rounded one at a time");
/// let scale = rounding.scale(&[0.51, -0.2, 0.1], None);
/// assert_eq!(rounding.round(0.51, scale), 0.5078125);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounding {
    layout: Layout,
}

impl Layout {
    /// How values are rounded; `None` for layouts whose groups share more than a scale.
    #[must_use]
    pub const fn rounding(self) -> Option<Rounding> {
        match self {
            Self::NvFp4 | Self::Mlx(_) => None,
            layout => Some(Rounding { layout }),
        }
    }

    /// Whether the scale of a group is the best of several, by the errors of its values.
    #[must_use]
    pub const fn searches_scales(self) -> bool {
        matches!(self, Self::W4A16 | Self::Gptq4)
    }
}

impl Rounding {
    /// Columns with one scale; `None` for those of a row.
    #[must_use]
    pub const fn group(self) -> Option<u64> {
        self.layout.group()
    }

    /// The dtype in which libraries compute the values, which has them all.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self.layout {
            Layout::Gptq4 => DType::F16,
            _ => DType::BF16,
        }
    }

    /// The scale for the values of a group. `importance` weighs their squared errors, where scales
    /// are searched.
    #[must_use]
    pub fn scale(self, values: &[f32], importance: Option<&[f32]>) -> Scale {
        match self.layout {
            Layout::Fp8 => self.symmetric(unless_zero(largest(values) / 448.0)),
            Layout::W8A8 => self.symmetric(unless_zero(largest(values) / 127.5)),
            _ => self.searched(values, importance),
        }
    }

    /// The value nearest to this that a code stands for.
    #[must_use]
    pub fn round(self, value: f32, scale: Scale) -> f32 {
        let code = self.code(value, scale) - scale.zero;
        match self.layout {
            Layout::Gptq4 => f16::from_f32(code * scale.scale).to_f32(),
            _ => bf16::from_f32(code * scale.scale).to_f32(),
        }
    }

    /// The code nearest to a value.
    fn code(self, value: f32, Scale { scale, zero }: Scale) -> f32 {
        let code = value / scale;
        match self.layout {
            Layout::Fp8 => e4m3(code),
            Layout::W8A8 => code.round_ties_even().clamp(-128.0, 127.0),
            _ => (code.round_ties_even() + zero).clamp(-8.0, 7.0),
        }
    }

    /// A scale as it is stored: never as zero, by which nothing can be divided.
    fn symmetric(self, scale: f32) -> Scale {
        let scale = match self.layout {
            Layout::Gptq4 => {
                f16::from_f32(scale.max(f16::MIN_POSITIVE_SUBNORMAL.to_f32())).to_f32()
            }
            _ => bf16::from_f32(scale.max(bf16::MIN_POSITIVE_SUBNORMAL.to_f32())).to_f32(),
        };
        Scale { scale, zero: 0.0 }
    }

    /// The scale by which values are nearest, of those that are tried.
    fn searched(self, values: &[f32], importance: Option<&[f32]>) -> Scale {
        let whole = unless_zero(largest(values) / 7.5);
        let error = |scale: Scale| -> f64 {
            let moved = |value: f32| {
                f64::from(value - (self.code(value, scale) - scale.zero) * scale.scale).powi(2)
            };
            match importance {
                Some(weights) => {
                    let each = values.iter().zip(weights);
                    each.map(|(value, weight)| moved(*value) * f64::from(*weight)).sum()
                }
                None => values.iter().map(|value| moved(*value)).sum(),
            }
        };
        let tried = STEPS.iter().map(|step| self.symmetric(whole * step));
        let best = tried.map(|scale| (error(scale), scale)).min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.map_or(self.symmetric(whole), |(_, scale)| scale)
    }

    /// The scale of which all values are multiples by codes, if there is one.
    pub(super) fn exact(self, values: &[f32]) -> Option<Scale> {
        /// Neighbours of a quotient among which the scale is: quotient and value are rounded.
        const NEAR: u16 = 2;

        let stored = |value: f32| match self.layout {
            Layout::Gptq4 => f16::from_f32(value).to_f32(),
            _ => bf16::from_f32(value).to_f32(),
        };
        let most = largest(values);
        if most == 0.0 || values.iter().any(|value| stored(*value) != *value) {
            return None;
        }
        let near = |code: f32| {
            let bits = match self.layout {
                Layout::Gptq4 => f16::from_f32(most / code).to_bits(),
                _ => bf16::from_f32(most / code).to_bits(),
            };
            (bits.saturating_sub(NEAR).max(1)..=bits.saturating_add(NEAR)).map(|bits| {
                match self.layout {
                    Layout::Gptq4 => f16::from_bits(bits).to_f32(),
                    _ => bf16::from_bits(bits).to_f32(),
                }
            })
        };
        let is_exact = |scale: &Scale| {
            scale.scale.is_finite()
                && values.iter().all(|value| self.round(*value, *scale) == *value)
        };
        let scales = |scale: f32| Scale { scale, zero: 0.0 };
        match self.layout {
            Layout::Fp8 => {
                // From 448 on downwards: the larger a code, the more precise is the scale.
                let codes = (1..=126_u8).rev().map(of_e4m3);
                codes.flat_map(near).map(scales).find(is_exact)
            }
            Layout::W8A8 => {
                let codes = (1..=128_u8).rev().map(f32::from);
                codes.flat_map(near).map(scales).find(is_exact)
            }
            _ => {
                let codes = (1..=8_u8).rev().map(f32::from);
                codes.flat_map(near).map(scales).find(is_exact)
            }
        }
    }
}

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

pub(super) fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// A scale, or 1 where all values are zero.
fn unless_zero(scale: f32) -> f32 {
    if scale > 0.0 { scale } else { 1.0 }
}
