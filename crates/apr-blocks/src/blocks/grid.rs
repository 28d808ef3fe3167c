//! Learned positions on a grid, and means over it.

use apr_core::{Error, Result};
use apr_graph::{ValueId, View};

use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

impl Writer<'_> {
    /// Positions of the patches of a picture of any size, `[1, 1 + patches, hidden]`: those of the
    /// checkpoint, the first of which is the class's, as a map that is brought to as many places
    /// as `patches`, `[batch, hidden, rows, columns]`, has. Option `position_resize`: `cubic`, as
    /// `torch.nn.functional.interpolate` with `bicubic` (Keys 1981, with a = -0.75). A picture of
    /// the size that the model was trained with gets them as they are.
    pub(crate) fn resized_positions(
        &mut self,
        place: BlockPosition<'_>,
        tensor: &str,
        patches: ValueId,
    ) -> Result<ValueId> {
        match place.text("position_resize")?.as_str() {
            "cubic" => {}
            other => return Err(place.unknown("position_resize", other)),
        }

        let dims = self.model.using(tensor)?;
        let &[1, count, hidden] = dims.as_slice() else {
            return Err(Error::format("these are no positions of patches").for_tensor(tensor));
        };
        let places = count.saturating_sub(1);
        let side = places.isqrt();
        if side == 0 || side * side != places {
            return Err(Error::version("positions of images that are not square can't be resized")
                .for_tensor(tensor));
        }

        let class = View::Slice { axis: 1, start: 0, len: 1 };
        let class = self.viewed(tensor, vec![class], vec![1, 1, hidden])?;
        let views = vec![
            View::Slice { axis: 1, start: 1, len: places },
            View::Reshaped(vec![1, side, side, hidden]),
            View::Transposed(vec![0, 3, 1, 2]),
        ];
        let map = self.viewed(tensor, views, vec![1, hidden, side, side])?;
        Ok(self.scope("positions", |w| {
            let shape = w.op("Shape", [patches]).attribute("start", 2).output("sides");
            let front = w.ints(&[1, signed(hidden)]);
            let shape = w.concat("shape", &[front, shape], 0);
            let node = w.op("Resize", [map]).optional(None).optional(None).optional(Some(shape));
            let node = node.attribute("mode", "cubic").attribute("cubic_coeff_a", -0.75_f32);
            let node = node.attribute("coordinate_transformation_mode", "half_pixel");
            let map = node.output("resized");
            let rows = w.reshape("rows", map, &[0, signed(hidden), -1]);
            let rows = w.transpose("by_patch", rows, [0, 2, 1]);
            w.concat("with_class", &[class, rows], 1)
        }))
    }

    /// The mean of the vectors of a picture's patches, `[batch, hidden]`.
    pub(crate) fn mean_vector(&mut self, x: ValueId) -> ValueId {
        let turned = self.transpose("by_channel", x, [0, 2, 1]);
        let mean = self.mean("mean", turned);
        let axis = self.ints(&[-1]);
        self.make("Squeeze", "mean_vector", [mean, axis])
    }
}
