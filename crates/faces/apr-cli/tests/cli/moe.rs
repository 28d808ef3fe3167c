//! Mixtures of experts by mergekit-moe's configurations, beside what mergekit-moe made of them
//! (`fixtures/merge/moe/make.py`).

use std::collections::BTreeMap;
use std::fs;

use apr_testkit::locate;
use half::{bf16, f16};
use serde_json::{Value, json};

use crate::support::{Sandbox, tensors};

type Tensors = BTreeMap<String, (Value, Value, Vec<u8>)>;

const MODELS: [&str; 6] = ["llama", "llama-x", "llama-y", "qwen3", "qwen3-x", "qwen3-y"];

/// The models, and a configuration as `moe.yml`.
fn with_models(configuration: &str) -> Sandbox {
    let sandbox = Sandbox::new().with("moe.yml", configuration);
    for model in MODELS {
        let folder = locate::fixture("merge/moe").join(model);
        for file in fs::read_dir(folder).expect("the fixture is there") {
            let path = file.expect("a file").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            sandbox.write(&format!("{model}/{name}"), fs::read(&path).expect("readable"));
        }
    }
    sandbox
}

fn cases() -> BTreeMap<String, String> {
    let text = fs::read(locate::fixture("merge/moe/cases.json")).expect("there");
    serde_json::from_slice(&text).expect("JSON")
}

fn goldens() -> Tensors {
    tensors(&fs::read(locate::fixture("merge/moe/goldens.safetensors")).expect("there"))
}

fn mixed(case: &str) -> (Sandbox, Tensors) {
    let sandbox = with_models(&cases()[case]);
    sandbox.apr("merge --config moe.yml -o out").ok();
    let found = tensors(&sandbox.read("out/model.safetensors"));
    (sandbox, found)
}

