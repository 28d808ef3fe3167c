//! `Scan` as a loop: states that go from one step to the next, and a row of outputs.

use apr_core::{Error, Result};
use apr_graph::{AttributeValue, Body, Node};

use crate::emit::{Emitter, unknown};
use crate::method;

/// The layout of a scan: its states, and the axes of its inputs and outputs.
struct ScanLayout {
    states: usize,
    /// Axis of each input that is scanned.
    input_axes: Vec<i64>,
    /// Axis of each output that is put together.
    output_axes: Vec<i64>,
}

impl ScanLayout {
    fn of(node: &Node, body: &Body) -> Result<Self> {
        let scanned = node.int("num_scan_inputs").and_then(|count| usize::try_from(count).ok());
        let scanned = scanned.filter(|count| (1..=node.inputs.len()).contains(count));
        let scanned = scanned.ok_or_else(|| Error::format("missing number of scan inputs"))?;
        let states = node.inputs.len() - scanned;
        let outputs = body.outputs.len().checked_sub(states);
        let outputs = outputs.ok_or_else(|| Error::format("its body returns fewer states"))?;
        if body.inputs.len() != node.inputs.len() || node.outputs.len() != body.outputs.len() {
            return Err(Error::format("its body takes or returns another number of values"));
        }

        let is_backwards = ["scan_input_directions", "scan_output_directions"]
            .iter()
            .any(|name| node.ints(name).is_some_and(|all| all.iter().any(|way| *way != 0)));
        if is_backwards {
            return Err(Error::version("scanning from the end is not written"));
        }
        let axes = |name: &str, count| match node.ints(name) {
            Some(axes) if axes.len() == count => Ok(axes.to_vec()),
            Some(_) => Err(Error::format(format!("{name} has not one axis for each"))),
            None => Ok(vec![0; count]),
        };
        Ok(Self {
            states,
            input_axes: axes("scan_input_axes", scanned)?,
            output_axes: axes("scan_output_axes", outputs)?,
        })
    }
}

/// Writes the loop.
pub(crate) fn scan(emitter: &mut Emitter<'_>, node: &Node) -> Result<()> {
    let Some(AttributeValue::Body(body)) = node.attribute("body") else { return Err(unknown()) };
    let layout = ScanLayout::of(node, body)?;
    let mut inputs = Vec::new();
    for position in 0..node.inputs.len() {
        let value = emitter.input(node, position)?;
        inputs.push(emitter.tensor(value)?);
    }
    let (first, scanned) = inputs.split_at(layout.states);

    let states: Vec<String> = first.iter().map(|first| emitter.variable("state", first)).collect();
    let rows: Vec<String> = layout
        .output_axes
        .iter()
        .map(|_| emitter.variable("rows", "annotate(List[Tensor], [])"))
        .collect();
    let length = format!("torch.size({}, {})", scanned[0], layout.input_axes[0]);
    let step = emitter.name("step");
    emitter.line(&format!("for {step} in range({length}):"));

    emitter.within(body, |inner| {
        for (input, state) in body.inputs.iter().zip(&states) {
            inner.bind(*input, state);
        }
        let of_step = body.inputs[layout.states..].iter().zip(scanned).zip(&layout.input_axes);
        for ((input, tensor), axis) in of_step {
            let name = &body.value(*input).name;
            let selected = inner.variable(name, &format!("torch.select({tensor}, {axis}, {step})"));
            inner.bind(*input, &selected);
        }
        for node in &body.nodes {
            method::node(inner, node)?;
        }

        // All outputs are read before a state changes, since one may be another's next value.
        let mut made = Vec::new();
        for output in &body.outputs {
            let expression = inner.tensor(*output)?;
            made.push(inner.variable(&body.value(*output).name, &expression));
        }
        let (next, outputs) = made.split_at(layout.states);
        for (state, next) in states.iter().zip(next) {
            inner.line(&format!("{state} = {next}"));
        }
        for (rows, output) in rows.iter().zip(outputs) {
            let unused = inner.name("appended");
            inner.line(&format!("{unused} = torch.append({rows}, {output})"));
        }
        Ok(())
    })?;

    let stacked = rows
        .iter()
        .zip(&layout.output_axes)
        .map(|(rows, axis)| format!("torch.stack({rows}, {axis})"))
        .collect::<Vec<_>>();
    let results = states.into_iter().chain(stacked);
    for (output, expression) in node.outputs.iter().zip(results) {
        if let Some(output) = output {
            emitter.define(*output, &expression);
        }
    }
    Ok(())
}
