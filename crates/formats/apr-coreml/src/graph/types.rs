//! Types of values: features of a description, and types of programs.
//!
//! ```text
//! ModelDescription     1: inputs  10: outputs       FeatureDescription  1: name  3: type
//! FeatureType          4: image (1: width 2: height 3: color space) 5: array (1: sizes 2: dtype)
//! ValueType            1: tensor (1: dtype  2: rank  3: sizes)
//! Dimension            1: constant (1: size)  2: not known
//! ```

use apr_core::Result;
use apr_core::protobuf::{Message, Walker};
use apr_graph::{Dim, ElementType, MAX_RANK, TensorType, ValueType};

/// Inputs and outputs of a model.
#[derive(Default)]
pub(super) struct Ends {
    pub(super) inputs: Vec<Feature>,
    pub(super) outputs: Vec<Feature>,
}

/// An input or output.
pub(super) struct Feature {
    pub(super) name: String,
    pub(super) kind: ValueType,
    /// The number of its color space, of an image.
    pub(super) color_space: Option<u64>,
}

/// Reads the inputs and outputs of a description.
///
/// # Errors
/// E002 for a damaged one, E007 when reading fails, E008 over the limit.
pub(super) fn ends(walker: &mut Walker<'_>, mut message: Message) -> Result<Ends> {
    let mut ends = Ends::default();
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => {
                walker.keep(size_of::<Feature>() as u64)?;
                ends.inputs.push(feature(walker, field.message()?)?);
            }
            10 => {
                walker.keep(size_of::<Feature>() as u64)?;
                ends.outputs.push(feature(walker, field.message()?)?);
            }
            _ => {}
        }
    }
    Ok(ends)
}

fn feature(walker: &mut Walker<'_>, mut message: Message) -> Result<Feature> {
    let (mut name, mut kind, mut color_space) = (String::new(), ValueType::Unknown, None);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => name = field.text(walker)?,
            3 => {
                let mut inner = field.message()?;
                while let Some(field) = inner.next(walker)? {
                    match field.number {
                        4 => {
                            let (of, space) = image(walker, field.message()?)?;
                            (kind, color_space) = (of, Some(space));
                        }
                        5 => kind = array(walker, field.message()?)?,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    // A number or a text: no tensor, and yet an input of some type.
    if kind == ValueType::Unknown {
        kind = ValueType::Tensor(TensorType::default());
    }
    Ok(Feature { name, kind, color_space })
}

/// An image: its planes, height and width; and its color space.
fn image(walker: &mut Walker<'_>, mut message: Message) -> Result<(ValueType, u64)> {
    /// The number of a color space with one plane.
    const GRAY: u64 = 10;

    let (mut width, mut height, mut space) = (0, 0, 0);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => width = field.integer()?,
            2 => height = field.integer()?,
            3 => space = field.integer()?,
            _ => {}
        }
    }
    let planes = if space == GRAY { 1 } else { 3 };
    let kind = ValueType::tensor(ElementType::F32, [planes, height, width].map(Dim::fixed));
    Ok((kind, space))
}

fn array(walker: &mut Walker<'_>, mut message: Message) -> Result<ValueType> {
    let (mut sizes, mut kind) = (Vec::new(), 0);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => field.integers(walker, &mut sizes)?,
            2 => kind = field.integer()?,
            _ => {}
        }
    }
    let element = match kind {
        65_552 => Some(ElementType::F16),
        65_568 => Some(ElementType::F32),
        65_600 => Some(ElementType::F64),
        131_080 => Some(ElementType::I8),
        131_104 => Some(ElementType::I32),
        _ => None,
    };
    Ok(shaped(element, Some(sizes)))
}

/// A tensor with these sizes; below 0 for one that is not known.
pub(super) fn shaped(element: Option<ElementType>, sizes: Option<Vec<i64>>) -> ValueType {
    let dim = |size: &i64| u64::try_from(*size).map_or(Dim::Unknown, Dim::fixed);
    let sizes = sizes.filter(|sizes| sizes.len() <= MAX_RANK);
    let shape = sizes.map(|sizes| sizes.iter().map(dim).collect());
    ValueType::Tensor(TensorType { element, shape })
}

/// Reads a `ValueType` of a program.
///
/// # Errors
/// E002 for a damaged one, E007 when reading fails, E008 over the limit.
pub(super) fn value_type(walker: &mut Walker<'_>, mut message: Message) -> Result<ValueType> {
    let mut kind = ValueType::Unknown;
    while let Some(field) = message.next(walker)? {
        if field.number == 1 {
            kind = tensor_type(walker, field.message()?)?;
        }
    }
    Ok(kind)
}

fn tensor_type(walker: &mut Walker<'_>, mut message: Message) -> Result<ValueType> {
    let (mut element, mut sizes, mut rank) = (None, Vec::new(), 0);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => element = self::element(field.integer()?),
            2 => rank = field.signed()?,
            3 if sizes.len() <= MAX_RANK => {
                let (mut size, mut dim) = (-1, field.message()?);
                while let Some(field) = dim.next(walker)? {
                    if field.number == 1 {
                        size = 0;
                        let mut constant = field.message()?;
                        while let Some(field) = constant.next(walker)? {
                            size = if field.number == 1 { field.signed()? } else { size };
                        }
                    }
                }
                sizes.push(size);
            }
            _ => {}
        }
    }
    Ok(shaped(element, (rank >= 0).then_some(sizes)))
}

/// The elements of a `DataType` of programs.
fn element(number: u64) -> Option<ElementType> {
    Some(match number {
        1 => ElementType::Bool,
        2 => ElementType::Text,
        10 => ElementType::F16,
        11 => ElementType::F32,
        12 => ElementType::F64,
        13 => ElementType::BF16,
        21 => ElementType::I8,
        22 => ElementType::I16,
        23 => ElementType::I32,
        24 => ElementType::I64,
        25 => ElementType::I4,
        31 => ElementType::U8,
        32 => ElementType::U16,
        33 => ElementType::U32,
        34 => ElementType::U64,
        35 => ElementType::U4,
        36 => ElementType::U2,
        _ => return None,
    })
}
