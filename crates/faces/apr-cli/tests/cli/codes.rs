//! Weights that other programs quantized, through every command: they are read as the weights that
//! they stand for, and kept byte for byte where nobody asks for other values.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use apr_testkit::locate::{fixture, shared_case};
use serde_json::{Value, json};

use crate::support::{Sandbox, f32s, safetensors, tensors};

/// Folders of the same small LLaMA, quantized by different programs; it adds numbers.
pub(crate) const LLAMAS: [&str; 37] = [
    "autoround4",
    "awq4",
    "bitnet158",
    "bnb-fp4",
    "bnb-int8",
    "bnb-nf4",
    "bnb-nf4-dq",
    "comfy-scaled-fp8",
    "ct-fp8-channel",
    "ct-fp8-tensor",
    "ct-naive-int4",
    "ct-nvfp4",
    "ct-w4a16",
    "ct-w4a16-asym",
    "ct-w8a16",
    "ct-w8a8-int",
    "eetq8",
    "fbgemm-fp8",
    "fp8-block",
    "fp8-plain-cast",
    "gptq3",
    "gptq4",
    "gptq4-actorder",
    "gptq4-sym-v2",
    "gptq8",
    "hqq4",
    "mlx-affine4",
    "mlx-affine6",
    "mlx-affine8",
    "mlx-mxfp44",
    "modelopt-fp8",
    "modelopt-fp8-nocfg",
    "modelopt-nvfp4",
    "quanto-float8",
    "quanto-int4",
    "quanto-int8",
    "torchao-fp8-st",
];

/// The most likely token after `12+`, and its logit: of gpt-oss as transformers 5 computes it with
/// dequantized weights, of the others as onnxruntime 1.31 computes their export to ONNX.
const LOGITS: [(&str, usize, f32); 41] = [
    ("autoround4", 51, 17.8610),
    ("awq4", 51, 17.5639),
    ("bitnet158", 51, 18.1616),
    ("bnb-fp4", 51, 18.0480),
    ("bnb-int8", 51, 17.7949),
    ("bnb-nf4", 51, 17.2560),
    ("bnb-nf4-dq", 51, 17.2184),
    ("comfy-scaled-fp8", 51, 17.9194),
    ("ct-fp8-channel", 51, 17.7895),
    ("ct-fp8-tensor", 51, 17.9194),
    ("ct-naive-int4", 51, 17.7754),
    ("ct-nvfp4", 51, 17.9841),
    ("ct-w4a16", 51, 17.9820),
    ("ct-w4a16-asym", 51, 17.4387),
    ("ct-w8a16", 51, 17.7754),
    ("ct-w8a8-int", 51, 17.7754),
    ("eetq8", 51, 17.7783),
    ("fbgemm-fp8", 51, 17.7796),
    ("fp8-block", 51, 17.6898),
    ("fp8-plain-cast", 51, 17.6543),
    ("gptq3", 51, 18.3257),
    ("gptq4", 51, 17.5639),
    ("gptq4-actorder", 51, 16.6869),
    ("gptq4-sym-v2", 51, 17.8610),
    ("gptq8", 51, 17.7360),
    ("hqq4", 51, 18.2741),
    ("mlx-affine4", 51, 18.8418),
    ("mlx-affine6", 51, 17.8267),
    ("mlx-affine8", 51, 17.8185),
    ("mlx-mxfp44", 51, 18.0870),
    ("modelopt-fp8", 51, 17.9194),
    ("modelopt-fp8-nocfg", 51, 17.9194),
    ("modelopt-nvfp4", 51, 17.9671),
    ("quanto-float8", 51, 17.7914),
    ("quanto-int4", 51, 17.1130),
    ("quanto-int8", 51, 17.7940),
    ("torchao-fp8-st", 51, 17.7890),
    ("torchao-int8-bin", 51, 17.7613),
    ("deepseek-fp8", 205, 2.2100),
    ("qwen3-fp8", 43, 1.2009),
    ("gptoss-mxfp4", 86, 6.8007),
];

