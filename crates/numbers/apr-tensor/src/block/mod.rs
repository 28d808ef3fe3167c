//! Block quantization: rows of `f32` to blocks of small integers with scales, and back.
//!
//! Every quantizer returns the bytes that ggml's reference returns, with and without importance
//! weights; every block type that a GGUF file can carry is dequantized. Where a kernel is
//! vectorised, it works on several blocks (or sub-blocks) side by side, one per lane, so that each
//! lane keeps the reference's order of operations.
//!
//! ```
//! use apr_core::DType;
//! use apr_tensor::block::{dequantize, quantize};
//!
//! let row: Vec<f32> = (-16..16_i8).map(f32::from).collect();
//! let (mut bytes, mut back) = (Vec::new(), Vec::new());
//! quantize(DType::Q8_0, &row, 32, None, &mut bytes);
//! dequantize(DType::Q8_0, &bytes, 32, &mut back);
//! assert_eq!(bytes.len(), 34);
//! assert!(
//!     row.iter()
//!         .zip(&back)
//!         .all(|(value, back)| (value - back).abs() <= 16.0 / 127.0 / 2.0 + 0.01)
//! );
//! ```
#![expect(
    clippy::cast_possible_truncation,
    reason = "levels and packed fields fit what they are cut to"
)]

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod avx2;
#[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
#[path = "avx2_off.rs"]
mod avx2;
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod avx512;
#[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
#[path = "avx512_off.rs"]
mod avx512;
mod extremes;
mod fp4;
mod iq4;
mod iq_dequantize;
pub mod iq_grids;
mod k_quants;
mod kernel;
mod lanes;
mod low_bit;
mod pack;
mod points;
mod q8_k;
mod rows;
mod simple;
mod ternary;
mod weighted;

use alloc::vec::Vec;

use apr_core::DType;

pub use fp4::half_of_e4m3;
use kernel::{Dequantize, Quantize, QuantizeGroups};

/// Returns `true` if [`quantize`] supports this dtype.
///
/// It supports all that [`can_dequantize`], except for Q8_1 and Q8_K, which are for activations.
/// Without the feature `quantize` it supports none.
#[must_use]
pub const fn can_quantize(dtype: DType) -> bool {
    cfg!(feature = "quantize")
        && (k_quants::is_one(dtype)
            || matches!(
                dtype,
                DType::Q8_0
                    | DType::Q4_0
                    | DType::Q4_1
                    | DType::Q5_0
                    | DType::Q5_1
                    | DType::IQ1_S
                    | DType::IQ1_M
                    | DType::IQ2_XXS
                    | DType::IQ2_XS
                    | DType::IQ2_S
                    | DType::IQ3_XXS
                    | DType::IQ3_S
                    | DType::IQ4_NL
                    | DType::IQ4_XS
                    | DType::TQ1_0
                    | DType::TQ2_0
                    | DType::MXFP4
                    | DType::NVFP4
                    | DType::Q1_0
                    | DType::Q2_0
                    | DType::I8_ROW
                    | DType::I4_ROW
            ))
}

/// Returns `true` if [`dequantize`] supports this dtype, which it does for all quantized dtypes.
#[must_use]
pub const fn can_dequantize(dtype: DType) -> bool {
    dtype.is_quantized()
}

/// Returns `true` if [`quantize`] requires importance weights for this dtype, as in ggml.
#[must_use]
pub const fn needs_importance(dtype: DType) -> bool {
    matches!(dtype, DType::IQ1_S | DType::IQ2_XXS | DType::IQ2_XS)
}

