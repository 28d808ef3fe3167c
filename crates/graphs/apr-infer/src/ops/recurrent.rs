//! Recurrent layers.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::real::Real;
use crate::call::Call;
use crate::matrix::{Left, Right, product};
use crate::moving::transposed;
use crate::operator::{Operator, computes};
use crate::shape::{count, sizes};
use crate::workers::Workers;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("RNN", |call| run(call, CellKind::Plain)),
    computes("GRU", |call| run(call, CellKind::Gru)),
    computes("LSTM", |call| run(call, CellKind::Lstm)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum CellKind {
    Plain,
    Gru,
    Lstm,
}

impl CellKind {
    fn gates(self) -> usize {
        match self {
            Self::Plain => 1,
            Self::Gru => 3,
            Self::Lstm => 4,
        }
    }

    fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// A function of one element.
pub(super) type Activation = Box<dyn Fn(f32) -> f32 + Sync>;

/// Returns whether an activation takes a value from `activation_alpha`, and one from
/// `activation_beta`.
fn takes(name: &str) -> (bool, bool) {
    match name.to_ascii_lowercase().as_str() {
        "affine" | "scaledtanh" | "hardsigmoid" => (true, true),
        "leakyrelu" | "thresholdedrelu" | "elu" => (true, false),
        _ => (false, false),
    }
}

/// Returns the activations of a direction. Activations with settings take the next values of the
/// lists, one direction after the other.
fn activations(call: &Call<'_>, kind: CellKind, number: usize) -> Result<Vec<Activation>> {
    let names = call.texts("activations").unwrap_or_default();
    let list = |name: &str| call.floats(name).unwrap_or_default().into_iter();
    let (mut alphas, mut betas) = (list("activation_alpha"), list("activation_beta"));
    let defaults = kind.activations();
    let mut found = Vec::with_capacity(defaults.len());
    for at in 0..(number + 1) * defaults.len() {
        let name = names.get(at).map_or(defaults[at % defaults.len()], String::as_str);
        let (takes_alpha, takes_beta) = takes(name);
        let alpha = takes_alpha.then(|| alphas.next()).flatten();
        let beta = takes_beta.then(|| betas.next()).flatten();
        if at / defaults.len() == number {
            found.push(activation(name, alpha, beta)?);
        }
    }

    Ok(found)
}

/// An activation by its name, with its settings.
pub(super) fn activation(name: &str, alpha: Option<f32>, beta: Option<f32>) -> Result<Activation> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "relu" => Box::new(|x| x.max(0.0)),
        "tanh" => Box::new(libm::tanhf),
        "sigmoid" => Box::new(Real::sigmoid),
        "softsign" => Box::new(|x| x / (1.0 + x.abs())),
        "softplus" => Box::new(Real::softplus),
        "affine" => {
            let (alpha, beta) = (alpha.unwrap_or(1.0), beta.unwrap_or(0.0));
            Box::new(move |x| alpha * x + beta)
        }
        "leakyrelu" => {
            let alpha = alpha.unwrap_or(0.01);
            Box::new(move |x| if x < 0.0 { alpha * x } else { x })
        }
        "thresholdedrelu" => {
            let alpha = alpha.unwrap_or(1.0);
            Box::new(move |x| if x > alpha { x } else { 0.0 })
        }
        "scaledtanh" => {
            let (alpha, beta) = (alpha.unwrap_or(1.0), beta.unwrap_or(1.0));
            Box::new(move |x| alpha * libm::tanhf(beta * x))
        }
        "hardsigmoid" => {
            let (alpha, beta) = (alpha.unwrap_or(0.2), beta.unwrap_or(0.5));
            Box::new(move |x| (alpha * x + beta).clamp(0.0, 1.0))
        }
        "elu" => {
            let alpha = alpha.unwrap_or(1.0);
            Box::new(move |x| if x < 0.0 { alpha * libm::expm1f(x) } else { x })
        }
        "clip" => {
            let (low, high) = (alpha.unwrap_or(f32::MIN), beta.unwrap_or(f32::MAX));
            Box::new(move |x| x.max(low).min(high))
        }
        _ => return Err(Error::format(format!("unknown activation '{name}'"))),
    })
}

