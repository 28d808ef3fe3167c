//! Tests of each pass, and of all passes together.

use apr_core::{DType, Limits, Shape, TensorInfo};
use apr_graph::{BodyBuilder, Constant, Dim, ElementType, Graph, GraphBuilder, Meaning, ValueId};
use apr_registry::CheckpointReader;
use apr_view::View;

use super::*;

/// Returns a graph with the input `x`, `f32[2, 3, 4]`, and the output that `write` adds.
fn graph(write: impl FnOnce(&mut BodyBuilder, ValueId) -> ValueId) -> Graph {
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let x = body.input("x", ElementType::F32, [2, 3, 4].map(Dim::fixed), Meaning::Unknown);
    let y = write(body, x);
    body.output("y", y, Meaning::Unknown);
    let mut graph = graph.finish();
    infer(&mut graph);
    graph
}

fn empty() -> Box<dyn CheckpointReader> {
    let file = b"\x02\0\0\0\0\0\0\0{}".to_vec();
    apr_registry::open(file, "model.safetensors", &Limits::default()).expect("an empty file")
}

fn operators(graph: &Graph) -> Vec<&str> {
    graph.body.nodes.iter().map(|node| &*node.op.name).collect()
}

fn joined(graph: &mut Graph, reader: &dyn CheckpointReader) -> u64 {
    duplicates::run(&mut graph.body, &mut Twins::default(), reader)
}

fn normalizations(graph: &mut Graph, view: &View<'_>) -> u64 {
    batch_norm::run(&mut graph.body, 17, &Folding::of(view), &mut UniqueNames::of_values())
}

/// Returns the result of all passes.
fn simplified(graph: &Graph) -> (Graph, Simplified) {
    let model = empty();
    let (graph, report, warning) =
        simplify("model", graph, &mut View::new(&*model), true).expect("a simple graph");
    assert_eq!(warning, None);
    assert!(apr_graph::check(&graph).errors().next().is_none());
    (graph, report)
}

#[test]
fn nodes_and_tensors_that_no_output_depends_on_are_removed() {
    let mut graph = graph(|body, x| {
        let first = body.op("Relu", [x]).output("first");
        body.op("Neg", [first]).output("unread");
        body.op("Abs", [x]).output("abs")
    });
    graph.body.add_value("unused", Default::default(), ValueOrigin::Constant(Constant::int(1)));
    assert_eq!(dead::run(&mut graph.body), 3);
    assert_eq!(operators(&graph), ["Abs"]);
}

#[test]
fn nodes_that_return_their_input_are_removed_and_the_output_keeps_its_name() {
    let mut graph = graph(|body, x| {
        let x = body.op("Identity", [x]).output("same");
        let x = body.op("Cast", [x]).attribute("to", 1).output("cast");
        let x = body.op("Dropout", [x]).output("dropout");
        let sizes = body.ints(&[2, -1, 4]);
        let x = body.op("Reshape", [x, sizes]).output("reshaped");
        let x = body.op("Transpose", [x]).attribute("perm", [0, 1, 2]).output("turned");
        let (start, end, axis) = (body.ints(&[0]), body.ints(&[i64::MAX]), body.ints(&[1]));
        let x = body.op("Slice", [x, start, end, axis]).output("sliced");
        let x = body.op("Concat", [x]).attribute("axis", 0).output("joined");
        let x = body.op("Relu", [x]).output("relu");
        body.op("Identity", [x]).output("last")
    });
    assert_eq!(no_ops::run(&mut graph.body, 17), 8);
    assert_eq!(operators(&graph), ["Relu"]);
    assert_eq!(graph.body.value(graph.body.outputs[0]).name, "y");
}

#[test]
fn nodes_with_an_effect_stay() {
    let mut graph = graph(|body, x| {
        let training = body.constant(Constant {
            element: ElementType::Bool,
            data: apr_graph::ConstantData::Bytes(vec![1]),
            ..Constant::int(0)
        });
        let ratio = body.float(0.5);
        let x = body.op("Dropout", [x, ratio, training]).output("dropout");
        let x = body.op("Transpose", [x]).output("turned");
        let (start, end, axis) = (body.ints(&[3]), body.ints(&[i64::MIN]), body.ints(&[0]));
        let back = body.ints(&[-1]);
        body.op("Slice", [x, start, end, axis, back]).output("reversed")
    });
    assert_eq!(no_ops::run(&mut graph.body, 17), 0);
    assert_eq!(operators(&graph), ["Dropout", "Transpose", "Slice"]);
}

