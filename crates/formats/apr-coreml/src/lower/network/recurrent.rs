//! Recurrent layers.
//!
//! ```text
//! Core ML   x [sequence, batch, in, 1, 1]      gates of an LSTM  i f z o    of a GRU  z r o
//! ONNX      X [sequence, batch, in]            gates of an LSTM  i o f c    of a GRU  z r h
//! ```
//!
//! Inputs of activations are clipped to 50 in both. The state of a cell is clipped by Core ML
//! alone, to 50 or more unless a file says otherwise: no cell gets there within 50 steps.

use apr_graph::{AttributeValue, ValueId};

use super::Lowering;
use super::layer::{Blob, Layer};

/// Bound at which inputs of activations are clipped.
const CLIP: f32 = 50.0;

/// A kind of layer.
struct Kind {
    op: &'static str,
    /// Names of the gates' weights in ONNX's order, without suffixes such as `WeightMatrix`.
    gates: &'static [&'static str],
    activations: usize,
    states: usize,
}

const RNN: Kind = Kind { op: "RNN", gates: &[""], activations: 1, states: 1 };
const GRU: Kind = Kind {
    op: "GRU",
    gates: &["updateGate", "resetGate", "outputGate"],
    activations: 2,
    states: 1,
};
const LSTM: Kind = Kind {
    op: "LSTM",
    gates: &["inputGate", "outputGate", "forgetGate", "blockInput"],
    activations: 3,
    states: 2,
};

/// The gates of an LSTM that look at the cell, in ONNX's order.
const PEEPHOLES: [&str; 3] = ["inputGate", "outputGate", "forgetGate"];

/// Activations in both formats, with default settings for files without settings.
///
/// coremltools writes no settings for recurrent layers and means the defaults of its activation
/// layer.
const ACTIVATIONS: [(&str, &str, &[f32]); 7] = [
    ("linear", "Affine", &[1.0, 0.0]),
    ("ReLU", "Relu", &[]),
    ("tanh", "Tanh", &[]),
    ("sigmoid", "Sigmoid", &[]),
    ("sigmoidHard", "HardSigmoid", &[0.2, 0.5]),
    ("softsign", "Softsign", &[]),
    ("softplus", "Softplus", &[]),
];

