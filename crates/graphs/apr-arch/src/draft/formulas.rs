//! Dimensions as entries of the configuration: which names have a value.

use std::collections::BTreeSet;

use crate::dimensions::{Config, Told};
use crate::model::FamilyModel;

use super::required::is_name;

/// Entries of the configuration that dimensions are made of. Products of two are tried.
const MAX_ENTRIES: usize = 128;

/// Other readings of a dimension that are named.
const MAX_OTHERS: usize = 3;

/// Names of dimensions that shapes are rarely made of, whatever their value.
const NOT_SHAPES: [&str; 6] = ["layer", "position", "window", "eps", "version", "max_"];

/// Bytes of a word that other words may begin with.
const LONG: usize = 4;

/// Dimensions that tables name, with their usual entries. The first that the configuration has
/// counts.
const USUAL: [(&str, &[&str]); 8] = [
    ("hidden", &["hidden_size", "d_model", "n_embd", "dim", "embed_dim"]),
    ("vocab", &["vocab_size"]),
    ("layers", &["num_hidden_layers", "num_layers", "n_layer", "n_layers"]),
    ("heads", &["num_attention_heads", "num_heads", "n_head", "n_heads"]),
    ("kv_heads", &["num_key_value_heads", "n_kv_heads"]),
    ("head_dim", &["head_dim", "d_kv"]),
    ("intermediate", &["intermediate_size", "d_ff", "n_inner", "ffn_dim"]),
    ("experts", &["num_experts", "num_local_experts", "n_routed_experts"]),
];

/// Names with their values.
pub(super) struct Formulas {
    /// Dimensions of the table, then entries of the configuration.
    names: Vec<(String, u64)>,
    /// Dimensions of a table without a base, with their entries.
    dimensions: Vec<(&'static str, String)>,
}

/// A dimension, with other readings of it.
pub(super) struct Formula {
    pub(super) text: String,
    pub(super) others: Vec<String>,
    value: u64,
}

impl Formula {
    /// Returns the formula of a dimension that has no other reading.
    pub(super) fn only(text: &str, value: u64) -> Self {
        Self { text: text.to_owned(), others: Vec::new(), value }
    }

    pub(super) fn note(&self) -> String {
        format!("{} as {}", self.value, self.others.join(", "))
    }
}

impl Formulas {
    pub(super) fn of(config: Option<&Config>, model: Option<&FamilyModel<'_>>) -> Self {
        let entry = |key: &str| config.and_then(|config| config.get(key)?.as_u64());
        let mut dimensions = Vec::new();
        let mut names: Vec<(String, u64)> = Vec::new();
        // Entries that a dimension stands for.
        let mut stood_for: BTreeSet<&str> = BTreeSet::new();
        match model {
            Some(model) => {
                let rank = |name: &str| USUAL.iter().position(|(usual, _)| *usual == name);
                let mut sizes: Vec<_> = super::known_sizes(model).collect();
                sizes.sort_by_key(|(name, _)| (rank(name).unwrap_or(USUAL.len()), *name));
                for (name, size) in sizes {
                    let keys = model.family.file.dimensions.get(name).into_iter().flatten();
                    let same = keys.filter(|key| entry(key) == Some(size));
                    stood_for.extend(same.map(String::as_str));
                    names.push((name.to_owned(), size));
                }
            }
            None => {
                for (name, keys) in USUAL {
                    let stated = keys.iter().find_map(|key| Some((*key, entry(key)?)));
                    let Some((key, size)) = stated else { continue };
                    dimensions.push((name, key.to_owned()));
                    stood_for.insert(key);
                    names.push((name.to_owned(), size));
                }
            }
        }
        let entries = config.into_iter().flatten().filter_map(|(key, entry)| {
            let is_usable = is_name(key)
                && (!Told::is_bookkeeping(key) || key.ends_with("head_dim"))
                && !stood_for.contains(key.as_str());
            Some((key.clone(), entry.as_u64().filter(|_| is_usable)?))
        });
        let entries: Vec<_> = entries.take(MAX_ENTRIES).collect();
        names.extend(entries);
        Self { names, dimensions }
    }

