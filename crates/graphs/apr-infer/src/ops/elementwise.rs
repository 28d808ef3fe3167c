//! Element by element, with stretched shapes.

use apr_core::{Error, Result};

use crate::call::Call;
use crate::shape::{broadcast, count, joined, stretched, walk};
use crate::tensor::{Element, Tensor};
use crate::workers::in_pieces;

/// Elements that a piece of work makes.
const ELEMENTS_AT_ONCE: usize = 1 << 15;

/// Changes every element, in place if the tensor is not used elsewhere.
pub(crate) fn change<T: Element + Copy>(
    call: &Call<'_>,
    tensor: Tensor,
    change: impl Fn(T) -> T + Sync,
) -> Result<Tensor> {
    change_rows(call, tensor, |values| values.iter_mut().for_each(|value| *value = change(*value)))
}

/// Changes pieces of the elements, which may be cut anywhere.
pub(crate) fn change_rows<T: Element + Copy>(
    call: &Call<'_>,
    tensor: Tensor,
    change: impl Fn(&mut [T]) + Sync,
) -> Result<Tensor> {
    call.room(tensor.shape(), tensor.element())?;
    let (shape, element) = (tensor.shape().to_vec(), tensor.element());
    let mut values = tensor.into_values::<T>()?;
    in_pieces(call.workers(), &mut values, ELEMENTS_AT_ONCE, |_, values| change(values));
    Tensor::with_type(element, shape, T::into_data(values))
}

/// Joins the elements of two tensors; returns the stretched shape and the results.
pub(crate) fn zip<A: Copy, B: Copy, O>(
    call: &Call<'_>,
    (a_shape, a): (&[usize], &[A]),
    (b_shape, b): (&[usize], &[B]),
    join: impl Fn(A, B) -> O,
) -> Result<(Vec<usize>, Vec<O>)>
where
    O: 'static,
{
    let shape = broadcast(&[a_shape, b_shape])?;
    let total = call.room(&shape, apr_graph::ElementType::F64)?;
    let mut out = crate::pool::with_capacity(total);
    if total == 0 {
        return Ok((shape, out));
    }

    let (sizes, steps) = joined(&shape, &[stretched(a_shape, &shape), stretched(b_shape, &shape)]);
    let (outer, length) =
        sizes.split_last().map_or((&[][..], 1), |(length, outer)| (outer, *length));
    let last = |steps: &[usize]| steps.last().copied().unwrap_or(0);
    let inner = (last(&steps[0]), last(&steps[1]));
    let cut = |steps: &'_ [usize]| steps[..outer.len()].to_vec();

    // Loops of their own for the usual steps, which the compiler turns into vectors.
    walk(outer, [&cut(&steps[0]), &cut(&steps[1])], |[from_a, from_b]| match inner {
        (1, 1) => {
            let pairs = a[from_a..from_a + length].iter().zip(&b[from_b..from_b + length]);
            out.extend(pairs.map(|(a, b)| join(*a, *b)));
        }
        (1, 0) => {
            let b = b[from_b];
            out.extend(a[from_a..from_a + length].iter().map(|a| join(*a, b)));
        }
        (0, 1) => {
            let a = a[from_a];
            out.extend(b[from_b..from_b + length].iter().map(|b| join(a, *b)));
        }
        (step_a, step_b) => {
            out.extend(
                (0..length).map(|at| join(a[from_a + at * step_a], b[from_b + at * step_b])),
            );
        }
    });
    Ok((shape, out))
}

/// Combines the elements of a tensor in place with the elements of another. The other is stretched
/// along its first dimensions.
pub(crate) fn zip_in_place(
    call: &Call<'_>,
    tensor: Tensor,
    other: &[f32],
    join: impl Fn(f32, f32) -> f32 + Sync,
) -> Result<Tensor> {
    let shape = tensor.shape().to_vec();
    let mut values = tensor.into_values::<f32>()?;
    if let &[one] = other {
        in_pieces(call.workers(), &mut values, ELEMENTS_AT_ONCE, |_, values| {
            values.iter_mut().for_each(|value| *value = join(*value, one));
        });
    } else if !other.is_empty() {
        // Pieces are whole rows: each begins at the first element of `other`.
        let rows = (ELEMENTS_AT_ONCE / other.len()).max(1);
        in_pieces(call.workers(), &mut values, rows * other.len(), |_, values| {
            for values in values.chunks_exact_mut(other.len()) {
                values
                    .iter_mut()
                    .zip(other)
                    .for_each(|(value, other)| *value = join(*value, *other));
            }
        });
    }

    Tensor::new(shape, values)
}

/// Returns `true` if a tensor is stretched to a shape by repeating all of it.
pub(crate) fn repeats_within(shape: &[usize], target: &[usize]) -> bool {
    let first = shape.iter().position(|&size| size != 1).unwrap_or(shape.len());
    target.ends_with(&shape[first..]) && shape.len() <= target.len()
}

/// A tensor stretched to a shape.
///
/// # Errors
/// E001 where NumPy's rule leads to another shape.
pub(crate) fn expanded(tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if tensor.shape() == shape {
        return Ok(tensor.clone());
    }
    if broadcast(&[tensor.shape(), shape])? != shape {
        return Err(Error::format(format!("{:?} can't be stretched to {shape:?}", tensor.shape())));
    }
    let steps = stretched(tensor.shape(), shape);
    let data = crate::moving::picked(tensor.data(), count(shape), |visit| {
        walk(shape, [&steps], |[at]| visit(at));
    });
    tensor.like(shape.to_vec(), data)
}
