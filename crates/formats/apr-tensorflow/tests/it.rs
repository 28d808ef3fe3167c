//! Models whose weights TensorFlow read (`fixtures/tensorflow`), by their bytes; broken ones are
//! errors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use apr_core::{
    ByteSource, CheckpointReader, Code, Error, IoCause, Limits, Result, SourceSet, Table,
};
use apr_graph::{ElementType, Graph, Severity, ValueId, ValueOrigin, check};
use apr_tensorflow::{CHECKPOINT, GRAPH, METADATA, SAVED_MODEL, graphs_of};
use apr_testkit::{corrupt, locate, peak_memory, read_everything};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/tensorflow")
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join(name)).expect("the fixture is in the repository")
}

/// Files of a folder in memory.
#[derive(Clone, Default)]
struct Folder(BTreeMap<String, Vec<u8>>);

impl Folder {
    /// Reads the files of a folder and of the folders in it.
    fn of(path: &Path) -> Self {
        let mut folder = Self::default();
        let entries = |path: &Path| std::fs::read_dir(path).expect("a folder");
        for entry in entries(path) {
            let entry = entry.expect("an entry").path();
            let inner = if entry.is_dir() {
                entries(&entry).map(|entry| entry.expect("an entry").path()).collect()
            } else {
                vec![entry]
            };
            for file in inner.iter().filter(|file| file.is_file()) {
                let name = file.strip_prefix(path).expect("within").to_str().expect("a name");
                folder.0.insert(name.to_owned(), std::fs::read(file).expect("a file"));
            }
        }
        folder
    }

