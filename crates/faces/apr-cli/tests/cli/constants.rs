//! What a graph clips, masks and declares is judged as runtimes take it, by every command alike.

use apr_testkit::locate::fixture;

use crate::support::Sandbox;

fn models() -> Sandbox {
    let sandbox = Sandbox::new();
    for (folder, name) in [
        ("graph", "limits.onnx"),
        ("graph", "weights.onnx"),
        ("graph", "refused.onnx"),
        ("tflite", "appended.tflite"),
    ] {
        sandbox.write(name, std::fs::read(fixture(folder).join(name)).expect("the fixture"));
    }
    sandbox
}

/// Expected: onnxruntime runs the one to numbers, and not the other (`fixtures/graph/limits.py`).
#[test]
fn infinity_is_an_error_in_weights_and_none_in_limits_and_masks() {
    let sandbox = models();
    let says = ["no NaN in 4 tensors, infinity only in 2 constants", "VALID"];
    sandbox.apr("validate limits.onnx").ok().says(&says);
    let wrote = ["without infinity but for 2 constants"];
    sandbox.apr("import limits.onnx -o limits.apr").ok().says(&wrote);
    sandbox.apr("validate limits.apr").ok().says(&says);
    sandbox.apr("convert limits.apr -o again.onnx").ok().says(&wrote);
    sandbox.apr("validate again.onnx").ok().says(&says);

    let found = ["tensor 'matrix': 1 of 9 values are infinite"];
    sandbox.apr("validate weights.onnx").fails(5, &found);
    sandbox.apr("import weights.onnx -o weights.apr").fails(5, &found);
    sandbox.apr("convert weights.onnx -o weights.safetensors").fails(5, &found);
}

/// Without the graph, a table cannot be identified as masks.
#[test]
fn a_table_of_masks_without_its_graph_is_a_weight() {
    let sandbox = models();
    let says = ["the output lacks the graph", "'masks'"];
    sandbox.apr("convert limits.onnx -o limits.safetensors").ok().says(&says);
    let found = ["tensor 'masks': 2 of 12 values are infinite"];
    sandbox.apr("validate limits.safetensors").fails(5, &found);
}

/// onnxruntime warns: "Falling back to lenient merge".
#[test]
fn a_declared_shape_that_contradicts_what_is_made_is_a_warning() {
    let sandbox = models();
    let says = [
        "output 'masked': f32[7, 3] is declared, and f32[2, 3] is made",
        "output 'y': f32[] is declared, and f32[2, 3] is made",
        "VALID",
    ];
    sandbox.apr("validate limits.onnx").ok().says(&says);
    sandbox.apr("validate limits.onnx --strict").fails(5, &says[..2]);
    sandbox.apr("graph limits.onnx").ok().says(&["f32[2, 3]"]);
}

/// onnxruntime: "Incompatible dimensions for matrix multiplication".
#[test]
fn a_contradictory_graph_is_rejected_by_validation_and_conversion() {
    let sandbox = models();
    let found = ["node 'MatMul_0': MatMul: shapes [2, 3] and [4, 3]"];
    sandbox.apr("validate refused.onnx").fails(5, &found);
    for (command, out) in [
        ("import refused.onnx -o", "out.apr"),
        ("convert refused.onnx -o", "out.safetensors"),
        ("convert refused.onnx -o", "out.onnx"),
    ] {
        let command = format!("{command} {out}");
        sandbox.apr(&command).fails(5, &["its graph contradicts itself", found[0], "--relaxed"]);
        assert!(!sandbox.path(out).exists(), "{out}");
        sandbox.apr(&format!("{command} --relaxed")).ok().says(&found);
    }
}

/// Commands that do not need the graph succeed with `--relaxed`; `validate` prints the same words.
#[test]
fn an_unreadable_graph_is_rejected_unless_the_command_does_not_need_it() {
    /// A list of an operator's inputs.
    const DAMAGED: usize = 1950;

    let sandbox = Sandbox::new();
    let mut bytes = std::fs::read(fixture("tflite").join("lowered.tflite")).expect("the fixture");
    bytes[DAMAGED] ^= 0x7f;
    sandbox.write("damaged.tflite", bytes);
    let found =
        ["the graph can't be read: an operator names a tensor beyond the 28 that there are"];
    sandbox.apr("validate damaged.tflite").fails(5, &found);
    for (command, out) in [
        ("import damaged.tflite -o", "out.apr"),
        ("convert damaged.tflite -o", "out.safetensors"),
        ("convert damaged.tflite -o", "out.pt"),
    ] {
        let command = format!("{command} {out}");
        let title = "damaged.tflite: its graph is damaged or not supported";
        sandbox.apr(&command).fails(5, &[title, found[0], "--relaxed"]);
        assert!(!sandbox.path(out).exists(), "{out}");
        sandbox.apr(&format!("{command} --relaxed")).ok().says(&found);
    }
    // Nothing else says what an ONNX file would compute.
    sandbox.apr("convert damaged.tflite -o out.onnx --relaxed").fails(4, &["E002"]);
    assert!(!sandbox.path("out.onnx").exists());
}

/// Offsets of external files can be relative to the start of the model.
#[test]
fn a_model_with_files_behind_it_has_its_graph_for_every_command() {
    let sandbox = models();
    sandbox.apr("validate appended.tflite").ok().says(&["Graph", "VALID"]);
    sandbox.apr("graph appended.tflite").ok().says(&["tflite::FULLY_CONNECTED"]);
    sandbox.apr("import appended.tflite -o appended.apr").ok();
    sandbox.apr("graph appended.apr").ok().says(&["tflite::FULLY_CONNECTED"]);
}
