//! Operations on each element: activations, arithmetic, comparisons, casts.

use apr_graph::{ElementType, ValueId};

use super::super::call::Call;
use super::Lowering;

/// Operations of one input, with their ONNX operators.
const UNARY: [(&str, &str); 28] = [
    ("abs", "Abs"),
    ("acos", "Acos"),
    ("asin", "Asin"),
    ("atan", "Atan"),
    ("atanh", "Atanh"),
    ("ceil", "Ceil"),
    ("cos", "Cos"),
    ("cosh", "Cosh"),
    ("erf", "Erf"),
    ("exp", "Exp"),
    ("floor", "Floor"),
    ("identity", "Identity"),
    ("logical_not", "Not"),
    ("relu", "Relu"),
    ("round", "Round"),
    ("sigmoid", "Sigmoid"),
    ("sign", "Sign"),
    ("sin", "Sin"),
    ("sinh", "Sinh"),
    ("softplus", "Softplus"),
    ("softsign", "Softsign"),
    ("sqrt", "Sqrt"),
    ("tan", "Tan"),
    ("tanh", "Tanh"),
    // Of one parameter each.
    ("elu", "Elu"),
    ("leaky_relu", "LeakyRelu"),
    ("sigmoid_hard", "HardSigmoid"),
    ("softmax", "Softmax"),
];

/// Operations of two inputs, with their ONNX operators.
const BINARY: [(&str, &str); 16] = [
    ("add", "Add"),
    ("equal", "Equal"),
    ("greater", "Greater"),
    ("greater_equal", "GreaterOrEqual"),
    ("less", "Less"),
    ("less_equal", "LessOrEqual"),
    ("logical_and", "And"),
    ("logical_or", "Or"),
    ("logical_xor", "Xor"),
    ("maximum", "Max"),
    ("minimum", "Min"),
    ("mul", "Mul"),
    ("not_equal", "Equal"),
    ("pow", "Pow"),
    ("real_div", "Div"),
    ("sub", "Sub"),
];

