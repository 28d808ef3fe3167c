//! Encoders with decoders: models that write one text from another, or from sound.

use apr_core::Result;
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::decoder::{cache_inputs, outputs_of_pair};
use super::stack::{Around, Stacked, layers};
use super::{encoder, head, sound};
use crate::blocks::attention::KeyValue;
use crate::blocks::layer::{Encoded, Kept, Source};
use crate::blocks::mask::{Field, Sight};
use crate::blocks::norm::Norm;
use crate::model::{BlockPosition, Model};
use crate::names::{BATCH, DECODER_SEQUENCE, ENCODER_SEQUENCE, PAST_DECODER_SEQUENCE};
use crate::writer::Writer;

/// Names of the stacks in the family's table.
pub(crate) const ENCODER: &str = "encoder";
pub(crate) const DECODER: &str = "decoder";

/// Inputs of the decoder's graph besides the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The encoder's states. If `true`, the graph also returns keys and values.
    States(bool),
    /// Keys and values of earlier tokens and of the encoder's states.
    Past,
}

/// Writes the graph of the encoder. Option `front`: `tokens` or `mel`.
pub(crate) fn write_encoder(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let place = model.place(ENCODER);
    let x = match place.text("front")?.as_str() {
        "tokens" => {
            let row = [Dim::symbol(BATCH), Dim::symbol(ENCODER_SEQUENCE)];
            let tokens =
                w.body().input("input_ids", ElementType::I64, row.clone(), Meaning::TokenIds);
            let mask =
                w.body().input("attention_mask", ElementType::I64, row, Meaning::AttentionMask);
            encoder::encoded(w, place, tokens, None, Some(mask))?
        }
        "mel" => sound::encoded_mel(w, place)?,
        other => return Err(place.unknown("front", other)),
    };

    w.body().output("last_hidden_state", x, Meaning::EncoderStates);
    Ok(())
}

/// Writes the graph of the decoder.
pub(crate) fn write_decoder(model: &Model<'_>, w: &mut Writer<'_>, memory: Memory) -> Result<()> {
    let place = model.place(DECODER);
    let row = [Dim::symbol(BATCH), Dim::symbol(DECODER_SEQUENCE)];

    // The encoder's padding matters where its input is a text.
    let mask = (model.place(ENCODER).text("front")? == "tokens").then(|| {
        let row = [Dim::symbol(BATCH), Dim::symbol(ENCODER_SEQUENCE)];
        w.body().input("encoder_attention_mask", ElementType::I64, row, Meaning::AttentionMask)
    });
    let tokens = w.body().input("input_ids", ElementType::I64, row, Meaning::TokenIds);
    let (past, source) = inputs_of_memory(w, place, memory)?;
    let is_cached = memory != Memory::States(false);
    let made = decoded(w, place, tokens, &past, source, mask, is_cached)?;
    head::write(w, place, made.x, Some(tokens.into()))?;
    let mut encoded = made.encoded.iter();
    for (layer, pair) in (0_u64..).zip(made.cache.iter().filter_map(|kept| kept.pair)) {
        outputs_of_pair(w, layer, pair, "decoder.");
        if let Some(encoded) = encoded.next() {
            outputs_of_pair(w, layer, *encoded, "encoder.");
        }
    }

    Ok(())
}

/// Returns the output of the decoder's layers after the last norm.
///
/// `mask` is 1 for tokens of the encoder's text that are not padding.
pub(crate) fn decoded(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    tokens: ValueId,
    past: &[KeyValue],
    source: Vec<Source>,
    mask: Option<ValueId>,
    is_cached: bool,
) -> Result<Stacked> {
    let mask = mask.map(|mask| {
        w.scope("encoder_mask", |w| {
            let counts = w.counting(mask);
            w.additive("additive", counts)
        })
    });

    let encoded: Vec<Encoded> = source.into_iter().map(|source| Encoded { source, mask }).collect();
    let queries = w.length("token_count", tokens, 1);
    let before = past.first().map(|past| w.length("past_count", past.key, 2));
    let x = w.scope("embeddings", |w| {
        let x = w.token_vectors(place, tokens)?;

        // Families with relative positions have no table of them.
        let x = if Writer::has_positions(place)? {
            let numbers = encoder::position_numbers(w, place, tokens, queries, before)?;
            w.with_positions(place, x, numbers)?
        } else {
            x
        };
        w.norm_part(Norm::of(place)?, "norm", x, place.module_or_none("embedding_norm"))
    })?;
    let field = w.scope("mask", |w| {
        let keys = before.map_or(queries, |before| w.make("Add", "key_count", [before, queries]));
        let (queries, keys) = w.positions(queries, keys);
        Field {
            sight: Sight::Before,
            queries,
            keys,
            counts: None,
            pairs: None,
            pairs_in_windows: false,
        }
    });
    let past: Vec<Kept> =
        past.iter().map(|pair| Kept { pair: Some(*pair), states: None }).collect();
    let around =
        Around { field: Some(field), past: &past, encoded: &encoded, is_cached, ..Around::NOTHING };
    let made = layers(w, place, x, &around)?;
    let x =
        w.norm_part(Norm::of(place)?, "final_norm", made.x, place.module_or_none("final_norm"))?;
    Ok(Stacked { x, ..made })
}

/// Adds the inputs for earlier results: cached keys and values, and the encoder's output.
fn inputs_of_memory(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    memory: Memory,
) -> Result<(Vec<KeyValue>, Vec<Source>)> {
    match memory {
        Memory::States(_) => {
            let shape = [
                Dim::symbol(BATCH),
                Dim::symbol(ENCODER_SEQUENCE),
                Dim::fixed(place.size("hidden")?),
            ];
            let states = w.body().input(
                "encoder_hidden_states",
                ElementType::F32,
                shape,
                Meaning::EncoderStates,
            );
            Ok((Vec::new(), vec![Source::States(states)]))
        }
        Memory::Past => {
            let (mut past, mut encoded): (Vec<KeyValue>, Vec<Source>) = (Vec::new(), Vec::new());
            for layer in 0..place.layers()? {
                let past_length = Dim::symbol(PAST_DECODER_SEQUENCE);
                past.push(cache_inputs(w, place.layer(layer), layer, "decoder.", &past_length)?);
                let length = Dim::symbol(ENCODER_SEQUENCE);
                encoded.push(Source::Made(cache_inputs(
                    w,
                    place.layer(layer),
                    layer,
                    "encoder.",
                    &length,
                )?));
            }
            Ok((past, encoded))
        }
    }
}
