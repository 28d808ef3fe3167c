//! Models whose weights coremltools read (`fixtures/coreml`), by their bytes; broken ones are
//! errors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use apr_core::{
    ByteSource, CheckpointReader, Code, Error, IoCause, Limits, Result, SourceSet, Table,
};
use apr_coreml::{HazardKind, METADATA, graphs_of, hazards, lower};
use apr_graph::{
    Body, Constant, ConstantData, ElementType, Graph, Node, Severity, ValueOrigin, check,
};
use apr_testkit::{corrupt, locate, peak_memory, read_everything};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

/// Paths of the model and of its weights in a package.
const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";
const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/coreml")
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).expect("the fixture is in the repository")
}

fn open(file: Vec<u8>) -> Result<Table> {
    apr_coreml::open(file, "a.mlmodel", &Limits::default())
}

/// A package in memory.
#[derive(Clone)]
struct Package(BTreeMap<String, Vec<u8>>);

impl Package {
    fn read(folder: &std::path::Path) -> Self {
        // A program without larger weights has no file of them.
        let names = ["Manifest.json", MODEL, WEIGHTS].into_iter();
        let file = |name: &str| Some((name.to_owned(), std::fs::read(folder.join(name)).ok()?));
        Self(names.filter_map(file).collect())
    }

    fn open(&self) -> Result<Table> {
        let json = &self.0["Manifest.json"];
        apr_coreml::open_package(json, "Manifest.json", self, &Limits::default())
    }
}

impl SourceSet for Package {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        let file = self.0.get(name).cloned();
        let file = file.ok_or_else(|| Error::io(IoCause::NotFound, "no such file"))?;
        Ok(Box::new(file))
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }
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

/// Compares the weights of a model with the weights that coremltools reads.
///
/// Their names, dtypes, shapes and bytes must match.
fn compare(file: &str, reader: &Table, expected: &Value, pieces: &[usize]) {
    let expected = expected.as_object().expect("an object");
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let name = &info.name;
        let weight = expected.get(name).unwrap_or_else(|| panic!("{file}: {name} is none"));
        let dtype = info.dtype.to_string();
        let dtype = dtype.replace('f', "float").replace('i', "int").replace("uint", "u");
        let dtype = dtype.replace('u', "uint");
        assert_eq!(weight["dtype"], dtype, "{file}: {name}");
        assert_eq!(weight["shape"], json!(info.shape.dims()), "{file}: {name}");
        for &piece in pieces {
            let found = digest(&bytes_of(reader, tensor, piece));
            assert_eq!(weight["sha256"], found, "{file}: {name} by {piece}");
        }
    }
    let names: Vec<&String> = reader.tensors().iter().map(|info| &info.name).collect();
    for name in expected.keys() {
        assert!(names.contains(&name), "{file}: no {name}; {:?}", reader.left_out());
    }
    assert_eq!(names.len(), expected.len(), "{file}");
}

fn open_fixture(name: &str) -> Result<Table> {
    if name.ends_with(".mlpackage") {
        return Package::read(&folder().join(name)).open();
    }
    open(fixture(name))
}

