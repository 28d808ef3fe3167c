//! Models of images and texts that say how well they fit (CLIP: Radford et al. 2021,
//! <https://arxiv.org/abs/2103.00020>).

use apr_core::Result;
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::{encoder, vision};
use crate::blocks::norm::Norm;
use crate::model::{BlockPosition, Model};
use crate::names::{BATCH, SEQUENCE};
use crate::writer::Writer;

/// Names of the stacks in the family's table.
const TEXT: &str = "text";
const VISION: &str = "vision";

/// Output of one side: the vectors of its parts, and the vector of the whole.
struct Side {
    states: ValueId,
    pooled: ValueId,
}

/// Writes the graph of both sides, and how well each image fits each text.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let (text_place, vision_place) = (model.place(TEXT), model.place(VISION));
    let tokens = tokens(w, TEXT_BATCH);
    let pixels = vision::pixels(w, vision_place)?;
    let mask = text_mask(w, text_place, TEXT_BATCH)?;
    let text = w.scope("text", |w| text(w, text_place, tokens, mask))?;
    let image = w.scope("vision", |w| image(w, vision_place, pixels))?;
    let text = w.scope("text", |w| projected(w, text_place, text.pooled))?;
    let image = w.scope("vision", |w| projected(w, vision_place, image.pooled))?;
    let (by_image, by_text, text, image) = w.scope("fit", |w| -> Result<_> {
        let (text, image) = (unit(w, "text_unit", text), unit(w, "image_unit", image));
        let images = w.transpose("images_transposed", image, [1, 0]);
        let similarities = w.make("MatMul", "similarities", [text, images]);
        let scale = w.tensor(&text_place.module("logit_scale")?)?;
        // The checkpoint has the logarithm of the scale.
        let scale = w.make("Exp", "scale", [scale]);
        let mut by_text = w.make("Mul", "scaled", [similarities, scale]);
        // SigLIP adds a bias, and CLIP does not.
        if let Some(bias) = text_place.tensor_or_none("logit_bias") {
            let bias = w.tensor(&bias)?;
            by_text = w.make("Add", "by_text", [by_text, bias]);
        }
        Ok((w.transpose("by_image", by_text, [1, 0]), by_text, text, image))
    })?;
    w.body().output("logits_per_image", by_image, Meaning::Logits);
    w.body().output("logits_per_text", by_text, Meaning::Logits);
    w.body().output("text_embeds", text, Meaning::Pooled);
    w.body().output("image_embeds", image, Meaning::Pooled);
    Ok(())
}

/// Texts and images need not be as many.
const TEXT_BATCH: &str = "text_batch_size";

/// Writes the graph of the texts' side alone.
pub(crate) fn write_text(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let place = model.place(TEXT);
    let tokens = tokens(w, BATCH);
    let mask = text_mask(w, place, BATCH)?;
    let side = text(w, place, tokens, mask)?;
    outputs(w, place, &side, "text_embeds")
}

/// Writes the graph of the images' side alone.
pub(crate) fn write_vision(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let place = model.place(VISION);
    let pixels = vision::pixels(w, place)?;
    if place.text_or_none("head")?.as_deref() == Some("mean_patch") {
        return classes(w, place, pixels);
    }
    let side = image(w, place, pixels)?;
    outputs(w, place, &side, "image_embeds")
}

fn outputs(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    side: &Side,
    projected_name: &str,
) -> Result<()> {
    if place.text_or_none("head")?.as_deref() == Some("projection") {
        let projected = projected(w, place, side.pooled)?;
        w.body().output(projected_name, projected, Meaning::Pooled);
        w.body().output("last_hidden_state", side.states, Meaning::HiddenStates);
        return Ok(());
    }
    w.body().output("last_hidden_state", side.states, Meaning::HiddenStates);
    w.body().output("pooler_output", side.pooled, Meaning::Pooled);
    Ok(())
}

fn tokens(w: &mut Writer<'_>, batch: &str) -> ValueId {
    w.body().input(
        "input_ids",
        ElementType::I64,
        [Dim::symbol(batch), Dim::symbol(SEQUENCE)],
        Meaning::TokenIds,
    )
}

