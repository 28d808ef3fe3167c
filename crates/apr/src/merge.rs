//! Merging models: a [`Recipe`] says what is merged how, and [`Merged`] is the result, a checkpoint
//! like any other.
//!
//! ```
//! use std::sync::Arc;
//!
//! use apr::merge::{MergeOptions, Merged, Method, Model, Recipe, Source};
//! use apr::{CheckpointReader, Limits};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/merge");
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

pub use apr_merge::moe;
pub use apr_merge::{
    Change, ChatTemplate, Choice, MergeOptions, MergeReport, Merged, MergedModel, Method, Model,
    Parts, Recipe, Setting, Settings, Slice, Source, TensorChange, TokenChoice, TokenRow,
    Tokenizer, UnknownMethod, parse,
};
