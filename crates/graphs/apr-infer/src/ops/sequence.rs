//! Sequences and optional values.

use apr_core::{Error, Result};

use crate::call::Call;
use crate::moving::{joined, part, stacked};
use crate::operator::{Operator, moves};
use crate::shape::{axis, sizes};
use crate::{Tensor, Value};

/// Steps of work that a part of a tensor is beside its elements: its shape and its elements have
/// memory of their own, which is counted and given back one by one, a microsecond or two in all.
const PART: u64 = 4096;

pub(super) const TABLE: &[Operator] = &[
    moves("SequenceEmpty", |_| Ok(vec![Value::Sequence(Vec::new())])),
    moves("SequenceConstruct", |call| {
        let one = |at| call.tensor(at).cloned().map(Value::from);
        Ok(vec![Value::Sequence((0..call.inputs.len()).map(one).collect::<Result<_>>()?)])
    }),
    moves("SequenceLength", |call| Ok(vec![Tensor::scalar(sequence(call)?.len() as i64).into()])),
    moves("SequenceAt", |call| {
        let values = sequence(call)?;
        let at = place(call, 1, values.len(), false)?;
        Ok(vec![values[at].clone()])
    }),
    moves("SequenceInsert", |call| {
        let mut values = sequence(call)?;
        let at = if call.optional_value(2).is_some() {
            place(call, 2, values.len(), true)?
        } else {
            values.len()
        };
        values.insert(at, call.tensor(1)?.clone().into());
        Ok(vec![Value::Sequence(values)])
    }),
    moves("SequenceErase", |call| {
        let mut values = sequence(call)?;
        if values.is_empty() {
            return Err(Error::format("the sequence is empty"));
        }
        let at = if call.optional_value(1).is_some() {
            place(call, 1, values.len(), false)?
        } else {
            values.len() - 1
        };
        values.remove(at);
        Ok(vec![Value::Sequence(values)])
    }),
    moves("SplitToSequence", split),
    moves("ConcatFromSequence", concat),
    moves("Optional", |call| {
        // ONNX has optional tensors and sequences; a chain could nest them without end.
        let inner = call.optional_value(0);
        if matches!(inner, Some(Value::Optional(_))) {
            return Err(Error::format("an optional value can't hold another one"));
        }
        Ok(vec![Value::Optional(inner.cloned().map(Box::new))])
    }),
    moves("OptionalHasElement", |call| {
        let has = !matches!(call.optional_value(0), None | Some(Value::Optional(None)));
        Ok(vec![Tensor::truths(Vec::new(), vec![u8::from(has)])?.into()])
    }),
    moves("OptionalGetElement", |call| match call.value(0)? {
        Value::Optional(Some(value)) => Ok(vec![(**value).clone()]),
        Value::Optional(None) => Err(Error::format("the optional value is missing")),
        value => Ok(vec![value.clone()]),
    }),
];

fn sequence(call: &Call<'_>) -> Result<Vec<Value>> {
    match call.value(0)? {
        Value::Sequence(values) => Ok(values.clone()),
        Value::Optional(Some(value)) => match &**value {
            Value::Sequence(values) => Ok(values.clone()),
            other => Err(Error::format(format!("a sequence is expected, not {}", other.kind()))),
        },
        other => Err(Error::format(format!("a sequence is expected, not {}", other.kind()))),
    }
}

/// Returns the position in a sequence that an input gives. For an insertion, it may be one past the
/// last.
fn place(call: &Call<'_>, input: usize, len: usize, inserts: bool) -> Result<usize> {
    let at = call.tensor(input)?.integer()?;
    let from_front = if at < 0 { at + len as i64 } else { at };
    let outside =
        || Error::format(format!("position {at} is out of range for a sequence of length {len}"));
    usize::try_from(from_front)
        .ok()
        .filter(|&at| at < len + usize::from(inserts))
        .ok_or_else(outside)
}

fn split(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let at = axis(call.int("axis", 0), tensor.rank())?;
    let size = tensor.shape()[at];
    let given = call.optional(1)?;
    let lengths = match given {
        Some(lengths) if lengths.rank() > 0 => sizes(&lengths.integers()?)?,
        _ => {
            let each = given.map_or(Ok(1), Tensor::integer)?;
            let each = usize::try_from(each).ok().filter(|&each| each > 0);
            let each =
                each.ok_or_else(|| Error::format("a part must have one element at least"))?;
            (0..size.div_ceil(each)).map(|part| each.min(size - part * each)).collect()
        }
    };

    // Without lengths, each part loses the dimension it was cut along, unless it is kept.
    let drops = given.is_none() && !call.flag("keepdims", true);

    // Small tensors take more than their elements.
    call.environment.spend((lengths.len() as u64).saturating_mul(PART))?;
    call.room_for(&[lengths.len()], 2 * size_of::<Value>() as u64 + 64)?;
    let mut start = 0;
    let mut parts = Vec::with_capacity(lengths.len());
    for len in lengths {
        let mut piece = part(tensor, at, start, len)?;
        if drops {
            let mut shape = piece.shape().to_vec();
            shape.remove(at);
            piece = piece.reshaped(shape)?;
        }
        parts.push(piece.into());
        start += len;
    }

    Ok(vec![Value::Sequence(parts)])
}

fn concat(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let values = sequence(call)?;
    let tensors = values.iter().map(|value| value.tensor().cloned()).collect::<Result<Vec<_>>>()?;
    let new_axis = call.flag("new_axis", false);
    let rank = tensors.first().map_or(0, Tensor::rank) + usize::from(new_axis);
    let at = axis(call.int("axis", 0), rank)?;
    call.room_for(
        &[1],
        tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.bytes())),
    )?;
    let result = if new_axis {
        stacked(&tensors, at)?
    } else {
        joined(&tensors.iter().collect::<Vec<_>>(), at)?
    };
    Ok(vec![result.into()])
}
