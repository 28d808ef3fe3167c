//! Models whose weights the package `tflite` read (`fixtures/tflite`), by their bytes; broken ones
//! are errors.

use std::path::PathBuf;

use apr_core::{CheckpointReader, Code, DType, Limits, Result, Table, keys};
use apr_graph::{AttributeValue, Graph, Severity, ValueOrigin, check};
use apr_testkit::{corrupt, locate, peak_memory, read_everything};
use apr_tflite::{METADATA, graphs_of};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/tflite");
    std::fs::read(folder.join(name)).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_tflite::open(file, "a.tflite", &Limits::default())
}

fn bytes_of(reader: &Table, name: &str, piece: usize) -> Vec<u8> {
    let tensor = reader.tensors().iter().position(|info| info.name == name);
    let tensor = tensor.unwrap_or_else(|| panic!("no {name}"));
    let len = reader.tensors()[tensor].byte_len().expect("a possible length");
    let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
    let mut offset = 0;
    for chunk in bytes.chunks_mut(piece) {
        reader.read_tensor(tensor, offset, chunk).expect("readable");
        offset += chunk.len() as u64;
    }
    bytes
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares a model with another program's reading of it.
fn compare(file: &str, reader: &Table, expected: &Value) {
    let expected = expected.as_object().expect("an object");
    let quantized = json!(reader.metadata().object(keys::AFFINE));
    for (name, weight) in expected {
        let info = reader.tensors().iter().find(|info| info.name == *name);
        let info = info.unwrap_or_else(|| panic!("{file}: no {name}"));
        let shape: Vec<u64> = serde_json::from_value(weight["shape"].clone()).expect("sizes");
        assert_eq!(info.shape.dims(), shape, "{file}: {name}");
        for piece in [1, 3, 1 << 20] {
            let found = digest(&bytes_of(reader, name, piece));
            assert_eq!(weight["sha256"], found, "{file}: {name} by {piece}");
        }
        let Some(scales) = weight.get("scales") else { continue };
        let entry = &quantized[name];
        assert_eq!(entry.get("axis"), weight.get("axis").filter(|axis| !axis.is_null()), "{name}");
        let named = |key: &str| entry.get(key).and_then(Value::as_str);
        let found = bytes_of(reader, named("scales").expect("scales"), 1 << 20);
        assert_eq!(*scales, digest(&found), "{file}: {name}");
        let zero_points = named("zero_points").map(|name| bytes_of(reader, name, 1 << 20));
        let zero_points: Option<Vec<i64>> = zero_points.map(|bytes| {
            let numbers = bytes.as_chunks().0.iter();
            numbers.map(|bytes| i64::from_le_bytes(*bytes)).collect()
        });
        assert_eq!(json!(zero_points), weight["zero_points"], "{file}: {name}");
    }
    let own = reader.tensors().iter().filter(|info| {
        let base = info.name.rsplit_once('.').filter(|(_, key)| {
            ["scales", "zero_points"].contains(&key.split('#').next().unwrap_or_default())
        });
        base.is_none_or(|(base, _)| !expected.contains_key(base))
    });
    assert_eq!(own.count(), expected.len(), "{file}");
}

#[test]
fn every_weight_has_the_bytes_that_another_program_reads() {
    let expected: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    for (name, weights) in expected.as_object().expect("an object") {
        let reader = open(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        compare(name, &reader, weights);
    }
}

#[test]
fn models_of_others_have_the_bytes_that_another_program_reads() {
    let Some(folder) = locate::shared_data("tflite") else { return };
    let expected: Value = serde_json::from_slice(&fixture("shared.json")).expect("JSON");
    for (name, weights) in expected.as_object().expect("an object") {
        let file = std::fs::read(folder.join(name)).expect("a model");
        let reader = open(file).unwrap_or_else(|error| panic!("{name}: {error}"));
        compare(name, &reader, weights);
    }
}

#[test]
fn what_is_no_weight_is_described_or_left_out_by_name() {
    let reader = open(fixture("labels.tflite")).expect("a model");
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!(entry["operators"], json!({ "BROADCAST_TO": 1, "FULLY_CONNECTED": 2, "Mine": 1 }));
    assert_eq!(
        entry["signatures"],
        json!({ "serving_default": { "inputs": ["x"], "outputs": ["y"] } })
    );
    assert_eq!(entry["description"], "every kind of weight");
    let output = &entry["subgraphs"][0]["outputs"][0];
    assert_eq!((&output["dtype"], &output["shape"]), (&json!("float32"), &json!([-1, 2])));
    let blocks = json!({ "block_size": 4, "scales": "blocks/scales" });
    assert_eq!(reader.metadata().object(keys::AFFINE).expect("some")["blocks"], blocks);

    assert_eq!(
        reader.left_out(),
        [
            "words (no format here holds elements of string)",
            "sparse (sparse tensors are not supported)",
            "metadata 'min_runtime_version'"
        ]
    );
    let names: Vec<&str> = reader.companions().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["model.graph", "labels.txt", "vocabulary.txt"]);
    assert_eq!(reader.read_companion(1).expect("labels"), b"cat\ndog\n");
    assert_eq!(reader.read_companion(2).expect("words"), "word ".repeat(100).as_bytes());
    assert!(reader.read_companion(3).is_err());
    let bias: Vec<DType> = reader
        .tensors()
        .iter()
        .filter(|info| info.name == "body/bias")
        .map(|info| info.dtype)
        .collect();
    assert_eq!(bias, [DType::F64]);
}

/// Tests archive offsets that are relative to the start of the file.
///
/// Python's zipfile writes them when it appends an archive.
///
/// MediaPipe's models have such archives.
#[test]
fn files_whose_places_count_from_the_models_start_leave_the_graph_alone() {
    let reader = open(fixture("appended.tflite")).expect("a model");
    let names: Vec<&str> = reader.companions().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["model.graph", "labels.txt"]);
    assert_eq!(reader.read_companion(1).expect("labels"), b"cat\ndog\n");
    let nodes = |name: &str| {
        let reader = open(fixture(name)).expect("a model");
        let graphs = graphs_of(&reader, &Limits::default()).expect("a graph").expect("some");
        graphs.iter().map(|(_, graph)| graph.body.nodes.len()).collect::<Vec<_>>()
    };
    assert_eq!(nodes("appended.tflite"), nodes("kinds.tflite"));
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    for name in ["kinds.tflite", "outside.tflite", "labels.tflite", "appended.tflite"] {
        let file = fixture(name);
        let broken = corrupt::truncations(&file).chain(corrupt::bit_flips(&file, 0..file.len()));
        for broken in broken {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(broken) {
                    let _ = graphs_of(&reader, &Limits::default());
                    // Damaged weights are met where they are read.
                    let _ = read_everything(&reader);
                }
            });
            assert!(peak < 4 << 20, "{name}: {peak} bytes");
        }
    }
}

