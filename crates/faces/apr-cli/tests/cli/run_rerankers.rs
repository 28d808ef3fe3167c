//! Rerankers: scores are those of `CrossEncoder` of sentence-transformers, whatever the model is
//! stored as.

use std::fs;

use apr_testkit::{from_base64, locate};
use serde_json::Value;

use crate::support::{Run, Sandbox};

struct Cases {
    query: String,
    documents: Vec<String>,
    models: Vec<(String, Value)>,
}

fn cases() -> Cases {
    let all = fs::read_to_string(locate::fixture("run/rerankers.json")).expect("the fixture");
    let all: Value = serde_json::from_str(&all).expect("JSON");
    let models = all["models"].as_object().expect("models");
    Cases {
        query: all["query"].as_str().expect("a query").to_owned(),
        documents: serde_json::from_value(all["documents"].clone()).expect("documents"),
        models: models.iter().map(|(name, case)| (name.clone(), case.clone())).collect(),
    }
}

impl Cases {
    fn case(&self, name: &str) -> &Value {
        &self.models.iter().find(|(it, _)| it == name).expect("a case").1
    }

    fn rank(&self, sandbox: &Sandbox, model: &str, more: &[&str]) -> Run {
        let mut line = vec!["run", model, "--query", &self.query, "--json"];
        self.documents.iter().for_each(|text| line.extend(["--prompt", text]));
        line.extend(more);
        sandbox.run(&line)
    }
}

/// Writes the files of a case.
pub(crate) fn write(sandbox: &Sandbox, name: &str, case: &Value) {
    for (file, text) in case["files"].as_object().expect("files") {
        let text = text.as_str().expect("a text");
        let is_text = file.ends_with(".json") || file.ends_with(".jinja");
        let bytes = if is_text { text.as_bytes().to_vec() } else { from_base64(text) };
        sandbox.write(&format!("{name}/{file}"), bytes);
    }
}

/// Returns a number, or the numbers of the labels.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(numbers) => numbers.iter().map(|it| it.as_f64().expect("one")).collect(),
        value => vec![value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))],
    }
}

/// Compares the result for each document with that of sentence-transformers, and returns the number
/// compared.
///
/// Documents that only one of the two truncates are skipped.
#[track_caller]
fn assert_close(report: &Value, case: &Value, key: &str, what: &str, skips: &[usize]) -> usize {
    let documents = report["documents"].as_array().expect("documents");
    let compared = documents.iter().filter(|document| {
        let index = document["index"].as_u64().expect("an index");
        let index = usize::try_from(index).expect("a small one");
        if skips.contains(&index) {
            return false;
        }
        let expected = numbers(&case[key][index]);
        let found = match (key, document.get("score")) {
            ("logits", _) => numbers(&document["logits"]),
            (_, Some(score)) => numbers(score),
            (_, None) => {
                let labels = document["labels"].as_array().expect("labels");
                labels.iter().flat_map(|label| numbers(&label["score"])).collect()
            }
        };
        assert_eq!(found.len(), expected.len(), "{what}: {document}");
        let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(most <= 1e-5, "{what}, document {index}: {most}");
        true
    });
    compared.count()
}

#[test]
fn scores_match_cross_encoders() {
    let cases = cases();
    assert!(cases.models.len() >= 17, "{}", cases.models.len());
    for (name, case) in &cases.models {
        let sandbox = Sandbox::new();
        write(&sandbox, name, case);
        let report = cases.rank(&sandbox, name, &[]).ok().json();
        assert_eq!(report["activation"], case["activation"], "{name}");
        for key in ["scores", "logits"] {
            assert_eq!(assert_close(&report, case, key, name, &[]), 5, "{name}");
        }
        let scores: Vec<f64> = report["documents"]
            .as_array()
            .expect("documents")
            .iter()
            .filter_map(|document| document.get("score")?.as_f64())
            .collect();
        assert!(scores.is_sorted_by(|one, other| one >= other), "{name}: {scores:?}");
        assert_eq!(scores.is_empty(), name == "bert_three", "{name}");
        sandbox.apr(&format!("import {name} -o m.apr")).ok();
        let report = cases.rank(&sandbox, "m.apr", &[]).ok().json();
        assert_close(&report, case, "scores", &format!("{name} as .apr"), &[]);
    }
}

#[test]
fn an_exported_graph_scores_as_its_model() {
    let cases = cases();
    for name in ["bert", "bert_three", "roberta", "modernbert_mean", "deberta", "qwen3_classifier"]
    {
        let case = cases.case(name);
        let sandbox = Sandbox::new();
        write(&sandbox, name, case);
        sandbox.apr(&format!("export {name} --format onnx -o out")).ok();
        let report = cases.rank(&sandbox, "out", &[]).ok().json();
        assert_close(&report, case, "scores", name, &[]);
    }
}

