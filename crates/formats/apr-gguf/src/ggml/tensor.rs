//! Tensor headers, and what ggml's type numbers meant when a file was written.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use apr_core::{DType, Error, Limits, Result, Shape, TensorInfo};

use super::block::{Nibbles, OldBlock};
use super::cursor::Cursor;
use crate::from_ggml_type;

/// Maximum number of dimensions of ggml's tensors.
const MAX_DIMS: u32 = 4;
/// Largest dimension: ggml reads it into an i32.
const MAX_DIM: u32 = i32::MAX.cast_unsigned();
/// Longest name, in bytes; ggml's own stop at 64.
const MAX_NAME_LEN: u32 = 4096;
/// Bytes that a tensor counts for against the limit of the index, besides its name.
const INDEX_ENTRY: u64 = 64;
/// `ggjt` aligns data to this many bytes.
const ALIGNMENT: u64 = 32;

/// Layout of the quantized tensors of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generation {
    /// Nibbles in pairs, f32 scales. `unclear`: or all scales of a row before its nibbles, for Q4_0
    /// and Q4_1.
    Pairs {
        /// `true` if the file may be older than blocks.
        unclear: bool,
    },
    /// Nibbles in halves, f32 scales.
    Halves,
    /// The current layout.
    Current,
    /// The layout of a later version, or of a program with its own type numbers.
    Unknown,
}

/// Conversion from a tensor's stored bytes to the bytes of its dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// The stored bytes are the bytes of the dtype.
    Plain(DType),
    /// Block by block.
    Old(OldBlock),
}

impl Encoding {
    /// Returns the encoding with ggml's type number.
    fn of(number: i32, generation: Generation, origin: &str) -> Result<Self> {
        use Generation::{Current, Halves, Pairs, Unknown};

        let known = u32::try_from(number).ok().and_then(from_ggml_type);
        Ok(Self::Old(match (number, generation) {
            (0 | 1, _)
            | (10..=14, Pairs { .. } | Halves | Current)
            | (2 | 3 | 8, Current)
            | (6 | 7, Halves | Current) => {
                return known
                    .map(Self::Plain)
                    .ok_or_else(|| Error::format(format!("{number} is not a tensor type")));
            }
            (2 | 3, Pairs { unclear: true }) => {
                return Err(Error::version(format!(
                    "{origin} stores {} in one of two layouts that the file does not \
                     distinguish; convert the original model again, or its f16 file",
                    if number == 2 { "q4_0" } else { "q4_1" }
                )));
            }
            (2, Pairs { .. }) => OldBlock::Q4_0(Nibbles::Pairs),
            (3, Pairs { .. }) => OldBlock::Q4_1(Nibbles::Pairs),
            (4, Pairs { .. }) => OldBlock::Q4_2,
            (5, Pairs { .. }) => OldBlock::Q4_3,
            (6, Pairs { .. }) => OldBlock::Q5_0,
            (7, Pairs { .. }) => OldBlock::Q5_1,
            (2, Halves) => OldBlock::Q4_0(Nibbles::Halves),
            (3, Halves) => OldBlock::Q4_1(Nibbles::Halves),
            (8, Pairs { .. } | Halves) => OldBlock::Q8_0,
            (2..=14, Unknown) => {
                let message =
                    format!("{origin} has quantized tensors (type {number}) in an unknown layout");
                return Err(Error::version(format!(
                    "{message}; convert the original model again, or its f16 file"
                )));
            }
            _ => {
                return Err(Error::format(format!("{number} is not a tensor type of this format")));
            }
        }))
    }

    fn dtype(self) -> DType {
        match self {
            Self::Plain(dtype) => dtype,
            Self::Old(block) => block.dtype(),
        }
    }

    /// Returns the number of bytes in the file, or `None` if the shape does not fit the blocks.
    fn stored_len(self, shape: &Shape) -> Option<u64> {
        let decoded = self.dtype().stored_len(shape)?;
        let Self::Old(block) = self else { return Some(decoded) };
        let block_len = block.elements() as u64;
        let whole = shape.row_len().is_multiple_of(block_len);
        (shape.elements()? / block_len).checked_mul(block.stored_bytes() as u64).filter(|_| whole)
    }
}

