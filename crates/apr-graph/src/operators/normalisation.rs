//! Normalisations.

use super::call::{Call, Rule, axis};
use super::elementwise::like_first;
use crate::{Dim, ElementType, TensorType};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("BatchNormalization", batch),
    ("GroupNormalization", like_first),
    ("InstanceNormalization", like_first),
    ("LayerNormalization", layer),
    ("MeanVarianceNormalization", like_first),
    ("RMSNormalization", like_first),
    ("SimplifiedLayerNormalization", layer),
];

/// The other outputs are means and variances of channels, while a model is trained.
fn batch(call: &mut Call<'_>) -> Result<(), String> {
    let channels = call.shape(0).and_then(|shape| shape.get(1)).cloned();
    let given = (1..call.inputs.len())
        .find_map(|position| call.shape(position))
        .and_then(|shape| shape.first())
        .cloned();
    if let Some(channels) = channels.filter(|channels| *channels != Dim::Unknown).or(given) {
        for output in 1..call.outputs.len() {
            call.set_shape(output, vec![channels.clone()]);
        }
    }
    like_first(call)
}

/// The other outputs are means and deviations, computed with the precision of `stash_type`.
fn layer(call: &mut Call<'_>) -> Result<(), String> {
    let stash = call.element_attribute("stash_type")?.or(Some(ElementType::F32));
    for output in 1..call.outputs.len() {
        call.set_element(output, stash);
    }

    if let Some(shape) = call.shape(0) {
        let from = axis(call.int("axis").unwrap_or(-1), shape.len())?;
        let ones = vec![Dim::fixed(1); shape.len() - from];
        for output in 1..call.outputs.len() {
            call.set(
                output,
                TensorType { element: stash, shape: Some([&shape[..from], &ones].concat()) },
            );
        }
    }

    like_first(call)
}
