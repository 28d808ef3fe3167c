//! The way back through a body.

use std::collections::{HashMap, HashSet};

use apr_core::{Error, Result};

use super::functions::{Functions, Needs};
use super::is_float;
use super::step::Step;
use crate::operators::gradient_rule;
use crate::{BodyBuilder, ElementType, MAX_DEPTH, Node, NodeId, Operator, ValueId};

/// Context of a body that is differentiated.
#[derive(Clone, Copy)]
pub(super) struct Kind<'a> {
    /// For each call in it, which kind of call it is ([`crate::Inference::calls`]).
    pub(super) calls: &'a [Option<usize>],
    /// Number of calls around the body.
    pub(super) depth: usize,
}

/// Reverse pass over the nodes of a body, from the last to the first.
pub(super) struct Backward<'b, 'f, 'g> {
    writer: &'b mut BodyBuilder,
    functions: &'f mut Functions<'g>,
    kind: Kind<'b>,
    /// Values that depend on a parameter.
    active: HashSet<ValueId>,
    /// Gradients of values, one for each use.
    found: HashMap<ValueId, Vec<ValueId>>,
}

impl<'b, 'f, 'g> Backward<'b, 'f, 'g> {
    /// `active` are the parameters.
    pub(super) fn new(
        writer: &'b mut BodyBuilder,
        functions: &'f mut Functions<'g>,
        kind: Kind<'b>,
        active: HashSet<ValueId>,
    ) -> Self {
        Self { writer, functions, kind, active, found: HashMap::new() }
    }

    /// Computes the gradients of the parameters from the gradients of the outputs.
    ///
    /// The entry is `None` for parameters that no output depends on.
    pub(super) fn run(
        mut self,
        seeds: Vec<(ValueId, ValueId)>,
        parameters: &[ValueId],
    ) -> Result<Vec<Option<ValueId>>> {
        let nodes = self.writer.body().nodes.len();
        let calls = self.spread();
        for (output, seed) in seeds {
            self.found.entry(output).or_default().push(seed);
        }

        for position in (0..nodes).rev() {
            let node = self.writer.body().nodes[position].clone();
            let path = self.functions.shown(&node);
            self.step(position, &node, calls[position])
                .map_err(|why| Error::version(format!("no gradient through {path}: {why}")))?;
        }

        let total = |parameter: &ValueId| {
            let name = self.writer.body().value(*parameter).name.clone();
            self.total(*parameter, &name)
        };
        Ok(parameters.iter().map(total).collect())
    }

    /// Marks what depends on parameters, and finds the kind of call of each node that is one.
    fn spread(&mut self) -> Vec<Option<usize>> {
        let mut calls = Vec::new();
        let mut next = 0;
        for node in &self.writer.body().nodes {
            let is_call = self.functions.is_call(node);
            calls.push(if is_call { self.kind.calls.get(next).copied().flatten() } else { None });
            next += usize::from(is_call) + self.functions.calls_within(node);
            let is_reached = node.inputs.iter().flatten().any(|id| self.active.contains(id));
            if is_reached && !ENDS.contains(&&*node.op.name) {
                let outputs = node.outputs.iter().flatten().copied();
                self.active.extend(outputs.filter(|id| is_float(self.writer, *id)));
            }
        }
        calls
    }

    /// The sum of the gradients of a value's uses.
    fn total(&mut self, id: ValueId, name: &str) -> Option<ValueId> {
        let mut parts = self.found.remove(&id)?.into_iter();
        let first = parts.next()?;
        Some(parts.fold(first, |sum, part| {
            let add = |writer: &mut BodyBuilder| writer.op("Add", [sum, part]).output("sum");
            self.writer.scope(&format!("{name}/gradient"), add)
        }))
    }

