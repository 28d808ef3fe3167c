//! How far values may be from those that a narrower dtype was made of.

use apr_registry::{DType, DTypeKind};

/// What a dtype can hold: every value of a block is kept to within a share of the block's largest.
///
/// The share is half of a step, where a dtype of *n* bits has 2^*n* steps from minus to plus the
/// largest value. Quantizers choose scales that make the error of a whole tensor small, so the
/// bound is one on the norm over a tensor, and not on every value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Room {
    /// Values that share a scale; `None` where it is a row of unknown length.
    block: Option<usize>,
    /// Of the largest value of a block.
    pub(super) share: f64,
}

impl Room {
    /// That of a dtype; a share of 0 for one that is taken for exact.
    pub(super) fn of(dtype: DType) -> Self {
        use DType::*;

        let each = |share| Self { block: Some(1), share };

        // Those with scales of scales are as coarse as their superblock's largest scale makes them.
        let blocks = |bits: i32| Self { block: Some(blocks_of(dtype)), share: 2_f64.powi(-bits) };
        match dtype {
            F16 => each(2_f64.powi(-11)),
            // Some programs cut the lower half off, where others round.
            BF16 => each(2_f64.powi(-8)),
            F8_E4M3 | F8_E4M3FNUZ | F6_E2M3 => each(2_f64.powi(-4)),
            F8_E5M2 | F8_E5M2FNUZ | F6_E3M2 => each(2_f64.powi(-3)),
            I8_ROW => Self { block: None, share: 2_f64.powi(-8) },
            Q8_0 | Q8_1 | Q8_K => blocks(8),
            Q6_K => blocks(6),
            Q5_0 | Q5_1 | Q5_K => blocks(5),
            Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS | I4_ROW => blocks(4),
            // Their steps grow with the value: the largest is a third of it, and scales are powers
            // of two.
            Q3_K | IQ3_XXS | IQ3_S | MXFP4 | NVFP4 | F4_E2M1 => blocks(3),
            Q2_K | Q2_0 | IQ2_XXS | IQ2_XS | IQ2_S => blocks(2),
            Q1_0 | IQ1_S | IQ1_M | TQ1_0 | TQ2_0 => blocks(1),
            _ => each(0.0),
        }
    }

    /// The largest sum of squared errors that values held so have.
    pub(super) fn squared(&self, values: &[f64]) -> f64 {
        if self.share == 0.0 || values.is_empty() {
            return 0.0;
        }
        let blocks = values.chunks(self.block.unwrap_or(values.len()));
        let square = |block: &[f64]| {
            let largest = block
                .iter()
                .filter(|value| value.is_finite())
                .fold(0.0_f64, |most, value| most.max(value.abs()));
            block.len() as f64 * (largest * self.share).powi(2)
        };
        blocks.map(square).sum()
    }
}

fn blocks_of(dtype: DType) -> usize {
    // Floats of 4 bits without a scale are compared as if they had one.
    let len = if dtype.kind() == DTypeKind::Quantized { dtype.block_len() } else { 32 };
    usize::try_from(len).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_that_is_not_exact_has_room() {
        let lossy = |dtype: &&DType| matches!(dtype.kind(), DTypeKind::Quantized);
        DType::ALL
            .iter()
            .filter(lossy)
            .for_each(|&dtype| assert!(Room::of(dtype).share > 0.0, "{dtype}"));
        [DType::F32, DType::F64, DType::I8]
            .iter()
            .for_each(|&dtype| assert!(Room::of(dtype).share == 0.0, "{dtype}"));
    }

    #[test]
    fn a_block_has_room_by_its_largest_value() {
        let mut values = vec![0.0; 64];
        values[40] = -16.0;
        // 32 values, each half of a step of 2 off.
        assert_eq!(Room::of(DType::Q4_0).squared(&values), 32.0);
        assert_eq!(Room::of(DType::F16).squared(&[2048.0, f64::NAN]), 1.0);
    }
}
