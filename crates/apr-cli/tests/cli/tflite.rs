//! TensorFlow Lite models, by every command that reads tensors.

use serde_json::json;

use apr_testkit::locate::fixture;

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
    sandbox.apr("lint kinds.tflite").fails(0, &[]);
}

#[test]
fn weights_and_scales_become_tensors_of_other_formats_and_what_is_left_is_said() {
    let sandbox = models();
    let left = ["words (no format here holds elements of string)", "the graph of 4 operators"];
    sandbox.apr("convert labels.tflite -o out.safetensors").ok().says(&left);
    sandbox.apr("diff labels.tflite out.safetensors").ok().says(&["SAME"]);
    sandbox.apr("import labels.tflite -o out.apr").ok().says(&left);
    let report = sandbox.apr("inspect out.apr --json").ok().json();
    assert_eq!(report["metadata"]["tflite"]["quantized"]["kernel"]["axis"], json!(0), "{report}");
    sandbox.apr("diff labels.tflite out.apr").ok().says(&["SAME"]);
}

#[test]
fn a_damaged_model_is_an_error_with_its_place() {
    let sandbox = models();
    let mut file = sandbox.read("kinds.tflite");
    file.truncate(900);
    sandbox.write("cut.tflite", file);
    sandbox.apr("inspect cut.tflite").fails(4, &["E002", "cut.tflite"]);
    sandbox.write("other.tflite", b"\0\0\0\0TFL3".to_vec());
    sandbox.apr("inspect other.tflite").fails(4, &["E002", "leads to itself"]);
}
