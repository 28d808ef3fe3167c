//! A family, ready to be asked.

mod layouts;

use std::collections::{BTreeMap, BTreeSet};

use apr_core::{Error, Result};
use serde_json::{Map, Value as Json};

use crate::expression::{Expression, Value};
use crate::file::{Condition, FamilyFile, RangesEntry, TensorEntry};
use crate::gguf::{Gguf, TensorLayout};
use crate::graph::GraphTable;
use crate::kind::{TensorExpectation, TensorKind};
use crate::mapper::TensorNameMapper;
use crate::pattern::{Entry, Pattern, PatternIndex};

/// The convention of safetensors and PyTorch files.
pub const HUGGING_FACE: &str = "huggingface";
/// The convention of GGUF files.
pub const GGUF: &str = "gguf";
/// The convention of ONNX graphs: canonical names with slashes.
pub const ONNX: &str = "onnx";
/// The canonical names themselves.
pub const CANONICAL: &str = "apr";

/// A way to name the tensors of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// `huggingface`, `gguf`, `onnx`, `apr`, or one that the family alone has.
    pub convention: String,
    /// Prefix of the base model's names, such as `model.`.
    pub prefix: String,
    /// Prefix that a training framework put before every name, such as `module.`.
    pub wrapper: String,
}

/// Prefixes that data parallelism, compilation and adapters put before the names of the wrapped
/// model.
pub(crate) const WRAPPERS: [&str; 3] = ["module.", "_orig_mod.", "base_model.model."];

impl Naming {
    /// A naming without a wrapper.
    #[must_use]
    pub fn new(convention: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self { convention: convention.into(), prefix: prefix.into(), wrapper: String::new() }
    }
}

/// A tensor that a family has, once or once per layer.
#[derive(Debug, Clone)]
pub(crate) struct FamilyTensor {
    pub(crate) pattern: Pattern,
    pub(crate) expectation: TensorExpectation,
    pub(crate) shape: Option<Vec<Expression>>,
    pub(crate) required: Required,
    pub(crate) role: String,
    /// The patterns that are written, by convention.
    written: BTreeMap<String, Pattern>,
}

#[derive(Debug, Clone)]
pub(crate) enum Required {
    Stated(bool),
    Computed(Expression),
}

/// Family of models: names, shapes, value ranges and purposes of its tensors.
///
/// ```
/// use apr_arch::{Families, HUGGING_FACE, Naming, TensorNameMapper};
///
/// let families = Families::builtin();
/// let llama = families.find("llama").expect("a built-in family");
/// let canonical =
///     llama.map_name("model.layers.0.self_attn.q_proj.weight").expect("a tensor of the family");
/// assert_eq!(canonical, "layers.0.attn.q_proj.weight");
///
/// let naming = Naming::new(HUGGING_FACE, "model.");
/// let name = llama.source_name(&canonical, &naming);
/// assert_eq!(name.as_deref(), Some("model.layers.0.self_attn.q_proj.weight"));
/// ```
#[derive(Debug)]
pub struct Family {
    pub(crate) file: FamilyFile,
    pub(crate) sizes: Vec<(String, Expression)>,
    pub(crate) dimensions: BTreeMap<String, Vec<Expression>>,
    pub(crate) indices: BTreeMap<String, Expression>,
    pub(crate) tensors: Vec<FamilyTensor>,
    pub(crate) gguf: Option<Gguf>,
    pub(crate) graph: Option<GraphTable>,
    /// Patterns that are understood, by convention.
    pub(crate) understood: BTreeMap<String, PatternIndex>,
}

/// A tensor found by its name.
pub(crate) struct NamedTensor<'a> {
    /// Position in [`Family::tensors`].
    pub(crate) tensor: usize,
    /// Placeholders and their numbers.
    pub(crate) numbers: Vec<(&'a str, u64)>,
}

impl NamedTensor<'_> {
    pub(crate) fn number(&self, index: &str) -> Option<u64> {
        self.numbers.iter().find(|(name, _)| *name == index).map(|(_, number)| *number)
    }
}

/// Reason why a table is rejected.
pub(crate) enum Refused {
    UnknownBase(String),
    Malformed(Error),
}

