//! The families that are known, and which of them a checkpoint belongs to.

use std::sync::Arc;

use apr_core::{Error, Metadata, Result, TensorInfo, keys};
use serde::Serialize;
use serde_json::Value as Json;

use crate::builtin::{self, Table, tables};
use crate::dimensions;
use crate::expression::Value;
use crate::family::{Family, HUGGING_FACE, Naming, Refused};
use crate::gguf::Lookup;
use crate::model::FamilyModel;
use crate::names::NameGroups;
use crate::text_part::{is_of_others, sees, text_type};

/// Minimum share of a checkpoint's tensors that must match a family, as a fraction.
///
/// `TOLD` applies if the configuration names the family, `GUESSED` if only the tensor names suggest
/// it.
const TOLD: (usize, usize) = (1, 2);
const GUESSED: (usize, usize) = (9, 10);

/// Value of [`keys::PART`] for the part for images of a larger model.
pub const IMAGES: &str = "images";

/// `general.architecture` of the parts of larger models, whatever their family.
const PARTS_IN_GGUF: &str = "clip";

/// Fewest tensors that names alone are enough for: many small networks have a `fc1.weight`.
const FEWEST: usize = 5;

/// A family that the metadata name, but the tensors contradict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename = "family")]
#[non_exhaustive]
pub struct Contradiction {
    /// Title of the family that the metadata name.
    pub told: String,
    /// Number of tensors that match the family.
    pub known: usize,
    /// Tensors of the checkpoint.
    pub total: usize,
    /// The first tensor that it does not know.
    pub stranger: String,
    /// Name of the family that the tensors' names speak for.
    pub alike: Option<String>,
}

impl std::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { told, known, total, alike, .. } = self;
        write!(
            f,
            "the configuration has {told}, but {known} of {total} tensors have names of that \
             family"
        )?;
        match alike {
            Some(alike) => write!(f, "; the tensor names match family {alike}"),
            None => Ok(()),
        }
    }
}

/// Family that the metadata name.
enum Told<'f, 'm> {
    Family(&'f Family),
    /// A name that no family has.
    Stranger(&'m str),
    Nothing,
}

/// Families by name.
///
/// ```
/// use apr_arch::{Families, TensorNameMapper};
///
/// let mut families = Families::builtin();
/// families.add(r#"
///     name = "tiny"
///     title = "Tiny"
///     model_types = ["tiny"]
///     [indices]
///     layer = "num_layers"
///     [[tensor]]
///     name = "layers.{layer}.weight"
///     huggingface = "net.{layer}.w"
///     kind = "linear"
///     role = "Weight of layer {layer}"
/// "#)?;
/// let tiny = families.find("tiny").expect("just added");
/// assert_eq!(tiny.map_name("net.3.w").as_deref(), Some("layers.3.weight"));
/// assert_eq!(tiny.role("layers.3.weight").as_deref(), Some("Weight of layer 3"));
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Families {
    /// Families that were added, the latest first; they precede the built-in families.
    brought: Vec<Arc<Family>>,
    /// Parts for images that were added, likewise.
    brought_parts: Vec<Arc<Family>>,
}

impl Families {
    /// Returns the built-in families.
    #[must_use]
    pub fn builtin() -> Self {
        Self::default()
    }

    /// Adds a family from the text of a family file. It takes precedence over other families of the
    /// same name. A table with `vision_of` describes a part for images, beside a language model or
    /// by itself.
    ///
    /// # Errors
    /// E001 if the text is not TOML, is not a family, or extends an unknown family.
    pub fn add(&mut self, text: &str) -> Result<&Family> {
        let family =
            Family::read(text, |base: &str| self.find(base)).map_err(|error| match error {
                Refused::UnknownBase(base) => self.unknown(&base),
                Refused::Malformed(error) => error,
            })?;
        let brought = match family.file.vision_of.is_empty() {
            true => &mut self.brought,
            false => &mut self.brought_parts,
        };
        brought.insert(0, Arc::new(family));
        Ok(&brought[0])
    }

    /// The tables of parts for images, in the order they are tried.
    fn vision_parts(&self) -> impl Iterator<Item = &Family> {
        self.brought_parts.iter().map(|part| &**part).chain(builtin::vision_parts())
    }

    /// Names of the families that were added to the built-in ones.
    pub fn brought(&self) -> impl Iterator<Item = &str> {
        self.brought.iter().map(|family| family.name())
    }

    /// The family that is called so, by itself or by configurations.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Family> {
        let is_it = |known: &str| known.eq_ignore_ascii_case(name);
        let brought = || self.brought.iter().map(|family| &**family);
        let builtin = |is_it: &dyn Fn(&Table) -> bool| {
            tables().iter().find(|table| is_it(table)).map(Table::family)
        };

        // Own names come before model types and aliases, and brought families before built-in ones.
        brought()
            .find(|family| is_it(family.name()))
            .or_else(|| builtin(&|table| is_it(table.name())))
            .or_else(|| brought().find(|family| family.is_called(name)))
            .or_else(|| builtin(&|table| table.names().any(is_it)))
            .or_else(|| self.vision_parts().find(|part| is_it(part.name())))
    }

    /// Returns `true` if the family is built in.
    #[must_use]
    pub fn is_builtin(family: &Family) -> bool {
        builtin::is_builtin(family)
    }

    /// Returns all families, in the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = &Family> {
        self.brought.iter().map(|family| &**family).chain(tables().iter().map(Table::family))
    }