#[test]
fn lists_that_lie_over_each_other_end_at_the_limit() {
    // Every offset of the list of subgraphs leads to the same table: the file's length bounds no
    // work.
    let error = open(overlapping(200_000, 40_000)).expect_err("too much");
    assert_eq!(error.code(), Code::Memory, "{error}");
}

/// Returns a model of `subgraphs` entries that all refer to one table, with a name of `name` bytes.
fn overlapping(subgraphs: u32, name: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let word = |file: &mut Vec<u8>, number: u32| file.extend(number.to_le_bytes());
    word(&mut file, 24);
    file.extend(b"TFL3");
    // Fields of the model: version at 4, subgraphs at 8.
    file.extend([14, 0, 12, 0, 4, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    word(&mut file, 16);
    word(&mut file, 3);
    word(&mut file, 4);
    word(&mut file, subgraphs);
    // The table of all of them is behind the list: its fields, itself, its name.
    let list = file.len();
    let table = list + 4 * subgraphs as usize + 16;
    for entry in 0..subgraphs as usize {
        word(&mut file, u32::try_from(table - list - 4 * entry).expect("near"));
    }
    file.extend([14, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
    word(&mut file, 16);
    word(&mut file, 4);
    word(&mut file, name);
    file.resize(file.len() + name as usize, b'a');
    file
}

fn graphs(file: Vec<u8>) -> Vec<(String, Graph)> {
    let reader = open(file).expect("a model");
    let len = reader.companions()[0].len;
    assert_eq!(reader.read_companion(0).expect("the skeleton").len() as u64, len);
    graphs_of(&reader, &Limits::default()).expect("readable").expect("a graph")
}

/// Compares graphs with the reading of the package `tflite`.
fn compare_graph(file: &str, graphs: &[(String, Graph)], expected: &Value) {
    let nodes: Vec<_> = graphs
        .iter()
        .flat_map(|(_, graph)| graph.body.nodes.iter().map(|node| (node, &graph.body)))
        // What is kept between runs has a node here, and is a tensor of the file.
        .filter(|(node, _)| &*node.op.name != "VARIABLE")
        .collect();
    let expected = expected.as_array().expect("a list");
    assert_eq!(nodes.len(), expected.len(), "{file}");
    for ((node, body), expected) in nodes.into_iter().zip(expected) {
        let name = |id: &Option<apr_graph::ValueId>| id.map(|id| body.value(id).name.clone());
        let inputs: Vec<_> = node.inputs.iter().map(name).collect();
        let outputs: Vec<_> = node.outputs.iter().map(name).collect();
        assert_eq!(json!(*node.op.name), expected["op"], "{file}: {}", node.name);
        assert_eq!(json!(inputs), expected["inputs"], "{file}: {}", node.name);
        assert_eq!(json!(outputs), expected["outputs"], "{file}: {}", node.name);
        let options = expected["options"].as_object().expect("an object");
        for (option, value) in options {
            let found = match node.attribute(option) {
                Some(AttributeValue::Int(found)) => json!(found),
                Some(AttributeValue::Float(found)) => json!(found),
                Some(AttributeValue::Text(found)) => json!(String::from_utf8_lossy(found)),
                Some(AttributeValue::Ints(found)) => json!(found),
                other => panic!("{file}: {} {option}: {other:?}", node.name),
            };
            assert_eq!(found, *value, "{file}: {} {option}", node.name);
        }
    }
}

#[test]
fn graphs_match_the_reading_of_another_program() {
    let expected: Value = serde_json::from_slice(&fixture("graphs.json")).expect("JSON");
    let shared = locate::shared_data("tflite");
    for (name, nodes) in expected.as_object().expect("an object") {
        let own =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/tflite").join(name);
        let file = match (own.exists(), &shared) {
            (true, _) => std::fs::read(own).expect("the fixture"),
            (false, Some(folder)) => std::fs::read(folder.join(name)).expect("a model"),
            (false, None) => continue,
        };
        let graphs = graphs(file);
        compare_graph(name, &graphs, nodes);
        for (_, graph) in &graphs {
            let errors = check(graph).list.into_iter();
            let errors: Vec<_> =
                errors.filter(|finding| finding.severity == Severity::Error).collect();
            assert!(errors.is_empty(), "{name}: {errors:?}");
        }
    }
}

#[test]
fn weights_of_a_graph_are_the_readers_tensors() {
    let file = fixture("kinds.tflite");
    let reader = open(file.clone()).expect("a model");
    let graphs = graphs(file);
    assert_eq!(graphs.len(), 2, "subgraphs that none calls stand by themselves");
    for (value, weight) in graphs.iter().flat_map(|(_, graph)| graph.body.weights()) {
        let info = reader.tensors().iter().find(|info| info.name == weight.tensor);
        let info = info.unwrap_or_else(|| panic!("no {}", weight.tensor));
        let shape: Vec<_> =
            value.shape().expect("a shape").iter().map(apr_graph::Dim::size).collect();
        assert_eq!(shape, info.shape.dims().iter().copied().map(Some).collect::<Vec<_>>());
    }
    let inputs = graphs[0].1.body.inputs.iter();
    for input in inputs {
        assert_eq!(graphs[0].1.body.value(*input).origin, ValueOrigin::Input);
    }
}

/// Small tensors of a model, for a lowering.
struct Small(Table);

impl apr_lower::Weights for Small {
    fn constant(&self, tensor: &str) -> Option<apr_graph::Constant> {
        let info = self.0.tensors().iter().find(|info| info.name == tensor)?;
        Some(apr_graph::Constant {
            name: String::new(),
            element: apr_graph::ElementType::from_dtype(info.dtype)?,
            shape: info.shape.dims().to_vec(),
            data: apr_graph::ConstantData::Bytes(bytes_of(&self.0, tensor, 1 << 20)),
        })
    }
}

impl apr_tflite::lower::Weights for Small {
    fn affine(&self, tensor: &str) -> Option<apr_tflite::lower::Affine> {
        let entry = self.0.metadata().object(keys::AFFINE)?.get(tensor)?;
        let scales = entry.get("scales")?.as_str()?.to_owned();
        let count = bytes_of(&self.0, &scales, 1 << 20).len() as u64 / 4;
        let axis = entry.get("axis").and_then(Value::as_u64).unwrap_or_default();
        let axis = usize::try_from(axis).ok()?;
        Some(apr_tflite::lower::Affine { scales, count, zero_points: None, axis })
    }
}

#[test]
fn lowered_graphs_are_ones_that_onnx_allows() {
    let mut files = vec![fixture("lowered.tflite"), fixture("moved.tflite")];
    if let Some(folder) = locate::shared_data("tflite") {
        for name in
            ["mlcommons_tiny__str_ww_ref_model", "tensorflow_tflite-micro__hello_world_int8"]
        {
            files.push(std::fs::read(folder.join(format!("{name}.tflite"))).expect("a model"));
        }
    }
    for file in files {
        let weights = Small(open(file.clone()).expect("a model"));
        for (_, graph) in graphs(file) {
            let lowered = apr_tflite::lower::lower(&graph, &weights).expect("known operators");
            let names = |graph: &Graph| -> Vec<String> {
                let ends = graph.body.outputs.iter().map(|id| graph.body.value(*id).name.clone());
                ends.collect()
            };
            assert_eq!(names(&lowered), names(&graph));
            let errors = check(&lowered).list.into_iter();
            let errors: Vec<_> = errors.filter(|one| one.severity == Severity::Error).collect();
            assert!(errors.is_empty(), "{errors:?}");
        }
    }
}
