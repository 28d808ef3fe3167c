//! Moving elements about, whatever their type.

use apr_core::{Error, Result};

use crate::Tensor;
use crate::matrix::{Lines, turned};
use crate::shape::{around, count, joined as joined_dims, strides, walk};
use crate::tensor::{Data, Element, with_storage};

/// The elements at the offsets that `walk` visits, of which there are `len`.
pub(crate) fn picked(data: &Data, len: usize, walk: impl FnOnce(&mut dyn FnMut(usize))) -> Data {
    fn pick<T: Element>(
        values: &[T],
        len: usize,
        walk: impl FnOnce(&mut dyn FnMut(usize)),
    ) -> Data {
        let mut out = crate::pool::with_capacity(len);
        walk(&mut |at| out.push(values[at].clone()));
        T::into_data(out)
    }
    with_storage!(data, values => pick(values, len, walk))
}

/// The elements in ranges of the same length, one range after the other.
pub(crate) fn picked_ranges(
    data: &Data,
    starts: impl ExactSizeIterator<Item = usize>,
    len: usize,
) -> Data {
    fn pick<T: Element>(
        values: &[T],
        starts: impl ExactSizeIterator<Item = usize>,
        len: usize,
    ) -> Data {
        let mut out = crate::pool::with_capacity(starts.len() * len);
        starts.for_each(|start| out.extend_from_slice(&values[start..start + len]));
        T::into_data(out)
    }
    with_storage!(data, values => pick(values, starts, len))
}

/// Dimension `i` of the result is dimension `order[i]`.
pub(crate) fn transposed(tensor: &Tensor, order: &[usize]) -> Result<Tensor> {
    let own = strides(tensor.shape());
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if sorted != (0..tensor.rank()).collect::<Vec<_>>() {
        return Err(Error::format(format!(
            "{order:?} is not a permutation of {} dimensions",
            tensor.rank()
        )));
    }

    let shape: Vec<_> = order.iter().map(|&dim| tensor.shape()[dim]).collect();
    let steps: Vec<_> = order.iter().map(|&dim| own[dim]).collect();
    let (sizes, steps) = joined_dims(&shape, &[steps]);
    let row = sizes.last().copied().unwrap_or(1);

    // Where the last dimension stays the last, whole rows are copied.
    let data = if steps[0].last().is_none_or(|&step| step == 1) && !tensor.is_empty() {
        let mut starts = Vec::with_capacity(tensor.len() / row);
        let outer = sizes.len().saturating_sub(1);
        walk(&sizes[..outer], [&steps[0][..outer]], |[at]| starts.push(at));
        picked_ranges(tensor.data(), starts.into_iter(), row)
    } else if let (Data::F32(values), false) = (tensor.data(), tensor.is_empty()) {
        Data::F32(turned_floats(values, &sizes, &steps[0]))
    } else {
        picked(tensor.data(), tensor.len(), |visit| walk(&sizes, [&steps[0]], |[at]| visit(at)))
    };

    tensor.like(shape, data)
}

/// Returns the elements in another order, in which neighbours are apart in the input. It transposes
/// squares of elements at a time.
fn turned_floats(values: &[f32], sizes: &[usize], steps: &[usize]) -> Vec<f32> {
    let mut out = crate::pool::any(values.len());
    let last = sizes.len() - 1;

    // The dimension whose neighbours lie together in the input, where there is one beside the last.
    let Some(near) = steps.iter().position(|&step| step == 1).filter(|&near| near < last) else {
        let mut next = out.iter_mut();
        walk(sizes, [steps], |[at]| {
            if let Some(out) = next.next() {
                *out = values[at];
            }
        });
        return out;
    };

    let own = strides(sizes);
    let others = |list: &[usize]| -> Vec<usize> {
        list.iter()
            .enumerate()
            .filter(|(dim, _)| *dim != near && *dim != last)
            .map(|(_, &item)| item)
            .collect()
    };

    walk(&others(sizes), [&others(steps), &others(&own)], |[from, to]| {
        let lines = Lines {
            values: &values[from..],
            count: sizes[last],
            step: steps[last],
            depth: sizes[near],
        };
        turned(lines, own[near], &mut out[to..]);
    });
    out
}

