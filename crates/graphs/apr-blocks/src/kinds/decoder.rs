//! Decoders: models that continue a text.

use apr_core::{Error, Result};
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::head;
use super::image_features::IMAGE_FEATURES;
use super::stack::{Around, layers, shared_with};
use crate::blocks::attention::KeyValue;
use crate::blocks::embeddings::ImageRows;
use crate::blocks::latent::cache_dims;
use crate::blocks::layer::Kept;
use crate::blocks::mask::{Field, Sight};
use crate::blocks::mixer::{LayerBlocks, Mixer, States};
use crate::blocks::norm::Norm;
use crate::blocks::places::Positions;
use crate::blocks::streams::Streams;
use crate::model::{BlockPosition, Model};
use crate::names::{BATCH, IMAGE_TOKENS, PAST, SEQUENCE};
use crate::writer::{Writer, signed};

/// The one stack of layers, in the family's table.
const STACK: &str = "";

/// Inputs that the caller passes.
struct Inputs {
    tokens: ValueId,
    attention_mask: ValueId,
    positions: Option<Positions>,
    past: Vec<Kept>,
    images: Option<ImageRows>,
}

/// Settings of a decoder that takes vectors of images.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Images {
    /// The token whose vectors they take the place of.
    pub(crate) token: i64,
    /// `true` if the tokens of one image see each other.
    pub(crate) see_each_other: bool,
    /// `true` if they do in layers with a window alone, within the window.
    pub(crate) in_windows: bool,
    /// `true` if all tokens of a prompt see each other.
    pub(crate) sees_prompt: bool,
    /// `true` if tokens have three positions: time, row and column.
    pub(crate) has_places: bool,
    /// Number of the first layers behind which more vectors of the images are added.
    pub(crate) layers: u64,
}

impl Images {
    /// Options `image_token`, `image_sight`, `image_sight_in_windows`, `image_prompt`,
    /// `image_places` and `image_layers` of the table of the part for images.
    pub(crate) fn of(part: &Model<'_>) -> Result<Self> {
        let place = part.place(STACK);
        let token = signed(place.size("image_token")?);
        let has_places = place.truth("image_places")?;
        let layers = place.size_or_none("image_layers")?.unwrap_or_default();
        let (see_each_other, sees_prompt) =
            (place.truth("image_sight")?, place.truth("image_prompt")?);
        let in_windows = place.truth("image_sight_in_windows")?;
        Ok(Self { token, see_each_other, in_windows, sees_prompt, has_places, layers })
    }
}

