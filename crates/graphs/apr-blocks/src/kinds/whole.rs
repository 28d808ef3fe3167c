//! Encoders with decoders that read one text, in a graph of their own: the decoder reads the
//! encoder's text once more, one token later (BART's classifiers: Lewis et al. 2019,
//! <https://arxiv.org/abs/1910.13461>).

use apr_core::Result;
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::encoder_decoder::{DECODER, ENCODER, decoded};
use super::{encoder, head};
use crate::blocks::layer::Source;
use crate::model::{BlockPosition, Model};
use crate::names::{BATCH, SEQUENCE};
use crate::writer::{Writer, signed};

/// Writes the graph. The head is the decoder's.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let place = model.place(DECODER);
    let row = [Dim::symbol(BATCH), Dim::symbol(SEQUENCE)];
    let tokens = w.body().input("input_ids", ElementType::I64, row.clone(), Meaning::TokenIds);
    let mask = w.body().input("attention_mask", ElementType::I64, row, Meaning::AttentionMask);
    let states = w.scope("encoder", |w| {
        encoder::encoded(w, model.place(ENCODER), tokens, None, Some(mask))
    })?;
    let later = w.scope("later", |w| one_later(w, place, tokens))?;
    let made = w.scope("decoder", |w| {
        decoded(w, place, later, &[], vec![Source::States(states)], Some(mask), false)
    })?;
    head::write(w, place, made.x, Some(tokens.into()))
}

/// Returns the tokens shifted by one: without the last token, preceded by option `start_id`.
///
/// If the option has no value, they are preceded by the last token that is not option `padding_id`
/// (mBART's language).
fn one_later(w: &mut Writer<'_>, place: BlockPosition<'_>, tokens: ValueId) -> Result<ValueId> {
    let first = match place.size_or_none("start_id")? {
        Some(start) => {
            let batch = w.length("batch", tokens, 0);
            let one = w.ints(&[1]);
            let shape = w.concat("shape", &[batch, one], 0);
            let start = w.int(signed(start));
            w.make("Expand", "start", [start, shape])
        }
        None => {
            let padding = w.int(signed(place.size("padding_id")?));
            let is_padding = w.make("Equal", "is_padding", [tokens, padding]);
            let counts = w.make("Not", "counts", [is_padding]);
            let last = w.place_of("last", counts, true);
            w.op("GatherElements", [tokens, last]).attribute("axis", 1).output("start")
        }
    };
    let rest = w.slice("rest", tokens, 1, 0, -1);
    Ok(w.concat("tokens", &[first, rest], 1))
}
