//! What holds of runs whatever the operators are.

use std::thread;

use apr_core::{CheckpointReader, Code, Limits};
use apr_graph::{
    BodyBuilder, Constant, ConstantData, Dim, ElementType, Graph, GraphBuilder, Meaning, Node, Op,
};
use apr_infer::{Alone, Engine, Flow, RunLimits, Step, Tap, Tensor, Unwatched, Value, Workers};
use apr_testkit::apr2::Apr2Builder;

fn nothing() -> impl CheckpointReader {
    let file = Apr2Builder::new().metadata("{}").build();
    apr_format::apr2::open(file, "empty.apr", &Limits::default()).expect("a model")
}

fn limits(change: impl FnOnce(&mut RunLimits)) -> RunLimits {
    let mut limits = RunLimits::default();
    change(&mut limits);
    limits
}

/// `x`, then one operator after the other, each on the result of the one before.
fn chain(operators: &[&str]) -> Graph {
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let mut value = body.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
    for (at, operator) in operators.iter().enumerate() {
        value = body.op(operator, [value]).output(&format!("step_{at}"));
    }
    body.output("y", value, Meaning::Unknown);
    graph.finish()
}

fn run(
    graph: &Graph,
    x: Tensor,
    wanted: &[&str],
    limits: RunLimits,
) -> apr_core::Result<Vec<Value>> {
    let reader = nothing();
    let session = Engine::prepare(graph, &reader, limits)?;
    Ok(session.run(vec![("x".into(), x.into())], wanted, &Alone, &mut Unwatched)?.outputs)
}

#[test]
fn operators_that_are_not_known_are_all_named_before_anything_runs() {
    let reader = nothing();
    let error =
        Engine::prepare(&chain(&["Frobnicate", "Exp", "Grind"]), &reader, RunLimits::default())
            .unwrap_err();
    assert_eq!(error.code(), Code::Version);
    assert!(error.message().contains("Frobnicate (version 17), Grind (version 17)"), "{error}");
}

/// Every operator here is another function of the system's library on Linux, Windows and the web,
/// and the results of those differ in the last bit: the sum over the bits would, too.
#[test]
fn functions_give_the_same_bits_on_every_system() {
    let sum = |operator: &str| {
        let x = Tensor::row((-4096..4096).map(|n| n as f32 / 61.0).collect::<Vec<_>>());
        let y = run(&chain(&[operator]), x, &["y"], RunLimits::default()).unwrap();
        let bits = |y: &f32| if y.is_nan() { f32::NAN.to_bits() } else { y.to_bits() };
        let y = y[0].tensor().unwrap().values::<f32>().unwrap();
        y.iter().map(bits).fold(0x811c_9dc5_u32, |sum, y| (sum ^ y).wrapping_mul(0x0100_0193))
    };
    for (operator, expected) in [
        ("Acos", 0xf5f2_c332),
        ("Acosh", 0x5598_0265),
        ("Asin", 0x6883_cbb5),
        ("Asinh", 0xd650_7dc9),
        ("Atan", 0x2827_1169),
        ("Atanh", 0x5e47_db85),
        ("Cos", 0x98f1_30ec),
        ("Cosh", 0x7ba4_6041),
        ("Elu", 0x2a86_5b07),
        ("Exp", 0x430b_26b6),
        ("Gelu", 0x5cf5_de07),
        ("Log", 0x660a_8085),
        ("Mish", 0x9d6a_115a),
        ("Sigmoid", 0x64fd_06db),
        ("Sin", 0x6e76_b8d9),
        ("Sinh", 0x9394_8091),
        ("Softplus", 0x801c_c5b5),
        ("Tan", 0x2b30_c238),
        ("Tanh", 0x5f7d_e3dd),
    ] {
        assert_eq!(sum(operator), expected, "{operator}");
    }
}

#[test]
fn a_value_within_the_graph_may_be_wanted_and_only_what_it_needs_runs() {
    let graph = chain(&["Exp", "Neg", "Sqrt"]);
    let outputs = run(
        &graph,
        Tensor::row(vec![0.0_f32]),
        &["step_0"],
        limits(|limits| limits.max_work = Some(1500)),
    )
    .unwrap();
    assert_eq!(outputs[0].tensor().unwrap().values::<f32>().unwrap(), [1.0]);
    assert!(
        run(&graph, Tensor::row(vec![0.0_f32]), &["no_such_value"], RunLimits::default()).is_err()
    );
}

