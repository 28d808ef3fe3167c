//! Configurations of Keras: layers, functions and values by name, from lists of those that Keras
//! has.
//!
//! A name on the list computes. A name that is not is a class that the loading program registers,
//! or one that another version of Keras has: it is not examined. A module outside Keras is
//! imported by the loader, and is a finding.

use std::collections::HashSet;
use std::sync::LazyLock;

use apr_registry::Escaped;
use base64ct::{Base64, Encoding};
use serde_json::{Map, Value};

use super::ContentRemarks;
use super::tensorflow_names::is_function as is_tensorflow_function;
use crate::report::FileVerdict;

/// Classes and functions that Keras exports, by its parts (`fixtures/scan/keras_names.py`).
const NAMES: &str = include_str!("keras_names.txt");

/// Modules whose classes Keras' own loader makes.
const KERAS: [&str; 12] = [
    "keras",
    "keras_core",
    "keras_cv",
    "keras_hub",
    "keras_nlp",
    "keras_rs",
    "keras_tuner",
    "keras_preprocessing",
    "tensorflow.keras",
    "tensorflow.python.keras",
    "tensorflow_core.keras",
    "tf_keras",
];

/// Modules of Keras whose names are on the list.
const LISTED: [&str; 7] = [
    "keras",
    "keras_core",
    "keras_preprocessing",
    "tensorflow.keras",
    "tensorflow.python.keras",
    "tensorflow_core.keras",
    "tf_keras",
];

/// Parts of Keras' libraries of models whose classes only compute.
const OF_LIBRARIES: [&str; 9] = [
    "bounding_box",
    "core",
    "layers",
    "losses",
    "metrics",
    "modeling",
    "models",
    "samplers",
    "tokenizers",
];

/// Names in configurations that are not exported: values, and classes of older versions.
const OTHERS: [&str; 54] = [
    "AtrousConvolution1D",
    "AtrousConvolution2D",
    "BatchNormalizationV1",
    "BatchNormalizationV2",
    "ClassMethod",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "CuDNNGRU",
    "CuDNNLSTM",
    "Cropping1D",
    "Deconvolution2D",
    "Feature",
    "FeatureSpace",
    "Functional",
    "GRUCellV2",
    "GRUV2",
    "Highway",
    "InstanceMethod",
    "InstanceProperty",
    "LSTMCellV2",
    "LSTMV2",
    "LeCunNormal",
    "LecunUniform",
    "LossScaleOptimizerV1",
    "Maxout",
    "MaxoutDense",
    "Merge",
    "Operation",
    "PolicyV1",
    "SGDW",
    "SlicingOpLambda",
    "SyncBatchNormalization",
    "TFOpLambda",
    "TensorShape",
    "TensorSpec",
    "RaggedTensorSpec",
    "SparseTensorSpec",
    "ThresholdedReLU",
    "TimeDistributedDense",
    "VarianceScaling",
    "__bytes__",
    "__complex__",
    "__ellipsis__",
    "__keras_tensor__",
    "__numpy__",
    "__slice__",
    "__tensor__",
    "__tuple__",
    "__typespec__",
    "__class__",
    "AddLoss",
    "AddMetric",
    "TensorFlowOpLayer",
];

/// Modules of Keras whose functions only compute.
///
/// Functions of other modules access files and settings (CVE-2025-8747, CVE-2025-9906,
/// CVE-2025-12058).
const COMPUTING: [&str; 11] = [
    "activations",
    "backend",
    "constraints",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "ops",
    "optimizers",
    "random",
    "regularizers",
];

/// Functions of those parts that do more than compute.
const SETTINGS: [&str; 14] = [
    "clear_session",
    "deserialize",
    "eval",
    "function",
    "get_session",
    "get_value",
    "manual_variable_initialization",
    "print_tensor",
    "serialize",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "set_session",
    "set_value",
];

/// Parts of Keras whose classes reach files, processes or settings.
const REACHING: [&str; 10] = [
    "callbacks",
    "config",
    "datasets",
    "distribution",
    "export",
    "preprocessing",
    "saving",
    "utils",
    "visualization",
    "wrappers",
];

