//! Nodes and their attributes.

use apr_core::Result;
use apr_core::protobuf::{Field, Message, Span, Walker};

use super::{Graph, Property, SparseTensor, Tensor, Type, each, push, small};

/// An operation: `NodeProto`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Node {
    /// Values that go in; an empty name stands for an optional one that is left out.
    pub inputs: Vec<String>,
    /// Values that come out; an empty name stands for one that nobody wants.
    pub outputs: Vec<String>,
    /// Name, often a path such as `/layers.0/attn/MatMul`; may be empty.
    pub name: String,
    /// Operator or function.
    pub op_type: String,
    /// Whose operator; empty for ONNX's own.
    pub domain: String,
    /// Which of several functions of the same name.
    pub overload: String,
    /// Attributes.
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
            5 => push(walker, &mut self.attributes, |walker| Attribute::read(walker, field.message()?))?,
            6 => self.doc = Some(field.range()?),
            7 => self.domain = field.text(walker)?,
            8 => self.overload = field.text(walker)?,
            9 => push(walker, &mut self.properties, |walker| Property::read(walker, field.message()?))?,
            _ => {
                if field.number == 10 {
                    push(walker, &mut self.devices, |_| field.range())?;
                }
            }
        }
        Ok(())
    }
}

/// An attribute of a node, or a default of a function's: `AttributeProto`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Attribute {
    /// Name.
    pub name: String,
    /// Inside a function: the function's attribute whose value this one takes. Empty elsewhere.
    pub reference: String,
    /// What the file says the value is; files before IR version 2 don't say it.
    pub kind: Option<i32>,
    /// The values, all that are there.
    pub values: AttributeValues,
}

/// All that an attribute's message may hold; a valid one holds one of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AttributeValues {
    pub(crate) float: Option<f32>,
    pub(crate) integer: Option<i64>,
    pub(crate) bytes: Option<Span>,
    pub(crate) floats: Vec<f32>,
    pub(crate) integers: Vec<i64>,
    pub(crate) strings: Vec<Span>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) one_tensor: bool,
}
