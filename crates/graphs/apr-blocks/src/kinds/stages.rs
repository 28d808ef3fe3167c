//! Models that see in stages: layers over a map of features, which each stage makes coarser and
//! wider.

use apr_core::{Error, Result};
use apr_graph::{Meaning, ValueId};

use super::vision;
use crate::blocks::activation::Activation;
use crate::blocks::norm::Norm;
use crate::model::{BlockPosition, Model};
use crate::writer::Writer;

/// Maximum number of stages; models have four or five.
const MAX_STAGES: u64 = 64;

/// Writes the graph of a model of stages. Options `stages`, and `layers` of each stage.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let place = model.place("");
    let pixels = vision::pixels(w, place)?;
    let mut x = w.scope("stem", |w| stem(w, place, pixels))?;
    for stage in 0..stages(place)? {
        let place = place.stage(stage);
        x = w.scope(&format!("stages.{stage}.downsampling"), |w| coarser(w, place, x))?;
        for layer in 0..place.layers()? {
            x = layer_call(w, place.layer(layer), &format!("stages.{stage}.layers.{layer}"), x)?;
        }
    }

    head(w, place, x)
}

/// Returns the number of stages of a model, option `stages`.
pub(crate) fn stages(place: BlockPosition<'_>) -> Result<u64> {
    let stages = place.size("stages")?;
    if stages > MAX_STAGES {
        return Err(Error::memory(format!(
            "the configuration has {stages} stages, and a graph has {MAX_STAGES} at most"
        )));
    }
    Ok(stages)
}

/// The first map: a convolution with the stride `stem_stride` (or as far apart as its kernel is
/// large, without padding), a norm, `stem_activation`, and where `stem_pool` holds the largest of
/// the places nearby.
fn stem(w: &mut Writer<'_>, place: BlockPosition<'_>, pixels: ValueId) -> Result<ValueId> {
    let stride = place.size_or_none("stem_stride")?;
    let padding = if stride.is_some() { None } else { Some(0) };
    let module = place.module("patches")?;
    let x = w.map_convolution("convolution", pixels, &module, stride, padding)?;
    let mut x = w.map_norm(place, "norm", x, &place.module("embedding_norm")?)?;
    if place.text_or_none("stem_activation")?.is_some() {
        x = w.activate("activation", Activation::of(place, "stem_activation")?, x);
    }
    Ok(if place.truth("stem_pool")? { w.largest_nearby("pooled", x) } else { x })
}

/// The map that a stage starts with: a norm, and a convolution as far apart as its kernel is large,
/// where the family has them.
fn coarser(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let Some(module) = place.module_or_none("downsampling") else { return Ok(x) };
    let x = w.map_norm(place, "norm", x, &place.module("downsampling_norm")?)?;
    w.map_convolution("convolution", x, &module, None, Some(0))
}

/// One layer, as a call of a function. Option `block`: `convolutions` or `depthwise`.
fn layer_call(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    name: &str,
    x: ValueId,
) -> Result<ValueId> {
    let results = w.call(&place.function_name(), name, [("map", Some(x))], |w, [x]| {
        let x = x.ok_or_else(|| Error::format("a layer needs an input"))?;
        let made = match place.text("block")?.as_str() {
            "convolutions" => w.residual_convolutions(place, x)?,
            "depthwise" => w.depthwise_layer(place, x)?,
            other => return Err(place.unknown("block", other)),
        };
        Ok(vec![("output", made)])
    })?;
    Ok(results[0])
}

/// Writes the head that option `head` names: `states` (the map, and the mean of its places), or
/// `mean` (scores of classes, from that mean). The mean goes through `final_norm` where the family
/// has it, with option `final_norm_eps`.
fn head(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<()> {
    let head = place.required_head()?;
    let mean = w.scope("pooler", |w| -> Result<ValueId> {
        let mean = w.map_mean("mean", x);
        let Some(module) = place.module_or_none("final_norm") else { return Ok(mean) };
        let flat = w.flat("vector", mean, place.size("hidden")?);
        w.norm("norm", Norm::of(place)?.with_eps(place.number("final_norm_eps")?), flat, &module)
    })?;
    match head.as_str() {
        "states" => {
            w.body().output("last_hidden_state", x, Meaning::HiddenStates);
            w.body().output("pooler_output", mean, Meaning::Pooled);
        }
        "mean" => {
            let logits = w.scope("head", |w| -> Result<ValueId> {
                let vector = w.flat("vector", mean, place.size("hidden")?);
                w.outer_linear("scores", vector, &place.module("score")?)
            })?;
            w.body().output("logits", logits, Meaning::Logits);
        }
        other => return Err(place.unknown("head", other)),
    }

    Ok(())
}
