//! The beginning of a table for a model of an unknown family: what names, shapes and configuration
//! show, for a person to complete.

mod formulas;
mod numbering;
mod required;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use apr_core::{DType, Metadata, TensorInfo, counted, keys};
use serde_json::Value as Json;

use crate::dimensions::{Config, Dimensions, Told};
use crate::expression::Expression;
use crate::families::{self, Families};
use crate::family::{CANONICAL, Family, HUGGING_FACE, Naming, ONNX};
use crate::file::TensorEntry;
use crate::kind::TensorKind;
use crate::model::{self, FamilyModel, Member, Mismatch};
use crate::name_list::Names;
use crate::names::{NameGroups, without_numbers};
use crate::resemblance::entries_beyond;
use crate::text_part::{is_of_others, text_part};

use formulas::{Formula, Formulas};
use numbering::Numbering;
use required::condition;
use text::{comment, list, quoted};

/// Entries that a draft describes. Files may have any number of names.
const MAX_ENTRIES: usize = 200;

/// Why a table that was drafted leads to no GGUF file.
const NOT_IN_GGUF: &str = "its files were not compared with llama.cpp's model yet";

/// Lines of a comment about one difference.
const MAX_LINES: usize = 40;

/// Members of the checkpoint that one entry of a table describes.
struct Slot<'t> {
    /// Canonical name, with placeholders.
    name: String,
    /// Names in other conventions.
    conventions: Vec<(String, Vec<String>)>,
    /// The entry of the base that this one replaces.
    replaced: Option<&'t TensorEntry>,
    /// Numbers of the placeholders, for each tensor.
    numbers: Vec<Vec<(String, u64)>>,
    shapes: BTreeSet<&'t [u64]>,
    dtype: DType,
}

impl Families {
    /// Returns the beginning of a table for a checkpoint of an unknown family, as
    /// [`add`](Self::add) reads it, on top of the family that [`nearest`](Self::nearest) names as
    /// `base`.
    ///
    /// The table describes the tensors that the base lacks or has in other shapes, leaves out those
    /// that the checkpoint lacks, and lists entries of the configuration that may change the
    /// computation. It has no graph. Returns `None` without a base for a checkpoint without a
    /// configuration, or with names of ONNX graphs.
    #[must_use]
    pub fn draft(
        &self,
        tensors: &[TensorInfo],
        metadata: &Metadata,
        base: Option<&str>,
    ) -> Option<String> {
        let whole = metadata.object(keys::ARCHITECTURE).filter(|config| !config.is_empty());
        let names = NameGroups::of(tensors);
        let base = base.and_then(|base| self.find(base));
        let model = base.and_then(|family| {
            let (naming, _) = names.best_naming(family, 1)?;
            Some(FamilyModel::new(family, naming, &names, tensors, metadata))
        });
        if model.is_none() && whole.is_none() {
            return None;
        }
        if model.as_ref().is_some_and(|model| model.naming().convention == ONNX) {
            return None;
        }
        let config = whole.map(|whole| text_part(whole).unwrap_or(whole));
        let name = self.stranger(metadata);
        Some(Draft { tensors, metadata, config, model: model.as_ref(), name }.text())
    }
}

/// What a draft is made of.
struct Draft<'a> {
    tensors: &'a [TensorInfo],
    metadata: &'a Metadata,
    /// The language model's configuration.
    config: Option<&'a Config>,
    /// The checkpoint as a member of the base.
    model: Option<&'a FamilyModel<'a>>,
    /// The type or class of the model.
    name: Option<&'a str>,
}