/// Activations of all directions, and their settings.
#[derive(Default)]
struct Functions {
    names: Vec<Vec<u8>>,
    alphas: Vec<f32>,
    betas: Vec<f32>,
}

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn recurrent(&mut self, layer: &Layer<'_>) -> Option<Vec<Blob>> {
        let (kind, sides): (_, &[&str]) = match layer.op() {
            "simpleRecurrent" => (RNN, &[""]),
            "gru" => (GRU, &[""]),
            "uniDirectionalLSTM" => (LSTM, &[""]),
            "biDirectionalLSTM" => (LSTM, &["forward/", "backward/"]),
            _ => return None,
        };
        let is_lstm = kind.states == 2;
        let setting = |name: &str| match is_lstm {
            true => format!("params.{name}"),
            false => name.to_owned(),
        };
        let is_sequence = layer.is_set(&setting("sequenceOutput"));
        let is_reverse = layer.is_set("reverseInput");
        // In which order the outputs of a reversed sequence are is not said.
        (!(is_reverse && is_sequence)).then_some(())?;
        let clip = layer.float_or("params.cellClipThreshold", CLIP);
        (!is_lstm || clip >= CLIP).then_some(())?;

        let (x, states) = layer.inputs.split_first()?;
        let count = sides.len();
        (states.is_empty() || states.len() == kind.states * count).then_some(())?;
        // A network of five dimensions is given a sequence as one more dimension of its input,
        // which is not written: what gets its states is called step by step.
        (!x.is_rank_5 || !states.is_empty()).then_some(())?;
        let units = u64::try_from(layer.int("outputVectorSize")).ok()?;
        let input = self.vectors(layer, *x, "x")?;
        let w = self.matrices(layer, &kind, sides, "WeightMatrix", "inputVectorSize")?;
        let r = self.matrices(layer, &kind, sides, "RecursionMatrix", "outputVectorSize")?;
        let b = self.biases(layer, &kind, sides, units)?;
        let mut initial = Vec::new();
        for state in 0..if states.is_empty() { 0 } else { kind.states } {
            let mut parts = Vec::new();
            for side in 0..count {
                let blob = states[side * kind.states + state];
                parts.push(self.vectors(layer, blob, &format!("state{side}{state}"))?);
            }
            initial.push(self.together(parts, 0, &layer.step(&format!("state{state}"))));
        }

        let peepholes = match layer.is_set("params.hasPeepholeVectors") {
            true => {
                let mut parts = Vec::new();
                for side in sides {
                    for gate in PEEPHOLES {
                        let field = format!("{side}{gate}PeepholeVector");
                        parts.push(self.weight(layer, &field, &[1, units])?);
                    }
                }
                let parts: Vec<ValueId> = parts
                    .chunks(PEEPHOLES.len())
                    .map(|side| self.together(side.to_vec(), 1, &layer.step("peephole")))
                    .collect();
                Some(self.together(parts, 0, &layer.step("peepholes")))
            }
            false => None,
        };
        let Functions { names, alphas, betas } = functions(layer, &kind, count)?;
        let direction = match (count, is_reverse) {
            (2, _) => "bidirectional",
            (_, true) => "reverse",
            _ => "forward",
        };
        let mut node = self.out.main.op(kind.op, [input, w, r]).optional(b).optional(None);
        for at in 0..kind.states {
            node = node.optional(initial.get(at).copied());
        }
        if is_lstm {
            node = node.optional(peepholes);
        }
        node = node
            .attribute("hidden_size", i64::try_from(units).ok()?)
            .attribute("direction", direction)
            .attribute("activations", AttributeValue::Texts(names))
            .attribute("clip", CLIP);
        if !alphas.is_empty() {
            node = node.attribute("activation_alpha", AttributeValue::Floats(alphas));
        }
        if !betas.is_empty() {
            node = node.attribute("activation_beta", AttributeValue::Floats(betas));
        }
        if layer.is_set("params.coupledInputAndForgetGate") {
            node = node.attribute("input_forget", 1);
        }
        let made = node.list_of_outputs(&layer.step("recurrent"), 1 + kind.states);
        let (all, last) = made.split_first()?;

        let y = match is_sequence {
            true => {
                // [sequence, directions, batch, units]
                let turned = self.out.main.op("Transpose", [*all]).attribute("perm", [0, 2, 1, 3]);
                let turned = turned.output(&layer.step("turned"));
                self.shaped(turned, &[0, 0, -1], &layer.step("sequence"))
            }
            false => {
                // [directions, batch, units], to which a dimension for the one step is added.
                let turned = self.out.main.op("Transpose", [*last.first()?]);
                let turned = turned.attribute("perm", [1, 0, 2]).output(&layer.step("turned"));
                let rows = self.shaped(turned, &[0, -1], &layer.step("rows"));
                let axis = self.out.main.ints(&[0]);
                self.out.main.op("Unsqueeze", [rows, axis]).output(&layer.step("last"))
            }
        };
        let y = self.blob(*x, y, &layer.name);
        self.with_states(layer, *x, y, last, count)
    }

    /// Returns the outputs: the result of the layer, and as many states as it has further outputs.
    fn with_states(
        &mut self,
        layer: &Layer<'_>,
        x: Blob,
        y: Blob,
        last: &[ValueId],
        count: usize,
    ) -> Option<Vec<Blob>> {
        let mut outputs = vec![y];
        let wanted = layer.node.outputs.len();
        for side in 0..count {
            for state in last {
                if outputs.len() == wanted {
                    return Some(outputs);
                }
                let value = self.from.value((*layer.node.outputs.get(outputs.len())?)?);
                let name = value.name.clone();
                let own = match count {
                    1 => *state,
                    _ => {
                        let at = i64::try_from(side).ok()?;
                        let main = &mut self.out.main;
                        let [from, to, axis] = [[at], [at + 1], [0]].map(|list| main.ints(&list));
                        let node = main.op("Slice", [*state, from, to, axis]);
                        node.output(&format!("{name}/side"))
                    }
                };
                outputs.push(self.blob(x, own, &name));
            }
        }
        (outputs.len() == wanted).then_some(outputs)
    }

    /// `[sequence, batch, size, 1, 1]` as `[sequence, batch, size]`.
    fn vectors(&mut self, layer: &Layer<'_>, blob: Blob, name: &str) -> Option<ValueId> {
        let name = layer.step(name);
        let x = self.exact(blob, &name);
        (self.out.rank(x)? == 5).then_some(())?;
        let axes = self.out.main.ints(&[3, 4]);
        Some(self.out.main.op("Squeeze", [x, axes]).output(&name))
    }

    /// Converts `[sequence, batch, size]` back to a blob with the dimensions that `like` has.
    fn blob(&mut self, like: Blob, x: ValueId, name: &str) -> Blob {
        let main = &mut self.out.main;
        if !like.is_rank_5 {
            let axes = main.ints(&[3, 4]);
            return Blob::exact(main.op("Unsqueeze", [x, axes]).output(name));
        }
        let first = main.ints(&[0]);
        let flat = main.op("Squeeze", [x, first]).output(&format!("{name}/step"));
        let axes = main.ints(&[2, 3]);
        like.with(main.op("Unsqueeze", [flat, axes]).output(name))
    }

    fn together(&mut self, parts: Vec<ValueId>, axis: i64, name: &str) -> ValueId {
        match parts.as_slice() {
            [one] => *one,
            _ => self.out.main.op("Concat", parts).attribute("axis", axis).output(name),
        }
    }

    /// `[directions, gates * units, columns]`, of matrices whose names end so.
    fn matrices(
        &mut self,
        layer: &Layer<'_>,
        kind: &Kind,
        sides: &[&str],
        suffix: &str,
        columns: &str,
    ) -> Option<ValueId> {
        let units = u64::try_from(layer.int("outputVectorSize")).ok()?;
        let columns = u64::try_from(layer.int(columns)).ok()?;
        let mut all = Vec::new();
        for side in sides {
            let mut parts = Vec::new();
            for gate in kind.gates {
                let field = field(side, gate, suffix);
                parts.push(self.weight(layer, &field, &[1, units, columns])?);
            }
            all.push(self.together(parts, 1, &layer.step(&format!("{side}{suffix}"))));
        }
        Some(self.together(all, 0, &layer.step(suffix)))
    }

    /// `[directions, 2 * gates * units]`: the file's, and ones or zeros of the recurrence.
    fn biases(
        &mut self,
        layer: &Layer<'_>,
        kind: &Kind,
        sides: &[&str],
        units: u64,
    ) -> Option<Option<ValueId>> {
        let has_bias = ["hasBiasVector", "hasBiasVectors", "params.hasBiasVectors"];
        let has_bias = has_bias.iter().any(|field| layer.is_set(field));
        let forget_bias = layer.is_set("params.forgetBias");
        if !has_bias && !forget_bias {
            return Some(None);
        }
        let shape = self.out.main.ints(&[1, i64::try_from(units).ok()?]);
        let [zeros, ones] = [(0.0, "zeros"), (1.0, "ones")].map(|(value, name)| {
            let value = self.out.main.float(value);
            self.out.main.op("Expand", [value, shape]).output(&layer.step(name))
        });
        let mut all = Vec::new();
        for side in sides {
            let mut parts = Vec::new();
            for gate in kind.gates {
                parts.push(match has_bias {
                    true => self.weight(layer, &field(side, gate, "BiasVector"), &[1, units])?,
                    false => zeros,
                });
            }
            let adds_one = |gate: &&str| forget_bias && *gate == "forgetGate";
            let own = |gate| if adds_one(gate) { ones } else { zeros };
            parts.extend(kind.gates.iter().map(own));
            all.push(self.together(parts, 1, &layer.step(&format!("{side}bias"))));
        }
        Some(Some(self.together(all, 0, &layer.step("bias"))))
    }
}

