//! Attributes of nodes.
//!
//! ```text
//! AttrValue   1: list  2: text  3: integer  4: float  5: bool  6: dtype  7: shape  8: tensor
//!             10: function (1: name)
//! list        the same numbers, repeated; 9: functions
//! shape       2: sizes (1: size)  3: whether the number of them is not known
//! ```

use apr_core::protobuf::{Field, Message, Walker};
use apr_core::{Error, Result};
use apr_graph::{Attribute, AttributeValue, Dim, ElementType, TensorType};

use crate::dtype;

/// Maximum number of items of a list that is shown.
const MOST_ITEMS: usize = 4096;

/// Value of an attribute.
#[derive(Debug, Default)]
pub(super) struct Value {
    /// Value as the graph shows it. Tensors are not shown.
    pub(super) shown: Option<AttributeValue>,
    /// A type of elements, by its number.
    pub(super) dtype: Option<u64>,
    /// Shape; the inner option is `None` if the number of dimensions is unknown.
    pub(super) shape: Option<Option<Vec<i64>>>,
    /// Message of a tensor.
    pub(super) tensor: Option<Message>,
    /// The name of a function.
    pub(super) function: Option<String>,
    /// Shapes of a list.
    pub(super) shapes: Vec<Option<Vec<i64>>>,
}

/// Reads an entry of a node's attributes: name and value.
///
/// # Errors
/// E002 for a damaged one, E007 when reading fails, E008 over the limit.
pub(super) fn entry(walker: &mut Walker<'_>, mut message: Message) -> Result<(String, Value)> {
    let (mut name, mut value) = (String::new(), Value::default());
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => name = field.text(walker)?,
            2 => value = read(walker, field.message()?)?,
            _ => {}
        }
    }
    Ok((name, value))
}

fn read(walker: &mut Walker<'_>, mut message: Message) -> Result<Value> {
    let mut value = Value::default();
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => list(walker, field.message()?, &mut value)?,
            2 => value.shown = Some(AttributeValue::Text(field.bytes(walker)?)),
            3 | 5 => value.shown = Some(AttributeValue::Int(field.signed()?)),
            4 => value.shown = Some(AttributeValue::Float(field.float()?)),
            6 => {
                let number = field.integer()?;
                value.dtype = Some(number);
                value.shown = Some(AttributeValue::from(dtype::name(number).as_str()));
            }
            7 => {
                let dims = shape(walker, field.message()?)?;
                value.shown = Some(AttributeValue::Ints(dims.clone().unwrap_or_default()));
                value.shape = Some(dims);
            }
            8 => value.tensor = Some(field.message()?),
            10 => {
                let mut function = field.message()?;
                while let Some(field) = function.next(walker)? {
                    if field.number == 1 {
                        let name = field.text(walker)?;
                        value.shown = Some(AttributeValue::from(name.as_str()));
                        value.function = Some(name);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(value)
}

fn list(walker: &mut Walker<'_>, mut message: Message, value: &mut Value) -> Result<()> {
    let (mut texts, mut ints, mut floats) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(field) = message.next(walker)? {
        match field.number {
            2 => texts.push(field.bytes(walker)?),
            3 | 5 => field.integers(walker, &mut ints)?,
            4 => field.floats(walker, &mut floats)?,
            6 => {
                let mut numbers = Vec::new();
                field.integers(walker, &mut numbers)?;
                let names = numbers.iter().map(|number| dtype::name(number.cast_unsigned()));
                texts.extend(names.map(String::into_bytes));
            }
            7 => value.shapes.push(shape(walker, field.message()?)?),
            9 => texts.push(function_name(walker, &field)?),
            _ => {}
        }
        walker.keep(size_of::<Vec<u8>>() as u64)?;
    }
    value.shown = match () {
        () if texts.len().max(ints.len()).max(floats.len()) > MOST_ITEMS => None,
        () if !texts.is_empty() => Some(AttributeValue::Texts(texts)),
        () if !floats.is_empty() => Some(AttributeValue::Floats(floats)),
        () if !ints.is_empty() => Some(AttributeValue::Ints(ints)),
        () => None,
    };
    Ok(())
}

fn function_name(walker: &mut Walker<'_>, field: &Field) -> Result<Vec<u8>> {
    let (mut name, mut message) = (Vec::new(), field.message()?);
    while let Some(field) = message.next(walker)? {
        if field.number == 1 {
            name = field.bytes(walker)?;
        }
    }
    Ok(name)
}

/// Reads the sizes of a shape, with -1 for unknown ones. `None` if their number is unknown.
fn shape(walker: &mut Walker<'_>, mut message: Message) -> Result<Option<Vec<i64>>> {
    let (mut dims, mut is_known) = (Vec::new(), true);
    while let Some(field) = message.next(walker)? {
        match field.number {
            2 => {
                let (mut size, mut dim) = (0, field.message()?);
                while let Some(field) = dim.next(walker)? {
                    size = if field.number == 1 { field.signed()? } else { size };
                }
                if dims.len() >= apr_graph::MAX_RANK {
                    return Err(Error::corrupt("a shape has too many sizes"));
                }
                dims.push(size);
            }
            3 => is_known = field.integer()? == 0,
            _ => {}
        }
    }
    Ok(is_known.then_some(dims))
}

/// The type of a value with these elements and this shape.
pub(super) fn tensor_type(
    dtype: Option<u64>,
    shape: Option<&Option<Vec<i64>>>,
    is_input: bool,
) -> TensorType {
    let dim = |(position, size): (usize, &i64)| match u64::try_from(*size) {
        Ok(size) => Dim::fixed(size),
        Err(_) if is_input && position == 0 => Dim::symbol("batch"),
        Err(_) => Dim::Unknown,
    };
    let shape = shape.and_then(Option::as_ref);
    TensorType {
        element: dtype.and_then(element),
        shape: shape.map(|dims| dims.iter().enumerate().map(dim).collect()),
    }
}

/// The elements of a type, by its number in `types.proto`.
fn element(number: u64) -> Option<ElementType> {
    match number {
        dtype::STRING => Some(ElementType::Text),
        18 => Some(ElementType::C128),
        29 => Some(ElementType::I4),
        30 => Some(ElementType::U4),
        number => ElementType::from_dtype(dtype::dtype(number).ok()?),
    }
}

/// An attribute with a name.
pub(super) fn named(name: &str, value: AttributeValue) -> Attribute {
    Attribute { name: name.into(), value }
}
