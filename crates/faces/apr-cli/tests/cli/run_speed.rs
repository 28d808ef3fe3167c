//! Arithmetics of `apr run`, its times, and `apr bench`.

use std::fs;

use apr_testkit::locate::{fixture, shared_data};
use serde_json::{Value, json};

use crate::support::{Sandbox, damaged};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

fn generated(sandbox: &Sandbox, line: &str) -> Value {
    sandbox.apr(&format!("run {line} --json")).ok().json()
}

#[test]
fn weights_in_blocks_use_fast_multiplication_unless_exactness_is_requested() {
    let sandbox = Sandbox::new();
    for scheme in ["q8_0", "q4_k_m", "q4_0", "q5_1", "iq4_nl"] {
        sandbox.apr(&format!("quantize {FOLDER} --type {scheme} -o {scheme}.gguf")).ok();
        let fast = generated(&sandbox, &format!("{scheme}.gguf --prompt 12+34="));
        let exact = generated(&sandbox, &format!("{scheme}.gguf --prompt 12+34= --exact"));
        assert_eq!((&fast["arithmetic"], &exact["arithmetic"]), (&json!("fast"), &json!("exact")));
        if scheme == "q8_0" {
            assert_eq!((&fast["text"], &exact["text"]), (&json!("46\n"), &json!("46\n")));
        }
        let threads = generated(&sandbox, &format!("{scheme}.gguf --prompt 12+34= --threads 3"));
        assert_eq!(threads["added"], fast["added"]);
    }
    // Nothing in it is in blocks.
    assert_eq!(generated(&sandbox, &format!("{FOLDER} --prompt 1+1="))["arithmetic"], "exact");
    sandbox.apr("run q8_0.gguf --prompt 1 --want logits --exact").fails(2, &["--exact"]);
}

/// Compares with llama.cpp's log probabilities, from `fixtures/infer/llama_log_probabilities.py`.
///
/// A difference in the last bit can round an activation to another level. All later values then
/// differ by as much as the distance of the levels: such differences are not larger than that, and
/// rare.
#[test]
fn log_probabilities_match_llama_cpp() {
    let Some(folder) = shared_data("derived") else { return };
    let expected = fs::read(fixture("infer/llama_log_probabilities.json")).expect("the fixture");
    let expected: Vec<Value> = serde_json::from_slice(&expected).expect("JSON");
    let sandbox = Sandbox::new();
    let mut others = Vec::new();
    for entry in &expected {
        let (name, scheme) = (&entry["model"], entry["type"].as_str().expect("a type"));
        let (source, model) = match name.as_str() {
            Some("tiny-llama") => (FOLDER.to_owned(), format!("tiny-{scheme}.gguf")),
            _ => (
                folder.join("stories260K_F16.gguf").display().to_string(),
                format!("stories-{scheme}.gguf"),
            ),
        };
        if !sandbox.path(&model).exists() {
            sandbox.apr(&format!("quantize {source} --type {scheme} -o {model}")).ok();
        }
        let tokens = entry["tokens"].to_string().replace(['[', ']', ' '], "");
        let line = format!("{model} --tokens {tokens} --max-tokens 1 --logprobs 100 --threads 1");
        let report = generated(&sandbox, &line);
        assert_eq!(report["arithmetic"], "fast");
        let ours = report["logprobs"][0]["top"].as_array().expect("a list");
        let apart = entry["top"].as_array().expect("a list").iter().map(|pair| {
            let theirs = pair[1].as_f64().expect("a number");
            let own = ours.iter().find(|own| own["id"] == pair[0]);
            own.map_or(f64::INFINITY, |own| (own["logprob"].as_f64().unwrap() - theirs).abs())
        });
        let apart = apart.fold(0.0, f64::max);
        assert!(apart < 0.5, "{name} {scheme} {tokens}: {apart}");
        if apart > 1e-5 {
            others.push(format!("{name} {scheme} {tokens}: {apart}"));
        }
    }
    assert!(others.len() * 10 <= expected.len(), "{others:#?}");
}

/// Compares with transformers' log probabilities with a KV cache whose entries are rounded when
/// stored.
///
/// The values are from `fixtures/infer/cache_types.py`.
#[test]
fn log_probabilities_match_a_rounded_kv_cache() {
    let expected = fs::read(fixture("infer/cache_types.json")).expect("the fixture");
    let expected: Vec<Value> = serde_json::from_slice(&expected).expect("JSON");
    let sandbox = Sandbox::new();
    let mut seen = Vec::new();
    for entry in &expected {
        let kind = entry["type"].as_str().expect("a type");
        let tokens = entry["tokens"].to_string().replace(['[', ']', ' '], "");
        let line = format!("{FOLDER} --tokens {tokens} --max-tokens 1 --logprobs 100");
        let report = generated(&sandbox, &format!("{line} --cache-type {kind}"));
        assert_eq!(report["cache_type"], kind);
        let ours = report["logprobs"][0]["top"].as_array().expect("a list");
        for pair in entry["top"].as_array().expect("a list") {
            let own = ours.iter().find(|own| own["id"] == pair[0]).expect("a token");
            let (own, theirs) = (own["logprob"].as_f64().unwrap(), pair[1].as_f64().unwrap());
            assert!((own - theirs).abs() < 2e-4, "{kind} {}: {own} {theirs}", pair[0]);
        }
        let threads = generated(&sandbox, &format!("{line} --cache-type {kind} --threads 3"));
        assert_eq!(threads["logprobs"], report["logprobs"]);
        seen.push(report["logprobs"].clone());
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2], "each type rounds otherwise");
}