fn floats((dtype, _, bytes): &(Value, Value, Vec<u8>)) -> Vec<f32> {
    let half = |pair: &[u8]| [pair[0], pair[1]];
    match dtype.as_str() {
        Some("F32") => {
            bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect()
        }
        Some("F16") => bytes.chunks(2).map(|two| f16::from_le_bytes(half(two)).to_f32()).collect(),
        _ => bytes.chunks(2).map(|two| bf16::from_le_bytes(half(two)).to_f32()).collect(),
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The tensors that mergekit stacks in one, as models are published.
fn parts(name: &str, experts: u64) -> Option<Vec<String>> {
    let (block, stacked) = name.split_once("experts.")?;
    let is_mixtral = !name.contains("qwen3");
    let ends: &[&str] = match (stacked, is_mixtral) {
        ("gate_up_proj", true) => &["w1", "w3"],
        ("gate_up_proj", false) => &["gate_proj", "up_proj"],
        ("down_proj", true) => &["w2"],
        ("down_proj", false) => &["down_proj"],
        _ => return None,
    };
    let name = |expert, end: &&str| format!("{block}experts.{expert}.{end}.weight");
    Some((0..experts).flat_map(|expert| ends.iter().map(move |end| name(expert, end))).collect())
}

/// The name under which Mixtral is published.
fn published(case: &str, name: &str) -> String {
    match case.starts_with("mixtral") {
        true => name.replace(".mlp.", ".block_sparse_moe."),
        false => name.to_owned(),
    }
}

#[test]
fn experts_and_base_are_mergekits_to_the_byte_and_gates_within_rounding() {
    let goldens = goldens();
    for case in cases().keys() {
        let (_, found) = mixed(case);
        let prefix = format!("{case}/");
        let mut compared = 0;
        for (golden, expected) in &goldens {
            let Some(name) = golden.strip_prefix(&prefix) else { continue };
            if name.starts_with("f32/") {
                continue;
            }
            let ours = published(case, name);
            compared += 1;
            let experts = expected.1[0].as_u64().unwrap_or_default();
            // The case stands in front, as it says which names there are.
            if let Some(names) = parts(&format!("{prefix}{ours}"), experts) {
                let names = names.iter().map(|name| &name[prefix.len()..]);
                let bytes: Vec<u8> = names.flat_map(|name| found[name].2.clone()).collect();
                assert!(bytes == expected.2, "{golden}");
                continue;
            }
            let found = &found[&ours];
            assert_eq!((&found.0, &found.1), (&expected.0, &expected.1), "{golden}");
            if name.ends_with("gate.weight") {
                // mergekit runs models in bf16, and counts padding in the mean of states.
                let tolerance = match case.as_str() {
                    "mixtral-average" => continue,
                    "mixtral-hidden" => 0.02,
                    _ => 3e-7,
                };
                let distance = distance(&floats(found), &floats(expected));
                assert!(distance < tolerance, "{golden}: {distance}");
            } else {
                assert!(found.2 == expected.2, "{golden}");
            }
        }
        assert!(compared > 10, "{case}: {compared}");
    }
}

#[test]
fn gates_of_hidden_states_are_transformers() {
    let goldens = goldens();
    for case in ["mixtral-hidden", "mixtral-average"] {
        let (_, found) = mixed(case);
        for layer in 0..2 {
            let expected = floats(&goldens[&format!("{case}/f32/{layer}")]);
            let ours = &found[&format!("model.layers.{layer}.block_sparse_moe.gate.weight")];
            let distance = distance(&floats(ours), &expected);
            assert!(distance < 2e-6, "{case}, layer {layer}: {distance}");
        }
    }
}

#[test]
fn a_mixture_is_a_whole_model_of_its_family() {
    let (sandbox, _) = mixed("mixtral");
    let config: Value = serde_json::from_slice(&sandbox.read("out/config.json")).expect("JSON");
    assert_eq!(config["model_type"], "mixtral");
    assert_eq!(config["architectures"], json!(["MixtralForCausalLM"]));
    assert_eq!(config["num_local_experts"], 2);
    assert_eq!(config["num_experts_per_tok"], 2);
    assert_eq!(config["dtype"], "bfloat16");
    let card = String::from_utf8(sandbox.read("out/README.md")).expect("text");
    for part in ["base_model:\n- llama\n- llama-x\n- llama-y\n", "- moe\n", "positive_prompts"] {
        assert!(card.contains(part), "{card}");
    }
    sandbox.apr("validate out").ok();
    sandbox.apr("run out --tokens 256,40 --max-tokens 2").ok();

    sandbox.apr("merge --config moe.yml -o out.gguf").ok();
    let logits = |model: &str| {
        sandbox.apr(&format!("run {model} --tokens 256,40,50 --want logits -o {model}.npy")).ok();
        sandbox.read(&format!("{model}.npy"))
    };
    let (folder, gguf) = (logits("out"), logits("out.gguf"));
    assert_eq!(folder.len(), gguf.len());

    let report = sandbox.apr("merge --config moe.yml -o out.apr --json").ok().json();
    assert_eq!(report["moe"]["architecture"], "mixtral");
    assert_eq!(report["moe"]["experts"], json!(["llama-x", "llama-y"]));
    assert_eq!(report["moe"]["of_experts"], 12);
    assert_eq!(report["moe"]["copied"], 15);
    sandbox
        .apr("merge --config moe.yml --dry-run")
        .ok()
        .says(&["Mixtral of 2 experts over llama, 2 for each token, gates by cheap_embed"]);
}

#[test]
fn random_gates_follow_from_the_seed_alone() {
    for (mode, most) in [("random", 6.0), ("uniform_random", 0.25)] {
        let sandbox = with_models(&format!(
            "base_model: llama\ngate_mode: {mode}\nexperts:\n- source_model: llama-x\n- \
             source_model: llama-y\n  noise_scale: 0.01\n"
        ));
        let gates = |seed: u32| {
            sandbox.apr(&format!("merge --config moe.yml --seed {seed} -o out -f")).ok();
            let found = tensors(&sandbox.read("out/model.safetensors"));
            let noisy = "model.layers.1.block_sparse_moe.experts.1.w1.weight";
            let gate = "model.layers.1.block_sparse_moe.gate.weight";
            [floats(&found[gate]), floats(&found[noisy])]
        };
        let ([first, noisy], [second, _], [other, other_noisy]) = (gates(1), gates(1), gates(2));
        assert_eq!(first, second);
        assert!(distance(&first, &other) > 0.0);
        assert!(first.iter().all(|value| value.abs() <= most), "{first:?}");
        let moved = distance(&noisy, &other_noisy);
        assert!(moved > 0.0 && moved < 0.1, "{moved}");
    }
}

#[test]
fn models_that_do_not_match_are_rejected_and_nothing_is_written() {
    let two = |x: &str, y: &str| {
        format!(
            "experts:\n- {{source_model: {x}, positive_prompts: [a]}}\n- {{source_model: {y}, \
             positive_prompts: [b]}}\n"
        )
    };
    let head = "base_model: llama\ngate_mode: cheap_embed\n";
    for (configuration, expected) in [
        (format!("{head}{}", two("llama-x", "qwen3-x")), "of the qwen3 family"),
        (format!("{head}{}", two("llama-x", "llama-x")), "all experts are the same model"),
        (format!("{head}architecture: bert\n{}", two("llama-x", "llama-y")), "'bert'"),
        (format!("{head}architecture: qwen\n{}", two("llama-x", "llama-y")), "a shared expert"),
        (format!("{head}router: 1\n{}", two("llama-x", "llama-y")), "'router'"),
        (format!("{head}{}", two("llama-x", "../llama-y")), "--models-dir"),
    ] {
        let sandbox = with_models(&configuration);
        let run = sandbox.apr("merge --config moe.yml -o out");
        assert!(run.code != Some(0), "{configuration}");
        run.says(&[expected]);
        assert!(!sandbox.path("out").exists());
    }

    let sandbox = with_models(&format!("{head}{}", two("llama-x", "llama-y")));
    sandbox.apr("merge --config moe.yml --strategy ties -o out").fails(2, &["--strategy"]);
}
