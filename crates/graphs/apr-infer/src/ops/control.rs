//! Branches and loops.

use apr_core::{Error, Result};
use apr_graph::Body;

use crate::call::Call;
use crate::moving::{part, stacked};
use crate::operator::{Operator, moves};
use crate::shape::axis;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] =
    &[moves("If", branch), moves("Loop", repeat), moves("Scan", scan), moves("SequenceMap", map)];

fn branch(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let which = truth(call.tensor(0)?)?;
    let body = call.body(if which { "then_branch" } else { "else_branch" })?;
    call.environment.run_body(body, Vec::new())
}

/// The only element of a tensor of truth values.
fn truth(tensor: &Tensor) -> Result<bool> {
    match tensor.values::<u8>()? {
        [value] => Ok(*value != 0),
        values => Err(Error::format(format!("one boolean is expected, not {}", values.len()))),
    }
}

/// Values of each iteration, for each output that collects them.
#[derive(Default)]
struct Collected(Vec<Vec<Tensor>>);

impl Collected {
    fn add(&mut self, call: &mut Call<'_>, values: impl Iterator<Item = Value>) -> Result<()> {
        for (position, value) in values.enumerate() {
            if self.0.len() <= position {
                self.0.push(Vec::new());
            }
            // A loop of a hostile file may collect until the memory is full.
            call.environment.hold(&value)?;
            self.0[position].push(value.tensor()?.clone());
        }
        Ok(())
    }

    /// Stacks the values of an output along a new dimension. Returns `None` if there were no
    /// iterations.
    fn stack(
        &mut self,
        call: &mut Call<'_>,
        position: usize,
        at: i64,
        reversed: bool,
    ) -> Result<Option<Tensor>> {
        let Some(tensors) = self.0.get_mut(position) else { return Ok(None) };
        if reversed {
            tensors.reverse();
        }
        let first = tensors.first().map_or(&[][..], Tensor::shape);
        let element = tensors.first().map_or(apr_graph::ElementType::U8, Tensor::element);
        call.room(&[&[tensors.len()], first].concat(), element)?;
        let joined = stacked(tensors, axis(at, first.len() + 1)?)?;
        for tensor in tensors.drain(..) {
            call.environment.let_go(&Value::Tensor(tensor));
        }
        Ok(Some(joined))
    }
}

fn repeat(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let most = call.optional(0)?.map(Tensor::integer).transpose()?;
    let mut goes_on = call.optional(1)?.map_or(Ok(true), truth)?;
    let mut state: Vec<Value> =
        (2..call.inputs.len()).map(|at| call.value(at).cloned()).collect::<Result<_>>()?;
    let body = call.body("body")?;
    let mut collected = Collected::default();
    let mut round = 0_i64;

    // A loop without a count and a condition has no end (ONNX's `Loop`): the budget of work is one.
    while goes_on && most.is_none_or(|most| round < most) {
        let mut inputs =
            vec![Tensor::scalar(round).into(), Tensor::truths(Vec::new(), vec![1])?.into()];
        inputs.append(&mut state);
        let mut outputs = call.environment.run_body(body, inputs)?.into_iter();
        let next =
            outputs.next().ok_or_else(|| Error::format("the body of a loop has no outputs"))?;
        goes_on = truth(next.tensor()?)?;
        state = outputs.by_ref().take(call.inputs.len().saturating_sub(2)).collect();
        collected.add(call, outputs)?;
        round += 1;
    }

    let scans = body.outputs.len().saturating_sub(1 + state.len());
    for position in 0..scans {
        state.push(match collected.stack(call, position, 0, false)? {
            Some(tensor) => tensor.into(),
            None => nothing(body, body.outputs.len() - scans + position)?.into(),
        });
    }

    Ok(state)
}

/// Returns the collected output of a body that never runs: no rows of its declared type.
fn nothing(body: &Body, output: usize) -> Result<Tensor> {
    let value = body.value(body.outputs[output]);
    let element = value.element().unwrap_or(apr_graph::ElementType::F32);
    let known =
        |dim: &apr_graph::Dim| dim.size().and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
    let mut shape = vec![0];
    shape.extend(value.shape().unwrap_or_default().iter().map(known));
    crate::cast::from_floats(Vec::new(), shape, element)
}

fn scan(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let body = call.body("body")?;
    let scanned = usize::try_from(call.int("num_scan_inputs", 0)).unwrap_or(0);
    if call.opset < 9 {
        return scan_batches(call, body, scanned);
    }
    let inputs =
        (0..call.inputs.len()).map(|at| call.value(at).cloned()).collect::<Result<Vec<_>>>()?;
    scan_one(call, body, scanned, inputs, None)
}

