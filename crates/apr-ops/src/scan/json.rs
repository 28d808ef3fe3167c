//! Configurations in JSON: classes that loaders import by name, code that they run, templates.

use apr_registry::pytorch::FileVerdict;
use apr_registry::{Error, Escaped, Result};
use serde_json::{Map, Value};

use super::examine::{Found, not_examined};
use super::jinja;

/// Modules whose classes Keras' own loader makes.
const KERAS: [&str; 8] = [
    "keras",
    "keras_core",
    "keras_cv",
    "keras_hub",
    "keras_nlp",
    "keras_rs",
    "tensorflow.keras",
    "tf_keras",
];

/// Parts of Keras whose functions reach files and settings (CVE-2025-8747, CVE-2025-9906).
const GADGETS: [&str; 5] = ["config", "saving", "src.config", "src.saving", "utils"];

/// Modules whose classes skops makes without being told to trust them.
const SKOPS: [&str; 6] = ["builtins", "collections", "numpy", "scipy", "sklearn", "xgboost"];

/// Findings of one file that are kept.
const MOST: usize = 100;

/// Judges a configuration.
///
/// # Errors
/// E001 for what is no JSON.
pub(super) fn judge(bytes: &[u8]) -> Result<Found> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| Error::format(format!("it starts like JSON, and is none: {error}")))?;
    if value.get("nbformat").is_some() {
        return Ok(not_examined("a notebook, whose cells run where somebody runs it"));
    }
    Ok(judge_value(&value))
}

/// Judges what is parsed already.
pub(super) fn judge_value(value: &Value) -> Found {
    let mut found = Found::new();
    // A list of what is left needs no stack.
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(object) => {
                judge_object(object, &mut found);
                rest.extend(object.values());
            }
            Value::Array(items) => rest.extend(items),
            _ => {}
        }
        found.truncate(MOST);
    }
    found
}

fn judge_object(object: &Map<String, Value>, found: &mut Found) {
    for (key, value) in object {
        if key.contains("chat_template") {
            templates(value, found);
        }
        if key == "auto_map" || key == "custom_pipelines" {
            let names = Escaped::short(&value.to_string()).to_string();
            let message = format!(
                "'{key}' names Python in the model's folder, which transformers runs where it is \
                 told to trust the model: {names}"
            );
            found.push((FileVerdict::Suspicious, message));
        }
    }

    let text = |key: &str| object.get(key).and_then(Value::as_str);
    if let (Some(handler), true) = (text("handler"), object.contains_key("modelName")) {
        let message = format!("a server of models runs the handler '{}'", Escaped::short(handler));
        found.push((FileVerdict::Suspicious, message));
    }
    if let Some(class) = text("class_name") {
        keras(class, text("module"), found);
    }
    if let (Some(module), true) = (text("__module__"), object.contains_key("__loader__")) {
        skops(module, text("__class__").unwrap_or_default(), found);
    }
}

/// One template, several by name, or several with names.
fn templates(value: &Value, found: &mut Found) {
    match value {
        Value::String(text) => found.extend(jinja::judge(text)),
        Value::Array(items) => items.iter().for_each(|item| {
            templates(item.get("template").unwrap_or(item), found);
        }),
        Value::Object(named) => named.values().for_each(|value| templates(value, found)),
        _ => {}
    }
}

/// Keras imports `module` and takes `class_name` from it.
fn keras(class: &str, module: Option<&str>, found: &mut Found) {
    if ["Lambda", "__lambda__"].contains(&class) {
        let message = "a Lambda layer, whose function is Python's bytecode or any name";
        return found.push((FileVerdict::Dangerous, message.to_owned()));
    }
    let Some(module) = module else { return };
    let within = |outer: &str| {
        module.strip_prefix(outer).and_then(|rest| match rest.strip_prefix('.') {
            Some(rest) => Some(rest),
            None => rest.is_empty().then_some(rest),
        })
    };
    let is_function = class.starts_with(|first: char| first.is_lowercase());
    let (verdict, what) = match KERAS.iter().find_map(|outer| within(outer)) {
        Some(part) => {
            let is_gadget = GADGETS.iter().any(|gadget| {
                part.strip_prefix(gadget)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            });
            if !(is_function && is_gadget) {
                return;
            }
            (FileVerdict::Dangerous, "a function of Keras that reaches files or settings")
        }
        // Functions by name, and values: `builtins` here is not Python's module.
        None if module == "builtins"
            && ["function", "set", "slice", "list", "tuple", "dict"].contains(&class) =>
        {
            return;
        }
        None if is_function => (FileVerdict::Dangerous, "a function of any module"),
        None => (FileVerdict::Suspicious, "a class that is none of Keras"),
    };
    let name = format!("{module}.{class}");
    found.push((verdict, format!("its configuration imports {what}: {}", Escaped::short(&name))));
}

fn skops(module: &str, class: &str, found: &mut Found) {
    let outer = module.split('.').next().unwrap_or_default();
    if SKOPS.contains(&outer) && !(outer == "builtins" && class.starts_with(char::is_lowercase)) {
        return;
    }
    let values = ["bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple", "type"];
    if outer == "builtins" && values.contains(&class) {
        return;
    }
    let name = format!("{module}.{class}");
    let message = format!("its schema imports {}", Escaped::short(&name));
    found.push((FileVerdict::Suspicious, message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_judged_by_what_they_name() {
        use FileVerdict::{Dangerous, NotExamined, Suspicious};
        for (text, expected) in [
            (r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}"#, None),
            (r#"{"auto_map": {"AutoModel": "modeling_x.X"}}"#, Some(Suspicious)),
            (r#"{"config": {"layers": [{"class_name": "Lambda"}]}}"#, Some(Dangerous)),
            (r#"{"class_name": "Dense", "module": "keras.layers"}"#, None),
            (r#"{"class_name": "function", "module": "builtins", "config": "relu"}"#, None),
            (r#"{"class_name": "system", "module": "os"}"#, Some(Dangerous)),
            (r#"{"class_name": "Mine", "module": "mine"}"#, Some(Suspicious)),
            (r#"{"class_name": "get_file", "module": "keras.utils"}"#, Some(Dangerous)),
            (
                r#"{"class_name": "enable_unsafe_deserialization", "module": "keras.config"}"#,
                Some(Dangerous),
            ),
            (r#"{"__class__": "Lasso", "__module__": "sklearn.svm", "__loader__": "x"}"#, None),
            (
                r#"{"__class__": "system", "__module__": "os", "__loader__": "FunctionNode"}"#,
                Some(Suspicious),
            ),
            (r#"{"chat_template": "{{ messages[0].content }}"}"#, None),
            (r#"{"chat_template": "{{ ''.__class__ }}"}"#, Some(Dangerous)),
            (
                r#"{"chat_template": [{"name": "x", "template": "{{ x.__globals__ }}"}]}"#,
                Some(Dangerous),
            ),
            (r#"{"nbformat": 4, "cells": []}"#, Some(NotExamined)),
        ] {
            let found = judge(text.as_bytes()).expect("JSON");
            let worst = found.iter().map(|(verdict, _)| *verdict).max();
            assert_eq!(worst, expected, "{text}: {found:?}");
        }
        assert!(judge(b"{ no").is_err());
    }
}