fn functions(layer: &Layer<'_>, kind: &Kind, count: usize) -> Option<Functions> {
    let fields: &[&str] = match (kind.op, count) {
        ("RNN", _) => &["activation"],
        (_, 2) => &["activationsForwardLSTM", "activationsBackwardLSTM"],
        _ => &["activations"],
    };
    let mut found = Functions::default();
    for field in fields {
        let AttributeValue::Texts(texts) = layer.node.attribute(field)? else { return None };
        (texts.len() == kind.activations).then_some(())?;
        for text in texts {
            let mut words = std::str::from_utf8(text).ok()?.split(' ');
            let own = words.next()?;
            let (_, name, default) = ACTIVATIONS.iter().find(|(name, ..)| *name == own)?;
            found.names.push(name.as_bytes().to_vec());
            let numbers: Option<Vec<f32>> = words.map(|word| word.parse().ok()).collect();
            let numbers = numbers?;
            let are_left_away = numbers.iter().all(|number| *number == 0.0);
            let settings = if are_left_away { default } else { &numbers[..] };
            if !default.is_empty() {
                found.alphas.push(*settings.first()?);
                found.betas.push(*settings.get(1)?);
            }
        }
    }
    Some(found)
}

/// Returns the name of a weight. A layer with a single gate has no gate in the name.
fn field(side: &str, gate: &str, suffix: &str) -> String {
    match (gate, suffix) {
        ("", "WeightMatrix") => "weightMatrix".to_owned(),
        ("", "RecursionMatrix") => "recursionMatrix".to_owned(),
        ("", "BiasVector") => "biasVector".to_owned(),
        _ => format!("{side}{gate}{suffix}"),
    }
}
