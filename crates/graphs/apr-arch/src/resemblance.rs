//! The known family that a model of an unknown one is most like, and how it differs.

use std::collections::BTreeSet;

use apr_core::{Metadata, TensorInfo};
use serde::Serialize;

use crate::builtin;
use crate::defaults;
use crate::dimensions::Told;
use crate::families::Families;
use crate::family::Family;
use crate::model::{FamilyModel, Mismatch};
use crate::names::{NameGroups, without_numbers};

/// Differences of a kind that are listed.
const LISTED: usize = 12;

/// Known family whose tensor names are most similar to the names in a model of an unknown family.
///
/// A model with a different computation can have the same names and shapes. The family is therefore
/// a starting point for a table, not an identification of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Resemblance {
    /// Name of the family, as a table's `extends` takes it.
    pub family: String,
    /// Title of the family for display.
    pub title: String,
    /// Number of tensors whose names match the family.
    pub known: usize,
    /// Tensors of the checkpoint.
    pub total: usize,
    /// Tensors that the family does not have; `*` represents numbers.
    pub unexpected: Vec<String>,
    /// Tensors of the family that the checkpoint lacks.
    pub missing: Vec<String>,
    /// Tensors that have other shapes in the family.
    pub shapes: Vec<String>,
    /// Entries of the configuration that the family's class does not have.
    pub entries: Vec<String>,
}

impl Families {
    /// The family that a checkpoint of an unknown one is most like, by the names of its tensors:
    /// the one that knows most of them, and misses fewest. `None` where none knows half of them.
    #[must_use]
    pub fn nearest(&self, tensors: &[TensorInfo], metadata: &Metadata) -> Option<Resemblance> {
        self.nearest_of(tensors, metadata, |_| true)
    }

    /// Returns the most similar of those families that `is_wanted` accepts.
    pub(crate) fn nearest_of(
        &self,
        tensors: &[TensorInfo],
        metadata: &Metadata,
        is_wanted: impl Fn(&Family) -> bool,
    ) -> Option<Resemblance> {
        let names = NameGroups::of(tensors);
        let mut most = tensors.len().div_ceil(2).max(1);
        let mut best: Option<(usize, Resemblance)> = None;
        for family in self.iter().filter(|family| is_wanted(family)) {
            let Some((naming, known)) = names.best_naming(family, most) else { continue };
            let model = FamilyModel::new(family, naming, &names, tensors, metadata);
            let mismatches = model.mismatches(tensors);
            let kinds = |is_it: fn(&Mismatch) -> bool| kinds(&mismatches, is_it);
            let unexpected = kinds(|it| matches!(it, Mismatch::Unexpected { .. }));
            let missing = kinds(|it| matches!(it, Mismatch::Missing { .. }));
            let shapes = kinds(|it| matches!(it, Mismatch::Shape { .. }));
            let entries = entries_beyond(family, metadata);
            let differ = unexpected.len() + missing.len() + shapes.len() + entries.len();
            let fewest = best.as_ref().filter(|_| known == most).map(|(fewest, _)| *fewest);
            if fewest.is_none_or(|fewest| differ < fewest) {
                most = known;
                let found = Resemblance {
                    family: family.name().to_owned(),
                    title: family.title().to_owned(),
                    known,
                    total: tensors.len(),
                    unexpected: listed(unexpected),
                    missing: listed(missing),
                    shapes: listed(shapes),
                    entries: listed(entries),
                };
                best = Some((differ, found));
            }
        }
        best.map(|(_, found)| found)
    }
}

/// Returns the entries of the configuration that neither the family's class nor its table has.
pub(crate) fn entries_beyond(family: &Family, metadata: &Metadata) -> Vec<String> {
    let told = Told::by(metadata, family);
    let mut entries = told.entries_beyond(defaults::of(family, None));
    entries.retain(|entry| !builtin::has_word(family, entry));
    entries
}

/// Returns the tensor names of some mismatches, once for names that differ only in numbers.
fn kinds(mismatches: &[Mismatch], is_it: impl Fn(&Mismatch) -> bool) -> Vec<String> {
    let names = mismatches.iter().filter(|it| is_it(it)).map(|it| without_numbers(it.name()));
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Truncates a list of names, and adds the number of names left out.
fn listed(mut names: Vec<String>) -> Vec<String> {
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    names.extend((more > 0).then(|| format!("{more} more")));
    names
}

#[cfg(test)]
mod tests {
    use apr_core::DType;
    use serde_json::json;

    use super::*;

    /// Names and configuration are GraniteMoE's, as transformers 5.24 saves them.
    #[test]
    fn the_nearest_family_is_the_one_that_differs_least() {
        let layers = (0..2).flat_map(|layer| {
            [
                "feed.input_linear",
                "feed.output_linear",
                "feed.router.layer",
                "input_layernorm",
                "post_attention_layernorm",
                "self_attn.k_proj",
                "self_attn.o_proj",
                "self_attn.q_proj",
                "self_attn.v_proj",
            ]
            .map(|part| format!("model.layers.{layer}.{part}.weight"))
        });
        let outer = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"];
        let names = layers.chain(outer.map(str::to_owned));
        let tensors: Vec<TensorInfo> = names
            .map(|name| TensorInfo { name, dtype: DType::F32, shape: [8, 8].into() })
            .collect();
        let config = json!({
            "architectures": ["GraniteFeedForCausalLM"], "attention_multiplier": 0.1,
            "embedding_multiplier": 2.0, "logits_scaling": 3.0, "residual_multiplier": 0.5,
            "num_hidden_layers": 2, "feed_depth": 4, "transformers_version": "5",
        });
        let metadata = json!({ "model_type": "granitefeed", "architecture": config });
        let metadata = Metadata::from(metadata.as_object().cloned().unwrap_or_default());
        let nearest = Families::builtin().nearest(&tensors, &metadata).expect("one is like it");
        assert_eq!(nearest.family, "granite", "{nearest:?}");
        assert_eq!((nearest.known, nearest.total), (15, 21));
        assert_eq!(nearest.unexpected.len(), 3, "{nearest:?}");
        assert!(nearest.missing.contains(&"model.layers.*.mlp.gate_proj.weight".to_owned()));
        assert_eq!(nearest.entries, ["feed_depth"]);
    }

    #[test]
    fn a_model_that_matches_less_than_half_of_any_family_resembles_none() {
        let tensors = ["a.weight", "b.weight", "lm_head.weight"].map(|name| TensorInfo {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: [2].into(),
        });
        assert_eq!(Families::builtin().nearest(&tensors, &Metadata::default()), None);
    }
}
