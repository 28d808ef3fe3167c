//! TensorFlow Lite models, by every command that reads tensors.

use std::collections::BTreeMap;

use apr_testkit::locate::{fixture, shared_case};
use serde_json::{Value, json};

use crate::support::Sandbox;

fn models() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["kinds.tflite", "labels.tflite"] {
        sandbox.write(name, std::fs::read(fixture("tflite").join(name)).expect("the fixture"));
    }
    sandbox
}

#[test]
fn a_model_is_inspected_validated_and_compared() {
    let sandbox = models();
    sandbox.apr("inspect kinds.tflite").ok().says(&["TensorFlow Lite"]);
    let report = sandbox.apr("inspect labels.tflite --json").ok().json();
    assert_eq!(report["format"], "tflite", "{report}");
    sandbox.apr("tensors kinds.tflite").ok().says(&["kernel.scales", "body/bias", "i8"]);
    sandbox.apr("validate kinds.tflite").ok();
    sandbox.apr("diff kinds.tflite labels.tflite").ok().says(&["SAME"]);
    sandbox.apr("scan kinds.tflite").says(&["Mine"]);
    sandbox.apr("lint kinds.tflite").ok();
}

#[test]
fn weights_and_scales_become_tensors_of_other_formats_and_losses_are_reported() {
    let sandbox = models();
    let left = ["words (no format here holds elements of string)"];
    sandbox
        .apr("convert labels.tflite -o out.safetensors")
        .ok()
        .says(&[left[0], "model.graph, labels.txt, vocabulary.txt (companion file)"]);
    sandbox.apr("diff labels.tflite out.safetensors").ok().says(&["SAME"]);
    sandbox.apr("import labels.tflite -o out.apr").ok().says(&left);
    let report = sandbox.apr("inspect out.apr --json").ok().json();
    assert_eq!(report["metadata"]["affine"]["kernel"]["axis"], json!(0), "{report}");
    sandbox.apr("diff labels.tflite out.apr").ok().says(&["SAME"]);
}

/// Expected values: Google's interpreter (`fixtures/tflite/floats.json`).
#[test]
fn integers_become_the_floats_that_the_interpreter_makes_of_them() {
    let sandbox = models();
    let name = "dequantize.tflite";
    sandbox.write(name, std::fs::read(fixture("tflite").join(name)).expect("the fixture"));
    sandbox
        .apr("convert dequantize.tflite --dequantize f32 -o floats.safetensors")
        .ok()
        .says(&["integers dequantized to f32: 3 tensors; the scales are left out"]);
    let floats = std::fs::read(fixture("tflite").join("floats.json")).expect("the fixture");
    let floats: Value = serde_json::from_slice(&floats).expect("JSON");
    let floats = floats.as_object().expect("an object");
    let found = tensors_of(&sandbox.read("floats.safetensors"));
    assert_eq!(found.len(), floats.len(), "no scales are left: {found:?}");
    for (name, hex) in floats {
        assert_eq!(json!(found[name]), *hex, "{name}");
    }

    sandbox.apr("convert kinds.tflite --dequantize f16 -o halves.safetensors").ok();
    let found = tensors_of(&sandbox.read("halves.safetensors"));
    // 0 to 7, with scales 0.5 and 0.25 of a row each.
    assert_eq!(found["blocks"], "00000038003c003e003c003d003e003f");
    assert_eq!(found["mask"], "010001", "what stands for itself stays");
}

