//! Features before a model sees them.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::{Rows, floats};
use crate::call::Call;
use crate::cast::{from_doubles, from_integers};
use crate::ops::gather::{along, position};
use crate::{Tensor, Value};

/// One number for each feature, or a single number for all features.
struct Each<T>(Vec<T>);

impl<T: Copy> Each<T> {
    /// # Errors
    /// E001 where there are neither as many as features, nor one.
    fn of(list: Vec<T>, width: usize, name: &str) -> Result<Self> {
        if [1, width].contains(&list.len()) {
            return Ok(Self(list));
        }
        Err(Error::format(format!("{name} has {} numbers for {width} features", list.len())))
    }

    /// Returns the number for an element, in rows with one element for each feature.
    fn at(&self, element: usize) -> T {
        self.0[element % self.0.len()]
    }
}

fn singles(call: &Call<'_>, shape: &[usize], values: Vec<f64>) -> Result<Vec<Value>> {
    call.room(shape, ElementType::F32)?;
    Ok(vec![from_doubles(values, shape.to_vec(), ElementType::F32)?.into()])
}

pub(super) fn scale(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let mut x = Rows::of(call)?;
    let list = |name: &str, default: f64| {
        let list = floats(call, name)?;
        Each::of(if list.is_empty() { vec![default] } else { list }, x.width, name)
    };
    let (offset, scale) = (list("offset", 0.0)?, list("scale", 1.0)?);
    for (at, x) in x.values.iter_mut().enumerate() {
        *x = (*x - offset.at(at)) * scale.at(at);
    }
    singles(call, call.tensor(0)?.shape(), x.values)
}

pub(super) fn normalise(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let mut x = Rows::of(call)?;
    let norm = call.text("norm", "MAX");
    let divisor: fn(&[f64]) -> f64 = match norm.as_str() {
        "MAX" => |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "L1" => |row| row.iter().map(|x| x.abs()).sum(),
        "L2" => |row| row.iter().map(|x| x * x).sum::<f64>().sqrt(),
        _ => return Err(Error::format(format!("unknown norm '{norm}'"))),
    };
    for row in x.values.chunks_mut(x.width.max(1)) {
        let divisor = divisor(row);
        if divisor != 0.0 {
            row.iter_mut().for_each(|x| *x /= divisor);
        }
    }
    singles(call, call.tensor(0)?.shape(), x.values)
}

pub(super) fn binarize(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let threshold = f64::from(call.float("threshold", 0.0));
    let x = call.tensor(0)?;
    call.room(x.shape(), ElementType::F64)?;
    let values = x.doubles()?.iter().map(|x| f64::from(u8::from(*x > threshold))).collect();
    Ok(vec![from_doubles(values, x.shape().to_vec(), x.element())?.into()])
}

pub(super) fn impute(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let shape = x.shape().to_vec();
    let width = shape.last().copied().unwrap_or(1).max(1);
    call.room(&shape, ElementType::F64)?;
    if x.element().is_float() {
        let name = "imputed_value_floats";
        let instead = floats(call, name)?;
        let replaced = f64::from(call.float("replaced_value_float", 0.0));
        let is = |x: f64| x == replaced || x.is_nan() && replaced.is_nan();
        let instead = Each::of(instead, width, name)?;
        let values = x.doubles()?.into_iter().enumerate();
        let values = values.map(|(at, x)| if is(x) { instead.at(at) } else { x }).collect();
        return Ok(vec![from_doubles(values, shape, x.element())?.into()]);
    }

    let name = "imputed_value_int64s";
    let instead = call.ints(name).unwrap_or_default();
    let replaced = call.int("replaced_value_int64", 0);
    let instead = Each::of(instead, width, name)?;
    let values = x.integers()?.into_iter().enumerate();
    let values = values.map(|(at, x)| if x == replaced { instead.at(at) } else { x }).collect();
    Ok(vec![from_integers(values, shape, x.element())?.into()])
}

/// Elements along the last dimension.
pub(super) fn extract(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, places) = (call.tensor(0)?, call.tensor(1)?.integers()?);
    let Some((&width, front)) = x.shape().split_last() else {
        return Err(Error::format("the input has no dimensions"));
    };
    let places = places.iter().map(|&at| position(at, width)).collect::<Result<Vec<_>>>()?;
    let mut shape = if front.is_empty() { vec![1] } else { front.to_vec() };
    shape.push(places.len());
    call.room_like(&shape, x)?;
    let picked = along(x, x.rank() - 1, &places, &[places.len()])?;
    Ok(vec![picked.reshaped(shape)?.into()])
}

/// Columns of all inputs side by side.
pub(super) fn join(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensors: Vec<&Tensor> =
        (0..call.inputs.len()).map(|at| call.tensor(at)).collect::<Result<_>>()?;
    let widths = call.ints("inputdimensions").unwrap_or_default();
    let mut parts = Vec::with_capacity(tensors.len());
    for (at, tensor) in tensors.iter().enumerate() {
        let (rows, width) = match *tensor.shape() {
            [width] => (1, width),
            [rows, width] => (rows, width),
            _ => {
                return Err(Error::format(format!(
                    "expected columns, found shape {:?}",
                    tensor.shape()
                )));
            }
        };
        if widths.get(at).is_some_and(|&said| usize::try_from(said) != Ok(width)) {
            return Err(Error::format(format!(
                "input {at} has {width} columns, which does not match inputdimensions"
            )));
        }
        parts.push((rows, width));
    }

    let rows = parts.first().map_or(0, |(rows, _)| *rows);
    if parts.iter().any(|(other, _)| *other != rows) {
        return Err(Error::format("the inputs have not as many rows as each other"));
    }
    let shape = [rows, parts.iter().map(|(_, width)| width).sum()];
    let mut out = Vec::with_capacity(call.room(&shape, ElementType::F64)?);
    let values = tensors.iter().map(|tensor| tensor.doubles()).collect::<Result<Vec<_>>>()?;
    for row in 0..rows {
        for (values, (_, width)) in values.iter().zip(&parts) {
            out.extend(&values[row * width..][..*width]);
        }
    }
    singles(call, &shape, out)
}
