//! Convolutions and pools over images.

use apr_graph::{Node, ValueId, ValueOrigin, View};

use apr_lower::{Order, Padding, Window, with};

use super::layout::Lowering;

/// Sizes over height and width.
type Sizes = [i64; 2];

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn image(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "CONV_2D" => self.convolution(node, false),
            "DEPTHWISE_CONV_2D" => self.convolution(node, true),
            "AVERAGE_POOL_2D" => self.pool(node, "AveragePool"),
            "MAX_POOL_2D" => self.pool(node, "MaxPool"),
            "TRANSPOSE_CONV" => self.transposed(node),
            "RESIZE_BILINEAR" => self.resize(node, "linear"),
            "RESIZE_NEAREST_NEIGHBOR" => self.resize(node, "nearest"),
            "DEPTH_TO_SPACE" => self.blocks(node, "DepthToSpace"),
            "SPACE_TO_DEPTH" => self.blocks(node, "SpaceToDepth"),
            _ => None,
        }
    }

    fn convolution(&mut self, node: &Node, is_depthwise: bool) -> Option<()> {
        let (input, kernel) = (node.input(0)?, node.input(1)?);
        (self.rank(input)? == 4 && self.rank(kernel)? == 4).then_some(())?;
        let channels = self.size(input, 3)?;
        // [out, height, width, in], or [1, height, width, out] of as many groups as channels.
        let (order, group) = if is_depthwise {
            (self.size(kernel, 0)? == 1).then_some(())?;
            ([3, 0, 1, 2], channels)
        } else {
            let inputs = self.size(kernel, 3)?;
            (inputs > 0 && channels.is_multiple_of(inputs)).then_some(())?;
            ([0, 3, 1, 2], channels / inputs)
        };
        let x = self.floats(node, 0, Order::ChannelsFirst)?;
        let w = self.kernel(node, &order)?;
        let bias = match node.input(2) {
            Some(_) => Some(self.floats(node, 2, Order::Natural)?),
            None => None,
        };
        let size = [int(self.size(kernel, 1)?)?, int(self.size(kernel, 2)?)?];
        let strides = [node.int("stride_h")?, node.int("stride_w")?];
        let dilations = [
            node.int("dilation_h_factor").unwrap_or(1),
            node.int("dilation_w_factor").unwrap_or(1),
        ];
        let pads = self.pads(node, size, strides, dilations)?;
        let name = self.name(node, Order::ChannelsFirst)?;
        let conv = with(self.out.main.op("Conv", [x, w]), bias);
        let conv = conv
            .attribute("group", int(group)?)
            .attribute("kernel_shape", size)
            .attribute("strides", strides)
            .attribute("dilations", dilations);
        let y = pads.add(conv).output(&name);
        self.end(node, y, Order::ChannelsFirst)
    }

    /// The kernel with its dimensions in another order.
    fn kernel(&mut self, node: &Node, order: &[usize; 4]) -> Option<ValueId> {
        let id = node.input(1)?;
        let value = self.from.value(id);
        let moved = |axis: usize| order.iter().position(|dim| *dim == axis).unwrap_or(axis);
        if let ValueOrigin::Weight(weight) = &value.origin {
            let dims: Option<Vec<u64>> = value.shape()?.iter().map(apr_graph::Dim::size).collect();
            let (dims, element) = (dims?, value.element()?);
            let shape = order.map(|dim| dims[dim]);
            let views = vec![View::Transposed(order.to_vec())];
            let own = self.out.main.viewed(&weight.tensor, views, element, shape);
            return self.dequantized(node, 1, own, &moved);
        }
        let natural = self.value(id, Order::Natural)?;
        let perm: Vec<i64> = order.iter().map(|dim| *dim as i64).collect();
        let name = format!("{}/kernel", self.output(node)?.1);
        let turned = self.out.main.op("Transpose", [natural]).attribute("perm", perm).output(&name);
        self.dequantized(node, 1, turned, &moved)
    }

    /// A transposed convolution: its sizes, its kernel, what it is of, and a bias.
    fn transposed(&mut self, node: &Node) -> Option<()> {
        let (kernel, input) = (node.input(1)?, node.input(2)?);
        let sizes = self.ints(node, 0)?;
        (sizes.len() == 4 && self.rank(kernel)? == 4 && self.rank(input)? == 4).then_some(())?;
        let size = [int(self.size(kernel, 1)?)?, int(self.size(kernel, 2)?)?];
        let strides = [node.int("stride_h")?, node.int("stride_w")?];
        let (mut pads, mut more) = ([0; 4], [0; 2]);
        for axis in 0..2 {
            let len = int(self.size(input, axis + 1)?)?;
            let whole = (len - 1).checked_mul(strides[axis])?.checked_add(size[axis])?;
            let cut = whole.checked_sub(sizes[axis + 1])?;
            // What is cut off, or what is added at the end.
            pads[axis] = cut.max(0) / 2;
            pads[axis + 2] = cut.max(0) - pads[axis];
            more[axis] = (-cut).max(0);
        }
        let x = self.floats(node, 2, Order::ChannelsFirst)?;
        let w = self.kernel(node, &[3, 0, 1, 2])?;
        let bias = match node.input(3) {
            Some(_) => Some(self.floats(node, 3, Order::Natural)?),
            None => None,
        };
        let name = self.name(node, Order::ChannelsFirst)?;
        let conv = with(self.out.main.op("ConvTranspose", [x, w]), bias);
        let conv = conv
            .attribute("kernel_shape", size)
            .attribute("strides", strides)
            .attribute("pads", pads)
            .attribute("output_padding", more);
        let y = conv.output(&name);
        self.end(node, y, Order::ChannelsFirst)
    }

    /// An image of another size.
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
        (sizes.len() == 2).then_some(())?;
        let x = self.floats(node, 0, Order::ChannelsFirst)?;
        let sizes = self.out.main.ints(&sizes);
        let name = self.name(node, Order::ChannelsFirst)?;
        let resize =
            self.out.main.op("Resize", [x]).optional(None).optional(None).optional(Some(sizes));
        let resize = resize
            .attribute("axes", [2, 3])
            .attribute("mode", mode)
            .attribute("coordinate_transformation_mode", coordinates)
            .attribute("nearest_mode", rounding);
        let y = resize.output(&name);
        self.end_plain(node, y, Order::ChannelsFirst)
    }

    /// Blocks of an image to channels, or back.
    fn blocks(&mut self, node: &Node, op: &str) -> Option<()> {
        let size = node.int("block_size")?;
        let x = self.floats(node, 0, Order::ChannelsFirst)?;
        let name = self.name(node, Order::ChannelsFirst)?;
        let y = self.out.main.op(op, [x]).attribute("blocksize", size).output(&name);
        self.end_plain(node, y, Order::ChannelsFirst)
    }

    fn pool(&mut self, node: &Node, op: &str) -> Option<()> {
        let x = self.floats(node, 0, Order::ChannelsFirst)?;
        let size = [node.int("filter_height")?, node.int("filter_width")?];
        let strides = [node.int("stride_h")?, node.int("stride_w")?];
        let pads = self.pads(node, size, strides, [1, 1])?;
        let name = self.name(node, Order::ChannelsFirst)?;
        let pool = self.out.main.op(op, [x]).attribute("kernel_shape", size);
        let y = pads.add(pool.attribute("strides", strides)).output(&name);
        self.end(node, y, Order::ChannelsFirst)
    }

    /// Returns the padding of an image.
    fn pads(&self, node: &Node, size: Sizes, strides: Sizes, dilations: Sizes) -> Option<Padding> {
        match node.text("padding")? {
            "VALID" => Some(Padding::Valid),
            "SAME" => {
                let input = node.input(0)?;
                let window = |axis: usize| Window {
                    size: size[axis],
                    stride: strides[axis],
                    dilation: dilations[axis],
                };
                let lens = [self.size(input, 1), self.size(input, 2)];
                Padding::same(&lens, &[window(0), window(1)])
            }
            _ => None,
        }
    }
}

fn int(size: u64) -> Option<i64> {
    i64::try_from(size).ok()
}
