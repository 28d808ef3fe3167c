//! Names of a classifier's classes.

use apr_core::grouped;
use serde_json::{Map, Value};

use super::files::Files;
use super::learnt::Learnt;

const FILE: &str = "config.json";

pub(super) fn learn(files: &Files<'_>, learnt: &mut Learnt) {
    let Some(written) = files.value(FILE, "id2label") else { return };
    let Some(labels) = written.as_object().and_then(labels) else {
        return learnt.warn(FILE, "its id2label does not map numbers to names");
    };
    if labels.is_empty() {
        return;
    }

    let stated = files.value(FILE, "num_labels").and_then(Value::as_u64);
    if let Some(stated) = stated.filter(|&stated| stated != labels.len() as u64) {
        let named = grouped(labels.len() as u64);
        learnt.warn(
            FILE,
            &format!("its num_labels is {}, but id2label names {named}", grouped(stated)),
        );
    }

    learnt.set("num_labels", labels.len());
    learnt.set_bounded("labels", labels, FILE);
}

/// Converts labels by index. Keys are indices as text. Values are text, or numbers and booleans
/// that represent a class.
fn labels(written: &Map<String, Value>) -> Option<Map<String, Value>> {
    let label = |(index, name): (&String, &Value)| {
        index.parse::<u64>().ok()?;
        let name = match name {
            Value::String(name) => name.clone(),
            Value::Number(_) | Value::Bool(_) => name.to_string(),
            _ => return None,
        };
        Some((index.clone(), name.into()))
    };
    written.iter().map(label).collect()
}