    fn step(
        &mut self,
        position: usize,
        node: &Node,
        call: Option<usize>,
    ) -> std::result::Result<(), String> {
        let has_gradient = |id: &Option<ValueId>| id.is_some_and(|id| self.found.contains_key(&id));
        let active: Vec<bool> = node
            .inputs
            .iter()
            .map(|id| id.is_some_and(|id| self.active.contains(&id) && is_float(self.writer, id)))
            .collect();
        if !node.outputs.iter().any(has_gradient) || !active.contains(&true) {
            return Ok(());
        }

        self.singles(node, &active)?;
        let gradients: Vec<Option<ValueId>> =
            node.outputs.iter().map(|id| id.and_then(|id| self.total(id, &node.name))).collect();
        let given = if self.functions.is_call(node) {
            self.called(position, node, call, &active, &gradients)?
        } else {
            self.operated(node, active, gradients)?
        };

        for (input, gradient) in node.inputs.iter().zip(given) {
            if let (Some(input), Some(gradient)) = (input, gradient) {
                self.found.entry(*input).or_default().push(gradient);
            }
        }
        Ok(())
    }

    /// Refuses what is not in single precision: constants of rules are.
    fn singles(&self, node: &Node, active: &[bool]) -> std::result::Result<(), String> {
        let inputs = node.inputs.iter().zip(active).filter(|(_, active)| **active);
        for id in inputs.filter_map(|(id, _)| *id) {
            let value = self.writer.body().value(id);
            match value.element() {
                Some(ElementType::F32) => {}
                Some(other) if &*node.op.name != "Cast" => {
                    return Err(format!("'{}' is {other}, not f32", value.name));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn operated(
        &mut self,
        node: &Node,
        active: Vec<bool>,
        gradients: Vec<Option<ValueId>>,
    ) -> std::result::Result<Vec<Option<ValueId>>, String> {
        let version = self.functions.version(&node.op.domain);
        let operator = version.and_then(|version| Operator::of(&node.op, version));
        let operator = operator.ok_or("it is not a known operator")?;
        let rule = gradient_rule(operator).ok_or("its gradient is not supported")?;
        let given = vec![None; node.inputs.len()];
        self.writer.scope(&format!("{}/gradient", node.name), |writer| {
            let mut step = Step { writer, node, operator, active, gradients, given };
            rule(&mut step)?;
            Ok(step.given)
        })
    }

    /// Calls the gradient of a function.
    fn called(
        &mut self,
        position: usize,
        node: &Node,
        call: Option<usize>,
        active: &[bool],
        gradients: &[Option<ValueId>],
    ) -> std::result::Result<Vec<Option<ValueId>>, String> {
        if self.kind.depth == MAX_DEPTH {
            return Err("functions are nested too deep".to_owned());
        }

        let seeded = gradients.iter().map(Option::is_some).collect();
        let needs = Needs { active: active.to_vec(), seeded };
        let made = self.functions.gradient_of(node, call, needs, self.kind.depth + 1)?;

        // The forward call hands out what the gradient reads.
        let mut kept = Vec::new();
        for number in 0..made.kept {
            let name = format!("{}:kept{number}", node.name);
            kept.push(self.writer.add_output(NodeId(u32::try_from(position).unwrap_or(0)), &name));
        }
        self.writer.set_op(NodeId(u32::try_from(position).unwrap_or(0)), &made.forward);

        let mut inputs: Vec<Option<ValueId>> =
            made.inputs.iter().map(|at| node.input(*at)).collect();
        inputs.extend(kept.into_iter().map(Some));
        inputs.extend(gradients.iter().flatten().copied().map(Some));
        let outputs = self.writer.scope(&node.name, |writer| {
            writer.call_with(&made.backward, inputs, &node.attributes, made.gives.len(), "gradient")
        });

        let mut given = vec![None; node.inputs.len()];
        for (at, output) in made.gives.iter().zip(outputs) {
            given[*at] = Some(output);
        }
        Ok(given)
    }
}

/// Operators whose outputs return the size of a value or are constant around each value.
const ENDS: &[&str] = &["Ceil", "ConstantOfShape", "Floor", "Round", "Shape", "Sign", "Size"];
