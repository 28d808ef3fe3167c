//! Models that continue a text and keep a state instead of keys and values: as much after each
//! token as before.

use apr_core::{Error, Result};
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::decoder::{outputs_of_states, state_inputs};
use super::head;
use crate::blocks::attention::Given;
use crate::blocks::mixer::{Mixer, States};
use crate::blocks::norm::Norm;
use crate::model::{BlockPosition, Model};
use crate::names::{ALL_SEQUENCE, BATCH, SEQUENCE};
use crate::writer::Writer;

/// Writes the graph. If `with_past` is true, states are inputs and outputs.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>, with_past: bool) -> Result<()> {
    let place = model.place("");
    let (batch, sequence) = (Dim::symbol(BATCH), Dim::symbol(SEQUENCE));
    let row = [batch.clone(), sequence];
    let tokens = w.body().input("input_ids", ElementType::I64, row, Meaning::TokenIds);
    let all = [batch, Dim::symbol(ALL_SEQUENCE)];
    let mask = w.body().input("attention_mask", ElementType::I64, all, Meaning::AttentionMask);
    let count = place.layers()?;
    let mut past = Vec::new();
    for layer in 0..if with_past { count } else { 0 } {
        past.push(state_inputs(w, Mixer::required(place.layer(layer))?, layer));
    }

    let mut x = w.scope("embeddings", |w| w.token_vectors(place, tokens))?;
    let counts = w.scope("mask", |w| w.counts(tokens, mask));
    let mut presents = Vec::new();
    for layer in 0..count {
        let past = usize::try_from(layer).ok().and_then(|at| past.get(at)).copied();
        let results = layer_call(w, place.layer(layer), layer, x, counts, past)?;
        x = results[0];
        if let [_, convolution, state] = results[..] {
            presents.push(States { convolution, state: Some(state) });
        }
    }

    let x = w.norm_part(Norm::of(place)?, "final_norm", x, place.module_or_none("final_norm"))?;
    head::write(w, place, x, Some(tokens.into()))?;
    for (layer, states) in (0_u64..).zip(presents) {
        outputs_of_states(w, layer, Mixer::required(place.layer(layer))?, states);
    }

    Ok(())
}

/// `x + mixer(norm(x))`, as a call of a function.
fn layer_call(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    layer: u64,
    x: ValueId,
    counts: ValueId,
    past: Option<States>,
) -> Result<Vec<ValueId>> {
    let inputs = [
        ("hidden", Some(x)),
        ("counts", Some(counts)),
        ("past_conv", past.map(|past| past.convolution)),
        ("past_ssm", past.and_then(|past| past.state)),
    ];
    w.call(&place.function_name(), &format!("layers.{layer}"), inputs, |w, inputs| {
        let [x, counts, convolution, state] = inputs;
        let (Some(x), Some(counts)) = (x, counts) else {
            return Err(Error::format("a layer needs an input"));
        };
        let past = convolution.map(|convolution| States { convolution, state });
        let given = Given { states: past, counts: Some(counts), ..Given::NOTHING };
        let normal = w.norm("norm", Norm::of(place)?, x, &place.module("mixer_norm")?)?;
        let (made, present) = w.mixer(place, Mixer::required(place)?, normal, given)?;
        let sum = w.make("Add", "sum", [x, made]);
        let mut results = vec![("output", sum)];
        if past.is_some() {
            results.push(("present_conv", present.convolution));
            results.extend(present.state.map(|state| ("present_ssm", state)));
        }
        Ok(results)
    })
}
