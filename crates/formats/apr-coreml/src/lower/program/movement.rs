//! Operations that move elements: shapes, orders, pieces put together.

use apr_graph::{Constant, ConstantData, ElementType, ValueId};

use super::super::call::Call;
use super::super::element::computed_constant;
use super::{Lowering, position};

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for another, and for one that can't be.
    pub(super) fn movement(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "reshape" => self.listed(call, "Reshape", "shape"),
            "expand_dims" => self.listed(call, "Unsqueeze", "axes"),
            "tile" => self.listed(call, "Tile", "reps"),
            "squeeze" if call.has("axes") => self.listed(call, "Squeeze", "axes"),
            "squeeze" => {
                // All dimensions of one element go; which these are is known of a whole shape.
                let sizes = self.stated_sizes(call)?;
                let sizes: Option<Vec<i64>> =
                    sizes.iter().map(|size| i64::try_from(*size).ok()).collect();
                let x = self.tensor(call, "x")?;
                let shape = self.out.main.ints(&sizes?);
                Some(self.op(call, "Reshape", &[x, shape]))
            }
            "transpose" => {
                let x = self.tensor(call, "x")?;
                let rank = self.out.rank(x)?;
                let perm = self.ints(call, "perm")?;
                let perm: Option<Vec<i64>> =
                    perm.iter().map(|axis| i64::try_from(position(*axis, rank)?).ok()).collect();
                let node = self.out.main.op("Transpose", [x]);
                Some(node.attribute("perm", perm?).output(&call.name))
            }
            "flatten2d" => {
                let x = self.tensor(call, "x")?;
                let axis = self.int_or(call, "axis", 1)?;
                Some(self.out.main.op("Flatten", [x]).attribute("axis", axis).output(&call.name))
            }
            "concat" => self.concat(call),
            "stack" => self.stack(call),
            "pad" => self.pad(call),
            "reverse" => self.reverse(call),
            "fill" => self.fill(call),
            "range_1d" => {
                let [start, end, step] =
                    ["start", "end", "step"].map(|name| self.tensor(call, name));
                Some(self.op(call, "Range", &[start?, end?, step?]))
            }
            "shape" => {
                let x = self.tensor(call, "x")?;
                let long = self.out.main.op("Shape", [x]).output(&call.step("long"));
                Some(self.out.cast(long, ElementType::I32, &call.name))
            }
            _ => None,
        }
    }

    /// An operation whose second input is a list of integers.
    fn listed(&mut self, call: &Call<'_>, op: &str, parameter: &str) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let list = self.longs(call, parameter)?;
        Some(self.op(call, op, &[x, list]))
    }

    fn concat(&mut self, call: &Call<'_>) -> Option<ValueId> {
        (!self.flag(call, "interleave", false)?).then_some(())?;
        let axis = self.int(call, "axis")?;
        let values = self.tensors(call, "values")?;
        Some(self.out.main.op("Concat", values).attribute("axis", axis).output(&call.name))
    }

    fn stack(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let axis = self.int(call, "axis")?;
        let values = self.tensors(call, "values")?;
        let axes = self.out.main.ints(&[axis]);
        let mut parts = Vec::with_capacity(values.len());
        for (number, value) in values.into_iter().enumerate() {
            let name = call.step(&format!("part{number}"));
            parts.push(self.out.main.op("Unsqueeze", [value, axes]).output(&name));
        }
        Some(self.out.main.op("Concat", parts).attribute("axis", axis).output(&call.name))
    }

    /// Pieces of a value along a dimension, of sizes that are stated or equal.
    pub(super) fn split(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        let x = self.tensor(call, "x")?;
        let axis = self.int(call, "axis")?;
        let axis = position(axis, self.out.rank(x)?)?;
        let count = call.outputs.len();
        let sizes = match call.has("split_sizes") {
            true => self.ints(call, "split_sizes")?,
            false => {
                let size = i64::try_from(self.out.size(x, axis)?).ok()?;
                let parts = i64::try_from(count).ok().filter(|count| *count > 0)?;
                (size % parts == 0).then_some(())?;
                vec![size / parts; count]
            }
        };
        if call.has("num_splits") {
            (usize::try_from(self.int(call, "num_splits")?).ok()? == count).then_some(())?;
        }
        (sizes.len() == count && sizes.iter().all(|size| *size >= 0)).then_some(())?;
        let axes = self.out.main.ints(&[i64::try_from(axis).ok()?]);
        let mut made = Vec::with_capacity(count);
        let mut start = 0_i64;
        for (id, size) in call.outputs.iter().zip(sizes) {
            let end = start.checked_add(size)?;
            let name = self.from.value((*id)?).name.clone();
            let (first, last) = (self.out.main.ints(&[start]), self.out.main.ints(&[end]));
            made.push(self.out.main.op("Slice", [x, first, last, axes]).output(&name));
            start = end;
        }
        Some(made)
    }

    fn pad(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let rank = self.out.rank(x)?;
        let pairs = self.ints(call, "pad")?;
        let mode = match self.text_or(call, "mode", "constant")?.as_str() {
            "constant" => "constant",
            "reflect" => "reflect",
            "replicate" => "edge",
            _ => return None,
        };
        let value = match call.has("constant_val") {
            true => self.tensor(call, "constant_val")?,
            false if self.out.element(x)? == ElementType::F32 => self.out.main.float(0.0),
            false => return None,
        };
        // The last dimensions have a pair each.
        let first = rank.checked_sub(pairs.len() / 2)?;
        pairs.len().is_multiple_of(2).then_some(())?;
        let (mut starts, mut ends) = (vec![0; rank], vec![0; rank]);
        for (at, pair) in pairs.chunks(2).enumerate() {
            starts[first + at] = pair[0];
            ends[first + at] = pair[1];
        }
        starts.extend(ends);
        starts.iter().all(|pad| *pad >= 0).then_some(())?;
        let pads = self.out.main.ints(&starts);
        let inputs = if mode == "constant" { vec![x, pads, value] } else { vec![x, pads] };
        Some(self.out.main.op("Pad", inputs).attribute("mode", mode).output(&call.name))
    }

    fn reverse(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let rank = i64::try_from(self.out.rank(x)?).ok()?;
        let all: Vec<i64> = (0..rank).collect();
        let axes = self.ints_or(call, "axes", &all)?;
        let [starts, ends, steps] =
            [-1, i64::MIN + 1, -1].map(|one| self.out.main.ints(&vec![one; axes.len()]));
        let axes = self.out.main.ints(&axes);
        Some(self.op(call, "Slice", &[x, starts, ends, axes, steps]))
    }

    fn fill(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let value = match call.has("value") {
            true => self.known(call, "value")?,
            false => Constant::float(0.0),
        };
        let mut value = computed_constant(&value)?;
        let ConstantData::Bytes(_) = value.data else { return None };
        (value.shape.iter().all(|size| *size == 1)).then_some(())?;
        value.shape = vec![1];
        let shape = self.longs(call, "shape")?;
        let node = self.out.main.op("ConstantOfShape", [shape]);
        Some(node.attribute("value", value).output(&call.name))
    }
}
