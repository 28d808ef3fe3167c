//! What is compared, and how strictly.

use apr_arch::FamilyModel;
use apr_registry::CheckpointReader;
use apr_view::NamePattern;

/// Selection of tensors to compare, and tolerances.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    /// Largest difference between two values that still counts as a match.
    pub tolerance: f64,
    /// Pattern for the names of the left model's tensors to compare.
    pub filter: Option<NamePattern>,
    /// Left name, right name, for tensors that are called differently.
    pub mapping: Vec<(String, String)>,
    /// Compare values even if both files state equal digests.
    pub read: bool,
    /// A gate: the largest Euclidean distance of the two models.
    pub max_l2: Option<f64>,
}

impl DiffOptions {
    /// Beginning of the error about a filter that no tensor matches.
    pub const NOTHING: &str = "no tensor matches `tensors`";
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self { tolerance: 1e-6, filter: None, mapping: Vec::new(), read: false, max_l2: None }
    }
}

/// A model to compare: its checkpoint, the user's name for it, and its family if known.
///
/// The family is used to find tensors under the names of another convention.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    /// The checkpoint, with tensors under the names that both have.
    pub(crate) reader: &'a dyn CheckpointReader,
    /// Checkpoint as it was opened, with the tokenizer of the model.
    pub(crate) original: &'a dyn CheckpointReader,
    /// Name of the model as the user wrote it.
    pub(crate) name: &'a str,
    /// Family of the model, if known.
    pub(crate) model: Option<&'a FamilyModel<'a>>,
}
