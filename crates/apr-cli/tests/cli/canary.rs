//! `apr canary`, and canaries as a gate.

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

/// A folder with tiny-llama, and a canary of three of its sums.
fn recorded() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        let bytes = fs::read(locate::fixture("tiny-llama").join(name)).expect("the fixture");
        sandbox.write(&format!("llama/{name}"), bytes);
    }
    let sums = ["--prompt", "12+34=", "--prompt", "5+6=", "--prompt", "90+9="];
    let line = [&["canary", "create", "llama"][..], &sums, &["-o", "canary.json"]].concat();
    sandbox.run(&line).ok();
    sandbox
}

/// The model with a layer's projection set to zero.
fn damaged(sandbox: &Sandbox) {
    let mut bytes = sandbox.read("llama/model.safetensors");
    let header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")))
        .expect("a small file");
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
    let place = &json["model.layers.0.mlp.down_proj.weight"]["data_offsets"];
    let at = |end: usize| {
        8 + header + usize::try_from(place[end].as_u64().expect("an offset")).expect("small")
    };
    bytes[at(0)..at(1)].fill(0);
    sandbox.write("broken/model.safetensors", bytes);
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        sandbox.write(&format!("broken/{name}"), sandbox.read(&format!("llama/{name}")));
    }
}

#[test]
fn qa_72_a_canary_finds_a_regression() {
    let sandbox = recorded();
    let report = sandbox.run(&["canary", "check", "llama", "--canary", "canary.json", "--json"]);
    let report = report.ok().json();
    assert_eq!((&report["passed"], &report["cases"][0]["found"]), (&true.into(), &"46\n".into()));

    damaged(&sandbox);
    let line = ["canary", "check", "broken", "--canary", "canary.json"];
    sandbox.run(&line).fails(5, &["Character error rate", "FAIL"]);
}

#[test]
fn a_quantized_model_that_fails_a_canary_does_not_appear() {
    let sandbox = recorded();
    let quantize = |model: &str, output: &str, more: &[&str]| {
        let line = ["quantize", model, "--type", "q8_0", "-o", output, "--canary", "canary.json"];
        sandbox.run(&[&line[..], more].concat())
    };
    quantize("llama", "good.gguf", &[]).ok().says(&["canary: 3 of 3 answers as expected"]);

    damaged(&sandbox);
    quantize("broken", "bad.gguf", &["--relaxed"]).fails(5, &["quality gate failed"]);
    assert!(!sandbox.path("bad.gguf").exists());

    quantize("broken", "bad.gguf", &["--force"]).ok().says(&["answers differ"]);
    assert!(sandbox.path("bad.gguf").exists());
}

#[test]
fn a_folder_is_checked_before_it_appears() {
    let sandbox = recorded();
    let line = ["export", "llama", "--format", "safetensors", "-o", "out"];
    sandbox.run(&[&line[..], &["--canary", "canary.json"]].concat()).ok();
    assert!(sandbox.path("out/config.json").exists());

    damaged(&sandbox);
    let line = ["export", "broken", "--format", "safetensors", "-o", "bad", "--relaxed"];
    sandbox.run(&[&line[..], &["--canary", "canary.json"]].concat()).fails(5, &["Canary"]);
    assert!(!sandbox.path("bad").exists());
}

#[test]
fn another_answer_may_be_expected_than_the_models() {
    let sandbox = recorded();
    let line = ["canary", "create", "llama", "--prompt", "1+1=", "--expect", "3", "-o", "c.json"];
    sandbox.run(&line).ok();
    let line = ["canary", "check", "llama", "--canary", "c.json", "--json"];
    let report = sandbox.run(&line).fails(5, &[]).json();
    let case = &report["cases"][0];
    assert_eq!((&case["original"], &case["character_error_rate"]), (&"2\n".into(), &1.0.into()));
}

#[test]
fn white_space_around_an_answer_is_not_compared() {
    let sandbox = recorded();
    let line = ["canary", "create", "llama", "--prompt", "1+1=", "--expect", "2", "-o", "c.json"];
    sandbox.run(&line).ok();
    sandbox.write(
        "c.json",
        String::from_utf8(sandbox.read("c.json")).expect("JSON").replace("\"2\\n\"", "\" 2\""),
    );
    sandbox.run(&["canary", "check", "llama", "--canary", "c.json"]).ok().says(&["PASS"]);
}

#[test]
fn a_file_is_named_with_its_digest_or_embedded() {
    let sandbox = recorded();
    sandbox.write("sum.txt", "20+22=");
    let create = ["canary", "create", "llama", "--input", "sum.txt", "-o", "named.json"];
    sandbox.run(&create).ok();
    let create = ["canary", "create", "llama", "--input", "sum.txt", "-o", "whole.json", "--embed"];
    sandbox.run(&create).ok();

    let check =
        |canary: &str| sandbox.run(&["canary", "check", "llama", "--canary", canary, "--json"]);
    assert_eq!(check("named.json").ok().json()["cases"][0]["found"], "42\n");
    sandbox.write("sum.txt", "20+23=");
    check("named.json").fails(5, &["E004", "sum.txt"]);
    assert_eq!(check("whole.json").ok().json()["cases"][0]["found"], "42\n");
}

