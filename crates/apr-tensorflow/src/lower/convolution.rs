//! Convolutions and pools over images.

use apr_graph::{Node, ValueId};
use apr_lower::{Order, Padding, Window};

use super::Lowering;

/// Dimensions of an image.
const RANK: usize = 4;

impl Lowering<'_> {
    pub(super) fn convolution(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "Conv2D" => self.conv(node, false),
            "DepthwiseConv2dNative" => self.conv(node, true),
            "Conv2DBackpropInput" => self.transposed(node),
            "AvgPool" => self.pool(node, "AveragePool"),
            "MaxPool" => self.pool(node, "MaxPool"),
            _ => None,
        }
    }

    /// An input with channels behind the batch, and the order of what is made of it.
    pub(super) fn image_input(&mut self, node: &Node, input: usize) -> Option<(ValueId, Order)> {
        let order = match node.text("data_format").unwrap_or("NHWC") {
            "NHWC" => Order::ChannelsFirst,
            "NCHW" => Order::Natural,
            _ => return None,
        };
        let source = self.source(node, input)?.clone();
        let x = match (&source, order) {
            // An image is one whatever is known of its shape.
            (super::Source::Made(placed), Order::ChannelsFirst) => {
                self.out.ordered_of(*placed, order, RANK)?
            }
            _ => self.written(&source, order, RANK)?,
        };
        Some((x, order))
    }

    /// The numbers of a setting for height and width.
    fn of_image(node: &Node, name: &str) -> Option<[i64; 2]> {
        let first = match node.text("data_format").unwrap_or("NHWC") {
            "NHWC" => 1,
            _ => 2,
        };
        let all = node.ints(name)?;
        let is_rest_plain =
            (0..RANK).all(|axis| axis == first || axis == first + 1 || all.get(axis) == Some(&1));
        (all.len() == RANK && is_rest_plain).then(|| [all[first], all[first + 1]])
    }

    fn padding(&mut self, node: &Node, x: ValueId, windows: [Window; 2]) -> Option<Padding> {
        match node.text("padding")? {
            "VALID" => Some(Padding::Valid),
            "SAME" => {
                let lens = [self.out.size(x, 2), self.out.size(x, 3)];
                Padding::same(&lens, &windows)
            }
            "EXPLICIT" => {
                let pads = node.ints("explicit_paddings").filter(|pads| pads.len() == 2 * RANK)?;
                let first = match node.text("data_format").unwrap_or("NHWC") {
                    "NHWC" => 2,
                    _ => 4,
                };
                let [top, bottom, left, right] = pads.get(first..first + 4)?.try_into().ok()?;
                Some(Padding::Explicit(vec![top, left, bottom, right]))
            }
            _ => None,
        }
    }

    fn conv(&mut self, node: &Node, is_depthwise: bool) -> Option<()> {
        let (_, name) = self.output(node)?;
        let kernel = self.source(node, 1)?.clone();
        let dims: Option<Vec<u64>> = self.dims(node, 1)?.into_iter().collect();
        let [height, width, inputs, last] = dims?.try_into().ok()?;
        let (x, order) = self.image_input(node, 0)?;
        let turned = format!("{name}/kernel");
        // [height, width, in, out]; or [height, width, in, multiplier] of as many groups.
        let (w, group) = if is_depthwise {
            let shape = vec![inputs.checked_mul(last)?, 1, height, width];
            (self.turned(&kernel, &[2, 3, 0, 1], Some(shape), &turned)?, inputs)
        } else {
            let channels = self.out.size(x, 1).unwrap_or(inputs);
            (inputs > 0 && channels.is_multiple_of(inputs)).then_some(())?;
            (self.turned(&kernel, &[3, 2, 0, 1], None, &turned)?, channels / inputs)
        };
        let size = [i64::try_from(height).ok()?, i64::try_from(width).ok()?];
        let strides = Self::of_image(node, "strides")?;
        let dilations = match node.attribute("dilations") {
            Some(_) => Self::of_image(node, "dilations")?,
            None => [1, 1],
        };
        let window = |axis: usize| Window {
            size: size[axis],
            stride: strides[axis],
            dilation: dilations[axis],
        };
        let padding = self.padding(node, x, [window(0), window(1)])?;
        let name = apr_lower::Writer::name_in(&name, order, RANK);
        let conv = self.out.main.op("Conv", [x, w]);
        let conv = conv
            .attribute("group", i64::try_from(group).ok()?)
            .attribute("kernel_shape", size)
            .attribute("strides", strides)
            .attribute("dilations", dilations);
        let y = padding.add(conv).output(&name);
        self.set(node, y, order)
    }

    /// A transposed convolution: its sizes, its kernel, and what it is of.
    fn transposed(&mut self, node: &Node) -> Option<()> {
        let (_, name) = self.output(node)?;
        let sizes = self.sizes_of_image(node)?;
        let kernel = self.source(node, 1)?.clone();
        let dims: Option<Vec<u64>> = self.dims(node, 1)?.into_iter().collect();
        let [height, width, ..] = dims?.try_into().ok().map(|dims: [u64; 4]| dims)?;
        let size = [i64::try_from(height).ok()?, i64::try_from(width).ok()?];
        let strides = Self::of_image(node, "strides")?;
        let is_dilated = node.ints("dilations").is_some_and(|all| all.iter().any(|one| *one != 1));
        (!is_dilated && node.text("padding")? != "EXPLICIT").then_some(())?;
        let (x, order) = self.image_input(node, 2)?;
        let (mut pads, mut more) = ([0; 4], [0; 2]);
        for axis in 0..2 {
            let len = i64::try_from(self.out.size(x, axis + 2)?).ok()?;
            let whole = (len - 1).checked_mul(strides[axis])?.checked_add(size[axis])?;
            let cut = whole.checked_sub(sizes[axis])?;
            // What is cut off, or what is added at the end.
            pads[axis] = cut.max(0) / 2;
            pads[axis + 2] = cut.max(0) - pads[axis];
            more[axis] = (-cut).max(0);
        }
        // [height, width, out, in].
        let w = self.turned(&kernel, &[3, 2, 0, 1], None, &format!("{name}/kernel"))?;
        let name = apr_lower::Writer::name_in(&name, order, RANK);
        let conv = self.out.main.op("ConvTranspose", [x, w]);
        let conv = conv
            .attribute("kernel_shape", size)
            .attribute("strides", strides)
            .attribute("pads", pads)
            .attribute("output_padding", more);
        let y = conv.output(&name);
        self.set(node, y, order)
    }

    /// Height and width that the first input says; the batch need not be known.
    fn sizes_of_image(&mut self, node: &Node) -> Option<[i64; 2]> {
        let first = match node.text("data_format").unwrap_or("NHWC") {
            "NHWC" => 1,
            _ => 2,
        };
        let known = self.elements(node, 0)?;
        let at = |axis: usize| known.get(axis).copied().flatten();
        Some([at(first)?, at(first + 1)?])
    }

    fn pool(&mut self, node: &Node, op: &str) -> Option<()> {
        let (x, order) = self.image_input(node, 0)?;
        let (size, strides) = (Self::of_image(node, "ksize")?, Self::of_image(node, "strides")?);
        let window = |axis: usize| Window { size: size[axis], stride: strides[axis], dilation: 1 };
        let padding = self.padding(node, x, [window(0), window(1)])?;
        let (_, name) = self.output(node)?;
        let name = apr_lower::Writer::name_in(&name, order, RANK);
        let pool = self.out.main.op(op, [x]).attribute("kernel_shape", size);
        let y = padding.add(pool.attribute("strides", strides)).output(&name);
        self.set(node, y, order)
    }
}