pub(crate) fn path(name: &str) -> Option<String> {
    let path = shared_case(&format!("codes/{name}"))?;
    Some(path.to_str().expect("text").to_owned())
}

/// Tensors by name: dtype, shape and bytes.
pub(crate) type Weights = BTreeMap<String, (Value, Value, Vec<u8>)>;

/// The tensors of a folder of one file.
pub(crate) fn weights(folder: &Path) -> Weights {
    tensors(&fs::read(folder.join("model.safetensors")).expect("weights"))
}

#[test]
fn models_quantized_by_other_tools_run() {
    let sandbox = Sandbox::new();
    // What BitNet answers is not known.
    for name in LLAMAS.iter().chain(&["torchao-int8-bin"]).filter(|name| **name != "bitnet158") {
        let Some(path) = path(name) else { return };
        let answer = sandbox.apr(&format!("run {path} --prompt 12+34=")).ok().text();
        assert_eq!(answer.trim(), "46", "{name}");
    }
}

#[test]
fn an_export_to_onnx_computes_what_the_codes_stand_for() {
    let sandbox = Sandbox::new();
    let logits = |model: &str| {
        sandbox.apr(&format!("run {model} --tokens 256,49,50,43 --want logits -o l.json -f")).ok();
        let report: Value = serde_json::from_slice(&sandbox.read("l.json")).expect("JSON");
        report["logits"].clone()
    };
    for (name, token, logit) in LOGITS {
        let Some(path) = path(name) else { return };
        sandbox.apr(&format!("convert {path} -o {name}.onnx")).ok();
        let [onnx, folder] = [logits(&format!("{name}.onnx")), logits(&path)];
        assert_eq!(onnx, folder, "{name}");
        let last = onnx[0][3].as_array().expect("logits").iter();
        let last = last.map(|logit| logit.as_f64().expect("a number"));
        let best = last.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).expect("a token");
        assert_eq!(best.0, token, "{name}");
        assert!((best.1 - f64::from(logit)).abs() < 2e-4, "{name}: {} is not {logit}", best.1);
    }
}

#[test]
fn a_conversion_to_gguf_computes_what_the_codes_stand_for() {
    let sandbox = Sandbox::new();
    let logits = |model: &str| -> Vec<f64> {
        sandbox.apr(&format!("run {model} --tokens 256,49,50,43 --want logits -o l.json -f")).ok();
        let report: Value = serde_json::from_slice(&sandbox.read("l.json")).expect("JSON");
        let last = report["logits"][0][3].as_array().expect("logits").iter();
        last.map(|logit| logit.as_f64().expect("a number")).collect()
    };
    for (name, ..) in LOGITS {
        let Some(path) = path(name) else { return };
        sandbox.apr(&format!("convert {path} -o m.gguf -f")).ok();
        let (gguf, folder) = (logits("m.gguf"), logits(&path));
        // Blocks of NVFP4 keep what the libraries round to bf16.
        let most = if name.ends_with("nvfp4") { 0.03 } else { 0.0 };
        let far = gguf.iter().zip(&folder).map(|(left, right)| (left - right).abs());
        let far = far.fold(0.0, f64::max);
        assert!(gguf.len() == folder.len() && far <= most, "{name}: {far}");
    }
}

#[test]
fn codes_travel_byte_for_byte() {
    let sandbox = Sandbox::new();
    for name in LLAMAS.iter().chain(&["gptoss-mxfp4", "qwen3-fp8"]) {
        let Some(path) = path(name) else { return };
        sandbox.apr(&format!("convert {path} -o {name}.apr")).ok();
        sandbox.apr(&format!("export {name}.apr --format safetensors -o {name}")).ok();
        let (before, after) = (Path::new(&path), sandbox.path(name));
        assert!(weights(before) == weights(&after), "{name}");
        let config = |folder: &Path| fs::read(folder.join("config.json")).expect("a config.json");
        assert_eq!(config(before), config(&after), "{name}");
    }
}

