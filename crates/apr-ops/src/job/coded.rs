//! Weights that are stored in codes and scales: kept so, or decoded.

use std::collections::BTreeSet;

use apr_core::{Coding, Convention};
use apr_registry::{
    CheckpointReader, Computes, DType, Format, QuantizedTypes, Result as ModelResult,
};
use apr_view::{Apart, Base, MXFP4_EXPERTS, View, is_of_activations};
use serde::Serialize;

use super::planned::Parts;
use super::weights::Weights;

/// What became of weights that the source stores in codes and scales.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CodedWeights {
    /// How many there are.
    pub weights: usize,
    /// What they are stored as, each once.
    pub stored: Vec<String>,
    /// Whether codes and scales are in the output as they were; otherwise the weights are floats
    /// there, or what those were made into.
    pub kept: bool,
    /// Scales of activations that were left out, since the weights are decoded.
    pub left_out: usize,
}

impl CodedWeights {
    /// Of the wanted kinds of a checkpoint; `None` where it has no such weights.
    fn of(
        content: &dyn CheckpointReader,
        wanted: impl Fn(&Coding<'_>) -> bool,
        kept: bool,
    ) -> Option<Self> {
        let positions = 0..content.tensors().len();
        let (mut weights, mut of_activations) = (BTreeSet::new(), 0);
        let mut stored = BTreeSet::new();
        let codings = positions.filter_map(|position| content.stored(position).coding());
        for coding in codings.filter(|coding| wanted(coding)) {
            weights.insert(coding.whole.to_owned());
            of_activations += coding.names().filter(|name| is_of_activations(name)).count();
            stored.insert(coding.description.to_owned());
        }
        let left_out = if kept { 0 } else { of_activations };
        (!weights.is_empty()).then(|| Self {
            weights: weights.len(),
            stored: stored.into_iter().collect(),
            kept,
            left_out,
        })
    }
}

impl Weights {
    /// Whether the output has codes and scales where the source has them: in a format that takes
    /// tensors of all kinds, where nobody asked for other values, and the source is a file as it
    /// was written. Of a model that was merged, pruned or adapted, some weights are no codes any
    /// more, and the configuration speaks of all.
    pub(super) fn keeps_codes(&self, format: &Format, source: &dyn CheckpointReader) -> bool {
        let takes_all = format.target.is_some_and(|target| {
            matches!(target.quantized, QuantizedTypes::All | QuantizedTypes::Unpacked)
                && target.computes == Computes::Nothing
        });
        let has_names = matches!(format.convention, Convention::Framework | Convention::Canonical);
        takes_all
            && has_names
            && self.quantize.is_none()
            && self.dequantize.is_none()
            && source.container().undecoded().is_some()
    }
}

/// The content, made of `source`, with the parts of its coded weights in their place where they are
/// to be kept; and what became of the weights.
///
/// # Errors
/// E007 when a companion can't be read.
pub(super) fn with_codes<'a>(
    content: View<'a>,
    source: &dyn CheckpointReader,
    mut parts: Parts,
) -> ModelResult<(View<'a>, Parts, Option<CodedWeights>)> {
    if !parts.options.keeps_codes || !Apart::is_needed(&content) {
        let has_blocks = content.tensors().iter().any(|info| info.dtype == DType::MXFP4);
        let is_decoded = |coding: &Coding<'_>| {
            let is_expert = has_blocks && coding.kind == MXFP4_EXPERTS;
            !is_expert && !parts.in_blocks.contains(coding.weight)
        };
        let coded = CodedWeights::of(source, is_decoded, false);
        return Ok((content, parts, coded));
    }
    let coded = CodedWeights::of(&content, |_| true, true);
    let apart = Apart::new(Base::owning(content))?;
    let targets = std::mem::take(&mut parts.options.targets);
    let infos = apart.tensors().iter().zip(apart.origins());
    let targets = infos.map(|(info, origin)| {
        let whole = || targets.get(origin.tensor).cloned().flatten();
        if origin.part.is_some() { Some(info.dtype.into()) } else { whole() }
    });
    parts.options.targets = targets.collect();
    let places = apart.origins().iter().map(|origin| (origin.tensor, origin.part.is_some()));
    parts.validator = parts.validator.placed(places);
    let mapping = View::new(&apart).into_mapping();
    Ok((mapping.over(Base::owning(apart)), parts, coded))
}