impl<'a> Draft<'a> {
    fn text(&self) -> String {
        let numbering = Numbering::of(self.tensors, self.config, self.model);
        let formulas = Formulas::of(self.config, self.model);
        let (slots, skipped) = self.slots(&numbering);
        let mut out = Vec::new();
        self.head(&mut out, &slots);
        self.differences(&mut out);

        let counts = numbering.new_counts(slots.iter().flat_map(|slot| &slot.numbers).flatten());
        let dimensions = match self.model {
            Some(model) => self.other_dimensions(model),
            None => formulas.dimensions().map(|(name, key)| (name, vec![key.to_owned()])).collect(),
        };
        if !dimensions.is_empty() {
            out.push("\n[dimensions]".to_owned());
            out.extend(dimensions.iter().map(|(name, all)| format!("{name} = {}", list(all))));
        }
        if !counts.is_empty() {
            out.push("\n[indices]".to_owned());
            let count = |(index, count): (&String, &u64)| {
                format!("{index} = {}", quoted(&formulas.count(index, *count)))
            };
            out.extend(counts.iter().map(count));
        }

        let count_of = |index: &str| {
            let own = counts.get(index).copied();
            own.or_else(|| self.model?.index_count(index))
        };
        for slot in slots.iter().take(MAX_ENTRIES) {
            self.entry(&mut out, slot, &formulas, &count_of);
        }
        let more = slots.len().saturating_sub(MAX_ENTRIES);
        if more > 0 {
            out.push(format!("\n# {more} more entries are left out here."));
        }
        if !skipped.is_empty() {
            out.push("\n# No pattern can stand for these names:".to_owned());
            push_lines(&mut out, skipped.into_iter().map(str::to_owned));
        }
        self.end(&mut out);
        out.push(String::new());
        out.join("\n")
    }

    fn head(&self, out: &mut Vec<String>, slots: &[Slot<'_>]) {
        let whole = self.metadata.object(keys::ARCHITECTURE);
        let whole_class = whole.and_then(|it| it.get("architectures")?.get(0)?.as_str());
        let class = whole_class.map(|it| it.split_once("For").map_or(it, |(name, _)| name));
        let name = self.name.unwrap_or("mine");
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
            .collect();
        if self.name.is_none() {
            out.push(comment("No metadata name the model's type: select the table by its name."));
        }
        out.push(format!("name = {}", quoted(&name)));
        out.push(format!("title = {}", quoted(class.or(self.name).unwrap_or(&name))));
        if let Some(model) = self.model {
            out.push(format!("extends = {}", quoted(model.family().name())));
        }
        if let Some(stated) = self.name {
            // A class is found by the name of its model.
            let of_class = families::model_names(stated).swap_remove(0);
            let stated = if whole_class == Some(stated) { &of_class } else { stated };
            out.push(format!("model_types = [{}]", quoted(stated)));
        }
        let without = self.without(slots);
        if !without.is_empty() {
            out.push(format!("without = {}", list(&without)));
        }
    }

    /// Tensors of the base that the checkpoint has nowhere.
    fn without(&self, slots: &[Slot<'_>]) -> Vec<String> {
        let Some(model) = self.model else { return Vec::new() };
        let absent = model.lacking().into_iter().filter(|(_, is_elsewhere)| !is_elsewhere);
        let names = absent.map(|(tensor, _)| model.family.file.tensors[tensor].name.clone());
        names.filter(|name| slots.iter().all(|slot| slot.name != *name)).collect()
    }

    /// Dimensions that the tensors show, and that the base's table alone would not lead to.
    fn other_dimensions<'m>(&self, model: &'m FamilyModel<'_>) -> Vec<(&'m str, Vec<String>)> {
        let family = model.family();
        let alone = Dimensions::new(family, Told::by(self.metadata, family).without_defaults());
        let others = known_sizes(model).filter(|(name, size)| alone.named(name) != Some(*size));
        let named = |text: &&String| required::is_name(text) && model.dimension(text).is_none();
        others
            .map(|(name, size)| {
                let quotient = model.dimension("hidden").zip(model.dimension("heads"));
                let quotient = quotient.and_then(|(hidden, heads)| hidden.checked_div(heads));
                let is_quotient = name == "head_dim" && quotient == Some(size);
                let last = if is_quotient {
                    "hidden / heads".to_owned()
                } else {
                    self.entry_of(size).map_or_else(|| size.to_string(), str::to_owned)
                };
                let keys = family.file.dimensions.get(name).into_iter().flatten();
                let own = |text: &&String| *text == name || named(text);
                (name, keys.filter(own).cloned().chain([last]).collect())
            })
            .collect()
    }

    /// The entry of the configuration that alone has a value.
    fn entry_of(&self, size: u64) -> Option<&'a str> {
        let is_it = |(key, entry): &(&'a String, &Json)| {
            required::is_name(key) && entry.as_u64() == Some(size)
        };
        let mut entries = self.config?.iter().filter(is_it).map(|(key, _)| key.as_str());
        entries.next().filter(|_| entries.next().is_none())
    }