/// Writes the graph of a decoder. Option `causal`: whether a token sees only those before it, as it
/// does unless the option says otherwise. `with_past`: earlier keys and values are inputs, all of
/// them are outputs. `images`: vectors of images are an input.
pub(crate) fn write(
    model: &Model<'_>,
    w: &mut Writer<'_>,
    with_past: bool,
    images: Option<Images>,
) -> Result<()> {
    let place = model.place(STACK);
    if images.is_some_and(|images| images.sees_prompt) && !with_past {
        return Err(Error::version(
            "prompt tokens attend to each other; without a KV cache, they can't be distinguished \
             from generated tokens",
        ));
    }
    let mut inputs = inputs(w, place, with_past, images.is_some_and(|it| it.has_places))?;
    if let Some(Images { token, layers, .. }) = images {
        let width = place.size("hidden")?.saturating_mul(layers.saturating_add(1));
        let shape = [Dim::symbol(IMAGE_TOKENS), Dim::fixed(width)];
        let features =
            w.body().input(IMAGE_FEATURES, ElementType::F32, shape, Meaning::HiddenStates);
        inputs.images = Some(ImageRows { token, features, layers });
    }
    let has_final_norm = place.truth_or("final_norm", true)?;
    let mut after = Vec::new();
    let x = w.scope("embeddings", |w| {
        let x = match inputs.images {
            Some(images) => {
                let (x, more) = w.token_or_image_vectors(place, inputs.tokens, images)?;
                after = more;
                x
            }
            None => w.token_vectors(place, inputs.tokens)?,
        };
        let x = match inputs.positions {
            Some(Positions::One(positions)) => w.with_positions(place, x, positions)?,
            Some(Positions::Several(_)) | None => x,
        };
        // Option `embeddings_normed`: by a norm without weights.
        match place.truth("embeddings_normed")? {
            true => w.norm_before(place, "embedding_norm", x),
            false => {
                w.norm_part(Norm::of(place)?, "norm", x, place.module_or_none("embedding_norm"))
            }
        }
    })?;
    let streams = Streams::of(place)?;
    let has_layer_tokens = streams.is_some() || place.module_or_none("layer_tokens").is_some();
    let layer_tokens = has_layer_tokens.then(|| layer_tokens(w, place, &inputs, x)).transpose()?;
    let x = match streams {
        Some(streams) => w.streams(place, streams, x)?,
        None => x,
    };
    let sight = if place.truth_or("causal", true)? { Sight::Before } else { Sight::All };
    let field = w.scope("mask", |w| {
        let queries = w.length("query_count", inputs.tokens, 1);
        let keys = w.length("key_count", inputs.attention_mask, 1);
        let (query_count, key_count) = (queries, keys);
        let (queries, keys) = w.positions(queries, keys);
        let counts = Some(w.counting(inputs.attention_mask));
        let pairs = match images {
            Some(images) if images.see_each_other => {
                Some(w.pairs_of_runs(inputs.tokens, inputs.attention_mask, images.token))
            }
            Some(images) if images.sees_prompt => Some(w.pairs_of_first(query_count, key_count)),
            _ => None,
        };
        let pairs_in_windows = images.is_some_and(|images| images.in_windows);
        Field { sight, queries, keys, counts, pairs, pairs_in_windows }
    });

    let counts = has_states(place)?
        .then(|| w.scope("counts", |w| w.counts(inputs.tokens, inputs.attention_mask)));
    let around = Around {
        field: Some(field),
        positions: inputs.positions,
        counts,
        past: &inputs.past,
        after: ("with_images", &after),
        layer_tokens,
        is_cached: with_past,
        ..Around::NOTHING
    };

    let mut made = layers(w, place, x, &around)?;
    if let Some(streams) = streams {
        made.x = w.merged_streams(place, streams, made.x)?;
    }
    // Option `final_norm`: some old files have one that nothing uses.
    let x = match has_final_norm {
        true => w.norm_before(place, "final_norm", made.x)?,
        false => made.x,
    };
    let x = w.projected("output_projection", x, place.module_or_none("output_projection"))?;
    head::write(w, place, x, Some(inputs.tokens.into()))?;
    for (layer, Kept { pair, states }) in (0_u64..).zip(made.cache) {
        if let Some(pair) = pair {
            outputs_of_pair(w, layer, pair, "");
        }
        if let (Some(mixer), Some(states)) = (LayerBlocks::of(place.layer(layer))?.mixer, states) {
            outputs_of_states(w, layer, mixer, states);
        }
    }

    Ok(())
}

/// Returns what layers add for the tokens. Those of images count as option `padding_id`.
fn layer_tokens(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    inputs: &Inputs,
    x: ValueId,
) -> Result<ValueId> {
    let Some(ImageRows { token, .. }) = inputs.images else {
        return w.layer_tokens(place, inputs.tokens, x);
    };
    let (token, padding) = (w.int(token), w.int(signed(place.size("padding_id")?)));
    let is_image = w.make("Equal", "is_image", [inputs.tokens, token]);
    let words = w.make("Where", "words", [is_image, padding, inputs.tokens]);
    w.layer_tokens(place, words, x)
}

/// Option `position_input`: whether positions are given, which is so unless it is false.
/// `has_places`: whether a token has three of them.
fn inputs(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    with_past: bool,
    has_places: bool,
) -> Result<Inputs> {
    let (batch, sequence) = (Dim::symbol(BATCH), Dim::symbol(SEQUENCE));
    let past = if with_past { Dim::symbol(PAST) } else { Dim::integer(0) };
    let has_positions = place.truth_or("position_input", true)?;
    let body = w.body();
    let row = [batch.clone(), sequence.clone()];
    let tokens = body.input("input_ids", ElementType::I64, row.clone(), Meaning::TokenIds);
    let all = [batch, past.plus(&sequence)];
    let attention_mask =
        body.input("attention_mask", ElementType::I64, all, Meaning::AttentionMask);
    // Classifiers read a text once: Optimum's classes give them no positions, and those of
    // transformers number the tokens in a row, or those that are no padding (option
    // `position_numbers`: `counted`).
    let head = place.text_or_none("head")?;
    let is_asked = with_past || matches!(head.as_deref(), None | Some("states" | "language"));
    let positions = match (has_positions, is_asked) {
        (false, _) => None,
        (true, true) => {
            let of = |w: &mut Writer<'_>, shape: Vec<Dim>| {
                w.body().input("position_ids", ElementType::I64, shape, Meaning::PositionIds)
            };
            Some(match has_places {
                true => {
                    let shape = std::iter::once(Dim::integer(3)).chain(row).collect();
                    Positions::Several(of(w, shape))
                }
                false => Positions::One(of(w, row.into())),
            })
        }
        (true, false) => {
            Some(Positions::One(match place.text_or_none("position_numbers")?.as_deref() {
                None => {
                    let count = w.length("token_count", tokens, 1);
                    w.positions_in_a_row(count, None)
                }
                Some("counted") => counted(w, attention_mask),
                Some(other) => return Err(place.unknown("position_numbers", other)),
            }))
        }
    };
    let mut inputs = Inputs { tokens, attention_mask, positions, past: Vec::new(), images: None };
    for layer in 0..if with_past { place.layers()? } else { 0 } {
        let place = place.layer(layer);
        let LayerBlocks { attention, mixer, .. } = LayerBlocks::of(place)?;
        let attention = attention && shared_with(place, layer)?.is_none();
        let pair = attention.then(|| cache_inputs(w, place, layer, "", &past)).transpose()?;
        let states = mixer.map(|mixer| state_inputs(w, mixer, layer));
        inputs.past.push(Kept { pair, states });
    }

    Ok(inputs)
}

