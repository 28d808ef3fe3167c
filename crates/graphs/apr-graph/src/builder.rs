//! Graphs that a program writes: scopes name the nodes, functions are written once.

use std::collections::HashMap;

use crate::{
    Attribute, AttributeValue, Body, Constant, Dim, ElementType, Function, Graph, Meaning, Node,
    NodeId, Op, Opset, ValueId, ValueOrigin, ValueType, View, WeightRef,
};
use apr_core::UniqueNames;

/// A graph being written. See the crate's page for an example.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    main: BodyBuilder,
}

impl GraphBuilder {
    /// An empty graph of the operators of this version of ONNX.
    #[must_use]
    pub fn new(opset: i64) -> Self {
        let opsets = vec![Opset { domain: "".into(), version: opset }];
        Self { graph: Graph { opsets, ..Graph::default() }, main: BodyBuilder::default() }
    }

    /// Returns the builder of the main body.
    pub fn body(&mut self) -> &mut BodyBuilder {
        &mut self.main
    }

    /// States the version of another domain's operators, once.
    pub fn opset(&mut self, domain: &str, version: i64) {
        if self.graph.opset(domain).is_none() {
            self.graph.opsets.push(Opset { domain: domain.into(), version });
        }
    }

    /// Adds a function and returns the operator with which nodes call it.
    ///
    /// The `body` declares the function's inputs with [`BodyBuilder::parameter`].
    pub fn function(&mut self, domain: &str, name: &str, body: BodyBuilder) -> Op {
        let op = Op::new(domain, name);
        self.opset(domain, 1);
        let body = Body { name: name.to_owned(), ..body.body };
        self.graph.functions.push(Function {
            op: op.clone(),
            opsets: Vec::new(),
            required: Vec::new(),
            defaults: Vec::new(),
            body,
            doc: String::new(),
        });
        op
    }

    /// Returns the finished graph.
    #[must_use]
    pub fn finish(mut self) -> Graph {
        self.graph.body = self.main.body;
        self.graph
    }
}

/// A body being written.
#[derive(Debug, Default)]
pub struct BodyBuilder {
    body: Body,
    /// Names of the scopes around what is written now.
    path: Vec<String>,
    taken: UniqueNames,
    weights: HashMap<WeightRef, ValueId>,
    constants: Vec<ValueId>,
}

impl BodyBuilder {
    /// Creates a builder that appends to an existing body.
    #[must_use]
    pub fn continuing(body: Body) -> Self {
        let mut builder = Self { body, ..Self::default() };
        for position in 0..builder.body.values.len() {
            let id = ValueId(u32::try_from(position).unwrap_or(u32::MAX));
            let value = &builder.body.values[position];
            builder.taken.take(&value.name);
            match &value.origin {
                ValueOrigin::Weight(weight) => _ = builder.weights.insert(weight.clone(), id),
                ValueOrigin::Constant(_) => builder.constants.push(id),
                _ => {}
            }
        }
        for node in &builder.body.nodes {
            builder.taken.take(&node.name);
        }
        builder
    }

    /// Returns the body written so far.
    #[must_use]
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Returns the body written so far, to add facts about its values.
    pub(crate) fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    /// Adds an input of the model, which the caller passes.
    pub fn input(
        &mut self,
        name: &str,
        element: ElementType,
        shape: impl IntoIterator<Item = Dim>,
        meaning: Meaning,
    ) -> ValueId {
        self.input_of(name, ValueType::tensor(element, shape), meaning)
    }

    /// Same as [`input`](Self::input), for a value of any type, whose shape may be unknown.
    pub fn input_of(&mut self, name: &str, kind: ValueType, meaning: Meaning) -> ValueId {
        let id = self.body.add_value(name, kind, ValueOrigin::Input);
        self.body.value_mut(id).meaning = meaning;
        self.body.inputs.push(id);
        self.taken.take(name);
        id
    }

    /// Adds a parameter of a function. Its type is the type of the argument in each call.
    pub fn parameter(&mut self, name: &str) -> ValueId {
        let name = self.taken.unique(name);
        let id = self.body.add_value(name, ValueType::Unknown, ValueOrigin::Input);
        self.body.inputs.push(id);
        id
    }

    /// A value of the body around, for a body that is the attribute of a node.
    pub fn outer(&mut self, name: &str, kind: ValueType, of: ValueId) -> ValueId {
        let name = self.taken.unique(name);
        self.body.add_value(name, kind, ValueOrigin::Outer(of))
    }

