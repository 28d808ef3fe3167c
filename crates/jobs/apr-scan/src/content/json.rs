//! Configurations in JSON, or read from YAML: classes that loaders import by name, code that they
//! run, files that they open, templates.

use apr_core::json::entries;
use std::rc::Rc;

use apr_registry::{Error, Escaped, Result, onnx};
use serde_json::{Map, Value};

use super::document::Document;
use super::{ContentRemarks, bounded, not_examined};
use super::{importers, jinja, keras, program, yaml};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// Keys by which a document shows that MONAI reads it.
const OF_MONAI: [&str; 4] = ["_target_", "_disabled_", "_requires_", "monai_version"];

/// Keys of files that a tokenizer reads.
const OF_TOKENIZERS: [&str; 6] = [
    "vocab_file",
    "merges_file",
    "tokenizer_file",
    "spm_file",
    "bpe_codes_file",
    "monolingual_vocab_file",
];

/// Examines a configuration. `base` is the name of its file, which some loaders depend on.
///
/// # Errors
/// E001 if the file is not JSON.
pub(super) fn judge(base: &str, bytes: &[u8]) -> Result<ContentRemarks> {
    let error = match serde_json::from_slice(bytes) {
        Ok(Document(value)) => return Ok(of_document(base, &value)),
        Err(error) => error,
    };

    // One value after the other, as programs log them.
    let mut found = ContentRemarks::new();
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<Document>();
    if values.by_ref().all(|value| {
        value.is_ok_and(|Document(value)| {
            found.extend(of_document(base, &value));
            bounded(&mut found);
            true
        })
    }) {
        return Ok(found);
    }
    // Python writes numbers that JSON does not have, which are words of YAML.
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    match yaml::values(text) {
        Some(values) => Ok(values.iter().flat_map(|value| judge_value(base, value)).collect()),
        None => Err(Error::format(format!("invalid JSON: {}", apr_core::foreign(&error)))),
    }
}

fn of_document(base: &str, value: &Value) -> ContentRemarks {
    if value.get("nbformat").is_some() {
        return not_examined("a notebook with code cells");
    }
    judge_value(base, value)
}

/// Judges what is parsed already.
pub(super) fn judge_value(base: &str, value: &Value) -> ContentRemarks {
    let mut found = ContentRemarks::new();
    let (mut is_of_monai, mut expressions) = (false, ContentRemarks::new());
    // A list of what is left needs no stack; with the layers that each is in.
    let mut rest: Vec<(&Value, Rc<str>)> = vec![(value, Rc::from(""))];
    while let Some((value, within)) = rest.pop() {
        match value {
            Value::Object(object) => {
                let within = layer_path(object, within);
                is_of_monai |= OF_MONAI.iter().any(|key| object.contains_key(*key));
                judge_object(base, object, &within, &mut found);
                rest.extend(entries(object).map(|(_, value)| (value, Rc::clone(&within))));
            }
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, Rc::clone(&within)))),
            Value::String(text) => {
                found.extend(jinja::judge(text));
                if text.starts_with('$') {
                    is_of_monai |= text.starts_with("$import ");
                    expressions.extend(importers::expression(text));
                    bounded(&mut expressions);
                }
            }
            _ => {}
        }
        bounded(&mut found);
    }
    // Elsewhere a price or a variable begins so, and no import does.
    if is_of_monai {
        found.extend(expressions);
    }
    found
}

/// Returns the names of the enclosing layers and of the object's own layer, as a path.
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

fn judge_object(base: &str, object: &Map<String, Value>, within: &str, found: &mut ContentRemarks) {
    let is_node = program::is_node(object);
    for (key, value) in entries(object) {
        if let Some(text) = value.as_str().filter(|_| !is_node) {
            importers::setting(base, key, text, found);
        }
        found.extend(outside(key, value));
    }

    importers::of_object(base, object, found);
    program::of_object(object, found);
    let place = if within.is_empty() { String::new() } else { format!("'{within}': ") };
    let located = |(verdict, message)| (verdict, format!("{place}{message}"));
    found.extend(keras::judge(object).into_iter().map(located));
    onnx_node(object, found);
}

/// A node of an ONNX model in JSON, with names in either case.
fn onnx_node(object: &Map<String, Value>, found: &mut ContentRemarks) {
    let operator = object.get("opType").or_else(|| object.get("op_type"));
    let Some(operator) = operator.and_then(Value::as_str) else { return };
    if ["PyOp", "PythonOp", "PyCustomOp"].contains(&operator) {
        found.push((FileVerdict::Suspicious, "it has operators that run Python".to_owned()));
    }
    let domain = object.get("domain").and_then(Value::as_str).unwrap_or_default();
    if !onnx::scan::is_known_domain(domain) {
        let domain = Escaped::short(domain);
        found.extend(not_examined(&format!(
            "operators of the domain {domain}, which apr does not know"
        )));
    }
}

