//! How long it takes to understand a graph of many nodes, as an exporter writes it: every layer by
//! itself.
//!
//! `cargo run --profile dist -p apr-graph --example large_graph -- [LAYERS]`; a layer has 50 nodes.
#![allow(clippy::print_stdout, reason = "it is an example")]

use std::time::Instant;

use apr_graph::outline::{OutlineOptions, outline};
use apr_graph::{
    BodyBuilder, Dim, ElementType, Graph, GraphBuilder, Meaning, ValueId, check, cost, infer,
};

const HIDDEN: u64 = 64;
const HEADS: u64 = 4;

fn main() {
    let layers = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2000);
    let mut graph = model(layers);
    println!("{} nodes", graph.body.nodes.len());
    let mut total = 0.0;
    let mut report = |what: &str, start: Instant| {
        let seconds = start.elapsed().as_secs_f64();
        total += seconds;
        println!("{what}: {seconds:.3} s");
    };
    let start = Instant::now();
    let inference = infer(&mut graph);
    report("inferred", start);
    let start = Instant::now();
    let scene = outline(&graph, OutlineOptions { fold: true });
    report(&format!("folded to {} rows", scene.items.len()), start);
    let start = Instant::now();
    let findings = check(&graph);
    report(
        &format!("checked, {} findings", findings.list.len() + inference.findings.list.len()),
        start,
    );
    let start = Instant::now();
    let costs = cost(&graph, &inference, &|_| Some(8));
    report(&format!("{} FLOP counted", costs.totals.flops), start);
    println!("together: {total:.3} s");
}

/// A decoder whose layers are written out.
fn model(layers: u64) -> Graph {
    let mut graph = GraphBuilder::new(17);
    let main = graph.body();
    let sizes = [Dim::symbol("batch_size"), Dim::symbol("sequence_length"), Dim::fixed(HIDDEN)];
    let mut x = main.input("x", ElementType::F32, sizes, Meaning::Unknown);
    for number in 0..layers {
        x = main.scope(&format!("layers.{number}"), |main| layer(main, number, x));
    }
    main.output("y", x, Meaning::Unknown);
    graph.finish()
}

/// Adds a layer of fifty nodes.
fn layer(main: &mut BodyBuilder, number: u64, x: ValueId) -> ValueId {
    let weight = |main: &mut BodyBuilder, name: &str, shape: &[u64]| {
        main.weight(&format!("layers.{number}.{name}"), ElementType::F32, shape.iter().copied())
    };
    let gamma = weight(main, "norm1", &[HIDDEN]);
    let normed = norm(main, "attention_norm", gamma, x);
    let heads = ["query", "key", "value"].map(|name| {
        let projected = weight(main, name, &[HIDDEN, HIDDEN]);
        let projected = main.op("MatMul", [normed, projected]).output(name);
        let shape = main.op("Shape", [projected]).output(&format!("{name}_shape"));
        let (front, behind) =
            (main.ints(&[0, 1]), main.ints(&[HEADS.cast_signed(), (HIDDEN / HEADS).cast_signed()]));
        let sizes = main.op("Gather", [shape, front]).output(&format!("{name}_sizes"));
        let sizes = main
            .op("Concat", [sizes, behind])
            .attribute("axis", 0)
            .output(&format!("{name}_target"));
        let split = main.op("Reshape", [projected, sizes]).output(&format!("{name}_heads"));
        let order = vec![0_i64, 2, 1, 3];
        main.op("Transpose", [split]).attribute("perm", order).output(&format!("{name}_by_head"))
    });
    let turned = main
        .op("Transpose", [heads[1]])
        .attribute("perm", vec![0_i64, 1, 3, 2])
        .output("key_transposed");
    let scores = main.op("MatMul", [heads[0], turned]).output("scores");
    let scale = main.float(0.25);
    let scaled = main.op("Mul", [scores, scale]).output("scaled");
    let shares = main.op("Softmax", [scaled]).attribute("axis", -1).output("probs");
    let mixed = main.op("MatMul", [shares, heads[2]]).output("context");
    let back =
        main.op("Transpose", [mixed]).attribute("perm", vec![0_i64, 2, 1, 3]).output("by_token");
    let whole = main.ints(&[0, 0, HIDDEN.cast_signed()]);
    let context = main.op("Reshape", [back, whole]).output("context");
    let output = weight(main, "output", &[HIDDEN, HIDDEN]);
    let attended = main.op("MatMul", [context, output]).output("attended");
    let x = main.op("Add", [x, attended]).output("attention_sum");

    let gamma = weight(main, "norm2", &[HIDDEN]);
    let normed = norm(main, "mlp_norm", gamma, x);
    let [gate, up] = ["gate", "up"].map(|name| {
        let projected = weight(main, name, &[HIDDEN, 2 * HIDDEN]);
        main.op("MatMul", [normed, projected]).output(name)
    });
    let sigmoid = main.op("Sigmoid", [gate]).output("sigmoid");
    let silu = main.op("Mul", [gate, sigmoid]).output("silu");
    let gated = main.op("Mul", [silu, up]).output("gated");
    let down = weight(main, "down", &[2 * HIDDEN, HIDDEN]);
    let made = main.op("MatMul", [gated, down]).output("down");
    let y = main.op("Add", [x, made]).output("mlp_sum");
    // What exporters leave behind.
    ["a", "b", "c"].iter().fold(y, |y, name| main.op("Identity", [y]).output(name))
}

/// Root mean square, seven nodes.
fn norm(main: &mut BodyBuilder, name: &str, gamma: ValueId, x: ValueId) -> ValueId {
    main.scope(name, |main| {
        let two = main.float(2.0);
        let epsilon = main.float(1e-5);
        let square = main.op("Pow", [x, two]).output("square");
        let mean = main.op("ReduceMean", [square]).attribute("axes", vec![-1_i64]).output("mean");
        let shifted = main.op("Add", [mean, epsilon]).output("shifted");
        let root = main.op("Sqrt", [shifted]).output("root");
        let inverse = main.op("Reciprocal", [root]).output("inverse");
        let scaled = main.op("Mul", [x, inverse]).output("scaled");
        main.op("Mul", [scaled, gamma]).output("weighted")
    })
}
