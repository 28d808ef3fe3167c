//! Many elements into one, along axes.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::layout::list;
use crate::call::Call;
use crate::convert::Number;
use crate::moving::transposed;
use crate::operator::{Operator, computes};
use crate::shape::{axes, axis, count};
use crate::tensor::{Data, with_numbers};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("ReduceSum", |call| reduce(call, Reduction::Sum)),
    computes("ReduceMean", |call| reduce(call, Reduction::Mean)),
    computes("ReduceMax", |call| reduce(call, Reduction::Max)),
    computes("ReduceMin", |call| reduce(call, Reduction::Min)),
    computes("ReduceProd", |call| reduce(call, Reduction::Product)),
    computes("ReduceL1", |call| reduce(call, Reduction::L1)),
    computes("ReduceL2", |call| reduce(call, Reduction::L2)),
    computes("ReduceLogSum", |call| reduce(call, Reduction::LogSum)),
    computes("ReduceLogSumExp", |call| reduce(call, Reduction::LogSumExp)),
    computes("ReduceSumSquare", |call| reduce(call, Reduction::SumSquare)),
    computes("ArgMax", |call| arg(call, true)),
    computes("ArgMin", |call| arg(call, false)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    Sum,
    Mean,
    Max,
    Min,
    Product,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

impl Reduction {
    fn of_floats(self, values: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
        // The sum of nothing is negative zero otherwise.
        let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() + 0.0;
        match self {
            Self::Sum => sum(&mut values.clone()),
            Self::Mean => values.clone().sum::<f64>() / values.len() as f64,
            Self::Max => values.fold(f64::NEG_INFINITY, max_or_nan),
            Self::Min => -values.fold(f64::NEG_INFINITY, |a, b| max_or_nan(a, -b)),
            Self::Product => values.product(),
            Self::L1 => sum(&mut values.map(f64::abs)),
            Self::L2 => sum(&mut values.map(|x| x * x)).sqrt(),
            Self::LogSum => libm::log(sum(&mut values.clone())),
            Self::SumSquare => sum(&mut values.map(|x| x * x)),
            Self::LogSumExp => {
                let max = Self::Max.of_floats(values.clone());

                // Infinity minus infinity would be no number.
                let offset = if max.is_finite() { max } else { 0.0 };
                libm::log(sum(&mut values.map(|x| libm::exp(x - offset)))) + offset
            }
        }
    }

    /// Reduces integers exactly if the result is exact. Other results are computed as floats and
    /// truncated.
    fn of_integers(self, values: &[i64]) -> i64 {
        match self {
            Self::Sum => values.iter().fold(0, |a, b| i64::wrapping_add(a, *b)),
            Self::Max => values.iter().copied().max().unwrap_or(i64::MIN),
            Self::Min => values.iter().copied().min().unwrap_or(i64::MAX),
            Self::Product => values.iter().fold(1, |a, b| i64::wrapping_mul(a, *b)),
            Self::L1 => values.iter().fold(0, |a, b| i64::wrapping_add(a, b.wrapping_abs())),
            Self::SumSquare => {
                values.iter().fold(0, |a, b| i64::wrapping_add(a, b.wrapping_mul(*b)))
            }
            _ => self.of_floats(values.iter().map(|&value| value as f64)) as i64,
        }
    }
}

/// Returns the larger of two numbers, or NaN if either is NaN.
fn max_or_nan(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// A tensor with some axes moved to the end, in order.
pub(super) fn moved_last(tensor: &Tensor, last: &[usize]) -> Result<Tensor> {
    let first = (0..tensor.rank()).filter(|dim| !last.contains(dim));
    let order: Vec<_> = first.chain(last.iter().copied()).collect();
    if order.windows(2).all(|pair| pair[0] < pair[1]) {
        return Ok(tensor.clone());
    }
    transposed(tensor, &order)
}

fn reduce(call: &mut Call<'_>, kind: Reduction) -> Result<Vec<Value>> {
    let wanted = list(call, 1, "axes")?.unwrap_or_default();
    let keeps = call.flag("keepdims", true);
    let tensor = call.tensor(0)?;
    if wanted.is_empty() && call.flag("noop_with_empty_axes", false) {
        // Nothing is joined, but squares and logarithms are still taken of each element.
        let shape = tensor.shape().to_vec();
        let alone = tensor.clone().reshaped([&shape[..], &[1]].concat())?;
        return Ok(vec![rows(&alone, 1, shape, kind)?.into()]);
    }

    let gone = if wanted.is_empty() {
        (0..tensor.rank()).collect()
    } else {
        axes(&wanted, tensor.rank())?
    };
    let len = gone.iter().map(|&dim| tensor.shape()[dim]).product::<usize>();
    let shape: Vec<_> = (0..tensor.rank())
        .filter(|dim| keeps || !gone.contains(dim))
        .map(|dim| if gone.contains(&dim) { 1 } else { tensor.shape()[dim] })
        .collect();
    call.room(&shape, tensor.element())?;
    Ok(vec![rows(&moved_last(tensor, &gone)?, len, shape, kind)?.into()])
}

/// Reduces rows of `len` elements.
fn rows(tensor: &Tensor, len: usize, shape: Vec<usize>, kind: Reduction) -> Result<Tensor> {
    let count = count(&shape);
    let range = |row: usize| row * len..(row + 1) * len;
    match tensor.data() {
        Data::F32(values) => {
            let of = |row| {
                kind.of_floats(values[range(row)].iter().map(|&value| f64::from(value))) as f32
            };
            Tensor::new(shape, (0..count).map(of).collect())
        }
        Data::F64(values) => Tensor::new(
            shape,
            (0..count).map(|row| kind.of_floats(values[range(row)].iter().copied())).collect(),
        ),
        Data::Text(_) => Err(Error::format("numbers are expected, not texts")),
        _ => {
            let values = tensor.integers()?;

            // Of no values ONNX makes the limit of the type.
            let extreme = matches!(kind, Reduction::Max | Reduction::Min) && len == 0;
            let found = (0..count).map(|row| kind.of_integers(&values[range(row)])).collect();
            if extreme {
                limits(tensor.element(), kind, shape)
            } else {
                crate::cast::from_integers(found, shape, tensor.element())
            }
        }
    }
}

/// Returns the maximum or minimum of no integers.
fn limits(element: ElementType, kind: Reduction, shape: Vec<usize>) -> Result<Tensor> {
    let bits = element.bits() as u32;
    let unsigned =
        matches!(element, ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64);
    let value = match (element, kind) {
        (ElementType::Bool, Reduction::Min) => 1,
        (ElementType::Bool, _) => 0,
        (_, Reduction::Min) if unsigned => {
            u64::MAX.checked_shr(64 - bits).unwrap_or(0).cast_signed()
        }
        (_, Reduction::Min) => i64::MAX >> (64 - bits),
        _ if unsigned => 0,
        _ => i64::MIN >> (64 - bits),
    };
    let all = vec![value; count(&shape)];
    crate::cast::from_integers(all, shape, element)
}

fn arg(call: &mut Call<'_>, largest: bool) -> Result<Vec<Value>> {
    let (last, keeps) = (call.flag("select_last_index", false), call.flag("keepdims", true));
    let tensor = call.tensor(0)?;
    let at = axis(call.int("axis", 0), tensor.rank())?;
    let len = tensor.shape()[at];
    if len == 0 {
        return Err(Error::format("no element to reduce"));
    }

    let moved = moved_last(tensor, &[at])?;
    let found: Vec<i64> = with_numbers!(moved.data(), values => {
        values.chunks(len).map(|row| best(row, largest, last)).collect()
    }, Vec::new());
    let mut shape = tensor.shape().to_vec();
    if keeps {
        shape[at] = 1;
    } else {
        shape.remove(at);
    }

    Ok(vec![Tensor::new(shape, found)?.into()])
}

fn best<T: Number>(row: &[T], largest: bool, last: bool) -> i64 {
    let mut best = 0;
    for at in 1..row.len() {
        let (new, old) = (row[at], row[best]);
        let is_better = if largest { new > old } else { new < old };
        if is_better || last && new == old {
            best = at;
        }
    }
    best as i64
}
