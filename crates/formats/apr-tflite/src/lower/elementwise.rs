//! Operators on each element, and those along the last dimension.

use apr_graph::{ElementType, Node, Op};

use apr_lower::Order;

use super::layout::Lowering;

/// Operators with the same meaning in ONNX.
const UNARY: [(&str, &str); 18] = [
    ("ABS", "Abs"),
    ("CEIL", "Ceil"),
    ("COS", "Cos"),
    ("ELU", "Elu"),
    ("EXP", "Exp"),
    ("FLOOR", "Floor"),
    ("HARD_SWISH", "HardSwish"),
    ("LOG", "Log"),
    ("LOGICAL_NOT", "Not"),
    ("LOGISTIC", "Sigmoid"),
    ("NEG", "Neg"),
    ("RELU", "Relu"),
    ("ROUND", "Round"),
    ("SIGN", "Sign"),
    ("SIN", "Sin"),
    ("SQRT", "Sqrt"),
    ("TANH", "Tanh"),
    ("QUANTIZE", ""),
];

const BINARY: [(&str, &str); 14] = [
    ("ADD", "Add"),
    ("DIV", "Div"),
    ("EQUAL", "Equal"),
    ("GREATER", "Greater"),
    ("GREATER_EQUAL", "GreaterOrEqual"),
    ("LESS", "Less"),
    ("LESS_EQUAL", "LessOrEqual"),
    ("LOGICAL_AND", "And"),
    ("LOGICAL_OR", "Or"),
    ("MAXIMUM", "Max"),
    ("MINIMUM", "Min"),
    ("MUL", "Mul"),
    ("POW", "Pow"),
    ("SUB", "Sub"),
];

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn elementwise(&mut self, node: &Node) -> Option<()> {
        let name = &*node.op.name;
        if let Some((_, op)) = UNARY.iter().find(|(own, _)| *own == name) {
            return self.unary(node, op);
        }
        if let Some((_, op)) = BINARY.iter().find(|(own, _)| *own == name) {
            return self.binary(node, op);
        }
        match name {
            "RELU6" => self.clip(node, 0.0, 6.0),
            "RELU_N1_TO_1" => self.clip(node, -1.0, 1.0),
            "RELU_0_TO_1" => self.clip(node, 0.0, 1.0),
            "SQUARE" => self.square(node),
            "RSQRT" => self.rsqrt(node),
            "SQUARED_DIFFERENCE" => self.squared_difference(node),
            "NOT_EQUAL" => self.not_equal(node),
            "LEAKY_RELU" => self.leaky_relu(node),
            "PRELU" => self.prelu(node),
            "L2_NORMALIZATION" => self.l2_normalization(node),
            "CAST" => self.cast(node),
            "DEQUANTIZE" => self.dequantize(node),
            "SOFTMAX" => self.softmax(node),
            "LOG_SOFTMAX" => self.log_softmax(node),
            _ => None,
        }
    }

    fn unary(&mut self, node: &Node, op: &str) -> Option<()> {
        let layout = self.order_of(node);
        let x = self.floats(node, 0, layout)?;
        let name = self.name(node, layout)?;
        let y = if op.is_empty() { x } else { self.out.main.op(op, [x]).output(&name) };
        self.end_plain(node, y, layout)
    }

    fn binary(&mut self, node: &Node, op: &str) -> Option<()> {
        let layout = self.order_of(node);
        let (a, b) = (self.floats(node, 0, layout)?, self.floats(node, 1, layout)?);
        let name = self.name(node, layout)?;
        let y = self.out.main.call(&Op::onnx(op), [a, b]).output(&name);
        self.end(node, y, layout)
    }

    fn clip(&mut self, node: &Node, low: f32, high: f32) -> Option<()> {
        let layout = self.order_of(node);
        let x = self.floats(node, 0, layout)?;
        let name = self.name(node, layout)?;
        let y = self.clipped(x, low, high, &name);
        self.end_plain(node, y, layout)
    }

    fn square(&mut self, node: &Node) -> Option<()> {
        let layout = self.order_of(node);
        let x = self.floats(node, 0, layout)?;
        let name = self.name(node, layout)?;
        let y = self.out.main.op("Mul", [x, x]).output(&name);
        self.end_plain(node, y, layout)
    }

    fn rsqrt(&mut self, node: &Node) -> Option<()> {
        let layout = self.order_of(node);
        let x = self.floats(node, 0, layout)?;
        let name = self.name(node, layout)?;
        let root = self.out.main.op("Sqrt", [x]).output(&format!("{name}/sqrt"));
        let y = self.out.main.op("Reciprocal", [root]).output(&name);
        self.end_plain(node, y, layout)
    }

    fn squared_difference(&mut self, node: &Node) -> Option<()> {
        let layout = self.order_of(node);
        let (a, b) = (self.floats(node, 0, layout)?, self.floats(node, 1, layout)?);
        let name = self.name(node, layout)?;
        let difference = self.out.main.op("Sub", [a, b]).output(&format!("{name}/difference"));
        let y = self.out.main.op("Mul", [difference, difference]).output(&name);
        self.end_plain(node, y, layout)
    }

    fn not_equal(&mut self, node: &Node) -> Option<()> {
        let layout = self.order_of(node);
        let (a, b) = (self.floats(node, 0, layout)?, self.floats(node, 1, layout)?);
        let name = self.name(node, layout)?;
        let equal = self.out.main.op("Equal", [a, b]).output(&format!("{name}/equal"));
        let y = self.out.main.op("Not", [equal]).output(&name);
        self.end_plain(node, y, layout)
    }

    fn leaky_relu(&mut self, node: &Node) -> Option<()> {
        let layout = self.order_of(node);
        let x = self.floats(node, 0, layout)?;
        let name = self.name(node, layout)?;
        let alpha = node.float("alpha")?;
        let y = self.out.main.op("LeakyRelu", [x]).attribute("alpha", alpha).output(&name);
        self.end_plain(node, y, layout)
    }

    fn prelu(&mut self, node: &Node) -> Option<()> {
        let x = self.floats(node, 0, Order::Natural)?;
        let slope = self.floats(node, 1, Order::Natural)?;
        let name = self.name(node, Order::Natural)?;
        let y = self.out.main.op("PRelu", [x, slope]).output(&name);
        self.end_plain(node, y, Order::Natural)
    }

    fn l2_normalization(&mut self, node: &Node) -> Option<()> {
        let x = self.floats(node, 0, Order::Natural)?;
        let name = self.name(node, Order::Natural)?;
        let norm = self.out.main.op("LpNormalization", [x]).attribute("axis", -1).attribute("p", 2);
        let y = norm.output(&name);
        self.end(node, y, Order::Natural)
    }

    fn cast(&mut self, node: &Node) -> Option<()> {
        let layout = self.order_of(node);
        let x = self.value(node.input(0)?, layout)?;
        let (id, _) = self.output(node)?;
        let to = self.from.value(id).element()?;
        let name = self.name(node, layout)?;
        let to = i64::from(to.onnx_code());
        let y = self.out.main.op("Cast", [x]).attribute("to", to).output(&name);
        self.set(id, y, layout);
        Some(())
    }

    fn dequantize(&mut self, node: &Node) -> Option<()> {
        let layout = self.order_of(node);
        let x = self.floats(node, 0, layout)?;
        let is_number = self.from.value(node.input(0)?).element()? != ElementType::F32;
        // A weight or input that is not dequantized would get another name.
        (is_number && x != self.value(node.input(0)?, layout)?).then_some(())?;
        self.end_plain(node, x, layout)
    }

    fn softmax(&mut self, node: &Node) -> Option<()> {
        let mut x = self.floats(node, 0, Order::Natural)?;
        let name = self.name(node, Order::Natural)?;
        let beta = node.float("beta").unwrap_or(1.0);
        #[expect(clippy::float_cmp, reason = "1 is what most files have, and multiplies nothing")]
        if beta != 1.0 {
            let beta = self.out.main.float(beta);
            x = self.out.main.op("Mul", [x, beta]).output(&format!("{name}/scaled"));
        }
        let y = self.out.main.op("Softmax", [x]).attribute("axis", -1).output(&name);
        self.end_plain(node, y, Order::Natural)
    }

    fn log_softmax(&mut self, node: &Node) -> Option<()> {
        let x = self.floats(node, 0, Order::Natural)?;
        let name = self.name(node, Order::Natural)?;
        let y = self.out.main.op("LogSoftmax", [x]).attribute("axis", -1).output(&name);
        self.end_plain(node, y, Order::Natural)
    }
}
