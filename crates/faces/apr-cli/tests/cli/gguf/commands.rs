//! What the commands that look at a model say about GGUF files.

use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use serde_json::json;

use super::trained;
use crate::support::{Sandbox, f32s};

#[test]
fn every_command_reads_a_quantized_gguf_file() {
    let sandbox = trained();
    sandbox.apr("quantize llama --type q4_k_m -o q.gguf").ok();
    let cases: [(&str, &[&str]); 10] = [
        (
            "inspect q.gguf",
            &["Format:      GGUF", "Type:        LLaMA", "q5_0", "GGUF keys", "259 x string"],
        ),
        (
            "inspect q.gguf --quantization",
            &[
                "Quantization\n  Scheme: q4_k_m",
                "Type: Q5_0, Block size: 32",
                "Type: Q4_K, Block size: 256",
            ],
        ),
        ("tensors q.gguf --stats", &["blk.0.ffn_down.weight", "q4_k", "[128, 256]"]),
        ("tensors q.gguf --hist token_embd.weight", &["bins of width"]),
        (
            "validate q.gguf",
            &["pass  Names and shapes  shapes of the LLaMA family", "pass  Physics", "\nVALID"],
        ),
        ("diff q.gguf llama", &["tensor rounded, q4_k and bf16", "ROUNDED: 5 of 21"]),
        ("explain q.gguf", &["This is a **LLaMA** model.", "kv heads 2", "mostly q5_0", "GGUF"]),
        (
            "explain q.gguf --tensor blk.0.attn_q.weight",
            &["layers.0.attn.q_proj.weight", "Query projection", "Healthy"],
        ),
        ("lint q.gguf", &["[WARN] Metadata: Missing 'general.license'"]),
        (
            "debug q.gguf",
            &["Magic:           GGUF", "key_values:", "Health:          valid, 0 findings"],
        ),
    ];
    for (line, parts) in cases {
        sandbox.apr(line).ok().says(parts);
    }
    let remarks = sandbox.apr("lint q.gguf").ok().text();
    assert!(!remarks.contains("should be") && !remarks.contains("aligned"), "{remarks}");
    sandbox.apr("debug --drama q.gguf").ok().says(&["Magic bytes... GGUF", "PRODUCTION READY"]);
    let report = sandbox.apr("inspect q.gguf --quantization --json").ok().json();
    assert_eq!(report["quantization"]["scheme"], "q4_k_m");
    let keys = report["metadata"]["gguf"]["kv"].as_array().expect("a list");
    let tokens = keys.iter().find(|pair| pair["key"] == "tokenizer.ggml.tokens").expect("tokens");
    assert_eq!((&tokens["count"], tokens["value"].is_null()), (&json!(259), true), "{tokens}");
}

#[test]
fn lint_reports_missing_descriptions_of_a_gguf_file() {
    let weight = || GgufEntry::new("token_embd.weight", 0, &[2, 1], &f32s(&[0.5, -0.5]));
    let bare = GgufBuilder::new()
        .text("general.architecture", "llama")
        .u32("general.file_type", 15)
        .entry(weight());
    let sandbox = Sandbox::new().with("bare.gguf", bare.build());
    sandbox.apr("lint bare.gguf").ok().says(&[
        "Missing 'general.name'",
        "Missing 'general.license'",
        "Missing a tokenizer",
        "'general.file_type' is 15, which means q4_k_m, but no tensor is q4_k",
    ]);
    let told = GgufBuilder::new()
        .text("general.architecture", "llama")
        .text("general.name", "Tiny")
        .text("general.license", "mit")
        .text("tokenizer.ggml.model", "llama")
        .u32("general.file_type", 0)
        .entry(weight());
    sandbox.write("told.gguf", told.build());
    let text = sandbox.apr("lint told.gguf").ok().text();
    assert!(!text.contains("Missing") && !text.contains("file_type"), "{text}");
}

#[test]
fn diff_reports_the_keys_that_differ() {
    let with = |layers: u32, name: &str| {
        let file =
            GgufBuilder::new().text("general.architecture", "llama").text("general.name", name);
        file.u32("llama.block_count", layers).entry(GgufEntry::i8("a", &[1])).build()
    };
    let common = "one name that goes on for so long that its end is not in sight for anybody, ";
    let sandbox = Sandbox::new().with("a.gguf", with(1, &format!("{common}left")));
    sandbox.write("b.gguf", with(2, &format!("{common}right")));
    let run = sandbox.apr("diff a.gguf b.gguf").ok();
    let run = run.says(&[
        "gguf.llama.block_count: 1 -> 2",
        "gguf.general.name: …",
        "left\" -> …",
        "right\"\n",
    ]);
    assert!(!run.text().contains("endian"), "{run}");
}

#[test]
fn validate_looks_at_hyperparameters() {
    let sandbox = Sandbox::new();
    let weight = GgufEntry::new("token_embd.weight", 0, &[8, 2], &f32s(&[0.5; 16]));
    let sound = || {
        let file = GgufBuilder::new().text("general.architecture", "toy").u32("toy.block_count", 1);
        file.u32("toy.embedding_length", 8).entry(weight.clone())
    };
    sandbox.write("sound.gguf", sound().u32("toy.attention.head_count", 2).build());
    sandbox.apr("validate sound.gguf").ok().says(&["pass  Hyperparameters"]);
    sandbox.write("odd.gguf", sound().u32("toy.attention.head_count", 3).build());
    sandbox
        .apr("validate odd.gguf")
        .fails(5, &["FAIL  Hyperparameters", "toy.attention.head_count"]);
    let report = sandbox.apr("validate odd.gguf --json").fails(5, &[]).json();
    assert_eq!(report["findings"][0]["check"], "hyperparameters");
    sandbox.apr("validate odd.gguf --nan-check").ok();
}
