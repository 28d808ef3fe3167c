//! Operators that make one element of many along some dimensions.

use super::call::{Call, Rule, axes, axis};
use super::movement::zeros;
use crate::gradient::{Rule as Gradient, Step, index};
use crate::{Dim, ValueId};

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

/// Gradient rules of the operators.
pub(super) const GRADIENTS: &[(&str, Gradient)] = &[
    ("ReduceL2", |step| {
        reduced(step, |step, wide, x| {
            // x / |x|; the sum is widened as the gradient is.
            let y = step.output(0)?;
            let y = spread(step, y, x)?;
            let direction = step.op("Div", &[x, y]);
            Ok(step.times(wide, direction))
        })
    }),
    ("ReduceMean", |step| {
        reduced(step, |step, wide, x| {
            let gone = gone(step, x)?.unwrap_or_default();
            let count = step.elements(x, &gone)?;
            Ok(step.op("Div", &[wide, count]))
        })
    }),
    ("ReduceSum", |step| reduced(step, |_, wide, _| Ok(wide))),
    ("ReduceSumSquare", |step| {
        reduced(step, |step, wide, x| {
            let two = step.number(2.0);
            let double = step.times(x, two);
            Ok(step.times(wide, double))
        })
    }),
    ("TopK", top_k_gradient),
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

/// Sets the output of an arg-min or arg-max: the positions of the extreme elements.
fn arg(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let mut gone = vec![false; shape.len()];
    gone[axis(call.int("axis").unwrap_or(0), shape.len())?] = true;
    let keep = call.int("keepdims") != Some(0);
    call.set_shape(0, without(shape, &gone, keep));
    Ok(())
}

/// Sets the outputs: the `k` greatest or smallest elements, and their positions.
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

/// Writes the gradient: the selected elements receive it, all others receive 0.
fn top_k_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let along = step.int("axis")?.unwrap_or(-1);
    let places = match step.output(1) {
        Ok(places) => places,
        Err(_) => step.again::<2>()[1],
    };
    let zeros = zeros(step, x)?;
    let add = [("axis", along.into()), ("reduction", "add".into())];
    let sums = step.with("ScatterElements", &[zeros, places, gradient], &add);
    step.give(0, sums);
    Ok(())
}

/// Writes the gradient of a reduction: `of` is applied to the gradient, which is broadcast to the
/// input's shape.
fn reduced(
    step: &mut Step<'_>,
    of: impl Fn(&mut Step<'_>, ValueId, ValueId) -> Result<ValueId, String>,
) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let kept = spread(step, gradient, x)?;
    let made = of(step, kept, x)?;
    // Sums pass the gradient on as it is: it still has to be widened.
    let shape = step.shape(x)?;
    let sizes: Option<Vec<i64>> = shape.iter().map(Dim::as_integer).collect();
    let sizes = match sizes {
        Some(sizes) => step.ints(&sizes),
        None => step.op("Shape", &[x]),
    };
    let wide = step.op("Expand", &[made, sizes]);
    step.give(0, wide);
    Ok(())
}

/// Returns the dimensions that are reduced, or `None` if the node reduces nothing.
fn gone(step: &Step<'_>, x: ValueId) -> Result<Option<Vec<usize>>, String> {
    let rank = step.rank(x)?;
    let list = step.list_or_input("axes", 1)?.unwrap_or_default();
    if list.is_empty() && step.int("noop_with_empty_axes")?.unwrap_or(0) != 0 {
        return Ok(None);
    }
    Ok(Some(if list.is_empty() { (0..rank).collect() } else { axes(&list, rank)? }))
}

/// Returns an output with dimensions of size 1 in place of the reduced dimensions of the input.
fn spread(step: &mut Step<'_>, value: ValueId, x: ValueId) -> Result<ValueId, String> {
    let gone = gone(step, x)?;
    match gone {
        Some(gone) if step.int("keepdims")? == Some(0) && !gone.is_empty() => {
            let axes: Vec<i64> = gone.into_iter().map(index).collect();
            let axes = step.ints(&axes);
            Ok(step.op("Unsqueeze", &[value, axes]))
        }
        _ => Ok(value),
    }
}
