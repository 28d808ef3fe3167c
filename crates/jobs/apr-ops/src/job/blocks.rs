//! Weights of four-bit floats in blocks of GGUF's types, which hold the same numbers: nothing is
//! rounded on the way.

use std::collections::{BTreeMap, BTreeSet};

use apr_arch::{FamilyModel, GgufLayout};
use apr_core::{Coding, counted};
use apr_registry::{CheckpointReader, DType, Error, Result as ModelResult, TensorInfo};
use apr_source::Source;
use apr_view::{Apart, Base, Blocks, Factors, MXFP4_EXPERTS, NVFP4_BLOCKS, View};

use super::weights::Weights;
use crate::import::Foreign;

/// Suffixes of GGUF tensor names for the factor of a weight and the scale of its activations.
///
/// They replace the end of the weight's name.
const FACTORS: [&str; 2] = [".scale", ".input_scale"];

/// The weights that went into blocks.
pub(super) struct InBlocks {
    /// Factors of the weights, by weight name.
    factors: BTreeMap<String, Factors>,
    /// The weights by the names of their parts.
    pub(super) weights: BTreeSet<String>,
    /// Warning about weights that could not be stored in blocks.
    pub(super) warning: Option<String>,
}

/// The content with the parts of gpt-oss's experts in place of their values: GGUF's layout cuts
/// them before it makes blocks.
pub(super) fn with_experts(content: View<'_>) -> ModelResult<View<'_>> {
    let positions = 0..content.tensors().len();
    let mut codings = positions.filter_map(|position| content.stored(position).coding());
    if !codings.any(|coding| coding.kind == MXFP4_EXPERTS) {
        return Ok(content);
    }
    let apart = Apart::of(Base::owning(content), |kind| kind == MXFP4_EXPERTS)?;
    let mapping = View::new(&apart).into_mapping();
    Ok(mapping.over(Base::owning(apart)))
}

/// Stores four-bit float weights of the content in blocks, unless the job converts them.
///
/// # Errors
/// E002 for factors that are not numbers.
pub(super) fn with_blocks<'a>(
    content: View<'a>,
    weights: &Weights,
    source: &Source<'a>,
) -> ModelResult<(View<'a>, Option<InBlocks>)> {
    if weights.quantize.is_some() || weights.dequantize.is_some() {
        return Ok((content, None));
    }
    let family = source.family_in(&content)?;
    let chosen = chosen(&content, family.as_ref(), weights.precision.is_none());
    drop(family);
    if chosen.iter().all(|chosen| *chosen == Chosen::Other) {
        return Ok((content, None));
    }

    let is_in_blocks = |position: usize| chosen.get(position) == Some(&Chosen::Blocks);
    let coding = |position: usize| content.stored(position).coding();
    let names = (0..chosen.len()).filter(|&position| is_in_blocks(position));
    let names = names.filter_map(|position| Some(coding(position)?.weight.to_owned())).collect();
    let warning = without_blocks(&content, &chosen);
    let blocks = Blocks::new(Base::owning(content), |position, _| is_in_blocks(position))?;
    let found = InBlocks { factors: blocks.factors().clone(), weights: names, warning };
    let mapping = View::new(&blocks).into_mapping();
    Ok((mapping.over(Base::owning(blocks)), Some(found)))
}

/// Storage chosen for a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chosen {
    /// The tensor is not of four-bit floats, or the job converts it otherwise.
    Other,
    Blocks,
    /// The tensor is stored as values: its numbers exist in blocks, but it does not fit them.
    Values,
}

/// Chooses the storage of each tensor.
///
/// `in_any_order`: also convert weights to blocks that are not in blocks yet.
fn chosen(
    content: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
    in_any_order: bool,
) -> Vec<Chosen> {
    let of = |(position, info): (usize, &TensorInfo)| {
        let stored = content.stored(position);
        let coding: Option<Coding<'_>> = stored.coding();
        let fits = coding.and_then(|coding| Some((coding.kind, Blocks::of(info, &coding)?)));
        match (fits, model) {
            (Some((NVFP4_BLOCKS, _)), _) => (Chosen::Blocks, None),
            (Some((_, (dtype, fits))), Some(model)) if in_any_order => {
                let canonical = model.canonical(position);
                match fits && canonical.is_some_and(|canonical| is_in_rows(model, canonical)) {
                    true => (Chosen::Blocks, Some(dtype)),
                    false => (Chosen::Values, None),
                }
            }
            _ => (Chosen::Other, None),
        }
    };
    let found: Vec<_> = content.tensors().iter().enumerate().map(of).collect();

    // The parts of a stack are one tensor, and have one dtype.
    let stack = |position| model?.family().stack(model?.canonical(position)?).map(|(name, _)| name);
    let mut of_stacks: BTreeMap<String, BTreeSet<Option<DType>>> = BTreeMap::new();
    for (position, (_, dtype)) in found.iter().enumerate() {
        if let Some(stack) = stack(position) {
            of_stacks.entry(stack).or_default().insert(*dtype);
        }
    }
    let is_split = |position| {
        let stack = stack(position).and_then(|stack| of_stacks.get(&stack));
        stack.is_some_and(|dtypes| dtypes.len() > 1)
    };
    let of_all = found.iter().enumerate().map(|(position, (chosen, _))| match chosen {
        Chosen::Blocks if is_split(position) => Chosen::Values,
        chosen => *chosen,
    });
    of_all.collect()
}

