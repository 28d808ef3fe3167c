//! Layers on each element, of one input and of several.

use apr_graph::{ElementType, ValueId};

use super::super::gelu;
use super::Lowering;
use super::layer::{Blob, Layer};

/// Layers of one input, with their ONNX operators.
const UNARY: [(&str, &str); 18] = [
    ("acos", "Acos"),
    ("acosh", "Acosh"),
    ("asin", "Asin"),
    ("asinh", "Asinh"),
    ("atan", "Atan"),
    ("atanh", "Atanh"),
    ("ceil", "Ceil"),
    ("copy", "Identity"),
    ("cos", "Cos"),
    ("cosh", "Cosh"),
    ("erf", "Erf"),
    ("floor", "Floor"),
    ("round", "Round"),
    ("sign", "Sign"),
    ("sin", "Sin"),
    ("sinh", "Sinh"),
    ("tan", "Tan"),
    ("tanh", "Tanh"),
];

/// Layers of several inputs, with their ONNX operators. A number can replace the second input.
const BROADCAST: [(&str, &str); 12] = [
    ("add", "Add"),
    ("addBroadcastable", "Add"),
    ("divideBroadcastable", "Div"),
    ("max", "Max"),
    ("maxBroadcastable", "Max"),
    ("min", "Min"),
    ("minBroadcastable", "Min"),
    ("multiply", "Mul"),
    ("multiplyBroadcastable", "Mul"),
    ("powBroadcastable", "Pow"),
    ("subtractBroadcastable", "Sub"),
    ("average", "Add"),
];

/// Comparisons, whose results are 1 and 0.
const COMPARISONS: [(&str, &str); 6] = [
    ("equal", "Equal"),
    ("greaterEqual", "GreaterOrEqual"),
    ("greaterThan", "Greater"),
    ("lessEqual", "LessOrEqual"),
    ("lessThan", "Less"),
    ("notEqual", "Equal"),
];

