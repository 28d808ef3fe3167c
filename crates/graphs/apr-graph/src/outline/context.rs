//! A body, with what is asked of it often.

use std::collections::{HashMap, HashSet};

use super::operand::Operands;
use super::scene::{Port, WeightUse, shown};
use crate::{Body, Dim, Node, Value, ValueId, ValueOrigin};

/// Argument of a function call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Argument {
    /// A value that flows.
    Flows,
    /// A weight with that many elements and this type, or a constant.
    Fixed { elements: u64, kind: Option<String> },
}

/// Body with lookup tables.
pub(super) struct Context<'a> {
    pub(super) body: &'a Body,
    /// The nodes that read a value.
    readers: Vec<Vec<u32>>,
    /// Parameters of a function that are weights or constants, and values that nodes compute only
    /// from weights and constants.
    fixed: HashMap<ValueId, Argument>,
    /// The tensor that such a value is made of.
    tensors: HashMap<ValueId, &'a str>,
    outputs: HashSet<ValueId>,
}

/// Inputs and outputs of one repetition of an item, in the order of its ports.
pub(super) struct Flow {
    pub(super) inputs: Vec<Option<ValueId>>,
    pub(super) outputs: Vec<Option<ValueId>>,
}

impl<'a> Context<'a> {
    pub(super) fn new(body: &'a Body, fixed: HashMap<ValueId, Argument>) -> Self {
        let mut readers = vec![Vec::new(); body.values.len()];
        for (position, node) in (0_u32..).zip(&body.nodes) {
            for value in reads(node) {
                readers[value.0 as usize].push(position);
            }
        }
        let outputs = body.outputs.iter().copied().collect();
        let mut context = Self { body, readers, fixed, tensors: HashMap::new(), outputs };
        body.nodes.iter().for_each(|node| context.fix(node));
        context
    }

    /// Notes what a node makes of weights and constants alone, such as a cast of a weight: it is
    /// looked at as a weight.
    fn fix(&mut self, node: &'a Node) {
        // Random numbers are others in each run.
        let draws = node.op.name.starts_with("Random");
        // What leaves the body needs a node that is shown.
        let leaves = node.outputs.iter().flatten().any(|output| self.outputs.contains(output));
        if draws
            || leaves
            || node.bodies().next().is_some()
            || reads(node).any(|value| self.flows(value))
        {
            return;
        }
        let elements =
            reads(node).fold(0_u64, |sum, value| sum.saturating_add(self.elements(value)));
        let constant = node.constant_weight();
        let tensor = match constant {
            Some(weight) => Some(weight.tensor.as_str()),
            None => reads(node).find_map(|value| self.tensor(value)),
        };
        for &output in node.outputs.iter().flatten() {
            let elements = constant.map_or(elements, |_| count(self.body.value(output)));
            let kind = shown(self.body.value(output).tensor());
            self.fixed.insert(output, Argument::Fixed { elements, kind });
            self.tensors.extend(tensor.map(|tensor| (output, tensor)));
        }
    }