#[test]
fn an_input_that_is_an_output_keeps_its_identity() {
    let mut graph = graph(|body, x| body.op("Identity", [x]).output("same"));
    assert_eq!(no_ops::run(&mut graph.body, 17), 0);
    assert_eq!(operators(&graph), ["Identity"]);
}

#[test]
fn transposes_of_transposes_are_joined_or_removed() {
    let two = |second: [i64; 3]| {
        graph(|body, x| {
            let x = body.op("Transpose", [x]).attribute("perm", [1, 2, 0]).output("first");
            let x = body.op("Transpose", [x]).attribute("perm", second).output("second");
            body.op("Relu", [x]).output("relu")
        })
    };
    assert_eq!(operators(&simplified(&two([2, 0, 1])).0), ["Relu"]);
    let (joined, _) = simplified(&two([1, 0, 2]));
    assert_eq!(operators(&joined), ["Transpose", "Relu"]);
    assert_eq!(joined.body.nodes[0].ints("perm"), Some(&[2, 1, 0][..]));

    // Another node reads the value between.
    let mut shared = graph(|body, x| {
        let first = body.op("Transpose", [x]).attribute("perm", [1, 2, 0]).output("first");
        let second = body.op("Transpose", [first]).attribute("perm", [0, 2, 1]).output("second");
        let turned = body.op("Relu", [first]).output("relu");
        body.op("MatMul", [second, turned]).output("product")
    });
    assert_eq!(transposes::run(&mut shared.body), 0);
}

#[test]
fn reshapes_of_reshapes_are_joined() {
    let graph = graph(|body, x| {
        let sizes = body.ints(&[6, 4]);
        let x = body.op("Reshape", [x, sizes]).output("first");
        let axis = body.ints(&[0]);
        let x = body.op("Unsqueeze", [x, axis]).output("second");
        let x = body.op("Flatten", [x]).attribute("axis", 2).output("third");
        let sizes = body.ints(&[2, 12]);
        body.op("Reshape", [x, sizes]).output("last")
    });
    let (simple, report) = simplified(&graph);
    assert_eq!(operators(&simple), ["Reshape"]);
    assert_eq!((report.nodes_before(), report.nodes_after()), (4, 1));
    assert!(report.compared.unwrap().identical);
}

#[test]
fn a_computed_shape_with_one_open_size_becomes_a_constant() {
    let mut builder = GraphBuilder::new(17);
    let body = builder.body();
    let dims = [Dim::symbol("batch"), Dim::fixed(3), Dim::fixed(4)];
    let x = body.input("x", ElementType::F32, dims, Meaning::Unknown);
    let shape = body.op("Shape", [x]).output("shape");
    let (first, second) = (body.int(0), body.int(1));
    let batch = body.op("Gather", [shape, first]).output("batch");
    let rows = body.op("Gather", [shape, second]).output("rows");
    let axis = body.ints(&[0]);
    let batch = body.op("Unsqueeze", [batch, axis]).output("batch_row");
    let two = body.int(4);
    let columns = body.op("Mul", [rows, two]).output("columns");
    let columns = body.op("Unsqueeze", [columns, axis]).output("columns_row");
    let sizes = body.op("Concat", [batch, columns]).attribute("axis", 0).output("sizes");
    let y = body.op("Reshape", [x, sizes]).output("flat");
    body.output("y", y, Meaning::Unknown);
    let (simple, report) = simplified(&builder.finish());
    assert_eq!(operators(&simple), ["Reshape"]);
    let sizes = simple.body.nodes[0].input(1).unwrap();
    assert_eq!(edit::ints(&simple.body, sizes), Some(vec![-1, 12]));
    assert_eq!(
        report.compared.unwrap().sizes.iter().map(|run| run["batch"]).collect::<Vec<_>>(),
        [2, 5]
    );
}