    fn with(mut self, name: &str, bytes: Vec<u8>) -> Self {
        self.0.insert(name.to_owned(), bytes);
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    fn open(&self, name: &str) -> Result<Table> {
        apr_tensorflow::open_in(self, name, &Limits::default())
    }
}

impl SourceSet for Folder {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        let bytes = self.0.get(name);
        let bytes = bytes.ok_or_else(|| Error::io(IoCause::NotFound, "no such file"))?;
        Ok(Box::new(bytes.clone()))
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

fn found(reader: &Table, piece: usize) -> BTreeMap<String, Value> {
    let of = |(tensor, info): (usize, &apr_core::TensorInfo)| {
        let sha256: String = Sha256::digest(bytes_of(reader, tensor, piece))
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let shape = info.shape.dims();
        let value = json!({ "dtype": info.dtype.name(), "shape": shape, "sha256": sha256 });
        (info.name.clone(), value)
    };
    reader.tensors().iter().enumerate().map(of).collect()
}

/// Returns the tensors that TensorFlow found, by their names here, without the optimizer's.
fn expected(tensors: &Value) -> BTreeMap<String, Value> {
    let tensors = tensors.as_object().expect("an object").iter();
    let is_of_model = |name: &str| {
        !name.contains("/.OPTIMIZER_SLOT/")
            && !name.starts_with("optimizer/")
            && !name.contains("Adam")
            && !name.starts_with("save_counter")
            && !["beta1_power", "beta2_power"].contains(&name)
    };
    let of_model = tensors.filter(|(name, _)| is_of_model(name));
    of_model
        .map(|(name, value)| {
            let name = name.strip_suffix("/.ATTRIBUTES/VARIABLE_VALUE").unwrap_or(name);
            (name.to_owned(), value.clone())
        })
        .collect()
}

fn compare(root: &Path, list: &Value) {
    for (path, tensors) in list.as_object().expect("an object") {
        let path = root.join(path);
        let folder = Folder::of(path.parent().expect("a folder"));
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let reader = folder.open(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        for piece in [1, 3, 1 << 20] {
            // Constants of a SavedModel are tensors, too, which no checkpoint has.
            let mut found = found(&reader, piece);
            let expected = expected(tensors);
            if *reader.format() == SAVED_MODEL {
                found.retain(|name, _| expected.contains_key(name));
            }
            assert_eq!(found, expected, "{} by {piece}", path.display());
        }
    }
}

#[test]
fn every_tensor_has_the_bytes_that_tensorflow_reads() {
    compare(&fixtures(), &serde_json::from_slice(&fixture("expected.json")).expect("JSON"));
}

#[test]
fn files_of_others_have_the_bytes_that_tensorflow_reads() {
    let Some(folder) = locate::shared_data("tensorflow") else { return };
    compare(&folder, &serde_json::from_slice(&fixture("shared.json")).expect("JSON"));
}

#[test]
fn what_is_no_weight_is_described_or_left_out_by_name() {
    let reader = Folder::of(&fixtures().join("saved")).open("saved_model.pb").expect("a model");
    assert_eq!(*reader.format(), SAVED_MODEL);
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!(entry["tags"], json!(["serve"]));
    assert_eq!(entry["assets"], json!(["words.txt"]));
    let input = &entry["signatures"]["serving_default"]["inputs"]["x"];
    assert_eq!((&input["dtype"], &input["shape"]), (&json!("float32"), &json!([-1, 2])));
    assert_eq!(entry["full_names"], json!({ "w": "w" }));
    assert!(reader.left_out().contains(&"asset 'words.txt'".to_owned()));
    // The constant of the function.
    assert!(reader.tensors().iter().any(|info| info.shape.dims() == [4, 5]));

    let folder = Folder::of(&fixtures());
    let objects = folder.open("objects.index").expect("a checkpoint");
    assert_eq!(*objects.format(), CHECKPOINT);
    let text = "layer/text (no format here holds elements of string)";
    assert!(objects.left_out().contains(&text.to_owned()), "{:?}", objects.left_out());
    let slots = folder.open("model.ckpt.index").expect("a checkpoint");
    let state = "the optimizer's state (6 variables";
    assert!(slots.left_out().iter().any(|left| left.starts_with(state)), "{:?}", slots.left_out());

    let frozen = apr_tensorflow::open(fixture("frozen.pb"), "frozen.pb", &Limits::default());
    let frozen = frozen.expect("a graph");
    assert_eq!(*frozen.format(), GRAPH);
    let unlisted = &frozen.container().unlisted()[0];
    assert_eq!(unlisted.names, ["texts"]);
}

#[test]
fn errors_for_missing_or_truncated_files_have_the_file_name() {
    let folder = Folder::of(&fixtures());
    let data = "objects.data-00000-of-00001";
    let missing = folder.clone().without(data).open("objects.index").expect_err("no shard");
    assert_eq!((missing.code(), missing.file()), (Code::Io, Some(data)), "{missing}");
    let mut short = fixture(data);
    short.truncate(100);
    let short = folder.clone().with(data, short).open("objects.index").expect_err("a short shard");
    assert_eq!((short.code(), short.file()), (Code::Corrupt, Some(data)), "{short}");

    let saved = Folder::of(&fixtures().join("saved"));
    let index = "variables/variables.index";
    let missing = saved.clone().without(index).open("saved_model.pb").expect_err("no index");
    assert_eq!((missing.code(), missing.file()), (Code::Io, Some(index)), "{missing}");
    let alone = apr_tensorflow::open(fixture("objects.index"), "a", &Limits::default());
    assert!(alone.is_err_and(|error| error.message().contains("next to it")));
}

#[test]
fn a_changed_byte_of_a_tensor_is_a_wrong_checksum() {
    let data = "objects.data-00000-of-00001";
    let mut changed = fixture(data);
    let last = changed.len() - 1;
    changed[last] ^= 1;
    changed[0] ^= 1;
    let folder = Folder::of(&fixtures()).with(data, changed);
    let reader = folder.open("objects.index").expect("the index is sound");
    let codes: Vec<Code> = (0..reader.tensors().len())
        .filter_map(|tensor| reader.read_tensor(tensor, 0, &mut [0]).err())
        .map(|error| error.code())
        .collect();
    assert_eq!(codes, [Code::Checksum]);
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    let folder = Folder::of(&fixtures());
    let saved = Folder::of(&fixtures().join("saved"));
    for (folder, name, opened, step) in [
        (&folder, "objects.index", "objects.index", 1),
        (&folder, "snappy.index", "snappy.index", 1),
        (&folder, "model.ckpt.index", "model.ckpt.index", 1),
        (&folder, "frozen.pb", "frozen.pb", 1),
        (&saved, "saved_model.pb", "saved_model.pb", 11),
        (&saved, "variables/variables.index", "saved_model.pb", 1),
    ] {
        let file = folder.0[name].clone();
        let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(step);
        for broken in corrupt::truncations(&file).step_by(step).chain(flips) {
            let broken = folder.clone().with(name, broken);
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = broken.open(opened) {
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
fn weights_of_tensorflow_js_have_the_bytes_that_its_converter_reads() {
    let folder = Folder::of(&fixtures().join("js"));
    let json = folder.0["model.json"].clone();
    assert!(apr_tensorflow::is_js(&json));
    let open = |folder: &Folder, json: &[u8]| {
        apr_tensorflow::open_js(json, "model.json", folder, &Limits::default())
    };
    let reader = open(&folder, &json).expect("a model");
    let expected: BTreeMap<String, Value> =
        serde_json::from_slice(&folder.0["expected.json"]).expect("JSON");
    for piece in [1, 3, 1 << 20] {
        assert_eq!(found(&reader, piece), expected, "by {piece}");
    }
    // As a browser saves it, and never out of the folder.
    let text = String::from_utf8(json.clone()).expect("JSON");
    let dotted = text.replace("\"group1-", "\"./group1-");
    assert_eq!(found(&open(&folder, dotted.as_bytes()).expect("a model"), 3), expected);
    let outside = text.replace("\"group1-", "\"../group1-");
    assert_eq!(open(&folder, outside.as_bytes()).expect_err("outside").code(), Code::Format);

    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!(entry["quantized"]["small"]["dtype"], "uint8");
    assert_eq!(reader.left_out(), ["modelTopology"]);

    let shard = "group1-shard3of3.bin";
    let missing = open(&folder.clone().without(shard), &json).expect_err("no shard");
    assert_eq!((missing.code(), missing.file()), (Code::Io, Some(shard)));
    let short = open(&folder.clone().with(shard, vec![0; 30]), &json).expect_err("a short shard");
    assert_eq!((short.code(), short.tensor()), (Code::Corrupt, Some("half")), "{short}");
    for broken in corrupt::truncations(&json).chain(corrupt::bit_flips(&json, 0..json.len())) {
        if let Ok(reader) = open(&folder, &broken) {
            read_everything(&reader).expect("what was opened is all there");
        }
    }
}

#[test]
fn a_constant_of_2_40_elements_in_a_few_bytes_is_left_out_by_name() {
    let ((), peak) = peak_memory(|| {
        let reader = apr_tensorflow::open(fixture("huge.pb"), "huge.pb", &Limits::default());
        let reader = reader.expect("the other constants");
        let left = reader.left_out().iter().find(|left| left.starts_with("listed ("));
        assert!(left.is_some_and(|left| left.contains("limit")), "{:?}", reader.left_out());
    });
    assert!(peak < 1 << 20, "{peak} bytes");
}

fn graph_of(reader: &Table) -> Graph {
    let graphs = graphs_of(reader, &Limits::default()).expect("readable").expect("a graph");
    let graph = graphs.into_iter().next().expect("one").1;
    let errors = check(&graph).list.into_iter();
    let errors: Vec<_> = errors.filter(|one| one.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:?}");
    graph
}

/// A field of a message that is delimited by its length.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).expect("short")];
    out.extend(bytes);
    out
}

fn node(name: &str, op: &str, inputs: &[&str]) -> Vec<u8> {
    let inputs = inputs.iter().flat_map(|input| field(3, input.as_bytes()));
    let fields = [field(1, name.as_bytes()), field(2, op.as_bytes()), inputs.collect()].concat();
    field(1, &fields)
}

#[test]
fn nodes_are_sorted_and_loops_of_tensorflow_1_have_an_order() {
    // y reads what comes later; merge and next wait for each other, as in a loop.
    let file = [
        node("y", "Mul", &["split:1", "split", "^first"]),
        node("split", "Split", &["x"]),
        node("x", "Placeholder", &[]),
        node("first", "NoOp", &[]),
        node("merge", "Merge", &["x", "next"]),
        node("next", "NextIteration", &["merge"]),
    ]
    .concat();
    let reader = apr_tensorflow::open(file, "a.pb", &Limits::default()).expect("a graph");
    let graph = graph_of(&reader);
    let names: Vec<&str> = graph.body.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["split", "y", "first", "merge", "next"]);
    let y = &graph.body.nodes[1];
    let inputs: Vec<&str> =
        y.inputs.iter().flatten().map(|id| graph.body.value(*id).name.as_str()).collect();
    assert_eq!(inputs, ["split:1", "split"]);
    assert!(y.attribute("control_inputs").is_some());
    assert!(graph.body.nodes[3].attribute("next_iteration").is_some());
    let outputs: Vec<&str> =
        graph.body.outputs.iter().map(|id| graph.body.value(*id).name.as_str()).collect();
    assert_eq!(outputs, ["y"]);
}

#[test]
fn graphs_of_others_have_their_weights_and_functions() {
    let Some(root) = locate::shared_data("tensorflow") else { return };
    let file = std::fs::read(root.join("sonos_tract__plus3.pb")).expect("a model");
    let reader = apr_tensorflow::open(file, "plus3.pb", &Limits::default()).expect("a graph");
    let graph = graph_of(&reader);
    assert_eq!(graph.body.nodes.len(), 1);
    assert_eq!(graph.body.nodes[0].op.to_string(), "tensorflow::Add");
    let weights: Vec<&str> =
        graph.body.weights().map(|(_, weight)| weight.tensor.as_str()).collect();
    assert_eq!(weights, ["three"]);

    let folder = Folder::of(&root.join("mlcommons_tiny__kws/kws_ref_model"));
    let reader = folder.open("saved_model.pb").expect("a model");
    let graph = graph_of(&reader);
    let main = graph.body.nodes.iter().find(|node| node.name == "StatefulPartitionedCall");
    let function = graph.function(&main.expect("a call").op).expect("its function");
    assert!(!function.body.nodes.is_empty());
    for (value, weight) in graph.body.weights() {
        let info = reader.tensors().iter().find(|info| info.name == weight.tensor);
        let info = info.unwrap_or_else(|| panic!("no {}", weight.tensor));
        let shape: Vec<_> =
            value.shape().expect("a shape").iter().map(apr_graph::Dim::size).collect();
        assert_eq!(shape, info.shape.dims().iter().copied().map(Some).collect::<Vec<_>>());
    }
    assert!(graph.body.weights().count() > 20, "variables are weights");
    assert!(graph.body.values.iter().any(|value| value.origin == ValueOrigin::Input));
}

/// Small tensors of a model, for a lowering.
struct Small<'r>(&'r Table);

impl apr_lower::Weights for Small<'_> {
    fn constant(&self, tensor: &str) -> Option<apr_graph::Constant> {
        let position = self.0.tensors().iter().position(|info| info.name == tensor)?;
        let info = &self.0.tensors()[position];
        if info.byte_len().ok()? > 1 << 20 {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(info.byte_len().ok()?).ok()?];
        self.0.read_tensor(position, 0, &mut bytes).ok()?;
        Some(apr_graph::Constant {
            name: String::new(),
            element: apr_graph::ElementType::from_dtype(info.dtype)?,
            shape: info.shape.dims().to_vec(),
            data: apr_graph::ConstantData::Bytes(bytes),
        })
    }
}

fn lowered(reader: &Table, graph: &Graph) -> Result<Graph, BTreeMap<String, u64>> {
    apr_tensorflow::lower::lower(graph, &Small(reader), reader.metadata())
}

/// Expected values of these models are in `apr-cli`'s tests, which run them.
#[test]
fn lowered_graphs_are_ones_that_onnx_allows() {
    let control = ["control", "keras2", "recurrent", "volumes"];
    for name in ["images", "moved", "elements", "exported"].into_iter().chain(control) {
        let folder = Folder::of(&fixtures().join("lowered").join(name));
        let reader = folder.open("saved_model.pb").expect("a model");
        let lowered = lowered(&reader, &graph_of(&reader)).expect("known operators");
        let errors = check(&lowered).list.into_iter();
        let errors: Vec<_> = errors.filter(|one| one.severity == Severity::Error).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
        let own = reader.metadata().object(METADATA).expect("what the file says");
        let outputs = own["signatures"]["serving_default"]["outputs"].as_object().expect("names");
        let found = lowered.body.outputs.iter().map(|id| lowered.body.value(*id).name.clone());
        assert_eq!(found.collect::<Vec<_>>(), outputs.keys().cloned().collect::<Vec<_>>());
    }
}

/// Checks that variables of the same name are distinguished by how the model is restored.
#[test]
fn a_weight_is_what_its_variable_is_restored_from() {
    let reader = Folder::of(&fixtures().join("lowered/moved")).open("saved_model.pb");
    let reader = reader.expect("a model");
    let graph = graph_of(&reader);
    let handles = graph.body.nodes.iter().filter(|node| &*node.op.name == "VarHandleOp");
    let found: BTreeMap<String, Vec<Option<u64>>> = handles
        .map(|node| {
            let value = graph.body.value(node.input(0).expect("its weight"));
            let ValueOrigin::Weight(weight) = &value.origin else { panic!("no weight") };
            let sizes = value.shape().expect("a shape").iter().map(apr_graph::Dim::size);
            (weight.tensor.clone(), sizes.collect())
        })
        .collect();
    let expected = [("square", [5, 5]), ("table", [6, 5])]
        .map(|(name, sizes)| (name.to_owned(), sizes.map(Some).to_vec()));
    assert_eq!(found, BTreeMap::from(expected));
}

/// Checks that the bodies of loops and branches become ONNX operators.
///
/// Operators that cannot be translated are counted by their own names.
#[test]
fn loops_are_lowered_with_their_bodies() {
    let folder = Folder::of(&fixtures().join("lowered/recurrent"));
    let reader = folder.open("saved_model.pb").expect("a model");
    let graph = graph_of(&reader);
    let own = lowered(&reader, &graph).expect("known operators");
    let loops: Vec<_> = own.body.nodes.iter().filter(|node| node.op.is("Loop")).collect();
    assert_eq!(loops.len(), 5, "a loop for each layer and direction");
    for node in loops {
        assert!(node.input(0).is_some() && node.input(1).is_none(), "a number of rounds");
        let inner: Vec<&str> =
            node.bodies().flat_map(|body| &body.nodes).map(|node| &*node.op.name).collect();
        assert!(inner.contains(&"MatMul") && !inner.contains(&"ScatterND"), "{inner:?}");
    }

    let mut other = graph;
    for function in &mut other.functions {
        for node in function.body.nodes.iter_mut().filter(|node| &*node.op.name == "Tanh") {
            node.op = apr_graph::Op::new("tensorflow", "Mine");
        }
    }
    let named = lowered(&reader, &other).expect_err("an operator of a body");
    assert!(named.contains_key("Mine") && !named.contains_key("While"), "{named:?}");
}

/// Functions that call each other in loops end, and so do loops that many loops run.
#[test]
fn loops_in_loops_are_bounded() {
    use apr_graph::{Attribute, AttributeValue, Function, Op};

    let folder = Folder::of(&fixtures().join("lowered/control"));
    let reader = folder.open("saved_model.pb").expect("a model");
    let mut graph = graph_of(&reader);
    let is_loop = |node: &apr_graph::Node| node.op.name.ends_with("While");
    let names: Vec<String> = graph.functions.iter().map(|one| one.op.name.to_string()).collect();
    let bodies: Vec<String> = names.into_iter().filter(|name| name.contains("_body_")).collect();
    // Each loop runs the body that has a loop in it: itself.
    let outer = graph.functions.iter().find(|function| {
        bodies.contains(&function.op.name.to_string()) && function.body.nodes.iter().any(is_loop)
    });
    let outer = outer.map(|function: &Function| function.op.name.to_string()).expect("a loop");
    for function in &mut graph.functions {
        for node in function.body.nodes.iter_mut().filter(|node| is_loop(node)) {
            node.attributes.retain(|attribute| &*attribute.name != "body");
            let value = AttributeValue::from(outer.as_str());
            node.attributes.push(Attribute { name: "body".into(), value });
            node.op = Op::new("tensorflow", "While");
        }
    }
    let named = lowered(&reader, &graph).expect_err("loops without an end");
    assert!(named.contains_key("While"), "{named:?}");
}

/// Each body runs two loops, whose bodies run two more.
#[test]
fn loops_that_double_are_bounded() {
    use apr_graph::{Attribute, AttributeValue, Body, Function, Node, Op, ValueType};

    let node = |op: &str, inputs: Vec<ValueId>, output: ValueId, texts: &[(&str, String)]| Node {
        name: op.to_owned(),
        op: Op::new("tensorflow", op),
        inputs: inputs.into_iter().map(Some).collect(),
        outputs: vec![Some(output)],
        attributes: texts
            .iter()
            .map(|(name, text)| Attribute {
                name: (*name).into(),
                value: AttributeValue::from(text.as_str()),
            })
            .collect(),
        doc: String::new(),
    };
    let kind = || ValueType::tensor(ElementType::F32, []);
    let start = || {
        let mut body = Body::default();
        let x = body.add_value("x", kind(), ValueOrigin::Input);
        body.inputs.push(x);
        (body, x)
    };
    // `Tanh` and a comparison keep a loop from being one that changes nothing.
    let level = |number: usize| {
        let (mut body, mut x) = start();
        let texts = [("body", format!("f{}", number + 1)), ("cond", "cond".to_owned())];
        for _ in 0..2 {
            let y = body.add_value("y", ValueType::Unknown, ValueOrigin::Missing);
            body.add_node(node("While", vec![x], y, &texts));
            x = body.add_value("z", ValueType::Unknown, ValueOrigin::Missing);
            body.add_node(node("Tanh", vec![y], x, &[]));
        }
        body.outputs.push(x);
        body
    };
    let (mut cond, x) = start();
    let truth = cond.add_value("truth", ValueType::Unknown, ValueOrigin::Missing);
    cond.add_node(node("Greater", vec![x, x], truth, &[]));
    cond.outputs.push(truth);

    let reader = apr_tensorflow::open(fixture("lowered/images.pb"), "a.pb", &Limits::default());
    let reader = reader.expect("a model");
    let mut graph = graph_of(&reader);
    let function = |name: String, body: Body| Function {
        op: Op::new("tensorflow", &name),
        opsets: Vec::new(),
        required: Vec::new(),
        defaults: Vec::new(),
        body,
        doc: String::new(),
    };
    graph.functions = (1..40).map(|number| function(format!("f{number}"), level(number))).collect();
    graph.functions.push(function("cond".to_owned(), cond));
    graph.body = level(0);
    let ((), peak) = peak_memory(|| {
        let named = lowered(&reader, &graph).expect_err("too many bodies");
        assert!(named.contains_key("While"), "{named:?}");
    });
    assert!(peak < 64 << 20, "{peak} bytes");
}

#[test]
fn damaged_loops_are_lowered_or_named() {
    let folder = fixtures().join("lowered/control");
    let whole = Folder::of(&folder);
    let file = std::fs::read(folder.join("saved_model.pb")).expect("the fixture");
    for at in (0..file.len()).step_by(211) {
        let mut file = file.clone();
        file[at] ^= 0x15;
        let broken = whole.clone().with("saved_model.pb", file);
        let Ok(reader) = broken.open("saved_model.pb") else { continue };
        let Ok(Some(graphs)) = graphs_of(&reader, &Limits::default()) else { continue };
        let _ = lowered(&reader, &graphs[0].1);
    }
}

#[test]
fn damaged_graphs_are_lowered_or_named() {
    let file = fixture("lowered/images.pb");
    for at in (0..file.len()).step_by(11) {
        let mut file = file.clone();
        file[at] ^= 0x55;
        let Ok(reader) = apr_tensorflow::open(file, "a.pb", &Limits::default()) else { continue };
        let Ok(Some(graphs)) = graphs_of(&reader, &Limits::default()) else { continue };
        let _ = lowered(&reader, &graphs[0].1);
    }
}
