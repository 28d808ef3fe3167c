//! Watermarks from outside: an id goes in, comes out of what the model has become, and of nothing
//! else.

use serde_json::Value;

use crate::support::{Run, Sandbox, f32s, safetensors, scrambled};

const KEY: &[u8] = b"sixteen bytes of secret\n";

/// Numbers whose distribution has the shape of a bell.
fn bell(count: u64, seed: u64) -> Vec<f32> {
    let part = |at: u64| (scrambled(at) >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
    (0..count).map(|at| (0..4).map(|k| part(seed + 4 * at + k)).sum::<f32>() * 0.05).collect()
}

/// Two matrices that carry, a bias and a small matrix that do not.
fn model() -> Vec<u8> {
    safetensors(&[
        ("bias", "F32", &[256], f32s(&bell(256, 1))),
        ("down.weight", "F32", &[256, 512], f32s(&bell(131_072, 2))),
        ("small.weight", "F32", &[8, 8], f32s(&bell(64, 3))),
        ("up.weight", "F32", &[512, 256], f32s(&bell(131_072, 1 << 40))),
    ])
}

fn sandbox() -> Sandbox {
    Sandbox::new()
        .with("m.safetensors", model())
        .with("key", KEY)
        .with("other", b"another key of sixteen bytes")
}

fn embed(sandbox: &Sandbox, output: &str) -> Run {
    sandbox.apr(&format!(
        "watermark embed m.safetensors -o {output} --key key --id buyer-0017 --strength 0.1"
    ))
}

#[track_caller]
fn found(run: &Run) -> Value {
    run.json()["id"].clone()
}

#[test]
fn the_id_is_read_with_the_key_alone() {
    let sandbox = sandbox();
    embed(&sandbox, "out.safetensors").clean().says(&[
        "buyer-0017",
        "262,144 weights of 2 tensors",
        "10.00 %",
    ]);
    let run = sandbox.apr("watermark detect out.safetensors --key key").clean();
    run.says(&["FOUND: buyer-0017"]);
    let run = sandbox.apr("watermark detect out.safetensors --key key --json").clean();
    let report = run.json();
    assert_eq!(
        (&report["detected"], &report["id"], &report["asked"]),
        (&true.into(), &"buyer-0017".into(), &Value::Null)
    );
    assert!(
        report["z"].as_f64() > Some(40.0) && report["log10_chance"].as_f64() < Some(-100.0),
        "{report}"
    );
    assert_eq!(report["symbols"].as_array().map(Vec::len), Some(16));
}

#[test]
fn a_model_that_cannot_carry_a_mark_is_an_error_and_not_unmarked() {
    let small = safetensors(&[("w", "F32", &[8, 8], f32s(&bell(64, 3)))]);
    let sandbox = sandbox().with("small.safetensors", small);
    sandbox
        .apr("watermark detect small.safetensors --key key")
        .fails(4, &["E001: small.safetensors: no mark can be detected", "4096"]);
    // The correlation with this id is negative in the model without a mark.
    let asked = sandbox.apr("watermark detect m.safetensors --key key --id buyer-0018");
    let report = sandbox.apr("watermark detect m.safetensors --key key --id buyer-0018 --json");
    match report.json()["log10_chance"].as_f64() < Some(0.0) {
        true => asked.fails(5, &["probability by chance: at most "]),
        false => asked.fails(5, &["probability by chance: 1 (not significant)"]),
    };
}

#[test]
fn another_key_another_id_and_an_unmarked_model_are_not_found() {
    let sandbox = sandbox();
    embed(&sandbox, "out.safetensors").clean();
    sandbox
        .apr("watermark detect out.safetensors --key other")
        .fails(5, &["NOT FOUND: no mark of this key"]);
    sandbox.apr("watermark detect m.safetensors --key key").fails(5, &["NOT FOUND"]);
    let other = sandbox.apr("watermark detect out.safetensors --key key --id buyer-0018");
    other.fails(5, &["NOT FOUND: buyer-0018", "The weights have another id: buyer-0017"]);
    let run = sandbox.apr("watermark detect out.safetensors --key other --json");
    assert_eq!((run.code, run.json()["detected"].as_bool()), (Some(5), Some(false)));
    sandbox
        .apr("watermark detect out.safetensors --key key --id buyer-0017")
        .clean()
        .says(&["FOUND: buyer-0017"]);
}

#[test]
fn the_mark_survives_conversion_and_quantization() {
    let sandbox = sandbox();
    embed(&sandbox, "out.apr").ok();
    for line in [
        "convert out.apr -o c.safetensors --precision fp16",
        "convert out.apr -o c.pt --precision bf16",
        "quantize out.apr -o c.apr --type q4_0 -f",
    ] {
        sandbox.apr(line).ok();
        let output = line.split(' ').nth(3).expect("an output");
        let run = sandbox.apr(&format!("watermark detect {output} --key key --json")).ok();
        assert_eq!(found(&run), "buyer-0017", "{line}");
    }
}

#[test]
fn tensors_without_a_mark_keep_their_bytes() {
    let sandbox = sandbox();
    embed(&sandbox, "out.safetensors").clean();
    let (before, after) = (sandbox.read("m.safetensors"), sandbox.read("out.safetensors"));
    assert_eq!(before.len(), after.len());
    let run = sandbox.apr("diff m.safetensors out.safetensors --json --tensors *");
    let report = run.json();
    let verdicts: Vec<(&str, &str)> = report["tensors"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|tensor| {
            (tensor["name"].as_str().expect("text"), tensor["verdict"].as_str().expect("text"))
        })
        .collect();
    let expected = [
        ("bias", "identical"),
        ("down.weight", "drift"),
        ("small.weight", "identical"),
        ("up.weight", "drift"),
    ];
    assert_eq!(verdicts, expected);
}

#[test]
fn the_number_of_threads_does_not_change_the_result() {
    let sandbox = sandbox();
    for threads in [1, 3] {
        embed(&sandbox, &format!("{threads}.safetensors --threads {threads}")).clean();
    }
    assert_eq!(sandbox.read("1.safetensors"), sandbox.read("3.safetensors"));
    let looks = [1, 3].map(|threads| {
        sandbox
            .apr(&format!("watermark detect 1.safetensors --key key --json --threads {threads}"))
            .clean()
            .text()
    });
    assert_eq!(looks[0], looks[1]);
}

#[test]
fn invalid_keys_and_models_that_cannot_be_marked_are_rejected() {
    let sandbox = sandbox().with("short", b"fifteen bytes..").with(
        "public",
        b"-----BEGIN PUBLIC KEY-----\n\
          MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n",
    );
    let line = |key: &str, rest: &str| {
        format!("watermark embed m.safetensors -o out.apr --key {key} {rest}")
    };
    sandbox.apr(&line("short", "--id a")).fails(2, &["short", "16 secret bytes"]);
    sandbox.apr(&line("public", "--id a")).fails(2, &["public key"]);
    sandbox.apr(&line("none", "--id a")).fails(3, &["none"]);
    sandbox.apr(&line("key", "--id a --strength 2")).fails(2, &["--strength"]);
    sandbox.apr(&line("key", &format!("--id {}", "a".repeat(61)))).fails(2, &["61 bytes"]);
    sandbox.apr(&line("key", "--id a")).fails(4, &["262144 weights", "too few", "0.09"]);
    sandbox.apr("quantize m.safetensors -o q.apr --type q8_0").ok();
    let line = "watermark embed q.apr -o out.apr --key key --id a --strength 0.1";
    sandbox.apr(line).fails(4, &["before it is quantized", "down.weight"]);
    assert!(!sandbox.files().contains(&"out.apr".to_owned()));
    // What is there stays.
    embed(&sandbox, "m.safetensors").fails(1, &["--overwrite"]);
    assert_eq!(sandbox.read("m.safetensors"), model());
}

#[test]
fn ggufs_other_names_and_row_order_hide_no_mark() {
    let config = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 128, "intermediate_size": 256, "vocab_size": 512, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 128, "hidden_act": "silu",
        "tie_word_embeddings": false}"#;
    let shapes: [(&str, &[u64]); 12] = [
        ("lm_head.weight", &[512, 128]),
        ("model.embed_tokens.weight", &[512, 128]),
        ("model.layers.0.input_layernorm.weight", &[128]),
        ("model.layers.0.mlp.down_proj.weight", &[128, 256]),
        ("model.layers.0.mlp.gate_proj.weight", &[256, 128]),
        ("model.layers.0.mlp.up_proj.weight", &[256, 128]),
        ("model.layers.0.post_attention_layernorm.weight", &[128]),
        ("model.layers.0.self_attn.k_proj.weight", &[64, 128]),
        ("model.layers.0.self_attn.o_proj.weight", &[128, 128]),
        ("model.layers.0.self_attn.q_proj.weight", &[128, 128]),
        ("model.layers.0.self_attn.v_proj.weight", &[64, 128]),
        ("model.norm.weight", &[128]),
    ];
    let tensors: Vec<_> = shapes
        .iter()
        .zip(1_u64..)
        .map(|(&(name, shape), seed)| {
            (name, "F32", shape, f32s(&bell(shape.iter().product(), seed << 40)))
        })
        .collect();
    let sandbox = sandbox()
        .with("llama/config.json", config)
        .with("llama/model.safetensors", safetensors(&tensors));
    sandbox.apr("watermark embed llama -o l.apr --key key --id buyer-0017 --strength 0.1").ok();
    let z = |model: &str| {
        let run = sandbox.apr(&format!("watermark detect {model} --key key --json")).ok();
        assert_eq!(found(&run), "buyer-0017", "{model}");
        run.json()["z"].as_f64().expect("a number")
    };
    let before = z("l.apr");
    sandbox.apr("export l.apr -o l.gguf").ok();
    // Nothing is out of step: sums in another order differ in their last digits only.
    assert!((z("l.gguf") / before - 1.0).abs() < 1e-6);
    sandbox.apr("watermark embed l.gguf -o x.apr --key key --id a").fails(
        2,
        &["GGUF files can't be marked: mark the model before the conversion; `apr \
                     watermark detect` finds the mark in GGUF files"],
    );
}