#[test]
fn canaries_of_other_models_and_broken_ones_are_refused() {
    let sandbox = recorded();
    let whole = String::from_utf8(sandbox.read("canary.json")).expect("JSON");
    let cases = [
        ("\"llama\"", "\"bert\"", 2, "of type 'bert'"),
        ("\"vocab_size\": 259", "\"vocab_size\": 300", 2, "vocabulary of 300"),
        ("\"version\": 1", "\"version\": 9", 4, "E003"),
        ("apr-canary", "other", 4, "is no canary file"),
        ("\"character_error_rate\": 0.0", "\"character_error_rate\": -1.0", 4, "tolerance"),
        ("\"prompt\"", "\"prompts\"", 4, "E001"),
    ];
    for (from, to, code, says) in cases {
        assert!(whole.contains(from), "{from}");
        sandbox.write("other.json", whole.replace(from, to));
        let found = sandbox.run(&["canary", "check", "llama", "--canary", "other.json"]);
        found.fails(code, &[says]);
    }

    for cut in (0..whole.len() - 2).step_by(97) {
        sandbox.write("cut.json", &whole[..cut]);
        sandbox.run(&["canary", "check", "llama", "--canary", "cut.json"]).fails(4, &["E001"]);
    }
    sandbox.run(&["canary", "create", "llama", "-o", "none.json"]).fails(2, &["needs an input"]);
    assert!(!sandbox.path("none.json").exists());
}

#[test]
fn what_a_canary_names_is_a_regular_file_and_nothing_is_written_before_it_is_read() {
    let sandbox = recorded();
    sandbox.write("sum.txt", "20+22=");
    let create = ["canary", "create", "llama", "--input", "sum.txt", "-o", "named.json"];
    sandbox.run(&create).ok();
    let named = String::from_utf8(sandbox.read("named.json")).expect("JSON");
    for (file, code) in [("/dev/zero", 1), ("gone.txt", 3), ("..", 1)] {
        let other = named.replace("\"file\": \"sum.txt\"", &format!("\"file\": \"{file}\""));
        assert_ne!(named, other);
        sandbox.write("other.json", other);
        let line = ["canary", "check", "llama", "--canary", "other.json"];
        sandbox.run(&line).fails(code, &["E007", file]);
    }

    sandbox.write("cut.json", "{");
    let quantize = |canary: &str, output: &str| {
        let line = ["quantize", "llama", "--type", "q8_0", "--canary", canary, "-o", output];
        sandbox.run(&line)
    };
    quantize("cut.json", "out.gguf").fails(4, &["E001", "cut.json"]);
    quantize("gone.json", "out.gguf").fails(3, &["E007", "gone.json"]);
    let line =
        ["convert", "llama", "--format", "safetensors", "--canary", "canary.json", "-o", "-"];
    sandbox.run(&line).fails(2, &["name a file or a folder"]);
    assert!(!sandbox.path("out.gguf").exists());
}

#[test]
fn a_failed_gate_names_the_answer_and_leaves_the_old_file() {
    let sandbox = recorded();
    damaged(&sandbox);
    sandbox.write("old.gguf", "old");
    let line = ["quantize", "broken", "--type", "q8_0", "--relaxed", "-f", "-o", "old.gguf"];
    let line = [&line[..], &["--canary", "canary.json"]].concat();
    let says = ["quality gate failed", "Canary \"12+34=\" failed: expected \"46", "--force"];
    sandbox.run(&line).fails(5, &says);
    let found = sandbox.run(&[&line[..], &["--json"]].concat()).fails(5, &[]).json();
    assert_eq!(found["error"]["canary"]["passed"], false);
    assert_eq!(sandbox.read("old.gguf"), b"old");
}

#[test]
fn a_single_file_is_checked_with_the_companions_beside_it() {
    let sandbox = recorded();
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        sandbox.write(&format!("out/{name}"), sandbox.read(&format!("llama/{name}")));
    }
    let line = ["convert", "llama", "--precision", "fp16", "--canary", "canary.json", "-o"];
    for output in ["out/model.safetensors", "whole.apr", "parts.apr"] {
        let shards: &[&str] = if output == "parts.apr" { &["--shard-size", "200KB"] } else { &[] };
        let says = ["canary: 3 of 3 answers as expected"];
        sandbox.run(&[&line[..], &[output], shards].concat()).ok().says(&says);
    }
    let line = ["export", "llama", "--format", "onnx", "-o", "out/model.onnx"];
    sandbox.run(&[&line[..], &["--canary", "canary.json"]].concat()).ok();
}
