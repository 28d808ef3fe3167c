//! Tensors that a type is chosen for.

use apr_core::{DType, Shape};

use super::category::{Category, Kept, kept};
use super::role::Role;

/// A tensor to choose a type for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// GGUF's name, `blk.0.attn_v.weight`, which the rules know; the tensor's own where it has none
    /// in GGUF.
    pub name: String,
    /// What it is stored as.
    pub dtype: DType,
    /// Outermost first.
    pub shape: Shape,
    /// What it is for; `None` where the name is one of GGUF's, by which llama.cpp's rules tell.
    pub role: Option<Role>,
}

impl Candidate {
    /// A tensor by its name in GGUF, which says what it is for.
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
