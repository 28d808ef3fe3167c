//! Types of values.

use apr_core::Result;
use apr_core::protobuf::{Field, Message, Span, Walker};

use super::entries::Property;
use super::walk::{each, push, small};

/// A value with its type: `ValueInfoProto`.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ValueInfo {
    /// Name of the value.
    pub name: String,
    /// Declared type of the value.
    pub kind: Type,
    /// Description for people, not read.
    pub doc: Option<Span>,
    /// Free pairs of keys and values.
    pub properties: Vec<Property>,
}

/// The type of a value: `TypeProto`.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Type {
    /// Kind of the type.
    pub kind: TypeKind,
    /// Meaning of the value as a keyword, such as `IMAGE`.
    pub denotation: String,
}

/// Kind of a value's type.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum TypeKind {
    /// The file does not declare the type.
    #[default]
    Unknown,
    /// A tensor: number of the element type, and the dimensions if the file has them.
    Tensor(i32, Option<Vec<Dimension>>),
    /// A sparse tensor, as [`Tensor`](Self::Tensor).
    SparseTensor(i32, Option<Vec<Dimension>>),
    /// A list of values.
    Sequence(Box<Type>),
    /// A value that may be missing.
    Optional(Box<Type>),
    /// Values by keys: number of the keys' element type.
    Map(i32, Box<Type>),
    /// A type that only programs with another operator set support: domain and name.
    Opaque(String, String),
}

/// A dimension: `TensorShapeProto.Dimension`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Dimension {
    /// Size of the dimension.
    pub size: Option<i64>,
    /// The name of its size; empty for none.
    pub name: String,
}

impl ValueInfo {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut info = Self::default();
        each(walker, message, |walker, field| {
            match field.number {
                1 => info.name = field.text(walker)?,
                2 => info.kind.merge(walker, field.message()?)?,
                3 => info.doc = Some(field.range()?),
                4 => push(walker, &mut info.properties, |walker| {
                    Property::read(walker, field.message()?)
                })?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(info)
    }
}

impl Type {
    pub(crate) fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut kind = Self::default();
        kind.merge(walker, message)?;
        Ok(kind)
    }

    pub(crate) fn merge(&mut self, walker: &mut Walker<'_>, message: Message) -> Result<()> {
        each(walker, message, |walker, field| {
            match field.number {
                1 => {
                    let (element, shape) = tensor(walker, field.message()?, &self.kind)?;
                    self.kind = TypeKind::Tensor(element, shape);
                }
                4 => self.kind = TypeKind::Sequence(inner(walker, field, 1)?),
                5 => self.kind = map(walker, field.message()?)?,
                6 => self.denotation = field.text(walker)?,
                7 => self.kind = opaque(walker, field.message()?)?,
                8 => {
                    let (element, shape) = tensor(walker, field.message()?, &self.kind)?;
                    self.kind = TypeKind::SparseTensor(element, shape);
                }
                9 => self.kind = TypeKind::Optional(inner(walker, field, 1)?),
                _ => {}
            }
            Ok(())
        })
    }
}

/// Reads the type of a tensor and merges it into the type from earlier pieces of the message.
fn tensor(
    walker: &mut Walker<'_>,
    message: Message,
    before: &TypeKind,
) -> Result<(i32, Option<Vec<Dimension>>)> {
    let (mut element, mut shape) = match before {
        TypeKind::Tensor(element, shape) | TypeKind::SparseTensor(element, shape) => {
            (*element, shape.clone())
        }
        _ => (0, None),
    };

    each(walker, message, |walker, field| {
        match field.number {
            1 => element = small(field)?,
            2 => {
                let dims = shape.get_or_insert_default();
                each(walker, field.message()?, |walker, field| match field.number {
                    1 => push(walker, dims, |walker| Dimension::read(walker, field.message()?)),
                    _ => Ok(()),
                })?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok((element, shape))
}

/// Reads the type in the field with this number, from a message that has no other field.
fn inner(walker: &mut Walker<'_>, field: &Field, number: u32) -> Result<Box<Type>> {
    let mut kind = Type::default();
    each(walker, field.message()?, |walker, field| {
        if field.number == number { kind.merge(walker, field.message()?) } else { Ok(()) }
    })?;

    // No list counts the memory of the box.
    walker.keep(size_of::<Type>() as u64)?;
    Ok(Box::new(kind))
}

fn map(walker: &mut Walker<'_>, message: Message) -> Result<TypeKind> {
    let (mut key, mut value) = (0, Type::default());
    each(walker, message, |walker, field| {
        match field.number {
            1 => key = small(field)?,
            2 => value.merge(walker, field.message()?)?,
            _ => {}
        }
        Ok(())
    })?;
    walker.keep(size_of::<Type>() as u64)?;
    Ok(TypeKind::Map(key, Box::new(value)))
}

fn opaque(walker: &mut Walker<'_>, message: Message) -> Result<TypeKind> {
    let (mut domain, mut name) = (String::new(), String::new());
    each(walker, message, |walker, field| {
        match field.number {
            1 => domain = field.text(walker)?,
            2 => name = field.text(walker)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(TypeKind::Opaque(domain, name))
}

impl Dimension {
    fn read(walker: &mut Walker<'_>, message: Message) -> Result<Self> {
        let mut dimension = Self::default();
        each(walker, message, |walker, field| {
            match field.number {
                1 => dimension.size = Some(field.signed()?),
                2 => dimension.name = field.text(walker)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(dimension)
    }
}
