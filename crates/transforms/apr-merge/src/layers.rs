//! Which layer a tensor belongs to, by its name.
//!
//! The first number between dots is a layer's, and what stands before it names the stack:
//! `model.layers.3.mlp.up_proj.weight` is in layer 3 of `model.layers`. This holds for the names of
//! all families that are known, in Hugging Face's form, in llama.cpp's and in the canonical one.

use std::collections::BTreeMap;

use apr_core::{Error, Escaped, Result};

/// A name, cut at the number of its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InLayer<'n> {
    /// Part of the name before the number.
    pub(crate) stack: &'n str,
    pub(crate) layer: u64,
    /// Part of the name after the number, with its dot.
    pub(crate) rest: &'n str,
}

/// Finds the layer number in a tensor name; `None` if the name has no layer.
pub(crate) fn in_layer(name: &str) -> Option<InLayer<'_>> {
    let mut start = 0;
    for part in name.split('.') {
        let end = start + part.len();
        if start > 0
            && end < name.len()
            && !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
        {
            let layer = part.parse().ok()?;
            return Some(InLayer { stack: &name[..start - 1], layer, rest: &name[end..] });
        }
        start = end + 1;
    }
    None
}

/// Returns the stacks of a model, each with its number of layers.
pub(crate) fn stacks<'n>(names: impl Iterator<Item = &'n str>) -> BTreeMap<&'n str, u64> {
    let mut stacks = BTreeMap::new();
    for found in names.filter_map(in_layer) {
        let count = stacks.entry(found.stack).or_insert(0);
        *count = found.layer.saturating_add(1).max(*count);
    }
    stacks
}

/// The place of a layer in its stack, from 0 to 1; a layer that is alone is the last one.
pub(crate) fn place(layer: u64, count: u64) -> f64 {
    if count > 1 { layer as f64 / (count - 1) as f64 } else { 1.0 }
}

/// The stack of a model that has one.
///
/// # Errors
/// E001 where there is none, or several.
pub(crate) fn only_stack<'n>(
    names: impl Iterator<Item = &'n str>,
    model: &str,
) -> Result<(&'n str, u64)> {
    let stacks = stacks(names);
    let mut all = stacks.into_iter();
    match (all.next(), all.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Error::format("no tensor's name has a layer").in_file(model)),
        (Some((first, _)), Some((second, _))) => Err(Error::format(format!(
            "slices of a model with several stacks of layers are not supported: '{}' and '{}'",
            Escaped::short(first),
            Escaped::short(second)
        ))
        .in_file(model)),
    }
}

/// Returns `true` if a tensor outside the layers comes before them, as embeddings do.
pub(crate) fn is_before(name: &str) -> bool {
    ["emb", "wte", "wpe"].iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_the_layer() {
        for (name, expected) in [
            ("model.layers.3.mlp.weight", Some(("model.layers", 3, ".mlp.weight"))),
            ("blk.12.attn_q.weight", Some(("blk", 12, ".attn_q.weight"))),
            ("h.0.ffn.experts.7.w1", Some(("h", 0, ".ffn.experts.7.w1"))),
            ("lm_head.weight", None),
            ("conv.0", None),
            ("0.weight", None),
        ] {
            let found = in_layer(name).map(|found| (found.stack, found.layer, found.rest));
            assert_eq!(found, expected, "{name}");
        }
    }
}
