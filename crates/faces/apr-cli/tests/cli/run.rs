//! `apr run`: the values of others, from models of every format.

use std::fs;

use serde_json::{Value, json};

use crate::support::Sandbox;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// Returns the outputs that transformers computes, from `fixtures/infer/tiny_llama.py`.
fn expected() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/infer/tiny_llama.json");
    serde_json::from_str(&fs::read_to_string(path).expect("the fixture")).expect("JSON")
}

fn sandbox() -> Sandbox {
    let ids = expected()["ids"].as_array().expect("ids").clone();
    let (mask, positions): (Vec<_>, Vec<_>) = (0..ids.len()).map(|at| (1, at)).unzip();
    let inputs =
        json!({ "input_ids": [ids], "attention_mask": [mask], "position_ids": [positions] });
    Sandbox::new().with("ids.json", inputs.to_string())
}

/// The logits after the last token.
fn logits(sandbox: &Sandbox, line: &str) -> Vec<f64> {
    let report = sandbox.apr(line).ok().json();
    let output = &report["outputs"][0];
    assert_eq!(output["name"], "logits");
    let values: Vec<f64> =
        output["values"].as_array().expect("values").iter().filter_map(Value::as_f64).collect();
    let vocabulary =
        output["shape"][2].as_u64().and_then(|size| usize::try_from(size).ok()).expect("a size");
    values[values.len() - vocabulary..].to_vec()
}

fn furthest(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn logits_match_transformers_in_every_container() {
    let theirs: Vec<f64> =
        expected()["logits"].as_array().expect("logits").iter().filter_map(Value::as_f64).collect();
    let largest = theirs.iter().map(|logit| logit.abs()).fold(0.0, f64::max);
    let sandbox = sandbox();
    sandbox.apr(&format!("import {FOLDER} -o m.apr")).ok();
    sandbox.apr("export m.apr --format onnx -o m.onnx").ok();
    for model in [FOLDER, "m.apr", "m.onnx"] {
        let ours = logits(&sandbox, &format!("run {model} -i ids.json --want logits --json"));
        assert!(furthest(&ours, &theirs) <= 1e-4 * largest, "{model}");
    }
}

#[test]
fn inputs_that_follow_from_the_tokens_need_not_be_given() {
    let sandbox = sandbox();
    let alone = json!({ "input_ids": [expected()["ids"]] });
    sandbox.write("alone.json", alone.to_string());
    sandbox.write("none.json", r#"{"attention_mask": [[1]]}"#);
    sandbox.apr(&format!("export {FOLDER} --format onnx --with-past -o past")).ok();
    for model in [FOLDER, "past/model.onnx"] {
        let run = |rest: &str| sandbox.apr(&format!("run {model} --want logits {rest}"));
        let whole = run("-i ids.json --json").ok().json();
        let alone = run("-i alone.json --json").ok().json();
        assert_eq!(whole["outputs"], alone["outputs"], "{model}");
        assert_eq!(alone["assumed"][0]["name"], "attention_mask", "{model}");
        run("-i alone.json").ok().says(&["default: position_ids = positions from 0"]);
        run("-i none.json").fails(2, &["missing inputs: ", "input_ids"]);
    }
}

#[test]
fn a_greedy_search_finds_the_tokens_that_transformers_finds() {
    let sandbox = Sandbox::new();
    for search in expected()["searches"].as_array().expect("searches") {
        let list = |name: &str| search[name].as_array().expect("tokens").clone();
        let (given, mut added) = (list("given"), list("added"));
        let ids: Vec<String> = given.iter().map(Value::to_string).collect();
        let report = sandbox
            .apr(&format!("run {FOLDER} --tokens {} --max-tokens 24 --json", ids.join(",")))
            .ok()
            .json();
        added.pop();
        assert_eq!((&report["added"], &report["ended"]), (&Value::Array(added), &json!("end")));
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let sandbox = sandbox();
    let run = |threads: u32| {
        sandbox.apr(&format!("run {FOLDER} -i ids.json --json --threads {threads}")).ok().json()
    };
    assert_eq!(run(1)["outputs"], run(3)["outputs"]);
}

#[test]
fn the_same_seed_leads_to_the_same_tokens() {
    let sandbox = Sandbox::new();
    let run = |seed: u32| {
        let line = format!(
            "run {FOLDER} --tokens 72 --max-tokens 16 --temperature 2 --top-p 0.95 --seed {seed} \
             --json"
        );
        sandbox.apr(&line).ok().json()["added"].clone()
    };
    assert_eq!(run(1), run(1));
    assert!((2..8).any(|seed| run(seed) != run(1)));
}

#[test]
fn a_mismatch_is_reported_with_its_name() {
    let sandbox = sandbox().with("odd.json", "[[1], [2, 3]]").with("x.json", r#"{"nobody": [1]}"#);
    let run = |rest: &str| sandbox.apr(&format!("run {FOLDER} {rest}"));
    run("").fails(2, &["missing prompt: pass --prompt TEXT"]);
    run("-i input_ids=odd.json")
        .fails(4, &["odd.json", "input_ids", "nested lists have different lengths"]);
    run("-i x.json").fails(2, &["no input 'nobody'"]);
    run("-i ids.json --want nothing").fails(1, &["no value 'nothing'"]);
    run("-i ids.json --max-memory 4KB").fails(4, &["E008", "node '"]);
}

#[test]
fn any_value_within_the_blocks_is_shown_by_its_path() {
    let sandbox = Sandbox::new();
    let wanted = "--want layers.1/attention/probs --want layers.0 --json";
    let json = sandbox.apr(&format!("run {FOLDER} --prompt 12+34= {wanted}")).ok().json();
    let attention = &json["outputs"][0];
    assert_eq!(attention["name"], "layers.1/attention/probs");
    assert_eq!(attention["shape"], json!([1, 4, 7, 7]));
    let values: Vec<f64> =
        attention["values"].as_array().expect("values").iter().filter_map(Value::as_f64).collect();
    for (number, row) in values.chunks(7).enumerate() {
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{row:?}");
        assert!(
            row[number % 7 + 1..].iter().all(|&share| share == 0.0),
            "nothing looks ahead: {row:?}"
        );
    }
    assert_eq!(json["outputs"][1]["shape"], json!([1, 7, 128]));
    let tokens =
        sandbox.apr(&format!("run {FOLDER} --tokens 256,49,50,43,51,52,61 {wanted}")).ok().json();
    assert_eq!(tokens["outputs"], json["outputs"]);

    let similar = "no value 'layers.1/attention/prob'; nearest names:\n  layers.1/attention/probs";
    let run = |rest: &str| sandbox.apr(&format!("run {FOLDER} --prompt 12 {rest}"));
    run("--want layers.1/attention/prob").fails(1, &[similar]);
    run("--want lgits").fails(1, &["no value 'lgits'; nearest names:\n  logits\n"]);
    run("--want nosuch").fails(1, &["no value 'nosuch' and no similar name;"]);
    run("--want logits --chat").fails(2, &["apply to text generation, which --want does not do"]);
    run("--want logits --max-tokens 3").fails(2, &["--max-tokens"]);
    run("--want logits --prompt 34").fails(2, &["one text at a time"]);
}
