//! What is wanted of the graph of a model.

use apr_bind::{Blocks, Storage};
use apr_blocks::{GraphOptions, Graphs, LatentCache, task_asks_past};
use apr_graph::{ElementType, Graph, Meaning, either, first_cast, infer, inline};
use apr_registry::{CheckpointReader, DType, DTypeKind, Error};
use apr_tensor::cast::can_cast;

use super::error::JobError;

/// What is wanted of the graph of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphWishes {
    /// Version of ONNX's operators; `None`: the one that the weights ask for.
    pub opset: Option<i64>,
    /// Keys and values of earlier tokens go in, and those of all tokens come out.
    pub with_past: bool,
    /// The decoder with and without earlier keys and values is one model, which an input tells
    /// which of them to compute.
    pub merged: bool,
    /// What the head is for, by Optimum's name of the task or as `CausalLM`; `None`: as the
    /// configuration says.
    pub task: Option<String>,
    /// What is kept of earlier tokens by attention whose keys and values are made of a short
    /// vector; `None`: that vector.
    pub latent_cache: Option<LatentCache>,
    /// How quantized tensors stay quantized.
    pub blocks: Blocks,
}

/// The parts of a model by their names, and a warning where merging changed nothing.
pub(super) type Merged = (Vec<(String, Graph)>, Option<String>);

impl GraphWishes {
    /// Whether nothing is wished for, so that any format will do.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As the families' blocks take them.
    pub(super) fn options(&self, opset: i64) -> GraphOptions {
        let past = self.with_past || self.merged;
        let latent_cache = self.latent_cache.unwrap_or_default();
        let task = self.task.clone();
        GraphOptions { past, opset, latent_cache, task, ..GraphOptions::default() }
    }

    /// The parts of a model as they are wished for: the decoder's two as one, and what to say where
    /// there are no two.
    pub(super) fn merge(&self, mut models: Vec<(String, Graph)>) -> Result<Merged, JobError> {
        const FIRST: &str = "decoder_model";
        const NEXT: &str = "decoder_with_past_model";

        let place = |wanted: &str| models.iter().position(|(name, _)| name == wanted);
        if !self.merged {
            return Ok((models, None));
        }
        let (Some(first), Some(next)) = (place(FIRST), place(NEXT)) else {
            let takes_past = self.idle_past(&models).is_none();
            let idle =
                "`merged` has no effect: the model is a single graph, written as with `with_past`";
            return Ok((models, takes_past.then(|| idle.to_owned())));
        };

        // The types of outputs say what is empty where they are not made.
        let written_out = |at: usize| {
            let mut graph = inline(&models[at].1)?;
            infer(&mut graph);
            Ok::<_, JobError>(graph)
        };
        let merged = either("use_cache_branch", &written_out(next)?, &written_out(first)?)?;
        models[first] = ("decoder_model_merged".to_owned(), merged);
        models.remove(next);
        Ok((models, None))
    }

    /// Refuses what a model's own graph can't be asked for.
    ///
    /// # Errors
    /// [`JobError::Request`].
    pub(super) fn check_own(&self) -> Result<(), JobError> {
        if self.with_past || self.merged || self.task.is_some() || self.latent_cache.is_some() {
            let message = "the file has its own graph: `with_past`, `merged`, `task` and \
                           `latent_cache` apply to graphs of model families";
            return Err(JobError::Request(message.to_owned()));
        }
        Ok(())
    }

    /// What to say where no product has weights in blocks that onnxruntime multiplies as they are,
    /// and that was wished for.
    pub(super) fn idle_blocks(&self, models: &[(String, Graph)]) -> Option<String> {
        let has = |(_, graph): &(String, Graph)| {
            graph.body.nodes.iter().any(|node| &*node.op.name == "MatMulNBits")
        };
        (self.blocks == Blocks::MatMulNBits && !models.iter().any(has)).then(|| {
            "`matmul_nbits` has no effect: no matrix of the model is multiplied in GGUF's blocks"
                .to_owned()
        })
    }

