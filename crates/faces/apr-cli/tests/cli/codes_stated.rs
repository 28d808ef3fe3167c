//! Models whose configuration and tensors disagree on a quantization, or that state one which
//! weights alone don't show: no command computes with something else in silence.

use std::fs;

use apr_testkit::locate::fixture;
use serde_json::{Value, json};

use crate::codes::{Weights, path, weights, write_with};
use crate::support::{Sandbox, f32s, tensors};

/// A part of a layer that is looked at.
const Q: &str = "model.layers.0.self_attn.q_proj";

/// Values of weights that transformers' WeightQuant makes of the small LLaMA's, with their counts.
const QUERIES: [(f32, usize); 3] = [(-0.022_094_727, 5394), (0.0, 5691), (0.022_094_727, 5299)];
const DOWN: [(f32, usize); 3] = [(-0.032_714_844, 11_099), (0.0, 10_723), (0.032_714_844, 10_946)];

/// Writes a copy of a folder as `m`, with more tensors and a changed configuration.
fn copy(sandbox: &Sandbox, source: &str, more: Weights, change: impl FnOnce(&mut Value)) {
    let mut all = weights(source.as_ref());
    all.extend(more);
    write_with(sandbox, source, &all);
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        if let Ok(bytes) = fs::read(format!("{source}/{file}")) {
            sandbox.write(&format!("m/{file}"), bytes);
        }
    }
    let mut config: Value =
        serde_json::from_slice(&sandbox.read("m/config.json")).expect("a configuration");
    change(&mut config);
    sandbox.write("m/config.json", config.to_string().into_bytes());
}

/// The small LLaMA in plain weights.
fn plain() -> String {
    fixture("tiny-llama").to_str().expect("text").to_owned()
}

/// A tensor of one float.
fn one(name: &str, value: f32) -> (String, (Value, Value, Vec<u8>)) {
    (name.to_owned(), (json!("F32"), json!([1]), f32s(&[value])))
}

/// Asserts that no command computes with `m`, whatever it is told to overlook.
fn is_refused(sandbox: &Sandbox, said: &[&str]) {
    for line in [
        "run m --prompt 12+34=",
        "run m --prompt 12+34= --arch llama",
        "convert m --relaxed -o no.gguf",
        "convert m --relaxed --arch llama --dequantize bf16 --format safetensors -o no",
        "convert m --relaxed -o no.onnx",
        "quantize m --relaxed --type q8_0 -o no.gguf",
        "merge m m --relaxed --format safetensors -o no",
    ] {
        sandbox.apr(line).fails(4, said);
    }
    assert!(!sandbox.path("no").exists() && !sandbox.path("no.gguf").exists());
}

#[test]
fn bitnet_weights_that_layers_make_ternary_are_read_so() {
    let sandbox = Sandbox::new();
    copy(&sandbox, &plain(), Weights::new(), |config| {
        config["quantization_config"] = json!({
            "quant_method": "bitnet", "linear_class": "autobitlinear",
            "quantization_mode": "online", "modules_to_not_convert": ["lm_head"],
        });
    });
    sandbox.apr("convert m --dequantize bf16 --format safetensors -o t").ok();
    let written = weights(&sandbox.path("t"));
    let original = weights(plain().as_ref());
    for name in ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"] {
        assert!(written[name] == original[name], "{name}");
    }
    // What WeightQuant of transformers 5.24 makes of them: the value, and how many have it.
    for (name, known) in
        [(format!("{Q}.weight"), QUERIES), ("model.layers.1.mlp.down_proj.weight".to_owned(), DOWN)]
    {
        let halves = written[&name].2.as_chunks().0.iter().map(|&half| u16::from_le_bytes(half));
        let values: Vec<f32> = halves.map(|half| f32::from_bits(u32::from(half) << 16)).collect();
        for (value, count) in known {
            assert_eq!(values.iter().filter(|found| **found == value).count(), count, "{name}");
        }
    }
    sandbox.apr("explain m").ok().says(&["ternary, made of bf16"]);
    // Weights as training had them are kept where nobody asks for other values.
    sandbox.apr("convert m -o k.apr").ok();
    sandbox.apr("convert k.apr --format safetensors -o k").ok();
    assert!(weights(&sandbox.path("k")) == original);
}

#[test]
fn plain_weights_beside_a_transform_of_inputs_are_refused() {
    let sandbox = Sandbox::new();
    copy(&sandbox, &plain(), Weights::new(), |config| {
        let apply = json!([{"targets": ["Linear"], "location": "input", "ignore": ["lm_head"]}]);
        config["quantization_config"] = json!({
            "quant_method": "compressed-tensors", "format": "dense",
            "quantization_status": "frozen", "config_groups": {},
            "transform_config": {"config_groups": {"R1": {"type": "hadamard", "apply": apply}}},
        });
    });
    is_refused(&sandbox, &["E003", "hadamard", "at 'input'"]);
}