#[test]
fn equal_nodes_are_joined() {
    let mut graph = graph(|body, x| {
        let one = body.op("Softmax", [x]).attribute("axis", 1).output("one");
        let other = body.op("Softmax", [x]).attribute("axis", 1).output("other");
        let third = body.op("Softmax", [x]).attribute("axis", 2).output("third");
        let sum = body.op("Add", [one, other]).output("sum");
        body.op("Add", [sum, third]).output("all")
    });
    assert_eq!(joined(&mut graph, &*empty()), 1);
    assert_eq!(operators(&graph), ["Softmax", "Softmax", "Add", "Add"]);
}

#[test]
fn random_nodes_are_neither_joined_nor_folded() {
    let graph = graph(|body, x| {
        let one = body.op("RandomUniform", []).attribute("shape", [4]).output("one");
        let other = body.op("RandomUniform", []).attribute("shape", [4]).output("other");
        let sum = body.op("Add", [one, other]).output("sum");
        body.op("Add", [x, sum]).output("all")
    });
    assert_eq!(operators(&simplified(&graph).0).len(), 4);
}

#[test]
fn constants_are_folded_unless_the_output_is_much_larger_than_the_inputs() {
    let filled = |size: i64| {
        graph(|body, x| {
            let shape = body.ints(&[size, 4]);
            let value = Constant { shape: vec![1], ..Constant::float(1.5) };
            let filled =
                body.op("ConstantOfShape", [shape]).attribute("value", value).output("filled");
            let axis = body.ints(&[0]);
            let sum = body.op("ReduceMax", [filled]).attribute("axes", [0]).output("sum");
            let sum = body.op("Unsqueeze", [sum, axis]).output("row");
            body.op("Add", [x, sum]).output("all")
        })
    };
    let (simple, report) = simplified(&filled(300));
    assert_eq!(operators(&simple), ["Add"]);
    assert!(report.tensors_folded >= 1 && report.too_large.is_empty());

    let (simple, report) = simplified(&filled(1 << 17));
    assert_eq!(operators(&simple)[0], "ConstantOfShape");
    assert_eq!(report.too_large, ["filled"]);
}

/// Returns a normalized convolution of 2 channels to 4. Its weights are tensors of the view.
fn normalized<'m>(model: &'m dyn CheckpointReader) -> (Graph, View<'m>) {
    let mut view = View::new(model);
    let mut builder = GraphBuilder::new(17);
    let body = builder.body();
    let dims = [Dim::symbol("n"), Dim::fixed(2), Dim::fixed(5), Dim::fixed(5)];
    let x = body.input("x", ElementType::F32, dims, Meaning::Unknown);
    let mut weight = |body: &mut BodyBuilder, name: &str, shape: &[u64]| {
        let count: u64 = shape.iter().product();
        let values = (0..count).map(|at| 0.25 + (at * 7 % 11) as f32 / 8.0);
        let bytes = values.flat_map(f32::to_le_bytes).collect();
        let info = TensorInfo {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: Shape::from(shape.to_vec()),
        };
        view.add(info, bytes);
        body.weight(name, ElementType::F32, shape.to_vec())
    };
    let kernel = weight(body, "conv.weight", &[4, 2, 3, 3]);
    let norm = ["scale", "bias", "mean", "var"].map(|name| weight(body, name, &[4]));
    let y = body.op("Conv", [x, kernel]).output("conv");
    let inputs = [y].into_iter().chain(norm);
    let y = body.op("BatchNormalization", inputs).output("norm");
    let y = body.op("Relu", [y]).output("relu");
    body.output("y", y, Meaning::Unknown);
    (builder.finish(), view)
}

#[test]
fn a_normalization_is_folded_into_the_weights_of_its_convolution() {
    let model = empty();
    let (graph, mut view) = normalized(&*model);
    let (simple, report, _) = simplify("model", &graph, &mut view, true).unwrap();
    assert_eq!(operators(&simple), ["Conv", "Relu"]);
    let folded = view.tensors().iter().position(|info| info.name == "conv.weight/folded").unwrap();
    let mut first = [0; 4];
    view.read_tensor(folded, 0, &mut first).unwrap();
    let expected = 0.25 * (0.25 / (0.25_f64 + 1e-5).sqrt());
    assert!((f64::from(f32::from_le_bytes(first)) - expected).abs() < 1e-7);
    let compared = report.compared.unwrap();
    assert!(compared.difference < 1e-6, "{compared:?}");
    assert_eq!(report.before["BatchNormalization"], 1);
    assert_eq!(report.passes[4].changes, 1);
}