/// Examines an object of a configuration. Returns an empty list if it is not an object of Keras.
pub(super) fn judge(object: &Map<String, Value>) -> ContentRemarks {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let mut found = ContentRemarks::new();
    let Some(class) = text("class_name") else { return found };
    let config = object.get("config");
    let is_of_keras = config.is_some_and(|config| config.is_object() || config.is_string())
        || object.contains_key("module")
        || object.contains_key("registered_name");
    if ["Lambda", "__lambda__"].contains(&class) {
        found.push((FileVerdict::Dangerous, lambda(config)));
        return found;
    }
    if !is_of_keras {
        return found;
    }

    match text("module") {
        Some(module) => found.extend(imported(class, module, config)),
        None if is_of_keras_library(text("registered_name")) => {}
        None => found.extend(listed(class)),
    }
    // A class by its own name is judged by that; this one says who has it.
    if !found.iter().any(|(verdict, _)| *verdict > FileVerdict::NotExamined) {
        found.extend(registered(text("registered_name"), text("module")));
    }
    if let Some(config) = config {
        found.extend(of_config(class, config));
    }
    found
}

/// Returns `true` if a library of Keras registers a name, such as `keras_hub>B`.
fn is_of_keras_library(name: Option<&str>) -> bool {
    name.and_then(|name| name.split_once('>')).is_some_and(|(package, _)| KERAS.contains(&package))
}

/// Each name that Keras exports, with its part and its kind.
fn exports() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    NAMES.lines().flat_map(|line| {
        let mut words = line.split(' ');
        let (part, kind) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        words.map(move |name| (part, kind, name))
    })
}

/// Classes of all parts.
static CLASSES: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let classes = exports().filter(|(_, kind, _)| *kind == "class").map(|(.., name)| name);
    classes.chain(OTHERS).collect()
});

/// Functions with their parts.
static FUNCTIONS: LazyLock<HashSet<(&str, &str)>> = LazyLock::new(|| {
    let functions = exports().filter(|(_, kind, _)| *kind == "function");
    functions.map(|(part, _, name)| (part, name)).collect()
});

fn is_class(name: &str) -> bool {
    CLASSES.contains(name)
}

/// Returns the verdict on a class without a module, or `None` if it is on the list.
///
/// Keras searches for such a class among its own and the registered ones.
fn listed(class: &str) -> Option<(FileVerdict, String)> {
    let is_function = class.starts_with(char::is_lowercase)
        && COMPUTING.iter().any(|part| FUNCTIONS.contains(&(*part, class)));
    (!is_class(class) && !is_function).then(|| unknown(class))
}

fn unknown(name: &str) -> (FileVerdict, String) {
    let name = Escaped::short(name);
    let message = format!("{name} is not a part of Keras: the loading program registers it");
    (FileVerdict::NotExamined, message)
}

/// Returns the path below a module: `layers.core` of `keras.src.layers.core`.
fn within<'m>(module: &'m str, outer: &str) -> Option<&'m str> {
    let rest = module.strip_prefix(outer)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('.') }
}

/// Keras imports `module` and takes `class_name` from it.
fn imported(class: &str, module: &str, config: Option<&Value>) -> Option<(FileVerdict, String)> {
    // A function is the value of the object.
    let name = match (class, config.and_then(Value::as_str)) {
        ("function", Some(name)) => name,
        _ => class,
    };
    let is_function = class == "function"
        || class.starts_with(|first: char| first.is_lowercase() || first == '_');
    let message = |what: &str| {
        let name = Escaped::short(&format!("{module}.{name}")).to_string();
        format!("its configuration imports {what}: {name}")
    };
    if name.contains('.') || module.contains("__") || name.contains("__") && !is_class(name) {
        return Some((FileVerdict::Dangerous, message("an attribute of a module")));
    }

    let Some((outer, rest)) =
        KERAS.iter().find_map(|outer| within(module, outer).map(|rest| (*outer, rest)))
    else {
        return outside(class, module, is_function, &message);
    };
    let rest = rest.strip_prefix("src.").unwrap_or(rest);
    let part = rest.split('.').next().unwrap_or_default();
    if !LISTED.contains(&outer) {
        let what = "a function of another library";
        if is_function && !COMPUTING.contains(&part) {
            return Some((FileVerdict::Dangerous, message(what)));
        }
        return (!is_function && !OF_LIBRARIES.contains(&part)).then(|| unknown(name));
    }
    if is_function && !OTHERS.contains(&name) {
        if !COMPUTING.contains(&part) {
            let what = "a Keras function that accesses files or settings";
            return Some((FileVerdict::Dangerous, message(what)));
        }
        if SETTINGS.contains(&name) {
            let what = "a Keras function that does more than compute";
            return Some((FileVerdict::Suspicious, message(what)));
        }
        return (!FUNCTIONS.contains(&(part, name))).then(|| unknown(name));
    }
    if REACHING.contains(&part) && !OTHERS.contains(&name) {
        let what = "a Keras class that accesses files or settings";
        return Some((FileVerdict::Suspicious, message(what)));
    }
    (!is_class(name)).then(|| unknown(name))
}

