//! Graphs of model families.
//!
//! A family's table has a `[graph]` part (`docs/families.md`): which blocks its models are made of,
//! their options as expressions over the configuration, and which tensor plays which part. This
//! crate has the blocks, and puts them together for one checkpoint:
//!
//! ```text
//! [graph] of the family ─┐
//! configuration ─────────┼─▶ graphs() ─▶ model: apr_graph::Graph
//! names and shapes ──────┘
//! ```
//!
//! No weight is read. A graph names tensors by the family's canonical names and expects Hugging
//! Face's layout, so that a checkpoint of any format goes through the same graph once a view has
//! given it those. Layers that compute the same are calls of one function.
//!
//! Inputs and outputs are called as in the ONNX files that Hugging Face's Optimum exports, and
//! values are those of transformers' eager attention in single precision.
//!
//! # How a model gets its graph
//!
//! `apr_blocks::graphs` takes a `FamilyModel` and the names and shapes of its tensors. The
//! family's `[graph]` table states the kind of model, the options of its blocks, and the tensor of
//! each part. `apr-arch` evaluates the expressions for each layer (`GraphSettings`). `kinds/`
//! assembles blocks: inputs, stacks of layers, heads. `blocks/` has one function per block, which
//! writes nodes through a `Writer`. The `Writer` of a layer writes the body of a function, whose
//! parameters are weights. Layers with equal bodies call one function. Tensors have canonical
//! names and Hugging Face's layout, so a GGUF file is read through the view of `restore`.
//!
//! The crate is separate from `apr-arch` because it requires `apr-graph`. Naming and validating
//! tensors requires no blocks.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod blocks;
mod kinds;
mod model;
mod names;
mod task;
mod unused;
mod writer;

use apr_arch::FamilyModel;
use apr_core::{Error, Result, TensorInfo};
use apr_graph::{Graph, Operator, Opset, infer, upgrade};

use crate::model::Model;
use crate::writer::Writer;

pub use crate::blocks::activation::activate;
pub use crate::task::{class_for, task_asks_past};
pub use crate::unused::UnusedTensor;

/// Lowest and highest version of ONNX's operators that blocks are written in.
const OPSETS: std::ops::RangeInclusive<i64> = 17..=23;
/// Lowest version that graphs are converted to, from those of blocks.
const OLDEST: i64 = 11;

/// What is wanted of the graphs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphOptions {
    /// Whether keys and values of earlier tokens go in, and those of all tokens come out.
    pub past: bool,
    /// Version of ONNX's operators.
    pub opset: i64,
    /// What is kept of earlier tokens by attention whose keys and values are made of a short
    /// vector.
    pub latent_cache: LatentCache,
    /// What the head is for: a task as Optimum names it, such as `text-generation-with-past`, which
    /// stands for `past` too; or the end of a class, such as `CausalLM`; no text for no head.
    /// `None`: as `architectures` of the configuration says.
    pub task: Option<String>,
    /// Whether the task is what the model's own files say, so that nobody chose to leave out what
    /// another task adds.
    pub is_own_task: bool,
    /// Canonical names of the heads that differ from the table of tokens which the configuration
    /// ties them to ([`tied_heads`]): they count, as in transformers. `None` where nobody compared
    /// them; they are then taken for copies.
    pub untied: Option<Vec<String>>,
}

/// The cache of multi-head latent attention (DeepSeek-V2 and later).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LatentCache {
    /// `key` is the short vector of a token, `[batch, 1, tokens, rank]`, and `value` the part of
    /// its key that is rotated, as transformers 5 keeps them: for DeepSeek-V3, 71 times smaller
    /// than keys and values of all heads.
    #[default]
    Latents,
    /// Keys and values of every head, as transformers 4 keeps them, and as Optimum's
    /// `ORTModelForCausalLM` expects them.
    Heads,
}

/// A head that the configuration ties to the table of tokens, and that the checkpoint has
/// nevertheless. Both are canonical names of tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TiedHead {
    /// The head.
    pub head: String,
    /// The table of tokens.
    pub table: String,
}

impl Default for GraphOptions {
    fn default() -> Self {
        Self {
            past: true,
            opset: 17,
            latent_cache: LatentCache::default(),
            task: None,
            is_own_task: false,
            untied: None,
        }
    }
}

/// A part of a model that is computed by itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelPart {
    /// As Optimum names its file: `model`, `encoder_model`, `decoder_with_past_model`.
    pub name: &'static str,
    /// What it computes.
    pub graph: Graph,
}

/// What a model computes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Graphs {
    /// One, or several where an encoder and a decoder run apart.
    pub parts: Vec<ModelPart>,
    /// The cache of multi-head latent attention, where the model has such attention and takes
    /// earlier keys and values.
    pub latent_cache: Option<LatentCache>,
    /// The checkpoint's tensors that none of them uses.
    pub unused: Vec<UnusedTensor>,
}

