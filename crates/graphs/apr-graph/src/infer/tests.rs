use super::*;
use crate::{
    BodyBuilder, Constant, Dim, ElementType, GraphBuilder, Meaning, Severity, ValueId, ValueOrigin,
    ValueType,
};

fn shown(graph: &Graph, id: ValueId) -> String {
    graph.body.value(id).tensor().map_or("nothing".to_owned(), ToString::to_string)
}

fn sizes(text: &str) -> Vec<Dim> {
    text.split(' ').map(Dim::parse).collect()
}

/// Returns the type of the value that `write` computes from `x`, which is `f32` of this shape.
fn of(shape: &str, write: impl FnOnce(&mut BodyBuilder, ValueId) -> ValueId) -> String {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes(shape), Meaning::Unknown);
    let y = write(main, x);
    let mut graph = graph.finish();
    let found = infer(&mut graph).findings;
    assert!(found.is_empty(), "{found:?}");
    shown(&graph, y)
}

#[test]
fn a_shape_that_the_graph_computes_is_known() {
    // What torch writes for `x.view(batch, sequence, 5, 64).transpose(1, 2)`.
    let kind = of("batch sequence 320", |main, x| {
        let shape = main.op("Shape", [x]).output("shape");
        let (zero, one) = (main.int(0), main.int(1));
        let batch = main.op("Gather", [shape, zero]).attribute("axis", 0).output("batch");
        let sequence = main.op("Gather", [shape, one]).attribute("axis", 0).output("sequence");
        let axes = main.ints(&[0]);
        let batch = main.op("Unsqueeze", [batch, axes]).output("batch");
        let sequence = main.op("Unsqueeze", [sequence, axes]).output("sequence");
        let (heads, size) = (main.ints(&[5]), main.ints(&[64]));
        let parts = [batch, sequence, heads, size];
        let shape = main.op("Concat", parts).attribute("axis", 0).output("view");
        let view = main.op("Reshape", [x, shape]).output("heads");
        main.op("Transpose", [view]).attribute("perm", [0, 2, 1, 3]).output("turned")
    });
    assert_eq!(kind, "f32[batch, 5, sequence, 64]");
}

#[test]
fn a_reshape_to_minus_one_infers_a_quotient() {
    assert_eq!(
        of("batch sequence 320", |main, x| {
            let shape = main.ints(&[0, -1, 64]);
            main.op("Reshape", [x, shape]).output("y")
        }),
        "f32[batch, 5*sequence, 64]"
    );
}

#[test]
fn sizes_after_a_convolution_have_the_stride_in_them() {
    assert_eq!(
        of("batch 80 frames", |main, x| {
            let w = main.weight("w", ElementType::F32, [384, 80, 3]);
            main.op("Conv", [x, w]).attribute("pads", [1, 1]).attribute("strides", [2]).output("y")
        }),
        "f32[batch, 384, floor((frames - 1)/(2)) + 1]"
    );
}

#[test]
fn a_slice_up_to_a_size_with_symbols_is_as_long() {
    assert_eq!(
        of("batch sequence", |main, x| {
            let shape = main.op("Shape", [x]).attribute("start", 1).output("length");
            let mask = main.weight("mask", ElementType::Bool, [1024, 1024]);
            let (zero, axis) = (main.ints(&[0]), main.ints(&[1]));
            main.op("Slice", [mask, zero, shape, axis]).output("y")
        }),
        "bool[1024, sequence]"
    );
}

#[test]
fn declared_types_are_refined_and_contradictions_name_the_node() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("2 n"), Meaning::Unknown);
    let y = main.scope("layers.3", |main| main.op("Relu", [x]).output("act"));
    let z = main.scope("layers.3", |main| main.op("Exp", [y]).output("exp"));
    let mut graph = graph.finish();
    graph.body.value_mut(y).kind = ValueType::tensor(ElementType::F32, sizes("m tokens"));
    graph.body.value_mut(z).kind = ValueType::tensor(ElementType::F32, sizes("3 tokens"));
    let found = infer(&mut graph).findings;
    assert_eq!(shown(&graph, y), "f32[2, tokens]");
    let message = found.list[0].to_string();
    let wanted = "warning: node 'layers.3/exp': Exp: output 'layers.3/exp': f32[3, tokens] is \
        declared, and f32[2, tokens] is made";
    assert_eq!(message, wanted);
}

