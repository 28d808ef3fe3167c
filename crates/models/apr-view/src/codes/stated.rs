//! What a checkpoint's configuration says of how its weights are stored.

use apr_core::json::{entries, from_python, to_python};
use apr_core::{CheckpointReader, Metadata, Result, keys};
use serde_json::{Map, Value};

use super::coded::CONFIG;
use super::mlx_lm;
use crate::{SCALES_FILE, View};

/// Files that state a quantization beside or in place of `config.json`.
const FILES: [&str; 3] = ["hf_quant_config.json", "quantize_config.json", "quant_config.json"];

/// Entries of a configuration that state one.
pub(super) const ENTRIES: [&str; 2] = ["quantization_config", "quantization"];

/// Quantization statement in the form of its method; empty if there is none.
#[derive(Debug, Clone, Default)]
pub(super) struct Stated {
    entries: Map<String, Value>,
    /// `true` if one file states the quantization twice, in different ways.
    is_twofold: bool,
    /// `true` if the statement about the first expert of a layer is about all of them.
    has_experts: bool,
}

impl Stated {
    /// Returns the statement in the metadata and companion files.
    pub(super) fn of(reader: &dyn CheckpointReader) -> Self {
        let config = companion(reader, "config.json");
        let architecture = reader.metadata().object(keys::ARCHITECTURE);
        let of_config = config.as_ref().into_iter().chain(architecture).find_map(stated_in);
        // Of those, modelopt's has the statement within.
        let of_file = |file: Map<String, Value>| stated_in(&file).unwrap_or(file);
        let beside = || FILES.iter().find_map(|file| companion(reader, file)).map(of_file);
        let is_twofold = config.as_ref().is_some_and(|config| {
            let [one, other] = ENTRIES.map(|entry| config.get(entry).and_then(Value::as_object));
            one.is_some() && other.is_some() && one != other
        });
        let entries = of_config.or_else(beside).unwrap_or_default();
        Self { entries, is_twofold, has_experts: false }
    }

    /// Names MLX's modules of all experts of a layer as the first one.
    pub(super) fn name_experts(&mut self, metadata: &Metadata) {
        let of = |module: &String| Some((module.clone(), mlx_lm::first_expert(metadata, module)?));
        let modules: Vec<_> = self.entries.keys().filter_map(of).collect();
        for (module, name) in modules {
            if let Some(entry) = self.entries.remove(&module) {
                self.entries.insert(name, entry);
                self.has_experts = true;
            }
        }
    }

    /// Returns what is wrong with the statement as such.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        self.is_twofold.then_some(
            "'quantization_config' and 'quantization' of the configuration differ, and programs \
             read one or the other",
        )
    }

    /// Returns the values of a key in the schemes of compressed-tensors for weights.
    pub(super) fn of_groups(&self, key: &str) -> Vec<&Value> {
        let groups = self.entries.get("config_groups").and_then(Value::as_object);
        let groups = groups.into_iter().flat_map(entries);
        groups.filter_map(|(_, group)| group.get("weights")?.get(key)).collect()
    }

    /// The method, in lower case: `gptq`.
    pub(super) fn method(&self) -> Option<String> {
        self.text("quant_method").map(str::to_ascii_lowercase)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.entries.get(key)?.as_str()
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.entries.get(key)?.as_u64()
    }

    /// Returns the statement about one module, by its name or a name with a longer or shorter
    /// prefix.
    pub(super) fn module(&self, name: &str) -> Option<&Value> {
        let ends = |long: &str, short: &str| {
            long.strip_suffix(short).is_some_and(|front| front.ends_with('.'))
        };
        let is_same =
            |key: &str, name: &str| key.contains('.') && (ends(key, name) || ends(name, key));
        let of = |name: &str| {
            let entry = self.entries.get(name).filter(|entry| entry.is_object());
            entry.or_else(|| {
                let mut entries = self.entries.iter().filter(|(_, entry)| entry.is_object());
                entries.find(|(key, _)| is_same(key, name)).map(|(_, entry)| entry)
            })
        };
        of(name).or_else(|| of(&first_expert(name).filter(|_| self.has_experts)?))
    }

    /// Returns `true` if there is a statement.
    pub(super) fn is_any(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Returns `true` if all groups of a compressed-tensors configuration have this value for their
    /// weights.
    pub(super) fn all_groups_say(&self, key: &str, value: &Value) -> bool {
        let groups = self.entries.get("config_groups").and_then(Value::as_object);
        let says = |group: &Value| group.get("weights").and_then(|of| of.get(key)) == Some(value);
        groups.is_some_and(|groups| !groups.is_empty() && groups.values().all(says))
    }

    /// All entries.
    pub(super) fn entries(&self) -> &Map<String, Value> {
        &self.entries
    }

    /// Returns the entry with this key.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }
}

