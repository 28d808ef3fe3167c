//! What a training came to.

use serde::Serialize;

use crate::DistillOptions;

/// How close a model is to the teacher on the rows that were held out.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Scores {
    /// Mean loss of a row.
    pub loss: f64,
    /// Share of the tokens, or rows, for which teacher and student have the same first choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
    /// Perplexity of the labels, where the model continues texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Mean cosine of the mean states of the teacher's and the student's rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
}

/// A training.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DistillReport {
    /// How it was done.
    pub options: DistillOptions,
    /// Layers of the teacher that the student began with; empty where it began with all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<u64>,
    /// Rows that were learnt from, and that were held out.
    pub rows: usize,
    /// Rows that were held out.
    pub held_out: usize,
    /// Rows that were cut to the model's context.
    #[serde(skip_serializing_if = "is_zero")]
    pub cut: usize,
    /// Rows whose text the teacher wrote, as the data has none.
    #[serde(skip_serializing_if = "is_zero")]
    pub written: usize,
    /// Steps that were made.
    pub steps: u64,
    /// The step whose student was kept.
    pub best_step: u64,
    /// Steps that were planned.
    pub planned_steps: u64,
    /// Tokens that were learnt from, repetitions counted.
    pub tokens: u64,
    /// Parameters that were trained.
    pub parameters: u64,
    /// Tensors that the outputs don't depend on, and that are the teacher's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub untrained: Vec<String>,
    /// Tensors of the decoder that the encoder uses, too, and that are the teacher's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// Whether each step computed the forward pass again, layer by layer, to fit the memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recomputed: bool,
    /// Predictions of each token that were kept of the teacher's; absent where all were.
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
