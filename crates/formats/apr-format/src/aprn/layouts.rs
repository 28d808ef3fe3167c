//! Payloads whose type is known without a Rust type (`docs/format/older.md`, B): their arrays are
//! tensors.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use apr_core::{DType, Error, Result, Shape, TensorInfo};
use serde_json::{Map, Value};

use super::ModelType;

/// A field of a model, in the order of its payload.
#[derive(Debug, Clone, Copy)]
enum Field {
    /// A scalar tensor.
    Scalar(&'static str, DType),
    /// A tag, then a length and a tensor of one dimension.
    OptionalVector(&'static str, DType),
    /// A tag, then a length and a row-major tensor, rows, columns.
    OptionalMatrix(&'static str, DType),
    /// A number in the metadata.
    U64(&'static str),
    /// A tag, then a number in the metadata, or null.
    OptionalU64(&'static str),
    /// A truth value in the metadata.
    Bool(&'static str),
}

const LINEAR_REGRESSION: &[Field] = &[
    Field::OptionalVector("coefficients", DType::F32),
    Field::Scalar("intercept", DType::F32),
    Field::Bool("fit_intercept"),
];

const KMEANS: &[Field] = &[
    Field::U64("n_clusters"),
    Field::U64("max_iter"),
    Field::Scalar("tol", DType::F32),
    Field::OptionalU64("seed"),
    Field::OptionalMatrix("centroids", DType::F32),
    Field::OptionalVector("labels", DType::U64),
    Field::Scalar("inertia", DType::F32),
    Field::U64("n_iter"),
];

/// Name of the only tensor of a payload with an unknown layout.
pub(super) const PAYLOAD: &str = "payload";

fn layout(kind: ModelType) -> Option<&'static [Field]> {
    match kind {
        ModelType::LinearRegression => Some(LINEAR_REGRESSION),
        ModelType::KMeans => Some(KMEANS),
        _ => None,
    }
}

/// Returns `true` if the layout of payloads of this type is known.
pub(super) fn is_known(kind: Option<ModelType>) -> bool {
    kind.and_then(layout).is_some()
}

/// A payload taken apart.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fields {
    /// Tensors, and the range of their bytes in the payload.
    pub(super) tensors: Vec<(TensorInfo, Range<usize>)>,
    /// Values that are not tensors.
    pub(super) values: Map<String, Value>,
}

/// Takes a payload apart; `None` when it does not follow the type's layout to the last byte.
pub(super) fn take_apart(kind: ModelType, payload: &[u8]) -> Option<Fields> {
    let mut cursor = Cursor { payload, position: 0 };
    let mut fields = Fields { tensors: Vec::new(), values: Map::new() };
    for &field in layout(kind)? {
        match field {
            Field::Scalar(name, dtype) => fields.push(name, dtype, vec![], cursor.bytes(dtype, 1)?),
            Field::OptionalVector(name, dtype) => {
                if let Some((len, bytes)) = cursor.optional(|cursor| cursor.vector(dtype))? {
                    fields.push(name, dtype, vec![len], bytes);
                }
            }
            Field::OptionalMatrix(name, dtype) => {
                if let Some((shape, bytes)) = cursor.optional(|cursor| cursor.matrix(dtype))? {
                    fields.push(name, dtype, shape.to_vec(), bytes);
                }
            }
            Field::U64(name) => fields.set(name, cursor.u64()?),
            Field::OptionalU64(name) => fields.set(name, cursor.optional(Cursor::u64)?),
            Field::Bool(name) => fields.set(name, cursor.tag()?),
        }
    }

    (cursor.position == payload.len()).then_some(fields)
}

impl Fields {
    fn push(&mut self, name: &str, dtype: DType, shape: Vec<u64>, bytes: Range<usize>) {
        self.tensors
            .push((TensorInfo { name: name.to_string(), dtype, shape: shape.into() }, bytes));
    }

    fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.values.insert(name.to_string(), value.into());
    }
}

struct Cursor<'a> {
    payload: &'a [u8],
    position: usize,
}

impl Cursor<'_> {
    fn advance(&mut self, len: usize) -> Option<Range<usize>> {
        let end = self.position.checked_add(len).filter(|&end| end <= self.payload.len())?;
        Some(core::mem::replace(&mut self.position, end)..end)
    }

    fn bytes(&mut self, dtype: DType, elements: u64) -> Option<Range<usize>> {
        let len = dtype.stored_len(&Shape::from([elements]))?;
        self.advance(usize::try_from(len).ok()?)
    }

    fn u64(&mut self) -> Option<u64> {
        let range = self.advance(8)?;
        Some(u64::from_le_bytes(self.payload[range].try_into().ok()?))
    }

    /// Reads a tag and the value that follows it; `Some(None)` if the tag states that there is no
    /// value.
    fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.tag()? { read(self).map(Some) } else { Some(None) }
    }

    /// Reads a length, and returns it with the byte range of that many elements.
    fn vector(&mut self, dtype: DType) -> Option<(u64, Range<usize>)> {
        let len = self.u64()?;
        Some((len, self.bytes(dtype, len)?))
    }

