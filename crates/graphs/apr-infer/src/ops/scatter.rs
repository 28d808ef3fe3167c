//! Elements put at positions.

use apr_core::{Error, Result};

use super::binary::{Join, Largest, Product, Smallest, Sum};
use super::gather::{element_offsets, slice_offsets};
use crate::call::Call;
use crate::operator::{Operator, computes};
use crate::shape::axis;
use crate::tensor::{Data, Element, with_storage};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("Scatter", scatter_elements),
    computes("ScatterElements", scatter_elements),
    computes("ScatterND", scatter_nd),
    computes("TensorScatter", tensor_scatter),
];

fn scatter_elements(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (tensor, indices, updates) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let at = axis(call.int("axis", 0), tensor.rank())?;
    let offsets = element_offsets(tensor.shape(), indices, at)?;
    let offsets: Vec<_> = offsets.into_iter().map(|offset| (offset, 1)).collect();
    let result = scattered(tensor, updates, &offsets, &call.text("reduction", "none"))?;
    Ok(vec![result.into()])
}

fn scatter_nd(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (tensor, indices, updates) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (starts, len) = slice_offsets(tensor.shape(), indices, 0)?;
    let offsets: Vec<_> = starts.into_iter().map(|start| (start, len)).collect();
    let result = scattered(tensor, updates, &offsets, &call.text("reduction", "none"))?;
    Ok(vec![result.into()])
}

/// Puts the elements of `updates`, in order, into ranges of a tensor.
fn scattered(
    tensor: &Tensor,
    updates: &Tensor,
    ranges: &[(usize, usize)],
    reduction: &str,
) -> Result<Tensor> {
    if ranges.iter().map(|(_, len)| len).sum::<usize>() != updates.len() {
        return Err(Error::format(format!(
            "updates of shape {:?} do not fit the indices",
            updates.shape()
        )));
    }

    if updates.element() != tensor.element() {
        return Err(Error::format(format!(
            "updates of {} do not fit {}",
            updates.element(),
            tensor.element()
        )));
    }

    let mut data = tensor.data().clone();
    match reduction {
        "none" => with_storage!(&mut data, values => put(values, updates.values()?, ranges)),
        "add" => combine(&mut data, updates, ranges, Sum)?,
        "mul" => combine(&mut data, updates, ranges, Product)?,
        "max" => combine(&mut data, updates, ranges, Largest)?,
        "min" => combine(&mut data, updates, ranges, Smallest)?,
        other => return Err(Error::format(format!("unknown reduction '{other}'"))),
    }

    tensor.like(tensor.shape().to_vec(), data)
}

fn put<T: Element>(values: &mut [T], updates: &[T], ranges: &[(usize, usize)]) {
    let mut next = 0;
    for &(start, len) in ranges {
        values[start..start + len].clone_from_slice(&updates[next..next + len]);
        next += len;
    }
}

fn combine(
    data: &mut Data,
    updates: &Tensor,
    ranges: &[(usize, usize)],
    join: impl Join,
) -> Result<()> {
    fn each<T: Copy>(
        values: &mut [T],
        updates: &[T],
        ranges: &[(usize, usize)],
        join: impl Fn(T, T) -> T,
    ) {
        let positions = ranges.iter().flat_map(|&(start, len)| start..start + len);
        positions.zip(updates).for_each(|(at, update)| values[at] = join(values[at], *update));
    }

    macro_rules! by {
        (signed $($signed:ident)*; unsigned $($unsigned:ident)*) => {
            match (data, updates.data()) {
                (Data::F32(x), Data::F32(y)) => each(x, y, ranges, |x, y| join.singles(x, y)),
                (Data::F64(x), Data::F64(y)) => each(x, y, ranges, |x, y| join.floats(x, y)),
                $((Data::$signed(x), Data::$signed(y)) => {
                    each(x, y, ranges, |x, y| join.signed(i64::from(x), i64::from(y)) as _);
                })*
                $((Data::$unsigned(x), Data::$unsigned(y)) => {
                    each(x, y, ranges, |x, y| join.unsigned(u64::from(x), u64::from(y)) as _);
                })*
                _ => return Err(Error::format("numbers of one type are expected")),
            }
        };
    }
    by!(signed I8 I16 I32 I64; unsigned U8 U16 U32 U64);
    Ok(())
}

/// Writes new rows into a cache, from the current position of each batch on.
fn tensor_scatter(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (tensor, updates) = (call.tensor(0)?, call.tensor(1)?);
    let at = axis(call.int("axis", -2), tensor.rank())?;
    let batches = tensor.shape().first().copied().unwrap_or(0);
    let starts = call.optional(2)?.map_or_else(|| Ok(vec![0; batches]), Tensor::integers)?;
    let circular = call.text("mode", "linear") == "circular";
    let (before, size, after) = crate::shape::around(tensor.shape(), at);
    let len = updates.shape().get(at).copied().unwrap_or(0);
    if at == 0
        || updates.rank() != tensor.rank()
        || starts.len() != batches
        || updates.shape()[..at] != tensor.shape()[..at]
        || updates.shape()[at + 1..] != tensor.shape()[at + 1..]
    {
        return Err(Error::format("the update does not fit the cache"));
    }
    let ranges = call.room_for(&[before, len], size_of::<(usize, usize)>() as u64)?;
    let mut ranges = Vec::with_capacity(ranges);
    for outer in 0..before {
        let start = starts[outer * batches / before.max(1)];
        for step in 0..len {
            let to = start.saturating_add(step as i64);

            // A cache without rows has no remainders; `position` refuses all its places.
            let to = if circular { to.checked_rem_euclid(size as i64).unwrap_or(to) } else { to };
            ranges.push(((outer * size + super::gather::position(to, size)?) * after, after));
        }
    }

    Ok(vec![scattered(tensor, updates, &ranges, "none")?.into()])
}