#[test]
fn every_weight_has_the_values_that_coremltools_reads() {
    let expected: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    for (name, weights) in expected.as_object().expect("an object") {
        let reader = open_fixture(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        compare(name, &reader, weights, &[1, 3, 37, 1 << 20]);
    }
}

#[test]
fn models_of_others_have_the_values_that_coremltools_reads() {
    let Some(folder) = locate::shared_data("coreml") else { return };
    let expected: Value = serde_json::from_slice(&fixture("shared.json")).expect("JSON");
    for (name, weights) in expected.as_object().expect("an object") {
        let reader = if name.ends_with(".mlpackage") {
            Package::read(&folder.join("adamsro_dtln-aec-coreml__head").join(name)).open()
        } else {
            open(std::fs::read(folder.join(name)).expect("a model"))
        };
        let reader = reader.unwrap_or_else(|error| panic!("{name}: {error}"));
        compare(name, &reader, weights, &[1 << 20]);
    }
}

#[test]
fn what_is_no_weight_is_described_or_left_out_by_name() {
    let reader = open_fixture("network.mlmodel").expect("a model");
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    for (key, value) in [
        ("type", json!("neuralNetwork")),
        ("author", json!("An author")),
        ("license", json!("MIT")),
        ("version", json!("1.2")),
        ("description", json!("every layer with weights")),
        ("user_defined", json!({ "key": "value" })),
        ("specification", json!(4)),
    ] {
        assert_eq!(entry[key], value, "{key}");
    }
    assert_eq!(
        entry["inputs"],
        json!([{ "name": "x", "type": "array", "dtype": "float64", "shape": [3, 8, 8] }])
    );
    assert_eq!(entry["operators"]["convolution"], 3);
    assert_eq!(reader.left_out(), [""; 0]);

    let reader = open_fixture("table3.mlmodel").expect("a model");
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!(entry["compressed"]["dense/weight"], "lookup table, 3 bits");

    let reader = open_fixture("others.mlmodel").expect("a pipeline");
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!(entry["models"][0]["labels"], json!(["cat", "dog"]));
    assert_eq!(entry["models"][0]["name"], "linear");
    assert_eq!(reader.left_out(), ["the trees of 3 nodes (treeEnsembleRegressor) of 'trees'"]);

    let reader = open_fixture("program18.mlpackage").expect("a package");
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!(entry["compressed"]["int4_blocks"], "blockwise_shift_scale");
    assert_eq!(entry["operators"]["linear"], 1);
    let names: Vec<&str> = reader.files().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, [MODEL, WEIGHTS, "Manifest.json"]);

    let reader = open_fixture("program16.mlpackage").expect("a package");
    let unlisted: Vec<_> =
        reader.container().unlisted().iter().map(|one| one.names.clone()).collect();
    assert_eq!(unlisted, [["out_y_0"]]);
}

#[test]
fn code_and_references_to_other_files_are_listed_with_their_path() {
    let found = hazards(&fixture("hazards.mlmodel"), &Limits::default()).expect("a model");
    let found: Vec<_> =
        found.iter().map(|one| (one.kind, one.path.as_str(), one.name.as_str())).collect();
    assert_eq!(
        found,
        [
            (HazardKind::CustomModel, "a", "MyModel"),
            (HazardKind::LinkedModel, "b", "../elsewhere/other.mlmodelc"),
            (HazardKind::CustomLayer, "c/choice/ifBranch/swish", "MySwish"),
        ]
    );
    for name in ["network.mlmodel", "others.mlmodel", "program18.mlpackage"] {
        let name = if name.ends_with("age") { format!("{name}/{MODEL}") } else { name.to_owned() };
        assert_eq!(hazards(&fixture(&name), &Limits::default()), Ok(Vec::new()), "{name}");
    }
}

#[test]
fn broken_models_are_errors_or_readable_within_bounded_memory() {
    // The longer one by every seventh bit.
    for (name, step) in [("linear4.mlmodel", 7), ("others.mlmodel", 1), ("hazards.mlmodel", 1)] {
        let file = fixture(name);
        let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(step);
        for broken in corrupt::truncations(&file).step_by(step).chain(flips) {
            let ((), peak) = peak_memory(|| {
                let _ = hazards(&broken, &Limits::default());
                if let Ok(reader) = open(broken) {
                    let _ = lower_all(&reader);
                    // Damaged weights are met where they are read.
                    let _ = read_everything(&reader);
                }
            });
            assert!(peak < 4 << 20, "{name}: {peak} bytes");
        }
    }
}

