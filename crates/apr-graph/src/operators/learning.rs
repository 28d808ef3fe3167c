//! Operators of classical machine learning, `ai.onnx.ml`.

use super::call::{Call, Rule};
use super::elementwise::like_first;
use crate::{AttributeValue, Dim, ElementType};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("ArrayFeatureExtractor", extract),
    ("Binarizer", like_first),
    ("Imputer", like_first),
    ("LabelEncoder", encode),
    ("Normalizer", like_first),
    ("Scaler", like_first),
    ("TreeEnsemble", trees),
];

fn extract(call: &mut Call<'_>) -> Result<(), String> {
    let (Some(data), Some(places)) = (call.shape(0), call.shape(1)) else { return Ok(()) };
    let count = super::call::product(places);
    let shape = match data.split_last() {
        Some((_, [])) => vec![Dim::fixed(1), count],
        Some((_, front)) => [front, &[count]].concat(),
        None => return Err("the input has no dimensions".to_owned()),
    };
    call.set_shape(0, shape);
    Ok(())
}

/// The elements have the type of the values that the labels stand for.
fn encode(call: &mut Call<'_>) -> Result<(), String> {
    let listed = [
        ("values_floats", ElementType::F32),
        ("values_int64s", ElementType::I64),
        ("values_strings", ElementType::Text),
    ];
    let element = match call.attribute("values_tensor") {
        Some(AttributeValue::Tensor(values)) => Some(values.element),
        _ => listed.into_iter().find(|(name, _)| call.attribute(name).is_some()).map(|(_, element)| element),
    };
    call.set_element(0, element);
    like_first(call)
}

fn trees(call: &mut Call<'_>) -> Result<(), String> {
    let Some([batch, ..]) = call.shape(0) else { return Ok(()) };
    let targets = call.int("n_targets").map_or(Dim::Unknown, Dim::integer);
    call.set_shape(0, vec![batch.clone(), targets]);
    Ok(())
}
