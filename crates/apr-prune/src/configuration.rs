//! The configuration of a model that counts less than before.

use apr_core::{CheckpointReader, Companion, Error, Metadata, Result, keys};
use serde_json::{Map, Value};

/// Name of the companion that says what the model is made of.
const CONFIG: &str = "config.json";
/// Entries that hold the configuration of the part that continues texts.
const PARTS: [&str; 1] = ["text_config"];

/// The configuration beside the weights, where there is one.
#[derive(Debug, Clone, Default)]
pub struct Configuration {
    /// Place among the companions, and bytes.
    file: Option<(usize, Vec<u8>)>,
}

impl Configuration {
    /// The configuration of a checkpoint, beside the weights or in the metadata.
    ///
    /// # Errors
    /// E001 where it is no JSON object, E007 when it can't be read.
    pub fn of(reader: &dyn CheckpointReader) -> Result<Map<String, Value>> {
        Ok(match beside(reader)? {
            Some((_, config)) => config,
            None => reader.metadata().object(keys::ARCHITECTURE).cloned().unwrap_or_default(),
        })
    }

    /// Changes the configuration beside the weights and in the metadata; what `change` says that it
    /// changed.
    ///
    /// # Errors
    /// Those of [`of`](Self::of).
    pub fn changed(
        reader: &dyn CheckpointReader,
        metadata: &mut Metadata,
        change: impl Fn(&mut Map<String, Value>) -> Vec<String>,
    ) -> Result<(Self, Vec<String>)> {
        let (mut file, mut changed) = (None, Vec::new());
        if let Some((place, mut config)) = beside(reader)? {
            changed = change_parts(&mut config, &change);
            file = Some((place, serde_json::to_vec_pretty(&config).unwrap_or_default()));
        }
        if let Some(mut config) = metadata.object(keys::ARCHITECTURE).cloned() {
            let own = change_parts(&mut config, &change);
            changed = if file.is_none() { own } else { changed };
            metadata.set(keys::ARCHITECTURE, config);
        }
        Ok((Self { file }, changed))
    }

    /// The companions of the checkpoint that was changed.
    #[must_use]
    pub fn companions(&self, reader: &dyn CheckpointReader) -> Vec<Companion> {
        let mut companions = reader.companions().to_vec();
        if let Some((place, bytes)) = &self.file {
            companions[*place].len = bytes.len() as u64;
        }
        companions
    }

    /// A companion of the checkpoint that was changed.
    ///
    /// # Errors
    /// Those of [`CheckpointReader::read_companion`].
    pub fn read_companion(
        &self,
        reader: &dyn CheckpointReader,
        companion: usize,
    ) -> Result<Vec<u8>> {
        match &self.file {
            Some((place, bytes)) if *place == companion => Ok(bytes.clone()),
            _ => reader.read_companion(companion),
        }
    }
}

/// Changes a configuration and what it has of its parts.
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

/// The configuration beside the weights, and its place among the companions.
fn beside(reader: &dyn CheckpointReader) -> Result<Option<(usize, Map<String, Value>)>> {
    let place = reader.companions().iter().position(|companion| companion.name == CONFIG);
    let Some(place) = place else { return Ok(None) };
    let bytes = reader.read_companion(place)?;
    let config = serde_json::from_slice(&bytes)
        .map_err(|error| Error::format(format!("{CONFIG} is no JSON object: {error}")))?;
    Ok(Some((place, config)))
}

/// Sets the entries among these keys that count `before` to `now`; those that were.
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