#[test]
fn broken_packages_are_errors_or_readable_within_bounded_memory() {
    // The longer one by every eleventh bit.
    for (name, step) in [("program16.mlpackage", 1), ("program18.mlpackage", 11)] {
        let whole = Package::read(&folder().join(name));
        for part in ["Manifest.json", MODEL, WEIGHTS] {
            let file = &whole.0[part];
            // The headers of blobs lie between their data.
            let flips = if part == WEIGHTS { 0..512.min(file.len()) } else { 0..file.len() };
            let flips = corrupt::bit_flips(file, flips).step_by(step);
            for broken in corrupt::truncations(file).step_by(step).chain(flips) {
                let mut package = whole.clone();
                package.0.insert(part.to_owned(), broken);
                let ((), peak) = peak_memory(|| {
                    if let Ok(reader) = package.open() {
                        let _ = lower_all(&reader);
                        let _ = read_everything(&reader);
                    }
                });
                assert!(peak < 4 << 20, "{name}: {part}: {peak} bytes");
            }
        }
    }
}

/// A field of a protobuf message that is delimited by its length.
fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = varint(u64::from(number << 3 | 2));
    out.extend(varint(bytes.len() as u64));
    out.extend(bytes);
    out
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).expect("seven bits"));
    out
}

fn number(field: u32, number: u64) -> Vec<u8> {
    [varint(u64::from(field << 3)), varint(number)].concat()
}

/// A program of one constant: floats of these sizes, with this for its value.
fn program(dims: &[u64], value: &[u8]) -> Vec<u8> {
    let sizes: Vec<u8> =
        dims.iter().flat_map(|&dim| field(3, &field(1, &number(1, dim)))).collect();
    let tensor = [number(1, 11), number(2, dims.len() as u64), sizes].concat();
    let value = [field(2, &field(1, &tensor)), value.to_vec()].concat();
    let attribute = [field(1, b"val"), field(2, &value)].concat();
    let output = field(1, b"w");
    let operation = [field(1, b"const"), field(3, &output), field(5, &attribute)].concat();
    let block = [field(1, b"CoreML5"), field(2, &field(3, &operation))].concat();
    let function = [field(2, b"CoreML5"), field(3, &block)].concat();
    let program = field(2, &[field(1, b"main"), field(2, &function)].concat());
    [vec![8, 7], field(502, &program)].concat()
}

/// The value of a constant in a file.
fn blob(name: &str, offset: u64) -> Vec<u8> {
    field(5, &[field(1, name.as_bytes()), number(2, offset)].concat())
}

/// The code and the message of the error that a package gives.
fn refused(model: Vec<u8>, weights: Vec<u8>) -> (Code, String) {
    let files = [("m.mlmodel", model), ("weights/weight.bin", weights)];
    let package = Package(files.map(|(name, bytes)| (name.to_owned(), bytes)).into());
    let error = apr_coreml::open_in(&package, "m.mlmodel", &Limits::default());
    let error = error.map(drop).expect_err("refused");
    (error.code(), error.to_string())
}

