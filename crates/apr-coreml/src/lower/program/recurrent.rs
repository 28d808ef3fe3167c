//! Recurrent operations.
//!
//! ```text
//! MIL   lstm  weight_ih [4 units, in]     weight_hh [4 units, units]     gates i f o z
//! ONNX  LSTM  W [1, 4 units, in]          R [1, 4 units, units]          gates i o f c
//! ```

use apr_graph::{AttributeValue, ElementType, ValueId, View, WeightRef};

use super::super::call::Call;
use super::super::element::computed;
use super::Lowering;

/// Where ONNX's gates are in MIL's order.
const GATES: [u64; 4] = [0, 2, 1, 3];

/// The weights of one direction, as ONNX has them.
struct Cells {
    w: ValueId,
    r: ValueId,
    b: Option<ValueId>,
    units: u64,
}

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for one that can't be.
    pub(super) fn recurrent(&mut self, call: &Call<'_>) -> Option<Vec<ValueId>> {
        (call.op == "lstm").then_some(())?;
        let direction = match self.text_or(call, "direction", "forward")?.as_str() {
            "forward" => "forward",
            "reverse" => "reverse",
            _ => return None,
        };
        let x = self.tensor(call, "x")?;
        let Cells { w, r, b, units } = self.cells(call)?;
        let mut functions = Vec::new();
        for (setting, default) in [
            ("recurrent_activation", "sigmoid"),
            ("cell_activation", "tanh"),
            ("activation", "tanh"),
        ] {
            let function = match self.text_or(call, setting, default)?.as_str() {
                "sigmoid" => "Sigmoid",
                "tanh" => "Tanh",
                "relu" => "Relu",
                _ => return None,
            };
            functions.push(function.as_bytes().to_vec());
        }
        let axis = self.out.main.ints(&[0]);
        let mut initial = Vec::new();
        for state in ["initial_h", "initial_c"] {
            let own = self.tensor(call, state)?;
            let name = call.step(state);
            initial.push(Some(self.out.main.op("Unsqueeze", [own, axis]).output(&name)));
        }
        let mut node = self.out.main.op("LSTM", [x, w, r]).optional(b).optional(None);
        for state in initial {
            node = node.optional(state);
        }
        let node = node
            .attribute("hidden_size", i64::try_from(units).ok()?)
            .attribute("direction", direction)
            .attribute("activations", AttributeValue::Texts(functions));
        let [all, h, c] = node.outputs(&call.step("recurrent"));
        let all = match self.flag(call, "output_sequence", false)? {
            true => {
                let axis = self.out.main.ints(&[1]);
                self.out.main.op("Squeeze", [all, axis]).output(&call.name)
            }
            // The last step alone, with a dimension for the steps.
            false => self.out.main.op("Identity", [h]).output(&call.name),
        };
        let mut outputs = vec![all];
        for (id, state) in call.outputs.iter().skip(1).zip([h, c]) {
            let name = self.from.value((*id)?).name.clone();
            outputs.push(self.out.main.op("Squeeze", [state, axis]).output(&name));
        }
        Some(outputs)
    }

    fn cells(&mut self, call: &Call<'_>) -> Option<Cells> {
        let (input, element, dims) = self.weight(call, "weight_ih")?;
        let (state, own, own_dims) = self.weight(call, "weight_hh")?;
        let [all, inputs] = dims.try_into().ok()?;
        let [all_too, units] = own_dims.try_into().ok()?;
        let is_fitting = Some(all) == units.checked_mul(4) && all == all_too && element == own;
        is_fitting.then_some(())?;
        let w = self.gates(&input, element, &[1, units, inputs], &call.step("w"))?;
        let r = self.gates(&state, element, &[1, units, units], &call.step("r"))?;
        let b = match call.has("bias") {
            true => {
                let (bias, own, dims) = self.weight(call, "bias")?;
                (dims == [all] && own == element).then_some(())?;
                let b = self.gates(&bias, element, &[1, units], &call.step("b"))?;
                let shape = self.out.main.ints(&[1, i64::try_from(all).ok()?]);
                let zero = self.out.main.float(0.0);
                let zeros = self.out.main.op("Expand", [zero, shape]).output(&call.step("zeros"));
                let both = self.out.main.op("Concat", [b, zeros]).attribute("axis", 1);
                Some(both.output(&call.step("biases")))
            }
            false => None,
        };
        Some(Cells { w, r, b, units })
    }

    /// The gates of a weight in ONNX's order; `shape` is that of one.
    fn gates(
        &mut self,
        weight: &WeightRef,
        element: ElementType,
        shape: &[u64],
        name: &str,
    ) -> Option<ValueId> {
        let units = *shape.get(1)?;
        let mut parts = Vec::with_capacity(GATES.len());
        for gate in GATES {
            let mut views = weight.views.clone();
            views.push(View::Slice { axis: 0, start: gate.checked_mul(units)?, len: units });
            views.push(View::Reshaped(shape.to_vec()));
            let own = self.out.main.viewed(&weight.tensor, views, element, shape.to_vec());
            parts.push(self.out.cast(own, computed(element), &format!("{name}{gate}")));
        }
        Some(self.out.main.op("Concat", parts).attribute("axis", 1).output(name))
    }
}
