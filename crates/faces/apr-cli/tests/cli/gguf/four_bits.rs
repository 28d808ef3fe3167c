//! Weights of four-bit floats in GGUF's blocks: read with the factors beside them, and written from
//! what others quantized.

use std::fs;

use apr_testkit::locate::shared_case;
use serde_json::{Value, json};

use super::parsed::Parsed;
use super::trained;
use crate::support::{Sandbox, safetensors, tensors};

/// ggml's numbers of the types.
const F32: u32 = 0;
const MXFP4: u32 = 39;
const NVFP4: u32 = 40;

/// Returns the number of bytes of a row with `elements` elements.
fn row_len(dtype: u32, elements: u64) -> usize {
    let bytes = match dtype {
        F32 => elements * 4,
        MXFP4 => elements / 32 * 17,
        NVFP4 => elements / 64 * 36,
        other => panic!("type {other}"),
    };
    usize::try_from(bytes).expect("small")
}

/// The type and the bytes of a tensor of a GGUF file.
fn bytes_of<'p>(file: &'p Parsed, name: &str) -> (u32, &'p [u8]) {
    let (dims, dtype, offset) = &file.tensors[name];
    let rows: u64 = dims[1..].iter().product();
    let len = row_len(*dtype, dims[0]) * usize::try_from(rows).expect("small");
    (*dtype, &file.data[*offset..offset + len])
}

