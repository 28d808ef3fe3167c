//! Models whose weights h5py read (`fixtures/keras`), by their bytes; broken ones are errors.

use std::path::PathBuf;
use std::sync::Arc;

use apr_core::{CheckpointReader, Code, Limits, Result, Table};
use apr_graph::{AttributeValue, Severity, check};
use apr_keras::{ARCHIVE, HDF5, METADATA, graphs_of};
use apr_testkit::{corrupt, locate, peak_memory, read_everything};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/keras");
    std::fs::read(folder.join(name)).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_keras::open(file, "a.h5", &Limits::default())
}

fn bytes_of(reader: &Table, tensor: usize, piece: usize) -> Vec<u8> {
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

/// Dtype, shape and digest of each tensor, in an order of their own.
fn found(reader: &Table, piece: usize) -> Vec<(String, Vec<u64>, String)> {
    let of = |(tensor, info): (usize, &apr_core::TensorInfo)| {
        let sha256 = digest(&bytes_of(reader, tensor, piece));
        (info.dtype.name().to_owned(), info.shape.dims().to_vec(), sha256)
    };
    let mut found: Vec<_> = reader.tensors().iter().enumerate().map(of).collect();
    found.sort();
    found
}

/// Returns the tensors of the model as read by h5py, without tensors of the optimizer.
fn expected(tensors: &Value) -> Vec<(String, Vec<u64>, String)> {
    let tensors = tensors.as_object().expect("an object").iter();
    let of_model = tensors.filter(|(path, _)| !path.starts_with("optimizer"));
    let mut expected: Vec<_> = of_model
        .map(|(_, tensor)| {
            let text = |key: &str| tensor[key].as_str().expect("a text").to_owned();
            let shape = serde_json::from_value(tensor["shape"].clone()).expect("sizes");
            (text("dtype"), shape, text("sha256"))
        })
        .collect();
    expected.sort();
    expected
}

#[test]
fn every_tensor_has_the_bytes_that_h5py_reads() {
    let all: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    for (name, tensors) in all.as_object().expect("an object").iter().filter(|all| all.0 != "keras")
    {
        let reader = open(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        // `scalar` is a second name of `another`, and LZF and extensible arrays are not read.
        let unread = ["scalar", "lzf", "grows"];
        let mut tensors = tensors.clone();
        tensors.as_object_mut().expect("an object").retain(|path, _| !unread.contains(&&**path));
        for piece in [1, 3, 1 << 20] {
            assert_eq!(found(&reader, piece), expected(&tensors), "{name} by {piece}");
        }
    }
}

#[test]
fn files_of_others_have_the_bytes_that_h5py_reads() {
    let Some(folder) = locate::shared_data("keras") else { return };
    let all: Value = serde_json::from_slice(&fixture("shared.json")).expect("JSON");
    for (name, tensors) in all.as_object().expect("an object") {
        let file = std::fs::read(folder.join(name)).expect("a model");
        let reader = open(file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found(&reader, 1 << 20), expected(tensors), "{name}");
    }
}

#[test]
fn variables_have_the_names_that_keras_gives_them() {
    let all: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    let by_name = all["keras"].as_object().expect("an object");
    for (file, is_with_seed) in [("small.keras", true), ("small.h5", false)] {
        let reader = open(fixture(file)).expect("a model");
        for (tensor, info) in reader.tensors().iter().enumerate() {
            let sha256 = digest(&bytes_of(&reader, tensor, 1 << 20));
            assert_eq!(by_name.get(&info.name), Some(&sha256.into()), "{file}: {}", info.name);
        }
        let names = by_name.keys().filter(|name| is_with_seed || !name.contains("seed"));
        assert_eq!(reader.tensors().len(), names.count(), "{file}");
    }
    // Without a configuration, numbers stay; parts of layers have names that follow from theirs.
    let weights = open(fixture("small.weights.h5")).expect("weights");
    let names: Vec<&str> = weights.tensors().iter().map(|info| info.name.as_str()).collect();
    for name in ["inner/in_dense/0", "rec/lstm_cell/kernel", "bn/2"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[test]
fn what_is_no_weight_is_described_or_left_out_by_name() {
    let reader = open(fixture("small.keras")).expect("a model");
    assert_eq!(*reader.format(), ARCHIVE);
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!(entry["model_config"]["class_name"], "Functional");
    assert_eq!(entry["keras_version"], "3.15.1");
    let state = "the optimizer's state (";
    assert!(
        reader.left_out().iter().any(|left| left.starts_with(state)),
        "{:?}",
        reader.left_out()
    );

    let reader = open(fixture("kinds.h5")).expect("datasets");
    assert_eq!(*reader.format(), HDF5);
    let left: Vec<&str> = reader.left_out().iter().map(String::as_str).collect();
    for expected in [
        "scalar (another name of '/another')",
        "outside (a link to '/x' of the file 'other.h5')",
        "soft (a link to '/scalar')",
        "lzf (its chunks have the filter 32000 (LZF))",
        "text (no format here holds elements of string)",
        "record (no format here holds elements of records)",
        "complex128 (no format here holds elements of complex numbers of an unusual width)",
        "nothing (it has no values)",
    ] {
        assert!(left.contains(&expected), "{expected}: {left:?}");
    }
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    // Every bit of the small ones; the longer ones have room for many of the same structures.
    for (name, step) in [
        ("cycle.h5", 1),
        ("deflated.keras", 3),
        ("elsewhere.h5", 7),
        ("half.keras", 37),
        ("newest.h5", 73),
        ("small.weights.h5", 149),
        ("kinds.h5", 149),
    ] {
        let file = fixture(name);
        let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(step);
        for broken in corrupt::truncations(&file).step_by(step).chain(flips) {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(broken) {
                    let _ = graphs_of(&reader, &Limits::default());
                    // Damaged weights are met where they are read.
                    let _ = read_everything(&reader);
                }
            });
            assert!(peak < 16 << 20, "{name}: {peak} bytes");
        }
    }
}

#[test]
fn impossible_sizes_are_rejected_before_memory_is_allocated() {
    let ((), peak) = peak_memory(|| {
        let huge = open(fixture("huge.h5")).expect_err("64 GiB in 1.4 kB");
        assert_eq!((huge.code(), huge.tensor()), (Code::Memory, Some("w")), "{huge}");
        let bomb = open(fixture("bomb.h5")).expect_err("a chunk of 512 MiB");
        assert_eq!(bomb.code(), Code::Memory, "{bomb}");
        let longer = open(fixture("longer.h5")).expect("a chunk that is longer than its shape");
        let mut bytes = [0; 64];
        let error = longer.read_tensor(0, 0, &mut bytes).expect_err("too long");
        assert_eq!(error.code(), Code::Corrupt, "{error}");
    });
    assert!(peak < 1 << 20, "{peak} bytes");
}

#[test]
fn groups_that_contain_themselves_are_visited_once() {
    let reader = open(fixture("cycle.h5")).expect("a dataset");
    assert_eq!(reader.tensors().len(), 1);
    assert_eq!(reader.left_out(), ["a/b (another name of '/')", "a/c (another name of '/a')"]);
}

#[test]
fn files_outside_of_the_opened_one_are_not_opened() {
    let reader = open(fixture("elsewhere.h5")).expect("a dataset");
    assert_eq!(reader.tensors().len(), 1);
    assert_eq!(reader.left_out().len(), 3, "{:?}", reader.left_out());
    let file = fixture("elsewhere.h5");
    let found = apr_keras::scan(&file, &Limits::default()).expect("HDF5").expect("HDF5");
    let paths: Vec<&str> = found.outside.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["link", "virtual", "stored"]);
    assert_eq!(found.outside[0].1, "/etc/passwd");
}

#[test]
fn a_million_links_are_listed_within_the_budget() {
    let file: Arc<[u8]> = with_links(1_000_000, 0xbfae_fc34).into();
    let ((), peak) = peak_memory(|| {
        let reader = open(file.to_vec());
        let reader = reader.expect("an empty file");
        assert!(reader.left_out().len() < 1000);
    });
    assert!(peak < 12 * file.len(), "{peak} bytes");
}

/// Returns a file whose root group has `count` links, all to itself. `sum` is the checksum of its
/// header.
fn with_links(count: u32, sum: u32) -> Vec<u8> {
    let mut file = b"\x89HDF\r\n\x1a\n\x02\x08\x08\0".to_vec();
    for address in [0, u64::MAX, 0, 48] {
        file.extend(u64::to_le_bytes(address));
    }
    file.extend(0x5c2a_c1f7_u32.to_le_bytes());
    // The header of an object, version 2, with the size of its messages in four bytes.
    file.extend(b"OHDR\x02\x02");
    file.extend((23 * count).to_le_bytes());
    for number in 0..count {
        file.extend([6, 19, 0, 0, 1, 0, 8]);
        file.extend(format!("{number:08}").bytes());
        file.extend(48_u64.to_le_bytes());
    }
    file.extend(sum.to_le_bytes());
    file
}

/// The layers of `model()` in `fixtures/keras/make.py`, saved in both formats.
#[test]
fn graphs_have_the_layers_of_the_program() {
    for name in ["small.keras", "small.h5"] {
        let reader = open(fixture(name)).expect("a model");
        let graphs = graphs_of(&reader, &Limits::default()).expect("readable").expect("a graph");
        let graph = &graphs[0].1;
        let nodes = &graph.body.nodes;
        let ops: Vec<String> = nodes.iter().map(|node| node.op.to_string()).collect();
        assert_eq!(
            ops,
            [
                "keras::LSTM",
                "keras::Dropout",
                "keras::inner",
                "keras::BatchNormalization",
                "keras::Dense"
            ],
            "{name}"
        );
        let weights = |node: &apr_graph::Node| -> Vec<String> {
            let inputs = node.inputs.iter().flatten().map(|id| graph.body.value(*id));
            let tensors = inputs.filter_map(|value| match &value.origin {
                apr_graph::ValueOrigin::Weight(weight) => Some(weight.tensor.clone()),
                _ => None,
            });
            tensors.collect()
        };
        assert_eq!(weights(&nodes[4]), ["out/kernel"], "{name}");
        assert_eq!(weights(&nodes[2]).len(), 2, "{name}: the weights of the model within");
        assert_eq!(graph.functions[0].body.nodes[0].op.to_string(), "keras::Dense");
        assert_eq!(nodes[4].attribute("units"), Some(&AttributeValue::Int(2)));
        assert_eq!(nodes[0].attribute("activation"), Some(&AttributeValue::from("tanh")));
        let input = graph.body.value(graph.body.inputs[0]);
        assert_eq!(input.tensor().expect("a tensor").to_string(), "f32[batch, 5, 4]");
        let errors = check(graph).list.into_iter();
        assert_eq!(errors.filter(|one| one.severity == Severity::Error).count(), 0, "{name}");
    }
}

/// The graphs of a file whose configuration is another one.
fn configured(config: &Value) -> Result<Option<Vec<(String, apr_graph::Graph)>>> {
    use apr_core::Metadata;

    struct Configured {
        inner: Table,
        metadata: Metadata,
    }
    impl CheckpointReader for Configured {
        apr_core::pass_on!(inner: format, tensors, stored, read_tensor, tensor_slice, container);
        apr_core::pass_on!(inner: files, companions, read_companion, left_out, warnings);
        fn metadata(&self) -> &Metadata {
            &self.metadata
        }
    }
    let mut metadata = Metadata::new();
    metadata.set(METADATA, json!({ "model_config": config }));
    let reader = open(fixture("small.weights.h5")).expect("weights");
    graphs_of(&Configured { inner: reader, metadata }, &Limits::default())
}

#[test]
fn configurations_that_contradict_themselves_are_errors() {
    let missing = json!({ "class_name": "Functional", "config": { "name": "m", "layers": [
        { "class_name": "Dense", "name": "d", "config": {},
          "inbound_nodes": [[["nowhere", 0, 0, {}]]] },
    ], "input_layers": [], "output_layers": [["d", 0, 0]] } });
    assert_eq!(configured(&missing).expect_err("no such layer").code(), Code::Corrupt);
    let mut deep = json!({ "class_name": "Dense", "config": { "name": "d" } });
    for _ in 0..40 {
        deep = json!({ "class_name": "Sequential", "config": { "name": "s", "layers": [deep] } });
    }
    assert_eq!(configured(&deep).expect_err("too deep").code(), Code::Corrupt);
    assert_eq!(configured(&json!({ "class_name": "Mine", "config": {} })).expect("no graph"), None);
}

/// Expected values of these models are in `apr-cli`'s tests, which run them.
#[test]
fn lowered_graphs_are_ones_that_onnx_allows() {
    for name in [
        "attention.keras",
        "first.keras",
        "halves.keras",
        "images.keras",
        "masking.keras",
        "masks.keras",
        "mixed.keras",
        "old_masks.h5",
        "sequences.keras",
        "small.h5",
        "vectors.keras",
    ] {
        let reader = open(fixture(name)).expect("a model");
        let graphs = graphs_of(&reader, &Limits::default()).expect("readable").expect("a graph");
        let lowered = apr_keras::lower::lower(&graphs[0].1).expect("known layers");
        let names = |graph: &apr_graph::Graph| -> Vec<String> {
            graph.body.outputs.iter().map(|id| graph.body.value(*id).name.clone()).collect()
        };
        assert_eq!(names(&lowered), names(&graphs[0].1), "{name}");
        let errors = check(&lowered).list.into_iter();
        let errors: Vec<_> = errors.filter(|one| one.severity == Severity::Error).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
}

/// A layer of every class with settings that contradict its weights, or none.
#[test]
fn layers_that_cannot_be_lowered_are_listed() {
    let config = |class: &str, own: Value| {
        let mut config = own;
        config["name"] = json!("a");
        let layer = json!({ "class_name": class, "config": config });
        json!({ "class_name": "Sequential", "config": { "name": "m", "layers": [layer] } })
    };
    let classes = [
        "Attention",
        "AveragePooling2D",
        "BatchNormalization",
        "Bidirectional",
        "Concatenate",
        "Conv2D",
        "Conv2DTranspose",
        "Cropping2D",
        "Dense",
        "DepthwiseConv2D",
        "Dot",
        "Embedding",
        "GRU",
        "GlobalMaxPooling3D",
        "LSTM",
        "Lambda",
        "LayerNormalization",
        "Masking",
        "Mine",
        "MultiHeadAttention",
        "Normalization",
        "PReLU",
        "Permute",
        "RepeatVector",
        "Reshape",
        "SeparableConv2D",
        "SimpleRNN",
        "TimeDistributed",
        "UpSampling2D",
        "ZeroPadding2D",
    ];
    let settings = [
        json!({}),
        json!({ "batch_input_shape": [null, 4, 4, 3], "size": 0, "strides": [0, -1], "n": -1,
            "axis": 70, "axes": -9, "padding": "same", "pool_size": i64::MAX, "kernel_size": [1],
            "target_shape": [i64::MIN], "dims": [9, 9, 9], "layer": { "class_name": "Conv2D" } }),
    ];
    for class in classes {
        for own in &settings {
            let graphs = configured(&config(class, own.clone())).expect("readable");
            let (_, graph) = &graphs.expect("a graph")[0];
            if let Err(untranslated) = apr_keras::lower::lower(graph) {
                let found: Vec<_> = untranslated.into_iter().collect();
                let [(name, 1)] = found.as_slice() else { panic!("{class}: {found:?}") };
                // A reason may follow.
                assert_eq!(name.split(" (").next(), Some(class));
            }
        }
    }
}
