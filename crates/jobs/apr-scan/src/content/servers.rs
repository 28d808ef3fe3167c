//! Settings of programs that serve models or rebuild objects: JSON and YAML that name code, shared
//! libraries or secrets.
//!
//! ```text
//! jsonpickle    py/reduce, py/object, py/function, py/type    imports and calls
//! LangChain     lc, type: constructor, secret                 imports; reads the environment
//! Haystack      type beside init_parameters                   imports
//! Lightning     class_path beside init_args                   imports
//! Ray Serve     import_path                                   imports
//! BentoML       service, of bento.yaml                        imports
//! PySpark       class beside sparkVersion                     imports
//! mmengine      custom_imports                                imports
//! ONNX Runtime  custom_ops_library, backend_path              loads libraries
//! YOLO          backbone, head, activation                    evaluates texts
//! ```

use apr_core::json::entries;
use apr_registry::Escaped;
use serde_json::{Map, Value};

use super::python::{self, Token};
use super::{ContentRemarks, dotted};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// Libraries of accelerators that onnxruntime's programs install.
const BACKENDS: [&str; 8] = [
    "QnnCpu.dll",
    "QnnGpu.dll",
    "QnnHtp.dll",
    "QnnSaver.dll",
    "libQnnCpu.so",
    "libQnnGpu.so",
    "libQnnHtp.so",
    "libQnnSaver.so",
];

/// Examines an object of a configuration. `base` is the name of its file.
pub(super) fn of_object(base: &str, object: &Map<String, Value>, found: &mut ContentRemarks) {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let mut import = |who: &str, name: &str| {
        if let Some(verdict) = class(name) {
            found.push((verdict, format!("{who} imports {}", Escaped::short(name))));
        }
    };
    if let Some(name) = text("class_path")
        && (has_path(object, "class_path", "init_args")
            || object.contains_key("dict_kwargs")
            || class(name) == Some(FileVerdict::Dangerous))
    {
        import("Lightning or a similar library", name);
    }
    if let (Some(name), true) = (text("type"), object.contains_key("init_parameters"))
        && !name.starts_with("haystack.")
    {
        import("Haystack", name);
    }
    // Functions are among the parameters by their names, such as a callback.
    if let Some(Value::Object(parameters)) = object.get("init_parameters") {
        let names = entries(parameters).filter_map(|(_, value)| value.as_str());
        names.filter(|name| class(name) == Some(FileVerdict::Dangerous)).for_each(|name| {
            import("Haystack", name);
        });
    }
    if let (Some(name), true) = (text("class"), object.contains_key("sparkVersion"))
        && !["org.apache.spark.", "pyspark."].iter().any(|start| name.starts_with(start))
    {
        import("PySpark", name);
    }
    if let Some(name) = text("import_path") {
        import("Ray Serve", &name.replace(':', "."));
    }
    if let (Some(Value::Object(types)), true) =
        (object.get("types"), object.contains_key("structure"))
    {
        let names = entries(types).filter_map(|(_, name)| name.as_str());
        names.for_each(|name| import("sentence-transformers", name));
    }
    if let (Some(name), true) = (text("service"), base.starts_with("bento")) {
        import("BentoML", &name.replace(':', "."));
    }
    let imports = object.get("custom_imports").and_then(|imports| imports.get("imports"));
    for name in imports.into_iter().flat_map(texts).take(20) {
        let verdict = dotted::module(name).unwrap_or(FileVerdict::Suspicious);
        found.push((verdict, format!("mmengine imports {}", Escaped::short(name))));
    }
    jsonpickle(object, found);
    langchain(object, found);
    libraries(object, found);
    yolo(object, found);
}

/// Returns the verdict on a class of the loading program's own modules or of a library.
fn class(name: &str) -> Option<FileVerdict> {
    match name.contains('.') {
        true => dotted::called(name),
        // A name alone is one that the program has registered.
        false => None,
    }
}

/// Returns `true` if a name is a dotted path and the object has what goes with it, or nothing else.
fn has_path(object: &Map<String, Value>, key: &str, other: &str) -> bool {
    object.contains_key(other) || object.len() == 1 && object.contains_key(key)
}

fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Objects as jsonpickle writes them, which decoding imports and calls.
fn jsonpickle(object: &Map<String, Value>, found: &mut ContentRemarks) {
    let has = |key: &str| object.contains_key(key);
    for key in ["py/function", "py/mod", "py/object", "py/repr", "py/type"] {
        let Some(name) = object.get(key).and_then(Value::as_str) else { continue };
        // Decoding makes instances without a call, unless arguments or a reduction go with them.
        let verdict = match class(name) {
            Some(FileVerdict::Dangerous) => FileVerdict::Dangerous,
            _ if key == "py/repr" || key == "py/mod" => FileVerdict::Dangerous,
            _ => FileVerdict::Suspicious,
        };
        let name = Escaped::short(name);
        found.push((verdict, format!("jsonpickle imports {name} ({key})")));
    }
    if has("py/reduce") {
        found.push((FileVerdict::Suspicious, "jsonpickle calls a function (py/reduce)".to_owned()));
    }
}