/// llama.cpp returns logits and does not accept a shorter context. A document that the folder
/// truncates is a different text.
#[test]
fn a_gguf_file_scores_like_its_folder_and_reports_its_losses() {
    let cases = cases();
    let cut = |name: &str| match name {
        "roberta" | "modernbert_cls" | "modernbert_mean" => vec![0, 2, 4],
        _ => vec![2],
    };
    for name in [
        "bert",
        "bert_three",
        "roberta",
        "xlm_roberta",
        "distilbert",
        "modernbert_cls",
        "modernbert_mean",
        "qwen3",
        "qwen3_classifier",
    ] {
        let case = cases.case(name);
        let sandbox = Sandbox::new();
        write(&sandbox, name, case);
        let made = sandbox.apr(&format!("convert {name} -o m.gguf")).ok();
        if name != "qwen3" {
            made.says(&["of scores"]);
        }
        let report = cases.rank(&sandbox, "m.gguf", &[]).ok().json();
        // Rows of yes and no become probabilities, as in llama.cpp.
        let key = if name == "qwen3" { "scores" } else { "logits" };
        assert_eq!(report["activation"], if name == "qwen3" { "softmax" } else { "identity" });
        assert!(assert_close(&report, case, key, name, &cut(name)) >= 2, "{name}");
    }

    let sandbox = Sandbox::new();
    write(&sandbox, "m", cases.case("bert_prompt"));
    let made = sandbox.apr("convert m -o m.gguf").ok();
    let made = made.says(&["activation Sigmoid of scores", "prompt 'query'", "max_seq_length 24"]);
    made.says(&["both texts of a pair the token type 0"]);
    write(&sandbox, "modules", cases.case("bert_modules"));
    sandbox.apr("convert modules -o m.gguf -f").ok().says(&["2_Dense", "dense module"]);
    let keys = sandbox.apr("inspect m.gguf --json").ok().json().to_string();
    assert!(!keys.contains("cls.output"), "{keys}");
}

#[test]
fn the_best_documents_come_first_and_are_counted() {
    let cases = cases();
    let sandbox = Sandbox::new();
    write(&sandbox, "m", cases.case("bert_old"));
    sandbox.write("documents.txt", cases.documents.join("\n"));
    let line = ["run", "m", "--query", &cases.query, "--input", "documents.txt", "--lines"];
    let report = sandbox.run(&[&line[..], &["--top", "2", "--json"]].concat()).ok().json();
    let found = report["documents"].as_array().expect("documents").iter();
    let found: Vec<(u64, &str)> = found
        .map(|it| (it["index"].as_u64().expect("one"), it["document"].as_str().expect("one")))
        .collect();
    assert_eq!(found, [(4, "Many people; a dog"), (1, "a city of many people")]);
    let shown = sandbox.run(&line).ok();
    let shown = shown.text();
    let first = shown.lines().next().expect("a line");
    assert!(first.contains("-0.15090") && first.contains("(document 5)"), "{first}");
    assert_eq!(shown.lines().count(), 5);
}

#[test]
fn what_does_nothing_beside_a_query_is_refused() {
    let cases = cases();
    let sandbox = Sandbox::new();
    write(&sandbox, "m", cases.case("bert"));
    write(&sandbox, "three", cases.case("bert_three"));
    let rank = |more: &[&str]| cases.rank(&sandbox, "m", more);
    rank(&["--pooling", "cls"]).fails(2, &["--pooling and --dimensions apply to embeddings"]);
    rank(&["--separator", ";"]).fails(2, &["--separator applies to generated text"]);
    rank(&["--output", "x.npy"]).fails(2, &["--query makes scores: use --json"]);
    rank(&["--prompt-name", "query"]).fails(2, &["the model has no prompts"]);
    rank(&["--max-tokens", "3"]).fails(2, &["apply to text generation"]);
    cases.rank(&sandbox, "three", &["--top", "1"]).fails(2, &["several labels per pair"]);
    sandbox.apr("run m --query x").fails(2, &["--query needs documents"]);

    let bert = locate::fixture("run/tiny-bert").display().to_string();
    cases.rank(&sandbox, &bert, &[]).fails(2, &["the model is not a reranker"]);
    let llama = locate::fixture("tiny-llama").display().to_string();
    cases.rank(&sandbox, &llama, &[]).fails(4, &["E003", "no token 'yes'"]);

    // A class of torch that is not known is named, and one of others is not applied.
    for (class, code, text) in [
        ("torch.nn.modules.activation.Mish", 4, "torch.nn.modules.activation.Mish"),
        ("mine.Score", 0, "'mine.Score' is not part of torch"),
    ] {
        let settings = serde_json::json!({ "model_type": "CrossEncoder", "activation_fn": class });
        sandbox.write("m/config_sentence_transformers.json", settings.to_string());
        let run = rank(&[]);
        assert_eq!(run.code, Some(code), "{}", run.stderr);
        assert!(run.stderr.contains(text), "{}", run.stderr);
    }
}

