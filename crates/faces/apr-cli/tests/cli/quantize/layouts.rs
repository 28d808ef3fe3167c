//! Layouts of codes and scales: rounding by inputs, importance, and what does not go with them.

use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use super::legacy_imatrix;
use crate::support::{Sandbox, Tensor, damaged, f32s, safetensors, tensors};

/// A small trained model, and a text that it is run on.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let bytes = fs::read(locate::fixture("tiny-llama").join(file)).expect("a fixture");
        sandbox.write(&format!("llama/{file}"), bytes);
    }
    let text = fs::read(locate::fixture("prune/sparsegpt.txt")).expect("a fixture");
    sandbox.with("text.txt", text)
}

/// The bytes of a tensor of a folder.
fn bytes(sandbox: &Sandbox, folder: &str, name: &str) -> Vec<u8> {
    let file = sandbox.read(&format!("{folder}/model.safetensors"));
    tensors(&file).remove(name).unwrap_or_else(|| panic!("no tensor {name}")).2
}

/// The values of a tensor of `bf16`.
fn values(sandbox: &Sandbox, folder: &str, name: &str) -> Vec<f32> {
    let bytes = bytes(sandbox, folder, name);
    let value = |pair: &[u8]| f32::from_bits(u32::from_le_bytes([0, 0, pair[0], pair[1]]));
    bytes.chunks(2).map(value).collect()
}

#[test]
fn calibration_rounds_weights_by_their_inputs_as_llm_compressor_does() {
    let sandbox = sandbox();
    let line = "quantize llama --format safetensors --type w8a8 -o";
    sandbox.apr(&format!("{line} nearest")).ok();
    let report = sandbox.apr(&format!("{line} m --calibration text.txt --json")).ok().json();
    assert_eq!(report["calibrated_rounding"]["method"], "gptq");
    let rounded = report["calibrated_rounding"]["tensors"].as_array().expect("a list");
    assert_eq!(rounded.len(), 14);

    let name = "model.layers.1.mlp.down_proj.weight";
    let golden = fs::read(locate::fixture("quantize/gptq.safetensors")).expect("a fixture");
    let expected = tensors(&golden).remove("tiny-llama_codes").expect("codes").2;
    let others = |found: &[u8]| found.iter().zip(&expected).filter(|(a, b)| a != b).count();
    let (found, nearest) = (bytes(&sandbox, "m", name), bytes(&sandbox, "nearest", name));
    let (found, nearest) = (others(&found), others(&nearest));
    // Sums in another order may choose another of two codes that are as near.
    assert!(50 * found < nearest, "{found} codes are others, {nearest} of the nearest");
    assert_eq!(sandbox.apr("run m --prompt 12+34=").ok().text().trim(), "46");
}

#[test]
fn a_layout_of_servers_is_a_folder_unless_the_output_has_an_extension() {
    let sandbox = sandbox();
    for layout in ["fp8", "w4a16", "gptq-4", "mlx-4"] {
        sandbox.apr(&format!("quantize llama --type {layout} -o {layout}")).ok();
        assert!(sandbox.path(layout).join("config.json").is_file(), "{layout}");
    }
    // Of blocks there are several formats.
    let line = "quantize llama --type mxfp4 -o blocks";
    sandbox.apr(line).fails(2, &["no format for the output's extension"]);
}

/// A Qwen3-MoE of two experts a layer.
fn experts(sandbox: &Sandbox) {
    let config = "base_model: qwen3\ngate_mode: cheap_embed\nexperts:\n\
                  - source_model: qwen3-x\n  positive_prompts: [Once upon a time]\n\
                  - source_model: qwen3-y\n  positive_prompts: [The sum of two numbers]\n";
    sandbox.write("moe.yml", config);
    for model in ["qwen3", "qwen3-x", "qwen3-y"] {
        let folder = locate::fixture("merge/moe").join(model);
        for file in fs::read_dir(folder).expect("a fixture") {
            let path = file.expect("a file").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            sandbox.write(&format!("{model}/{name}"), fs::read(&path).expect("readable"));
        }
    }
    sandbox.apr("merge --config moe.yml -o moe").ok();
}

#[test]
fn calibration_rounds_each_expert_by_the_inputs_that_reach_it() {
    let sandbox = sandbox();
    experts(&sandbox);
    let line = "quantize moe --format safetensors --type fp8";
    sandbox.apr(&format!("{line} -o nearest")).ok();
    let report = sandbox.apr(&format!("{line} -o m --calibration text.txt --json")).ok().json();
    let rounded = report["calibrated_rounding"]["tensors"].as_array().expect("a list");
    let experts =
        rounded.iter().filter(|one| one["name"].as_str().expect("a name").contains(".experts."));
    assert_eq!((rounded.len(), experts.count()), (20, 12));
    assert_eq!(report["calibrated_rounding"]["left"], json!([]));
    let divergence = |folder: &str| {
        let judge = format!("validate moe {folder} --quality --text text.txt --json");
        let found = sandbox.apr(&judge).json();
        found["kl_divergence"]["mean"]["value"].as_f64().expect("a number")
    };
    let (nearest, found) = (divergence("nearest"), divergence("m"));
    assert!(3.0 * found < nearest, "{found} {nearest}");
}