/// A tensor and its position in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) info: TensorInfo,
    pub(super) offset: u64,
    pub(super) stored_len: u64,
    pub(super) encoding: Encoding,
}

/// Properties shared by the tensors of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) generation: Generation,
    pub(super) aligned: bool,
    /// The file's format and version, for messages.
    pub(super) origin: &'a str,
    pub(super) limits: &'a Limits,
}

impl Rules<'_> {
    /// Reads headers up to the end of the file, and skips data. Calls `passed` with the end of each
    /// tensor.
    pub(super) fn read_all(
        self,
        cursor: &mut Cursor<'_>,
        passed: &mut dyn FnMut(u64),
    ) -> Result<Vec<Tensor>> {
        let (mut tensors, mut index_len) = (Vec::new(), 0);
        while cursor.left() > 0 {
            let tensor = self.read(cursor)?;
            index_len += INDEX_ENTRY + tensor.info.name.len() as u64;
            self.limits.check_index(index_len).map_err(|error| error.at(tensor.offset))?;
            tensors.push(tensor);
            passed(cursor.at());
        }

        let mut names = HashSet::new();
        match tensors.iter().find(|tensor| !names.insert(tensor.info.name.as_str())) {
            Some(Tensor { info, offset, .. }) => {
                Err(Error::format("another tensor has the same name")
                    .for_tensor(&info.name)
                    .at(*offset))
            }
            None => Ok(tensors),
        }
    }

    fn read(self, cursor: &mut Cursor<'_>) -> Result<Tensor> {
        let start = cursor.at();
        let n_dims = bounded(cursor, "a tensor's number of dimensions", 0..=MAX_DIMS)?;
        let name_len = bounded(cursor, "the length of a tensor's name", 1..=MAX_NAME_LEN)?;
        let type_number = cursor.i32("a tensor's type")?;

        // Zero would be an empty tensor, which ggml never writes.
        let dims = (0..n_dims)
            .map(|_| bounded(cursor, "a tensor's dimension", 1..=MAX_DIM).map(u64::from));
        let mut dims = dims.collect::<Result<Vec<_>>>()?;
        dims.reverse();
        let name_at = cursor.at();
        let name = str::from_utf8(cursor.take(name_len as usize, "a tensor's name")?)
            .map_err(|_| Error::format("a tensor's name is not UTF-8").at(name_at))?
            .to_owned();
        let encoding = Encoding::of(type_number, self.generation, self.origin)
            .map_err(|error| error.for_tensor(&name).at(start + 8))?;
        self.place(cursor, start, name, dims.into(), encoding)
    }

    fn place(
        self,
        cursor: &mut Cursor<'_>,
        start: u64,
        name: String,
        shape: Shape,
        encoding: Encoding,
    ) -> Result<Tensor> {
        let padding =
            if self.aligned { cursor.at().next_multiple_of(ALIGNMENT) - cursor.at() } else { 0 };
        cursor
            .skip(padding, "the padding before a tensor's data")
            .map_err(|error| error.for_tensor(&name))?;
        let dtype = encoding.dtype();
        let stored_len = encoding.stored_len(&shape).ok_or_else(|| {
            let message = format!("the shape {shape} is not compatible with the tensor's type");
            Error::format(message).for_tensor(&name).at(start)
        })?;
        let offset = cursor.at();
        cursor.skip(stored_len, "the tensor's data").map_err(|error| error.for_tensor(&name))?;
        Ok(Tensor { info: TensorInfo { name, dtype, shape }, offset, stored_len, encoding })
    }
}

/// Reads a number that must be in `range`.
fn bounded(cursor: &mut Cursor<'_>, what: &str, range: RangeInclusive<u32>) -> Result<u32> {
    let at = cursor.at();
    let value = cursor.i32(what)?;
    u32::try_from(value).ok().filter(|value| range.contains(value)).ok_or_else(|| {
        Error::format(format!(
            "{what} is {value}, which is not within {} to {}",
            range.start(),
            range.end()
        ))
        .at(at)
    })
}