/// Adds the attention mask as an input, if option `mask_input` is true.
fn text_mask(w: &mut Writer<'_>, place: BlockPosition<'_>, batch: &str) -> Result<Option<ValueId>> {
    let shape = [Dim::symbol(batch), Dim::symbol(SEQUENCE)];
    Ok(place
        .truth("mask_input")?
        .then(|| w.body().input("attention_mask", ElementType::I64, shape, Meaning::AttentionMask)))
}

/// Returns the vectors of a text.
///
/// Option `pool` selects the vector of the whole text: `first`, `highest` (the token with the
/// highest id), `end` (the first token `end_id`) or `last`. The vector then passes through the
/// module `pooler`, if the checkpoint has it.
fn text(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    tokens: ValueId,
    mask: Option<ValueId>,
) -> Result<Side> {
    let states = encoder::encoded(w, place, tokens, None, mask)?;
    let pooled = w.scope("pooler", |w| -> Result<ValueId> {
        let pooled = match place.text("pool")?.as_str() {
            "first" => w.first_vector(states),
            "last" => {
                let last = w.int(-1);
                w.op("Gather", [states, last]).attribute("axis", 1).output("last")
            }
            "highest" => {
                let place = w
                    .op("ArgMax", [tokens])
                    .attribute("axis", 1)
                    .attribute("keepdims", 1)
                    .output("place");
                w.vector_at("highest", states, place)
            }
            "end" => {
                let end = w.int(crate::writer::signed(place.size("end_id")?));
                let is_end = w.make("Equal", "is_end", [tokens, end]);
                let place = w.place_of("place", is_end, false);
                w.vector_at("end", states, place)
            }
            other => return Err(place.unknown("pool", other)),
        };
        match place.module_or_none("pooler") {
            Some(module) => w.outer_linear("dense", pooled, &module),
            None => Ok(pooled),
        }
    })?;
    Ok(Side { states, pooled })
}

/// Returns the vectors of an image.
///
/// The vector of the whole image is the class token's after a norm, or the output of attention with
/// a learnt query (`probe`).
fn image(w: &mut Writer<'_>, place: BlockPosition<'_>, pixels: ValueId) -> Result<Side> {
    let states = vision::encoded(w, place, pixels)?;
    if place.tensor_or_none("probe").is_some() {
        let pooled = vision::attended_pool(w, place, states)?;
        return Ok(Side { states, pooled });
    }
    let first = w.scope("pooler", |w| w.first_vector(states));
    let pooled =
        w.norm_part(Norm::of(place)?, "pooler_norm", first, place.module_or_none("pooler_norm"))?;
    Ok(Side { states, pooled })
}

/// Scores of classes, from the mean of the patches' vectors.
fn classes(w: &mut Writer<'_>, place: BlockPosition<'_>, pixels: ValueId) -> Result<()> {
    let states = vision::encoded(w, place, pixels)?;
    let logits = w.scope("head", |w| -> Result<ValueId> {
        // The vector of the whole stands in front, and is no patch.
        let patches = match place.tensor_or_none("class_vector") {
            Some(_) => w.slice("patches", states, 1, 1, i64::MAX),
            None => states,
        };
        let mean = w.mean_vector(patches);
        w.outer_linear("scores", mean, &place.module("score")?)
    })?;
    w.body().output("logits", logits, Meaning::Logits);
    Ok(())
}

/// The vector in the space that images and texts share.
fn projected(w: &mut Writer<'_>, place: BlockPosition<'_>, pooled: ValueId) -> Result<ValueId> {
    match place.module_or_none("projection") {
        Some(module) => w.outer_linear("projection", pooled, &module),
        None => Ok(pooled),
    }
}

/// `x / sqrt(sum(x^2))`.
fn unit(w: &mut Writer<'_>, name: &str, x: ValueId) -> ValueId {
    w.scope(name, |w| {
        let length = w.euclidean("length", x, [-1]);
        w.make("Div", "unit", [x, length])
    })
}
