//! Several layouts of codes and scales in one folder, chosen by names or by a search.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::support::{Sandbox, tensors};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

fn sandbox() -> Sandbox {
    Sandbox::new().with("a.txt", "12+34=46\n21+45=66\n30+12=42\n17+52=69\n".repeat(12))
}

/// The values of a folder's weights, by name.
fn values(sandbox: &Sandbox, folder: &str) -> BTreeMap<String, Vec<u8>> {
    let line =
        format!("convert {folder} --dequantize bf16 --format safetensors -o {folder}-plain -f");
    sandbox.apr(&line).ok();
    let file = sandbox.read(&format!("{folder}-plain/model.safetensors"));
    tensors(&file).into_iter().map(|(name, tensor)| (name, tensor.2)).collect()
}

fn config(sandbox: &Sandbox, folder: &str) -> Value {
    let config = fs::read(sandbox.path(folder).join("config.json")).expect("a configuration");
    serde_json::from_slice(&config).expect("JSON")
}

#[test]
fn weights_of_a_mix_are_those_of_each_layout_alone() {
    let sandbox = sandbox();
    for (layout, other) in [("w4a16", "fp8"), ("nvfp4", "fp8"), ("mlx-4", "mlx-8")] {
        let line = "quantize --format safetensors";
        for alone in [layout, other] {
            if !sandbox.path(alone).exists() {
                sandbox.apr(&format!("{line} {LLAMA} --type {alone} -o {alone}")).ok();
            }
        }
        let mixed = format!("{layout}-{other}");
        let rules =
            format!("--tensor-type layers.0.mlp={other} --tensor-type *layers.1.self_attn*=bf16");
        sandbox
            .apr(&format!("{line} {LLAMA} --type {layout} {rules} -o {mixed}"))
            .ok()
            .says(&["3 ", other, layout]);
        let [own, others, mix] = [layout, other, &*mixed].map(|folder| values(&sandbox, folder));
        let file = fs::read(format!("{LLAMA}/model.safetensors")).expect("a fixture");
        let source = tensors(&file);
        assert_eq!(mix.len(), source.len());
        for (name, bytes) in &mix {
            let expected = if name.contains("layers.0.mlp") {
                &others[name]
            } else if name.contains("layers.1.self_attn") {
                &source[name].2
            } else {
                &own[name]
            };
            assert!(bytes == expected, "{mixed}: {name}");
        }
        let answer = sandbox.apr(&format!("run {mixed} --prompt 12+34=")).ok().text();
        assert_eq!(answer.trim(), "46", "{mixed}");
    }
}

#[test]
fn a_configuration_names_the_modules_of_each_layout() {
    let sandbox = sandbox();
    let line = format!("quantize {LLAMA} --format safetensors --tensor-type");
    sandbox.apr(&format!("{line} *down_proj*=fp8 --type w4a16 -o servers")).ok();
    let stated = &config(&sandbox, "servers")["quantization_config"];
    assert_eq!(stated["format"], "mixed-precision");
    let groups = stated["config_groups"].as_object().expect("groups");
    let of = |format: &str| -> Vec<&str> {
        let group = groups.values().find(|group| group["format"] == format).expect("a group");
        let targets = group["targets"].as_array().expect("a list");
        targets.iter().filter_map(Value::as_str).collect()
    };
    let down = ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"];
    assert_eq!(of("float-quantized"), down);
    let others = of("pack-quantized");
    assert!(others.len() == 12 && !others.contains(&down[0]), "{others:?}");

    sandbox.apr(&format!("{line} *down_proj*=mlx-8 --type mlx-4 -o mlx")).ok();
    let config = config(&sandbox, "mlx");
    assert_eq!(config["quantization"]["bits"], 4);
    assert_eq!(config["quantization"][down[1]]["bits"], 8);
    assert_eq!(config["quantization"], config["quantization_config"]);
}