#[test]
fn types_of_keys_and_values_are_refused_where_they_do_not_fit() {
    let sandbox = Sandbox::new();
    let run = |rest: &str| sandbox.apr(&format!("run {rest}"));
    let fixture = |path: &str| fixture(path).display().to_string();
    run(&format!("{} --tokens 1 --cache-type q8_0", fixture("run/tiny-mamba")))
        .fails(4, &["E003", "q8_0", "keys and values of each head"]);
    run(&format!("{} --prompt a --cache-type q8_0", fixture("run/tiny-t5")))
        .fails(4, &["E003", "q8_0", "blocks"]);
    run(&format!("{FOLDER} --prompt 1 --cache-type q4_0")).fails(2, &["f32, f16, q8_0"]);
    run(&format!("{FOLDER} --prompt 1 --want logits --cache-type f16")).fails(2, &["--want"]);

    // What was kept of a prompt is of one type.
    let cached = |rest: &str| run(&format!("{FOLDER} --prompt 12+34= --prompt-cache cache {rest}"));
    cached("--cache-type q8_0").ok();
    let again = cached("--cache-type q8_0 --json").ok().json();
    assert_eq!((&again["text"], &again["reused"]), (&json!("46\n"), &json!(5)));
    let alone = run(&format!("{FOLDER} --prompt 12+34= --cache-type q8_0 --json")).ok().json();
    assert_eq!(again["added"], alone["added"]);
    cached("--cache-type f16").fails(2, &["arithmetic or cache type"]);
}

/// Rounding to half precision does not change the text that an encoder-decoder model generates.
#[test]
fn decoders_of_encoders_keep_keys_and_values_as_other_types() {
    let sandbox = Sandbox::new();
    let t5 = fixture("run/tiny-t5").display().to_string();
    let line = |rest: &[&str]| {
        let line = [
            &["run", &t5, "--prompt", "12+34=", "--max-tokens", "6", "--json", "--logprobs", "1"],
            rest,
        ];
        sandbox.run(&line.concat()).ok().json()
    };
    for search in [&[][..], &["--beams", "3"]] {
        let single = line(search);
        let half = line(&[search, &["--cache-type", "f16"]].concat());
        assert_eq!((&single["cache_type"], &half["cache_type"]), (&json!("f32"), &json!("f16")));
        assert_eq!(half["added"], single["added"]);
        let logprob = |made: &Value| made["logprobs"][5]["logprob"].as_f64().expect("a number");
        let apart = (logprob(&half) - logprob(&single)).abs();
        assert!(apart > 0.0 && apart < 0.01, "{apart}");
    }

    let whisper = fixture("run/tiny-whisper").display().to_string();
    let sound = fixture("sound/a.wav").display().to_string();
    let said = |rest: &[&str]| {
        let line = [&["run", &whisper, "--input", &sound, "--json"], rest].concat();
        sandbox.run(&line).ok().json()["results"][0].clone()
    };
    let (single, half) = (said(&[]), said(&["--cache-type", "f16"]));
    assert_eq!((&single["cache_type"], &half["cache_type"]), (&json!("f32"), &json!("f16")));
}

#[test]
fn a_run_fails_if_half_precision_cannot_represent_a_value() {
    let sandbox = Sandbox::new();
    // 100,000 in bfloat16.
    damaged(&sandbox, FOLDER, "model.layers.0.self_attn.v_proj.weight", |bytes| {
        bytes.chunks_exact_mut(2).for_each(|value| value.copy_from_slice(&[0xc3, 0x47]));
    });
    sandbox.apr("run broken --prompt 12+34=").ok();
    sandbox
        .apr("run broken --prompt 12+34= --cache-type f16")
        .fails(4, &["E001", "do not fit the cache type f16", "they fit f32"]);
}

/// Logits differ by what 8 bits of activations leave out.
#[test]
fn probabilities_of_the_arithmetics_are_close() {
    let Some(folder) = shared_data("derived") else { return };
    let sandbox = Sandbox::new();
    let model = folder.join("stories260K_F16.gguf");
    let schemes = ["q8_0", "q4_k_m", "q6_k", "q5_k_m", "q3_k_m", "q2_k", "iq4_xs", "q5_0"];
    for scheme in schemes.into_iter().chain(["mxfp4", "nvfp4"]) {
        let quantize = format!("quantize {} --type {scheme} -o {scheme}.gguf -f", model.display());
        sandbox.apr(&quantize).ok();
        let line = format!("{scheme}.gguf --tokens 1,403,407 --max-tokens 12 --logprobs 1");
        let fast = generated(&sandbox, &line);
        let exact = generated(&sandbox, &format!("{line} --exact"));
        let logprob = |report: &Value| report["logprobs"][0]["logprob"].as_f64().expect("a number");
        let apart = (logprob(&fast) - logprob(&exact)).abs();
        assert!(apart < 0.05, "{scheme}: {apart}");
        if scheme == "q8_0" {
            assert_eq!(fast["added"], exact["added"]);
        }
    }
}

