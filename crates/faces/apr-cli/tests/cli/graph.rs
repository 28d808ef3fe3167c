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
    costs.clean().says(&["  32.7 kFLOP", "  65.5 kFLOP", "<1 %"]);
    sandbox.apr(&line("--format svg -o m.svg")).clean();
    let svg = std::fs::read_to_string(sandbox.path("m.svg")).expect("a picture");
    assert!(
        svg.starts_with("<svg") && svg.contains("× 2") && svg.contains("prefers-color-scheme:dark")
    );
    sandbox.apr(&line("--format svg -o m.svg")).fails(1, &["E007", "exists already"]);
    sandbox.apr(&line("-o named.svg")).clean();
    assert_eq!(std::fs::read_to_string(sandbox.path("named.svg")).expect("a picture"), svg);
    sandbox.apr(&line("--node layers.1/attention/query")).clean().says(&[
        "MatMul",
        "layers.1.attn.q_proj.weight",
        "std",
    ]);
    sandbox.apr(&line("--node attention/querie")).fails(1, &["no node", "attention/query"]);
    sandbox.apr(&line("--node nosuch")).fails(1, &["no node 'nosuch'; nearest names:\n  "]);
    for typed in ["layers.1/attention/querie", "layer.1/attention/query"] {
        let expected = ["no node", "nearest names:\n  layers.1/attention/query\n"];
        sandbox.apr(&line(&format!("--node {typed}"))).fails(1, &expected);
    }
}
