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
        let (positions, hidden) = (place.size("max_positions")?, place.size("hidden")?);
        if positions.checked_mul(hidden).is_none_or(|count| count > MAX_ELEMENTS) {
            return Err(Error::memory(format!(
                "a table of {positions} positions with {hidden} numbers each; {MAX_ELEMENTS} \
                 numbers are allowed"
            )));
        }
        let rows = (0..positions).flat_map(|position| row(position, hidden));
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