/// The part of `len` elements from `start` on, along an axis.
pub(crate) fn part(tensor: &Tensor, axis: usize, start: usize, len: usize) -> Result<Tensor> {
    let missing =
        || Error::format(format!("axis {axis} is not one of {} dimensions", tensor.rank()));
    let size = *tensor.shape().get(axis).ok_or_else(missing)?;
    if start.checked_add(len).is_none_or(|end| end > size) {
        return Err(Error::format(format!(
            "{len} elements from {start} on are more than the {size} of axis {axis}"
        )));
    }
    let (before, size, after) = around(tensor.shape(), axis);
    let mut shape = tensor.shape().to_vec();
    shape[axis] = len;
    let starts = (0..before).map(|outer| (outer * size + start) * after);
    tensor.like(shape, picked_ranges(tensor.data(), starts, len * after))
}

/// These parts along the first dimension, in this order.
pub(crate) fn parts_of(tensor: &Tensor, parts: &[usize]) -> Result<Tensor> {
    let sizes = tensor.shape();
    let Some((&count, rest)) =
        sizes.split_first().filter(|(count, _)| parts.iter().all(|part| part < *count))
    else {
        return Err(Error::format(format!("no parts {parts:?} of {sizes:?}")));
    };
    let each = tensor.len() / count.max(1);
    let starts = parts.iter().map(|part| part * each);
    tensor.like([&[parts.len()], rest].concat(), picked_ranges(tensor.data(), starts, each))
}

/// Tensors one after the other along an axis.
pub(crate) fn joined(tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
    // The first argument only says what the elements are kept as.
    fn join<T: Element>(_: &[T], tensors: &[&Tensor], before: usize, total: usize) -> Result<Data> {
        let mut out: Vec<T> = crate::pool::with_capacity(total);
        for outer in 0..before {
            for tensor in tensors {
                let values = tensor.values::<T>()?;
                let row = values.len() / before;
                out.extend_from_slice(&values[outer * row..(outer + 1) * row]);
            }
        }
        Ok(T::into_data(out))
    }

    let Some((first, rest)) = tensors.split_first() else {
        return Err(Error::format("nothing to concatenate"));
    };
    let mut shape = first.shape().to_vec();
    for other in rest {
        let same = other.rank() == shape.len()
            && other.element() == first.element()
            && (0..shape.len()).all(|dim| dim == axis || shape[dim] == other.shape()[dim]);
        if !same {
            let shapes: Vec<_> = tensors.iter().map(|tensor| tensor.shape()).collect();
            return Err(Error::format(format!(
                "tensors of shapes {shapes:?} can't be joined along axis {axis}"
            )));
        }
    }

    shape[axis] = tensors
        .iter()
        .try_fold(0_usize, |sum, tensor| sum.checked_add(tensor.shape()[axis]))
        .ok_or_else(|| Error::memory("the joined tensor does not fit the memory"))?;
    let before = count(&shape[..axis]);
    let total = tensors.iter().map(|tensor| tensor.len()).sum();
    let data = with_storage!(first.data(), values => join(values, tensors, before, total))?;
    first.like(shape, data)
}

/// Tensors of one shape under a new dimension.
pub(crate) fn stacked(tensors: &[Tensor], axis: usize) -> Result<Tensor> {
    let mut deeper = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let mut shape = tensor.shape().to_vec();
        if axis > shape.len() {
            return Err(Error::format(format!(
                "axis {axis} is not one of {} dimensions",
                shape.len() + 1
            )));
        }
        shape.insert(axis, 1);
        deeper.push(tensor.clone().reshaped(shape)?);
    }
    joined(&deeper.iter().collect::<Vec<_>>(), axis)
}

/// A tensor of one value, of the type and kind that `of` has; the value is the zero of numbers, the
/// empty text.
pub(crate) fn filled_like(of: &Tensor, shape: Vec<usize>) -> Result<Tensor> {
    fn fill<T: Element>(_: &[T], len: usize) -> Data {
        T::into_data(vec![T::default(); len])
    }
    let len = count(&shape);
    of.like(shape, with_storage!(of.data(), values => fill(values, len)))
}