    fn differences(&self, out: &mut Vec<String>) {
        if let Some(config) = self.config {
            let entries = self.entries(config);
            if !entries.is_empty() {
                let whose = self.model.map_or_else(
                    || "Entries of the configuration.".to_owned(),
                    |model| {
                        let title = model.family().title();
                        format!("Entries of the configuration that {title} does not have.")
                    },
                );
                out.push(String::new());
                out.push(comment(&format!("{whose} Each may change what is computed:")));
                push_lines(out, entries.iter().map(|key| format!("  {key} = {}", config[key])));
            }
        }
        let others = self.tensors.iter().filter(|info| self.is_of_other_part(&info.name)).count();
        if others > 0 {
            let others = counted(others as u64, "tensor");
            out.push(String::new());
            out.push(comment(&format!(
                "{others} of parts for images or sound: this table is of the language model alone."
            )));
        }
        let Some(model) = self.model else { return };
        let beyond: BTreeSet<String> = model
            .mismatches(self.tensors)
            .iter()
            .filter(|it| matches!(it, Mismatch::Beyond { .. }))
            .map(|it| format!("  {}", without_numbers(it.name())))
            .collect();
        if !beyond.is_empty() {
            out.push(String::new());
            out.push(comment("Layers or experts that the configuration does not count have:"));
            push_lines(out, beyond);
        }
    }

    /// Entries that the base does not have, or all entries without a base.
    fn entries(&self, config: &Config) -> Vec<String> {
        let mut entries = match self.model {
            Some(model) => entries_beyond(model.family(), self.metadata),
            None => config.keys().filter(|key| !Told::is_bookkeeping(key)).cloned().collect(),
        };
        entries.retain(|entry| config.contains_key(entry));
        entries
    }

    /// Returns the entries of the table, and names that no pattern stands for.
    fn slots(&self, numbering: &Numbering) -> (Vec<Slot<'a>>, Vec<&'a str>) {
        let mut slots: Vec<Slot<'a>> = Vec::new();
        let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
        let mut skipped = Vec::new();
        let replaced = self.replaced();
        for (position, info) in self.tensors.iter().enumerate() {
            let member = self.model.and_then(|model| model.member(position));
            let found = match member {
                Some(member) if replaced.contains(&member.tensor) => {
                    self.model.map(|model| inherited(model, member, info.dtype))
                }
                Some(_) => continue,
                None if self.is_of_other_part(&info.name) || self.is_auxiliary(&info.name) => {
                    continue;
                }
                None => numbering.pattern(self.body(&info.name)).map(|(pattern, numbers)| {
                    let (name, conventions) = self.named(pattern);
                    Slot {
                        name,
                        conventions,
                        replaced: None,
                        numbers: vec![numbers],
                        shapes: BTreeSet::new(),
                        dtype: info.dtype,
                    }
                }),
            };
            let Some(mut slot) = found else {
                skipped.push(info.name.as_str());
                continue;
            };
            let at = *by_name.entry(slot.name.clone()).or_insert(slots.len());
            if at == slots.len() {
                slots.push(slot);
            } else {
                slots[at].numbers.append(&mut slot.numbers);
            }
            slots[at].shapes.insert(info.shape.dims());
        }
        (slots, skipped)
    }

    /// Tensors of the base whose entries do not fit the checkpoint: of other shapes, or absent in
    /// some layers.
    fn replaced(&self) -> BTreeSet<usize> {
        let Some(model) = self.model else { return BTreeSet::new() };
        let mismatches = model.mismatches(self.tensors);
        let misshaped: BTreeSet<&str> = mismatches
            .iter()
            .filter(|it| matches!(it, Mismatch::Shape { .. }))
            .map(Mismatch::name)
            .collect();
        let of = |(position, info): (usize, &TensorInfo)| {
            misshaped.contains(info.name.as_str()).then_some(())?;
            Some(model.member(position)?.tensor)
        };
        let misshaped = self.tensors.iter().enumerate().filter_map(of);
        let absent = model.lacking().into_iter().filter(|(_, is_elsewhere)| *is_elsewhere);
        let absent = absent.map(|(tensor, _)| tensor);
        misshaped.chain(absent).collect()
    }

