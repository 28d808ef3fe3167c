//! Layers that move elements: shapes, orders, pieces.

use apr_graph::ElementType;

use super::Lowering;
use super::layer::{Blob, Layer};

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn movement(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        match layer.op() {
            "concat" => {
                // A sequence of one step has no other to follow.
                (!layer.is_set("sequenceConcat")).then_some(())?;
                let first = *layer.inputs.first()?;
                let is_one = layer.inputs.iter().all(|blob| blob.is_rank_5 == first.is_rank_5);
                is_one.then_some(())?;
                let ids = layer.inputs.iter().map(|blob| blob.id);
                let node = self.out.main.op("Concat", ids).attribute("axis", -3);
                Some(first.with(node.output(&layer.name)))
            }
            "flatten" => {
                let x = self.in_order(layer)?;
                (self.out.rank(x.id)? == 4).then_some(())?;
                Some(x.with(self.shaped(x.id, &[0, -1, 1, 1], &layer.name)))
            }
            "reshape" => {
                let is_last = layer.member("mode", "CHANNEL_FIRST")? == "CHANNEL_LAST";
                let x = self.in_order(layer)?;
                let sizes = match layer.ints("targetShape").as_slice() {
                    [channels, height, width] => [*channels, *height, *width],
                    [1, channels, height, width] => [*channels, *height, *width],
                    _ => return None,
                };
                (x.is_rank_5 && sizes.iter().all(|size| *size > 0)).then_some(())?;
                let [channels, height, width] = sizes;
                if is_last {
                    let sizes = [1, height, width, channels];
                    let made = self.shaped(x.id, &sizes, &layer.step("last"));
                    let node = self.out.main.op("Transpose", [made]);
                    return Some(x.with(node.attribute("perm", [0, 3, 1, 2]).output(&layer.name)));
                }
                Some(x.with(self.shaped(x.id, &[1, channels, height, width], &layer.name)))
            }
            "permute" => {
                let x = layer.only()?;
                // The sequence stays where it is.
                let axes = layer.ints("axis");
                (x.is_rank_5 && axes.len() == 4 && axes[0] == 0).then_some(())?;
                let node = self.out.main.op("Transpose", [x.id]);
                Some(x.with(node.attribute("perm", axes).output(&layer.name)))
            }
            "slice" => {
                let x = layer.only()?;
                let axis = match layer.member("axis", "CHANNEL_AXIS")? {
                    "CHANNEL_AXIS" => -3,
                    "HEIGHT_AXIS" => -2,
                    "WIDTH_AXIS" => -1,
                    _ => return None,
                };
                let (start, end) = (layer.int("startIndex"), layer.int("endIndex"));
                let step = layer.int("stride").max(1);
                let lists = [start, end, axis, step].map(|one| self.out.main.ints(&[one]));
                let [start, end, axis, step] = lists;
                Some(self.op(layer, "Slice", &[x.id, start, end, axis, step], x))
            }
            "loadConstant" => {
                let sizes = layer.ints("shape");
                (sizes.len() == 3).then_some(())?;
                let sizes: Option<Vec<u64>> =
                    [1].iter().chain(&sizes).map(|size| u64::try_from(*size).ok()).collect();
                Some(Blob { id: self.weight(layer, "data", &sizes?)?, is_rank_5: true })
            }
            _ => self.exact_movement(layer),
        }
    }

    /// Returns the only input, with its channels last if the layer's mode requires it.
    fn in_order(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?;
        if layer.member("mode", "CHANNEL_FIRST")? == "CHANNEL_FIRST" {
            return Some(x);
        }
        (self.out.rank(x.id)? == 4).then_some(())?;
        let node = self.out.main.op("Transpose", [x.id]).attribute("perm", [0, 2, 3, 1]);
        Some(x.with(node.output(&layer.step("turned"))))
    }

    /// Layers of newer networks, which count all dimensions.
    fn exact_movement(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        if layer.op() == "loadConstantND" {
            let sizes: Option<Vec<u64>> =
                layer.ints("shape").iter().map(|size| u64::try_from(*size).ok()).collect();
            return Some(Blob::exact(self.weight(layer, "data", &sizes?)?));
        }
        let mut inputs = Vec::with_capacity(layer.inputs.len());
        for (number, blob) in layer.inputs.iter().enumerate() {
            inputs.push(self.exact(*blob, &layer.step(&format!("input{number}"))));
        }
        let x = *inputs.first()?;
        let is_only = inputs.len() == 1;
        let made = match layer.op() {
            "concatND" => {
                (!layer.is_set("interleave")).then_some(())?;
                let node = self.out.main.op("Concat", inputs);
                node.attribute("axis", layer.int("axis")).output(&layer.name)
            }
            "stack" => {
                let axis = layer.int("axis");
                let axes = self.out.main.ints(&[axis]);
                let mut parts = Vec::with_capacity(inputs.len());
                for (number, input) in inputs.into_iter().enumerate() {
                    let name = layer.step(&format!("part{number}"));
                    parts.push(self.out.main.op("Unsqueeze", [input, axes]).output(&name));
                }
                self.out.main.op("Concat", parts).attribute("axis", axis).output(&layer.name)
            }
            "gather" => {
                let [x, numbers] = inputs.try_into().ok()?;
                let long = self.out.cast(numbers, ElementType::I64, &layer.step("numbers"));
                let node = self.out.main.op("Gather", [x, long]);
                node.attribute("axis", layer.int("axis")).output(&layer.name)
            }
            _ if !is_only => return None,
            "reshapeStatic" => self.shaped(x, &layer.ints("targetShape"), &layer.name),
            "rankPreservingReshape" => self.shaped(x, &layer.ints("targetShape"), &layer.name),
            "flattenTo2D" => {
                let node = self.out.main.op("Flatten", [x]);
                node.attribute("axis", layer.int("axis")).output(&layer.name)
            }
            "transpose" => {
                let node = self.out.main.op("Transpose", [x]);
                node.attribute("perm", layer.ints("axes")).output(&layer.name)
            }
            "squeeze" if layer.is_set("squeezeAll") => {
                self.out.main.op("Squeeze", [x]).output(&layer.name)
            }
            "squeeze" | "expandDims" => {
                let op = if layer.op() == "squeeze" { "Squeeze" } else { "Unsqueeze" };
                let axes = self.out.main.ints(&layer.ints("axes"));
                self.out.main.op(op, [x, axes]).output(&layer.name)
            }
            "tile" => {
                let reps = self.out.main.ints(&layer.ints("reps"));
                self.out.main.op("Tile", [x, reps]).output(&layer.name)
            }
            "sliceStatic" => self.slice(layer, x)?,
            "constantPad" => {
                (!layer.is_set("padToGivenOutputSizeMode")).then_some(())?;
                let pairs = layer.ints("padAmounts");
                (pairs.len() == 2 * self.out.rank(x)?).then_some(())?;
                pairs.iter().all(|pad| *pad >= 0).then_some(())?;
                let ends = pairs.iter().skip(1).step_by(2);
                let pads: Vec<i64> = pairs.iter().step_by(2).chain(ends).copied().collect();
                let pads = self.out.main.ints(&pads);
                let value = self.out.main.float(layer.float("value"));
                self.out.main.op("Pad", [x, pads, value]).output(&layer.name)
            }
            _ => return None,
        };
        Some(Blob::exact(made))
    }

    fn slice(&mut self, layer: &Layer<'_>, x: apr_graph::ValueId) -> Option<apr_graph::ValueId> {
        let rank = self.out.rank(x)?;
        let lists = ["beginIds", "beginMasks", "endIds", "endMasks", "strides"];
        let [mut starts, begin, mut ends, end, steps] = lists.map(|list| layer.ints(list));
        let mut gone = layer.ints("squeezeMasks");
        if gone.is_empty() {
            gone = vec![0; rank];
        }
        let lens = [&starts, &begin, &ends, &end, &steps, &gone];
        lens.iter().all(|list| list.len() == rank).then_some(())?;
        for axis in 0..rank {
            let is_forward = steps[axis] > 0;
            if gone[axis] != 0 {
                (steps[axis] == 1 && begin[axis] == 0).then_some(())?;
                let next = starts[axis].checked_add(1)?;
                ends[axis] = if starts[axis] == -1 { i64::MAX } else { next };
                continue;
            }
            if begin[axis] != 0 {
                starts[axis] = if is_forward { 0 } else { i64::MAX };
            }
            if end[axis] != 0 {
                ends[axis] = if is_forward { i64::MAX } else { i64::MIN + 1 };
            }
        }
        let axes: Vec<i64> = (0..).take(rank).collect();
        let squeezed: Vec<i64> =
            axes.iter().zip(&gone).filter(|(_, gone)| **gone != 0).map(|(axis, _)| *axis).collect();
        let [starts, ends, axes, steps] =
            [starts, ends, axes, steps].map(|list| self.out.main.ints(&list));
        let inputs = [x, starts, ends, axes, steps];
        if squeezed.is_empty() {
            return Some(self.out.main.op("Slice", inputs).output(&layer.name));
        }
        let cut = self.out.main.op("Slice", inputs).output(&layer.step("slice"));
        let squeezed = self.out.main.ints(&squeezed);
        Some(self.out.main.op("Squeeze", [cut, squeezed]).output(&layer.name))
    }

    /// Splits a value: evenly along the channels, or into the sizes of the layer.
    pub(super) fn split(&mut self, layer: &Layer<'_>) -> Option<Vec<Blob>> {
        let input = layer.only()?;
        let is_exact = layer.op() == "splitND";
        let x = match is_exact {
            true => Blob::exact(self.exact(input, &layer.step("x"))),
            false => input,
        };
        let rank = i64::try_from(self.out.rank(x.id)?).ok()?;
        let axis = if is_exact { layer.int("axis") } else { -3 };
        let axis = if axis < 0 { axis + rank } else { axis };
        let size = i64::try_from(self.out.size(x.id, usize::try_from(axis).ok()?)?).ok()?;
        let count = i64::try_from(layer.node.outputs.len()).ok().filter(|count| *count > 0)?;
        let mut sizes = layer.ints("splitSizes");
        if sizes.is_empty() {
            (size % count == 0).then_some(())?;
            sizes = vec![size / count; layer.node.outputs.len()];
        }
        let sum = sizes.iter().try_fold(0_i64, |sum, size| sum.checked_add(*size));
        let is_whole = sum == Some(size) && sizes.iter().all(|size| *size >= 0);
        (is_whole && sizes.len() == layer.node.outputs.len()).then_some(())?;
        let axes = self.out.main.ints(&[axis]);
        let (mut made, mut start) = (Vec::with_capacity(sizes.len()), 0);
        for (id, size) in layer.node.outputs.iter().zip(sizes) {
            let name = self.from.value((*id)?).name.clone();
            let (first, last) = (self.out.main.ints(&[start]), self.out.main.ints(&[start + size]));
            let piece = self.out.main.op("Slice", [x.id, first, last, axes]).output(&name);
            made.push(x.with(piece));
            start += size;
        }
        Some(made)
    }
}