/// Version 8: an extra first input with lengths, and every value has a batch in front.
fn scan_batches(call: &mut Call<'_>, body: &Body, scanned: usize) -> Result<Vec<Value>> {
    let inputs: Vec<Tensor> =
        (1..call.inputs.len()).map(|at| call.tensor(at).cloned()).collect::<Result<_>>()?;
    let lengths = call.optional(0)?.map(Tensor::integers).transpose()?;
    let batches = inputs.first().and_then(|tensor| tensor.shape().first().copied()).unwrap_or(0);
    let mut results: Vec<Vec<Tensor>> = Vec::new();
    for batch in 0..batches {
        let mut own = Vec::with_capacity(inputs.len());
        for tensor in &inputs {
            let one = part(tensor, 0, batch, 1)?;
            let shape = one.shape()[1..].to_vec();
            own.push(one.reshaped(shape)?.into());
        }

        let len = lengths
            .as_ref()
            .and_then(|lengths| lengths.get(batch))
            .and_then(|len| usize::try_from(*len).ok());
        let outputs = scan_one(call, body, scanned, own, len)?;
        for (position, output) in outputs.into_iter().enumerate() {
            if results.len() <= position {
                results.push(Vec::new());
            }
            call.environment.hold(&output)?;
            results[position].push(output.tensor()?.clone());
        }
    }

    results.iter().map(|tensors| stacked(tensors, 0).map(Value::from)).collect()
}

fn scan_one(
    call: &mut Call<'_>,
    body: &Body,
    scanned: usize,
    mut inputs: Vec<Value>,
    len: Option<usize>,
) -> Result<Vec<Value>> {
    let states = inputs
        .len()
        .checked_sub(scanned)
        .ok_or_else(|| Error::format("there are fewer inputs than scanned"))?;
    let rows: Vec<Tensor> = inputs
        .split_off(states)
        .iter()
        .map(|value| value.tensor().cloned())
        .collect::<Result<_>>()?;
    let setting = |name: &str, position: usize| {
        call.ints(name).and_then(|list| list.get(position).copied()).unwrap_or(0)
    };
    let mut axes = Vec::with_capacity(rows.len());
    for (position, tensor) in rows.iter().enumerate() {
        axes.push(axis(setting("scan_input_axes", position), tensor.rank())?);
    }

    let whole = rows.first().map_or(0, |tensor| tensor.shape()[axes[0]]);

    // The length comes from an input, and may be larger than what is there.
    let len = len.unwrap_or(whole).min(whole);
    let backwards: Vec<_> =
        (0..rows.len()).map(|position| setting("scan_input_directions", position) == 1).collect();
    let collects = body.outputs.len().saturating_sub(states);
    let out: Vec<_> = (0..collects)
        .map(|position| {
            (
                setting("scan_output_axes", position),
                setting("scan_output_directions", position) == 1,
            )
        })
        .collect();
    let mut state = inputs;
    let mut collected = Collected::default();
    for step in 0..len {
        let mut given = std::mem::take(&mut state);
        for (position, tensor) in rows.iter().enumerate() {
            let at = if backwards[position] { len - 1 - step } else { step };
            let row = part(tensor, axes[position], at, 1)?;
            let mut shape = row.shape().to_vec();
            shape.remove(axes[position]);
            given.push(row.reshaped(shape)?.into());
        }
        let mut outputs = call.environment.run_body(body, given)?.into_iter();
        state = outputs.by_ref().take(states).collect();
        collected.add(call, outputs)?;
    }

    for (position, (at, reversed)) in out.into_iter().enumerate() {
        let Some(joined) = collected.stack(call, position, at, reversed)? else { break };
        // What lies past the length of a shorter batch is filled up with zeros.
        state.push(if len < whole { padded(call, &joined, whole)?.into() } else { joined.into() });
    }

    Ok(state)
}

fn padded(call: &Call<'_>, tensor: &Tensor, len: usize) -> Result<Tensor> {
    let mut shape = tensor.shape().to_vec();
    shape[0] = len;
    call.room_like(&shape, tensor)?;
    shape[0] = len
        .checked_sub(tensor.shape()[0])
        .ok_or_else(|| Error::format("an output is longer than the scanned input"))?;
    let zeros = crate::moving::filled_like(tensor, shape)?;
    crate::moving::joined(&[tensor, &zeros], 0)
}

/// Runs a body for every element of a sequence.
fn map(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let body = call.body("body")?;
    let Value::Sequence(first) = call.value(0)?.clone() else {
        return Err(Error::format("a sequence is expected"));
    };
    let mut results: Vec<Vec<Value>> = vec![Vec::new(); body.outputs.len()];
    for (at, element) in first.into_iter().enumerate() {
        let mut inputs = vec![element];
        for position in 1..call.inputs.len() {
            inputs.push(match call.value(position)? {
                Value::Sequence(values) => values
                    .get(at)
                    .cloned()
                    .ok_or_else(|| Error::format("the sequences are not as long"))?,
                other => other.clone(),
            });
        }
        let outputs = call.environment.run_body(body, inputs)?;
        for (result, output) in results.iter_mut().zip(outputs) {
            call.environment.hold(&output)?;
            result.push(output.tensor()?.clone().into());
        }
    }

    Ok(results.into_iter().map(Value::Sequence).collect())
}
