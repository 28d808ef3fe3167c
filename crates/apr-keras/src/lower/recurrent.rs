//! Recurrent layers, forward and in both directions.
//!
//! ```text
//! Keras  LSTM  kernel [in, 4 units]  recurrent_kernel [units, 4 units]  gates i f c o
//! ONNX   LSTM  W [1, 4 units, in]    R [1, 4 units, units]              gates i o f c
//! GRU in both: z r h; a bias [2, 3 units] of one whose reset gate comes after the product
//! ```
//!
//! ONNX has the sequence first, and a direction before the batch.

use apr_graph::{ElementType, ValueId, View};
use apr_lower::{Order, Placed};

use super::Lowering;
use super::layer::{Layer, Variable};

/// A kind of recurrent layer.
struct Kind {
    op: &'static str,
    /// Where ONNX's gates are in Keras' order.
    gates: &'static [u64],
    /// Functions where the file states none: of the gates, and of what they let through.
    functions: &'static [(&'static str, &'static str)],
    /// Values that it keeps from step to step.
    states: usize,
}

const LSTM: Kind = Kind {
    op: "LSTM",
    gates: &[0, 3, 1, 2],
    functions: &[
        ("recurrent_activation", "sigmoid"),
        ("activation", "tanh"),
        ("activation", "tanh"),
    ],
    states: 2,
};
const GRU: Kind = Kind {
    op: "GRU",
    gates: &[0, 1, 2],
    functions: &[("recurrent_activation", "sigmoid"), ("activation", "tanh")],
    states: 1,
};
const SIMPLE: Kind =
    Kind { op: "RNN", gates: &[0], functions: &[("activation", "tanh")], states: 1 };

/// The weights of one or two directions, as ONNX has them.
struct Cells {
    w: ValueId,
    r: ValueId,
    b: Option<ValueId>,
    units: u64,
}

/// What an operator made, in ONNX's order.
struct Made {
    /// `[sequence, directions, batch, units]`.
    all: ValueId,
    /// `[directions, batch, units]`: the last of each state.
    last: Vec<ValueId>,
}

fn kind(class: &str) -> Option<&'static Kind> {
    match class {
        "LSTM" => Some(&LSTM),
        "GRU" => Some(&GRU),
        "SimpleRNN" => Some(&SIMPLE),
        _ => None,
    }
}

