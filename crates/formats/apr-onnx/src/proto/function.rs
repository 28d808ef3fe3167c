//! Functions.

use apr_core::Result;
use apr_core::protobuf::{Field, Message, Span, Walker};

use super::entries::{OperatorSet, Property};
use super::node::{Attribute, Node};
use super::types::ValueInfo;
use super::walk::{each, push};

/// A body that nodes call by its name: `FunctionProto`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// Domain of the function.
    pub domain: String,
    /// Identifier of this overload among functions of the same name.
    pub overload: String,
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Attributes without a default.
    pub attributes: Vec<String>,
    /// Attributes with a default.
    pub defaults: Vec<Attribute>,
    /// The operations.
    pub nodes: Vec<Node>,
    /// The operator sets that they refer to.
    pub opsets: Vec<OperatorSet>,
    /// Declared types of the values inside.
    pub values: Vec<ValueInfo>,
    /// Description for people, not read.
    pub doc: Option<Span>,
    /// Free pairs of keys and values.
    pub properties: Vec<Property>,
}

impl Function {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut function = Self::default();
        each(walker, message, |walker, field| function.field(walker, field))?;
        Ok(function)
    }

    fn field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            1 => self.name = field.text(walker)?,
            8 => self.doc = Some(field.range()?),
            10 => self.domain = field.text(walker)?,
            13 => self.overload = field.text(walker)?,
            _ => return self.list_field(walker, field),
        }
        Ok(())
    }

    fn list_field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            4 => push(walker, &mut self.inputs, |walker| field.text(walker)),
            5 => push(walker, &mut self.outputs, |walker| field.text(walker)),
            6 => push(walker, &mut self.attributes, |walker| field.text(walker)),
            7 => push(walker, &mut self.nodes, |walker| Node::read(walker, field.message()?)),
            9 => {
                push(walker, &mut self.opsets, |walker| OperatorSet::read(walker, field.message()?))
            }
            11 => push(walker, &mut self.defaults, |walker| Attribute::read(walker, field)),
            12 => {
                push(walker, &mut self.values, |walker| ValueInfo::read(walker, field.message()?))
            }
            14 => push(walker, &mut self.properties, |walker| {
                Property::read(walker, field.message()?)
            }),
            _ => Ok(()),
        }
    }
}