/// Returns `true` if some of the layers have a state.
fn has_states(place: BlockPosition<'_>) -> Result<bool> {
    for layer in 0..place.layers()? {
        if LayerBlocks::of(place.layer(layer))?.mixer.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The state of a layer as inputs, under the names that transformers.js gives them: `past_conv.0`
/// and `past_ssm.0`.
pub(crate) fn state_inputs(w: &mut Writer<'_>, mixer: Mixer, layer: u64) -> States {
    let mut input = |kind: &str, sizes: &[u64]| {
        let sizes = sizes.iter().map(|size| Dim::fixed(*size));
        let shape: Vec<Dim> = std::iter::once(Dim::symbol(BATCH)).chain(sizes).collect();
        let name = format!("past_{kind}.{layer}");
        w.body().input(&name, ElementType::F32, shape, Meaning::PastState)
    };
    let [channels, kernel] = mixer.convolution();
    let convolution = input("conv", &[channels, kernel - 1]);
    let state = mixer.state().map(|(kind, sizes)| input(kind, &sizes));
    States { convolution, state }
}

/// Returns the number of each token among the tokens that count, starting at 0; -1 for padding.
fn counted(w: &mut Writer<'_>, attention_mask: ValueId) -> ValueId {
    let axis = w.int(1);
    let sums = w.make("CumSum", "counted_tokens", [attention_mask, axis]);
    let counts = w.make("Mul", "numbers", [sums, attention_mask]);
    let one = w.int(1);
    w.make("Sub", "positions", [counts, one])
}

/// Keys and values of a layer as inputs: `past_key_values.0.key`, or with `of` in between, such as
/// `decoder.`. `place` is the layer.
pub(crate) fn cache_inputs(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    layer: u64,
    of: &str,
    length: &Dim,
) -> Result<KeyValue> {
    let [heads, key_dim, value_dim] = cache_dims(place)?;
    let mut input = |kind: &str, meaning: Meaning, dim: u64| {
        let shape = [Dim::symbol(BATCH), Dim::fixed(heads), length.clone(), Dim::fixed(dim)];
        w.body().input(
            &format!("past_key_values.{layer}.{of}{kind}"),
            ElementType::F32,
            shape,
            meaning,
        )
    };
    let key = input("key", Meaning::PastKey, key_dim);
    Ok(KeyValue { key, value: input("value", Meaning::PastValue, value_dim) })
}

/// Adds a layer's keys and values as outputs: `present.0.key`, or with `of` in between.
pub(crate) fn outputs_of_pair(w: &mut Writer<'_>, layer: u64, present: KeyValue, of: &str) {
    let KeyValue { key, value } = present;
    let body = w.body();
    body.output(&format!("present.{layer}.{of}key"), key, Meaning::PresentKey);
    body.output(&format!("present.{layer}.{of}value"), value, Meaning::PresentValue);
}

/// Adds a layer's state as outputs: `present_conv.0` and `present_ssm.0`.
pub(crate) fn outputs_of_states(w: &mut Writer<'_>, layer: u64, mixer: Mixer, present: States) {
    let body = w.body();
    let States { convolution, state } = present;
    body.output(&format!("present_conv.{layer}"), convolution, Meaning::PresentState);
    if let (Some((kind, _)), Some(state)) = (mixer.state(), state) {
        body.output(&format!("present_{kind}.{layer}"), state, Meaning::PresentState);
    }
}
