//! Stacks of layers: what their layers share, and the layers as calls of functions.

use apr_core::{Error, Result};
use apr_graph::{ElementType, ValueId};

use super::vision;
use crate::blocks::attention::{Given, KeyValue};
use crate::blocks::disentangled::Distances;
use crate::blocks::heads::Heads;
use crate::blocks::layer::{Encoded, Kept, Source};
use crate::blocks::mask::{Field, Reach};
use crate::blocks::mixer::{LayerBlocks, States};
use crate::blocks::places::{PatchGrid, Positions};
use crate::blocks::rotary::{Rotary, Turn};
use crate::blocks::streams::Streams;
use crate::model::BlockPosition;
use crate::writer::Writer;

/// Inputs of a stack besides its vectors.
pub(crate) struct Around<'a> {
    /// Positions that are visible; `None` if all are.
    pub(crate) field: Option<Field>,
    /// Positions of the tokens for rotations.
    pub(crate) positions: Option<Positions>,
    /// Places of patches of an image, instead of `field` and `positions`.
    pub(crate) grid: Option<PatchGrid>,
    /// 0 for padding tokens, `[batch, sequence, 1]`, for layers with a state.
    pub(crate) counts: Option<ValueId>,
    /// Cache of earlier tokens, by layer.
    pub(crate) past: &'a [Kept],
    /// Output of an encoder, by layer or shared by all layers.
    pub(crate) encoded: &'a [Encoded],
    /// Terms to add to the outputs of the first layers, one for each layer, and the name of the
    /// sums.
    pub(crate) after: (&'a str, &'a [ValueId]),
    /// Vectors that layers add in the end, `[batch, sequence, layers, width]`, for layers of
    /// several streams.
    pub(crate) layer_tokens: Option<ValueId>,
    /// `true` if the stack returns keys and values.
    pub(crate) is_cached: bool,
}

impl Around<'_> {
    /// No inputs besides the vectors.
    pub(crate) const NOTHING: Self = Around {
        field: None,
        positions: None,
        grid: None,
        counts: None,
        past: &[],
        encoded: &[],
        after: ("", &[]),
        layer_tokens: None,
        is_cached: false,
    };
}

/// Outputs of a stack.
pub(crate) struct Stacked {
    pub(crate) x: ValueId,
    /// Cache of all tokens so far, by layer.
    pub(crate) cache: Vec<Kept>,
    /// Keys and values of the encoder's states, by layer.
    pub(crate) encoded: Vec<KeyValue>,
    /// The input of each layer.
    pub(crate) inputs: Vec<ValueId>,
    /// Keys and values that later layers share, by layer.
    pub(crate) shared: Vec<(u64, KeyValue)>,
}

/// Range of a layer's attention, and the table of its relative positions.
type Lens = (Reach, Option<String>);

/// Masks, rotations and distances, each once however many layers have it.
struct Shared {
    masks: Vec<(Lens, Option<ValueId>)>,
    turns: Vec<(Rotary, Turn)>,
    distances: Option<Distances>,
    /// Factors of the queries, by position.
    growth: Option<ValueId>,
}

/// Returns the range of a layer's attention.
///
/// Options `window` and `chunk`; 0 or no value means no limit.
fn reach(place: BlockPosition<'_>) -> Result<Reach> {
    let size = |option| Ok::<_, Error>(place.size_or_none(option)?.filter(|size| *size > 0));
    Ok(match (size("window")?, size("chunk")?) {
        (Some(window), _) => Reach::Window(window),
        (None, Some(chunk)) => Reach::Chunk(chunk),
        (None, None) => Reach::Whole,
    })
}

/// Returns the layer whose keys and values a layer has instead of its own.
///
/// Option `shared_from` is the first layer of those that share. Each has the keys and values of the
/// last layer before these that sees as far.
pub(crate) fn shared_with(place: BlockPosition<'_>, layer: u64) -> Result<Option<u64>> {
    let first = match place.size_or_none("shared_from")? {
        Some(first) if first <= layer && first > 0 => first,
        _ => return Ok(None),
    };
    let own = reach(place.layer(layer))?;
    for other in (0..first).rev() {
        if reach(place.layer(other))? == own {
            return Ok(Some(other));
        }
    }
    Err(Error::format(format!("layer {layer} shares keys and values, and no layer has them")))
}

