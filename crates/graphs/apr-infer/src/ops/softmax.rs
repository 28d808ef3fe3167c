//! Softmax and its relatives.

use apr_core::{Error, Result};

use super::real::Real;
use super::vector::exp_and_sum;
use crate::call::Call;
use crate::moving::transposed;
use crate::operator::{Operator, computes};
use crate::shape::{axis, count};
use crate::tensor::{Data, Element};
use crate::workers::in_pieces;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("Softmax", |call| flat(call, single_softmax_row, softmax_row::<f64>)),
    computes("Softmax", |call| along(call, single_softmax_row, softmax_row::<f64>)).since(13),
    computes("LogSoftmax", |call| flat(call, log_softmax_row::<f32>, log_softmax_row::<f64>)),
    computes("LogSoftmax", |call| along(call, log_softmax_row::<f32>, log_softmax_row::<f64>))
        .since(13),
    computes("Hardmax", |call| flat(call, hardmax_row::<f32>, hardmax_row::<f64>)),
    computes("Hardmax", |call| along(call, hardmax_row::<f32>, hardmax_row::<f64>)).since(13),
];

fn max<R: Real>(row: &[R]) -> R {
    row.iter().fold(-R::INFINITE, |max, &value| if value > max { value } else { max })
}

/// [`softmax_row`] of single precision.
pub(super) fn single_softmax_row(row: &mut [f32]) {
    let max = lanes_max(row);
    let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let scale = 1.0 / exp_and_sum(row, max);
    row.iter_mut().for_each(|value| *value *= scale);
}

/// The largest element, in lanes.
fn lanes_max(row: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut max = [f32::NEG_INFINITY; LANES];
    let (groups, rest) = row.as_chunks::<LANES>();
    for group in groups {
        for lane in 0..LANES {
            max[lane] = if group[lane] > max[lane] { group[lane] } else { max[lane] };
        }
    }
    rest.iter().chain(&max).copied().fold(f32::NEG_INFINITY, f32::max)
}

fn softmax_row<R: Real>(row: &mut [R]) {
    let max = max(row);
    // Where everything is masked out, nothing is more likely than anything else, and the sum is 0.
    let max = if max == -R::INFINITE { R::ZERO } else { max };
    let mut sum = R::ZERO;
    for value in row.iter_mut() {
        *value = (*value - max).exp();
        sum += *value;
    }
    let scale = R::ONE / sum;
    row.iter_mut().for_each(|value| *value = *value * scale);
}

fn log_softmax_row<R: Real>(row: &mut [R]) {
    let max = max(row);
    let mut sum = R::ZERO;
    row.iter().for_each(|&value| sum += (value - max).exp());
    let offset = max + sum.ln();
    row.iter_mut().for_each(|value| *value = *value - offset);
}

fn hardmax_row<R: Real>(row: &mut [R]) {
    let max = max(row);
    // Of equal elements the first counts (ONNX's `Hardmax`).
    let first = row.iter().position(|&value| value == max);
    row.iter_mut()
        .enumerate()
        .for_each(|(at, value)| *value = if Some(at) == first { R::ONE } else { R::ZERO });
}

/// Before version 13: over all dimensions from the axis on.
fn flat(call: &mut Call<'_>, single: fn(&mut [f32]), double: fn(&mut [f64])) -> Result<Vec<Value>> {
    let at = call.int("axis", 1);
    let tensor = call.take(0)?;
    let at = if at == tensor.rank() as i64 { tensor.rank() } else { axis(at, tensor.rank())? };
    let len = count(&tensor.shape()[at..]);
    Ok(vec![rows(call, tensor, len, single, double)?.into()])
}

fn along(
    call: &mut Call<'_>,
    single: fn(&mut [f32]),
    double: fn(&mut [f64]),
) -> Result<Vec<Value>> {
    let at = call.int("axis", -1);
    let tensor = call.take(0)?;
    if tensor.rank() == 0 {
        return Ok(vec![rows(call, tensor, 1, single, double)?.into()]);
    }

    let at = axis(at, tensor.rank())?;
    let (len, last) = (tensor.shape()[at], tensor.rank() - 1);
    if at == last {
        return Ok(vec![rows(call, tensor, len, single, double)?.into()]);
    }

    let mut order: Vec<_> = (0..tensor.rank()).collect();
    order.swap(at, last);
    let result = rows(call, transposed(&tensor, &order)?, len, single, double)?;
    Ok(vec![transposed(&result, &order)?.into()])
}

/// Shares along the last dimension.
pub(super) fn softmax(call: &Call<'_>, tensor: Tensor) -> Result<Tensor> {
    let len = tensor.shape().last().copied().unwrap_or(1);
    rows(call, tensor, len, single_softmax_row, softmax_row::<f64>)
}

/// Changes rows of `len` elements.
pub(super) fn rows(
    call: &Call<'_>,
    tensor: Tensor,
    len: usize,
    single: fn(&mut [f32]),
    double: fn(&mut [f64]),
) -> Result<Tensor> {
    fn each<R: Element>(
        call: &Call<'_>,
        tensor: Tensor,
        len: usize,
        row: fn(&mut [R]),
    ) -> Result<Tensor> {
        let shape = tensor.shape().to_vec();
        let mut values = tensor.into_values::<R>()?;
        if len > 0 {
            let piece = len * ((1 << 14) / len).max(1);
            in_pieces(call.workers(), &mut values, piece, |_, rows| {
                rows.chunks_mut(len).for_each(row);
            });
        }
        Tensor::new(shape, values)
    }

    match tensor.data() {
        Data::F32(_) => each(call, tensor, len, single),
        Data::F64(_) => each(call, tensor, len, double),
        _ => Err(Error::format(format!("floats are expected, not {}", tensor.element()))),
    }
}