fn of(table: &'static [(&str, &str)], op: &str) -> Option<&'static str> {
    table.iter().find(|(own, _)| *own == op).map(|(_, op)| *op)
}

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for another, and for one that can't be.
    pub(super) fn elementwise(&mut self, call: &Call<'_>) -> Option<ValueId> {
        if let Some(op) = of(&UNARY, call.op) {
            return self.unary(call, op);
        }
        if let Some(op) = of(&BINARY, call.op) {
            return self.binary(call, op);
        }
        match call.op {
            "cast" => self.cast(call),
            "clip" => {
                let (low, high) = (self.number(call, "alpha")?, self.number(call, "beta")?);
                self.clipped(call, low, high)
            }
            "relu6" => self.clipped(call, 0.0, 6.0),
            "floor_div" | "mod" => self.division(call),
            "select" => {
                let inputs = ["cond", "a", "b"].map(|name| self.tensor(call, name));
                let [Some(condition), Some(a), Some(b)] = inputs else { return None };
                Some(self.op(call, "Where", &[condition, a, b]))
            }
            "prelu" => self.prelu(call),
            _ => self.composed(call),
        }
    }

    fn unary(&mut self, call: &Call<'_>, op: &str) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let mut floats: Vec<(&str, f32)> = Vec::new();
        match call.op {
            "elu" | "leaky_relu" => floats.push(("alpha", self.number(call, "alpha")?)),
            "sigmoid_hard" => {
                floats.push(("alpha", self.number(call, "alpha")?));
                floats.push(("beta", self.number(call, "beta")?));
            }
            _ => {}
        }
        let axis = match call.op {
            "softmax" => Some(self.int_or(call, "axis", -1)?),
            _ => None,
        };
        let mut node = self.out.main.op(op, [x]);
        for (name, value) in floats {
            node = node.attribute(name, value);
        }
        if let Some(axis) = axis {
            node = node.attribute("axis", axis);
        }
        Some(node.output(&call.name))
    }

    fn binary(&mut self, call: &Call<'_>, op: &str) -> Option<ValueId> {
        let (x, y) = (self.tensor(call, "x")?, self.tensor(call, "y")?);
        // Division of integers has other rules in ONNX.
        (op != "Div" || self.is_float(x)).then_some(())?;
        if call.op == "not_equal" {
            let equal = self.out.main.op("Equal", [x, y]).output(&call.step("equal"));
            return Some(self.op(call, "Not", &[equal]));
        }
        Some(self.op(call, op, &[x, y]))
    }

    fn is_float(&mut self, id: ValueId) -> bool {
        self.out.element(id).is_some_and(ElementType::is_float)
    }

    /// Lowers floor division and its remainder, which has the sign of the divisor.
    fn division(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let (x, y) = (self.tensor(call, "x")?, self.tensor(call, "y")?);
        let is_float = self.is_float(x);
        let is_floor = call.op == "floor_div";
        let main = &mut self.out.main;
        Some(match (is_float, is_floor) {
            (false, false) => main.op("Mod", [x, y]).output(&call.name),
            (false, true) => {
                // ONNX rounds integers towards 0.
                let left = main.op("Mod", [x, y]).output(&call.step("left"));
                let whole = main.op("Sub", [x, left]).output(&call.step("whole"));
                main.op("Div", [whole, y]).output(&call.name)
            }
            (true, _) => {
                let quotient = main.op("Div", [x, y]).output(&call.step("quotient"));
                if is_floor {
                    return Some(main.op("Floor", [quotient]).output(&call.name));
                }
                let floor = main.op("Floor", [quotient]).output(&call.step("floor"));
                let whole = main.op("Mul", [floor, y]).output(&call.step("whole"));
                main.op("Sub", [x, whole]).output(&call.name)
            }
        })
    }

    fn cast(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let to = match self.text(call, "dtype")?.as_str() {
            "fp16" | "fp32" => ElementType::F32,
            "int32" | "int16" | "uint16" => ElementType::I32,
            "bool" => ElementType::Bool,
            _ => return None,
        };
        Some(match self.out.element(x) {
            Some(own) if own == to => x,
            _ => self.out.cast(x, to, &call.name),
        })
    }

    fn clipped(&mut self, call: &Call<'_>, low: f32, high: f32) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        self.is_float(x).then_some(())?;
        let (low, high) = (self.out.main.float(low), self.out.main.float(high));
        Some(self.op(call, "Clip", &[x, low, high]))
    }

    /// A slope for each channel, which is the second dimension.
    fn prelu(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let alpha = self.tensor(call, "alpha")?;
        let rank = self.out.rank(x)?;
        let mut shape = vec![1; rank.checked_sub(1)?];
        *shape.first_mut()? = -1;
        let shape = self.out.main.ints(&shape);
        let slope = self.out.main.op("Reshape", [alpha, shape]).output(&call.step("slope"));
        Some(self.op(call, "PRelu", &[x, slope]))
    }

    /// Operations that several of ONNX's make up.
    fn composed(&mut self, call: &Call<'_>) -> Option<ValueId> {
        const KNOWN: [&str; 14] = [
            "clamped_relu",
            "exp2",
            "gelu",
            "inverse",
            "linear_activation",
            "log",
            "rsqrt",
            "scaled_tanh",
            "silu",
            "softplus_parametric",
            "square",
            "threshold",
            "thresholded_relu",
            "acosh",
        ];
        KNOWN.contains(&call.op).then_some(())?;
        let x = self.tensor(call, "x")?;
        let number = |this: &mut Self, name: &str, default: Option<f32>| match default {
            Some(default) => this.number_or(call, name, default),
            None => this.number(call, name),
        };
        match call.op {
            "acosh" => Some(self.op(call, "Acosh", &[x])),
            "square" => Some(self.op(call, "Mul", &[x, x])),
            "exp2" => {
                let two = self.out.main.float(2.0);
                Some(self.op(call, "Pow", &[two, x]))
            }
            "inverse" | "log" | "rsqrt" => {
                let (default, ops): (f32, &[&str]) = match call.op {
                    "inverse" => (1e-4, &["Reciprocal"]),
                    "log" => (1e-45, &["Log"]),
                    _ => (1e-12, &["Sqrt", "Reciprocal"]),
                };
                let epsilon = number(self, "epsilon", Some(default))?;
                let mut made = x;
                if epsilon != 0.0 {
                    let epsilon = self.out.main.float(epsilon);
                    made = self.out.main.op("Add", [x, epsilon]).output(&call.step("above"));
                }
                for (at, op) in ops.iter().enumerate() {
                    let name =
                        if at + 1 == ops.len() { call.name.clone() } else { call.step("root") };
                    made = self.out.main.op(op, [made]).output(&name);
                }
                Some(made)
            }
            "silu" => {
                let gate = self.out.main.op("Sigmoid", [x]).output(&call.step("gate"));
                Some(self.op(call, "Mul", &[x, gate]))
            }
            "gelu" => self.gelu(call, x),
            "linear_activation" => {
                let (alpha, beta) =
                    (number(self, "alpha", None)?, number(self, "beta", Some(0.0))?);
                let scaled = self.times(x, alpha, &call.step("scaled"));
                let beta = self.out.main.float(beta);
                Some(self.op(call, "Add", &[scaled, beta]))
            }
            "scaled_tanh" => {
                let (alpha, beta) =
                    (number(self, "alpha", Some(1.0))?, number(self, "beta", Some(1.0))?);
                let scaled = self.times(x, beta, &call.step("scaled"));
                let tanh = self.out.main.op("Tanh", [scaled]).output(&call.step("tanh"));
                Some(self.times(tanh, alpha, &call.name))
            }
            "threshold" => {
                let alpha = number(self, "alpha", None)?;
                let alpha = self.out.main.float(alpha);
                Some(self.op(call, "Max", &[x, alpha]))
            }
            "thresholded_relu" => {
                // ONNX's operator makes 0 of what is equal.
                let alpha = number(self, "alpha", Some(1.0))?;
                let (alpha, zero) = (self.out.main.float(alpha), self.out.main.float(0.0));
                let below = self.out.main.op("Less", [x, alpha]).output(&call.step("below"));
                Some(self.op(call, "Where", &[below, zero, x]))
            }
            "clamped_relu" => {
                let (alpha, beta) = (number(self, "alpha", None)?, number(self, "beta", None)?);
                let leaky = self.out.main.op("LeakyRelu", [x]).attribute("alpha", alpha);
                let leaky = leaky.output(&call.step("leaky"));
                let beta = self.out.main.float(beta);
                Some(self.op(call, "Min", &[leaky, beta]))
            }
            _ => self.parametric_softplus(call, x),
        }
    }

    fn parametric_softplus(&mut self, call: &Call<'_>, x: ValueId) -> Option<ValueId> {
        let rank = self.out.rank(x)?;
        let mut shape = vec![1; rank.checked_sub(1)?];
        *shape.first_mut()? = -1;
        let shape = self.out.main.ints(&shape);
        let [Some(alpha), Some(beta)] = ["alpha", "beta"].map(|name| {
            let list = self.tensor(call, name)?;
            Some(self.out.main.op("Reshape", [list, shape]).output(&call.step(name)))
        }) else {
            return None;
        };
        let scaled = self.out.main.op("Mul", [x, beta]).output(&call.step("scaled"));
        let soft = self.out.main.op("Softplus", [scaled]).output(&call.step("softplus"));
        Some(self.op(call, "Mul", &[soft, alpha]))
    }

    /// A value times a number.
    pub(super) fn times(&mut self, x: ValueId, number: f32, name: &str) -> ValueId {
        let number = self.out.main.float(number);
        self.out.main.op("Mul", [x, number]).output(name)
    }

    fn gelu(&mut self, call: &Call<'_>, x: ValueId) -> Option<ValueId> {
        let mode = self.text_or(call, "mode", "EXACT")?;
        Some(super::super::gelu(&mode)?.write(&mut self.out.main, x, &call.name))
    }
}