    /// Reads a matrix, and returns its rows and columns and the byte range of the elements.
    fn matrix(&mut self, dtype: DType) -> Option<([u64; 2], Range<usize>)> {
        let (len, bytes) = self.vector(dtype)?;
        let [rows, columns] = [self.u64()?, self.u64()?];
        (rows.checked_mul(columns) == Some(len)).then_some(([rows, columns], bytes))
    }

    fn tag(&mut self) -> Option<bool> {
        match self.payload[self.advance(1)?] {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

/// A piece of a payload that is put together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes between tensors.
    Bytes(Vec<u8>),
    /// The tensor with this position in the list.
    Tensor(usize),
}

/// The pieces of a payload made of these tensors and values.
///
/// # Errors
/// E001 when the type's layout is not known, a field is missing or of another type, or a tensor has
/// no place in it.
pub(super) fn put_together(
    kind: ModelType,
    tensors: &[TensorInfo],
    values: &Map<String, Value>,
) -> Result<Vec<Piece>> {
    let layout = layout(kind)
        .ok_or_else(|| Error::format(format!("a {kind} can't be put together from tensors")))?;
    let mut assembly = Assembly { tensors, values, pieces: Vec::new(), bytes: Vec::new(), used: 0 };
    for &field in layout {
        assembly.add(field)?;
    }

    if assembly.used < tensors.len() {
        let place = |tensor: &&TensorInfo| layout.iter().all(|field| field.name() != tensor.name);
        let stray = tensors.iter().find(place).map_or("", |tensor| tensor.name.as_str());
        return Err(Error::format(format!("a {kind} can't hold this tensor")).for_tensor(stray));
    }

    assembly.flush();
    Ok(assembly.pieces)
}

impl Field {
    const fn name(self) -> &'static str {
        match self {
            Self::Scalar(name, _)
            | Self::OptionalVector(name, _)
            | Self::OptionalMatrix(name, _)
            | Self::U64(name)
            | Self::OptionalU64(name)
            | Self::Bool(name) => name,
        }
    }
}

struct Assembly<'a> {
    tensors: &'a [TensorInfo],
    values: &'a Map<String, Value>,
    pieces: Vec<Piece>,
    /// Bytes of the piece that is being built.
    bytes: Vec<u8>,
    used: usize,
}

impl Assembly<'_> {
    fn add(&mut self, field: Field) -> Result<()> {
        match field {
            Field::Scalar(name, dtype) => {
                let (at, _) = self.tensor(name, dtype, 0)?.ok_or_else(|| missing(name))?;
                self.push(at);
            }
            Field::OptionalVector(name, dtype) => {
                let tensor = self.tensor(name, dtype, 1)?;
                self.bytes.push(tensor.is_some().into());
                if let Some((at, shape)) = tensor {
                    self.u64s(&shape);
                    self.push(at);
                }
            }
            Field::OptionalMatrix(name, dtype) => {
                let tensor = self.tensor(name, dtype, 2)?;
                self.bytes.push(tensor.is_some().into());
                if let Some((at, shape)) = tensor {
                    let elements = self.tensors[at].shape.elements().ok_or_else(|| misfit(name))?;
                    self.u64s(&[elements]);
                    self.push(at);
                    self.u64s(&shape);
                }
            }
            Field::U64(name) => {
                let value =
                    self.values.get(name).and_then(Value::as_u64).ok_or_else(|| missing(name))?;
                self.u64s(&[value]);
            }
            Field::OptionalU64(name) => {
                let value = self.values.get(name).and_then(Value::as_u64);
                self.bytes.push(value.is_some().into());
                self.u64s(value.as_slice());
            }
            Field::Bool(name) => {
                let value =
                    self.values.get(name).and_then(Value::as_bool).ok_or_else(|| missing(name))?;
                self.bytes.push(value.into());
            }
        }

        Ok(())
    }

    fn tensor(
        &mut self,
        name: &str,
        dtype: DType,
        dims: usize,
    ) -> Result<Option<(usize, Vec<u64>)>> {
        let Some(at) = self.tensors.iter().position(|tensor| tensor.name == name) else {
            return Ok(None);
        };
        let TensorInfo { dtype: found, shape, .. } = &self.tensors[at];
        if *found != dtype || shape.dims().len() != dims {
            return Err(misfit(name));
        }
        self.used += 1;
        Ok(Some((at, shape.dims().to_vec())))
    }

    fn u64s(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.bytes.extend_from_slice(&value.to_le_bytes()));
    }

    fn push(&mut self, tensor: usize) {
        self.flush();
        self.pieces.push(Piece::Tensor(tensor));
    }

    fn flush(&mut self) {
        if !self.bytes.is_empty() {
            self.pieces.push(Piece::Bytes(core::mem::take(&mut self.bytes)));
        }
    }
}

fn missing(name: &str) -> Error {
    Error::format(format!("the model's field '{name}' is missing"))
}

fn misfit(name: &str) -> Error {
    Error::format("the model's field has another dtype or number of dimensions").for_tensor(name)
}