/// Appends the blocks of whole rows to `out`.
///
/// `importance` holds one weight per column, which says how much an error there costs. The
/// K-quants, the IQ types, `q4_0`, `q4_1`, `q5_0` and `q5_1` choose by it; the other types have no
/// choice to make.
///
/// The first call for an IQ type of 1 to 3 bits finds the neighbours of its grid's points, which
/// takes some milliseconds and a megabyte at most. With the feature `std` they are kept, without it
/// each call does this.
///
/// # Panics
/// For a dtype that is not one that [`can_quantize`], one that [`needs_importance`] without it,
/// rows that are not a multiple of its block, values that are not whole rows, and importance of
/// another length than a row. Values must be finite, and their squares and sums too; of others the
/// result is unspecified.
pub fn quantize(
    dtype: DType,
    values: &[f32],
    row_len: usize,
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) {
    assert!(can_quantize(dtype), "dtype {dtype} is not one to quantize to");
    assert_whole_blocks(dtype, row_len);
    assert!(
        importance.is_none_or(|weights| weights.len() == row_len),
        "importance must have one weight per column"
    );
    if values.is_empty() {
        return;
    }

    assert!(importance.is_some() || !needs_importance(dtype), "dtype {dtype} needs importance");
    assert!(row_len > 0 && values.len().is_multiple_of(row_len), "values must be whole rows");
    match dtype {
        DType::Q8_0 => append::<simple::Q8_0, 32, 34>(values, out),
        DType::Q4_0 => append_weighted::<simple::Q4_0, 32, 18>(values, importance, out),
        DType::Q4_1 => append_weighted::<simple::Q4_1, 32, 20>(values, importance, out),
        DType::Q5_0 => append_weighted::<simple::Q5_0, 32, 22>(values, importance, out),
        DType::Q5_1 => append_weighted::<simple::Q5_1, 32, 24>(values, importance, out),
        DType::IQ1_S => {
            points::append::<points::Iq1S, 50, { points::EIGHT }>(values, importance, out);
        }
        DType::IQ1_M => {
            points::append::<points::Iq1M, 56, { points::EIGHT }>(values, importance, out);
        }
        DType::IQ2_XXS => {
            points::append::<points::Iq2Xxs, 66, { points::EIGHT }>(values, importance, out);
        }
        DType::IQ2_XS => {
            points::append::<points::Iq2Xs, 74, { points::EIGHT }>(values, importance, out);
        }
        DType::IQ2_S => {
            points::append::<points::Iq2S, 82, { points::EIGHT }>(values, importance, out);
        }
        DType::IQ3_XXS => {
            points::append::<points::Iq3Xxs, 98, { points::FOUR }>(values, importance, out);
        }
        DType::IQ3_S => {
            points::append::<points::Iq3S, 110, { points::FOUR }>(values, importance, out);
        }
        DType::IQ4_NL => append_searched::<iq4::Iq4Nl, 32, 18>(values, importance, out),
        DType::IQ4_XS => append_searched::<iq4::Iq4Xs, 256, 136>(values, importance, out),
        DType::TQ1_0 => append::<ternary::Tq1_0, 256, 54>(values, out),
        DType::TQ2_0 => append::<ternary::Tq2_0, 256, 66>(values, out),
        DType::MXFP4 => append::<fp4::Mxfp4, 32, 17>(values, out),
        DType::NVFP4 => append::<fp4::Nvfp4, 64, 36>(values, out),
        DType::Q1_0 => append::<low_bit::Q1_0, 128, 18>(values, out),
        DType::Q2_0 => append::<low_bit::Q2_0, 64, 18>(values, out),
        DType::I4_ROW => append::<rows::I4Row, 32, 18>(values, out),
        DType::I8_ROW => {
            let start = out.len();
            out.resize(start + values.len() + values.len() / row_len * 4, 0);
            rows::quantize_i8_rows(values, row_len, &mut out[start..]);
        }
        _ => k_quants::quantize(dtype, values, row_len, importance, out),
    }
}

/// Calls a function that is generic over how blocks are decoded, for the blocks of a dtype.
macro_rules! by_type {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DType::Q8_0 => $function::<simple::Q8_0, 32, 34>($($argument),*),
            DType::Q8_1 => $function::<simple::Q8_1, 32, 36>($($argument),*),
            DType::Q4_0 => $function::<simple::Q4_0, 32, 18>($($argument),*),
            DType::Q4_1 => $function::<simple::Q4_1, 32, 20>($($argument),*),
            DType::Q5_0 => $function::<simple::Q5_0, 32, 22>($($argument),*),
            DType::Q5_1 => $function::<simple::Q5_1, 32, 24>($($argument),*),
            DType::Q2_K => $function::<k_quants::Q2K, 256, 84>($($argument),*),
            DType::Q3_K => $function::<k_quants::Q3K, 256, 110>($($argument),*),
            DType::Q4_K => $function::<k_quants::Q4K, 256, 144>($($argument),*),
            DType::Q5_K => $function::<k_quants::Q5K, 256, 176>($($argument),*),
            DType::Q6_K => $function::<k_quants::Q6K, 256, 210>($($argument),*),
            DType::IQ4_NL => $function::<iq4::Iq4Nl, 32, 18>($($argument),*),
            DType::IQ4_XS => $function::<iq4::Iq4Xs, 256, 136>($($argument),*),
            DType::TQ1_0 => $function::<ternary::Tq1_0, 256, 54>($($argument),*),
            DType::TQ2_0 => $function::<ternary::Tq2_0, 256, 66>($($argument),*),
            DType::MXFP4 => $function::<fp4::Mxfp4, 32, 17>($($argument),*),
            DType::NVFP4 => $function::<fp4::Nvfp4, 64, 36>($($argument),*),
            DType::Q1_0 => $function::<low_bit::Q1_0, 128, 18>($($argument),*),
            DType::Q2_0 => $function::<low_bit::Q2_0, 64, 18>($($argument),*),
            DType::Q8_K => $function::<q8_k::Q8K, 256, 292>($($argument),*),
            DType::IQ2_XXS => $function::<iq_dequantize::Iq2Xxs, 256, 66>($($argument),*),
            DType::IQ2_XS => $function::<iq_dequantize::Iq2Xs, 256, 74>($($argument),*),
            DType::IQ2_S => $function::<iq_dequantize::Iq2S, 256, 82>($($argument),*),
            DType::IQ3_XXS => $function::<iq_dequantize::Iq3Xxs, 256, 98>($($argument),*),
            DType::IQ3_S => $function::<iq_dequantize::Iq3S, 256, 110>($($argument),*),
            DType::IQ1_S => $function::<iq_dequantize::Iq1S, 256, 50>($($argument),*),
            DType::IQ1_M => $function::<iq_dequantize::Iq1M, 256, 56>($($argument),*),
            DType::I4_ROW => $function::<rows::I4Row, 32, 18>($($argument),*),
            dtype => unreachable!("dtype {dtype} has no blocks to decode"),
        }
    };
}