/// Returns `true` if llama.cpp stores the rows of a tensor unchanged, in any order.
pub(super) fn is_in_rows(model: &FamilyModel<'_>, canonical: &str) -> bool {
    use GgufLayout::{Groups, Same, SkipRows, Swap};
    let layout = model.gguf_layout(canonical);
    let has_rows = matches!(layout, Ok(Same | Swap(_) | SkipRows(_) | Groups(_)));
    has_rows && model.family().cuts(canonical).is_empty()
}

/// Returns a warning about weights that become values although GGUF has blocks for them.
fn without_blocks(content: &dyn CheckpointReader, chosen: &[Chosen]) -> Option<String> {
    let of_values = content.tensors().iter().zip(chosen);
    let mut of_values = of_values.filter(|(_, chosen)| **chosen == Chosen::Values);
    let (first, _) = of_values.next()?;
    let count = counted(1 + of_values.count() as u64, "weight");
    Some(format!(
        "{count} of four-bit floats became values of {}, such as '{}': its rows are not whole \
         blocks, or llama.cpp stores it in another layout",
        first.dtype, first.name
    ))
}

impl InBlocks {
    /// Puts the factors of weights behind them, under llama.cpp's names.
    ///
    /// # Errors
    /// E001 where a weight's name does not say what its factor is called.
    pub(super) fn add_factors<'a>(&self, foreign: Foreign<'a>) -> ModelResult<Foreign<'a>> {
        let Foreign { mut prepared, dtypes, losses, config } = foreign;
        let tensors = prepared.view.tensors();
        let names = |info: &TensorInfo| prepared.view.names_below(&info.name);
        let mut places = Vec::new();
        let mut added = Vec::new();
        for (position, info) in tensors.iter().enumerate() {
            let below: Vec<&Factors> =
                names(info).iter().filter_map(|name| self.factors.get(*name)).collect();
            // Blocks without their factor are not of the size that weights have.
            places.push((position, below.iter().any(|factors| factors.scale.is_some())));
            let scale = factor(below.iter().map(|factors| factors.scale.as_ref()), Some(1.0));
            let of_input = factor(below.iter().map(|factors| factors.input_scale.as_ref()), None);
            for (end, values) in FACTORS.into_iter().zip([scale, of_input]) {
                let Some(values) = values else { continue };
                let stem = info.name.strip_suffix(".weight").ok_or_else(|| {
                    let message = "llama.cpp does not store the factor of its 4-bit floats";
                    Error::format(message).for_tensor(&info.name)
                })?;
                added.push((places.len(), named(&format!("{stem}{end}"), &values)));
                places.push((position, true));
            }
        }

        let mut dtypes = dtypes;
        dtypes.resize(tensors.len(), None);
        for (place, (info, bytes)) in added {
            dtypes.insert(place, None);
            prepared.view.insert(place, info, bytes);
        }
        prepared.validator = prepared.validator.placed(places.into_iter());
        Ok(Foreign { prepared, dtypes, losses, config })
    }
}

/// Joins the factors of the parts of a stack.
///
/// A part without a factor gets `otherwise`. If that is `None`, the stack gets no factors.
fn factor<'f>(
    parts: impl Iterator<Item = Option<&'f Vec<f32>>> + Clone,
    otherwise: Option<f32>,
) -> Option<Vec<f32>> {
    let len = parts.clone().flatten().map(Vec::len).next()?;
    let of_part = |part: Option<&Vec<f32>>| match (part, otherwise) {
        (Some(part), _) => Some(part.clone()),
        (None, Some(value)) => Some(vec![value; len]),
        (None, None) => None,
    };
    Some(parts.map(of_part).collect::<Option<Vec<_>>>()?.concat())
}

/// A tensor of these numbers.
fn named(name: &str, values: &[f32]) -> (TensorInfo, Vec<u8>) {
    let shape = [values.len() as u64].into();
    let info = TensorInfo { name: name.to_owned(), dtype: DType::F32, shape };
    (info, values.iter().flat_map(|value| value.to_le_bytes()).collect())
}
