//! Configurations in JSON: classes that loaders import by name, code that they run, templates.

use apr_core::json::{entries, text};
use std::rc::Rc;

use apr_pytorch::{Verdict, verdict_on};
use apr_registry::{Error, Escaped, Result};
use base64ct::{Base64, Encoding};
use serde_json::{Map, Value};

use super::jinja;
use super::{ContentRemarks, not_examined};
use crate::report::FileVerdict;

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

/// Parts of Keras whose functions only compute. Those of others reach files and settings
/// (CVE-2025-8747, CVE-2025-9906, CVE-2025-12058).
const HARMLESS: [&str; 10] = [
    "activations",
    "backend",
    "constraints",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "ops",
    "optimizers",
    "regularizers",
];

/// Modules whose classes skops makes without being told to trust them.
const SKOPS: [&str; 6] = ["builtins", "collections", "numpy", "scipy", "sklearn", "xgboost"];

/// Findings of one file that are kept.
const MOST: usize = 100;

/// Judges a configuration.
///
/// # Errors
/// E001 for what is no JSON.
pub(super) fn judge(bytes: &[u8]) -> Result<ContentRemarks> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| Error::format(format!("invalid JSON: {error}")))?;
    if value.get("nbformat").is_some() {
        return Ok(not_examined("a notebook with code cells"));
    }
    Ok(judge_value(&value))
}

/// Judges what is parsed already.
pub(super) fn judge_value(value: &Value) -> ContentRemarks {
    let mut found = ContentRemarks::new();
    // A list of what is left needs no stack; with the layers that each is in.
    let mut rest: Vec<(&Value, Rc<str>)> = vec![(value, Rc::from(""))];
    while let Some((value, within)) = rest.pop() {
        match value {
            Value::Object(object) => {
                let within = layer_path(object, within);
                judge_object(object, &within, &mut found);
                rest.extend(entries(object).map(|(_, value)| (value, Rc::clone(&within))));
            }
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, Rc::clone(&within)))),
            _ => {}
        }
        found.truncate(MOST);
    }
    found
}

/// The names of the layers that something is in, with that of the object's own.
fn layer_path(object: &Map<String, Value>, within: Rc<str>) -> Rc<str> {
    /// Longest path, in bytes: each level of a configuration may have a name of any length.
    const LONGEST: usize = 200;

    let name = object.get("config").and_then(|config| config.get("name")).and_then(Value::as_str);
    match name.filter(|_| object.contains_key("class_name") && within.len() < LONGEST) {
        Some(name) if within.is_empty() => Escaped::short(name).to_string().into(),
        Some(name) => format!("{within}/{}", Escaped::short(name)).into(),
        None => within,
    }
}

fn judge_object(object: &Map<String, Value>, within: &str, found: &mut ContentRemarks) {
    for (key, value) in entries(object) {
        if let Some(text) = value.as_str() {
            found.extend(jinja::judge(text));
            setting(key, text, found);
        }
        if key == "weight_map" {
            shards(value, found);
        }
        if key == "auto_map" || key == "custom_pipelines" {
            let names = Escaped::short(&text(value)).to_string();
            let message = format!(
                "'{key}' names Python in the model's folder, which transformers runs with \
                 trust_remote_code: {names}"
            );
            found.push((FileVerdict::Suspicious, message));
        }
    }

    let text = |key: &str| object.get(key).and_then(Value::as_str);
    if let (Some(handler), true) = (text("handler"), object.contains_key("modelName")) {
        let message = format!("inference servers run the handler '{}'", Escaped::short(handler));
        found.push((FileVerdict::Suspicious, message));
    }
    if let Some(class) = text("class_name") {
        let mut own = ContentRemarks::new();
        keras(class, text("module"), object.get("config"), &mut own);
        registered(text("registered_name"), text("module"), &mut own);
        if let Some(config) = object.get("config") {
            keras_config(class, config, &mut own);
        }
        let place = if within.is_empty() { String::new() } else { format!("'{within}': ") };
        let located = |(verdict, message)| (verdict, format!("{place}{message}"));
        found.extend(own.into_iter().map(located));
    }
    if let (Some(kind), true) = (text("type"), object.contains_key("idx"))
        && !kind.starts_with("sentence_transformers.")
    {
        let message = format!(
            "sentence-transformers imports the module {} with trust_remote_code",
            Escaped::short(kind)
        );
        found.push((FileVerdict::Suspicious, message));
    }
    if object.contains_key("_class_name") {
        diffusers(object, found);
    }
    if let (Some(module), true) = (text("__module__"), object.contains_key("__loader__")) {
        skops(module, text("__class__").unwrap_or_default(), found);
    }
}

