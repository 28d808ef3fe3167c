//! The K-quants of llama.cpp: super-blocks of 256 with quantized scales.

mod affine;
mod dequantize;
mod lanes;
mod layout;
mod search;
mod symmetric;
#[cfg(test)]
mod tests;
mod weights;

use alloc::vec::Vec;

use apr_core::DType;
pub(crate) use dequantize::{Q2K, Q3K, Q4K, Q5K, Q6K};
use lanes::Reals;
use layout::SUPER;
use weights::Importance;

/// Returns `true` if a dtype is a K-quant that models are stored in.
pub(crate) const fn is_one(dtype: DType) -> bool {
    matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K)
}

/// Appends the super-blocks of whole rows to `out`.
///
/// Rows must be multiples of 256, and `importance` have a row's length.
pub(crate) fn quantize(
    dtype: DType,
    values: &[f32],
    row_len: usize,
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) {
    debug_assert!(
        row_len.is_multiple_of(SUPER) && importance.is_none_or(|weights| weights.len() == row_len)
    );
    let importance = importance.map(|of_columns| Importance { of_columns });
    let importance = importance.as_ref();
    let start = out.len();
    out.resize(start + values.len() / SUPER * bytes_per_super(dtype), 0);
    let out = &mut out[start..];
    match dtype {
        DType::Q2_K => affine::quantize::<affine::Q2, 16, 16, 84>(values, importance, out),
        DType::Q3_K => symmetric::q3(values, importance, out),
        DType::Q4_K => affine::quantize::<affine::Q4, 32, 8, 144>(values, importance, out),
        DType::Q5_K => affine::quantize::<affine::Q5, 32, 8, 176>(values, importance, out),
        _ => symmetric::q6(values, importance, out),
    }
}

/// For positive values, the scales that levels up to `max_level` fit best with; zero for values of
/// (nearly) zero.
#[inline(always)]
pub(super) fn positive_scales<const LEN: usize>(
    max_level: u8,
    subs: &[(&[f32; LEN], &[f32; LEN]); 8],
) -> [f32; 8] {
    let (mut x, mut weights) = ([Reals::ZERO; LEN], [Reals::ZERO; LEN]);
    for (lane, (values, weights_of_values)) in subs.iter().enumerate() {
        for at in 0..LEN {
            x[at].0[lane] = values[at];
            weights[at].0[lane] = weights_of_values[at];
        }
    }
    let scales = search::positive(max_level, &x, &weights).scale.0;
    core::array::from_fn(|lane| scales[lane])
}

const fn bytes_per_super(dtype: DType) -> usize {
    match dtype {
        DType::Q2_K => 84,
        DType::Q3_K => 110,
        DType::Q4_K => 144,
        DType::Q5_K => 176,
        _ => 210,
    }
}