#[test]
fn a_weight_in_codes_is_one_tensor_in_every_report() {
    let Some(path) = path("gptq4") else { return };
    let sandbox = Sandbox::new();
    let report = sandbox.apr(&format!("inspect {path} --json")).ok().json();
    assert_eq!((&report["parameters"], &report["tensor_count"]), (&json!(361_856), &json!(21)));
    let list = sandbox.apr(&format!("tensors {path} --json")).ok().json();
    let rows = list["tensors"].as_array().expect("rows");
    let name = "model.layers.0.self_attn.q_proj.weight";
    let row = rows.iter().find(|row| row["name"] == name).expect("the weight");
    assert_eq!((&row["dtype"], &row["shape"]), (&json!("f16"), &json!([128, 128])));
    assert_eq!(row["coding"]["method"], "gptq");
    assert_eq!(row["coding"]["parts"].as_array().map(Vec::len), Some(4));
    sandbox.apr(&format!("validate {path}")).ok().says(&["none in 21 tensors"]);
}

#[test]
fn dequantizing_gives_a_plain_folder() {
    let sandbox = Sandbox::new();
    for name in ["fp8-block", "gptq4", "modelopt-fp8", "bnb-nf4"] {
        let Some(path) = path(name) else { return };
        let line = format!("convert {path} --dequantize bf16 --format safetensors -o {name}");
        sandbox.apr(&line).ok().says(&["14 weights decoded"]);
        let config: Value = serde_json::from_slice(&sandbox.read(&format!("{name}/config.json")))
            .expect("a configuration");
        assert_eq!(config.get("quantization_config"), None, "{name}");
        assert!(!sandbox.path(&format!("{name}/hf_quant_config.json")).exists());
        let written = weights(&sandbox.path(name));
        assert_eq!(written.len(), 21, "{name}");
        assert!(written.values().all(|(dtype, ..)| dtype == "BF16"), "{name}");
        let answer = sandbox.apr(&format!("run {name} --prompt 12+34=")).ok().text();
        assert_eq!(answer.trim(), "46", "{name}");
    }
}

#[test]
fn other_formats_get_values() {
    let sandbox = Sandbox::new();
    for name in ["fp8-block", "awq4", "ct-nvfp4"] {
        let Some(path) = path(name) else { return };
        sandbox.apr(&format!("quantize {path} --type q8_0 -o {name}.gguf")).ok();
        let answer = sandbox.apr(&format!("run {name}.gguf --prompt 12+34=")).ok().text();
        assert_eq!(answer.trim(), "46", "{name}");
    }
}

#[test]
fn models_of_two_methods_are_merged_by_their_values() {
    let (Some(one), Some(other)) = (path("fp8-block"), path("hqq4")) else { return };
    let sandbox = Sandbox::new();
    let merge = format!("merge {one} {other} --method linear --precision fp32");
    sandbox.apr(&format!("{merge} -o m --format safetensors")).ok();
    let merged = weights(&sandbox.path("m"));
    let known = |path: &str| tensors(&fs::read(format!("{path}.ref.safetensors")).expect("values"));
    let (one, other) = (known(&one), known(&other));
    let values = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
    };
    for (name, (_, _, bytes)) in &one {
        let (a, b) = (values(bytes), values(&other[name].2));
        let mean: Vec<f32> = a.iter().zip(&b).map(|(a, b)| (a + b) / 2.0).collect();
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-7;
        assert!(values(&merged[name].2).iter().zip(&mean).all(near), "{name}");
    }
}

