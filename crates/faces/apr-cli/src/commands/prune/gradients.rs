//! `apr prune --prune-method fisher`: gradients of texts, by which magnitudes are weighed.

use std::path::Path;

use apr_core::{Convention, counted};
use apr_distill::mean_gradients;
use apr_prune::Gradients;

use crate::commands::importance::on_rows;
use crate::commands::running::Opened;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// The gradients that the next tokens of a file's texts have, and notes on the file.
pub(in crate::commands) fn of_texts(
    (path, data): (&Path, &Path),
    context: &Context,
) -> Outcome<(Gradients, Vec<String>)> {
    let opened = Opened::new(path, context)?;
    let reader = &*opened.model().reader;
    if reader.format().convention == Convention::LlamaCpp {
        return Err(Failure::Usage(
            "gradients require weights in Hugging Face's layout: convert the GGUF file in an \
             earlier run"
                .to_owned(),
        ));
    }
    let (found, cut) = on_rows(&opened, data, context, mean_gradients)?;

    let mut found: Gradients =
        found.into_iter().map(|(name, values)| (name, values.into())).collect();
    if let Some(family) = context.source(reader, opened.name())?.family()? {
        for (at, info) in reader.tensors().iter().enumerate() {
            let values = family.canonical(at).and_then(|name| found.remove(name));
            found.extend(values.map(|values| (info.name.clone(), values)));
        }
    }
    let note = || format!("{} cut to the model's context", counted(cut as u64, "row"));
    Ok((found, (cut > 0).then(note).into_iter().collect()))
}