#[test]
fn values_go_after_their_last_use() {
    let graph = chain(&["Exp"; 50]);
    let reader = nothing();
    // One tensor that is changed in place needs no second.
    let session =
        Engine::prepare(&graph, &reader, limits(|limits| limits.max_memory = 2 * 4000)).unwrap();
    let x = Tensor::row(vec![-1e9_f32; 1000]);
    let outcome =
        session.run(vec![("x".into(), x.into())], &["y"], &Alone, &mut Unwatched).unwrap();
    assert_eq!(outcome.peak_bytes, 4000);
}

#[test]
fn a_shape_that_explodes_is_refused_with_the_name_of_its_node() {
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let x = body.input("x", ElementType::I64, [Dim::symbol("n")], Meaning::Unknown);
    let y = body.scope("deep", |body| body.op("ConstantOfShape", [x]).output("huge"));
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    for shape in [vec![1 << 20, 1 << 20], vec![i64::MAX, i64::MAX], vec![1 << 40]] {
        let error =
            run(&graph, Tensor::row(shape), &["y"], limits(|limits| limits.max_memory = 1 << 30))
                .unwrap_err();
        assert_eq!(error.code(), Code::Memory);
        assert!(error.message().starts_with("node 'deep/huge' (ConstantOfShape): "), "{error}");
    }
    let error = run(&graph, Tensor::row(vec![-1_i64]), &["y"], RunLimits::default()).unwrap_err();
    assert_eq!(error.code(), Code::Format);
}

/// Creates a loop whose condition is always true.
fn endless() -> Graph {
    let mut inner = BodyBuilder::default();
    let round = inner.input("round", ElementType::I64, [], Meaning::Unknown);
    let goes_on = inner.input("goes_on", ElementType::Bool, [], Meaning::Unknown);
    inner.output("again", goes_on, Meaning::Unknown);
    inner.output("last", round, Meaning::Unknown);
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    body.input("x", ElementType::F32, [], Meaning::Unknown);
    let yes = Constant {
        name: String::new(),
        element: ElementType::Bool,
        shape: Vec::new(),
        data: ConstantData::Bytes(vec![1]),
    };
    let yes = body.constant(yes);
    let inner = inner.finish();
    let y = body
        .op("Loop", [])
        .optional(None)
        .optional(Some(yes))
        .attribute("body", inner)
        .output("forever");
    body.output("y", y, Meaning::Unknown);
    graph.finish()
}

#[test]
fn a_loop_without_end_meets_the_limit() {
    let error = run(
        &endless(),
        Tensor::scalar(0.0_f32),
        &["y"],
        limits(|limits| limits.max_work = Some(10_000_000)),
    )
    .unwrap_err();
    assert_eq!(error.code(), Code::Memory);
    assert!(error.message().contains("more than 10,000,000 steps of work"), "{error}");
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let mut graph = GraphBuilder::new(17);
    let mut inner = BodyBuilder::default();
    let x = inner.parameter("x");
    let own = Op::new("local", "again");
    let y = inner.call(&own, [x]).output("y");
    inner.output("y", y, Meaning::Unknown);
    let op = graph.function("local", "again", inner);
    let body = graph.body();
    let x = body.input("x", ElementType::F32, [], Meaning::Unknown);
    let y = body.call(&op, [x]).output("called");
    body.output("y", y, Meaning::Unknown);
    let reader = nothing();
    let error = Engine::prepare(&graph.finish(), &reader, RunLimits::default()).unwrap_err();
    assert_eq!(error.code(), Code::Format);
}

#[test]
fn errors_name_inputs_that_are_missing_or_unknown() {
    let graph = chain(&["Exp"]);
    let reader = nothing();
    let session = Engine::prepare(&graph, &reader, RunLimits::default()).unwrap();
    let error = session.run(Vec::new(), &["y"], &Alone, &mut Unwatched).unwrap_err();
    assert!(error.message().contains("not given: x"), "{error}");
    let input = vec![("z".to_owned(), Tensor::scalar(0.0_f32).into())];
    let error = session.run(input, &["y"], &Alone, &mut Unwatched).unwrap_err();
    assert!(error.message().contains("unknown input 'z'"), "{error}");
}

/// Notes what it sees, and stops after some nodes.
struct Notes {
    seen: Vec<(String, Vec<f32>)>,
    most: usize,
}

impl Tap for Notes {
    fn wants(&mut self, path: &str, _: &Node) -> bool {
        path != "step_1"
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, step: &Step<'_>) -> Flow {
        let values =
            step.outputs[0].tensor().and_then(Tensor::values::<f32>).expect("floats").to_vec();
        self.seen.push((step.path.to_owned(), values));
        if self.seen.len() == self.most { Flow::Stop } else { Flow::Continue }
    }
}

