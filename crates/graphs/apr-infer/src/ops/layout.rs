//! Other dimensions over the same elements, and parts, repetitions and orders of them.

use apr_core::{Error, Result};
use apr_graph::AttributeValue;

use super::elementwise::expanded;
use crate::call::Call;
use crate::moving::{filled_like, joined, part, picked, transposed};
use crate::operator::{Operator, moves};
use crate::shape::{axes, axis, broadcast, count, sizes, strides, walk};
use crate::tensor::Element;
use crate::value::WeightLook;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    moves("Identity", |call| call.value(0).map(|value| vec![value.clone()])).reads_cache(),
    moves("Reshape", reshape),
    moves("Flatten", flatten),
    moves("Squeeze", squeeze),
    moves("Unsqueeze", unsqueeze),
    moves("Shape", shape).reads_cache(),
    moves("Size", |call| Ok(vec![Tensor::scalar(call.tensor(0)?.len() as i64).into()])),
    moves("Transpose", transpose).decodes().reads_cache(),
    moves("Concat", concat).reads_cache(),
    moves("Split", split),
    moves("Slice", slice),
    moves("Expand", expand),
    moves("Tile", tile),
    moves("SpaceToDepth", space_to_depth),
    moves("DepthToSpace", depth_to_space),
    moves("Trilu", trilu),
    moves("ReverseSequence", reverse_sequence),
    moves("Compress", compress),
    moves("CenterCropPad", center_crop_pad),
];

/// Integers from an input, or in old versions from an attribute.
pub(super) fn list(call: &Call<'_>, input: usize, attribute: &str) -> Result<Option<Vec<i64>>> {
    match call.optional(input)? {
        Some(tensor) => tensor.integers().map(Some),
        None => Ok(call.ints(attribute)),
    }
}

fn reshape(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let wanted = list(call, 1, "shape")?.ok_or_else(|| Error::format("missing shape"))?;
    let allow_zero = call.flag("allowzero", false);
    let tensor = call.take(0)?;
    // `reshaped` refuses what does not divide.
    let shape = wanted_shape(tensor.shape(), &wanted, allow_zero)?;
    Ok(vec![tensor.reshaped(shape)?.into()])
}

/// Returns the shape that `Reshape` requests: 0 keeps a size, -1 stands for the remaining elements.
pub(super) fn wanted_shape(from: &[usize], wanted: &[i64], allow_zero: bool) -> Result<Vec<usize>> {
    let mut shape = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (position, &size) in wanted.iter().enumerate() {
        shape.push(match size {
            -1 if open.is_none() => {
                open = Some(position);
                1
            }
            0 if !allow_zero => {
                let missing =
                    || Error::format(format!("dimension {position} is kept, but does not exist"));
                *from.get(position).ok_or_else(missing)?
            }
            size => usize::try_from(size)
                .map_err(|_| Error::format(format!("{wanted:?} is not a shape")))?,
        });
    }

    if let Some(position) = open {
        // The open size counts as 1 so far.
        shape[position] = count(from).checked_div(count(&shape)).unwrap_or(0);
    }
    Ok(shape)
}

fn flatten(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let at = call.int("axis", 1);
    let tensor = call.take(0)?;
    // The axis may be one past the last dimension.
    let at = if at == tensor.rank() as i64 { tensor.rank() } else { axis(at, tensor.rank())? };
    let shape = vec![count(&tensor.shape()[..at]), count(&tensor.shape()[at..])];
    Ok(vec![tensor.reshaped(shape)?.into()])
}

fn squeeze(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let wanted = list(call, 1, "axes")?;
    let tensor = call.take(0)?;
    let shape = tensor.shape();
    let gone = match wanted {
        Some(wanted) => axes(&wanted, shape.len())?,
        None => (0..shape.len()).filter(|&dim| shape[dim] == 1).collect(),
    };
    if let Some(&dim) = gone.iter().find(|&&dim| shape[dim] != 1) {
        return Err(Error::format(format!("dimension {dim} of {shape:?} is not 1")));
    }
    let left = (0..shape.len()).filter(|dim| !gone.contains(dim)).map(|dim| shape[dim]).collect();
    Ok(vec![tensor.reshaped(left)?.into()])
}