/// A layer in one direction.
struct Layer<'a> {
    kind: CellKind,
    batch: usize,
    inputs: usize,
    hidden: usize,
    /// `[gates * hidden, inputs]` and `[gates * hidden, hidden]`.
    weights: &'a [f32],
    recurrence: &'a [f32],
    /// Biases of the inputs, then of the recurrence.
    bias: Vec<f32>,
    /// LSTM: how the cell acts on the gates for input, output and forgetting.
    peepholes: Option<&'a [f32]>,
    activations: Vec<Activation>,
    clip: f32,
    /// GRU: the reset gate acts after the product.
    linear_before_reset: bool,
    /// LSTM: the forget gate is 1 minus the input gate.
    coupled: bool,
}

/// Sizes of a recurrent operator.
#[derive(Clone, Copy)]
struct Shape {
    steps: usize,
    batch: usize,
    inputs: usize,
    hidden: usize,
    directions: usize,
}

impl Shape {
    fn of(call: &Call<'_>, kind: CellKind, x: &Tensor) -> Result<Self> {
        let &[steps, batch, inputs] = x.shape() else {
            return Err(Error::format("steps, a batch and inputs are expected"));
        };
        let (w, r) = (call.tensor(1)?, call.tensor(2)?);
        let &[_, rows, _] = w.shape() else {
            return Err(Error::format("weights have three dimensions"));
        };
        let hidden = rows / kind.gates();
        let directions = if call.text("direction", "forward") == "bidirectional" { 2 } else { 1 };
        let fits = w.shape() == [directions, kind.gates() * hidden, inputs]
            && r.shape() == [directions, kind.gates() * hidden, hidden];
        if !fits {
            let message =
                format!("weights of {:?} and {:?} do not fit the input", w.shape(), r.shape());
            return Err(Error::format(message));
        }

        // The output, and the gates of all steps.
        call.room(&[steps.max(1), directions, batch, hidden], ElementType::F32)?;
        call.room(&[steps, batch, kind.gates() * hidden], ElementType::F32)?;
        Ok(Self { steps, batch, inputs, hidden, directions })
    }

    /// Returns the number of steps of each row of the batch.
    fn lengths(&self, call: &Call<'_>) -> Result<Vec<usize>> {
        let lengths = match call.optional(4)? {
            Some(lengths) => sizes(&lengths.integers()?)?,
            None => vec![self.steps; self.batch],
        };
        if lengths.len() != self.batch || lengths.iter().any(|&len| len > self.steps) {
            return Err(Error::format("the lengths do not fit the batch"));
        }
        Ok(lengths)
    }

    /// Returns the initial state of the layers: zeros unless an input provides it.
    fn state(&self, call: &Call<'_>, position: usize, batch_first: bool) -> Result<Vec<f32>> {
        let shape = [self.directions, self.batch, self.hidden];
        let Some(tensor) = call.optional(position)? else { return Ok(vec![0.0; count(&shape)]) };
        let tensor = if batch_first { transposed(tensor, &[1, 0, 2])? } else { tensor.clone() };
        if tensor.shape() != shape {
            return Err(Error::format(format!("a state of {:?} does not fit", tensor.shape())));
        }
        tensor.into_values()
    }
}

