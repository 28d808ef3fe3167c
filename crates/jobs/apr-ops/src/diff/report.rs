//! What a comparison reports.

use apr_registry::{DType, Shape};
use serde::Serialize;

use super::explained::Explained;
use crate::graph::{Computed, StructureDiff};

/// Result of comparing a pair of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The bytes are the same.
    Identical,
    /// The bytes are the same, the shape is another one.
    Reshaped,
    /// No value differs by more than the tolerance.
    Match,
    /// Values differ, by no more than the narrower dtype rounds.
    Rounded,
    /// Some value differs by more.
    Drift,
    /// Shapes differ, or a dtype that can't be decoded; values were not compared.
    Incomparable,
}

/// A tensor of the left model and its counterpart.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TensorDiff {
    /// Name in the left model.
    pub name: String,
    /// Name in the right model, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_name: Option<String>,
    /// `true` if the tensors were paired only because their bytes are equal.
    pub renamed: bool,
    /// Result of the comparison.
    pub verdict: Verdict,
    /// `true` if the result is based only on equal digests in the files; the bytes were not read.
    pub by_digest: bool,
    /// `true` if the files state equal digests but the bytes differ: one of the files is damaged.
    pub damaged: bool,
    /// Dtypes, left and right.
    pub dtypes: [DType; 2],
    /// Shapes, left and right.
    pub shapes: [Shape; 2],
    /// Largest difference between two values; infinite if one of them is not a number.
    ///
    /// `None` if the tensors were not compared.
    pub max_delta: Option<f64>,
    /// Euclidean norm of the difference.
    pub l2: Option<f64>,
    /// Cosine of the angle between the two tensors, as vectors; `None` if one is zero.
    pub cosine: Option<f64>,
    /// Norm of the difference divided by the norm of the values, if the dtypes differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_error: Option<f64>,
    /// Relative error that the dtypes allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<f64>,
}

/// A limit for the distance of two models.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct L2Gate {
    /// The largest Euclidean norm of the difference.
    pub limit: f64,
    /// `true` if the limit was kept and all tensors could be compared.
    pub passed: bool,
}

/// A metadata key whose values differ; a missing value is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MetadataChange {
    /// The key; of a GGUF pair `gguf.` and its key, of an object its keys joined by dots.
    pub key: String,
    /// Value in the left model, as JSON; of a long array its length.
    pub left: Option<serde_json::Value>,
    /// Value in the right model, as JSON.
    pub right: Option<serde_json::Value>,
    /// `true` if the models can answer differently because of it: a generation setting, a token
    /// that ends a text, or a limit of the configuration. Such models are not the same.
    pub changes_answers: bool,
}

/// A token that both models have, at other ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TokenChange {
    /// Text, as the left model's tokenizer stores it.
    pub token: String,
    /// Ids in the left model.
    pub ids: Vec<u64>,
    /// Ids in the right model.
    pub other_ids: Vec<u64>,
}

/// A rule of a tokenizer that differs, or a chat template that only one model has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RuleChange {
    /// Name of the rule: `merges`, `normalizer`, `tokenizer.chat_template` and the like.
    pub name: String,
    /// Description of the difference.
    pub detail: String,
}

/// Differences between two vocabularies and between their tokenization rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VocabChanges {
    /// Tokens in the right model only.
    #[serde(rename = "added_count")]
    pub added: usize,
    /// Tokens in the left model only.
    #[serde(rename = "removed_count")]
    pub removed: usize,
    /// Tokens in both models, at other ids.
    pub moved: usize,
    /// The first of the tokens that moved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<TokenChange>,
    /// Rules that differ: how texts are split, which tokens are special, how chats are written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleChange>,
}

/// The report of `apr diff`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DiffReport {
    /// The left model.
    pub path: String,
    /// The right model.
    pub other_path: String,
    /// `true` if nothing that changes answers differs beyond the tolerance: tensors, names,
    /// computation, tokenizer, chat template, generation settings and limits.
    pub same: bool,
    /// 100 for equal models: one minus the norm of the difference over the sum of both norms, in
    /// percent; a tensor without counterpart counts as wholly different.
    pub similarity: f64,
    /// Largest difference between two values.
    pub max_delta: f64,
    /// Euclidean norm of the whole difference.
    pub l2: f64,
    /// Limit of the L2 distance, if one was requested, and its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_gate: Option<L2Gate>,
    /// Pairs, in the order of the left model.
    pub tensors: Vec<TensorDiff>,
    /// Names that only the left model has.
    pub removed: Vec<String>,
    /// Names that only the right model has.
    pub added: Vec<String>,
    /// Tensors that only one model has and that are not a difference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub explained: Vec<Explained>,
    /// Differences of tokens and tokenization rules, if both models contain a vocabulary.
    pub vocab: Option<VocabChanges>,
    /// Metadata that differs, provenance aside.
    pub metadata: Vec<MetadataChange>,
    /// Differences of the computation, if both graphs have the same kind of origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structure: Option<StructureDiff>,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Warnings about the comparison.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl DiffReport {
    /// Adds the differences between the graphs of the two models to the report.
    #[must_use]
    pub fn with_graphs(mut self, left: &Computed, right: &Computed) -> Self {
        self.structure = StructureDiff::new(left, right);
        self.same &= self.structure.as_ref().is_none_or(StructureDiff::is_empty);
        self
    }
}