fn unsqueeze(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let wanted = list(call, 1, "axes")?.ok_or_else(|| Error::format("missing axes"))?;
    let tensor = call.take(0)?;
    let new = axes(&wanted, tensor.rank() + wanted.len())?;
    let mut shape = tensor.shape().to_vec();
    // In ascending order, each axis is the place in the new shape.
    new.iter().for_each(|&at| shape.insert(at, 1));
    Ok(vec![tensor.reshaped(shape)?.into()])
}

fn shape(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let shape = match call.value(0)? {
        Value::Cached(heads) => heads.shape(),
        value => value.tensor()?.shape().to_vec(),
    };
    let rank = shape.len() as i64;
    // Bounds out of range are cut to it (`Shape` from opset 15 on).
    let clamped = |at: i64| (if at < 0 { at + rank } else { at }).clamp(0, rank) as usize;
    let (start, end) = (clamped(call.int("start", 0)), clamped(call.int("end", rank)));
    let sizes = shape.get(start..end).unwrap_or_default();
    Ok(vec![Tensor::row(sizes.iter().map(|&size| size as i64).collect()).into()])
}

fn transpose(call: &mut Call<'_>) -> Result<Vec<Value>> {
    if let Value::Weight(handle) = call.value(0)? {
        // A matrix of the checkpoint is turned when it is decoded.
        let is_matrix = call.matrix(handle).is_some();
        if is_matrix && call.ints("perm").is_none_or(|order| order == [1, 0]) {
            return Ok(vec![Value::Weight(handle.with(WeightLook::Turned))]);
        }
        call.inputs[0] = Some(call.decoded(0)?.into());
    }
    if let Value::Cached(heads) = call.value(0)? {
        // Products read rows of keys as columns.
        if call.ints("perm").is_some_and(|order| order == [0, 1, 3, 2]) {
            return Ok(vec![Value::Cached(heads.clone().turned())]);
        }
        call.uncache(0)?;
    }

    let tensor = call.tensor(0)?;
    let order = match call.ints("perm") {
        Some(order) => {
            order.iter().map(|&dim| axis(dim, tensor.rank())).collect::<Result<Vec<_>>>()?
        }
        None => (0..tensor.rank()).rev().collect(),
    };

    call.room(tensor.shape(), tensor.element())?;
    Ok(vec![transposed(tensor, &order)?.into()])
}

fn concat(call: &mut Call<'_>) -> Result<Vec<Value>> {
    if let (2, Some(2 | -2), Value::Cached(heads)) =
        (call.inputs.len(), call.optional_int("axis"), call.value(0)?)
        && heads.can_grow()
        && let Value::Tensor(fresh) = call.value(1)?
        && fresh.rank() == 4
    {
        call.room_for(&[1], heads.bytes_of(fresh.shape()[2]))?;
        let fresh = fresh.clone();
        if let Some(Value::Cached(heads)) = call.inputs[0].take() {
            return Ok(vec![Value::Cached(heads.with(&fresh)?)]);
        }
    }
    (0..call.inputs.len()).try_for_each(|position| call.uncache(position))?;

    let tensors =
        (0..call.inputs.len()).map(|position| call.tensor(position)).collect::<Result<Vec<_>>>()?;
    let rank = tensors.first().map_or(0, |tensor| tensor.rank());
    let at = axis(call.int("axis", 1), rank)?;
    let bytes = tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.bytes()));
    call.room_for(&[1], bytes)?;
    Ok(vec![joined(&tensors, at)?.into()])
}

