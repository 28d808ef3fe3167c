//! Q8_K, which llama.cpp makes of activations: an f32 scale, 256 signed bytes, and 16 sums of 16
//! values each (i16).

use super::kernel::Dequantize;

pub(super) struct Q8K;

impl Dequantize<256, 292> for Q8K {
    #[inline(always)]
    fn dequantize(block: &[u8; 292], values: &mut [f32; 256]) {
        let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        for (value, &byte) in values.iter_mut().zip(&block[4..]) {
            *value = scale * f32::from(byte.cast_signed());
        }
    }
}