/// Libraries whose classes configurations name as a matter of course.
const LIBRARIES: [&str; 12] = [
    "diffusers",
    "hydra",
    "lightning",
    "mlflow",
    "nemo",
    "omegaconf",
    "onnxruntime",
    "optimum",
    "pytorch_lightning",
    "sentence_transformers",
    "torch",
    "transformers",
];

fn is_of_library(name: &str) -> bool {
    LIBRARIES.contains(&name.split('.').next().unwrap_or_default())
}

/// Whether a name is that of a registered operator, as programs of torch.export call them:
/// `torch.ops.aten.add.Tensor`. What `torch.ops` has itself, such as `load_library`, is none.
fn is_operator(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("torch.ops.") else { return false };
    let parts: Vec<&str> = rest.split('.').collect();
    let is_special = |part: &&str| part.starts_with("__");
    match parts.as_slice() {
        [namespace, name] => ![namespace, name].into_iter().any(is_special) && is_open(namespace),
        // `aten.__and__.Tensor` is one.
        [namespace, _, overload] => {
            ![namespace, overload].into_iter().any(is_special) && is_open(namespace)
        }
        _ => false,
    }
}

/// Whether a part of `torch.ops` is a namespace of operators, and no function that loads code.
fn is_open(namespace: &str) -> bool {
    !["import_module", "load_library"].contains(&namespace)
}

/// A setting by which a library imports a name: Hydra and what stands on it, MLflow, PEFT.
pub(super) fn setting(key: &str, value: &str, found: &mut ContentRemarks) {
    let (who, what) = match key {
        "_target_" | "target" => ("Hydra or a similar library", value.rsplit_once('.')),
        "loader_module" => ("MLflow", Some((value, ""))),
        "parent_library" => ("PEFT", Some((value, ""))),
        _ => return,
    };
    let Some((module, name)) = what else { return };
    if is_operator(value) {
        return;
    }
    let verdict = match verdict_on(module, name) {
        Verdict::Dangerous => FileVerdict::Dangerous,
        // Many a program calls something its target.
        _ if key == "target" || value.is_empty() || is_of_library(value) => return,
        _ => FileVerdict::Suspicious,
    };
    found.push((verdict, format!("{who} imports {}", Escaped::short(value))));
}

/// Files of weights that an index names.
fn shards(map: &Value, found: &mut ContentRemarks) {
    let names = map.as_object().into_iter().flat_map(entries).filter_map(|(_, name)| name.as_str());
    let out = |name: &&str| {
        name.starts_with(['/', '\\']) || name.split(['/', '\\']).any(|part| part == "..")
    };
    if let Some(name) = names.into_iter().find(out) {
        let message = format!("weights outside the model's folder: '{}'", Escaped::short(name));
        found.push((FileVerdict::Dangerous, message));
    }
}

/// Pipelines of diffusers: each part is the name of a library and a class.
fn diffusers(object: &Map<String, Value>, found: &mut ContentRemarks) {
    for (key, value) in entries(object) {
        let Some([Value::String(module), Value::String(class)]) =
            value.as_array().map(Vec::as_slice)
        else {
            continue;
        };
        if !is_of_library(module) && !module.starts_with("stable_diffusion") {
            let message = format!(
                "diffusers imports {}.{} for '{}' with trust_remote_code",
                Escaped::short(module),
                Escaped::short(class),
                Escaped::short(key)
            );
            found.push((FileVerdict::Suspicious, message));
        }
    }
}

