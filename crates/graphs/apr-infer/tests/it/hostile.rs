//! Graphs made to do harm: an error with its code, no panic, no hang, no memory beyond the limit.

use std::cell::RefCell;

use apr_core::{CheckpointReader, Code, Limits, Result};
use apr_graph::{
    AttributeValue, BodyBuilder, Constant, ConstantData, ElementType, GraphBuilder, Meaning, Op,
};
use apr_infer::{Alone, Engine, RunLimits, Tensor, Unwatched, Value};
use apr_testkit::apr2::Apr2Builder;

/// Bytes that the graphs may use.
const MEMORY: u64 = 16 << 20;

fn nothing() -> impl CheckpointReader {
    let file = Apr2Builder::new().metadata("{}").build();
    apr_format::apr2::open(file, "empty.apr", &Limits::default()).expect("a model")
}

fn limits() -> RunLimits {
    let mut limits = RunLimits::default();
    limits.max_memory = MEMORY;
    limits.max_work = Some(100_000_000);
    limits
}

/// Runs one operator of the current version.
fn run(
    operator: &str,
    inputs: &[Tensor],
    attributes: &[(&str, AttributeValue)],
) -> Result<Vec<Value>> {
    run_at(23, operator, inputs, attributes)
}

fn run_at(
    opset: i64,
    operator: &str,
    inputs: &[Tensor],
    attributes: &[(&str, AttributeValue)],
) -> Result<Vec<Value>> {
    let mut graph = GraphBuilder::new(opset);
    let body = graph.body();
    let names: Vec<String> = (0..inputs.len()).map(|at| format!("x{at}")).collect();
    let ids: Vec<_> = names
        .iter()
        .zip(inputs)
        .map(|(name, tensor)| body.input(name, tensor.element(), [], Meaning::Unknown))
        .collect();
    let mut node = body.op(operator, ids);
    for (name, value) in attributes {
        node = node.attribute(name, value.clone());
    }
    let y = node.output("y");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let reader = nothing();
    let session = Engine::prepare(&graph, &reader, limits())?;
    let inputs = names.into_iter().zip(inputs.iter().cloned().map(Value::from)).collect();
    Ok(session.run(inputs, &["y"], &Alone, &mut Unwatched)?.outputs)
}

fn floats(shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    Tensor::new(shape.to_vec(), (0..count).map(|at: usize| at as f32 * 0.5).collect())
        .expect("a tensor")
}

fn ints(values: &[i64]) -> Tensor {
    Tensor::row(values.to_vec())
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::Text(value.as_bytes().to_vec())
}

fn refused(what: &str, result: Result<Vec<Value>>, code: Code) {
    match result {
        Ok(_) => panic!("{what} ran"),
        Err(error) => assert_eq!(error.code(), code, "{what}: {error}"),
    }
}