/// Writes the layers of a stack.
pub(crate) fn layers(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    around: &Around<'_>,
) -> Result<Stacked> {
    let count = place.layers()?;
    let shared = shared(w, place, count, around)?;
    let mut stacked = Stacked {
        x,
        cache: Vec::new(),
        encoded: Vec::new(),
        inputs: Vec::new(),
        shared: Vec::new(),
    };
    let counts = around.field.and_then(|field| field.counts);
    let mut table = None;
    let mut after = around.after.1.iter();
    for layer in 0..count {
        let place = place.layer(layer);
        // A layer without a table of relative positions has that of the one before.
        table = place.tensor_or_none("relative").or(table);
        stacked.inputs.push(stacked.x);
        layer_call(
            w,
            place,
            layer,
            &shared,
            &(reach(place)?, table.clone()),
            around,
            &mut stacked,
        )?;
        if let Some(term) = after.next() {
            stacked.x = w.make("Add", around.after.0, [stacked.x, *term]);
        }
        if layer == 0 {
            stacked.x = w.with_neighbours(place, x, stacked.x, counts)?;
        }
    }

    Ok(stacked)
}

fn shared(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    count: u64,
    around: &Around<'_>,
) -> Result<Shared> {
    let mut lenses: Vec<Lens> = Vec::new();
    let mut rotaries: Vec<Rotary> = Vec::new();
    let mut table = None;
    for layer in 0..count {
        let place = place.layer(layer);
        if !LayerBlocks::of(place)?.attention {
            continue;
        }
        table = place.tensor_or_none("relative").or(table);
        let lens = (reach(place)?, table.clone());
        if !lenses.contains(&lens) {
            lenses.push(lens);
        }
        let rotary = Rotary::of(place, Heads::of(place)?.head_dim)?;
        rotaries.extend(rotary.filter(|rotary| !rotaries.contains(rotary)));
    }

    let distances = w.distances(place, around.field)?;
    let masks = match (around.field, around.grid) {
        (Some(field), _) => w.scope("mask", |w| masks(w, place, field, &lenses))?,
        (None, Some(grid)) => w.scope("mask", |w| {
            lenses.iter().map(|(reach, _)| w.grid_mask(grid, *reach)).collect::<Result<_>>()
        })?,
        (None, None) => grid_biases(w, place, &lenses)?,
    };
    let several = rotaries.len() > 1;
    let positions = match around.grid.filter(|_| !rotaries.is_empty()) {
        Some(grid) => Some(w.grid_positions(grid)),
        None => around.positions,
    };
    let mut turns = Vec::new();
    for (number, rotary) in rotaries.into_iter().enumerate() {
        let name = if several { format!("rotary.{number}") } else { "rotary".to_owned() };
        let positions =
            positions.ok_or_else(|| Error::format("rotary positions need positions"))?;
        let turn = w.turn(place, &name, &rotary, positions)?;
        turns.push((rotary, turn));
    }

    let masks = lenses.into_iter().zip(masks).collect();
    Ok(Shared { masks, turns, distances, growth: growth(w, place, count, around)? })
}

/// Returns terms of the scores by the distance between two patches of an image.
///
/// They are read from the table of each lens that has one (BEiT: Bao et al. 2021,
/// <https://arxiv.org/abs/2106.08254>).
fn grid_biases(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    lenses: &[Lens],
) -> Result<Vec<Option<ValueId>>> {
    let mut distances = None;
    let mut biases = Vec::new();
    for (_, table) in lenses {
        let Some(table) = table else {
            biases.push(None);
            continue;
        };
        let known = match distances {
            Some(known) => known,
            None => {
                let sides = vision::sides_in_patches(place)?;
                w.scope("mask", |w| w.grid_distances(sides, table))?
            }
        };
        distances = Some(known);
        biases.push(Some(w.scope("mask", |w| w.relative_bias(known, table))?));
    }
    Ok(biases)
}

/// Returns the factors of queries for long texts, `1 + b log(1 + floor(position / step))`, `[batch,
/// 1, sequence, 1]`.
///
/// They are used by Llama 4, after Nakanishi 2025, <https://arxiv.org/abs/2501.19399>. Options
/// `query_growth`, in some layers or all, `query_growth_step`, and `query_growth_first`, the number
/// of the first position.
fn growth(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    count: u64,
    around: &Around<'_>,
) -> Result<Option<ValueId>> {
    let mut factor = None;
    for layer in 0..count {
        let own = place.layer(layer).number_or_none("query_growth")?;
        if factor.is_some() && own.is_some() && factor != own {
            return Err(Error::version("queries of several layers grow differently"));
        }
        factor = factor.or(own);
    }
    let Some(factor) = factor else { return Ok(None) };
    let step = place.number("query_growth_step")?;
    let first = place.number_or_none("query_growth_first")?.unwrap_or(0.0);
    if step.is_nan() || step <= 0.0 {
        return Err(Error::format(format!("queries that grow every {step} positions")));
    }
    let Some(Positions::One(positions)) = around.positions else {
        return Err(Error::format("queries that grow need one position for each token"));
    };
    Ok(Some(w.scope("query_growth", |w| {
        let positions = w.cast("positions", positions, ElementType::F32);
        let (step, one) = (w.float(step), w.float(1.0));
        let positions = match first == 0.0 {
            true => positions,
            false => {
                let first = w.float(first);
                w.make("Add", "numbers", [positions, first])
            }
        };
        let steps = w.make("Div", "steps", [positions, step]);
        let steps = w.make("Floor", "whole_steps", [steps]);
        let counted = w.make("Add", "counted", [steps, one]);
        let slow = w.make("Log", "logarithm", [counted]);
        let more = w.scaled("more", slow, factor);
        let growth = w.make("Add", "growth", [more, one]);
        w.unsqueeze("by_query", growth, &[1, 3])
    })))
}

