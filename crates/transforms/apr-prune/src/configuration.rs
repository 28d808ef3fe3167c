//! The configuration of a model that counts less than before.

use apr_core::json::{from_python, to_python};
use apr_core::{CheckpointReader, Error, Metadata, Result, keys};
use serde_json::{Map, Value};

/// Name of the companion file with the model configuration.
const CONFIG: &str = "config.json";
/// Entries that hold the configuration of the part that continues texts.
const PARTS: [&str; 1] = ["text_config"];

/// Changed configuration and other settings files of a model.
#[derive(Debug, Clone, Default)]
pub struct Configuration {
    /// Places among the companions, and bytes.
    files: Vec<(usize, Vec<u8>)>,
}

impl Configuration {
    /// The configuration of a checkpoint, beside the weights or in the metadata.
    ///
    /// # Errors
    /// E001 where it is no JSON object, E007 when it can't be read.
    pub fn of(reader: &dyn CheckpointReader) -> Result<Map<String, Value>> {
        Ok(match beside(reader, CONFIG)? {
            Some((_, config)) => config,
            None => reader.metadata().object(keys::ARCHITECTURE).cloned().unwrap_or_default(),
        })
    }

    /// Changes the configuration file and the configuration in the metadata.
    ///
    /// Returns the keys that `change` reports as changed.
    ///
    /// # Errors
    /// Returns the errors of [`of`](Self::of).
    pub fn changed(
        reader: &dyn CheckpointReader,
        metadata: &mut Metadata,
        change: impl Fn(&mut Map<String, Value>) -> Vec<String>,
    ) -> Result<(Self, Vec<String>)> {
        let mut configuration = Self::default();
        let change = |config: &mut Map<String, Value>| change_parts(config, &change);
        let mut changed = configuration.change_file(reader, CONFIG, change)?;
        if let Some(mut config) = metadata.object(keys::ARCHITECTURE).cloned() {
            let own = change(&mut config);
            changed = if configuration.files.is_empty() { own } else { changed };
            metadata.set(keys::ARCHITECTURE, config);
        }
        Ok((configuration, changed))
    }

    /// Changes another settings file, if the model has it.
    ///
    /// Returns the keys that `change` reports as changed.
    ///
    /// # Errors
    /// Returns the errors of [`of`](Self::of).
    pub fn change_file(
        &mut self,
        reader: &dyn CheckpointReader,
        name: &str,
        change: impl Fn(&mut Map<String, Value>) -> Vec<String>,
    ) -> Result<Vec<String>> {
        let Some((place, mut settings)) = beside(reader, name)? else { return Ok(Vec::new()) };
        let changed = change(&mut settings);
        self.files.push((place, to_python(&settings)));
        Ok(changed)
    }

    /// Returns the changed files: their positions among the companions, and their new contents.
    #[must_use]
    pub fn into_files(self) -> Vec<(usize, Vec<u8>)> {
        self.files
    }
}

/// Changes a configuration and the configurations of its parts.
fn change_parts(
    config: &mut Map<String, Value>,
    change: &impl Fn(&mut Map<String, Value>) -> Vec<String>,
) -> Vec<String> {
    let mut changed = change(config);
    for part in PARTS {
        if let Some(Value::Object(part)) = config.get_mut(part) {
            changed.extend(change(part));
        }
    }
    changed
}

/// A JSON file beside the weights, and its place among the companions.
fn beside(
    reader: &dyn CheckpointReader,
    name: &str,
) -> Result<Option<(usize, Map<String, Value>)>> {
    let place = reader.companions().iter().position(|companion| companion.name == name);
    let Some(place) = place else { return Ok(None) };
    let bytes = reader.read_companion(place)?;
    let config = from_python(&bytes).map_err(|error| {
        Error::format(format!("{name} is not a JSON object: {}", apr_core::foreign(&error)))
    })?;
    Ok(Some((place, config)))
}

/// Sets the entries among `keys` with the value `before` to `now`, and returns their keys.
pub(crate) fn counted(
    config: &mut Map<String, Value>,
    keys: &[&str],
    before: u64,
    now: u64,
) -> Vec<String> {
    let mut changed = Vec::new();
    for key in keys {
        if let Some(value) = config.get_mut(*key).filter(|value| value.as_u64() == Some(before)) {
            *value = now.into();
            changed.push((*key).to_owned());
        }
    }
    changed
}
