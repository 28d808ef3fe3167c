//! Sequences of tensors, and values that may be absent.

use super::call::{Call, Known, Rule, axis};
use super::movement::inner;
use crate::{Dim, ElementType, TensorType, ValueType};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("ConcatFromSequence", concat_from_sequence),
    ("Optional", optional),
    ("OptionalGetElement", optional_element),
    ("OptionalHasElement", truth),
    ("SequenceAt", sequence_at),
    ("SequenceConstruct", sequence_construct),
    ("SequenceEmpty", sequence_empty),
    ("SequenceErase", sequence_erase),
    ("SequenceInsert", sequence_insert),
    ("SequenceLength", length),
    ("SplitToSequence", split_to_sequence),
];

fn sequence(tensor: TensorType) -> ValueType {
    ValueType::Sequence(Box::new(ValueType::Tensor(tensor)))
}

/// Returns the common part of two types: sizes that differ are unknown.
///
/// If the ranks differ, the result has no shape.
pub(crate) fn common(a: &TensorType, b: &TensorType) -> TensorType {
    let shape = match (&a.shape, &b.shape) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            let each = a.iter().zip(b).map(|(a, b)| if a == b { a.clone() } else { Dim::Unknown });
            Some(each.collect())
        }
        _ => None,
    };
    TensorType { element: a.element.or(b.element), shape }
}

fn inner_tensor<'a>(call: &Call<'a>, position: usize) -> Option<&'a TensorType> {
    match inner(call.kind(position)) {
        Some(ValueType::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

fn sequence_construct(call: &mut Call<'_>) -> Result<(), String> {
    let tensors: Option<Vec<_>> =
        (0..call.inputs.len()).map(|position| call.tensor(position)).collect();
    let Some((first, others)) = tensors.as_deref().and_then(<[_]>::split_first) else {
        return Ok(());
    };
    let mut kind = (*first).clone();
    for other in others {
        if other.element.is_some() && kind.element.is_some() && other.element != kind.element {
            return Err("the tensors of a sequence have elements of one type".to_owned());
        }
        kind = common(&kind, other);
    }

    call.set_kind(0, sequence(kind));
    Ok(())
}

fn sequence_empty(call: &mut Call<'_>) -> Result<(), String> {
    let element = call.element_attribute("dtype")?.or(Some(ElementType::F32));
    call.set_kind(0, sequence(TensorType { element, shape: None }));
    Ok(())
}

fn sequence_at(call: &mut Call<'_>) -> Result<(), String> {
    if let Some(inner) = inner(call.kind(0)) {
        call.set_kind(0, inner.clone());
    }
    Ok(())
}

fn sequence_erase(call: &mut Call<'_>) -> Result<(), String> {
    call.set_kind(0, call.kind(0).clone());
    Ok(())
}

fn sequence_insert(call: &mut Call<'_>) -> Result<(), String> {
    if let (Some(all), Some(one)) = (inner_tensor(call, 0), call.tensor(1)) {
        if let (Some(a), Some(b)) = (all.element, one.element)
            && a != b
        {
            return Err(format!("the sequence is of {a}, and the tensor of {b}"));
        }
        call.set_kind(0, sequence(common(all, one)));
    }
    Ok(())
}

fn length(call: &mut Call<'_>) -> Result<(), String> {
    call.set_shape(0, Vec::new());
    Ok(())
}

fn truth(call: &mut Call<'_>) -> Result<(), String> {
    call.set_shape(0, Vec::new());
    match call.kind(0) {
        ValueType::Optional(_) | ValueType::Unknown => {}
        // Since version 18 it also takes what is no optional, and so is there.
        _ => call.set_known(0, Some(Known::ints([1]))),
    }
    Ok(())
}

fn optional(call: &mut Call<'_>) -> Result<(), String> {
    let kind = match call.attribute("type") {
        Some(crate::AttributeValue::Type(kind)) => kind.clone(),
        _ => call.kind(0).clone(),
    };
    call.set_kind(0, ValueType::Optional(Box::new(kind)));
    Ok(())
}

fn optional_element(call: &mut Call<'_>) -> Result<(), String> {
    let kind = match call.kind(0) {
        ValueType::Optional(inner) => (**inner).clone(),
        kind => kind.clone(),
    };
    call.set_kind(0, kind);
    Ok(())
}

fn concat_from_sequence(call: &mut Call<'_>) -> Result<(), String> {
    let Some(tensor) = inner_tensor(call, 0) else { return Ok(()) };
    let mut kind = tensor.clone();
    if let Some(shape) = &mut kind.shape {
        let given = call.int("axis").unwrap_or(0);
        if call.is_set("new_axis") {
            let along = axis(given, shape.len() + 1)?;
            shape.insert(along, Dim::Unknown);
        } else {
            let along = axis(given, shape.len())?;
            shape[along] = Dim::Unknown;
        }
    }

    call.set(0, kind);
    Ok(())
}

fn split_to_sequence(call: &mut Call<'_>) -> Result<(), String> {
    let Some(tensor) = call.tensor(0) else { return Ok(()) };
    let mut kind = tensor.clone();
    if let Some(shape) = &mut kind.shape {
        let along = axis(call.int("axis").unwrap_or(0), shape.len())?;
        // With sizes of parts, ONNX ignores `keepdims`.
        if call.has(1) {
            shape[along] = part_size(call, &shape[along]);
        } else if call.is_set("keepdims") {
            shape[along] = Dim::fixed(1);
        } else {
            shape.remove(along);
        }
    }

    call.set_kind(0, sequence(kind));
    Ok(())
}

/// Returns the size of each part, if all parts have the same size.
fn part_size(call: &Call<'_>, total: &Dim) -> Dim {
    let Some(sizes) = call.ints(1) else { return Dim::Unknown };
    let equal = sizes.windows(2).all(|pair| pair[0] == pair[1]);
    match (sizes.first(), call.shape(1)) {
        // One number without dimensions: parts of that size, the last may be smaller.
        (Some(size), Some([])) => match total.as_integer() {
            Some(total) if *size > 0 && total % size == 0 => Dim::integer(*size),
            _ => Dim::Unknown,
        },
        (Some(size), _) if equal => Dim::integer(*size),
        _ => Dim::Unknown,
    }
}
