//! Tensors out of nothing, or nearly: ranges, fillings, one-hot rows, places.

use apr_core::{Error, Result};
use apr_graph::{AttributeValue, ElementType};

use super::cast::element_of;
use super::layout::tensor_attribute;
use crate::call::Call;
use crate::cast::{from_doubles, from_floats, from_integers};
use crate::convert::Number;
use crate::operator::{Operator, moves};
use crate::shape::{axis, count, sizes, strides};
use crate::tensor::{Data, Element, with_numbers, with_storage};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    moves("Constant", constant),
    moves("ConstantOfShape", constant_of_shape),
    moves("Range", range),
    moves("EyeLike", eye),
    moves("OneHot", one_hot),
    moves("NonZero", non_zero),
    moves("Dropout", dropout),
];

/// Drops elements at random, as in training, and scales the kept elements to compensate.
fn dropped(call: &mut Call<'_>, x: &Tensor, ratio: f64) -> Result<Vec<Value>> {
    if !(0.0..1.0).contains(&ratio) {
        return Err(Error::format(format!("a ratio of {ratio} is not from 0 to below 1")));
    }
    call.room(x.shape(), ElementType::F64)?;
    let kept = super::random::kept(call, x.len(), ratio)?;
    let of = |(value, kept): (f64, &u8)| if *kept == 1 { value / (1.0 - ratio) } else { 0.0 };
    let values = x.doubles()?.into_iter().zip(&kept).map(of).collect();
    let y = from_doubles(values, x.shape().to_vec(), x.element())?;
    Ok(vec![y.into(), Tensor::truths(x.shape().to_vec(), kept)?.into()])
}

fn constant(call: &mut Call<'_>) -> Result<Vec<Value>> {
    if let Some(tensor) = tensor_attribute(call, "value")? {
        return Ok(vec![tensor.into()]);
    }

    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let names =
        ["value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings"];
    let found = names.iter().find_map(|name| call.attribute(name));
    let tensor = match found {
        Some(AttributeValue::Float(value)) => Tensor::scalar(*value),
        Some(AttributeValue::Floats(values)) => Tensor::row(values.clone()),
        Some(AttributeValue::Int(value)) => Tensor::scalar(*value),
        Some(AttributeValue::Ints(values)) => Tensor::row(values.clone()),
        Some(AttributeValue::Text(bytes)) => Tensor::scalar(text(bytes)),
        Some(AttributeValue::Texts(texts)) => Tensor::row(texts.iter().map(text).collect()),
        _ => return Err(Error::version("unsupported kind of constant")),
    };

    Ok(vec![tensor.into()])
}

fn constant_of_shape(call: &mut Call<'_>) -> Result<Vec<Value>> {
    fn fill<T: Element>(values: &[T], len: usize) -> Data {
        T::into_data(vec![values[0].clone(); len])
    }
    let shape = sizes(&call.tensor(0)?.integers()?)?;
    let value = tensor_attribute(call, "value")?.unwrap_or_else(|| Tensor::scalar(0.0_f32));
    if value.len() != 1 {
        return Err(Error::format("one value is expected"));
    }
    let len = call.room_like(&shape, &value)?;
    let data = with_storage!(value.data(), values => fill(values, len));
    Ok(vec![value.like(shape, data)?.into()])
}

fn range(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let element = call.tensor(0)?.element();
    let number = |position| call.tensor(position).and_then(Tensor::number);
    if element.is_float() {
        let (start, limit, delta) = (number(0)?, number(1)?, number(2)?);
        let len = ((limit - start) / delta).ceil();
        if !len.is_finite() {
            return Err(Error::format("the range has no end"));
        }
        let len = call.room(&[len.max(0.0) as usize], element)?;
        let values = if element == ElementType::F32 {
            (0..len).map(|at| f64::from(start as f32 + at as f32 * delta as f32)).collect()
        } else {
            (0..len).map(|at| start + at as f64 * delta).collect()
        };
        return Ok(vec![from_doubles(values, vec![len], element)?.into()]);
    }

    let [start, limit, delta] =
        [0, 1, 2].map(|position| call.tensor(position).and_then(Tensor::integer));

    // The ends may be nearly 2^64 apart.
    let (start, limit, delta) = (i128::from(start?), i128::from(limit?), i128::from(delta?));
    if delta == 0 {
        return Err(Error::format("the range has no end"));
    }

    let distance = if delta > 0 { limit - start } else { start - limit };
    let len = if distance <= 0 { 0 } else { (distance - 1) / delta.abs() + 1 };
    let len = call.room(&[usize::try_from(len).unwrap_or(usize::MAX)], ElementType::I64)?;
    let values = (0..len).map(|at| (start + at as i128 * delta) as i64).collect();
    Ok(vec![from_integers(values, vec![len], element)?.into()])
}

