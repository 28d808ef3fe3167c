//! Convolutions and pools over images and volumes.

use apr_graph::{Node, ValueId};
use apr_lower::{Order, Padding, Window};

use super::Lowering;

/// Dimensions of an image.
const RANK: usize = 4;
/// Dimensions of a volume.
const VOLUME: usize = 5;

impl Lowering<'_> {
    pub(super) fn convolution(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "Conv2D" | "Conv3D" => self.conv(node, false),
            "DepthwiseConv2dNative" => self.conv(node, true),
            "Conv2DBackpropInput" => self.transposed(node),
            "AvgPool" | "AvgPool3D" => self.pool(node, "AveragePool"),
            "MaxPool" | "MaxPool3D" => self.pool(node, "MaxPool"),
            _ => None,
        }
    }

    /// Returns an image with channels after the batch, and the order of values computed from it.
    pub(super) fn image_input(&mut self, node: &Node, input: usize) -> Option<(ValueId, Order)> {
        self.spatial_input(node, input, RANK)
    }

    /// Same as [`image_input`](Self::image_input), for an image or a volume with `rank` dimensions.
    fn spatial_input(
        &mut self,
        node: &Node,
        input: usize,
        rank: usize,
    ) -> Option<(ValueId, Order)> {
        let order = match node.text("data_format").unwrap_or("NHWC") {
            "NHWC" | "NDHWC" => Order::ChannelsFirst,
            "NCHW" | "NCDHW" => Order::Natural,
            _ => return None,
        };
        let source = self.source(node, input)?.clone();
        let x = match (&source, order) {
            // An image is one whatever is known of its shape.
            (super::Source::Made(placed), Order::ChannelsFirst) => {
                self.out.ordered_of(*placed, order, rank)?
            }
            _ => self.written(&source, order, rank)?,
        };
        Some((x, order))
    }

    /// The numbers of a setting for height and width, and depth before them.
    fn spatial(node: &Node, name: &str, rank: usize) -> Option<Vec<i64>> {
        let first = first_of(node);
        let all = node.ints(name)?;
        let own = first..first + rank - 2;
        let is_rest_plain = (0..rank).all(|axis| own.contains(&axis) || all.get(axis) == Some(&1));
        (all.len() == rank && is_rest_plain).then(|| all[own].to_vec())
    }

    fn padding(&mut self, node: &Node, x: ValueId, windows: &[Window]) -> Option<Padding> {
        let spatial = windows.len();
        match node.text("padding")? {
            "VALID" => Some(Padding::Valid),
            "SAME" => {
                let lens: Vec<Option<u64>> =
                    (2..2 + spatial).map(|axis| self.out.size(x, axis)).collect();
                Padding::same(&lens, windows)
            }
            "EXPLICIT" => {
                let pads = node.ints("explicit_paddings")?;
                (pads.len() == 2 * (spatial + 2)).then_some(())?;
                let first = 2 * first_of(node);
                // Pairs of what is before and after.
                let own = &pads[first..first + 2 * spatial];
                let sides = own.iter().step_by(2).chain(own.iter().skip(1).step_by(2));
                Some(Padding::Explicit(sides.copied().collect()))
            }
            _ => None,
        }
    }

    fn conv(&mut self, node: &Node, is_depthwise: bool) -> Option<()> {
        let rank = rank_of(node);
        let (_, name) = self.output(node)?;
        let kernel = self.source(node, 1)?.clone();
        let dims: Option<Vec<u64>> = self.dims(node, 1)?.into_iter().collect();
        let dims = dims.filter(|dims| dims.len() == rank)?;
        let [sizes @ .., inputs, last] = dims.as_slice() else { return None };
        let (inputs, last) = (*inputs, *last);
        let (x, order) = self.spatial_input(node, 0, rank)?;
        let turned = format!("{name}/kernel");
        // [height, width, in, out]; or [height, width, in, multiplier] of as many groups.
        let (w, group) = if is_depthwise {
            let mut shape = vec![inputs.checked_mul(last)?, 1];
            shape.extend(sizes);
            (self.turned(&kernel, &[2, 3, 0, 1], Some(shape), &turned)?, inputs)
        } else {
            let channels = self.out.size(x, 1).unwrap_or(inputs);
            (inputs > 0 && channels.is_multiple_of(inputs)).then_some(())?;
            let axes: Vec<usize> = [rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect();
            (self.turned(&kernel, &axes, None, &turned)?, channels / inputs)
        };
        let size: Option<Vec<i64>> = sizes.iter().map(|size| i64::try_from(*size).ok()).collect();
        let size = size?;
        let strides = Self::spatial(node, "strides", rank)?;
        let dilations = match node.attribute("dilations") {
            Some(_) => Self::spatial(node, "dilations", rank)?,
            None => vec![1; rank - 2],
        };
        let padding = self.padding(node, x, &windows(&size, &strides, &dilations))?;
        let name = apr_lower::Writer::name_in(&name, order, rank);
        let conv = self.out.main.op("Conv", [x, w]);
        let conv = conv
            .attribute("group", i64::try_from(group).ok()?)
            .attribute("kernel_shape", size)
            .attribute("strides", strides)
            .attribute("dilations", dilations);
        let y = padding.add(conv).output(&name);
        self.set(node, y, order)
    }

    /// Lowers a transposed convolution. Its inputs are the output sizes, the kernel and the image.
    fn transposed(&mut self, node: &Node) -> Option<()> {
        let (_, name) = self.output(node)?;
        let sizes = self.sizes_of_image(node)?;
        let kernel = self.source(node, 1)?.clone();
        let dims: Option<Vec<u64>> = self.dims(node, 1)?.into_iter().collect();
        let [height, width, ..] = dims?.try_into().ok().map(|dims: [u64; 4]| dims)?;
        let size = [i64::try_from(height).ok()?, i64::try_from(width).ok()?];
        let strides = Self::spatial(node, "strides", RANK)?;
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

    /// Returns the height and width from the first input. The batch size can be unknown.
    fn sizes_of_image(&mut self, node: &Node) -> Option<[i64; 2]> {
        let first = first_of(node);
        let known = self.elements(node, 0)?;
        let at = |axis: usize| known.get(axis).copied().flatten();
        Some([at(first)?, at(first + 1)?])
    }

    fn pool(&mut self, node: &Node, op: &str) -> Option<()> {
        let rank = rank_of(node);
        let (x, order) = self.spatial_input(node, 0, rank)?;
        let size = Self::spatial(node, "ksize", rank)?;
        let strides = Self::spatial(node, "strides", rank)?;
        let padding = self.padding(node, x, &windows(&size, &strides, &vec![1; rank - 2]))?;
        let (_, name) = self.output(node)?;
        let name = apr_lower::Writer::name_in(&name, order, rank);
        let pool = self.out.main.op(op, [x]).attribute("kernel_shape", size);
        let y = padding.add(pool.attribute("strides", strides)).output(&name);
        self.set(node, y, order)
    }
}

/// Returns the rank of the values that a node processes.
fn rank_of(node: &Node) -> usize {
    if node.op.name.ends_with("3D") { VOLUME } else { RANK }
}

/// Returns the first spatial dimension of an image or a volume.
fn first_of(node: &Node) -> usize {
    let is_last = node.text("data_format").is_none_or(|format| !format.starts_with("NC"));
    if is_last { 1 } else { 2 }
}

fn windows(sizes: &[i64], strides: &[i64], dilations: &[i64]) -> Vec<Window> {
    let all = sizes.iter().zip(strides).zip(dilations);
    all.map(|((size, stride), dilation)| Window {
        size: *size,
        stride: *stride,
        dilation: *dilation,
    })
    .collect()
}
