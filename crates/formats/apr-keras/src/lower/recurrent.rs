//! Recurrent layers, forward and in both directions.
//!
//! ```text
//! Keras  LSTM  kernel [in, 4 units]  recurrent_kernel [units, 4 units]  gates i f c o
//! ONNX   LSTM  W [1, 4 units, in]    R [1, 4 units, units]              gates i o f c
//! GRU in both: z r h; a bias [2, 3 units] of one whose reset gate comes after the product
//! ```
//!
//! ONNX has the sequence first, and a direction before the batch.
//!
//! Steps that a mask leaves out change no state, and repeat the output before them, or are zeros.
//! ONNX knows lengths alone: the steps that count come first, and what each returns goes back to
//! its place ([`Steps`]).

use apr_graph::{ElementType, ValueId, View};
use apr_lower::{Order, Placed};

use super::Lowering;
use super::layer::{Layer, Variable};

/// A kind of recurrent layer.
struct Kind {
    op: &'static str,
    /// Positions of ONNX's gates in Keras' order.
    gates: &'static [u64],
    /// Function settings with their defaults: for the gates, and for the gated values.
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

/// Outputs of an operator, in ONNX's order.
struct Made {
    /// `[sequence, directions, batch, units]`.
    all: ValueId,
    /// `[directions, batch, units]`: the last of each state.
    last: Vec<ValueId>,
}

/// Steps that a mask selects.
struct Steps {
    /// `[batch, steps]`.
    mask: ValueId,
    /// Positions of the selected steps, followed by the other steps: `[batch, steps, 1]`.
    order: ValueId,
    /// Number of selected steps up to each step: `[batch, steps]`.
    upto: ValueId,
    /// Number of selected steps: `[batch]`.
    lens: ValueId,
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
    /// Lowers a layer of one direction: its output, and its states if it returns them.
    pub(super) fn recurrent(&mut self, layer: &Layer) -> Option<Vec<Placed>> {
        let kind = kind(&layer.class)?;
        let returns_all = layer.is_set("return_sequences");
        let is_reverse = layer.is_set("go_backwards");
        // What goes backwards is returned in the order of the steps, which ONNX turns around.
        (!(returns_all && is_reverse)).then_some(())?;
        let direction = if is_reverse { "reverse" } else { "forward" };
        let name = &layer.name;
        // Since Keras 3 a layer that is given states goes by no mask but one that it is given, too.
        let is_given = self.version >= 3 && layer.inputs.len() > 1;
        let mask = if is_given { layer.mask } else { layer.first_mask() };
        let steps = mask.map(|mask| self.steps(mask, name));
        let is_zero = layer.is_set("zero_output_for_mask");
        if is_zero && steps.is_some() && !returns_all {
            return self.refuse("with a mask whose last step may be zeros");
        }
        let made = self.run(kind, &[layer], &layer.inputs, direction, steps.as_ref(), name)?;
        let squeezed = |this: &mut Self, value: ValueId, axis: i64, name: &str| {
            let axis = this.out.main.ints(&[axis]);
            this.out.main.op("Squeeze", [value, axis]).output(name)
        };
        let first = if returns_all {
            let all = squeezed(self, made.all, 1, &format!("{name}/steps"));
            let turned = self.out.main.op("Transpose", [all]).attribute("perm", [1, 0, 2]);
            match &steps {
                Some(steps) => {
                    let turned = turned.output(&format!("{name}/packed"));
                    self.unpacked(turned, steps, is_zero, 3, name)
                }
                None => turned.output(name),
            }
        } else {
            match &steps {
                Some(steps) => {
                    let last = squeezed(self, made.last[0], 0, &format!("{name}/last"));
                    self.counted(last, steps, None, name)
                }
                None => squeezed(self, made.last[0], 0, name),
            }
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
        let steps = layer.first_mask().map(|mask| self.steps(mask, name));
        let made = self.run(kind, &both, &layer.inputs, "bidirectional", steps.as_ref(), name)?;
        // Directions go behind the batch, and the steps where they are wanted.
        let main = &mut self.out.main;
        let (value, perm, axis) = match forward.is_set("return_sequences") {
            true => (made.all, vec![2, 0, 1, 3], 2),
            false => (made.last[0], vec![1, 0, 2], 1),
        };
        let turned = main.op("Transpose", [value]).attribute("perm", perm);
        let mut turned = turned.output(&format!("{name}/directions"));
        if let (Some(steps), 2) = (&steps, axis) {
            // Layers in both directions have zeros where a mask leaves steps out.
            turned = self.unpacked(turned, steps, true, 4, &format!("{name}/unpacked"));
        }
        let main = &mut self.out.main;
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
        steps: Option<&Steps>,
        name: &str,
    ) -> Option<Made> {
        let first = *layers.first()?;
        if layers.iter().any(|layer| layer.is_set("stateful")) {
            return self.refuse("keeps its state from call to call");
        }
        (!layers.iter().any(|layer| layer.is_set("time_major"))).then_some(())?;
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
            initial.push(self.out.main.op("Unsqueeze", [state, axis]).output(&name));
        }

        let main = &mut self.out.main;
        let x = match steps {
            Some(steps) => {
                let node = main.op("GatherND", [x, steps.order]).attribute("batch_dims", 1);
                node.output(&format!("{name}/counting"))
            }
            None => x,
        };
        let turned = main.op("Transpose", [x]).attribute("perm", [1, 0, 2]);
        let sequence = turned.output(&format!("{name}/sequence"));
        let mut node = self.out.main.op(kind.op, [sequence, w, r]).optional(b);
        if !initial.is_empty() || steps.is_some() {
            node = node.optional(steps.map(|steps| steps.lens));
        }
        for state in &initial {
            node = node.optional(Some(*state));
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
        let (all, mut last) = if kind.states == 2 {
            let [all, h, c] = node.outputs(&name);
            (all, vec![h, c])
        } else {
            let [all, h] = node.outputs(&name);
            (all, vec![h])
        };
        if let Some(steps) = steps {
            // Where no step counts, a state stays; runtimes differ in what they return for it.
            for (last, initial) in last.iter_mut().zip(initial) {
                *last = self.counted(*last, steps, Some(initial), &format!("{name}/state"));
            }
        }
        Some(Made { all, last })
    }

    /// Returns the steps that a mask selects.
    fn steps(&mut self, mask: ValueId, name: &str) -> Steps {
        let name = format!("{name}/mask");
        let long = self.out.cast(mask, ElementType::I64, &format!("{name}/long"));
        let main = &mut self.out.main;
        let (axis, last, one) = (main.ints(&[1]), main.ints(&[-1]), main.int(1));
        let upto = main.op("CumSum", [long, one]).output(&format!("{name}/upto"));
        let count = main.op("ReduceSum", [long, axis]).attribute("keepdims", 0);
        let count = count.output(&format!("{name}/count"));
        let all = main.op("Shape", [long]).attribute("start", 1).output(&format!("{name}/steps"));
        // Of equal elements those that come first are taken first.
        let [_, order] = main.op("TopK", [long, all]).outputs(&format!("{name}/first"));
        let order = main.op("Unsqueeze", [order, last]).output(&format!("{name}/order"));
        let lens = self.out.cast(count, ElementType::I32, &format!("{name}/lens"));
        Steps { mask, order, upto, lens }
    }

    /// Moves the outputs of the selected steps to their positions among all steps.
    ///
    /// `packed` is `[batch, steps, ...]`.
    fn unpacked(
        &mut self,
        packed: ValueId,
        steps: &Steps,
        is_zero: bool,
        rank: i64,
        name: &str,
    ) -> ValueId {
        let main = &mut self.out.main;
        let (zero, one, last) = (main.int(0), main.int(1), main.ints(&[-1]));
        let at = main.op("Sub", [steps.upto, one]).output(&format!("{name}/before"));
        let at = main.op("Max", [at, zero]).output(&format!("{name}/at"));
        let at = main.op("Unsqueeze", [at, last]).output(&format!("{name}/places"));
        let placed = main.op("GatherND", [packed, at]).attribute("batch_dims", 1);
        let placed = placed.output(&format!("{name}/placed"));
        let counts = match is_zero {
            true => steps.mask,
            false => main.op("Greater", [steps.upto, zero]).output(&format!("{name}/begun")),
        };
        let axes: Vec<i64> = (2..rank).collect();
        let (axes, none) = (main.ints(&axes), main.float(0.0));
        let counts = main.op("Unsqueeze", [counts, axes]).output(&format!("{name}/counts"));
        main.op("Where", [counts, placed, none]).output(name)
    }

    /// Returns `last`, or `other` or zeros for sequences without selected steps.
    ///
    /// The shape is `[..., batch, units]`.
    fn counted(
        &mut self,
        last: ValueId,
        steps: &Steps,
        other: Option<ValueId>,
        name: &str,
    ) -> ValueId {
        let main = &mut self.out.main;
        let (axis, zero) = (main.ints(&[-1]), main.int(0));
        let none = other.unwrap_or_else(|| main.float(0.0));
        let lens = main.op("Unsqueeze", [steps.lens, axis]).output(&format!("{name}/steps"));
        let lens = self.out.cast(lens, ElementType::I64, &format!("{name}/steps/long"));
        let main = &mut self.out.main;
        let any = main.op("Greater", [lens, zero]).output(&format!("{name}/begun"));
        main.op("Where", [any, last, none]).output(name)
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

/// Returns `true` if the reset gate is applied after the product.
///
/// Keras 2 and later store a setting in this case.
fn resets_after(layer: &Layer) -> bool {
    layer.is_set("reset_after")
}
