//! Branches and loops.

use std::collections::HashSet;

use super::engine::{Around, Engine, Made, Scope, bodies_mut, steps};
use super::merge::{either, merge, without_shape};
use crate::finding::cut;
use crate::{Body, Dim, ElementType, Node, Operator, Severity, TensorType, ValueType};

/// A body that carries states from one run to the next.
struct Repeated {
    /// Types of all its inputs at the first run.
    inputs: Vec<ValueType>,
    /// Range of the inputs that are states.
    states: std::ops::Range<usize>,
    first_output: usize,
}

impl Engine<'_> {
    pub(super) fn control(
        &mut self,
        node: &mut Node,
        operator: &'static Operator,
        around: Around<'_>,
        scope: &Scope<'_>,
        prefix: String,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<Made, String> {
        let inner =
            Scope { prefix, opsets: scope.opsets, of_call: scope.of_call, depth: scope.depth + 1 };
        match (operator.domain, operator.name) {
            ("", "If") => self.branches(node, around, &inner, calls),
            ("", "Loop") => self.repeat(node, around, &inner, calls),
            ("", "Scan") => self.scan(node, operator, around, &inner, calls),
            ("", "SequenceMap") => self.sequence_map(node, around, &inner, calls),
            _ => {
                for (name, body) in bodies_mut(node) {
                    self.within(name, body, &[], around, &inner, calls)?;
                }
                Ok(Made::nothing(node))
            }
        }
    }

    /// Infers the types of a body in an attribute, given its input types, and returns its output
    /// types.
    fn within(
        &mut self,
        name: &str,
        body: &mut Body,
        inputs: &[ValueType],
        around: Around<'_>,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<Vec<ValueType>, String> {
        for (id, kind) in body.inputs.clone().into_iter().zip(inputs) {
            let value = body.value_mut(id);
            let said = |message| format!("input '{}' of '{name}': {message}", value.name);
            let merged = merge(&value.kind, kind.clone()).map_err(said)?;
            if let Some(odd) = merged.odd.map(said) {
                self.findings.add(Severity::Warning, scope.prefix.trim_end_matches('/'), odd);
            }
            value.kind = merged.kind;
        }
        let scope = Scope { prefix: format!("{}{}/", scope.prefix, cut(name)), ..*scope };
        self.body(body, Some(around), HashSet::new(), &scope, calls);
        Ok(body.outputs.iter().map(|output| body.value(*output).kind.clone()).collect())
    }

    fn branches(
        &mut self,
        node: &mut Node,
        around: Around<'_>,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<Made, String> {
        let taken = taken(node, around);
        let mut results: Vec<Vec<ValueType>> = Vec::new();
        for (name, body) in bodies_mut(node) {
            let before = self.findings.mark();
            results.push(self.within(name, body, &[], around, scope, calls)?);
            match taken {
                Some(branch) if branch == name => {}
                // A branch that is never taken says nothing.
                Some(_) => self.findings.rewind(before),
                // It may be there for other inputs than these types allow.
                None => self.findings.soften(before),
            }
        }

        let at = taken.and_then(|branch| bodies_mut(node).position(|(name, _)| name == branch));
        if let Some(at) = at {
            return fit(node, results.swap_remove(at));
        }

        let [first, second] = results.as_slice() else { return Ok(Made::nothing(node)) };
        if first.len() != second.len() || first.len() != node.outputs.len() {
            let (first, second, outputs) = (first.len(), second.len(), node.outputs.len());
            return Err(format!(
                "the branches have {first} and {second} outputs, and the node {outputs}"
            ));
        }

        let kinds =
            first.iter().zip(second).map(|(a, b)| either(a, b)).collect::<Result<_, _>>()?;
        Ok(Made::of(kinds))
    }

    /// Infers the types of a body repeatedly until the types of its states no longer change.
    ///
    /// Returns the types of the outputs and of the states.
    fn repeated(
        &mut self,
        (name, body): (&str, &mut Body),
        repeated: Repeated,
        around: Around<'_>,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<(Vec<ValueType>, Vec<ValueType>), String> {
        let Repeated { mut inputs, states, first_output } = repeated;
        let marks = (self.findings.mark(), calls.len());

        // Without states, one pass is enough.
        let before = if states.is_empty() { None } else { self.copy(body) };
        // Without a second pass, nothing may depend on what shape a state begins with.
        if before.is_none() {
            inputs[states.clone()].iter_mut().for_each(|state| *state = without_shape(state));
        }

        for pass in 0..3 {
            let outputs = self.within(name, body, &inputs, around, scope, calls)?;
            let ends = outputs.get(first_output..first_output + states.len());
            let ends = ends.ok_or_else(|| {
                format!("'{name}' has {} outputs, which are too few", outputs.len())
            })?;
            let pairs = inputs[states.clone()].iter().zip(ends);
            let mut joined = pairs.map(|(a, b)| either(a, b)).collect::<Result<Vec<_>, _>>()?;
            let stays = joined == inputs[states.clone()];
            let Some(before) = before.as_ref().filter(|_| !stays && pass < 2) else {
                return Ok((outputs, joined));
            };
            // What still grows is given up, so that the third pass is the last.
            if pass == 1 {
                joined.iter_mut().for_each(|state| *state = without_shape(state));
            }

            // The next pass starts from the body as it was, and says everything again.
            inputs[states.clone()].clone_from_slice(&joined);
            body.clone_from(before);
            self.findings.rewind(marks.0);
            calls.truncate(marks.1);
        }

        Err("the types of its states do not converge".to_owned())
    }

    /// The body as it was, while there is work left for following it again.
    fn copy(&mut self, body: &Body) -> Option<Body> {
        let cost = steps(body).saturating_mul(2);
        (self.left > cost).then(|| {
            self.left -= cost;
            body.clone()
        })
    }

    fn repeat(
        &mut self,
        node: &mut Node,
        around: Around<'_>,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<Made, String> {
        // Loop hands its body the number of the run and the condition in front of the states.
        let mut inputs =
            vec![ValueType::tensor(ElementType::I64, []), ValueType::tensor(ElementType::Bool, [])];
        inputs.extend(kinds(node, 2, around));
        let states = inputs.len() - 2;
        let Some(named) = only_body(node) else { return Ok(Made::nothing(node)) };
        let states_at = 2..2 + states;
        loosen_first(named.1, &mut inputs[..2]);

        // The body's first output is the condition.
        let repeated = Repeated { inputs, states: states_at, first_output: 1 };
        let (outputs, mut kinds) = self.repeated(named, repeated, around, scope, calls)?;
        kinds.extend(outputs.iter().skip(1 + states).map(|kind| stacked(kind, 0, Dim::Unknown)));
        fit(node, kinds)
    }

    fn scan(
        &mut self,
        node: &mut Node,
        operator: &'static Operator,
        around: Around<'_>,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<Made, String> {
        // Version 8 has the lengths of sequences in front, and a batch around everything.
        let old = operator.since < 9;
        let all = kinds(node, usize::from(old), around);
        let scanned =
            usize::try_from(node.int("num_scan_inputs").unwrap_or(0)).unwrap_or(usize::MAX);
        let states =
            all.len().checked_sub(scanned).ok_or("it has fewer inputs than 'num_scan_inputs'")?;
        let axes_in = node.ints("scan_input_axes").map(<[i64]>::to_vec).unwrap_or_default();
        let axes_out = node.ints("scan_output_axes").map(<[i64]>::to_vec).unwrap_or_default();
        let mut steps = Dim::Unknown;
        let mut inputs = Vec::with_capacity(all.len());
        for (position, kind) in all.iter().enumerate() {
            inputs.push(match (position.checked_sub(states), old) {
                (None, false) => kind.clone(),
                (None, true) => sliced(kind, 0)?.0,
                (Some(_), true) => sliced(&sliced(kind, 0)?.0, 0).map(|(kind, size)| {
                    steps = size;
                    kind
                })?,
                (Some(place), false) => {
                    let (kind, size) = sliced(kind, axes_in.get(place).copied().unwrap_or(0))?;
                    steps = crate::operators::same(&steps, &size)?;
                    kind
                }
            });
        }

        let Some(named) = only_body(node) else { return Ok(Made::nothing(node)) };
        let repeated = Repeated { inputs, states: 0..states, first_output: 0 };
        let (outputs, mut kinds) = self.repeated(named, repeated, around, scope, calls)?;
        let scans = outputs.iter().skip(states).enumerate();
        kinds.extend(scans.map(|(place, kind)| {
            stacked(kind, axes_out.get(place).copied().unwrap_or(0), steps.clone())
        }));
        if old {
            let batch = all.first().map_or(Dim::Unknown, |kind| {
                sliced(kind, 0).map_or(Dim::Unknown, |(_, size)| size)
            });
            kinds = kinds.iter().map(|kind| stacked(kind, 0, batch.clone())).collect();
        }

        fit(node, kinds)
    }

    fn sequence_map(
        &mut self,
        node: &mut Node,
        around: Around<'_>,
        scope: &Scope<'_>,
        calls: &mut Vec<Option<usize>>,
    ) -> Result<Made, String> {
        let inputs: Vec<_> = kinds(node, 0, around)
            .into_iter()
            .map(|kind| match kind {
                ValueType::Sequence(inner) => *inner,
                other => other,
            })
            .collect();
        let Some((name, body)) = only_body(node) else { return Ok(Made::nothing(node)) };
        let outputs = self.within(name, body, &inputs, around, scope, calls)?;
        fit(node, outputs.into_iter().map(|kind| ValueType::Sequence(Box::new(kind))).collect())
    }
}

