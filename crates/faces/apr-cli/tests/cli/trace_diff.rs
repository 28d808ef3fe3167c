//! `apr trace --diff`: where two models part. Point 75 of `docs/qa.md`.

use std::fs;

use serde_json::Value;

use crate::support::{Sandbox, damaged};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-bert");

fn diff(sandbox: &Sandbox, other: &str) -> Value {
    sandbox.apr(&format!("trace {LLAMA} {other} --diff --prompt 12+34= --json")).ok().json()
}

/// The first divergence of a model with one part.
fn divergence(diff: &Value) -> Option<&Value> {
    diff["passes"][0]["divergences"].get(0)
}

#[test]
fn qa_75_equal_models_do_not_drift_in_any_container() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    sandbox.apr(&format!("export {LLAMA} --format gguf -o m.gguf")).ok();
    for other in [LLAMA, "m.apr", "m.gguf"] {
        let diff = diff(&sandbox, other);
        let steps = diff["passes"][0]["steps"].as_array().expect("steps");
        assert!(steps.len() > 10, "{other}");
        for step in steps {
            assert_eq!(step["relative_l2"], 0.0, "{other}: {step}");
        }
        assert!(divergence(&diff).is_none() && diff["tokens"]["first"].is_null(), "{other}");
    }
    let shown = sandbox.apr(&format!("trace {BERT} {BERT} --diff --prompt word")).ok().text();
    assert!(shown.contains("No drift at all"), "{shown}");
}

#[test]
fn a_damaged_weight_is_reported_despite_quantization() {
    let sandbox = Sandbox::new();
    let value = "model.layers.0.self_attn.v_proj.weight";
    let down = "model.layers.1.mlp.down_proj.weight";
    let flip = |bytes: &mut [u8]| bytes.iter_mut().skip(1).step_by(2).for_each(|it| *it ^= 0x80);
    let clear = |bytes: &mut [u8]| bytes[..4096].fill(0);
    for (name, kind) in [(value, "sign_flipped"), (down, "zeroed")] {
        let change = |bytes: &mut [u8]| if kind == "zeroed" { clear(bytes) } else { flip(bytes) };
        damaged(&sandbox, LLAMA, name, change);
        for quantization in ["q8_0", "q4_0"] {
            let line = format!("quantize broken -t {quantization} -o q.gguf -f --relaxed");
            sandbox.apr(&line).ok();
            let diff = diff(&sandbox, "q.gguf");
            let found = divergence(&diff).unwrap_or_else(|| panic!("{name} {quantization}"));
            assert_eq!(found["weights"][0]["tensor"], name);
            assert_eq!(found["weights"][0]["change"]["kind"], kind, "{found}");
            let recommendation = diff["recommendation"].as_str().expect("a sentence");
            assert!(recommendation.contains(name), "{recommendation}");
        }
    }

    let line = format!("trace {LLAMA} q.gguf --diff --prompt 12+34= --blame 1");
    let shown = sandbox.apr(&line).ok().text();
    for text in ["Divergence detected at: layers.1/mlp", "⚠", "Recommendation: Check MLP weight"]
    {
        assert!(shown.contains(text), "{shown}");
    }
    assert!(shown.contains("Outputs with a weight of the first model in the second"), "{shown}");
}

#[test]
fn exchanged_layers_are_named() {
    let sandbox = Sandbox::new();
    damaged(&sandbox, LLAMA, "model.norm.weight", |_| {});
    let mut bytes = sandbox.read("broken/model.safetensors");
    let len = bytes[..8].try_into().map(u64::from_le_bytes).expect("eight bytes");
    let end = 8 + usize::try_from(len).expect("a small file");
    let names = String::from_utf8(bytes[8..end].to_vec()).expect("a header");
    let names = names.replace(".layers.0.", ".layers.x.").replace(".layers.1.", ".layers.0.");
    bytes[8..end].copy_from_slice(names.replace(".layers.x.", ".layers.1.").as_bytes());
    sandbox.write("broken/model.safetensors", bytes);
    let diff = diff(&sandbox, "broken");
    let moved = diff["moved_layers"].as_array().expect("layers");
    assert_eq!(moved.len(), 2, "{diff}");
    assert_eq!((&moved[0]["layer"], &moved[0]["is"]), (&0.into(), &1.into()));
    let recommendation = diff["recommendation"].as_str().expect("a sentence");
    assert!(recommendation.contains("layers 0 and 1 have changed places"), "{recommendation}");
}

