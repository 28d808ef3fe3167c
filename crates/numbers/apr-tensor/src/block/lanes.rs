//! Blocks of 32 side by side, one in each lane, so that the searches for the best scale vectorise
//! while the sums of each block keep the reference's order.

/// Values of a block.
pub(super) const BLOCK: usize = 32;

/// Blocks that are searched together: one AVX-512 register of `f32`.
pub(super) const LANES: usize = 16;

/// One number of each block.
pub(super) type Lanes = [f32; LANES];

/// A block whose greatest magnitude is below this counts as zero (ggml's `GROUP_MAX_EPS`).
pub(super) const SMALLEST_GREATEST: f32 = 1e-15;

/// The largest float below a half.
///
/// Levels are rounded away from zero by adding it and truncating. With a half itself, 0.49999997
/// would be rounded to 1.
pub(super) const BELOW_HALF: f32 = f32::from_bits(0.5_f32.to_bits() - 1);

/// Scales that are zero for the blocks that count as zero.
#[inline(always)]
pub(super) fn without_small(mut scale: Lanes, greatest: &Lanes) -> Lanes {
    for lane in 0..LANES {
        scale[lane] = if greatest[lane].abs() < SMALLEST_GREATEST { 0.0 } else { scale[lane] };
    }
    scale
}

/// The values of up to [`LANES`] blocks: the first of each, then the second, and so on. Absent
/// blocks are zero.
pub(super) struct Columns(pub(super) [Lanes; BLOCK]);

/// Weight of an error at each value of the blocks.
pub(super) struct Weights(pub(super) [Lanes; BLOCK]);

impl Columns {
    #[inline(always)]
    pub(super) fn of<'a>(blocks: impl IntoIterator<Item = &'a [f32; BLOCK]>) -> Self {
        let mut columns = [[0.0; LANES]; BLOCK];
        for (lane, block) in blocks.into_iter().take(LANES).enumerate() {
            for (column, &value) in columns.iter_mut().zip(block) {
                column[lane] = value;
            }
        }
        Self(columns)
    }

    /// The value of greatest magnitude in each block, the first of several.
    #[inline(always)]
    pub(super) fn first_of_greatest_magnitude(&self) -> Lanes {
        let mut greatest: Lanes = [0.0; LANES];
        for column in &self.0 {
            for lane in 0..LANES {
                greatest[lane] = if column[lane].abs() > greatest[lane].abs() {
                    column[lane]
                } else {
                    greatest[lane]
                };
            }
        }
        greatest
    }

    /// Each value's square.
    #[inline(always)]
    pub(super) fn squares(&self) -> Weights {
        let mut weights = self.0;
        for column in &mut weights {
            for weight in column {
                *weight *= *weight;
            }
        }
        Weights(weights)
    }

    /// This importance times the root of a value's square plus a constant of its block.
    #[inline(always)]
    pub(super) fn weights(&self, values: &Self, spread: &Lanes) -> Weights {
        let mut weights = self.0;
        for (weights, values) in weights.iter_mut().zip(&values.0) {
            for lane in 0..LANES {
                weights[lane] *=
                    crate::square_root::square_root_f32(spread[lane] + values[lane] * values[lane]);
            }
        }
        Weights(weights)
    }
}

/// Rounds to nearest, ties to even, for magnitudes below 2^22.
///
/// Returns 0 for NaN and a very negative number for infinities, like the reference.
#[inline(always)]
pub(super) fn nearest_i32(value: f32) -> i32 {
    // Adding 1.5 * 2^23 leaves the integer in the low bits of the sum, which the addition rounds.
    const SHIFTER: f32 = 12_582_912.0;
    ((value + SHIFTER).to_bits() & 0x007f_ffff).cast_signed() - 0x0040_0000
}
