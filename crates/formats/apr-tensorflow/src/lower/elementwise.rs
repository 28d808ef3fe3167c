//! Operators on each element.

use apr_graph::{ElementType, Node, Op, ValueId};
use apr_lower::Order;

use super::Lowering;

/// Operators with the same meaning in ONNX.
const UNARY: [(&str, &str); 34] = [
    ("Abs", "Abs"),
    ("Acos", "Acos"),
    ("Acosh", "Acosh"),
    ("Asin", "Asin"),
    ("Asinh", "Asinh"),
    ("Atan", "Atan"),
    ("Atanh", "Atanh"),
    ("Ceil", "Ceil"),
    ("Cos", "Cos"),
    ("Cosh", "Cosh"),
    ("Elu", "Elu"),
    ("Erf", "Erf"),
    ("Exp", "Exp"),
    ("Floor", "Floor"),
    ("Inv", "Reciprocal"),
    ("IsInf", "IsInf"),
    ("IsNan", "IsNaN"),
    ("Log", "Log"),
    ("LogicalNot", "Not"),
    ("Neg", "Neg"),
    ("Reciprocal", "Reciprocal"),
    ("Relu", "Relu"),
    ("Rint", "Round"),
    ("Round", "Round"),
    ("Selu", "Selu"),
    ("Sigmoid", "Sigmoid"),
    ("Sign", "Sign"),
    ("Sin", "Sin"),
    ("Sinh", "Sinh"),
    ("Softplus", "Softplus"),
    ("Softsign", "Softsign"),
    ("Sqrt", "Sqrt"),
    ("Tan", "Tan"),
    ("Tanh", "Tanh"),
];

