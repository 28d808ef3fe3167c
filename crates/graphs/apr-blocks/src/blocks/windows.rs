//! Attention within windows of a map (Swin: Liu et al. 2021, <https://arxiv.org/abs/2103.14030>).

use apr_core::{Error, Result};
use apr_graph::{Constant, ValueId};

use super::attention::Given;
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Score term for a position of another region.
const APART: f64 = -100.0;

/// Maximum number of positions along a side of a map: an image of 4,096 pixels in patches of 4.
const MAX_SIDE: u64 = 1024;

/// Largest side of a window, whose pairs of places are a constant; models have up to 12.
const MAX_WINDOW: u64 = 32;

/// A map, and how a layer cuts it into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    height: u64,
    width: u64,
    /// Side of a window.
    side: u64,
    /// Shift of the windows, in positions.
    shift: u64,
    channels: u64,
}

impl Windows {
    /// Options `window_side` and `shift`, of a map of this size with option `hidden` channels.
    /// Windows that are as large as the map are not shifted.
    ///
    /// # Errors
    /// E003 for windows that are larger than the map: their positions fit no other size.
    pub(crate) fn of(place: BlockPosition<'_>, [height, width]: [u64; 2]) -> Result<Self> {
        let (side, channels) = (place.size("window_side")?, place.size("hidden")?);
        let smaller = height.min(width);
        let is_too_large = height.max(width) > MAX_SIDE || side > MAX_WINDOW;
        if side == 0 || side > smaller || is_too_large {
            return Err(Error::version(format!(
                "a map of {height} x {width} can't be cut into windows of {side} x {side}"
            )));
        }
        let shift = if side == smaller { 0 } else { place.size("shift")? };
        if shift >= side {
            return Err(Error::format(format!("windows of {side} are shifted by {shift}")));
        }
        Ok(Self { height, width, side, shift, channels })
    }

    /// Sides of the map that is made of whole windows.
    fn whole(self) -> [u64; 2] {
        [self.height, self.width].map(|length| length.div_ceil(self.side) * self.side)
    }

    fn area(self) -> u64 {
        self.side * self.side
    }

    /// For each pair of places of a window, the row of the table of positions, `[area * area]`:
    /// `2 side - 1` distances down, and as many to the right.
    fn distances(self) -> Vec<i64> {
        let side = signed(self.side);
        let places = || (0..side).flat_map(|row| (0..side).map(move |column| (row, column)));
        let row = |(down, right): (i64, i64)| (down + side - 1) * (2 * side - 1) + right + side - 1;
        places()
            .flat_map(|from| places().map(move |to| row((from.0 - to.0, from.1 - to.1))))
            .collect()
    }

    /// Each distance down and to the right of two places of a window, `[distances, 2]`, in the
    /// order of the table: as a part of the longest in a window of side `trained`, eight of them to
    /// a unit, and then by their logarithms.
    #[expect(clippy::cast_possible_truncation, reason = "graphs compute in single precision")]
    fn coordinates(self, trained: u64) -> Vec<f32> {
        let side = signed(self.side);
        let longest = signed(trained.saturating_sub(1).max(1)) as f64;
        let coordinate = |distance: i64| {
            let part = distance as f64 / longest * 8.0;
            (part.signum() * (part.abs() + 1.0).log2() / 3.0) as f32
        };
        (1 - side..side)
            .flat_map(|down| (1 - side..side).flat_map(move |right| [down, right]))
            .map(|distance| if distance == 0 { 0.0 } else { coordinate(distance) })
            .collect()
    }

