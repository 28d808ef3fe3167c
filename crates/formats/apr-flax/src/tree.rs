//! The tree of a Flax program's variables: maps of maps, whose leaves are arrays.
//!
//! ```text
//! array          extension 1: [shape], name of the dtype, bytes
//! number         extension 3: the same
//! long array     { "__msgpack_chunked_array__": true, "shape": { "0": n, .. },
//!                  "chunks": { "0": array, .. } }
//! ```

use std::ops::Range;

use apr_core::{DType, Error, Escaped, Result, StoredRange};

use crate::messagepack::{Cursor, Value};

/// Maps in each other.
const MAX_DEPTH: usize = 100;

/// Dimensions of an array.
const MAX_RANK: u64 = 64;

/// The key of an array in pieces.
const CHUNKED: &str = "__msgpack_chunked_array__";

/// Numbers of Flax's own extensions.
const NDARRAY: i8 = 1;
const NUMBER: i8 = 3;

/// An array, in one piece or in several that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Array {
    pub(crate) path: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) parts: Vec<StoredRange>,
}

/// Contents of a file.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) arrays: Vec<Array>,
    /// Values that are not readable arrays, as errors.
    pub(crate) refused: Vec<Error>,
}

/// Returns the dtype with this NumPy name.
fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "float32" => DType::F32,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "float64" => DType::F64,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "bool" => DType::BOOL,
        "complex64" => DType::C64,
        "float8_e4m3fn" => DType::F8_E4M3,
        "float8_e5m2" => DType::F8_E5M2,
        "float8_e4m3fnuz" => DType::F8_E4M3FNUZ,
        "float8_e5m2fnuz" => DType::F8_E5M2FNUZ,
        _ => return None,
    })
}

impl Tree {
    /// Reads the tree.
    ///
    /// # Errors
    /// E001 for what is none, E002 for a damaged file, E007 when reading fails, E008 over a limit.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let mut tree = Self::default();
        match cursor.next()? {
            Value::Map(count) => tree.map(cursor, count, "", 0)?,
            _ => return Err(Error::format("the file must be a map of variables").at(0)),
        }
        Ok(tree)
    }

    fn map(&mut self, cursor: &mut Cursor<'_>, count: u64, path: &str, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::format("maps are nested too deep").at(cursor.at()));
        }
        for number in 0..count {
            let at = cursor.at();
            let key = match cursor.next()? {
                Value::Text(range) | Value::Bytes(range) => cursor.text(&range)?,
                _ => return Err(Error::format("the key of a map must be text").at(at)),
            };
            if number == 0 && key == CHUNKED {
                return self.chunked(cursor, count, path);
            }
            let inner = if path.is_empty() { key } else { format!("{path}/{key}") };
            cursor.keep((inner.len() + size_of::<Array>()) as u64)?;
            let value = cursor.next()?;
            self.value(cursor, value, &inner, depth)?;
        }
        Ok(())
    }

    fn value(
        &mut self,
        cursor: &mut Cursor<'_>,
        value: Value,
        path: &str,
        depth: usize,
    ) -> Result<()> {
        match value {
            Value::Map(count) => self.map(cursor, count, path, depth + 1)?,
            Value::List(count) => {
                if depth > MAX_DEPTH {
                    return Err(Error::format("lists are nested too deep").at(cursor.at()));
                }
                for number in 0..count {
                    let inner = format!("{path}/{number}");
                    cursor.keep((inner.len() + size_of::<Array>()) as u64)?;
                    let value = cursor.next()?;
                    self.value(cursor, value, &inner, depth + 1)?;
                }
            }
            Value::Extension(NDARRAY | NUMBER, range) => match array(cursor, &range) {
                Ok((dtype, dims, range)) => {
                    self.arrays.push(Array {
                        path: path.to_owned(),
                        dtype,
                        dims,
                        parts: vec![range],
                    });
                }
                Err(error) => self.refuse(error, path)?,
            },
            other => self.refuse(Error::version(format!("it is {}", what(&other))), path)?,
        }
        Ok(())
    }

    /// Records a value that no dtype here supports, and returns the error for damaged data.
    fn refuse(&mut self, error: Error, path: &str) -> Result<()> {
        let error = error.for_tensor(Escaped::short(path));
        if error.code() != apr_core::Code::Version {
            return Err(error);
        }
        self.refused.push(error);
        Ok(())
    }

    /// Reads an array in pieces, whose first key was already read.
    fn chunked(&mut self, cursor: &mut Cursor<'_>, count: u64, path: &str) -> Result<()> {
        let damaged = |at| Error::corrupt("an array in pieces is damaged").at(at);
        cursor.next()?;
        let (mut dims, mut chunks) = (Vec::new(), Tree::default());
        for _ in 1..count {
            let at = cursor.at();
            let Value::Text(key) = cursor.next()? else { return Err(damaged(at)) };
            let key = cursor.text(&key)?;
            let Value::Map(count) = cursor.next()? else { return Err(damaged(at)) };
            match key.as_str() {
                "shape" if count <= MAX_RANK => {
                    for _ in 0..count {
                        let (_key, size) = (cursor.next()?, cursor.next()?);
                        dims.push(dim(&size).ok_or_else(|| damaged(at))?);
                    }
                }
                "chunks" => chunks.map(cursor, count, "", MAX_DEPTH)?,
                _ => return Err(damaged(at)),
            }
        }
        let at = cursor.at();
        if let Some(refused) = chunks.refused.pop() {
            return self.refuse(Error::new(refused.code(), refused.message()), path);
        }
        // They are numbered, and may be in any order.
        chunks.arrays.sort_by_key(|chunk| chunk.path.parse().unwrap_or(u64::MAX));
        let dtype = chunks.arrays.first().map(|chunk| chunk.dtype).ok_or_else(|| damaged(at))?;
        let parts: Vec<StoredRange> =
            chunks.arrays.iter().flat_map(|chunk| chunk.parts.iter().copied()).collect();
        let len = parts.iter().try_fold(0_u64, |len, part| len.checked_add(part.len));
        if chunks.arrays.iter().any(|chunk| chunk.dtype != dtype) || len != byte_len(dtype, &dims) {
            return Err(damaged(at));
        }
        self.arrays.push(Array { path: path.to_owned(), dtype, dims, parts });
        Ok(())
    }
}

