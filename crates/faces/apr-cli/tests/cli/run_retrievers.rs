//! Sparse encoders, late interaction and EmbeddingGemma: vectors are those of
//! sentence-transformers.

use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::run_rerankers::write;
use crate::support::{Run, Sandbox};

fn cases() -> Value {
    let all = fs::read_to_string(locate::fixture("run/retrievers.json")).expect("the fixture");
    serde_json::from_str(&all).expect("JSON")
}

fn run(cases: &Value, sandbox: &Sandbox, model: &str, more: &[&str]) -> Run {
    let mut line = vec!["run", model, "--json"];
    for text in cases["documents"].as_array().expect("documents") {
        line.extend(["--prompt", text.as_str().expect("a text")]);
    }
    line.extend(more);
    sandbox.run(&line)
}

/// A number, or numbers within each other, one after the other.
fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        value => vec![value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))],
    }
}

/// Returns the vector of a text, or the vectors of its tokens.
fn vector(made: &Value) -> Vec<f64> {
    let Some(words) = made.get("words") else {
        return flat(made.get("vectors").unwrap_or_else(|| &made["vector"]));
    };
    let size = made["size"].as_u64().expect("a size");
    let mut all = vec![0.0; usize::try_from(size).expect("a small one")];
    for word in words.as_array().expect("words") {
        let id = usize::try_from(word["id"].as_u64().expect("an id")).expect("a small one");
        all[id] = word["weight"].as_f64().expect("a weight");
    }
    all
}

#[track_caller]
fn assert_close(made: &[f64], expected: &[f64], what: &str) {
    assert_eq!(made.len(), expected.len(), "{what}");
    let most = made.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(most <= 1e-5, "{what}: {most}");
}

#[test]
fn vectors_of_every_kind_match_sentence_transformers() {
    let cases = cases();
    let models = cases["models"].as_object().expect("models");
    assert!(models.len() >= 12, "{}", models.len());
    for (name, case) in models {
        let sandbox = Sandbox::new();
        write(&sandbox, name, case);
        sandbox.apr(&format!("import {name} -o m.apr")).ok();
        for model in [name, "m.apr"] {
            let report = run(&cases, &sandbox, model, &[]).ok().json();
            let expected = case["vectors"].as_array().expect("vectors");
            let results = report["results"].as_array().expect("results");
            assert_eq!(results.len(), expected.len());
            for (made, expected) in results.iter().zip(expected) {
                assert_close(&vector(made), &flat(expected), &format!("{name}, {model}"));
            }
        }
        let Some(scores) = case.get("scores") else { continue };
        let query = cases["query"].as_str().expect("a query");
        let report = run(&cases, &sandbox, name, &["--query", query]).ok().json();
        assert_eq!(report["activation"], "identity");
        for document in report["documents"].as_array().expect("documents") {
            let index = usize::try_from(document["index"].as_u64().expect("one")).expect("small");
            assert_close(&flat(&document["score"]), &flat(&scores[index]), name);
        }
    }
}

#[test]
fn an_export_contains_the_vectors_and_reports_what_it_cannot_store() {
    let cases = cases();
    for name in ["splade", "splade_sum", "splade_most", "gemma"] {
        let (sandbox, case) = (Sandbox::new(), &cases["models"][name]);
        write(&sandbox, name, case);
        sandbox.apr(&format!("export {name} --format onnx -o out")).ok();
        for is_alone in [false, true] {
            if is_alone {
                fs::remove_file(sandbox.path("out/modules.json")).expect("it was copied");
            }
            let report = run(&cases, &sandbox, "out", &[]).ok().json();
            let made: Vec<f64> =
                report["results"].as_array().expect("results").iter().flat_map(vector).collect();
            assert_close(&made, &flat(&case["vectors"]), &format!("{name}, {is_alone}"));
        }
    }
    let sandbox = Sandbox::new();
    for (name, lost) in
        [("splade", "SpladePooling"), ("late_skip", "MultiVectorMask"), ("gemma", "2_Dense")]
    {
        write(&sandbox, name, &cases["models"][name]);
        let report = sandbox.apr(&format!("convert {name} -o m.gguf -f --json")).ok().json();
        assert!(report["losses"].to_string().contains(lost), "{}", report["losses"]);
    }
    sandbox.apr("convert gemma -o m.gguf -f").ok().says(&["'use_bidirectional_attention' is true"]);
    let late = sandbox.apr("export late_skip --format onnx -o late").ok();
    late.says(&["the modules that compute the compared vectors remain"]);
}

#[test]
fn what_vectors_of_words_and_tokens_do_not_take_is_refused() {
    let cases = cases();
    let sandbox = Sandbox::new();
    for name in ["splade", "late", "gemma"] {
        write(&sandbox, name, &cases["models"][name]);
    }
    let fails = |model: &str, more: &[&str], text: &str| {
        run(&cases, &sandbox, model, more).fails(2, &[text]);
    };
    fails("splade", &["--dimensions", "3"], "a number per word");
    fails("splade", &["--pooling", "cls"], "without pooling");
    fails("late", &["--pooling", "cls"], "a vector per token");
    fails("late", &["-o", "x.npy"], "the vectors of the tokens of one text");
    sandbox.apr("run late --prompt cat -o x.npy").ok();
    run(&cases, &sandbox, "splade", &["-o", "y.npy"]).ok();

    // Modules that are not known are named.
    for class in ["WordEmbeddings", "BoW", "WordWeights", "WeightedLayerPooling", "NVEmbed"] {
        let module = |index: u32, path: &str, class: &str| {
            let kind = format!("sentence_transformers.models.{class}");
            json!({ "idx": index, "name": index.to_string(), "path": path, "type": kind })
        };
        let modules = json!([module(0, "", "Transformer"), module(1, "1_Other", class)]);
        sandbox.write("gemma/modules.json", modules.to_string());
        run(&cases, &sandbox, "gemma", &[]).fails(4, &["E003", &format!("'{class}'")]);
    }
}
