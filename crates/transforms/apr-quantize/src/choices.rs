//! What the user chose about types.

use apr_core::DType;
use apr_view::NamePattern;

use super::layout::TensorType;
use super::scheme::Scheme;

/// Tensors that a cast to another float dtype applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Casts {
    /// Every tensor of floats.
    #[default]
    Everything,
    /// Only tensors that would be quantized. Vectors, norms and similar tensors keep their type.
    ///
    /// Readers of GGUF files rely on norms in `f32`.
    Weights,
}

/// User's choices for a quantization.
#[derive(Debug, Clone)]
pub struct Choices {
    /// The scheme for the whole model.
    pub scheme: Scheme,
    /// Type of the token embeddings.
    pub embedding_type: Option<DType>,
    /// Type of the output matrix, or of the token embeddings if they serve as the output matrix.
    pub output_type: Option<DType>,
    /// Types of tensors whose name, as the candidates have it, matches; the first match counts.
    /// Blocks have no layouts.
    pub overrides: Vec<(NamePattern, TensorType)>,
    /// `true` if a search found the overrides.
    ///
    /// Reports then do not list an override as a reason, or as a choice without effect.
    pub searched: bool,
    /// `true` to give every weight the scheme's own dtype, without the rules of its mix.
    pub pure: bool,
    /// `true` if there are importance weights.
    pub has_importance: bool,
    /// `true` to requantize quantized tensors, which adds a second quantization error.
    pub requantize: bool,
    /// Tensors that a cast applies to.
    pub casts: Casts,
}

impl Choices {
    /// Creates choices with this scheme and the defaults for all other fields.
    #[must_use]
    pub const fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            embedding_type: None,
            output_type: None,
            overrides: Vec::new(),
            searched: false,
            pure: false,
            has_importance: false,
            requantize: false,
            casts: Casts::Everything,
        }
    }
}