fn case(name: &str) -> Option<String> {
    let path = shared_case(&format!("codes/{name}"))?;
    Some(path.to_str().expect("text").to_owned())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

/// Returns the largest difference between a GGUF file's values and the known values of its source,
/// relative to the larger of the two.
fn distance(sandbox: &Sandbox, file: &str, known: &str) -> f32 {
    let line = format!("convert {file} --dequantize f32 --format safetensors -o values -f");
    sandbox.apr(&line).ok();
    let values = tensors(&sandbox.read("values/model.safetensors"));
    let known = tensors(&fs::read(format!("{known}.ref.safetensors")).expect("values"));
    let mut distance = 0.0_f32;
    for (name, (_, shape, bytes)) in &known {
        let (dtype, of, ours) = &values[name];
        assert_eq!((dtype, of), (&json!("F32"), shape), "{name}");
        for (a, b) in floats(ours).into_iter().zip(floats(bytes)) {
            distance = distance.max((a - b).abs() / b.abs().max(f32::MIN_POSITIVE));
        }
    }
    distance
}

/// The two files that llama.cpp's converter wrote, with their differences from the known values.
///
/// The known values of compressed-tensors are rounded to `bf16`.
const FILES: [(&str, f32); 2] = [("ct-nvfp4", 0.004), ("modelopt-nvfp4", 2e-7)];

#[test]
fn nvfp4_is_multiplied_by_the_factor_beside_it() {
    let sandbox = Sandbox::new();
    for (name, most) in FILES {
        let Some(source) = case(name) else { return };
        let path = format!("{source}.lcp.gguf");
        let answer = sandbox.apr(&format!("run {path} --prompt 12+34=")).ok().text();
        assert_eq!(answer.trim(), "46", "{name}");
        let distance = distance(&sandbox, &path, &source);
        assert!(distance <= most, "{name}: {distance}");

        let list = sandbox.apr(&format!("tensors {path} --json")).ok().json();
        let rows = list["tensors"].as_array().expect("rows");
        assert_eq!(rows.len(), 21, "{name}");
        let row = rows.iter().find(|row| row["name"] == "blk.0.attn_q.weight").expect("a row");
        assert_eq!((&row["dtype"], &row["shape"]), (&json!("f32"), &json!([128, 128])));
        let parts = row["coding"]["parts"].as_array().expect("parts");
        let mut names: Vec<&str> = parts.iter().filter_map(Value::as_str).collect();
        names.retain(|name| !name.ends_with(".input_scale"));
        assert_eq!(names, ["blk.0.attn_q.weight", "blk.0.attn_q.scale"]);
        sandbox.apr(&format!("validate {path}")).ok();
    }
}

#[test]
fn blocks_and_factors_travel_byte_for_byte() {
    let sandbox = Sandbox::new();
    for (name, _) in FILES {
        let Some(source) = case(name) else { return };
        let path = format!("{source}.lcp.gguf");
        sandbox.apr(&format!("convert {path} -o same.gguf -f")).ok();
        sandbox.apr(&format!("convert {path} -o m.apr -f")).ok();
        sandbox.apr("convert m.apr -o back.gguf -f").ok();
        let answer = sandbox.apr("run m.apr --prompt 12+34=").ok().text();
        assert_eq!(answer.trim(), "46", "{name}");
        let original = fs::read(&path).expect("a file");
        for file in ["same.gguf", "back.gguf"] {
            assert!(sandbox.read(file) == original, "{name}: {file}");
        }
        sandbox.write("e.gguf", original.clone());
        sandbox.apr("edit e.gguf --set general.name=other").ok();
        sandbox.apr(&format!("shard {path} --size 100KB -o cut.gguf -f")).ok();
        sandbox.apr("convert cut-00001-of-00005.gguf -o whole.gguf -f").ok();
        for file in ["e.gguf", "whole.gguf"] {
            let [file, original] = [&sandbox.read(file), &original].map(|of| Parsed::new(of, 32));
            for name in original.tensors.keys() {
                assert!(bytes_of(&file, name) == bytes_of(&original, name), "{name}");
            }
        }
        // Values where somebody asks for others.
        sandbox.apr(&format!("quantize {path} --type q8_0 -o q.gguf -f")).ok();
        let quantized = Parsed::new(&sandbox.read("q.gguf"), 32);
        assert!(!quantized.tensors.contains_key("blk.0.attn_q.scale"));
        let answer = sandbox.apr("run q.gguf --prompt 12+34=").ok().text();
        assert_eq!(answer.trim(), "46", "{name}");
    }
}

#[test]
fn nvfp4_of_others_becomes_the_blocks_that_llama_cpp_makes_of_it() {
    let sandbox = Sandbox::new();
    for (name, _) in FILES {
        let Some(source) = case(name) else { return };
        let report = sandbox.apr(&format!("convert {source} -o m.gguf --json -f")).ok().json();
        let coded = &report["coded"];
        let found = (&coded["weight_count"], &coded["in_blocks"]["weight_count"]);
        assert_eq!(found, (&json!(0), &json!(14)), "{name}");
        let ours = Parsed::new(&sandbox.read("m.gguf"), 32);
        let theirs = fs::read(format!("{source}.lcp.gguf")).expect("a file");
        let theirs = Parsed::new(&theirs, 32);
        assert_eq!(ours.number("general.file_type"), 39);
        let names = |file: &Parsed| file.tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&ours), names(&theirs), "{name}");
        let mut compared = 0;
        for (tensor, (dims, dtype, _)) in &theirs.tensors {
            let is_of_blocks = *dtype == NVFP4 || tensor.ends_with("scale");
            if is_of_blocks {
                assert_eq!(&ours.tensors[tensor].0, dims, "{name}: {tensor}");
                assert!(bytes_of(&ours, tensor) == bytes_of(&theirs, tensor), "{name}: {tensor}");
                compared += 1;
            }
        }
        assert_eq!(compared, if name == "ct-nvfp4" { 28 } else { 42 }, "{name}");
        let answer = sandbox.apr("run m.gguf --prompt 12+34=").ok().text();
        assert_eq!(answer.trim(), "46", "{name}");
    }
}

#[test]
fn mxfp4_of_others_becomes_blocks_of_the_same_values() {
    let Some(source) = case("mlx-mxfp44") else { return };
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("convert {source} -o m.gguf")).ok();
    let file = Parsed::new(&sandbox.read("m.gguf"), 32);
    let blocks = file.tensors.values().filter(|(_, dtype, _)| *dtype == MXFP4).count();
    assert_eq!((blocks, file.number("general.file_type")), (16, 38));
    assert!(distance(&sandbox, "m.gguf", &source).abs() < f32::MIN_POSITIVE);
    let answer = sandbox.apr("run m.gguf --prompt 12+34=").ok().text();
    assert_eq!(answer.trim(), "46");
    // Whoever asks for a type gets it.
    sandbox.apr(&format!("convert {source} --precision f16 -o h.gguf")).ok();
    let file = Parsed::new(&sandbox.read("h.gguf"), 32);
    assert_eq!(file.tensors["blk.0.attn_q.weight"].1, 1);
}

