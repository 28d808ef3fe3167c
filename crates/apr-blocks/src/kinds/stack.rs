//! Stacks of layers: what their layers share, and the layers as calls of functions.

use apr_core::{Error, Result};
use apr_graph::ValueId;

use crate::blocks::attention::{Given, KeyValue};
use crate::blocks::disentangled::Distances;
use crate::blocks::heads::Heads;
use crate::blocks::layer::{Encoded, Source};
use crate::blocks::mask::Field;
use crate::blocks::rotary::{Rotary, Turn};
use crate::model::BlockPosition;
use crate::writer::Writer;

/// What a stack is given.
pub(crate) struct Around<'a> {
    /// What is seen; `None` where everything is.
    pub(crate) field: Option<Field>,
    /// Positions of the tokens for rotations, `[batch, sequence]`.
    pub(crate) position_ids: Option<ValueId>,
    /// Keys and values of earlier tokens, by layer.
    pub(crate) past: &'a [KeyValue],
    /// What an encoder made, by layer or the same for all.
    pub(crate) encoded: &'a [Encoded],
    /// Whether keys and values come out.
    pub(crate) is_cached: bool,
}

impl Around<'_> {
    /// A stack that is given nothing but its input.
    pub(crate) const NOTHING: Self =
        Around { field: None, position_ids: None, past: &[], encoded: &[], is_cached: false };
}

/// What a stack makes.
pub(crate) struct Stacked {
    pub(crate) x: ValueId,
    /// Keys and values of all tokens so far, by layer.
    pub(crate) cache: Vec<KeyValue>,
    /// Keys and values of the encoder's states, by layer.
    pub(crate) encoded: Vec<KeyValue>,
    /// The input of each layer.
    pub(crate) inputs: Vec<ValueId>,
}

/// What a layer looks at its tokens with: its window, and the table of its relative positions.
type Lens = (Option<u64>, Option<String>);

/// Masks, rotations and distances, each once however many layers have it.
struct Shared {
    masks: Vec<(Lens, Option<ValueId>)>,
    turns: Vec<(Rotary, Turn)>,
    distances: Option<Distances>,
}

/// The window of a layer's attention; `None` reaches everything. Option `window`: 0 or no value is
/// none.
fn window(place: BlockPosition<'_>) -> Result<Option<u64>> {
    Ok(place.size_or_none("window")?.filter(|window| *window > 0))
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
    let mut stacked = Stacked { x, cache: Vec::new(), encoded: Vec::new(), inputs: Vec::new() };
    let counts = around.field.and_then(|field| field.counts);
    let mut table = None;
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
            &(window(place)?, table.clone()),
            around,
            &mut stacked,
        )?;
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
        table = place.tensor_or_none("relative").or(table);
        let lens = (window(place)?, table.clone());
        if !lenses.contains(&lens) {
            lenses.push(lens);
        }
        let rotary = Rotary::of(place, Heads::of(place)?.head_dim)?;
        rotaries.extend(rotary.filter(|rotary| !rotaries.contains(rotary)));
    }

    let distances = w.distances(place, around.field)?;
    let masks = match around.field {
        Some(field) => w.scope("mask", |w| masks(w, place, field, &lenses))?,
        None => vec![None; lenses.len()],
    };
    let several = rotaries.len() > 1;
    let mut turns = Vec::new();
    for (number, rotary) in rotaries.into_iter().enumerate() {
        let name = if several { format!("rotary.{number}") } else { "rotary".to_owned() };
        let positions =
            around.position_ids.ok_or_else(|| Error::format("rotary positions need positions"))?;
        let turn = w.turn(&name, &rotary, positions);
        turns.push((rotary, turn));
    }

    Ok(Shared { masks: lenses.into_iter().zip(masks).collect(), turns, distances })
}