/// Returns the terms that are added to the scores, for each lens.
///
/// Options: `mutual_mask` hides all positions from padding; `alibi` adds a slope to the scores.
fn masks(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    field: Field,
    lenses: &[Lens],
) -> Result<Vec<Option<ValueId>>> {
    let mutual = place.truth("mutual_mask")?;
    let mut reaches: Vec<Reach> = Vec::new();
    for (reach, _) in lenses {
        if !reaches.contains(reach) {
            reaches.push(*reach);
        }
    }

    let counts = match field.counts.filter(|_| mutual) {
        Some(counts) => Some(w.mutual(counts)),
        None => field.counts,
    };
    let masks = w.masks(Field { counts, ..field }, &reaches);
    let slopes =
        if place.truth("alibi")? { Some(w.slopes(field, place.size("heads")?)?) } else { None };
    let is_relative = lenses.iter().any(|(_, table)| table.is_some());
    let buckets = is_relative.then(|| w.buckets(place, field)).transpose()?;
    let mut of_lenses = Vec::new();
    for (reach, table) in lenses {
        let mask = reaches
            .iter()
            .zip(&masks)
            .find(|(known, _)| *known == reach)
            .and_then(|(_, mask)| *mask);
        let bias = match (table, buckets) {
            (Some(table), Some(buckets)) => Some(w.relative_bias(buckets, table)?),
            _ => slopes,
        };
        of_lenses.push(match (bias, mask) {
            (Some(bias), Some(mask)) => Some(w.make("Add", "bias_and_mask", [bias, mask])),
            (bias, mask) => bias.or(mask),
        });
    }

    Ok(of_lenses)
}

/// One layer, as a call of a function.
fn layer_call(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    layer: u64,
    shared: &Shared,
    lens: &Lens,
    around: &Around<'_>,
    stacked: &mut Stacked,
) -> Result<()> {
    let at = usize::try_from(layer).unwrap_or(usize::MAX);
    let LayerBlocks { attention: attends, mixer, .. } = LayerBlocks::of(place)?;
    let mask = shared.masks.iter().find(|(known, _)| attends && known == lens);
    let mask = mask.and_then(|(_, mask)| *mask);
    let rotary = Rotary::of(place, Heads::of(place)?.head_dim)?.filter(|_| attends);
    let turn =
        rotary.as_ref().and_then(|rotary| shared.turns.iter().find(|(known, _)| known == rotary));
    let turn = turn.map(|(_, turn)| *turn);
    let Kept { pair: past, states: past_states } = around.past.get(at).copied().unwrap_or_default();
    let source = shared_with(place, layer)?;
    let given_pair = source.and_then(|source| {
        stacked.shared.iter().find(|(other, _)| *other == source).map(|(_, pair)| *pair)
    });
    let is_source = is_shared(place, layer)?;
    let own = around.layer_tokens.map(|all| {
        let number = w.int(i64::try_from(layer).unwrap_or(i64::MAX));
        let name = format!("layer_token.{layer}");
        w.op("Gather", [all, number]).attribute("axis", 2).output(&name)
    });
    let grows = place.number_or_none("query_growth")?.is_some();
    let encoded = around.encoded.get(at).or(around.encoded.last()).copied();
    let (states, made) = match encoded.map(|encoded| encoded.source) {
        None => (None, None),
        Some(Source::States(states)) => (Some(states), None),
        Some(Source::Made(made)) => (None, Some(made)),
    };
    let growth = shared.growth.filter(|_| grows);
    let inputs = [
        ("hidden", Some(stacked.x)),
        ("mask", mask),
        ("cos", turn.map(|turn| turn.cos)),
        ("sin", turn.map(|turn| turn.sin)),
        ("past_key", past.map(|past| past.key)),
        ("past_value", past.map(|past| past.value)),
        ("encoder_states", states),
        ("encoder_mask", encoded.and_then(|encoded| encoded.mask)),
        ("encoder_key", made.map(|made| made.key)),
        ("encoder_value", made.map(|made| made.value)),
        ("distance_vectors", shared.distances.map(|distances| distances.vectors)),
        ("distance_rows", shared.distances.map(|distances| distances.rows)),
        ("query_growth", growth),
        ("counts", around.counts.filter(|_| mixer.is_some())),
        ("past_conv", past_states.map(|past| past.convolution)),
        ("past_state", past_states.and_then(|past| past.state)),
        ("shared_key", given_pair.map(|pair| pair.key)),
        ("shared_value", given_pair.map(|pair| pair.value)),
        ("layer_token", own),
    ];
    let function = place.function_name();
    let mut names = Vec::new();
    let results = w.call(&function, &format!("layers.{layer}"), inputs, |w, inputs| {
        let results = layer_body(w, place, rotary.as_ref(), inputs, around.is_cached, is_source)?;
        names.extend(results.iter().map(|(name, _)| *name));
        Ok(results)
    })?;
    let result = |name: &str| {
        let at = names.iter().position(|known| *known == name)?;
        results.get(at).copied()
    };
    let pair = |key: &str, value: &str| {
        let (key, value) = result(key).zip(result(value))?;
        Some(KeyValue { key, value })
    };
    stacked.x = results[0];
    if around.is_cached {
        let convolution = result("present_conv");
        let states =
            convolution.map(|convolution| States { convolution, state: result("present_state") });
        stacked.cache.push(Kept { pair: pair("present_key", "present_value"), states });
    }
    if is_source {
        stacked.shared.extend(pair("present_key", "present_value").map(|pair| (layer, pair)));
    }
    stacked.encoded.extend(pair("present_encoder_key", "present_encoder_value"));
    Ok(())
}

