//! Casts, and what a model says of its dtype after them.

use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::{Sandbox, safetensors, tensors};

fn tiny_llama(sandbox: &Sandbox, folder: &str) {
    for entry in fs::read_dir(locate::fixture("tiny-llama")).expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("text");
        if entry.path().is_file() {
            sandbox.write(&format!("{folder}/{name}"), fs::read(entry.path()).expect("readable"));
        }
    }
}

fn config(sandbox: &Sandbox, folder: &str) -> Value {
    serde_json::from_slice(&sandbox.read(&format!("{folder}/config.json"))).expect("JSON")
}

fn dtypes(sandbox: &Sandbox, file: &str) -> Vec<String> {
    let mut dtypes: Vec<String> =
        tensors(&sandbox.read(file)).into_values().map(|(dtype, ..)| dtype.to_string()).collect();
    dtypes.sort_unstable();
    dtypes.dedup();
    dtypes
}

/// Returns a model in bfloat16 whose configuration declares the dtype in three places.
fn brain() -> Sandbox {
    let sandbox = Sandbox::new();
    tiny_llama(&sandbox, "m");
    let mut stated = config(&sandbox, "m");
    stated["torch_dtype"] = json!("bfloat16");
    stated["text_config"] = json!({ "dtype": "bfloat16" });
    stated["quantization_config"] = json!({ "dtype": "bfloat16" });
    sandbox.write("m/config.json", stated.to_string());
    sandbox
}

#[test]
fn a_configuration_states_the_dtype_that_is_written() {
    let sandbox = brain();
    for (line, expected) in [
        ("convert m --precision fp32 -o f --format safetensors", "float32"),
        ("convert m --precision fp16 -o f --format safetensors", "float16"),
    ] {
        sandbox.apr(&format!("{line} -f")).ok();
        let found = config(&sandbox, "f");
        assert_eq!(found["torch_dtype"], expected, "{line}");
        assert_eq!(found["text_config"]["dtype"], expected, "{line}");
        assert_eq!(found["quantization_config"]["dtype"], "bfloat16", "{line}");
        assert_eq!(found.get("dtype"), None, "no key is added");
    }
    let before = sandbox.read("m/config.json");
    sandbox.apr("convert m -o same --format safetensors").ok();
    assert!(sandbox.read("same/config.json") == before, "nothing was cast");
}

#[test]
fn floats_of_8_bits_are_dequantized_and_cast() {
    let sandbox = Sandbox::new();
    tiny_llama(&sandbox, "m");
    sandbox.apr("convert m --quantize f8_e4m3 -o a.apr").ok();
    for option in ["--dequantize bf16", "--precision bf16"] {
        sandbox.apr(&format!("convert a.apr {option} -o x.safetensors -f")).ok();
        assert_eq!(dtypes(&sandbox, "x.safetensors"), ["\"BF16\""], "{option}");
    }
    // Those whose scales are in other tensors are multiplied by them.
    let scaled = safetensors(&[
        ("q.weight", "F8_E4M3", &[2], vec![0x38; 2]),
        ("q.weight_scale_inv", "F32", &[1], 0.5_f32.to_le_bytes().to_vec()),
    ]);
    sandbox.write("s.safetensors", scaled);
    sandbox
        .apr("convert s.safetensors --dequantize bf16 -o y.safetensors")
        .ok()
        .says(&["1 weight decoded: 8-bit floats (f8_e4m3), a scale"]);
    let written = tensors(&sandbox.read("y.safetensors"));
    let weight = ("BF16".into(), json!([2]), [0x00, 0x3f].repeat(2));
    assert_eq!(written, [("q.weight".to_owned(), weight)].into());
}

#[test]
fn a_cast_that_changes_nothing_says_so() {
    let sandbox = Sandbox::new();
    tiny_llama(&sandbox, "m");
    sandbox.apr("convert m -o b.safetensors").ok();
    for (options, said) in [
        ("--precision bf16", "--precision bf16 has no effect: all floats are bf16 before"),
        ("--dequantize f32", "--dequantize f32 has no effect: no tensor is quantized"),
    ] {
        sandbox.apr(&format!("convert b.safetensors {options} -o c.safetensors")).fails(2, &[said]);
        let line = format!("convert b.safetensors {options} -o c.apr -f");
        sandbox.apr(&line).ok().says(&[said]);
        let report = sandbox.apr(&format!("{line} --json")).ok().json();
        assert!(report["warnings"].to_string().contains(said), "{report}");
    }
    sandbox.apr("convert m --quantize q8_0 -o q.apr").ok();
    let said = ["--precision bf16 has no effect", "are quantized, which --dequantize changes"];
    sandbox.apr("convert q.apr --precision bf16 -o p.apr").fails(2, &said);
    sandbox.apr("convert q.apr --dequantize bf16 -o p.apr -f").ok().clean();
    let report = sandbox.apr("convert b.safetensors -o c.safetensors -f --precision fp16 --json");
    assert!(!report.ok().json()["warnings"].to_string().contains("has no effect"));
}
