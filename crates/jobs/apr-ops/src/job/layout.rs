//! A model under the names and in the layout of its target.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use apr_arch::FamilyModel;
use apr_llama::is_in_gguf_layout;
use apr_quantize::{
    Choices, Chosen, Laid, Layout, LayoutRule, LeftReason, LeftWeight, Quantization, Scheme,
    Weighting, idle_requantize, joined, note_of_unweighted, place,
};
use apr_registry::{
    CheckpointReader, Computes, Convention, DType, Error, Escaped, Format, PlanOptions,
    QuantizedTypes, Result as ModelResult, TensorInfo, safetensors,
};
use apr_source::Source;
use apr_view::{Base, Blocks, Change, Unpacked, View, stacked_for_mlx};

use super::blocks::{InBlocks, with_blocks, with_experts};
use super::description::Job;
use super::error::JobError;
use super::integers::Integers;
use super::planned::{Parts, Planned};
use super::weights::called;

use crate::convert::ConvertOptions;
use crate::import::{Foreign, PrepareOptions, prepare, restore_to};
use crate::inline::{InlineValidator, ValidationConfig};

/// Metadata key of the model's display name.
const NAME: &str = "model_name";

/// The companion without which libraries find no model in a folder.
const CONFIG: &str = "config.json";
const NO_CONFIG: &str = "no config.json in the folder, which libraries need: pass `config` FILE";

/// Returns the weights that stay in floats as text, one for each reason.
fn reasons(left: &[LeftWeight]) -> Vec<String> {
    const SHOWN: usize = 3;
    let mut groups: Vec<(LeftReason, Vec<&str>)> = Vec::new();
    for LeftWeight { module, why, .. } in left {
        match groups.iter_mut().find(|(known, _)| known == why) {
            Some((_, modules)) => modules.push(module),
            None => groups.push((*why, vec![module])),
        }
    }
    let text = |(why, modules): (LeftReason, Vec<&str>)| {
        let more = match modules.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{why} ({}{more})", modules[..modules.len().min(SHOWN)].join(", "))
    };
    groups.into_iter().map(text).collect()
}

/// Returns a note about weights that stay in floats according to the configuration.
fn left_in_floats(left: &[LeftWeight]) -> Option<String> {
    (!left.is_empty()).then(|| format!("left in floats: {}", reasons(left).join("; ")))
}

/// Returns the error for a model if the layout supports none of its weights.
fn nothing_to_quantize(scheme: Scheme, left: &[LeftWeight]) -> JobError {
    let message = match &reasons(left)[..] {
        [] => format!("nothing to quantize: the model has no matrices of floats for {scheme}"),
        reasons => format!(
            "nothing to quantize: {scheme} supports no weight of the model: {}",
            reasons.join("; ")
        ),
    };
    JobError::Request(message)
}

/// Returns the layouts of single weights.
///
/// # Errors
/// Returns an error for choices that a layout does not have: types of blocks, and layouts that no
/// library reads beside it.
fn rules_of(
    choices: &Choices,
    layout: Layout,
    format: &Format,
) -> Result<Vec<LayoutRule>, JobError> {
    let given = [
        ("`embedding_type`", choices.embedding_type.is_some()),
        ("`output_type`", choices.output_type.is_some()),
        ("`pure`", choices.pure),
    ];
    if let Some((choice, _)) = given.iter().find(|(_, given)| *given) {
        return Err(JobError::Request(format!(
            "{choice} chooses types of blocks: {} in {} is a layout of codes and scales",
            choices.scheme, format.name
        )));
    }
    let is_strange = |rule: &&LayoutRule| rule.to.is_ok_and(|other| !layout.mixes_with(other));
    let rules = choices.overrides.iter().map(|(pattern, wanted)| LayoutRule::new(pattern, *wanted));
    let rules: Vec<LayoutRule> = rules
        .collect::<ModelResult<_>>()
        .map_err(|error| JobError::Request(error.message().to_owned()))?;
    match rules.iter().find(is_strange) {
        Some(rule) => Err(JobError::Request(format!(
            "`tensor_type` {rule}: no library reads this type beside {}",
            choices.scheme
        ))),
        None => Ok(rules),
    }
}