    /// Returns `true` if a tensor is of a part for images or sound.
    fn is_of_other_part(&self, name: &str) -> bool {
        match self.model {
            Some(model) => model.is_of_other_part(name),
            None => {
                let whole = self.metadata.object(keys::ARCHITECTURE);
                whole.and_then(text_part).is_some() && is_of_others(name)
            }
        }
    }

    /// Returns `true` if an import added a tensor of this name.
    fn is_auxiliary(&self, name: &str) -> bool {
        self.model.is_some_and(|model| model.is_auxiliary(name))
    }

    /// A name without what a training framework puts in front.
    fn body<'n>(&self, name: &'n str) -> &'n str {
        let wrapper = self.model.map_or("", |model| model.naming().wrapper.as_str());
        name.strip_prefix(wrapper).unwrap_or(name)
    }

    /// Returns the canonical name for a pattern of the checkpoint's names, and what the entry says
    /// about its conventions.
    fn named(&self, pattern: String) -> (String, Vec<(String, Vec<String>)>) {
        let Some(model) = self.model else { return (pattern, Vec::new()) };
        let Naming { convention, prefix, .. } = model.naming();
        if convention == CANONICAL {
            return (pattern, Vec::new());
        }
        if convention == HUGGING_FACE {
            let is_prefixed = !prefix.is_empty() && pattern.starts_with(prefix.as_str());
            if is_prefixed || !has_prefixes(model.family()) {
                let name = if is_prefixed { pattern[prefix.len()..].to_owned() } else { pattern };
                return (name, Vec::new());
            }
        }
        (pattern.clone(), vec![(convention.clone(), vec![pattern])])
    }

    fn entry(
        &self,
        out: &mut Vec<String>,
        slot: &Slot<'_>,
        formulas: &Formulas,
        count_of: &dyn Fn(&str) -> Option<u64>,
    ) {
        out.push("\n[[tensor]]".to_owned());
        out.push(format!("name = {}", quoted(&slot.name)));
        for (convention, names) in &slot.conventions {
            let names = match names.as_slice() {
                [name] => quoted(name),
                names => list(names),
            };
            out.push(format!("{convention} = {names}"));
        }
        let shapes: Vec<&&[u64]> = slot.shapes.iter().collect();
        match shapes.as_slice() {
            [dims] => {
                let inherited = |at: usize, dim: u64| self.inherited_dim(slot.replaced?, at, dim);
                let formulas: Vec<Formula> = (0..)
                    .zip(dims.iter())
                    .map(|(at, &dim)| {
                        inherited(at, dim).unwrap_or_else(|| formulas.dim(dim, &slot.name))
                    })
                    .collect();
                let texts: Vec<&str> = formulas.iter().map(|it| it.text.as_str()).collect();
                let others: BTreeSet<String> =
                    formulas.iter().filter(|it| !it.others.is_empty()).map(Formula::note).collect();
                let others = others.into_iter().collect::<Vec<_>>().join("; ");
                let note = if others.is_empty() { others } else { format!("    # or: {others}") };
                out.push(format!("shape = {}{note}", list(&texts)));
            }
            several => out.push(comment(&format!(
                "shape: {} of them, such as {:?} and {:?}",
                several.len(),
                several[0],
                several[several.len() - 1]
            ))),
        }
        let dims = shapes.first().map_or(&[][..], |dims| dims);
        let kind = slot.replaced.map_or_else(|| kind(&slot.name, dims, slot.dtype), |it| it.kind);
        out.push(format!("kind = {}", text::of_kind(kind)));
        out.push(format!(
            "role = {}",
            quoted(&slot.replaced.map_or_else(|| role(&slot.name), |it| it.role.clone()))
        ));
        for (key, range) in slot.replaced.iter().flat_map(|entry| {
            [("mean", entry.mean), ("std", entry.std), ("std_by_width", entry.std_by_width)]
        }) {
            out.extend(range.map(|range| format!("{key} = [{:?}, {:?}]", range.low, range.high)));
        }
        out.extend(condition(&slot.numbers, self.config, self.model, count_of));
    }

    /// Returns the formula of the base, if it leads to the dimension.
    fn inherited_dim(&self, entry: &TensorEntry, at: usize, dim: u64) -> Option<Formula> {
        let text = entry.shape.as_ref()?.get(at)?;
        let value = self.model?.dimensions.size(&Expression::parse(text).ok()?)?;
        (value == dim).then(|| Formula::only(text, dim))
    }

    fn end(&self, out: &mut Vec<String>) {
        out.push(String::new());
        match self.model {
            Some(model) => {
                let title = model.family().title();
                if model.family().is_in_gguf() {
                    out.push("[gguf]".to_owned());
                    out.push(format!("refused = {}", quoted(NOT_IN_GGUF)));
                    out.push(String::new());
                }
                out.push(comment(&format!(
                    "The graph of {title} is not inherited. To run the model, compare its own code"
                )));
                out.push(comment(
                    "with that family, then add [graph] with the options that differ.",
                ));
            }
            None => out.push(comment(
                "To run the model, add [graph]: its blocks, their options and their weights.",
            )),
        }
    }
}

