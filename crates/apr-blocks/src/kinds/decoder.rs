//! Decoders: models that continue a text.

use apr_core::Result;
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::head::Head;
use crate::blocks::attention::{Given, Heads, KeyValue};
use crate::blocks::norm::Norm;
use crate::blocks::rotary::{Rotary, Turn};
use crate::model::{Model, Place};
use crate::writer::Writer;

/// Names of symbolic sizes, as Optimum has them.
pub(crate) const BATCH: &str = "batch_size";
pub(crate) const SEQUENCE: &str = "sequence_length";
pub(crate) const PAST: &str = "past_sequence_length";

/// The one stack of layers, in the family's table.
const STACK: &str = "";

/// What the caller gives.
struct Inputs {
    tokens: ValueId,
    attention_mask: ValueId,
    positions: ValueId,
    past: Vec<KeyValue>,
}

/// Masks and rotations that layers share.
struct Shared {
    masks: Vec<(Option<u64>, ValueId)>,
    turns: Vec<(Rotary, Turn)>,
}

/// How a layer adds what its blocks make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Residual {
    /// The feed-forward network works on what attention made.
    Serial,
    /// Both work on the layer's input (Wang and Komatsuzaki 2021, GPT-J).
    Parallel,
}

/// Writes the graph of a decoder. `with_past`: earlier keys and values are inputs, all of them are outputs.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>, with_past: bool) -> Result<()> {
    let place = model.place(STACK);
    let layers = place.layers()?;
    let inputs = inputs(w, place, layers, with_past)?;
    let mut x = embeddings(w, place, &inputs)?;
    let shared = shared(w, place, layers, &inputs)?;
    let mut present = Vec::new();
    for layer in 0..layers {
        let past = inputs.past.get(usize::try_from(layer).unwrap_or(usize::MAX)).copied();
        let [out, key, value] = decoder_layer(w, place.layer(layer), layer, x, &shared, past)?;
        x = out;
        present.push(KeyValue { key, value });
    }
    let x = w.norm_part(Norm::of(place)?, "final_norm", x, place.module_or_none("final_norm"))?;
    Head::of(place)?.write(w, place, x, inputs.tokens)?;
    if with_past {
        outputs_of_cache(w, &present, "present");
    }
    Ok(())
}

fn inputs(w: &mut Writer<'_>, place: Place<'_>, layers: u64, with_past: bool) -> Result<Inputs> {
    let (batch, sequence) = (Dim::symbol(BATCH), Dim::symbol(SEQUENCE));
    let past = if with_past { Dim::symbol(PAST) } else { Dim::integer(0) };
    let body = w.body();
    let row = [batch.clone(), sequence.clone()];
    let tokens = body.input("input_ids", ElementType::I64, row.clone(), Meaning::TokenIds);
    let all = [batch.clone(), past.plus(&sequence)];
    let attention_mask = body.input("attention_mask", ElementType::I64, all, Meaning::AttentionMask);
    let positions = body.input("position_ids", ElementType::I64, row, Meaning::PositionIds);
    let mut inputs = Inputs { tokens, attention_mask, positions, past: Vec::new() };
    for layer in 0..if with_past { layers } else { 0 } {
        let heads = Heads::of(place.layer(layer))?;
        let mut input = |kind: &str, meaning: Meaning, dim: u64| {
            let shape = [batch.clone(), Dim::fixed(heads.kv_heads), past.clone(), Dim::fixed(dim)];
            w.body().input(&format!("past_key_values.{layer}.{kind}"), ElementType::F32, shape, meaning)
        };
        let key = input("key", Meaning::PastKey, heads.head_dim);
        let value = input("value", Meaning::PastValue, heads.head_dim);
        inputs.past.push(KeyValue { key, value });
    }
    Ok(inputs)
}

/// Vectors of the tokens: a row of the table for each, `embedding_scale` times, plus learned positions where the family has
/// them, through a norm where it has one.
fn embeddings(w: &mut Writer<'_>, place: Place<'_>, inputs: &Inputs) -> Result<ValueId> {
    w.scope("embeddings", |w| {
        let table = w.tensor(&place.module("tokens")?)?;
        let mut x = w.make("Gather", "tokens", [table, inputs.tokens]);
        if let Some(scale) = place.number_or_none("embedding_scale")?.filter(|scale| *scale != 1.0) {
            x = w.scaled("scaled", x, scale);
        }
        if let Some(positions) = place.tensor_or_none("positions") {
            let table = w.tensor(&positions)?;
            let positions = w.make("Gather", "positions", [table, inputs.positions]);
            x = w.make("Add", "sum", [x, positions]);
        }
        match place.module_or_none("embedding_norm") {
            Some(module) => w.norm("norm", Norm::of(place)?, x, &module),
            None => Ok(x),
        }
    })
}

/// The window of a layer's attention; `None` reaches everything. Option `window`: 0 or no value is none.
fn window(place: Place<'_>) -> Result<Option<u64>> {
    Ok(place.size_or_none("window")?.filter(|window| *window > 0))
}

