//! Family files as they are written: TOML, one table per tensor.

use std::collections::BTreeMap;

use apr_core::{Error, Result};
use serde::Deserialize;

use crate::gguf::GgufFile;
use crate::graph::GraphFile;
use crate::kind::{Range, TensorKind};
use crate::name_list::Names;

/// A truth that is stated or computed.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Condition {
    Stated(bool),
    Computed(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SizeEntry {
    pub(crate) name: String,
    pub(crate) when: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConventionEntry {
    pub(crate) prefixes: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RangesEntry {
    pub(crate) mean: Option<Range>,
    pub(crate) std: Option<Range>,
    pub(crate) std_by_width: Option<Range>,
}

/// Form of images in prompts, as the model's processor writes them.
///
/// `{image}` is the text of the image token. The vector of a piece of an image takes the place of
/// this token.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImagesEntry {
    /// Text of the token whose place a vector of an image takes, for files whose configuration has
    /// no number of it.
    pub(crate) token: Option<String>,
    /// Placeholder of an image in a prompt or a chat.
    pub(crate) placeholder: String,
    /// Text that the processor writes for the placeholder.
    ///
    /// `{images}` is `{image}`, repeated for each vector of the image.
    pub(crate) prompt: String,
    /// Text that the processor writes for a tile of a split image, if tiles have their own texts.
    ///
    /// `{row}` and `{column}` count from 1.
    pub(crate) tile: Option<String>,
    /// Text between the rows of an image's vectors.
    pub(crate) row_break: Option<String>,
    /// Text behind the last image.
    pub(crate) behind: Option<String>,
    /// Text at the end of a prompt.
    pub(crate) end: Option<String>,
    /// Placeholder with what the chat template writes around it, for prompts that have none.
    pub(crate) alone: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) kind: TensorKind,
    pub(crate) shape: Option<Vec<String>>,
    pub(crate) required: Option<Condition>,
    pub(crate) role: String,
    pub(crate) mean: Option<Range>,
    pub(crate) std: Option<Range>,
    pub(crate) std_by_width: Option<Range>,
    /// Every other key is a convention.
    #[serde(flatten)]
    pub(crate) conventions: BTreeMap<String, Names>,
}

/// A family file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FamilyFile {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) extends: Option<String>,
    #[serde(default)]
    pub(crate) without: Vec<String>,
    #[serde(default)]
    pub(crate) model_types: Vec<String>,
    #[serde(default)]
    pub(crate) aliases: Vec<String>,
    /// `true` if the table describes all parts of models whose configuration has `text_config`.
    pub(crate) parts: Option<bool>,
    /// Types of the models whose part for images the table describes, beside a language model of
    /// another family.
    #[serde(default)]
    pub(crate) vision_of: Vec<String>,
    /// Types of the towers that the table is for; none for towers that no other table names.
    #[serde(default)]
    pub(crate) towers: Vec<String>,
    /// Form of images in prompts.
    pub(crate) images: Option<ImagesEntry>,
    pub(crate) purpose: Option<String>,
    pub(crate) architecture: Option<String>,
    pub(crate) input: Option<String>,
    pub(crate) output: Option<String>,
    #[serde(default, rename = "size")]
    pub(crate) sizes: Vec<SizeEntry>,
    #[serde(default)]
    pub(crate) dimensions: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(crate) indices: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) conventions: BTreeMap<String, ConventionEntry>,
    #[serde(default)]
    pub(crate) expectations: BTreeMap<TensorKind, RangesEntry>,
    #[serde(default, rename = "tensor")]
    pub(crate) tensors: Vec<TensorEntry>,
    #[serde(default)]
    pub(crate) gguf: GgufFile,
    pub(crate) graph: Option<GraphFile>,
}

impl FamilyFile {
    /// # Errors
    /// E001 with line and column when the text is not TOML or not a family.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            Error::format(format!("this is not a family file: line {line}: {}", error.message()))
        })
    }

    /// Everything of `base`, with this file on top.
    pub(crate) fn on_top_of(self, base: &Self) -> Self {
        let mut tensors = base.tensors.clone();
        tensors.retain(|tensor| !self.without.contains(&tensor.name));
        for tensor in self.tensors {
            match tensors.iter_mut().find(|inherited| inherited.name == tensor.name) {
                Some(inherited) => *inherited = tensor,
                None => tensors.push(tensor),
            }
        }

        // A family computes something else than its base until its own table says that the base's
        // graph is the start.
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let inherited = base.graph.as_ref().map(|graph| graph.of(&names)).unwrap_or_default();
        Self {
            graph: self.graph.map(|graph| graph.on_top_of(&inherited)),
            tensors,
            parts: self.parts.or(base.parts),
            images: self.images.or_else(|| base.images.clone()),
            purpose: self.purpose.or_else(|| base.purpose.clone()),
            architecture: self.architecture.or_else(|| base.architecture.clone()),
            input: self.input.or_else(|| base.input.clone()),
            output: self.output.or_else(|| base.output.clone()),
            dimensions: merged(&base.dimensions, self.dimensions),
            indices: merged(&base.indices, self.indices),
            conventions: merged(&base.conventions, self.conventions),
            expectations: merged(&base.expectations, self.expectations),
            gguf: self.gguf.on_top_of(&base.gguf),
            ..self
        }
    }
}

fn merged<K: Clone + Ord, V: Clone>(base: &BTreeMap<K, V>, own: BTreeMap<K, V>) -> BTreeMap<K, V> {
    let mut all = base.clone();
    all.extend(own);
    all
}
