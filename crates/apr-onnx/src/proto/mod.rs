//! ONNX's messages as plain structs, without the data of tensors.
//!
//! Field numbers are those of `onnx.proto`. A message that appears twice where one is expected is merged, as protobuf says:
//! scalars are replaced, lists go on. Fields that are not listed here are skipped.

mod function;
mod graph;
mod node;
mod tensor;
mod types;

use apr_core::protobuf::{Field, Message, Span, Walker};
use apr_core::{ByteSource, Error, Limits, Result};

pub use function::Function;
pub use graph::{Graph, QuantizationAnnotation};
pub use node::{Attribute, AttributeKind, Node};
pub(crate) use tensor::shape;
pub use tensor::{SparseTensor, Tensor, Typed};
pub use types::{Dimension, Type, TypeKind, ValueInfo};

/// A model: `ModelProto`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Model {
    /// Version of ONNX's file format.
    pub ir_version: Option<i64>,
    /// The operator sets that nodes refer to.
    pub opsets: Vec<OperatorSet>,
    /// The program that wrote the model.
    pub producer_name: String,
    /// Its version.
    pub producer_version: String,
    /// Reverse domain name of who made the model.
    pub domain: String,
    /// Version of the model.
    pub model_version: Option<i64>,
    /// Description for people, not read.
    pub doc: Option<Span>,
    /// What the model computes.
    pub graph: Option<Graph>,
    /// Free pairs of keys and values.
    pub properties: Vec<Property>,
    /// Functions that nodes may call like operators.
    pub functions: Vec<Function>,
    /// How the model is trained, not read.
    pub training: Vec<Span>,
    /// On which devices parts of it run, not read.
    pub devices: Vec<Span>,
}

/// A set of operators: `OperatorSetIdProto`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OperatorSet {
    /// Whose operators; empty for ONNX's own.
    pub domain: String,
    /// Version of the set.
    pub version: i64,
}

/// A key and a value: `StringStringEntryProto`. Values may be long, such as the stack trace of a node, and are not read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Property {
    /// The key.
    pub key: String,
    /// Where the value lies.
    pub value: Span,
}

impl Model {
    /// Reads a model, without the data of its tensors.
    ///
    /// # Errors
    /// E001 for what is no such message, E002 where it is cut off, E007 when reading fails, E008 over the limits.
    pub fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Self> {
        let mut walker = Walker::new(source, limits);
        let message = walker.message();
        let mut model = Self::default();
        each(&mut walker, message, |walker, field| model.field(walker, field))?;
        Ok(model)
    }

    fn field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            1 => self.ir_version = Some(field.signed()?),
            2 => self.producer_name = field.text(walker)?,
            3 => self.producer_version = field.text(walker)?,
            4 => self.domain = field.text(walker)?,
            5 => self.model_version = Some(field.signed()?),
            6 => self.doc = Some(field.range()?),
            7 => self.graph.get_or_insert_default().merge(walker, field.message()?)?,
            _ => return self.list_field(walker, field),
        }
        Ok(())
    }

    fn list_field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            8 => push(walker, &mut self.opsets, |walker| OperatorSet::read(walker, field.message()?)),
            14 => push(walker, &mut self.properties, |walker| Property::read(walker, field.message()?)),
            20 => push(walker, &mut self.training, |_| field.range()),
            25 => push(walker, &mut self.functions, |walker| Function::read(walker, field.message()?)),
            26 => push(walker, &mut self.devices, |_| field.range()),
            _ => Ok(()),
        }
    }
}

impl OperatorSet {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut set = Self::default();
        each(walker, message, |walker, field| {
            match field.number {
                1 => set.domain = field.text(walker)?,
                2 => set.version = field.signed()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(set)
    }
}

impl Property {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut property = Self::default();
        each(walker, message, |walker, field| {
            match field.number {
                1 => property.key = field.text(walker)?,
                2 => property.value = field.range()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(property)
    }

    /// The value, as text; what is not UTF-8 is replaced.
    ///
    /// # Errors
    /// E007 when reading fails, E008 over the limits.
    pub fn text(&self, walker: &mut Walker<'_>) -> Result<String> {
        Ok(String::from_utf8_lossy(&walker.bytes(self.value)?).into_owned())
    }
}

/// Calls `take` for each field of a message.
pub(crate) fn each(
    walker: &mut Walker<'_>,
    mut message: Message,
    mut take: impl FnMut(&mut Walker<'_>, &Field) -> Result<()>,
) -> Result<()> {
    while let Some(field) = message.next(walker)? {
        take(walker, &field)?;
    }
    Ok(())
}

/// Appends what is read, and counts the memory that it takes in the list.
pub(crate) fn push<'a, T>(
    walker: &mut Walker<'a>,
    list: &mut Vec<T>,
    read: impl FnOnce(&mut Walker<'a>) -> Result<T>,
) -> Result<()> {
    walker.keep(size_of::<T>() as u64)?;
    list.push(read(walker)?);
    Ok(())
}

/// A 32-bit number, as enumerations are.
pub(crate) fn small(field: &Field) -> Result<i32> {
    i32::try_from(field.signed()?)
        .map_err(|_| Error::format("a number exceeds the 32 bits that the format gives it").at(field.span.offset))
}
