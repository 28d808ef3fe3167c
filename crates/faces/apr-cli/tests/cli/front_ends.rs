//! The library reports what the command reports, on models of all kinds. `python/tests`, the page's
//! `node.mjs` and `apr-tui` compare the other front ends with these two.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use apr::report::{DiffOptions, TensorsOptions, ValidateOptions};
use apr_ops::graph::ReportOptions;
use apr_testkit::locate;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::support::Sandbox;

/// Models of all kinds, in `fixtures/`.
const MODELS: [&str; 20] = [
    "tiny-llama",
    "tiny-llama/model.safetensors",
    "run/tiny-whisper",
    "run/tiny-bert",
    "run/tiny-t5",
    "lora/lora",
    "lora/lora/adapter_model.safetensors",
    "onnx/kinds.onnx",
    "keras/images.keras",
    "tflite/lowered.tflite",
    "coreml/program16.mlpackage",
    "torch/lightning.ckpt",
    "tensorflow/saved",
    "ort/model.ort",
    "orbax/zarr",
    "numpy/mixed.npz",
    "vectors/gensim.bin",
    "paddle/model.pdparams",
    "wrapped/small.nemo",
    "flax/state.msgpack",
];

/// Models whose weights are in codes and scales, among the shared cases.
const CODED: [&str; 2] = ["codes/fp8-block", "codes/gptq4"];

/// Returns the paths of the models that exist.
fn models() -> Vec<PathBuf> {
    let fixtures = MODELS.into_iter().map(locate::fixture);
    fixtures.chain(CODED.into_iter().filter_map(locate::shared_case)).collect()
}

/// A report as JSON, or the code of the error that it ends with.
fn of<T: Serialize>(report: apr::Result<T>) -> Value {
    match report {
        Ok(report) => serde_json::to_value(report).expect("reports are JSON"),
        Err(error) => json!({ "code": error.code().id() }),
    }
}

/// Runs a command with `--json` and returns its report, or the code of its error.
fn printed(sandbox: &Sandbox, line: &[&str]) -> Value {
    let run = sandbox.run(&[line, &["--json"]].concat());
    let report = run.json();
    match report.get("error").and_then(|error| error.get("code")) {
        Some(code) => json!({ "code": code }),
        None => report,
    }
}

/// Returns the position of the first difference between two reports, with both values.
fn difference(one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            let of =
                |report: &Map<String, Value>, key| report.get(key).cloned().unwrap_or_default();
            keys.into_iter().find_map(|key| {
                Some(format!("/{key}{}", difference(&of(left, key), &of(right, key))?))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            let pairs = left.iter().zip(right).enumerate();
            pairs
                .into_iter()
                .find_map(|(at, (left, right))| Some(format!("/{at}{}", difference(left, right)?)))
        }
        _ => (one != other).then(|| format!(": {one} and {other}")),
    }
}

/// Every report of the library on a model, by the command's words.
fn reports(path: &Path) -> Vec<(&'static str, Value)> {
    let model = match apr::Model::open(path) {
        Ok(model) => model,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let session = model.session();
    vec![
        ("inspect", of(model.inspect())),
        ("tensors", of(model.tensor_table(&TensorsOptions::default()))),
        ("validate", of(model.validate(ValidateOptions::default()))),
        ("lint", of(model.lint())),
        ("explain", of(model.explain())),
        ("graph", of(session.graph(&ReportOptions::default()))),
        ("scan", of(apr::scan::scan(path))),
    ]
}

/// Models that the command makes: of one file, quantized, in shards, and of these one damaged, and
/// one of each layout without a shard; and an archive with a damaged entry.
fn made(sandbox: &Sandbox) -> Vec<PathBuf> {
    let llama = locate::fixture("tiny-llama");
    let run = |line: &str| drop(sandbox.apr(line).ok());
    run(&format!("import {} -o m.apr", llama.display()));
    run("convert m.apr --quantize q4_k_m -o q.gguf");
    for folder in ["whole", "damaged", "missing"] {
        run(&format!("shard m.apr --size 200KB -o {folder}/m.apr"));
    }
    let shard = |folder: &str| {
        let names = sandbox.files();
        let name = names.iter().find(|name| name.starts_with(folder) && name.contains("00002"));
        sandbox.path(name.expect("the second shard"))
    };
    let path = shard("damaged");
    let mut bytes = std::fs::read(&path).expect("the shard");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).expect("the shard");
    std::fs::remove_file(shard("missing")).expect("the shard");
    run("convert m.apr --format safetensors --shard-size 200KB -o absent");
    run("convert m.apr --shard-size 300KB -o absent.gguf");
    for absent in ["absent/model-00002-of-00004.safetensors", "absent-00002-of-00003.gguf"] {
        std::fs::remove_file(sandbox.path(absent)).expect("the shard");
    }
    let mut archive = std::fs::read(locate::fixture("numpy/deflated.npz")).expect("a fixture");
    archive[198] ^= 1;
    sandbox.write("damaged.npz", archive);
    let made = [
        "m.apr",
        "damaged.npz",
        "q.gguf",
        "whole/m.apr",
        "damaged/m.apr",
        "missing/m.apr",
        "absent",
    ];
    let made = made.into_iter().chain(["absent-00001-of-00003.gguf"]);
    made.map(|name| sandbox.path(name)).collect()
}