impl Lowering<'_> {
    /// A layer in one direction: what it returns, and its states where it returns those, too.
    pub(super) fn recurrent(&mut self, layer: &Layer) -> Option<Vec<Placed>> {
        let kind = kind(&layer.class)?;
        let returns_all = layer.is_set("return_sequences");
        let is_reverse = layer.is_set("go_backwards");
        // What goes backwards is returned in the order of the steps, which ONNX turns around.
        (!(returns_all && is_reverse)).then_some(())?;
        let direction = if is_reverse { "reverse" } else { "forward" };
        let made = self.run(kind, &[layer], &layer.inputs, direction, &layer.name)?;
        let name = &layer.name;
        let squeezed = |this: &mut Self, value: ValueId, axis: i64, name: &str| {
            let axis = this.out.main.ints(&[axis]);
            this.out.main.op("Squeeze", [value, axis]).output(name)
        };
        let first = if returns_all {
            let steps = squeezed(self, made.all, 1, &format!("{name}/steps"));
            self.out.main.op("Transpose", [steps]).attribute("perm", [1, 0, 2]).output(name)
        } else {
            squeezed(self, made.last[0], 0, name)
        };
        let mut outputs = vec![Placed::natural(first)];
        if layer.is_set("return_state") {
            for (number, state) in made.last.iter().enumerate() {
                let state = squeezed(self, *state, 0, &format!("{name}:{}", number + 1));
                outputs.push(Placed::natural(state));
            }
        }
        Some(outputs)
    }

    /// A layer in both directions.
    pub(super) fn bidirectional(&mut self, layer: &Layer) -> Option<Vec<Placed>> {
        let is_forward =
            |own: &Variable| own.name.split('/').any(|part| part.starts_with("forward"));
        let is_backward =
            |own: &Variable| own.name.split('/').any(|part| part.starts_with("backward"));
        let forward = layer.inner("layer", layer.name.clone(), is_forward)?;
        // One of its own is what the other would be where it says so; else it is no mirror image.
        let backward = match layer.has("backward_layer") {
            true => layer.inner("backward_layer", layer.name.clone(), is_backward)?,
            false => layer.inner("layer", layer.name.clone(), is_backward)?,
        };
        let kind = kind(&forward.class).filter(|_| forward.class == backward.class)?;
        let same = ["return_sequences", "return_state", "reset_after"];
        let is_same = same.iter().all(|key| forward.int(key) == backward.int(key));
        (is_same && !forward.is_set("go_backwards") && !forward.is_set("return_state"))
            .then_some(())?;
        (layer.inputs.len() == 1).then_some(())?;
        let name = &layer.name;
        let both = [&forward, &backward];
        let made = self.run(kind, &both, &layer.inputs, "bidirectional", name)?;
        // Directions go behind the batch, and the steps where they are wanted.
        let main = &mut self.out.main;
        let (value, perm, axis) = match forward.is_set("return_sequences") {
            true => (made.all, vec![2, 0, 1, 3], 2),
            false => (made.last[0], vec![1, 0, 2], 1),
        };
        let turned = main.op("Transpose", [value]).attribute("perm", perm);
        let turned = turned.output(&format!("{name}/directions"));
        let merge = layer.text("merge_mode").unwrap_or("concat");
        let merged = match merge {
            "concat" => {
                let mut shape = vec![0; usize::try_from(axis).ok()?];
                shape.push(-1);
                let shape = main.ints(&shape);
                main.op("Reshape", [turned, shape]).output(name)
            }
            _ => {
                let op = match merge {
                    "sum" => "ReduceSum",
                    "ave" => "ReduceMean",
                    "mul" => "ReduceProd",
                    _ => return None,
                };
                let axes = main.ints(&[axis]);
                main.op(op, [turned, axes]).attribute("keepdims", 0).output(name)
            }
        };
        Some(vec![Placed::natural(merged)])
    }

    /// Writes the operator.
    fn run(
        &mut self,
        kind: &Kind,
        layers: &[&Layer],
        inputs: &[Placed],
        direction: &str,
        name: &str,
    ) -> Option<Made> {
        let first = *layers.first()?;
        let keeps = |layer: &&Layer| layer.is_set("stateful") || layer.is_set("time_major");
        (!layers.iter().any(keeps)).then_some(())?;
        let (x, states) = inputs.split_first()?;
        (states.is_empty() || (states.len() == kind.states && layers.len() == 1)).then_some(())?;
        let x = self.out.ordered(*x, Order::Natural)?;
        let cells: Option<Vec<Cells>> = (0..)
            .zip(layers)
            .map(|(number, layer): (u8, _)| {
                self.cells(kind, layer, &format!("{name}/cell{number}"))
            })
            .collect();
        let Cells { w, r, b, units } = self.joined(&cells?, name)?;
        let (mut functions, mut alphas, mut betas) = (Vec::new(), Vec::new(), Vec::new());
        for layer in layers {
            for (setting, default) in kind.functions {
                let function = layer.text(setting).unwrap_or(default);
                let (function, alpha, beta) = self.cell_function(function)?;
                functions.push(function.as_bytes().to_vec());
                alphas.extend(alpha);
                betas.extend(beta);
            }
        }
        let mut initial = Vec::with_capacity(states.len());
        for (number, state) in states.iter().enumerate() {
            let state = self.out.ordered(*state, Order::Natural)?;
            let axis = self.out.main.ints(&[0]);
            let name = format!("{name}/initial{number}");
            initial.push(Some(self.out.main.op("Unsqueeze", [state, axis]).output(&name)));
        }

        let turned = self.out.main.op("Transpose", [x]).attribute("perm", [1, 0, 2]);
        let sequence = turned.output(&format!("{name}/sequence"));
        let mut node = self.out.main.op(kind.op, [sequence, w, r]).optional(b);
        if !initial.is_empty() {
            node = node.optional(None);
        }
        for state in initial {
            node = node.optional(state);
        }
        node = node
            .attribute("hidden_size", i64::try_from(units).ok()?)
            .attribute("direction", direction)
            .attribute("activations", apr_graph::AttributeValue::Texts(functions));
        if !alphas.is_empty() {
            let list = apr_graph::AttributeValue::Floats;
            node = node.attribute("activation_alpha", list(alphas));
            node = node.attribute("activation_beta", list(betas));
        }
        if kind.op == "GRU" {
            node = node.attribute("linear_before_reset", i64::from(resets_after(first)));
        }
        let name = format!("{name}/recurrent");
        Some(if kind.states == 2 {
            let [all, h, c] = node.outputs(&name);
            Made { all, last: vec![h, c] }
        } else {
            let [all, h] = node.outputs(&name);
            Made { all, last: vec![h] }
        })
    }

    /// An activation by ONNX's name for it within a recurrent operator, with its parameters.
    fn cell_function(&self, function: &str) -> Option<(&'static str, Option<f32>, Option<f32>)> {
        Some(match function {
            "linear" => ("Affine", Some(1.0), Some(0.0)),
            "relu" => ("Relu", None, None),
            "sigmoid" => ("Sigmoid", None, None),
            "tanh" => ("Tanh", None, None),
            "softsign" => ("Softsign", None, None),
            "softplus" => ("Softplus", None, None),
            "hard_sigmoid" => {
                let alpha = if self.version >= 3 { 1.0 / 6.0 } else { 0.2 };
                ("HardSigmoid", Some(alpha), Some(0.5))
            }
            _ => return None,
        })
    }

    /// The weights of one direction: its gates in ONNX's order, one after the other.
    fn cells(&mut self, kind: &Kind, layer: &Layer, name: &str) -> Option<Cells> {
        let kernel = layer.variable(&["kernel"], 0)?.clone();
        let recurrent = layer.variable(&["recurrent_kernel"], 1)?.clone();
        let count = kind.gates.len() as u64;
        let ([inputs, all], [units, all_too]) = (pair(&kernel)?, pair(&recurrent)?);
        (Some(all) == units.checked_mul(count) && all == all_too).then_some(())?;
        let w = self.gates(kind, &kernel, units, inputs, &format!("{name}/w"))?;
        let r = self.gates(kind, &recurrent, units, units, &format!("{name}/r"))?;
        let b = match layer.is_kept("use_bias") {
            true => {
                let bias = layer.variable(&["bias"], 2)?.clone();
                Some(self.biases(kind, layer, &bias, units, &format!("{name}/b"))?)
            }
            false => None,
        };
        Some(Cells { w, r, b, units })
    }

    /// `[rows, gates * units]` as `[1, gates * units, rows]`.
    fn gates(
        &mut self,
        kind: &Kind,
        from: &Variable,
        units: u64,
        rows: u64,
        name: &str,
    ) -> Option<ValueId> {
        let shape = vec![1, units, rows];
        let mut parts = Vec::with_capacity(kind.gates.len());
        for gate in kind.gates {
            let views = vec![
                View::Transposed(vec![1, 0]),
                View::Slice { axis: 0, start: gate.checked_mul(units)?, len: units },
                View::Reshaped(shape.clone()),
            ];
            let tensor = &from.weight.tensor;
            parts.push(self.out.main.viewed(tensor, views, ElementType::F32, shape.clone()));
        }
        Some(self.one(parts, 1, name))
    }

    /// The biases of the input's products, and then of the states': `[1, 2 * gates * units]`.
    fn biases(
        &mut self,
        kind: &Kind,
        layer: &Layer,
        bias: &Variable,
        units: u64,
        name: &str,
    ) -> Option<ValueId> {
        let count = kind.gates.len() as u64;
        let whole = count.checked_mul(units)?;
        let is_double = kind.op == "GRU" && resets_after(layer);
        let expected = if is_double { vec![2, whole] } else { vec![whole] };
        (bias.dims == expected).then_some(())?;
        let (tensor, shape) = (&bias.weight.tensor, vec![1, units]);
        let mut parts = Vec::new();
        for row in 0..=u64::from(is_double) {
            for gate in kind.gates {
                let start = row.checked_mul(whole)?.checked_add(gate.checked_mul(units)?)?;
                let views = vec![
                    View::Reshaped(vec![expected.iter().product()]),
                    View::Slice { axis: 0, start, len: units },
                    View::Reshaped(shape.clone()),
                ];
                parts.push(self.out.main.viewed(tensor, views, ElementType::F32, shape.clone()));
            }
        }
        if !is_double {
            let shape = [1, i64::try_from(whole).ok()?];
            parts.push(self.repeated(0.0, &shape, &format!("{name}/zeros")));
        }
        Some(self.one(parts, 1, name))
    }

    /// The weights of all directions.
    fn joined(&mut self, cells: &[Cells], name: &str) -> Option<Cells> {
        let units = cells.first()?.units;
        let has_bias = cells.first()?.b.is_some();
        let fits = |cell: &Cells| cell.units == units && cell.b.is_some() == has_bias;
        cells.iter().all(fits).then_some(())?;
        let part = |part: fn(&Cells) -> ValueId| cells.iter().map(part).collect::<Vec<_>>();
        let (w, r) = (part(|cell| cell.w), part(|cell| cell.r));
        let b: Vec<ValueId> = cells.iter().filter_map(|cell| cell.b).collect();
        let b = (!b.is_empty()).then(|| self.one(b, 0, &format!("{name}/b")));
        let w = self.one(w, 0, &format!("{name}/w"));
        Some(Cells { w, r: self.one(r, 0, &format!("{name}/r")), b, units })
    }

    /// Values that follow each other along a dimension; one is itself.
    fn one(&mut self, parts: Vec<ValueId>, axis: i64, name: &str) -> ValueId {
        match parts.as_slice() {
            [one] => *one,
            _ => self.out.main.op("Concat", parts).attribute("axis", axis).output(name),
        }
    }
}

fn pair(variable: &Variable) -> Option<[u64; 2]> {
    variable.dims.as_slice().try_into().ok()
}

/// Whether a reset gate comes after the product: Keras 2 and later say so where it does.
fn resets_after(layer: &Layer) -> bool {
    layer.is_set("reset_after")
}
