//! Borders around tensors.

use apr_core::{Error, Result};

use super::layout::list;
use crate::call::Call;
use crate::operator::{Operator, moves};
use crate::shape::{axis, strides};
use crate::tensor::{Data, Element, with_storage};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[moves("Pad", pad)];

/// The place in the input that a place of the output has its element from; `None` for the constant.
fn source(at: i64, size: usize, mode: &str) -> Option<usize> {
    let size = size as i64;
    let inside = (0..size).contains(&at);
    let place = match mode {
        _ if inside => at,
        _ if size == 0 => return None,
        "edge" => at.clamp(0, size - 1),
        "wrap" => at.rem_euclid(size),
        "reflect" if size == 1 => 0,
        "reflect" => {
            // Pads may be longer than the input: then it goes back and forth.
            let around = at.rem_euclid(2 * (size - 1));
            around.min(2 * (size - 1) - around)
        }
        _ => return None,
    };

    usize::try_from(place).ok()
}

fn pad(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let mode = call.text("mode", "constant");
    if !["constant", "reflect", "edge", "wrap"].contains(&mode.as_str()) {
        return Err(Error::format(format!("unknown padding mode '{mode}'")));
    }

    let pads = list(call, 1, "pads")?.ok_or_else(|| Error::format("missing pads"))?;
    let tensor = call.tensor(0)?;
    let rank = tensor.rank();
    let axes = match call.optional(3)? {
        Some(axes) => {
            axes.integers()?.into_iter().map(|at| axis(at, rank)).collect::<Result<Vec<_>>>()?
        }
        None => (0..rank).collect(),
    };

    if pads.len() != 2 * axes.len() {
        return Err(Error::format(format!("{} pads do not fit {} axes", pads.len(), axes.len())));
    }

    let (mut before, mut shape) = (vec![0_i64; rank], tensor.shape().to_vec());
    for (number, &at) in axes.iter().enumerate() {
        let (front, back) = (pads[number], pads[axes.len() + number]);

        // Pads may be negative: they cut off.
        let size = (shape[at] as i64).checked_add(front).and_then(|size| size.checked_add(back));
        let size = size.and_then(|size| usize::try_from(size).ok());
        shape[at] =
            size.ok_or_else(|| Error::format(format!("pads {front} and {back} leave no size")))?;
        before[at] = front;
    }

    let value = constant(call, tensor)?;
    let total = call.room_like(&shape, tensor)?.max(call.room_like(&shape, &value)?);

    // For each dimension: where the elements of each place come from, as an offset.
    for &size in &shape {
        call.room_for(&[size], size_of::<Option<usize>>() as u64)?;
    }
    let steps = strides(tensor.shape());
    let sources: Vec<Vec<Option<usize>>> = (0..rank)
        .map(|dim| {
            let of = |at: usize| {
                source((at as i64).saturating_sub(before[dim]), tensor.shape()[dim], &mode)
            };
            (0..shape[dim]).map(|at| of(at).map(|at| at * steps[dim])).collect()
        })
        .collect();
    let data = with_storage!(tensor.data(), values => padded(values, &value, &sources, total))?;
    Ok(vec![tensor.like(shape, data)?.into()])
}

/// The value of the border.
fn constant(call: &Call<'_>, tensor: &Tensor) -> Result<Tensor> {
    match call.optional(2)? {
        Some(value) if value.len() == 1 && value.element() == tensor.element() => Ok(value.clone()),
        Some(value) if value.is_empty() => crate::moving::filled_like(tensor, vec![1]),
        Some(_) => Err(Error::format("the value of the border does not fit the input")),
        None if tensor.element() == apr_graph::ElementType::Text => {
            Ok(Tensor::row(vec![String::new()]))
        }
        None => crate::cast::from_floats(vec![call.float("value", 0.0)], vec![1], tensor.element()),
    }
}

fn padded<T: Element>(
    values: &[T],
    border: &Tensor,
    sources: &[Vec<Option<usize>>],
    total: usize,
) -> Result<Data> {
    let border = &border.values::<T>()?[0];
    let mut out = Vec::with_capacity(total);
    let Some((inner, outer)) = sources.split_last() else {
        return Ok(T::into_data(values.to_vec()));
    };
    let lines = outer.iter().map(Vec::len).product::<usize>();
    for line in 0..lines {
        let mut rest = line;
        let mut start = Some(0);
        for places in outer.iter().rev() {
            start = start.and_then(|sum: usize| places[rest % places.len()].map(|at| sum + at));
            rest /= places.len();
        }
        let of = |at: &Option<usize>| {
            start.and_then(|start| at.map(|at| &values[start + at])).unwrap_or(border).clone()
        };
        out.extend(inner.iter().map(of));
    }

    Ok(T::into_data(out))
}

#[cfg(test)]
mod tests {
    use super::source;

    #[test]
    fn borders_come_from_where_numpy_takes_them() {
        let places = |mode| (-3..6).map(|at| source(at, 3, mode)).collect::<Vec<_>>();
        assert_eq!(places("edge"), [0, 0, 0, 0, 1, 2, 2, 2, 2].map(Some));
        assert_eq!(places("reflect"), [1, 2, 1, 0, 1, 2, 1, 0, 1].map(Some));
        assert_eq!(places("wrap"), [0, 1, 2, 0, 1, 2, 0, 1, 2].map(Some));
        assert_eq!(source(-1, 3, "constant"), None);
    }
}