/// Replaces the contents of `out` by the elements of whole rows.
///
/// Any bytes are decoded, to what ggml makes of them; damaged scales may yield infinities and NaN.
///
/// # Panics
/// For a dtype that is not one that [`can_dequantize`], rows that are not a multiple of its block,
/// and bytes that are no whole rows.
pub fn dequantize(dtype: DType, bytes: &[u8], row_len: usize, out: &mut Vec<f32>) {
    assert!(can_dequantize(dtype), "dtype {dtype} has no blocks to dequantize");
    assert_whole_blocks(dtype, row_len);
    if bytes.is_empty() {
        out.clear();
        return;
    }

    let row_bytes = row_bytes(dtype, row_len);
    assert!(row_len > 0 && bytes.len().is_multiple_of(row_bytes), "bytes must be whole rows");
    if dtype == DType::I8_ROW {
        out.resize(bytes.len() / row_bytes * row_len, 0.0);
        rows::dequantize_i8_rows(bytes, row_len, out);
    } else {
        by_type!(dtype, replace(bytes, out));
    }
}

/// Returns `true` if [`dots`] supports this dtype: all dtypes whose rows are blocks.
#[must_use]
pub const fn can_dot(dtype: DType) -> bool {
    dtype.is_quantized() && !matches!(dtype, DType::I8_ROW)
}

/// Adds to each element of `out` the product of `x` with a row of blocks, whose elements are those
/// of [`dequantize`]: blocks are decoded one after the other and never leave the first-level cache.
///
/// Each product is the sum of 16 sums: of the elements `i`, `i + 16`, `i + 32` and so on, in this
/// order, products and sums rounded each. They are added up in halves: those from 8 on to those
/// below, then those from 4 on, 2, 1.
///
/// ```
/// use apr_core::DType;
/// use apr_tensor::block::{dots, quantize};
///
/// let mut bytes = Vec::new();
/// quantize(DType::Q8_0, &[1.0; 64], 32, None, &mut bytes);
/// let mut out = [0.0, 10.0];
/// dots(DType::Q8_0, &bytes, &[0.5; 32], &mut out);
/// assert_eq!(out.map(f32::round), [16.0, 26.0]);
/// ```
///
/// # Panics
/// For a dtype that is not one that [`can_dot`], an `x` that is not whole blocks, and bytes that
/// are not as many rows as `out` has elements.
pub fn dots(dtype: DType, bytes: &[u8], x: &[f32], out: &mut [f32]) {
    assert!(can_dot(dtype), "dtype {dtype} has no rows of blocks");
    assert_whole_blocks(dtype, x.len());
    assert!(bytes.len() == out.len() * row_bytes(dtype, x.len()), "bytes must be as many rows");
    if !x.is_empty() {
        by_type!(dtype, add_dots(bytes, x, out));
    }
}

fn assert_whole_blocks(dtype: DType, row_len: usize) {
    assert!(
        row_len.is_multiple_of(dtype.block_len() as usize),
        "rows of dtype {dtype} must be whole blocks"
    );
}

fn row_bytes(dtype: DType, row_len: usize) -> usize {
    match dtype {
        DType::I8_ROW => 4 + row_len,
        _ => row_len / dtype.block_len() as usize * dtype.block_bytes() as usize,
    }
}

fn append<T: Quantize<N, B>, const N: usize, const B: usize>(values: &[f32], out: &mut Vec<u8>) {
    kernel::quantize::<T, N, B>(values.as_chunks().0, kernel::room::<N, B>(values.len(), out));
}

fn append_searched<T: QuantizeGroups<N, B>, const N: usize, const B: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) {
    let importance = importance.map(|weights| weights.as_chunks().0);
    kernel::quantize_groups::<T, N, B>(
        values.as_chunks().0,
        importance,
        kernel::room::<N, B>(values.len(), out),
    );
}

/// Quantizes by the plain rule without importance, and by search with it.
fn append_weighted<T: Quantize<N, B> + QuantizeGroups<N, B>, const N: usize, const B: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) {
    match importance {
        Some(_) => append_searched::<T, N, B>(values, importance, out),
        None => append::<T, N, B>(values, out),
    }
}

fn add_dots<T: Dequantize<N, B>, const N: usize, const B: usize>(
    bytes: &[u8],
    x: &[f32],
    out: &mut [f32],
) {
    kernel::dots::<T, N, B>(bytes.as_chunks().0, x.as_chunks().0, out);
}

fn replace<T: Dequantize<N, B>, const N: usize, const B: usize>(bytes: &[u8], out: &mut Vec<f32>) {
    let blocks = bytes.as_chunks().0;
    // Passes come with chunks of one length: then this neither allocates nor fills.
    out.resize(blocks.len() * N, 0.0);
    kernel::dequantize::<T, N, B>(blocks, out.as_chunks_mut().0);
}