#[test]
fn the_library_reports_what_the_command_reports() {
    let sandbox = Sandbox::new();
    for path in models().into_iter().chain(made(&sandbox)) {
        let name = path.to_str().expect("a name");
        for (report, found) in reports(&path) {
            let printed = printed(&sandbox, &[report, name]);
            assert_eq!(difference(&printed, &found), None, "{report} {name}");
        }
    }
}

#[test]
fn the_library_compares_as_the_command_compares() {
    let sandbox = Sandbox::new();
    let mut paths = models();
    paths.extend(made(&sandbox));
    let twins = paths.iter().zip(&paths[1..]);
    let first = &paths[0];
    for (left, right) in twins.chain(paths.iter().map(|path| (first, path))) {
        let names = [left, right].map(|path| path.to_str().expect("a name"));
        let open = |path| apr::Model::open(path).expect("it was opened before");
        let found = of(open(left).diff(&open(right), &DiffOptions::default()));
        let printed = printed(&sandbox, &["diff", names[0], names[1]]);
        assert_eq!(difference(&printed, &found), None, "{names:?}");
    }
}

/// A field of a protobuf message that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).expect("a short message");
    [&[number << 3 | 2][..], &varint(len), bytes].concat()
}

fn varint(value: u8) -> Vec<u8> {
    if value < 128 { vec![value] } else { vec![value, 1] }
}

/// An ONNX file with one LeakyRelu, and a weight that it does not depend on.
fn leaky(alpha: f32) -> Vec<u8> {
    let number = |number: u8, value: u8| vec![number << 3, value];
    let float = [&[2 << 3 | 5][..], &alpha.to_le_bytes()].concat();
    let attribute = [field(1, b"alpha"), float, vec![0xa0, 0x01, 1]].concat();
    let node =
        [field(1, b"x"), field(2, b"y"), field(4, b"LeakyRelu"), field(5, &attribute)].concat();
    let dims = field(2, &field(1, &number(1, 2)));
    let shape = [number(1, 1), dims].concat();
    let value = |name: &[u8]| [field(1, name), field(2, &field(1, &shape))].concat();
    let graph = [field(1, &node), field(2, b"g"), field(11, &value(b"x")), field(12, &value(b"y"))];
    let opset = number(2, 17);
    [number(1, 8), field(7, &graph.concat()), field(8, &opset)].concat()
}

#[test]
fn an_attribute_of_a_graph_is_a_difference_to_the_library_too() {
    let sandbox = Sandbox::new().with("a.onnx", leaky(0.01)).with("b.onnx", leaky(0.5));
    sandbox.apr("diff a.onnx a.onnx --exit-code").ok().says(&["SAME"]);
    sandbox.apr("diff a.onnx b.onnx --exit-code").fails(5, &["computation differs", "DIFFERENT"]);
    let open = |name| apr::Model::open(sandbox.path(name)).expect("an ONNX file");
    let diff = |left, right| open(left).diff(&open(right), &DiffOptions::default());
    assert!(diff("a.onnx", "a.onnx").expect("a report").same);
    assert!(!diff("a.onnx", "b.onnx").expect("a report").same);
}

#[test]
fn the_library_converts_parts_and_imports_whole_models_like_the_command() {
    let sandbox = crate::families::TinyModel::new("llama")
        .without("model.layers.1.mlp.up_proj.weight")
        .sandbox();
    sandbox.apr("convert m -o command.safetensors").ok();
    sandbox.apr("import m -o command.apr").fails(5, &["up_proj", "missing"]);
    let source = sandbox.path("m");
    apr::convert(&source).write(sandbox.path("library.safetensors")).expect("a part is converted");
    let import = apr::apr_import(
        source.to_str().expect("a name"),
        sandbox.path("library.apr"),
        Default::default(),
    );
    assert!(import.is_err_and(|error| error.to_string().contains("up_proj")));
    assert_eq!(sandbox.read("command.safetensors"), sandbox.read("library.safetensors"));
}
