//! What is wanted of the graph of a model.

use apr_bind::{Blocks, Storage};
use apr_blocks::{GraphOptions, Graphs, LatentCache, task_asks_past};
use apr_graph::{ElementType, Graph, Meaning, either, first_cast, infer, inline};
use apr_registry::{CheckpointReader, DType, DTypeKind, Error};
use apr_tensor::cast::can_cast;

use super::error::JobError;
use crate::simplify::NamedShape;

/// Requirements for the graph of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphWishes {
    /// Version of ONNX's operators; `None`: the version that the weights require.
    pub opset: Option<i64>,
    /// Give the graph a KV cache: inputs for past keys and values, outputs for all keys and values.
    pub with_past: bool,
    /// Join the decoders with and without past keys and values into one model.
    ///
    /// An input selects which of the two is computed.
    pub merged: bool,
    /// Task of the head, by Optimum's name or as `CausalLM`; `None`: the task in the configuration.
    pub task: Option<String>,
    /// Content of the cache for latent attention (keys and values computed from a short vector).
    ///
    /// `None`: that vector.
    pub latent_cache: Option<LatentCache>,
    /// Storage of quantized tensors that stay quantized.
    pub blocks: Blocks,
    /// Values or nodes at which the written part of the graph begins; empty: at the inputs.
    pub from: Vec<String>,
    /// Values or nodes at which the written part of the graph ends; empty: at the outputs.
    pub to: Vec<String>,
    /// New shapes of inputs.
    pub shapes: Vec<NamedShape>,
    /// Old names of values, or expressions, and their new names.
    pub renames: Vec<(String, String)>,
    /// Keep inputs and outputs in single precision if the graph computes in halves.
    pub keep_io: bool,
    /// Operators that compute in single precision if the graph computes in halves.
    pub exclude_ops: Vec<String>,
    /// Simplify the graph, and run both graphs to check that they compute the same.
    pub simplify: bool,
}

/// Returns a message about settings that apply to something else only.
pub(super) fn applying(settings: &[&str], to: &str) -> String {
    let mut names: Vec<String> = settings.iter().map(|name| format!("`{name}`")).collect();
    match (names.pop(), names.is_empty()) {
        (Some(last), false) => format!("{} and {last} apply to {to}", names.join(", ")),
        (last, _) => format!("{} applies to {to}", last.unwrap_or_default()),
    }
}

/// The parts of a model by name, and a warning if merging had no effect.
pub(super) type Merged = (Vec<(String, Graph)>, Option<String>);

impl GraphWishes {
    /// Returns `true` if there are no requirements, so that any format is suitable.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the settings that are requested.
    pub(super) fn asked(&self) -> Vec<&'static str> {
        let asked = [
            ("opset", self.opset.is_some()),
            ("with_past", self.with_past),
            ("merged", self.merged),
            ("latent_cache", self.latent_cache.is_some()),
            ("task", self.task.is_some()),
            ("matmul_nbits", self.blocks != Blocks::default()),
            ("simplify", self.simplify),
            ("shape", !self.shapes.is_empty()),
            ("from", !self.from.is_empty()),
            ("to", !self.to.is_empty()),
            ("rename", !self.renames.is_empty()),
            ("keep_io", self.keep_io),
            ("exclude_op", !self.exclude_ops.is_empty()),
        ];
        asked.into_iter().filter(|(_, asked)| *asked).map(|(name, _)| name).collect()
    }

    /// Returns `true` if graphs are changed before weights are bound to them.
    pub(super) fn reworks(&self) -> bool {
        let Self { shapes, simplify, from, to, renames, .. } = self;
        let cuts = !(from.is_empty() && to.is_empty());
        *simplify || cuts || !(shapes.is_empty() && renames.is_empty())
    }

    /// Returns the options for the families' blocks.
    pub(super) fn options(&self, opset: i64) -> GraphOptions {
        let past = self.with_past || self.merged;
        let latent_cache = self.latent_cache.unwrap_or_default();
        let task = self.task.clone();
        GraphOptions { past, opset, latent_cache, task, ..GraphOptions::default() }
    }

    /// Merges the two decoders of a model if requested, and returns a warning if there are not two.
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

    /// Rejects options that do not apply to a model's own graph.
    ///
    /// # Errors
    /// [`JobError::Request`].
    pub(super) fn check_own(&self) -> Result<(), JobError> {
        let of_families = ["with_past", "merged", "task", "latent_cache"];
        let asked: Vec<_> =
            self.asked().into_iter().filter(|name| of_families.contains(name)).collect();
        match asked.is_empty() {
            true => Ok(()),
            false => Err(JobError::Request(format!(
                "the file has its own graph: {}",
                applying(&asked, "graphs of model families")
            ))),
        }
    }

    /// Returns a warning if `matmul_nbits` was requested but no product has weights in blocks.
    pub(super) fn idle_blocks(&self, models: &[(String, Graph)]) -> Option<String> {
        let has = |(_, graph): &(String, Graph)| {
            graph.body.nodes.iter().any(|node| &*node.op.name == "MatMulNBits")
        };
        (self.blocks == Blocks::MatMulNBits && !models.iter().any(has)).then(|| {
            "`matmul_nbits` has no effect: no matrix of the model is multiplied in GGUF's blocks"
                .to_owned()
        })
    }

    /// Returns a warning if past keys and values were requested but no graph has inputs for them.
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

    /// Returns a warning if a cache of latent attention was requested but there is none.
    pub(super) fn idle_latent_cache(&self, graphs: &Graphs) -> Option<String> {
        let is_idle = self.latent_cache.is_some() && graphs.latent_cache.is_none();
        let why = if self.options(0).past {
            "the model has no latent attention"
        } else {
            "the graph has no cache without `with_past`"
        };
        is_idle.then(|| format!("{why}, so `latent_cache` has no effect"))
    }

    /// Returns the opset version for a new graph: what the weights require, or the default.
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

    /// Returns the opset version: the requested one, or `usual`.
    ///
    /// The version is later if a dtype of the weights was added to ONNX after it.
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

/// First version of ONNX's operators whose `DequantizeLinear` supports blocks.
pub(super) const WITH_BLOCKS: i64 = 21;

/// A version of ONNX's operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opset {
    pub(super) version: i64,
    /// Reason for a version later than the default.
    pub(super) raised: Option<String>,
}

/// Returns the first opset version that casts all floats as stored, and the dtype that requires it.
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
