//! `apr inspect --memory`: `fixtures/memory/hf_mem.json` has what hf-mem says.

use std::fs;

use apr_testkit::locate::fixture;
use serde_json::Value;

use crate::support::Sandbox;

#[test]
fn weights_and_cache_are_those_of_hf_mem() {
    let expected = fs::read(fixture("memory/hf_mem.json")).expect("a fixture");
    let expected: Value = serde_json::from_slice(&expected).expect("JSON");
    let sandbox = Sandbox::new();
    let folder = fixture("tiny-llama");
    let tiny = folder.to_str().expect("UTF-8");
    for case in expected["caches"].as_array().expect("a list") {
        let (context, batch) = (case["context"].to_string(), case["batch"].to_string());
        let kind = case["dtype"].as_str().expect("a name");
        let run = sandbox.run(&[
            "inspect",
            tiny,
            "--memory",
            "--json",
            "--context",
            &context,
            "--batch",
            &batch,
            "--cache-type",
            kind,
        ]);
        let report = run.ok().json();
        let memory = &report["memory"];
        assert_eq!(memory["cache_bytes"], case["bytes"], "{case}");
        assert_eq!(memory["weight_bytes"], expected["weight_bytes"]);
        let weights = memory["weights"].as_array().expect("a list");
        let [share] = &weights[..] else { panic!("{weights:?}") };
        let found = [&share["elements"], &share["bytes"]];
        assert_eq!(found, [&expected["weights"]["BF16"][0], &expected["weights"]["BF16"][1]]);
        let sum = ["weight_bytes", "cache_bytes", "activation_bytes"]
            .map(|key| memory[key].as_u64().expect("a number"));
        assert!(sum[2] > 0);
        assert_eq!(memory["total_bytes"], sum.iter().sum::<u64>());
        let beyond = memory["warnings"].is_array();
        assert_eq!(beyond, context.parse::<u64>().expect("a number") > 64, "{memory}");
    }
}

#[test]
fn every_format_and_kind_of_model_has_an_estimate() {
    let sandbox = Sandbox::new();
    let tiny = fixture("tiny-llama");
    let tiny = tiny.to_str().expect("UTF-8").to_owned();
    sandbox.run(&["quantize", &tiny, "-o", "q8.gguf", "--type", "q8_0"]).ok();
    sandbox.run(&["convert", &tiny, "-o", "tiny.apr"]).ok();
    sandbox
        .run(&[
            "convert",
            &tiny,
            "-o",
            "onnx",
            "--format",
            "onnx",
            "--task",
            "text-generation-with-past",
        ])
        .ok();
    let bytes = |model: &str, options: &[&str]| {
        let arguments = [&["inspect", model, "--memory", "--json"], options].concat();
        sandbox.run(&arguments).ok().json()["memory"].clone()
    };
    let whole = bytes(&tiny, &[]);
    assert_eq!((&whole["context"], &whole["context_origin"]), (&64.into(), &"model".into()));
    for model in ["q8.gguf", "tiny.apr", "onnx"] {
        let found = bytes(model, &["--context", "64"]);
        assert_eq!(found["cache_bytes"], whole["cache_bytes"], "{model}");
        assert!(found["activation_bytes"].as_u64() > Some(0), "{model}");
    }
    assert!(bytes("q8.gguf", &[])["weight_bytes"].as_u64() < whole["weight_bytes"].as_u64());
    let halves = bytes(&tiny, &["--cache-type", "q8_0"]);
    assert_eq!(halves["cache_bytes"], 64 * 2 * 2 * 2 * 34);

    for (model, keeps) in [
        ("run/tiny-bert", false),
        ("run/tiny-t5", true),
        ("run/tiny-whisper", true),
        ("run/tiny-vit", false),
        ("run/tiny-mamba", true),
        ("run/tiny-clip", false),
    ] {
        let path = fixture(model);
        let memory = bytes(path.to_str().expect("UTF-8"), &[]);
        let cache = memory["cache_bytes"].as_u64().expect("a number");
        assert_eq!(cache > 0, keeps, "{model}: {memory}");
        assert!(memory["activation_bytes"].as_u64() > Some(0), "{model}: {memory}");
    }
}

#[test]
fn a_decoder_that_keeps_nothing_reads_the_whole_context() {
    let sandbox = Sandbox::new();
    let bytes = |model: &str, context: usize| {
        let path = fixture(model);
        let path = path.to_str().expect("UTF-8").to_owned();
        let tokens = context.to_string();
        let line = ["inspect", &path, "--memory", "--json", "--context", &tokens];
        sandbox.run(&line).ok().json()["memory"]["activation_bytes"].as_u64().expect("a number")
    };
    // The exporter names the sizes of the logits on its own.
    let script = |context| bytes("onnx/exports/script.onnx", context);
    // Scores of all tokens among each other, of four heads in single precision.
    assert!(script(8) < 100_000 && script(4096) > 4 * 4 * 4096 * 4096, "{}", script(8));

    let ids: Vec<i64> = (0..64).map(|id| id % 61).collect();
    sandbox.write(
        "ids.json",
        format!("[[{}]]", ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
    );
    let path = fixture("onnx/exports/dynamo.onnx");
    let line = ["run", path.to_str().expect("UTF-8"), "--input", "input_ids=ids.json", "--json"];
    let peak = sandbox.run(&line).ok().json()["peak_bytes"].as_u64().expect("a number");
    let estimated = bytes("onnx/exports/dynamo.onnx", 64);
    assert!((peak..4 * peak).contains(&estimated), "{estimated} and {peak}");
}

#[test]
fn options_without_a_use_are_refused() {
    let sandbox = Sandbox::new();
    let inspect = |model: &str, options: &[&str]| {
        let path = fixture(model);
        let path = path.to_str().expect("UTF-8").to_owned();
        sandbox.run(&[&["inspect", &path, "--memory"], options].concat())
    };
    inspect("run/tiny-vit", &["--context", "5"]).fails(2, &["number of tokens"]);
    inspect("run/tiny-vit", &["--cache-type", "f16"]).fails(2, &["does not have a KV cache"]);
    inspect("run/tiny-mamba", &["--cache-type", "f16"]).fails(4, &["the cache type f16"]);
    let path = fixture("tiny-llama");
    let path = path.to_str().expect("UTF-8").to_owned();
    sandbox.run(&["inspect", &path, "--context", "5"]).fails(2, &["--memory"]);

    // Without a graph, the weights are known.
    let arrays = fixture("edit").join("arrays.safetensors");
    let run = sandbox.run(&["inspect", arrays.to_str().expect("UTF-8"), "--memory"]);
    run.ok().says(&["Memory of a run", "cache and activations are not known"]);
}
