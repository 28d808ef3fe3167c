use super::super::outline;
use super::*;
use crate::{BodyBuilder, Dim, ElementType, GraphBuilder, Meaning};

fn layer(main: &mut BodyBuilder, name: &str, x: ValueId, mask: ValueId, op: &str) -> ValueId {
    main.scope(name, |main| {
        let weight = main.weight(&format!("{name}.weight"), ElementType::F32, [8, 8]);
        let y = main.scope("mlp", |main| {
            let y = main.op("MatMul", [x, weight]).output("up");
            main.op(op, [y, mask]).output("act")
        });
        main.op("Add", [x, y]).output("residual")
    })
}

fn model(ops: &[&str]) -> Graph {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let mut x =
        main.input("x", ElementType::F32, [Dim::symbol("n"), Dim::fixed(8)], Meaning::Unknown);
    let mask = main.input("mask", ElementType::F32, [Dim::fixed(8)], Meaning::Unknown);
    for (number, op) in ops.iter().enumerate() {
        x = layer(main, &format!("layers.{number}"), x, mask, op);
    }
    main.output("y", x, Meaning::Unknown);
    graph.finish()
}

fn names(scene: &Scene) -> Vec<(&str, u64)> {
    scene.items.iter().map(|item| (item.name.as_str(), item.times)).collect()
}

#[test]
fn layers_are_folded_and_keep_what_flows() {
    let scene = outline(&model(&["Mul"; 12]), OutlineOptions::default());
    assert_eq!(scene.items[2].output.as_deref(), None, "types are not inferred yet");
    assert_eq!(names(&scene), [("x", 1), ("mask", 1), ("layers.0-11", 12), ("y", 1)]);
    assert_eq!(scene.items[2].parameters, 12 * 64);
    let edges: Vec<_> = scene.edges.iter().map(|edge| (edge.from, edge.to)).collect();
    assert_eq!(
        edges,
        [
            (End::Item(0, 0), End::Item(2, 0)),
            (End::Item(1, 0), End::Item(2, 1)),
            (End::Item(2, 0), End::Item(3, 0)),
        ]
    );
    let inner = scene.items[2].scene().unwrap();
    assert_eq!(names(inner), [("mlp", 1), ("residual", 1)]);
    assert_eq!(inner.inputs.len(), 2);
    assert!(
        inner.edges.contains(&Edge { from: End::Border(0), to: End::Item(1, 0) }),
        "the residual"
    );
}

#[test]
fn unfolded_every_layer_is_an_item() {
    let scene = outline(&model(&["Mul"; 3]), OutlineOptions { fold: false });
    assert_eq!(scene.items.len(), 2 + 3 + 1);
}

#[test]
fn patterns_of_layers_are_groups_of_groups() {
    let scene =
        outline(&model(&["Mul", "Mul", "Add", "Mul", "Mul", "Add"]), OutlineOptions::default());
    assert_eq!(names(&scene)[2], ("layers.0-5", 2));
    assert_eq!(names(scene.items[2].scene().unwrap()), [("layers.0-1", 2), ("layers.2", 1)]);
}

#[test]
fn values_made_only_of_weights_are_shown_as_weights() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, [Dim::symbol("n"), Dim::fixed(8)], Meaning::Unknown);
    let w = main.weight("w", ElementType::BF16, [8, 8]);
    let cast = main.op("Cast", [w]).attribute("to", 1).output("w/cast");
    let y = main.op("MatMul", [x, cast]).output("project");
    main.output("y", y, Meaning::Unknown);
    let scene = outline(&graph.finish(), OutlineOptions::default());
    assert_eq!(names(&scene), [("x", 1), ("project", 1), ("y", 1)]);
    let ItemKind::Node { weights, .. } = &scene.items[1].kind else { panic!("a node") };
    assert_eq!((weights[0].tensor.as_str(), scene.items[1].parameters), ("w", 64));
}

