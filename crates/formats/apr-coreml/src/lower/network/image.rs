//! Convolutions, pools, borders and resizing.

use apr_graph::ValueId;
use apr_lower::{Padding, Window, with};

use super::Lowering;
use super::layer::{Blob, Layer};

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn image(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        match layer.op() {
            "convolution" if layer.is_set("isDeconvolution") => self.deconvolution(layer),
            "convolution" => self.convolution(layer),
            "pooling" => self.pool(layer),
            "padding" => self.border(layer),
            "crop" => self.crop(layer),
            "upsample" => self.upsample(layer),
            "reorganizeData" => {
                let x = self.images(layer)?;
                let (op, mode) = match layer.member("mode", "SPACE_TO_DEPTH")? {
                    "SPACE_TO_DEPTH" => ("SpaceToDepth", None),
                    "DEPTH_TO_SPACE" => ("DepthToSpace", Some("DCR")),
                    "PIXEL_SHUFFLE" => ("DepthToSpace", Some("CRD")),
                    _ => return None,
                };
                let node = self.out.main.op(op, [x.id]);
                let node = node.attribute("blocksize", layer.int("blockSize"));
                let node = match mode {
                    Some(mode) => node.attribute("mode", mode),
                    None => node,
                };
                Some(x.with(node.output(&layer.name)))
            }
            _ => None,
        }
    }

    /// The only input, which is a batch of images.
    fn images(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?;
        (self.out.rank(x.id)? == 4).then_some(x)
    }

    fn lens(&mut self, x: ValueId) -> [Option<u64>; 2] {
        [2, 3].map(|axis| self.out.size(x, axis))
    }

    /// Returns the padding of an input of a convolution or a pool.
    fn padding(&mut self, layer: &Layer<'_>, x: ValueId, windows: &[Window]) -> Option<Padding> {
        if layer.has("same") {
            let mode = layer.member("same.asymmetryMode", "BOTTOM_RIGHT_HEAVY")?;
            let Padding::Explicit(mut pads) = Padding::same(&self.lens(x), windows)? else {
                return None;
            };
            if mode == "TOP_LEFT_HEAVY" {
                let (starts, ends) = pads.split_at_mut(windows.len());
                starts.swap_with_slice(ends);
            }
            return Some(Padding::Explicit(pads));
        }
        layer.has("valid").then_some(())?;
        let [top, bottom, left, right] = layer.edges("valid.paddingAmounts.borderAmounts")?;
        Some(Padding::Explicit(vec![top, left, bottom, right]))
    }

    fn windows(layer: &Layer<'_>, sizes: [i64; 2], dilations: [i64; 2]) -> Option<Vec<Window>> {
        let strides = layer.two("stride", 1)?;
        let windows = [0, 1].map(|axis| Window {
            size: sizes[axis],
            stride: strides[axis],
            dilation: dilations[axis],
        });
        let is_possible = |one: &Window| one.size > 0 && one.stride > 0 && one.dilation > 0;
        windows.iter().all(is_possible).then(|| windows.to_vec())
    }

    fn convolution(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = self.images(layer)?;
        let weight = self.whole(layer, "weight")?;
        let sizes = layer.two("kernelSize", 3)?;
        let windows = Self::windows(layer, sizes, layer.two("dilationFactor", 1)?)?;
        let padding = self.padding(layer, x.id, &windows)?;
        let bias = match layer.is_set("hasBias") {
            true => Some(self.whole(layer, "bias")?),
            false => None,
        };
        let list = |value: fn(&Window) -> i64| windows.iter().map(value).collect::<Vec<_>>();
        let node = with(self.out.main.op("Conv", [x.id, weight]), bias);
        let node = node.attribute("kernel_shape", sizes);
        let node = node.attribute("group", layer.int("nGroups").max(1));
        let node = node.attribute("strides", list(|window| window.stride));
        let node = node.attribute("dilations", list(|window| window.dilation));
        Some(x.with(padding.add(node).output(&layer.name)))
    }

    fn deconvolution(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = self.images(layer)?;
        let weight = self.whole(layer, "weight")?;
        let sizes = layer.two("kernelSize", 3)?;
        let windows = Self::windows(layer, sizes, [1, 1])?;
        // `same` leaves open on which side the padding is.
        (!layer.has("same")).then_some(())?;
        let mut padding = self.padding(layer, x.id, &windows)?;
        if !layer.ints("outputShape").is_empty() {
            padding = self.stated_output(layer, x.id, &windows, padding)?;
        }
        let bias = match layer.is_set("hasBias") {
            true => Some(self.whole(layer, "bias")?),
            false => None,
        };
        let strides: Vec<i64> = windows.iter().map(|window| window.stride).collect();
        let node = with(self.out.main.op("ConvTranspose", [x.id, weight]), bias);
        let node = node.attribute("kernel_shape", sizes).attribute("strides", strides);
        let node = node.attribute("group", layer.int("nGroups").max(1));
        Some(x.with(padding.add(node).output(&layer.name)))
    }

    /// Returns the padding of a deconvolution with a declared output size.
    ///
    /// It is no padding if the output is whole, or the layer's own padding if it leads to that
    /// size. Other sizes are not lowered, because the format does not define the side to crop.
    fn stated_output(
        &mut self,
        layer: &Layer<'_>,
        x: ValueId,
        windows: &[Window],
        padding: Padding,
    ) -> Option<Padding> {
        let wanted = layer.two("outputShape", 0)?;
        let Padding::Explicit(pads) = padding else { return None };
        let (mut is_whole, mut is_own) = (true, true);
        for (axis, window) in windows.iter().enumerate() {
            let len = i64::try_from(self.lens(x)[axis]?).ok()?;
            let whole = (len - 1).checked_mul(window.stride)?.checked_add(window.size)?;
            let both = pads[axis].checked_add(pads[axis + windows.len()])?;
            is_whole &= wanted[axis] == whole;
            is_own &= whole.checked_sub(both) == Some(wanted[axis]);
        }
        match (is_whole, is_own) {
            (true, _) => Some(Padding::Explicit(vec![0; pads.len()])),
            (false, true) => Some(Padding::Explicit(pads)),
            (false, false) => None,
        }
    }

    fn pool(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = self.images(layer)?;
        let (op, whole) = match layer.member("type", "MAX")? {
            "MAX" => ("MaxPool", "GlobalMaxPool"),
            "AVERAGE" => ("AveragePool", "GlobalAveragePool"),
            _ => return None,
        };
        if layer.is_set("globalPooling") {
            return Some(self.op(layer, whole, &[x.id], x));
        }
        let sizes = layer.two("kernelSize", 3)?;
        let windows = Self::windows(layer, sizes, [1, 1])?;
        let excludes = layer.is_set("avgPoolExcludePadding");
        let padding = match layer.has("includeLastPixel") {
            true => self.last_pixel(layer, x.id, &windows, op == "AveragePool" && !excludes)?,
            false => self.padding(layer, x.id, &windows)?,
        };
        let strides: Vec<i64> = windows.iter().map(|window| window.stride).collect();
        let node = self.out.main.op(op, [x.id]).attribute("kernel_shape", sizes);
        let mut node = padding.add(node.attribute("strides", strides));
        if op == "AveragePool" && !excludes {
            node = node.attribute("count_include_pad", 1);
        }
        Some(x.with(node.output(&layer.name)))
    }

    /// The padding with which the last window looks at the last row and column.
    fn last_pixel(
        &mut self,
        layer: &Layer<'_>,
        x: ValueId,
        windows: &[Window],
        counts: bool,
    ) -> Option<Padding> {
        let amounts = layer.two("includeLastPixel.paddingAmounts", 0)?;
        let mut pads = [amounts, amounts].concat();
        for (axis, window) in windows.iter().enumerate() {
            let len = i64::try_from(self.lens(x)[axis]?).ok()?;
            let amount = amounts[axis];
            (len < 1 << 48 && (0..=len).contains(&amount)).then_some(())?;
            let span = len.checked_add(2 * amount)?.checked_sub(window.size)?;
            (span >= 0).then_some(())?;
            let mut count = span / window.stride + i64::from(span % window.stride > 0) + 1;
            if amounts.iter().any(|amount| *amount > 0)
                && (count - 1).checked_mul(window.stride)? >= len + amount
            {
                count -= 1;
            }
            let end = (count - 1).checked_mul(window.stride)?.checked_add(window.size)?;
            let more = end.checked_sub(len + 2 * amount)?;
            // Whether averages count what is beyond the padding is not said.
            (!counts || more <= 0).then_some(())?;
            pads[axis + 2] = (amount + more).max(0);
        }
        Some(Padding::Explicit(pads))
    }

    fn border(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?;
        let rank = self.out.rank(x.id)?;
        let [top, bottom, left, right] = layer.edges("paddingAmounts.borderAmounts")?;
        let before = rank.checked_sub(2)?;
        let mut pads = vec![0; before];
        pads.extend([top, left]);
        pads.extend(vec![0; before]);
        pads.extend([bottom, right]);
        let pads = self.out.main.ints(&pads);
        let node = if layer.has("reflection") {
            self.out.main.op("Pad", [x.id, pads]).attribute("mode", "reflect")
        } else if layer.has("replication") {
            self.out.main.op("Pad", [x.id, pads]).attribute("mode", "edge")
        } else {
            layer.has("constant").then_some(())?;
            let value = self.out.main.float(layer.float("constant.value"));
            self.out.main.op("Pad", [x.id, pads, value]).attribute("mode", "constant")
        };
        Some(x.with(node.output(&layer.name)))
    }

    fn crop(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let (x, starts, ends) = match layer.inputs.as_slice() {
            [x] => {
                let [top, bottom, left, right] = layer.edges("cropAmounts.borderAmounts")?;
                let end = |amount: i64| if amount == 0 { i64::MAX } else { -amount };
                (*x, [top, left], [end(bottom), end(right)])
            }
            [x, like] => {
                let [top, left] = layer.two("offset", 0)?;
                let rank = self.out.rank(like.id)?;
                let size = |this: &mut Self, back: usize| {
                    i64::try_from(this.out.size(like.id, rank.checked_sub(back)?)?).ok()
                };
                let (height, width) = (size(self, 2)?, size(self, 1)?);
                let ends = [top.checked_add(height)?, left.checked_add(width)?];
                (top >= 0 && left >= 0).then_some(())?;
                (*x, [top, left], ends)
            }
            _ => return None,
        };
        let [starts, ends, axes] = [starts, ends, [-2, -1]].map(|list| self.out.main.ints(&list));
        Some(self.op(layer, "Slice", &[x.id, starts, ends, axes], x))
    }

    /// Repeats rows and columns by the factors of the layer.
    fn upsample(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = self.images(layer)?;
        let is_nearest = layer.member("mode", "NN")? == "NN";
        (is_nearest && !layer.has("fractionalScalingFactor")).then_some(())?;
        let factors = layer.two("scalingFactor", 1)?;
        factors.iter().all(|factor| (1..1 << 16).contains(factor)).then_some(())?;
        let scales = [1.0, 1.0, factors[0] as f32, factors[1] as f32];
        let scales = self.out.main.constant(apr_graph::Constant::floats(&scales));
        let node = self.out.main.op("Resize", [x.id]).optional(None).optional(Some(scales));
        let node = node.attribute("coordinate_transformation_mode", "asymmetric");
        let node = node.attribute("mode", "nearest").attribute("nearest_mode", "floor");
        Some(x.with(node.output(&layer.name)))
    }
}