#[test]
fn quantization_alone_is_not_a_divergence() {
    let sandbox = Sandbox::new();
    for quantization in ["q8_0", "q4_0", "q3_k_m", "q2_k", "iq4_nl", "mxfp4", "tq2_0"] {
        sandbox.apr(&format!("quantize {LLAMA} -t {quantization} -o q.gguf -f")).ok();
        let diff = diff(&sandbox, "q.gguf");
        assert!(
            divergence(&diff).is_none(),
            "{quantization}: {}",
            diff["passes"][0]["divergences"]
        );
        let last = diff["passes"][0]["steps"].as_array().and_then(|steps| steps.last()).cloned();
        let drift = last.and_then(|step| step["relative_l2"].as_f64()).expect("a drift");
        assert!(drift > 0.0, "{quantization}: {drift}");
    }
}

#[test]
fn a_setting_that_differs_comes_before_the_weights() {
    let sandbox = Sandbox::new();
    damaged(&sandbox, LLAMA, "model.norm.weight", |_| {});
    let config = String::from_utf8(sandbox.read("broken/config.json")).expect("a text");
    let other = config.replace("\"rope_theta\": 10000.0", "\"rope_theta\": 500000.0");
    assert_ne!(config, other);
    sandbox.write("broken/config.json", other);
    sandbox.apr("export broken --format gguf -o m.gguf").ok();
    let line = |other: &str| format!("trace {LLAMA} {other} --diff --prompt 12+34= --exit-code");
    let says = ["configuration differs: rotary_theta", "-> 500000", "Check the configuration"];
    for other in ["broken", "m.gguf"] {
        sandbox.apr(&line(other)).fails(5, &says);
    }
    sandbox.apr(&line(LLAMA)).clean();
    sandbox.apr(&format!("trace {LLAMA} --tokens 1 --exit-code")).fails(2, &["--diff"]);
}

#[test]
fn layers_that_changed_places_are_known_again() {
    let sandbox = Sandbox::new();
    let tensors = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"];
    let values = std::cell::RefCell::new(Vec::new());
    damaged(&sandbox, LLAMA, tensors[0], |bytes| *values.borrow_mut() = bytes.to_vec());
    damaged(&sandbox, LLAMA, tensors[1], |bytes| bytes.copy_from_slice(&values.borrow()));
    sandbox.apr("quantize broken -t q4_0 -o q.gguf --relaxed").ok();
    for other in ["broken", "q.gguf"] {
        let diff = diff(&sandbox, other);
        let found = divergence(&diff).unwrap_or_else(|| panic!("{other}"));
        let weight = &found["weights"][0];
        assert_eq!(weight["tensor"], tensors[1], "{weight}");
        assert_eq!(weight["change"]["kind"], "replaced", "{weight}");
        assert_eq!(weight["change"]["by"], tensors[0], "{weight}");
    }
}

#[test]
fn steps_that_one_model_alone_has_are_listed() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("convert {LLAMA} --prune-layers 1 -o shorter.apr")).ok();
    let line = format!("trace {LLAMA} shorter.apr --diff --prompt 12+34= --task CausalLM");
    let shown = sandbox.apr(&line).ok().text();
    assert!(shown.contains("only in the first model, not compared: layers.1/"), "{shown}");
}

#[test]
fn models_that_cannot_be_compared_are_reported() {
    let sandbox = Sandbox::new();
    let usage = |line: &str, says: &str| {
        sandbox.apr(line).fails(2, &[says]);
    };
    usage(&format!("trace {LLAMA} --diff --tokens 1"), "<OTHER>");
    usage(&format!("trace {LLAMA} {LLAMA} --tokens 1"), "--diff");
    usage(&format!("trace {LLAMA} {LLAMA} --diff --tokens 1 --trace-payload"), "--trace-payload");
    usage(&format!("trace {LLAMA} {LLAMA} --diff --tokens 1 --top 3"), "--diff");
    usage(&format!("trace {LLAMA} --tokens 1 -f"), "--export");
    let line = format!("trace {LLAMA} {BERT} --diff --prompt word");
    sandbox.apr(&line).fails(2, &["the models' vocabularies differ"]);

    // A model that makes NaN is no reference.
    damaged(&sandbox, LLAMA, "model.norm.weight", |bytes| {
        bytes[..2].copy_from_slice(&[0xc0, 0x7f]);
    });
    let line = format!("trace broken {LLAMA} --diff --prompt 12+34= --json");
    let diff = sandbox.apr(&line).ok().json();
    let recommendation = diff["recommendation"].as_str().expect("a sentence");
    assert!(recommendation.contains("The first model computes NaN from final_norm"), "{diff}");
    let warning = diff["warnings"][0].to_string();
    assert!(warning.contains("no text is generated"), "{diff}");
}