fn split(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let at = axis(call.int("axis", 0), tensor.rank())?;
    let size = tensor.shape()[at];
    let lengths = match list(call, 1, "split")? {
        Some(lengths) => sizes(&lengths)?,
        None => {
            let parts =
                usize::try_from(call.int("num_outputs", call.outputs() as i64)).unwrap_or(0);

            // A file may claim any number of parts, each of which takes memory.
            if parts == 0 || parts > call.outputs() {
                return Err(Error::format(format!(
                    "{size} elements are not split into {parts} parts"
                )));
            }
            let each = size.div_ceil(parts);
            (0..parts).map(|part| each.min(size.saturating_sub(part * each))).collect()
        }
    };

    if lengths.iter().try_fold(0_usize, |sum, &len| sum.checked_add(len)) != Some(size) {
        return Err(Error::format(format!("{lengths:?} are not the {size} of axis {at}")));
    }

    let mut start = 0;
    let mut parts = Vec::with_capacity(lengths.len());
    for len in lengths {
        parts.push(part(tensor, at, start, len)?.into());
        start += len;
    }

    Ok(parts)
}

/// Returns the start, the step and the number of elements of a slice along one dimension.
fn slice_range(size: usize, start: i64, end: i64, step: i64) -> Result<(usize, i64, usize)> {
    if step == 0 {
        return Err(Error::format("a slice has a step of 0"));
    }

    let size = size as i64;
    let from_front = |at: i64| if at < 0 { at.saturating_add(size) } else { at };

    // Backwards, the end may lie before the first element (ONNX's `Slice`).
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let start = from_front(start).clamp(low.max(0).min(size), high.max(0)).min(if step > 0 {
        size
    } else {
        size - 1
    });
    let end = from_front(end).clamp(low, high.max(low));
    let distance = if step > 0 { end - start } else { start - end };
    let len =
        if size == 0 || distance <= 0 { 0 } else { (distance - 1) / step.saturating_abs() + 1 };
    Ok((usize::try_from(start).unwrap_or(0), step, len as usize))
}

