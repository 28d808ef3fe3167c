//! Positions as sinuses and cosines (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).

use apr_core::{Error, Result};
use apr_graph::{Constant, ValueId};

use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Maximum number of elements of a table in a graph; models have some 500 thousand.
const MAX_ELEMENTS: u64 = 1 << 24;

impl Writer<'_> {
    /// A table of options `max_positions` times `hidden`: in a row the sinuses of
    /// `position / 10000^(2i / hidden)`, then the cosines (Marian, which saves no table).
    ///
    /// # Errors
    /// E008 when the table is too large.
    pub(crate) fn sinusoids(&mut self, place: BlockPosition<'_>) -> Result<ValueId> {
        let hidden = place.size("hidden")?;
        self.position_table(place, |position| row(position, hidden).collect())
    }

    /// A table of the same size whose waves are spread from the shortest to the longest one, both
    /// of which it has: `position / 10000^(i / (hidden / 2 - 1))`. The row of option `padding_id`
    /// is zeros (M2M100; fairseq and tensor2tensor make theirs so).
    ///
    /// # Errors
    /// E008 when the table is too large.
    pub(crate) fn spread_sinusoids(&mut self, place: BlockPosition<'_>) -> Result<ValueId> {
        let (hidden, padding) = (place.size("hidden")?, place.size("padding_id")?);
        let zeros = || std::iter::repeat_n(0.0, usize::try_from(hidden).unwrap_or(0)).collect();
        self.position_table(place, |position| match position == padding {
            true => zeros(),
            false => spread_row(position, hidden).collect(),
        })
    }

    /// Option `max_positions` rows of option `hidden` numbers.
    fn position_table(
        &mut self,
        place: BlockPosition<'_>,
        row: impl FnMut(u64) -> Vec<f32>,
    ) -> Result<ValueId> {
        let (positions, hidden) = (place.size("max_positions")?, place.size("hidden")?);
        if positions.checked_mul(hidden).is_none_or(|count| count > MAX_ELEMENTS) {
            return Err(Error::memory(format!(
                "a table of {positions} positions with {hidden} numbers each; {MAX_ELEMENTS} \
                 numbers are allowed"
            )));
        }
        let rows = (0..positions).flat_map(row);
        let table = self.body().constant(Constant::floats(&rows.collect::<Vec<f32>>()));
        Ok(self.reshape("position_table", table, &[signed(positions), signed(hidden)]))
    }
}

/// Returns a row of the table. For an odd number of columns, there is one more sine than cosines.
fn row(position: u64, hidden: u64) -> impl Iterator<Item = f32> {
    // Columns of both halves count pairs from 0 on.
    let angle = move |at: u64| position as f64 / 10000_f64.powf((2 * at) as f64 / hidden as f64);
    #[expect(clippy::cast_possible_truncation, reason = "graphs compute in single precision")]
    let narrow = |value: f64| value as f32;
    let sines = (0..hidden.div_ceil(2)).map(move |at| narrow(angle(at).sin()));
    sines.chain((0..hidden / 2).map(move |at| narrow(angle(at).cos())))
}

/// Returns a row of the table of spread waves, rounded at the same steps as in torch.
///
/// An odd last column is 0.
fn spread_row(position: u64, hidden: u64) -> impl Iterator<Item = f32> {
    let half = hidden / 2;
    #[expect(clippy::cast_possible_truncation, reason = "graphs compute in single precision")]
    let narrow = |value: f64| value as f32;
    let step = narrow(10000_f64.ln() / half.saturating_sub(1).max(1) as f64);
    let angle = move |at: u64| {
        let frequency = narrow(f64::from(at as f32 * -step).exp());
        f64::from(position as f32 * frequency)
    };
    let sines = (0..half).map(move |at| narrow(angle(at).sin()));
    let cosines = (0..half).map(move |at| narrow(angle(at).cos()));
    sines.chain(cosines).chain((hidden % 2 == 1).then_some(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with `M2M100SinusoidalPositionalEmbedding.get_embedding` of transformers 5.24.
    #[test]
    fn spread_rows_match_transformers() {
        let near = |row: Vec<f32>, expected: &[f32]| {
            assert_eq!(row.len(), expected.len());
            for (one, other) in row.iter().zip(expected) {
                assert!((one - other).abs() < 1e-6, "{row:?}");
            }
        };
        near(spread_row(0, 5).collect(), &[0.0, 0.0, 1.0, 1.0, 0.0]);
        near(
            spread_row(7, 6).collect(),
            &[0.656_986_6, 0.069_942_85, 0.000_699_999_86, 0.753_902_26, 0.997_551, 0.999_999_76],
        );
        near(
            spread_row(1001, 6).collect(),
            &[0.919_990_6, -0.552_384_7, 0.099_932_9, -0.391_940_44, -0.833_589_3, 0.994_994_16],
        );
    }
}