#[test]
fn shapes_that_do_not_go_together_are_an_error() {
    use AttributeValue::{Int, Ints};
    let f = floats;
    type Case = (&'static str, Vec<Tensor>, Vec<(&'static str, AttributeValue)>);
    let cases: Vec<Case> = vec![
        ("Gemm", vec![f(&[2, 3]), f(&[3, 2]), f(&[4, 2, 2])], vec![]),
        ("Gemm", vec![f(&[2, 3]), f(&[3, 2]), f(&[5])], vec![]),
        ("LayerNormalization", vec![f(&[2, 3]), f(&[2])], vec![]),
        ("Einsum", vec![f(&[3])], vec![("equation", text("i->ii"))]),
        ("Einsum", vec![f(&[3])], vec![("equation", text("i->j"))]),
        (
            "Slice",
            vec![f(&[8]), ints(&[0, 5]), ints(&[2, 8]), ints(&[0, 0]), ints(&[1, 2])],
            vec![],
        ),
        (
            "RotaryEmbedding",
            vec![f(&[1, 1, 7]), f(&[1, 1]), f(&[1, 1])],
            vec![("num_heads", Int(2))],
        ),
        ("Split", vec![f(&[8])], vec![("num_outputs", Int(i64::MAX))]),
        (
            "MatMulInteger",
            vec![
                Tensor::new(vec![3, 4], vec![1_u8; 12]).unwrap(),
                Tensor::new(vec![4, 2], vec![1_u8; 8]).unwrap(),
                Tensor::new(vec![2, 3, 4], vec![1_u8; 24]).unwrap(),
            ],
            vec![],
        ),
        (
            "RoiAlign",
            vec![f(&[1, 1, 4, 4]), f(&[1, 4]), ints(&[0])],
            vec![("sampling_ratio", Int(i64::MAX))],
        ),
        (
            "MaxPool",
            vec![f(&[1, 1, 4, 4])],
            vec![("kernel_shape", Ints(vec![1 << 30, 1 << 30])), ("pads", Ints(vec![1 << 30; 4]))],
        ),
        ("ConvTranspose", vec![f(&[1, 2, 3]), f(&[2, 2, 3])], vec![("group", Int(i64::MAX))]),
        ("TensorScatter", vec![f(&[1, 4, 2]), f(&[1, 2, 2]), ints(&[i64::MAX])], vec![]),
        (
            "Reshape",
            vec![Tensor::new(vec![0], Vec::<f32>::new()).unwrap(), ints(&[1 << 40, 0])],
            vec![("allowzero", Int(1))],
        ),
    ];
    for (operator, inputs, attributes) in cases {
        refused(operator, run(operator, &inputs, &attributes), Code::Format);
    }
}

#[test]
fn tensors_beyond_the_memory_limit_are_rejected_before_allocation() {
    let many = floats(&[1 << 13, 1]);
    let cases: Vec<(&str, Vec<Tensor>)> = vec![
        ("MatMul", vec![floats(&[1 << 12, 1, 1, 1]), floats(&[1, 1 << 12, 1, 1])]),
        ("Tile", vec![Tensor::row(vec!["x".repeat(1 << 16)]), ints(&[1 << 16])]),
        ("Expand", vec![Tensor::row(vec!["x".repeat(1 << 16)]), ints(&[1 << 16, 1])]),
        (
            "StringConcat",
            vec![
                Tensor::row(vec!["x".repeat(1 << 16)]),
                Tensor::new(vec![1 << 12, 1], vec![String::new(); 1 << 12]).unwrap(),
            ],
        ),
        ("Add", vec![many.clone(), floats(&[1, 1 << 13])]),
        ("OneHot", vec![ints(&[0; 64]), Tensor::scalar(1_i64 << 40), floats(&[2])]),
        (
            "Resize",
            vec![
                floats(&[64, 64]),
                Tensor::row(Vec::<f32>::new()),
                Tensor::row(vec![1e6_f32, 1e-1]),
            ],
        ),
        ("HannWindow", vec![Tensor::scalar(i64::MAX)]),
    ];
    for (operator, inputs) in cases {
        refused(operator, run(operator, &inputs, &[]), Code::Memory);
    }
}

#[test]
fn filters_of_an_impossible_rate_end() {
    let number = |value: f32| Tensor::scalar(value);
    let inputs = [
        Tensor::scalar(8_i64),
        Tensor::scalar(16_i64),
        Tensor::scalar(1_i64),
        number(0.0),
        number(8e9),
    ];
    refused("MelWeightMatrix", run("MelWeightMatrix", &inputs, &[]), Code::Format);
}

#[test]
fn transforms_of_no_length_are_empty() {
    let signal = floats(&[1, 1, 1, 2]);
    let one_sided = [("inverse", AttributeValue::Int(1)), ("onesided", AttributeValue::Int(1))];
    let outputs = run("DFT", &[signal], &one_sided).expect("a transform");
    assert_eq!(outputs[0].tensor().unwrap().shape(), [1, 1, 0, 1]);
}

#[test]
fn packed_elements_must_fill_their_shape() {
    assert!(Tensor::unpack(ElementType::I4, vec![1 << 40], &[0]).is_err());
    assert!(Tensor::unpack(ElementType::F32, vec![2], &[0; 9]).is_err());
}