fn slice(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let missing = |what: &str| Error::format(format!("missing {what}"));
    let starts = list(call, 1, "starts")?.ok_or_else(|| missing("starts"))?;
    let ends = list(call, 2, "ends")?.ok_or_else(|| missing("ends"))?;
    let tensor = call.tensor(0)?;
    let all = || (0..starts.len() as i64).collect();
    let along = list(call, 3, "axes")?.unwrap_or_else(all);
    let steps = list(call, 4, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || along.len() != starts.len() || steps.len() != starts.len() {
        return Err(Error::format("starts, ends, axes and steps are not as many"));
    }

    axes(&along, tensor.rank())?;
    let mut result = tensor.clone();
    for (position, &at) in along.iter().enumerate() {
        let at = axis(at, tensor.rank())?;
        let (start, step, len) =
            slice_range(result.shape()[at], starts[position], ends[position], steps[position])?;
        result = if step == 1 {
            part(&result, at, start, len)?
        } else {
            stepped(&result, at, start, step, len)?
        };
    }

    Ok(vec![result.into()])
}

fn stepped(tensor: &Tensor, axis: usize, start: usize, step: i64, len: usize) -> Result<Tensor> {
    // `slice_range` chose `len` so that every place lies within the dimension.
    let positions: Vec<_> = (0..len as i64).map(|at| (start as i64 + at * step) as usize).collect();
    super::gather::along(tensor, axis, &positions, &[len])
}

fn expand(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let wanted = sizes(&call.tensor(1)?.integers()?)?;
    let tensor = call.tensor(0)?;
    let shape = broadcast(&[tensor.shape(), &wanted])?;
    call.room_like(&shape, tensor)?;
    Ok(vec![expanded(tensor, &shape)?.into()])
}

fn tile(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let repeats = sizes(&call.tensor(1)?.integers()?)?;
    if repeats.len() != tensor.rank() {
        return Err(Error::format(format!(
            "{repeats:?} are not repeats of {} dimensions",
            tensor.rank()
        )));
    }

    let too_large = || Error::memory("the repeated tensor does not fit the memory");
    let pairs = tensor.shape().iter().zip(&repeats);
    let shape = pairs
        .map(|(size, times)| size.checked_mul(*times))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(too_large)?;
    call.room_like(&shape, tensor)?;

    // Each dimension becomes two: how often, and what; the first has no step.
    let own = strides(tensor.shape());
    let interleaved =
        (0..tensor.rank()).flat_map(|dim| [repeats[dim], tensor.shape()[dim]]).collect::<Vec<_>>();
    let steps = (0..tensor.rank()).flat_map(|dim| [0, own[dim]]).collect::<Vec<_>>();
    let data = picked(tensor.data(), count(&shape), |visit| {
        walk(&interleaved, [&steps], |[at]| visit(at));
    });
    Ok(vec![tensor.like(shape, data)?.into()])
}

/// The four sizes of an image and the size of a block, which must divide what it cuts.
fn blocks(call: &Call<'_>) -> Result<([usize; 4], usize)> {
    let shape = call.tensor(0)?.shape();
    let block = usize::try_from(call.int("blocksize", 0)).unwrap_or(0);
    match *shape {
        [n, c, h, w] if block > 0 => Ok(([n, c, h, w], block)),
        _ => Err(Error::format(format!(
            "an image is expected and a block, not {shape:?} and {block}"
        ))),
    }
}

fn space_to_depth(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let ([n, c, h, w], b) = blocks(call)?;
    if h % b != 0 || w % b != 0 {
        return Err(Error::format(format!("{h} x {w} is not cut by {b}")));
    }
    let tensor = call.take(0)?.reshaped(vec![n, c, h / b, b, w / b, b])?;
    let order =
        if call.text("mode", "DCR") == "CRD" { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
    Ok(vec![transposed(&tensor, &order)?.reshaped(vec![n, c * b * b, h / b, w / b])?.into()])
}

fn depth_to_space(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let ([n, c, h, w], b) = blocks(call)?;
    let depth = c / b.saturating_mul(b).max(1);
    let by_columns = call.text("mode", "DCR") == "CRD";
    let tensor = call.take(0)?;
    let (shape, order) = if by_columns {
        (vec![n, depth, b, b, h, w], [0, 1, 4, 2, 5, 3])
    } else {
        (vec![n, b, b, depth, h, w], [0, 3, 4, 1, 5, 2])
    };
    let turned = transposed(&tensor.reshaped(shape)?, &order)?;
    Ok(vec![turned.reshaped(vec![n, depth, h * b, w * b])?.into()])
}

fn trilu(call: &mut Call<'_>) -> Result<Vec<Value>> {
    fn cut<T: Element>(values: &mut [T], rows: usize, columns: usize, k: i64, upper: bool) {
        for (at, value) in values.iter_mut().enumerate() {
            let (row, column) = ((at / columns % rows) as i64, (at % columns) as i64);
            let kept = if upper { column - row >= k } else { column - row <= k };
            if !kept {
                *value = T::default();
            }
        }
    }

    let upper = call.flag("upper", true);
    let k = call.optional(1)?.map_or(Ok(0), Tensor::integer)?;
    let tensor = call.tensor(0)?;
    let [.., rows, columns] = *tensor.shape() else {
        return Err(Error::format("a matrix is expected"));
    };
    call.room_for(&[1], tensor.bytes())?;
    let mut data = tensor.data().clone();
    if rows > 0 && columns > 0 {
        crate::tensor::with_storage!(&mut data, values => cut(values, rows, columns, k, upper));
    }

    Ok(vec![tensor.like(tensor.shape().to_vec(), data)?.into()])
}

fn reverse_sequence(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let lengths = sizes(&call.tensor(1)?.integers()?)?;
    let (time, batch) = (
        axis(call.int("time_axis", 0), tensor.rank())?,
        axis(call.int("batch_axis", 1), tensor.rank())?,
    );
    if time == batch
        || lengths.len() != tensor.shape()[batch]
        || lengths.iter().any(|&len| len > tensor.shape()[time])
    {
        return Err(Error::format("the lengths do not fit the batch"));
    }
    let steps = strides(tensor.shape());
    let shape = tensor.shape();
    let data = picked(tensor.data(), tensor.len(), |visit| {
        (0..tensor.len()).for_each(|at| {
            let (now, row) = (at / steps[time] % shape[time], at / steps[batch] % shape[batch]);
            let len = lengths[row];
            let from = if now < len { len - 1 - now } else { now };
            visit(at - now * steps[time] + from * steps[time]);
        });
    });

    Ok(vec![tensor.like(shape.to_vec(), data)?.into()])
}

fn compress(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let chosen: Vec<_> = call
        .tensor(1)?
        .values::<u8>()?
        .iter()
        .enumerate()
        .filter(|(_, is)| **is != 0)
        .map(|(at, _)| at)
        .collect();
    let tensor = call.tensor(0)?;
    call.work(&[call.tensor(1)?.len()])?;
    let (tensor, at) = match call.optional_int("axis") {
        Some(at) => (tensor.clone(), axis(at, tensor.rank())?),
        None => (tensor.clone().reshaped(vec![tensor.len()])?, 0),
    };
    let chosen: Vec<_> =
        chosen.into_iter().filter(|&position| position < tensor.shape()[at]).collect();
    Ok(vec![super::gather::along(&tensor, at, &chosen, &[chosen.len()])?.into()])
}

fn center_crop_pad(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let mut tensor = call.tensor(0)?.clone();
    let target = sizes(&call.tensor(1)?.integers()?)?;
    let along = match call.ints("axes") {
        Some(list) => list.iter().map(|&at| axis(at, tensor.rank())).collect::<Result<Vec<_>>>()?,
        None => (0..tensor.rank()).collect(),
    };
    if along.len() != target.len() {
        return Err(Error::format("there are not as many sizes as axes"));
    }

    for (&at, &len) in along.iter().zip(&target) {
        let size = tensor.shape()[at];
        if len <= size {
            tensor = part(&tensor, at, (size - len) / 2, len)?;
            continue;
        }

        let mut shape = tensor.shape().to_vec();
        shape[at] = len;
        call.room(&shape, tensor.element())?;
        shape[at] = len - size;
        let zeros = filled_like(&tensor, shape)?;
        let before = (len - size) / 2;
        let (front, back) =
            (part(&zeros, at, 0, before)?, part(&zeros, at, before, len - size - before)?);
        tensor = joined(&[&front, &tensor, &back], at)?;
    }

    Ok(vec![tensor.into()])
}

/// Returns the tensor in an attribute, or `None` if the attribute is not a tensor.
pub(super) fn tensor_attribute(call: &Call<'_>, name: &str) -> Result<Option<Tensor>> {
    match call.attribute(name) {
        Some(value @ (AttributeValue::Tensor(_) | AttributeValue::Weight(_))) => {
            call.environment.attribute_tensor(value).map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::slice_range;

    #[test]
    fn slices_are_cut_as_in_numpy() {
        assert_eq!(slice_range(10, -3, i64::MAX, 1).unwrap(), (7, 1, 3));
        assert_eq!(slice_range(10, 20, 30, 1).unwrap().2, 0);
        assert_eq!(slice_range(10, i64::MAX, i64::MIN, -1).unwrap(), (9, -1, 10));
        assert_eq!(slice_range(10, 8, 2, -4).unwrap(), (8, -4, 2));
        assert_eq!(slice_range(0, 0, 5, 1).unwrap().2, 0);
        assert_eq!(slice_range(5, 1, 4, i64::MIN).unwrap().2, 0);
        assert_eq!(slice_range(20, -30, 5, 2).unwrap(), (0, 2, 3));
        assert!(slice_range(5, 0, 5, 0).is_err());
    }
}
