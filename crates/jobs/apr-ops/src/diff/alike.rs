//! Two models in one layout.

use apr_llama::{is_in_gguf_layout, restore};
use apr_source::Source;
use apr_view::View;

/// Two models as they can be compared.
pub(crate) struct Alike<'a> {
    /// View of the left model.
    pub(crate) left: View<'a>,
    /// View of the right model.
    pub(crate) right: View<'a>,
    /// Reasons for comparing a model in its stored layout, if converting the layout failed.
    pub(crate) warnings: Vec<String>,
}

/// Returns views of both models in one layout.
///
/// llama.cpp's layout has its own order of rows and its own offsets of norms. If only one model has
/// this layout, it is viewed in the layout of Hugging Face.
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
