//! A model that onnxruntime wrote (`fixtures/ort`), by what its own reader finds in it; broken ones
//! are errors.

use std::path::PathBuf;

use apr_core::{CheckpointReader, Code, Limits, Result, Table};
use apr_graph::{Body, Severity, check};
use apr_runtimes::ort::{METADATA, graphs_of};
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/ort");
    std::fs::read(folder.join(name)).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_runtimes::ort::open(file, "a.ort", &Limits::default())
}

#[test]
fn every_initializer_has_the_bytes_that_onnxruntime_wrote() {
    let expected: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    let expected = expected.as_object().expect("an object");
    let reader = open(fixture("model.ort")).expect("a model");
    assert_eq!(reader.tensors().len(), expected.len());
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let weight = expected.get(&info.name).unwrap_or_else(|| panic!("{} is none", info.name));
        let dtype = weight["dtype"].as_str().expect("a name");
        let dtype = dtype.replace("float", "f").replace("uint", "u").replace("int", "i");
        assert_eq!(dtype, info.dtype.name(), "{}", info.name);
        assert_eq!(weight["shape"], json!(info.shape.dims()), "{}", info.name);
        let len = info.byte_len().expect("a possible length");
        let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
        reader.read_tensor(tensor, 0, &mut bytes).expect("readable");
        let digest: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(weight["sha256"], digest, "{}", info.name);
        assert_eq!(reader.tensor_slice(tensor), Some(bytes.as_slice()), "{}", info.name);
    }
}

#[test]
fn content_other_than_weights_is_described_or_omitted() {
    let reader = open(fixture("model.ort")).expect("a model");
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!(entry["producer"], "make.py");
    assert_eq!(entry["description"], "a model");
    assert_eq!(entry["properties"], json!({ "key": "value" }));
    assert_eq!(entry["inputs"], json!(["x", "condition"]));
    assert_eq!(entry["operators"]["Gemm"], 1);
    assert_eq!(reader.left_out(), [""; 0]);
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    let file = fixture("model.ort");
    let flips = corrupt::bit_flips(&file, 0..file.len());
    for broken in corrupt::truncations(&file).chain(flips) {
        let ((), peak) = peak_memory(|| {
            if let Ok(reader) = open(broken) {
                let _ = graphs_of(&reader, &Limits::default());
                let _ = read_everything(&reader);
            }
        });
        assert!(peak < 4 << 20, "{peak} bytes");
    }
}

#[test]
fn files_that_are_not_models_are_errors() {
    for file in [&b""[..], b"ORTM", b"\x08\0\0\0ORTM", b"\x18\0\0\0TFL3\0\0\0\0"] {
        let error = open(file.to_vec()).map(drop).expect_err("no model");
        assert!(matches!(error.code(), Code::Format | Code::Corrupt), "{error}");
    }
}

/// Compares nodes with the nodes that onnxruntime's reader finds.
fn compare_body(body: &Body, expected: &Value) {
    let expected = expected.as_array().expect("a list");
    assert_eq!(body.nodes.len(), expected.len());
    for (node, expected) in body.nodes.iter().zip(expected) {
        let names = |ids: &[Option<apr_graph::ValueId>]| -> Vec<String> {
            ids.iter()
                .map(|id| id.map_or(String::new(), |id| body.value(id).name.clone()))
                .collect()
        };
        assert_eq!(json!(node.op.to_string()), expected["op"]);
        assert_eq!(json!(names(&node.inputs)), expected["inputs"]);
        assert_eq!(json!(names(&node.outputs)), expected["outputs"]);
        let bodies = expected["bodies"].as_object().expect("an object");
        assert_eq!(node.bodies().count(), bodies.len());
        for (name, expected) in bodies {
            let value = node.attribute(name).expect("a branch");
            compare_body(&value.bodies()[0], expected);
        }
    }
}

#[test]
fn the_graph_is_that_which_onnxruntime_reads() {
    let reader = open(fixture("model.ort")).expect("a model");
    let graphs = graphs_of(&reader, &Limits::default()).expect("readable").expect("a graph");
    let graph = &graphs[0].1;
    let expected: Value = serde_json::from_slice(&fixture("graph.json")).expect("JSON");
    compare_body(&graph.body, &expected);
    let findings = check(graph);
    assert_eq!(findings.list.iter().filter(|one| one.severity == Severity::Error).count(), 0);
    for (value, weight) in graph.body.weights() {
        let info = reader.tensors().iter().find(|info| info.name == weight.tensor);
        let info = info.unwrap_or_else(|| panic!("no {}", weight.tensor));
        let shape: Vec<_> =
            value.shape().expect("a shape").iter().map(apr_graph::Dim::size).collect();
        assert_eq!(shape, info.shape.dims().iter().copied().map(Some).collect::<Vec<_>>());
    }
}