/// A file outside the model's folder that a setting names.
fn outside(key: &str, value: &Value) -> Option<(FileVerdict, String)> {
    let texts = |value: &Value| value.as_str().map(str::to_owned);
    let under = |list: &Value, name: &str| -> Vec<String> {
        let items = list.as_array().into_iter().flatten();
        items.filter_map(|item| item.get(name).and_then(texts)).collect()
    };
    let (what, names) = match key {
        "weight_map" => {
            // Keras has a list of files for each layer.
            let files = value.as_object()?.values().flat_map(|files| match files {
                Value::Array(files) => files.iter().filter_map(texts).collect(),
                file => texts(file).into_iter().collect::<Vec<_>>(),
            });
            ("weights", files.collect())
        }
        // TF.js.
        "paths" => ("weights", value.as_array()?.iter().filter_map(texts).collect()),
        // Core ML's packages.
        "itemInfoEntries" => {
            let entries = value.as_object()?.values();
            ("a part", entries.filter_map(|entry| entry.get("path").and_then(texts)).collect())
        }
        // ONNX in JSON.
        "externalData" | "external_data" => ("weights", under(value, "value")),
        key if OF_TOKENIZERS.contains(&key) => {
            let name = value.as_str().filter(|name| leaves_by_steps(name))?;
            ("a vocabulary", vec![name.to_owned()])
        }
        _ => return None,
    };
    let name = names.into_iter().find(|name| leads_out(name))?;
    // An address of a vocabulary is no file of this machine.
    let verdict = match what == "a vocabulary" && name.starts_with("https://") {
        true => FileVerdict::Suspicious,
        false => FileVerdict::Dangerous,
    };
    let name = Escaped::short(&name).to_string();
    let message = format!("{what} outside the model's folder: '{name}'");
    Some((verdict, message))
}

/// Returns `true` if a path leaves its folder by `..`, a URL or a system folder.
///
/// Absolute paths of the author's files are accepted, because loaders replace them.
fn leaves_by_steps(path: &str) -> bool {
    let system = ["/etc/", "/proc/", "/sys/", "/dev/", "/var/", "/run/", "/boot/", "/root/.ssh"];
    path.split(['/', '\\']).any(|part| part == "..")
        || path.contains("://")
        || path.contains("/.ssh/")
        || system.iter().any(|start| path.starts_with(start))
}

#[cfg(test)]
mod tests {
    use base64ct::{Base64, Encoding};

    use super::*;

    #[test]
    fn configurations_are_judged_by_the_names_in_them() {
        use FileVerdict::{Dangerous, NotExamined, Suspicious};
        for (text, expected) in [
            (r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}"#, None),
            (r#"{"auto_map": {"AutoModel": "modeling_x.X"}}"#, Some(Suspicious)),
            (r#"{"x": [{"_target_": "mine.Net", "a": "$import os"}]}"#, Some(Suspicious)),
            (r#"{"price": "$5", "_target_": "torch.nn.Linear"}"#, Some(Suspicious)),
            (r#"{"price": "$5"}"#, None),
            (r#"{"weight_map": {"a": "model-1.safetensors"}}"#, None),
            (r#"{"weight_map": {"a": "../b"}}"#, Some(Dangerous)),
            (r#"{"weight_map": {"a": ["b", "../c"]}}"#, Some(Dangerous)),
            (r#"{"weight_map": {"a": ["b", "c"]}}"#, None),
            (r#"{"external_data": [{"key": "location", "value": "/etc/x"}]}"#, Some(Dangerous)),
            (r#"{"opType": "Relu", "domain": "com.microsoft"}"#, None),
            (r#"{"op_type": "X", "domain": "mine"}"#, Some(NotExamined)),
            (r#"{"weightsManifest": [{"paths": ["w.bin"]}]}"#, None),
            (r#"{"weightsManifest": [{"paths": ["../w.bin"]}]}"#, Some(Dangerous)),
            (r#"{"itemInfoEntries": {"A": {"path": "/etc/x"}}}"#, Some(Dangerous)),
            (r#"{"externalData": [{"key": "location", "value": "/etc/x"}]}"#, Some(Dangerous)),
            (r#"{"vocab_file": "/home/me/.cache/vocab.txt"}"#, None),
            (r#"{"vocab_file": "../../etc/passwd"}"#, Some(Dangerous)),
            (r#"{"vocab_file": "https://x/vocab.txt"}"#, Some(Suspicious)),
            (r#"{"_target_": "os.system", "_target_": "torch.nn.Linear"}"#, Some(Dangerous)),
            ("{\"a\": 1}\n{\"_target_\": \"os.system\"}", Some(Dangerous)),
            (r#"{"a": NaN, "_target_": "os.system"}"#, Some(Dangerous)),
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
            let found = judge("config.json", text.as_bytes()).expect("JSON");
            let worst = found.iter().map(|(verdict, _)| *verdict).max();
            assert_eq!(worst, expected, "{text}: {found:?}");
        }
        assert!(judge("config.json", b"{ no").is_err());
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
            let found = judge("config.json", layer(&function).as_bytes()).expect("JSON");
            assert!(found.iter().any(|(_, message)| message.contains(expected)), "{found:?}");
        }
    }
}
