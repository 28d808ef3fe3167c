//! Bodies: which value a name stands for.

use std::collections::HashMap;

use apr_core::Result;
use apr_graph::{
    AttributeValue, Body, Dim, ElementType, Node, NodeId, TensorType, ValueId, ValueOrigin,
    ValueType,
};

use super::converter::Converter;
use super::types::value_type;
use crate::proto;
use crate::reader::Scope;

/// A body under construction, and the values of its names.
#[derive(Default)]
struct Frame {
    body: Body,
    names: HashMap<String, ValueId>,
}

/// The bodies around the one that is being made, innermost last.
#[derive(Default)]
pub(super) struct Frames(Vec<Frame>);

impl Frames {
    /// Returns the value with this name in this body or an enclosing one.
    ///
    /// A name without a value gets a new value without an origin.
    fn resolve(&mut self, name: &str) -> ValueId {
        let innermost = self.0.len() - 1;
        match self.find(name, innermost) {
            Some(id) => id,
            None => self.0[innermost].add(name, ValueType::Unknown, ValueOrigin::Missing),
        }
    }

    /// Returns the value with this name in the body at a position.
    ///
    /// If an enclosing body has the value, the bodies below it get values that refer to it.
    fn find(&mut self, name: &str, position: usize) -> Option<ValueId> {
        let holder = (0..=position).rev().find(|&at| self.0[at].names.contains_key(name))?;
        let mut id = *self.0[holder].names.get(name)?;

        // A body refers only to the one right around it, so all between hand the value on.
        for at in holder + 1..=position {
            let kind = self.0[at - 1].body.value(id).kind.clone();
            id = self.0[at].add(name, kind, ValueOrigin::Outer(id));
        }
        Some(id)
    }

    fn current(&mut self) -> &mut Frame {
        self.0.last_mut().unwrap_or_else(|| unreachable!("a body is being made"))
    }
}

impl Frame {
    fn add(&mut self, name: &str, kind: ValueType, origin: ValueOrigin) -> ValueId {
        let id = self.body.add_value(name, kind, origin);
        self.names.insert(name.to_owned(), id);
        id
    }

    /// Sets the type of the weight in a `Constant` node, which its name alone does not give.
    fn describe_weight(&mut self, node: &proto::Node, id: NodeId) {
        let made = self.body.node(id);
        let is_weight = made
            .attributes
            .iter()
            .any(|attribute| matches!(attribute.value, AttributeValue::Weight(_)));
        let kind = node.attributes.iter().find_map(|attribute| {
            let dense =
                attribute.tensor.as_ref().map(|dense| tensor_type(dense.data_type, &dense.dims));
            let sparse = attribute.sparse_tensor.as_ref();
            dense.or(sparse.map(|sparse| tensor_type(sparse.values.data_type, &sparse.dims)))
        });
        if let (true, Some(kind), Some(Some(output))) =
            (made.op.is("Constant") && is_weight, kind, made.outputs.first())
        {
            let output = *output;
            self.body.value_mut(output).kind = kind;
        }
    }

    /// Copies the type that the file declares for a value.
    ///
    /// Ignores unknown types and missing values.
    fn describe(&mut self, info: &proto::ValueInfo) {
        let kind = value_type(&info.kind);
        if let Some(id) = self.names.get(&info.name).filter(|_| kind != ValueType::Unknown) {
            self.body.value_mut(*id).kind = kind;
        }
    }
}