#[test]
fn mixes_that_no_library_reads_are_rejected() {
    let sandbox = sandbox();
    for (rule, scheme, said) in [
        ("*=mlx-8", "w4a16", "no library reads this type beside w4a16"),
        ("*=fp8", "gptq-4", "no library reads this type beside gptq-4"),
        ("*=fp8", "mlx-4", "no library reads this type beside mlx-4"),
        ("*q_proj*=fp8", "w4a16", "need one type, because libraries join them"),
        ("*up_proj*=bf16", "nvfp4", "need one type, because libraries join them"),
        ("*=q4_k", "w4a16", "a type of blocks, beside codes and scales"),
    ] {
        let line = format!("quantize {LLAMA} --type {scheme} --tensor-type {rule}");
        sandbox.apr(&format!("{line} --format safetensors -o out")).fails(2, &[said]);
        assert!(!sandbox.path("out").exists(), "{rule} {scheme}");
    }
    let line = format!("quantize {LLAMA} --type q4_k_m --tensor-type *=mlx-8 -o out.gguf");
    sandbox.apr(&line).fails(2, &["a layout of codes and scales, beside q4_k_m"]);
}

#[test]
fn rules_that_change_nothing_are_reported() {
    let sandbox = sandbox();
    let line = format!("quantize {LLAMA} --format safetensors -o out -f --type");
    for (rule, said) in [
        ("w4a16 --tensor-type lm_head.weight=fp8", "=fp8 has no effect: no weight"),
        ("w4a16 --tensor-type *=w4a16", "=w4a16 has no effect: no weight"),
        ("w4a16 --tensor-type *qkv*=fp8", "=fp8 has no effect: no weight"),
        ("w4a16 --tensor-type *mlp*=f16", "weights that stay in floats stay in bf16"),
    ] {
        sandbox.apr(&format!("{line} {rule}")).ok().says(&[said]);
    }
}

#[test]
fn a_search_mixes_layouts_within_the_size() {
    let sandbox = sandbox();
    let line = format!("quantize {LLAMA} --search --calibration a.txt --context 48 --chunks 3");
    for (scheme, bits, layouts) in [
        ("mlx-4", 6.0, &["mlx-4", "mlx-6", "mlx-8", "bf16"][..]),
        ("w4a16", 9.0, &["w4a16", "fp8", "bf16"]),
    ] {
        let line = format!("{line} --type {scheme} --bits-per-weight {bits} --format safetensors");
        let report = sandbox.apr(&format!("{line} -o {scheme} --json")).ok().json();
        let types = report["search"]["types"].as_array().expect("types");
        let named = |chosen: &Value| chosen["type"].as_str().expect("a name").to_owned();
        assert!(types.iter().all(|chosen| layouts.contains(&&*named(chosen))), "{types:?}");
        // Weights that servers join have one type.
        let of = |end: &str| {
            let is_own =
                |chosen: &&Value| chosen["tensor"].as_str().is_some_and(|name| name.ends_with(end));
            types.iter().filter(is_own).map(named).collect::<Vec<_>>()
        };
        if scheme == "w4a16" {
            assert_eq!(of("q_proj.weight"), of("k_proj.weight"));
            assert_eq!(of("gate_proj.weight"), of("up_proj.weight"));
        }
        // The folder has what the search says of it, rounded by the inputs.
        let chosen = report["search"]["curve"].as_array().expect("points").iter();
        let chosen = chosen.filter(|point| point["chosen"] == true).collect::<Vec<_>>();
        let [chosen] = chosen[..] else { panic!("one point is chosen") };
        let stored = chosen["bytes"].as_u64().expect("a size");
        assert!(chosen["bits_per_weight"].as_f64().expect("bits") <= bits);
        let file = fs::metadata(sandbox.path(scheme).join("model.safetensors")).expect("a file");
        assert!((stored..stored + 8_192).contains(&file.len()), "{stored} {}", file.len());
        assert_eq!(report["calibrated_rounding"]["method"], "gptq");
        let answer = sandbox.apr(&format!("run {scheme} --prompt 12+34=")).ok().text();
        assert_eq!(answer.trim(), "46", "{scheme}");
    }
    // The size includes what the configuration says of single weights.
    for limit in [260_000_u64, 300_000] {
        let line = format!("{line} --type mlx-4 --max-size {limit} --format safetensors");
        let report = sandbox.apr(&format!("{line} -o sized -f --json")).ok().json();
        let files = report["files"].as_array().expect("a list").iter();
        let size: u64 = files.filter_map(|file| file["bytes"].as_u64()).sum();
        assert!(size <= limit && size > limit * 9 / 10, "{size} of {limit}");
    }
    let line = format!("{line} --bits-per-weight 6 --format safetensors -o out");
    sandbox.apr(&line).fails(2, &["takes the smallest layout to choose: --type mlx-4"]);
    sandbox.apr(&format!("{line} --type q4_0")).fails(2, &["leave out --type q4_0"]);
}

