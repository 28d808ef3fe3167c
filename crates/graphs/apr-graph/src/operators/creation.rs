//! Operators that make a tensor out of sizes, settings or nothing.

use super::call::{Call, Known, MAX_KNOWN, Rule, product};
use crate::{AttributeValue, Constant, Dim, ElementType, TensorType, ValueType};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("BlackmanWindow", window),
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("EyeLike", eye_like),
    ("HammingWindow", window),
    ("HannWindow", window),
    ("MelWeightMatrix", mel_weights),
    ("Multinomial", multinomial),
    ("RandomNormal", random),
    ("RandomUniform", random),
    ("Range", range),
    ("Shape", shape),
    ("Size", size),
];

/// The type of a constant.
pub(crate) fn type_of(constant: &Constant) -> ValueType {
    ValueType::tensor(constant.element, constant.shape.iter().copied().map(Dim::fixed))
}

fn constant(call: &mut Call<'_>) -> Result<(), String> {
    // ONNX allows one attribute, whose name says what it is.
    let Some(attribute) = call.node.attributes.first() else {
        return Err("it has no value".to_owned());
    };
    let value = call.attribute(&attribute.name);
    let (kind, known) = match value {
        Some(AttributeValue::Tensor(constant)) => (type_of(constant), Known::of(constant)),
        Some(AttributeValue::Int(value)) => {
            (row(ElementType::I64, None), Some(Known::ints([*value])))
        }
        Some(AttributeValue::Ints(values)) => {
            let known = (values.len() <= MAX_KNOWN).then(|| Known::ints(values.iter().copied()));
            (row(ElementType::I64, Some(values.len())), known)
        }
        Some(AttributeValue::Float(value)) => {
            (row(ElementType::F32, None), Known::of(&Constant::float(*value)))
        }
        Some(AttributeValue::Floats(values)) => {
            (row(ElementType::F32, Some(values.len())), Known::of(&Constant::floats(values)))
        }
        Some(AttributeValue::Text(_)) => (row(ElementType::Text, None), None),
        Some(AttributeValue::Texts(values)) => (row(ElementType::Text, Some(values.len())), None),
        _ => return Ok(()),
    };

    call.set_kind(0, kind);
    call.set_known(0, known);
    Ok(())
}

fn row(element: ElementType, len: Option<usize>) -> ValueType {
    // Without a length there is no dimension: a single number.
    ValueType::tensor(element, len.map(|len| Dim::fixed(len as u64)))
}

fn constant_of_shape(call: &mut Call<'_>) -> Result<(), String> {
    let (element, value) = match call.attribute("value") {
        Some(AttributeValue::Tensor(constant)) => (Some(constant.element), Known::of(constant)),
        Some(_) => (None, None),
        // ONNX's default is one 0 of single precision.
        None => (Some(ElementType::F32), Some(Known::ints([0]))),
    };
    call.set_element(0, element);
    let Some(shape) = from_sizes(call, 0)? else { return Ok(()) };
    let count = product(&shape).size().and_then(|count| usize::try_from(count).ok());
    if let (Some(Known::Ints(value)), Some(count)) =
        (value, count.filter(|count| *count <= MAX_KNOWN))
        && let [value] = &*value
    {
        call.set_known(0, Some(Known::Ints(vec![value.clone(); count].into())));
    }
    call.set_shape(0, shape);
    Ok(())
}

/// Returns the shape that an input's elements contain.
///
/// If the elements are not known, the shape has as many unknown sizes as the input has elements.
pub(super) fn from_sizes(call: &Call<'_>, position: usize) -> Result<Option<Vec<Dim>>, String> {
    if let Some(dims) = call.dims(position) {
        if let Some(size) = dims.iter().filter_map(Dim::as_integer).find(|size| *size < 0) {
            return Err(format!("{} has the size {size}", call.name_of(position)));
        }
        return Ok(Some(dims.to_vec()));
    }
    let rank = match call.shape(position) {
        Some([count]) => count.size(),
        _ => None,
    };
    Ok(rank.filter(|rank| *rank <= 64).map(|rank| (0..rank).map(|_| Dim::Unknown).collect()))
}

fn eye_like(call: &mut Call<'_>) -> Result<(), String> {
    let element = call.element_attribute("dtype")?.or_else(|| call.element(0));
    call.expect_rank(0, 2)?;
    call.set(0, TensorType { element, shape: call.shape(0).map(<[Dim]>::to_vec) });
    Ok(())
}

