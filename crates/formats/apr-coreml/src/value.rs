//! Values of programs.
//!
//! ```text
//! Value       2: type  3: immediate value  5: blob in a file
//! type        1: tensor type               tensor type    1: elements  2: rank  3: dimension
//! dimension   1: constant  2: unknown      constant       1: size
//! immediate   1: tensor value  3: list (1: value)
//!                                          blob           1: file name  2: place of its header
//! tensor value, of which each has its values as field 1:
//!             1: floats  2: ints  3: bools  4: texts  5: long ints  6: doubles  7: bytes
//! ```

use apr_core::protobuf::{Element, Field, Message, Runs, Span, Value, Walker};
use apr_core::{DType, Error, Result, StoredRange};
use serde_json::Value as Label;

use crate::blob::Files;
use crate::tensor::{Bytes, Encoding, Tensor};

/// Maximum number of dimensions of a tensor. With a palette of vectors, it has up to 7.
const MAX_RANK: usize = 64;

/// Value of a constant.
#[derive(Debug)]
pub(crate) enum Constant {
    Tensor(Tensor),
    Text(String),
    /// A list, a dictionary or texts, which are not used in computations.
    Other,
}

/// The type of a value.
enum Type {
    Tensor { encoding: Encoding, dims: Vec<u64> },
    Text,
    Other,
}

impl Constant {
    /// Reads a value, without the bytes of tensors.
    ///
    /// # Errors
    /// E001 and E002 for a damaged one, E003 for elements that no format here holds, E007 when
    /// reading fails, E008 over the limit.
    pub(crate) fn read(
        walker: &mut Walker<'_>,
        mut message: Message,
        files: &mut Files<'_>,
    ) -> Result<Self> {
        let (mut kind, mut immediate, mut blob) = (None, None, None);
        while let Some(field) = message.next(walker)? {
            match field.number {
                2 => kind = Some(field.message()?),
                3 => immediate = Some(field.message()?),
                5 => blob = Some(field.message()?),
                _ => {}
            }
        }
        let kind = kind.map(|kind| Type::read(walker, kind)).transpose()?.unwrap_or(Type::Other);
        match (kind, immediate, blob) {
            (Type::Tensor { encoding, dims }, _, Some(mut blob)) => {
                let (mut name, mut offset) = (String::new(), 0);
                while let Some(field) = blob.next(walker)? {
                    match field.number {
                        1 => name = field.text(walker)?,
                        2 => offset = field.integer()?,
                        _ => {}
                    }
                }
                files.blob(&name, offset, encoding, dims).map(Self::Tensor)
            }
            (Type::Tensor { encoding, dims }, Some(immediate), None) => {
                let bytes = immediate_bytes(walker, immediate, encoding)?;
                Tensor::stored(bytes, encoding, dims).map(Self::Tensor)
            }
            (Type::Text, Some(immediate), None) => {
                let Some((field, 4)) = tensor_value(walker, immediate)? else {
                    return Ok(Self::Other);
                };
                let mut texts = field.message()?;
                let text = texts.next(walker)?.map(|field| field.text(walker)).transpose()?;
                Ok(text.map_or(Self::Other, Self::Text))
            }
            _ => Ok(Self::Other),
        }
    }
}

impl Type {
    fn read(walker: &mut Walker<'_>, mut message: Message) -> Result<Self> {
        let mut tensor = None;
        while let Some(field) = message.next(walker)? {
            if field.number == 1 {
                tensor = Some(field.message()?);
            }
        }
        let Some(mut tensor) = tensor else { return Ok(Self::Other) };
        let (mut number, mut rank, mut dims) = (0, 0, Vec::new());
        while let Some(field) = tensor.next(walker)? {
            match field.number {
                1 => number = field.integer()?,
                2 => rank = field.integer()?,
                3 => {
                    if dims.len() == MAX_RANK {
                        let message = format!("a tensor has more than {MAX_RANK} dimensions");
                        return Err(Error::corrupt(message).at(field.span.offset));
                    }
                    dims.push(dimension(walker, field.message()?)?);
                }
                _ => {}
            }
        }
        if rank != dims.len() as u64 {
            return Err(Error::corrupt(format!("a tensor of rank {rank} has shape {dims:?}")));
        }
        if number == TEXT {
            return Ok(if dims.is_empty() { Self::Text } else { Self::Other });
        }
        Ok(Self::Tensor { encoding: encoding(number)?, dims })
    }
}

