//! What differs between the generation settings of two checkpoints.

use std::collections::BTreeSet;

use apr_registry::{CheckpointReader, Result};
use serde_json::{Map, Value};

use super::report::MetadataChange;

/// The file of the settings.
const SETTINGS: &str = "generation_config.json";
/// The file that is beside it wherever a model could have settings.
const CONFIGURATION: &str = "config.json";
/// Keys of the settings that record the origin of the settings.
const OF_THE_FILE: [&str; 2] = ["_from_model_config", "transformers_version"];

/// Returns the generation settings that differ, as `generation.KEY`.
///
/// Most formats have no place for them. They are compared if both models have the file, or if a
/// model with a `config.json` lacks it and has the default values.
pub(super) fn generation_changes(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
) -> Result<Vec<MetadataChange>> {
    let (found, other) = (companion(left, SETTINGS)?, companion(right, SETTINGS)?);
    let is_unknown = |side: &Option<_>, reader| side.is_none() && !has_configuration(reader);
    if is_unknown(&found, left) || is_unknown(&other, right) {
        return Ok(Vec::new());
    }
    Ok(changes(&found.unwrap_or_default(), &other.unwrap_or_default()))
}

/// Returns `true` if a model has its configuration as a file, and so could have the others.
pub(super) fn has_configuration(reader: &dyn CheckpointReader) -> bool {
    reader.companions().iter().any(|companion| companion.name == CONFIGURATION)
}

fn changes(left: &Map<String, Value>, right: &Map<String, Value>) -> Vec<MetadataChange> {
    let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let value = |side: &Map<String, Value>, key: &str| {
        side.get(key).filter(|value| !value.is_null()).cloned()
    };
    let change = |key: &String| {
        let (left, right) = (value(left, key), value(right, key));
        (left != right).then(|| MetadataChange {
            key: format!("generation.{key}"),
            left,
            right,
            changes_answers: true,
        })
    };
    let told = keys.into_iter().filter(|key| !OF_THE_FILE.contains(&key.as_str()));
    told.filter_map(change).collect()
}

/// Returns the object in a companion; an empty one if the file contains something else.
pub(super) fn companion(
    reader: &dyn CheckpointReader,
    name: &str,
) -> Result<Option<Map<String, Value>>> {
    let companions = reader.companions();
    let Some(at) = companions.iter().position(|companion| companion.name == name) else {
        return Ok(None);
    };
    Ok(Some(serde_json::from_slice(&reader.read_companion(at)?).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_that_one_model_lacks_are_changes() {
        let of = |value: Value| value.as_object().cloned().unwrap();
        let left = of(json!({"temperature": 0.2, "top_k": null, "transformers_version": "4"}));
        let right = of(json!({"do_sample": true, "transformers_version": "5"}));
        let found = changes(&left, &right);
        let keys: Vec<&str> = found.iter().map(|change| change.key.as_str()).collect();
        assert_eq!(keys, ["generation.do_sample", "generation.temperature"]);
        assert!(found.iter().all(|change| change.changes_answers));
        assert_eq!((&found[1].left, &found[1].right), (&Some(json!(0.2)), &None));
    }
}