/// The tensors of a safetensors file, as hexadecimal digits.
fn tensors_of(file: &[u8]) -> BTreeMap<String, String> {
    let (len, rest) = file.split_first_chunk().expect("a length");
    let len = usize::try_from(u64::from_le_bytes(*len)).expect("a length");
    let header: BTreeMap<String, Value> = serde_json::from_slice(&rest[..len]).expect("JSON");
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let hex = |entry: &Value| {
        let place = |at: usize| entry["data_offsets"][at].as_u64().expect("an offset");
        let [from, to] = [0, 1].map(|at| len + usize::try_from(place(at)).expect("small"));
        rest[from..to].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    tensors
        .map(|(name, entry)| {
            let hex = hex(&entry);
            (name, hex)
        })
        .collect()
}

#[test]
fn a_damaged_model_is_an_error_with_its_place() {
    let sandbox = models();
    let mut file = sandbox.read("kinds.tflite");
    file.truncate(900);
    sandbox.write("cut.tflite", file);
    sandbox.apr("inspect cut.tflite").fails(4, &["E002", "cut.tflite"]);
    sandbox.write("other.tflite", b"\0\0\0\0TFL3");
    sandbox.apr("inspect other.tflite").fails(4, &["E002", "leads to itself"]);
}

/// The graph of a model of others, from the file and after an import.
#[test]
fn a_graph_is_shown_from_the_file_and_from_apr() {
    let sandbox = Sandbox::new();
    let fixture = fixture("tflite").join("lowered.tflite");
    sandbox.write("m.tflite", std::fs::read(fixture).expect("the fixture"));
    sandbox.apr("import m.tflite -o m.apr").ok();
    for file in ["m.tflite", "m.apr"] {
        sandbox.apr(&format!("graph {file}")).ok().says(&[
            "tflite::DEPTHWISE_CONV_2D",
            "f32[1, 7, 6, 3]",
            "operators of TensorFlow Lite (domain 'tflite') are shown and not checked",
        ]);
        sandbox.apr(&format!("graph {file} --node depthwise_conv_2d_1")).ok().says(&[
            "tflite::DEPTHWISE_CONV_2D",
            "tensor depthwise/kernel",
            "padding = SAME",
            "depth_multiplier = 2",
            "dilation_w_factor = 2",
        ]);
    }
    let report = sandbox.apr("graph m.apr --format json").ok().json();
    assert_eq!(report["parts"][0]["operators"]["tflite::CONV_2D"], 1, "{report}");
    assert_eq!(report["unused_tensors"], Value::Null, "{report}");
    // In operators of ONNX, as `convert` writes them.
    sandbox.apr("graph m.tflite --opset 19").ok().says(&["ai.onnx 19", "Conv", "FLOP"]);
    sandbox.apr("graph m.tflite --format svg -o m.svg").ok();
    sandbox.apr("graph m.tflite --format dot").ok().says(&["tflite::CONV_2D"]);
    sandbox.apr("validate m.tflite").ok().says(&["1 notice"]);
    sandbox.apr("inspect m.tflite").ok().says(&["Computes", "16 nodes"]);
}

/// Expected values: Google's interpreter (`fixtures/tflite/lowered.py`).
#[test]
fn models_compute_what_the_interpreter_does() {
    let sandbox = Sandbox::new();
    let read = |name: &str| std::fs::read(fixture("tflite").join(name)).expect("the fixture");
    let expected: Value = serde_json::from_slice(&read("lowered.json")).expect("JSON");
    for (name, expected) in expected.as_object().expect("an object") {
        sandbox.write("m.tflite", read(name));
        compute(&sandbox, expected, 1e-6);
    }

    // Activations of 16 bits (a step of the output is 1e-4), and a layer over any batch and length.
    let expected: Value = serde_json::from_slice(&read("converted.json")).expect("JSON");
    for (name, expected) in expected.as_object().expect("an object") {
        sandbox.write("m.tflite", read(name));
        let tolerance = if name == "wide.tflite" { 3e-4 } else { 1e-6 };
        compute(&sandbox, expected, tolerance);
    }

    let Some(folder) = apr_testkit::locate::shared_data("tflite") else { return };
    let expected: Value = serde_json::from_slice(&read("outputs.json")).expect("JSON");
    for (name, expected) in expected.as_object().expect("an object") {
        sandbox.write("m.tflite", std::fs::read(folder.join(name)).expect("a model"));
        // Where weights alone are integers, the interpreter quantizes activations, too.
        let is_hybrid = name.contains("kws_ref_model_float32");
        let tolerance = if is_hybrid { 1e-2 } else { 1e-6 };
        compute(&sandbox, expected, tolerance);
    }
}

/// Runs `m.tflite`, and its export in ONNX.
fn compute(sandbox: &Sandbox, expected: &Value, tolerance: f64) {
    let shape: Vec<usize> = serde_json::from_value(expected["shape"].clone()).expect("sizes");
    let is_integer = expected["dtype"] == "int8";
    let scale = if is_integer { 90.0 } else { 64.0 };
    let mut values: Vec<Value> = (0..shape.iter().product::<usize>())
        .map(|at| {
            let value = ((at as f64) * 0.7).sin() * scale;
            let value = value.round_ties_even();
            #[expect(clippy::cast_possible_truncation, reason = "a small whole number")]
            let whole = value as i64;
            if is_integer { json!(whole) } else { json!(value / scale) }
        })
        .collect();
    for size in shape.iter().rev() {
        values = values.chunks(*size).map(|row| json!(row)).collect();
    }
    sandbox.write("x.json", values[0].to_string());
    sandbox.apr("convert m.tflite -o m.onnx -f").ok();
    for model in ["m.tflite", "m.onnx"] {
        sandbox.apr(&format!("run {model} -i x.json -o y.json -f")).ok();
        let found: Value = serde_json::from_slice(&sandbox.read("y.json")).expect("JSON");
        let found = flat(&found);
        let wanted = flat(&expected["output"]);
        assert_eq!(found.len(), wanted.len());
        let tolerance = if is_integer { 0.0 } else { tolerance };
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() <= tolerance, "{expected}: {found} for {wanted}");
        }
    }
}

/// All numbers in nested lists and objects.
fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        Value::Object(entries) => entries.values().flat_map(flat).collect(),
        value => value.as_f64().into_iter().collect(),
    }
}

#[test]
fn operators_that_onnx_lacks_are_listed() {
    let sandbox = models();
    sandbox.apr("convert kinds.tflite -o kinds.onnx").fails(
        4,
        &["E003", "TensorFlow Lite operators that apr does not translate to ONNX", "Mine"],
    );
    assert!(!sandbox.path("kinds.onnx").exists());
    sandbox.write("x.json", "[1]");
    sandbox.apr("run kinds.tflite -i x=x.json").fails(4, &["E003", "Mine"]);
}

#[test]
fn the_version_of_operators_is_the_first_that_takes_the_types() {
    let Some(folder) = shared_case("foreign") else { return };
    let sandbox = Sandbox::new();
    let int16 = format!("convert {}", folder.join("int16_add.tflite").display());
    sandbox.apr(&format!("{int16} -o int16.onnx")).ok();
    let graph = sandbox.apr("graph int16.onnx --json").ok().json();
    // DequantizeLinear takes integers of 16 bits since then.
    assert_eq!(graph["parts"][0]["opsets"]["ai.onnx"], 21, "{graph}");
    sandbox.apr("validate int16.onnx").ok();
    let invalid = ["E003", "can't be expressed in ONNX operators"];
    sandbox.apr(&format!("{int16} -o old.onnx --opset 18")).fails(4, &invalid);

    // Its only input has no number of dimensions.
    let squeeze = folder.join("simple_squeeze.tflite");
    sandbox.apr(&format!("convert {} -o squeeze.onnx", squeeze.display())).fails(4, &invalid);
}
