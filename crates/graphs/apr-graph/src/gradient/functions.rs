//! Gradients of functions: each once for each kind of call.

use std::collections::{HashMap, HashSet};

use super::Intermediates;
use super::backward::{Backward, Kind};
use super::prune::{self, Part};
use super::{forget_type, is_float};
use crate::finding::cut;
use crate::{Body, BodyBuilder, Function, Graph, Inference, Meaning, Node, Op, ValueId};

/// Parts of a call that the gradient requires.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Needs {
    /// For each input, `true` if it depends on a parameter.
    pub(super) active: Vec<bool>,
    /// For each output, `true` if it has a gradient.
    pub(super) seeded: Vec<bool>,
}

/// Functions that compute the gradient of a kind of call.
#[derive(Debug, Clone)]
pub(super) struct Made {
    /// Function that the forward pass calls.
    pub(super) forward: Op,
    /// Number of values that the forward call returns after its outputs.
    pub(super) kept: usize,
    /// Function that the reverse pass calls.
    ///
    /// Its arguments are some of the call's inputs, the kept values, and the gradients of the
    /// outputs that have one.
    pub(super) backward: Op,
    /// Inputs of the call that the function for the reverse pass reads.
    pub(super) inputs: Vec<usize>,
    /// Inputs of the call whose gradients the function for the reverse pass returns.
    pub(super) gives: Vec<usize>,
}

/// Functions of a graph, and the functions for their gradients.
pub(super) struct Functions<'g> {
    graph: &'g Graph,
    inference: &'g Inference,
    intermediates: Intermediates,
    made: HashMap<(usize, Needs), Made>,
    added: Vec<Function>,
    names: HashSet<Op>,
}

impl<'g> Functions<'g> {
    pub(super) fn new(
        graph: &'g Graph,
        inference: &'g Inference,
        intermediates: Intermediates,
    ) -> Self {
        let names = graph.functions.iter().map(|function| function.op.clone()).collect();
        Self { graph, inference, intermediates, made: HashMap::new(), added: Vec::new(), names }
    }

    /// The functions that were made.
    pub(super) fn finish(self) -> Vec<Function> {
        self.added
    }

    pub(super) fn is_call(&self, node: &Node) -> bool {
        self.graph.function(&node.op).is_some()
    }

    /// Returns the number of calls in the bodies of a node.
    pub(super) fn calls_within(&self, node: &Node) -> usize {
        let of_body = |body: &Body| -> usize {
            let of = |node: &Node| usize::from(self.is_call(node)) + self.calls_within(node);
            body.nodes.iter().map(of).sum()
        };
        node.bodies().map(of_body).sum()
    }

    /// The version of a domain's operators.
    pub(super) fn version(&self, domain: &str) -> Option<i64> {
        self.graph.opset(domain)
    }

    /// A node as messages call it.
    pub(super) fn shown(&self, node: &Node) -> String {
        format!("{} (node '{}')", node.op, cut(&node.name))
    }

    /// The gradient of a kind of call.
    pub(super) fn gradient_of(
        &mut self,
        node: &Node,
        call: Option<usize>,
        needs: Needs,
        depth: usize,
    ) -> Result<Made, String> {
        let call = call.ok_or("the types of the call are not known")?;
        if let Some(made) = self.made.get(&(call, needs.clone())) {
            return Ok(made.clone());
        }

        let inference = self.inference;
        let signature = inference.signatures.get(call).ok_or("its types are not known")?;
        let function = self.graph.function(&node.op).ok_or("it is not a function")?;
        if function.opsets.iter().any(|set| self.version(&set.domain) != Some(set.version)) {
            return Err("the function has operators of other versions than the graph".to_owned());
        }
        if function.body.nodes.iter().any(|node| node.bodies().next().is_some()) {
            return Err("the function has branches or loops".to_owned());
        }

        let made =
            self.differentiated(function, &signature.body, &signature.calls, &needs, depth)?;
        self.made.insert((call, needs), made.clone());
        Ok(made)
    }