/// Returns the verdict on a class or function of a module outside Keras.
fn outside(
    class: &str,
    module: &str,
    is_function: bool,
    message: &dyn Fn(&str) -> String,
) -> Option<(FileVerdict, String)> {
    // Functions by name, and values: `builtins` here is not Python's module.
    let values = ["function", "set", "slice", "list", "tuple", "dict"];
    if module == "builtins" && (values.contains(&class) || OTHERS.contains(&class)) {
        return None;
    }
    // Shapes and types of TensorFlow, which have no code.
    if within(module, "tensorflow").is_some() && OTHERS.contains(&class) {
        return None;
    }
    Some(match is_function {
        true => (FileVerdict::Dangerous, message("a function of any module")),
        false => (FileVerdict::Suspicious, message("a class outside Keras")),
    })
}

/// A class that another library has registered under a name of its own: `LIBRARY>NAME`. Without a
/// module nothing is imported: the class is the loading program's, or loading fails.
fn registered(name: Option<&str>, module: Option<&str>) -> Option<(FileVerdict, String)> {
    let (package, _) = name?.split_once('>')?;
    if KERAS.contains(&package) || package == "Keras" {
        return None;
    }
    let name = Escaped::short(name.unwrap_or_default()).to_string();
    Some(match module {
        Some(_) => {
            (FileVerdict::Suspicious, format!("its class is registered outside Keras: {name}"))
        }
        None => (
            FileVerdict::NotExamined,
            format!("its class is one that the loading program registers: {name}"),
        ),
    })
}

/// Layers whose configuration reaches files or code.
fn of_config(class: &str, config: &Value) -> Option<(FileVerdict, String)> {
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    Some(match class {
        "TorchModuleWrapper" => {
            (FileVerdict::Dangerous, "a layer that unpickles a module of PyTorch".to_owned())
        }
        "TFSMLayer" | "JaxLayer" | "FlaxLayer" => {
            (FileVerdict::Suspicious, format!("a layer that runs another program ({class})"))
        }
        "TFOpLambda" => of_tensorflow(text("function").unwrap_or_default())?,
        "InstanceMethod" => {
            let method = text("method_name").filter(|name| name.starts_with("__"))?;
            let method = Escaped::short(method);
            (FileVerdict::Dangerous, format!("a layer calls the method {method} of a tensor"))
        }
        "ClassMethod" => {
            let (symbol, method) = (text("cls_symbol")?, text("method_name").unwrap_or_default());
            let shown = Escaped::short(&format!("{symbol}.{method}")).to_string();
            let classes = ["RaggedTensor", "SparseTensor", "RowPartition"];
            if classes.contains(&symbol) && !method.starts_with('_') {
                return None;
            }
            (FileVerdict::Dangerous, format!("a layer calls tf.{shown}"))
        }
        _ => {
            let files = ["vocabulary", "idf_weights", "filepath", "merges"];
            // A model of SentencePiece is in the configuration as base64, or a file.
            let model = text("proto").filter(|proto| proto.len() < 256 && !proto.ends_with('='));
            let file = files.iter().find_map(|key| text(key)).or(model)?;
            (FileVerdict::Suspicious, format!("a layer reads a file: '{}'", Escaped::short(file)))
        }
    })
}