#[test]
fn a_merge_can_be_quantized_like_its_first_model() {
    let sandbox = Sandbox::new();
    let Some(other) = path("hqq4") else { return };
    for (name, written) in [
        ("fp8-block", "8-bit floats (f8_e4m3), a scale for each row"),
        ("ct-w8a8-int", "int8, a scale for each row"),
        ("ct-w4a16-asym", "packed integers, 4 bits"),
        ("gptq4", "GPTQ, 4 bits"),
        ("ct-nvfp4", "NVFP4, groups of 16"),
        ("mlx-affine6", "MLX, 6 bits, groups of 64"),
    ] {
        let Some(first) = path(name) else { return };
        let merge = format!("merge {first} {other} --keep-quantization --format safetensors");
        sandbox
            .apr(&format!("{merge} -o {name}"))
            .ok()
            .says(&["the first model has", "quantized as"]);
        sandbox.apr(&format!("explain {name}")).ok().says(&[written]);
        let answer = sandbox.apr(&format!("run {name} --prompt 12+34=")).ok().text();
        assert_eq!(answer.trim(), "46", "{name}");
    }
    // The types of blocks, too; what is no type, or no quantization, is named.
    sandbox.apr(&format!("quantize {other} --type q8_0 -o a.gguf")).ok();
    sandbox.apr(&format!("merge a.gguf {other} --keep-quantization -o b.gguf")).ok();
    let report = sandbox.apr("inspect b.gguf --quantization --json").ok().json();
    assert_eq!(report["quantization"]["scheme"], "q8_0");
    let plain = fixture("tiny-llama");
    for (first, said) in [
        (&*other, "quantized as HQQ, 4 bits, groups of 64, which can't be written"),
        (plain.to_str().expect("text"), "the first model is not quantized"),
    ] {
        let line = format!("merge {first} {other} --keep-quantization -o c.gguf");
        sandbox.apr(&line).fails(2, &[said, "pass --quantize TYPE instead"]);
    }
}

#[test]
fn gpt_oss_answers_as_transformers_does_from_its_folder_and_from_gguf() {
    let Some(path) = path("gptoss-mxfp4") else { return };
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("convert {path} -o m.gguf")).ok();
    for model in [&*path, "m.gguf"] {
        let line = format!("run {model} --tokens 256,49,50,43,51,52,61 --max-tokens 8 --exact");
        let report = sandbox.apr(&format!("{line} --json")).ok().json();
        // Of transformers 5.23, with the experts dequantized to single precision.
        assert_eq!(report["added"], json!([223, 176, 245, 210, 52, 34, 91, 242]), "{model}");
    }
}

#[test]
fn a_merged_adapter_leaves_no_codes_that_the_configuration_would_misread() {
    let Some(base) = path("ct-fp8-channel") else { return };
    let sandbox = Sandbox::new();
    let layer = "base_model.model.model.layers.0.self_attn.q_proj";
    let (a, b) = (format!("{layer}.lora_A.weight"), format!("{layer}.lora_B.weight"));
    let adapter = safetensors(&[
        (&a, "F32", &[1, 128], f32s(&[0.01; 128])),
        (&b, "F32", &[128, 1], f32s(&[0.01; 128])),
    ]);
    let config =
        json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"] });
    sandbox.write("ad/adapter_model.safetensors", adapter);
    sandbox.write("ad/adapter_config.json", config.to_string());
    sandbox.apr(&format!("merge {base} --lora ad --format safetensors -o m")).ok();
    let config: Value = serde_json::from_slice(&sandbox.read("m/config.json")).expect("JSON");
    assert_eq!(config.get("quantization_config"), None);
    let merged = weights(&sandbox.path("m"));
    assert_eq!(merged.len(), 21);
    assert!(merged.values().all(|(dtype, ..)| dtype == "BF16"), "{:?}", merged.keys());
    assert_eq!(sandbox.apr("run m --prompt 12+34=").ok().text().trim(), "46");
}

/// A folder of the configuration of tiny-llama with these tensors.
fn folder(sandbox: &Sandbox, name: &str, model: Vec<u8>) {
    let config = fs::read(fixture("tiny-llama/config.json")).expect("a configuration");
    sandbox.write(&format!("{name}/config.json"), config);
    sandbox.write(&format!("{name}/model.safetensors"), model);
}

