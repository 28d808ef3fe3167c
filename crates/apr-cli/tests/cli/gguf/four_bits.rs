//! Weights of four-bit floats in GGUF's blocks: read with the factors beside them.

use std::fs;

use apr_testkit::locate::shared_case;
use serde_json::{Value, json};

use crate::support::{Sandbox, tensors};

fn case(name: &str) -> Option<String> {
    let path = shared_case(&format!("codes/{name}"))?;
    Some(path.to_str().expect("text").to_owned())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

/// The largest difference of a GGUF file's values from those that are known of its source, as a
/// part of the larger of the two.
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

/// The two files that llama.cpp's converter made, and how far they are from the known values: those
/// of compressed-tensors are rounded to `bf16`.
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