#[test]
fn experts_have_the_names_and_shapes_of_mlx_lm() {
    let sandbox = sandbox();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let bytes = fs::read(format!("{LLAMA}/{file}")).expect("a fixture");
        sandbox.write(&format!("llama/{file}"), bytes);
    }
    let recipe = "base_model: llama\ngate_mode: cheap_embed\nexperts:\n\
                  - source_model: llama\n  positive_prompts: ['12+34']\n\
                  - source_model: other\n  positive_prompts: ['70+12']\n";
    sandbox.write("moe.yml", recipe);
    sandbox.apr("prune llama --prune 0.1 --format safetensors -o other").ok();
    sandbox.apr("merge --config moe.yml -o moe").ok();
    let line = "quantize moe --type mlx-4 --tensor-type *layers.0.*experts.*w3*=mlx-8";
    sandbox.apr(&format!("{line} -o mlx")).ok();
    let stored = tensors(&sandbox.read("mlx/model.safetensors"));
    let module = "model.layers.0.block_sparse_moe.switch_mlp.up_proj";
    let shape = |part: &str| -> Vec<u64> {
        let dims = stored[&format!("{module}.{part}")].1.as_array().expect("a shape");
        dims.iter().filter_map(Value::as_u64).collect()
    };
    assert_eq!(shape("scales")[..2], shape("weight")[..2]);
    assert_eq!((shape("weight")[0], shape("weight").len()), (2, 3));
    assert!(!stored.keys().any(|name| name.contains(".experts.")));
    assert_eq!(config(&sandbox, "mlx")["quantization"][module]["bits"], 8);

    // Read, they are experts again, and a copy has the same bytes.
    let report = sandbox.apr("tensors mlx --json").ok().json();
    let rows = report["tensors"].as_array().expect("a list").iter();
    let names: Vec<&str> = rows.filter_map(|row| row["name"].as_str()).collect();
    assert!(names.contains(&"model.layers.1.block_sparse_moe.experts.1.w2.weight"), "{names:?}");
    for line in [
        "convert mlx --format safetensors -o copy",
        "convert mlx -o mlx.apr",
        "convert mlx.apr --format safetensors -o from-apr",
    ] {
        sandbox.apr(line).ok();
    }
    for copy in ["copy", "from-apr"] {
        assert!(tensors(&sandbox.read(&format!("{copy}/model.safetensors"))) == stored, "{copy}");
    }
    let answer = |model: &str| {
        sandbox.apr(&format!("run {model} --prompt 12+34= --max-tokens 4")).ok().text()
    };
    sandbox.apr("convert mlx --dequantize bf16 --format safetensors -o plain").ok();
    assert_eq!(answer("mlx"), answer("plain"));

    let line = "quantize moe --type mlx-4 --tensor-type *experts.1.*=mlx-8 -o apart";
    sandbox.apr(line).fails(2, &["need one type, because libraries join them"]);
}
