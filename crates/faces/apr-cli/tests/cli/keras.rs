//! Keras models and weights, by every command that reads tensors.

use apr_testkit::locate::fixture;

use crate::support::Sandbox;

const MODELS: [&str; 6] =
    ["small.keras", "small.h5", "small.weights.h5", "half.keras", "kinds.h5", "elsewhere.h5"];

fn models() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in MODELS {
        sandbox.write(name, std::fs::read(fixture("keras").join(name)).expect("the fixture"));
    }
    sandbox
}

#[test]
fn a_model_is_inspected_validated_and_compared() {
    let sandbox = models();
    sandbox.apr("inspect small.keras").ok().says(&["Keras", "3.15.1"]);
    let report = sandbox.apr("inspect small.h5 --json").ok().json();
    assert_eq!(report["format"], "hdf5", "{report}");
    assert_eq!(report["metadata"]["keras"]["model_config"]["class_name"], "Functional");
    sandbox.apr("tensors small.keras").ok().says(&["rec/lstm_cell/kernel", "out/kernel", "f32"]);
    sandbox.apr("tensors half.keras").ok().says(&["d/kernel", "bf16"]);
    sandbox.apr("validate small.keras").ok();
    // The same model by two versions of the format.
    sandbox.apr("diff small.keras small.h5").ok().says(&["SAME"]);
}

#[test]
fn weights_become_tensors_of_other_formats_and_losses_are_reported() {
    let sandbox = models();
    let left = ["the optimizer's state (16 variables)"];
    sandbox.apr("convert small.keras -o out.safetensors").ok().says(&left);
    sandbox.apr("diff small.h5 out.safetensors").ok().says(&["SAME"]);
    sandbox.apr("import small.h5 -o out.apr").ok();
    sandbox.apr("diff small.h5 out.apr").ok().says(&["SAME"]);
    let left = ["lzf (its chunks have the filter 32000 (LZF))", "a link to '/scalar'"];
    sandbox.apr("convert kinds.h5 -o kinds.safetensors").ok().says(&left);
    sandbox.apr("diff kinds.h5 kinds.safetensors").ok().says(&["SAME"]);
}

#[test]
fn links_into_other_files_are_reported_by_a_scan() {
    let sandbox = models();
    sandbox.apr("scan small.keras").ok();
    sandbox.apr("scan small.h5").ok();
    sandbox.apr("scan elsewhere.h5").fails(5, &["'/link' reads another file: /etc/passwd"]);
}

#[test]
fn a_damaged_model_is_an_error_with_its_place() {
    let sandbox = models();
    let mut file = sandbox.read("small.h5");
    file.truncate(9000);
    sandbox.write("cut.h5", file);
    sandbox.apr("inspect cut.h5").fails(4, &["E002", "cut.h5"]);
    sandbox.write("none.keras", b"PK\x03\x04");
    sandbox.apr("inspect none.keras").fails(4, &["none.keras"]);
}

#[test]
fn layers_are_shown_with_their_variables() {
    let sandbox = models();
    for model in ["small.keras", "small.h5"] {
        sandbox.apr(&format!("graph {model}")).ok().says(&[
            "keras::LSTM",
            "f32[batch, 5, 4]",
            "operators of Keras (domain 'keras') are shown and not checked",
        ]);
        sandbox.apr(&format!("graph {model} --node out")).ok().says(&[
            "keras::Dense",
            "tensor out/kernel",
            "units = 2",
        ]);
    }
    sandbox.apr("import small.keras -o small.apr").ok();
    sandbox.apr("graph small.apr --unfold").ok().says(&["keras::LSTM", "keras::inner"]);
    sandbox.apr("graph small.keras --opset 18").ok().says(&["ai.onnx 18", "LSTM", "FLOP"]);
    sandbox
        .apr("graph small.weights.h5")
        .fails(4, &["E003", "no graph of its own (it has no configuration of a model)"]);
}
