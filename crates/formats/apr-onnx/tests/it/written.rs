//! Models that are written from their graphs, read by the reader that reads as the `onnx` package
//! does.

use std::fs;

use apr_core::{
    CheckpointReader, CheckpointWriter, Code, DType, Error, Limits, MemoryFolder, Notes, Shape,
    TensorInfo,
};
use apr_graph::{
    Attribute, AttributeValue, Body, BodyBuilder, Constant, Dim, ElementType, Graph, GraphBuilder,
    Meaning, Node, Op, ValueId, ValueOrigin, ValueType, View, WeightRef,
};
use apr_onnx::write::{
    ExternalData, Model, OnnxWriter, Properties, WriteOptions, ir_version, plan,
};
use apr_onnx::{OnnxReader, open_as_stored, open_in};
use apr_testkit::{FolderInMemory, locate};

use crate::listing::lines;

/// Writes a model of the package again, from its graph.
fn written(reader: &OnnxReader, external_data: ExternalData) -> FolderInMemory {
    let model = reader.model().expect("a model");
    let text = |text: &str| text.to_owned();
    let properties = Properties {
        ir_version: model.ir_version.expect("a version"),
        producer_name: text(&model.producer_name),
        producer_version: text(&model.producer_version),
        domain: text(&model.domain),
        model_version: model.model_version,
        doc: text("a note"),
        metadata: vec![(text("author"), text("apr's tests"))],
    };
    let graph = reader.graph().expect("readable").expect("a graph");
    let model = Model { file_name: "model.onnx".into(), graph, properties };
    let options = WriteOptions { named_files: true, external_data };
    let mut writer = plan(&[model], reader.tensors(), options).expect("it fits");
    let mut folder = MemoryFolder::default();
    writer.begin(&mut folder).expect("memory");
    for planned in writer.layout().tensors.clone() {
        let mut bytes = vec![0; usize::try_from(planned.len).expect("small")];
        reader.read_tensor(planned.source, 0, &mut bytes).expect("readable");
        writer.write_chunk(&mut folder, &bytes, None).expect("memory");
    }
    writer.finish(&mut folder, &Notes::default()).expect("memory");
    FolderInMemory(folder.files().clone())
}

/// `kinds.txt` is what the package reads of the model that it wrote itself.
#[test]
fn a_model_written_from_its_graph_has_the_content_that_the_package_reads() {
    let folder = FolderInMemory::from([(
        "model.onnx",
        fs::read(locate::fixture("onnx/kinds.onnx")).expect("a fixture"),
    )]);
    let expected = fs::read_to_string(locate::fixture("onnx/kinds.txt")).expect("a fixture");
    let expected: Vec<_> = expected.lines().collect();
    for open in [open_as_stored, open_in] {
        let reader = open(&folder, "model.onnx", &Limits::default()).expect("a sound file");
        let graph = reader.graph().expect("readable");
        for (external_data, files) in
            [(ExternalData::Auto, 1), (ExternalData::Never, 1), (ExternalData::Always, 2)]
        {
            let folder = written(&reader, external_data);
            assert_eq!(folder.0.len(), files);
            let again =
                open_as_stored(&folder, "model.onnx", &Limits::default()).expect("a sound file");
            assert_eq!(lines(&again, &folder.0["model.onnx"]), expected, "{external_data:?}");
            let again = open(&folder, "model.onnx", &Limits::default()).expect("a sound file");
            assert_eq!(again.graph().expect("readable"), graph, "{external_data:?}");
        }
    }
}

fn tensor(name: &str, dtype: DType, dims: &[u64]) -> TensorInfo {
    TensorInfo { name: name.into(), dtype, shape: Shape::from(dims.to_vec()) }
}

/// Returns a graph that adds the weights to its input.
fn sums(weights: &[(&str, ElementType, &[u64])]) -> Graph {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let mut sum = main.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
    for (name, element, dims) in weights {
        let weight = main.weight(name, *element, dims.iter().copied());
        sum = main.op("Add", [sum, weight]).output("sum");
    }
    main.output("y", sum, Meaning::Unknown);
    graph.finish()
}

fn planned(
    graph: Graph,
    tensors: &[TensorInfo],
    external_data: ExternalData,
) -> Result<OnnxWriter, Error> {
    plan(
        &[Model::new("model.onnx", graph)],
        tensors,
        WriteOptions { named_files: true, external_data },
    )
}

fn refused(graph: Graph, tensors: &[TensorInfo]) -> Error {
    planned(graph, tensors, ExternalData::Auto).expect_err("it is refused")
}