/// Layers of Keras whose configuration reaches files or code.
fn keras_config(class: &str, config: &Value, found: &mut ContentRemarks) {
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    let (verdict, message) = match class {
        "TorchModuleWrapper" => {
            (FileVerdict::Dangerous, "a layer that unpickles a module of PyTorch".to_owned())
        }
        "TFSMLayer" | "JaxLayer" | "FlaxLayer" => {
            (FileVerdict::Suspicious, format!("a layer that runs another program ({class})"))
        }
        "TFOpLambda" => {
            let function = text("function").unwrap_or_default();
            let reaches = ["io.", "numpy_function", "py_function", "raw_ops.", "print"];
            if !reaches.iter().any(|start| function.starts_with(start)) {
                return;
            }
            (FileVerdict::Dangerous, format!("a layer calls tf.{}", Escaped::short(function)))
        }
        _ => {
            let files = ["vocabulary", "idf_weights", "filepath"];
            let Some(file) = files.iter().find_map(|key| text(key)) else { return };
            (FileVerdict::Suspicious, format!("a layer reads a file: '{}'", Escaped::short(file)))
        }
    };
    found.push((verdict, message));
}

/// Keras imports `module` and takes `class_name` from it.
fn keras(class: &str, module: Option<&str>, config: Option<&Value>, found: &mut ContentRemarks) {
    if ["Lambda", "__lambda__"].contains(&class) {
        found.push((FileVerdict::Dangerous, lambda(config)));
        return;
    }
    let Some(module) = module else { return };
    let within = |outer: &str| {
        module.strip_prefix(outer).and_then(|rest| match rest.strip_prefix('.') {
            Some(rest) => Some(rest),
            None => rest.is_empty().then_some(rest),
        })
    };
    let is_function = class.starts_with(|first: char| first.is_lowercase() || first == '_');
    let (verdict, what) = match KERAS.iter().find_map(|outer| within(outer)) {
        Some(part) => {
            let part = part.strip_prefix("src.").unwrap_or(part);
            let is_harmless = HARMLESS.contains(&part.split('.').next().unwrap_or_default());
            if !is_function || is_harmless {
                return;
            }
            (FileVerdict::Dangerous, "a Keras function that accesses files or settings")
        }
        // Functions by name, and values: `builtins` here is not Python's module.
        None if module == "builtins"
            && ["function", "set", "slice", "list", "tuple", "dict"].contains(&class) =>
        {
            return;
        }
        None if is_function => (FileVerdict::Dangerous, "a function of any module"),
        None => (FileVerdict::Suspicious, "a class outside Keras"),
    };
    let name = format!("{module}.{class}");
    found.push((verdict, format!("its configuration imports {what}: {}", Escaped::short(&name))));
}

/// What loading a Lambda layer does.
fn lambda(config: Option<&Value>) -> String {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let function = config.and_then(|config| config.get("function"));
    // Marshalled code in base64: the first of a list, or a field of its own.
    let code = function.and_then(|function| function.get(0));
    let code = code.or_else(|| function.and_then(|function| function.get("config")?.get("code")));
    if let Some(code) = text(code.or_else(|| config.and_then(|config| config.get("code")))) {
        let names = names_in_code(&code);
        let naming = if names.is_empty() { "" } else { ", which names " };
        return format!(
            "a Lambda layer, whose Python bytecode loaders unmarshal and run{naming}{}",
            names.join(", ")
        );
    }
    let named = text(function.filter(|function| function.is_string()));
    let named = named.or_else(|| text(function.and_then(|function| function.get("config"))));
    match named {
        Some(name) => {
            format!("a Lambda layer, which calls a function by its name: {}", Escaped::short(&name))
        }
        None => "a Lambda layer, which contains Python bytecode or any function name".to_owned(),
    }
}