/// Rejects different types of weights that libraries join to one.
fn check_joined(layout: Layout, content: &View<'_>, chosen: &Chosen) -> Result<(), JobError> {
    let sets = joined(layout, content, &chosen.names);
    let mut first: HashMap<usize, usize> = HashMap::new();
    for (tensor, set) in sets.into_iter().enumerate() {
        let other = *first.entry(set).or_insert(tensor);
        if chosen.weights[other] != chosen.weights[tensor] {
            let name = |tensor: usize| Escaped::short(&content.tensors()[tensor].name).to_string();
            return Err(JobError::Request(format!(
                "`tensor_type`: {} and {} need one type, because libraries join them",
                name(other),
                name(tensor)
            )));
        }
    }
    Ok(())
}

/// Importance weights of each tensor's columns, and a note about them for the report.
type Weighed = (Vec<Option<Arc<[f32]>>>, Option<String>);

/// Returns the importance weights of tensors for which a layout was chosen.
fn importance(
    asked: &Quantization,
    layout: Layout,
    content: &View<'_>,
    family: Option<&FamilyModel<'_>>,
    chosen: &Chosen,
) -> Result<Weighed, JobError> {
    let scheme = asked.choices.scheme;
    let Some(weighting) = &asked.weighting else { return Ok((Vec::new(), None)) };
    let what = called(weighting);
    if !layout.searches_scales() {
        let idle = format!("{what} has no effect: the layout {scheme} does not search scales");
        return Ok((Vec::new(), Some(idle)));
    }
    let found: Vec<Option<Arc<[f32]>>> = match weighting {
        Weighting::Matrix { matrix, .. } => {
            apr_quantize::importance(content, family, matrix).map_err(JobError::unsuited)?
        }
        Weighting::Columns(columns) => {
            let of = |info: &TensorInfo| columns.importance(info.shape.row_len()).map(Arc::from);
            content.tensors().iter().map(of).collect()
        }
    };
    let laid = content.tensors().iter().zip(&found).zip(&chosen.weights);
    let laid: Vec<_> = laid.filter_map(|(tensor, layout)| layout.and(Some(tensor))).collect();
    let without = laid.iter().filter(|(_, found)| found.is_none());
    let without: Vec<&str> = without.map(|(info, _)| info.name.as_str()).collect();
    if without.len() == laid.len() {
        let message = format!("{what} is of none of the weights that {scheme} takes");
        return Err(JobError::Request(message));
    }
    Ok((found, note_of_unweighted(&without)))
}

/// Checks that quantized tensors among some tensors of the source may be laid out.
///
/// They are quantized in blocks or in codes and scales. Returns a warning if permission to
/// requantize was given but not needed.
fn check_again<'t>(
    choices: &Choices,
    source: &dyn CheckpointReader,
    tensors: impl Iterator<Item = &'t usize>,
) -> Result<Option<String>, JobError> {
    let mut is_idle = choices.requantize;
    for &tensor in tensors {
        let TensorInfo { name, dtype, .. } = &source.tensors()[tensor];
        let coding = source.stored(tensor).coding();
        let own = match coding {
            Some(coding) => coding.description,
            None if dtype.is_quantized() => dtype.name(),
            None => continue,
        };
        is_idle = false;
        let checked = apr_quantize::check_again(own, choices.scheme.name(), choices);
        checked.map_err(|error| JobError::unsuited(error.for_tensor(name)))?;
    }
    Ok(is_idle.then(idle_requantize))
}

/// Weights that a layout of codes and scales is for.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LaidWeights {
    /// Layout of each weight and number of the set that servers join, by the position of the weight
    /// in the source.
    pub weights: BTreeMap<usize, (Layout, usize)>,
    /// Warning that the permission to requantize the weights was not needed.
    pub idle: Option<String>,
}

/// Makes floats of tensors in blocks.
fn decode_blocks(view: &mut View<'_>) -> ModelResult<()> {
    view.change(|position, info| {
        if !info.dtype.is_quantized() {
            return Ok(None);
        }
        let mut info = info.clone();
        let change = Change::decoded(&mut info, position, DType::F32)?;
        Ok(Some((info, change)))
    })
}

/// Returns the names that libraries use for the tensors of a source, by the names in the source.
///
/// # Errors
/// E003 for a file with the rows of llama.cpp, and the errors of [`restore_to`].
fn names_of_libraries(source: &Source<'_>) -> ModelResult<HashMap<String, String>> {
    if is_in_gguf_layout(source.reader()) {
        let message = "its rows are in the order of llama.cpp: quantize it into a safetensors \
                       folder, and convert that";
        return Err(Error::version(message));
    }
    let nothing = ValidationConfig::integrity();
    let foreign = restore_to(source, &safetensors::FORMAT, nothing, DType::F32)?;
    let view = foreign.prepared.view;
    let named = view.tensors().iter().filter_map(|info| match view.names_below(&info.name)[..] {
        [below] => Some((below.to_owned(), info.name.clone())),
        _ => None,
    });
    Ok(named.collect())
}

