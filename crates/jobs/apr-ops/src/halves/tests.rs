//! Tests of graphs that compute in halves.

use std::collections::BTreeSet;

use apr_graph::{
    Attribute, AttributeValue, Body, BodyBuilder, Constant, Dim, ElementType, Graph, GraphBuilder,
    Meaning, Node, ValueId, ValueOrigin, check, infer,
};
use apr_registry::{CheckpointReader, Limits};
use apr_view::parse_filter;

use super::*;

/// A checkpoint with a matrix `w`, and `eps` of one element.
fn checkpoint() -> Box<dyn CheckpointReader> {
    let header = r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"#.to_owned()
        + r#""eps":{"dtype":"F32","shape":[1],"data_offsets":[16,20]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    [1.0_f32, 2.0, 3.0, 4.0, 1e-12].iter().for_each(|value| file.extend(value.to_le_bytes()));
    apr_registry::open(file, "m.safetensors", &Limits::default()).expect("a checkpoint")
}

/// Builds a graph from `x` of single precision to the value that `build` returns, `y`.
fn model(build: impl FnOnce(&mut BodyBuilder, ValueId) -> ValueId) -> Graph {
    let mut builder = GraphBuilder::new(17);
    let main = builder.body();
    let x =
        main.input("x", ElementType::F32, [Dim::symbol("rows"), Dim::fixed(2)], Meaning::Unknown);
    let y = build(main, x);
    main.output("y", y, Meaning::Unknown);
    builder.finish()
}

fn halved(graph: Graph, choices: Choices<'_>) -> (Graph, Halves, BTreeSet<String>) {
    let reader = checkpoint();
    let mut graphs = [("m".to_owned(), graph)];
    let (report, kept) = halve(&mut graphs, &*reader, choices).expect("a report");
    let [(_, mut graph)] = graphs;
    let inferred = infer(&mut graph).findings;
    let errors: Vec<_> = inferred.errors().map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(check(&graph).errors().count(), 0);
    (graph, report, kept)
}

const PLAIN: Choices<'static> = Choices { keep_io: false, exclude_ops: &[], exclude_nodes: &[] };

fn operators(body: &Body) -> Vec<String> {
    body.nodes.iter().map(|node| node.op.to_string()).collect()
}

fn elements(body: &Body, ids: &[ValueId]) -> Vec<ElementType> {
    ids.iter().map(|id| body.value(*id).element().expect("a type")).collect()
}

#[test]
fn a_whole_graph_computes_in_halves_without_casts() {
    let made = |main: &mut BodyBuilder, x| {
        let w = main.weight("w", ElementType::F32, [2, 2]);
        let product = main.op("MatMul", [x, w]).output("product");
        main.op("Relu", [product]).output("y")
    };
    let (graph, report, kept) = halved(model(made), PLAIN);
    assert_eq!(operators(&graph.body), ["MatMul", "Relu"]);
    assert_eq!((report.nodes, report.halves, report.casts), (2, 2, 0));
    assert_eq!(elements(&graph.body, &graph.body.inputs), [ElementType::F16]);
    assert_eq!(elements(&graph.body, &graph.body.outputs), [ElementType::F16]);
    assert!(kept.is_empty());

    let (graph, report, _) = halved(graph_of_relu(), Choices { keep_io: true, ..PLAIN });
    assert_eq!(operators(&graph.body), ["Cast", "Relu", "Cast"]);
    assert!(report.io_kept);
    assert_eq!(elements(&graph.body, &graph.body.outputs), [ElementType::F32]);
    assert_eq!(graph.body.value(graph.body.outputs[0]).name, "y");
}

fn graph_of_relu() -> Graph {
    model(|main, x| main.op("Relu", [x]).output("y"))
}