/// Names in marshalled code, which are short texts of ASCII (`TYPE_SHORT_ASCII_INTERNED`).
fn names_in_code(code: &str) -> Vec<String> {
    /// Names that are shown.
    const SHOWN: usize = 12;
    /// The type's letter, and the same with the flag of what is referred to later.
    const SHORT_NAMES: [u8; 4] = [b'Z', b'Z' | 0x80, b'z', b'z' | 0x80];

    let code: String = code.split_ascii_whitespace().collect();
    let code = Base64::decode_vec(&code).unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for (at, bytes) in code.windows(2).enumerate() {
        if !SHORT_NAMES.contains(&bytes[0]) || names.len() == SHOWN {
            continue;
        }
        let name = code.get(at + 2..at + 2 + usize::from(bytes[1])).unwrap_or_default();
        let is_name = name.len() > 1
            && !name[0].is_ascii_digit()
            && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let name = String::from_utf8_lossy(name).into_owned();
        if is_name && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A class that another library has registered under a name of its own: `LIBRARY>NAME`. Without a
/// module nothing is imported: the class is the loading program's, or loading fails.
fn registered(name: Option<&str>, module: Option<&str>, found: &mut ContentRemarks) {
    let package = name.and_then(|name| name.split_once('>')).map(|(package, _)| package);
    if package.is_some_and(|package| !KERAS.contains(&package)) {
        let name = Escaped::short(name.unwrap_or_default()).to_string();
        found.push(match module {
            Some(_) => {
                (FileVerdict::Suspicious, format!("its class is registered outside Keras: {name}"))
            }
            None => (
                FileVerdict::NotExamined,
                format!("its class is one that the loading program registers: {name}"),
            ),
        });
    }
}

fn skops(module: &str, class: &str, found: &mut ContentRemarks) {
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
            (r#"{"nodes": [{"target": "torch.ops.aten.add.Tensor"}]}"#, None),
            (r#"{"nodes": [{"target": "torch.ops.aten.__and__.Tensor"}]}"#, None),
            (r#"{"nodes": [{"target": "torch.ops.higher_order.cond"}]}"#, None),
            (r#"{"target": "torch.ops.load_library"}"#, Some(Dangerous)),
            (r#"{"target": "torch.ops.load_library.__call__"}"#, Some(Dangerous)),
            (r#"{"target": "torch.ops.aten.add.__globals__"}"#, Some(Dangerous)),
            (r#"{"target": "torch.hub.load"}"#, Some(Dangerous)),
            (r#"{"config": {"layers": [{"class_name": "Lambda"}]}}"#, Some(Dangerous)),
            (r#"{"class_name": "Dense", "module": "keras.layers"}"#, None),
            (r#"{"class_name": "Mine", "registered_name": "mine>Mine"}"#, Some(NotExamined)),
            (
                r#"{"class_name": "Mine", "module": null, "registered_name": "mine>Mine"}"#,
                Some(NotExamined),
            ),
            (
                r#"{"class_name": "B", "module": "keras.layers", "registered_name": "x>B"}"#,
                Some(Suspicious),
            ),
            (r#"{"class_name": "B", "registered_name": "keras_hub>B"}"#, None),
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

    #[test]
    fn a_lambda_is_located_and_its_code_named() {
        let code = Base64::encode_string(b"\xe3\0\0\xda\x02os\xda\x06system\xf3\x02t\0");
        let layer = |function: &str| {
            format!(
                r#"{{"class_name": "Functional", "config": {{"name": "m", "layers": [
                {{"class_name": "Lambda", "config": {{"name": "l", "function": {function}}}}}]}}}}"#
            )
        };
        for (function, expected) in [
            (format!(r#"["{code}", null, null]"#), "'m/l': a Lambda layer, whose Python bytecode"),
            (format!(r#"["{code}", null, null]"#), "names os, system"),
            (r#""evil""#.to_owned(), "by its name: evil"),
        ] {
            let found = judge(layer(&function).as_bytes()).expect("JSON");
            assert!(found.iter().any(|(_, message)| message.contains(expected)), "{found:?}");
        }
    }
}