#[test]
fn errors_and_gates_compare_with_the_weights_before_rounding() {
    let sandbox = sandbox();
    for name in ["fp8", "w8a8", "w4a16", "w4a16-asym", "mxfp4", "nvfp4", "gptq-4"] {
        let line = format!("quantize llama --type {name} --format safetensors -o {name}");
        let report = sandbox.apr(&format!("{line} --calibration text.txt --json")).ok().json();
        let diff = sandbox.apr(&format!("diff llama {name} --json")).json();
        let found = report["quantization"]["tensors"].as_array().expect("a list");
        assert_eq!(found.len(), 14, "{name}");
        for tensor in found {
            let rows = diff["tensors"].as_array().expect("a list");
            let row = rows.iter().find(|row| row["name"] == tensor["name"]).expect("a row");
            for (of_diff, of_report) in [("cosine", "cosine"), ("max_delta", "max_error")] {
                assert!(near(&row[of_diff], &tensor[of_report]), "{name}: {row} {tensor}");
            }
        }
        let gate = format!("{line} -f --calibration text.txt --max-drift 0.001");
        sandbox.apr(&gate).fails(5, &["L2 drift"]);
        assert_eq!(sandbox.apr(&format!("run {name} --prompt 12+34=")).ok().text().trim(), "46");
    }
}

fn near(a: &Value, b: &Value) -> bool {
    let [a, b] = [a, b].map(|value| value.as_f64().expect("a number"));
    (a - b).abs() <= 1e-5 * a.abs().max(b.abs())
}

#[test]
fn importance_weighs_errors_where_scales_are_searched() {
    let sandbox = sandbox();
    let name = "model.layers.0.mlp.down_proj.weight";
    let importance: Vec<f32> = (0..256_u16).map(|at| f32::from(at % 7 == 0) + 0.001).collect();
    sandbox.write("i.dat", legacy_imatrix("blk.0.ffn_down.weight", &importance));
    let original = values(&sandbox, "llama", name);
    for layout in ["w4a16", "w4a16-asym", "mxfp4", "gptq-4"] {
        let error = |folder: &str, option: &str| {
            let line = format!("quantize llama --type {layout} --format safetensors {option}");
            let run = sandbox.apr(&format!("{line} -o {folder}-{layout}")).ok();
            if !option.is_empty() {
                run.says(&["no importance weights for model.layers.0.mlp.gate_proj.weight"]);
            }
            let line = format!("convert {folder}-{layout} --dequantize bf16 --format safetensors");
            sandbox.apr(&format!("{line} -o {folder}-{layout}-plain")).ok();
            let found = values(&sandbox, &format!("{folder}-{layout}-plain"), name);
            let each = original.iter().zip(&found).zip(importance.iter().cycle());
            each.map(|((a, b), weight)| f64::from((a - b) * (a - b) * weight)).sum::<f64>()
        };
        let (weighed, plain) = (error("weighed", "--imatrix i.dat"), error("plain", ""));
        assert!(weighed < plain, "{layout}: {weighed} {plain}");
    }
    for layout in ["fp8", "w8a8", "nvfp4", "mlx-4"] {
        let line = format!("quantize llama --type {layout} --format safetensors --imatrix i.dat");
        let said = format!("the importance matrix has no effect: the layout {layout} does not");
        sandbox.apr(&format!("{line} -o {layout}")).ok().says(&[&said]);
    }
}

#[test]
fn calibration_reduces_output_errors_if_a_scale_covers_more_than_one_group() {
    let sandbox = sandbox();
    for (layout, times) in [("nvfp4", 5.0), ("mlx-4", 2.0)] {
        let line = format!("quantize llama --type {layout} --format safetensors -o");
        let divergence = |folder: &str, option: &str| {
            sandbox.apr(&format!("{line} {folder} {option} -f")).ok();
            let judge = format!("validate llama {folder} --quality --text text.txt --json");
            let found = sandbox.apr(&judge).json();
            found["kl_divergence"]["mean"]["value"].as_f64().expect("a number")
        };
        let nearest = divergence("nearest", "");
        let found = divergence("rounded", "--calibration text.txt");
        assert!(times * found < nearest, "{layout}: {found} {nearest}");
    }
    // Weights that servers join have one scale of all scales, also when they were rounded.
    sandbox
        .apr("quantize llama --type nvfp4 --format safetensors -o m --calibration text.txt")
        .ok();
    let globals = ["q", "k", "v"].map(|of| {
        bytes(&sandbox, "m", &format!("model.layers.0.self_attn.{of}_proj.weight_global_scale"))
    });
    assert!(globals.iter().all(|global| *global == globals[0]), "{globals:?}");
}