#[test]
fn weights_that_the_checkpoint_does_not_have_so_are_refused_by_name() {
    let graph = || sums(&[("w", ElementType::F32, &[4])]);
    let f32 = |dims: &[u64]| tensor("w", DType::F32, dims);
    assert!(planned(graph(), &[f32(&[4])], ExternalData::Auto).is_ok());
    for (tensors, message) in [
        (vec![], "missing from the checkpoint"),
        (vec![f32(&[5])], "expected f32 [4], found f32 [5]"),
        (vec![tensor("w", DType::I32, &[4])], "expected f32 [4], found i32 [4]"),
    ] {
        let error = refused(graph(), &tensors);
        assert_eq!((error.code(), error.tensor()), (Code::Format, Some("w")), "{error}");
        assert!(error.message().contains(message), "{error}");
    }
    let mut viewed = graph();
    let mut twice = sums(&[("w", ElementType::F32, &[4]), ("v", ElementType::F32, &[4])]);
    for (graph, reference) in [
        (&mut viewed, WeightRef { tensor: "w".into(), views: vec![View::Plus(1)] }),
        (&mut twice, WeightRef::whole("w")),
    ] {
        let last = graph
            .body
            .values
            .iter_mut()
            .rfind(|value| matches!(value.origin, ValueOrigin::Weight(_)));
        last.expect("a weight").origin = ValueOrigin::Weight(reference);
    }
    assert!(refused(viewed, &[f32(&[4])]).message().contains("as the graph uses them"));
    assert!(
        refused(twice, &[f32(&[4])]).message().contains("two values of the graph name this tensor")
    );
}

#[test]
fn weights_whose_type_the_graph_does_not_say_have_that_of_the_checkpoint() {
    let mut graph = sums(&[("w", ElementType::F32, &[4])]);
    let weight = graph.body.values.iter_mut().find(|value| value.name == "w").expect("it is there");
    weight.kind = ValueType::Unknown;
    assert!(planned(graph.clone(), &[tensor("w", DType::F16, &[4])], ExternalData::Auto).is_ok());
    let error = refused(graph, &[tensor("w", DType::Q4_0, &[32])]);
    assert!(error.message().contains("`dequantize` f32"), "{error}");
    // Two numbers of four bits are a byte of the checkpoint.
    let packed = sums(&[("w", ElementType::U4, &[7])]);
    assert!(planned(packed.clone(), &[tensor("w", DType::U8, &[4])], ExternalData::Auto).is_ok());
    assert_eq!(refused(packed, &[tensor("w", DType::U8, &[3])]).code(), Code::Format);
}

#[test]
fn large_tensors_start_at_page_boundaries_and_small_ones_stay_inside() {
    let weights: [(&str, ElementType, &[u64]); 5] = [
        ("small", ElementType::F32, &[255]),
        ("a", ElementType::F32, &[256]),
        ("b", ElementType::F32, &[1 << 18]),
        ("c", ElementType::F32, &[1000]),
        ("d", ElementType::F32, &[1 << 18]),
    ];
    let tensors: Vec<_> =
        weights.iter().map(|(name, _, dims)| tensor(name, DType::F32, dims)).collect();
    let writer = planned(sums(&weights), &tensors, ExternalData::Always).expect("it fits");
    let layout = writer.layout();
    let outside: Vec<_> = layout
        .tensors
        .iter()
        .filter(|planned| planned.file == 1)
        .map(|planned| planned.offset)
        .collect();
    assert_eq!(outside, [0, 64 << 10, (64 << 10) + (1 << 20), (128 << 10) + (1 << 20)]);
    assert_eq!(layout.files[1].name, "model.onnx_data");
    assert_eq!(layout.files[1].len, (128 << 10) + (2 << 20));
}

#[test]
fn models_of_two_gib_lie_in_two_files_or_are_refused() {
    let dims: &[u64] = &[1 << 29];
    let (graph, tensors) =
        (sums(&[("w", ElementType::F32, dims)]), [tensor("w", DType::F32, dims)]);
    let writer = planned(graph.clone(), &tensors, ExternalData::Auto).expect("it fits");
    assert_eq!(writer.layout().files.len(), 2);
    let error = planned(graph, &tensors, ExternalData::Never).expect_err("it does not fit");
    assert_eq!(error.code(), Code::Memory);
    assert!(error.message().contains("without `external_data` never"), "{error}");
    // Tensors that no file holds.
    let dims: &[u64] = &[1 << 60];
    let names: Vec<_> = (0..16).map(|number| format!("w{number}")).collect();
    let weights: Vec<_> = names.iter().map(|name| (name.as_str(), ElementType::U8, dims)).collect();
    let tensors: Vec<_> = names.iter().map(|name| tensor(name, DType::U8, dims)).collect();
    let error =
        planned(sums(&weights), &tensors, ExternalData::Always).expect_err("it does not fit");
    assert_eq!(error.code(), Code::Memory, "{error}");
}