/// Dimensions that are neither a default of the base's configuration class nor made of one.
fn known_sizes<'m>(model: &'m FamilyModel<'_>) -> impl Iterator<Item = (&'m str, u64)> {
    let dimensions = &model.dimensions;
    let is_default = |name: &str| dimensions.resolved(name).is_some_and(|(_, is_one)| is_one);
    dimensions.sizes().filter(move |(name, _)| !is_default(name))
}

/// The entry of the base for a tensor, to be replaced.
fn inherited<'m>(model: &FamilyModel<'m>, member: &Member, dtype: DType) -> Slot<'m> {
    let numbers = model::numbers(&model.family.tensors[member.tensor], member);
    let entry = &model.family.file.tensors[member.tensor];
    let own = |(convention, names): (&String, &Names)| {
        (convention.clone(), names.iter().map(str::to_owned).collect())
    };
    Slot {
        name: entry.name.clone(),
        conventions: entry.conventions.iter().map(own).collect(),
        replaced: Some(entry),
        numbers: vec![numbers.into_iter().map(|(index, at)| (index.to_owned(), at)).collect()],
        shapes: BTreeSet::new(),
        dtype,
    }
}

/// Returns `true` if names of Hugging Face have a prefix in some files of the family.
fn has_prefixes(family: &Family) -> bool {
    let conventions = family.file.conventions.get(HUGGING_FACE);
    conventions.is_some_and(|entry| entry.prefixes.iter().any(|prefix| !prefix.is_empty()))
}

fn push_lines(out: &mut Vec<String>, lines: impl IntoIterator<Item = String>) {
    let lines: Vec<String> = lines.into_iter().collect();
    out.extend(lines.iter().take(MAX_LINES).map(|line| comment(line)));
    let more = lines.len().saturating_sub(MAX_LINES);
    if more > 0 {
        out.push(comment(&format!("  and {more} more")));
    }
}

/// The kind that a name and dimensions suggest.
fn kind(name: &str, dims: &[u64], dtype: DType) -> TensorKind {
    let lower = name.to_ascii_lowercase();
    let mut parts = lower.rsplit('.');
    let (last, module) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_norm = module.contains("norm") || module.split('_').any(|word| word == "ln");
    let has = |word: &str| lower.contains(word);
    match dims.len() {
        _ if !dtype.is_float() => TensorKind::Buffer,
        _ if let Some(kind) = TensorKind::of_name(name) => kind,
        0 | 1 if is_norm && last == "weight" => TensorKind::NormGamma,
        0 | 1 if is_norm && last == "bias" => TensorKind::NormBeta,
        0 | 1 if last == "bias" => TensorKind::Bias,
        0 | 1 => TensorKind::Scale,
        2 if has("pos") && has("embed") => TensorKind::Position,
        2 if has("embed") => TensorKind::Embedding,
        2 if lower.starts_with("lm_head") || lower.contains(".lm_head") => TensorKind::Head,
        2 => TensorKind::Linear,
        _ if has("conv") => TensorKind::Conv,
        _ => TensorKind::Linear,
    }
}

/// A role to begin with: the module, and the layer that it is in.
fn role(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let last = parts.iter().rposition(|part| part.starts_with('{'));
    let own = parts[last.map_or(0, |last| last + 1)..].join(".");
    let places = parts.iter().filter(|part| part.starts_with('{')).rev();
    let places = places.map(|place| format!("{} {place}", place.trim_matches(['{', '}'])));
    std::iter::once(own).chain(places).collect::<Vec<_>>().join(" of ")
}

#[cfg(test)]
mod tests;