/// A loop that keeps a kibibyte of each of its rounds.
#[test]
fn values_collected_by_a_loop_count_as_memory() {
    let mut inner = BodyBuilder::default();
    inner.input("round", ElementType::I64, [], Meaning::Unknown);
    let goes_on = inner.input("goes_on", ElementType::Bool, [], Meaning::Unknown);
    inner.output("again", goes_on, Meaning::Unknown);
    let shape = inner.constant(Constant {
        name: String::new(),
        element: ElementType::I64,
        shape: vec![1],
        data: ConstantData::Bytes(1024_i64.to_le_bytes().to_vec()),
    });
    let filled = inner.op("ConstantOfShape", [shape]).output("filled");
    inner.output("kept", filled, Meaning::Unknown);
    let yes = Constant {
        name: String::new(),
        element: ElementType::Bool,
        shape: Vec::new(),
        data: ConstantData::Bytes(vec![1]),
    };
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let yes = body.constant(yes);
    let inner = inner.finish();
    let y = body
        .op("Loop", [])
        .optional(None)
        .optional(Some(yes))
        .attribute("body", inner)
        .output("forever");
    body.output("y", y, Meaning::Unknown);
    let (graph, reader) = (graph.finish(), nothing());
    let session = Engine::prepare(&graph, &reader, limits()).expect("a session");
    let error = session.run(Vec::new(), &["y"], &Alone, &mut Unwatched).unwrap_err();
    assert_eq!(error.code(), Code::Memory);
    assert!(error.message().contains("limit"), "{error}");
}

/// Each function calls the next one twice: planned at every call, they would take 2^50 steps.
#[test]
fn functions_are_planned_once_however_often_they_are_called() {
    let mut graph = GraphBuilder::new(17);
    let previous: RefCell<Op> = RefCell::new(Op::new("", "NoSuchOperator"));
    for number in 0..50 {
        let mut inner = BodyBuilder::default();
        let x = inner.parameter("x");
        let op = previous.borrow().clone();
        let once = inner.call(&op, [x]).output("once");
        let twice = inner.call(&op, [once]).output("twice");
        inner.output("y", twice, Meaning::Unknown);
        *previous.borrow_mut() = graph.function("local", &format!("f{number}"), inner);
    }
    let body = graph.body();
    let x = body.input("x", ElementType::F32, [], Meaning::Unknown);
    let y = body.call(&previous.borrow(), [x]).output("called");
    body.output("y", y, Meaning::Unknown);
    let (graph, reader) = (graph.finish(), nothing());
    let error = Engine::prepare(&graph, &reader, limits()).unwrap_err();
    assert!(error.message().contains("NoSuchOperator"), "{error}");
}

/// Nests more functions than the stack can hold. Each is stored in the file after the function that
/// it calls.
#[test]
fn too_many_functions_inside_each_other_are_refused() {
    let mut graph = GraphBuilder::new(17);
    let mut previous = Op::new("", "Identity");
    for number in 0..5000 {
        let mut inner = BodyBuilder::default();
        let x = inner.parameter("x");
        let y = inner.call(&previous, [x]).output("z");
        inner.output("y", y, Meaning::Unknown);
        previous = graph.function("local", &format!("f{number}"), inner);
        let body = graph.body();
        let x = body.input(&format!("x{number}"), ElementType::F32, [], Meaning::Unknown);
        let y = body.call(&previous, [x]).output(&format!("called{number}"));
        body.output(&format!("y{number}"), y, Meaning::Unknown);
    }
    let (graph, reader) = (graph.finish(), nothing());
    let error = Engine::prepare(&graph, &reader, limits()).unwrap_err();
    assert_eq!(error.code(), Code::Format);
    assert!(error.message().contains("inside each other"), "{error}");
}

/// Returns a row in which every third element is NaN and the others are not sorted.
fn with_nan(count: usize) -> Vec<f32> {
    let number = |at: usize| (at * 7919 % 1009) as f32 - 500.0;
    (0..count).map(|at| if at % 3 == 1 { f32::NAN } else { number(at) }).collect()
}