    /// Returns the region number of each position of each window, `[windows * area]`.
    ///
    /// Positions that a shift brings together from two sides of the map belong to different regions
    /// and do not attend to each other.
    fn regions(self) -> Vec<i64> {
        let [height, width] = self.whole();
        let region = |at: u64, length: u64| {
            i64::from(at >= length - self.side) + i64::from(at >= length - self.shift)
        };
        let starts = |length: u64| (0..length / self.side).map(move |window| window * self.side);
        let mut regions = Vec::new();
        for (top, left) in starts(height).flat_map(|top| starts(width).map(move |left| (top, left)))
        {
            for row in top..top + self.side {
                let right = (left..left + self.side).map(|column| region(column, width));
                regions.extend(right.map(|right| 3 * region(row, height) + right));
            }
        }
        regions
    }
}

impl Writer<'_> {
    /// Rows of the table of positions for each pair of places, `[area, area]`.
    pub(crate) fn window_distances(&mut self, windows: Windows) -> ValueId {
        let area = signed(windows.area());
        let distances = self.ints(&windows.distances());
        self.reshape("distances", distances, &[area, area])
    }

    /// Returns the score terms that separate positions brought together by a shift, `[windows, 1,
    /// area, area]`, or `None` if the windows are not shifted. Option `window_apart`: the term.
    pub(crate) fn window_mask(
        &mut self,
        place: BlockPosition<'_>,
        windows: Windows,
    ) -> Result<Option<ValueId>> {
        if windows.shift == 0 {
            return Ok(None);
        }
        let apart = place.number_or_none("window_apart")?.unwrap_or(APART);
        let area = signed(windows.area());
        let regions = self.ints(&windows.regions());
        let row = self.reshape("regions", regions, &[-1, 1, 1, area]);
        let column = self.transpose("regions_transposed", row, [0, 1, 3, 2]);
        let together = self.make("Equal", "together", [row, column]);
        let (zero, apart) = (self.float(0.0), self.float(apart));
        Ok(Some(self.make("Where", "mask", [together, zero, apart])))
    }

    /// The term of the scores by the distance of the places, `[1, heads, area, area]`: from the
    /// table `relative`, or `16 sigmoid(down(relu(up(coordinates))))` of two linear layers,
    /// `relative_up` and `relative_down` (Swin V2). Option `trained_window`: the side of windows in
    /// training, if that is another one.
    fn window_bias(
        &mut self,
        place: BlockPosition<'_>,
        windows: Windows,
        distances: ValueId,
    ) -> Result<ValueId> {
        let Some(up) = place.module_or_none("relative_up") else {
            let table = place.name("relative").unwrap_or_default();
            return self.relative_bias(distances, &table);
        };
        let down = place.module("relative_down")?;
        let trained = place.size_or_none("trained_window")?.filter(|side| *side > 0);
        self.scope("relative", |w| {
            let coordinates = windows.coordinates(trained.unwrap_or(windows.side));
            let coordinates = w.body().constant(Constant::floats(&coordinates));
            let coordinates = w.reshape("coordinates", coordinates, &[-1, 2]);
            let inner = w.outer_linear("up", coordinates, &up)?;
            let inner = w.make("Relu", "activation", [inner]);
            let table = w.outer_linear("down", inner, &down)?;
            let table = w.make("Sigmoid", "share", [table]);
            let table = w.scaled("table", table, 16.0);
            let by_pair = w.make("Gather", "bias_by_pair", [table, distances]);
            let by_head = w.transpose("bias_by_head", by_pair, [2, 0, 1]);
            Ok(w.unsqueeze("bias", by_head, &[0]))
        })
    }

    /// `x + attention(norm(x))` within windows, then the same with the feed-forward network. `x` is
    /// `[batch, height * width, channels]`. Scores have a term by the distance of the places. Where
    /// the checkpoint has an `attention_post_norm` and a `mlp_post_norm`, norms stand between the
    /// blocks and their sums instead.
    pub(crate) fn window_layer(
        &mut self,
        place: BlockPosition<'_>,
        windows: Windows,
        x: ValueId,
        distances: ValueId,
        mask: Option<ValueId>,
    ) -> Result<ValueId> {
        let norm = Norm::of(place)?;
        let post_norms = ["attention_post_norm", "mlp_post_norm"];
        let [after_attention, after_mlp] = post_norms.map(|part| place.module_or_none(part));
        let normal = match &after_attention {
            Some(_) => x,
            None => self.norm("attention_norm", norm, x, &place.module("attention_norm")?)?,
        };
        let cut = self.scope("windows", |w| w.cut_into(windows, normal));
        let bias = self.window_bias(place, windows, distances)?;
        let mask = match mask {
            Some(mask) => self.scope("mask", |w| {
                let heads = signed(place.size("heads")?);
                let area = signed(windows.area());
                let sum = w.make("Add", "bias_and_mask", [bias, mask]);
                // The windows of each picture in the batch.
                let batch = w.length("batch", x, 0);
                let ones = w.ints(&[1, 1, 1, 1]);
                let shape = w.concat("shape", &[batch, ones], 0);
                let sum = w.unsqueeze("of_a_picture", sum, &[0]);
                let all = w.make("Expand", "of_all_pictures", [sum, shape]);
                Ok::<_, Error>(w.reshape("by_window", all, &[-1, heads, area, area]))
            })?,
            None => bias,
        };
        let given = Given { mask: Some(mask), ..Given::NOTHING };
        let (made, _) = self.attention(place, cut, None, given)?;
        let made = self.scope("map", |w| w.put_together(windows, made));
        let made = self.norm_part(norm, "attention_post_norm", made, after_attention)?;
        let x = self.make("Add", "attention_sum", [x, made]);

        let normal = match &after_mlp {
            Some(_) => x,
            None => self.norm("mlp_norm", norm, x, &place.module("mlp_norm")?)?,
        };
        let made = self.feed_forward(place, "mlp", normal)?;
        let made = self.norm_part(norm, "mlp_post_norm", made, after_mlp)?;
        Ok(self.make("Add", "mlp_sum", [x, made]))
    }

    /// Windows of a map, `[batch * windows, area, channels]`.
    fn cut_into(&mut self, windows: Windows, x: ValueId) -> ValueId {
        let Windows { height, width, side, shift, channels } = windows;
        let [whole_height, whole_width] = windows.whole();
        let map = self.reshape("map", x, &[0, signed(height), signed(width), signed(channels)]);
        let map = self.padded("padded", map, whole_height - height, whole_width - width);
        let map = self.rolled("shifted", map, shift, shift);
        let (rows, columns) = (signed(whole_height / side), signed(whole_width / side));
        let (side, channels) = (signed(side), signed(channels));
        let split = self.reshape("split", map, &[0, rows, side, columns, side, channels]);
        let split = self.transpose("by_window", split, [0, 1, 3, 2, 4, 5]);
        self.reshape("windows", split, &[-1, side * side, channels])
    }

    /// The map of its windows again, `[batch, height * width, channels]`.
    fn put_together(&mut self, windows: Windows, x: ValueId) -> ValueId {
        let Windows { height, width, side, shift, channels } = windows;
        let whole = windows.whole();
        let [rows, columns] = whole.map(|length| signed(length / side));
        let [whole_height, whole_width] = whole;
        let (side, channels) = (signed(side), signed(channels));
        let split = self.reshape("split", x, &[-1, rows, columns, side, side, channels]);
        let split = self.transpose("by_row", split, [0, 1, 3, 2, 4, 5]);
        let sides = [-1, signed(whole_height), signed(whole_width), channels];
        let mut map = self.reshape("whole", split, &sides);
        if shift > 0 {
            map = self.rolled("shifted_back", map, whole_height - shift, whole_width - shift);
        }
        if whole_height > height {
            map = self.slice("rows", map, 1, 0, signed(height));
        }
        if whole_width > width {
            map = self.slice("columns", map, 2, 0, signed(width));
        }
        self.reshape("flat", map, &[0, signed(height * width), channels])
    }

    /// A map, `[batch, height, width, channels]`, with rows and columns of zeros at its end.
    fn padded(&mut self, name: &str, x: ValueId, rows: u64, columns: u64) -> ValueId {
        if rows == 0 && columns == 0 {
            return x;
        }
        let pads = self.ints(&[0, 0, 0, 0, 0, signed(rows), signed(columns), 0]);
        let zero = self.float(0.0);
        self.make("Pad", name, [x, pads, zero])
    }

    /// Returns the map rolled by this number of rows and columns; the ones cut off at the start are
    /// moved to the end.
    fn rolled(&mut self, name: &str, x: ValueId, rows: u64, columns: u64) -> ValueId {
        self.scope(name, |w| {
            let mut map = x;
            for (axis, by) in [(1, rows), (2, columns)] {
                if by > 0 {
                    let later = w.slice("later", map, axis, signed(by), i64::MAX);
                    let before = w.slice("before", map, axis, 0, signed(by));
                    map = w.concat("rolled", &[later, before], axis);
                }
            }
            map
        })
    }

    /// Two by two places of a map as one, through a norm and a linear layer: `[batch, places / 4, 2
    /// * channels]`. The norm is behind the linear layer where it is called
    /// `downsampling_post_norm`.
    pub(crate) fn merged_places(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        [height, width]: [u64; 2],
    ) -> Result<ValueId> {
        let channels = signed(place.size("hidden")?);
        let map = self.reshape("map", x, &[0, signed(height), signed(width), channels]);
        let map = self.padded("padded", map, height % 2, width % 2);
        let (rows, columns) = (signed(height.div_ceil(2)), signed(width.div_ceil(2)));
        let split = self.reshape("split", map, &[0, rows, 2, columns, 2, channels]);
        // Of the four, those of the left column come first.
        let split = self.transpose("by_place", split, [0, 1, 3, 4, 2, 5]);
        let four = self.reshape("four", split, &[0, rows * columns, 4 * channels]);
        let norm = Norm::of(place)?.with_eps(1e-5);
        if let Some(module) = place.module_or_none("downsampling_post_norm") {
            let dense = self.outer_linear("dense", four, &place.module("downsampling")?)?;
            return self.norm("norm", norm, dense, &module);
        }
        let normal = self.norm("norm", norm, four, &place.module("downsampling_norm")?)?;
        self.outer_linear("dense", normal, &place.module("downsampling")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_a_shift_brought_together_are_apart() {
        let windows = Windows { height: 4, width: 3, side: 2, shift: 1, channels: 1 };
        assert_eq!(windows.whole(), [4, 4]);
        // Rows 0, 1 are one region, 2 another and 3 a third; columns likewise.
        let regions = [0, 0, 0, 0, 1, 2, 1, 2, 3, 3, 6, 6, 4, 5, 7, 8];
        assert_eq!(windows.regions(), regions);
    }

    /// Compares with `Swinv2SelfAttention.create_coords_table_and_index` of transformers 5.24.
    #[test]
    fn coordinates_match_transformers() {
        let windows = Windows { height: 2, width: 2, side: 2, shift: 0, channels: 1 };
        let near = |found: Vec<f32>, one: f32| {
            let expected: Vec<f32> = (0..9)
                .flat_map(|at| [(at / 3 - 1) as f32 * one, (at % 3 - 1) as f32 * one])
                .collect();
            let is_near = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-6;
            assert!(found.iter().zip(&expected).all(is_near), "{found:?}, not {expected:?}");
        };
        near(windows.coordinates(2), 1.056_641_7);
        near(windows.coordinates(5), 0.528_320_8);
    }

    #[test]
    fn distances_are_rows_of_the_table() {
        let windows = Windows { height: 2, width: 2, side: 2, shift: 0, channels: 1 };
        let distances = [4, 3, 1, 0, 5, 4, 2, 1, 7, 6, 4, 3, 8, 7, 5, 4];
        assert_eq!(windows.distances(), distances);
    }
}