#[test]
fn inputs_of_other_types_than_the_operator_takes_are_errors() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("2 3"), Meaning::Unknown);
    let ids = main.input("ids", ElementType::I64, sizes("2 3"), Meaning::TokenIds);
    main.op("Add", [x, ids]).output("a");
    main.op("Softmax", [ids]).output("b");
    let w = main.weight("w", ElementType::F32, [4, 5]);
    let c = main.op("MatMul", [x, w]).output("c");
    let mut graph = graph.finish();
    let found: Vec<_> = infer(&mut graph).findings.list.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "error: node 'a': Add: input 'B' is of i64, and an earlier input of f32",
            "error: node 'b': Softmax: input 'input' is i64[2, 3], which Softmax of version 13 \
             does not support",
            "error: node 'c': MatMul: shapes [2, 3] and [4, 5]: sizes 3 and 4 differ",
        ]
    );
    assert_eq!(
        shown(&graph, c),
        "f32[?]",
        "the type of the elements does not depend on the shapes"
    );
}

/// A function that adds its two parameters, and calls another with the sum.
fn with_functions(calls: &[(&str, &str)]) -> Graph {
    let mut graph = GraphBuilder::new(17);
    let mut body = BodyBuilder::default();
    let (x, w) = (body.parameter("x"), body.parameter("w"));
    let y = body.op("MatMul", [x, w]).output("product");
    body.output("y", y, Meaning::Unknown);
    let inner = graph.function("apr", "linear", body);
    let mut body = BodyBuilder::default();
    let (x, w) = (body.parameter("x"), body.parameter("w"));
    let y = body.call(&inner, [x, w]).output("inner");
    let y = body.op("Relu", [y]).output("act");
    body.output("y", y, Meaning::Unknown);
    let block = graph.function("apr", "block", body);
    let main = graph.body();
    for (number, (x, w)) in calls.iter().enumerate() {
        let x = main.input(&format!("x{number}"), ElementType::F32, sizes(x), Meaning::Unknown);
        let w = main.input(&format!("w{number}"), ElementType::F32, sizes(w), Meaning::Unknown);
        let y = main.call(&block, [x, w]).output(&format!("layers.{number}"));
        main.output(&format!("y{number}"), y, Meaning::Unknown);
    }
    graph.finish()
}

#[test]
fn a_function_is_followed_once_for_each_kind_of_call() {
    let mut graph =
        with_functions(&[("n 4", "4 8"), ("n 4", "4 8"), ("m 4", "4 2"), ("n 4", "4 8")]);
    let inference = infer(&mut graph);
    assert!(inference.findings.is_empty(), "{:?}", inference.findings);
    assert_eq!(inference.signatures.len(), 4, "two kinds of calls, two functions");
    assert_eq!(inference.calls.len(), 4);
    assert_eq!(inference.calls[0], inference.calls[3]);
    let outputs: Vec<_> = graph.body.outputs.iter().map(|id| shown(&graph, *id)).collect();
    assert_eq!(outputs, ["f32[n, 8]", "f32[n, 8]", "f32[m, 2]", "f32[n, 8]"]);
    let block = &graph.functions[1].body;
    assert_eq!(
        block.value(block.outputs[0]).tensor().unwrap().to_string(),
        "f32[n, 8]",
        "the first call's"
    );
}

#[test]
fn an_error_in_a_function_names_the_way_to_it() {
    let mut graph = with_functions(&[("n 4", "5 8")]);
    let found = infer(&mut graph).findings;
    assert_eq!(found.list[0].node, "layers.0/inner/product");
}