fn of(table: &'static [(&str, &str)], op: &str) -> Option<&'static str> {
    table.iter().find(|(own, _)| *own == op).map(|(_, op)| *op)
}

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn elementwise(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        if let Some(op) = of(&UNARY, layer.op()) {
            let x = layer.only()?;
            return Some(self.op(layer, op, &[x.id], x));
        }
        if let Some(op) = of(&BROADCAST, layer.op()) {
            return self.broadcast(layer, op);
        }
        if let Some(op) = of(&COMPARISONS, layer.op()) {
            return self.comparison(layer, op);
        }
        match layer.op() {
            "unary" => self.function(layer),
            "gelu" => {
                let x = layer.only()?;
                let mode = layer.member("mode", "EXACT")?;
                Some(x.with(gelu(mode)?.write(&mut self.out.main, x.id, &layer.name)))
            }
            "clip" => {
                let x = layer.only()?;
                let (low, high) = (layer.float("minVal"), layer.float("maxVal"));
                let (low, high) = (self.out.main.float(low), self.out.main.float(high));
                Some(self.op(layer, "Clip", &[x.id, low, high], x))
            }
            "exp2" => {
                let x = layer.only()?;
                let two = self.out.main.float(2.0);
                Some(self.op(layer, "Pow", &[two, x.id], x))
            }
            "whereBroadcastable" => {
                let [condition, a, b] = layer.inputs.as_slice().try_into().ok()?;
                let ids = self.alike(layer, &[condition, a, b]);
                let zero = self.out.main.float(0.0);
                let equal = self.out.main.op("Equal", [ids[0], zero]).output(&layer.step("equal"));
                Some(Blob::exact(self.op(layer, "Where", &[equal, ids[2], ids[1]], a).id))
            }
            "scaler" => self.scaler(layer),
            _ => None,
        }
    }

    /// Returns the inputs with the same number of dimensions, if only some of them have five.
    pub(super) fn alike(&mut self, layer: &Layer<'_>, blobs: &[Blob]) -> Vec<ValueId> {
        let is_one = blobs.iter().all(|blob| blob.is_rank_5 == blobs[0].is_rank_5);
        blobs
            .iter()
            .enumerate()
            .map(|(number, blob)| match is_one {
                true => blob.id,
                false => self.exact(*blob, &layer.step(&format!("input{number}"))),
            })
            .collect()
    }

    fn broadcast(&mut self, layer: &Layer<'_>, op: &str) -> Option<Blob> {
        let first = *layer.inputs.first()?;
        if let [x] = layer.inputs.as_slice() {
            // One input goes with a number.
            ["add", "multiply"].contains(&layer.op()).then_some(())?;
            let alpha = self.out.main.float(layer.float("alpha"));
            return Some(self.op(layer, op, &[x.id, alpha], *x));
        }
        let ids = self.alike(layer, &layer.inputs);
        let is_mixed = layer.inputs.iter().any(|blob| blob.is_rank_5 != first.is_rank_5);
        let like = if is_mixed { Blob::exact(first.id) } else { first };
        let is_average = layer.op() == "average";
        let mut sum = *ids.first()?;
        for (at, id) in ids.iter().enumerate().skip(1) {
            let is_last = at + 1 == ids.len() && !is_average;
            let name = if is_last { layer.name.clone() } else { layer.step(&format!("part{at}")) };
            sum = self.out.main.op(op, [sum, *id]).output(&name);
        }
        if is_average {
            let count = self.out.main.float(ids.len() as f32);
            sum = self.out.main.op("Div", [sum, count]).output(&layer.name);
        }
        Some(like.with(sum))
    }

    fn comparison(&mut self, layer: &Layer<'_>, op: &str) -> Option<Blob> {
        let (a, b, like) = match layer.inputs.as_slice() {
            [x] => (x.id, self.out.main.float(layer.float("alpha")), *x),
            [x, y] if x.is_rank_5 == y.is_rank_5 => (x.id, y.id, *x),
            _ => return None,
        };
        let mut truth = self.out.main.op(op, [a, b]).output(&layer.step("truth"));
        if layer.op() == "notEqual" {
            truth = self.out.main.op("Not", [truth]).output(&layer.step("not"));
        }
        Some(like.with(self.out.cast(truth, ElementType::F32, &layer.name)))
    }

    /// The layer of functions, whose input is scaled and shifted.
    fn function(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?;
        let (scale, shift) = (layer.float_or("scale", 1.0), layer.float("shift"));
        let epsilon = layer.float_or("epsilon", 1e-6);
        let main = &mut self.out.main;
        let mut made = x.id;
        if scale != 1.0 {
            let scale = main.float(scale);
            made = main.op("Mul", [made, scale]).output(&layer.step("scaled"));
        }
        if shift != 0.0 {
            let shift = main.float(shift);
            made = main.op("Add", [made, shift]).output(&layer.step("shifted"));
        }
        let alpha = main.float(layer.float("alpha"));
        let epsilon = main.float(epsilon);
        let made = match layer.member("type", "SQRT")? {
            "SQRT" => main.op("Sqrt", [made]).output(&layer.name),
            "RSQRT" => {
                let above = main.op("Add", [made, epsilon]).output(&layer.step("above"));
                let root = main.op("Sqrt", [above]).output(&layer.step("root"));
                main.op("Reciprocal", [root]).output(&layer.name)
            }
            "INVERSE" => {
                let above = main.op("Add", [made, epsilon]).output(&layer.step("above"));
                main.op("Reciprocal", [above]).output(&layer.name)
            }
            "POWER" => main.op("Pow", [made, alpha]).output(&layer.name),
            "EXP" => main.op("Exp", [made]).output(&layer.name),
            "LOG" => main.op("Log", [made]).output(&layer.name),
            "ABS" => main.op("Abs", [made]).output(&layer.name),
            "THRESHOLD" => main.op("Max", [made, alpha]).output(&layer.name),
            _ => return None,
        };
        Some(x.with(made))
    }

    /// The colors of an image, each with its bias.
    fn scaler(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        const GRAY: i64 = 10;
        const RGB: i64 = 20;
        const BGR: i64 = 30;

        let x = layer.only()?;
        let fields: &[&str] = match layer.int("colorSpace") {
            GRAY => &["grayBias"],
            RGB => &["redBias", "greenBias", "blueBias"],
            BGR => &["blueBias", "greenBias", "redBias"],
            _ => return None,
        };
        let biases: Vec<f32> = fields.iter().map(|field| layer.float(field)).collect();
        let mut biases = apr_graph::Constant::floats(&biases);
        biases.shape = vec![fields.len() as u64, 1, 1];
        let scale = self.out.main.float(layer.float("channelScale"));
        let scaled = self.out.main.op("Mul", [x.id, scale]).output(&layer.step("scaled"));
        let biases = self.out.main.constant(biases);
        Some(self.op(layer, "Add", &[scaled, biases], x))
    }
}
