//! Chat templates.

use apr_core::json::entries;
use serde_json::{Map, Value, json};

use super::files::Files;
use super::learnt::Learnt;

const KEY: &str = "tokenizer.chat_template";

/// The first that is there, in the order in which tokenizer libraries look for them.
pub(super) fn learn(files: &Files<'_>, learnt: &mut Learnt) {
    if let Some(bytes) = files.bytes("chat_template.jinja") {
        match std::str::from_utf8(bytes) {
            Ok(template) => return learnt.set_bounded(KEY, template, "chat_template.jinja"),
            Err(error) => {
                learnt.warn_unreadable("chat_template.jinja", &format!("not UTF-8: {error}"));
            }
        }
    }

    for file in ["chat_template.json", "tokenizer_config.json"] {
        let Some(value) = files.value(file, "chat_template") else { continue };
        match template(value) {
            Some(template) => return learnt.set_bounded(KEY, template, file),
            None => {
                learnt
                    .warn(file, "its chat_template is neither text nor a list of named templates");
            }
        }
    }
}

/// Returns a chat template: text, or a list of only named templates. A list may also be written as
/// an object by name.
fn template(value: &Value) -> Option<Value> {
    let named = |name: &str, template: &str| json!({ "name": name, "template": template });
    match value {
        Value::String(_) => Some(value.clone()),
        Value::Array(list) if !list.is_empty() => list
            .iter()
            .map(|entry| {
                Some(named(entry.get("name")?.as_str()?, entry.get("template")?.as_str()?))
            })
            .collect(),
        Value::Object(templates) if !templates.is_empty() => by_name(templates, named),
        _ => None,
    }
}

fn by_name(templates: &Map<String, Value>, named: impl Fn(&str, &str) -> Value) -> Option<Value> {
    entries(templates).map(|(name, template)| Some(named(name, template.as_str()?))).collect()
}
