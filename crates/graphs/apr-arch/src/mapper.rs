//! The interface of a family towards an import.

use crate::kind::TensorExpectation;

/// Gives tensors their canonical names.
///
/// Implemented by [`Family`](crate::Family); implement it for names that no table can describe.
pub trait TensorNameMapper: Send + Sync {
    /// The canonical name of a tensor of the source; `None` for one that the mapper does not know.
    fn map_name(&self, source_name: &str) -> Option<String>;

    /// Statistics that a healthy tensor of this canonical name has.
    fn expected_stats(&self, apr_name: &str) -> Option<TensorExpectation> {
        let _ = apr_name;
        None
    }
}