/// The graphs of a checkpoint of a family. `tensors` are those that `model` was identified by.
///
/// # Errors
/// E003 when the family has no graph, or the configuration has an option that no block knows. E001
/// when the configuration or the checkpoint lacks what a block needs.
pub fn graphs(
    model: &FamilyModel<'_>,
    tensors: &[TensorInfo],
    options: &GraphOptions,
) -> Result<Graphs> {
    let without_graph =
        || Error::version(format!("the family {} has no [graph]", model.family().name()));
    model.graph_settings(None).ok_or_else(without_graph)?;
    let asked = options.task.as_deref();
    let class = asked.map(|asked| task::class_of(model, asked)).transpose()?;
    let settings = model.graph_settings(class.as_deref()).ok_or_else(without_graph)?;
    let (first, last) = (OLDEST, Operator::newest());
    if !(first..=last).contains(&options.opset) {
        return Err(Error::version(format!(
            "graphs are written with opset {first} to {last}, not {}",
            options.opset
        )));
    }

    names::check(&settings)?;
    if let Some(why) = settings.refusal() {
        return Err(Error::version(format!(
            "the graph of family {}: {why}",
            model.family().name()
        )));
    }

    let kind = settings.kind().ok_or_else(|| task::lacks(settings.model(), settings.task()))?;
    let past = options.past || asked.is_some_and(task_asks_past);
    let untied = options.untied.as_deref().unwrap_or_default();
    let written = options.opset.clamp(*OPSETS.start(), *OPSETS.end());
    let model = Model::new(settings, tensors, (written, options.opset))
        .with_untied(untied)
        .with_latent_cache(options.latent_cache);
    let mut parts = parts(&model, &kind, past)?;
    if !OPSETS.contains(&options.opset) {
        for part in &mut parts {
            // Some operators are changed by the types of what they read.
            infer(&mut part.graph);
            part.graph = upgrade(&part.graph, options.opset)?;
        }
    }
    let is_latent = past && blocks::latent::is_latent(model.place(""))?;
    let latent_cache = is_latent.then_some(options.latent_cache);
    let unused = model.unused(tensors, asked.is_some() && !options.is_own_task);
    Ok(Graphs { parts, latent_cache, unused })
}

/// The heads whose weights the graphs leave out in favour of the table of tokens, although the
/// checkpoint has both. Whether they are the same is in the values.
///
/// # Errors
/// E001 when the configuration says something else than true or false of it; E003 for a task that
/// the family has no model for.
pub fn tied_heads(
    model: &FamilyModel<'_>,
    tensors: &[TensorInfo],
    options: &GraphOptions,
) -> Result<Vec<TiedHead>> {
    let class = options.task.as_deref().map(|asked| task::class_of(model, asked)).transpose()?;
    let Some(settings) = model.graph_settings(class.as_deref()) else {
        return Ok(Vec::new());
    };
    let stacks: Vec<&str> = std::iter::once("").chain(settings.stacks()).collect();
    let model = Model::new(settings, tensors, (options.opset, options.opset));
    let mut heads = Vec::new();
    for stack in stacks {
        let place = model.place(stack);
        let table = place.tensor_or_none("tokens");
        if let (true, Some(table), Some(head)) =
            (place.truth("tied")?, table, place.module_or_none("head"))
        {
            let head = TiedHead { head: format!("{head}.weight"), table };
            if !heads.contains(&head) {
                heads.push(head);
            }
        }
    }
    Ok(heads)
}

/// The graphs of a kind of model.
fn parts(model: &Model<'_>, kind: &str, past: bool) -> Result<Vec<ModelPart>> {
    use kinds::encoder_decoder::{ENCODER, Memory, write_decoder, write_encoder};

    let one = |part: ModelPart| vec![part];
    Ok(match kind {
        "decoder" => one(part(model, "model", |w| kinds::decoder::write(model, w, past))?),
        "encoder" => one(part(model, "model", |w| kinds::encoder::write(model, w, ENCODER))?),
        "whole_encoder_decoder" => one(part(model, "model", |w| kinds::whole::write(model, w))?),
        "vision" => one(part(model, "model", |w| kinds::vision::write(model, w, "vision"))?),
        "spectrogram" => {
            one(part(model, "model", |w| kinds::vision::write_spectrogram(model, w, "vision"))?)
        }
        "stages" => one(part(model, "model", |w| kinds::stages::write(model, w))?),
        "windows" => one(part(model, "model", |w| kinds::windows::write(model, w))?),
        "state_space" => one(part(model, "model", |w| kinds::state_space::write(model, w, past))?),
        "sound" => one(part(model, "model", |w| kinds::sound::write(model, w))?),
        "mel" => one(part(model, "model", |w| kinds::sound::write_mel(model, w, ENCODER))?),
        "text_and_vision" => one(part(model, "model", |w| kinds::dual::write(model, w))?),
        "text_side" => one(part(model, "model", |w| kinds::dual::write_text(model, w))?),
        "vision_side" => one(part(model, "model", |w| kinds::dual::write_vision(model, w))?),
        "encoder_decoder" => {
            let mut parts = vec![
                part(model, "encoder_model", |w| write_encoder(model, w))?,
                part(model, "decoder_model", |w| write_decoder(model, w, Memory::States(past)))?,
            ];
            if past {
                parts.push(part(model, "decoder_with_past_model", |w| {
                    write_decoder(model, w, Memory::Past)
                })?);
            }
            parts
        }
        other => {
            return Err(Error::version(format!("unknown kind '{other}' in [graph]")));
        }
    })
}

/// One graph, whose main body `write` writes.
fn part<'m>(
    model: &'m Model<'m>,
    name: &'static str,
    write: impl FnOnce(&mut Writer<'m>) -> Result<()>,
) -> Result<ModelPart> {
    let mut writer = Writer::new(model);
    write(&mut writer)?;
    let functions = model.functions.take();
    let mut opsets = vec![Opset { domain: "".into(), version: model.opset }];

    // All functions are of one domain.
    if let Some(function) = functions.first() {
        opsets.push(Opset { domain: function.op.domain.clone(), version: 1 });
    }
    Ok(ModelPart { name, graph: Graph { opsets, functions, body: writer.finish() } })
}
