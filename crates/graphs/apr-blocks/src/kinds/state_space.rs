//! Models that continue a text and keep a state instead of keys and values: as much after each
//! token as before.

use apr_core::{Error, Result};
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::head;
use crate::blocks::norm::Norm;
use crate::blocks::state_space::{StateSpace, States};
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
        past.push(state_inputs(w, place.layer(layer), layer)?);
    }

    let mut x = w.scope("embeddings", |w| w.token_vectors(place, tokens))?;
    let counts = w.scope("mask", |w| w.counts(tokens, mask));
    let mut presents = Vec::new();
    for layer in 0..count {
        let past = usize::try_from(layer).ok().and_then(|at| past.get(at)).copied();
        let results = layer_call(w, place.layer(layer), layer, x, counts, past)?;
        x = results[0];
        if let [_, convolution, state] = results[..] {
            presents.push(States { convolution, state });
        }
    }

    let x = w.norm_part(Norm::of(place)?, "final_norm", x, place.module_or_none("final_norm"))?;
    head::write(w, place, x, Some(tokens.into()))?;
    for (layer, States { convolution, state }) in presents.into_iter().enumerate() {
        let body = w.body();
        body.output(&format!("present_conv.{layer}"), convolution, Meaning::PresentState);
        body.output(&format!("present_ssm.{layer}"), state, Meaning::PresentState);
    }

    Ok(())
}

/// The states of a layer as inputs, under the names that transformers.js gives them.
fn state_inputs(w: &mut Writer<'_>, place: BlockPosition<'_>, layer: u64) -> Result<States> {
    let StateSpace { channels, state, kernel, .. } = StateSpace::of(place)?;
    let mut input = |kind: &str, last: u64| {
        let shape = [Dim::symbol(BATCH), Dim::fixed(channels), Dim::fixed(last)];
        let name = format!("past_{kind}.{layer}");
        w.body().input(&name, ElementType::F32, shape, Meaning::PastState)
    };
    Ok(States { convolution: input("conv", kernel - 1), state: input("ssm", state) })
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
        ("past_ssm", past.map(|past| past.state)),
    ];
    w.call(&place.function_name(), &format!("layers.{layer}"), inputs, |w, inputs| {
        let [x, counts, convolution, state] = inputs;
        let (Some(x), Some(counts)) = (x, counts) else {
            return Err(Error::format("a layer needs an input"));
        };
        let past = convolution.zip(state).map(|(convolution, state)| States { convolution, state });
        let normal = w.norm("norm", Norm::of(place)?, x, &place.module("mixer_norm")?)?;
        let (made, present) = w.state_space(place, normal, counts, past)?;
        let sum = w.make("Add", "sum", [x, made]);
        let mut results = vec![("output", sum)];
        if past.is_some() {
            results.extend([("present_conv", present.convolution), ("present_ssm", present.state)]);
        }
        Ok(results)
    })
}
