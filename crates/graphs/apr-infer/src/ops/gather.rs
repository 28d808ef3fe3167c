//! Elements by their positions.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::call::Call;
use crate::matrix::Rows;
use crate::moving::{picked, picked_ranges};
use crate::operator::{Operator, moves};
use crate::shape::{around, axis, count, strides, walk};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    moves("Gather", gather).decodes(),
    moves("GatherElements", gather_elements),
    moves("GatherND", gather_nd),
];

/// A position counted from the front; negative ones count from the back.
pub(super) fn position(index: i64, size: usize) -> Result<usize> {
    let from_front = if index < 0 { index + size as i64 } else { index };
    let outside = || Error::format(format!("index {index} is outside of {size} elements"));
    usize::try_from(from_front).ok().filter(|&at| at < size).ok_or_else(outside)
}

/// The slices at `positions` along an axis, which becomes the dimensions `inner`.
pub(super) fn along(
    tensor: &Tensor,
    axis: usize,
    positions: &[usize],
    inner: &[usize],
) -> Result<Tensor> {
    let (before, size, after) = around(tensor.shape(), axis);
    let shape = [&tensor.shape()[..axis], inner, &tensor.shape()[axis + 1..]].concat();
    let starts: Vec<_> = (0..before)
        .flat_map(|outer| positions.iter().map(move |at| (outer * size + at) * after))
        .collect();
    tensor.like(shape, picked_ranges(tensor.data(), starts.into_iter(), after))
}

fn gather(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let indices = call.decoded(1)?;
    let at = call.int("axis", 0);
    if let Value::Weight(handle) = call.value(0)? {
        if let (Some(matrix), 0) =
            (call.matrix(handle).filter(|matrix| !matrix.is_transposed()), at)
        {
            let mut shape = indices.shape().to_vec();
            shape.push(matrix.row_len());
            let mut values = Vec::with_capacity(call.room(&shape, ElementType::F32)?);
            let mut scratch = Vec::new();

            // Row by row, so that the embeddings of a vocabulary are never decoded as a whole.
            for index in indices.integers()? {
                let row = position(index, matrix.depth())?;
                matrix.decode(row..row + 1, 0, matrix.row_len(), &mut scratch, &mut values)?;
            }
            return Ok(vec![crate::cast::from_floats(values, shape, handle.element)?.into()]);
        }
        return Ok(vec![gathered(call, &call.decoded(0)?, &indices, at)?.into()]);
    }

    let tensor = call.tensor(0)?;
    Ok(vec![gathered(call, tensor, &indices, at)?.into()])
}

fn gathered(call: &Call<'_>, tensor: &Tensor, indices: &Tensor, at: i64) -> Result<Tensor> {
    let at = axis(at, tensor.rank())?;
    let size = tensor.shape()[at];
    let positions = indices
        .integers()?
        .into_iter()
        .map(|index| position(index, size))
        .collect::<Result<Vec<_>>>()?;
    let shape = [&tensor.shape()[..at], indices.shape(), &tensor.shape()[at + 1..]].concat();
    call.room_like(&shape, tensor)?;
    along(tensor, at, &positions, indices.shape())
}

fn gather_elements(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (tensor, indices) = (call.tensor(0)?, call.tensor(1)?);
    let at = axis(call.int("axis", 0), tensor.rank())?;
    call.room_like(indices.shape(), tensor)?;
    let offsets = element_offsets(tensor.shape(), indices, at)?;
    let data = picked(tensor.data(), offsets.len(), |visit| {
        offsets.iter().for_each(|&offset| visit(offset));
    });
    Ok(vec![tensor.like(indices.shape().to_vec(), data)?.into()])
}

/// Returns the offsets of the elements that indices select along an axis. In the other dimensions,
/// each index keeps its own place.
pub(super) fn element_offsets(
    shape: &[usize],
    indices: &Tensor,
    axis: usize,
) -> Result<Vec<usize>> {
    let fits = indices.rank() == shape.len()
        && (0..shape.len()).all(|dim| dim == axis || indices.shape()[dim] <= shape[dim]);
    if !fits {
        return Err(Error::format(format!(
            "indices of shape {:?} do not fit {shape:?}",
            indices.shape()
        )));
    }

    let mut steps = strides(shape);

    // Along the axis, the index alone says where the element is.
    let step = std::mem::replace(&mut steps[axis], 0);
    let values = indices.integers()?;
    let mut offsets = Vec::with_capacity(values.len());
    walk(indices.shape(), [&steps], |[at]| offsets.push(at));
    for (offset, index) in offsets.iter_mut().zip(values) {
        *offset += position(index, shape[axis])? * step;
    }

    Ok(offsets)
}

/// Returns the offsets of the slices that rows of indices select, and the length of a slice. The
/// first `batch` dimensions are common.
pub(super) fn slice_offsets(
    shape: &[usize],
    indices: &Tensor,
    batch: usize,
) -> Result<(Vec<usize>, usize)> {
    let wrong =
        || Error::format(format!("indices of shape {:?} do not fit {shape:?}", indices.shape()));
    let (&depth, outer) = indices.shape().split_last().ok_or_else(wrong)?;
    if batch > outer.len() || batch + depth > shape.len() || shape[..batch] != outer[..batch] {
        return Err(wrong());
    }

    let steps = strides(shape);
    let len = count(&shape[batch + depth..]);
    let per_batch = count(&outer[batch..]);
    let whole = count(&shape[batch..]);
    let mut starts = Vec::with_capacity(count(outer));
    let values = indices.integers()?;
    for row in 0..count(outer) {
        let mut start = row.checked_div(per_batch).unwrap_or(0) * whole;
        for at in 0..depth {
            start += position(values[row * depth + at], shape[batch + at])? * steps[batch + at];
        }
        starts.push(start);
    }

    Ok((starts, len))
}

fn gather_nd(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (tensor, indices) = (call.tensor(0)?, call.tensor(1)?);
    let batch = usize::try_from(call.int("batch_dims", 0))
        .map_err(|_| Error::format("batch_dims is negative"))?;
    let (starts, len) = slice_offsets(tensor.shape(), indices, batch)?;
    let depth = indices.shape().last().copied().unwrap_or(0);
    let shape = [&indices.shape()[..indices.rank() - 1], &tensor.shape()[batch + depth..]].concat();
    call.room_like(&shape, tensor)?;
    Ok(vec![tensor.like(shape, picked_ranges(tensor.data(), starts.into_iter(), len))?.into()])
}