    fn differentiated(
        &mut self,
        function: &Function,
        body: &Body,
        calls: &[Option<usize>],
        needs: &Needs,
        depth: usize,
    ) -> Result<Made, String> {
        let forward_nodes = body.nodes.len();
        let mut writer = BodyBuilder::continuing(body.clone());
        let mut seeds = Vec::new();
        let mut gradients = Vec::new();
        for (output, seeded) in body.outputs.iter().zip(&needs.seeded) {
            if *seeded {
                let seed = writer.parameter(&format!("{}/gradient", body.value(*output).name));
                // It has the type of what it is the gradient of.
                let kind = body.value(*output).kind.clone();
                writer.set_type(seed, kind);
                seeds.push((*output, seed));
                gradients.push(seed);
            }
        }

        let is_active = |id: &ValueId| is_float(&writer, *id);
        let parameters: Vec<(usize, ValueId)> = body
            .inputs
            .iter()
            .copied()
            .enumerate()
            .filter(|(at, id)| needs.active.get(*at).copied().unwrap_or(false) && is_active(id))
            .collect();
        let ids: Vec<ValueId> = parameters.iter().map(|(_, id)| *id).collect();
        let active = ids.iter().copied().collect();
        let found = Backward::new(&mut writer, self, Kind { calls, depth }, active)
            .run(seeds, &ids)
            .map_err(|error| error.message().to_owned())?;

        let mut gives = Vec::new();
        writer.clear_outputs();
        for ((at, id), gradient) in parameters.into_iter().zip(found) {
            if let Some(gradient) = gradient {
                let name = format!("{}/gradient", body.value(id).name);
                gives.push(at);
                writer.output(&name, gradient, Meaning::Unknown);
            }
        }

        let whole = writer.finish();
        let outputs = whole.outputs.clone();
        let kept = match self.intermediates {
            Intermediates::Kept => prune::read_across(&whole, forward_nodes),
            Intermediates::Recomputed => Vec::new(),
        };

        let forward = if kept.is_empty() {
            function.op.clone()
        } else {
            let outputs = [body.outputs.as_slice(), &kept].concat();
            let part = Part { nodes: 0..forward_nodes, inputs: &body.inputs, outputs: &outputs };
            self.add(function, "kept", part.of(&whole, &[]))
        };

        let nodes = match self.intermediates {
            Intermediates::Kept => forward_nodes..whole.nodes.len(),
            Intermediates::Recomputed => 0..whole.nodes.len(),
        };
        let read = prune::read(&whole, nodes.clone(), &outputs);
        let read_inputs: Vec<usize> =
            (0..body.inputs.len()).filter(|at| read.contains(&body.inputs[*at])).collect();
        let mut inputs: Vec<ValueId> = read_inputs.iter().map(|at| body.inputs[*at]).collect();
        inputs.extend(&kept);
        inputs.extend(&gradients);
        let part = Part { nodes, inputs: &inputs, outputs: &outputs };
        let backward = self.add(function, "gradient", part.of(&whole, &kept));
        Ok(Made { forward, kept: kept.len(), backward, inputs: read_inputs, gives })
    }

    /// Adds a function with the attributes of another one.
    fn add(&mut self, like: &Function, what: &str, mut body: Body) -> Op {
        let name = (1..).map(|number| match number {
            1 => format!("{}_{what}", like.op.name),
            _ => format!("{}_{what}_{number}", like.op.name),
        });
        let ops = name.map(|name| Op::new(&like.op.domain, &name));
        let op = { ops }.find(|op| !self.names.contains(op)).unwrap_or_else(|| like.op.clone());
        self.names.insert(op.clone());
        // Those of the call: what is passed in is of its types.
        for value in &mut body.values {
            forget_type(value);
            value.meaning = Meaning::Unknown;
        }
        body.name = op.name.to_string();
        self.added.push(Function {
            op: op.clone(),
            opsets: like.opsets.clone(),
            required: like.required.clone(),
            defaults: like.defaults.clone(),
            body,
            doc: String::new(),
        });
        op
    }
}