impl Family {
    /// Reads a table; `find` finds the family that it extends.
    pub(crate) fn read<'f>(
        text: &str,
        find: impl Fn(&str) -> Option<&'f Self>,
    ) -> Result<Self, Refused> {
        let mut file = FamilyFile::parse(text).map_err(Refused::Malformed)?;
        if let Some(base) = &file.extends {
            let base = find(base).ok_or_else(|| Refused::UnknownBase(base.clone()))?;
            file = file.on_top_of(&base.file);
        }
        Self::new(file).map_err(Refused::Malformed)
    }

    pub(crate) fn new(file: FamilyFile) -> Result<Self> {
        let expressions = |texts: &[String]| {
            texts.iter().map(|text| Expression::parse(text)).collect::<Result<Vec<_>>>()
        };
        let names: Vec<&str> = file.tensors.iter().map(|entry| entry.name.as_str()).collect();
        let graph =
            file.graph.as_ref().map(|graph| GraphTable::parse(graph, &names)).transpose()?;
        let mut family = Self {
            sizes: file
                .sizes
                .iter()
                .map(|size| Ok((size.name.clone(), Expression::parse(&size.when)?)))
                .collect::<Result<_>>()?,
            dimensions: file
                .dimensions
                .iter()
                .map(|(name, alternatives)| Ok((name.clone(), expressions(alternatives)?)))
                .collect::<Result<_>>()?,
            indices: file
                .indices
                .iter()
                .map(|(name, count)| Ok((name.clone(), Expression::parse(count)?)))
                .collect::<Result<_>>()?,
            tensors: Vec::with_capacity(file.tensors.len()),
            gguf: Gguf::parse(&file.gguf)?,
            graph,
            understood: BTreeMap::new(),
            file,
        };

        for position in 0..family.file.tensors.len() {
            let entry = family.file.tensors[position].clone();
            family.add(&entry).map_err(|error| error.for_tensor(&entry.name))?;
        }

        family.check_layouts()?;
        Ok(family)
    }

    fn add(&mut self, entry: &TensorEntry) -> Result<()> {
        let position = self.tensors.len();
        let pattern = Pattern::parse(&entry.name)?;
        if let Some(index) =
            pattern.indices().iter().find(|index| !self.indices.contains_key(*index))
        {
            return Err(Error::format(format!("[indices] does not state the number of {index}")));
        }
        let mut written = BTreeMap::from([(CANONICAL.to_owned(), pattern.clone())]);
        let mut understand = |convention: &str, pattern: Pattern| {
            self.understood.entry(convention.to_owned()).or_default().add(pattern, position);
        };
        understand(CANONICAL, pattern.clone());

        // Without a name of its own there, Hugging Face has the canonical one after its prefix.
        if !entry.conventions.contains_key(HUGGING_FACE) {
            let same = Pattern::parse(&format!("~{}", entry.name))?;
            understand(HUGGING_FACE, same.clone());
            written.insert(HUGGING_FACE.to_owned(), same);
        }

        for (convention, names) in &entry.conventions {
            for name in names.iter() {
                let alias = Pattern::parse(name)?;
                if alias.indices().len() != pattern.indices().len()
                    || !alias.indices().iter().all(|index| pattern.indices().contains(index))
                {
                    return Err(Error::format(format!(
                        "'{name}' has other placeholders than the canonical name"
                    )));
                }
                understand(convention, alias.clone());
                // The first name is the one that is written.
                written.entry(convention.clone()).or_insert(alias);
            }
        }

        let shape = entry
            .shape
            .as_ref()
            .map(|shape| shape.iter().map(|dim| Expression::parse(dim)).collect());
        let required = match &entry.required {
            None => Required::Stated(true),
            Some(Condition::Stated(stated)) => Required::Stated(*stated),
            Some(Condition::Computed(text)) => Required::Computed(Expression::parse(text)?),
        };
        let expectation = self.expectation(entry);
        let role = entry.role.clone();
        self.tensors.push(FamilyTensor {
            pattern,
            expectation,
            shape: shape.transpose()?,
            required,
            role,
            written,
        });
        Ok(())
    }

    /// # Errors
    /// E001 when a layout is of a tensor that the family does not have.
    fn check_layouts(&self) -> Result<()> {
        let has = |name: &str| self.file.tensors.iter().any(|entry| entry.name == name);
        for (name, layout) in self.gguf.iter().flat_map(|gguf| &gguf.layouts) {
            let part = match layout {
                TensorLayout::Stack(part) => part,
                TensorLayout::Cut(cut) => &cut.of,
                _ => name,
            };
            if let Some(unknown) = [name, part].into_iter().find(|name| !has(name)) {
                return Err(Error::format("a GGUF layout is of a tensor that there is not")
                    .for_tensor(unknown));
            }
        }
        let needs = self.gguf.iter().flat_map(|gguf| &gguf.needs);
        if let Some(unknown) = needs.into_iter().find(|name| !has(name)) {
            let why = "[gguf] needs a tensor that there is not";
            return Err(Error::format(why).for_tensor(unknown));
        }
        Ok(())
    }

    /// Returns the expectation from the tensor's entry, or else from its family, or else from its
    /// kind.
    fn expectation(&self, entry: &TensorEntry) -> TensorExpectation {
        let general = entry.kind.expectation();
        let family = self.file.expectations.get(&entry.kind).copied().unwrap_or_default();
        let own =
            RangesEntry { mean: entry.mean, std: entry.std, std_by_width: entry.std_by_width };

        // Whoever states deviations states all of them.
        let stated = [own, family]
            .into_iter()
            .find(|ranges| ranges.std.is_some() || ranges.std_by_width.is_some());
        let (std, std_by_width) = stated.map_or(
            (general.std, general.std_by_width),
            |RangesEntry { std, std_by_width, .. }| (std, std_by_width),
        );
        TensorExpectation {
            mean: own.mean.or(family.mean).or(general.mean),
            std,
            std_by_width,
            ..general
        }
    }

    /// Returns the name for `--arch` and `model_type` in the metadata.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// Returns the title for display.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.file.title
    }

    /// Returns `true` if the table describes the part for images of models of this type, with a
    /// tower of this type or, for `None`, with a tower that no other table names.
    pub(crate) fn is_vision_of(&self, model_type: &str, tower: Option<&str>) -> bool {
        let towers = &self.file.towers;
        let is_for_tower = tower.map_or(towers.is_empty(), |it| towers.iter().any(|of| of == it));
        is_for_tower && self.file.vision_of.iter().any(|name| name == model_type)
    }

    /// Returns `true` if the table describes the part for images of a larger model.
    #[must_use]
    pub fn is_for_images(&self) -> bool {
        !self.file.vision_of.is_empty()
    }

    /// Returns the text of the token whose place a vector of an image takes.
    #[must_use]
    pub fn image_token(&self) -> Option<&str> {
        self.file.images.as_ref()?.token.as_deref()
    }

    /// Returns `true` if the table describes all parts of models whose configuration has
    /// `text_config`.
    ///
    /// Other tables describe only the language model of such a model.
    pub(crate) fn has_parts(&self) -> bool {
        self.file.parts.unwrap_or(false)
    }

    /// Returns `true` if configurations or users use this name for the family.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.names().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Returns the names of the family in configurations and commands.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let names =
            [&self.file.name].into_iter().chain(&self.file.model_types).chain(&self.file.aliases);
        names.map(String::as_str)
    }

    /// All ways to name the tensors, the most common first.
    pub fn namings(&self) -> impl Iterator<Item = Naming> {
        let rank = |convention: &str| {
            [HUGGING_FACE, CANONICAL].iter().position(|first| *first == convention).unwrap_or(2)
        };
        let mut conventions: Vec<&String> = self.understood.keys().collect();
        conventions.sort_by_key(|convention| rank(convention));
        conventions
            .into_iter()
            .flat_map(|convention| {
                let prefixes = self
                    .file
                    .conventions
                    .get(convention)
                    .map_or(vec![String::new()], |entry| entry.prefixes.clone());
                prefixes.into_iter().map(move |prefix| Naming::new(convention.clone(), prefix))
            })
            .chain([Naming::new(ONNX, "")])
    }

    /// Returns the default naming of a convention, for checkpoints whose naming is not known.
    #[must_use]
    pub fn default_naming(&self, convention: &str) -> Option<Naming> {
        self.namings().find(|naming| naming.convention == convention)
    }

    /// The tensor that has this name under a naming.
    pub(crate) fn find<'a>(&'a self, name: &str, naming: &Naming) -> Option<NamedTensor<'a>> {
        if naming.convention == ONNX {
            return self.find_canonical(&name.strip_prefix('/')?.replace('/', "."));
        }

        let name = name.strip_prefix(naming.wrapper.as_str())?;
        let (tensor, pattern, numbers) =
            self.understood.get(&naming.convention)?.find(name, &naming.prefix)?;

        // Aliases may have the placeholders in another order.
        let number = |index: &str| {
            let position = pattern.indices().iter().position(|known| known == index)?;
            Some(numbers[position])
        };
        let indices = self.tensors[tensor].pattern.indices().iter().map(String::as_str);
        Some(NamedTensor {
            tensor,
            numbers: indices.filter_map(|index| Some((index, number(index)?))).collect(),
        })
    }

    /// Numbers of a name in the order of the canonical name's placeholders; aliases may have
    /// another one.
    pub(crate) fn in_canonical_order(&self, entry: &Entry, numbers: Vec<u64>) -> Vec<u64> {
        let (own, canonical) =
            (entry.pattern.indices(), self.tensors[entry.tensor].pattern.indices());
        if own == canonical {
            return numbers;
        }
        let place = |index: &String| own.iter().position(|known| known == index);
        canonical.iter().filter_map(|index| numbers.get(place(index)?).copied()).collect()
    }

    pub(crate) fn find_canonical(&self, name: &str) -> Option<NamedTensor<'_>> {
        self.find(name, &Naming::new(CANONICAL, ""))
    }

    pub(crate) fn written(&self, found: &NamedTensor<'_>, naming: &Naming) -> Option<String> {
        if naming.convention == ONNX {
            let canonical =
                self.tensors[found.tensor].pattern.name("", |index| found.number(index))?;
            return Some(format!("/{}", canonical.replace('.', "/")));
        }
        let name = self.tensors[found.tensor].written.get(&naming.convention)?;
        Some(naming.wrapper.clone() + &name.name(&naming.prefix, |index| found.number(index))?)
    }

    /// The canonical name of a tensor called `name` under a naming.
    #[must_use]
    pub fn canonical_name(&self, name: &str, naming: &Naming) -> Option<String> {
        let found = self.find(name, naming)?;
        self.tensors[found.tensor].pattern.name("", |index| found.number(index))
    }

    /// Returns the name of a tensor in a naming, or `None` if the naming has no name for it.
    #[must_use]
    pub fn source_name(&self, canonical: &str, naming: &Naming) -> Option<String> {
        self.written(&self.find_canonical(canonical)?, naming)
    }

    /// Returns `true` if llama.cpp supports models of this family.
    #[must_use]
    pub fn is_in_gguf(&self) -> bool {
        self.gguf.is_some()
    }

    /// Returns `true` if a naming convention, such as GGUF, has a name for the tensor.
    pub(crate) fn is_written_in(&self, tensor: usize, convention: &str) -> bool {
        self.tensors[tensor].written.contains_key(convention)
    }

    /// Tensors of which a convention has the same names, each after the one it is taken for.
    pub(crate) fn namesakes(&self, convention: &str) -> impl Iterator<Item = (usize, usize)> {
        let named = |tensor: usize| self.tensors[tensor].written.get(convention);
        (0..self.tensors.len()).flat_map(move |first| {
            let later = (first + 1)..self.tensors.len();
            later
                .filter(move |&later| named(first).is_some() && named(first) == named(later))
                .map(move |l| (first, l))
        })
    }

    /// First components of the names that tensors have under a naming, without its prefix.
    pub(crate) fn beginnings(&self, naming: &Naming) -> BTreeSet<&str> {
        let written =
            self.tensors.iter().filter_map(|tensor| tensor.written.get(&naming.convention));
        written.filter_map(Pattern::beginning).collect()
    }

    /// Returns the canonical names of all tensors, with the names of the first layer for tensors of
    /// layers.
    pub fn example_names(&self) -> impl Iterator<Item = String> {
        self.tensors.iter().filter_map(|tensor| tensor.pattern.name("", |_| Some(0)))
    }

    /// Returns the configuration's name of a dimension.
    pub(crate) fn source_of_dimension(&self, name: &str) -> String {
        let first = self.file.dimensions.get(name).and_then(|alternatives| alternatives.first());
        first.map_or(name, String::as_str).to_owned()
    }

    /// Returns `true` if GGUF files with this `general.architecture` may contain models of the
    /// family.
    #[must_use]
    pub fn is_gguf_architecture(&self, architecture: &str) -> bool {
        self.gguf.as_ref().is_some_and(|gguf| gguf.is_architecture(architecture))
    }

    /// The `config.json` that the keys of a GGUF file lead to. `entry` gives the value of a key,
    /// with or without the architecture in front, and of `has.TENSOR` and `rows.TENSOR`.
    #[must_use]
    pub fn config_from_gguf(&self, entry: &dyn Fn(&str) -> Option<Json>) -> Map<String, Json> {
        let mut lookup = |name: &str| entry(name).and_then(|json| Value::of(&json));
        self.gguf.as_ref().map(|gguf| gguf.config(&mut lookup)).unwrap_or_default()
    }

    /// Returns the purpose of the tensor with this canonical name.
    #[must_use]
    pub fn role(&self, canonical: &str) -> Option<String> {
        let found = self.find_canonical(canonical)?;
        let mut role = self.tensors[found.tensor].role.clone();
        for (index, number) in &found.numbers {
            role = role.replace(&format!("{{{index}}}"), &number.to_string());
        }
        Some(role)
    }

    /// Returns the kind of the tensor with this canonical name.
    #[must_use]
    pub fn kind(&self, canonical: &str) -> Option<TensorKind> {
        Some(self.expected_stats(canonical)?.kind)
    }
}

impl TensorNameMapper for Family {
    fn map_name(&self, source_name: &str) -> Option<String> {
        self.namings().find_map(|naming| self.canonical_name(source_name, &naming))
    }

    fn expected_stats(&self, apr_name: &str) -> Option<TensorExpectation> {
        Some(self.tensors[self.find_canonical(apr_name)?.tensor].expectation)
    }
}
