//! Layers that move elements, choose among them, or make them.

use apr_graph::{ElementType, ValueId};

use super::call::Call;
use super::element::{computed, named};
use super::{Lowering, position};

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn movement(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "Reshape" => self.reshape(call),
            "Squeeze" | "Unsqueeze" => self.squeeze(call),
            "Transpose" => self.transpose(call),
            "Concat" => {
                let inputs = self.inputs(call)?;
                let node = self.out.main.op("Concat", inputs);
                Some(node.attribute("axis", call.int("axis")?).output(&call.name))
            }
            "StridedSlice" => self.strided_slice(call),
            "Slice" => {
                let x = self.input(call, 0)?;
                let mut inputs = vec![x];
                for input in [1, 2] {
                    inputs.push(self.longs(call, input)?);
                }
                let axes = if call.has_input(4) { Some(self.longs(call, 4)?) } else { None };
                let steps = self.longs(call, 3)?;
                let node = self.out.main.op("Slice", inputs).optional(axes).optional(Some(steps));
                Some(node.output(&call.name))
            }
            "Gather" => self.gather(call),
            "GatherElements" => {
                let (x, numbers) = (self.input(call, 0)?, self.input(call, 1)?);
                let node = self.out.main.op("GatherElements", [x, numbers]);
                Some(node.attribute("axis", call.int("axis")?).output(&call.name))
            }
            "GatherND" => {
                let (x, numbers) = (self.input(call, 0)?, self.input(call, 1)?);
                let numbers = self.out.cast(numbers, ElementType::I64, &call.step("numbers"));
                let batch = call.int_or("batch_dims", 0)?;
                // An older version joins the dimensions of batches.
                (batch == 0 || call.is_of(&["opset8"])).then_some(())?;
                let node = self.out.main.op("GatherND", [x, numbers]);
                Some(node.attribute("batch_dims", batch).output(&call.name))
            }
            "ScatterNDUpdate" => {
                (call.text_or("reduction", "none")? == "none").then_some(())?;
                let (x, numbers, new) =
                    (self.input(call, 0)?, self.input(call, 1)?, self.input(call, 2)?);
                let numbers = self.out.cast(numbers, ElementType::I64, &call.step("numbers"));
                Some(self.op(call, "ScatterND", &[x, numbers, new]))
            }
            "ScatterElementsUpdate" => self.scatter_elements(call),
            "Pad" => self.pad(call),
            "Tile" => {
                let (x, repeats) = (self.input(call, 0)?, self.longs(call, 1)?);
                Some(self.op(call, "Tile", &[x, repeats]))
            }
            "Broadcast" => {
                let mode = call.text_or("mode", "numpy")?;
                ["numpy", "bidirectional"].contains(&mode).then_some(())?;
                let (x, shape) = (self.input(call, 0)?, self.longs(call, 1)?);
                Some(self.op(call, "Expand", &[x, shape]))
            }
            "ShapeOf" => {
                let to = computed(named(call.text_or("output_type", "i64")?)?);
                let x = self.input(call, 0)?;
                let shape = self.step(call, "shape", "Shape", &[x]);
                Some(self.out.cast(shape, to, &call.name))
            }
            "Range" => self.range(call),
            "NonZero" => {
                let to = computed(named(call.text_or("output_type", "i64")?)?);
                let x = self.input(call, 0)?;
                let found = self.step(call, "found", "NonZero", &[x]);
                Some(self.out.cast(found, to, &call.name))
            }
            "OneHot" => self.one_hot(call),
            "ReverseSequence" => {
                let (x, lens) = (self.input(call, 0)?, self.longs(call, 1)?);
                let (batch, time) = (call.int_or("batch_axis", 0)?, call.int_or("seq_axis", 1)?);
                let node = self.out.main.op("ReverseSequence", [x, lens]);
                let node = node.attribute("batch_axis", batch).attribute("time_axis", time);
                Some(node.output(&call.name))
            }
            _ => None,
        }
    }

    fn reshape(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let keeps = call.flag_or("special_zero", false)?;
        let x = self.input(call, 0)?;
        let shape = self.longs(call, 1)?;
        let known = self.known_ints(call, 1);
        let node = self.out.main.op("Reshape", [x, shape]);
        // A 0 is a size of the input in ONNX too, unless it is told otherwise.
        let node = match !keeps && known.is_none_or(|known| known.contains(&0)) {
            true => node.attribute("allowzero", 1),
            false => node,
        };
        Some(node.output(&call.name))
    }

    fn squeeze(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        call.ignore("allow_axis_skip");
        let axes = match call.has_input(1) {
            true => Some(self.longs(call, 1)?),
            false => None,
        };
        let node = apr_lower::with(self.out.main.op(call.op, [x]), axes);
        Some(node.output(&call.name))
    }

    fn transpose(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let order = self.known_ints(call, 1)?;
        let node = self.out.main.op("Transpose", [x]);
        // No order is the reverse one in both.
        let node = if order.is_empty() { node } else { node.attribute("perm", order) };
        Some(node.output(&call.name))
    }

    /// A part of each dimension. A 1 in a mask is a bound that does not count.
    fn strided_slice(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let mask = |name: &str| call.ints_or(name, &[]);
        let (free_begin, free_end) = (mask("begin_mask")?, mask("end_mask")?);
        let (new, gone) = (mask("new_axis_mask")?, mask("shrink_axis_mask")?);
        let ellipsis = mask("ellipsis_mask")?;
        let (begin, end) = (self.known_ints(call, 1)?, self.known_ints(call, 2)?);
        let steps = match call.has_input(3) {
            true => self.known_ints(call, 3)?,
            false => vec![1; begin.len()],
        };
        (end.len() == begin.len() && steps.len() == begin.len()).then_some(())?;
        let is_set = |mask: &[i64], at: usize| mask.get(at).is_some_and(|bit| *bit != 0);
        let rank = self.out.rank(x)?;
        let added =
            (0..begin.len()).filter(|at| is_set(&new, *at) && !is_set(&ellipsis, *at)).count();
        let mut axis = 0_usize;
        let (mut starts, mut ends, mut strides, mut axes) = (vec![], vec![], vec![], vec![]);
        let (mut squeezed, mut unsqueezed) = (vec![], vec![]);
        // Positions of the dimensions that are added, in the result.
        let mut place = 0_i64;
        for at in 0..begin.len() {
            if is_set(&ellipsis, at) {
                let others = begin.len() - 1 - added;
                let skipped = rank.checked_sub(others)?;
                axis += skipped;
                place += i64::try_from(skipped).ok()?;
                continue;
            }
            if is_set(&new, at) {
                unsqueezed.push(place);
                place += 1;
                continue;
            }
            (axis < rank).then_some(())?;
            let own = i64::try_from(axis).ok()?;
            axis += 1;
            if is_set(&gone, at) {
                squeezed.push(own);
                axes.push(own);
                starts.push(begin[at]);
                ends.push(if begin[at] == -1 { i64::MAX } else { begin[at] + 1 });
                strides.push(1);
                continue;
            }
            place += 1;
            let (free_begin, free_end) = (is_set(&free_begin, at), is_set(&free_end, at));
            let step = steps[at];
            (step != 0).then_some(())?;
            let first = if step > 0 { 0 } else { i64::MAX };
            let last = if step > 0 { i64::MAX } else { i64::MIN };
            axes.push(own);
            starts.push(if free_begin { first } else { begin[at] });
            ends.push(if free_end { last } else { end[at] });
            strides.push(step);
        }
        let mut made = x;
        if !axes.is_empty() {
            let lists = [&starts, &ends, &axes, &strides].map(|list| self.out.main.ints(list));
            made =
                self.out.main.op("Slice", [x].into_iter().chain(lists)).output(&call.step("part"));
        }
        if !squeezed.is_empty() {
            let axes = self.out.main.ints(&squeezed);
            made = self.step(call, "squeezed", "Squeeze", &[made, axes]);
        }
        if !unsqueezed.is_empty() {
            let axes = self.out.main.ints(&unsqueezed);
            made = self.step(call, "unsqueezed", "Unsqueeze", &[made, axes]);
        }
        Some(self.op(call, "Identity", &[made]))
    }

    fn gather(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let axis = self.known_int(call, 2)?;
        let (x, numbers) = (self.input(call, 0)?, self.input(call, 1)?);
        let batch = call.int_or("batch_dims", 0)?;
        if batch != 0 {
            // One dimension of the batch, and the next one: what `GatherND` calls batches.
            let rank = self.out.rank(numbers)?;
            let is_last = position(axis, self.out.rank(x)?)? == usize::try_from(batch).ok()?;
            (batch > 0 && is_last && rank > 0).then_some(())?;
            let last = self.out.main.ints(&[-1]);
            let each = self.step(call, "each", "Unsqueeze", &[numbers, last]);
            let each = self.out.cast(each, ElementType::I64, &call.step("numbers"));
            let node = self.out.main.op("GatherND", [x, each]).attribute("batch_dims", batch);
            return Some(node.output(&call.name));
        }
        let node = self.out.main.op("Gather", [x, numbers]).attribute("axis", axis);
        Some(node.output(&call.name))
    }

    fn scatter_elements(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let axis = self.known_int(call, 3)?;
        let reduction = match call.text_or("reduction", "none")? {
            "none" => "none",
            "sum" => "add",
            "prod" => "mul",
            "max" => "max",
            "min" => "min",
            _ => return None,
        };
        // Others leave out the elements that were there.
        call.flag_or("use_init_val", true)?.then_some(())?;
        let (x, numbers, new) = (self.input(call, 0)?, self.input(call, 1)?, self.input(call, 2)?);
        let node = self.out.main.op("ScatterElements", [x, numbers, new]).attribute("axis", axis);
        Some(node.attribute("reduction", reduction).output(&call.name))
    }

    fn pad(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let mode = call.text_or("pad_mode", "constant")?;
        ["constant", "edge", "reflect"].contains(&mode).then_some(())?;
        let x = self.input(call, 0)?;
        let pads = match (self.known_ints(call, 1), self.known_ints(call, 2)) {
            (Some(begin), Some(end)) => self.out.main.ints(&[begin, end].concat()),
            _ => {
                let sides = [self.longs(call, 1)?, self.longs(call, 2)?];
                let node = self.out.main.op("Concat", sides).attribute("axis", 0);
                node.output(&call.step("pads"))
            }
        };
        let value = match mode {
            "constant" => self.maybe(call, 3)?,
            _ => None,
        };
        let node = apr_lower::with(self.out.main.op("Pad", [x, pads]), value);
        Some(node.attribute("mode", mode).output(&call.name))
    }

    fn range(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let to = computed(named(call.text_or("output_type", "f32")?)?);
        let mut inputs = self.inputs(call)?;
        for (at, input) in inputs.iter_mut().enumerate() {
            *input = self.out.cast(*input, to, &call.step(&format!("bound{at}")));
        }
        Some(self.op(call, "Range", &inputs))
    }

    fn one_hot(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let axis = call.int("axis")?;
        // Numbers that are negative count from the end in ONNX, and are no class here.
        call.ignore("negative_indices_mode");
        let (numbers, depth) = (self.input(call, 0)?, self.longs(call, 1)?);
        let numbers = self.out.cast(numbers, ElementType::I64, &call.step("numbers"));
        let (on, off) = (self.input(call, 2)?, self.input(call, 3)?);
        let one = self.out.main.ints(&[1]);
        let on = self.step(call, "on", "Reshape", &[on, one]);
        let off = self.step(call, "off", "Reshape", &[off, one]);
        let values = self.out.main.op("Concat", [off, on]).attribute("axis", 0);
        let values = values.output(&call.step("values"));
        let node = self.out.main.op("OneHot", [numbers, depth, values]).attribute("axis", axis);
        Some(node.output(&call.name))
    }

    /// Parts of a value along a dimension.
    pub(super) fn split(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        let axis = self.known_int(call, 1)?;
        let x = self.input(call, 0)?;
        let count = call.outputs.len();
        let lens = match call.op {
            "Split" => {
                (usize::try_from(call.int("num_splits")?).ok()? == count).then_some(())?;
                None
            }
            _ => Some(self.split_lens(call, x, axis)?),
        };
        let node = self.out.main.op("Split", [x]);
        let has_lens = lens.is_some();
        let node = apr_lower::with(node, lens).attribute("axis", axis);
        let node = match has_lens {
            true => node,
            false => node.attribute("num_outputs", i64::try_from(count).ok()?),
        };
        Some(node.list_of_outputs(&call.name, count))
    }

    /// The lengths of parts, one of which may be what is left.
    fn split_lens(&mut self, call: &Call<'_>, x: ValueId, axis: i64) -> Option<ValueId> {
        let mut lens = self.known_ints(call, 2)?;
        (lens.len() == call.outputs.len()).then_some(())?;
        if let Some(at) = lens.iter().position(|len| *len == -1) {
            let axis = position(axis, self.out.rank(x)?)?;
            let all = i64::try_from(self.out.size(x, axis)?).ok()?;
            let others = lens.iter().filter(|len| **len != -1).sum::<i64>();
            lens[at] = all.checked_sub(others).filter(|len| *len >= 0)?;
        }
        Some(self.out.main.ints(&lens))
    }
}
