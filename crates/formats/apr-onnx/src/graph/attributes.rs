//! Attributes of nodes.

use apr_core::protobuf::Span;
use apr_core::{Error, Escaped, Result};
use apr_graph::{Attribute, AttributeValue, Constant, ElementType};

use super::bodies::Frames;
use super::converter::Converter;
use super::types::value_type;
use crate::proto::{self, AttributeKind};
use crate::reader::Scope;

impl Converter<'_> {
    pub(super) fn attribute(
        &mut self,
        node: &proto::Node,
        attribute: &proto::Attribute,
        scope: &Scope,
        frames: &mut Frames,
    ) -> Result<Attribute> {
        if let Some(value) = self.sparse_constant(node, attribute, scope) {
            return Ok(Attribute { name: self.name("value"), value });
        }

        let name = self.name(&attribute.name);
        let value = if attribute.reference.is_empty() {
            self.value(node, attribute, scope, frames)?
        } else {
            AttributeValue::OfCall(self.name(&attribute.reference))
        };
        Ok(Attribute { name, value })
    }

    fn value(
        &mut self,
        node: &proto::Node,
        attribute: &proto::Attribute,
        scope: &Scope,
        frames: &mut Frames,
    ) -> Result<AttributeValue> {
        Ok(match attribute.kind.or_else(|| guessed(attribute)) {
            Some(AttributeKind::Float) => {
                AttributeValue::Float(attribute.float.unwrap_or_default())
            }
            Some(AttributeKind::Int) => AttributeValue::Int(attribute.integer.unwrap_or_default()),
            Some(AttributeKind::String) => AttributeValue::Text(self.text(attribute.text)?),
            Some(AttributeKind::Floats) => AttributeValue::Floats(attribute.floats.clone()),
            Some(AttributeKind::Ints) => AttributeValue::Ints(attribute.integers.clone()),
            Some(AttributeKind::Strings) => {
                let texts: Result<_> =
                    attribute.texts.iter().map(|span| self.walker.bytes(*span)).collect();
                AttributeValue::Texts(texts?)
            }
            Some(AttributeKind::Tensor) => self.tensor(node, attribute, scope)?,
            Some(AttributeKind::Tensors) => self.tensors(node, attribute, scope)?,
            Some(AttributeKind::Graph | AttributeKind::Graphs) => {
                self.graphs(node, attribute, scope, frames)?
            }
            Some(AttributeKind::Type) => AttributeValue::Type(
                attribute.type_proto.as_ref().map(|kind| value_type(kind)).unwrap_or_default(),
            ),
            Some(AttributeKind::Types) => {
                AttributeValue::Types(attribute.type_protos.iter().map(value_type).collect())
            }
            // The graph has no words for these: their bytes are kept, and written as they were.
            Some(
                AttributeKind::SparseTensor
                | AttributeKind::SparseTensors
                | AttributeKind::Other(_),
            )
            | None => self.opaque(attribute)?,
        })
    }

    fn text(&mut self, span: Option<Span>) -> Result<Vec<u8>> {
        span.map_or_else(|| Ok(Vec::new()), |span| self.walker.bytes(span))
    }

    /// Returns the weight for the sparse tensor of a `Constant` node, as for a sparse initializer.
    ///
    /// The checkpoint holds the tensor as a dense one. Returns `None` if the attribute has no such
    /// tensor or if the checkpoint cannot hold its elements; the attribute is then converted
    /// unchanged.
    fn sparse_constant(
        &self,
        node: &proto::Node,
        attribute: &proto::Attribute,
        scope: &Scope,
    ) -> Option<AttributeValue> {
        let tensor = attribute.sparse_tensor.as_ref()?;
        let element = ElementType::from_onnx_code(tensor.values.data_type)?;
        let is_held = element != ElementType::F4E2M1
            && (element.dtype().is_some() || (1..8).contains(&element.bits()));
        let is_constant = node.op_type == "Constant" && node.domain.is_empty() && is_held;
        is_constant.then(|| {
            AttributeValue::Weight(self.small.weight(&scope.tensor(node, attribute, None)))
        })
    }

    fn opaque(&mut self, attribute: &proto::Attribute) -> Result<AttributeValue> {
        let sparse = attribute.sparse_tensor.iter().map(|tensor| &**tensor);
        let mut parts = sparse
            .chain(&attribute.sparse_tensors)
            .flat_map(|tensor| [&tensor.values, &tensor.indices]);
        if parts.any(proto::Tensor::is_outside) {
            let message = format!(
                "attribute '{}' holds sparse tensors whose data are in another file, which this \
                 version of apr does not read",
                Escaped::short(&attribute.name)
            );
            return Err(Error::version(message).at(attribute.span.offset));
        }
        self.walker.bytes(attribute.span).map(AttributeValue::Opaque)
    }

    fn tensor(
        &mut self,
        node: &proto::Node,
        attribute: &proto::Attribute,
        scope: &Scope,
    ) -> Result<AttributeValue> {
        let Some(tensor) = &attribute.tensor else { return self.opaque(attribute) };
        let path = scope.tensor(node, attribute, None);
        Ok(match self.small.constant(&path, tensor, &mut self.walker)? {
            Some(constant) => AttributeValue::Tensor(constant),
            None => AttributeValue::Weight(self.small.weight(&path)),
        })
    }

    fn tensors(
        &mut self,
        node: &proto::Node,
        attribute: &proto::Attribute,
        scope: &Scope,
    ) -> Result<AttributeValue> {
        let (small, walker) = (&self.small, &mut self.walker);
        let path = |position| scope.tensor(node, attribute, Some(position));
        let tensors = attribute.tensors.iter().enumerate();
        let constants: Result<Option<Vec<Constant>>> = tensors
            .map(|(position, tensor)| small.constant(&path(position), tensor, walker))
            .collect();
        match constants? {
            Some(constants) => Ok(AttributeValue::Tensors(constants)),
            None => self.opaque(attribute),
        }
    }

    fn graphs(
        &mut self,
        node: &proto::Node,
        attribute: &proto::Attribute,
        scope: &Scope,
        frames: &mut Frames,
    ) -> Result<AttributeValue> {
        if let Some(graph) = &attribute.graph {
            let scope = scope.inner(node, attribute, None)?;
            return Ok(AttributeValue::Body(Box::new(self.body(graph, &scope, frames)?)));
        }
        let mut bodies = Vec::new();
        for (position, graph) in attribute.graphs.iter().enumerate() {
            let scope = scope.inner(node, attribute, Some(position))?;
            bodies.push(self.body(graph, &scope, frames)?);
        }
        Ok(AttributeValue::Bodies(bodies))
    }
}

/// Returns the kind of the value that is present, for an attribute that declares no kind.
fn guessed(attribute: &proto::Attribute) -> Option<AttributeKind> {
    let found = [
        (attribute.float.is_some(), AttributeKind::Float),
        (attribute.integer.is_some(), AttributeKind::Int),
        (attribute.text.is_some(), AttributeKind::String),
        (attribute.tensor.is_some(), AttributeKind::Tensor),
        (attribute.graph.is_some(), AttributeKind::Graph),
        (attribute.type_proto.is_some(), AttributeKind::Type),
        (!attribute.floats.is_empty(), AttributeKind::Floats),
        (!attribute.integers.is_empty(), AttributeKind::Ints),
        (!attribute.texts.is_empty(), AttributeKind::Strings),
        (!attribute.tensors.is_empty(), AttributeKind::Tensors),
        (!attribute.graphs.is_empty(), AttributeKind::Graphs),
        (!attribute.type_protos.is_empty(), AttributeKind::Types),
    ];
    found.iter().find(|(is_there, _)| *is_there).map(|(_, kind)| *kind)
}