/// Returns a description of a value that is not an array.
fn what(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "an integer",
        Value::Bool(_) => "a boolean",
        Value::Text(_) => "a text",
        Value::Bytes(_) => "bytes",
        Value::Extension(2, _) => "a complex number",
        Value::Extension(..) => "an unknown extension",
        Value::Map(_) | Value::List(_) => "a container",
        Value::Other(what) => what,
    }
}

fn dim(value: &Value) -> Option<u64> {
    if let Value::Integer(size) = value { u64::try_from(*size).ok() } else { None }
}

fn byte_len(dtype: DType, dims: &[u64]) -> Option<u64> {
    dims.iter().try_fold(dtype.block_bytes(), |product, &dim| product.checked_mul(dim))
}

/// Reads the array in an extension: dtype, sizes, and the range of its bytes.
fn array(cursor: &mut Cursor<'_>, range: &Range<u64>) -> Result<(DType, Vec<u64>, StoredRange)> {
    let end = cursor.go(range);
    let found = array_here(cursor);
    cursor.leave(range, end);
    found
}

fn array_here(cursor: &mut Cursor<'_>) -> Result<(DType, Vec<u64>, StoredRange)> {
    let at = cursor.at();
    let damaged = || Error::corrupt("an array is damaged").at(at);
    let (Value::List(3), Value::List(rank)) = (cursor.next()?, cursor.next()?) else {
        return Err(damaged());
    };
    if rank > MAX_RANK {
        return Err(Error::corrupt(format!("{rank} dimensions are too many")).at(at));
    }
    let mut dims = Vec::new();
    for _ in 0..rank {
        dims.push(dim(&cursor.next()?).ok_or_else(damaged)?);
    }
    let Value::Text(name) = cursor.next()? else { return Err(damaged()) };
    let name = cursor.text(&name)?;
    let Value::Bytes(bytes) = cursor.next()? else { return Err(damaged()) };
    let dtype = dtype(&name).ok_or_else(|| {
        let name = Escaped::short(&name);
        Error::version(format!("no format here holds elements of {name}"))
    })?;
    let len = bytes.end - bytes.start;
    if byte_len(dtype, &dims) != Some(len) {
        let message = format!("{len} bytes are declared for {name} elements of shape {dims:?}");
        return Err(Error::corrupt(message).at(bytes.start));
    }
    Ok((dtype, dims, StoredRange { file: 0, offset: bytes.start, len }))
}