/// The size of a dimension.
fn dimension(walker: &mut Walker<'_>, mut message: Message) -> Result<u64> {
    let mut size = None;
    while let Some(field) = message.next(walker)? {
        if field.number == 1 {
            size = Some(0);
            let mut constant = field.message()?;
            while let Some(field) = constant.next(walker)? {
                if field.number == 1 {
                    size = Some(field.integer()?);
                }
            }
        }
    }
    size.ok_or_else(|| Error::version("a constant has a dimension of unknown size"))
}

/// Texts among the numbers of types.
const TEXT: u64 = 2;

/// Returns the storage form of elements of a type.
fn encoding(number: u64) -> Result<Encoding> {
    Ok(match number {
        1 => Encoding::Whole(DType::BOOL),
        10 => Encoding::Whole(DType::F16),
        11 => Encoding::Whole(DType::F32),
        12 => Encoding::Whole(DType::F64),
        13 => Encoding::Whole(DType::BF16),
        21 => Encoding::Whole(DType::I8),
        22 => Encoding::Whole(DType::I16),
        23 => Encoding::Whole(DType::I32),
        24 => Encoding::Whole(DType::I64),
        25 => Encoding::bits(4, true),
        31 => Encoding::Whole(DType::U8),
        32 => Encoding::Whole(DType::U16),
        33 => Encoding::Whole(DType::U32),
        34 => Encoding::Whole(DType::U64),
        35 => Encoding::bits(4, false),
        36 => Encoding::bits(2, false),
        37 => Encoding::bits(1, false),
        38 => Encoding::bits(6, false),
        39 => Encoding::bits(3, false),
        40 => Encoding::Whole(DType::F8_E4M3),
        41 => Encoding::Whole(DType::F8_E5M2),
        _ => return Err(Error::version(format!("no format here holds elements of type {number}"))),
    })
}

/// The values of an immediate tensor, and the field that they are in.
fn tensor_value(walker: &mut Walker<'_>, mut immediate: Message) -> Result<Option<(Field, u32)>> {
    let mut found = None;
    while let Some(field) = immediate.next(walker)? {
        if field.number == 1 {
            let mut tensor = field.message()?;
            while let Some(field) = tensor.next(walker)? {
                found = Some((field, field.number));
            }
        }
    }
    Ok(found)
}

