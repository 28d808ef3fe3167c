//! The families that are known, and which of them a checkpoint belongs to.

use std::sync::{Arc, OnceLock};

use apr_core::{Error, Metadata, Result, TensorInfo, keys};
use serde::Serialize;
use serde_json::Value as Json;

use crate::expression::Value;
use crate::family::Family;
use crate::file::FamilyFile;
use crate::model::{FamilyModel, best_naming};

/// Share of a checkpoint's tensors that a family must know to be believed: where the configuration names the family, and
/// where names alone speak for it.
const TOLD: f64 = 0.5;
const GUESSED: f64 = 0.9;

/// Fewest tensors that names alone are enough for: many small networks have a `fc1.weight`.
const FEWEST: usize = 5;

/// Bases before the families that extend them. Where names alone can't tell, the first family wins.
const BUILTIN: [&str; 22] = [
    include_str!("../families/llama.toml"),
    include_str!("../families/mistral.toml"),
    include_str!("../families/qwen2.toml"),
    include_str!("../families/qwen3.toml"),
    include_str!("../families/gemma.toml"),
    include_str!("../families/gemma2.toml"),
    include_str!("../families/gemma3.toml"),
    include_str!("../families/phi3.toml"),
    include_str!("../families/mixtral.toml"),
    include_str!("../families/qwen2_moe.toml"),
    include_str!("../families/qwen3_moe.toml"),
    include_str!("../families/phi.toml"),
    include_str!("../families/gpt2.toml"),
    include_str!("../families/gpt_neox.toml"),
    include_str!("../families/bert.toml"),
    include_str!("../families/roberta.toml"),
    include_str!("../families/distilbert.toml"),
    include_str!("../families/t5.toml"),
    include_str!("../families/whisper.toml"),
    include_str!("../families/vit.toml"),
    include_str!("../families/clip.toml"),
    include_str!("../families/wav2vec2.toml"),
];

/// Tables of the built-in families, each read when it is first asked for: most runs need one of them.
static READ: [OnceLock<Arc<Family>>; BUILTIN.len()] = [const { OnceLock::new() }; BUILTIN.len()];

/// A family that the metadata name and the tensors belie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename = "family")]
pub struct Contradiction {
    /// Title of the family that is named.
    pub told: String,
    /// Tensors that the family knows.
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
        write!(f, "the configuration says {told}, but {known} of {total} tensors have names of that family")?;
        match alike {
            Some(alike) => write!(f, "; they are named as in a model of family {alike}"),
            None => Ok(()),
        }
    }
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
    /// Those that were added, the latest first; they come before built-in ones.
    brought: Vec<Arc<Family>>,
}

impl Families {
    /// Those that apr knows by itself.
    #[must_use]
    pub fn builtin() -> Self {
        Self::default()
    }

    /// Adds a family from the text of a family file; it comes before a known one of the same name.
    ///
    /// # Errors
    /// E001 when the text is not TOML, not a family, or extends one that is not known.
    pub fn add(&mut self, text: &str) -> Result<&Family> {
        let family = read(text, |base| self.find(base)).map_err(|error| match error {
            Refused::UnknownBase(base) => self.unknown(&base),
            Refused::Malformed(error) => error,
        })?;
        self.brought.insert(0, Arc::new(family));
        Ok(&self.brought[0])
    }

    /// Names of the families that were added to the built-in ones.
    pub fn brought(&self) -> impl Iterator<Item = &str> {
        self.brought.iter().map(|family| family.name())
    }

