//! Operators that make images larger or smaller.

use apr_graph::Node;
use apr_lower::{Placed, Writer};

use super::Lowering;

impl Lowering<'_> {
    pub(super) fn image(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "DepthToSpace" => self.blocks(node, "DepthToSpace"),
            "SpaceToDepth" => self.blocks(node, "SpaceToDepth"),
            "ResizeBilinear" => self.resize(node, "linear"),
            "ResizeNearestNeighbor" => self.resize(node, "nearest"),
            "Pad" | "PadV2" => self.pad(node, "constant"),
            "MirrorPad" => match node.text("mode")? {
                "REFLECT" => self.pad(node, "reflect"),
                _ => None,
            },
            _ => None,
        }
    }

    /// Blocks of an image to channels, or back.
    fn blocks(&mut self, node: &Node, op: &str) -> Option<()> {
        let (x, order) = self.image_input(node, 0)?;
        let (_, name) = self.output(node)?;
        let name = Writer::name_in(&name, order, 4);
        let size = node.int("block_size")?;
        let y = self.out.main.op(op, [x]).attribute("blocksize", size).output(&name);
        self.set(node, y, order)
    }

    /// An image of another size, in floats.
    fn resize(&mut self, node: &Node, mode: &str) -> Option<()> {
        let is_set = |name: &str| node.int(name).unwrap_or_default() != 0;
        let (corners, half) = (is_set("align_corners"), is_set("half_pixel_centers"));
        let coordinates = match (corners, half) {
            (true, _) => "align_corners",
            (false, true) => "half_pixel",
            (false, false) => "asymmetric",
        };
        let rounding = if corners || half { "round_prefer_ceil" } else { "floor" };
        let sizes = self.ints(node, 1)?;
        (sizes.len() == 2 && self.element(node, 0)?.is_float()).then_some(())?;
        let (x, order) = self.image_input(node, 0)?;
        let (_, name) = self.output(node)?;
        let name = Writer::name_in(&name, order, 4);
        let sizes = self.out.main.ints(&sizes);
        let made = self.out.main.op("Resize", [x]).optional(None).optional(None);
        let made = made
            .optional(Some(sizes))
            .attribute("axes", [2, 3])
            .attribute("mode", mode)
            .attribute("coordinate_transformation_mode", coordinates)
            .attribute("nearest_mode", rounding);
        let y = made.output(&name);
        self.set(node, y, order)
    }

    fn pad(&mut self, node: &Node, mode: &str) -> Option<()> {
        let rank = self.rank(node, 0)?;
        let paddings = self.ints(node, 1)?;
        (paddings.len() == 2 * rank).then_some(())?;
        let (ids, order, name) = self.in_one_order(node, &[0])?;
        let placed = Placed { id: ids[0], order };
        let mut pads = vec![0; 2 * rank];
        for axis in 0..rank {
            let there = placed.axis(axis, rank);
            pads[there] = paddings[2 * axis];
            pads[there + rank] = paddings[2 * axis + 1];
        }
        let value = match &*node.op.name {
            "PadV2" => Some(self.natural(node, 2)?),
            _ => None,
        };
        let pads = self.out.main.ints(&pads);
        let made = apr_lower::with(self.out.main.op("Pad", [placed.id, pads]), value);
        let y = made.attribute("mode", mode).output(&name);
        self.set(node, y, order)
    }
}
