//! B-trees: version 1 for names of a group and for chunks, version 2 for what is in a fractal heap.

use apr_core::{Error, Result};

use super::bytes::Bytes;
use super::checksum;
use super::file::{File, Followed};

/// Levels of a tree; each has at least twice as many nodes as the one above.
const MAX_LEVELS: u16 = 64;

/// Hands over the key and the child of each entry of the leaves of a version 1 tree, in order.
///
/// # Errors
/// E002 for a damaged tree, and what `take` returns.
pub(crate) fn each_entry(
    file: &File<'_>,
    root: u64,
    (kind, key_len): (u8, usize),
    take: &mut dyn FnMut(Bytes<'_>, u64) -> Result<()>,
) -> Result<()> {
    let mut followed = Followed::default();
    let mut rest = vec![(root, None)];
    while let Some((address, level)) = rest.pop() {
        followed.follow(address)?;
        let head_len = 8 + 2 * u64::from(file.offset_size());
        let head = file.read(address, head_len)?;
        let mut bytes = file.bytes(&head, address);
        bytes.signature(b"TREE")?;
        let (own_kind, own_level, count) = (bytes.u8()?, u16::from(bytes.u8()?), bytes.u16()?);
        if own_kind != kind || level.is_some_and(|level| level != own_level) {
            return Err(Error::corrupt("a node is not of its tree").at(address));
        }

        let entry = key_len + usize::from(file.offset_size());
        let entries = file.read(address + head_len, u64::from(count) * entry as u64)?;
        let mut bytes = file.bytes(&entries, address + head_len);
        let first = rest.len();
        for _ in 0..count {
            let key = bytes.part(key_len)?;
            let child = bytes.address()?;
            let child = child.ok_or_else(|| Error::corrupt("a node has no child").at(address))?;
            match own_level.checked_sub(1) {
                None => take(key, child)?,
                Some(below) => rest.push((child, Some(below))),
            }
        }
        rest[first..].reverse();
    }
    Ok(())
}

/// The records of a version 2 tree, in no particular order.
///
/// # Errors
/// E002 for a damaged tree, E007 when reading fails, E008 over the budget.
pub(crate) fn records(file: &File<'_>, address: u64) -> Result<Vec<Vec<u8>>> {
    let sizes = u64::from(file.offset_size()) + u64::from(file.length_size());
    let head = file.read_summed(address, 18 + sizes)?;
    let mut bytes = file.bytes(&head, address);
    bytes.signature(b"BTHD")?;
    bytes.skip(2)?;
    let (node_len, record_len, depth) = (bytes.u32()?, bytes.u16()?, bytes.u16()?);
    bytes.skip(2)?;
    let (root, count) = (bytes.address()?, bytes.u16()?);
    let Some(root) = root.filter(|_| count > 0) else { return Ok(Vec::new()) };
    let damaged = || Error::corrupt("a tree of HDF5 has impossible sizes").at(address);
    if depth > MAX_LEVELS || record_len == 0 || node_len < 16 {
        return Err(damaged());
    }

    // What a node at each depth can hold gives the widths of the counts in the nodes above.
    let (node_len, record_len) = (u64::from(node_len), usize::from(record_len));
    let most_in_leaf = (node_len - 10) / record_len as u64;
    let count_width = width_of(most_in_leaf);
    let mut totals = vec![most_in_leaf];
    for level in 1..=depth {
        let below = if level > 1 { width_of(totals[usize::from(level) - 1]) } else { 0 };
        let pointer = u64::from(file.offset_size()) + (count_width + below) as u64;
        let most = node_len.checked_sub(10 + pointer).ok_or_else(damaged)?;
        let most = most / (record_len as u64 + pointer);
        let total = (most + 1).saturating_mul(totals[usize::from(level) - 1]);
        totals.push(total.saturating_add(most));
    }

    let mut found = Vec::new();
    let mut followed = Followed::default();
    let mut rest = vec![(root, usize::from(count), depth)];
    while let Some((address, count, level)) = rest.pop() {
        followed.follow(address)?;
        let node = file.read_up_to(address, node_len)?;
        let mut bytes = file.bytes(&node, address);
        bytes.signature(if level == 0 { b"BTLF" } else { b"BTIN" })?;
        bytes.skip(2)?;
        for _ in 0..count {
            found.push(bytes.take(record_len)?.to_vec());
        }
        let children = if level == 0 { 0 } else { count + 1 };
        for _ in 0..children {
            let child = bytes.address()?.ok_or_else(damaged)?;
            let below = usize::try_from(bytes.integer(count_width)?).unwrap_or(usize::MAX);
            let total = totals[usize::from(level) - 1];
            bytes.skip(if level > 1 { width_of(total) } else { 0 })?;
            rest.push((child, below, level - 1));
        }
        let len = node.len() - bytes.len();
        checksum::compare(&node[..len], bytes.take(checksum::LEN)?, file.place(address)?)?;
    }
    Ok(found)
}

/// Bytes that hold a number up to this one.
fn width_of(most: u64) -> usize {
    most.max(1).ilog2() as usize / 8 + 1
}
