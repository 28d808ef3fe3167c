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

/// Nothing but its graph shows that a table with other values than zeros holds masks.
#[test]
fn a_learnt_table_with_masks_is_a_weight_without_its_graph() {
    let sandbox = models();
    let mut bytes = sandbox.read("limits.onnx");
    let endless: Vec<u8> = [f32::NEG_INFINITY; 2].iter().flat_map(|x| x.to_le_bytes()).collect();
    let at = bytes.windows(endless.len()).position(|found| found == endless).expect("masks");
    bytes[at - 4..at].copy_from_slice(&2.5_f32.to_le_bytes());
    sandbox.write("learnt.onnx", bytes);
    sandbox.apr("validate learnt.onnx").ok().says(&["infinity only in 2 constants", "VALID"]);
    let says = ["the output lacks the graph", "'masks'"];
    sandbox.apr("convert learnt.onnx -o learnt.safetensors").ok().says(&says);
    let found = ["tensor 'masks': 2 of 12 values are infinite"];
    sandbox.apr("validate learnt.safetensors").fails(5, &found);
}

#[test]
fn zeros_and_infinities_are_a_mask_without_a_graph_and_no_tensor_of_a_family() {
    let sandbox = models();
    let says = ["no NaN in 4 tensors, infinity only in 2 constants", "VALID"];
    for out in ["limits.safetensors", "limits.pt"] {
        let run = sandbox.apr(&format!("convert limits.onnx -o {out}"));
        assert!(!run.ok().stderr.contains("lacks the graph"), "{out}");
        sandbox.apr(&format!("validate {out}")).ok().says(&says);
        let report = sandbox.apr(&format!("convert {out} -o again.apr -f --json")).ok().json();
        assert_eq!(report["validation"]["infinite"], 2, "{out}");
    }

    let mask = [0.0, f32::NEG_INFINITY].map(f32::to_le_bytes).concat().repeat(64);
    let file = fixture("tiny-llama/model.safetensors");
    let mut bytes = std::fs::read(file).expect("the fixture");
    let (start, len) = place(&bytes, "model.norm.weight");
    for (at, byte) in bytes[start..start + len].iter_mut().enumerate() {
        // The upper halves of single precision are bfloat16.
        *byte = mask[at / 2 * 4 + 2 + at % 2];
    }
    sandbox.write("m/model.safetensors", bytes);
    let config = std::fs::read(fixture("tiny-llama/config.json")).expect("the fixture");
    sandbox.write("m/config.json", config);
    let found = ["'model.norm.weight': 64 of 128 values are infinite"];
    sandbox.apr("validate m").fails(5, &found);
    sandbox.apr("import m -o m.apr").fails(5, &found);
}

/// Returns offset and length of a tensor in a safetensors file.
fn place(bytes: &[u8], name: &str) -> (usize, usize) {
    let size = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let start = 8 + usize::try_from(size).expect("a small header");
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..start]).expect("JSON");
    let at = |end: usize| {
        let offset = header[name]["data_offsets"][end].as_u64().expect("an offset");
        start + usize::try_from(offset).expect("an offset")
    };
    (at(0), at(1) - at(0))
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
