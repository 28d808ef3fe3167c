//! What adapters changed.

use apr_merge::{Change, TensorChange};
use serde::Serialize;

/// Report on merging adapters.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AdaptReport {
    /// The model that they were merged into.
    pub base: String,
    /// The adapters, in their order.
    pub adapters: Vec<MergedAdapter>,
    /// Tensors that changed.
    #[serde(rename = "changed_count")]
    pub changed: usize,
    /// Tensors that are the base's.
    pub copied: usize,
    /// All changed tensors together, as far as they were read.
    pub total: Change,
    /// Change of each changed tensor, in the order of the result.
    pub tensors: Vec<TensorChange>,
    /// The tensors that moved most.
    pub worst: Vec<TensorChange>,
}

/// An adapter that was merged.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MergedAdapter {
    /// Name of the adapter in the request.
    pub name: String,
    /// `LoRA`, `DoRA`, `LOHA`, `LOKR`.
    pub kind: String,
    /// The model that it was trained on, as its configuration names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained_on: Option<String>,
    /// Factor of the adapter in addition to its own scale.
    pub weight: f64,
    /// Ranks of its matrices, each once, the smallest first.
    pub ranks: Vec<u64>,
    /// Scales of the adapter, each once: alpha divided by the rank, or by the square root of the
    /// rank.
    pub scales: Vec<f64>,
    /// Modules that it changed.
    pub modules: usize,
    /// Tensors that it has in place of the base's.
    pub replaced: usize,
}
