//! Two models in one layout.

use apr_llama::{is_in_gguf_layout, restore};
use apr_source::Source;
use apr_view::View;

/// Two models as they can be compared.
pub(crate) struct Alike<'a> {
    /// The left one.
    pub(crate) left: View<'a>,
    /// The right one.
    pub(crate) right: View<'a>,
    /// Why a model is compared as it lies, where it should have been seen in another layout.
    pub(crate) warnings: Vec<String>,
}

/// Both models in one layout: where only one is in llama.cpp's, which orders rows and offsets norms
/// in its own way, it is seen in that of Hugging Face.
#[must_use]
pub(crate) fn alike<'a>(left: &Source<'a>, right: &Source<'a>) -> Alike<'a> {
    let differ = is_in_gguf_layout(left.reader()) != is_in_gguf_layout(right.reader());
    let mut warnings = Vec::new();
    let mut view = |source: &Source<'a>| {
        let reader = source.reader();
        if !differ || !is_in_gguf_layout(reader) {
            return View::new(reader);
        }
        match restore(reader, source.families(), source.architecture()) {
            Ok(restored) => restored.view,
            Err(error) => {
                warnings.push(format!(
                    "values are compared in llama.cpp's layout: {}",
                    error.message()
                ));
                View::new(reader)
            }
        }
    };

    let (left, right) = (view(left), view(right));
    Alike { left, right, warnings }
}
