//! Convolutions of one to three dimensions.

use apr_graph::{ElementType, ValueId, View};
use apr_lower::{Order, Padding, Placed, Window, with};

use super::Lowering;
use super::layer::{Layer, Variable};

/// A kernel as ONNX has it, and its groups.
struct Kernel {
    id: ValueId,
    size: Vec<i64>,
    groups: i64,
}

impl Lowering<'_> {
    pub(super) fn convolution(&mut self, layer: &Layer) -> Option<Placed> {
        match layer.class.as_str() {
            "Conv1D" | "Convolution1D" => self.plain(layer, 1),
            "Conv2D" | "Convolution2D" => self.plain(layer, 2),
            "Conv3D" | "Convolution3D" => self.plain(layer, 3),
            "DepthwiseConv1D" => self.depthwise(layer, 1),
            "DepthwiseConv2D" => self.depthwise(layer, 2),
            "SeparableConv1D" | "SeparableConvolution1D" => self.separable(layer, 1),
            "SeparableConv2D" | "SeparableConvolution2D" => self.separable(layer, 2),
            "Conv1DTranspose" | "Convolution1DTranspose" => self.transposed(layer, 1),
            "Conv2DTranspose" | "Convolution2DTranspose" => self.transposed(layer, 2),
            _ => None,
        }
    }

    /// Returns the input with channels first, and the order of values computed from it.
    pub(super) fn channels_first(
        &mut self,
        layer: &Layer,
        x: Placed,
        spatial: usize,
    ) -> Option<(ValueId, Order)> {
        let order = match layer.is_channels_first() {
            true => Order::Natural,
            false => Order::ChannelsFirst,
        };
        let id = self.out.ordered(x, order)?;
        (self.out.rank(id)? == spatial + 2).then_some((id, order))
    }

    /// Returns the padding of an input with channels first.
    pub(super) fn padding(
        &mut self,
        layer: &Layer,
        x: ValueId,
        windows: &[Window],
    ) -> Option<Padding> {
        match layer.text("padding").unwrap_or("valid") {
            "valid" => Some(Padding::Valid),
            "same" => {
                let lens: Vec<Option<u64>> =
                    (0..windows.len()).map(|axis| self.out.size(x, axis + 2)).collect();
                Padding::same(&lens, windows)
            }
            "causal" if windows.len() == 1 => Padding::causal(windows),
            _ => None,
        }
    }

    /// A kernel with its dimensions in another order, and then in another shape.
    fn kernel(&mut self, from: &Variable, order: &[usize], shape: Option<Vec<u64>>) -> ValueId {
        let mut views = vec![View::Transposed(order.to_vec())];
        views.extend(shape.clone().map(View::Reshaped));
        let shape = shape.unwrap_or_else(|| order.iter().map(|axis| from.dims[*axis]).collect());
        self.out.main.viewed(&from.weight.tensor, views, ElementType::F32, shape)
    }

    fn bias(&mut self, layer: &Layer, number: usize) -> Option<Option<ValueId>> {
        if !layer.is_kept("use_bias") {
            return Some(None);
        }
        let bias = layer.variable(&["bias"], number)?.clone();
        Some(Some(self.out.main.weight(&bias.weight.tensor, ElementType::F32, bias.dims)))
    }

    /// `[size..., in, out]` as `[out, in, size...]`.
    fn dense_kernel(&mut self, from: &Variable, spatial: usize, groups: i64) -> Option<Kernel> {
        (from.dims.len() == spatial + 2).then_some(())?;
        let order: Vec<usize> = [spatial + 1, spatial].into_iter().chain(0..spatial).collect();
        let size = sizes(&from.dims[..spatial])?;
        Some(Kernel { id: self.kernel(from, &order, None), size, groups })
    }

    /// `[size..., in, multiplier]` as `[in * multiplier, 1, size...]`.
    fn depthwise_kernel(&mut self, from: &Variable, spatial: usize) -> Option<Kernel> {
        (from.dims.len() == spatial + 2).then_some(())?;
        let order: Vec<usize> = [spatial, spatial + 1].into_iter().chain(0..spatial).collect();
        let channels = from.dims[spatial];
        let outputs = channels.checked_mul(from.dims[spatial + 1])?;
        let shape = [outputs, 1].into_iter().chain(from.dims[..spatial].iter().copied()).collect();
        let size = sizes(&from.dims[..spatial])?;
        let groups = i64::try_from(channels).ok()?;
        Some(Kernel { id: self.kernel(from, &order, Some(shape)), size, groups })
    }

    fn plain(&mut self, layer: &Layer, spatial: usize) -> Option<Placed> {
        let kernel = layer.variable(&["kernel"], 0)?.clone();
        let kernel = self.dense_kernel(&kernel, spatial, layer.int("groups").unwrap_or(1))?;
        let bias = self.bias(layer, 1)?;
        self.convolve(layer, &kernel, bias)
    }

    fn depthwise(&mut self, layer: &Layer, spatial: usize) -> Option<Placed> {
        let kernel = layer.variable(&["depthwise_kernel", "kernel"], 0)?.clone();
        let kernel = self.depthwise_kernel(&kernel, spatial)?;
        let bias = self.bias(layer, 1)?;
        self.convolve(layer, &kernel, bias)
    }

    fn separable(&mut self, layer: &Layer, spatial: usize) -> Option<Placed> {
        let depthwise = layer.variable(&["depthwise_kernel"], 0)?.clone();
        let depthwise = self.depthwise_kernel(&depthwise, spatial)?;
        let pointwise = layer.variable(&["pointwise_kernel"], 1)?.clone();
        let pointwise = self.dense_kernel(&pointwise, spatial, 1)?;
        let bias = self.bias(layer, 2)?;
        let (x, order) = self.channels_first(layer, layer.only()?, spatial)?;
        let name = format!("{}/depthwise", layer.name);
        let x = self.conv(layer, x, &depthwise, None, &name)?;
        self.end(layer, |this, name| {
            let name = this.name_in(name, order, x);
            let node = with(this.out.main.op("Conv", [x, pointwise.id]), bias);
            Some(Placed { id: node.output(&name), order })
        })
    }

    fn convolve(
        &mut self,
        layer: &Layer,
        kernel: &Kernel,
        bias: Option<ValueId>,
    ) -> Option<Placed> {
        let (x, order) = self.channels_first(layer, layer.only()?, kernel.size.len())?;
        self.end(layer, |this, name| {
            let name = this.name_in(name, order, x);
            let id = this.conv(layer, x, kernel, bias, &name)?;
            Some(Placed { id, order })
        })
    }

    fn conv(
        &mut self,
        layer: &Layer,
        x: ValueId,
        kernel: &Kernel,
        bias: Option<ValueId>,
        name: &str,
    ) -> Option<ValueId> {
        let spatial = kernel.size.len();
        let strides = layer.sizes("strides", spatial).unwrap_or(vec![1; spatial]);
        let dilations = layer.sizes("dilation_rate", spatial).unwrap_or(vec![1; spatial]);
        let windows = windows(&kernel.size, &strides, &dilations);
        let padding = self.padding(layer, x, &windows)?;
        let node = with(self.out.main.op("Conv", [x, kernel.id]), bias)
            .attribute("group", kernel.groups)
            .attribute("kernel_shape", kernel.size.clone())
            .attribute("strides", strides)
            .attribute("dilations", dilations);
        Some(padding.add(node).output(name))
    }

    /// The gradient of a convolution. Its output has a size that follows from the input's
    /// (`deconv_output_length` of Keras), and what a convolution would put around that is cut off.
    fn transposed(&mut self, layer: &Layer, spatial: usize) -> Option<Placed> {
        let kernel = layer.variable(&["kernel"], 0)?.clone();
        (kernel.dims.len() == spatial + 2).then_some(())?;
        // [size..., out, in] as [in, out, size...].
        let order: Vec<usize> = [spatial + 1, spatial].into_iter().chain(0..spatial).collect();
        let size = sizes(&kernel.dims[..spatial])?;
        let w = self.kernel(&kernel, &order, None);
        let bias = self.bias(layer, 1)?;
        let (x, order) = self.channels_first(layer, layer.only()?, spatial)?;
        let strides = layer.sizes("strides", spatial).unwrap_or(vec![1; spatial]);
        let dilations = layer.sizes("dilation_rate", spatial).unwrap_or(vec![1; spatial]);
        dilations.iter().all(|dilation| *dilation == 1).then_some(())?;
        let added = match layer.has("output_padding") {
            true => Some(layer.sizes("output_padding", spatial)?),
            false => None,
        };
        let is_same = match layer.text("padding").unwrap_or("valid") {
            "same" => true,
            "valid" => false,
            _ => return None,
        };
        let (mut pads, mut more) = (vec![0; 2 * spatial], vec![0; spatial]);
        for axis in 0..spatial {
            let (size, stride) = (size[axis], strides[axis]);
            // How much longer the input's windows reach than the output.
            let cut = match (&added, is_same) {
                (None, true) => size.checked_sub(stride)?,
                (None, false) => size.checked_sub(stride)?.min(0),
                (Some(added), true) => (size / 2 * 2).checked_sub(added[axis])?,
                (Some(added), false) => added[axis].checked_neg()?,
            };
            pads[axis] = cut.max(0) / 2;
            pads[axis + spatial] = cut.max(0) - pads[axis];
            more[axis] = (-cut).max(0);
        }
        self.end(layer, |this, name| {
            let name = this.name_in(name, order, x);
            let node = with(this.out.main.op("ConvTranspose", [x, w]), bias)
                .attribute("kernel_shape", size)
                .attribute("strides", strides)
                .attribute("pads", pads)
                .attribute("output_padding", more);
            Some(Placed { id: node.output(&name), order })
        })
    }
}

fn sizes(dims: &[u64]) -> Option<Vec<i64>> {
    dims.iter().map(|size| i64::try_from(*size).ok()).collect()
}

/// Returns the windows of a kernel or a pool along each dimension.
pub(super) fn windows(sizes: &[i64], strides: &[i64], dilations: &[i64]) -> Vec<Window> {
    let each = sizes.iter().zip(strides).zip(dilations);
    each.map(|((size, stride), dilation)| Window {
        size: *size,
        stride: *stride,
        dilation: *dilation,
    })
    .collect()
}
