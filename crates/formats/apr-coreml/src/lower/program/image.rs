//! Convolutions, pools and resizing.

use apr_graph::ValueId;
use apr_lower::{Padding, Window, with};

use super::super::call::Call;
use super::Lowering;

/// Strides and dilations of the dimensions after the channels, and their padding.
struct Setting {
    windows: Vec<Window>,
    padding: Padding,
}

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for another, and for one that can't be.
    pub(super) fn image(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "conv" => self.conv(call),
            "conv_transpose" => self.conv_transpose(call),
            "max_pool" | "avg_pool" => self.pool(call),
            "depth_to_space" | "pixel_shuffle" => {
                let (mode, parameter) = match call.op {
                    "depth_to_space" => ("DCR", "block_size"),
                    _ => ("CRD", "upscale_factor"),
                };
                let x = self.tensor(call, "x")?;
                let size = self.int(call, parameter)?;
                let node = self.out.main.op("DepthToSpace", [x]).attribute("blocksize", size);
                Some(node.attribute("mode", mode).output(&call.name))
            }
            "space_to_depth" => {
                let x = self.tensor(call, "x")?;
                let size = self.int(call, "block_size")?;
                let node = self.out.main.op("SpaceToDepth", [x]).attribute("blocksize", size);
                Some(node.output(&call.name))
            }
            "upsample_nearest_neighbor" | "upsample_bilinear" | "resize_bilinear" => {
                self.resize(call)
            }
            "crop" => self.crop(call),
            _ => None,
        }
    }

    /// The windows over an input, and its padding.
    fn setting(&mut self, call: &Call<'_>, x: ValueId, sizes: &[i64]) -> Option<Setting> {
        let count = sizes.len();
        let strides = self.ints_or(call, "strides", &vec![1; count])?;
        let dilations = self.ints_or(call, "dilations", &vec![1; count])?;
        (strides.len() == count && dilations.len() == count).then_some(())?;
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
        let lens: Vec<Option<u64>> = (0..count).map(|axis| self.out.size(x, axis + 2)).collect();
        let pads = self.ints_or(call, "pad", &vec![0; 2 * count])?;
        let padding = match self.text_or(call, "pad_type", "valid")?.as_str() {
            "valid" => Padding::Valid,
            "same" => Padding::same(&lens, &windows)?,
            "custom" => {
                (pads.len() == 2 * count && pads.iter().all(|pad| *pad >= 0)).then_some(())?;
                let starts = pads.iter().step_by(2);
                Padding::Explicit(starts.chain(pads.iter().skip(1).step_by(2)).copied().collect())
            }
            _ => return None,
        };
        Some(Setting { windows, padding })
    }

    /// The sizes of a kernel, behind its channels.
    fn kernel(&mut self, weight: ValueId) -> Option<Vec<i64>> {
        let shape = self.out.shape(weight)?;
        let sizes = shape.get(2..)?.iter();
        sizes.map(|size| i64::try_from(size.size()?).ok()).collect()
    }

    fn conv(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let (x, weight) = (self.tensor(call, "x")?, self.tensor(call, "weight")?);
        let bias = self.maybe(call, "bias")?;
        let groups = self.int_or(call, "groups", 1)?;
        let sizes = self.kernel(weight)?;
        let Setting { windows, padding } = self.setting(call, x, &sizes)?;
        let list = |value: fn(&Window) -> i64| windows.iter().map(value).collect::<Vec<_>>();
        let node = with(self.out.main.op("Conv", [x, weight]), bias);
        let node = node.attribute("kernel_shape", sizes).attribute("group", groups);
        let node = node.attribute("strides", list(|window| window.stride));
        let node = node.attribute("dilations", list(|window| window.dilation));
        Some(padding.add(node).output(&call.name))
    }

    fn conv_transpose(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let (x, weight) = (self.tensor(call, "x")?, self.tensor(call, "weight")?);
        let bias = self.maybe(call, "bias")?;
        let groups = self.int_or(call, "groups", 1)?;
        let sizes = self.kernel(weight)?;
        let Setting { windows, padding } = self.setting(call, x, &sizes)?;
        // `same` depends on the output there, and so does what a stated output adds.
        let pads = match padding {
            Padding::Valid => vec![0; 2 * sizes.len()],
            Padding::Explicit(pads) if self.text(call, "pad_type")? == "custom" => pads,
            _ => return None,
        };
        let mut more = vec![0; sizes.len()];
        if call.has("output_shape") {
            let wanted = self.ints(call, "output_shape")?;
            (wanted.len() == sizes.len() + 2).then_some(())?;
            for (axis, window) in windows.iter().enumerate() {
                let len = i64::try_from(self.out.size(x, axis + 2)?).ok()?;
                let pads = pads[axis].checked_add(pads[axis + sizes.len()])?;
                let reach = (window.size - 1).checked_mul(window.dilation)?.checked_add(1)?;
                let made = (len - 1).checked_mul(window.stride)?.checked_add(reach)?;
                more[axis] = wanted[axis + 2].checked_sub(made.checked_sub(pads)?)?;
                (0..window.stride).contains(&more[axis]).then_some(())?;
            }
        }
        let list = |value: fn(&Window) -> i64| windows.iter().map(value).collect::<Vec<_>>();
        let node = with(self.out.main.op("ConvTranspose", [x, weight]), bias);
        let node = node.attribute("kernel_shape", sizes).attribute("group", groups);
        let node = node.attribute("strides", list(|window| window.stride));
        let node = node.attribute("dilations", list(|window| window.dilation));
        let node = node.attribute("pads", pads).attribute("output_padding", more);
        Some(node.output(&call.name))
    }

    fn pool(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let sizes = self.ints(call, "kernel_sizes")?;
        (self.out.rank(x)? == sizes.len() + 2).then_some(())?;
        let Setting { windows, mut padding } = self.setting(call, x, &sizes)?;
        let is_average = call.op == "avg_pool";
        let mut counts = is_average && !self.flag(call, "exclude_padding_from_average", false)?;
        if matches!(padding, Padding::Valid) {
            padding = Padding::Explicit(vec![0; 2 * sizes.len()]);
        }
        if self.flag(call, "ceil_mode", false)? {
            // The last window may look at what is not there; the output's size says so.
            let wanted = self.stated_sizes(call)?;
            let mut goes_beyond = false;
            let Padding::Explicit(pads) = &mut padding else { return None };
            for (axis, window) in windows.iter().enumerate() {
                let len = i64::try_from(self.out.size(x, axis + 2)?).ok()?;
                let last = i64::try_from(*wanted.get(axis + 2)?).ok()?.checked_sub(1)?;
                let end = last.checked_mul(window.stride)?.checked_add(window.size)?;
                let both = pads[axis].checked_add(pads[axis + sizes.len()])?;
                let more = end.checked_sub(len.checked_add(both)?)?;
                if more > 0 {
                    // What is beyond the padding does not count, and the padding would.
                    (!counts || both == 0).then_some(())?;
                    pads[axis + sizes.len()] = pads[axis + sizes.len()].checked_add(more)?;
                    goes_beyond = true;
                }
            }
            let has_padding = self.ints_or(call, "pad", &[])?.iter().any(|pad| *pad > 0);
            (!(counts && goes_beyond && has_padding)).then_some(())?;
            counts &= !goes_beyond;
        }
        let op = if is_average { "AveragePool" } else { "MaxPool" };
        let strides: Vec<i64> = windows.iter().map(|window| window.stride).collect();
        let node = self.out.main.op(op, [x]).attribute("kernel_shape", sizes);
        let mut node = padding.add(node.attribute("strides", strides));
        if counts {
            node = node.attribute("count_include_pad", 1);
        }
        Some(node.output(&call.name))
    }

    /// Resizes an image to the sizes that the program declares.
    fn resize(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let rank = self.out.rank(x)?;
        let first = rank.checked_sub(2)?;
        (rank == 4).then_some(())?;
        let wanted = self.stated_sizes(call)?;
        let (mode, place) = match call.op {
            "resize_bilinear" => {
                for name in ["target_size_height", "target_size_width"] {
                    self.int(call, name)?;
                }
                let place = match self.text_or(call, "sampling_mode", "DEFAULT")?.as_str() {
                    "DEFAULT" => "asymmetric",
                    "STRICT_ALIGN_CORNERS" => "align_corners",
                    "UNALIGN_CORNERS" => "half_pixel",
                    _ => return None,
                };
                ("linear", place)
            }
            op => {
                for name in ["scale_factor_height", "scale_factor_width"] {
                    self.number_or(call, name, 1.0)?;
                }
                for axis in first..rank {
                    let (len, wanted) = (self.out.size(x, axis)?, *wanted.get(axis)?);
                    // Rows are repeated as often as each other.
                    let is_whole = len > 0 && wanted.is_multiple_of(len);
                    (is_whole || op == "upsample_bilinear").then_some(())?;
                }
                match op {
                    "upsample_bilinear" => {
                        let aligns = self.flag(call, "align_corners", true)?;
                        ("linear", if aligns { "align_corners" } else { "half_pixel" })
                    }
                    _ => ("nearest", "asymmetric"),
                }
            }
        };
        // The corners of one row are not apart.
        let is_one = |axis: usize| wanted.get(axis) == Some(&1);
        (place != "align_corners" || !(first..rank).any(is_one)).then_some(())?;
        let sizes: Option<Vec<i64>> = wanted.iter().map(|size| i64::try_from(*size).ok()).collect();
        let sizes = self.out.main.ints(&sizes?);
        let node = self.out.main.op("Resize", [x]).optional(None).optional(None);
        let node = node.optional(Some(sizes)).attribute("mode", mode);
        let node = node.attribute("coordinate_transformation_mode", place);
        let node = match mode {
            "nearest" => node.attribute("nearest_mode", "floor"),
            _ => node,
        };
        Some(node.output(&call.name))
    }

    fn crop(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for name in ["crop_height", "crop_width"] {
            let [first, last] = self.ints(call, name)?.try_into().ok()?;
            (first >= 0 && last >= 0).then_some(())?;
            starts.push(first);
            ends.push(if last == 0 { i64::MAX } else { -last });
        }
        let lists = [starts, ends, vec![-2, -1]].map(|list| self.out.main.ints(&list));
        let [starts, ends, axes] = lists;
        Some(self.op(call, "Slice", &[x, starts, ends, axes]))
    }
}
