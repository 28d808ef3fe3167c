//! Operators of classical machine learning, `ai.onnx.ml`, and of training,
//! `ai.onnx.preview.training`.

use super::call::{Call, Rule};
use super::elementwise::like_first;
use crate::{AttributeValue, Dim, ElementType, TensorType, ValueType};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("ArrayFeatureExtractor", extract),
    ("Binarizer", like_first),
    ("CastMap", |call| {
        // As many as the map has, or as it says.
        let count = call.int("max_map").filter(|_| call.text("map_form") == Some("SPARSE"));
        call.set_shape(0, vec![Dim::fixed(1), count.map_or(Dim::Unknown, Dim::integer)]);
        Ok(())
    }),
    ("CategoryMapper", encode),
    ("DictVectorizer", vectorize),
    ("FeatureVectorizer", join),
    ("Imputer", like_first),
    ("LabelEncoder", encode),
    ("LinearClassifier", classify),
    ("LinearRegressor", |call| targets(call, "targets")),
    ("Normalizer", like_first),
    ("OneHotEncoder", one_hot),
    ("SVMClassifier", classify),
    ("SVMRegressor", |call| each_row(call, Dim::fixed(1))),
    ("Scaler", like_first),
    ("TreeEnsemble", |call| targets(call, "n_targets")),
    ("TreeEnsembleClassifier", classify),
    ("TreeEnsembleRegressor", |call| targets(call, "n_targets")),
    ("ZipMap", zip),
];

pub(super) const TRAINING: &[(&str, Rule)] =
    &[("Adagrad", step), ("Adam", step), ("Momentum", step)];

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

/// Sets the element type of the output to the type of the values that the labels map to.
///
/// In the first versions, integers map to texts and texts to integers.
fn encode(call: &mut Call<'_>) -> Result<(), String> {
    let listed = [
        ("values_floats", ElementType::F32),
        ("values_int64s", ElementType::I64),
        ("values_strings", ElementType::Text),
    ];
    let turned = call.operator.setting("default_int64").is_some()
        && call.operator.setting("values_int64s").is_none();
    let element = match call.attribute("values_tensor") {
        Some(AttributeValue::Tensor(values)) => Some(values.element),
        _ if turned => call.element(0).map(|element| match element {
            ElementType::Text => ElementType::I64,
            _ => ElementType::Text,
        }),
        _ => listed
            .into_iter()
            .find(|(name, _)| call.attribute(name).is_some())
            .map(|(_, element)| element),
    };

    call.set_element(0, element);
    like_first(call)
}

/// A row of the input makes a row of this width.
fn each_row(call: &mut Call<'_>, width: Dim) -> Result<(), String> {
    if let Some([rows, _]) = call.shape(0) {
        call.set_shape(0, vec![rows.clone(), width]);
    }
    Ok(())
}

fn targets(call: &mut Call<'_>, count: &str) -> Result<(), String> {
    let width = call.int(count).map_or(Dim::Unknown, Dim::integer);
    each_row(call, width)
}

/// Columns of the inputs side by side.
fn join(call: &mut Call<'_>) -> Result<(), String> {
    let Some(widths) = call.list("inputdimensions") else { return Ok(()) };
    let width = widths.iter().fold(Dim::fixed(0), |sum, width| sum.plus(&Dim::integer(*width)));
    each_row(call, width)
}

/// Returns the length of the first of these lists that is given, and the type of its elements.
fn labels(call: &Call<'_>, names: &[&str]) -> Option<(u64, ElementType)> {
    names.iter().find_map(|name| match call.attribute(name)? {
        AttributeValue::Ints(list) => Some((list.len() as u64, ElementType::I64)),
        AttributeValue::Texts(list) => Some((list.len() as u64, ElementType::Text)),
        _ => None,
    })
}

fn one_hot(call: &mut Call<'_>) -> Result<(), String> {
    let width = labels(call, &["cats_int64s", "cats_strings"])
        .map_or(Dim::Unknown, |(count, _)| Dim::fixed(count));
    if let Some(shape) = call.shape(0) {
        call.set_shape(0, [shape, &[width]].concat());
    }
    Ok(())
}

/// The values of a map in the places of a vocabulary.
fn vectorize(call: &mut Call<'_>) -> Result<(), String> {
    let width = labels(call, &["string_vocabulary", "int64_vocabulary"])
        .map_or(Dim::Unknown, |(count, _)| Dim::fixed(count));
    let element = match call.kind(0) {
        ValueType::Map(_, value) => match &**value {
            ValueType::Tensor(tensor) => tensor.element,
            _ => None,
        },
        _ => None,
    };
    call.set(0, TensorType { element, shape: Some(vec![Dim::fixed(1), width]) });
    Ok(())
}

/// A map for each row.
fn zip(call: &mut Call<'_>) -> Result<(), String> {
    if let Some((_, key)) = labels(call, &["classlabels_int64s", "classlabels_strings"]) {
        let value = ValueType::tensor(ElementType::F32, []);
        call.set_kind(0, ValueType::Sequence(Box::new(ValueType::Map(key, Box::new(value)))));
    }
    Ok(())
}

/// The label of each row, and a score for each label. A machine of vectors may have scores for
/// pairs of labels instead.
fn classify(call: &mut Call<'_>) -> Result<(), String> {
    let found = labels(call, &["classlabels_ints", "classlabels_int64s", "classlabels_strings"]);
    let count = match call.list("vectors_per_class").filter(|_| found.is_some()) {
        Some(classes) if call.attribute("prob_a").is_some() => Some(classes.len() as u64),
        // Two classes have one pair, and a score each.
        Some(classes) => Some((classes.len() * classes.len().saturating_sub(1) / 2).max(2) as u64),
        None => found.map(|(count, _)| count),
    };
    let width = count.map_or(Dim::Unknown, Dim::fixed);
    let rows = match call.shape(0) {
        Some([rows, _]) => Some(rows.clone()),
        _ => None,
    };
    let element = found.map(|(_, element)| element);
    call.set(0, TensorType { element, shape: rows.clone().map(|rows| vec![rows]) });
    call.set(1, TensorType { element: None, shape: rows.map(|rows| vec![rows, width]) });
    Ok(())
}

/// Sets the outputs of a training step, which are the new weights and states.
///
/// The inputs are the rate and the step count, then the weights, their gradients and their states:
/// the same number of tensors each.
fn step(call: &mut Call<'_>) -> Result<(), String> {
    // Adam keeps two states of each weight, the others one.
    let states = if call.operator.name == "Adam" { 2 } else { 1 };
    let count = call.outputs.len() / (1 + states);
    for output in 0..call.outputs.len() {
        let gradients = if output < count { 0 } else { count };
        call.set_kind(output, call.kind(2 + gradients + output).clone());
    }
    Ok(())
}