#[test]
fn calls_that_multiply_are_given_up_with_a_notice() {
    let mut graph = GraphBuilder::new(17);
    let mut callee = None;
    for level in 0..40 {
        let mut body = BodyBuilder::default();
        let x = body.parameter("x");
        let doubled = body.op("Concat", [x, x]).attribute("axis", 0).output("doubled");
        let y = match &callee {
            Some(op) => {
                let a = body.call(op, [x]).output("a");
                let b = body.call(op, [doubled]).output("b");
                body.op("Concat", [a, b]).attribute("axis", 0).output("y")
            }
            None => doubled,
        };
        body.output("out", y, Meaning::Unknown);
        callee = Some(graph.function("apr", &format!("f{level}"), body));
    }
    let x = graph.body().input("x", ElementType::F32, sizes("n"), Meaning::Unknown);
    let y = graph.body().call(&callee.unwrap(), [x]).output("call");
    graph.body().output("y", y, Meaning::Unknown);
    let inference = infer(&mut graph.finish());
    assert!(inference.signatures.len() < 200_000);
    assert!(inference.findings.errors().next().is_none(), "{:?}", inference.findings);
}

#[test]
fn a_loop_whose_state_grows_has_an_unknown_size_there() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("1 8"), Meaning::Unknown);
    let y = main.input("y", ElementType::F32, sizes("4"), Meaning::Unknown);
    let mut body = BodyBuilder::default();
    let (_, go) = (body.parameter("i"), body.parameter("go"));
    let (state, stays) = (body.parameter("state"), body.parameter("stays"));
    let go = body.op("Identity", [go]).output("goes");
    let grown = body.op("Concat", [state, state]).attribute("axis", 0).output("grown");
    let same = body.op("Relu", [stays]).output("same");
    let scanned = body.op("Exp", [same]).output("scanned");
    for (name, value) in
        [("go_out", go), ("state_out", grown), ("stays_out", same), ("scanned", scanned)]
    {
        body.output(name, value, Meaning::Unknown);
    }
    let (count, go) =
        (main.int(3), main.constant(Constant { element: ElementType::Bool, ..bool_constant() }));
    let [state, stays, scanned] =
        main.op("Loop", [count, go, x, y]).attribute("body", body.finish()).outputs("loop");
    let mut graph = graph.finish();
    let found = infer(&mut graph).findings;
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(shown(&graph, state), "f32[?, 8]");
    assert_eq!(shown(&graph, stays), "f32[4]");
    assert_eq!(shown(&graph, scanned), "f32[?, 4]");
}

fn bool_constant() -> Constant {
    Constant { shape: Vec::new(), data: crate::ConstantData::Bytes(vec![1]), ..Constant::int(1) }
}

#[test]
fn branches_have_in_common_what_both_make() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("n 8"), Meaning::Unknown);
    let which = main.input("which", ElementType::Bool, [], Meaning::Unknown);
    let branch = |op: &str| {
        let mut body = BodyBuilder::default().finish();
        let outer = body.add_value("x", ValueType::Unknown, ValueOrigin::Outer(x));
        let y = body.add_value("y", ValueType::Unknown, ValueOrigin::Missing);
        body.add_node(crate::Node {
            name: "inner".to_owned(),
            op: crate::Op::onnx(op),
            inputs: vec![Some(outer)],
            outputs: vec![Some(y)],
            attributes: Vec::new(),
            doc: String::new(),
        });
        body.outputs.push(y);
        body
    };
    let node = main.op("If", [which]).attribute("then_branch", branch("Transpose"));
    let y = node.attribute("else_branch", branch("Relu")).output("if");
    let mut graph = graph.finish();
    assert!(infer(&mut graph).findings.is_empty());
    assert_eq!(shown(&graph, y), "f32[?, ?]");
    let inner = graph.body.nodes[0].bodies().next().unwrap();
    assert_eq!(inner.value(inner.outputs[0]).tensor().unwrap().to_string(), "f32[8, n]");
}

