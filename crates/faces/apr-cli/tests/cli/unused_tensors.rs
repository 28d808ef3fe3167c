//! Tensors that the graph of a family does not use: whatever computes with the graph ends, unless
//! the family's table says why they may be there; those are named.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Sandbox, f32s, safetensors_header};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-bert");
const SOUND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/sound/a.wav");
const SPEECH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-wav2vec2");

/// A copy of a model with one more tensor, of two floats.
fn with_tensor(sandbox: &Sandbox, model: &str, name: &str) {
    with_floats(sandbox, model, name, &[1.0, 2.0]);
}

/// A copy of a model with one more tensor.
fn with_floats(sandbox: &Sandbox, model: &str, name: &str, floats: &[f32]) {
    for entry in fs::read_dir(model).expect("a fixture").flatten() {
        let file = entry.file_name().into_string().expect("a name");
        if entry.path().is_file() {
            sandbox.write(&format!("more/{file}"), fs::read(entry.path()).expect("a file"));
        }
    }
    let file = sandbox.read("more/model.safetensors");
    let (len, rest) = file.split_first_chunk::<8>().expect("a length");
    let (header, data) =
        rest.split_at(usize::try_from(u64::from_le_bytes(*len)).expect("a small file"));
    let mut header: Value = serde_json::from_slice(header).expect("JSON");
    let offsets = [data.len(), data.len() + 4 * floats.len()];
    header[name] = json!({ "dtype": "F32", "shape": [floats.len()], "data_offsets": offsets });
    let file = [&safetensors_header(&header), data, &f32s(floats)].concat();
    sandbox.write("more/model.safetensors", file);
}

#[test]
fn a_tensor_that_the_graph_does_not_use_ends_all_that_compute() {
    let sandbox = Sandbox::new();
    let name = "model.layers.0.self_attn.q_a_proj.bias";
    with_tensor(&sandbox, LLAMA, name);
    sandbox.write("text.txt", "12+34=");
    for line in [
        "run more --prompt 12+34=",
        "trace more --prompt 12+34=",
        "imatrix more --text text.txt -o m.imatrix",
        "canary create more --prompt 12+34= -o c.json",
        "export more --format onnx -o more.onnx",
        "export more --format torchscript -o more.pt",
        "export more --format gguf -o more.gguf",
    ] {
        let run = sandbox.apr(line);
        run.fails(4, &["E001", name]);
    }
    for output in ["m.imatrix", "c.json", "more.onnx", "more.pt", "more.gguf"] {
        assert!(!sandbox.path(output).exists(), "{output}");
    }
}

/// transformers warns that it does not use the bias, and computes without it.
#[test]
fn a_bias_that_the_configuration_excludes_is_an_error_of_all_that_judge_and_compute() {
    let sandbox = Sandbox::new();
    let name = "model.layers.0.self_attn.q_proj.bias";
    with_floats(&sandbox, LLAMA, name, &[0.125; 128]);
    sandbox.write("text.txt", "12+34=");
    let says = [name, "the configuration excludes this bias (attention_bias is false)"];
    sandbox.apr("validate more").fails(5, &says);
    sandbox.apr("convert more -o more.apr").fails(5, &says);
    for line in [
        "run more --prompt 12+34=",
        "imatrix more --text text.txt -o m.imatrix",
        "export more --format onnx -o more.onnx",
    ] {
        sandbox.apr(line).fails(4, &["E001", "layers.0.attn.q_proj.bias"]);
    }
    // With the entry, the bias is one of the model.
    let config = String::from_utf8(sandbox.read("more/config.json")).expect("JSON");
    let config = config.replace("\"attention_bias\": false", "\"attention_bias\": true");
    sandbox.write("more/config.json", config);
    let run = sandbox.apr("validate more").fails(5, &["missing tensor"]);
    assert!(!run.to_string().contains("excludes"), "{run}");
}

#[test]
fn the_graph_is_still_drawn_and_names_the_tensor() {
    let sandbox = Sandbox::new();
    with_tensor(&sandbox, LLAMA, "model.layers.0.self_attn.q_a_proj.bias");
    let graph = sandbox.apr("graph more --json").ok().json();
    assert_eq!(graph["unused_tensors"], json!(["model.layers.0.self_attn.q_a_proj.bias"]));
}

#[test]
fn tensors_that_the_table_allows_to_be_unused_are_listed() {
    let sandbox = Sandbox::new();
    let run = sandbox.apr(&format!("run {SPEECH} -i {SOUND}"));
    assert!(run.ok().stderr.contains("masked_spec_embed (used in training alone)"));
    let run = sandbox.apr(&format!("run {BERT} --prompt a --pooling cls"));
    assert!(run.ok().stderr.contains("(heads of other tasks)"));
}

#[test]
fn a_head_of_ones_own_is_left_out_when_the_task_is_chosen() {
    let sandbox = Sandbox::new();
    with_tensor(&sandbox, BERT, "regressor.weight");
    let line = "run more --prompt a --pooling cls";
    let check = || {
        sandbox.apr(line).fails(4, &["E001", "regressor.weight", "--task"]);
        let run = sandbox.apr(&format!("{line} --task feature-extraction"));
        assert!(run.ok().stderr.contains("regressor.weight"));
    };
    // That its modules make vectors is no choice of a user's.
    check();
    std::fs::remove_file(sandbox.path("more/modules.json")).expect("the fixture has modules");
    check();
}