#[test]
fn codes_that_cannot_be_decoded_are_never_used_as_weights() {
    let sandbox = Sandbox::new();
    let model = safetensors(&[
        ("lm_head.weight", "F32", &[2, 2], f32s(&[1.0; 4])),
        ("model.layers.0.mlp.up_proj.strange_codes", "I8", &[2, 2], vec![1; 4]),
        ("model.layers.0.mlp.up_proj.scales", "F32", &[2], f32s(&[1.0; 2])),
    ]);
    folder(&sandbox, "m", model.clone());
    let refused = ["E003", "up_proj", "scales"];
    for line in [
        "run m --tokens 1,2",
        "run m --tokens 1,2 --arch llama",
        "convert m --relaxed --precision bf16 --dequantize bf16 -o no.safetensors",
        "convert m --relaxed --arch llama -o no.gguf",
        "convert m --relaxed --arch llama -o no.onnx",
        "quantize m --relaxed --type q8_0 -o no.gguf",
        "merge m m -o no.safetensors",
    ] {
        let run = sandbox.apr(line);
        run.fails(4, &refused);
    }
    // They can be looked at and copied.
    sandbox.apr("inspect m").ok().says(&["undecodable"]);
    sandbox.apr("convert m/model.safetensors --relaxed -o same.safetensors").ok();
    assert!(tensors(&sandbox.read("same.safetensors")) == tensors(&model));
}

#[test]
fn a_weight_that_cannot_be_decoded_counts_once_and_its_bytes_can_be_checked() {
    let sandbox = Sandbox::new();
    let model = safetensors(&[
        ("a.up.codes", "I16", &[1], vec![0; 2]),
        ("a.up.codebooks", "F16", &[1], vec![0; 2]),
        ("a.up.scales", "F16", &[1], vec![0; 2]),
        ("a.down.codes", "I16", &[1], vec![0; 2]),
        ("a.down.codebooks", "F16", &[1], vec![0; 2]),
        ("a.norm.weight", "F16", &[1], vec![0, 0x3c]),
    ]);
    sandbox.write("m.safetensors", model);
    let said = "inspected and copied, and its bytes can be checked";
    sandbox
        .apr("validate m.safetensors")
        .fails(5, &["2 weights in codes", said, "E003", "INVALID"]);
    sandbox.apr("validate m.safetensors --checksum").ok().says(&[
        "2 weights in codes",
        said,
        "\nVALID",
    ]);
    for line in ["convert m.safetensors -o m.apr", "import m.safetensors -o i.apr"] {
        sandbox.apr(line).ok().says(&["2 weights kept as stored"]);
        let report = sandbox.apr(&format!("{line} -f --json")).ok().json();
        assert_eq!(report["coded"]["weight_count"], 2, "{line}");
    }
}

#[test]
fn parts_that_do_not_match_are_reported() {
    let sandbox = Sandbox::new();
    let codes = ("up.weight", "F8_E4M3", [2_u64, 2], vec![0x38; 4]);
    let with = |scale: (&str, &str, &[u64], Vec<u8>)| {
        safetensors(&[(codes.0, codes.1, &codes.2, codes.3.clone()), scale])
    };
    let nan = f32s(&[f32::NAN]);
    for (file, code, said) in [
        (with(("up.weight_scale", "F32", &[3], f32s(&[1.0; 3]))), "E001", "up.weight_scale"),
        (with(("up.weight_scale_inv", "F32", &[1], nan)), "E002", "number 0 of the scales"),
    ] {
        sandbox.write("m.safetensors", file);
        sandbox
            .apr("convert m.safetensors --dequantize f32 -o no.safetensors")
            .fails(4, &[code, "up.weight", said]);
        assert!(!sandbox.path("no.safetensors").exists());
    }
}

/// The weight of which a part is changed.
const DOWN: &str = "model.layers.0.mlp.down_proj";

/// Writes a copy of a folder as `m` with one part of a weight changed: to another shape, with as
/// many of its bytes, or to zeros.
fn with_part(sandbox: &Sandbox, source: &str, part: &str, shape: Option<&[u64]>) {
    let mut all = weights(Path::new(source));
    let (_, old, bytes) = all.get_mut(part).unwrap_or_else(|| panic!("{source} has {part}"));
    match shape {
        Some(shape) => {
            let dims = old.as_array().expect("a shape").iter();
            let before: u64 = dims.map(|dim| dim.as_u64().expect("a length")).product();
            let len = bytes.len() as u64 / before * shape.iter().product::<u64>();
            bytes.truncate(usize::try_from(len).expect("small"));
            *old = json!(shape);
        }
        None => bytes.fill(0),
    }
    write_with(sandbox, source, &all);
}