#[test]
fn options_without_effect_on_a_layout_are_rejected() {
    let sandbox = sandbox();
    for (line, said) in [
        ("quantize llama --type w4a16 --pure", "--pure chooses types of blocks"),
        (
            "quantize llama --type fp8 --tensor-type *=q8_0",
            "a type of blocks, beside codes and scales",
        ),
        ("quantize llama --type fp8 --output-type q8_0", "--output-type chooses types"),
        ("quantize llama --type fp8 --embedding-type q8_0", "--embedding-type chooses types"),
        (
            "convert llama --quantize w4a16 --calibration text.txt --prune 0.5",
            "write the changed model first",
        ),
        (
            "merge llama llama --method linear --quantize w4a16 --calibration text.txt",
            "write the changed model first",
        ),
    ] {
        sandbox.apr(&format!("{line} --format safetensors -o out")).fails(2, &[said]);
        assert!(!sandbox.path("out").exists(), "{line}");
    }
    let line = "quantize llama --type w4a16 --format safetensors --calibration text.txt -o out";
    sandbox.apr(&format!("{line} --max-memory 1MB")).fails(4, &["E008"]);
}

#[test]
fn quantized_weights_are_converted_to_another_layout_only_on_request() {
    let sandbox = sandbox();
    let layout = "--format safetensors -o out -f";
    sandbox.apr("quantize llama --type fp8 --format safetensors -o fp8").ok();
    sandbox.apr("quantize llama --type q8_0 -o q.gguf").ok();
    for (source, own) in
        [("fp8", "8-bit floats (f8_e4m3), a scale for each row"), ("q.gguf", "q8_0")]
    {
        let line = format!("quantize {source} --type w4a16 {layout}");
        let said = format!("already quantized as {own}; pass --requantize to quantize it to w4a16");
        sandbox.apr(&line).fails(2, &["tensor '", &said]);
        assert!(!sandbox.path("out").exists());
        sandbox.apr(&format!("{line} --requantize")).ok().says(&["14 tensors quantized"]);
        fs::remove_dir_all(sandbox.path("out")).expect("it is there");
    }
    let idle = "--requantize has no effect: no quantized tensor";
    let line = format!("quantize llama --type w4a16 {layout} --requantize");
    sandbox.apr(&line).ok().says(&[idle]);
    sandbox.apr(&format!("{line} --calibration text.txt")).ok().says(&[idle]);
    let line = format!("quantize fp8 --type w4a16 {layout} --calibration text.txt");
    sandbox.apr(&line).fails(2, &["already quantized as 8-bit floats"]);
    let run = sandbox.apr(&format!("{line} --requantize"));
    let report = run.ok().to_string();
    assert!(!report.contains(idle), "{report}");
}

#[test]
fn reports_name_the_layout_and_what_was_read() {
    let sandbox = sandbox();
    let of_blocks = sandbox.apr("quantize llama --type q8_0 -o q.gguf --json").ok().json();
    let read = &of_blocks["bytes_in"];
    let expected: u64 = tensors(&sandbox.read("llama/model.safetensors"))
        .values()
        .map(|(_, _, bytes)| bytes.len() as u64)
        .sum();
    assert_eq!(*read, expected);
    assert_eq!(of_blocks["quantization"]["by_type"][0]["layout"], Value::Null);
    for (layout, group) in [
        ("fp8", Value::Null),
        ("w8a8", Value::Null),
        ("w4a16", json!(128)),
        ("w4a16-asym", json!(128)),
        ("mxfp4", json!(32)),
        ("nvfp4", json!(16)),
        ("gptq-4", json!(128)),
        ("mlx-4", json!(64)),
        ("mlx-6", json!(64)),
        ("mlx-8", json!(64)),
    ] {
        let line = format!("quantize llama --type {layout} --format safetensors -f");
        let report = sandbox.apr(&format!("{line} -o {layout} --json")).ok().json();
        let named = &report["quantization"]["by_type"][0]["layout"];
        assert_eq!(*named, json!({ "name": layout, "group_size": group }));
        assert_eq!(report["bytes_in"], *read, "{layout}");
        for tensor in report["tensors"].as_array().expect("a list") {
            assert_eq!(tensor["from"], "bf16", "{layout}: {tensor}");
        }
        let run = sandbox.apr(&format!("{line} -o {layout}")).ok();
        run.says(&[" of weights, ", &format!("\n  {layout} "), &format!("({layout})")]);
    }
    let onnx = sandbox.apr("convert llama --quantize q8_0 -o m.onnx --json").ok().json();
    assert_eq!(onnx["bytes_in"], *read);
    let text = sandbox.apr("quantize llama --type fp8 -o fp8 -f").ok().text();
    assert!(!text.contains("cast "), "{text}");
    let blocks = sandbox.apr("quantize q.gguf --type fp8 --requantize -o again --json");
    let report = blocks.ok().json();
    let codes = report["tensors"].as_array().expect("a list").iter();
    let codes = codes.filter(|tensor| tensor["to"] == "f8_e4m3");
    assert!(codes.clone().count() > 0 && codes.clone().all(|code| code["from"] == "q8_0"));
}