impl Job {
    /// Plans a copy of the selected tensors.
    pub(super) fn plan_copy<'a>(
        &self,
        selected: View<'a>,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        // Between files of llama.cpp, the factors of blocks keep their names.
        let conventions = [source.reader().format(), self.target.format];
        let stays = conventions.map(|format| format.convention) == [Convention::LlamaCpp; 2];
        let parts = Parts {
            options: ConvertOptions {
                warnings: self.weights.warnings.clone(),
                decompress: self.weights.decompress,
                dense: self.weights.dense,
                keeps_codes: stays || self.weights.keeps_codes(self.target.format, source.reader()),
                ..ConvertOptions::default()
            },
            losses: Vec::new(),
            validator: InlineValidator::new(self.validation),
            family: None,
            misfits: Vec::new(),
            graph_misfits: None,
            warnings: Vec::new(),
            in_blocks: BTreeSet::new(),
        };
        Planned::new(self, source, selected, parts)
    }

    /// Plans a file of the native container, with canonical names and the companions' facts.
    pub(super) fn plan_canonical<'a>(
        &self,
        mut selected: View<'a>,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        let layout = self.weights.layout(self.target.format);
        let mut names = HashMap::new();
        if layout.is_some() {
            decode_blocks(&mut selected)?;
            names = names_of_libraries(&source.through(&selected))?;
        }
        let options = PrepareOptions { validation: self.validation, license: self.license.clone() };
        let mut prepared = prepare(&source.through(&selected), &options)?;
        self.record_source(prepared.view.metadata_mut());
        let options =
            self.weights.apply(&mut prepared.view, Vec::new(), self.target.format, source)?;
        let (mapping, parts) = Parts::of(prepared, options, Vec::new());
        let content = mapping.over(Base::owning(selected));
        match layout {
            Some(layout) => {
                let named = content.tensors().iter().enumerate().filter_map(|(tensor, info)| {
                    let below = content.names_below(&info.name);
                    let [below] = below[..] else { return None };
                    Some((tensor, names.remove(below)?))
                });
                let named = named.collect();
                self.plan_laid((layout, named), content, parts, source)
            }
            None => Planned::new(self, source, content, parts),
        }
    }

    /// Plans a file of another format: names and layout that its programs expect.
    pub(super) fn plan_foreign<'a>(
        &self,
        mut selected: View<'a>,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        let quantizes = self.weights.quantize.is_some();
        let to_llama = self.target.format.convention == Convention::LlamaCpp;
        if self.weights.layout(self.target.format).is_some() {
            // What is written of blocks are codes of another kind, or floats.
            decode_blocks(&mut selected)?;
        }
        let mut in_blocks = None;
        if to_llama {
            selected = with_experts(selected)?;
            (selected, in_blocks) = with_blocks(selected, &self.weights, source)?;
        }

        // llama-quantize then writes the same file.
        let as_llama_quantize = to_llama && quantizes;
        if as_llama_quantize && source.reader().format().convention == Convention::LlamaCpp {
            selected.sort_by_key(place);
        }

        let title = self
            .title
            .as_deref()
            .filter(|_| to_llama && source.reader().metadata().get(NAME).is_none());
        if let Some(title) = title {
            selected.metadata_mut().set(NAME, title);
        }

        let has_title = title.is_some();
        let (mut mapping, mut parts, integers) = {
            let foreign =
                self.restored(&source.through(&selected), in_blocks.as_ref(), has_title)?;
            let Foreign { mut prepared, dtypes, losses, .. } = foreign;
            let format = self.target.format;
            let mut options = self.weights.apply(&mut prepared.view, dtypes, format, source)?;
            let integers = if as_llama_quantize {
                Integers::find(&selected, &prepared.view, &mut options, source)?
            } else {
                None
            };
            let (mapping, parts) = Parts::of(prepared, options, losses);
            (mapping, parts, integers)
        };
        if let Some(integers) = integers {
            // Names and rows again, now of blocks; what was decided about types stays.
            parts.in_blocks.extend(integers.weights);
            let blocks = Blocks::of_integers(Base::owning(selected), integers.dtypes)?;
            let below = View::new(&blocks).into_mapping();
            selected = below.over(Base::owning(blocks));
            let foreign = self.restored(&source.through(&selected), None, has_title)?;
            let mut prepared = foreign.prepared;
            *prepared.view.metadata_mut() = integers.metadata;
            parts.validator = prepared.validator;
            mapping = prepared.view.into_mapping();
        }
        if let Some(in_blocks) = in_blocks {
            parts.warnings.extend(in_blocks.warning);
            parts.in_blocks.extend(in_blocks.weights);
        }
        let content = mapping.over(Base::owning(selected));
        if let Some(layout) = self.weights.layout(self.target.format) {
            return self.plan_laid((layout, BTreeMap::new()), content, parts, source);
        }
        if self.unpacks()? && Unpacked::is_needed(&content) {
            return self.plan_unpacked(content, parts, source);
        }

        Planned::new(self, source, content, parts)
    }

    /// The model under the names and in the layout of the output, with the factors of its blocks.
    /// `has_title` where the target's title was made the model's name, which it does not have.
    fn restored<'a>(
        &self,
        source: &Source<'a>,
        in_blocks: Option<&InBlocks>,
        has_title: bool,
    ) -> ModelResult<Foreign<'a>> {
        let mut foreign = self.foreign(source)?;
        if let Some(in_blocks) = in_blocks {
            foreign = in_blocks.add_factors(foreign)?;
        }
        let view = &mut foreign.prepared.view;
        if has_title {
            // The model itself has no name that could get lost.
            view.metadata_mut().remove(NAME);
        }
        let to_llama = self.target.format.convention == Convention::LlamaCpp;
        if to_llama && self.weights.quantize.is_some() {
            // It has what ggml made of the shapes.
            view.drop_outer_ones();
        }
        Ok(foreign)
    }

    /// Returns the model with the names and the layout of the output.
    ///
    /// Quantized tensors that can't stay quantized are decoded to the requested dtype.
    pub(super) fn foreign<'a>(&self, source: &Source<'a>) -> ModelResult<Foreign<'a>> {
        let decode_to = self.weights.dequantize.unwrap_or(DType::F32);
        let mut foreign = restore_to(source, self.target.format, self.validation, decode_to)?;
        let is_known = source.family()?.is_some() && foreign.config.is_none();
        let has_config = || source.reader().companions().iter().any(|file| file.name == CONFIG);
        let is_for_libraries = self.target.folder
            && self.target.format.convention == Convention::Framework
            && self.computes() == Computes::Nothing;
        if is_for_libraries && is_known && !has_config() {
            foreign.prepared.warnings.push(NO_CONFIG.to_owned());
        }
        Ok(foreign)
    }

    /// Returns `true` if tensors stay quantized, in a format with integers and scales for them.
    fn unpacks(&self) -> ModelResult<bool> {
        let stays_quantized = self.weights.dequantize.is_none() && self.weights.quantize.is_none();
        Ok(stays_quantized && self.target.target()?.quantized == QuantizedTypes::Unpacked)
    }

    /// Plans an output with codes and scales in place of weights, as servers load them from a
    /// folder.
    fn plan_laid<'a>(
        &self,
        (layout, names): (Layout, BTreeMap<usize, String>),
        content: View<'a>,
        mut parts: Parts,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        let Some(asked) = &self.weights.quantize else {
            return Planned::new(self, source, content, parts);
        };
        let scheme = asked.choices.scheme;
        if !self.target.folder && self.target.format.convention != Convention::Canonical {
            let message = format!(
                "{scheme} in safetensors requires a folder, whose config.json states how the \
                 weights are read: pass a folder as the output"
            );
            return Err(JobError::Request(message));
        }
        let rules = rules_of(&asked.choices, layout, self.target.format)?;
        let family = source.family_in(&content)?;
        let mut chosen = layout.choose(&content, family.as_ref(), names, &rules);
        if chosen.weights.iter().all(Option::is_none) {
            return Err(nothing_to_quantize(scheme, &chosen.left));
        }
        if !rules.is_empty() {
            check_joined(layout, &content, &chosen)?;
        }
        if !asked.choices.searched {
            parts.warnings.append(&mut chosen.warnings);
        }
        parts.warnings.extend(left_in_floats(&chosen.left));
        let weighed = importance(asked, layout, &content, family.as_ref(), &chosen)?;
        drop(family);
        chosen.importance = weighed.0;
        parts.warnings.extend(weighed.1);

        let origins = self.origins(&content, source.reader());
        // Weights that were rounded before the job are floats by now, and were checked before.
        let idle = if self.weights.rounded.is_empty() {
            let laid = origins.iter().zip(&chosen.weights).filter(|(_, laid)| laid.is_some());
            let tensors = laid.flat_map(|(origins, _)| origins);
            check_again(&asked.choices, source.reader(), tensors)?
        } else {
            None
        };
        parts.warnings.extend(idle.clone());
        let mut laid_of = Vec::new();
        for (tensor, origin) in origins.iter().enumerate() {
            let &[origin] = &origin[..] else { continue };
            let Some(layout) = chosen.weights[tensor] else { continue };
            laid_of.push((origin, (layout, tensor)));
            let name = &source.reader().tensors()[origin].name;
            chosen.rounded.extend(self.weights.rounded.get(name).map(|rounded| (tensor, *rounded)));
        }

        let laid = Laid::new(Base::owning(content), layout, chosen)?;
        parts.options.targets = Vec::new();
        let places: Vec<(usize, bool)> = laid.places().collect();
        let errors = laid.errors();
        let set = |(origin, (layout, tensor)): (usize, (Layout, usize))| {
            (origin, (layout, laid.sets()[tensor]))
        };
        let weights = laid_of.into_iter().map(set).collect();
        let mapping = View::new(&laid).into_mapping();
        let mut laid = mapping.over(Base::owning(laid));
        if matches!(layout, Layout::Mlx(_)) && self.target.folder {
            let (stacked, origins) = stacked_for_mlx(Base::owning(laid))?;
            laid = stacked;
            let of_stacks = origins.into_iter().map(|tensor| places[tensor]);
            parts.validator = parts.validator.placed(of_stacks);
        } else {
            parts.validator = parts.validator.placed(places.into_iter());
        }
        let planned = Planned::new(self, source, laid, parts)?;
        Ok(planned.measured_by(errors, LaidWeights { weights, idle }))
    }

    /// Returns the weights of the source that become codes and scales, each on its own.
    ///
    /// Returns no weights if the job has no such layout.
    ///
    /// # Errors
    /// Returns the same errors as [`plan`](Self::plan).
    pub fn laid_weights(&self, source: &Source<'_>) -> Result<LaidWeights, JobError> {
        if self.weights.layout(self.target.format).is_none() {
            return Ok(LaidWeights::default());
        }
        Ok(self.plan(source)?.laid_weights())
    }

    /// The tensors of the source that each tensor of a view is made of.
    fn origins(&self, content: &View<'_>, source: &dyn CheckpointReader) -> Vec<Vec<usize>> {
        let infos = source.tensors().iter().enumerate();
        let known: HashMap<&str, usize> = infos.map(|(at, info)| (&*info.name, at)).collect();
        let prefix = self.prefix.as_deref().unwrap_or_default();
        let position = |name: &&str| known.get(format!("{prefix}{name}").as_str()).copied();
        let origins = |info: &TensorInfo| {
            content.names_below(&info.name).iter().filter_map(position).collect()
        };
        content.tensors().iter().map(origins).collect()
    }

    /// Plans a folder with integers and scales in place of quantized tensors.
    fn plan_unpacked<'a>(
        &self,
        content: View<'a>,
        mut parts: Parts,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        if !self.target.folder {
            let message = format!(
                "{} does not support quantized types: write integers and scales into a folder \
                 with a scales.json, or floats with `dequantize` f16",
                self.target.format.name
            );
            return Err(JobError::Request(message));
        }

        let unpacked = Unpacked::new(Base::owning(content))?;
        let integrity =
            ValidationConfig { stop: self.validation.stop, ..ValidationConfig::integrity() };
        parts.validator = InlineValidator::new(integrity);
        parts.warnings.push(
            "quantized tensors are written as integers and scales, described by scales.json; \
             `dequantize` f16 writes floats, which libraries load"
                .to_owned(),
        );

        // Not the name under which libraries look for weights that they can use as they are.
        let target =
            PlanOptions { file_name: "weights.safetensors".to_owned(), ..self.target.clone() };
        let job = Self { target, ..self.clone() };
        let mapping = View::new(&unpacked).into_mapping();
        Planned::new(&job, source, mapping.over(Base::owning(unpacked)), parts)
    }
}