    /// Returns the family that the metadata name.
    fn told<'m>(&self, metadata: &'m Metadata) -> Told<'_, 'm> {
        if metadata.text(keys::PART) == Some(IMAGES)
            && let Some(part) = self.vision_part(metadata)
        {
            return Told::Family(part);
        }

        let named = metadata.text(keys::MODEL_TYPE).filter(|name| !is_no_type(name));
        let architecture = metadata.object(keys::ARCHITECTURE);
        let class = || architecture?.get("architectures")?.get(0)?.as_str();
        let known = match named {
            Some(name) => self.find(name).ok_or(name),
            None => match class() {
                Some(class) => self.of_class(class).ok_or(class),
                None => return Told::Nothing,
            },
        };

        // Of a model with parts for images or sound, the language model may be of a known family.
        let text = || architecture.and_then(text_type);
        match (known, text()) {
            (Ok(family), _) => Told::Family(family),
            (Err(name), None) => Told::Stranger(name),
            (Err(_), Some(text)) => self.find(text).map_or(Told::Stranger(text), Told::Family),
        }
    }

    /// The `model_type`, or else the class of `architectures`, that the metadata name and no family
    /// is called by. Such a model is of no known family, whatever its tensors are called.
    #[must_use]
    pub fn stranger<'m>(&self, metadata: &'m Metadata) -> Option<&'m str> {
        if let Told::Stranger(name) = self.told(metadata) { Some(name) } else { None }
    }

    /// The family of models of this class of `transformers`: `LlamaForCausalLM`.
    fn of_class(&self, class: &str) -> Option<&Family> {
        let names = model_names(class);
        names.iter().find_map(|name| {
            let mut brought = self.brought.iter().map(|family| &**family);
            let called = brought.find(|family| family.names().any(|known| plain(known) == *name));
            let is_called = |table: &&Table| table.names().any(|known| plain(known) == *name);
            called.or_else(|| tables().iter().find(is_called).map(Table::family))
        })
    }

    /// Detects the family of a checkpoint.
    ///
    /// The metadata decide, or, if they do not name a family, the names of the tensors. Returns
    /// `None` if neither is conclusive, or if the metadata name an unknown family.
    #[must_use]
    pub fn identify<'a>(
        &'a self,
        tensors: &[TensorInfo],
        metadata: &'a Metadata,
    ) -> Option<FamilyModel<'a>> {
        match self.told(metadata) {
            Told::Family(family) => {
                let names = NameGroups::of(tensors);
                match names.best_naming(family, fewest_told(family, tensors, metadata)) {
                    Some((naming, _)) => {
                        let vision = self.vision(&names, tensors, metadata);
                        let model = FamilyModel::new(family, naming, &names, tensors, metadata);
                        Some(model.with_vision(vision))
                    }
                    None => of_module(family, tensors, metadata),
                }
            }
            Told::Stranger(_) => None,
            Told::Nothing => self.guess(&NameGroups::of(tensors), tensors, metadata),
        }
    }

    /// The family that the names of the tensors speak for.
    fn guess<'a>(
        &'a self,
        names: &NameGroups<'_>,
        tensors: &[TensorInfo],
        metadata: &'a Metadata,
    ) -> Option<FamilyModel<'a>> {
        let fewest_known = least(GUESSED, modules(tensors)).max(FEWEST);
        let mut most = fewest_known;
        let mut best: Option<(usize, FamilyModel<'a>)> = None;
        let brought = self.brought.iter().map(|family| &**family);
        let may_be = tables()
            .iter()
            .filter(|table| names.may_be_of(fewest_known, |word| table.has_word(word)));
        for family in brought.chain(may_be.map(Table::family)) {
            // Nothing is better than a family that knows all and misses nothing; reading the others
            // takes milliseconds.
            if most == tensors.len() && best.as_ref().is_some_and(|(fewest, _)| *fewest == 0) {
                break;
            }

            let Some((naming, known)) = names.best_naming(family, most) else { continue };

            // Most tensors known, then fewest mismatches: a related family that asks for tensors
            // that are not there is not it.
            let fewest = best.as_ref().filter(|_| known == most).map(|(fewest, _)| *fewest);
            // The best so far misses nothing, and this one knows no more tensors.
            if fewest == Some(0) {
                continue;
            }

            let model = FamilyModel::new(family, naming, names, tensors, metadata);
            // Layers without experts are those of the family that it builds on.
            if model.lacks_experts() {
                continue;
            }

            let wrong = model.mismatches(tensors).len();
            if fewest.is_none_or(|fewest| wrong < fewest) {
                best = Some((wrong, model));
            }

            most = known;
        }

        best.map(|(_, model)| model.guessed())
    }

    /// Returns the contradiction if the metadata name a family that the tensors do not match.
    #[must_use]
    pub fn contradiction(
        &self,
        tensors: &[TensorInfo],
        metadata: &Metadata,
    ) -> Option<Contradiction> {
        let Told::Family(told) = self.told(metadata) else { return None };
        let names = NameGroups::of(tensors);
        let (naming, known) = names.best_naming(told, 0)?;
        if known >= fewest_told(told, tensors, metadata) {
            return None;
        }

        let stranger = tensors.iter().find(|info| told.find(&info.name, &naming).is_none())?;
        let most = least(GUESSED, modules(tensors)).max(FEWEST);
        let alike = self.iter().find(|family| names.best_naming(family, most).is_some());
        Some(Contradiction {
            told: told.title().to_owned(),
            known,
            total: tensors.len(),
            stranger: stranger.name.clone(),
            alike: alike.map(|family| family.name().to_owned()),
        })
    }

    /// Returns the family of a GGUF file by its `general.architecture`.
    ///
    /// If several families have the same architecture, the keys of the file decide. `entry` is the
    /// function that [`Family::config_from_gguf`] takes.
    #[must_use]
    pub fn of_gguf(
        &self,
        architecture: &str,
        entry: &dyn Fn(&str) -> Option<Json>,
    ) -> Option<&Family> {
        let mut lookup = |name: &str| entry(name).and_then(|json| Value::of(&json));
        let is_it = |family: &&Family| family.is_gguf_architecture(architecture);
        let recognized = |family: &Family, lookup: Lookup<'_>| {
            family.gguf.as_ref().and_then(|gguf| gguf.is_recognized(lookup))
        };
        if architecture == PARTS_IN_GGUF {
            return self
                .vision_parts()
                .filter(is_it)
                .find(|part| recognized(part, &mut lookup) == Some(true));
        }

        let mut general = None;
        let brought = self.brought.iter().map(|family| &**family);
        let told = tables().iter().filter(|table| table.may_be_in_gguf(architecture));
        let families = brought.chain(told.map(Table::family));
        for family in families.filter(is_it) {
            match recognized(family, &mut lookup) {
                Some(true) => return Some(family),
                Some(false) => {}
                None => general = general.or(Some(family)),
            }
        }
        general
    }

    /// The checkpoint as a member of the family called `name`, whatever its tensors are called.
    ///
    /// # Errors
    /// E001 when there is no such family.
    pub fn apply<'a>(
        &'a self,
        name: &str,
        tensors: &[TensorInfo],
        metadata: &'a Metadata,
    ) -> Result<FamilyModel<'a>> {
        let family = self.find(name).ok_or_else(|| self.unknown(name))?;
        let names = NameGroups::of(tensors);
        let best = names.best_naming(family, 0).map(|(naming, _)| naming);
        let naming = best.unwrap_or_else(|| Naming::new(HUGGING_FACE, ""));
        let vision = self.vision(&names, tensors, metadata);
        Ok(FamilyModel::new(family, naming, &names, tensors, metadata).with_vision(vision))
    }

    /// Returns the part for images of the checkpoint's model, or `None` if no known table describes
    /// it.
    fn vision<'a>(
        &'a self,
        names: &NameGroups<'_>,
        tensors: &[TensorInfo],
        metadata: &'a Metadata,
    ) -> Option<FamilyModel<'a>> {
        let family = self.vision_part(metadata)?;
        let (naming, _) = names.best_naming(family, 1)?;
        Some(FamilyModel::new(family, naming, names, tensors, metadata))
    }

    /// Returns the table of the part for images of the model that the metadata describe.
    fn vision_part(&self, metadata: &Metadata) -> Option<&Family> {
        let config = metadata.object(keys::ARCHITECTURE).filter(|config| sees(config))?;
        // Of a language model's family, the metadata may have that family's type.
        let own = config.get("model_type").and_then(Json::as_str);
        let kind = own.or_else(|| metadata.text(keys::MODEL_TYPE))?;
        let tower = config.get("vision_config").and_then(|tower| tower.get("model_type")?.as_str());
        let with = |tower| self.vision_parts().find(|part| part.is_vision_of(kind, tower));
        tower.and_then(|tower| with(Some(tower))).or_else(|| with(None))
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<&str> = self.iter().map(Family::name).collect();
        Error::format(format!("no family '{name}'; known families: {}", names.join(", ")))
    }
}

