//! Settings by which a library imports a name or runs a file: Hydra and what stands on it, MONAI,
//! MLflow, MLServer, PEFT, sentence-transformers, diffusers, MLX, MXNet, skops, zarr.
//!
//! Programs that serve or rebuild models from a configuration are in `servers`.

use apr_core::json::{self, entries};
use apr_pytorch::{Verdict, verdict_on};
use apr_registry::Escaped;
use serde_json::{Map, Value};

use super::python::{self, Token};
use super::{ContentRemarks, dotted, servers};
use crate::report::FileVerdict;

/// Modules whose classes skops creates even if they are not listed as trusted.
const SKOPS: [&str; 6] = ["builtins", "collections", "numpy", "scipy", "sklearn", "xgboost"];

/// Values of Python and NumPy that skops creates by their names.
const BUILTINS: [&str; 12] = [
    "bool",
    "bytearray",
    "bytes",
    "complex",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "set",
    "str",
    "tuple",
];
const NUMPY: [&str; 18] = [
    "bool_", "bytes_", "dtype", "float16", "float32", "float64", "int16", "int32", "int64", "int8",
    "matrix", "ndarray", "object_", "str_", "uint16", "uint32", "uint64", "uint8",
];
const SCIPY: [&str; 7] = [
    "bsr_matrix",
    "coo_matrix",
    "csc_matrix",
    "csr_array",
    "csr_matrix",
    "dia_matrix",
    "lil_matrix",
];

/// Codecs of numcodecs and zarr that only transform bytes.
const CODECS: [&str; 32] = [
    "adler32",
    "astype",
    "base64",
    "bitround",
    "blosc",
    "bytes",
    "bz2",
    "cast_value",
    "categorize",
    "crc32",
    "crc32c",
    "delta",
    "fixedscaleoffset",
    "fletcher32",
    "gzip",
    "jenkins_lookup3",
    "json2",
    "lz4",
    "lzma",
    "msgpack2",
    "packbits",
    "pcodec",
    "quantize",
    "scale_offset",
    "sharding_indexed",
    "shuffle",
    "transpose",
    "vlen-array",
    "vlen-bytes",
    "vlen-utf8",
    "zlib",
    "zstd",
];

/// A setting by which a library imports a name.
pub(super) fn setting(key: &str, value: &str, found: &mut ContentRemarks) {
    let who = match key {
        "_target_" | "target" | "_convert_target_" => "Hydra or a similar library",
        "loader_module" => "MLflow",
        "parent_library" => "PEFT",
        "activation_function" | "activation_fn" | "sbert_ce_default_activation_function" => {
            "sentence-transformers"
        }
        _ => return,
    };
    if value.is_empty() {
        return;
    }
    // The module alone is imported.
    let verdict = match key {
        "loader_module" | "parent_library" => dotted::module(value),
        _ => dotted::called(value),
    };
    let Some(verdict) = verdict else { return };
    // Many a program calls something its target.
    if verdict == FileVerdict::Suspicious && key == "target" {
        return;
    }
    found.push((verdict, format!("{who} imports {}", Escaped::short(value))));
}

/// An object with settings of a library that belong together.
pub(super) fn of_object(base: &str, object: &Map<String, Value>, found: &mut ContentRemarks) {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    for (key, value) in entries(object) {
        if ["auto_map", "custom_pipelines"].contains(&key.as_str()) {
            let names = Escaped::short(&json::text(value)).to_string();
            let message = format!(
                "'{key}' names Python in the model's folder, which transformers runs with \
                 trust_remote_code: {names}"
            );
            found.push((FileVerdict::Suspicious, message));
        }
    }
    for (key, who) in [("model_file", "MLX"), ("model_code_path", "MLflow")] {
        if let Some(file) = text(key).filter(|file| is_module_file(file)) {
            let file = Escaped::short(file);
            found.push((FileVerdict::Dangerous, format!("{who} runs the Python file {file}")));
        }
    }
    kernels(object, found);
    servers::of_object(base, object, found);
    if let (Some(handler), true) = (text("handler"), object.contains_key("modelName")) {
        let message = format!("inference servers run the handler '{}'", Escaped::short(handler));
        found.push((FileVerdict::Suspicious, message));
    }
    if let (Some(class), true) = (text("implementation"), base == "model-settings.json")
        && let Some(verdict) = dotted::called(class)
    {
        found.push((verdict, format!("MLServer imports {}", Escaped::short(class))));
    }
    if let (Some(kind), true) = (text("type"), object.contains_key("idx"))
        && !kind.starts_with("sentence_transformers.")
    {
        let verdict = dotted::called(kind).unwrap_or(FileVerdict::Suspicious);
        let message = format!(
            "sentence-transformers imports the module {} with trust_remote_code",
            Escaped::short(kind)
        );
        found.push((verdict, message));
    }
    if object.contains_key("_class_name") {
        diffusers(object, found);
    }
    if let (Some(module), true) = (text("__module__"), object.contains_key("__loader__")) {
        skops(module, text("__class__").unwrap_or_default(), found);
    }
    if object.contains_key("zarr_format") {
        zarr(object, found);
    }
    if let (Some(operator), true) = (text("op"), object.contains_key("inputs")) {
        mxnet(operator, object, found);
    }
}

