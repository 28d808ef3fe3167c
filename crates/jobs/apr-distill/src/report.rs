//! What a training came to.

use serde::Serialize;

use crate::DistillOptions;

/// Closeness of a model to the teacher on the held-out rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Scores {
    /// Mean loss of a row.
    pub loss: f64,
    /// Share of the tokens, or rows, for which teacher and student have the same first choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
    /// Perplexity of the labels, for models that generate text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Mean cosine of the mean states of the teacher's and the student's rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
}

/// Report of a training.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DistillReport {
    /// Options of the training.
    pub options: DistillOptions,
    /// Layers of the teacher that the student began with; empty if it began with all layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<u64>,
    /// Rows that were learnt from, and that were held out.
    pub rows: usize,
    /// Rows that were held out.
    pub held_out: usize,
    /// Rows that were cut to the model's context.
    #[serde(skip_serializing_if = "is_zero")]
    pub cut: usize,
    /// Number of rows without a text in the data, for which the teacher generated one.
    #[serde(skip_serializing_if = "is_zero")]
    pub written: usize,
    /// Steps that were made.
    #[serde(rename = "step_count")]
    pub steps: u64,
    /// The step whose student was kept.
    pub best_step: u64,
    /// Steps that were planned.
    pub planned_steps: u64,
    /// Tokens that were learnt from, repetitions counted.
    #[serde(rename = "token_count")]
    pub tokens: u64,
    /// Parameters that were trained.
    pub parameters: u64,
    /// Tensors that the outputs don't depend on, and that are the teacher's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub untrained: Vec<String>,
    /// Tensors of the decoder that were not trained because the encoder also uses them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// `true` if each step recomputed the forward pass layer by layer to fit the memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recomputed: bool,
    /// Number of the teacher's predictions that were kept per token; `None` if all were kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_predictions: Option<usize>,
    /// Perplexity of the teacher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher_perplexity: Option<f64>,
    /// The student before the training.
    pub before: Scores,
    /// The student after it.
    pub after: Scores,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