    /// What to say where nothing of the model takes earlier keys and values, and they were wished
    /// for.
    pub(super) fn idle_past(&self, models: &[(String, Graph)]) -> Option<String> {
        let takes_past = |(_, graph): &(String, Graph)| {
            let mut inputs = graph.body.inputs.iter().map(|input| graph.body.value(*input).meaning);
            inputs.any(|meaning| matches!(meaning, Meaning::PastKey | Meaning::PastState))
        };
        if models.iter().any(takes_past) {
            return None;
        }
        let asked = match self.task.as_deref().filter(|task| task_asks_past(task)) {
            _ if self.with_past => "`with_past`",
            _ if self.merged => "`merged`",
            Some(task) => task,
            None => return None,
        };
        Some(format!("{asked} has no effect: the model has no key-value cache"))
    }

    /// What to say where a cache of latent attention was wished for, and there is none.
    pub(super) fn idle_latent_cache(&self, graphs: &Graphs) -> Option<String> {
        let is_idle = self.latent_cache.is_some() && graphs.latent_cache.is_none();
        let why = if self.options(0).past {
            "the model has no latent attention"
        } else {
            "the graph has no cache without `with_past`"
        };
        is_idle.then(|| format!("{why}, so `latent_cache` has no effect"))
    }

    /// The operators' version for a graph that is made anew: what the weights ask for, and the
    /// usual one otherwise.
    pub(super) fn opset(
        &self,
        reader: &dyn CheckpointReader,
        storage: &Storage,
        quantizes: bool,
    ) -> Result<Opset, JobError> {
        const USUAL: i64 = 17;
        let has_blocks = reader.tensors().iter().any(|info| info.dtype.is_quantized());
        let keeps_blocks = quantizes || has_blocks && storage.dequantize.is_none();
        self.at_least(if keeps_blocks { WITH_BLOCKS } else { USUAL }, reader, storage)
    }

    /// The operators' version: the one that is wished for, or this one; later where a type of the
    /// weights came to ONNX after it.
    pub(super) fn at_least(
        &self,
        usual: i64,
        reader: &dyn CheckpointReader,
        storage: &Storage,
    ) -> Result<Opset, JobError> {
        let version = self.opset.unwrap_or(usual);
        let Some((since, dtype)) = casts(reader, storage).filter(|(since, _)| *since > version)
        else {
            return Ok(Opset { version, raised: None });
        };
        if self.opset.is_some() {
            let message = format!(
                "weights of {dtype} need `opset` {since} or later; for {version} pass \
                 `precision` fp16 or fp32"
            );
            return Err(Error::version(message).into());
        }

        let raised =
            format!("opset {since} instead of {version}, the first whose Cast supports {dtype}");
        Ok(Opset { version: since, raised: Some(raised) })
    }
}

/// The first version of ONNX's operators whose `DequantizeLinear` knows blocks.
pub(super) const WITH_BLOCKS: i64 = 21;

/// A version of ONNX's operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opset {
    pub(super) version: i64,
    /// Why it is a later one than the usual.
    pub(super) raised: Option<String>,
}

/// The first version of ONNX's operators that casts all floats as they are stored, and the dtype
/// that asks for it.
fn casts(reader: &dyn CheckpointReader, storage: &Storage) -> Option<(i64, DType)> {
    let floats = reader.tensors().iter().filter(|info| {
        let is_float = matches!(info.dtype.kind(), DTypeKind::Float | DTypeKind::MiniFloat);
        is_float && info.shape.elements() != Some(1)
    });
    let stored = floats.map(|info| {
        let changes = |to: &DType| info.dtype.is_float() && can_cast(info.dtype, *to);
        storage.precision.filter(changes).unwrap_or(info.dtype)
    });
    stored.filter_map(|dtype| Some((first_cast(ElementType::from_dtype(dtype)?)?, dtype))).max()
}