/// NumPy sorts NaN above all numbers, and ONNX's reference for `TopK` and `Unique` is NumPy's. A
/// sort without an order of everything may panic.
#[test]
fn nan_is_sorted_above_all_numbers() {
    let row = with_nan(300);
    let nan = row.iter().filter(|value| value.is_nan()).count();
    let mut numbers: Vec<f32> = row.iter().copied().filter(|value| !value.is_nan()).collect();
    numbers.sort_by(f32::total_cmp);
    let tensor = Tensor::row(row);
    let floats = |outputs: Vec<Value>| {
        let tensor = outputs[0].tensor().expect("a tensor");
        tensor.values::<f32>().expect("floats").to_vec()
    };

    for (k, largest) in [(300, 1), (250, 1), (300, 0), (250, 0)] {
        let inputs = [tensor.clone(), ints(&[k])];
        let found = run("TopK", &inputs, &[("largest", AttributeValue::Int(largest))]);
        let found = floats(found.expect("it sorts"));
        let (head, tail) = if largest == 1 {
            let (head, tail) = found.split_at(nan);
            assert!(tail.iter().eq(numbers.iter().rev().take(tail.len())));
            (head, &[][..])
        } else {
            let (head, tail) = found.split_at(numbers.len());
            assert_eq!(head, numbers);
            (&[][..], tail)
        };
        assert!(head.iter().chain(tail).all(|value| value.is_nan()));
    }

    let distinct = floats(run("Unique", &[tensor], &[]).expect("it sorts"));
    numbers.dedup();
    let (all, last) = distinct.split_at(distinct.len() - 1);
    assert_eq!(all, numbers);
    assert!(last[0].is_nan(), "all NaN are one");
}

#[test]
fn boxes_whose_score_is_nan_come_last() {
    let count = 90;
    let boxes = (0..count).flat_map(|at| {
        let top = at as f32 * 2.0;
        [top, 0.0, top + 1.0, 1.0]
    });
    let boxes = Tensor::new(vec![1, count, 4], boxes.collect()).expect("boxes");
    let scores = with_nan(count);
    let numbers = scores.iter().filter(|score| !score.is_nan()).count();
    let nan: Vec<bool> = scores.iter().map(|score| score.is_nan()).collect();
    let scores = Tensor::new(vec![1, 1, count], scores).expect("scores");
    let outputs = run("NonMaxSuppression", &[boxes, scores, ints(&[1000])], &[]).expect("it sorts");
    let chosen = outputs[0].tensor().expect("a tensor").values::<i64>().expect("indices").to_vec();
    let chosen: Vec<usize> = chosen.chunks(3).map(|row| row[2] as usize).collect();
    assert_eq!(chosen.len(), count, "no box covers another one");
    assert!(chosen[..numbers].iter().all(|&at| !nan[at]));
}

#[test]
fn shapes_with_a_size_of_0_are_empty_whatever_their_other_sizes() {
    let empty = Tensor::new::<f32>(vec![1 << 20, 0], Vec::new()).expect("no elements");
    let tiled = run("Tile", &[empty, ints(&[1, 1 << 24])], &[]).expect("nothing is made");
    assert_eq!(tiled[0].tensor().expect("a tensor").shape(), [1 << 20, 0]);
    let row = Tensor::new::<f32>(vec![1 << 10, 1], vec![0.0; 1 << 10]).expect("a column");
    let tiled = run("Tile", &[row, ints(&[0, 1 << 24])], &[]).expect("nothing is made");
    assert!(tiled[0].tensor().expect("a tensor").is_empty());
}