#[test]
fn a_call_is_a_group_of_the_functions_nodes() {
    let mut graph = GraphBuilder::new(17);
    let mut block = BodyBuilder::default();
    let (x, w) = (block.parameter("x"), block.parameter("weight"));
    let y = block.op("MatMul", [x, w]).output("project");
    block.output("y", y, Meaning::Unknown);
    let block = graph.function("apr", "Block", block);
    let main = graph.body();
    let mut x =
        main.input("x", ElementType::F32, [Dim::symbol("n"), Dim::fixed(8)], Meaning::Unknown);
    for layer in 0..4 {
        let w = main.weight(&format!("w{layer}"), ElementType::F32, [8, 8]);
        x = main.call(&block, [x, w]).output(&format!("layers.{layer}"));
    }
    main.output("y", x, Meaning::Unknown);
    let scene = outline(&graph.finish(), OutlineOptions::default());
    assert_eq!(names(&scene), [("x", 1), ("layers.0-3", 4), ("y", 1)]);
    let inner = scene.items[1].scene().unwrap();
    assert_eq!((inner.inputs.len(), inner.items[0].parameters), (1, 64));
}

#[test]
fn a_path_of_many_parts_ends_somewhere() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, [], Meaning::Unknown);
    let y = main.op("Relu", [x]).output(&"a/".repeat(100_000));
    main.output("y", y, Meaning::Unknown);
    assert_eq!(outline(&graph.finish(), OutlineOptions::default()).items.len(), 3);
}
#[test]
fn a_node_with_branches_is_a_group_of_groups() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
    let which = main.input("which", ElementType::Bool, [], Meaning::Unknown);
    let branch = |op: &str| {
        let mut body = BodyBuilder::default();
        let weight = body.weight("inner", ElementType::F32, [5]);
        let y = body.op(op, [weight]).output("made");
        body.output("made", y, Meaning::Unknown);
        let mut body = body.finish();
        let outer = body.add_value("x", crate::ValueType::Unknown, ValueOrigin::Outer(x));
        body.nodes[0].inputs.push(Some(outer));
        body
    };
    let node = main.op("If", [which]).attribute("then_branch", branch("Add"));
    let y = node.attribute("else_branch", branch("Mul")).output("choice");
    main.output("y", y, Meaning::Unknown);
    let scene = outline(&graph.finish(), OutlineOptions::default());
    assert_eq!(names(&scene), [("x", 1), ("which", 1), ("choice", 1), ("y", 1)]);
    let flows = Edge { from: End::Item(0, 0), to: End::Item(2, 0) };
    assert!(scene.edges.iter().any(|edge| edge.from == flows.from), "a branch reads x");
    let branches = scene.items[2].scene().unwrap();
    assert_eq!(names(branches), [("then_branch", 1), ("else_branch", 1)]);
    let paths: Vec<_> =
        branches.items.iter().map(|item| (item.path.as_str(), item.parameters)).collect();
    assert_eq!(paths, [("choice/then_branch", 5), ("choice/else_branch", 5)]);
    let inner = branches.items[0].scene().unwrap();
    assert_eq!((inner.inputs[0].name.as_str(), names(inner)), ("x", vec![("made", 1)]));
}

#[test]
fn layers_with_other_settings_are_not_folded() {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let mut x = main.input("x", ElementType::F32, [Dim::symbol("n")], Meaning::Unknown);
    let settings: [(&str, &str, AttributeValue); 6] = [
        ("LeakyRelu", "alpha", 0.5.into()),
        ("LeakyRelu", "alpha", 0.5.into()),
        ("LeakyRelu", "alpha", 0.25.into()),
        ("Squeeze", "axes", [1].into()),
        ("Squeeze", "axes", [2].into()),
        ("Gelu", "approximate", "tanh".into()),
    ];
    for (layer, (op, name, value)) in settings.into_iter().enumerate() {
        x = main.scope(&format!("layers.{layer}"), |main| {
            main.op(op, [x]).attribute(name, value).output("act")
        });
    }
    main.output("y", x, Meaning::Unknown);
    let scene = outline(&graph.finish(), OutlineOptions::default());
    let times: Vec<_> = scene.items.iter().map(|item| item.times).collect();
    assert_eq!(times, [1, 2, 1, 1, 1, 1, 1]);
}