#[test]
fn a_graph_of_a_hundred_thousand_nodes_is_followed() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let mut x = main.input("x", ElementType::F32, sizes("batch sequence 320"), Meaning::Unknown);
    let w = main.weight("w", ElementType::F32, [320, 320]);
    for _ in 0..33_334 {
        let y = main.op("MatMul", [x, w]).output("product");
        let y = main.op("Add", [x, y]).output("sum");
        x = main.op("LayerNormalization", [y, w]).output("norm");
    }
    let mut graph = graph.finish();
    let found = infer(&mut graph).findings;
    assert!(found.list.iter().all(|finding| finding.severity != Severity::Error), "{found:?}");
    assert_eq!(shown(&graph, x), "f32[batch, sequence, 320]");
}

#[test]
fn functions_that_call_functions_too_deep_are_an_error_not_an_overflow() {
    let mut graph = GraphBuilder::new(17);
    let mut callee = crate::Op::onnx("Relu");
    for level in 0..10_000 {
        let mut body = BodyBuilder::default();
        let x = body.parameter("x");
        let y = body.call(&callee, [x]).output("call");
        body.output("y", y, Meaning::Unknown);
        callee = graph.function("apr", &format!("f{level}"), body);
    }
    let x = graph.body().input("x", ElementType::F32, sizes("n"), Meaning::Unknown);
    let y = graph.body().call(&callee, [x]).output("call");
    graph.body().output("y", y, Meaning::Unknown);
    let mut graph = graph.finish();
    let inference = infer(&mut graph);
    assert!(inference.findings.list[0].message.contains("nested more than 64 deep"));
    assert!(crate::inline(&graph).unwrap_err().to_string().contains("more than 64 deep"));
    let _ = crate::cost(&graph, &inference, &|_| None);
    assert!(crate::check(&graph).is_empty());
}

#[test]
fn tensors_of_ever_more_dimensions_are_an_error() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let mut x = main.input("x", ElementType::F32, sizes("n"), Meaning::Unknown);
    let axes = main.ints(&(0..30).collect::<Vec<_>>());
    for _ in 0..10 {
        x = main.op("Unsqueeze", [x, axes]).output("wider");
    }
    let found = infer(&mut graph.finish()).findings;
    assert_eq!(found.list[0].message, "Unsqueeze: the result has 91 dimensions, more than 64");
    assert_eq!(found.list.len(), 1);
}

#[test]
fn contents_larger_than_the_graph_are_dropped_with_a_notice() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let mut x = main.ints(&(0..60).collect::<Vec<_>>());
    let one = main.ints(&[1]);
    for _ in 0..40_000 {
        x = main.op("Add", [x, one]).output("sum");
    }
    let mut graph = graph.finish();
    let found = infer(&mut graph).findings;
    assert_eq!(found.list.len(), 1);
    assert!(found.list[0].message.contains("more memory than the graph's size justifies"));
    assert_eq!(shown(&graph, x), "i64[?]");
}

#[test]
fn a_branch_that_is_never_taken_does_not_affect_the_types() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("n 8"), Meaning::Unknown);
    let rank = main.op("Shape", [x]).output("shape");
    let rank = main.op("Size", [rank]).output("rank");
    let two = main.int(2);
    let which = main.op("Equal", [rank, two]).output("which");
    let branch = |op: &str, axis: i64| {
        let mut body = BodyBuilder::default();
        let y = body.op(op, []).attribute("axis", axis).output("y");
        body.output("y", y, Meaning::Unknown);
        let mut body = body.finish();
        let outer = body.add_value("outer", ValueType::Unknown, ValueOrigin::Outer(x));
        body.nodes[0].inputs = vec![Some(outer)];
        body
    };
    // An axis that there is not would be an error, were the branch ever taken.
    let node = main.op("If", [which]).attribute("then_branch", branch("Flatten", 0));
    let y = node.attribute("else_branch", branch("Softmax", 5)).output("if");
    let mut graph = graph.finish();
    let found = infer(&mut graph).findings;
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(shown(&graph, y), "f32[1, 8*n]");
}

