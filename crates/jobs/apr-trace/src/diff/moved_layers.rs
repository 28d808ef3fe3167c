//! Layers of the second model that are other layers of the first: exchanged or copied.

use std::collections::BTreeMap;

use serde::Serialize;

use super::weights::WeightChange;
use super::{Divergence, TraceDiff};

/// Weights of a layer that have to be those of another one.
const FEWEST: usize = 2;

/// A layer of the second model with the weights of another layer of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MovedLayer {
    /// Number of the layer in the second model.
    pub layer: u64,
    /// Number of the layer that it is in the first model.
    pub is: u64,
    /// Number of its weights that were found to be those of the other layer.
    #[serde(rename = "weight_count")]
    pub weights: usize,
}

/// Returns the layers whose changed weights are those of another layer, in order.
pub(super) fn moved_layers(diff: &TraceDiff) -> Vec<MovedLayer> {
    let divergences = diff.passes.iter().flat_map(|pass| &pass.divergences);
    let mut found: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for pair in divergences.flat_map(pairs_of) {
        *found.entry(pair).or_default() += 1;
    }
    let moved = found.into_iter().filter(|(_, weights)| *weights >= FEWEST);
    moved.map(|((layer, is), weights)| MovedLayer { layer, is, weights }).collect()
}

/// Pairs of layers, of weights that are those of another layer in the same place.
fn pairs_of(divergence: &Divergence) -> impl Iterator<Item = (u64, u64)> + '_ {
    divergence.weights.iter().filter_map(|weight| {
        let WeightChange::Replaced { by } = &weight.change else { return None };
        let ((layer, place), (is, other)) = (numbered(&weight.tensor)?, numbered(by)?);
        (place == other).then_some((layer, is))
    })
}

/// The first number in a name, and what is before and behind it.
fn numbered(name: &str) -> Option<(u64, (&str, &str))> {
    let mut start = 0;
    for piece in name.split('.') {
        let end = start + piece.len();
        if let Ok(number) = piece.parse() {
            return Some((number, (&name[..start], &name[end..])));
        }
        start = end + 1;
    }
    None
}

/// Says which layers are in the place of others, or `None` if there are none.
pub(super) fn described(moved: &[MovedLayer]) -> Option<String> {
    let first = moved.first()?;
    let is_back = |other: &&MovedLayer| (other.layer, other.is) == (first.is, first.layer);
    let (rest, said) = match moved.iter().find(is_back) {
        Some(_) => (2, format!("layers {} and {} have changed places", first.layer, first.is)),
        None => (1, format!("layer {} has the weights of layer {}", first.layer, first.is)),
    };
    let more = match moved.len() - rest {
        0 => String::new(),
        more => format!("; also {}", apr_core::counted(more as u64, "other layer")),
    };
    Some(format!("{said}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_number_of_the_layer() {
        assert_eq!(numbered("blk.12.attn_q.weight"), Some((12, ("blk.", ".attn_q.weight"))));
        assert_eq!(numbered("model.layers.3"), Some((3, ("model.layers.", ""))));
        assert_eq!(numbered("lm_head.weight"), None);
    }

    #[test]
    fn two_layers_in_each_others_place_are_one_exchange() {
        let moved = |layer, is| MovedLayer { layer, is, weights: 3 };
        let said = |moved: &[MovedLayer]| described(moved).unwrap_or_default();
        assert_eq!(said(&[moved(1, 2), moved(2, 1)]), "layers 1 and 2 have changed places");
        assert_eq!(said(&[moved(4, 3)]), "layer 4 has the weights of layer 3");
        assert_eq!(
            said(&[moved(0, 2), moved(1, 0), moved(2, 0)]),
            "layers 0 and 2 have changed places; also 1 other layer"
        );
        assert_eq!(described(&[]), None);
    }
}
