//! Tensors that a type is chosen for.

use apr_core::{DType, Shape};

use super::category::{Category, Kept, kept};
use super::role::Role;

/// A tensor to choose a type for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Name of the tensor in GGUF, such as `blk.0.attn_v.weight`, which the rules match.
    ///
    /// A tensor without a GGUF name keeps its own name.
    pub name: String,
    /// Dtype of the stored tensor.
    pub dtype: DType,
    /// Outermost first.
    pub shape: Shape,
    /// Role of the tensor. `None` for GGUF names, whose role llama.cpp's rules derive from the
    /// name.
    pub role: Option<Role>,
}

impl Candidate {
    /// Creates a candidate from the tensor's GGUF name, which determines its role.
    #[must_use]
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into(), role: None }
    }

    pub(super) fn category(&self) -> Category {
        match self.role {
            None => Category::of(&self.name),
            Some(Role::TokenEmbedding) => Category::TokenEmbedding,
            Some(Role::Output) => Category::Output,
            Some(Role::Matrix | Role::Kept(_)) => Category::Other,
        }
    }

    pub(super) fn kept(&self, architecture: &str) -> Option<Kept> {
        match self.role {
            None => kept(&self.name, &self.shape, architecture),
            Some(Role::Kept(why)) => Some(why),
            Some(_) => None,
        }
    }
}