/// Infers a graph with one call of a function with the body `write`, after applying `change`.
fn called(
    write: impl FnOnce(&mut BodyBuilder, ValueId) -> ValueId,
    change: impl FnOnce(&mut Graph),
) -> (Graph, String) {
    let mut graph = GraphBuilder::new(17);
    let mut body = BodyBuilder::default();
    let x = body.parameter("x");
    let y = write(&mut body, x);
    body.output("out", y, Meaning::Unknown);
    let op = graph.function("apr", "f", body);
    let x = graph.body().input("x", ElementType::F32, sizes("2 3"), Meaning::Unknown);
    let y = graph.body().call(&op, [x]).output("call");
    graph.body().output("y", y, Meaning::Unknown);
    let mut graph = graph.finish();
    change(&mut graph);
    let found = infer(&mut graph).findings;
    let kind = shown(&graph, graph.body.outputs[0]);
    let text = found.list.first().map_or(kind, ToString::to_string);
    (graph, text)
}

#[test]
fn attributes_of_a_call_and_of_calls_around_it_reach_the_operators() {
    let flatten = |body: &mut BodyBuilder, x| {
        body.op("Flatten", [x])
            .attribute("axis", crate::AttributeValue::OfCall("at".into()))
            .output("flat")
    };
    let at = |value: i64| crate::Attribute { name: "at".into(), value: value.into() };
    assert_eq!(called(flatten, |_| {}).1, "f32[2, 3]", "the operator's own default is 1");
    assert_eq!(called(flatten, |graph| graph.functions[0].defaults.push(at(2))).1, "f32[6, 1]");
    let both = |graph: &mut Graph| {
        graph.functions[0].defaults.push(at(2));
        graph.body.nodes[0].attributes.push(at(0));
    };
    assert_eq!(called(flatten, both).1, "f32[1, 6]", "the call's own");

    // A call within a function hands over what that function was called with.
    let (mut inner, _) = called(flatten, |_| {});
    inner.functions[0].body.values.iter_mut().for_each(|value| value.kind = ValueType::Unknown);
    let through = |name: &str| {
        let name = name.to_owned();
        called(
            |body, x| {
                let at = crate::AttributeValue::OfCall("outer".into());
                body.call(&crate::Op::new("apr", "f"), [x]).attribute("at", at).output("inner")
            },
            |graph| {
                graph.functions[0].op = crate::Op::new("apr", "g");
                graph.body.nodes[0].op = crate::Op::new("apr", "g");
                graph.functions.push(inner.functions[0].clone());
                graph.body.nodes[0]
                    .attributes
                    .push(crate::Attribute { name: name.as_str().into(), value: 2.into() });
            },
        )
        .1
    };
    assert_eq!(through("outer"), "f32[6, 1]");
    assert_eq!(through("other"), "f32[2, 3]");
}

#[test]
fn a_parameter_of_another_type_than_the_call_has_is_an_error() {
    let relu = |body: &mut BodyBuilder, x| body.op("Relu", [x]).output("y");
    let declared = |graph: &mut Graph| {
        let x = graph.functions[0].body.inputs[0];
        graph.functions[0].body.value_mut(x).kind =
            ValueType::tensor(ElementType::I64, sizes("2 3"));
    };
    let found = called(relu, declared).1;
    assert_eq!(
        found,
        "error: node 'call': apr::f: parameter 'x': i64[2, 3] is declared, and f32[2, 3] is made"
    );
    let constant = |body: &mut BodyBuilder, _| body.int(1);
    let declared = |graph: &mut Graph| {
        let body = &mut graph.functions[0].body;
        body.values.iter_mut().for_each(|value| value.kind = ValueType::Sequence(Box::default()));
    };
    let found = called(constant, declared).1;
    assert!(found.contains("a sequence is declared"), "{found}");
}

