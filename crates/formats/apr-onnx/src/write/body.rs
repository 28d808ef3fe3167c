//! Graphs, and the names of their values.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use apr_core::{Error, Result, UniqueNames};
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, Graph, Name, Node, Op, Value, ValueId, ValueOrigin,
    ValueType,
};

use super::message::Message;
use super::node::{code, node};
use super::types::{tensor, value_info};
use super::weights::Weights;

/// Maximum nesting of graphs.
///
/// Protobuf's libraries stop at a hundred nested messages, and a graph takes three.
const MAX_DEPTH: usize = 100;

/// The state for encoding a model.
pub(crate) struct Encoder<'a, 'w> {
    pub(crate) weights: &'w mut Weights<'a>,
    /// Types of attributes of calls, as the calls and defaults show them.
    kinds: HashMap<Name, i64>,
}

/// The names of a body's values in the file, and the scope of the enclosing body.
pub(crate) struct Scope<'a> {
    names: Vec<Cow<'a, str>>,
    taken: UniqueNames,
    outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    /// Names of a body within another. A name that the body around has already gets a number, since
    /// ONNX has no shadowing.
    pub(crate) fn new(body: &'a Body, outer: Option<&'a Self>) -> Result<Self> {
        if outer.map_or(0, Self::depth) >= MAX_DEPTH {
            return Err(Error::memory(format!("graphs are nested more than {MAX_DEPTH} deep")));
        }

        let mut scope = Self {
            names: Vec::with_capacity(body.values.len()),
            taken: UniqueNames::of_values(),
            outer,
        };
        for value in &body.values {
            let name = match (&value.origin, outer) {
                // ONNX knows values of the graph around by their name alone.
                (ValueOrigin::Outer(of), Some(outer)) => Cow::Borrowed(outer.name(*of)),
                (_, outer) => {
                    let is_taken = |name: &str| outer.is_some_and(|outer| outer.has(name));
                    let name = if value.name.is_empty() { "value" } else { &value.name };
                    match scope.taken.unique_beside(name, is_taken) {
                        own if own == name => Cow::Borrowed(name),
                        numbered => Cow::Owned(numbered),
                    }
                }
            };
            scope.names.push(name);
        }

        Ok(scope)
    }

    /// Returns the name of a value.
    pub(crate) fn name(&self, value: ValueId) -> &str {
        self.names.get(value.0 as usize).map_or("", |name| name)
    }

    fn has(&self, name: &str) -> bool {
        self.taken.contains(name) || self.outer.is_some_and(|outer| outer.has(name))
    }

    fn depth(&self) -> usize {
        1 + self.outer.map_or(0, Self::depth)
    }
}

impl<'a, 'w> Encoder<'a, 'w> {
    pub(crate) fn new(graph: &Graph, weights: &'w mut Weights<'a>) -> Self {
        let mut kinds = HashMap::new();
        let defaults = graph.functions.iter().flat_map(|function| &function.defaults);
        let bodies = graph.functions.iter().map(|function| &function.body).chain([&graph.body]);
        let calls =
            bodies.flat_map(|body| &body.nodes).filter(|node| graph.function(&node.op).is_some());
        for attribute in defaults.chain(calls.flat_map(|node| &node.attributes)) {
            kinds.insert(attribute.name.clone(), code(&attribute.value));
        }
        Self { weights, kinds }
    }

    /// Returns the type of an attribute of calls, or 0 if no call has it.
    pub(crate) fn kind_of_call(&self, name: &Name) -> i64 {
        self.kinds.get(name).copied().unwrap_or_default()
    }

    /// Encodes a body as a `GraphProto`.
    pub(crate) fn graph(&mut self, body: &Body, outer: Option<&Scope<'_>>) -> Result<Message> {
        let scope = Scope::new(body, outer)?;
        let mut message = Message::default();
        for each in &body.nodes {
            message.message(1, node(self, each, &scope)?);
        }

        let unnamed = if outer.is_some() { "body" } else { "main" };
        message.text(2, if body.name.is_empty() { unnamed } else { &body.name });
        for (value, name) in body.values.iter().zip(&scope.names) {
            match &value.origin {
                ValueOrigin::Weight(weight) => {
                    message.message(5, self.weights.tensor(weight, &value.kind, name)?);
                }
                ValueOrigin::Constant(constant) => message.message(5, tensor(constant, name)),
                _ => {}
            }
        }

        message.some_text(10, &body.doc);
        for (field, ends) in [(11, &body.inputs), (12, &body.outputs)] {
            for &id in ends {
                message.message(field, value_info(scope.name(id), &body.value(id).kind));
            }
        }

        for id in between(body) {
            message.message(13, value_info(scope.name(id), &body.value(id).kind));
        }

        Ok(message)
    }

    /// Encodes the nodes of a function.
    ///
    /// Its constants become nodes, because a function has no initializers.
    pub(crate) fn function_nodes(
        &mut self,
        body: &Body,
        scope: &Scope<'_>,
        message: &mut Message,
    ) -> Result<()> {
        for (position, value) in (0..).zip(&body.values) {
            match &value.origin {
                ValueOrigin::Constant(constant) => {
                    let made = constant_node(value, ValueId(position), constant);
                    message.message(7, node(self, &made, scope)?);
                }
                ValueOrigin::Weight(weight) => {
                    let message = format!(
                        "function '{}' contains a weight, which ONNX does not allow",
                        body.name
                    );
                    return Err(Error::format(message).for_tensor(&weight.tensor));
                }
                _ => {}
            }
        }

        for each in &body.nodes {
            message.message(7, node(self, each, scope)?);
        }

        Ok(())
    }
}

fn constant_node(value: &Value, id: ValueId, constant: &Constant) -> Node {
    let attribute =
        Attribute { name: "value".into(), value: AttributeValue::Tensor(constant.clone()) };
    Node {
        name: value.name.clone(),
        op: Op::onnx("Constant"),
        inputs: Vec::new(),
        outputs: vec![Some(id)],
        attributes: vec![attribute],
        doc: String::new(),
    }
}

/// Values between the nodes whose types are known.
fn between(body: &Body) -> impl Iterator<Item = ValueId> {
    // Outputs have their types in the list of outputs.
    let outputs: HashSet<ValueId> = body.outputs.iter().copied().collect();
    let values = (0..).map(ValueId).zip(&body.values);
    values.filter_map(move |(id, value)| {
        let is_made =
            matches!(value.origin, ValueOrigin::Node(_)) && value.kind != ValueType::Unknown;
        (is_made && !outputs.contains(&id)).then_some(id)
    })
}
