//! Turning the stored bytes of big-endian files little-endian.
//!
//! Of a block, scales and minima are numbers of two bytes and everything else is bytes, which have
//! no order. The types that `gguf-convert-endian` of gguf-py turns are turned as it does; others of
//! the same making are added. Types whose bytes ggml reads as wider words (Q5_0, Q3_K, most of IQ)
//! have no agreed order and are left out.

use apr_core::DType;

/// Returns the offset and width in bytes of each number in a block, or `None` if there is no agreed
/// layout.
pub(crate) fn numbers(dtype: DType) -> Option<&'static [(usize, usize)]> {
    Some(match dtype {
        // All that they hold are single bytes.
        DType::I8 | DType::MXFP4 | DType::NVFP4 => &[],
        DType::F16 | DType::BF16 | DType::I16 => &[(0, 2)],
        DType::F32 | DType::I32 => &[(0, 4)],
        DType::F64 | DType::I64 => &[(0, 8)],
        DType::Q1_0 | DType::Q2_0 | DType::Q4_0 | DType::Q8_0 | DType::IQ4_NL => &[(0, 2)],
        DType::Q4_1 | DType::Q8_1 | DType::Q4_K | DType::Q5_K => &[(0, 2), (2, 2)],
        DType::Q2_K => &[(80, 2), (82, 2)],
        DType::Q6_K => &[(208, 2)],
        DType::TQ1_0 => &[(52, 2)],
        DType::TQ2_0 => &[(64, 2)],
        _ => return None,
    })
}

/// Reverses the numbers in whole blocks of `block_len` bytes.
pub(crate) fn swap(bytes: &mut [u8], block_len: usize, numbers: &[(usize, usize)]) {
    for block in bytes.chunks_exact_mut(block_len) {
        for &(offset, width) in numbers {
            block[offset..offset + width].reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lie_in_their_block() {
        for &dtype in DType::ALL {
            for (offset, width) in numbers(dtype).unwrap_or_default() {
                assert!((offset + width) as u64 <= dtype.block_bytes(), "{dtype}");
            }
        }
    }
}
