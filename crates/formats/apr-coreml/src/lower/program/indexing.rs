//! Operations that take pieces out of values.

use apr_graph::{ElementType, ValueId};

use super::super::call::Call;
use super::Lowering;

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for another, and for one that can't be.
    pub(super) fn indexing(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "slice_by_index" => self.slice_by_index(call),
            "slice_by_size" => self.slice_by_size(call),
            "gather" => self.gather(call, "Gather", 0),
            "gather_along_axis" => self.gather(call, "GatherElements", 0),
            "gather_nd" => {
                let x = self.tensor(call, "x")?;
                let indices = self.indices(call)?;
                let batch = self.int_or(call, "batch_dims", 0)?;
                let node = self.out.main.op("GatherND", [x, indices]);
                Some(node.attribute("batch_dims", batch).output(&call.name))
            }
            "one_hot" => self.one_hot(call),
            _ => None,
        }
    }

    /// Returns positions of a type that ONNX supports for them. Negative ones count from the end.
    fn indices(&mut self, call: &Call<'_>) -> Option<ValueId> {
        if call.has("validate_indices") {
            self.flag(call, "validate_indices", false)?;
        }
        let indices = self.tensor(call, "indices")?;
        match self.out.element(indices)? {
            ElementType::I32 | ElementType::I64 => Some(indices),
            _ => None,
        }
    }

    fn gather(&mut self, call: &Call<'_>, op: &str, default: i64) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let indices = self.indices(call)?;
        let axis = self.int_or(call, "axis", default)?;
        (self.int_or(call, "batch_dims", 0)? == 0).then_some(())?;
        let node = self.out.main.op(op, [x, indices]);
        Some(node.attribute("axis", axis).output(&call.name))
    }

    fn one_hot(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let indices = self.indices(call)?;
        let depth = self.int(call, "one_hot_vector_size")?;
        let axis = self.int_or(call, "axis", -1)?;
        let is_float = self.stated_element(call)? == ElementType::F32;
        let (on, off) =
            (self.number_or(call, "on_value", 1.0)?, self.number_or(call, "off_value", 0.0)?);
        let values = self.out.main.constant(apr_graph::Constant::floats(&[off, on]));
        let depth = self.out.main.int(depth);
        let node = self.out.main.op("OneHot", [indices, depth, values]).attribute("axis", axis);
        if is_float {
            return Some(node.output(&call.name));
        }
        let made = node.output(&call.step("float"));
        Some(self.out.cast(made, ElementType::I32, &call.name))
    }

    fn slice_by_index(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let rank = self.out.rank(x)?;
        let none = vec![0; rank];
        let (begin_mask, end_mask) =
            (self.ints_or(call, "begin_mask", &none)?, self.ints_or(call, "end_mask", &none)?);
        let squeeze_mask = self.ints_or(call, "squeeze_mask", &none)?;
        let steps = self.ints_or(call, "stride", &vec![1; rank])?;
        let lens = [begin_mask.len(), end_mask.len(), squeeze_mask.len(), steps.len()];
        lens.iter().all(|len| *len == rank).then_some(())?;
        let gone: Vec<i64> = (0..)
            .zip(&squeeze_mask)
            .filter(|(_, flag)| **flag != 0)
            .map(|(axis, _)| axis)
            .collect();
        let (begin, end) = (self.edges(call, "begin")?, self.edges(call, "end")?);
        let (starts, ends) = match (begin, end) {
            (Edges::Known(mut starts), Edges::Known(mut ends)) => {
                (starts.len() == rank && ends.len() == rank).then_some(())?;
                for axis in 0..rank {
                    let is_forward = steps[axis] > 0;
                    if squeeze_mask[axis] != 0 {
                        (steps[axis] == 1 && begin_mask[axis] == 0).then_some(())?;
                        let next = starts[axis].checked_add(1)?;
                        ends[axis] = if starts[axis] == -1 { i64::MAX } else { next };
                        continue;
                    }
                    if begin_mask[axis] != 0 {
                        starts[axis] = if is_forward { 0 } else { i64::MAX };
                    }
                    if end_mask[axis] != 0 {
                        ends[axis] = if is_forward { i64::MAX } else { i64::MIN + 1 };
                    }
                }
                (self.out.main.ints(&starts), self.out.main.ints(&ends))
            }
            (begin, end) => {
                // Edges that the model computes are not looked into.
                let masks = [&begin_mask, &end_mask, &squeeze_mask];
                masks.iter().all(|mask| mask.iter().all(|flag| *flag == 0)).then_some(())?;
                (self.written(begin), self.written(end))
            }
        };
        let axes: Vec<i64> = (0..).take(rank).collect();
        let [axes, steps] = [axes, steps].map(|list| self.out.main.ints(&list));
        let inputs = [x, starts, ends, axes, steps];
        if gone.is_empty() {
            return Some(self.op(call, "Slice", &inputs));
        }
        let cut = self.out.main.op("Slice", inputs).output(&call.step("slice"));
        let gone = self.out.main.ints(&gone);
        Some(self.op(call, "Squeeze", &[cut, gone]))
    }

    fn edges(&mut self, call: &Call<'_>, parameter: &str) -> Option<Edges> {
        match self.ints(call, parameter) {
            Some(known) => Some(Edges::Known(known)),
            None => self.longs(call, parameter).map(Edges::Computed),
        }
    }

    fn written(&mut self, edges: Edges) -> ValueId {
        match edges {
            Edges::Known(list) => self.out.main.ints(&list),
            Edges::Computed(id) => id,
        }
    }

    fn slice_by_size(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let (starts, sizes) = (self.ints(call, "begin")?, self.ints(call, "size")?);
        let rank = self.out.rank(x)?;
        (starts.len() == rank && sizes.len() == rank).then_some(())?;
        let mut ends = Vec::with_capacity(rank);
        for (start, size) in starts.iter().zip(&sizes) {
            // -1 is what is left; a start from the end may reach it.
            let end = start.checked_add(*size)?;
            let is_to_the_end = *size == -1 || (*start < 0 && end == 0);
            ends.push(if is_to_the_end { i64::MAX } else { end });
        }
        let (starts, ends) = (self.out.main.ints(&starts), self.out.main.ints(&ends));
        Some(self.op(call, "Slice", &[x, starts, ends]))
    }
}

/// Starts or ends of slices.
enum Edges {
    Known(Vec<i64>),
    Computed(ValueId),
}