/// Masks and rotations, each once however many layers have it.
fn shared(w: &mut Writer<'_>, place: Place<'_>, layers: u64, inputs: &Inputs) -> Result<Shared> {
    let mut windows: Vec<Option<u64>> = Vec::new();
    let mut rotaries: Vec<Rotary> = Vec::new();
    for layer in 0..layers {
        let place = place.layer(layer);
        let window = window(place)?;
        if !windows.contains(&window) {
            windows.push(window);
        }
        let rotary = Rotary::of(place, Heads::of(place)?.head_dim)?;
        rotaries.extend(rotary.filter(|rotary| !rotaries.contains(rotary)));
    }
    let masks = w.causal_masks(inputs.tokens, inputs.attention_mask, &windows)?;
    let several = rotaries.len() > 1;
    let turns = rotaries.into_iter().enumerate().map(|(number, rotary)| {
        let name = if several { format!("rotary.{number}") } else { "rotary".to_owned() };
        let turn = w.turn(&name, &rotary, inputs.positions);
        (rotary, turn)
    });
    let turns = turns.collect();
    Ok(Shared { masks: windows.into_iter().zip(masks).collect(), turns })
}

/// One layer, as a call of a function. Returns its output, and the keys and values so far.
fn decoder_layer(
    w: &mut Writer<'_>,
    place: Place<'_>,
    layer: u64,
    x: ValueId,
    shared: &Shared,
    past: Option<KeyValue>,
) -> Result<[ValueId; 3]> {
    let window = window(place)?;
    let mask = shared.masks.iter().find(|(known, _)| *known == window).map(|(_, mask)| *mask);
    let rotary = Rotary::of(place, Heads::of(place)?.head_dim)?;
    let turn = rotary.as_ref().and_then(|rotary| shared.turns.iter().find(|(known, _)| known == rotary));
    let turn = turn.map(|(_, turn)| *turn);
    let inputs = [
        ("hidden", Some(x)),
        ("mask", mask),
        ("cos", turn.map(|turn| turn.cos)),
        ("sin", turn.map(|turn| turn.sin)),
        ("past_key", past.map(|past| past.key)),
        ("past_value", past.map(|past| past.value)),
    ];
    w.call("DecoderLayer", &format!("layers.{layer}"), inputs, |w, inputs| {
        let [Some(x), mask, cos, sin, past_key, past_value] = inputs else {
            return Err(apr_core::Error::format("a layer needs an input"));
        };
        let turn = cos.zip(sin).map(|(cos, sin)| Turn { cos, sin });
        let past = past_key.zip(past_value).map(|(key, value)| KeyValue { key, value });
        let (out, cache) = layer_body(w, place, x, rotary.as_ref(), Given { mask, turn, past })?;
        Ok([("output", out), ("present_key", cache.key), ("present_value", cache.value)])
    })
}

/// `x + attention(norm(x))`, then the same with the feed-forward network; norms stand where the checkpoint has them, before
/// or after a block. Option `residual`: `serial`, or `parallel` where both blocks work on the layer's input.
/// `residual_scale` is a factor of what is added.
fn layer_body(
    w: &mut Writer<'_>,
    place: Place<'_>,
    x: ValueId,
    rotary: Option<&Rotary>,
    given: Given,
) -> Result<(ValueId, KeyValue)> {
    let residual = match place.text_or_none("residual")?.as_deref() {
        None | Some("serial") => Residual::Serial,
        Some("parallel") => Residual::Parallel,
        Some(other) => return Err(place.unknown("residual", other)),
    };
    let norm = Norm::of(place)?;
    let before = w.norm_part(norm, "attention_norm", x, place.module_or_none("attention_norm"))?;
    let (attended, cache) = w.attention(place, before, rotary, given)?;
    let attended = w.norm_part(norm, "attention_post_norm", attended, place.module_or_none("attention_post_norm"))?;
    let attended = residual_scale(w, place, "attention_scaled", attended)?;
    let middle = w.make("Add", "attention_sum", [x, attended]);
    let into_mlp = match (residual, place.module_or_none("mlp_norm")) {
        (Residual::Serial, module) => w.norm_part(norm, "mlp_norm", middle, module)?,
        (Residual::Parallel, Some(module)) => w.norm("mlp_norm", norm, x, &module)?,
        // One norm serves both.
        (Residual::Parallel, None) => before,
    };
    let made = w.feed_forward_or_experts(place, into_mlp)?;
    let made = w.norm_part(norm, "mlp_post_norm", made, place.module_or_none("mlp_post_norm"))?;
    let made = residual_scale(w, place, "mlp_scaled", made)?;
    Ok((w.make("Add", "mlp_sum", [middle, made]), cache))
}

fn residual_scale(w: &mut Writer<'_>, place: Place<'_>, name: &str, x: ValueId) -> Result<ValueId> {
    let scale = place.number_or_none("residual_scale")?.filter(|scale| *scale != 1.0);
    Ok(scale.map_or(x, |scale| w.scaled(name, x, scale)))
}

/// Keys and values as outputs: `present.0.key`.
pub(crate) fn outputs_of_cache(w: &mut Writer<'_>, present: &[KeyValue], name: &str) {
    for (layer, cache) in present.iter().enumerate() {
        w.body().output(&format!("{name}.{layer}.key"), cache.key, Meaning::PresentKey);
        w.body().output(&format!("{name}.{layer}.value"), cache.value, Meaning::PresentValue);
    }
}