#[test]
fn excluded_and_blocked_nodes_stay_in_single_precision_with_their_weights() {
    let made = |main: &mut BodyBuilder, x| {
        let w = main.weight("w", ElementType::F32, [2, 2]);
        let product = main.op("MatMul", [x, w]).output("product");
        let sum = main.op("Softplus", [product]).output("sum");
        let axis = main.constant(Constant::int(1));
        main.op("CumSum", [sum, axis]).output("y")
    };
    let nodes = [parse_filter("prod*").expect("a pattern")];
    let (graph, report, kept) = halved(model(made), Choices { exclude_nodes: &nodes, ..PLAIN });
    assert_eq!(
        operators(&graph.body),
        ["Cast", "MatMul", "Cast", "Softplus", "Cast", "CumSum", "Cast"]
    );
    assert_eq!((report.nodes, report.halves, report.casts), (3, 1, 4));
    assert_eq!(report.unchanged[rules::EXCLUDED]["MatMul"], 1);
    assert_eq!(report.unchanged[rules::BY_LIST]["CumSum"], 1);
    assert_eq!(kept.into_iter().collect::<Vec<_>>(), ["w"]);
}

#[test]
fn numbers_beyond_halves_are_clamped() {
    let made = |main: &mut BodyBuilder, x| {
        let eps = main.weight("eps", ElementType::F32, [1]);
        let sum = main.op("Add", [x, eps]).output("sum");
        let mask = main.constant(Constant::float(-3.4e38));
        main.op("Mul", [sum, mask]).output("y")
    };
    let (graph, report, _) = halved(model(made), PLAIN);
    assert_eq!((report.clamped, report.casts), (2, 0));
    let bits: BTreeSet<Vec<u8>> = graph
        .body
        .values
        .iter()
        .filter_map(|value| match &value.origin {
            ValueOrigin::Constant(constant) if constant.element == ElementType::F16 => {
                match &constant.data {
                    apr_graph::ConstantData::Bytes(bytes) => Some(bytes.clone()),
                    apr_graph::ConstantData::Texts(_) => None,
                }
            }
            _ => None,
        })
        .collect();
    // The smallest half above 0, and -65,504.
    assert_eq!(bits.into_iter().collect::<Vec<_>>(), [[0x01, 0x00], [0xff, 0xfb]]);
}

#[test]
fn sums_of_squares_and_positions_stay_in_single_precision() {
    let made = |main: &mut BodyBuilder, x| {
        let square = main.op("Mul", [x, x]).output("square");
        let mean = main.op("ReduceMean", [square]).output("mean");
        let root = main.op("Sqrt", [mean]).output("root");
        main.op("Div", [x, root]).output("y")
    };
    let (graph, report, _) = halved(model(made), PLAIN);
    assert_eq!(operators(&graph.body), ["Cast", "Mul", "ReduceMean", "Sqrt", "Cast", "Div"]);
    assert_eq!(report.unchanged[rules::SQUARES].values().sum::<u64>(), 3);

    let made = |main: &mut BodyBuilder, x| {
        let shape = main.op("Shape", [x]).output("shape");
        let cast = main.op("Cast", [shape]).output("cast");
        let half = main.constant(Constant::float(0.5));
        let scaled = main.op("Mul", [cast, half]).output("scaled");
        main.op("Mul", [x, scaled]).output("y")
    };
    let mut positions = model(made);
    to_f32(&mut positions.body.nodes);
    let (graph, report, _) = halved(positions, PLAIN);
    assert_eq!(operators(&graph.body), ["Shape", "Cast", "Mul", "Cast", "Mul"]);
    assert_eq!(report.unchanged[rules::POSITIONS]["Mul"], 1);
}

fn to_f32(nodes: &mut [Node]) {
    for node in nodes.iter_mut().filter(|node| node.op.is("Cast")) {
        node.attributes.push(Attribute { name: "to".into(), value: AttributeValue::Int(1) });
    }
}

#[test]
fn casts_of_weights_are_not_needed() {
    let made = |main: &mut BodyBuilder, x| {
        let w = main.weight("w", ElementType::F32, [2, 2]);
        let cast = main.op("Cast", [w]).output("cast");
        main.op("MatMul", [x, cast]).output("y")
    };
    let mut cast = model(made);
    to_f32(&mut cast.body.nodes);
    let (graph, report, _) = halved(cast, PLAIN);
    assert_eq!(operators(&graph.body), ["MatMul"]);
    assert_eq!(report.casts, 0);
    let weight = graph.body.node(apr_graph::NodeId(0)).input(1).expect("a weight");
    let origin = &graph.body.value(weight).origin;
    assert!(matches!(origin, ValueOrigin::Weight(found) if found.tensor == "w"), "{origin:?}");
}
