//! Rounding as the reference computes: one rounding to the working dtype after every operation.
//!
//! Values travel as `f64`. A sum, product, quotient or root of two numbers of `f32` that is
//! computed in `f64` and then rounded to `f32` is what `f32` arithmetic gives: 53 bits are enough
//! that the two roundings never differ from one. PyTorch computes each operation on 16-bit floats
//! in `f32` and rounds its result, which is what [`Half`] and [`Brain`] do.

use apr_core::DType;
use apr_tensor::cast::can_cast;
use apr_tensor::half_float::round_to_f16;

/// The numbers that a working dtype has.
pub(crate) trait Grid: Send + Sync + 'static {
    /// The nearest number of the dtype.
    fn q(x: f64) -> f64;

    /// The nearest number of the dtype in which sums of this one accumulate.
    fn wide(x: f64) -> f64;
}

/// Grid of `f64`.
pub(crate) struct Double;

/// Grid of `f32`.
pub(crate) struct Single;

/// IEEE half precision.
pub(crate) struct Half;

/// Grid of bfloat16.
pub(crate) struct Brain;

impl Grid for Double {
    #[inline(always)]
    fn q(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn wide(x: f64) -> f64 {
        x
    }
}

/// The nearest `f32`.
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
#[inline(always)]
fn single(x: f64) -> f64 {
    f64::from(x as f32)
}

impl Grid for Single {
    #[inline(always)]
    fn q(x: f64) -> f64 {
        single(x)
    }

    #[inline(always)]
    fn wide(x: f64) -> f64 {
        single(x)
    }
}

impl Grid for Half {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    #[inline(always)]
    fn q(x: f64) -> f64 {
        f64::from(round_to_f16(x as f32))
    }

    #[inline(always)]
    fn wide(x: f64) -> f64 {
        single(x)
    }
}

impl Grid for Brain {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    #[inline(always)]
    fn q(x: f64) -> f64 {
        let x = x as f32;
        if x.is_nan() {
            return f64::from(x);
        }
        // To nearest, ties to even: a carry into the exponent is right, and so is one to infinity.
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1))) & 0xffff_0000;
        f64::from(f32::from_bits(rounded))
    }

    #[inline(always)]
    fn wide(x: f64) -> f64 {
        single(x)
    }
}

/// The dtype that values of two dtypes are computed in together.
pub(crate) fn promoted(a: DType, b: DType) -> DType {
    if a == b {
        return a;
    }
    if a == DType::F64 || b == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Returns the dtype in which a tensor is merged, or `None` if it can't be merged.
///
/// This is the tensor's own dtype if PyTorch computes with it, and `f32` for quantized tensors and
/// 8-bit floats. Integers, booleans and parts of MX blocks can't be merged.
pub(crate) fn working(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 => Some(dtype),
        _ if dtype.is_quantized() || dtype.is_float() => Some(DType::F32),
        _ => None,
    }
}

/// Returns the dtype of a result that is computed in `working`.
///
/// This is the common dtype of all inputs if `working` can be rounded to it, otherwise `working`.
pub(crate) fn resulting(inputs: impl Iterator<Item = DType>, working: DType) -> DType {
    let mut inputs = inputs;
    let first = inputs.next().filter(|&dtype| dtype.is_float() && can_cast(working, dtype));
    first.filter(|&dtype| inputs.all(|other| other == dtype)).unwrap_or(working)
}

/// Calls a function that is generic over the grid with the grid of a dtype.
macro_rules! on_grid {
    ($dtype:expr, $function:ident $(::$path:ident)* ($($arg:expr),* $(,)?)) => {
        match $dtype {
            apr_core::DType::F64 => $function$(::$path)*::<$crate::grid::Double>($($arg),*),
            apr_core::DType::F16 => $function$(::$path)*::<$crate::grid::Half>($($arg),*),
            apr_core::DType::BF16 => $function$(::$path)*::<$crate::grid::Brain>($($arg),*),
            _ => $function$(::$path)*::<$crate::grid::Single>($($arg),*),
        }
    };
}
pub(crate) use on_grid;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_rounds_as_the_half_crate_does() {
        for bits in (0..=u32::MAX).step_by(4099) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (Brain::q(f64::from(x)), half::bf16::from_f32(x).to_f64());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{x}");
        }
    }
}
