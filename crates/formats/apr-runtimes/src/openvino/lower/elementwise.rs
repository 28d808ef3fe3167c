//! Layers that compute each element: activations, arithmetic, comparisons, conversions.

use apr_graph::{ElementType, ValueId};
use apr_lower::Gelu;

use super::Lowering;
use super::call::Call;
use super::element::{computed, named};

/// Layers of one input and no settings, with their ONNX operators.
const UNARY: [(&str, &str); 27] = [
    ("Abs", "Abs"),
    ("Acos", "Acos"),
    ("Acosh", "Acosh"),
    ("Asin", "Asin"),
    ("Asinh", "Asinh"),
    ("Atan", "Atan"),
    ("Atanh", "Atanh"),
    ("Ceiling", "Ceil"),
    ("Cos", "Cos"),
    ("Cosh", "Cosh"),
    ("Erf", "Erf"),
    ("Exp", "Exp"),
    ("Floor", "Floor"),
    ("HSwish", "HardSwish"),
    ("IsNaN", "IsNaN"),
    ("Log", "Log"),
    ("LogicalNot", "Not"),
    ("Negative", "Neg"),
    ("ReLU", "Relu"),
    ("Sigmoid", "Sigmoid"),
    ("Sign", "Sign"),
    ("Sin", "Sin"),
    ("Sinh", "Sinh"),
    ("SoftPlus", "Softplus"),
    ("SoftSign", "Softsign"),
    ("Sqrt", "Sqrt"),
    ("Tan", "Tan"),
];

/// Layers of two inputs, with their ONNX operators.
const BINARY: [(&str, &str); 15] = [
    ("Add", "Add"),
    ("Equal", "Equal"),
    ("Greater", "Greater"),
    ("GreaterEqual", "GreaterOrEqual"),
    ("Less", "Less"),
    ("LessEqual", "LessOrEqual"),
    ("LogicalAnd", "And"),
    ("LogicalOr", "Or"),
    ("LogicalXor", "Xor"),
    ("Maximum", "Max"),
    ("Minimum", "Min"),
    ("Multiply", "Mul"),
    ("NotEqual", "Equal"),
    ("Power", "Pow"),
    ("Subtract", "Sub"),
];

