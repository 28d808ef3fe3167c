//! Texts, and losses of classes: what is left.

use super::call::{Call, Rule};
use crate::Dim;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("NegativeLogLikelihoodLoss", loss),
    ("SoftmaxCrossEntropyLoss", loss),
    ("StringNormalizer", normalizer),
    ("StringSplit", split),
    ("TfIdfVectorizer", tf_idf),
];

/// Sets the output's shape. The last dimension is not known, because texts may be dropped.
fn normalizer(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    match shape {
        [_] => call.set_shape(0, vec![Dim::Unknown]),
        [batch, _] if batch.as_integer() == Some(1) => {
            call.set_shape(0, vec![batch.clone(), Dim::Unknown]);
        }
        _ => return Err("the input is neither [c] nor [1, c]".to_owned()),
    }
    Ok(())
}

fn split(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let shape = shape.to_vec();
    call.set_shape(1, shape.clone());
    call.set_shape(0, [shape, vec![Dim::Unknown]].concat());
    Ok(())
}

fn tf_idf(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let most = call.list("ngram_indexes").and_then(|indexes| indexes.iter().max().copied());
    let width = Dim::integer(most.unwrap_or(-1).saturating_add(1));
    let shape = match shape {
        [_] => vec![width],
        [batch, _] => vec![batch.clone(), width],
        _ => return Err("the input has neither one nor two dimensions".to_owned()),
    };
    call.set_shape(0, shape);
    Ok(())
}

fn loss(call: &mut Call<'_>) -> Result<(), String> {
    if let Some(scores) = call.shape(0) {
        call.set_shape(1, scores.to_vec());
    }
    if call.text("reduction") != Some("none") {
        call.set_shape(0, Vec::new());
    } else if let Some(labels) = call.shape(1) {
        call.set_shape(0, labels.to_vec());
    }
    Ok(())
}
