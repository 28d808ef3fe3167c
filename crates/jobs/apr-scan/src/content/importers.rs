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
use crate::paths::leads_out;
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

/// A setting by which a library imports a name. `base` is the name of its file.
pub(super) fn setting(base: &str, key: &str, value: &str, found: &mut ContentRemarks) {
    let who = match key {
        "_target_" | "target" | "_convert_target_" => "Hydra or a similar library",
        "keras_module" | "loader_module" => "MLflow",
        "megatron_core" | "parent_library" => "PEFT",
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
        "keras_module" | "loader_module" | "megatron_core" | "parent_library" => {
            dotted::module(value)
        }
        "_target_" => dotted::target(value),
        _ => dotted::called(value),
    };
    let Some(verdict) = verdict else { return };
    // Many a program calls something its target. In this file, it is the class of NeMo's model.
    if verdict == FileVerdict::Suspicious && key == "target" && base != "model_config.yaml" {
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
    if object.contains_key("_target_") && object.get("trust_remote_code").is_some_and(is_on) {
        let message = "an object is made with trust_remote_code".to_owned();
        found.push((FileVerdict::Suspicious, message));
    }
    mlflow(base, object, found);
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
    if let (Some(module), Some(loader)) = (text("__module__"), text("__loader__")) {
        skops(module, text("__class__").unwrap_or_default(), found);
        // They take a method or an operator by a name of the file (CVE-2025-54412, CVE-2025-54413).
        if ["MethodNode", "OperatorFuncNode"].contains(&loader) {
            let message = format!("its schema takes a function by its name ({loader})");
            found.push((FileVerdict::Suspicious, message));
        }
    }
    if object.contains_key("zarr_format") {
        zarr(object, found);
    }
    if let (Some(operator), true) = (text("op"), object.contains_key("inputs")) {
        mxnet(operator, object, found);
    }
}

/// Returns `true` for the value of a setting that is on. Values of YAML are texts here.
fn is_on(value: &Value) -> bool {
    let words = ["on", "true", "yes"];
    let is_word = |text: &str| words.contains(&text.to_ascii_lowercase().as_str());
    *value == Value::Bool(true) || value.as_str().is_some_and(is_word)
}

/// Files and folders of MLflow's models, by the keys that name them.
const OF_MLFLOW: [&str; 8] = [
    "code",
    "data",
    "model_data",
    "model_path",
    "pickled_model",
    "python_model",
    "saved_model_dir",
    "uri",
];

/// Files of an MLflow model that are outside its folder.
fn mlflow(base: &str, object: &Map<String, Value>, found: &mut ContentRemarks) {
    if base != "MLmodel" {
        return;
    }
    for (key, value) in entries(object) {
        if let Some(file) = value.as_str().filter(|file| leads_out(file))
            && OF_MLFLOW.contains(&key.as_str())
        {
            let file = Escaped::short(file);
            let message = format!("MLflow loads '{file}', which is outside the model's folder");
            found.push((FileVerdict::Dangerous, message));
        }
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
    /// Codecs that are examined.
    const MOST: usize = 1000;

    let keys = ["codecs", "compressor", "compressors", "filters", "index_codecs", "object_codec"];
    let mut rest: Vec<&Value> = keys.iter().filter_map(|key| object.get(*key)).collect();
    let mut examined = 0;
    while let Some(value) = rest.pop() {
        examined += 1;
        if examined > MOST {
            let message = "an array with more codecs than are examined".to_owned();
            found.push((FileVerdict::NotExamined, message));
            return;
        }
        let codec = match value {
            Value::Array(codecs) => {
                rest.extend(codecs.iter().take(MOST));
                continue;
            }
            Value::Object(codec) => codec,
            _ => continue,
        };
        // A shard has codecs of its own.
        let inner = codec.get("configuration");
        rest.extend(keys.iter().filter_map(|key| inner?.get(*key)));
        let id = codec.get("id").or_else(|| codec.get("name")).and_then(Value::as_str);
        if let Some(id) = id {
            let id = id.strip_prefix("numcodecs.").unwrap_or(id);
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

/// Functions of modules that reach the system by which expressions of bundles find files and
/// processes, and read the weights of the bundle. The files are examined themselves.
const OF_BUNDLES: [&str; 18] = [
    "glob.glob",
    "os.cpu_count",
    "os.environ",
    "os.environ.get",
    "os.getcwd",
    "os.getenv",
    "os.listdir",
    "os.makedirs",
    "os.sep",
    "pathlib.Path",
    "sys.path.append",
    "sys.path.insert",
    "torch.distributed.destroy_process_group",
    "torch.distributed.get_rank",
    "torch.distributed.get_world_size",
    "torch.distributed.is_initialized",
    "torch.jit.load",
    "torch.load",
];

/// Functions of Python that run a text, or take an attribute by its name.
const RUNNING: [&str; 11] = [
    "__import__",
    "breakpoint",
    "compile",
    "delattr",
    "eval",
    "exec",
    "getattr",
    "globals",
    "locals",
    "setattr",
    "vars",
];

/// Returns `true` for a name in an expression that runs code, or accesses files or processes.
fn is_harmful(name: &str) -> bool {
    let is_of_path = name.strip_prefix("os.path.").is_some_and(|rest| !rest.contains('.'));
    dotted::called(name) == Some(FileVerdict::Dangerous)
        && !OF_BUNDLES.contains(&name)
        && !is_of_path
}

/// Returns `true` for a name with two underscores, such as those that Python keeps in functions
/// and classes. A name of underscores alone is that of an argument that is not used.
fn is_private(name: &str) -> bool {
    name.split('.').any(|part| part.contains("__") && part.contains(|c: char| c != '_'))
}

/// Returns the names that are imported from a module, as `module.name`, after `from` at `at`.
fn imported(tokens: &[Token<'_>], at: usize) -> Vec<String> {
    let Some((module, end)) = python::path(tokens, at + 1) else { return Vec::new() };
    if tokens.get(end) != Some(&Token::Name("import")) {
        return Vec::new();
    }
    let names = tokens[end + 1..].iter().take_while(|token| !token.is('\n'));
    let names = names.filter_map(|token| match token {
        Token::Name(name) => Some(format!("{}.{name}", module.join("."))),
        Token::Mark('*') => Some(format!("{}.x", module.join("."))),
        _ => None,
    });
    names.collect()
}

/// An expression that MONAI evaluates: a text that begins with `$`.
///
/// Bundles import modules such as `os` as a matter of course. What they take from them counts.
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
        let is_import = at > 0 && matches!(tokens[at - 1], Token::Name("import" | "from"));
        let is_harmful_import =
            name == "from" && imported(&tokens, at).iter().any(|name| is_harmful(name));
        let is_setting = name == "setattr"
            && python::path(&tokens, end + 1).is_some_and(|of| {
                // Settings of the library that computes.
                of.0.starts_with(&["torch".to_owned(), "backends".to_owned()])
            });
        let is_running = is_call && RUNNING.contains(&name.as_str()) && !is_setting;
        let reaches = !is_import && is_harmful(&name);
        if is_harmful_import || is_running || reaches || is_private(&name) || !name.is_ascii() {
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
            setting(base, key, value.as_str().unwrap_or_default(), &mut found);
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
            ("model_config.yaml", r#"{"target": "mine.Net"}"#, Some(Suspicious)),
            ("model_config.yaml", r#"{"target": "nemo.collections.asr.models.X"}"#, None),
            ("c", r#"{"_target_": "run_cmd", "cmd_list": ["true"]}"#, Some(Suspicious)),
            ("c", r#"{"_target_": "UNet", "spatial_dims": 2}"#, None),
            ("c", r#"{"_target_": "nemo.x.Y", "trust_remote_code": true}"#, Some(Suspicious)),
            ("c", r#"{"megatron_core": "evil"}"#, Some(Suspicious)),
            ("c", r#"{"megatron_core": "megatron.core"}"#, None),
            ("c", r#"{"keras_module": "evil"}"#, Some(Suspicious)),
            ("c", r#"{"keras_module": "tensorflow.keras"}"#, None),
            ("MLmodel", r#"{"pickled_model": "model.pkl"}"#, None),
            ("MLmodel", r#"{"pickled_model": "../../model.pkl"}"#, Some(Dangerous)),
            ("c", r#"{"pickled_model": "../../model.pkl"}"#, None),
            (
                "c",
                r#"{"__module__": "sklearn.svm", "__class__": "SVC", "__loader__": "MethodNode"}"#,
                Some(Suspicious),
            ),
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
            ("$import os", Some(Suspicious)),
            ("$import torch.distributed as dist", Some(Suspicious)),
            ("$os.path.join(@bundle_root, 'x') if os.getenv('A') else open(@x)", Some(Suspicious)),
            ("$os.system('true')", Some(Dangerous)),
            ("$from os import path, system", Some(Dangerous)),
            ("$from os import *", Some(Dangerous)),
            ("$from os.path import join", Some(Suspicious)),
            ("$os.path.os.system('true')", Some(Dangerous)),
            ("$lambda x, *_, **__: (x.to(@device), None, (), {})", Some(Suspicious)),
            ("$setattr(torch.backends.cudnn, 'benchmark', True)", Some(Suspicious)),
            ("$setattr(torch.nn, 'Linear', evil)", Some(Dangerous)),
            ("$sys.path.append(@bundle_root)", Some(Suspicious)),
            ("$map(subprocess.run, [1])", Some(Dangerous)),
            ("$getattr(os, 'sys' + 'tem')('true')", Some(Dangerous)),
            ("$__import__('os').system('true')", Some(Dangerous)),
            ("$eval('1')", Some(Dangerous)),
            ("$[x for x in ().__class__.__bases__]", Some(Dangerous)),
        ] {
            assert_eq!(expression(text).map(|(verdict, _)| verdict), expected, "{text}");
        }
    }
}
