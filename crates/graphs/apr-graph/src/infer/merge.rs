//! Two things that are known of a type, made one.

use crate::{Dim, TensorType, ValueType};

/// Type of a value after its declared and its inferred type were merged.
#[derive(Debug)]
pub(crate) struct Merged {
    /// Merged type to continue with.
    pub(crate) kind: ValueType,
    /// Contradiction between the declared and the inferred sizes. Runtimes use the inferred sizes.
    pub(crate) odd: Option<String>,
}

impl Merged {
    fn as_made(kind: ValueType) -> Self {
        Self { kind, odd: None }
    }

    fn within(self, wrap: impl FnOnce(Box<ValueType>) -> ValueType) -> Self {
        Self { kind: wrap(Box::new(self.kind)), odd: self.odd }
    }
}

/// Merges the declared type with the type that follows from the inputs.
///
/// Returns an error if no value can have both types. If only sizes contradict, the inferred type is
/// used.
///
/// A number is preferred to a symbol, and a symbol declared in the file to a computed one.
pub(crate) fn merge(declared: &ValueType, inferred: ValueType) -> Result<Merged, String> {
    match (declared, inferred) {
        (ValueType::Unknown, inferred) => Ok(Merged::as_made(inferred)),
        (declared, ValueType::Unknown) => Ok(Merged::as_made(declared.clone())),
        (ValueType::Tensor(declared), ValueType::Tensor(inferred)) => {
            tensors(declared, inferred, ValueType::Tensor)
        }
        (ValueType::SparseTensor(declared), ValueType::SparseTensor(inferred)) => {
            tensors(declared, inferred, ValueType::SparseTensor)
        }
        (ValueType::Sequence(declared), ValueType::Sequence(inferred)) => {
            merge(declared, *inferred).map(|merged| merged.within(ValueType::Sequence))
        }
        (ValueType::Optional(declared), ValueType::Optional(inferred)) => {
            merge(declared, *inferred).map(|merged| merged.within(ValueType::Optional))
        }
        (ValueType::Map(key, declared), ValueType::Map(other, inferred)) if *key == other => {
            let wrap = |inner| ValueType::Map(other, inner);
            merge(declared, *inferred).map(|merged| merged.within(wrap))
        }
        // What may be absent is there where the file says so.
        (declared, ValueType::Optional(inferred)) => merge(declared, *inferred),
        (declared, inferred) => Err(contradiction(&declared.described(), &inferred.described())),
    }
}

fn contradiction(declared: &dyn std::fmt::Display, inferred: &dyn std::fmt::Display) -> String {
    format!("{declared} is declared, and {inferred} is made")
}

fn tensors(
    declared: &TensorType,
    inferred: TensorType,
    wrap: fn(TensorType) -> ValueType,
) -> Result<Merged, String> {
    if let (Some(a), Some(b)) = (declared.element, inferred.element)
        && a != b
    {
        return Err(contradiction(declared, &inferred));
    }

    let element = declared.element.or(inferred.element);
    let shape = match (&declared.shape, &inferred.shape) {
        (Some(a), Some(b)) => {
            let dims = || a.iter().zip(b).map(|(a, b)| dims(a, b)).collect();
            let Some(dims) = (a.len() == b.len()).then(dims).flatten() else {
                let odd = Some(contradiction(declared, &inferred));
                return Ok(Merged { kind: wrap(TensorType { element, ..inferred }), odd });
            };
            Some(dims)
        }
        (a, b) => a.as_ref().or(b.as_ref()).cloned(),
    };

    Ok(Merged::as_made(wrap(TensorType { element, shape })))
}

fn dims(declared: &Dim, inferred: &Dim) -> Option<Dim> {
    match (declared.as_integer(), inferred.as_integer()) {
        (Some(a), Some(b)) if a != b => None,
        (_, Some(_)) => Some(inferred.clone()),
        _ if *declared == Dim::Unknown => Some(inferred.clone()),
        _ => Some(declared.clone()),
    }
}

/// Returns the common part of two types, for a value that may have either type.
///
/// Returns an error if their element types differ.
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
