//! Chat templates of models.

use apr_core::Result;
use apr_core::json::{from_python, to_python};
use serde_json::{Map, Value};

use crate::plan::Model;

/// The file of a tokenizer's settings, which may have the template.
pub(crate) const CONFIG: &str = "tokenizer_config.json";

/// The file of the template alone.
pub(crate) const FILE: &str = "chat_template.jinja";

const KEY: &str = "chat_template";

/// Returns the template of a model. If there are several named templates, returns the default one.
fn template(model: &Model<'_>) -> Result<Option<String>> {
    let companion = |name: &str| {
        let position = model.reader.companions().iter().position(|file| file.name == name);
        position.map(|position| model.reader.read_companion(position)).transpose()
    };
    if let Some(bytes) = companion(FILE)? {
        return Ok(String::from_utf8(bytes).ok());
    }
    let Some(bytes) = companion(CONFIG)? else { return Ok(None) };
    let config: Map<String, Value> = from_python(&bytes).unwrap_or_default();
    Ok(match config.get(KEY) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(named)) => named
            .iter()
            .find(|entry| entry["name"] == "default")
            .and_then(|entry| entry["template"].as_str())
            .map(str::to_owned),
        _ => None,
    })
}

/// Returns the most frequent template of the models. If there is a tie, the first one wins.
pub(crate) fn most_frequent(models: &[Model<'_>]) -> Result<Option<String>> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for model in models {
        let Some(text) = template(model)? else { continue };
        match counts.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => counts.push((text, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max();
    let found = counts.into_iter().find(|(_, count)| Some(*count) == most);
    Ok(found.map(|(text, _)| text))
}

/// Returns tokenizer settings with this template, or `None` if the settings are not a JSON object.
pub(crate) fn with_template(config: &[u8], text: &str) -> Option<Vec<u8>> {
    let mut config: Map<String, Value> = from_python(config).ok()?;
    config.insert(KEY.to_owned(), text.into());
    Some(to_python(&config))
}
