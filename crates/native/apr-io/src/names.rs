//! What the names of files tell.

use std::path::Path;

/// Returns `true` if the path names an index, whose bytes alone are not a model.
#[must_use]
pub fn is_index(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Returns `true` if the path names a file that its neighbours complete: a part of a split GGUF
/// model, or the metadata of a distributed checkpoint.
pub(crate) fn is_part(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(apr_registry::is_part_name)
}
