//! Recurrent operations.
//!
//! ```text
//! MIL   lstm  weight_ih [4 units, in]     weight_hh [4 units, units]     gates i f o z
//! ONNX  LSTM  W [1, 4 units, in]          R [1, 4 units, units]          gates i o f c
//! MIL   gru   gates r o z, one bias       ONNX  GRU  gates z r h, the reset gate after the product
//! ```
//!
//! Values of both directions are one behind the other in MIL, `[batch, 2 units]`, and have a
//! dimension in ONNX, `[2, batch, units]`.

use apr_graph::{AttributeValue, ElementType, ValueId, View, WeightRef};

use super::super::call::Call;
use super::super::element::computed;
use super::Lowering;

/// A kind of recurrent operation.
struct Kind {
    op: &'static str,
    /// Positions of ONNX's gates in MIL's order.
    gates: &'static [u64],
    /// Parameters that select the activation functions, in ONNX's order, with their defaults.
    functions: &'static [(&'static str, &'static str)],
    /// The values that it keeps from step to step.
    states: &'static [&'static str],
}

const LSTM: Kind = Kind {
    op: "LSTM",
    gates: &[0, 2, 1, 3],
    functions: &[
        ("recurrent_activation", "sigmoid"),
        ("cell_activation", "tanh"),
        ("activation", "tanh"),
    ],
    states: &["initial_h", "initial_c"],
};
const GRU: Kind = Kind {
    op: "GRU",
    gates: &[2, 0, 1],
    functions: &[("recurrent_activation", "sigmoid"), ("activation", "tanh")],
    states: &["initial_h"],
};
const RNN: Kind =
    Kind { op: "RNN", gates: &[0], functions: &[("activation", "tanh")], states: &["initial_h"] };

