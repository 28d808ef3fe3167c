//! Learned positions on a grid, and means over it.

use apr_core::{Error, Result};
use apr_graph::{ElementType, ValueId, View};

use crate::kinds::vision;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Maximum number of patches along a side for a constant table of pairs; models have up to 24.
const MAX_SIDE: u64 = 32;

impl Writer<'_> {
    /// For each pair of vectors of a picture the row of the table of distances, `[vectors,
    /// vectors]`. Of two patches, it is how far the first is below and to the right of the second.
    /// The last three rows are of the class and a patch, of a patch and the class, and of the class
    /// and itself. `sides`: patches below each other, and next to each other.
    pub(crate) fn grid_distances(&mut self, sides: [u64; 2], table: &str) -> Result<ValueId> {
        let [rows, columns] = sides.map(signed);
        if !sides.iter().all(|side| (1..=MAX_SIDE).contains(side)) {
            let message = format!("distances of {rows} x {columns} patches are not supported");
            return Err(Error::version(message).for_tensor(table));
        }
        let per_row = 2 * columns - 1;
        let count = (2 * rows - 1) * per_row;
        let dims = self.model.using(table)?;
        if dims.first().copied().map(signed) != Some(count + 3) {
            let message = format!("expected the relative distances of {rows} x {columns} patches");
            return Err(Error::format(message).for_tensor(table));
        }

        let places = || (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut distances = vec![count + 2];
        distances.extend(places().map(|_| count));
        for (row, column) in places() {
            distances.push(count + 1);
            distances.extend(places().map(|(other_row, other_column)| {
                (row - other_row + rows - 1) * per_row + column - other_column + columns - 1
            }));
        }
        let vectors = rows * columns + 1;
        let distances = self.ints(&distances);
        Ok(self.reshape("distances", distances, &[vectors, vectors]))
    }

    /// Returns the position embeddings for the patches of an image of any size, `[1, 1 + patches,
    /// hidden]`.
    ///
    /// The first embedding of the checkpoint is the class token's. The others are a map that is
    /// resized to the size of `patches`, `[batch, hidden, rows, columns]`. Option
    /// `position_resize`: `cubic`, like `torch.nn.functional.interpolate` with `bicubic` (Keys
    /// 1981, with a = -0.75), or `smooth_cubic`, which adds `antialias`. For an image of the
    /// trained size, the embeddings are unchanged. `corners`: there is none of a class token,
    /// `[patches, hidden]`, and corners stay corners, as with `bilinear` and `align_corners`.
    pub(crate) fn resized_positions(
        &mut self,
        place: BlockPosition<'_>,
        tensor: &str,
        layer: Option<u64>,
        patches: ValueId,
    ) -> Result<ValueId> {
        let is_smooth = match place.text("position_resize")?.as_str() {
            "cubic" => false,
            "smooth_cubic" => true,
            "corners" => return self.positions_between_corners(tensor, patches),
            other => return Err(place.unknown("position_resize", other)),
        };

        let dims = self.model.using(tensor)?;
        let wrong = || {
            Error::format("expected position embeddings of shape [1, patches, hidden]")
                .for_tensor(tensor.to_owned())
        };
        let (count, hidden, first) = match (dims.as_slice(), layer) {
            (&[1, count, hidden], None) => (count, hidden, Vec::new()),
            (&[layers, 1, count, hidden], Some(layer)) if layer < layers => {
                let slice = View::Slice { axis: 0, start: layer, len: 1 };
                (count, hidden, vec![slice, View::Reshaped(vec![1, count, hidden])])
            }
            _ => return Err(wrong()),
        };
        let behind = vision::detections(place)?;
        let places = count.saturating_sub(1 + behind);
        let sides = match place.states("position_sides") {
            true => place.sizes("position_sides")?,
            false => vec![places.isqrt(); 2],
        };
        let &[rows, columns] = sides.as_slice() else { return Err(wrong()) };
        let is_square = rows == columns;
        if rows == 0 || rows.checked_mul(columns) != Some(places) || is_smooth && !is_square {
            return Err(Error::version("positions of images that are not square can't be resized")
                .for_tensor(tensor));
        }

        let part = |w: &mut Self, start: u64, len: u64| {
            let slice = View::Slice { axis: 1, start, len };
            let views = first.iter().cloned().chain([slice]).collect();
            w.viewed(tensor, views, vec![1, len, hidden])
        };
        let class = part(self, 0, 1)?;
        let views = first.iter().cloned().chain([
            View::Slice { axis: 1, start: 1, len: places },
            View::Reshaped(vec![1, rows, columns, hidden]),
            View::Transposed(vec![0, 3, 1, 2]),
        ]);
        let map = self.viewed(tensor, views.collect(), vec![1, hidden, rows, columns])?;
        let last = match behind {
            0 => None,
            behind => Some(part(self, 1 + places, behind)?),
        };
        Ok(self.scope("positions", |w| {
            let map = match is_smooth {
                true => w.smoothly_resized(map, patches, rows),
                false => w.resized(map, patches, hidden),
            };
            let rows = w.reshape("rows", map, &[0, signed(hidden), -1]);
            let rows = w.transpose("by_patch", rows, [0, 2, 1]);
            let all: Vec<ValueId> = [class, rows].into_iter().chain(last).collect();
            w.concat("with_class", &all, 1)
        }))
    }

    /// Position embeddings of a square of patches, resized linearly so that corners stay corners,
    /// `[1, patches, hidden]`.
    fn positions_between_corners(&mut self, tensor: &str, patches: ValueId) -> Result<ValueId> {
        let dims = self.model.using(tensor)?;
        let wrong = || {
            Error::format("expected position embeddings of a square of patches").for_tensor(tensor)
        };
        let &[count, hidden] = dims.as_slice() else { return Err(wrong()) };
        let side = count.isqrt();
        if side == 0 || side * side != count {
            return Err(wrong());
        }
        let views =
            vec![View::Reshaped(vec![1, side, side, hidden]), View::Transposed(vec![0, 3, 1, 2])];
        let map = self.viewed(tensor, views, vec![1, hidden, side, side])?;
        let hidden = signed(hidden);
        Ok(self.scope("positions", |w| {
            let shape = w.op("Shape", [patches]).attribute("start", 2).output("sides");
            let front = w.ints(&[1, hidden]);
            let shape = w.concat("shape", &[front, shape], 0);
            let node = w.op("Resize", [map]).optional(None).optional(None).optional(Some(shape));
            let node = node.attribute("mode", "linear");
            let node = node.attribute("coordinate_transformation_mode", "align_corners");
            let map = node.output("resized");
            let rows = w.reshape("rows", map, &[0, hidden, -1]);
            w.transpose("by_patch", rows, [0, 2, 1])
        }))
    }

    /// A map with as many places as `patches` has.
    fn resized(&mut self, map: ValueId, patches: ValueId, hidden: u64) -> ValueId {
        let shape = self.op("Shape", [patches]).attribute("start", 2).output("sides");
        let front = self.ints(&[1, signed(hidden)]);
        let shape = self.concat("shape", &[front, shape], 0);
        let node = self.op("Resize", [map]).optional(None).optional(None).optional(Some(shape));
        let node = node.attribute("mode", "cubic").attribute("cubic_coeff_a", -0.75_f32);
        let node = node.attribute("coordinate_transformation_mode", "half_pixel");
        node.output("resized")
    }

    /// Resizes a map with a kernel that is wider along sides where the map becomes smaller.
    ///
    /// It is a product with a matrix on either side, because `Resize` can antialias only from opset
    /// 18.
    fn smoothly_resized(&mut self, map: ValueId, patches: ValueId, side: u64) -> ValueId {
        let rows = self.length("rows_of_patches", patches, 2);
        let rows = self.scope("row_weights", |w| w.smooth_weights(rows, side));
        let columns = self.length("columns_of_patches", patches, 3);
        let columns = self.scope("column_weights", |w| w.smooth_weights(columns, side));
        let columns = self.transpose("columns_transposed", columns, [1, 0]);
        let map = self.make("MatMul", "by_row", [rows, map]);
        self.make("MatMul", "resized", [map, columns])
    }

    /// Returns the weight of each of `side` positions for each of `count` positions along one axis,
    /// `[count, side]`.
    ///
    /// The weight is a cubic function of the distance between the middles of two positions (Keys
    /// 1981, with a = -0.5). A distance of 1 is the distance between neighbours in the coarser
    /// grid.
    fn smooth_weights(&mut self, count: ValueId, side: u64) -> ValueId {
        // Range takes numbers without dimensions.
        let scalar = self.ints(&[]);
        let count = self.make("Reshape", "count", [count, scalar]);
        let side = self.int(signed(side));
        let to = self.middles("to", count);
        let from = self.middles("from", side);
        let count = self.cast("count_as_number", count, ElementType::F32);
        let side = self.cast("side_as_number", side, ElementType::F32);
        let ratio = self.make("Div", "ratio", [side, count]);
        let to = self.make("Mul", "to_in_places", [to, ratio]);
        let to = self.unsqueeze("to_by_row", to, &[1]);
        let one = self.float(1.0);
        let reach = self.make("Max", "reach", [ratio, one]);
        let distance = self.make("Sub", "difference", [from, to]);
        let distance = self.make("Abs", "distance", [distance]);
        let distance = self.make("Div", "distance_in_reach", [distance, reach]);

        let near = self.polynomial("near", distance, [1.5, -2.5, 0.0, 1.0]);
        let far = self.polynomial("far", distance, [-0.5, 2.5, -4.0, 2.0]);
        let (two, zero) = (self.float(2.0), self.float(0.0));
        let is_near = self.make("Less", "is_near", [distance, one]);
        let is_seen = self.make("Less", "is_seen", [distance, two]);
        let far = self.make("Where", "far_or_unseen", [is_seen, far, zero]);
        let weights = self.make("Where", "weights", [is_near, near, far]);
        let sum = self.sum("sum", weights, 1);
        self.make("Div", "shares", [weights, sum])
    }

    /// Middles of places in a row, 0.5 and so on.
    fn middles(&mut self, name: &str, count: ValueId) -> ValueId {
        self.scope(name, |w| {
            let (zero, one) = (w.int(0), w.int(1));
            let row = w.make("Range", "row", [zero, count, one]);
            let row = w.cast("row_as_numbers", row, ElementType::F32);
            let half = w.float(0.5);
            w.make("Add", "middles", [row, half])
        })
    }

    /// Returns a polynomial of each element, with the factors starting at the highest power.
    fn polynomial(&mut self, name: &str, x: ValueId, factors: [f64; 4]) -> ValueId {
        self.scope(name, |w| {
            let [first, others @ ..] = factors;
            let mut value = w.float(first);
            for factor in others {
                let factor = w.float(factor);
                let product = w.make("Mul", "product", [value, x]);
                value = w.make("Add", "sum", [product, factor]);
            }
            value
        })
    }

    /// The mean of the vectors of a picture's patches, `[batch, hidden]`.
    pub(crate) fn mean_vector(&mut self, x: ValueId) -> ValueId {
        let turned = self.transpose("by_channel", x, [0, 2, 1]);
        let mean = self.mean("mean", turned);
        let axis = self.ints(&[-1]);
        self.make("Squeeze", "mean_vector", [mean, axis])
    }
}