#[test]
fn constants_outside_their_declared_location_are_errors() {
    let file = "@model_path/weights/weight.bin";
    let header = |kind: u32, len: u64, at: u64| {
        let mut bytes = vec![0; 64];
        bytes[0] = 1;
        bytes[4] = 2;
        bytes.extend(0xdead_beef_u32.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(at.to_le_bytes());
        bytes.resize(136, 0);
        bytes
    };
    let sound = header(2, 8, 128);
    let files = [("m.mlmodel", program(&[2], &blob(file, 64))), ("weights/weight.bin", sound)];
    let package = Package(files.map(|(name, bytes)| (name.to_owned(), bytes)).into());
    let reader = apr_coreml::open_in(&package, "m.mlmodel", &Limits::default()).expect("sound");
    assert_eq!(read_everything(&reader), Ok(()));

    // More elements than there are bytes, numbers, or bits in numbers.
    for dims in [&[1 << 40][..], &[1 << 62], &[1 << 63], &[1 << 32, 1 << 32], &[3]] {
        let (code, message) = refused(program(dims, &blob(file, 64)), header(2, 8, 128));
        assert_eq!(code, Code::Corrupt, "{dims:?}: {message}");
        let one = field(3, &field(1, &field(1, &field(1, &1_f32.to_le_bytes()))));
        let (code, message) = refused(program(dims, &one), Vec::new());
        assert_eq!(code, Code::Corrupt, "{dims:?}: {message}");
    }
    for (weights, at, expected) in [
        (header(2, 8, 128), 65, Code::Corrupt),
        (header(2, 8, 128), u64::MAX, Code::Corrupt),
        (header(2, 8, 128), 120, Code::Corrupt),
        (header(2, 8, 130), 64, Code::Corrupt),
        (header(2, 8, u64::MAX), 64, Code::Corrupt),
        (header(2, 16, 128), 64, Code::Corrupt),
        (header(1, 8, 128), 64, Code::Corrupt),
        (Vec::new(), 64, Code::Corrupt),
        (vec![1; 200], 64, Code::Version),
    ] {
        let (code, message) = refused(program(&[2], &blob(file, at)), weights);
        assert_eq!(code, expected, "{message}");
        assert!(message.contains("weight.bin"), "{message}");
    }
    for name in [
        "@model_path/../weights/weight.bin",
        "/etc/passwd",
        "@model_path//weight.bin",
        "@model_path/weights\\weight.bin",
        "@model_path/",
    ] {
        let (code, message) = refused(program(&[2], &blob(name, 64)), header(2, 8, 128));
        assert_eq!((code, message.contains("leads out")), (Code::Format, true), "{message}");
        let found = hazards(&program(&[2], &blob(name, 64)), &Limits::default()).expect("sound");
        assert_eq!((found[0].kind, found[0].path.as_str()), (HazardKind::OutsideFile, "w"));
    }
    let (code, message) = refused(program(&[2], &blob("@model_path/other.bin", 64)), Vec::new());
    assert_eq!((code, message.contains("other.bin")), (Code::Io, true), "{message}");
    let alone = open(program(&[2], &blob(file, 64))).map(drop).expect_err("alone");
    assert!(alone.message().contains("files next to it"), "{alone}");
}

#[test]
fn messages_in_messages_end_at_the_limit() {
    // A pipeline in a pipeline, and so on.
    let mut model = vec![8, 1];
    for _ in 0..40 {
        model = [vec![8, 1], field(202, &field(1, &model))].concat();
    }
    let error = open(model.clone()).map(drop).expect_err("too deep");
    assert_eq!(error.code(), Code::Format, "{error}");
    assert!(hazards(&model, &Limits::default()).is_ok());

    // A branch in a branch.
    let mut network = Vec::new();
    for _ in 0..2000 {
        network = field(1, &[field(1, b"b"), field(605, &field(1, &network))].concat());
    }
    let model = [vec![8, 1], field(500, &network)].concat();
    let error = open(model.clone()).map(drop).expect_err("too deep");
    assert_eq!(error.code(), Code::Format, "{error}");
    assert!(hazards(&model, &Limits::default()).is_err());

    // An older schema has no functions in this place.
    let error = open([vec![8, 5], field(502, b"\x08\x01")].concat()).map(drop);
    assert_eq!(error.expect_err("an older schema").code(), Code::Version);
}

#[test]
fn manifests_lead_to_a_model_of_the_package() {
    let whole = Package::read(&folder().join("program16.mlpackage"));
    let manifest = |path: &str| {
        let entries = json!({ "A": { "path": path } });
        json!({ "rootModelIdentifier": "A", "itemInfoEntries": entries })
    };
    for (path, expected) in [
        ("com.apple.CoreML/model.mlmodel", None),
        ("../model.mlmodel", Some(Code::Format)),
        ("/etc/passwd", Some(Code::Format)),
        ("com.apple.CoreML/other.mlmodel", Some(Code::Io)),
        ("com.apple.CoreML/weights/weight.bin", Some(Code::Format)),
    ] {
        let mut package = whole.clone();
        package.0.insert("Manifest.json".to_owned(), manifest(path).to_string().into_bytes());
        let found = package.open().map(drop).err().map(|error| error.code());
        assert_eq!(found, expected, "{path}");
    }
}

/// Compares nodes with coremltools' reading of them, in any order of a node's inputs.
///
/// Two kinds of nodes are missing in that reading: constants that are computed when a model is
/// loaded, and the mapping of inputs.
fn compare_body(file: &str, body: &Body, expected: &Value) {
    let expected = expected.as_array().expect("a list");
    let is_listed = |node: &&Node| {
        !node.op.name.starts_with("constexpr_") && !node.op.name.ends_with("InputShapeMapping")
    };
    let nodes: Vec<&Node> = body.nodes.iter().filter(is_listed).collect();
    assert_eq!(nodes.len(), expected.len(), "{file}");
    for (node, expected) in nodes.into_iter().zip(expected) {
        let name = |id: apr_graph::ValueId| &body.value(id).name;
        let is_computed = |id: &apr_graph::ValueId| {
            !matches!(body.value(*id).origin, ValueOrigin::Weight(_) | ValueOrigin::Constant(_))
        };
        let mut inputs: Vec<_> =
            node.inputs.iter().flatten().copied().filter(is_computed).map(name).collect();
        inputs.sort();
        let outputs: Vec<_> = node.outputs.iter().flatten().copied().map(name).collect();
        assert_eq!(json!(&*node.op.name), expected["op"], "{file}");
        assert_eq!(json!(outputs), expected["outputs"], "{file}");
        // What is a weight or a constant here has a name there.
        let mut wanted: Vec<&str> = expected["inputs"]
            .as_array()
            .expect("names")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        wanted.retain(|name| inputs.iter().any(|own| own == name));
        wanted.sort_unstable();
        assert_eq!(inputs, wanted, "{file}: {}", node.name);
    }
}

#[test]
fn graphs_match_the_reading_of_coremltools() {
    let expected: Value = serde_json::from_slice(&fixture("graphs.json")).expect("JSON");
    for (name, nodes) in expected.as_object().expect("an object") {
        let reader = open_fixture(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let graphs = graphs_of(&reader, &Limits::default()).expect("readable").expect("a graph");
        compare_body(name, &graphs[0].1.body, nodes);
        let weights = graphs[0].1.body.weights().count();
        assert!(weights > 0, "{name} has weights");
        let errors = check(&graphs[0].1);
        let errors: Vec<_> =
            errors.list.iter().filter(|one| one.severity == Severity::Error).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
}

/// Small tensors of a model, for a lowering.
struct Small<'r>(&'r Table);

impl apr_lower::Weights for Small<'_> {
    fn constant(&self, tensor: &str) -> Option<Constant> {
        let position = self.0.tensors().iter().position(|info| info.name == tensor)?;
        let info = &self.0.tensors()[position];
        let len = info.byte_len().ok().filter(|len| *len <= 1 << 20)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.0.read_tensor(position, 0, &mut bytes).ok()?;
        Some(Constant {
            name: String::new(),
            element: ElementType::from_dtype(info.dtype)?,
            shape: info.shape.dims().to_vec(),
            data: ConstantData::Bytes(bytes),
        })
    }
}

/// Lowers all graphs of a model that is open.
fn lower_all(reader: &Table) -> Vec<std::result::Result<Graph, apr_lower::Untranslated>> {
    let graphs = graphs_of(reader, &Limits::default()).ok().flatten().unwrap_or_default();
    graphs.iter().map(|(_, graph)| lower::lower(graph, &Small(reader))).collect()
}

#[test]
fn lowered_graphs_are_ones_that_onnx_allows() {
    let models = ["lowered", "recurrent"].into_iter().flat_map(|list| {
        let expected: Value =
            serde_json::from_slice(&fixture(&format!("{list}.json"))).expect("JSON");
        let names: Vec<String> = expected.as_object().expect("an object").keys().cloned().collect();
        names.into_iter().map(move |name| format!("{list}/{name}"))
    });
    for name in models {
        let reader = open_fixture(&name).expect("a model");
        for lowered in lower_all(&reader) {
            let lowered = lowered.unwrap_or_else(|names| panic!("{name}: {names:?}"));
            let errors = check(&lowered).list.into_iter();
            let errors: Vec<_> =
                errors.filter(|finding| finding.severity == Severity::Error).collect();
            assert!(errors.is_empty(), "{name}: {errors:?}");
        }
    }
}

/// The scores of a classifier are an output; the label of the class is not.
#[test]
fn classifiers_return_scores() {
    for (name, output) in [("classes.mlmodel", "scores"), ("classes.mlpackage", "classLabel_probs")]
    {
        let reader = open_fixture(&format!("recurrent/{name}")).expect("a model");
        let lowered = lower_all(&reader).remove(0).expect("known layers");
        let found: Vec<&str> =
            lowered.body.outputs.iter().map(|id| &*lowered.body.value(*id).name).collect();
        assert_eq!(found, [output], "{name}");
    }
    for name in ["classes.mlmodel", "classes.mlpackage"] {
        let reader = open_fixture(&format!("recurrent/{name}")).expect("a model");
        let own = reader.metadata().object(METADATA).expect("what the model says");
        assert_eq!(own["labels"], json!(["cat", "dog", "cow"]), "{name}");
    }
}

#[test]
fn operations_that_cannot_be_lowered_are_listed() {
    // Recurrent layers that are given no states, branches, and what is not as its layer says.
    let network = "a graph without outputs, batchnorm, biDirectionalLSTM, branch, convolution, \
                   embedding, embeddingND, gru, innerProduct, simpleRecurrent, uniDirectionalLSTM";
    for (file, names) in [
        ("network.mlmodel", network),
        (
            "program18.mlpackage",
            "constexpr_blockwise_shift_scale, constexpr_lut_to_sparse, \
             constexpr_sparse_blockwise_shift_scale",
        ),
        ("hazards.mlmodel", "a graph without outputs, branch"),
    ] {
        let reader = open_fixture(file).expect("a model");
        let mut found: Vec<String> = Vec::new();
        for untranslated in lower_all(&reader).into_iter().filter_map(std::result::Result::err) {
            found.extend(untranslated.into_keys());
        }
        assert_eq!(found.join(", "), names, "{file}");
    }
}

#[test]
fn broken_models_are_lowered_or_not_within_bounded_memory() {
    // Each by some of its bits.
    for (name, step) in [
        ("lowered/images.mlmodel", 67),
        ("lowered/pieces.mlmodel", 29),
        ("lowered/encoder.mlmodel", 97),
        ("recurrent/classes.mlmodel", 1),
    ] {
        let file = fixture(name);
        let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(step);
        for broken in corrupt::truncations(&file).step_by(step).chain(flips) {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(broken) {
                    let _ = lower_all(&reader);
                }
            });
            assert!(peak < 4 << 20, "{name}: {peak} bytes");
        }
    }
    for (name, step) in [
        ("lowered/pieces.mlpackage", 97),
        ("lowered/kinds.mlpackage", 397),
        ("recurrent/both.mlpackage", 397),
        ("recurrent/control.mlpackage", 97),
        ("recurrent/classes.mlpackage", 29),
    ] {
        let whole = Package::read(&folder().join(name));
        let file = &whole.0[MODEL];
        let flips = corrupt::bit_flips(file, 0..file.len()).step_by(step);
        for broken in corrupt::truncations(file).step_by(step).chain(flips) {
            let mut package = whole.clone();
            package.0.insert(MODEL.to_owned(), broken);
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = package.open() {
                    let _ = lower_all(&reader);
                }
            });
            assert!(peak < 4 << 20, "{name}: {peak} bytes");
        }
    }
}