fn run(call: &mut Call<'_>, kind: CellKind) -> Result<Vec<Value>> {
    let batch_first = call.flag("layout", false);
    let x = if batch_first {
        transposed(call.tensor(0)?, &[1, 0, 2])?
    } else {
        call.tensor(0)?.clone()
    };
    let shape = Shape::of(call, kind, &x)?;
    let lengths = shape.lengths(call)?;
    let mut h = shape.state(call, 5, batch_first)?;
    let mut c =
        if kind == CellKind::Lstm { shape.state(call, 6, batch_first)? } else { Vec::new() };
    let Shape { steps, batch, inputs, hidden, directions } = shape;
    let products = kind.gates().saturating_mul(inputs.saturating_add(hidden));
    call.multiplications(&[steps, directions, batch, hidden, products])?;
    call.work(&[steps, directions, batch, hidden, kind.gates()])?;
    let mut y = vec![0.0; steps * directions * batch * hidden];
    for number in 0..directions {
        let layer = layer(call, kind, number, (batch, inputs, hidden))?;
        let range = number * batch * hidden..(number + 1) * batch * hidden;
        let cell = if c.is_empty() { &mut [][..] } else { &mut c[range.clone()] };
        let backwards = number == 1 || call.text("direction", "forward") == "reverse";
        let run = Run { lengths: &lengths, backwards, number, directions, workers: call.workers() };
        layer.run(x.values()?, &mut h[range], cell, &mut y, &run)?;
    }

    let turned = |values: Vec<f32>, shape: Vec<usize>, order: &[usize]| -> Result<Value> {
        let tensor = Tensor::new(shape, values)?;
        Ok(if batch_first { transposed(&tensor, order)? } else { tensor }.into())
    };
    let state = |values| turned(values, vec![directions, batch, hidden], &[1, 0, 2]);
    let mut outputs =
        vec![turned(y, vec![steps, directions, batch, hidden], &[2, 0, 1, 3])?, state(h)?];
    if kind == CellKind::Lstm {
        outputs.push(state(c)?);
    }

    Ok(outputs)
}

fn layer<'a>(
    call: &'a Call<'_>,
    kind: CellKind,
    number: usize,
    (batch, inputs, hidden): (usize, usize, usize),
) -> Result<Layer<'a>> {
    let gates = kind.gates();
    let part = |position: usize, len: usize| -> Result<Option<&'a [f32]>> {
        let Some(tensor) = call.optional(position)? else { return Ok(None) };
        let values = tensor.values::<f32>()?;
        let wrong = || {
            Error::format(format!("input {position} of shape {:?} does not fit", tensor.shape()))
        };
        values.get(number * len..(number + 1) * len).map(Some).ok_or_else(wrong)
    };

    let missing = || Error::format("weights are missing");
    Ok(Layer {
        kind,
        batch,
        inputs,
        hidden,
        weights: part(1, gates * hidden * inputs)?.ok_or_else(missing)?,
        recurrence: part(2, gates * hidden * hidden)?.ok_or_else(missing)?,
        bias: part(3, 2 * gates * hidden)?
            .map_or_else(|| vec![0.0; 2 * gates * hidden], <[f32]>::to_vec),
        peepholes: if kind == CellKind::Lstm { part(7, 3 * hidden)? } else { None },
        activations: activations(call, kind, number)?,
        clip: call.float("clip", f32::MAX),
        linear_before_reset: call.flag("linear_before_reset", false),
        coupled: call.flag("input_forget", false),
    })
}

/// Settings of a layer's run over the steps.
struct Run<'a> {
    lengths: &'a [usize],
    backwards: bool,
    number: usize,
    directions: usize,
    workers: &'a dyn Workers,
}

