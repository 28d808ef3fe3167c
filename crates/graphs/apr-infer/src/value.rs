//! What flows between nodes.

use std::sync::Arc;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::Tensor;
use crate::convert::is_half;
use crate::kv_cache::CachedHeads;
use crate::matrix::{Matrix, Scaling};
use crate::moving::parts_of;

/// Steps of work that an item of a sequence is.
const ITEM: u64 = 64;

/// A weight of a session that is not decoded yet.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightHandle {
    pub(crate) number: usize,
    pub(crate) element: ElementType,
    /// Changes to the weight, in the order in which they are made.
    pub(crate) looks: Vec<WeightLook>,
}

/// Change to a weight when it is decoded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WeightLook {
    /// Integers that represent floats are dequantized.
    Scaled(Dequantization),
    /// The two dimensions are swapped.
    Turned,
}

impl WeightHandle {
    /// The weight with another look at it.
    pub(crate) fn with(&self, look: WeightLook) -> Self {
        let element =
            if matches!(look, WeightLook::Scaled(_)) { ElementType::F32 } else { self.element };
        Self { looks: self.looks.iter().cloned().chain([look]).collect(), element, ..*self }
    }

    /// Applies the changes to a matrix. Returns `None` if the result can't be decoded by rows.
    pub(crate) fn looked_at<'m>(&self, matrix: Matrix<'m>) -> Option<Matrix<'m>> {
        let is_scaled = self.looks.iter().any(|look| matches!(look, WeightLook::Scaled(_)));
        // Integers that stand for themselves are multiplied as integers.
        let is_float = self.element == ElementType::F32 || is_half(self.element);
        let fits = if is_scaled { matrix.has_small_integers() } else { is_float };
        if !fits {
            return None;
        }
        self.looks.iter().try_fold(matrix, |matrix, look| match look {
            WeightLook::Scaled(with) => matrix.scaled(&with.scaling),
            WeightLook::Turned => Some(matrix.transposed()),
        })
    }
}

/// Parameters of a `DequantizeLinear`.
#[derive(Debug, Clone)]
pub(crate) struct Dequantization {
    pub(crate) scale: Tensor,
    pub(crate) zero: Option<Tensor>,
    pub(crate) axis: i64,
    pub(crate) block: i64,
    /// Scales and zero points of a matrix.
    pub(crate) scaling: Arc<Scaling>,
}

impl PartialEq for Dequantization {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.scaling, &other.scaling)
    }
}

/// A value of a run.
#[derive(Debug, Clone)]
pub enum Value {
    /// A tensor in memory.
    Tensor(Tensor),
    /// Tensor of the checkpoint that is decoded when it is used.
    Weight(WeightHandle),
    /// Keys or values of the tokens so far, which grow in place.
    Cached(CachedHeads),
    /// Values in a row.
    Sequence(Vec<Value>),
    /// Values by keys, both in rows; keys are integers or texts.
    Map {
        /// The keys, each once.
        keys: Tensor,
        /// The values, one for each key.
        values: Tensor,
    },
    /// A value that may be missing.
    Optional(Option<Box<Value>>),
}

impl Value {
    /// The tensor that it is.
    ///
    /// # Errors
    /// E001 where it is a sequence, an optional value, or not decoded.
    pub fn tensor(&self) -> Result<&Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            Self::Optional(Some(value)) => value.tensor(),
            _ => Err(Error::format(format!("a tensor is expected, not {}", self.kind()))),
        }
    }

    /// Returns the kind of the value in words, such as `a tensor`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tensor(_) => "a tensor",
            Self::Weight(_) => "a weight",
            Self::Cached(_) => "keys or values of earlier tokens",
            Self::Sequence(_) => "a sequence",
            Self::Map { .. } => "a map",
            Self::Optional(Some(_)) => "an optional value",
            Self::Optional(None) => "an optional value that is missing",
        }
    }

    /// Returns the number of elements of the tensors in the value, and the bytes of texts.
    /// Undecoded weights count 0.
    pub(crate) fn elements(&self) -> u64 {
        match self {
            Self::Tensor(tensor) if tensor.element() == ElementType::Text => tensor.bytes(),
            Self::Tensor(tensor) => tensor.len() as u64,
            Self::Cached(heads) => heads.len() as u64,
            Self::Weight(_) | Self::Optional(None) => 0,
            Self::Sequence(values) => values.iter().map(|value| ITEM + value.elements()).sum(),
            Self::Map { keys, values } => ITEM + (keys.len() + values.len()) as u64,
            Self::Optional(Some(value)) => value.elements(),
        }
    }

    /// Returns the identity and the size in bytes of each piece in memory.
    pub(crate) fn pieces(&self) -> Vec<(usize, u64)> {
        let of = |tensor: &Tensor| (tensor.identity(), tensor.bytes());
        match self {
            Self::Tensor(tensor) => vec![of(tensor)],
            Self::Cached(heads) => vec![(heads.identity(), heads.bytes())],
            Self::Weight(_) | Self::Optional(None) => Vec::new(),
            Self::Sequence(values) => values.iter().flat_map(Self::pieces).collect(),
            Self::Map { keys, values } => vec![of(keys), of(values)],
            Self::Optional(Some(value)) => value.pieces(),
        }
    }

    /// These parts along the first dimension, in this order; one may be there several times. They
    /// are the texts of a batch, of which a beam search goes on with some.
    ///
    /// # Errors
    /// E001 where there is no such part, and for what is no tensor.
    pub fn select(self, parts: &[usize]) -> Result<Self> {
        match self {
            Self::Cached(heads) if parts.iter().all(|part| *part < heads.shape()[0]) => {
                Ok(Self::Cached(heads.select(parts)))
            }
            other => parts_of(other.tensor()?, parts).map(Self::Tensor),
        }
    }

    /// Turns cached keys and values into a tensor, and returns other values unchanged.
    ///
    /// # Errors
    /// E008 where they do not fit the memory.
    pub fn without_cache(self) -> Result<Self> {
        match self {
            Self::Cached(heads) => heads.tensor().map(Self::Tensor),
            other => Ok(other),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}