    /// The tensor that a value is, or is made of.
    fn tensor(&self, id: ValueId) -> Option<&'a str> {
        match &self.body.value(id).origin {
            ValueOrigin::Weight(weight) => Some(&weight.tensor),
            _ => self.tensors.get(&id).copied(),
        }
    }

    /// The weights that a node reads, as its inputs and in its branches.
    pub(super) fn weights(&self, node: &Node, operands: &Operands<'_>) -> Vec<WeightUse> {
        let names = (0..node.inputs.len()).filter(|input| node.inputs[*input].is_some());
        let names = names.map(|input| operands.input(input)).chain(std::iter::repeat(None));
        let weights = reads(node).zip(names).filter(|(value, _)| self.is_weight(*value));
        let weight = |(value, operand)| WeightUse {
            operand,
            tensor: self.tensor(value).unwrap_or(&self.body.value(value).name).to_owned(),
            kind: self.kind(value),
        };
        weights.map(weight).collect()
    }

    /// Returns the nodes that are shown; nodes that compute only constants are not.
    pub(super) fn nodes(&self) -> Vec<usize> {
        let is_shown = |node: &Node| {
            node.outputs.is_empty()
                || node.outputs.iter().flatten().any(|output| !self.fixed.contains_key(output))
        };
        (0..self.body.nodes.len()).filter(|node| is_shown(&self.body.nodes[*node])).collect()
    }

    /// Returns `true` if a value is data that flows, not a weight or constant.
    pub(super) fn flows(&self, id: ValueId) -> bool {
        match self.body.value(id).origin {
            ValueOrigin::Weight(_) | ValueOrigin::Constant(_) | ValueOrigin::Missing => false,
            ValueOrigin::Input | ValueOrigin::Outer(_) | ValueOrigin::Node(_) => {
                !self.fixed.contains_key(&id)
            }
        }
    }

    /// Returns the number of elements of a weight, or 0 for other values.
    pub(super) fn elements(&self, id: ValueId) -> u64 {
        let value = self.body.value(id);
        match (&value.origin, self.fixed.get(&id)) {
            (_, Some(Argument::Fixed { elements, .. })) => *elements,
            (ValueOrigin::Weight(_), _) => count(value),
            _ => 0,
        }
    }

    /// Returns `true` if a value is a weight, or a parameter for which a weight is passed.
    pub(super) fn is_weight(&self, id: ValueId) -> bool {
        matches!(self.body.value(id).origin, ValueOrigin::Weight(_)) || self.elements(id) > 0
    }

    pub(super) fn kind(&self, id: ValueId) -> Option<String> {
        match self.fixed.get(&id) {
            Some(Argument::Fixed { kind, .. }) => kind.clone(),
            _ => shown(self.body.value(id).tensor()),
        }
    }

    pub(super) fn port(&self, id: ValueId) -> Port {
        Port { name: self.body.value(id).name.clone(), kind: self.kind(id) }
    }

    /// Returns the inputs and outputs of a set of nodes.
    pub(super) fn flow(&self, nodes: &[usize]) -> Flow {
        let within: HashSet<usize> = nodes.iter().copied().collect();
        let (mut inputs, mut outputs, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for &position in nodes {
            let node = &self.body.nodes[position];
            for value in reads(node).filter(|value| self.flows(*value)) {
                let made = match self.body.value(value).origin {
                    ValueOrigin::Node(maker) => within.contains(&(maker.0 as usize)),
                    _ => false,
                };
                if !made && seen.insert(value) {
                    inputs.push(Some(value));
                }
            }

            for &value in node.outputs.iter().flatten() {
                let leaves = |reader: &u32| !within.contains(&(*reader as usize));
                if self.outputs.contains(&value)
                    || self.readers[value.0 as usize].iter().any(leaves)
                {
                    outputs.push(Some(value));
                }
            }
        }

        Flow { inputs, outputs }
    }

    pub(super) fn parameters(&self, nodes: &[usize]) -> u64 {
        let weights: HashSet<ValueId> =
            nodes.iter().flat_map(|node| reads(&self.body.nodes[*node])).collect();
        weights.into_iter().fold(0, |sum, weight| sum.saturating_add(self.elements(weight)))
    }
}

/// Returns the values that a node reads, including outer values that its branches use.
pub(super) fn reads(node: &Node) -> impl Iterator<Item = ValueId> {
    let around =
        node.bodies().flat_map(|body| &body.values).filter_map(|value| match value.origin {
            ValueOrigin::Outer(id) => Some(id),
            _ => None,
        });
    node.inputs.iter().copied().flatten().chain(around)
}

/// Returns the number of elements of a tensor, or 0 for an unknown shape.
fn count(value: &Value) -> u64 {
    let sizes = value.shape().into_iter().flatten().map(Dim::size);
    sizes.into_iter().try_fold(1_u64, |product, size| product.checked_mul(size?)).unwrap_or(0)
}
