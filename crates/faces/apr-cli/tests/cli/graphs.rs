//! Graphs of families: those that onnxruntime computed like transformers.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use apr_arch::Families;
use apr_blocks::{GraphOptions, graphs};
use apr_core::{DType, Metadata, TensorInfo};
use apr_graph::{Body, Graph, ValueId, ValueOrigin};
use apr_testkit::locate::fixture;
use apr_testkit::peers::agreed;
use serde_json::Value as Json;

use crate::support::binary;

/// Files of `fixtures/families`: configurations and shapes as transformers 4 and 5 wrote them.
fn cases(folder: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(fixture(folder)).expect("the fixtures are there");
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths
}

/// Writes the contents of a graph, except for the types of values, which follow from it.
fn listing(graph: &Graph, into: &mut String) {
    for opset in &graph.opsets {
        writeln!(into, "opset '{}' {}", opset.domain, opset.version).expect("text");
    }
    for function in &graph.functions {
        writeln!(into, "function {}", function.op).expect("text");
        list_body(&function.body, into);
    }
    writeln!(into, "model").expect("text");
    list_body(&graph.body, into);
}

fn list_body(body: &Body, into: &mut String) {
    let name = |id: &ValueId| body.value(*id).name.as_str();
    let names = |ids: &[Option<ValueId>]| {
        ids.iter().map(|id| id.as_ref().map_or("-", name).to_owned()).collect::<Vec<_>>()
    };
    for input in &body.inputs {
        let kind = body.value(*input).tensor().map(ToString::to_string).unwrap_or_default();
        writeln!(into, "  input {} {kind}", name(input)).expect("text");
    }
    for value in &body.values {
        match &value.origin {
            ValueOrigin::Weight(weight) => {
                writeln!(into, "  weight {} {weight:?}", value.name).expect("text");
            }
            ValueOrigin::Constant(constant) => {
                writeln!(into, "  constant {} {constant:?}", value.name).expect("text");
            }
            _ => {}
        }
    }
    for node in &body.nodes {
        let (inputs, outputs) = (names(&node.inputs), names(&node.outputs));
        writeln!(
            into,
            "  {}: {} {inputs:?} -> {outputs:?} {:?}",
            node.name, node.op, node.attributes
        )
        .expect("text");
    }
    let outputs: Vec<&str> = body.outputs.iter().map(name).collect();
    writeln!(into, "  outputs {outputs:?}").expect("text");
}

/// Returns the graphs of a case as text, with and without a KV cache, or the reason for which there
/// are none.
fn graphs_of(path: &PathBuf) -> String {
    let json: Json =
        serde_json::from_slice(&std::fs::read(path).expect("it is there")).expect("it is JSON");
    let mut config = json["config"].as_object().expect("a configuration").clone();
    let model_type = config.remove("model_type").expect("a model type");
    let mut metadata = Metadata::new();
    metadata.set("model_type", model_type);
    metadata.set("architecture", config);
    let tensors = json["tensors"].as_object().expect("tensors").iter().map(|(name, dims)| {
        let dims =
            dims.as_array().expect("a shape").iter().filter_map(Json::as_u64).collect::<Vec<_>>();
        TensorInfo { name: name.clone(), dtype: DType::F32, shape: dims.into() }
    });
    let tensors: Vec<TensorInfo> = tensors.collect();
    let families = Families::builtin();
    let model = families.identify(&tensors, &metadata).expect("of a known family");
    let mut text = String::new();
    for past in [true, false] {
        match graphs(&model, &tensors, &GraphOptions { past, ..GraphOptions::default() }) {
            Err(error) => writeln!(text, "{error}").expect("text"),
            Ok(made) => {
                for part in made.parts {
                    writeln!(text, "{}", part.name).expect("text");
                    listing(&part.graph, &mut text);
                }
            }
        }
    }
    text
}

/// A Python that has torch, transformers, onnx and onnxruntime.
fn python() -> PathBuf {
    std::env::var_os("APR_GRAPH_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from)
}

/// Runs `xtask/interop/graphs.py`, which exits with 1 if an output differs from that of
/// transformers.
fn compare(arguments: &[&std::ffi::OsStr]) {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../xtask/interop/graphs.py");
    let mut command = Command::new(python());
    command.arg(script).arg(binary()).args(arguments);
    let status = command.status().expect("Python starts; APR_GRAPH_PYTHON may name another one");
    assert!(status.success(), "some outputs differ");
}

#[test]
fn graphs_compute_the_same_as_transformers() {
    let label = |path: &PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    // Language models of models that see are in a folder of their own.
    for (record, folder) in
        [("transformers/graphs", "families"), ("transformers/parts", "families/parts")]
    {
        let files: Vec<(String, Vec<u8>)> =
            cases(folder).iter().map(|path| (label(path), graphs_of(path).into_bytes())).collect();
        agreed(record, &files, || {
            compare(&["--families".as_ref(), fixture(folder).as_os_str()]);
        });
    }
}