#[test]
fn weights_that_no_layout_supports_are_named_with_the_reason() {
    let sandbox = sandbox();
    let config = json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 128, "n_layer": 1,
        "n_head": 4, "vocab_size": 64, "n_positions": 32,
    });
    sandbox.write("gpt2/config.json", config.to_string());
    let mut weights = Vec::new();
    for (name, shape) in [
        ("wte.weight", vec![64, 128]),
        ("wpe.weight", vec![32, 128]),
        ("h.0.ln_1.weight", vec![128]),
        ("h.0.ln_1.bias", vec![128]),
        ("h.0.attn.c_attn.weight", vec![128, 384]),
        ("h.0.attn.c_attn.bias", vec![384]),
        ("h.0.attn.c_proj.weight", vec![128, 128]),
        ("h.0.attn.c_proj.bias", vec![128]),
        ("h.0.ln_2.weight", vec![128]),
        ("h.0.ln_2.bias", vec![128]),
        ("h.0.mlp.c_fc.weight", vec![128, 512]),
        ("h.0.mlp.c_fc.bias", vec![512]),
        ("h.0.mlp.c_proj.weight", vec![512, 128]),
        ("h.0.mlp.c_proj.bias", vec![128]),
        ("ln_f.weight", vec![128]),
        ("ln_f.bias", vec![128]),
    ] {
        let count = shape.iter().product::<u64>();
        weights.push((name, shape, f32s(&vec![0.5; usize::try_from(count).expect("small")])));
    }
    let weights: Vec<Tensor<'_>> = weights
        .iter()
        .map(|(name, shape, bytes)| (*name, "F32", &shape[..], bytes.clone()))
        .collect();
    sandbox.write("gpt2/model.safetensors", safetensors(&weights));
    let conv = "Conv1D weights (h.0.attn.c_attn, h.0.attn.c_proj, h.0.mlp.c_fc and 1 more)";
    for layout in ["w4a16", "fp8", "gptq-4"] {
        let said = format!("nothing to quantize: {layout} supports no weight of the model: {conv}");
        sandbox.apr(&format!("quantize gpt2 --type {layout} -o out --relaxed")).fails(2, &[&said]);
        sandbox
            .apr(&format!("quantize gpt2 --type {layout} -o out.apr --relaxed"))
            .fails(2, &[&said]);
    }
    let left = format!("left in floats: {conv}");
    sandbox.apr("quantize gpt2 --type mlx-4 -o mlx --relaxed").ok().says(&[&left]);

    let whisper = locate::fixture("run/tiny-whisper");
    let path = whisper.to_str().expect("text");
    let said = "w4a16 supports no weight of the model: columns not a multiple of 128 (";
    sandbox.apr(&format!("quantize {path} --type w4a16 -o out")).fails(2, &[said]);
}

#[test]
fn a_matrix_that_loses_its_values_is_named() {
    let sandbox = Sandbox::new();
    let llama = locate::fixture("tiny-llama");
    let name = "model.layers.0.mlp.up_proj.weight";
    // 1e30 in bf16: with a scale for it, the scales of other groups round to zero.
    let put = |bytes: &mut [u8]| bytes[..2].copy_from_slice(&[0x4a, 0x71]);
    damaged(&sandbox, llama.to_str().expect("text"), name, put);
    let line = "quantize broken --type nvfp4 --format safetensors -o out --relaxed";
    let of_rows =
        format!("tensor {name}: relative quantization error above 50 % in 255 of 256 rows");
    // Servers join the two, so that they have one scale of all scales.
    let other = "tensor model.layers.0.mlp.gate_proj.weight: relative quantization error 100.0 %";
    sandbox.apr(line).ok().says(&[&of_rows, &format!("{other}, above 50 %")]);
    let sound = sandbox
        .apr(&format!("quantize {} --type nvfp4 --format safetensors -o sound", llama.display()));
    let text = sound.ok().to_string();
    assert!(!text.contains("above 50 %"), "{text}");
}