impl Layer<'_> {
    fn run(
        &self,
        x: &[f32],
        h: &mut [f32],
        c: &mut [f32],
        y: &mut [f32],
        run: &Run<'_>,
    ) -> Result<()> {
        let (rows, width) = (x.len() / self.inputs.max(1), self.kind.gates() * self.hidden);

        // The inputs of all steps are there already, so that one product serves them.
        let mut given = vec![0.0; rows * width];
        let left = Left::in_rows(x, rows, self.inputs);
        product(left, Right::Columns(self.weights, width), &mut given, run.workers)?;
        let steps = rows / self.batch.max(1);
        let size = self.batch * self.hidden;
        for step in 0..steps {
            let mut recurrent = vec![0.0; self.batch * width];
            let left = Left::in_rows(h, self.batch, self.hidden);
            product(left, Right::Columns(self.recurrence, width), &mut recurrent, run.workers)?;
            for row in 0..self.batch {
                let len = run.lengths[row];

                // A row past its length keeps its state, and its outputs stay zeros.
                if step >= len {
                    continue;
                }

                let time = if run.backwards { len - 1 - step } else { step };
                let given = &given[(time * self.batch + row) * width..][..width];
                let recurrent = &recurrent[row * width..][..width];
                let range = row * self.hidden..(row + 1) * self.hidden;
                match self.kind {
                    CellKind::Plain => self.plain(given, recurrent, &mut h[range.clone()]),
                    CellKind::Gru => self.gru(given, recurrent, &mut h[range.clone()], run)?,
                    CellKind::Lstm => {
                        self.lstm(given, recurrent, &mut h[range.clone()], &mut c[range.clone()]);
                    }
                }

                let out = (time * run.directions + run.number) * size + row * self.hidden;
                y[out..out + self.hidden].copy_from_slice(&h[range]);
            }
        }

        Ok(())
    }

    /// A gate before its activation.
    fn gate(&self, given: &[f32], recurrent: &[f32], gate: usize, at: usize) -> f32 {
        let (place, half) = (gate * self.hidden + at, self.kind.gates() * self.hidden);
        given[place] + recurrent[place] + self.bias[place] + self.bias[half + place]
    }

    fn clipped(&self, x: f32) -> f32 {
        if self.clip > 0.0 { x.clamp(-self.clip, self.clip) } else { x }
    }

    fn plain(&self, given: &[f32], recurrent: &[f32], h: &mut [f32]) {
        for (at, h) in h.iter_mut().enumerate() {
            *h = self.activations[0](self.clipped(self.gate(given, recurrent, 0, at)));
        }
    }

    /// Gates: update, reset, hidden.
    fn gru(&self, given: &[f32], recurrent: &[f32], h: &mut [f32], run: &Run<'_>) -> Result<()> {
        let (f, g) = (&self.activations[0], &self.activations[1]);

        // The biases of the recurrence follow those of the inputs.
        let (hidden, half) = (self.hidden, 3 * self.hidden);
        let gate = |gate: usize, at: usize| f(self.clipped(self.gate(given, recurrent, gate, at)));
        let reset: Vec<f32> = (0..hidden).map(|at| gate(1, at)).collect();
        let mut inner = vec![0.0; hidden];

        // So does PyTorch's GRU: the gate comes after the product.
        if self.linear_before_reset {
            for (at, inner) in inner.iter_mut().enumerate() {
                *inner =
                    reset[at] * (recurrent[2 * hidden + at] + self.bias[half + 2 * hidden + at]);
            }
        } else {
            let scaled: Vec<f32> = reset.iter().zip(&*h).map(|(reset, h)| reset * h).collect();
            let matrix = &self.recurrence[2 * hidden * hidden..];
            product(
                Left::in_rows(&scaled, 1, hidden),
                Right::Columns(matrix, hidden),
                &mut inner,
                run.workers,
            )?;
            inner
                .iter_mut()
                .enumerate()
                .for_each(|(at, inner)| *inner += self.bias[half + 2 * hidden + at]);
        }

        for (at, h) in h.iter_mut().enumerate() {
            let update = gate(0, at);
            let new =
                g(self.clipped(given[2 * hidden + at] + self.bias[2 * hidden + at] + inner[at]));
            *h = (1.0 - update) * new + update * *h;
        }

        Ok(())
    }

    /// Gates: input, output, forget, cell.
    fn lstm(&self, given: &[f32], recurrent: &[f32], h: &mut [f32], c: &mut [f32]) {
        let (f, g, last) = (&self.activations[0], &self.activations[1], &self.activations[2]);
        let peephole = |gate: usize, at: usize| {
            self.peepholes.map_or(0.0, |list| list[gate * self.hidden + at])
        };
        for at in 0..self.hidden {
            let gate = |number: usize, cell: f32| {
                f(self
                    .clipped(self.gate(given, recurrent, number, at) + peephole(number, at) * cell))
            };
            let input = gate(0, c[at]);
            let forget = if self.coupled { 1.0 - input } else { gate(2, c[at]) };
            let new = g(self.clipped(self.gate(given, recurrent, 3, at)));
            c[at] = forget * c[at] + input * new;

            // The output gate looks at the new cell (ONNX's `LSTM`).
            h[at] = gate(1, c[at]) * last(c[at]);
        }
    }
}
