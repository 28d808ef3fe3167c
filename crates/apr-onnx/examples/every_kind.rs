//! Writes a model with every kind of type, attribute, subgraph, function and constant, for ONNX's own library to judge:
//! `cargo run -p apr-onnx --example every_kind -- model.onnx [always]`.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use apr_core::{CheckpointWriter, DType, Error, IoCause, Notes, Result, Shape, Sink, TensorInfo};
use apr_graph::{
    AttributeValue, BodyBuilder, Constant, ConstantData, Dim, ElementType, Graph, GraphBuilder, Meaning, Origin,
    ValueType,
};
use apr_onnx::write::{ExternalData, Model, Properties, WriteOptions, plan};

/// Files in a folder.
struct Folder {
    folder: PathBuf,
    file: Option<File>,
}

impl Sink for Folder {
    fn next_file(&mut self, name: &str) -> Result<()> {
        self.file = Some(File::create(self.folder.join(name)).map_err(failed)?);
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes).map_err(failed))
    }

    fn position(&self) -> u64 {
        0
    }

    fn can_patch(&self) -> bool {
        false
    }

    fn patch(&mut self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Err(Error::io(IoCause::Other, "this sink does not go back"))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands it over")]
fn failed(error: std::io::Error) -> Error {
    Error::io(IoCause::Other, error.to_string())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().unwrap_or_else(|| "model.onnx".to_owned()));
    let external_data = if arguments.next().is_some() { ExternalData::Always } else { ExternalData::Auto };
    let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let tensor = |name: &str, dims: &[u64]| TensorInfo {
        name: name.to_owned(),
        dtype: DType::F32,
        shape: Shape::from(dims.to_vec()),
    };
    let tensors = [tensor("weight", &[3, 3]), tensor("large", &[400, 3]), tensor("empty", &[0]), tensor("spare", &[2])];
    let properties = Properties {
        doc: "every kind".into(),
        metadata: vec![("key".into(), "value".into())],
        ..Properties::default()
    };
    let options = WriteOptions { named_files: true, external_data };
    let model = Model { file_name, graph: graph(), properties };
    let mut writer = plan(&[model], &tensors, options)?;
    let folder = path.parent().map(PathBuf::from).unwrap_or_default();
    let mut sink = Folder { folder, file: None };
    writer.begin(&mut sink)?;
    for planned in writer.layout().tensors.clone() {
        let count = u16::try_from(planned.len / 4).unwrap_or_default();
        let bytes: Vec<u8> = (0..count).flat_map(|number| f32::from(number).to_le_bytes()).collect();
        writer.write_chunk(&mut sink, &bytes, None)?;
    }
    writer.finish(&mut sink, &Notes::default())?;
    for loss in &writer.layout().losses {
        println!("not written: {}: {}", loss.name, loss.why);
    }
    Ok(())
}

fn graph() -> Graph {
    let mut graph = GraphBuilder::new(18);
    let block = graph.function("apr.test", "Block", function());
    let main = graph.body();
    let x = main.input("x", ElementType::F32, [Dim::symbol("batch"), Dim::fixed(3)], Meaning::Unknown);
    let weight = main.weight("weight", ElementType::F32, [3, 3]);
    let large = main.weight("large", ElementType::F32, [400, 3]);
    let empty = main.weight("empty", ElementType::F32, [0]);
    let both = main.scope("layers.0", |main| {
        let product = main.op("MatMul", [x, weight]).output("product");
        main.call(&block, [product]).attribute("alpha", 0.25_f32).output("block")
    });
    let all = main.op("Concat", [both, large]).attribute("axis", 0).output("all");
    let text = Constant {
        name: String::new(),
        element: ElementType::Text,
        shape: vec![2],
        data: ConstantData::Texts(vec![b"a".to_vec(), b"bc".to_vec()]),
    };
    let texts = main.constant(text);
    let ints = main.op("Constant", []).attribute("value_ints", vec![-1, 4]).output("ints");
    let floats = main.op("Constant", []).attribute("value_floats", AttributeValue::Floats(vec![0.5, -1.0]));
    let floats = floats.output("floats");
    let strings = AttributeValue::Texts(vec![b"x".to_vec(), b"yz".to_vec()]);
    let strings = main.op("Constant", []).attribute("value_strings", strings).output("strings");
    let is_true = Constant { element: ElementType::Bool, data: ConstantData::Bytes(vec![1]), ..Constant::int(0) };
    let is_true = main.constant(is_true);
    let chosen = main
        .op("If", [is_true])
        .attribute("then_branch", branch("Relu", all))
        .attribute("else_branch", branch("Abs", all))
        .output("chosen");
    let optional = ValueType::Sequence(Box::new(ValueType::tensor(ElementType::F32, [Dim::symbol("n")])));
    let none = main.op("Optional", []).attribute("type", AttributeValue::Type(optional)).output("none");
    for (name, value) in [
        ("y", chosen),
        ("empty_too", empty),
        ("texts", texts),
        ("integers", ints),
        ("singles", floats),
        ("words", strings),
    ] {
        main.output(name, value, Meaning::Unknown);
    }
    let mut graph = graph.finish();
    let shaped = |dims: &[u64]| dims.iter().copied().map(Dim::fixed).collect::<Vec<_>>();
    let kinds = [
        (0, ValueType::tensor(ElementType::F32, [Dim::parse("batch + 400"), Dim::fixed(3)])),
        (1, ValueType::tensor(ElementType::F32, shaped(&[0]))),
        (2, ValueType::tensor(ElementType::Text, shaped(&[2]))),
        (3, ValueType::tensor(ElementType::I64, shaped(&[2]))),
        (4, ValueType::tensor(ElementType::F32, [Dim::Unknown])),
        (5, ValueType::tensor(ElementType::Text, shaped(&[2]))),
    ];
    for (position, kind) in kinds {
        let output = graph.body.outputs[position];
        graph.body.value_mut(output).kind = kind;
    }
    let inner = ValueType::Sequence(Box::new(ValueType::tensor(ElementType::F32, [Dim::symbol("n")])));
    graph.body.value_mut(none).kind = ValueType::Optional(Box::new(inner));
    graph
}

/// `LeakyRelu` with the call's `alpha`, plus one.
fn function() -> BodyBuilder {
    let mut body = BodyBuilder::default();
    let x = body.parameter("x");
    let one = body.float(1.0);
    let leaky = body.op("LeakyRelu", [x]).attribute("alpha", AttributeValue::OfCall("alpha".into())).output("leaky");
    let sum = body.op("Add", [leaky, one]).output("sum");
    body.output("y", sum, Meaning::Unknown);
    body
}

/// A branch that reads a value of the graph around. Its own names are those of the graph around too.
fn branch(operator: &str, outer: apr_graph::ValueId) -> AttributeValue {
    let mut body = BodyBuilder::default().finish();
    let all = body.add_value("all", ValueType::Unknown, Origin::Outer(outer));
    let mut node = apr_graph::Node {
        name: "x".to_owned(),
        op: apr_graph::Op::onnx(operator),
        inputs: vec![Some(all)],
        outputs: Vec::new(),
        attributes: Vec::new(),
        doc: String::new(),
    };
    let output = body.add_value("x", ValueType::default(), Origin::Missing);
    body.value_mut(output).kind = ValueType::tensor(ElementType::F32, [Dim::Unknown, Dim::fixed(3)]);
    node.outputs.push(Some(output));
    body.add_node(node);
    body.outputs.push(output);
    body.into()
}