fn of(table: &'static [(&str, &str)], op: &str) -> Option<&'static str> {
    table.iter().find(|(own, _)| *own == op).map(|(_, op)| *op)
}

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn elementwise(&mut self, call: &Call<'_>) -> Option<ValueId> {
        if let Some(op) = of(&UNARY, call.op) {
            let x = self.input(call, 0)?;
            // Whole numbers stay as they are.
            let rounds = ["Ceil", "Floor"].contains(&op);
            return match rounds && !self.is_float(x) {
                true => Some(x),
                false => Some(self.op(call, op, &[x])),
            };
        }
        if let Some(op) = of(&BINARY, call.op) {
            return self.binary(call, op);
        }
        match call.op {
            "Tanh" => {
                let x = self.input(call, 0)?;
                Some(self.op(call, "Tanh", &[x]))
            }
            "Divide" | "FloorMod" | "Mod" => self.division(call),
            "SquaredDifference" => {
                let (a, b) = self.pair(call)?;
                let difference = self.step(call, "difference", "Sub", &[a, b]);
                Some(self.op(call, "Mul", &[difference, difference]))
            }
            "Select" => {
                broadcasts(call)?;
                let (condition, a, b) =
                    (self.input(call, 0)?, self.input(call, 1)?, self.input(call, 2)?);
                Some(self.op(call, "Where", &[condition, a, b]))
            }
            "Convert" | "ConvertLike" => self.convert(call),
            "Clamp" => self.clamp(call),
            "Elu" => {
                let (x, alpha) = (self.input(call, 0)?, call.number_or("alpha", 1.0)?);
                let node = self.out.main.op("Elu", [x]).attribute("alpha", alpha);
                Some(node.output(&call.name))
            }
            "PReLU" => self.prelu(call),
            "Round" => self.round(call),
            "Gelu" => self.gelu(call),
            "Swish" => {
                let x = self.input(call, 0)?;
                let scaled = match self.maybe(call, 1)? {
                    Some(beta) => self.step(call, "scaled", "Mul", &[x, beta]),
                    None => x,
                };
                let gate = self.step(call, "gate", "Sigmoid", &[scaled]);
                Some(self.op(call, "Mul", &[x, gate]))
            }
            "Mish" => {
                let x = self.input(call, 0)?;
                let soft = self.step(call, "softplus", "Softplus", &[x]);
                let tanh = self.step(call, "tanh", "Tanh", &[soft]);
                Some(self.op(call, "Mul", &[x, tanh]))
            }
            "HSigmoid" => {
                let x = self.input(call, 0)?;
                let node = self.out.main.op("HardSigmoid", [x]).attribute("alpha", 1.0_f32 / 6.0);
                Some(node.attribute("beta", 0.5_f32).output(&call.name))
            }
            "HardSigmoid" => {
                let (alpha, beta) = (self.known_number(call, 1)?, self.known_number(call, 2)?);
                let x = self.input(call, 0)?;
                let node = self.out.main.op("HardSigmoid", [x]).attribute("alpha", alpha);
                Some(node.attribute("beta", beta).output(&call.name))
            }
            "Selu" => {
                let (alpha, gamma) = (self.known_number(call, 1)?, self.known_number(call, 2)?);
                let x = self.input(call, 0)?;
                let node = self.out.main.op("Selu", [x]).attribute("alpha", alpha);
                Some(node.attribute("gamma", gamma).output(&call.name))
            }
            "Identity" => self.input(call, 0),
            "FakeQuantize" => self.fake_quantize(call),
            _ => None,
        }
    }

    /// The inputs of a layer that combines two by broadcasting.
    fn pair(&mut self, call: &Call<'_>) -> Option<(ValueId, ValueId)> {
        broadcasts(call)?;
        Some((self.input(call, 0)?, self.input(call, 1)?))
    }

    fn binary(&mut self, call: &Call<'_>, op: &str) -> Option<ValueId> {
        let (a, b) = self.pair(call)?;
        let is_bool = self.out.element(a) == Some(ElementType::Bool);
        // ONNX has no order of truths.
        (!is_bool || ["And", "Or", "Xor", "Equal"].contains(&op)).then_some(())?;
        if call.op == "NotEqual" {
            let equal = self.step(call, "equal", "Equal", &[a, b]);
            return Some(self.op(call, "Not", &[equal]));
        }
        Some(self.op(call, op, &[a, b]))
    }

    pub(super) fn is_float(&mut self, id: ValueId) -> bool {
        self.out.element(id).is_some_and(ElementType::is_float)
    }

    /// Lowers a division, or the remainder of one: `Mod` has the sign of the dividend, `FloorMod`
    /// that of the divisor.
    fn division(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let (a, b) = self.pair(call)?;
        let is_float = self.is_float(a);
        if call.op == "Mod" {
            let node = self.out.main.op("Mod", [a, b]).attribute("fmod", 1);
            return Some(node.output(&call.name));
        }
        if call.op == "Divide" {
            let floors = call.flag_or("m_pythondiv", true)?;
            if is_float || !floors {
                return Some(self.op(call, "Div", &[a, b]));
            }
            // ONNX rounds integers towards 0.
            let left = self.step(call, "left", "Mod", &[a, b]);
            let whole = self.step(call, "whole", "Sub", &[a, left]);
            return Some(self.op(call, "Div", &[whole, b]));
        }
        if !is_float {
            return Some(self.op(call, "Mod", &[a, b]));
        }
        let quotient = self.step(call, "quotient", "Div", &[a, b]);
        let floor = self.step(call, "floor", "Floor", &[quotient]);
        let whole = self.step(call, "whole", "Mul", &[floor, b]);
        Some(self.op(call, "Sub", &[a, whole]))
    }

    fn convert(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let to = match call.op {
            "Convert" => named(call.text_or("destination_type", "")?)?,
            _ => {
                let like = call.inputs.get(1).copied().flatten()?;
                self.from.value(like).element()?
            }
        };
        let own = self.out.element(x)?;
        // What does not fit a small type would be another number.
        let is_small = matches!(
            to,
            ElementType::I8
                | ElementType::U8
                | ElementType::I16
                | ElementType::U16
                | ElementType::U32
                | ElementType::U64
        );
        let x = match is_small && own != ElementType::Bool {
            true => self.out.cast(x, to, &call.step("narrow")),
            false => x,
        };
        if self.out.element(x) == Some(computed(to)) {
            return Some(x);
        }
        Some(self.out.cast(x, computed(to), &call.name))
    }

    fn clamp(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let (low, high) = (call.number("min")?, call.number("max")?);
        let element = self.out.element(x)?;
        let bounds = match element {
            ElementType::F32 => [self.out.main.float(low), self.out.main.float(high)],
            ElementType::I32 | ElementType::I64 => {
                let bounds = [whole(low.ceil(), element), whole(high.floor(), element)];
                bounds.map(|bound| {
                    let bound = self.out.main.int(bound);
                    self.out.cast(bound, element, &call.step("bound"))
                })
            }
            _ => return None,
        };
        Some(self.op(call, "Clip", &[x, bounds[0], bounds[1]]))
    }

    /// A slope for each channel, which is the second dimension, or one that is broadcast.
    fn prelu(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let rank = self.out.rank(x)?;
        let slope = self.input(call, 1)?;
        let shape = self.out.shape(slope)?;
        let slope = match shape.as_slice() {
            [only] if rank > 2 && only.size() != Some(1) => {
                let mut dims = vec![1; rank - 1];
                dims[0] = only.size()?;
                self.reshaped(call, 1, &dims)?
            }
            _ => slope,
        };
        Some(self.op(call, "PRelu", &[x, slope]))
    }

    fn round(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        match call.text_or("mode", "half_to_even")? {
            "half_to_even" => Some(self.op(call, "Round", &[x])),
            "half_away_from_zero" => {
                let size = self.step(call, "size", "Abs", &[x]);
                let half = self.out.main.float(0.5);
                let above = self.step(call, "above", "Add", &[size, half]);
                let floor = self.step(call, "floor", "Floor", &[above]);
                let sign = self.step(call, "sign", "Sign", &[x]);
                Some(self.op(call, "Mul", &[floor, sign]))
            }
            _ => None,
        }
    }

    fn gelu(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.input(call, 0)?;
        let formula = match call.text_or("approximation_mode", "ERF")? {
            "ERF" | "erf" => Gelu::Exact,
            "TANH" | "tanh" => Gelu::Tanh,
            _ => return None,
        };
        Some(formula.write(&mut self.out.main, x, &call.name))
    }

    /// A value between two bounds, rounded to one of some levels, and moved to two other bounds.
    fn fake_quantize(&mut self, call: &Call<'_>) -> Option<ValueId> {
        broadcasts(call)?;
        let levels = call.int("levels").filter(|levels| *levels > 1)?;
        let inputs = self.inputs(call)?;
        let &[x, low, high, to_low, to_high] = inputs.as_slice() else { return None };
        self.is_float(x).then_some(())?;
        let steps = self.out.main.float((levels - 1) as f32);
        let above = self.step(call, "above", "Max", &[x, low]);
        let within = self.step(call, "within", "Min", &[above, high]);
        let moved = self.step(call, "moved", "Sub", &[within, low]);
        let range = self.step(call, "range", "Sub", &[high, low]);
        let share = self.step(call, "share", "Div", &[moved, range]);
        let scaled = self.step(call, "scaled", "Mul", &[share, steps]);
        let level = self.step(call, "level", "Round", &[scaled]);
        let share = self.step(call, "rounded", "Div", &[level, steps]);
        let range = self.step(call, "output_range", "Sub", &[to_high, to_low]);
        let scaled = self.step(call, "output_moved", "Mul", &[share, range]);
        Some(self.op(call, "Add", &[scaled, to_low]))
    }
}

/// A bound of integers: one beyond the type's is the type's, because casts saturate.
#[expect(clippy::cast_possible_truncation, reason = "it has no fraction, and saturates")]
fn whole(bound: f32, element: ElementType) -> i64 {
    match element {
        ElementType::I32 => i64::from(bound as i32),
        _ => bound as i64,
    }
}

/// `None` for a rule of broadcasting that ONNX does not have.
pub(super) fn broadcasts(call: &Call<'_>) -> Option<()> {
    ["numpy", "none"].contains(&call.text_or("auto_broadcast", "numpy")?).then_some(())
}
