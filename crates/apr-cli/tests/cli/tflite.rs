//! TensorFlow Lite models, by every command that reads tensors.

use std::collections::BTreeMap;

use apr_testkit::locate::fixture;
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
fn weights_and_scales_become_tensors_of_other_formats_and_what_is_left_is_said() {
    let sandbox = models();
    let left = ["words (no format here holds elements of string)", "the graph of 4 operators"];
    sandbox.apr("convert labels.tflite -o out.safetensors").ok().says(&left);
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