#[test]
fn a_convolution_with_other_readers_is_not_folded() {
    let model = empty();
    let (mut graph, view) = normalized(&*model);
    let conv = graph.body.nodes[0].outputs[0].unwrap();
    graph.body.outputs.push(conv);
    infer(&mut graph);
    assert_eq!(normalizations(&mut graph, &view), 0);
}

#[test]
fn a_graph_that_does_not_run_is_simplified_only_if_relaxed() {
    let unknown = graph(|body, x| {
        let x = body.op("Identity", [x]).output("same");
        let op = apr_graph::Op::new("nowhere", "Mystery");
        body.call(&op, [x]).output("mystery")
    });
    let model = empty();
    let mut view = View::new(&*model);
    let error = simplify("model", &unknown, &mut view, true).unwrap_err();
    assert!(error.message().contains("`relaxed` writes it"), "{error}");
    let (simple, report, warning) = simplify("model", &unknown, &mut view, false).unwrap();
    assert_eq!((operators(&simple), report.compared), (vec!["Mystery"], None));
    assert!(warning.unwrap().contains("not compared"));
}

#[test]
fn graphs_that_compute_something_else_are_detected() {
    let of = |op: &'static str| graph(|body, x| body.op(op, [x]).output("made"));
    let model = empty();
    let compared = engine::compare(&of("Relu"), &of("Abs"), &*model, false);
    assert!(matches!(compared, Comparison::Different(why) if why.contains("'y' differs by")));
    let compared = engine::compare(&of("Relu"), &of("Relu"), &*model, true);
    assert!(matches!(compared, Comparison::Same(compared) if compared.identical));
}

#[test]
fn inputs_get_shapes_and_equal_names_get_equal_numbers() {
    let mut builder = GraphBuilder::new(17);
    let body = builder.body();
    let dims = || [Dim::symbol("batch"), Dim::fixed(4)];
    let x = body.input("x", ElementType::F32, dims(), Meaning::Unknown);
    let mask = body.input("mask", ElementType::F32, dims(), Meaning::Unknown);
    let y = body.op("Add", [x, mask]).output("sum");
    body.output("y", y, Meaning::Unknown);
    let mut graph = builder.finish();
    infer(&mut graph);
    let mut set = |text: &str| {
        let mut asked = vec![NamedShape::parse(text).unwrap()];
        set_shapes(&mut graph, &mut asked).map(|()| {
            let kinds = graph.body.values.iter().map(|value| value.tensor().unwrap().to_string());
            (asked.len(), kinds.collect::<Vec<_>>())
        })
    };
    assert_eq!(set("x=3,4"), Ok((0, vec!["f32[3, 4]".to_owned(); 3])));
    let (_, kinds) = set("x=n,4").unwrap();
    assert_eq!(kinds[..2], ["f32[n, 4]", "f32[3, 4]"]);
    assert_eq!(set("z=1").unwrap().0, 1);
    assert!(set("x=1").unwrap_err().contains("has 2 dimensions, not 1"));
    assert!(set("x=3,5").unwrap_err().contains("not valid"));
    for wrong in ["x", "=1", "x=1,,2", "x=-1", "x=1 2"] {
        assert!(NamedShape::parse(wrong).is_err(), "{wrong}");
    }
}

/// Returns a branch that applies an operator to a value of the enclosing body.
fn branch(op: &str, outer: ValueId, bias: f32) -> Body {
    let mut body = Body::default();
    let x = body.add_value("outer", Default::default(), ValueOrigin::Outer(outer));
    let bias = ValueOrigin::Constant(Constant::float(bias));
    let kind = apr_graph::ValueType::tensor(ElementType::F32, []);
    let bias = body.add_value("bias", kind, bias);
    let sum = body.add_value("sum", Default::default(), ValueOrigin::Missing);
    let y = body.add_value("result", Default::default(), ValueOrigin::Missing);
    let node = |op: &str, inputs: &[ValueId], output: ValueId| Node {
        name: String::new(),
        op: apr_graph::Op::onnx(op),
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(output)],
        attributes: Vec::new(),
        doc: String::new(),
    };
    body.add_node(node("Add", &[x, bias], sum));
    body.add_node(node(op, &[sum], y));
    body.outputs.push(y);
    body
}

fn truth(holds: bool) -> Constant {
    Constant {
        element: ElementType::Bool,
        data: apr_graph::ConstantData::Bytes(vec![u8::from(holds)]),
        ..Constant::int(0)
    }
}