/// Returns `true` if a later layer has the keys and values of this one.
fn is_shared(place: BlockPosition<'_>, layer: u64) -> Result<bool> {
    let Some(first) = place.size_or_none("shared_from")? else { return Ok(false) };
    for other in first..place.layers()? {
        if shared_with(place, other)? == Some(layer) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes the body of the function. Its parameters are the arguments of [`layer_call`].
fn layer_body(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    rotary: Option<&Rotary>,
    inputs: [Option<ValueId>; 19],
    is_cached: bool,
    is_source: bool,
) -> Result<Vec<(&'static str, ValueId)>> {
    let [x, mask, cos, sin, past_key, past_value, encoder_states, ref encoder @ ..] = inputs;
    let [encoder_mask, encoder_key, encoder_value, vectors, rows, growth, counts, kept @ ..] =
        *encoder;
    let [convolution, state, shared_key, shared_value, own] = kept;
    let x = x.ok_or_else(|| Error::format("a layer needs an input"))?;
    let pair = |key: Option<ValueId>, value: Option<ValueId>| {
        key.zip(value).map(|(key, value)| KeyValue { key, value })
    };
    let turn = cos.zip(sin).map(|(cos, sin)| Turn { cos, sin });
    let source = encoder_states
        .map(Source::States)
        .or_else(|| pair(encoder_key, encoder_value).map(Source::Made));
    let encoded = source.map(|source| Encoded { source, mask: encoder_mask });
    let distances = vectors.zip(rows).map(|(vectors, rows)| Distances { vectors, rows });
    let past = pair(past_key, past_value);
    let states = convolution.map(|convolution| States { convolution, state });
    let shared = pair(shared_key, shared_value);
    let given = Given { mask, turn, past, shared, states, counts, distances, growth };
    let mut made = match (Streams::of(place)?, own) {
        (Some(streams), Some(own)) => w.layer_of_streams(place, streams, x, own, rotary, given)?,
        (_, own) => {
            let mut made = w.layer(place, x, rotary, given, encoded)?;
            if let Some(own) = own {
                let change = w.layer_token(place, made.x, own)?;
                made.x = w.make("Add", "with_layer_token", [made.x, change]);
            }
            made
        }
    };
    if let Some(scale) = place.tensor_or_none("layer_out_scale") {
        let scale = w.tensor(&scale)?;
        made.x = w.make("Mul", "scaled_output", [made.x, scale]);
    }
    let mut results = vec![("output", made.x)];
    if let Some(KeyValue { key, value }) = made.cache.pair.filter(|_| is_cached || is_source) {
        results.extend([("present_key", key), ("present_value", value)]);
    }
    if is_cached {
        if let Some(States { convolution, state }) = made.cache.states {
            results.push(("present_conv", convolution));
            results.extend(state.map(|state| ("present_state", state)));
        }
        // Those that were given don't come out again.
        if let (Some(encoded), Some(_)) = (made.encoded, encoder_states) {
            results.extend([
                ("present_encoder_key", encoded.key),
                ("present_encoder_value", encoded.value),
            ]);
        }
    }

    Ok(results)
}
