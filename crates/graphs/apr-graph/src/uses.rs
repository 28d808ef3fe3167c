//! Where a tensor of the checkpoint is used.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::{Body, Function, Graph, MAX_DEPTH, Node, Op, ValueId, ValueOrigin};

/// A node that reads a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Use {
    /// Path of the node through calls of functions: `layers.3/attention/query`.
    pub node: String,
    /// Operator of the node.
    pub op: String,
    /// Position of the tensor among the node's inputs, starting at 0.
    pub input: usize,
}

/// The nodes that read a tensor, functions that it is handed to included, at most `most`.
///
/// ```
/// use apr_graph::{ElementType, GraphBuilder, Meaning, uses};
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let x = main.input("x", ElementType::F32, [2.into()], Meaning::Unknown);
/// let w = main.weight("norm.weight", ElementType::F32, [2]);
/// let y = main.scope("norm", |main| main.op("Mul", [x, w]).output("scaled"));
/// main.output("y", y, Meaning::Unknown);
///
/// let found = uses(&graph.finish(), "norm.weight", 10);
/// assert_eq!(
///     (found[0].node.as_str(), found[0].op.as_str(), found[0].input),
///     ("norm/scaled", "Mul", 1)
/// );
/// ```
#[must_use]
pub fn uses(graph: &Graph, tensor: &str, most: usize) -> Vec<Use> {
    let functions = graph.functions.iter().rev().map(|function| (&function.op, function));
    let functions = functions.collect();
    let mut search = Search { functions, most, found: Vec::new(), unused: HashSet::new() };
    let is_it = |id: ValueId| match &graph.body.value(id).origin {
        ValueOrigin::Weight(weight) => weight.tensor == tensor,
        _ => false,
    };
    search.body(&graph.body, "", 0, &is_it);
    search.found
}

struct Search<'g> {
    functions: HashMap<&'g Op, &'g Function>,
    most: usize,
    found: Vec<Use>,
    /// Functions, by address, with the parameters that no node in them reads.
    ///
    /// Functions that each call the next one twice have 2^n paths to the last one.
    unused: HashSet<(*const Function, ValueId)>,
}

impl Search<'_> {
    fn body(&mut self, body: &Body, prefix: &str, depth: usize, is_it: &dyn Fn(ValueId) -> bool) {
        for node in &body.nodes {
            // In a graph that nobody checked, functions may call themselves.
            if self.found.len() >= self.most || depth > MAX_DEPTH {
                return;
            }
            let path = if prefix.is_empty() {
                node.name.clone()
            } else {
                format!("{prefix}/{}", node.name)
            };
            self.node(node, &path, depth, is_it);
        }
    }

    fn node(&mut self, node: &Node, path: &str, depth: usize, is_it: &dyn Fn(ValueId) -> bool) {
        let function = self.functions.get(&node.op).copied();
        for (input, value) in node.inputs.iter().enumerate() {
            if !value.is_some_and(is_it) {
                continue;
            }
            match function.and_then(|function| Some((function, *function.body.inputs.get(input)?)))
            {
                Some((function, parameter)) => {
                    let key = (std::ptr::from_ref(function), parameter);
                    let before = self.found.len();
                    if !self.unused.contains(&key) {
                        self.body(&function.body, path, depth + 1, &|id| id == parameter);
                    }
                    if self.found.len() == before {
                        self.unused.insert(key);
                    }
                }
                None => self.add(path, &node.op, input),
            }
        }

        for inner in node.bodies() {
            let looks_out = |id: ValueId| match inner.value(id).origin {
                ValueOrigin::Outer(outer) => is_it(outer),
                _ => false,
            };
            self.body(inner, path, depth + 1, &looks_out);
        }
    }

    fn add(&mut self, path: &str, op: &Op, input: usize) {
        if self.found.len() < self.most {
            self.found.push(Use { node: path.to_owned(), op: op.to_string(), input });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyBuilder, ElementType, GraphBuilder, Meaning};

    #[test]
    fn a_weight_is_followed_into_the_functions_that_it_is_handed_to() {
        let mut graph = GraphBuilder::new(17);
        let mut block = BodyBuilder::default();
        let (x, w) = (block.parameter("x"), block.parameter("weight"));
        let y = block.scope("attention", |block| block.op("MatMul", [x, w]).output("query"));
        block.output("y", y, Meaning::Unknown);
        let block = graph.function("apr", "Block", block);
        let main = graph.body();
        let mut x = main.input("x", ElementType::F32, [2.into(), 2.into()], Meaning::Unknown);
        for layer in 0..2 {
            let w = main.weight(&format!("w{layer}"), ElementType::F32, [2, 2]);
            x = main.call(&block, [x, w]).output(&format!("layers.{layer}"));
        }
        main.output("y", x, Meaning::Unknown);
        let graph = graph.finish();
        let found = uses(&graph, "w1", 10);
        assert_eq!(
            found,
            [Use { node: "layers.1/attention/query".into(), op: "MatMul".into(), input: 1 }]
        );
        assert!(uses(&graph, "w2", 10).is_empty() && uses(&graph, "w1", 0).is_empty());
    }

    #[test]
    fn functions_that_call_one_another_twice_are_searched_once() {
        let mut graph = GraphBuilder::new(17);
        let mut previous = Op::new("", "Relu");
        for number in 0..60 {
            let mut inner = BodyBuilder::default();
            let x = inner.parameter("x");
            let given = if number == 0 { inner.float(1.0) } else { x };
            let once = inner.call(&previous, [given]).output("once");
            let twice = inner.call(&previous, [given]).output("twice");
            let sum = inner.op("Add", [once, twice]).output("sum");
            inner.output("y", sum, Meaning::Unknown);
            previous = graph.function("local", &format!("f{number}"), inner);
        }
        let body = graph.body();
        let w = body.weight("w", ElementType::F32, [2]);
        let y = body.call(&previous, [w]).output("called");
        body.output("y", y, Meaning::Unknown);
        assert!(uses(&graph.finish(), "w", 10).is_empty());
    }
}