const BINARY: [(&str, &str); 16] = [
    ("Add", "Add"),
    ("AddV2", "Add"),
    ("Equal", "Equal"),
    ("Greater", "Greater"),
    ("GreaterEqual", "GreaterOrEqual"),
    ("Less", "Less"),
    ("LessEqual", "LessOrEqual"),
    ("LogicalAnd", "And"),
    ("LogicalOr", "Or"),
    ("Maximum", "Max"),
    ("Minimum", "Min"),
    ("Mul", "Mul"),
    ("Pow", "Pow"),
    ("RealDiv", "Div"),
    ("Sub", "Sub"),
    ("TruncateDiv", "Div"),
];

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn elementwise(&mut self, node: &Node) -> Option<()> {
        let op = &*node.op.name;
        if let Some((_, op)) = UNARY.iter().find(|(own, _)| *own == op) {
            return self.chain(node, &[0], &[op]);
        }
        if let Some((_, op)) = BINARY.iter().find(|(own, _)| *own == op) {
            return self.binary(node, op);
        }
        match op {
            "AddN" => {
                let all: Vec<usize> = (0..node.inputs.len()).collect();
                self.chain(node, &all, &["Sum"])
            }
            "Cast" => self.cast(node),
            "ClipByValue" => self.clip_by_value(node),
            "Div" if self.element(node, 0)?.is_float() => self.binary(node, "Div"),
            "DivNoNan" => self.div_no_nan(node),
            "Erfc" => self.with_one(node, |this, x, one, name| {
                let erf = this.out.main.op("Erf", [x]).output(&format!("{name}/erf"));
                this.out.main.op("Sub", [one, erf]).output(name)
            }),
            "Expm1" => self.with_one(node, |this, x, one, name| {
                let power = this.out.main.op("Exp", [x]).output(&format!("{name}/exp"));
                this.out.main.op("Sub", [power, one]).output(name)
            }),
            "Log1p" => self.with_one(node, |this, x, one, name| {
                let sum = this.out.main.op("Add", [x, one]).output(&format!("{name}/sum"));
                this.out.main.op("Log", [sum]).output(name)
            }),
            "FloorDiv" => self.floor_div(node),
            "FloorMod" => self.floor_mod(node),
            "LeakyRelu" => {
                let (ids, order, name) = self.in_one_order(node, &[0])?;
                let alpha = node.float("alpha").unwrap_or(0.2);
                let node_of = self.out.main.op("LeakyRelu", ids).attribute("alpha", alpha);
                let y = node_of.output(&name);
                self.set(node, y, order)
            }
            "LogSoftmax" | "Softmax" => self.softmax(node, op),
            "NotEqual" => self.chain(node, &[0, 1], &["Equal", "Not"]),
            "Relu6" => {
                let (ids, order, name) = self.in_one_order(node, &[0])?;
                let (low, high) = (self.out.main.float(0.0), self.out.main.float(6.0));
                let y = self.out.main.op("Clip", [ids[0], low, high]).output(&name);
                self.set(node, y, order)
            }
            "Rsqrt" => self.chain(node, &[0], &["Sqrt", "Reciprocal"]),
            "Select" | "SelectV2" => self.select(node),
            "Square" => {
                let (ids, order, name) = self.in_one_order(node, &[0])?;
                let y = self.out.main.op("Mul", [ids[0], ids[0]]).output(&name);
                self.set(node, y, order)
            }
            "SquaredDifference" => {
                let (ids, order, name) = self.in_one_order(node, &[0, 1])?;
                let difference = self.out.main.op("Sub", ids).output(&format!("{name}/difference"));
                let y = self.out.main.op("Mul", [difference, difference]).output(&name);
                self.set(node, y, order)
            }
            "LogicalXor" => self.binary(node, "Xor"),
            _ => None,
        }
    }

    /// Operators one after the other, the first of them over these inputs.
    fn chain(&mut self, node: &Node, inputs: &[usize], ops: &[&str]) -> Option<()> {
        let (ids, order, name) = self.in_one_order(node, inputs)?;
        let (last, before) = ops.split_last()?;
        let mut ids = ids;
        for op in before {
            let step = format!("{name}/{}", op.to_lowercase());
            ids = vec![self.out.main.op(op, ids).output(&step)];
        }
        let y = self.out.main.op(last, ids).output(&name);
        self.set(node, y, order)
    }

    fn binary(&mut self, node: &Node, op: &str) -> Option<()> {
        // Texts are added, too, and compared.
        (self.element(node, 0) != Some(ElementType::Text)).then_some(())?;
        let (ids, order, name) = self.in_one_order(node, &[0, 1])?;
        let y = self.out.main.call(&Op::onnx(op), ids).output(&name);
        self.set(node, y, order)
    }

    /// Lowers a function of an input and 1.
    fn with_one(
        &mut self,
        node: &Node,
        write: impl FnOnce(&mut Self, ValueId, ValueId, &str) -> ValueId,
    ) -> Option<()> {
        (self.element(node, 0)? == ElementType::F32).then_some(())?;
        let (ids, order, name) = self.in_one_order(node, &[0])?;
        let one = self.out.main.float(1.0);
        let y = write(self, ids[0], one, &name);
        self.set(node, y, order)
    }

    fn cast(&mut self, node: &Node) -> Option<()> {
        let to = element(node.text("DstT")?)?;
        let (ids, order, name) = self.in_one_order(node, &[0])?;
        let code = i64::from(to.onnx_code());
        let y = self.out.main.op("Cast", ids).attribute("to", code).output(&name);
        self.set(node, y, order)
    }

    fn clip_by_value(&mut self, node: &Node) -> Option<()> {
        let (ids, order, name) = self.in_one_order(node, &[0, 1, 2])?;
        let most = self.out.main.op("Min", [ids[0], ids[2]]).output(&format!("{name}/most"));
        let y = self.out.main.op("Max", [most, ids[1]]).output(&name);
        self.set(node, y, order)
    }

    /// Lowers a division that returns 0 if the divisor is 0.
    fn div_no_nan(&mut self, node: &Node) -> Option<()> {
        (self.element(node, 0)? == ElementType::F32).then_some(())?;
        let (ids, order, name) = self.in_one_order(node, &[0, 1])?;
        let zero = self.out.main.float(0.0);
        let main = &mut self.out.main;
        let is_zero = main.op("Equal", [ids[1], zero]).output(&format!("{name}/zero"));
        let quotient = main.op("Div", ids).output(&format!("{name}/quotient"));
        let y = main.op("Where", [is_zero, zero, quotient]).output(&name);
        self.set(node, y, order)
    }

    /// Lowers a division that rounds down, also for integers, which ONNX rounds towards 0.
    fn floor_div(&mut self, node: &Node) -> Option<()> {
        let is_float = self.element(node, 0)?.is_float();
        if is_float {
            return self.chain(node, &[0, 1], &["Div", "Floor"]);
        }
        let (ids, order, name) = self.in_one_order(node, &[0, 1])?;
        let main = &mut self.out.main;
        let rest = main.op("Mod", ids.clone()).output(&format!("{name}/rest"));
        let whole = main.op("Sub", [ids[0], rest]).output(&format!("{name}/whole"));
        let y = main.op("Div", [whole, ids[1]]).output(&name);
        self.set(node, y, order)
    }

    fn floor_mod(&mut self, node: &Node) -> Option<()> {
        if !self.element(node, 0)?.is_float() {
            return self.chain(node, &[0, 1], &["Mod"]);
        }
        let (ids, order, name) = self.in_one_order(node, &[0, 1])?;
        let main = &mut self.out.main;
        let quotient = main.op("Div", ids.clone()).output(&format!("{name}/quotient"));
        let floor = main.op("Floor", [quotient]).output(&format!("{name}/floor"));
        let whole = main.op("Mul", [floor, ids[1]]).output(&format!("{name}/whole"));
        let y = main.op("Sub", [ids[0], whole]).output(&name);
        self.set(node, y, order)
    }

    /// Probabilities along the last dimension.
    fn softmax(&mut self, node: &Node, op: &str) -> Option<()> {
        let (ids, order, name) = self.in_one_order(node, &[0])?;
        let axis = if order == Order::Natural { -1 } else { 1 };
        let y = self.out.main.op(op, ids).attribute("axis", axis).output(&name);
        self.set(node, y, order)
    }

    fn select(&mut self, node: &Node) -> Option<()> {
        // The older one takes a row of conditions, for whole rows.
        let is_plain = &*node.op.name == "SelectV2" || self.rank(node, 0)? == self.rank(node, 1)?;
        is_plain.then_some(())?;
        let ids = [self.natural(node, 0)?, self.natural(node, 1)?, self.natural(node, 2)?];
        self.plain(node, "Where", &ids)
    }
}

/// Elements by the name that attributes have for them.
pub(super) fn element(name: &str) -> Option<ElementType> {
    Some(match name {
        "float32" => ElementType::F32,
        "float64" => ElementType::F64,
        "float16" => ElementType::F16,
        "bfloat16" => ElementType::BF16,
        "int8" => ElementType::I8,
        "int16" => ElementType::I16,
        "int32" => ElementType::I32,
        "int64" => ElementType::I64,
        "uint8" => ElementType::U8,
        "uint16" => ElementType::U16,
        "uint32" => ElementType::U32,
        "uint64" => ElementType::U64,
        "bool" => ElementType::Bool,
        _ => return None,
    })
}