fn window(call: &mut Call<'_>) -> Result<(), String> {
    let element = call.element_attribute("output_datatype")?;
    call.set(0, TensorType { element, shape: Some(vec![call.scalar(0).unwrap_or(Dim::Unknown)]) });
    Ok(())
}

fn mel_weights(call: &mut Call<'_>) -> Result<(), String> {
    let element = call.element_attribute("output_datatype")?;
    let bins = call.scalar(0).unwrap_or(Dim::Unknown);
    let spectrum =
        call.scalar(1).unwrap_or(Dim::Unknown).quotient(&Dim::fixed(2)).plus(&Dim::fixed(1));
    call.set(0, TensorType { element, shape: Some(vec![spectrum, bins]) });
    Ok(())
}

fn multinomial(call: &mut Call<'_>) -> Result<(), String> {
    let element = call.element_attribute("dtype")?.or(Some(ElementType::I32));
    call.expect_rank(0, 2)?;
    let samples = Dim::integer(call.int("sample_size").unwrap_or(1));
    let shape = call.shape(0).map(|shape| vec![shape[0].clone(), samples]);
    call.set(0, TensorType { element, shape });
    Ok(())
}

fn random(call: &mut Call<'_>) -> Result<(), String> {
    let element = call.element_attribute("dtype")?.or(Some(ElementType::F32));
    let shape = call.list("shape").map(|shape| shape.iter().copied().map(Dim::integer).collect());
    call.set(0, TensorType { element, shape });
    Ok(())
}

fn range(call: &mut Call<'_>) -> Result<(), String> {
    for position in 0..3 {
        let single = |dim: &Dim| dim.as_integer().is_none_or(|size| size == 1);
        let scalar =
            call.shape(position).is_none_or(|shape| shape.len() < 2 && shape.iter().all(single));
        if !scalar {
            return Err(format!("{} is not a scalar", call.name_of(position)));
        }
    }

    let step = if call.has(2) { call.scalar(2) } else { Some(Dim::fixed(1)) };
    let (start, limit) = (call.scalar(0), call.scalar(1));
    let (Some(start), Some(limit), Some(step)) =
        (start, limit, step.and_then(|step| step.as_integer()))
    else {
        let count = float_count(call).unwrap_or(Dim::Unknown);
        call.set_shape(0, vec![count]);
        return Ok(());
    };

    if step == 0 {
        return Err("the step is 0".to_owned());
    }

    let span = if step > 0 { limit.minus(&start) } else { start.minus(&limit) };
    let width = Dim::integer(step.saturating_abs());
    // The quotient is rounded down, so this is rounded up.
    let count = span.plus(&width).minus(&Dim::fixed(1)).quotient(&width);
    let count =
        if count.as_integer().is_some_and(|count| count < 0) { Dim::fixed(0) } else { count };
    if let Some(count) = count.size().filter(|count| *count <= MAX_KNOWN as u64) {
        let step = Dim::integer(step);
        let numbers = (0..count).map(|number| start.plus(&Dim::fixed(number).times(&step)));
        let numbers: Vec<_> = numbers.collect();
        call.set_known(0, Some(Known::Ints(numbers.into())));
    }

    call.set_shape(0, vec![count]);
    Ok(())
}

/// Returns the number of elements of a range of floats.
fn float_count(call: &Call<'_>) -> Option<Dim> {
    let number = |position: usize| Some(f64::from(*call.floats(position)?.first()?));
    let count = ((number(1)? - number(0)?) / number(2)?).ceil().max(0.0);
    #[expect(clippy::cast_possible_truncation, reason = "it is checked to be below 2^53")]
    (count < 9.0e15).then(|| Dim::integer(count as i64))
}

/// The sizes of the input, or those from `start` to `end`.
fn shape(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else {
        call.set_shape(0, vec![Dim::Unknown]);
        return Ok(());
    };
    let rank = i64::try_from(shape.len()).unwrap_or(i64::MAX);
    let bound =
        |value: i64| (if value < 0 { value.saturating_add(rank) } else { value }).clamp(0, rank);
    let start = bound(call.int("start").unwrap_or(0));
    let end = bound(call.int("end").unwrap_or(rank)).max(start);
    let part = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let sizes = part.map_or(&[][..], |(start, end)| &shape[start..end]);
    call.set_shape(0, vec![Dim::fixed(sizes.len() as u64)]);
    call.set_known(0, Some(Known::Ints(sizes.into())));
    Ok(())
}

fn size(call: &mut Call<'_>) -> Result<(), String> {
    call.set_shape(0, Vec::new());
    if let Some(shape) = call.shape(0) {
        call.set_known(0, Some(Known::Ints(vec![product(shape)].into())));
    }
    Ok(())
}
