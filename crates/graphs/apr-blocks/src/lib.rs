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
pub use crate::kinds::image_features::IMAGE_FEATURES;
pub use crate::task::{check_task, class_for, task_asks_past};
pub use crate::unused::UnusedTensor;

/// The part of a model that makes vectors of images for its decoder. It takes `pixel_values` and
/// gives [`IMAGE_FEATURES`], `[images, tokens, hidden]`; the decoder takes these without images in
/// front, and a row of them replaces the vector of each token that stands for images, in order.
pub const IMAGE_ENCODER: &str = "vision_encoder";

/// Lowest and highest version of ONNX's operators that blocks are written in.
const OPSETS: std::ops::RangeInclusive<i64> = 17..=23;
/// Lowest opset that graphs are converted to from the opset of the blocks.
const OLDEST: i64 = 11;

/// Options for the graphs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphOptions {
    /// `true` if the graph takes the KV cache of earlier tokens and returns the cache of all
    /// tokens.
    pub past: bool,
    /// Version of ONNX's operators.
    pub opset: i64,
    /// Form of the cache for attention whose keys and values are computed from a short vector.
    pub latent_cache: LatentCache,
    /// Task of the head.
    ///
    /// It is a task name of Optimum, such as `text-generation-with-past`, which also sets `past`;
    /// or the end of a class name, such as `CausalLM`; or an empty text for no head. If `None`,
    /// `architectures` in the configuration determines the task.
    pub task: Option<String>,
    /// `true` if the task comes from the model's own files.
    ///
    /// The user then did not choose to leave out the tensors of other tasks.
    pub is_own_task: bool,
    /// Canonical names of the heads that differ from the table of tokens which the configuration
    /// ties them to ([`tied_heads`]): they count, as in transformers. `None` where nobody compared
    /// them; they are then taken for copies.
    pub untied: Option<Vec<String>>,
    /// `true` to add the graph of the model's part for images, [`IMAGE_ENCODER`].
    ///
    /// The decoder takes the vectors of this graph ([`IMAGE_FEATURES`]). If `false`, there is only
    /// the graph for texts.
    pub images: bool,
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
    /// Canonical name of the head.
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
            images: false,
        }
    }
}

/// A part of a model that is computed by itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelPart {
    /// Name that Optimum gives the file: `model`, `encoder_model`, `decoder_with_past_model`.
    pub name: &'static str,
    /// Graph of the part.
    pub graph: Graph,
}

/// Graphs of a model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Graphs {
    /// Parts of the model: one, or several if an encoder and a decoder run separately.
    pub parts: Vec<ModelPart>,
    /// Cache of multi-head latent attention, if the model has such attention and takes earlier keys
    /// and values.
    pub latent_cache: Option<LatentCache>,
    /// The checkpoint's tensors that none of them uses.
    pub unused: Vec<UnusedTensor>,
}

/// Returns the graphs of a checkpoint of a family. `tensors` are the tensors by which `model` was
/// identified.
///
/// # Errors
/// E003 if the family has no graph, or if the configuration has an option that no block supports.
/// E001 if the configuration or the checkpoint lacks a value that a block requires.
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
    let opsets = (written, options.opset);
    let vision = match options.images {
        true => Some(vision_part(model, tensors, opsets)?),
        false => None,
    };
    let model = Model::new(settings, tensors, opsets)
        .with_untied(untied)
        .with_latent_cache(options.latent_cache);
    let mut parts = match &vision {
        Some(vision) => parts_with_images(&model, &kind, past, vision)?,
        None => parts(&model, &kind, past)?,
    };
    if !OPSETS.contains(&options.opset) {
        for part in &mut parts {
            // Some operators are changed by the types of what they read.
            infer(&mut part.graph);
            part.graph = upgrade(&part.graph, options.opset)?;
        }
    }
    let is_latent = past && blocks::latent::is_latent(model.place(""))?;
    let latent_cache = is_latent.then_some(options.latent_cache);
    let is_chosen = asked.is_some() && !options.is_own_task;
    let unused = model.unused(tensors, is_chosen, vision.as_ref());
    Ok(Graphs { parts, latent_cache, unused })
}

/// The part for images of a model.
fn vision_part<'m>(
    model: &'m FamilyModel<'_>,
    tensors: &[TensorInfo],
    opsets: (i64, i64),
) -> Result<Model<'m>> {
    let settings = model.vision().and_then(|vision| vision.graph_settings(None));
    let settings = settings.ok_or_else(|| {
        let family = model.family().name();
        Error::version(format!("the family {family} has no part for images in this model"))
    })?;
    names::check(&settings)?;
    if let Some(why) = settings.refusal() {
        return Err(Error::version(format!("the model's part for images: {why}")));
    }
    Ok(Model::new(settings, tensors, opsets))
}

/// The graphs of a decoder and of the part for images before it.
fn parts_with_images(
    model: &Model<'_>,
    kind: &str,
    past: bool,
    vision: &Model<'_>,
) -> Result<Vec<ModelPart>> {
    if kind != "decoder" {
        return Err(Error::version(format!("images before a model of kind '{kind}'")));
    }
    let images = Some(kinds::decoder::Images::of(vision)?);
    Ok(vec![
        part(vision, IMAGE_ENCODER, |w| kinds::image_features::write(vision, w))?,
        part(model, "model", |w| kinds::decoder::write(model, w, past, images))?,
    ])
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
        "decoder" => one(part(model, "model", |w| kinds::decoder::write(model, w, past, None))?),
        "encoder" => one(part(model, "model", |w| kinds::encoder::write(model, w, ENCODER))?),
        "whole_encoder_decoder" => one(part(model, "model", |w| kinds::whole::write(model, w))?),
        "vision" => one(part(model, "model", |w| kinds::vision::write(model, w, "vision"))?),
        "spectrogram" => {
            one(part(model, "model", |w| kinds::vision::write_spectrogram(model, w, "vision"))?)
        }
        // The part for images of a larger model, by itself.
        "image_features" => {
            one(part(model, IMAGE_ENCODER, |w| kinds::image_features::write(model, w))?)
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