    /// Adds a tensor of the checkpoint without any change.
    pub fn weight(
        &mut self,
        tensor: &str,
        element: ElementType,
        shape: impl IntoIterator<Item = u64>,
    ) -> ValueId {
        self.viewed(tensor, Vec::new(), element, shape)
    }

    /// Adds a tensor of the checkpoint, read through views. `shape` is the shape of the result.
    pub fn viewed(
        &mut self,
        tensor: &str,
        views: Vec<View>,
        element: ElementType,
        shape: impl IntoIterator<Item = u64>,
    ) -> ValueId {
        let weight = WeightRef { tensor: tensor.to_owned(), views };
        if let Some(id) = self.weights.get(&weight) {
            return *id;
        }
        let kind = ValueType::tensor(element, shape.into_iter().map(Dim::fixed));
        let name = self.taken.unique(tensor);
        let id = self.body.add_value(name, kind, ValueOrigin::Weight(weight.clone()));
        self.weights.insert(weight, id);
        id
    }

    /// A small tensor in the graph itself; equal ones are one value.
    pub fn constant(&mut self, constant: Constant) -> ValueId {
        let same =
            |id: &&ValueId| self.body.value(**id).origin == ValueOrigin::Constant(constant.clone());
        if let Some(id) = self.constants.iter().find(same) {
            return *id;
        }
        let kind =
            ValueType::tensor(constant.element, constant.shape.iter().copied().map(Dim::fixed));
        let name = self.taken.unique("constant");
        let id = self.body.add_value(name, kind, ValueOrigin::Constant(constant));
        self.constants.push(id);
        id
    }

    /// One float of single precision.
    pub fn float(&mut self, value: f32) -> ValueId {
        self.constant(Constant::float(value))
    }

    /// Integers in a row: shapes, axes, starts and ends.
    pub fn ints(&mut self, values: &[i64]) -> ValueId {
        self.constant(Constant::ints(values))
    }

    /// Adds a constant that is one integer.
    pub fn int(&mut self, value: i64) -> ValueId {
        self.constant(Constant::int(value))
    }

    /// Writes what `write` writes under a name: nodes are then called `name/...`.
    pub fn scope<T>(&mut self, name: &str, write: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(name.to_owned());
        let result = write(self);
        self.path.pop();
        result
    }

    /// A node with an operator of ONNX. It is written by [`NodeBuilder::output`] or
    /// [`NodeBuilder::outputs`].
    pub fn op(&mut self, name: &str, inputs: impl IntoIterator<Item = ValueId>) -> NodeBuilder<'_> {
        self.call(&Op::onnx(name), inputs)
    }

    /// A node with an operator of any domain, or one that calls a function.
    pub fn call(&mut self, op: &Op, inputs: impl IntoIterator<Item = ValueId>) -> NodeBuilder<'_> {
        let inputs = inputs.into_iter().map(Some).collect();
        NodeBuilder { body: self, op: op.clone(), inputs, attributes: Vec::new() }
    }

    /// Makes a value an output of the body.
    pub fn output(&mut self, name: &str, value: ValueId, meaning: Meaning) {
        // Only a node's value takes the output's name, and once; others go through a node.
        let taken = matches!(self.body.value(value).origin, ValueOrigin::Node(_))
            && !self.body.outputs.contains(&value);
        let id = if taken { value } else { self.op("Identity", [value]).output(name) };
        let value = self.body.value_mut(id);
        name.clone_into(&mut value.name);
        value.meaning = meaning;
        self.body.outputs.push(id);
    }

    /// Declares the type of a value, if the caller knows more than type inference finds.
    pub fn set_type(&mut self, value: ValueId, kind: ValueType) {
        self.body.value_mut(value).kind = kind;
    }

    /// Another output of a node that was written, of a type that is not known yet.
    pub(crate) fn add_output(&mut self, node: NodeId, name: &str) -> ValueId {
        let name = self.taken.unique(name);
        let id = self.body.add_value(name, ValueType::Unknown, ValueOrigin::Node(node));
        self.body.nodes[node.0 as usize].outputs.push(Some(id));
        id
    }

    /// Lets a node that was written call something else.
    pub(crate) fn set_op(&mut self, node: NodeId, op: &Op) {
        self.body.nodes[node.0 as usize].op = op.clone();
    }

    /// A node with any number of inputs, which may be left out, and of outputs.
    pub(crate) fn call_with(
        &mut self,
        op: &Op,
        inputs: Vec<Option<ValueId>>,
        attributes: &[Attribute],
        outputs: usize,
        name: &str,
    ) -> Vec<ValueId> {
        let node =
            NodeBuilder { body: self, op: op.clone(), inputs, attributes: attributes.to_vec() };
        node.write(name, outputs)
    }

    /// Ends with other outputs than so far.
    pub(crate) fn clear_outputs(&mut self) {
        self.body.outputs.clear();
    }

    /// Returns the known type of a value.
    #[must_use]
    pub fn value_type(&self, value: ValueId) -> &ValueType {
        &self.body.value(value).kind
    }

    /// The body, to be the attribute of a node.
    #[must_use]
    pub fn finish(self) -> Body {
        self.body
    }
}