/// The weights of one direction or of both, as ONNX has them.
struct Cells {
    w: ValueId,
    r: ValueId,
    b: Option<ValueId>,
    units: u64,
}

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for one that can't be.
    pub(super) fn recurrent(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        let kind = match call.op {
            "lstm" => LSTM,
            "gru" => GRU,
            "rnn" => RNN,
            _ => return None,
        };
        let direction = self.text_or(call, "direction", "forward")?;
        let sides: &[&str] = match direction.as_str() {
            "forward" | "reverse" => &[""],
            "bidirectional" if kind.op == "LSTM" => &["", "_back"],
            _ => return None,
        };
        let x = self.tensor(call, "x")?;
        let cells: Option<Vec<Cells>> =
            sides.iter().map(|side| self.cells(&kind, call, side)).collect();
        let Cells { w, r, b, units } = self.joined(call, &cells?)?;
        let functions = self.functions(&kind, call)?;
        let functions = vec![functions; sides.len()].concat();
        let units = i64::try_from(units).ok()?;
        let mut initial = Vec::new();
        for state in kind.states {
            let own = self.tensor(call, state)?;
            initial.push(self.with_directions(own, sides.len(), units, &call.step(state)));
        }
        let mut node = self.out.main.op(kind.op, [x, w, r]).optional(b).optional(None);
        for state in &initial {
            node = node.optional(Some(*state));
        }
        node = node
            .attribute("hidden_size", units)
            .attribute("direction", direction.as_str())
            .attribute("activations", AttributeValue::Texts(functions));
        if kind.op == "GRU" {
            node = node.attribute("linear_before_reset", 1);
        }
        let made = node.list_of_outputs(&call.step("recurrent"), 1 + kind.states.len());
        let (all, last) = made.split_first()?;
        let all = match self.flag(call, "output_sequence", false)? {
            true => self.steps(*all, sides.len(), &call.name),
            false => {
                // The last step alone, with a dimension for the steps.
                let name = call.step("last");
                let last = self.without_directions(*last.first()?, sides.len(), &name);
                let axis = self.out.main.ints(&[0]);
                self.out.main.op("Unsqueeze", [last, axis]).output(&call.name)
            }
        };
        let mut outputs = vec![all];
        for (id, state) in call.outputs.iter().skip(1).zip(last) {
            let name = self.from.value((*id)?).name.clone();
            outputs.push(self.without_directions(*state, sides.len(), &name));
        }
        Some(outputs)
    }

    fn functions(&mut self, kind: &Kind, call: &Call<'_>) -> Option<Vec<Vec<u8>>> {
        let mut functions = Vec::new();
        for (setting, default) in kind.functions {
            let function = match self.text_or(call, setting, default)?.as_str() {
                "sigmoid" => "Sigmoid",
                "tanh" => "Tanh",
                "relu" => "Relu",
                _ => return None,
            };
            functions.push(function.as_bytes().to_vec());
        }
        Some(functions)
    }

    /// `[batch, directions * units]` as `[directions, batch, units]`.
    fn with_directions(&mut self, x: ValueId, count: usize, units: i64, name: &str) -> ValueId {
        let main = &mut self.out.main;
        if count == 1 {
            let axis = main.ints(&[0]);
            return main.op("Unsqueeze", [x, axis]).output(name);
        }
        let shape = main.ints(&[0, -1, units]);
        let split = main.op("Reshape", [x, shape]).output(&format!("{name}/split"));
        main.op("Transpose", [split]).attribute("perm", [1, 0, 2]).output(name)
    }

    /// Converts `[directions, batch, units]` back to `[batch, directions * units]`.
    fn without_directions(&mut self, x: ValueId, count: usize, name: &str) -> ValueId {
        let main = &mut self.out.main;
        if count == 1 {
            let axis = main.ints(&[0]);
            return main.op("Squeeze", [x, axis]).output(name);
        }
        let turned = main.op("Transpose", [x]).attribute("perm", [1, 0, 2]);
        let turned = turned.output(&format!("{name}/turned"));
        let shape = main.ints(&[0, -1]);
        main.op("Reshape", [turned, shape]).output(name)
    }

    /// `[steps, directions, batch, units]` as `[steps, batch, directions * units]`.
    fn steps(&mut self, all: ValueId, count: usize, name: &str) -> ValueId {
        let main = &mut self.out.main;
        if count == 1 {
            let axis = main.ints(&[1]);
            return main.op("Squeeze", [all, axis]).output(name);
        }
        let turned = main.op("Transpose", [all]).attribute("perm", [0, 2, 1, 3]);
        let turned = turned.output(&format!("{name}/turned"));
        let shape = main.ints(&[0, 0, -1]);
        main.op("Reshape", [turned, shape]).output(name)
    }

    /// The weights of one direction, whose parameters end with `side`.
    fn cells(&mut self, kind: &Kind, call: &Call<'_>, side: &str) -> Option<Cells> {
        let count = kind.gates.len() as u64;
        let (input, element, dims) = self.weight(call, &format!("weight_ih{side}"))?;
        let (state, own, own_dims) = self.weight(call, &format!("weight_hh{side}"))?;
        let [all, inputs] = dims.try_into().ok()?;
        let [all_too, units] = own_dims.try_into().ok()?;
        let is_fitting = Some(all) == units.checked_mul(count) && all == all_too && element == own;
        is_fitting.then_some(())?;
        let step = |name: &str| call.step(&format!("{name}{side}"));
        let w = self.gates(kind, &input, element, &[1, units, inputs], &step("w"))?;
        let r = self.gates(kind, &state, element, &[1, units, units], &step("r"))?;
        let bias = format!("bias{side}");
        let b = match call.has(&bias) {
            true => {
                let (bias, own, dims) = self.weight(call, &bias)?;
                (dims == [all] && own == element).then_some(())?;
                let b = self.gates(kind, &bias, element, &[1, units], &step("b"))?;
                let shape = self.out.main.ints(&[1, i64::try_from(all).ok()?]);
                let zero = self.out.main.float(0.0);
                let zeros = self.out.main.op("Expand", [zero, shape]).output(&step("zeros"));
                let both = self.out.main.op("Concat", [b, zeros]).attribute("axis", 1);
                Some(both.output(&step("biases")))
            }
            false => None,
        };
        Some(Cells { w, r, b, units })
    }

    /// The weights of all directions.
    fn joined(&mut self, call: &Call<'_>, cells: &[Cells]) -> Option<Cells> {
        let first = cells.first()?;
        let has_bias = first.b.is_some();
        let fits = |cell: &Cells| cell.units == first.units && cell.b.is_some() == has_bias;
        cells.iter().all(fits).then_some(())?;
        let mut one = |parts: Vec<ValueId>, name: &str| match parts.as_slice() {
            [one] => *one,
            _ => {
                let node = self.out.main.op("Concat", parts).attribute("axis", 0);
                node.output(&call.step(name))
            }
        };
        let w = one(cells.iter().map(|cell| cell.w).collect(), "w_both");
        let r = one(cells.iter().map(|cell| cell.r).collect(), "r_both");
        let biases: Vec<ValueId> = cells.iter().filter_map(|cell| cell.b).collect();
        let b = has_bias.then(|| one(biases, "b_both"));
        Some(Cells { w, r, b, units: first.units })
    }

    /// Returns the gates of a weight in ONNX's order. `shape` is the shape of one gate.
    fn gates(
        &mut self,
        kind: &Kind,
        weight: &WeightRef,
        element: ElementType,
        shape: &[u64],
        name: &str,
    ) -> Option<ValueId> {
        let units = *shape.get(1)?;
        let mut parts = Vec::with_capacity(kind.gates.len());
        for gate in kind.gates {
            let mut views = weight.views.clone();
            views.push(View::Slice { axis: 0, start: gate.checked_mul(units)?, len: units });
            views.push(View::Reshaped(shape.to_vec()));
            let own = self.out.main.viewed(&weight.tensor, views, element, shape.to_vec());
            parts.push(self.out.cast(own, computed(element), &format!("{name}{gate}")));
        }
        Some(match parts.as_slice() {
            [one] => *one,
            _ => self.out.main.op("Concat", parts).attribute("axis", 1).output(name),
        })
    }
}
