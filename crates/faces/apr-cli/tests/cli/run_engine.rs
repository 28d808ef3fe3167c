//! `apr run`: other engines' tokens, and results within little memory.

use std::fs;

use apr_testkit::locate::shared_data;
use serde_json::Value;

use crate::support::Sandbox;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// The token that ends a text of fixtures/tiny-llama.
const END: u64 = 257;

/// Written by `fixtures/infer/ggml_tokens.py`.
fn expected() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/infer/ggml_tokens.json");
    serde_json::from_str(&fs::read_to_string(path).expect("the fixture")).expect("JSON")
}

fn assert_same_tokens(sandbox: &Sandbox, model: &str, searches: &Value) {
    for search in searches.as_array().expect("searches") {
        let given: Vec<String> =
            search["given"].as_array().expect("tokens").iter().map(Value::to_string).collect();
        let line = format!("run {model} --tokens {} --max-tokens 24 --json", given.join(","));
        let report = sandbox.apr(&line).ok().json();
        let (ours, theirs) = (
            report["added"].as_array().expect("tokens"),
            search["added"].as_array().expect("tokens"),
        );
        assert!(theirs.starts_with(ours), "{model}, after {given:?}: {ours:?} and {theirs:?}");
        // llama.cpp's search was not told to end with the token that ends the text.
        let whole = ours.len() == theirs.len();
        assert!(
            whole || report["ended"] == "end" && theirs[ours.len()] == END,
            "{model}, after {given:?}: {ours:?}"
        );
    }
}

#[test]
fn a_greedy_search_in_a_gguf_file_finds_the_tokens_that_llama_cpp_finds() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("export {FOLDER} --format gguf -o f16.gguf")).ok();
    assert_same_tokens(&sandbox, "f16.gguf", &expected()["tiny"]);
}

#[test]
fn a_trained_model_generates_the_same_story_as_llama_cpp() {
    let expected = expected();
    let Some(model) = shared_data(expected["file"].as_str().expect("a path")) else { return };
    assert_same_tokens(&Sandbox::new(), &model.display().to_string(), &expected["stories"]);
}

#[test]
fn a_model_that_does_not_fit_the_memory_gives_the_same_tokens() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {FOLDER} -o m.apr")).ok();
    let tokens = |memory: &str| {
        let report = sandbox
            .apr(&format!("run m.apr --tokens 1,5,20,7 --max-tokens 8 --json {memory}"))
            .ok()
            .json();
        report["added"].clone()
    };
    // The weights take 0.7 MB.
    assert_eq!(tokens("--max-memory 400000"), tokens(""));
}
