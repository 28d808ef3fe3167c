//! How far values may be from those that a narrower dtype was made of.

use apr_core::{DType, DTypeKind};

/// Precision of a dtype: the maximum error as a share of a block's largest value.
///
/// The share is half of a step. A dtype of *n* bits has 2^*n* steps from minus to plus the largest
/// value. Quantizers choose scales that make the error of a whole tensor small. The bound therefore
/// applies to the norm over a tensor, and not to every value.
///
/// ```
/// use apr_core::DType;
/// use apr_tensor::room::Room;
///
/// // 16 of 4 bits: each value is off by half of a step of 2 at most.
/// assert_eq!(Room::of(DType::Q4_0).squared(&[-16.0; 32]), 32.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// Number of values that share a scale; `None` for a row of unknown length.
    block: Option<usize>,
    /// Maximum error as a share of the largest value of a block.
    share: f64,
}

impl Room {
    /// Returns the precision of a dtype. The share is 0 for a dtype that is treated as exact.
    #[must_use]
    pub fn of(dtype: DType) -> Self {
        use DType::*;

        let each = |share| Self { block: Some(1), share };

        // Those with scales of scales are as coarse as their superblock's largest scale makes them.
        let blocks = |bits| Self { block: Some(blocks_of(dtype)), share: half_to(bits) };
        match dtype {
            F16 => each(half_to(11)),
            // Some programs cut the lower half off, where others round.
            BF16 => each(half_to(8)),
            F8_E4M3 | F8_E4M3FNUZ | F6_E2M3 => each(half_to(4)),
            F8_E5M2 | F8_E5M2FNUZ | F6_E3M2 => each(half_to(3)),
            I8_ROW => Self { block: None, share: half_to(8) },
            Q8_0 | Q8_1 | Q8_K => blocks(8),
            Q6_K => blocks(6),
            Q5_0 | Q5_1 | Q5_K => blocks(5),
            Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS | I4_ROW => blocks(4),
            // Their steps grow with the value: the largest is a third of it, and scales are powers
            // of two.
            Q3_K | IQ3_XXS | IQ3_S | MXFP4 | NVFP4 | F4_E2M1 => blocks(3),
            Q2_K | IQ2_XXS | IQ2_XS | IQ2_S => blocks(2),
            // The scale of Q2_0 is the largest value, so all below its half become zero: of four
            // codes, quantizers use three.
            Q1_0 | Q2_0 | IQ1_S | IQ1_M | TQ1_0 | TQ2_0 => blocks(1),
            _ => each(0.0),
        }
    }

    /// Returns the maximum errors of two tensors from their common original, as sums of squares.
    ///
    /// Both are 0 for tensors of the same dtype, because neither was made from the other. Otherwise
    /// the tensor with the higher precision represents the original.
    #[must_use]
    pub fn of_pair(dtypes: [DType; 2], values: [&[f64]; 2]) -> [f64; 2] {
        if dtypes[0] == dtypes[1] {
            return [0.0; 2];
        }
        let rooms = dtypes.map(Self::of);
        let original = values[usize::from(rooms[1].share < rooms[0].share)];
        rooms.map(|room| room.squared(original))
    }

    /// Returns the number of values that share a scale in a row of `row` values.
    #[must_use]
    pub fn block_len(&self, row: usize) -> usize {
        self.block.unwrap_or(row).max(1)
    }

    /// Returns the largest magnitude that rounding may make zero of, in a block of these values.
    #[must_use]
    pub fn zero_below(&self, block: &[f64]) -> f64 {
        self.share * largest(block)
    }

    /// Returns the largest sum of squared errors that values held so have: of whole blocks of a
    /// tensor.
    #[must_use]
    pub fn squared(&self, values: &[f64]) -> f64 {
        if self.share == 0.0 || values.is_empty() {
            return 0.0;
        }
        let blocks = values.chunks(self.block.unwrap_or(values.len()));
        let square = |block: &[f64]| {
            let error = self.zero_below(block);
            block.len() as f64 * error * error
        };
        blocks.map(square).sum()
    }
}

/// The largest magnitude among values.
fn largest(values: &[f64]) -> f64 {
    let finite = values.iter().filter(|value| value.is_finite());
    finite.fold(0.0, |most, value| most.max(value.abs()))
}

/// One half to a power.
fn half_to(power: u32) -> f64 {
    1.0 / f64::from(1_u32 << power)
}

fn blocks_of(dtype: DType) -> usize {
    // Floats of 4 bits without a scale are compared as if they had one.
    let len = if dtype.kind() == DTypeKind::Quantized { dtype.block_len() } else { 32 };
    usize::try_from(len).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::block::{dequantize, quantize};

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
    fn rounding_to_three_values_makes_zero_of_all_below_half_of_the_largest() {
        for dtype in [DType::Q2_0, DType::TQ2_0] {
            let len = usize::try_from(dtype.block_len()).expect("a small block");
            let mut row = vec![0.49_f32; len];
            row[0] = -1.0;
            let (mut bytes, mut values) = (Vec::new(), Vec::new());
            quantize(dtype, &row, len, None, &mut bytes);
            dequantize(dtype, &bytes, len, &mut values);
            assert!(values[1..].iter().all(|value| *value == 0.0), "{dtype}");
            let exact: Vec<f64> = row.iter().map(|value| f64::from(*value)).collect();
            assert!(Room::of(dtype).zero_below(&exact) >= 0.49, "{dtype}");
        }
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
