//! Nodes and their attributes.

use apr_core::Result;
use apr_core::protobuf::{Field, Message, Span, Walker};

use super::entries::Property;
use super::graph::Graph;
use super::tensor::{SparseTensor, Tensor};
use super::types::Type;
use super::walk::{each, push, small};

/// An operation: `NodeProto`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Node {
    /// Names of the input values. An empty name marks an optional input that is omitted.
    pub inputs: Vec<String>,
    /// Names of the output values. An empty name marks an output that is not used.
    pub outputs: Vec<String>,
    /// Name, often a path such as `/layers.0/attn/MatMul`; may be empty.
    pub name: String,
    /// Operator or function.
    pub op_type: String,
    /// Domain of the operator; empty for the operators of ONNX itself.
    pub domain: String,
    /// Identifier of this overload among functions of the same name.
    pub overload: String,
    /// Attributes of the node.
    pub attributes: Vec<Attribute>,
    /// Description for people, not read.
    pub doc: Option<Span>,
    /// Free pairs of keys and values; exporters put stack traces here.
    pub properties: Vec<Property>,
    /// On which devices it runs, not read.
    pub devices: Vec<Span>,
}

impl Node {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut node = Self::default();
        each(walker, message, |walker, field| node.field(walker, field))?;
        Ok(node)
    }

    fn field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            1 => push(walker, &mut self.inputs, |walker| field.text(walker))?,
            2 => push(walker, &mut self.outputs, |walker| field.text(walker))?,
            3 => self.name = field.text(walker)?,
            4 => self.op_type = field.text(walker)?,
            5 => push(walker, &mut self.attributes, |walker| Attribute::read(walker, field))?,
            6 => self.doc = Some(field.range()?),
            7 => self.domain = field.text(walker)?,
            8 => self.overload = field.text(walker)?,
            9 => push(walker, &mut self.properties, |walker| {
                Property::read(walker, field.message()?)
            })?,
            _ => {
                if field.number == 10 {
                    push(walker, &mut self.devices, |_| field.range())?;
                }
            }
        }

        Ok(())
    }
}

/// An attribute of a node, or a default of a function's: `AttributeProto`. A valid one holds values
/// of one kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Attribute {
    /// Name of the attribute.
    pub name: String,
    /// Inside a function: the attribute of the call whose value this one takes. Empty elsewhere.
    pub reference: String,
    /// Declared kind of the value. Files before IR version 2 do not declare it.
    pub kind: Option<AttributeKind>,
    /// A number with a fraction.
    pub float: Option<f32>,
    /// Integer value.
    pub integer: Option<i64>,
    /// Text, not read.
    pub text: Option<Span>,
    /// Tensor value.
    pub tensor: Option<Box<Tensor>>,
    /// Graph value.
    pub graph: Option<Box<Graph>>,
    /// A sparse tensor.
    pub sparse_tensor: Option<Box<SparseTensor>>,
    /// Type value.
    pub type_proto: Option<Box<Type>>,
    /// Numbers with fractions.
    pub floats: Vec<f32>,
    /// List of integers.
    pub integers: Vec<i64>,
    /// Texts, not read.
    pub texts: Vec<Span>,
    /// List of tensors.
    pub tensors: Vec<Tensor>,
    /// List of graphs.
    pub graphs: Vec<Graph>,
    /// Sparse tensors.
    pub sparse_tensors: Vec<SparseTensor>,
    /// List of types.
    pub type_protos: Vec<Type>,
    /// The whole message.
    pub span: Span,
}

/// Kind of an attribute's value: `AttributeProto.AttributeType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttributeKind {
    /// A number with a fraction.
    Float,
    /// Integer.
    Int,
    /// Text.
    String,
    /// Tensor.
    Tensor,
    /// Graph.
    Graph,
    /// Numbers with fractions.
    Floats,
    /// List of integers.
    Ints,
    /// List of texts.
    Strings,
    /// List of tensors.
    Tensors,
    /// List of graphs.
    Graphs,
    /// A sparse tensor.
    SparseTensor,
    /// Sparse tensors.
    SparseTensors,
    /// Type of a value.
    Type,
    /// List of types.
    Types,
    /// A number that the format does not list.
    Other(i32),
}

impl AttributeKind {
    const ALL: [Self; 14] = [
        Self::Float,
        Self::Int,
        Self::String,
        Self::Tensor,
        Self::Graph,
        Self::Floats,
        Self::Ints,
        Self::Strings,
        Self::Tensors,
        Self::Graphs,
        Self::SparseTensor,
        Self::SparseTensors,
        Self::Type,
        Self::Types,
    ];

    /// Returns the number of the kind in the format.
    #[must_use]
    pub fn code(self) -> i32 {
        match (self, Self::ALL.iter().position(|kind| *kind == self)) {
            (Self::Other(code), _) => code,
            (_, position) => {
                position.and_then(|position| i32::try_from(position + 1).ok()).unwrap_or_default()
            }
        }
    }

    /// The kind with this number, `None` for 0.
    fn from_code(code: i32) -> Option<Self> {
        let position = usize::try_from(code).ok().and_then(|code| code.checked_sub(1));
        match position {
            Some(position) => Some(Self::ALL.get(position).copied().unwrap_or(Self::Other(code))),
            None if code == 0 => None,
            None => Some(Self::Other(code)),
        }
    }
}

impl Attribute {
    pub(crate) fn read(walker: &mut Walker<'_>, field: &Field) -> Result<Self> {
        let mut attribute = Self { span: field.range()?, ..Self::default() };
        each(walker, field.message()?, |walker, field| attribute.field(walker, field))?;
        Ok(attribute)
    }

    fn field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            1 => self.name = field.text(walker)?,
            2 => self.float = Some(field.float()?),
            3 => self.integer = Some(field.signed()?),
            4 => self.text = Some(field.range()?),
            5 => self.tensor.get_or_insert_default().merge(walker, field)?,
            6 => self.graph.get_or_insert_default().merge(walker, field.message()?)?,
            14 => self.type_proto.get_or_insert_default().merge(walker, field.message()?)?,
            20 => self.kind = AttributeKind::from_code(small(field)?),
            21 => self.reference = field.text(walker)?,
            22 => self.sparse_tensor.get_or_insert_default().merge(walker, field)?,
            _ => return self.list_field(walker, field),
        }

        Ok(())
    }

    fn list_field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            7 => field.floats(walker, &mut self.floats),
            8 => field.integers(walker, &mut self.integers),
            9 => push(walker, &mut self.texts, |_| field.range()),
            10 => push(walker, &mut self.tensors, |walker| Tensor::read(walker, field)),
            11 => push(walker, &mut self.graphs, |walker| Graph::read(walker, field.message()?)),
            15 => {
                push(walker, &mut self.type_protos, |walker| Type::read(walker, field.message()?))
            }
            23 => {
                push(walker, &mut self.sparse_tensors, |walker| SparseTensor::read(walker, field))
            }
            _ => Ok(()),
        }
    }
}
