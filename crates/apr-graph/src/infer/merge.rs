//! Two things that are known of a type, made one.

use crate::{Dim, TensorType, ValueType};

/// What is declared, refined by what follows from the inputs. An error where they contradict.
///
/// A number is better than a symbol, and a symbol that the file declares is better than one that is
/// computed.
pub(crate) fn merge(declared: &ValueType, inferred: ValueType) -> Result<ValueType, String> {
    match (declared, inferred) {
        (ValueType::Unknown, inferred) => Ok(inferred),
        (declared, ValueType::Unknown) => Ok(declared.clone()),
        (ValueType::Tensor(declared), ValueType::Tensor(inferred)) => {
            tensors(declared, &inferred).map(ValueType::Tensor)
        }
        (ValueType::SparseTensor(declared), ValueType::SparseTensor(inferred)) => {
            tensors(declared, &inferred).map(ValueType::SparseTensor)
        }
        (ValueType::Sequence(declared), ValueType::Sequence(inferred)) => {
            merge(declared, *inferred).map(|inner| ValueType::Sequence(Box::new(inner)))
        }
        (ValueType::Optional(declared), ValueType::Optional(inferred)) => {
            merge(declared, *inferred).map(|inner| ValueType::Optional(Box::new(inner)))
        }
        (ValueType::Map(key, declared), ValueType::Map(other, inferred)) if *key == other => {
            merge(declared, *inferred).map(|inner| ValueType::Map(other, Box::new(inner)))
        }
        // What may be absent is there where the file says so.
        (declared, ValueType::Optional(inferred)) => merge(declared, *inferred),
        (declared, inferred) => Err(format!(
            "{} is declared, and {} is made",
            declared.described(),
            inferred.described()
        )),
    }
}

fn tensors(declared: &TensorType, inferred: &TensorType) -> Result<TensorType, String> {
    let problem = || format!("{declared} is declared, and {inferred} is made");
    if let (Some(a), Some(b)) = (declared.element, inferred.element)
        && a != b
    {
        return Err(problem());
    }
    let element = declared.element.or(inferred.element);
    let shape = match (&declared.shape, &inferred.shape) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            let dims: Option<Vec<_>> = a.iter().zip(b).map(|(a, b)| dims(a, b)).collect();
            Some(dims.ok_or_else(problem)?)
        }
        (Some(_), Some(_)) => return Err(problem()),
        (a, b) => a.as_ref().or(b.as_ref()).cloned(),
    };

    Ok(TensorType { element, shape })
}

fn dims(declared: &Dim, inferred: &Dim) -> Option<Dim> {
    match (declared.as_integer(), inferred.as_integer()) {
        (Some(a), Some(b)) if a != b => None,
        (_, Some(_)) => Some(inferred.clone()),
        _ if *declared == Dim::Unknown => Some(inferred.clone()),
        _ => Some(declared.clone()),
    }
}

/// What two types have in common, where a value may have either. An error where their elements
/// differ.
pub(crate) fn either(a: &ValueType, b: &ValueType) -> Result<ValueType, String> {
    Ok(match (a, b) {
        // The unknown one may have any shape.
        (ValueType::Unknown, other) | (other, ValueType::Unknown) => without_shape(other),
        (ValueType::Tensor(a), ValueType::Tensor(b)) => {
            if let (Some(left), Some(right)) = (a.element, b.element)
                && left != right
            {
                return Err(format!("{a} and {b} differ"));
            }
            ValueType::Tensor(crate::operators::sequence::common(a, b))
        }
        (ValueType::Sequence(a), ValueType::Sequence(b)) => {
            ValueType::Sequence(Box::new(either(a, b)?))
        }
        (ValueType::Optional(a), ValueType::Optional(b)) => {
            ValueType::Optional(Box::new(either(a, b)?))
        }
        (ValueType::Optional(a), b) | (b, ValueType::Optional(a)) => {
            ValueType::Optional(Box::new(either(a, b)?))
        }
        (a, b) if a == b => a.clone(),
        (a, b) => return Err(format!("{} and {} differ", a.described(), b.described())),
    })
}

/// The type of the elements alone.
pub(crate) fn without_shape(kind: &ValueType) -> ValueType {
    match kind {
        ValueType::Tensor(tensor) => {
            ValueType::Tensor(TensorType { element: tensor.element, shape: None })
        }
        ValueType::Sequence(inner) => ValueType::Sequence(Box::new(without_shape(inner))),
        ValueType::Optional(inner) => ValueType::Optional(Box::new(without_shape(inner))),
        other => other.clone(),
    }
}
