//! Operators that make one element of many along some dimensions.

use super::call::{Call, Rule, axes, axis};
use crate::Dim;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("ArgMax", arg),
    ("ArgMin", arg),
    ("ReduceL1", reduce),
    ("ReduceL2", reduce),
    ("ReduceLogSum", reduce),
    ("ReduceLogSumExp", reduce),
    ("ReduceMax", reduce),
    ("ReduceMean", reduce),
    ("ReduceMin", reduce),
    ("ReduceProd", reduce),
    ("ReduceSum", reduce),
    ("ReduceSumSquare", reduce),
    ("TopK", top_k),
];

/// The dimensions of `axes`, an attribute or an input, are 1 or gone.
pub(super) fn reduce(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let keep = call.int("keepdims") != Some(0);

    // Without the axes, it is known only that `keepdims` leaves as many dimensions.
    let Ok(list) = call.list_or_input("axes", 1) else {
        if keep {
            call.set_shape(0, vec![Dim::Unknown; shape.len()]);
        }
        return Ok(());
    };

    let list = list.unwrap_or_default();
    if list.is_empty() && call.is_set("noop_with_empty_axes") {
        call.set_shape(0, shape.to_vec());
        return Ok(());
    }

    // No axes are all of them.
    let mut gone = vec![list.is_empty(); shape.len()];
    for position in axes(&list, shape.len())? {
        gone[position] = true;
    }

    call.set_shape(0, without(shape, &gone, keep));
    Ok(())
}

fn without(shape: &[Dim], gone: &[bool], keep: bool) -> Vec<Dim> {
    let each = shape.iter().zip(gone).filter_map(|(dim, gone)| match (gone, keep) {
        (false, _) => Some(dim.clone()),
        (true, true) => Some(Dim::fixed(1)),
        (true, false) => None,
    });
    each.collect()
}

/// Where the greatest or smallest is.
fn arg(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let mut gone = vec![false; shape.len()];
    gone[axis(call.int("axis").unwrap_or(0), shape.len())?] = true;
    let keep = call.int("keepdims") != Some(0);
    call.set_shape(0, without(shape, &gone, keep));
    Ok(())
}

/// The `k` greatest or smallest, and where they are.
fn top_k(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let mut shape = shape.to_vec();
    let along = axis(call.int("axis").unwrap_or(-1), shape.len())?;
    let k = match call.operator.setting("k") {
        Some(_) => call.int("k").map(Dim::integer),
        None => call.scalar(1),
    };
    let k = k.unwrap_or(Dim::Unknown);
    if let (Some(k), Some(size)) = (k.as_integer(), shape[along].as_integer())
        && (k > size || k < 0)
    {
        return Err(format!("k is {k}, and there are {size} elements along axis {along}"));
    }
    shape[along] = k;
    call.set_shape(0, shape.clone());
    call.set_shape(1, shape);
    Ok(())
}
