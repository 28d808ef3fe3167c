//! Weights that are stored in codes and scales: kept so, or decoded.

use std::collections::BTreeSet;

use apr_core::{Coding, Convention};
use apr_registry::{
    CheckpointReader, Computes, DType, Format, QuantizedTypes, Result as ModelResult,
};
use apr_view::{
    Apart, Base, Blocks, MLX_CODES, MXFP4_EXPERTS, View, is_of_activations, stacked_for_mlx,
};
use serde::Serialize;

use super::planned::Parts;
use super::weights::Weights;

/// Treatment of weights that the source stores in codes and scales.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CodedWeights {
    /// Number of such weights.
    #[serde(rename = "weight_count")]
    pub weights: usize,
    /// Stored forms of the weights, without duplicates.
    pub stored: Vec<String>,
    /// `true` if codes and scales are unchanged in the output.
    ///
    /// Otherwise the weights are decoded to floats there, or to what the job converts floats to.
    pub kept: bool,
    /// Scales of activations that were left out, since the weights are decoded.
    #[serde(rename = "left_out_count")]
    pub left_out: usize,
    /// Others, which are in blocks of the output's types with the same codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_blocks: Option<WeightsInBlocks>,
}

/// Weights whose codes are stored in blocks of the output's types, without rounding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WeightsInBlocks {
    /// Number of such weights.
    #[serde(rename = "weight_count")]
    pub weights: usize,
    /// Stored forms of the weights in the source, without duplicates.
    pub stored: Vec<String>,
    /// Dtypes to which reading the source rounds products of codes and scales, as the method's
    /// library does, and the blocks do not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_rounded_to: Vec<String>,
}

/// Weights in codes and scales with the same treatment.
#[derive(Default)]
struct Found {
    weights: BTreeSet<String>,
    stored: BTreeSet<String>,
    of_activations: usize,
    /// Dtypes to which values are rounded that blocks do not round.
    rounded_to: BTreeSet<&'static str>,
}

impl Found {
    /// The wanted ones of a checkpoint.
    fn of(content: &dyn CheckpointReader, wanted: impl Fn(&Coding<'_>) -> bool) -> Self {
        let mut found = Self::default();
        for (position, info) in content.tensors().iter().enumerate() {
            let Some(coding) = content.stored(position).coding().filter(|coding| wanted(coding))
            else {
                continue;
            };
            if Blocks::omits_rounding(info, &coding) {
                found.rounded_to.insert(info.dtype.name());
            }
            found.weights.insert(coding.whole.to_owned());
            found.of_activations += coding.names().filter(|name| is_of_activations(name)).count();
            found.stored.insert(coding.description.to_owned());
        }
        found
    }
}

impl CodedWeights {
    /// Returns the treatment of the weights that are kept, decoded or stored in blocks.
    ///
    /// Returns `None` if there are no such weights.
    fn of(found: Found, in_blocks: Found, kept: bool) -> Option<Self> {
        let are_in_blocks = !in_blocks.weights.is_empty();
        (are_in_blocks || !found.weights.is_empty()).then(|| Self {
            weights: found.weights.len(),
            stored: found.stored.into_iter().collect(),
            kept,
            left_out: if kept { 0 } else { found.of_activations },
            in_blocks: are_in_blocks.then(|| WeightsInBlocks {
                weights: in_blocks.weights.len(),
                stored: in_blocks.stored.into_iter().collect(),
                not_rounded_to: in_blocks.rounded_to.into_iter().map(str::to_owned).collect(),
            }),
        })
    }
}

impl Weights {
    /// Returns `true` if the output keeps the codes and scales of the source.
    ///
    /// The format must support tensors of all kinds, the job must not request other values, and the
    /// source must be an unchanged file, or some of its tensors. In a model that was merged, pruned
    /// or adapted, some weights are no longer codes, but the configuration applies to all weights.
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
            && (source.container().undecoded().is_some() || is_selection(source))
    }
}

/// Returns `true` if tensors of a file in codes were left out or added, and none was changed or
/// renamed: a configuration may name modules.
fn is_selection(source: &dyn CheckpointReader) -> bool {
    let is_of_file = |tensor: usize| {
        let stored = source.stored(tensor);
        match stored.coding() {
            Some(coding) => coding.whole == source.tensors()[tensor].name,
            None => !stored.is_derived(),
        }
    };
    let is_coded = |tensor: usize| source.stored(tensor).coding().is_some();
    let all = || 0..source.tensors().len();
    all().any(is_coded) && all().all(is_of_file)
}

/// Replaces the coded weights of the content by their parts if they are to be kept.
///
/// The content is made from `source`. Also returns how the weights were treated.
///
/// # Errors
/// E007 when a companion can't be read.
pub(super) fn with_codes<'a>(
    content: View<'a>,
    source: &dyn CheckpointReader,
    mut parts: Parts,
    format: &Format,
) -> ModelResult<(View<'a>, Parts, Option<CodedWeights>)> {
    if !parts.options.keeps_codes || !Apart::is_needed(&content) {
        let target = |at: usize| parts.options.targets.get(at).and_then(Option::as_ref);
        let stays = |at: usize| target(at).is_none_or(|target| target.dtype == DType::MXFP4);
        let mut infos = content.tensors().iter().enumerate();
        let has_blocks = infos.any(|(at, info)| info.dtype == DType::MXFP4 && stays(at));
        let is_in_blocks = |coding: &Coding<'_>| {
            let is_expert = has_blocks && coding.kind == MXFP4_EXPERTS;
            is_expert || parts.in_blocks.contains(coding.weight)
        };
        let decoded = Found::of(source, |coding| !is_in_blocks(coding));
        let coded = CodedWeights::of(decoded, Found::of(source, is_in_blocks), false);
        return Ok((content, parts, coded));
    }
    let coded = CodedWeights::of(Found::of(&content, |_| true), Found::default(), true);
    let mut codings = (0..content.tensors().len()).filter_map(|at| content.stored(at).coding());
    let is_mlx = codings.any(|coding| coding.kind == MLX_CODES);
    let apart = Apart::new(Base::owning(content))?;
    let targets = std::mem::take(&mut parts.options.targets);
    let infos = apart.tensors().iter().zip(apart.origins());
    let targets = infos.map(|(info, origin)| {
        let whole = || targets.get(origin.tensor).cloned().flatten();
        if origin.part.is_some() { Some(info.dtype.into()) } else { whole() }
    });
    let mut targets: Vec<_> = targets.collect();
    let places = apart.origins().iter().map(|origin| (origin.tensor, origin.part.is_some()));
    let mut places: Vec<_> = places.collect();
    let mapping = View::new(&apart).into_mapping();
    let mut content = mapping.over(Base::owning(apart));
    if is_mlx && format.convention == Convention::Framework {
        let (stacked, origins) = stacked_for_mlx(Base::owning(content))?;
        content = stacked;
        targets = origins.iter().map(|tensor| targets[*tensor].take()).collect();
        places = origins.into_iter().map(|tensor| places[tensor]).collect();
    }
    parts.options.targets = targets;
    parts.validator = parts.validator.placed(places.into_iter());
    Ok((content, parts, coded))
}