#[test]
fn a_tap_finds_nodes_by_their_graph_names_and_can_stop_the_run() {
    let graph = chain(&["Exp", "Neg", "Neg", "Sqrt"]);
    let reader = nothing();
    let session = Engine::prepare(&graph, &reader, RunLimits::default()).unwrap();
    let mut notes = Notes { seen: Vec::new(), most: 2 };
    let x = Tensor::row(vec![0.0_f32]);
    let outcome = session.run(vec![("x".into(), x.into())], &["y"], &Alone, &mut notes).unwrap();
    assert!(outcome.stopped && outcome.outputs.is_empty());
    assert_eq!(notes.seen, [("step_0".to_owned(), vec![1.0]), ("step_2".to_owned(), vec![1.0])]);
}

/// Workers with one thread per piece, so that pieces run in any order.
struct OneForEach;

impl Workers for OneForEach {
    fn count(&self) -> usize {
        8
    }

    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        thread::scope(|scope| {
            (0..pieces).rev().for_each(|piece| {
                scope.spawn(move || work(piece));
            });
        });
    }
}

#[test]
fn results_are_the_same_bits_for_any_number_of_threads() {
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let x = body.input(
        "x",
        ElementType::F32,
        [Dim::fixed(1), Dim::fixed(8), Dim::fixed(60), Dim::fixed(60)],
        Meaning::Unknown,
    );
    let values = |count: usize| {
        (0..count).map(|n| (n * 7919 % 997) as f32 / 500.0 - 1.0).collect::<Vec<f32>>()
    };
    let filters = |shape: [u64; 4]| Constant {
        shape: shape.to_vec(),
        ..Constant::floats(&values(shape.iter().product::<u64>() as usize))
    };
    let wide = body.constant(filters([16, 8, 3, 3]));
    let own = body.constant(filters([16, 1, 3, 3]));
    let y = body.op("Conv", [x, wide]).attribute("pads", [1, 1, 1, 1]).output("conv");
    let y = body.op("Conv", [y, own]).attribute("group", 16).output("depthwise");
    let y = body.op("Softmax", [y]).attribute("axis", 2).output("softmax");
    let turned = body.op("Transpose", [y]).attribute("perm", [0, 1, 3, 2]).output("turned");
    let y = body.op("MatMul", [y, turned]).output("product");
    let y = body.op("Exp", [y]).output("exp");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let reader = nothing();
    let session = Engine::prepare(&graph, &reader, RunLimits::default()).unwrap();
    let run = |workers: &dyn Workers| {
        let x = Tensor::new(vec![1, 8, 60, 60], values(8 * 60 * 60)).unwrap();
        session
            .run(vec![("x".into(), x.into())], &["y"], workers, &mut Unwatched)
            .unwrap()
            .outputs
            .remove(0)
    };
    let (alone, together) = (run(&Alone), run(&OneForEach));
    assert_eq!(alone.tensor().unwrap(), together.tensor().unwrap());
}

#[test]
fn values_within_calls_are_requested_by_path() {
    let mut graph = GraphBuilder::new(17);
    let mut layer = BodyBuilder::default();
    let x = layer.parameter("x");
    let grown = layer.op("Exp", [x]).output("attention/grown");
    let y = layer.op("Neg", [grown]).output("out");
    layer.output("y", y, Meaning::Unknown);
    let op = graph.function("local", "Layer", layer);
    let body = graph.body();
    let mut value = body.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
    for number in 0..2 {
        value = body.call(&op, [value]).output(&format!("layers.{number}"));
    }
    body.output("y", value, Meaning::Unknown);
    let graph = graph.finish();
    let wanted = [
        "layers.1/attention/grown",
        "y",
        "layers.0/attention/grown",
        "layers.0/out",
        "layers.0/out",
    ];
    let outputs = run(&graph, Tensor::row(vec![0.0_f32]), &wanted, RunLimits::default()).unwrap();
    let found: Vec<f32> =
        outputs.iter().map(|output| output.tensor().unwrap().values::<f32>().unwrap()[0]).collect();
    let inverse = (-1.0_f32).exp();
    assert_eq!(found, [inverse, -inverse, 1.0, -1.0, -1.0]);
    // Only the first call runs.
    let few = limits(|limits| limits.max_work = Some(3500));
    assert!(run(&graph, Tensor::row(vec![0.0_f32]), &["layers.0/attention/grown"], few).is_ok());
    for name in ["layers.2/attention/grown", "layers.0/attention", "layers.0/", "attention/grown"] {
        assert!(
            run(&graph, Tensor::row(vec![0.0_f32]), &[name], RunLimits::default()).is_err(),
            "{name}"
        );
    }
}