/// Writes a copy of a folder as `m` with these tensors.
pub(crate) fn write_with(sandbox: &Sandbox, source: &str, all: &Weights) {
    let owned: Vec<(&str, &str, Vec<u64>, &Vec<u8>)> = all
        .iter()
        .map(|(name, (dtype, shape, bytes))| {
            let dims = shape.as_array().expect("a shape").iter().map(Value::as_u64);
            let dims = dims.map(|dim| dim.expect("a length")).collect();
            (&**name, dtype.as_str().expect("a dtype"), dims, bytes)
        })
        .collect();
    let tensors: Vec<(&str, &str, &[u64], Vec<u8>)> = owned
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, *dtype, &shape[..], (*bytes).clone()))
        .collect();
    sandbox.write("m/model.safetensors", safetensors(&tensors));
    sandbox.write(
        "m/config.json",
        fs::read(format!("{source}/config.json")).expect("a configuration"),
    );
}

#[test]
fn scales_and_codes_of_another_shape_are_an_error_with_the_names_of_both() {
    let sandbox = Sandbox::new();
    for (folder, part, shape) in [
        ("ct-fp8-channel", "weight_scale", &[64, 1][..]),
        ("ct-fp8-channel", "weight_scale", &[1, 128]),
        ("ct-w8a8-int", "weight_scale", &[64, 1]),
        ("ct-w8a8-int", "weight_scale", &[1, 128]),
        ("fbgemm-fp8", "weight_scale", &[64, 1]),
        ("fbgemm-fp8", "weight_scale", &[1, 128]),
        ("torchao-fp8-st", "_weight_scale", &[64, 1]),
        ("torchao-fp8-st", "_weight_scale", &[1, 128]),
        ("quanto-int8", "weight._scale", &[64, 1]),
        ("quanto-int8", "weight._scale", &[1, 128]),
        ("fp8-block", "weight_scale_inv", &[2, 1]),
        ("fp8-block", "weight_scale_inv", &[1, 1]),
        ("ct-w4a16", "weight_packed", &[128, 16]),
        ("ct-w4a16", "weight_scale", &[128, 4]),
        ("mlx-affine4", "weight", &[128, 16]),
        ("quanto-int4", "weight._data._data", &[64, 128]),
    ] {
        let Some(source) = path(folder) else { return };
        let part = format!("{DOWN}.{part}");
        with_part(&sandbox, &source, &part, Some(shape));
        let weight = format!("{DOWN}.weight");
        sandbox.apr("run m --tokens 1,2").fails(4, &["E001", &weight, &part]);
        sandbox.apr("validate m").fails(5, &["E001", &weight, "INVALID"]);
    }
}

#[test]
fn a_scale_that_a_scaled_file_lacks_is_an_error() {
    let Some(source) = path("comfy-scaled-fp8") else { return };
    let sandbox = Sandbox::new();
    let mut all = weights(Path::new(&source));
    all.remove(&format!("{DOWN}.scale_weight")).expect("a scale");
    write_with(&sandbox, &source, &all);
    let said = ["E001", &format!("{DOWN}.weight"), "'scaled_fp8' states that weights are scaled"];
    sandbox.apr("run m --tokens 1,2").fails(4, &said);
    sandbox.apr("validate m").fails(5, &[said[0], said[1], "INVALID"]);
}

#[test]
fn scales_that_are_all_zero_beside_other_codes_are_an_error() {
    let sandbox = Sandbox::new();
    for (folder, part) in [
        ("awq4", "scales"),
        ("gptq4-actorder", "scales"),
        ("ct-w4a16", "weight_scale"),
        ("ct-nvfp4", "weight_scale"),
        ("bnb-nf4", "weight.absmax"),
        ("bnb-nf4-dq", "weight.nested_absmax"),
        ("bnb-int8", "SCB"),
        ("fp8-block", "weight_scale_inv"),
        ("hqq4", "scale"),
        ("mlx-affine4", "scales"),
        ("mlx-mxfp44", "scales"),
        ("quanto-int4", "weight._scale"),
    ] {
        let Some(source) = path(folder) else { return };
        let part = format!("{DOWN}.{part}");
        with_part(&sandbox, &source, &part, None);
        let weight = format!("{DOWN}.weight");
        sandbox.apr("run m --tokens 1,2").fails(4, &["E002", &weight, &part]);
        sandbox.apr("validate m").fails(5, &["E002", &weight, "INVALID"]);
    }
}

