//! Encoders: models that read a text as a whole.

use apr_core::Result;
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::head::{self, Tokens};
use super::stack::{Around, layers};
use crate::blocks::mask::{Field, Sight};
use crate::blocks::norm::Norm;
use crate::blocks::places::Positions;
use crate::model::{BlockPosition, Model};
use crate::names::{BATCH, CHOICES, SEQUENCE};
use crate::writer::Writer;

/// Writes the graph of an encoder.
///
/// If option `choices` is true, each text has several answers, and the model chooses one of them.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>, stack: &str) -> Result<()> {
    let place = model.place(stack);
    if place.truth("choices")? {
        return write_choices(w, place);
    }
    let row = [Dim::symbol(BATCH), Dim::symbol(SEQUENCE)];
    let tokens = w.body().input("input_ids", ElementType::I64, row.clone(), Meaning::TokenIds);
    let mask =
        w.body().input("attention_mask", ElementType::I64, row.clone(), Meaning::AttentionMask);
    let types = place.truth("token_type_input")?;
    let types =
        types.then(|| w.body().input("token_type_ids", ElementType::I64, row, Meaning::TokenTypes));
    let x = encoded(w, place, tokens, types, Some(mask))?;
    head::write(w, place, x, Some(Tokens { ids: tokens, mask: Some(mask) }))
}

/// Writes an encoder for texts with several answers each, `[batch, choices, sequence]`.
///
/// Each answer is read as a text of its own.
fn write_choices(w: &mut Writer<'_>, place: BlockPosition<'_>) -> Result<()> {
    let input = |w: &mut Writer<'_>, name: &str, meaning: Meaning| {
        let shape = [Dim::symbol(BATCH), Dim::symbol(CHOICES), Dim::symbol(SEQUENCE)];
        w.body().input(name, ElementType::I64, shape, meaning)
    };
    let tokens = input(w, "input_ids", Meaning::TokenIds);
    let mask = input(w, "attention_mask", Meaning::AttentionMask);
    let types = place.truth("token_type_input")?;
    let types = types.then(|| input(w, "token_type_ids", Meaning::TokenTypes));

    let length = w.length("answer_length", tokens, 2);
    let all = w.ints(&[-1]);
    let rows = w.concat("rows", &[all, length], 0);
    let mut row = |name: &str, x: ValueId| w.make("Reshape", name, [x, rows]);
    let tokens_of_rows = row("token_rows", tokens);
    let mask = row("mask_rows", mask);
    let types = types.map(|types| row("type_rows", types));
    let x = encoded(w, place, tokens_of_rows, types, Some(mask))?;

    let (batch, choices) = (w.length("batch", tokens, 0), w.length("choices", tokens, 1));
    let sizes = w.concat("sizes", &[batch, choices], 0);
    head::write_choices(w, place, x, sizes)
}

/// Returns the vectors of the tokens after the last layer and its norm.
///
/// If option `embedding_masked` is true, the vectors of padding are 0 before the first layer
/// (DeBERTa).
pub(crate) fn encoded(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    tokens: ValueId,
    types: Option<ValueId>,
    attention_mask: Option<ValueId>,
) -> Result<ValueId> {
    let count = w.length("token_count", tokens, 1);
    let masks_embeddings = place.truth("embedding_masked")?;
    let mut positions = None;
    let x = w.scope("embeddings", |w| {
        let x = w.token_vectors(place, tokens)?;
        let x = w.with_token_types(place, x, types)?;
        let numbers = position_numbers(w, place, tokens, count, None)?;
        positions = Some(numbers);
        let x = w.with_positions(place, x, numbers)?;
        let x = w.norm_part(Norm::of(place)?, "norm", x, place.module_or_none("embedding_norm"))?;
        let x = w.projected("projection", x, place.module_or_none("embedding_projection"))?;
        match attention_mask.filter(|_| masks_embeddings) {
            Some(mask) => {
                let counts = w.cast("counts", mask, ElementType::F32);
                let counts = w.unsqueeze("counts_by_token", counts, &[2]);
                Ok(w.make("Mul", "without_padding", [x, counts]))
            }
            None => Ok(x),
        }
    })?;
    let field = w.scope("mask", |w| {
        let counts = attention_mask.map(|mask| w.counting(mask));
        let (queries, keys) = w.positions(count, count);
        Ok(Field {
            sight: sight(place)?,
            queries,
            keys,
            counts,
            pairs: None,
            pairs_in_windows: false,
        })
    })?;
    let made = layers(
        w,
        place,
        x,
        &Around { field: Some(field), positions: positions.map(Positions::One), ..Around::NOTHING },
    )?;
    w.norm_part(Norm::of(place)?, "final_norm", made.x, place.module_or_none("final_norm"))
}

/// Option `causal`: whether a token sees only those before it.
fn sight(place: BlockPosition<'_>) -> Result<Sight> {
    Ok(if place.truth("causal")? { Sight::Before } else { Sight::All })
}

/// Numbers of the positions of `count` tokens, after `past` ones. Option `position_numbers`:
/// `from_zero` or `behind_padding`.
pub(crate) fn position_numbers(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    tokens: ValueId,
    count: ValueId,
    past: Option<ValueId>,
) -> Result<ValueId> {
    match place.text_or_none("position_numbers")?.as_deref() {
        None | Some("from_zero") => Ok(w.positions_in_a_row(count, past)),
        Some("behind_padding") => w.positions_behind_padding(place, tokens, past),
        Some(other) => Err(place.unknown("position_numbers", other)),
    }
}
