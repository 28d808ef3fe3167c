//! Arrays that Paddle splits: with protocols 2 and 3, a parameter of over 1 GiB is several arrays
//! of one dimension, and an entry of the dictionary says which (`paddle/framework/io_utils.py`).
//!
//! ```text
//! 'w@@.0', 'w@@.1', ...       arrays
//! 'UnpackBigParamInfor@@'     {'w': {'OriginShape': (...), 'slices': ['w@@.0', 'w@@.1', ...]}}
//! ```
//!
//! Paddle writes `bfloat16` and `uint16` alike, so both are read as `u16`.

use std::collections::HashMap;

use apr_core::{Error, Escaped, Result};

use crate::pickle::build::MAX_DIMS;
use crate::pickle::{Derived, Heap, Id, Node};

/// Key of the entry that lists which arrays are parts of a larger one.
const SPLIT: &str = "UnpackBigParamInfor@@";

/// A parameter that is split.
struct Split {
    name: Id,
    /// Position of the first part in the dictionary.
    first: usize,
    parts: Vec<u32>,
    shape: Vec<u64>,
}

/// Puts each parameter in the place of its first part, and takes the others out of the dictionary.
///
/// # Errors
/// E002 if the entry names missing arrays, or arrays that do not add up.
pub(crate) fn join(heap: &mut Heap, root: Id) -> Result<()> {
    let (Some(described), Node::Dict(pairs)) = (heap.entry(root, SPLIT), heap.get(root)) else {
        return Ok(());
    };
    let Node::Dict(described) = heap.get(described) else {
        return Err(Error::corrupt(format!("'{SPLIT}' is not a dictionary")));
    };

    let mut pairs: Vec<Option<(Id, Id)>> = pairs.iter().copied().map(Some).collect();
    let mut splits = Vec::new();
    {
        // As in Python, a later value of a key takes the place of an earlier one.
        let named = (0..).zip(pairs.iter().flatten());
        let named: HashMap<&str, usize> =
            named.filter_map(|(at, (key, _))| Some((heap.text(*key)?, at))).collect();
        for &(name, description) in described {
            let split = split(heap, &named, &mut pairs, name, description);
            splits.push(split.map_err(|what| {
                let name = Escaped::short(heap.text(name).unwrap_or("?"));
                Error::corrupt(format!("'{name}' is split into {what}"))
            })?);
        }
    }

    for Split { name, first, parts, shape } in splits {
        pairs[first] = Some((name, heap.add_derived(Derived::Joined { parts, shape })?));
    }
    let kept = pairs.into_iter().flatten();
    let kept = kept.filter(|(key, _)| heap.text(*key) != Some(SPLIT)).collect();
    *heap.get_mut(root) = Node::Dict(kept);
    Ok(())
}

/// Takes the parts of a parameter out of `pairs`, so that each is in one parameter alone.
fn split(
    heap: &Heap,
    named: &HashMap<&str, usize>,
    pairs: &mut [Option<(Id, Id)>],
    name: Id,
    description: Id,
) -> std::result::Result<Split, String> {
    let slices = heap.entry(description, "slices").and_then(|slices| heap.items(slices));
    let slices = slices.ok_or("no list of parts")?;
    let (mut first, mut parts) = (None, Vec::new());
    for &slice in slices {
        let part = heap.text(slice).ok_or("parts without names")?;
        let shown = Escaped::short(part);
        let at = named.get(part).copied();
        let (at, pair) = at
            .and_then(|at| Some((at, pairs[at].take()?)))
            .ok_or_else(|| format!("'{shown}', which is not in the file, or in it twice"))?;
        first.get_or_insert(at);
        match heap.get(pair.1) {
            Node::Tensor(tensor) => parts.push(*tensor),
            _ => return Err(format!("'{shown}', which is not an array that is read")),
        }
    }

    let shape = heap.entry(description, "OriginShape").and_then(|shape| heap.items(shape));
    let shape = shape.filter(|dims| dims.len() <= MAX_DIMS);
    let shape: Option<Vec<u64>> =
        shape.and_then(|dims| dims.iter().map(|&dim| heap.unsigned(dim)).collect());
    let shape = shape.ok_or("parts without a shape")?;
    match first.filter(|_| adds_up(heap, &parts, &shape)) {
        Some(first) => Ok(Split { name, first, parts, shape }),
        None => Err("parts that do not add up to its shape".to_owned()),
    }
}

/// Returns `true` if the parts are 1-D, have one dtype and add up to the elements of the shape.
fn adds_up(heap: &Heap, parts: &[u32], shape: &[u64]) -> bool {
    let tensor = |part: &u32| &heap.tensors[*part as usize];
    let Some(dtype) = parts.first().map(|first| tensor(first).dtype) else { return false };
    let count = parts.iter().try_fold(0_u64, |count, part| match tensor(part).elements.dims() {
        [dim] if tensor(part).dtype == dtype => count.checked_add(*dim),
        _ => None,
    });
    let whole = shape.iter().try_fold(1_u64, |count, dim| count.checked_mul(*dim));
    count.is_some() && count == whole
}
