//! Layers that reduce dimensions, or find positions along them.

use apr_graph::ElementType;

use super::Lowering;
use super::layer::{Blob, Layer};

const REDUCERS: [(&str, &str); 10] = [
    ("reduceL1", "ReduceL1"),
    ("reduceL2", "ReduceL2"),
    ("reduceLogSum", "ReduceLogSum"),
    ("reduceLogSumExp", "ReduceLogSumExp"),
    ("reduceMax", "ReduceMax"),
    ("reduceMean", "ReduceMean"),
    ("reduceMin", "ReduceMin"),
    ("reduceProd", "ReduceProd"),
    ("reduceSum", "ReduceSum"),
    ("reduceSumSquare", "ReduceSumSquare"),
];

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn reduce(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        if let Some((_, op)) = REDUCERS.iter().find(|(own, _)| *own == layer.op()) {
            let x = self.exact(layer.only()?, &layer.step("x"));
            let axes = layer.ints("axes");
            let mut inputs = vec![x];
            if !layer.is_set("reduceAll") {
                (!axes.is_empty()).then_some(())?;
                inputs.push(self.out.main.ints(&axes));
            }
            let keeps = layer.int("keepDims");
            let node = self.out.main.op(op, inputs).attribute("keepdims", keeps);
            return Some(Blob::exact(node.output(&layer.name)));
        }
        match layer.op() {
            "reduce" => self.reduce_by_name(layer),
            "argMax" | "argMin" => {
                let x = self.exact(layer.only()?, &layer.step("x"));
                let op = if layer.op() == "argMax" { "ArgMax" } else { "ArgMin" };
                let node = self.out.main.op(op, [x]).attribute("axis", layer.int("axis"));
                let node = node.attribute("keepdims", i64::from(!layer.is_set("removeDim")));
                let long = node.output(&layer.step("long"));
                Some(Blob::exact(self.out.cast(long, ElementType::F32, &layer.name)))
            }
            "cumSum" => {
                let x = self.exact(layer.only()?, &layer.step("x"));
                let axis = self.out.main.int(layer.int("axis"));
                let node = self.out.main.op("CumSum", [x, axis]);
                let node = node.attribute("exclusive", layer.int("excludeFinalSum"));
                let node = node.attribute("reverse", layer.int("reverse"));
                Some(Blob::exact(node.output(&layer.name)))
            }
            "dot" => {
                (!layer.is_set("cosineSimilarity")).then_some(())?;
                let [a, b] = layer.pair()?;
                (a.is_rank_5 == b.is_rank_5).then_some(())?;
                let product = self.out.main.op("Mul", [a.id, b.id]).output(&layer.step("product"));
                let axes = self.out.main.ints(&[-3]);
                Some(self.op(layer, "ReduceSum", &[product, axes], a))
            }
            _ => None,
        }
    }

    /// The older layer, whose dimensions have names.
    fn reduce_by_name(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?;
        let axes: &[i64] = match layer.member("axis", "CHW")? {
            "CHW" => &[-3, -2, -1],
            "HW" => &[-2, -1],
            "C" => &[-3],
            "H" => &[-2],
            "W" => &[-1],
            _ => return None,
        };
        let op = match layer.member("mode", "SUM")? {
            "SUM" => "ReduceSum",
            "AVG" => "ReduceMean",
            "PROD" => "ReduceProd",
            "SUMSQUARE" => "ReduceSumSquare",
            "L1" => "ReduceL1",
            "L2" => "ReduceL2",
            "MAX" => "ReduceMax",
            "MIN" => "ReduceMin",
            "LOGSUM" => {
                let epsilon = self.out.main.float(layer.float_or("epsilon", 1e-6));
                let main = &mut self.out.main;
                let above = main.op("Add", [x.id, epsilon]).output(&layer.step("above"));
                let logs = main.op("Log", [above]).output(&layer.step("logs"));
                let axes = main.ints(axes);
                return Some(self.op(layer, "ReduceSum", &[logs, axes], x));
            }
            "ARGMAX" => {
                let [axis]: [i64; 1] = axes.try_into().ok()?;
                let node = self.out.main.op("ArgMax", [x.id]).attribute("axis", axis);
                let long = node.output(&layer.step("long"));
                return Some(x.with(self.out.cast(long, ElementType::F32, &layer.name)));
            }
            _ => return None,
        };
        let axes = self.out.main.ints(axes);
        Some(self.op(layer, op, &[x.id, axes], x))
    }
}
