//! What is wanted of the graph of a model.

use apr_blocks::GraphOptions;
use apr_graph::{Graph, Meaning};
use apr_registry::CheckpointReader;

use super::error::JobError;
use crate::bind::{Blocks, Storage};

/// What is wanted of the graph of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphWishes {
    /// Version of ONNX's operators; `None`: the one that the weights ask for.
    pub opset: Option<i64>,
    /// Keys and values of earlier tokens go in, and those of all tokens come out.
    pub with_past: bool,
    /// What the head is for, such as `CausalLM`; `None`: as the configuration says.
    pub task: Option<String>,
    /// How quantized tensors stay quantized.
    pub blocks: Blocks,
}

impl GraphWishes {
    /// Whether nothing is wished for, so that any format will do.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As the families' blocks take them.
    pub(super) fn options(&self, opset: i64) -> GraphOptions {
        GraphOptions { past: self.with_past, opset, task: self.task.clone() }
    }

    /// Refuses what a model's own graph can't be asked for.
    ///
    /// # Errors
    /// [`JobError::Request`].
    pub(super) fn check_own(&self) -> Result<(), JobError> {
        if self.with_past || self.task.is_some() {
            let message = "the model has a graph of its own: --with-past and --task are for graphs \
                that a family makes";
            return Err(JobError::Request(message.to_owned()));
        }
        Ok(())
    }

    /// What to say where nothing of the model takes earlier keys and values, and they were wished
    /// for.
    pub(super) fn idle_past(&self, models: &[(String, Graph)]) -> Option<String> {
        let takes_past = |(_, graph): &(String, Graph)| {
            let mut inputs = graph.body.inputs.iter().map(|input| graph.body.value(*input).meaning);
            inputs.any(|meaning| matches!(meaning, Meaning::PastKey | Meaning::PastState))
        };
        let is_idle = self.with_past && !models.iter().any(takes_past);
        is_idle.then(|| {
            "the model has no keys and values of earlier tokens, so --with-past changes nothing"
                .to_owned()
        })
    }

    /// The operators' version: blocks of quantized tensors need a newer one than the rest.
    pub(super) fn opset(&self, reader: &dyn CheckpointReader, storage: &Storage) -> i64 {
        const USUAL: i64 = 17;
        const WITH_BLOCKS: i64 = 21;
        let has_blocks = reader.tensors().iter().any(|info| info.dtype.is_quantized());
        let keeps_blocks = has_blocks && storage.dequantize.is_none();
        self.opset.unwrap_or(if keeps_blocks { WITH_BLOCKS } else { USUAL })
    }
}
