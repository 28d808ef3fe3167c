//! Recurrent layers over a sequence.
//!
//! ```text
//! OpenVINO  LSTMSequence  W [sides, 4 units, in]  gates f i c o   [batch, sides, time, units]
//! ONNX      LSTM          W [sides, 4 units, in]  gates i o f c   [time, sides, batch, units]
//! OpenVINO  GRUSequence   gates z r h; one bias, or one more for the product of h
//! ONNX      GRU           gates z r h; two biases
//! ```

use apr_graph::{AttributeValue, ElementType, ValueId};

use super::Lowering;
use super::call::Call;

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for one that can't be.
    pub(super) fn recurrent(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        let (op, gates, states) = match call.op {
            "LSTMSequence" => ("LSTM", [1, 3, 0, 2].as_slice(), 2),
            "GRUSequence" => ("GRU", [0, 1, 2].as_slice(), 1),
            _ => ("RNN", [0].as_slice(), 1),
        };
        let direction = call.text_or("direction", "forward")?;
        let sides = if direction == "bidirectional" { 2 } else { 1 };
        let units = call.int("hidden_size").filter(|units| *units > 0)?;
        let clip = call.number_or("clip", 0.0)?;
        let functions = functions(call, op)?;
        let resets_after = op == "GRU" && call.flag_or("linear_before_reset", false)?;
        for list in ["activations_alpha", "activations_beta", "activation_alpha", "activation_beta"]
        {
            call.ints_or(list, &[])?.is_empty().then_some(())?;
        }
        let lens = 1 + states;
        let x = self.input(call, 0)?;
        let x = self.out.main.op("Transpose", [x]).attribute("perm", [1, 0, 2]);
        let x = x.output(&call.step("steps"));
        let mut initial = Vec::new();
        for state in 1..=states {
            let own = self.input(call, state)?;
            let turned = self.out.main.op("Transpose", [own]).attribute("perm", [1, 0, 2]);
            initial.push(turned.output(&call.step(&format!("initial{state}"))));
        }
        let counts = self.input(call, lens)?;
        let counts = self.out.cast(counts, ElementType::I32, &call.step("lengths"));
        let w = self.input(call, lens + 1)?;
        let w = self.gates(call, "w", w, units, gates);
        let r = self.input(call, lens + 2)?;
        let r = self.gates(call, "r", r, units, gates);
        let b = self.input(call, lens + 3)?;
        let b = self.biases(call, b, (units, sides), gates, resets_after)?;
        let inputs = [x, w, r, b, counts].into_iter().chain(initial);
        let functions = vec![functions; usize::try_from(sides).ok()?].concat();
        let mut node = self
            .out
            .main
            .op(op, inputs)
            .attribute("hidden_size", units)
            .attribute("direction", direction)
            .attribute("activations", AttributeValue::Texts(functions));
        if clip != 0.0 {
            node = node.attribute("clip", clip);
        }
        if resets_after {
            node = node.attribute("linear_before_reset", 1);
        }
        let made = node.list_of_outputs(&call.step("recurrent"), 1 + states);
        let mut outputs = Vec::new();
        for (position, made) in made.into_iter().enumerate() {
            let perm: AttributeValue = match position {
                0 => [2, 1, 0, 3].into(),
                _ => [1, 0, 2].into(),
            };
            let id = call.outputs.get(position).copied().flatten()?;
            let name = self.from.value(id).name.clone();
            outputs
                .push(self.out.main.op("Transpose", [made]).attribute("perm", perm).output(&name));
        }
        Some(outputs)
    }

    /// Weights or biases with their gates in ONNX's order.
    fn gates(
        &mut self,
        call: &Call<'_>,
        which: &str,
        weight: ValueId,
        units: i64,
        gates: &[i64],
    ) -> ValueId {
        if gates.iter().copied().eq(0..i64::try_from(gates.len()).unwrap_or_default()) {
            return weight;
        }
        let parts: Vec<ValueId> = gates
            .iter()
            .map(|gate| self.part(call, &format!("{which}{gate}"), weight, (*gate, units)))
            .collect();
        let node = self.out.main.op("Concat", parts).attribute("axis", 1);
        node.output(&call.step(which))
    }

    /// The rows of one gate.
    fn part(
        &mut self,
        call: &Call<'_>,
        step: &str,
        weight: ValueId,
        (gate, units): (i64, i64),
    ) -> ValueId {
        let bounds = [gate * units, gate.saturating_add(1) * units, 1, 1];
        let lists = bounds.map(|bound| self.out.main.ints(&[bound]));
        let inputs = [weight].into_iter().chain(lists);
        self.out.main.op("Slice", inputs).output(&call.step(step))
    }

    /// The biases of the input and of the state, which OpenVINO adds up as far as it can.
    fn biases(
        &mut self,
        call: &Call<'_>,
        bias: ValueId,
        (units, sides): (i64, i64),
        gates: &[i64],
        resets_after: bool,
    ) -> Option<ValueId> {
        let count = i64::try_from(gates.len()).ok()?;
        let zeros = |this: &mut Self, count: i64| {
            let shape = this.out.main.ints(&[sides, count.saturating_mul(units)]);
            let zero = apr_graph::Constant { shape: vec![1], ..apr_graph::Constant::float(0.0) };
            let node = this.out.main.op("ConstantOfShape", [shape]).attribute("value", zero);
            node.output(&call.step("zeros"))
        };
        units.checked_mul(count + 1)?;
        let parts = if resets_after {
            let parts =
                [0, 1, 2, 3].map(|gate| self.part(call, &format!("b{gate}"), bias, (gate, units)));
            let zeros = zeros(self, 2);
            vec![parts[0], parts[1], parts[2], zeros, parts[3]]
        } else {
            let own = self.gates(call, "b", bias, units, gates);
            let zeros = zeros(self, count);
            vec![own, zeros]
        };
        let node = self.out.main.op("Concat", parts).attribute("axis", 1);
        Some(node.output(&call.step("biases")))
    }
}

/// The functions of one side, as ONNX names them.
fn functions(call: &Call<'_>, op: &str) -> Option<Vec<Vec<u8>>> {
    let default = match op {
        "LSTM" => "sigmoid,tanh,tanh",
        "GRU" => "sigmoid,tanh",
        _ => "tanh",
    };
    let names = call.text_or("activations", default)?.split(',');
    names
        .map(|name| match name.trim_ascii() {
            "sigmoid" => Some(b"Sigmoid".to_vec()),
            "tanh" => Some(b"Tanh".to_vec()),
            "relu" => Some(b"Relu".to_vec()),
            _ => None,
        })
        .collect()
}