/// Returns the texts or integers of a list: the class labels of a classifier.
///
/// # Errors
/// E001 and E002 for a damaged one, E007 when reading fails, E008 over the limit.
pub(crate) fn list_of(walker: &mut Walker<'_>, value: Message) -> Result<Vec<Label>> {
    /// The fields of an immediate value that a list is.
    const LIST: u32 = 3;

    let mut labels = Vec::new();
    let immediates = |walker: &mut Walker<'_>, mut value: Message| {
        let mut found = None;
        while let Some(field) = value.next(walker)? {
            if field.number == 3 {
                found = Some(field.message()?);
            }
        }
        Ok::<_, Error>(found)
    };
    let Some(mut immediate) = immediates(walker, value)? else { return Ok(labels) };
    while let Some(field) = immediate.next(walker)? {
        if field.number != LIST {
            continue;
        }
        let mut list = field.message()?;
        while let Some(item) = list.next(walker)? {
            let item = immediates(walker, item.message()?)?;
            let Some(item) = item else { continue };
            let Some((tensor, kind)) = tensor_value(walker, item)? else { continue };
            walker.keep(size_of::<Label>() as u64)?;
            let mut values = tensor.message()?;
            while let Some(field) = values.next(walker)? {
                match kind {
                    4 => labels.push(field.text(walker)?.into()),
                    2 | 5 => {
                        let mut numbers = Vec::new();
                        field.integers(walker, &mut numbers)?;
                        labels.extend(numbers.into_iter().map(Label::from));
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(labels)
}

/// Returns the location of an immediate tensor's bytes, or the bytes if they are stored one by one.
fn immediate_bytes(
    walker: &mut Walker<'_>,
    immediate: Message,
    encoding: Encoding,
) -> Result<Bytes> {
    let Some((values, kind)) = tensor_value(walker, immediate)? else {
        let message = "a tensor has neither values nor a file with them";
        return Err(Error::version(message));
    };
    let mut message = values.message()?;
    match (kind, encoding) {
        (7, _) => {
            let mut span = Span { offset: values.range()?.offset, len: 0 };
            while let Some(field) = message.next(walker)? {
                if field.number == 1 {
                    span = field.range()?;
                }
            }
            Ok(Bytes::File(in_model(span)))
        }
        (1, Encoding::Whole(DType::F32)) => fixed(walker, message, Element::Fixed32, &values),
        (6, Encoding::Whole(DType::F64)) => fixed(walker, message, Element::Fixed64, &values),
        (2 | 3 | 5, Encoding::Whole(dtype)) if !dtype.is_float() => {
            let mut numbers = Vec::new();
            while let Some(field) = message.next(walker)? {
                if field.number == 1 {
                    field.integers(walker, &mut numbers)?;
                }
            }
            let width = usize::try_from(dtype.block_bytes()).unwrap_or(8);
            let bytes =
                numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(width));
            Ok(Bytes::Kept(bytes.collect(), in_model(values.range()?)))
        }
        _ => {
            let message = format!("its {} elements are written in another way", encoding.dtype());
            Err(Error::version(message).at(values.span.offset))
        }
    }
}

/// Returns the range of a span in the model's file.
pub(crate) fn in_model(span: Span) -> StoredRange {
    StoredRange { file: 0, offset: span.offset, len: span.len }
}

/// Reads floats, which are contiguous in most files.
fn fixed(
    walker: &mut Walker<'_>,
    mut message: Message,
    element: Element,
    values: &Field,
) -> Result<Bytes> {
    let mut runs = Runs::default();
    while let Some(field) = message.next(walker)? {
        if field.number == 1 {
            runs.add(walker, &field, element)?;
        }
    }
    of_runs(walker, &runs, element, values.range()?)
}

/// Returns the location of repeated floats if they are contiguous, or else their bytes.
pub(crate) fn of_runs(
    walker: &mut Walker<'_>,
    runs: &Runs,
    element: Element,
    range: Span,
) -> Result<Bytes> {
    if let [run] = runs.runs()
        && run.key_len == 0
    {
        return Ok(Bytes::File(in_model(run.span)));
    }
    let mut bytes = Vec::new();
    for run in runs.runs() {
        let raw = walker.bytes(run.span)?;
        let width = usize::try_from(element.width().unwrap_or(8)).unwrap_or(8);
        let key = usize::try_from(run.key_len).unwrap_or_default();
        raw.chunks_exact(key + width).for_each(|value| bytes.extend(&value[key..]));
    }
    Ok(Bytes::Kept(bytes, in_model(range)))
}

/// The integers of a small tensor: a shape, an axis.
///
/// # Errors
/// E002 where they are no integers or too many, E007 when reading fails.
pub(crate) fn integers(tensor: &Tensor, files: &Files<'_>) -> Result<Vec<i64>> {
    let is_whole = matches!(tensor.dtype, DType::I32 | DType::U32 | DType::I64 | DType::U64);
    if !is_whole || tensor.len() > MAX_RANK as u64 {
        return Err(Error::corrupt("a shape or an axis must be a short list of integers"));
    }
    let width = usize::try_from(tensor.dtype.block_bytes()).unwrap_or(8);
    let mut bytes = vec![0; usize::try_from(tensor.len()).unwrap_or_default() * width];
    tensor.read(&files.sources, 0, &mut bytes)?;
    let number = |bytes: &[u8]| match (tensor.dtype, bytes) {
        (DType::I32, &[a, b, c, d]) => i64::from(i32::from_le_bytes([a, b, c, d])),
        (DType::U32, &[a, b, c, d]) => i64::from(u32::from_le_bytes([a, b, c, d])),
        (_, bytes) => bytes.try_into().map(i64::from_le_bytes).unwrap_or_default(),
    };
    Ok(bytes.chunks_exact(width).map(number).collect())
}

/// Returns `true` if a field can hold a message.
pub(crate) const fn is_delimited(field: &Field) -> bool {
    matches!(field.value, Value::Bytes(_))
}