#[test]
fn a_function_with_a_weight_of_its_own_is_refused() {
    let mut graph = GraphBuilder::new(17);
    let mut block = BodyBuilder::default();
    let x = block.parameter("x");
    let weight = block.weight("w", ElementType::F32, [4]);
    let sum = block.op("Add", [x, weight]).output("sum");
    block.output("y", sum, Meaning::Unknown);
    let block = graph.function("apr", "Block", block);
    let x = graph.body().input("x", ElementType::F32, [4.into()], Meaning::Unknown);
    let y = graph.body().call(&block, [x]).output("y");
    graph.body().output("y", y, Meaning::Unknown);
    let error = refused(graph.finish(), &[tensor("w", DType::F32, &[4])]);
    assert_eq!(error.message(), "function 'Block' contains a weight, which ONNX does not allow");
}

/// A body with a node that has this body as an attribute.
fn around(inner: Body) -> Body {
    let mut body = Body::default();
    let output = body.add_value("y", ValueType::Unknown, ValueOrigin::Missing);
    body.add_node(Node {
        name: "node".into(),
        op: Op::onnx("If"),
        inputs: Vec::new(),
        outputs: vec![Some(output)],
        attributes: vec![Attribute {
            name: "then_branch".into(),
            value: AttributeValue::Body(Box::new(inner)),
        }],
        doc: String::new(),
    });
    body.outputs.push(output);
    body
}

#[test]
fn graphs_nested_a_hundred_deep_are_rejected_with_the_name_of_the_node() {
    let deep = |depth: usize| Graph {
        body: (0..depth).fold(Body::default(), |body, _| around(body)),
        ..Graph::default()
    };
    assert!(planned(deep(99), &[], ExternalData::Auto).is_ok());
    let error = refused(deep(100), &[]);
    assert_eq!(error.code(), Code::Memory);
    assert!(error.message().starts_with("node 'node' (If): node 'node' (If): "), "{error}");
}

/// Bytes of a graph that is written without tensors.
fn bytes(graph: Graph) -> Vec<u8> {
    let mut writer = plan(&[Model::new("", graph)], &[], WriteOptions::default()).expect("it fits");
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory");
    writer.finish(&mut file, &Notes::default()).expect("memory");
    file
}

#[test]
fn names_that_are_there_already_get_a_number() {
    let mut inner = Body::default();
    for name in ["y", "", "", "y_1"] {
        inner.add_value(name, ValueType::Unknown, ValueOrigin::Constant(Constant::int(1)));
    }
    inner.outputs = (0..4).map(ValueId).collect();
    let graph = Graph { body: around(inner), ..Graph::default() };
    let reader = apr_onnx::open(bytes(graph), "", &Limits::default()).expect("a model");
    let main = reader.model().and_then(|model| model.graph.as_ref()).expect("a graph");
    let inner = main.nodes[0].attributes[0].graph.as_ref().expect("a body");
    let names: Vec<_> = inner.outputs.iter().map(|output| output.name.as_str()).collect();
    assert_eq!(names, ["y_1", "value", "value_1", "y_1_1"]);
}

/// <https://github.com/onnx/onnx/blob/main/docs/Versioning.md> has the table.
#[test]
fn the_version_of_the_file_is_the_oldest_that_has_what_the_graph_needs() {
    let expected = [
        (8, 3),
        (9, 4),
        (10, 5),
        (11, 6),
        (12, 7),
        (15, 8),
        (18, 8),
        (19, 9),
        (21, 10),
        (23, 11),
        (24, 12),
    ];
    for (opset, version) in expected {
        assert_eq!(ir_version(opset), version, "{opset}");
    }
    let version = |overload: Option<&str>| {
        let mut graph = GraphBuilder::new(9);
        if let Some(overload) = overload {
            let mut block = BodyBuilder::default();
            let x = block.parameter("x");
            let y = block.op("Relu", [x]).output("y");
            block.output("y", y, Meaning::Unknown);
            graph.function("apr", "Block", block);
            let mut graph = graph.finish();
            graph.functions[0].op.overload = overload.into();
            return bytes(graph)[1];
        }
        bytes(graph.finish())[1]
    };
    assert_eq!([version(None), version(Some("")), version(Some("two"))], [4, 8, 10]);
}
