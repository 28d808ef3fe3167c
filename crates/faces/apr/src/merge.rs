//! Merging models: a [`Recipe`] states how models are merged, and [`Merged`] is the result, a
//! checkpoint like any other. [`models`] merges models that are open.
//!
//! ```
//! use std::sync::Arc;
//!
//! use apr::merge::{MergeOptions, Merged, Method, Model, Recipe, Source};
//! use apr::{CheckpointReader, Limits};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/merge");
//! # let read = |name: &str| std::fs::read(format!("{folder}/{name}/model.safetensors"));
//! let mut models = Vec::new();
//! for name in ["a-f32", "b-f32"] {
//!     let reader = apr::open(read(name)?, "model.safetensors", &Limits::default())?;
//!     models.push(Model { name: name.into(), reader: Arc::from(reader) });
//! }
//! let source = |model: &str| Source { model: model.into(), ..Source::default() };
//! let sources = ["a-f32", "b-f32"].map(source);
//! let recipe = Recipe::new(Method::Average, sources.into());
//! let merged = Merged::plan(&recipe, &models, &MergeOptions::default())?;
//! assert_eq!(merged.tensors().len(), 30);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "native")]
use std::sync::Arc;

#[cfg(feature = "native")]
use apr_core::{CheckpointReader, Error, Result};

pub use apr_merge::moe;
pub use apr_merge::{
    Change, ChatTemplate, Choice, MergeOptions, MergeReport, Merged, MergedModel, Method, Model,
    Parts, Recipe, Setting, Settings, Slice, Source, TensorChange, TokenChoice, TokenRow,
    Tokenizer, UnknownMethod, parse,
};

/// Merges models that are open, and returns the result with a report.
///
/// The recipe names each model as it was opened. Weights are computed when they are read.
///
/// ```
/// use apr::Model;
/// use apr::merge::{Method, Recipe, Source, models};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/merge");
/// # let paths = ["a-f32", "b-f32"].map(|name| format!("{folder}/{name}"));
/// let sources = paths.each_ref().map(|path| Source { model: path.clone(), ..Source::default() });
/// let opened = paths.iter().map(Model::open).collect::<Result<_, _>>()?;
/// let (merged, _) = models(&Recipe::new(Method::Average, sources.into()), opened)?;
/// assert_eq!(merged.tensors().len(), 30);
/// # Ok::<(), apr::Error>(())
/// ```
///
/// # Errors
/// E001 when the models do not fit the recipe or each other, or name their tensors by different
/// conventions (such as GGUF and safetensors: convert them to one format first); E002 and E007 when
/// a tensor can't be read.
#[cfg(feature = "native")]
pub fn models(recipe: &Recipe, models: Vec<crate::Model>) -> Result<(crate::Model, MergeReport)> {
    let Some(first) = models.first() else {
        return Err(Error::format("no models to merge"));
    };
    let convention = |model: &crate::Model| model.reader.format().convention;
    if let Some(other) = models.iter().find(|other| convention(other) != convention(first)) {
        let message = format!(
            "its tensor names have another convention than in '{}': convert both to one format \
             first",
            first.name
        );
        return Err(Error::format(message).in_file(&other.name));
    }

    let (sources, name) = (first.sources.clone(), recipe.models().join(" + "));
    let inputs: Vec<Model<'static>> = models
        .into_iter()
        .map(|model| {
            sources.take_over(&model.sources);
            Model { name: model.name, reader: Arc::from(model.reader) }
        })
        .collect();
    let merged = Merged::plan(recipe, &inputs, &MergeOptions::default())?;
    let report = merged.report();
    let reader: Box<dyn CheckpointReader> = Box::new(merged);
    let merged = crate::Model::over(reader, name, sources);
    merged.check_unchanged()?;
    Ok((merged, report))
}