fn choice(body: &mut BodyBuilder, x: ValueId, condition: ValueId) -> ValueId {
    let node = body.op("If", [condition]).attribute("then_branch", branch("Relu", x, 1.0));
    node.attribute("else_branch", branch("Neg", x, 2.0)).output("chosen")
}

#[test]
fn a_branch_with_a_known_condition_is_written_out() {
    for (holds, expected) in [(true, "Relu"), (false, "Neg")] {
        let graph = graph(|body, x| {
            let condition = body.constant(truth(!holds));
            let condition = body.op("Not", [condition]).output("condition");
            let first = choice(body, x, condition);
            choice(body, first, condition)
        });
        let (simple, report) = simplified(&graph);
        assert_eq!(operators(&simple), ["Add", expected, "Add", expected]);
        assert_eq!(report.passes[6].changes, 2);
        assert!(report.compared.unwrap().identical);
    }
}

#[test]
fn a_branch_with_an_unknown_condition_stays_and_is_simplified() {
    let graph = graph(|body, x| {
        let sum = body.op("ReduceSum", [x]).attribute("keepdims", 0).output("total");
        let zero = body.float(0.0);
        let condition = body.op("Greater", [sum, zero]).output("condition");
        let x = body.op("Identity", [x]).output("same");
        choice(body, x, condition)
    });
    let (simple, report) = simplified(&graph);
    assert_eq!(operators(&simple), ["ReduceSum", "Greater", "If"]);
    assert_eq!(report.before["Add"], 2);
}

#[test]
fn a_reshape_copies_sizes_that_are_open() {
    let mut builder = GraphBuilder::new(17);
    let body = builder.body();
    let dims = [Dim::symbol("batch"), Dim::symbol("tokens"), Dim::fixed(12)];
    let x = body.input("x", ElementType::F32, dims, Meaning::Unknown);
    let shape = body.op("Shape", [x]).output("shape");
    let (start, end, heads) = (body.ints(&[0]), body.ints(&[2]), body.ints(&[3, 4]));
    let front = body.op("Slice", [shape, start, end]).output("front");
    let sizes = body.op("Concat", [front, heads]).attribute("axis", 0).output("sizes");
    let y = body.op("Reshape", [x, sizes]).output("split");
    body.output("y", y, Meaning::Unknown);
    let (simple, report) = simplified(&builder.finish());
    assert_eq!(operators(&simple), ["Reshape"]);
    let sizes = simple.body.nodes[0].input(1).unwrap();
    assert_eq!(edit::ints(&simple.body, sizes), Some(vec![0, 0, 3, 4]));
    assert_eq!(report.compared.unwrap().sizes.len(), 2);
}

#[test]
fn equal_tensors_are_one_and_others_are_not() {
    let model = empty();
    let mut view = View::new(&*model);
    let mut add = |name: &str, last: u8| {
        let mut bytes = vec![0; 4096];
        bytes[4095] = last;
        let shape = Shape::from(vec![1024]);
        view.add(TensorInfo { name: name.to_owned(), dtype: DType::F32, shape }, bytes);
    };
    add("a", 0);
    add("b", 1);
    add("c", 0);
    let mut graph = graph(|body, x| {
        let weights = ["a", "b", "c"].map(|name| body.weight(name, ElementType::F32, vec![1024]));
        let [a, b, c] = weights.map(|weight| body.op("ReduceMax", [weight]).output("largest"));
        let sum = body.op("Sum", [a, b, c]).output("sum");
        body.op("Add", [x, sum]).output("all")
    });
    assert_eq!(joined(&mut graph, &view), 2);
    assert_eq!(operators(&graph), ["ReduceMax", "ReduceMax", "Sum", "Add"]);
}

#[test]
fn quantized_weights_stay_as_they_are() {
    let model = empty();
    let mut view = View::new(&*model);
    let shape = Shape::from(vec![2, 3, 4]);
    let info = TensorInfo { name: "q".to_owned(), dtype: DType::I8, shape };
    view.add(info, (0..24).collect());
    let graph = graph(|body, x| {
        let q = body.weight("q", ElementType::I8, vec![2, 3, 4]);
        let scale = body.float(0.5);
        let one = body.op("DequantizeLinear", [q, scale]).output("one");
        let other = body.op("Cast", [q]).attribute("to", 1).output("other");
        let sum = body.op("Add", [one, other]).output("sum");
        body.op("Add", [x, sum]).output("all")
    });
    let (simple, report, _) = simplify("model", &graph, &mut view, true).unwrap();
    assert_eq!(operators(&simple), ["DequantizeLinear", "Cast", "Add", "Add"]);
    assert!(!report.changed && report.too_large.is_empty(), "{report:?}");
}

