//! Tensors that stay in one shard: the parts of a weight in codes and scales.
//!
//! Loaders of quantized checkpoints read a weight's codes, scales and zero points together. The
//! parts are found by their names, because writers know no more: the tensors of a module of which
//! one has a name that only codes or scales have.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// Endings of names of codes and scales.
const MARKS: [&str; 18] = [
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_scale_2",
    ".weight_scales",
    ".scale_weight",
    ".qscale_weight",
    "._weight_qdata",
    ".qweight",
    ".scales",
    ".scale",
    ".absmax",
    ".SCB",
    ".W_q",
    ".bitmask",
    "._scale",
    "_blocks",
    "_scales",
];

/// Endings of names of the parts of a weight of several experts, after the weight's name.
const OF_EXPERTS: [&str; 6] =
    ["_blocks", "_scales", "_scale", "_scale_inv", "_global_scale", "_bias"];

/// Returns the tensors in units that a writer of shards of `limit` bytes does not cut: positions,
/// ascending within a unit and by the first of each.
///
/// A unit is the parts of a weight in codes and scales with the other tensors of its module, or one
/// tensor. Parts that do not fit into one shard are units of their own. `tensors` are names and
/// lengths.
///
/// ```
/// use apr_core::shard_units;
///
/// let tensors = [("q.qweight", 8), ("norm.weight", 1), ("q.scales", 2), ("o.weight", 4)];
/// assert_eq!(shard_units(tensors, 10), [vec![0, 2], vec![1], vec![3]]);
/// assert_eq!(shard_units(tensors, 9), [vec![0], vec![1], vec![2], vec![3]]);
/// ```
#[must_use]
pub fn shard_units<'a>(
    tensors: impl IntoIterator<Item = (&'a str, u64)>,
    limit: u64,
) -> Vec<Vec<usize>> {
    let tensors: Vec<(&str, u64)> = tensors.into_iter().collect();
    let mut modules: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (position, (name, _)) in tensors.iter().enumerate() {
        modules.entry(module(name)).or_default().push(position);
    }
    let mut units: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for members in modules.into_values() {
        let is_coded = members.iter().any(|&at| {
            let name = tensors[at].0;
            MARKS.iter().any(|mark| name.ends_with(mark))
        });
        let len = members.iter().fold(0, |len: u64, &at| len.saturating_add(tensors[at].1));
        if is_coded && len <= limit {
            units.insert(members[0], members);
        } else {
            units.extend(members.into_iter().map(|at| (at, vec![at])));
        }
    }
    units.into_values().collect()
}

/// Returns the module that a tensor is of, and the weight in it if the module has several.
fn module(name: &str) -> (&str, &str) {
    // Of `X.weight.absmax` and `X.weight._data._data` it is X, as of `X.weight`.
    let weight = name.find(".weight.").map_or(name, |at| &name[..at + ".weight".len()]);
    let Some((module, last)) = weight.rsplit_once('.') else { return ("", name) };
    if module == "experts" || module.ends_with(".experts") {
        let stem = OF_EXPERTS.iter().find_map(|end| last.strip_suffix(end));
        return (module, stem.unwrap_or(last));
    }
    (module, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of the units of more than one tensor.
    fn together<'a>(names: &[&'a str]) -> Vec<Vec<&'a str>> {
        let units = shard_units(names.iter().map(|name| (*name, 1)), u64::MAX);
        let all: usize = units.iter().map(Vec::len).sum();
        assert_eq!(all, names.len(), "every tensor is in a unit");
        let several = units.into_iter().filter(|unit| unit.len() > 1);
        several.map(|unit| unit.into_iter().map(|at| names[at]).collect()).collect()
    }

    #[test]
    fn parts_of_a_weight_are_one_unit() {
        for parts in [
            &["l.q.g_idx", "l.q.qweight", "l.q.qzeros", "l.q.scales"][..],
            &["l.q.weight", "l.q.weight_scale_inv"],
            &["l.q.weight", "l.q.weight.absmax", "l.q.weight.quant_state.bitsandbytes__nf4"],
            &["l.q.weight._data._data", "l.q.weight._scale", "l.q.weight._shift", "l.q.bias"],
            &["l.q.SCB", "l.q.weight", "l.q.weight_format"],
            &["l.q.W_q", "l.q.scale", "l.q.zero", "l.q.shape"],
            &["l.q.weight", "l.q.scales", "l.q.biases"],
            &["l.q.weight", "l.q.weight.scales", "l.q.weight.mins"],
            &["l.experts.up_blocks", "l.experts.up_scales", "l.experts.up_bias"],
            &["l.experts.up", "l.experts.up_scale_inv", "l.experts.up_scales"],
            &["blk.0.attn_q.weight", "blk.0.attn_q.scale"],
        ] {
            let beside = ["l.k.weight", "l.norm.weight", "l.k.bias", "l.experts.down"];
            assert_eq!(together(&[parts, &beside].concat()), [parts], "{parts:?}");
        }
    }

    #[test]
    fn plain_modules_are_not_kept_together() {
        assert!(together(&["l.q.weight", "l.q.bias", "bias", "weight", "l.experts.up"]).is_empty());
    }
}