#[test]
fn experts_become_one_stack_with_a_factor_for_each() {
    let sandbox = trained();
    sandbox.apr("quantize llama --type q8_0 -o other.gguf").ok();
    sandbox.apr("convert other.gguf --dequantize bf16 --format safetensors -o other").ok();
    let experts = "base_model: llama\ngate_mode: cheap_embed\nexperts:\n\
                   - source_model: other\n  positive_prompts: [Once upon a time]\n\
                   - source_model: llama\n  positive_prompts: [The sum]\n";
    sandbox.write("moe.yml", experts);
    sandbox.apr("merge --config moe.yml -o moe").ok();
    sandbox.apr("quantize moe --type nvfp4 --format safetensors -o q").ok();
    sandbox.apr("convert q -o q.gguf").ok();
    let file = Parsed::new(&sandbox.read("q.gguf"), 32);
    for part in ["gate", "up", "down"] {
        let stack = format!("blk.0.ffn_{part}_exps");
        assert_eq!(file.tensors[&format!("{stack}.weight")].1, NVFP4, "{stack}");
        assert_eq!(file.tensors[&format!("{stack}.scale")].0, [2], "{stack}");
    }
    let answers = ["q", "q.gguf"]
        .map(|model| sandbox.apr(&format!("run {model} --prompt 12+34=")).ok().text());
    assert_eq!(answers.map(|answer| answer.trim().to_owned()), ["46", "46"]);
}

#[test]
fn rows_that_are_not_whole_blocks_are_converted_to_floats_with_a_warning() {
    let Some(source) = case("ct-nvfp4") else { return };
    let sandbox = Sandbox::new();
    // The same model with rows of 240 in one kind of matrix.
    let mut config: Value =
        serde_json::from_slice(&fs::read(format!("{source}/config.json")).expect("a file"))
            .expect("JSON");
    config["intermediate_size"] = json!(240);
    sandbox.write("m/config.json", config.to_string().into_bytes());
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        sandbox.write(&format!("m/{file}"), fs::read(format!("{source}/{file}")).expect("a file"));
    }
    let all = tensors(&fs::read(format!("{source}/model.safetensors")).expect("weights"));
    let mut kept: Vec<(String, String, Vec<u64>, Vec<u8>)> = Vec::new();
    for (name, (dtype, shape, bytes)) in all {
        let dims: Vec<u64> = serde_json::from_value(shape).expect("a shape");
        let dtype = dtype.as_str().expect("a dtype").to_owned();
        let rows = usize::try_from(dims[0]).expect("small");
        let row = bytes.len() / rows;
        let (mut dims, mut bytes) = (dims, bytes);
        if dims.len() == 2 && (name.contains("gate_proj") || name.contains("up_proj")) {
            dims[0] = 240;
            bytes.truncate(240 * row);
        } else if dims.len() == 2 && name.contains("down_proj") {
            let short = row * 240 / 256;
            dims[1] = dims[1] * 240 / 256;
            bytes = bytes.chunks(row).flat_map(|row| row[..short].to_vec()).collect();
        }
        kept.push((name, dtype, dims, bytes));
    }
    let kept: Vec<_> = kept
        .iter()
        .map(|(name, dtype, dims, bytes)| (&**name, &**dtype, &**dims, bytes.clone()))
        .collect();
    sandbox.write("m/model.safetensors", safetensors(&kept));
    let warned = ["2 weights of four-bit floats became values of bf16", "down_proj"];
    sandbox.apr("convert m -o m.gguf").ok().says(&warned);
    let file = Parsed::new(&sandbox.read("m.gguf"), 32);
    assert_eq!(file.tensors["blk.0.ffn_down.weight"].1, 30);
    assert_eq!(file.tensors["blk.0.ffn_up.weight"].1, NVFP4);
    assert!(!file.tensors.contains_key("blk.0.ffn_down.scale"));
}
