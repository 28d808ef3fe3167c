//! `apr graph`, and what other commands say of graphs.

use crate::support::Sandbox;

#[test]
fn a_tree_folds_layers_and_a_picture_shows_them_once() {
    let sandbox = Sandbox::new();
    let model = apr_testkit::locate::fixture("tiny-llama");
    let line = |options: &str| format!("graph {} {options}", model.display());
    sandbox.apr(&line("")).clean().says(&["layers.0-1 × 2", "head/logits", "input_ids", "FLOP"]);
    sandbox.apr(&line("--size sequence_length=7")).clean().says(&["sequence_length 7"]);
    // Of one token: 2 x 128 x 128 for the queries, 2 x 128 x 256 for the gate.
    let costs = sandbox.apr(&line("--costs --size sequence_length=1"));
    costs.clean().says(&["  32.8 kFLOP", "  65.5 kFLOP", "<1 %"]);
    sandbox.apr(&line("--format svg -o m.svg")).clean();
    let svg = std::fs::read_to_string(sandbox.path("m.svg")).expect("a picture");
    assert!(
        svg.starts_with("<svg") && svg.contains("× 2") && svg.contains("prefers-color-scheme:dark")
    );
    sandbox.apr(&line("--format svg -o m.svg")).fails(1, &["E007", "already exists"]);
    sandbox.apr(&line("-o named.svg")).clean();
    assert_eq!(std::fs::read_to_string(sandbox.path("named.svg")).expect("a picture"), svg);
    sandbox.apr(&line("--node layers.1/attention/query")).clean().says(&[
        "MatMul",
        "layers.1.attn.q_proj.weight",
        "std",
    ]);
    sandbox.apr(&line("--node attention/querie")).fails(1, &["no node", "attention/query"]);
    sandbox.apr(&line("--node nosuch")).fails(1, &["no node 'nosuch' and no similar name;"]);
    for typed in ["layers.1/attention/querie", "layer.1/attention/query"] {
        let expected = ["no node", "nearest names:\n  layers.1/attention/query\n"];
        sandbox.apr(&line(&format!("--node {typed}"))).fails(1, &expected);
    }
}

#[test]
fn an_output_with_another_extension_is_rejected() {
    let sandbox = Sandbox::new();
    let model = apr_testkit::locate::fixture("tiny-llama");
    let line = |options: &str| format!("graph {} {options}", model.display());
    let formats = "pass --format tree, svg, dot, mermaid or json";
    for options in ["-o g.png", "-o g.foo", "--json -o g.pdf"] {
        sandbox.apr(&line(options)).fails(2, &["extension", formats]);
    }
    sandbox.apr(&line("--node layers.1/attention/query -o g.svg")).fails(2, &["--node"]);
    assert_eq!(sandbox.files(), Vec::<String>::new());
    sandbox.apr(&line("--format tree -o g.foo")).clean();
    sandbox.apr(&line("-o g.txt")).clean();
    assert_eq!(sandbox.read("g.foo"), sandbox.read("g.txt"));
}

#[test]
fn numbers_of_a_graph_are_rounded_as_in_other_reports() {
    let sandbox = Sandbox::new();
    let model = apr_testkit::locate::fixture("tiny-llama");
    let graph = sandbox.apr(&format!("graph {} --costs", model.display())).clean();
    let parts = ["362 k parameters", "33.2 k", "132 KB", "share  operations, bytes moved"];
    let text = graph.says(&parts).text();
    assert!(!text.contains("kB") && !text.contains("33.1 k"), "{text}");
    assert!(!sandbox.apr(&format!("graph {}", model.display())).text().contains("share"));
}

#[test]
fn weights_in_constant_nodes_count_as_parameters() {
    let sandbox = Sandbox::new();
    let model = apr_testkit::locate::fixture("onnx/scarce.onnx");
    let inspected = sandbox.apr(&format!("inspect {} --json", model.display())).ok().json();
    let graph = sandbox.apr(&format!("graph {} --json", model.display())).ok().json();
    assert_eq!(inspected["parameters"], 48);
    assert_eq!(inspected["companions"], serde_json::json!([]), "the graph is the file itself");
    assert_eq!(graph["parts"][0]["parameters"], 48, "{graph}");
}