impl Converter<'_> {
    /// A graph, or one in an attribute of a node.
    pub(super) fn body(
        &mut self,
        graph: &proto::Graph,
        scope: &Scope,
        frames: &mut Frames,
    ) -> Result<Body> {
        let mut frame = Frame {
            body: Body { name: graph.name.clone(), ..Body::default() },
            ..Frame::default()
        };
        frame.body.doc = self.doc(graph.doc)?;
        for input in &graph.inputs {
            let id = frame.add(&input.name, value_type(&input.kind), ValueOrigin::Input);
            frame.body.inputs.push(id);
        }

        self.initializers(graph, scope, &mut frame)?;
        self.nodes(&graph.nodes, frame, scope, frames)?;
        graph.values.iter().chain(&graph.outputs).for_each(|info| frames.current().describe(info));
        let outputs = graph.outputs.iter().map(|output| frames.resolve(&output.name)).collect();
        Ok(frames.finish(outputs))
    }

    pub(super) fn function_body(
        &mut self,
        function: &proto::Function,
        scope: &Scope,
    ) -> Result<Body> {
        let mut frame = Frame {
            body: Body { name: function.name.clone(), ..Body::default() },
            ..Frame::default()
        };
        for input in &function.inputs {
            let id = frame.add(input, ValueType::Unknown, ValueOrigin::Input);
            frame.body.inputs.push(id);
        }
        let mut frames = Frames::default();
        self.nodes(&function.nodes, frame, scope, &mut frames)?;
        function.values.iter().for_each(|info| frames.current().describe(info));
        let outputs = function.outputs.iter().map(|output| frames.resolve(output)).collect();
        Ok(frames.finish(outputs))
    }

    fn initializers(
        &mut self,
        graph: &proto::Graph,
        scope: &Scope,
        frame: &mut Frame,
    ) -> Result<()> {
        for (position, tensor) in graph.initializers.iter().enumerate() {
            let path = scope.initializer(&tensor.name, position);
            let constant = self.small.constant(&path, tensor, &mut self.walker)?;
            let origin = constant.map_or_else(
                || ValueOrigin::Weight(self.small.weight(&path)),
                ValueOrigin::Constant,
            );
            frame.give(&tensor.name, tensor_type(tensor.data_type, &tensor.dims), origin);
        }

        for (tensor, position) in graph.sparse_initializers.iter().zip(graph.initializers.len()..) {
            let name = &tensor.values.name;
            let kind = tensor_type(tensor.values.data_type, &tensor.dims);
            frame.give(
                name,
                kind,
                ValueOrigin::Weight(self.small.weight(&scope.initializer(name, position))),
            );
        }

        Ok(())
    }

    /// Makes the nodes of a body, which becomes the innermost one.
    fn nodes(
        &mut self,
        nodes: &[proto::Node],
        mut frame: Frame,
        scope: &Scope,
        frames: &mut Frames,
    ) -> Result<()> {
        // Every output has its name first, since a file may have a node before what it uses.
        for output in
            nodes.iter().flat_map(|node| &node.outputs).filter(|output| !output.is_empty())
        {
            if !frame.names.contains_key(output) {
                frame.add(output, ValueType::Unknown, ValueOrigin::Missing);
            }
        }
        frames.0.push(frame);
        for node in nodes {
            let inputs = node
                .inputs
                .iter()
                .map(|name| (!name.is_empty()).then(|| frames.resolve(name)))
                .collect();
            let mut attributes = Vec::with_capacity(node.attributes.len());
            for attribute in &node.attributes {
                attributes.push(self.attribute(node, attribute, scope, frames)?);
            }

            let op = self.op(&node.domain, &node.op_type, &node.overload);
            let doc = self.doc(node.doc)?;
            let frame = frames.current();
            let outputs = node
                .outputs
                .iter()
                .map(|name| (!name.is_empty()).then(|| frame.made(name)))
                .collect();
            let node_id = frame.body.add_node(Node {
                name: node.name.clone(),
                op,
                inputs,
                outputs,
                attributes,
                doc,
            });

            frame.describe_weight(node, node_id);
        }

        Ok(())
    }
}

impl Frames {
    /// The innermost body, which is done.
    fn finish(&mut self, outputs: Vec<ValueId>) -> Body {
        let mut body = self.0.pop().map(|frame| frame.body).unwrap_or_default();
        body.outputs = outputs;
        body
    }
}

impl Frame {
    /// The value that a node makes. A name that something else makes already gets a second value,
    /// for a check to find.
    fn made(&mut self, name: &str) -> ValueId {
        match self.names.get(name) {
            Some(id) if self.body.value(*id).origin == ValueOrigin::Missing => *id,
            _ => self.add(name, ValueType::Unknown, ValueOrigin::Missing),
        }
    }

    /// Gives a name its data. If the name is also an input of the body, it remains an input.
    fn give(&mut self, name: &str, kind: ValueType, origin: ValueOrigin) {
        let declared = self
            .names
            .get(name)
            .copied()
            .filter(|id| self.body.value(*id).origin == ValueOrigin::Input);
        match declared {
            Some(id) => {
                let value = self.body.value_mut(id);
                (value.kind, value.origin) = (kind, origin);
            }
            None => {
                self.add(name, kind, origin);
            }
        }
    }
}

fn tensor_type(element: i32, dims: &[i64]) -> ValueType {
    let dim = |dim: &i64| u64::try_from(*dim).map_or(Dim::Unknown, Dim::fixed);
    ValueType::Tensor(TensorType {
        element: ElementType::from_onnx_code(element),
        shape: Some(dims.iter().map(dim).collect()),
    })
}