/// Objects as LangChain writes them.
fn langchain(object: &Map<String, Value>, found: &mut ContentRemarks) {
    if !object.get("lc").is_some_and(Value::is_number) {
        return;
    }
    let path = object.get("id").map(texts).unwrap_or_default();
    let kind = object.get("type").and_then(Value::as_str).unwrap_or_default();
    let shown = Escaped::short(&path.join(".")).to_string();
    let is_own = path.first().is_some_and(|first| first.starts_with("langchain"));
    match kind {
        "secret" => {
            let message = format!("LangChain reads the variable {shown} of the environment");
            found.push((FileVerdict::Suspicious, message));
        }
        "constructor" if !is_own => {
            let verdict = class(&path.join(".")).unwrap_or(FileVerdict::Suspicious);
            found.push((verdict, format!("LangChain imports {shown}")));
        }
        _ => {}
    }
}

/// Libraries of operators and accelerators that onnxruntime loads.
fn libraries(object: &Map<String, Value>, found: &mut ContentRemarks) {
    for (key, value) in entries(object) {
        if !["custom_ops_library", "custom_ops_libraries", "backend_path"].contains(&key.as_str()) {
            continue;
        }
        for file in texts(value) {
            if BACKENDS.contains(&file) || file.is_empty() {
                continue;
            }
            let verdict = match leads_out(file) || key != "backend_path" {
                true => FileVerdict::Dangerous,
                false => FileVerdict::Suspicious,
            };
            let file = Escaped::short(file);
            found.push((verdict, format!("onnxruntime loads the library '{file}'")));
        }
    }
}

/// Networks of YOLO, whose parsers evaluate modules, arguments and the activation.
fn yolo(object: &Map<String, Value>, found: &mut ContentRemarks) {
    /// Rows of layers in a network, and texts in a row that are examined.
    const MOST: usize = 10_000;

    let rows = |key: &str| object.get(key).and_then(Value::as_array);
    let layers = rows("backbone").into_iter().chain(rows("head")).flatten();
    if !rows("backbone").is_some_and(|rows| rows.iter().any(Value::is_array)) {
        return;
    }
    let activation = object.get("activation").into_iter();
    let mut rest: Vec<&Value> = layers.chain(activation).take(MOST).collect();
    while let Some(value) = rest.pop() {
        match value {
            Value::Array(items) => rest.extend(items.iter().take(MOST)),
            Value::String(text) if evaluates(text) => {
                let text = Escaped::short(text);
                found.push((FileVerdict::Dangerous, format!("YOLO evaluates Python: {text}")));
                return;
            }
            _ => {}
        }
    }
}

/// Returns `true` if a text does more than name a layer, or make one from numbers.
fn evaluates(text: &str) -> bool {
    let tokens = python::tokens(text);
    let layer = match python::path(&tokens, 0) {
        Some((parts, end)) => {
            let name = parts.join(".");
            let name = name.strip_prefix("torch.").unwrap_or(&name);
            (name.starts_with("nn.") && tokens.get(end).is_some_and(|t| t.is('('))).then_some(end)
        }
        None => None,
    };
    tokens.iter().enumerate().any(|(at, token)| match token {
        Token::Name(name) => name.contains("__") || !name.is_ascii(),
        // After an operator or a comma, it only groups.
        Token::Mark('(') => {
            let before = at.checked_sub(1).map(|at| &tokens[at]);
            layer != Some(at)
                && before.is_some_and(
                    |token| !matches!(token, Token::Mark(mark) if !")]}".contains(*mark)),
                )
        }
        _ => false,
    })
}