fn eye(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let &[rows, columns] = x.shape() else { return Err(Error::format("a matrix is expected")) };
    let element = element_of(call, "dtype", x.element())?;
    let k = call.int("k", 0);
    let total = call.room(x.shape(), ElementType::F64)?;
    let is_one = |at: usize| (at % columns) as i64 - (at / columns) as i64 == k;
    let values = (0..total).map(|at| i64::from(is_one(at))).collect();
    Ok(vec![from_integers(values, vec![rows, columns], element)?.into()])
}

fn one_hot(call: &mut Call<'_>) -> Result<Vec<Value>> {
    fn fill<T: Element>(values: &[T], hot: &[Option<usize>], depth: usize, after: usize) -> Data {
        let mut out = Vec::with_capacity(hot.len() * depth);
        for outer in hot.chunks(after.max(1)) {
            for at in 0..depth {
                out.extend(outer.iter().map(|hot| values[usize::from(*hot == Some(at))].clone()));
            }
        }
        T::into_data(out)
    }

    let (indices, values) = (call.tensor(0)?, call.tensor(2)?);
    let depth = call.tensor(1)?.number()?;
    let depth =
        usize::try_from(depth as i64).map_err(|_| Error::format("the depth is negative"))?;
    if values.len() != 2 {
        return Err(Error::format("two values are expected, off and on"));
    }

    let at = axis(call.int("axis", -1), indices.rank() + 1)?;
    let mut shape = indices.shape().to_vec();
    shape.insert(at, depth);
    call.room_like(&shape, values)?;
    call.room_for(indices.shape(), size_of::<Option<usize>>() as u64)?;

    // Indices outside of the depth are not there at all.
    let place = |index: f64| {
        let index = index as i64;
        let from_front = if index < 0 { index + depth as i64 } else { index };
        usize::try_from(from_front).ok().filter(|&at| at < depth)
    };
    let hot: Vec<_> = indices.doubles()?.into_iter().map(place).collect();
    let after = count(&indices.shape()[at..]);
    let data = with_storage!(values.data(), values => fill(values, &hot, depth, after));
    Ok(vec![values.like(shape, data)?.into()])
}

fn non_zero(call: &mut Call<'_>) -> Result<Vec<Value>> {
    fn places<T: Number>(values: &[T]) -> Vec<usize> {
        values
            .iter()
            .enumerate()
            .filter(|(_, value)| **value != T::default())
            .map(|(at, _)| at)
            .collect()
    }

    let x = call.tensor(0)?;
    call.work(&[x.len()])?;

    // The bits of a half are no number: negative zero would count.
    let widened = x.widened()?;
    let found = with_numbers!(widened.data(), values => places(values), Vec::new());
    let (shape, steps) = (x.shape(), strides(x.shape()));
    call.room(&[shape.len(), found.len()], ElementType::I64)?;
    let mut values = Vec::with_capacity(shape.len() * found.len());
    for dim in 0..shape.len() {
        values.extend(found.iter().map(|at| (at / steps[dim] % shape[dim]) as i64));
    }

    Ok(vec![Tensor::new(vec![shape.len(), found.len()], values)?.into()])
}

/// Returns the input unchanged, or drops elements at random in training mode.
fn dropout(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let ratio = call.optional(1)?.map_or(Ok(0.5), Tensor::number)?;
    let training = match call.optional(2)? {
        Some(flag) => flag.values::<u8>()?.first() == Some(&1),
        None => false,
    };
    let x = call.tensor(0)?.clone();
    let shape = x.shape().to_vec();
    if training && ratio != 0.0 {
        return dropped(call, &x, ratio);
    }

    call.room(&shape, ElementType::F32)?;
    let all = vec![1; x.len()];

    // Before version 10 the mask is of the input's type, later it is truth values.
    let mask = if call.opset < 10 {
        from_floats(vec![1.0; x.len()], shape, x.element())?
    } else {
        Tensor::truths(shape, all)?
    };
    Ok(vec![x.into(), mask.into()])
}
