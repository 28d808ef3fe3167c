use super::*;
use crate::{AttributeValue, BodyBuilder, ElementType, GraphBuilder, ValueId, WeightRef, infer};

fn sizes(text: &str) -> Vec<Dim> {
    text.split(' ').map(Dim::parse).collect()
}

fn of(graph: GraphBuilder, size: u64) -> Cost {
    let mut graph = graph.finish();
    let inference = infer(&mut graph);
    assert!(inference.findings.is_empty(), "{:?}", inference.findings);
    cost(&graph, &inference, &|_| Some(size))
}

/// Returns the FLOPs of the nodes that `write` adds to a graph with the input `x`.
fn flops(shape: &str, write: impl FnOnce(&mut BodyBuilder, ValueId)) -> u64 {
    let mut graph = GraphBuilder::new(23);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes(shape), Meaning::Unknown);
    write(main, x);
    of(graph, 7).totals.flops
}

#[test]
fn two_operations_for_each_multiplication_that_is_added_up() {
    let counted = flops("n 320", |main, x| {
        let w = main.weight("w", ElementType::F32, [320, 64]);
        main.op("MatMul", [x, w]).output("y");
    });
    assert_eq!(counted, 2 * 7 * 320 * 64);
    let counted = flops("1 3 224 224", |main, x| {
        let w = main.weight("w", ElementType::F32, [64, 3, 7, 7]);
        let conv =
            main.op("Conv", [x, w]).attribute("pads", [3, 3, 3, 3]).attribute("strides", [2, 2]);
        conv.output("y");
    });
    assert_eq!(counted, 236_027_904, "ResNet's first layer: 118 million multiplications");
    let counted = flops("2 5 11 64", |main, x| {
        main.op("Attention", [x, x, x]).output("y");
    });
    assert_eq!(counted, 2 * 5 * (2 * 2 * 11 * 11 * 64 + 11 * 11));
    let counted = flops("3 4 5", |main, x| {
        main.op("Einsum", [x, x]).attribute("equation", "bij,bkj->bik").output("y");
    });
    assert_eq!(counted, 2 * 3 * 4 * 5 * 4);
}

#[test]
fn moving_elements_costs_no_operations() {
    let counted = flops("n 320", |main, x| {
        let y = main.op("Transpose", [x]).output("turned");
        main.op("Relu", [y]).output("y");
    });
    assert_eq!(counted, 7 * 320);
}

#[test]
fn a_function_is_counted_once_and_multiplied_by_its_calls() {
    let mut graph = GraphBuilder::new(17);
    let mut inner = BodyBuilder::default();
    let (x, w) = (inner.parameter("x"), inner.parameter("w"));
    let y = inner.op("MatMul", [x, w]).output("product");
    inner.output("y", y, Meaning::Unknown);
    let linear = graph.function("apr", "linear", inner);
    let mut block = BodyBuilder::default();
    let (x, w) = (block.parameter("x"), block.parameter("w"));
    let once = block.call(&linear, [x, w]).output("first");
    let twice = block.call(&linear, [once, w]).output("second");
    block.output("y", twice, Meaning::Unknown);
    let block = graph.function("apr", "block", block);
    let main = graph.body();
    let mut x = main.input("x", ElementType::F32, sizes("n 8"), Meaning::Unknown);
    for layer in 0..3 {
        let w = main.weight(&format!("layers.{layer}.w"), ElementType::F32, [8, 8]);
        x = main
            .scope(&format!("layers.{layer}"), |main| main.call(&block, [x, w]).output("block"));
    }
    main.output("y", x, Meaning::Unknown);
    let cost = of(graph, 5);
    let product = 2 * 5 * 8 * 8;
    assert_eq!(cost.totals.flops, 6 * product);
    assert_eq!(cost.below("layers.1").flops, 2 * product);
    assert_eq!(cost.by_part().len(), 3);
    let calls: Vec<_> =
        cost.functions.iter().map(|function| (function.calls, function.each.flops)).collect();
    assert_eq!(calls, [(6, product), (3, 2 * product)]);
    assert_eq!((cost.parameters, cost.parameter_bytes), (3 * 64, 3 * 256));
}