/// Pipelines of diffusers: each part is the name of a library and a class.
fn diffusers(object: &Map<String, Value>, found: &mut ContentRemarks) {
    for (key, value) in entries(object) {
        // Modular pipelines have the place of a part as a third value.
        let Some([Value::String(module), Value::String(class), ..]) =
            value.as_array().map(Vec::as_slice)
        else {
            continue;
        };
        if !dotted::is_of_library(module) && !module.starts_with("stable_diffusion") {
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

fn skops(module: &str, class: &str, found: &mut ContentRemarks) {
    let outer = module.split('.').next().unwrap_or_default();
    let is_class = class.starts_with(|first: char| first.is_ascii_uppercase());
    let values = match outer {
        "builtins" => &BUILTINS[..],
        "numpy" => &NUMPY,
        "scipy" => &SCIPY,
        _ => &[],
    };
    // Functions of these libraries open files and download; classes hold state.
    let is_known = SKOPS.contains(&outer) && (outer != "builtins" && is_class)
        || values.contains(&class)
        || outer == "collections" && ["defaultdict", "deque"].contains(&class);
    if is_known && verdict_on(module, class) != Verdict::Dangerous {
        return;
    }
    // Loading it fails, unless the program trusts the name.
    let name = format!("{module}.{class}");
    let message = format!("its schema imports {}", Escaped::short(&name));
    found.push((FileVerdict::Suspicious, message));
}

/// Returns `true` for the name of a file that Python imports.
fn is_module_file(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".py", ".pyc", ".pyd", ".pyw", ".so"].iter().any(|end| name.ends_with(end))
}

/// Kernels that transformers downloads from a hub and runs: an implementation with the name of a
/// repository.
fn kernels(object: &Map<String, Value>, found: &mut ContentRemarks) {
    for (key, value) in entries(object) {
        let key = key.trim_start_matches('_').trim_end_matches("_internal");
        if !["attn_implementation", "experts_implementation"].contains(&key) {
            continue;
        }
        let names: Vec<&str> = match value {
            Value::Object(parts) => entries(parts).filter_map(|(_, name)| name.as_str()).collect(),
            _ => value.as_str().into_iter().collect(),
        };
        // `paged|flash_attention_2` is one of its own.
        if let Some(name) = names.into_iter().find(|name| name.contains('/')) {
            let name = Escaped::short(name);
            let message = format!("transformers downloads and runs the kernels of {name}");
            found.push((FileVerdict::Suspicious, message));
        }
    }
}

/// Filters and compressors of an array of zarr, by their identifiers.
fn zarr(object: &Map<String, Value>, found: &mut ContentRemarks) {
    let keys = ["codecs", "compressor", "compressors", "filters", "object_codec"];
    for value in keys.iter().filter_map(|key| object.get(*key)) {
        let codecs: &[Value] = match value {
            Value::Array(list) => list,
            Value::Object(_) => std::slice::from_ref(value),
            _ => continue,
        };
        let identifiers = codecs.iter().filter_map(|codec| {
            let id = codec.get("id").or_else(|| codec.get("name"))?.as_str()?;
            Some(id.strip_prefix("numcodecs.").unwrap_or(id))
        });
        for id in identifiers {
            if id == "pickle" {
                let message = "zarr unpickles the values of an array (codec pickle)".to_owned();
                found.push((FileVerdict::Dangerous, message));
            } else if !CODECS.contains(&id) {
                let id = Escaped::short(id);
                let message = format!("the codec {id} is one that the loading program registers");
                found.push((FileVerdict::NotExamined, message));
            }
        }
    }
}

/// Operators of MXNet's graphs that are not its own.
fn mxnet(operator: &str, object: &Map<String, Value>, found: &mut ContentRemarks) {
    let attributes = ["attrs", "attr", "param"].iter().find_map(|key| object.get(*key));
    match operator {
        "Custom" => {
            let kind = attributes.and_then(|all| all.get("op_type")).and_then(Value::as_str);
            let message = format!(
                "MXNet runs the Python operator '{}' of the loading program",
                Escaped::short(kind.unwrap_or_default())
            );
            found.push((FileVerdict::Suspicious, message));
        }
        "_Native" | "_NDArray" => {
            let message = format!("the operator {operator} calls an address that the file has");
            found.push((FileVerdict::Dangerous, message));
        }
        _ => {}
    }
}

/// An expression that MONAI evaluates: a text that begins with `$`.
pub(super) fn expression(text: &str) -> Option<(FileVerdict, String)> {
    let code = text.strip_prefix('$')?;
    let tokens = python::tokens(code);
    let mut verdict = FileVerdict::Suspicious;
    let mut at = 0;
    while at < tokens.len() {
        let Some((parts, end)) = python::path(&tokens, at) else {
            at += 1;
            continue;
        };
        let name = parts.join(".");
        let is_call = tokens.get(end).is_some_and(|token| token.is('('));
        let is_imported = at > 0
            && matches!(tokens[at - 1], Token::Name("import" | "from"))
            && verdict_on(&name, "x") == Verdict::Dangerous;
        let is_builtin = is_call && verdict_on("builtins", &name) == Verdict::Dangerous;
        let reaches = dotted::called(&name) == Some(FileVerdict::Dangerous);
        if is_imported || is_builtin || reaches || name.contains("__") || !name.is_ascii() {
            verdict = FileVerdict::Dangerous;
        }
        at = end;
    }
    let code = Escaped::short(text);
    Some((verdict, format!("MONAI evaluates Python: {code}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(base: &str, text: &str) -> Option<FileVerdict> {
        let object: Map<String, Value> = serde_json::from_str(text).expect("an object");
        let mut found = ContentRemarks::new();
        of_object(base, &object, &mut found);
        for (key, value) in &object {
            setting(key, value.as_str().unwrap_or_default(), &mut found);
        }
        found.into_iter().map(|(verdict, _)| verdict).max()
    }

    #[test]
    fn settings_are_judged_by_the_names_that_their_libraries_import() {
        use FileVerdict::{Dangerous, NotExamined, Suspicious};
        for (base, text, expected) in [
            ("c", r#"{"_target_": "torch.nn.Linear"}"#, None),
            ("c", r#"{"_target_": "nemo.collections.asr.modules.ConvASREncoder"}"#, None),
            ("c", r#"{"_target_": "os.system"}"#, Some(Dangerous)),
            ("c", r#"{"_target_": "nemo.core.os.system"}"#, Some(Dangerous)),
            ("c", r#"{"_target_": "torch.nn.Module.__init__.__globals__"}"#, Some(Dangerous)),
            ("c", r#"{"_target_": "mine.Net"}"#, Some(Suspicious)),
            ("c", r#"{"target": "mine.Net"}"#, None),
            ("c", r#"{"loader_module": "mlflow.sklearn"}"#, None),
            ("c", r#"{"loader_module": "evil"}"#, Some(Suspicious)),
            ("c", r#"{"activation_function": "torch.nn.modules.activation.Tanh"}"#, None),
            ("c", r#"{"activation_function": "gelu"}"#, None),
            ("c", r#"{"activation_function": "subprocess.run"}"#, Some(Dangerous)),
            ("c", r#"{"model_file": "model.py"}"#, Some(Dangerous)),
            ("c", r#"{"model_file": "model.gguf"}"#, None),
            ("model-settings.json", r#"{"implementation": "mlserver_sklearn.SKLearnModel"}"#, None),
            ("model-settings.json", r#"{"implementation": "mine.M"}"#, Some(Suspicious)),
            ("other.json", r#"{"implementation": "mine.M"}"#, None),
            ("c", r#"{"type": "sentence_transformers.models.Dense", "idx": 1}"#, None),
            ("c", r#"{"type": "mine.Dense", "idx": 1}"#, Some(Suspicious)),
            ("c", r#"{"zarr_format": 2, "compressor": {"id": "blosc"}, "filters": null}"#, None),
            ("c", r#"{"zarr_format": 2, "filters": [{"id": "pickle"}]}"#, Some(Dangerous)),
            ("c", r#"{"zarr_format": 3, "codecs": [{"name": "mine"}]}"#, Some(NotExamined)),
            ("c", r#"{"op": "Convolution", "inputs": []}"#, None),
            ("c", r#"{"op": "Custom", "inputs": [], "attrs": {"op_type": "x"}}"#, Some(Suspicious)),
            ("c", r#"{"op": "_Native", "inputs": []}"#, Some(Dangerous)),
        ] {
            assert_eq!(worst(base, text), expected, "{text}");
        }
    }

    #[test]
    fn expressions_of_monai_are_judged_by_their_names() {
        use FileVerdict::{Dangerous, Suspicious};
        for (text, expected) in [
            ("plain", None),
            ("$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')", Some(Suspicious)),
            ("$import os", Some(Dangerous)),
            ("$__import__('os').system('true')", Some(Dangerous)),
            ("$eval('1')", Some(Dangerous)),
            ("$[x for x in ().__class__.__bases__]", Some(Dangerous)),
        ] {
            assert_eq!(expression(text).map(|(verdict, _)| verdict), expected, "{text}");
        }
    }
}