/// What is added to the scores, for each lens. Options: `mutual_mask`, where padding sees nothing;
/// `alibi`, where scores have a slope.
fn masks(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    field: Field,
    lenses: &[Lens],
) -> Result<Vec<Option<ValueId>>> {
    let mutual = place.truth("mutual_mask")?;
    let mut windows: Vec<Option<u64>> = Vec::new();
    for (window, _) in lenses {
        if !windows.contains(window) {
            windows.push(*window);
        }
    }

    let counts = match field.counts.filter(|_| mutual) {
        Some(counts) => Some(w.mutual(counts)),
        None => field.counts,
    };
    let masks = w.masks(Field { counts, ..field }, &windows);
    let slopes =
        if place.truth("alibi")? { Some(w.slopes(field, place.size("heads")?)?) } else { None };
    let is_relative = lenses.iter().any(|(_, table)| table.is_some());
    let buckets = is_relative.then(|| w.buckets(place, field)).transpose()?;
    let mut of_lenses = Vec::new();
    for (window, table) in lenses {
        let mask = windows
            .iter()
            .zip(&masks)
            .find(|(known, _)| *known == window)
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
    let mask = shared.masks.iter().find(|(known, _)| known == lens).and_then(|(_, mask)| *mask);
    let rotary = Rotary::of(place, Heads::of(place)?.head_dim)?;
    let turn =
        rotary.as_ref().and_then(|rotary| shared.turns.iter().find(|(known, _)| known == rotary));
    let turn = turn.map(|(_, turn)| *turn);
    let past = around.past.get(at).copied();
    let encoded = around.encoded.get(at).or(around.encoded.last()).copied();
    let (states, made) = match encoded.map(|encoded| encoded.source) {
        None => (None, None),
        Some(Source::States(states)) => (Some(states), None),
        Some(Source::Made(made)) => (None, Some(made)),
    };
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
    ];
    let function = place.function_name();
    let results = w.call(&function, &format!("layers.{layer}"), inputs, |w, inputs| {
        layer_body(w, place, rotary.as_ref(), inputs, around.is_cached)
    })?;
    stacked.x = results[0];
    let pairs: Vec<KeyValue> = results[1..]
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[key, value]| KeyValue { key: *key, value: *value })
        .collect();
    stacked.cache.extend(pairs.first());
    stacked.encoded.extend(pairs.get(1));
    Ok(())
}

/// The body of the function: its parameters are those of [`layer_call`].
fn layer_body(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    rotary: Option<&Rotary>,
    inputs: [Option<ValueId>; 12],
    is_cached: bool,
) -> Result<Vec<(&'static str, ValueId)>> {
    let [x, mask, cos, sin, past_key, past_value, states, ref encoder @ ..] = inputs;
    let [encoder_mask, encoder_key, encoder_value, vectors, rows] = *encoder;
    let x = x.ok_or_else(|| Error::format("a layer needs an input"))?;
    let pair = |key: Option<ValueId>, value: Option<ValueId>| {
        key.zip(value).map(|(key, value)| KeyValue { key, value })
    };
    let turn = cos.zip(sin).map(|(cos, sin)| Turn { cos, sin });
    let source =
        states.map(Source::States).or_else(|| pair(encoder_key, encoder_value).map(Source::Made));
    let encoded = source.map(|source| Encoded { source, mask: encoder_mask });
    let distances = vectors.zip(rows).map(|(vectors, rows)| Distances { vectors, rows });
    let given = Given { mask, turn, past: pair(past_key, past_value), distances };
    let made = w.layer(place, x, rotary, given, encoded)?;
    let mut results = vec![("output", made.x)];
    if is_cached {
        results.extend([("present_key", made.cache.key), ("present_value", made.cache.value)]);
        // Those that were given don't come out again.
        if let (Some(encoded), Some(_)) = (made.encoded, states) {
            results.extend([
                ("present_encoder_key", encoded.key),
                ("present_encoder_value", encoded.value),
            ]);
        }
    }

    Ok(results)
}