#[test]
fn weights_in_constant_nodes_are_parameters() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("3 4"), Meaning::Unknown);
    let stored = AttributeValue::Weight(WeightRef::whole("few"));
    let w = main.op("Constant", []).attribute("value", stored).output("few");
    let y = main.op("Add", [x, w]).output("y");
    main.output("y", y, Meaning::Unknown);
    let mut graph = graph.finish();
    graph.body.value_mut(w).kind = graph.body.value(x).kind.clone();
    let inference = infer(&mut graph);
    let cost = cost(&graph, &inference, &|_| None);
    assert_eq!((cost.parameters, cost.parameter_bytes), (12, 48));
}

#[test]
fn values_are_in_memory_until_they_are_read_for_the_last_time() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("256"), Meaning::Unknown);
    let axes = main.ints(&[0]);
    let row = main.op("Unsqueeze", [x, axes]).output("row");
    let a = main.op("Exp", [row]).output("a");
    let b = main.op("Neg", [a]).output("b");
    let wide = main.op("Concat", [a, b]).attribute("axis", 0).output("wide");
    let sum = main.op("ReduceSum", [wide]).attribute("keepdims", 0).output("sum");
    main.output("sum", sum, Meaning::Unknown);
    let cost = of(graph, 1);
    // x goes after `a` is made; then a and b, 1 KiB each, and both of them side by side.
    assert_eq!(cost.peak_bytes, 4 * 1024);
    assert_eq!(cost.peak_at, "wide");
}

#[test]
fn a_loop_counts_as_often_as_it_runs() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("n"), Meaning::Unknown);
    let go = main.input("go", ElementType::Bool, [], Meaning::Unknown);
    let mut body = BodyBuilder::default();
    let (_, go_on, state) = (body.parameter("i"), body.parameter("go"), body.parameter("state"));
    let go_on = body.op("Identity", [go_on]).output("on");
    let next = body.op("Exp", [state]).output("next");
    body.output("go_out", go_on, Meaning::Unknown);
    body.output("state_out", next, Meaning::Unknown);
    let count = main.int(10);
    main.op("Loop", [count, go, x]).attribute("body", body.finish()).output("y");
    assert_eq!(of(graph, 100).totals.flops, 1000);
}

#[test]
fn each_token_adds_its_keys_and_values_to_the_cache() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    for layer in 0..2 {
        for (name, meaning) in [("key", Meaning::PastKey), ("value", Meaning::PastValue)] {
            let name = format!("past_key_values.{layer}.{name}");
            main.input(&name, ElementType::F16, sizes("batch 3 past 64"), meaning);
        }
    }
    assert_eq!(of(graph, 1).cache_bytes_per_token, 2 * 2 * 3 * 64 * 2);
}

#[test]
fn activations_exclude_states_and_outputs_that_are_not_requested() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let past = main.input("past", ElementType::F32, sizes("1 2 256 64"), Meaning::PastKey);
    let x = main.input("x", ElementType::F32, sizes("1 2 1 64"), Meaning::Unknown);
    let new = main.op("Neg", [x]).output("new");
    let all = main.op("Concat", [past, new]).attribute("axis", 2).output("present");
    main.output("present", all, Meaning::PresentKey);
    let w = main.weight("w", ElementType::F32, [64, 1000]);
    let logits = main.op("MatMul", [x, w]).output("logits");
    main.output("logits", logits, Meaning::Logits);
    let mut graph = graph.finish();
    let inference = infer(&mut graph);
    let of = |wanted: &dyn Fn(&crate::Value) -> bool| {
        activations(&graph, &inference, &|_| None, wanted).bytes
    };
    // The input and its negative have 512 bytes each, the logits of two heads 8,000.
    assert_eq!(of(&|value| value.meaning != Meaning::Logits), 2 * 512);
    assert_eq!(of(&|_| true), 512 + 8000);
}

#[test]
fn a_size_that_is_not_known_is_counted_as_unknown() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, sizes("n"), Meaning::Unknown);
    main.op("Exp", [x]).output("y");
    let mut graph = graph.finish();
    let inference = infer(&mut graph);
    let cost = cost(&graph, &inference, &|_| None);
    assert_eq!((cost.totals.flops, cost.totals.unknown), (0, 1));
}