/// Returns the name of the module that the first expert has in place of this one.
fn first_expert(module: &str) -> Option<String> {
    let (front, rest) = module.rsplit_once(".experts.")?;
    let (_, matrix) = rest.split_once('.')?;
    Some(format!("{front}.experts.0.{matrix}"))
}

/// Returns the method of quantization that a checkpoint's configuration states, in lower case:
/// `gptq`. NVIDIA's modelopt states an algorithm in place of a method.
#[must_use]
pub fn stated_method(reader: &dyn CheckpointReader) -> Option<String> {
    let stated = Stated::of(reader);
    let of_algorithm = || stated.text("quant_algo").map(|_| "modelopt".to_owned());
    stated.method().or_else(of_algorithm)
}

/// Returns the statement in a configuration, or in its text part.
fn stated_in(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let part = config.get("text_config").and_then(Value::as_object);
    let found = [Some(config), part]
        .into_iter()
        .flatten()
        .find_map(|config| ENTRIES.iter().find_map(|entry| config.get(*entry)?.as_object()));
    found.cloned()
}

/// A companion that is a JSON object.
pub(super) fn companion(reader: &dyn CheckpointReader, name: &str) -> Option<Map<String, Value>> {
    let position = reader.companions().iter().position(|companion| companion.name == name)?;
    let bytes = reader.read_companion(position).ok()?;
    from_python(&bytes).ok()
}

/// Returns `true` if a companion file contains only a quantization statement.
pub(super) fn is_statement(name: &str) -> bool {
    FILES.contains(&name) || name == SCALES_FILE
}

/// Removes the statement from a configuration and its text part; returns `true` if there was one.
pub(super) fn take_off(config: &mut Map<String, Value>) -> bool {
    let before = config.len();
    config.retain(|key, _| !ENTRIES.contains(&key.as_str()));
    let part = config.get_mut("text_config").and_then(Value::as_object_mut);
    let of_part = part.is_some_and(take_off);
    config.len() < before || of_part
}

/// Returns `true` if a checkpoint's configuration states a quantization: where weights in codes are
/// read as values ([`Coded`](super::Coded)), a checkpoint of plain weights alone.
#[must_use]
pub fn states_quantization(reader: &dyn CheckpointReader) -> bool {
    Stated::of(reader).is_any()
}

/// Removes the statement of a quantization from a view whose weights are plain: from its metadata
/// and from `config.json`, with the files that contain nothing else.
///
/// # Errors
/// E007 when a companion can't be read.
pub fn drop_statement(view: &mut View<'_>) -> Result<()> {
    let mut architecture = view.metadata().object(keys::ARCHITECTURE).cloned().unwrap_or_default();
    if take_off(&mut architecture) {
        view.metadata_mut().set(keys::ARCHITECTURE, architecture);
    }
    let config = view.companions().iter().position(|companion| companion.name == CONFIG);
    let config = config.map(|position| view.read_companion(position)).transpose()?;
    if let Some(plain) = config.as_deref().and_then(without) {
        view.add_companion(CONFIG, plain);
    }
    view.keep_companions(|name| !is_statement(name));
    Ok(())
}

/// Returns a `config.json` without the statement, or `None` if it has no statement.
pub(super) fn without(config: &[u8]) -> Option<Vec<u8>> {
    let mut config: Map<String, Value> = from_python(config).ok()?;
    if !take_off(&mut config) {
        return None;
    }
    Some(to_python(&config))
}

/// Returns the configuration `now` with the statement of the `original`, or `None` if that has
/// none.
///
/// An unchanged configuration is restored byte for byte.
pub(super) fn back(original: &[u8], now: &[u8]) -> Option<Vec<u8>> {
    let plain = without(original)?;
    if plain == now {
        return Some(original.to_vec());
    }
    let original: Map<String, Value> = from_python(original).ok()?;
    let mut config: Map<String, Value> = from_python(now).ok()?;
    put_entries(&original, &mut config);
    Some(to_python(&config))
}

/// Copies the statement of a checkpoint's metadata into other metadata.
pub(super) fn put_back(original: &Metadata, metadata: &mut Metadata) {
    let Some(stated) = original.object(keys::ARCHITECTURE) else { return };
    let mut architecture = metadata.object(keys::ARCHITECTURE).cloned().unwrap_or_default();
    put_entries(stated, &mut architecture);
    metadata.set(keys::ARCHITECTURE, architecture);
}

fn put_entries(from: &Map<String, Value>, to: &mut Map<String, Value>) {
    let entries = from.iter().filter(|(key, _)| ENTRIES.contains(&key.as_str()));
    to.extend(entries.map(|(key, value)| (key.clone(), value.clone())));
    let parts = from.get("text_config").zip(to.get_mut("text_config"));
    if let Some((Value::Object(from), Value::Object(to))) = parts {
        put_entries(from, to);
    }
}