#[test]
fn a_report_says_that_blocks_keep_what_the_library_rounds() {
    let sandbox = Sandbox::new();
    let said = "not rounded to bf16, as the method's library rounds them";
    for (folder, rounds) in [("ct-nvfp4", true), ("modelopt-nvfp4", false), ("mlx-mxfp44", false)] {
        let Some(source) = path(folder) else { return };
        let line = format!("convert {source} -o {folder}.gguf");
        let text = sandbox.apr(&line).ok().text();
        assert_eq!(text.contains(said), rounds, "{folder}: {text}");
        let report = sandbox.apr(&format!("{line} -f --json")).ok().json();
        let dtypes = &report["coded"]["in_blocks"]["not_rounded_to"];
        assert_eq!(*dtypes == json!(["bf16"]), rounds, "{folder}: {report}");
    }
}

#[test]
fn explain_names_the_method_its_bits_and_the_programs_that_load_it() {
    let sandbox = Sandbox::new();
    for (name, method, stated, bits, loads) in [
        ("gptq3", "gptq", json!("gptq"), 3.82, "transformers with GPTQModel"),
        ("fp8-block", "fp8", json!("fp8"), 8.0, "llama.cpp's converter"),
        ("comfy-scaled-fp8", "fp8", json!(null), 8.0, "ComfyUI"),
        ("modelopt-fp8-nocfg", "fp8", json!("modelopt"), 8.0, "vLLM"),
        ("ct-w4a16", "packed", json!("compressed-tensors"), 4.51, "vLLM"),
        ("mlx-affine4", "mlx", json!(null), 4.5, "mlx-lm"),
    ] {
        let Some(path) = path(name) else { return };
        let report = sandbox.apr(&format!("explain {path} --json")).ok().json();
        let quantization = &report["quantization"];
        let kind = &quantization["kinds"][0];
        assert_eq!((&kind["method"], &quantization["stated"]), (&json!(method), &stated), "{name}");
        assert_eq!(
            quantization["loaded_by"].as_array().map(|by| by.contains(&json!(loads))),
            Some(true)
        );
        let found = kind["bits_per_weight"].as_f64().expect("bits");
        assert!((found - bits).abs() < 0.01, "{name}: {found}");
        let described = kind["description"].as_str().expect("words");
        sandbox.apr(&format!("explain {path}")).ok().says(&[described, loads]);
    }

    // Of what is stated and is not there, and of what can't be decoded.
    let plain = safetensors(&[("up.weight", "F32", &[1], f32s(&[1.0]))]);
    sandbox.write("plain/config.json", r#"{"quantization_config": {"quant_method": "fp8"}}"#);
    sandbox.write("plain/model.safetensors", plain);
    sandbox.apr("explain plain").ok().says(&["none, the weights are plain tensors", "fp8"]);
    let codes = safetensors(&[
        ("up.codes", "I16", &[1], vec![0; 2]),
        ("up.codebooks", "F16", &[1], vec![0; 2]),
        ("up.scales", "F16", &[1], vec![0; 2]),
    ]);
    sandbox.write("aqlm.safetensors", codes);
    let report = sandbox.apr("explain aqlm.safetensors --json").ok().json();
    let refused = report["quantization"]["undecodable"].as_str().expect("a reason");
    assert!(refused.contains("by AQLM") && refused.contains("package aqlm"), "{refused}");
    assert_eq!(report["quantization"]["loaded_by"], json!([]));
    let report = sandbox.apr(&format!("explain {} --json", fixture("tiny-llama").display()));
    assert_eq!(report.ok().json().get("quantization"), None);
}