/// A checkpoint of one module of a model, whose names begin inside of it: an encoder that was saved
/// or exported alone. Where several modules have such names, it is the one that misses least.
fn of_module<'a>(
    family: &'a Family,
    tensors: &[TensorInfo],
    metadata: &'a Metadata,
) -> Option<FamilyModel<'a>> {
    let least = least(TOLD, tensors.len());
    let mut best: Option<(usize, FamilyModel<'a>)> = None;
    let namings = family.namings().filter(|naming| naming.convention == HUGGING_FACE);
    for naming in namings.collect::<Vec<_>>() {
        for module in family.beginnings(&naming) {
            let whole = |info: &TensorInfo| TensorInfo {
                name: format!("{}{module}.{}", naming.prefix, info.name),
                ..info.clone()
            };
            let whole: Vec<TensorInfo> = tensors.iter().map(whole).collect();
            let names = NameGroups::of(&whole);
            let Some((naming, _)) = names.best_naming(family, least) else { continue };
            let model = FamilyModel::new(family, naming, &names, &whole, metadata);
            let strange = model.mismatches_of_own_modules(&whole);
            if best.as_ref().is_none_or(|(fewest, _)| strange < *fewest) {
                best = Some((strange, model));
            }
        }
    }
    best.map(|(_, model)| model)
}

