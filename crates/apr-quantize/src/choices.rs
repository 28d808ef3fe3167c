//! What the user chose about types.

use apr_core::DType;
use apr_view::NamePattern;

use super::scheme::Scheme;

/// What a cast to another float type applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Casts {
    /// Every tensor of floats.
    #[default]
    Everything,
    /// Only what would be quantized; vectors, norms and the like keep their type. Readers of GGUF
    /// files count on their norms in `f32`.
    Weights,
}

/// What the user chose.
#[derive(Debug, Clone)]
pub struct Choices {
    /// The scheme for the whole model.
    pub scheme: Scheme,
    /// Type of the token embeddings.
    pub embedding_type: Option<DType>,
    /// Type of the output matrix, or of the token embeddings where they serve as one.
    pub output_type: Option<DType>,
    /// Types of tensors whose name, as the candidates have it, matches; the first match counts.
    pub overrides: Vec<(NamePattern, DType)>,
    /// Whether the overrides are what a search found: none of them is a wish of its own, which a
    /// report would name as a reason, or as one that changed nothing.
    pub searched: bool,
    /// Whether to give every weight the scheme's own type, without the rules of its mix.
    pub pure: bool,
    /// Whether there are importance weights.
    pub has_importance: bool,
    /// Whether to quantize what is quantized already, which adds one error to another.
    pub requantize: bool,
    /// What a cast applies to.
    pub casts: Casts,
}

impl Choices {
    /// The scheme, and nothing else.
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