    /// The family that is called so, by itself or by configurations.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Family> {
        let lower = name.to_ascii_lowercase();
        let told = (0..BUILTIN.len()).filter(|&at| mentions(BUILTIN[at], &lower)).map(|at| -> &Family { builtin(at) });
        let candidates: Vec<&Family> = self.brought.iter().map(|family| &**family).chain(told).collect();
        let by_own_name = candidates.iter().find(|family| family.name().eq_ignore_ascii_case(name));
        by_own_name.or_else(|| candidates.iter().find(|family| family.is_called(name))).copied()
    }

    /// All of them, in the order they are tried.
    pub fn iter(&self) -> impl Iterator<Item = &Family> {
        self.brought.iter().map(|family| &**family).chain((0..BUILTIN.len()).map(|at| -> &Family { builtin(at) }))
    }

    /// The family of a checkpoint: as its metadata say, or else as its tensors' names do. `None` where neither convinces.
    #[must_use]
    pub fn identify<'a>(&'a self, tensors: &[TensorInfo], metadata: &'a Metadata) -> Option<FamilyModel<'a>> {
        let told = metadata.text(keys::MODEL_TYPE).and_then(|name| self.find(name));
        let share = |known: usize| known as f64 / tensors.len().max(1) as f64;
        if let Some(family) = told {
            let (naming, known) = best_naming(family, tensors);
            return (share(known) >= TOLD).then(|| FamilyModel::new(family, naming, tensors, metadata));
        }
        if tensors.len() < FEWEST {
            return None;
        }
        let mut best: Option<(usize, usize, FamilyModel<'a>)> = None;
        for family in self.iter() {
            let (naming, known) = best_naming(family, tensors);
            if known < FEWEST || share(known) < GUESSED {
                continue;
            }
            let model = FamilyModel::new(family, naming, tensors, metadata);
            let wrong = model.mismatches(tensors).len();
            // Most tensors known, then fewest mismatches: a kin that asks for tensors that are not there is not it.
            if best.as_ref().is_none_or(|(most, fewest, _)| known > *most || (known == *most && wrong < *fewest)) {
                best = Some((known, wrong, model));
            }
        }
        best.map(|(_, _, model)| model)
    }

    /// Where the metadata name a family whose tensors these are not.
    #[must_use]
    pub fn contradiction(&self, tensors: &[TensorInfo], metadata: &Metadata) -> Option<Contradiction> {
        let told = metadata.text(keys::MODEL_TYPE).and_then(|name| self.find(name))?;
        let (naming, known) = best_naming(told, tensors);
        if known as f64 >= TOLD * tensors.len() as f64 {
            return None;
        }
        let stranger = tensors.iter().find(|info| told.find(&info.name, &naming).is_none())?;
        let alike = self.iter().find(|family| {
            let (_, known) = best_naming(family, tensors);
            known >= FEWEST && known as f64 >= GUESSED * tensors.len() as f64
        });
        Some(Contradiction {
            told: told.title().to_owned(),
            known,
            total: tensors.len(),
            stranger: stranger.name.clone(),
            alike: alike.map(|family| family.name().to_owned()),
        })
    }

    /// The family of a GGUF file, by its `general.architecture` and what tells kin of one architecture apart. `entry` is
    /// that of [`Family::config_from_gguf`].
    #[must_use]
    pub fn of_gguf(&self, architecture: &str, entry: &dyn Fn(&str) -> Option<Json>) -> Option<&Family> {
        let mut lookup = |name: &str| entry(name).and_then(|json| Value::of(&json));
        let mut general = None;
        for family in self.iter().filter(|family| family.is_gguf_architecture(architecture)) {
            match family.gguf.as_ref().and_then(|gguf| gguf.is_recognized(&mut lookup)) {
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
    pub fn apply<'a>(&'a self, name: &str, tensors: &[TensorInfo], metadata: &'a Metadata) -> Result<FamilyModel<'a>> {
        let family = self.find(name).ok_or_else(|| self.unknown(name))?;
        let (naming, _) = best_naming(family, tensors);
        Ok(FamilyModel::new(family, naming, tensors, metadata))
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<&str> = self.iter().map(Family::name).collect();
        Error::format(format!("there is no family '{name}'; known are {}", names.join(", ")))
    }
}

/// The built-in family at this position.
///
/// # Panics
/// When its table is malformed; a test reads them all, so none that is leaves this repository.
fn builtin(at: usize) -> &'static Family {
    READ[at].get_or_init(|| {
        let base = |name: &str| {
            let mut named = (0..at).filter(|&at| mentions(BUILTIN[at], name)).map(builtin);
            named.find(|family| family.name() == name)
        };
        match read(BUILTIN[at], base) {
            Ok(family) => Arc::new(family),
            Err(_) => unreachable!("the table {at} is malformed"),
        }
    })
}

/// Whether a name stands in quotes in the head of a table, where its names are; cheaper than reading the table.
fn mentions(table: &str, name: &str) -> bool {
    let head = table.split("\n[").next().unwrap_or(table);
    head.contains(&format!("\"{name}\""))
}

/// Why a table is no family.
enum Refused {
    UnknownBase(String),
    Malformed(Error),
}

fn read<'f>(text: &str, find: impl Fn(&str) -> Option<&'f Family>) -> Result<Family, Refused> {
    let mut file = FamilyFile::parse(text).map_err(Refused::Malformed)?;
    if let Some(base) = &file.extends {
        let base = find(base).ok_or_else(|| Refused::UnknownBase(base.clone()))?;
        file = file.on_top_of(&base.file);
    }
    Family::new(file).map_err(Refused::Malformed)
}