    /// The dimensions of a table without a base.
    pub(super) fn dimensions(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.dimensions.iter().map(|(name, key)| (*name, key.as_str()))
    }

    /// Returns the number of values of an index as an expression.
    pub(super) fn count(&self, index: &str, count: u64) -> String {
        let word = index.rsplit('_').next().unwrap_or(index);
        let is_it = |(name, value): &&(String, u64)| *value == count && name.contains(word);
        self.names.iter().find(is_it).map_or_else(|| count.to_string(), |(name, _)| name.clone())
    }

    /// Returns a dimension of a tensor as an expression.
    pub(super) fn dim(&self, value: u64, tensor: &str) -> Formula {
        let mut texts = if value > 1 { self.exact(value, tensor) } else { Vec::new() };
        if texts.is_empty() && value > 1 {
            texts = self.products(value);
        }
        texts.dedup();
        let mut texts = texts.into_iter();
        let text = texts.next().unwrap_or_else(|| value.to_string());
        Formula { text, others: texts.take(MAX_OTHERS).collect(), value }
    }

    fn shapes(&self) -> impl Iterator<Item = (&str, u64)> {
        let is_shape = |name: &str| !NOT_SHAPES.iter().any(|word| name.contains(word));
        let names = self.names.iter().map(|(name, value)| (name.as_str(), *value));
        names.filter(move |(name, value)| is_shape(name) && *value > 1)
    }

    /// Names of this value, those first that share most words with the tensor's name.
    fn exact(&self, value: u64, tensor: &str) -> Vec<String> {
        let words: BTreeSet<&str> =
            tensor.split(['.', '_', '{', '}']).filter(|word| word.len() > 1).collect();
        // `index_head_dim` and `indexer` are of one part.
        let is_alike = |word: &str, other: &str| {
            word == other || word.len() >= LONG && other.starts_with(word)
        };
        let is_shared = |word: &&str| words.iter().any(|other| is_alike(word, other));
        let shared = |name: &str| name.split('_').filter(is_shared).count();
        let mut names: Vec<&str> =
            self.shapes().filter(|(_, other)| *other == value).map(|(name, _)| name).collect();
        names.sort_by_key(|name| std::cmp::Reverse(shared(name)));
        names.into_iter().map(str::to_owned).collect()
    }

    /// Products of two names, and the rows of a matrix for queries, keys and values.
    fn products(&self, value: u64) -> Vec<String> {
        let of = |name: &str| self.names.iter().find(|(other, _)| other == name).map(|(_, v)| *v);
        let mut texts = Vec::new();
        if let (Some(heads), Some(head_dim)) = (of("heads"), of("head_dim")) {
            let kv_heads = of("kv_heads").unwrap_or(heads);
            let rows = kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(heads));
            if rows.and_then(|rows| rows.checked_mul(head_dim)) == Some(value) {
                texts.push("(heads + 2 * kv_heads) * head_dim".to_owned());
            }
        }
        let is_part = |name: &str| {
            ["dim", "head", "rank", "size", "group", "state"].iter().any(|word| name.contains(word))
        };
        for (at, (first, a)) in self.shapes().enumerate() {
            let times = (2..=4).filter(|times| a.checked_mul(*times) == Some(value));
            texts.extend(times.map(|times| format!("{times} * {first}")));
            let is_head = |name: &str| name.contains("head");
            for (second, b) in self.shapes().skip(at) {
                let is_made = a.checked_mul(b) == Some(value);
                let of_heads = is_head(first) && is_part(second);
                if is_made && (of_heads || is_head(second) && is_part(first)) {
                    texts.push(format!("{first} * {second}"));
                }
            }
        }
        texts
    }
}
