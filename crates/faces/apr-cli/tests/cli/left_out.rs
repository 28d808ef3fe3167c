//! What a reader leaves out of a checkpoint is named by `tensors`, `inspect` and `validate` as by
//! `convert`, in text and as JSON.

use apr_testkit::locate::fixture;
use serde_json::{Value, json};

use crate::families::TinyModel;
use crate::support::{Run, Sandbox, f32s};

/// The lists of the three reports, which are the same.
#[track_caller]
fn lists(sandbox: &Sandbox, model: &str) -> [Value; 2] {
    let list = |command: &str| {
        let report = sandbox.run(&[command, model, "--json"]).says(&[]).json();
        ["unlisted", "left_out"].map(|key| report.get(key).cloned().unwrap_or_else(|| json!([])))
    };
    let found = list("tensors");
    for command in ["inspect", "validate"] {
        assert_eq!(list(command), found, "{model}: {command}");
    }
    found
}

/// Runs the three commands, whose texts must have all of these parts.
#[track_caller]
fn say(sandbox: &Sandbox, model: &str, parts: &[&str]) {
    for command in ["tensors", "inspect", "validate"] {
        let run: Run = sandbox.run(&[command, model]);
        run.ok().says(parts);
    }
}

#[test]
fn keras_variables_that_are_not_read_are_listed() {
    let sandbox = Sandbox::new();
    let small = fixture("keras/small.keras");
    let small = small.to_str().expect("a plain path");
    let optimizer = "the optimizer's state (16 variables)";
    assert_eq!(lists(&sandbox, small), [json!([]), json!([optimizer])]);
    say(&sandbox, small, &[&format!("not read: {optimizer}")]);
    sandbox.run(&["convert", small, "-o", "o.apr"]).ok().says(&["not copied: ", optimizer]);

    let kinds = fixture("keras/kinds.h5");
    let kinds = kinds.to_str().expect("a plain path");
    let [_, left_out] = lists(&sandbox, kinds);
    let left_out = left_out.as_array().expect("a list").clone();
    let named = |what: &str| left_out.iter().any(|name| name.as_str().unwrap().contains(what));
    assert!(named("lzf (its chunks have the filter 32000 (LZF))"), "{left_out:?}");
    assert!(named("a link to '/scalar'"), "{left_out:?}");
}

#[test]
fn onnx_constants_that_are_not_tensors_are_listed_for_the_file_and_its_copy() {
    let sandbox = Sandbox::new();
    let kinds = fixture("onnx/kinds.onnx");
    let kinds = kinds.to_str().expect("a plain path");
    let [unlisted, _] = lists(&sandbox, kinds);
    let whats: Vec<&str> =
        unlisted.as_array().unwrap().iter().map(|data| data["what"].as_str().unwrap()).collect();
    assert!(whats.contains(&"tensors of text"), "{unlisted}");
    for command in ["tensors", "inspect", "validate"] {
        sandbox.run(&[command, kinds]).says(&["not listed: tensors of text (2)"]);
    }

    sandbox.run(&["convert", kinds, "-o", "o.apr", "--relaxed"]).says(&[]);
    assert_eq!(lists(&sandbox, "o.apr")[0], unlisted, "as the file that it came from");
}

#[test]
fn the_optimizer_of_a_training_checkpoint_and_distributed_values_are_listed() {
    let sandbox = Sandbox::new();
    for (name, left_out) in [
        ("torch/lightning.ckpt", "optimizer_states (6 tensors)"),
        ("torch/mp_rank_00_model_states.pt", "optimizer (6 tensors)"),
        ("torch/mesh", "2 values that are not tensors, the first is 'step'"),
    ] {
        let model = fixture(name);
        let model = model.to_str().expect("a plain path");
        assert_eq!(lists(&sandbox, model), [json!([]), json!([left_out])], "{name}");
        say(&sandbox, model, &[left_out]);
    }
}

#[test]
fn files_beside_the_weights_that_are_not_read_are_listed_and_not_examined() {
    let sandbox = TinyModel::new("bert").sandbox();
    sandbox.apr("validate m --strict").clean();
    sandbox.write("m/onnx/other.bin", f32s(&[1.0]));
    let [_, left_out] = lists(&sandbox, "m");
    assert_eq!(left_out.as_array().map(Vec::len), Some(1), "{left_out}");
    say(&sandbox, "m", &["not read: ", left_out[0].as_str().expect("a name")]);
    sandbox.apr("validate m --strict").ok().says(&["\nVALID"]);
}

/// llama.cpp computes the frequencies from the configuration, as transformers does.
#[test]
fn a_buffer_that_llama_cpp_computes_is_a_loss_of_a_conversion_to_gguf() {
    let sandbox = TinyModel::new("llama").sandbox();
    let mut header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }".to_vec();
    header.resize(117, b' ');
    header.push(b'\n');
    let values = f32s(&[0.5; 4]);
    sandbox.write("f.npy", [&b"\x93NUMPY\x01\x00\x76\x00"[..], &header, &values].concat());
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    sandbox.apr(&format!("edit m/model.safetensors --add {name}=f.npy")).ok();
    let report = sandbox.apr("convert m -o m.gguf --json").ok().json();
    let losses = report["losses"].as_array().expect("a list");
    let loss = losses.iter().find(|loss| loss["name"] == name).expect("the buffer");
    assert_eq!(
        (&loss["what"], &loss["why"]),
        (&json!("left out"), &json!("llama.cpp computes it"))
    );
}

#[test]
fn a_model_without_other_files_has_no_such_line() {
    let sandbox = Sandbox::new().with("m.safetensors", crate::support::small_safetensors());
    for command in ["tensors", "inspect", "validate"] {
        let run = sandbox.run(&[command, "m.safetensors"]).ok();
        assert!(!run.text().contains("not read"), "{run}");
        let report = sandbox.run(&[command, "m.safetensors", "--json"]).ok().json();
        assert!(report.get("left_out").is_none() && report.get("unlisted").is_none(), "{report}");
    }
}
