//! Graphs.

use apr_core::Result;
use apr_core::protobuf::{Field, Message, Span, Walker};

use super::entries::Property;
use super::node::Node;
use super::tensor::{SparseTensor, Tensor};
use super::types::ValueInfo;
use super::walk::{each, push};

/// Computation of a model or of one of its branches: `GraphProto`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Name of the graph.
    pub name: String,
    /// The operations; each follows the operations whose results it uses.
    pub nodes: Vec<Node>,
    /// Constant tensors with a name.
    pub initializers: Vec<Tensor>,
    /// Sparse constant tensors with a name.
    pub sparse_initializers: Vec<SparseTensor>,
    /// Description for people, not read.
    pub doc: Option<Span>,
    /// Inputs of the graph. Old files also list initializers here.
    pub inputs: Vec<ValueInfo>,
    /// Outputs of the graph.
    pub outputs: Vec<ValueInfo>,
    /// Declared types of intermediate values.
    pub values: Vec<ValueInfo>,
    /// Scales and zero points of values.
    pub quantization: Vec<QuantizationAnnotation>,
    /// Free pairs of keys and values.
    pub properties: Vec<Property>,
}

/// Names of the tensors that describe how another tensor is quantized: `TensorAnnotation`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QuantizationAnnotation {
    /// The tensor that is quantized.
    pub tensor: String,
    /// Parameter (`SCALE_TENSOR`, `ZERO_POINT_TENSOR`) to the span of a tensor's name.
    pub parameters: Vec<Property>,
}

impl Graph {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut graph = Self::default();
        graph.merge(walker, message)?;
        Ok(graph)
    }

    pub(crate) fn merge(&mut self, walker: &mut Walker<'_>, message: Message) -> Result<()> {
        each(walker, message, |walker, field| self.field(walker, field))
    }

    fn field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            1 => push(walker, &mut self.nodes, |walker| Node::read(walker, field.message()?)),
            2 => field.text(walker).map(|name| self.name = name),
            5 => push(walker, &mut self.initializers, |walker| Tensor::read(walker, field)),
            10 => field.range().map(|doc| self.doc = Some(doc)),
            11 => {
                push(walker, &mut self.inputs, |walker| ValueInfo::read(walker, field.message()?))
            }
            12 => {
                push(walker, &mut self.outputs, |walker| ValueInfo::read(walker, field.message()?))
            }
            13 => {
                push(walker, &mut self.values, |walker| ValueInfo::read(walker, field.message()?))
            }
            _ => self.rare_field(walker, field),
        }
    }

    fn rare_field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            14 => push(walker, &mut self.quantization, |walker| {
                QuantizationAnnotation::read(walker, field.message()?)
            }),
            15 => push(walker, &mut self.sparse_initializers, |walker| {
                SparseTensor::read(walker, field)
            }),
            16 => push(walker, &mut self.properties, |walker| {
                Property::read(walker, field.message()?)
            }),
            _ => Ok(()),
        }
    }
}

impl QuantizationAnnotation {
    fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut annotation = Self::default();
        each(walker, message, |walker, field| match field.number {
            1 => field.text(walker).map(|name| annotation.tensor = name),
            2 => push(walker, &mut annotation.parameters, |walker| {
                Property::read(walker, field.message()?)
            }),
            _ => Ok(()),
        })?;
        Ok(annotation)
    }
}