#[test]
fn huge_constants_are_not_computed() {
    let huge = 1_i64 << 36;
    type Write = fn(&mut BodyBuilder, i64) -> ValueId;
    let nodes: [(&str, Write); 5] = [
        ("ConstantOfShape", |body, huge| {
            let shape = body.ints(&[huge]);
            body.op("ConstantOfShape", [shape]).output("made")
        }),
        ("Expand", |body, huge| {
            let (one, shape) = (body.float(1.0), body.ints(&[huge]));
            body.op("Expand", [one, shape]).output("made")
        }),
        ("Tile", |body, huge| {
            let (row, times) = (body.constant(Constant::floats(&[1.0, 2.0])), body.ints(&[huge]));
            body.op("Tile", [row, times]).output("made")
        }),
        ("Range", |body, huge| {
            let (start, end, step) = (body.int(0), body.int(huge), body.int(1));
            let range = body.op("Range", [start, end, step]).output("range");
            body.op("Cast", [range]).attribute("to", 1).output("made")
        }),
        ("Range", |body, huge| {
            let (start, end) = (body.float(0.0), body.float(huge as f32));
            let step = body.float(1.0);
            body.op("Range", [start, end, step]).output("made")
        }),
    ];
    for (op, write) in nodes {
        let graph = graph(|body, x| {
            let made = write(body, huge);
            let largest = body.op("ReduceMax", [made]).attribute("keepdims", 0).output("largest");
            body.op("Add", [x, largest]).output("sum")
        });
        let model = empty();
        let mut view = View::new(&*model);
        let (simple, report, warning) = simplify("model", &graph, &mut view, false).unwrap();
        assert_eq!(operators(&simple)[0], op, "{report:?}");
        assert!(warning.unwrap().contains("not compared"), "{op}");
    }
}

#[test]
fn tensors_that_double_are_limited_together() {
    let graph = graph(|body, x| {
        let mut row = body.constant(Constant::floats(&[1.0; 64]));
        for _ in 0..40 {
            row = body.op("Concat", [row, row]).attribute("axis", 0).output("twice");
        }
        let largest = body.op("ReduceMax", [row]).attribute("keepdims", 0).output("largest");
        body.op("Add", [x, largest]).output("sum")
    });
    let model = empty();
    let mut view = View::new(&*model);
    let (simple, report, _) = simplify("model", &graph, &mut view, false).unwrap();
    let stored: u64 = view.tensors().iter().filter_map(|info| info.byte_len().ok()).sum();
    assert!(stored < 8 << 20, "{stored}");
    assert!(simple.body.nodes.len() > 20 && !report.too_large.is_empty());
}

#[test]
fn a_graph_with_a_cycle_is_rejected() {
    let mut cycle = graph(|body, x| {
        let first = body.op("Identity", [x]).output("first");
        body.op("Identity", [first]).output("second")
    });
    cycle.body.nodes[0].inputs = cycle.body.nodes[1].outputs.clone();
    let model = empty();
    let error = simplify("model", &cycle, &mut View::new(&*model), false).unwrap_err();
    assert!(error.message().contains("is part of a cycle"), "{error}");
}

#[test]
fn nodes_in_another_order_are_sorted() {
    let mut mixed = graph(|body, x| {
        let first = body.op("Identity", [x]).output("first");
        body.op("Relu", [first]).output("second")
    });
    mixed.body.nodes.reverse();
    edit::set_origins(&mut mixed.body);
    assert_eq!(operators(&simplified(&mixed).0), ["Relu"]);
}

#[test]
fn a_graph_without_anything_to_simplify_is_reported_as_unchanged() {
    let graph = graph(|body, x| body.op("Relu", [x]).output("relu"));
    let (simple, report) = simplified(&graph);
    assert!(!report.changed);
    assert_eq!(simple.body.nodes, graph.body.nodes);
}