/// A node being written.
#[derive(Debug)]
#[must_use = "the node is written by output() or outputs()"]
pub struct NodeBuilder<'a> {
    body: &'a mut BodyBuilder,
    op: Op,
    inputs: Vec<Option<ValueId>>,
    attributes: Vec<Attribute>,
}

impl NodeBuilder<'_> {
    /// Adds a setting.
    pub fn attribute(mut self, name: &str, value: impl Into<AttributeValue>) -> Self {
        self.attributes.push(Attribute { name: name.into(), value: value.into() });
        self
    }

    /// Adds an input that may be left out.
    pub fn optional(mut self, input: Option<ValueId>) -> Self {
        self.inputs.push(input);
        self
    }

    /// Writes the node under a name, and returns the one value that it makes.
    pub fn output(self, name: &str) -> ValueId {
        let [output] = self.outputs(name);
        output
    }

    /// Writes the node under a name, and returns the values that it makes. They are called like the
    /// node, from the second on with a number.
    pub fn outputs<const N: usize>(self, name: &str) -> [ValueId; N] {
        let mut made = [ValueId(0); N];
        made.copy_from_slice(&self.write(name, N));
        made
    }

    /// Same as [`outputs`](Self::outputs), for a number of values that is only known at run time.
    #[must_use]
    pub fn list_of_outputs(self, name: &str, count: usize) -> Vec<ValueId> {
        self.write(name, count)
    }

    fn write(self, name: &str, outputs: usize) -> Vec<ValueId> {
        let body = self.body;
        body.path.push(name.to_owned());
        let path = body.path.join("/");
        body.path.pop();
        let name = body.taken.unique(&path);
        let mut made = Vec::with_capacity(outputs);
        for position in 0..outputs {
            let output_name = if position == 0 {
                name.clone()
            } else {
                body.taken.unique(format!("{name}:{position}"))
            };
            made.push(body.body.add_value(output_name, ValueType::Unknown, ValueOrigin::Missing));
        }

        body.body.add_node(Node {
            name,
            op: self.op,
            inputs: self.inputs,
            outputs: made.iter().copied().map(Some).collect(),
            attributes: self.attributes,
            doc: String::new(),
        });
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_make_paths_and_names_stay_unique() {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let x = main.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
        let y = main.scope("layers.3", |main| {
            let once = main.scope("norm", |main| main.op("Relu", [x]).output("act"));
            main.scope("norm", |main| main.op("Relu", [once]).output("act"))
        });
        main.output("y", y, Meaning::Logits);
        let graph = graph.finish();
        let names: Vec<_> = graph.body.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["layers.3/norm/act", "layers.3/norm/act_1"]);
        assert_eq!(graph.body.value(graph.body.outputs[0]).name, "y");
    }

    #[test]
    fn a_weight_or_a_constant_used_twice_is_one_value() {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        assert_eq!(
            main.weight("w", ElementType::F32, [2]),
            main.weight("w", ElementType::F32, [2])
        );
        assert_eq!(main.ints(&[0, -1]), main.ints(&[0, -1]));
        assert_ne!(main.int(0), main.ints(&[0]));
    }

    #[test]
    fn an_input_that_is_an_output_passes_through_a_node() {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let x = main.input("x", ElementType::F32, [], Meaning::Unknown);
        main.output("y", x, Meaning::Unknown);
        assert!(graph.finish().body.nodes[0].op.is("Identity"));
    }
}
