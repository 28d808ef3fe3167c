//! What is merged, and how.

pub(crate) mod parse;
mod render;
pub(crate) mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use apr_core::DType;

pub use self::parse::parse;
use crate::method::Method;

/// Description of a merge, from a mergekit configuration or from command options.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Name of the result for later merges of the same description.
    pub name: Option<String>,
    /// Merge method.
    pub method: Method,
    /// The model that others are compared with, as the description names it.
    pub base: Option<String>,
    /// The models, or the layers of them.
    pub parts: Parts,
    /// Parameters of the whole merge.
    pub settings: Settings,
    /// The dtype that elements are brought to before they are merged.
    pub dtype: Option<DType>,
    /// The dtype of the result.
    pub out_dtype: Option<DType>,
    /// Source of the result's vocabulary. With `None`, apr assumes that the vocabularies are the
    /// same.
    pub tokenizer: Option<Tokenizer>,
    /// Token rows that differ from the default rows of the vocabularies.
    pub token_choices: BTreeMap<String, TokenChoice>,
    /// Rows of embeddings are a multiple of this, the last ones zeros.
    pub pad_rows: Option<u64>,
    /// The chat template of the result.
    pub chat_template: Option<ChatTemplate>,
    /// Random seed.
    pub seed: u64,
    /// Text that the model card quotes.
    pub text: String,
}

/// Source of the result's vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokenizer {
    /// Vocabulary of the base, or of the first model.
    Base,
    /// All tokens of all models.
    Union,
    /// Vocabulary of this model.
    Model(String),
}

/// Source of a token's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenChoice {
    /// Row of embeddings to use.
    pub source: TokenRow,
    /// `true` if the row also replaces the rows of models that have the token.
    pub force: bool,
}

/// A row of embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenRow {
    /// Row of zeros.
    Zero,
    /// The token's in a model.
    Model(String),
    /// Another token's in a model.
    Token(String, String),
    /// Row of an id in a model.
    Id(String, u64),
}

/// Source of a chat template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatTemplate {
    /// Most frequent template of the models. If there is a tie, the first one wins.
    Auto,
    /// The Jinja template itself.
    Text(String),
}

/// Inputs of a merge.
#[derive(Debug, Clone, PartialEq)]
pub enum Parts {
    /// Whole models.
    Models(Vec<Source>),
    /// Layers, in the order of the result.
    Slices(Vec<Slice>),
}

/// A model that takes part.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Source {
    /// Name of the model in the description.
    pub model: String,
    /// Range of the model's layers.
    pub layers: Range<u64>,
    /// Parameters of the model.
    pub settings: Settings,
}

/// Layers of the result, which the same layers of several models are merged into.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// Models and layers that are merged into this slice.
    pub sources: Vec<Source>,
    /// Base of this slice, if it differs from the base of the merge.
    pub base: Option<String>,
    /// Parameters of the slice.
    pub settings: Settings,
}

/// Parameters by their names.
pub type Settings = BTreeMap<String, Setting>;

/// A parameter: values by the tensor they are for.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting(pub Vec<Choice>);

/// Values for the tensors whose names contain a text, or for all.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Text in the names of the tensors; `None` for all tensors.
    pub filter: Option<String>,
    /// One value, or several that are interpolated over the layers.
    pub values: Vec<f64>,
}

impl From<f64> for Setting {
    fn from(value: f64) -> Self {
        Self(vec![Choice { filter: None, values: vec![value] }])
    }
}

impl Setting {
    /// The value for a tensor in a layer at `place`, from 0 for the first to 1 for the last. None
    /// where no choice is for the tensor.
    pub(crate) fn at(&self, tensor: &str, place: f64) -> Option<f64> {
        let meant = |choice: &&Choice| match choice.filter.as_deref() {
            None | Some("*") => true,
            Some(text) => tensor.contains(text),
        };
        let values = &self.0.iter().find(meant)?.values;
        let last = values.len().checked_sub(1)?;
        let scaled = place * last as f64;
        let low = (0..last).rev().find(|&at| at as f64 <= scaled).unwrap_or_default();
        let (first, second) = (values[low], values[(low + 1).min(last)]);
        let fraction = scaled - low as f64;
        Some(if fraction == 0.0 { first } else { (1.0 - fraction) * first + fraction * second })
    }
}

impl Recipe {
    /// A merge of whole models without parameters.
    #[must_use]
    pub fn new(method: Method, models: Vec<Source>) -> Self {
        Self {
            name: None,
            method,
            base: None,
            parts: Parts::Models(models),
            settings: Settings::new(),
            dtype: None,
            out_dtype: None,
            tokenizer: None,
            token_choices: BTreeMap::new(),
            pad_rows: None,
            chat_template: None,
            seed: 0,
            text: String::new(),
        }
    }

    /// Returns the models of the recipe, each once.
    ///
    /// The merged models come first, in order. The bases and the tokenizer's model follow if they
    /// are not among them.
    #[must_use]
    pub fn models(&self) -> Vec<&str> {
        let tokenizer = match &self.tokenizer {
            Some(Tokenizer::Model(model)) => Some(model.as_str()),
            _ => None,
        };
        let (sources, bases): (Vec<&str>, Vec<&str>) = match &self.parts {
            Parts::Models(sources) => {
                (sources.iter().map(|source| source.model.as_str()).collect(), Vec::new())
            }
            Parts::Slices(slices) => {
                let sources = slices.iter().flat_map(|slice| &slice.sources);
                let bases = slices.iter().filter_map(|slice| slice.base.as_deref());
                (sources.map(|source| source.model.as_str()).collect(), bases.collect())
            }
        };
        let all = sources.into_iter().chain(bases).chain(self.base.as_deref()).chain(tokenizer);
        let mut seen = BTreeSet::new();
        all.filter(|model| seen.insert(*model)).collect()
    }

    /// Returns the number of times that a model of the recipe is merged: more than once if it is
    /// listed again.
    #[must_use]
    pub fn times(&self, model: &str) -> usize {
        let listed = match &self.parts {
            Parts::Models(sources) => sources.iter().filter(|source| source.model == model).count(),
            Parts::Slices(_) => 1,
        };
        listed.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_interpolated_and_filters_chosen() {
        let gradient = Setting(vec![
            Choice { filter: Some("mlp".into()), values: vec![0.1, 0.5, 0.9, 0.2] },
            Choice { filter: Some("*".into()), values: vec![0.3] },
        ]);
        for (place, expected) in [(0.0, 0.1), (0.5, 0.7), (1.0, 0.2), (1.0 / 3.0, 0.5)] {
            let found = gradient.at("layers.0.mlp.up", place).expect("a value");
            assert!((found - expected).abs() < 1e-12, "{place}: {found}");
        }
        assert_eq!(gradient.at("norm", 0.7), Some(0.3));
        let narrow = Setting(vec![Choice { filter: Some("mlp".into()), values: vec![1.0] }]);
        assert_eq!(narrow.at("norm", 0.0), None);
    }
}