/// Examines a field of a text of protocol buffers, as Triton's `config.pbtxt` has them.
pub(super) fn of_triton(path: &[&str], value: &str) -> Option<(FileVerdict, String)> {
    let shown = Escaped::short(value);
    match path {
        [.., "op_library_filename"] => {
            Some((FileVerdict::Dangerous, format!("Triton loads the library '{shown}'")))
        }
        ["backend"] if value.contains(['/', '\\']) => {
            Some((FileVerdict::Dangerous, format!("Triton loads the backend '{shown}'")))
        }
        ["backend"] if value == "python" => {
            Some((FileVerdict::Suspicious, "Triton runs the Python file of the model".to_owned()))
        }
        ["default_model_filename"] if leads_out(value) => {
            let message = format!("a model outside the model's folder: '{shown}'");
            Some((FileVerdict::Dangerous, message))
        }
        ["parameters", "value", "string_value"]
            if leads_out(value) && (value.ends_with(".gz") || value.ends_with(".so")) =>
        {
            let message = format!("Triton loads programs outside the model's folder: '{shown}'");
            Some((FileVerdict::Dangerous, message))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(base: &str, text: &str) -> Option<FileVerdict> {
        let object = serde_json::from_str(text).expect("an object");
        let mut found = ContentRemarks::new();
        of_object(base, &object, &mut found);
        found.into_iter().map(|(verdict, _)| verdict).max()
    }

    #[test]
    fn settings_are_judged_by_the_code_that_they_name() {
        use FileVerdict::{Dangerous, Suspicious};
        for (base, text, expected) in [
            ("c", r#"{"class_path": "os.getpid", "init_args": {}}"#, Some(Dangerous)),
            ("c", r#"{"class_path": "lightning.pytorch.Trainer", "init_args": {}}"#, None),
            ("c", r#"{"type": "subprocess.Popen", "init_parameters": {}}"#, Some(Dangerous)),
            ("c", r#"{"type": "haystack.components.X", "init_parameters": {}}"#, None),
            (
                "c",
                r#"{"type": "haystack.X", "init_parameters": {"callback": "os.system"}}"#,
                Some(Dangerous),
            ),
            ("c", r#"{"type": "haystack.X", "init_parameters": {"model": "gpt-4.1"}}"#, None),
            ("c", r#"{"class_path": "os.getpid", "dict_kwargs": {}}"#, Some(Dangerous)),
            ("c", r#"{"class_path": "mine.Net", "dict_kwargs": {}}"#, Some(Suspicious)),
            ("c", r#"{"class": "os.getpid", "sparkVersion": "3.5"}"#, Some(Dangerous)),
            ("c", r#"{"class": "org.apache.spark.ml.X", "sparkVersion": "3.5"}"#, None),
            ("c", r#"{"import_path": "mine:app"}"#, Some(Suspicious)),
            ("c", r#"{"types": {"a": "mine.X"}, "structure": {}}"#, Some(Suspicious)),
            ("bento.yaml", r#"{"service": "service:Svc"}"#, Some(Suspicious)),
            ("other.yaml", r#"{"service": "service:Svc"}"#, None),
            ("c", r#"{"custom_imports": {"imports": ["os"]}}"#, Some(Dangerous)),
            ("c", r#"{"py/reduce": [{"py/function": "os.system"}]}"#, Some(Suspicious)),
            ("c", r#"{"py/function": "os.system"}"#, Some(Dangerous)),
            ("c", r#"{"py/object": "mine.X"}"#, Some(Suspicious)),
            ("c", r#"{"lc": 1, "type": "secret", "id": ["KEY"]}"#, Some(Suspicious)),
            ("c", r#"{"lc": 1, "type": "constructor", "id": ["os", "getpid"]}"#, Some(Dangerous)),
            ("c", r#"{"lc": 1, "type": "constructor", "id": ["langchain", "X"]}"#, None),
            ("c", r#"{"custom_ops_library": "x.so"}"#, Some(Dangerous)),
            ("c", r#"{"backend_path": "QnnHtp.dll"}"#, None),
            ("c", r#"{"backend_path": "/x/libQnnHtp.so"}"#, Some(Dangerous)),
        ] {
            assert_eq!(worst(base, text), expected, "{text}");
        }
    }

    #[test]
    fn networks_of_yolo_are_judged_by_the_texts_that_are_evaluated() {
        for (module, activation, expected) in [
            ("nn.Conv2d", "nn.SiLU()", None),
            ("Conv", "torch.nn.LeakyReLU(0.1)", None),
            ("Conv", "relu", None),
            ("__import__('os').getpid()", "relu", Some(FileVerdict::Dangerous)),
            ("Conv", "nn.SiLU(eval('1'))", Some(FileVerdict::Dangerous)),
            ("(print)(1)", "relu", Some(FileVerdict::Dangerous)),
        ] {
            let text = format!(
                r#"{{"backbone": [[-1, 1, "{module}", [64, "nearest", "[1, 2]"]]],
                "activation": "{activation}"}}"#
            );
            assert_eq!(worst("c", &text), expected, "{text}");
        }
        assert_eq!(worst("c", r#"{"backbone": "f()", "activation": "f()"}"#), None);
    }

    #[test]
    fn settings_of_triton_are_judged_by_the_programs_that_they_name() {
        use FileVerdict::{Dangerous, Suspicious};
        for (path, value, expected) in [
            (&["backend"][..], "onnxruntime", None),
            (&["backend"], "python", Some(Suspicious)),
            (&["backend"], "../x", Some(Dangerous)),
            (&["model_operations", "op_library_filename"], "x.so", Some(Dangerous)),
            (&["parameters", "value", "string_value"], "/x/env.tar.gz", Some(Dangerous)),
            (&["parameters", "value", "string_value"], "1", None),
        ] {
            let verdict = of_triton(path, value).map(|(verdict, _)| verdict);
            assert_eq!(verdict, expected, "{path:?} {value}");
        }
    }
}