/// A function of TensorFlow, by the name that it is exported under.
fn of_tensorflow(function: &str) -> Option<(FileVerdict, String)> {
    let of_keras = function.strip_prefix("keras.").and_then(|rest| rest.split_once('.'));
    let is_known = match of_keras {
        Some((part, name)) => {
            COMPUTING.contains(&part)
                && !SETTINGS.contains(&name)
                && FUNCTIONS.contains(&(part, name))
        }
        None => is_tensorflow_function(function),
    };
    let function = Escaped::short(function);
    (!is_known).then(|| {
        let message = format!("a layer calls tf.{function}, which is not known to only compute");
        (FileVerdict::Dangerous, message)
    })
}

/// Describes the effect of loading a Lambda layer.
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
    /// Type codes of short strings, with and without the reference flag.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(text: &str) -> Option<FileVerdict> {
        let object = serde_json::from_str(text).expect("an object");
        judge(&object).into_iter().map(|(verdict, _)| verdict).max()
    }

    #[test]
    fn names_on_the_list_only_compute_and_all_others_are_reported() {
        use FileVerdict::{Dangerous, NotExamined, Suspicious};
        for (text, expected) in [
            (r#"{"class_name": "Dense", "config": {"units": 1}}"#, None),
            (r#"{"class_name": "Adam", "config": {}}"#, None),
            (r#"{"class_name": "Functional", "module": "keras.src.models.functional"}"#, None),
            (r#"{"class_name": "Dense", "module": "keras.src.layers.core.dense"}"#, None),
            (r#"{"class_name": "Mine", "config": {}}"#, Some(NotExamined)),
            (r#"{"class_name": "Mine", "module": "keras.layers"}"#, Some(NotExamined)),
            (r#"{"class_name": "Dense", "module": "mine"}"#, Some(Suspicious)),
            (r#"{"class_name": "os.system", "module": "keras.layers"}"#, Some(Dangerous)),
            (r#"{"class_name": "PyDataset", "module": "keras.utils"}"#, Some(Suspicious)),
            (r#"{"class_name": "B", "module": "keras_hub.src.models.bert.b"}"#, None),
            (r#"{"class_name": "B", "module": "keras_hub.src.utils.preset"}"#, Some(NotExamined)),
            (
                r#"{"class_name": "B", "module": "keras_hub.tokenizers",
                "config": {"merges": "/x"}}"#,
                Some(Suspicious),
            ),
            (r#"{"class_name": "InstanceMethod", "config": {"method_name": "to_list"}}"#, None),
            (
                r#"{"class_name": "InstanceMethod", "config": {"method_name": "__reduce__"}}"#,
                Some(Dangerous),
            ),
            (
                r#"{"class_name": "function", "module": "keras.utils", "config": "get_file"}"#,
                Some(Dangerous),
            ),
            (
                r#"{"class_name": "function", "module": "keras.activations", "config": "relu"}"#,
                None,
            ),
            (r#"{"class_name": "function", "module": "os", "config": "system"}"#, Some(Dangerous)),
        ] {
            assert_eq!(worst(text), expected, "{text}");
        }
        // Not a configuration of Keras.
        assert_eq!(worst(r#"{"class_name": "any"}"#), None);
    }

    #[test]
    fn functions_of_tensorflow_that_only_compute_are_accepted() {
        let layer = |function: &str| {
            worst(&format!(
                r#"{{"class_name": "TFOpLambda", "config": {{"function": "{function}"}}}}"#
            ))
        };
        for function in ["math.add", "nn.relu", "reshape", "__operators__.add", "concat"] {
            assert_eq!(layer(function), None, "{function}");
        }
        for function in [
            "load_library",
            "load_op_library",
            "saved_model.load",
            "compat.v1.py_func",
            "py_function",
            "io.gfile.rmtree",
            "raw_ops.ReadFile",
            "math.os.system",
            "keras.utils.get_file",
            "print",
            "",
        ] {
            assert_eq!(layer(function), Some(FileVerdict::Dangerous), "{function}");
        }
        assert_eq!(layer("raw_ops.AddV2"), None);
        let method = r#"{"class_name": "ClassMethod", "config":
            {"cls_symbol": "io.gfile.GFile", "method_name": "write"}}"#;
        assert_eq!(worst(method), Some(FileVerdict::Dangerous));
    }
}