#[test]
fn invalid_settings_do_not_panic() {
    let x = floats(&[1, 2, 2]);
    let weights = [floats(&[1, 1, 2]), floats(&[1, 1, 1])];
    let clip = [("hidden_size", AttributeValue::Int(1)), ("clip", AttributeValue::Float(-1.0))];
    let _ = run("RNN", &[x, weights[0].clone(), weights[1].clone()], &clip);
    let pads = ints(&[i64::MIN, i64::MAX]);
    let _ = run("Pad", &[floats(&[4]), pads], &[]);
    let norm = [("num_groups", AttributeValue::Int(1 << 62))];
    let (x, none) = (floats(&[4, 0, 2]), floats(&[0]));
    assert!(run("GroupNormalization", &[x, none.clone(), none], &norm).is_err());
    let halves = [("num_outputs", AttributeValue::Int(100_000_000))];
    assert!(run("Split", &[floats(&[4])], &halves).is_err());
}

/// A few bytes of a file request minutes or years of work in each of these cases.
#[test]
fn work_that_grows_faster_than_the_inputs_exceeds_the_budget() {
    use AttributeValue::{Float, Int, Ints};
    let f = floats;
    let zeros = |shape: &[usize]| {
        Tensor::new(shape.to_vec(), vec![0.0_f32; shape.iter().product()]).expect("a tensor")
    };
    type Case = (&'static str, Vec<Tensor>, Vec<(&'static str, AttributeValue)>);
    let cases: Vec<Case> = vec![
        ("DFT", vec![f(&[1, 100_003, 1])], vec![]),
        ("LRN", vec![f(&[1, 100_000, 2])], vec![("size", Int(i64::MAX))]),
        (
            "AveragePool",
            vec![f(&[1, 1, 500, 500])],
            vec![("kernel_shape", Ints(vec![101, 101])), ("pads", Ints(vec![50; 4]))],
        ),
        ("MaxPool", vec![f(&[1, 1, 500, 500])], vec![("kernel_shape", Ints(vec![250, 250]))]),
        (
            "RoiAlign",
            vec![f(&[1, 1, 4, 4]), f(&[100, 4]), ints(&[0; 100])],
            vec![("sampling_ratio", Int(1000)), ("output_height", Int(8))],
        ),
        (
            "MaxRoiPool",
            vec![f(&[1, 1, 300, 300]), zeros(&[50, 5])],
            vec![("pooled_shape", Ints(vec![30, 30])), ("spatial_scale", Float(1.0))],
        ),
        (
            "NonMaxSuppression",
            vec![zeros(&[1, 60_000, 4]), zeros(&[1, 1, 60_000]), Tensor::scalar(i64::MAX)],
            vec![],
        ),
        ("Det", vec![f(&[600, 600])], vec![]),
        ("MatMul", vec![f(&[1500, 1500]), zeros(&[1500, 1500])], vec![]),
        ("Conv", vec![f(&[1, 64, 100, 100]), f(&[1000, 64, 5, 5])], vec![]),
        (
            "Attention",
            vec![f(&[1, 1, 3000, 64]), f(&[1, 1, 20_000, 64]), f(&[1, 1, 20_000, 64])],
            vec![],
        ),
        (
            "GridSample",
            vec![f(&[1, 1, 4, 4]), zeros(&[1, 900, 900, 2])],
            vec![("mode", text("cubic"))],
        ),
    ];
    for (operator, inputs, attributes) in cases {
        refused(operator, run(operator, &inputs, &attributes), Code::Memory);
    }
}

#[test]
fn sequences_hold_only_tensors() {
    let mut graph = GraphBuilder::new(21);
    let body = graph.body();
    let x = body.input("x", ElementType::F32, [], Meaning::Unknown);
    let inner = body.op("SequenceConstruct", [x, x]).output("inner");
    let y = body.op("SequenceConstruct", [inner, inner]).output("y");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let reader = nothing();
    let session = Engine::prepare(&graph, &reader, limits()).expect("a session");
    let inputs = vec![("x".to_owned(), Value::from(floats(&[1])))];
    let outcome = session.run(inputs, &["y"], &Alone, &mut Unwatched);
    refused("a sequence of sequences", outcome.map(|outcome| outcome.outputs), Code::Format);
}