/// `model_input_names`, the tokenizer's class and the model's type decide, as in `AutoTokenizer`.
#[test]
fn token_types_are_those_that_the_tokenizer_returns() {
    let cases = cases();
    let all = fs::read_to_string(locate::fixture("run/token_types.json")).expect("the fixture");
    let all: Value = serde_json::from_str(&all).expect("JSON");
    for (name, variant) in all["variants"].as_object().expect("variants") {
        let sandbox = Sandbox::new();
        write(&sandbox, "m", cases.case("bert"));
        sandbox.write("m/tokenizer_config.json", variant["settings"].to_string());
        let compare = |model: &str, skips: &[usize]| {
            let report = cases.rank(&sandbox, model, &[]).ok().json();
            assert_close(&report, variant, "logits", &format!("{name} as {model}"), skips);
        };
        compare("m", &[]);
        sandbox.apr("import m -o m.apr").ok();
        compare("m.apr", &[]);
        sandbox.apr("export m --format onnx -o onnx").ok();
        compare("onnx", &[]);
        let made = sandbox.apr("convert m -o m.gguf").ok();
        let warns = made.stderr.contains("both texts of a pair the token type 0");
        assert_eq!(Some(warns), variant["types"].as_bool(), "{name}");
        compare("m.gguf", &[2]);
        sandbox.apr("convert m.gguf --format safetensors -o back").ok();
        let settings = fs::read(sandbox.path("back/tokenizer_config.json")).expect("settings");
        let settings: Value = serde_json::from_slice(&settings).expect("JSON");
        let names = settings["model_input_names"].to_string();
        assert_eq!(Some(names.contains("token_type_ids")), variant["types"].as_bool(), "{name}");
    }
}

/// ggml leaves out outermost sizes of 1: in a file of llama-quantize, the head of one label is a
/// vector.
#[test]
fn a_quantized_decoder_with_one_label_scores_pairs() {
    let cases = cases();
    let sandbox = Sandbox::new();
    let case = cases.case("qwen3_classifier");
    write(&sandbox, "m", case);
    sandbox.apr("quantize m --type f16 -o m.gguf").ok();
    let report = cases.rank(&sandbox, "m.gguf", &[]).ok().json();
    assert!(assert_close(&report, case, "logits", "f16", &[2]) >= 4);
    sandbox.apr("convert m.gguf -o back.safetensors").ok();
    let back = sandbox.apr("tensors back.safetensors --json").ok().json();
    let head = back["tensors"].as_array().expect("tensors").iter();
    let head = head.filter(|tensor| tensor["name"] == "score.weight");
    assert_eq!(head.map(|it| &it["shape"]).collect::<Vec<_>>(), [&serde_json::json!([1, 16])]);
}

/// Scores are those of the pipeline `text-classification` of transformers.
#[test]
fn several_labels_stay_independent_in_every_format() {
    let cases = cases();
    let all = fs::read_to_string(locate::fixture("run/problem_types.json")).expect("the fixture");
    let all: Value = serde_json::from_str(&all).expect("JSON");
    let text = all["text"].as_str().expect("a text");
    for (problem_type, expected) in all["scores"].as_object().expect("types") {
        let sandbox = Sandbox::new();
        write(&sandbox, "m", cases.case("bert_three"));
        let config = fs::read(sandbox.path("m/config.json")).expect("a configuration");
        let mut config: Value = serde_json::from_slice(&config).expect("JSON");
        config["problem_type"] = problem_type.as_str().into();
        sandbox.write("m/config.json", config.to_string());
        sandbox.apr("import m -o m.apr").ok();
        sandbox.apr("export m --format onnx -o onnx").ok();
        let report = sandbox.apr("convert m -o m.gguf --json").ok().json();
        assert!(!report["losses"].to_string().contains("problem_type"), "{}", report["losses"]);
        sandbox.apr("convert m.gguf --format safetensors -o back").ok();
        for model in ["m", "m.apr", "onnx", "m.gguf", "back"] {
            let shown = sandbox.run(&["run", model, "--prompt", text]).ok().text();
            assert_eq!(shown.contains('%'), problem_type != "regression", "{model}: {shown}");
            let report = sandbox.run(&["run", model, "--prompt", text, "--json"]).ok().json();
            for label in report["results"][0]["labels"].as_array().expect("labels") {
                let found = label["score"].as_f64().expect("a score");
                let name = label["label"].as_str().expect("a label");
                let expected = expected[name].as_f64().expect("a score");
                assert!((found - expected).abs() < 1e-5, "{problem_type}, {model}: {label}");
            }
        }
    }
}

#[test]
fn a_model_without_a_head_that_becomes_a_generator_is_reported() {
    let cases = cases();
    let sandbox = Sandbox::new();
    write(&sandbox, "m", cases.case("qwen3"));
    fs::remove_file(sandbox.path("m/modules.json")).expect("a file");
    let config = fs::read(sandbox.path("m/config.json")).expect("a configuration");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["architectures"][0] = "Qwen3Model".into();
    sandbox.write("m/config.json", config.to_string());
    sandbox.apr("convert m -o m.gguf").ok().says(&["Qwen3Model has no head"]);
}