/// Checks that the inferred sizes win, as in onnxruntime: only an input with its own value must
/// match its declared shape.
#[test]
fn contradicting_declared_sizes_are_reported_and_inferred_sizes_win() {
    let relu = |body: &mut BodyBuilder, x| body.op("Relu", [x]).output("y");
    let declared = |graph: &mut Graph| {
        let y = graph.functions[0].body.outputs[0];
        graph.functions[0].body.value_mut(y).kind =
            ValueType::tensor(ElementType::F32, sizes("7 3"));
    };
    let (graph, found) = called(relu, declared);
    assert_eq!(
        found,
        "warning: node 'call/y': Relu: output 'out': f32[7, 3] is declared, and f32[2, 3] is made"
    );
    assert_eq!(shown(&graph, graph.body.outputs[0]), "f32[2, 3]");

    for (is_input, expected) in [(false, Severity::Warning), (true, Severity::Error)] {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let x = main.ints(&[1, 2]);
        let y = main.op("Neg", [x]).output("y");
        main.output("y", y, Meaning::Unknown);
        let mut graph = graph.finish();
        graph.body.value_mut(x).kind = ValueType::tensor(ElementType::I64, sizes("3"));
        graph.body.inputs.extend(is_input.then_some(x));
        let found = infer(&mut graph).findings;
        assert_eq!(found.list[0].severity, expected, "{found:?}");
    }
}

#[test]
fn branches_that_make_different_things_are_an_error() {
    let branches = |outputs: usize, element: ElementType, of_node: usize| {
        let branch = |count: usize, element: ElementType| {
            let mut body = BodyBuilder::default();
            for number in 0..count {
                let value = body.constant(Constant { element, ..Constant::float(0.0) });
                body.output(&format!("y{number}"), value, Meaning::Unknown);
            }
            body.finish()
        };
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let which = main.input("which", ElementType::Bool, [], Meaning::Unknown);
        let node = main.op("If", [which]).attribute("then_branch", branch(1, ElementType::F32));
        let _ = node.attribute("else_branch", branch(outputs, element)).output("if");
        let mut graph = graph.finish();
        for _ in 1..of_node {
            graph.body.nodes[0].outputs.push(None);
        }
        infer(&mut graph)
            .findings
            .list
            .first()
            .map_or(String::new(), |finding| finding.message.clone())
    };
    assert_eq!(branches(1, ElementType::F32, 1), "");
    assert_eq!(
        branches(2, ElementType::F32, 1),
        "If: the branches have 1 and 2 outputs, and the node 1"
    );
    assert_eq!(branches(1, ElementType::I32, 1), "If: f32[] and i32[] differ");
    assert_eq!(
        branches(1, ElementType::F32, 2),
        "If: the branches have 1 and 1 outputs, and the node 2"
    );
}

#[test]
fn a_loop_whose_body_makes_too_little_is_an_error() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("2"), Meaning::Unknown);
    let mut body = BodyBuilder::default();
    let (_, go) = (body.parameter("i"), body.parameter("go"));
    body.output("go_out", go, Meaning::Unknown);
    let (count, go) = (main.int(3), main.constant(bool_constant()));
    let _ = main.op("Loop", [count, go, x]).attribute("body", body.finish()).output("loop");
    let found = infer(&mut graph.finish()).findings;
    assert_eq!(found.list[0].message, "Loop: 'body' has 1 outputs, which are too few");
}

#[test]
fn types_nested_by_a_chain_are_given_up() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let mut x = main.input("x", ElementType::F32, [2.into()], Meaning::Unknown);
    for _ in 0..10_000 {
        x = main.op("Optional", [x]).output("o");
    }
    main.output("y", x, Meaning::Unknown);
    let mut graph = graph.finish();
    let found = infer(&mut graph).findings;
    let given_up = |finding: &crate::Finding| finding.message.contains("types within each other");
    assert!(found.list.iter().any(given_up));
}