/// Runs an operator of classical machine learning.
fn learned(operator: &str, x: Tensor, attributes: &[(&str, AttributeValue)]) -> Result<Vec<Value>> {
    let mut graph = GraphBuilder::new(21);
    graph.opset("ai.onnx.ml", 3);
    let body = graph.body();
    let input = body.input("x", x.element(), [], Meaning::Unknown);
    let mut node = body.call(&Op::new("ai.onnx.ml", operator), [input]);
    for (name, value) in attributes {
        node = node.attribute(name, value.clone());
    }
    let y = node.output("y");
    body.output("y", y, Meaning::Unknown);
    let graph = graph.finish();
    let reader = nothing();
    let session = Engine::prepare(&graph, &reader, limits())?;
    Ok(session.run(vec![("x".to_owned(), x.into())], &["y"], &Alone, &mut Unwatched)?.outputs)
}

#[test]
fn trees_with_cycles_or_invalid_branches_terminate() {
    use AttributeValue::{Floats, Int, Ints};
    let texts = |list: &[&str]| {
        AttributeValue::Texts(list.iter().map(|text| text.as_bytes().to_vec()).collect())
    };
    let tree = |yes: i64, no: i64, feature: i64, target: i64| {
        learned(
            "TreeEnsembleRegressor",
            floats(&[1, 2]),
            &[
                ("n_targets", Int(1)),
                ("nodes_treeids", Ints(vec![0; 3])),
                ("nodes_nodeids", Ints(vec![0, 1, 2])),
                ("nodes_featureids", Ints(vec![feature; 3])),
                ("nodes_modes", texts(&["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"])),
                ("nodes_values", Floats(vec![f32::NAN, 0.0, 0.0])),
                ("nodes_truenodeids", Ints(vec![yes, yes, 0])),
                ("nodes_falsenodeids", Ints(vec![no, no, 0])),
                ("target_treeids", Ints(vec![0])),
                ("target_nodeids", Ints(vec![2])),
                ("target_ids", Ints(vec![target])),
                ("target_weights", Floats(vec![1.5])),
            ],
        )
    };
    assert_eq!(tree(1, 2, 0, 0).unwrap()[0].tensor().unwrap().values::<f32>().unwrap(), [1.5]);
    for (what, [yes, no, feature, target]) in [
        ("a circle", [1, 0, 0, 0]),
        ("a missing node", [7, 2, 0, 0]),
        ("a missing feature", [1, 2, 2, 0]),
        ("a negative feature", [1, 2, -1, 0]),
        ("a missing target", [1, 2, 0, 1]),
    ] {
        refused(what, tree(yes, no, feature, target), Code::Format);
    }
}

#[test]
fn settings_of_models_must_fit_their_features() {
    use AttributeValue::{Floats, Int, Ints};
    let f = |list: &[f32]| Floats(list.to_vec());
    let cases: Vec<(&str, Vec<(&str, AttributeValue)>)> = vec![
        ("LinearRegressor", vec![("coefficients", f(&[1.0])), ("targets", Int(i64::MAX))]),
        ("LinearClassifier", vec![("coefficients", f(&[])), ("classlabels_ints", Ints(vec![1]))]),
        ("SVMRegressor", vec![("coefficients", f(&[1.0])), ("n_supports", Int(i64::MAX))]),
        (
            "SVMClassifier",
            vec![
                ("classlabels_ints", Ints(vec![1, 2])),
                ("vectors_per_class", Ints(vec![i64::MAX, i64::MAX])),
            ],
        ),
        ("Scaler", vec![("scale", f(&[1.0, 2.0, 3.0]))]),
        ("Imputer", vec![("imputed_value_floats", f(&[]))]),
        ("LabelEncoder", vec![("keys_floats", f(&[1.0])), ("values_int64s", Ints(vec![]))]),
        ("ZipMap", vec![("classlabels_int64s", Ints(vec![1]))]),
        ("DictVectorizer", vec![("int64_vocabulary", Ints(vec![1]))]),
        ("Normalizer", vec![("norm", text("L3"))]),
    ];
    for (operator, attributes) in cases {
        refused(operator, learned(operator, floats(&[3, 2]), &attributes), Code::Format);
    }
}