/// Returns the minimum number of tensors that must match the family that the metadata name.
///
/// Tensors of parts for images or audio are not counted, because the family describes only the
/// language model.
fn fewest_told(family: &Family, tensors: &[TensorInfo], metadata: &Metadata) -> usize {
    let has_others = dimensions::Told::by(metadata, family).has_other_parts(family);
    let others = tensors.iter().filter(|info| has_others && is_of_others(&info.name)).count();
    least(TOLD, tensors.len() - others)
}

/// Fewest tensors out of `total` that are this share, and at least one.
fn least((share, of): (usize, usize), total: usize) -> usize {
    total.saturating_mul(share).div_ceil(of).max(1)
}

/// Returns the number of tensors by which a family is guessed.
///
/// If most tensor names are module paths, only these are counted. Graph exporters store precomputed
/// values among the weights, such as a mask `where`, which do not depend on the family.
fn modules(tensors: &[TensorInfo]) -> usize {
    let paths = tensors.iter().filter(|info| is_path_of_module(&info.name)).count();
    if paths * 2 > tensors.len() { paths } else { tensors.len() }
}

/// Returns `true` if a tensor is named like a module parameter in PyTorch: `layers.0.weight`.
///
/// Exporters name graph values differently: `unsqueeze_14`, `/layers.0/Constant_output_0`.
#[must_use]
pub fn is_path_of_module(name: &str) -> bool {
    name.contains('.') && !name.contains('/')
}

/// Returns `true` if a model type does not identify the model.
pub(crate) fn is_no_type(name: &str) -> bool {
    ["", "auto", "unknown"].iter().any(|none| name.eq_ignore_ascii_case(none))
}

/// Returns the possible model names for a class of `transformers`, the longest name first.
///
/// For `CLIPTextModelWithProjection`, they include `cliptextmodel` and `cliptext`.
pub(crate) fn model_names(class: &str) -> Vec<String> {
    const ENDINGS: [&str; 7] =
        ["WithProjection", "MTModel", "Model", "PreTrained", "LMHead", "DoubleHeads", "Encoder"];

    // `MaskFormer` names no task: a capital has to follow.
    let end = class.match_indices("For").map(|(at, _)| at).find(|&at| {
        let after = class[at + 3..].chars().next();
        at > 0 && after.is_some_and(char::is_uppercase)
    });
    let mut rest = &class[..end.unwrap_or(class.len())];
    let mut names = vec![plain(rest)];
    while let Some(shorter) = ENDINGS.iter().find_map(|ending| rest.strip_suffix(ending)) {
        rest = shorter;
        names.push(plain(rest));
    }
    names
}

/// A name in lower case, letters and digits alone: classes and model types differ in the rest.
fn plain(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|character| character.to_ascii_lowercase())
        .collect()
}

#[cfg(test)]
mod tests;