#[test]
fn a_weight_that_is_not_finite_is_reported() {
    let sandbox = Sandbox::new();
    for (name, value) in [
        ("model.layers.1.mlp.gate_proj.weight", [0xc0, 0x7f]),
        ("model.layers.0.self_attn.q_proj.weight", [0x80, 0x7f]),
        ("model.layers.0.self_attn.q_proj.weight", [0x80, 0xff]),
    ] {
        damaged(&sandbox, LLAMA, name, |bytes| bytes[..2].copy_from_slice(&value));
        let diff = diff(&sandbox, "broken");
        let found = divergence(&diff).unwrap_or_else(|| panic!("{name}: {diff}"));
        assert_eq!((&found["weights"][0]["tensor"], &found["drift"]), (&name.into(), &Value::Null));
        assert_eq!(found["weights"][0]["change"]["kind"], "not_finite", "{found}");
        let recommendation = diff["recommendation"].as_str().expect("a sentence");
        let said = format!("{name}: has NaN or infinite elements");
        assert!(recommendation.ends_with(&said), "{recommendation}");
        // No token is the likeliest of NaN.
        assert!(diff.get("tokens").is_none(), "{diff}");
    }
}

#[test]
fn a_weight_above_the_memory_limit_is_reported_with_a_sufficient_limit() {
    let sandbox = Sandbox::new();
    damaged(&sandbox, LLAMA, "lm_head.weight", |bytes| bytes.fill(0));
    let line = |limit: &str| {
        sandbox.apr(&format!("trace {LLAMA} broken --diff --prompt 12+34= --max-memory {limit}"))
    };
    let shown = line("500KB").ok().text();
    let said = "Not compared: lm_head.weight takes 283,792 bytes to compare, beyond the 250,000";
    assert!(shown.contains(said), "{shown}");
    assert!(shown.contains("raise --max-memory to 1MiB to compare them"), "{shown}");
    let shown = line("1MiB").ok().text();
    assert!(shown.contains("Weight lm_head.weight: bf16, 100.0 % of it became zero"), "{shown}");
    let json = sandbox
        .apr(&format!("trace {LLAMA} broken --diff --prompt 12+34= --max-memory 500KB --json"));
    let found = &json.ok().json()["passes"][0]["divergences"][0];
    assert_eq!(found["memory_needed"], 2 * 283_792);
}

#[test]
fn a_model_of_other_weights_is_a_divergence_of_all_steps() {
    let sandbox = Sandbox::new();
    // No step adds more drift than the others.
    other_weights(&sandbox);
    for (other, dtype) in [("broken", "bf16"), ("q.gguf", "q8_0")] {
        if dtype == "q8_0" {
            sandbox.apr("quantize broken -t q8_0 -o q.gguf --relaxed").ok();
        }
        let line = format!("trace {LLAMA} {other} --diff --exit-code --prompt 12+34=");
        sandbox.apr(&line).fails(5, &[]).says(&["Divergence detected at: embeddings/tokens"]);
        let diff = diff(&sandbox, other);
        let found = divergence(&diff).expect("a divergence");
        assert_eq!(found["weights"][0]["other_dtype"], dtype, "{found}");
    }
}

/// Writes `broken`, with the elements of each matrix in another order.
fn other_weights(sandbox: &Sandbox) {
    for entry in fs::read_dir(LLAMA).expect("a fixture").flatten() {
        let file = entry.file_name().into_string().expect("a name");
        let mut bytes = fs::read(entry.path()).expect("a file");
        if file == "model.safetensors" {
            let len = bytes[..8].try_into().map(u64::from_le_bytes).expect("eight bytes");
            let end = 8 + usize::try_from(len).expect("a small file");
            let header: Value = serde_json::from_slice(&bytes[8..end]).expect("a header");
            let is_matrix = |info: &&Value| info["shape"].as_array().is_some_and(|it| it.len() > 1);
            for info in header.as_object().expect("tensors").values().filter(is_matrix) {
                let offset = |at: usize| {
                    let offset = info["data_offsets"][at].as_u64().expect("an offset");
                    end + usize::try_from(offset).expect("a small file")
                };
                let elements = &mut bytes[offset(0)..offset(1)];
                let old = elements.to_vec();
                let count = old.len() / 2;
                // A prime that divides no size of a matrix: each element has one place.
                for (at, element) in elements.chunks_exact_mut(2).enumerate() {
                    let from = 2 * (at * 7919 % count);
                    element.copy_from_slice(&old[from..from + 2]);
                }
            }
        }
        sandbox.write(&format!("broken/{file}"), bytes);
    }
}
