//! Operations that reduce dimensions, or find positions along them.

use apr_graph::{ElementType, ValueId};

use super::super::call::Call;
use super::Lowering;

const REDUCERS: [(&str, &str); 10] = [
    ("reduce_l1_norm", "ReduceL1"),
    ("reduce_l2_norm", "ReduceL2"),
    ("reduce_log_sum", "ReduceLogSum"),
    ("reduce_log_sum_exp", "ReduceLogSumExp"),
    ("reduce_max", "ReduceMax"),
    ("reduce_mean", "ReduceMean"),
    ("reduce_min", "ReduceMin"),
    ("reduce_prod", "ReduceProd"),
    ("reduce_sum", "ReduceSum"),
    ("reduce_sum_square", "ReduceSumSquare"),
];

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for another, and for one that can't be.
    pub(super) fn reduce(&mut self, call: &Call<'_>) -> Option<ValueId> {
        if let Some((_, op)) = REDUCERS.iter().find(|(own, _)| *own == call.op) {
            let x = self.tensor(call, "x")?;
            let keeps = self.flag(call, "keep_dims", false)?;
            let mut inputs = vec![x];
            if call.has("axes") {
                let axes = self.ints(call, "axes")?;
                // ONNX reduces all dimensions where none is listed.
                (!axes.is_empty()).then_some(())?;
                inputs.push(self.out.main.ints(&axes));
            }
            let node = self.out.main.op(op, inputs).attribute("keepdims", i64::from(keeps));
            return Some(node.output(&call.name));
        }
        match call.op {
            "reduce_argmax" => self.arg(call, "ArgMax"),
            "reduce_argmin" => self.arg(call, "ArgMin"),
            "argsort" => self.argsort(call),
            "cumsum" => {
                let x = self.tensor(call, "x")?;
                let axis = self.int_or(call, "axis", 0)?;
                let exclusive = self.flag(call, "exclusive", false)?;
                let reverse = self.flag(call, "reverse", false)?;
                let axis = self.out.main.int(axis);
                let node = self.out.main.op("CumSum", [x, axis]);
                let node = node.attribute("exclusive", i64::from(exclusive));
                Some(node.attribute("reverse", i64::from(reverse)).output(&call.name))
            }
            _ => None,
        }
    }

    fn arg(&mut self, call: &Call<'_>, op: &str) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let axis = self.int_or(call, "axis", -1)?;
        let keeps = self.flag(call, "keep_dims", false)?;
        call_dtype(self, call)?;
        let node = self.out.main.op(op, [x]).attribute("axis", axis);
        let node = node.attribute("keepdims", i64::from(keeps));
        let long = node.output(&call.step("long"));
        Some(self.out.cast(long, ElementType::I32, &call.name))
    }

    /// The positions of all elements along a dimension, in the order of their values.
    fn argsort(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let axis = self.int_or(call, "axis", -1)?;
        let ascending = self.flag(call, "ascending", false)?;
        let x = self.tensor(call, "x")?;
        let rank = self.out.rank(x)?;
        let size = self.out.size(x, super::position(axis, rank)?)?;
        let k = self.out.main.ints(&[i64::try_from(size).ok()?]);
        let [_, long] = self.sorted(call, x, k, axis, ascending);
        Some(self.out.cast(long, ElementType::I32, &call.name))
    }

    fn sorted(
        &mut self,
        call: &Call<'_>,
        x: ValueId,
        k: ValueId,
        axis: i64,
        ascending: bool,
    ) -> [ValueId; 2] {
        let node = self.out.main.op("TopK", [x, k]).attribute("axis", axis);
        node.attribute("largest", i64::from(!ascending)).outputs(&call.step("sorted"))
    }

    /// The largest or smallest elements along a dimension, and their positions.
    pub(super) fn topk(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        let x = self.tensor(call, "x")?;
        let k = self.int_or(call, "k", 1)?;
        let axis = self.int_or(call, "axis", -1)?;
        let ascending = self.flag(call, "ascending", false)?;
        let has_positions = self.flag(call, "return_indices", true)?;
        (k > 0 && self.flag(call, "sort", true)?).then_some(())?;
        if call.has("output_indices_dtype") {
            (self.text(call, "output_indices_dtype")? == "int32").then_some(())?;
        }
        let k = self.out.main.ints(&[k]);
        let [values, long] = self.sorted(call, x, k, axis, ascending);
        if !has_positions {
            return Some(vec![values]);
        }
        let positions = self.out.cast(long, ElementType::I32, &call.step("positions"));
        Some(vec![values, positions])
    }
}

/// Checks that positions are 32-bit integers, if the call declares their type.
fn call_dtype(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Option<()> {
    if call.has("output_dtype") {
        (lowering.text(call, "output_dtype")? == "int32").then_some(())?;
    }
    Some(())
}