#[test]
fn long_prompts_in_pieces_give_the_logits_of_one_run() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("long")).expect("a folder");
    for name in ["model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("tiny-llama").join(name), sandbox.path("long").join(name))
            .expect("a file");
    }
    let config = fs::read_to_string(fixture("tiny-llama").join("config.json")).expect("a file");
    let config =
        config.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 4096");
    sandbox.write("long/config.json", config);

    let ids: Vec<usize> = (0..1300).map(|at| at * 7919 % 256).collect();
    let list: Vec<String> = ids.iter().map(usize::to_string).collect();
    sandbox.write("ids.json", json!({ "input_ids": [ids] }).to_string());
    let report = generated(&sandbox, "long -i ids.json --want logits -o logits.npy");
    assert_eq!(report["outputs"][0]["shape"], json!([1, 1300, 259]));
    let bytes = fs::read(sandbox.path("logits.npy")).expect("a file");
    let row = &bytes[bytes.len() - 259 * 4..];
    let logits: Vec<f64> =
        row.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - highest).exp()).sum();

    let line = format!("long --tokens {} --max-tokens 1 --logprobs 1", list.join(","));
    let found = generated(&sandbox, &line);
    let top = &found["logprobs"][0]["top"][0];
    let (id, logprob) = (top["id"].as_u64(), top["logprob"].as_f64().expect("a number"));
    let id = id.and_then(|id| usize::try_from(id).ok()).expect("an id");
    assert!((logits[id] - highest - sum.ln() - logprob).abs() < 1e-5);
    assert_eq!(logits[id], highest);
}

#[test]
fn times_are_reported() {
    let sandbox = Sandbox::new();
    let report =
        generated(&sandbox, &format!("{FOLDER} --tokens 256,49,50,43,51,52,61 --max-tokens 3"));
    let (prefill, decode) = (&report["timings"]["prefill"], &report["timings"]["decode"]);
    assert_eq!((&prefill["token_count"], &decode["token_count"]), (&json!(7), &json!(2)));
    for timing in [prefill, decode] {
        assert!(timing["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0));
        assert!(timing["tokens_per_second"].as_f64().is_some_and(|rate| rate >= 0.0));
    }
    assert!(report["load_seconds"].is_f64());
    let words = ["load ", "prefill 7 tokens", "decode 2 tokens", "arithmetic exact"];
    sandbox
        .apr(&format!("run {FOLDER} --tokens 256,49,50,43,51,52,61 --max-tokens 3 -v"))
        .ok()
        .says(&words);
}

#[test]
fn a_bench_counts_tokens_or_runs() {
    let sandbox = Sandbox::new();
    let heads = ["model", "params", "backend", "arithmetic", "threads", "t/s", "pp16", "tg4", "±"];
    let line = format!("bench {FOLDER} -p 16 -n 4 -t 1,2 --repeat 2");
    sandbox.apr(&line).ok().says(&heads);
    let report = sandbox.apr(&format!("{line} --json")).ok().json();
    let results = report["results"].as_array().expect("results");
    let rows: Vec<_> = results.iter().map(|row| (&row["test"], &row["threads"])).collect();
    let (pp, tg) = (json!("pp16"), json!("tg4"));
    assert_eq!(rows, [(&pp, &json!(1)), (&tg, &json!(1)), (&pp, &json!(2)), (&tg, &json!(2))]);
    for row in results {
        assert_eq!((&row["unit"], &row["arithmetic"]), (&json!("tokens"), &json!("exact")));
        assert_eq!(row["samples"].as_array().map(Vec::len), Some(2));
    }

    sandbox.apr(&format!("bench {FOLDER} -p 65")).fails(2, &["65", "context of 64"]);
    sandbox.apr(&format!("export {FOLDER} -o model.onnx")).ok();
    let report = sandbox.apr("bench model.onnx --repeat 1 --json").ok().json();
    assert_eq!(report["results"][0]["unit"], "runs");
    // None would change anything.
    for idle in ["-d 16", "-p 16", "-n 16", "--cache-type f16"] {
        sandbox.apr(&format!("bench model.onnx {idle}")).fails(2, &["generate text"]);
    }
    let line = format!("bench {FOLDER} -p 16 -n 4 -d 0,32 --repeat 1 --cache-type q8_0 --json");
    let report = sandbox.apr(&line).ok().json();
    let rows = report["results"].as_array().expect("results").iter();
    let rows: Vec<_> = rows.map(|row| (row["test"].as_str(), row["cache_type"].as_str())).collect();
    let test = |name| (Some(name), Some("q8_0"));
    assert_eq!(rows, ["pp16", "tg4", "pp16 @ d32", "tg4 @ d32"].map(test));
}
