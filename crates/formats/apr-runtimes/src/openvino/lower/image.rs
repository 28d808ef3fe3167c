//! Convolutions, pools, resizing, and blocks of images.

use apr_graph::{AttributeValue, ValueId};
use apr_lower::{Padding, Window};

use super::call::Call;
use super::{Lowering, position};

/// Windows over the dimensions after the channels, and their padding.
struct Setting {
    windows: Vec<Window>,
    padding: Padding,
}

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn image(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "Convolution" => self.convolution(call, false),
            "GroupConvolution" => self.convolution(call, true),
            "ConvolutionBackpropData" => self.transposed_convolution(call, false),
            "GroupConvolutionBackpropData" => self.transposed_convolution(call, true),
            "AvgPool" => self.average_pool(call),
            "AdaptiveAvgPool" => self.adaptive_pool(call),
            "Interpolate" => self.resize(call),
            "DepthToSpace" | "SpaceToDepth" => self.blocks(call),
            "ShuffleChannels" => self.shuffle(call),
            "GridSample" => self.grid_sample(call),
            _ => None,
        }
    }

    /// The windows over an input, and its padding.
    fn setting(&mut self, call: &Call<'_>, x: ValueId, sizes: &[i64]) -> Option<Setting> {
        let count = sizes.len();
        let strides = call.ints_or("strides", &vec![1; count])?;
        let dilations = call.ints_or("dilations", &vec![1; count])?;
        let (begin, end) = (
            call.ints_or("pads_begin", &vec![0; count])?,
            call.ints_or("pads_end", &vec![0; count])?,
        );
        let lists = [&strides, &dilations, &begin, &end];
        lists.iter().all(|list| list.len() == count).then_some(())?;
        let windows: Vec<Window> = sizes
            .iter()
            .zip(strides.iter().zip(&dilations))
            .map(|(size, (stride, dilation))| Window {
                size: *size,
                stride: *stride,
                dilation: *dilation,
            })
            .collect();
        let is_possible = |one: &Window| one.size > 0 && one.stride > 0 && one.dilation > 0;
        windows.iter().all(is_possible).then_some(())?;
        let padding = match call.text_or("auto_pad", "explicit")? {
            "explicit" | "notset" => Padding::Explicit([begin, end].concat()),
            "valid" => Padding::Explicit(vec![0; 2 * count]),
            auto @ ("same_upper" | "same_lower") => {
                let lens: Vec<Option<u64>> =
                    (0..count).map(|axis| self.out.size(x, axis + 2)).collect();
                match (Padding::same(&lens, &windows)?, auto) {
                    (Padding::Explicit(pads), "same_lower") => {
                        // The odd one goes to the start.
                        let (begin, end) = pads.split_at(count);
                        Padding::Explicit([end, begin].concat())
                    }
                    (_, "same_lower") => return None,
                    (padding, _) => padding,
                }
            }
            _ => return None,
        };
        Some(Setting { windows, padding })
    }

    /// The kernel of a convolution: its sizes without those of the groups, and their number.
    fn kernel(&mut self, call: &Call<'_>, has_groups: bool) -> Option<(ValueId, Vec<i64>, i64)> {
        let id = call.inputs.get(1).copied().flatten()?;
        let dims: Option<Vec<u64>> =
            self.from.value(id).shape()?.iter().map(apr_graph::Dim::size).collect();
        let dims = dims?;
        let skip = if has_groups { 3 } else { 2 };
        let sizes: Option<Vec<i64>> =
            dims.get(skip..)?.iter().map(|size| i64::try_from(*size).ok()).collect();
        if !has_groups {
            return Some((self.input(call, 1)?, sizes?, 1));
        }
        // [groups, outputs, inputs, ...] as [groups * outputs, inputs, ...]; of a transposed one,
        // [groups, inputs, outputs, ...] as [groups * inputs, outputs, ...].
        let mut joined = dims[1..].to_vec();
        joined[0] = dims[0].checked_mul(dims[1])?;
        let kernel = self.reshaped(call, 1, &joined)?;
        Some((kernel, sizes?, i64::try_from(dims[0]).ok()?))
    }

    fn convolution(&mut self, call: &Call<'_>, has_groups: bool) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let (kernel, sizes, groups) = self.kernel(call, has_groups)?;
        let Setting { windows, padding } = self.setting(call, x, &sizes)?;
        let list = |value: fn(&Window) -> i64| windows.iter().map(value).collect::<Vec<_>>();
        let node = self.out.main.op("Conv", [x, kernel]);
        let node = node.attribute("kernel_shape", sizes).attribute("group", groups);
        let node = node.attribute("strides", list(|window| window.stride));
        let node = node.attribute("dilations", list(|window| window.dilation));
        Some(padding.add(node).output(&call.name))
    }

    fn transposed_convolution(&mut self, call: &Call<'_>, has_groups: bool) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let (kernel, sizes, groups) = self.kernel(call, has_groups)?;
        let more = call.ints_or("output_padding", &vec![0; sizes.len()])?;
        (more.len() == sizes.len()).then_some(())?;
        // The padding of others follows from the output.
        let auto = call.text_or("auto_pad", "explicit")?;
        let has_shape = call.has_input(2);
        (["explicit", "notset", "valid"].contains(&auto) && !has_shape).then_some(())?;
        let Setting { windows, padding } = self.setting(call, x, &sizes)?;
        let list = |value: fn(&Window) -> i64| windows.iter().map(value).collect::<Vec<_>>();
        let node = self.out.main.op("ConvTranspose", [x, kernel]);
        let node = node.attribute("kernel_shape", sizes).attribute("group", groups);
        let node = node.attribute("strides", list(|window| window.stride));
        let node = node.attribute("dilations", list(|window| window.dilation));
        let node = node.attribute("output_padding", more);
        Some(padding.add(node).output(&call.name))
    }

    /// Settings that both kinds of pools have: windows, padding, and `true` for outputs of windows
    /// that go beyond the end.
    fn pool(&mut self, call: &Call<'_>, x: ValueId) -> Option<(Setting, bool)> {
        let sizes = call.ints_or("kernel", &[])?;
        (self.out.rank(x)? == sizes.len() + 2).then_some(())?;
        let setting = self.setting(call, x, &sizes)?;
        let is_ceil = match call.text_or("rounding_type", "floor")? {
            "floor" => false,
            // The last window is not wholly in the padding, as ONNX has it too.
            "ceil" | "ceil_torch" => true,
            _ => return None,
        };
        Some((setting, is_ceil))
    }

    pub(super) fn max_pool(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        let x = self.input(call, 0)?;
        let (Setting { windows, padding }, is_ceil) = self.pool(call, x)?;
        call.ignore("index_element_type");
        call.ignore("axis");
        let list = |value: fn(&Window) -> i64| windows.iter().map(value).collect::<Vec<_>>();
        let node = self.out.main.op("MaxPool", [x]);
        let node = node.attribute("kernel_shape", list(|window| window.size));
        let node = node.attribute("strides", list(|window| window.stride));
        let mut node = padding.add(node);
        if windows.iter().any(|window| window.dilation != 1) {
            node = node.attribute("dilations", list(|window| window.dilation));
        }
        if is_ceil {
            node = node.attribute("ceil_mode", 1);
        }
        let made = node.output(&call.name);
        // The places of the greatest elements are counted in another way.
        match call.outputs {
            [_] => Some(vec![made]),
            [_, Some(places)] if !self.is_read(*places) => {
                let shape = self.step(call, "sizes", "Shape", &[made]);
                let zero = self.out.main.op("ConstantOfShape", [shape]);
                let zero = zero.attribute("value", apr_graph::Constant::ints(&[0]));
                let zero = zero.output(&call.step("places"));
                let element = self.from.value(*places).element()?;
                Some(vec![made, self.out.cast(zero, super::computed(element), &call.step("none"))])
            }
            _ => None,
        }
    }

    /// Returns `true` if a layer or the caller reads a value of the model.
    fn is_read(&self, id: ValueId) -> bool {
        let is_input = self.from.nodes.iter().any(|node| node.inputs.contains(&Some(id)));
        is_input || self.from.outputs.contains(&id)
    }

    fn average_pool(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let (Setting { windows, padding }, is_ceil) = self.pool(call, x)?;
        let counts = !call.flag_or("exclude-pad", true)?;
        let has_padding =
            !matches!(&padding, Padding::Explicit(pads) if pads.iter().all(|p| *p == 0));
        // What is beyond the padding counts in some programs.
        (!(counts && has_padding && is_ceil)).then_some(())?;
        windows.iter().all(|window| window.dilation == 1).then_some(())?;
        let list = |value: fn(&Window) -> i64| windows.iter().map(value).collect::<Vec<_>>();
        let node = self.out.main.op("AveragePool", [x]);
        let node = node.attribute("kernel_shape", list(|window| window.size));
        let node = node.attribute("strides", list(|window| window.stride));
        let mut node = padding.add(node);
        if counts && has_padding {
            node = node.attribute("count_include_pad", 1);
        }
        if is_ceil {
            node = node.attribute("ceil_mode", 1);
        }
        Some(node.output(&call.name))
    }

    /// Means of parts of equal sizes.
    fn adaptive_pool(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let wanted = self.known_ints(call, 1)?;
        let x = self.input(call, 0)?;
        (self.out.rank(x)? == wanted.len() + 2).then_some(())?;
        if wanted.iter().all(|size| *size == 1) {
            return Some(self.op(call, "GlobalAveragePool", &[x]));
        }
        let mut sizes = Vec::new();
        for (axis, wanted) in wanted.iter().enumerate() {
            let len = i64::try_from(self.out.size(x, axis + 2)?).ok()?;
            (*wanted > 0 && len % wanted == 0).then_some(())?;
            sizes.push(len / wanted);
        }
        let node = self.out.main.op("AveragePool", [x]).attribute("kernel_shape", sizes.clone());
        Some(node.attribute("strides", sizes).output(&call.name))
    }

    fn resize(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let is_newest = call.is_of(&["opset11"]);
        (is_newest || call.is_of(&["opset4"])).then_some(())?;
        let x = self.input(call, 0)?;
        let rank = self.out.rank(x)?;
        let mode = match call.text_or("mode", "")? {
            "nearest" => "nearest",
            "linear_onnx" | "linear" => "linear",
            "cubic" => "cubic",
            _ => return None,
        };
        let places = match call.text_or("coordinate_transformation_mode", "half_pixel")? {
            place @ ("half_pixel" | "pytorch_half_pixel" | "asymmetric" | "align_corners") => place,
            "tf_half_pixel_for_nn" if mode == "nearest" => return None,
            _ => return None,
        };
        let rounding = match call.text_or("nearest_mode", "round_prefer_floor")? {
            rounding @ ("round_prefer_floor" | "round_prefer_ceil" | "floor" | "ceil") => rounding,
            // `simple` rounds down what is made larger.
            _ if mode != "nearest" => "round_prefer_floor",
            _ => return None,
        };
        (!call.flag_or("antialias", false)?).then_some(())?;
        let cubic = call.number_or("cube_coeff", -0.75)?;
        for side in ["pads_begin", "pads_end"] {
            call.ints_or(side, &[0])?.iter().all(|pad| *pad == 0).then_some(())?;
        }
        let uses_scales = match call.text_or("shape_calculation_mode", "sizes")? {
            "sizes" => false,
            "scales" => true,
            _ => return None,
        };
        let (input, axes_input) = match (is_newest, uses_scales) {
            (true, _) => (1, 2),
            (false, false) => (1, 3),
            (false, true) => (2, 3),
        };
        let axes = match call.has_input(axes_input) {
            true => self.known_ints(call, axes_input)?,
            false => (0..i64::try_from(rank).ok()?).collect(),
        };
        let (scales, sizes) = match uses_scales {
            true => (Some(self.input(call, input)?), None),
            false => (None, Some(self.longs(call, input)?)),
        };
        let node = self.out.main.op("Resize", [x]).optional(None).optional(scales);
        let node = apr_lower::with(node, sizes);
        let node = node.attribute("axes", axes).attribute("mode", mode);
        let mut node = node.attribute("coordinate_transformation_mode", places);
        if mode == "nearest" {
            node = node.attribute("nearest_mode", rounding);
        }
        if mode == "cubic" {
            node = node.attribute("cubic_coeff_a", cubic);
        }
        Some(node.output(&call.name))
    }

    /// Blocks of an image to channels, or back.
    fn blocks(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        (self.out.rank(x)? == 4).then_some(())?;
        let size = call.int_or("block_size", 1)?;
        let mode = call.text_or("mode", "")?;
        let node = self.out.main.op(call.op, [x]).attribute("blocksize", size);
        let node = match (call.op, mode) {
            ("DepthToSpace", "blocks_first") => node.attribute("mode", "DCR"),
            ("DepthToSpace", "depth_first") => node.attribute("mode", "CRD"),
            ("SpaceToDepth", "blocks_first") => node,
            _ => return None,
        };
        Some(node.output(&call.name))
    }

    /// The channels of each group in turn.
    fn shuffle(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let rank = self.out.rank(x)?;
        let axis = position(call.int_or("axis", 1)?, rank)?;
        let groups = call.int_or("group", 1)?;
        // Sizes before the channels may be any, and are those of the input.
        let mut sizes = vec![0; axis];
        for at in axis..rank {
            sizes.push(i64::try_from(self.out.size(x, at)?).ok()?);
        }
        let channels = sizes[axis];
        (groups > 0 && channels % groups == 0).then_some(())?;
        let mut apart = sizes.clone();
        apart.splice(axis..=axis, [groups, channels / groups]);
        let mut order: Vec<i64> = (0..i64::try_from(rank + 1).ok()?).collect();
        order.swap(axis, axis + 1);
        let (apart, sizes) = (self.out.main.ints(&apart), self.out.main.ints(&sizes));
        let apart = self.step(call, "groups", "Reshape", &[x, apart]);
        let turned = self.out.main.op("Transpose", [apart]).attribute("perm", order);
        let turned = turned.output(&call.step("turned"));
        Some(self.op(call, "Reshape", &[turned, sizes]))
    }

    fn grid_sample(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let (x, grid) = (self.input(call, 0)?, self.input(call, 1)?);
        let corners = call.flag_or("align_corners", false)?;
        let mode = call.text_or("mode", "bilinear")?;
        ["bilinear", "nearest", "bicubic"].contains(&mode).then_some(())?;
        let padding = call.text_or("padding_mode", "zeros")?;
        let node = self.out.main.op("GridSample", [x, grid]);
        let node = node.attribute("align_corners", i64::from(corners));
        let node = node.attribute("mode", AttributeValue::from(mode));
        Some(node.attribute("padding_mode", padding).output(&call.name))
    }
}
