//! Layers that take dimensions together, or choose along one.

use apr_graph::{ElementType, ValueId};

use super::Lowering;
use super::call::Call;
use super::element::{computed, named};

/// Layers that take dimensions together, with their ONNX operators.
const REDUCERS: [(&str, &str); 7] = [
    ("ReduceL1", "ReduceL1"),
    ("ReduceL2", "ReduceL2"),
    ("ReduceMax", "ReduceMax"),
    ("ReduceMean", "ReduceMean"),
    ("ReduceMin", "ReduceMin"),
    ("ReduceProd", "ReduceProd"),
    ("ReduceSum", "ReduceSum"),
];

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn reduce(&mut self, call: &Call<'_>) -> Option<ValueId> {
        if let Some((_, op)) = REDUCERS.iter().find(|(own, _)| *own == call.op) {
            let x = self.input(call, 0)?;
            return self.reduced(call, op, x, &call.name);
        }
        match call.op {
            // The least and the greatest of 0 and 1.
            "ReduceLogicalAnd" | "ReduceLogicalOr" => {
                let x = self.input(call, 0)?;
                let x = self.out.cast(x, ElementType::I32, &call.step("numbers"));
                let op = if call.op == "ReduceLogicalAnd" { "ReduceMin" } else { "ReduceMax" };
                let made = self.reduced(call, op, x, &call.step("reduced"))?;
                Some(self.out.cast(made, ElementType::Bool, &call.name))
            }
            "CumSum" => {
                let x = self.input(call, 0)?;
                (self.out.element(x)? != ElementType::Bool).then_some(())?;
                let axis = self.known_int(call, 1)?;
                let axis = self.out.main.int(axis);
                let flags = [call.flag_or("exclusive", false)?, call.flag_or("reverse", false)?];
                let node = self.out.main.op("CumSum", [x, axis]);
                let node = node.attribute("exclusive", i64::from(flags[0]));
                Some(node.attribute("reverse", i64::from(flags[1])).output(&call.name))
            }
            _ => None,
        }
    }

    fn reduced(&mut self, call: &Call<'_>, op: &str, x: ValueId, name: &str) -> Option<ValueId> {
        let keeps = call.flag_or("keep_dims", false)?;
        let axes = self.known_ints(call, 1)?;
        // No axes are all of them in ONNX.
        (!axes.is_empty()).then_some(())?;
        let axes = self.out.main.ints(&axes);
        let node = self.out.main.op(op, [x, axes]).attribute("keepdims", i64::from(keeps));
        Some(node.output(name))
    }

    /// The greatest or least elements along a dimension, and their numbers.
    pub(super) fn topk(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        let axis = call.int("axis")?;
        let largest = match call.text_or("mode", "max")? {
            "max" => 1,
            "min" => 0,
            _ => return None,
        };
        // By their numbers, or in no order, they are not in ONNX.
        let sort = call.text_or("sort", "value")?;
        ["value", "none"].contains(&sort).then_some(())?;
        call.ignore("stable");
        let to = computed(named(call.text_or("index_element_type", "i32")?)?);
        let (x, count) = (self.input(call, 0)?, self.longs(call, 1)?);
        let node = self.out.main.op("TopK", [x, count]).attribute("axis", axis);
        let node = node.attribute("largest", largest).attribute("sorted", 1);
        let [values, numbers] = node.outputs(&call.name);
        let numbers = self.out.cast(numbers, to, &call.step("numbers"));
        Some(vec![values, numbers])
    }
}