/// Returns the branch that is always taken, if the condition is known.
fn taken(node: &Node, around: Around<'_>) -> Option<&'static str> {
    let known = around.input(node.input(0)?)?.known?.dims()?.first()?.as_integer()?;
    Some(if known == 0 { "else_branch" } else { "then_branch" })
}

/// Types of a node's inputs from a position on.
fn kinds(node: &Node, from: usize, around: Around<'_>) -> Vec<ValueType> {
    let kind = |input: &Option<crate::ValueId>| {
        input.and_then(|id| around.input(id)).map_or(ValueType::Unknown, |input| input.kind.clone())
    };
    node.inputs.iter().skip(from).map(kind).collect()
}

fn only_body(node: &mut Node) -> Option<(&str, &mut Body)> {
    bodies_mut(node).next()
}

/// Adjusts the types of the first two inputs: the iteration number and the condition may be
/// declared as `[1]` or as scalars.
fn loosen_first(body: &Body, inputs: &mut [ValueType]) {
    for (id, kind) in body.inputs.iter().zip(inputs) {
        if body.value(*id).shape().is_some_and(|shape| !shape.is_empty()) {
            *kind = without_shape(kind);
        }
    }
}

/// A tensor without a dimension, and the size of that dimension.
fn sliced(kind: &ValueType, along: i64) -> Result<(ValueType, Dim), String> {
    let ValueType::Tensor(tensor) = kind else { return Ok((kind.clone(), Dim::Unknown)) };
    let Some(shape) = &tensor.shape else { return Ok((kind.clone(), Dim::Unknown)) };
    let along = crate::operators::axis(along, shape.len())?;
    let mut shape = shape.clone();
    let size = shape.remove(along);
    Ok((ValueType::Tensor(TensorType { element: tensor.element, shape: Some(shape) }), size))
}

/// Tensors under a new dimension.
fn stacked(kind: &ValueType, along: i64, size: Dim) -> ValueType {
    let ValueType::Tensor(tensor) = kind else { return kind.clone() };
    let shape = tensor.shape.as_ref().and_then(|shape| {
        let mut shape = shape.clone();
        let along = crate::operators::axis(along, shape.len() + 1).ok()?;
        shape.insert(along, size);
        Some(shape)
    });
    ValueType::Tensor(TensorType { element: tensor.element, shape })
}

/// Truncates or extends the list of types to the number of the node's outputs.
fn fit(node: &Node, mut kinds: Vec<ValueType>) -> Result<Made, String> {
    if kinds.len() < node.outputs.len() {
        return Err(format!(
            "its body returns {} values, but the node has {} outputs",
            kinds.len(),
            node.outputs.len()
        ));
    }
    kinds.truncate(node.outputs.len());
    Ok(Made::of(kinds))
}
