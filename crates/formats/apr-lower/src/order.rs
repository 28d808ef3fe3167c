//! The two orders of the dimensions of images, sequences and volumes.

use apr_graph::ValueId;

/// The order of the dimensions of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Order of the file: `[batch, height, width, channels]`.
    Natural,
    /// `[batch, channels, height, width]`.
    ChannelsFirst,
}

/// A value of the graph that is written, and the order of its dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Id of the value.
    pub id: ValueId,
    /// Order of the dimensions.
    pub order: Order,
}

impl Placed {
    /// A value with its dimensions as the file has them.
    #[must_use]
    pub fn natural(id: ValueId) -> Self {
        Self { id, order: Order::Natural }
    }

    /// A value with its channels behind the batch.
    #[must_use]
    pub fn channels_first(id: ValueId) -> Self {
        Self { id, order: Order::ChannelsFirst }
    }

    /// Returns the axis of a dimension of the natural order, for a value with `rank` dimensions.
    #[must_use]
    pub fn axis(self, natural: usize, rank: usize) -> usize {
        match (self.order, natural) {
            (Order::Natural, _) | (_, 0) => natural,
            (Order::ChannelsFirst, _) if natural + 1 == rank => 1,
            (Order::ChannelsFirst, _) => natural + 1,
        }
    }
}

/// Positions of the natural dimensions in the other order: 0, 3, 1, 2.
#[must_use]
pub fn to_channels_first(rank: usize) -> Vec<usize> {
    let channels = rank.saturating_sub(1);
    [0, channels].into_iter().chain(1..channels).take(rank).collect()
}

/// Returns the positions of the channels-first dimensions in the natural order: 0, 2, 3, 1.
#[must_use]
pub fn to_natural(rank: usize) -> Vec<usize> {
    [0].into_iter().chain(2..rank).chain([1]).take(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orders_undo_each_other() {
        assert_eq!(to_channels_first(4), [0, 3, 1, 2]);
        assert_eq!(to_natural(4), [0, 2, 3, 1]);
        for rank in 2..6 {
            let (there, back) = (to_channels_first(rank), to_natural(rank));
            let both: Vec<usize> = back.iter().map(|axis| there[*axis]).collect();
            assert_eq!(both, (0..rank).collect::<Vec<_>>());
            let placed = Placed::channels_first(ValueId(0));
            for (to, from) in there.iter().enumerate() {
                assert_eq!(placed.axis(*from, rank), to);
            }
        }
    }
}