#[test]
fn integers_and_scales_of_apr_itself_are_read_as_weights() {
    let sandbox = Sandbox::new();
    let original = plain();
    for scheme in ["int8", "int4", "q8_0", "q4_0", "q4_1"] {
        let file = "q.apr";
        sandbox.apr(&format!("quantize {original} -t {scheme} -o {file} -f")).ok();
        sandbox.apr(&format!("export {file} -o x --format safetensors -f")).ok();
        let report = sandbox.apr("inspect x --json").ok().json();
        assert_eq!(report["parameters"], 361_856, "{scheme}");
        sandbox.apr(&format!("convert {file} --dequantize f32 --format safetensors -o a -f")).ok();
        sandbox.apr("convert x --dequantize f32 --format safetensors -o b -f").ok();
        let (a, b) = (weights(&sandbox.path("a")), weights(&sandbox.path("b")));
        assert!(a.len() == 21 && b.len() == 21, "{scheme}");
        let same = a.iter().all(|(name, (.., bytes))| b[name].2 == *bytes);
        assert!(same, "{scheme}");
        assert!(!sandbox.path("b/scales.json").exists());
        let answer = |model: &str| {
            sandbox.apr(&format!("run {model} --prompt 12+34=")).ok().text().trim().to_owned()
        };
        assert_eq!(answer("x"), answer(file), "{scheme}");
        // They travel as they are.
        sandbox.apr("convert x -o k.apr -f").ok();
        sandbox.apr("convert k.apr --format safetensors -o y -f").ok();
        let (x, y) = (sandbox.read("x/weights.safetensors"), sandbox.read("y/model.safetensors"));
        assert!(tensors(&x) == tensors(&y), "{scheme}");
        assert_eq!(sandbox.read("x/scales.json"), sandbox.read("y/scales.json"));
        sandbox.apr("validate y").ok();
    }
}

#[test]
fn an_edited_copy_of_a_folder_keeps_codes() {
    let sandbox = Sandbox::new();
    for name in ["gptq4", "deepseek-fp8"] {
        let Some(source) = path(name) else { return };
        sandbox.apr(&format!("edit {source} --set license=mit -o {name}")).ok();
        let kept = |model: &str| {
            let report = sandbox.apr(&format!("tensors {model} --json")).ok().json();
            let rows = report["tensors"].as_array().expect("a list").iter();
            rows.map(|row| (row["name"].clone(), row["coding"].clone())).collect::<Vec<_>>()
        };
        assert_eq!(kept(&source), kept(name), "{name}");
        let stated = |folder: &str| -> Value {
            let config = fs::read(sandbox.path(folder).join("config.json")).expect("a file");
            serde_json::from_slice(&config).expect("a configuration")
        };
        assert_eq!(stated(&source), stated(name));
        sandbox.apr(&format!("diff {source} {name}")).ok();
    }
    let Some(source) = path("gptq4") else { return };
    assert!(weights(source.as_ref()) == weights(&sandbox.path("gptq4")));
}

#[test]
fn stray_scales_are_refused_by_all_that_computes() {
    let Some(source) = path("ct-fp8-tensor") else { return };
    let sandbox = Sandbox::new();
    for stray in ["model.norm.weight_scale", "model.embed_tokens.scales", "lm_head.absmax"] {
        copy(&sandbox, &source, Weights::from([one(stray, 2.0)]), |_| {});
        is_refused(&sandbox, &["E001", &format!("'{stray}'")]);
        sandbox.apr("validate m").fails(5, &["E001", stray]);
    }
}

#[test]
fn plain_weights_under_a_configuration_of_codes_run_and_lose_it() {
    let sandbox = Sandbox::new();
    let cases = [("gptq4", Some("46")), ("fp8-block", Some("46")), ("deepseek-fp8", None)];
    for (name, answer) in cases {
        let Some(source) = path(name) else { return };
        let dequantize = "--dequantize bf16 --format safetensors";
        sandbox.apr(&format!("convert {source} {dequantize} -o d -f")).ok();
        let config = fs::read(format!("{source}/config.json")).expect("a file");
        sandbox.write("d/config.json", config);
        match answer {
            Some(answer) => {
                let said = sandbox.apr("run d --prompt 12+34=").ok().text();
                assert_eq!(said.trim(), answer, "{name}");
            }
            None => _ = sandbox.apr("run d --tokens 1,2").ok(),
        }
        sandbox.apr(&format!("convert d {dequantize} -o e -f")).ok();
        let config: Value =
            serde_json::from_slice(&sandbox.read("e/config.json")).expect("a configuration");
        assert_eq!(config.get("quantization_config"), None, "{name}");
    }
}

