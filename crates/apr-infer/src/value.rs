//! What flows between nodes.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::Tensor;

/// A weight of a session that is not decoded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightHandle {
    pub(crate) number: usize,
    pub(crate) element: ElementType,
}

/// A value of a run.
#[derive(Debug, Clone)]
pub enum Value {
    /// A tensor in memory.
    Tensor(Tensor),
    /// A tensor of the checkpoint that is decoded where it is used.
    Weight(WeightHandle),
    /// Values in a row.
    Sequence(Vec<Value>),
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

    /// What it is, in words.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tensor(_) => "a tensor",
            Self::Weight(_) => "a weight",
            Self::Sequence(_) => "a sequence",
            Self::Optional(Some(_)) => "an optional value",
            Self::Optional(None) => "an optional value that is missing",
        }
    }

    /// The tensors in it.
    pub(crate) fn tensors(&self) -> Vec<&Tensor> {
        match self {
            Self::Tensor(tensor) => vec![tensor],
            Self::Weight(_) | Self::Optional(None) => Vec::new(),
            Self::Sequence(values) => values.iter().flat_map(Self::tensors).collect(),
            Self::Optional(Some(value)) => value.tensors(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}
