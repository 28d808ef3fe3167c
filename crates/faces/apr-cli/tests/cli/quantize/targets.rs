//! Formats that quantized models are written in, and what is there when that fails.

use serde_json::{Value, json};

use super::{sandbox, text, weights};
use crate::families::TinyModel;
use crate::support::{Sandbox, f32s, safetensors};

#[test]
fn a_failure_leaves_what_was_there() {
    let mut odd = weights(256);
    odd[9] = f32::NAN;
    let sandbox = sandbox().with("q.apr", "precious").with("q.gguf", "precious");
    sandbox.write("nan.safetensors", safetensors(&[("w.weight", "F32", &[2, 128], f32s(&odd))]));
    let lines = [
        ("quantize m.safetensors --type q8_0 -o q.apr", 1),
        ("quantize nan.safetensors --type q8_0 -o q.apr -f", 5),
        ("quantize m.safetensors --type nonsense -o q.apr -f", 2),
        ("quantize m.safetensors --type q4_0 --tensor-type a.*=iq1_s -o q.apr -f", 2),
        ("quantize m.safetensors --type q8_0 -o q.gguf -f", 4),
        ("quantize none.safetensors --type q8_0 -o q.gguf -f", 3),
    ];
    for (line, code) in lines {
        sandbox.apr(line).fails(code, &[]);
        let files = (sandbox.read("q.apr"), sandbox.read("q.gguf"));
        assert_eq!(files, (b"precious".to_vec(), b"precious".to_vec()), "{line}");
    }
    assert_eq!(sandbox.files(), ["m.safetensors", "nan.safetensors", "q.apr", "q.gguf"]);
    // And says what to do.
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.gguf -f").says(&["--arch NAME"]);
    let run = sandbox.apr("quantize m.safetensors --type q4_0 --tensor-type a.*=iq1_s -o q.apr -f");
    run.says(&["a.weight", "iq1_s", "needs an importance matrix"]);
}

#[test]
fn integers_and_scales_are_valid_and_come_back() {
    let sandbox = TinyModel::new("llama").sandbox();
    for scheme in ["q8_0", "q4_1"] {
        sandbox.apr(&format!("quantize m --type {scheme} --pure -o q.apr -f")).ok();
        sandbox.apr("export q.apr -o out -f").ok();
        sandbox.apr("validate out").ok().says(&["pass  Names and shapes", "\nVALID"]);
        sandbox.apr("import out -o i.apr -f").ok();
        sandbox.apr("validate i.apr").ok();
        sandbox.apr("export i.apr -o again -f").ok();
        let weights = sandbox.read("out/weights.safetensors");
        assert!(sandbox.read("again/model.safetensors") == weights, "{scheme}");
        assert!(sandbox.read("again/scales.json") == sandbox.read("out/scales.json"), "{scheme}");
    }
}

#[test]
fn a_scheme_without_a_type_in_the_format_is_rejected() {
    let sandbox = TinyModel::new("llama").sandbox();
    let files = sandbox.files();
    for (scheme, output, what) in [
        ("int8", "q.gguf", "GGUF does not support int8: q8_0"),
        ("f8_e4m3", "q.gguf", "GGUF does not support f8_e4m3"),
        ("q8_0", "q.safetensors", "safetensors does not support q8_0: write an .apr or .gguf file"),
        ("int4", "q.pt", "PyTorch does not support int4"),
    ] {
        for line in ["quantize m --type", "convert m --quantize", "export m --quantize"] {
            sandbox.apr(&format!("{line} {scheme} -o {output}")).fails(2, &[what]);
            assert_eq!(sandbox.files(), files);
        }
    }
    for (scheme, output) in [("fp16", "f.gguf"), ("f8_e5m2", "f.safetensors"), ("bf16", "f.pt")] {
        sandbox.apr(&format!("quantize m --type {scheme} -o {output}")).ok();
    }
}

#[test]
fn quantized_tensors_become_integers_and_scales_in_safetensors() {
    let rows = f32s(&weights(64));
    let sandbox =
        Sandbox::new().with("m.safetensors", safetensors(&[("w.weight", "F32", &[2, 32], rows)]));
    let cases = [
        ("q8_0", "i8", 34),
        ("int8", "i8", 36),
        ("q4_0", "u8", 18),
        ("q4_1", "u8", 20),
        ("int4", "u8", 20),
    ];
    for (scheme, quants, _) in cases {
        sandbox.apr(&format!("quantize m.safetensors --type {scheme} -o q.apr -f")).clean();
        sandbox.apr("export q.apr -o out -f").ok();
        let report = sandbox.apr("tensors out/weights.safetensors --sort name --json").ok().json();
        let tensors = report["tensors"].as_array().expect("a list");
        assert_eq!(
            (text(&tensors[0]["name"]), text(&tensors[0]["dtype"])),
            ("w.weight", quants),
            "{scheme}"
        );
        let columns = if quants == "u8" { 16 } else { 32 };
        assert_eq!(tensors[0]["shape"], json!([2, columns]), "{scheme}");
        let scales: Value = serde_json::from_slice(&sandbox.read("out/scales.json")).expect("JSON");
        let entry = &scales["w.weight"];
        assert_eq!(
            (&entry["shape"], &entry["scales"]),
            (&json!([2, 32]), &json!("w.weight.scales")),
            "{scheme}"
        );
        assert!(tensors.iter().any(|tensor| tensor["name"] == entry["scales"]), "{scheme}");
        let mins =
            entry.get("mins").map(|name| tensors.iter().any(|tensor| tensor["name"] == *name));
        assert_eq!(mins, (scheme == "q4_1").then_some(true), "{scheme}");
    }
    // The scales of K-quants are quantized themselves.
    let rows = f32s(&weights(512));
    sandbox.write("k.safetensors", safetensors(&[("w.weight", "F32", &[2, 256], rows)]));
    sandbox.apr("quantize k.safetensors --type q4_k -o k.apr").clean();
    sandbox.apr("export k.apr -o k").fails(4, &["tensor 'w.weight'", "q4_k", "--dequantize"]);
    assert!(!sandbox.path("k").exists());
    sandbox.apr("export k.apr -o k --dequantize f32").clean();
}