#[test]
fn a_dequantized_model_states_the_dtype_that_was_asked_for() {
    let sandbox = Sandbox::new();
    for (dtype, torch, beside) in
        [("f16", "float16", Some(7)), ("f32", "float32", Some(7)), ("bf16", "bfloat16", None)]
    {
        let Some(source) = path("gptq4") else { return };
        let job = format!("convert {source} --dequantize {dtype} --format safetensors -f -o");
        let run = sandbox.apr(&format!("{job} d")).ok();
        let text = run.to_string();
        match beside {
            Some(count) => assert!(text.contains(&format!("{count} tensors are not quantized"))),
            None => assert!(!text.contains("not quantized"), "{text}"),
        }
        let config: Value =
            serde_json::from_slice(&sandbox.read("d/config.json")).expect("a configuration");
        assert_eq!(config["torch_dtype"], torch);
        let kept = |folder: &str| weights(folder.as_ref())["model.norm.weight"].clone();
        let written = sandbox.path("d");
        assert_eq!(kept(written.to_str().expect("text")), kept(&source), "{dtype}");

        let run = sandbox.apr(&format!("{job} e --precision {dtype}")).ok();
        assert!(!run.to_string().contains("not quantized"), "{run}");
        let all = weights(&sandbox.path("e"));
        assert!(all.values().all(|(name, ..)| name == &dtype.to_uppercase()), "{dtype}");
    }
}

#[test]
fn a_method_that_is_not_known_is_refused_whatever_the_tensors_look_like() {
    let sandbox = Sandbox::new();
    for (name, method) in [
        ("fp8-block", "zork"),
        ("fp8-block", "fp_quant"),
        ("ct-w4a16", "quark"),
        ("hqq4", "sinq"),
        ("bnb-nf4", "exl3"),
        ("awq4", "paroquant"),
    ] {
        let Some(source) = path(name) else { return };
        copy(&sandbox, &source, Weights::new(), |config| {
            config["quantization_config"]["quant_method"] = json!(method);
        });
        is_refused(&sandbox, &["E003"]);
        sandbox.write("secret", vec![7; 32]);
        for job in [
            "prune m --prune 0.5 -o no.apr",
            "prune m --prune-nm 2:4 -o no.apr",
            "prune m --prune-heads 1 -o no.apr",
            "prune m --prune-layers 1 -o no.apr",
            "factorize m --rank 4 -o no.apr",
            "lora extract m --base m --rank 2 -o no",
            "watermark embed m --id anna --key secret -o no.apr",
            "import m -o no.apr",
            "convert m -o no.apr",
        ] {
            sandbox.apr(job).fails(4, &["E003"]);
        }
        assert!(!sandbox.path("no.apr").exists() && !sandbox.path("no").exists());
    }
}

#[test]
fn configurations_that_name_what_is_not_there_are_refused() {
    let sandbox = Sandbox::new();
    let ghost = json!({"group_size": 64, "bits": 8});
    let cases: [(&str, &str, Value, &str); 3] = [
        ("ct-w4a16", "/config_groups/group_0/targets", json!(["re:.*ghost.*"]), "ghost"),
        ("mlx-affine4", "/model.layers.7.ghost", ghost, "'model.layers.7.ghost'"),
        ("gptq4", "/bits", json!("four"), "\"four\""),
    ];
    for (name, place, value, said) in cases {
        let Some(source) = path(name) else { return };
        copy(&sandbox, &source, Weights::new(), |config| {
            for key in ["quantization_config", "quantization"] {
                let Some(stated) = config.get_mut(key) else { continue };
                match stated.pointer_mut(place) {
                    Some(entry) => *entry = value.clone(),
                    None => stated[&place[1..]] = value.clone(),
                }
            }
        });
        sandbox.apr("run m --prompt 12+34=").fails(4, &["E001", said]);
        sandbox.apr("validate m").fails(5, &["E001", said]);
    }
}

#[test]
fn scales_that_are_not_to_be_applied_lie_beside_plain_weights() {
    let sandbox = Sandbox::new();
    let cache = json!({
        "quant_method": "compressed-tensors", "format": "dense", "config_groups": {},
        "quantization_status": "compressed", "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    });
    let frozen = json!({
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "quantization_status": "frozen",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
    });
    let of_cache = [
        one("model.layers.0.self_attn.k_scale", 3.0),
        one("model.layers.1.self_attn.v_scale", 3.0),
    ];
    let of_weights =
        [one(&format!("{Q}.weight_scale"), 3.0), one(&format!("{Q}.input_scale"), 3.0)];
    for (config, scales) in [(cache, of_cache), (frozen, of_weights)] {
        copy(&sandbox, &plain(), Weights::from(scales), |all| all["quantization_config"] = config);
        let answer = sandbox.apr("run m --prompt 12+34=").ok().text();
        assert_eq!(answer.trim(), "46");
        sandbox.apr("validate m").ok();
        // They are kept where nobody asks for other values, and dropped with the codes to come.
        sandbox.apr("convert m --format safetensors -o k -f").ok();
        assert!(weights(&sandbox.path("k")) == weights(&sandbox.path("m")));
        sandbox.apr("convert m --dequantize bf16 --format safetensors -o d -f").ok();
        assert!(weights(&sandbox.path("d")) == weights(plain().as_ref()));
    }
}
