//! Maps: numbers by names.

use std::collections::HashMap;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::{Labels, Rows};
use crate::call::Call;
use crate::tensor::Data;
use crate::{Tensor, Value};

/// Returns a map for each row, from each label to the row's value in its column.
pub(super) fn zip(call: &mut Call<'_>) -> Result<Vec<Value>> {
    /// Bytes of a map beside its values: they share the keys.
    const MAP: u64 = 2 * size_of::<Tensor>() as u64 + 64;

    let x = Rows::of(call)?;
    let labels = Labels::of(call, "classlabels_int64s")?;
    if labels.len() != x.width {
        return Err(Error::format(format!("{} keys have {} columns", labels.len(), x.width)));
    }
    call.room_for(&[x.count], MAP + 4 * x.width as u64)?;
    let keys = match labels {
        Labels::Ints(labels) => Tensor::row(labels),
        Labels::Texts(labels) => Tensor::row(labels),
    };
    let map = |row: usize| {
        let values = x.row(row).iter().map(|&value| value as f32).collect::<Vec<_>>();
        Value::Map { keys: keys.clone(), values: Tensor::row(values) }
    };
    Ok(vec![Value::Sequence((0..x.count).map(map).collect())])
}

/// Keys and values of the input, which is a map.
fn entries<'c>(call: &'c Call<'_>) -> Result<(&'c Tensor, &'c Tensor)> {
    match call.value(0)? {
        Value::Map { keys, values } => Ok((keys, values)),
        other => Err(Error::format(format!("a map is expected, not {}", other.kind()))),
    }
}

/// The values of a map in the places that a vocabulary gives their keys.
pub(super) fn vectorize(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (keys, values) = entries(call)?;
    let vocabulary = match call.texts("string_vocabulary").filter(|texts| !texts.is_empty()) {
        Some(texts) => Tensor::row(texts),
        None => Tensor::row(call.ints("int64_vocabulary").unwrap_or_default()),
    };
    let count = vocabulary.len();
    call.room_like(&[1, count], values)?;
    call.work(&[count.saturating_add(keys.len()), 20])?;
    let places: Vec<Option<usize>> = match (keys.data(), vocabulary.data()) {
        (Data::Text(keys), Data::Text(known)) => placed(keys, known),
        (Data::I64(keys), Data::I64(known)) => placed(keys, known),
        _ => return Err(Error::format("keys and vocabulary are not of one type")),
    };

    // What no key names is nothing: the element behind the values.
    let nothing = crate::moving::filled_like(values, vec![1])?;
    let all = crate::moving::joined(&[values, &nothing], 0)?;
    let mut from = vec![values.len(); count];
    for (at, place) in places.iter().enumerate() {
        if let Some(place) = place {
            from[*place] = at;
        }
    }
    let data = crate::moving::picked(all.data(), count, |visit| {
        from.iter().for_each(|&at| visit(at));
    });
    Ok(vec![all.like(vec![1, count], data)?.into()])
}

/// Returns the position of each key in `known`, or `None` for an unknown key.
fn placed<T: std::hash::Hash + Eq>(keys: &[T], known: &[T]) -> Vec<Option<usize>> {
    let places: HashMap<&T, usize> = known.iter().enumerate().map(|(at, key)| (key, at)).collect();
    keys.iter().map(|key| places.get(key).copied()).collect()
}

/// The values of a map in the order of its keys, or with each key as a place.
pub(super) fn cast(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let to = match call.text("cast_to", "TO_FLOAT").as_str() {
        "TO_FLOAT" => ElementType::F32,
        "TO_STRING" => ElementType::Text,
        "TO_INT64" => ElementType::I64,
        other => return Err(Error::format(format!("unknown cast_to '{other}'"))),
    };
    let (keys, values) = entries(call)?;
    let mut order: Vec<(i64, usize)> =
        keys.integers()?.into_iter().enumerate().map(|(at, key)| (key, at)).collect();
    order.sort_unstable();
    let from: Vec<usize> = if call.text("map_form", "DENSE") == "DENSE" {
        order.into_iter().map(|(_, at)| at).collect()
    } else {
        let count = usize::try_from(call.int("max_map", 1)).unwrap_or(0);
        call.room_for(&[count], size_of::<usize>() as u64)?;
        let mut from = vec![values.len(); count];
        for (key, at) in order {
            let place = usize::try_from(key).ok().and_then(|key| from.get_mut(key));
            *place.ok_or_else(|| Error::format(format!("key {key} is not below {count}")))? = at;
        }
        from
    };

    call.room_like(&[1, from.len()], values)?;
    let nothing = crate::moving::filled_like(values, vec![1])?;
    let all = crate::moving::joined(&[values, &nothing], 0)?;
    let data = crate::moving::picked(all.data(), from.len(), |visit| {
        from.iter().for_each(|&at| visit(at));
    });
    Ok(vec![all.like(vec![1, from.len()], data)?.cast(to)?.into()])
}
