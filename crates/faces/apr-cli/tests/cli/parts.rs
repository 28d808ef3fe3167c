//! What is less than a model, or of a kind that nobody knows: shards, some layers, vocabularies,
//! strange architectures.

use apr_testkit::gguf::{GgufBuilder, GgufEntry};

use crate::families::TinyModel;
use crate::support::{Sandbox, f32s, small_safetensors};

#[test]
fn a_single_shard_is_reported_with_the_index_of_the_whole_model() {
    let sandbox = Sandbox::new().with("m/model-00001-of-00004.safetensors", small_safetensors());
    let shard = "m/model-00001-of-00004.safetensors";
    let lines = [
        format!("convert {shard} -o a.apr -f"),
        format!("convert {shard} -o a.safetensors -f"),
        format!("inspect {shard}"),
        format!("validate {shard}"),
    ];
    for line in &lines {
        let lacks = "only shard 1 of 4; the folder does not contain model.safetensors.index.json";
        let run = sandbox.apr(line).ok().says(&[lacks]);
        assert_eq!(run.to_string().matches("only shard").count(), 1, "{run}");
    }
    sandbox.write("m/model.safetensors.index.json", "{}");
    for line in &lines {
        sandbox
            .apr(line)
            .ok()
            .says(&["only shard 1 of 4; open model.safetensors.index.json instead"]);
    }
}

#[test]
fn a_part_of_a_model_converts_with_a_warning_and_does_not_import() {
    let missing = "model.layers.1.mlp.up_proj.weight";
    let part = TinyModel::new("llama").without(missing).without("model.norm.weight");
    let sandbox = part.sandbox();
    let told = ["incomplete model: 2 tensors", missing];
    sandbox
        .apr("import m -o m.apr")
        .fails(5, &[missing, "missing tensor of this family and configuration"]);
    sandbox.apr("convert m -o m.apr").ok().says(&told);
    // Without the configuration, a norm after the last layer may not belong to the model.
    let told = ["incomplete model: 1 tensor", missing];
    sandbox.apr("convert m/model.safetensors -o m.safetensors").ok().says(&told);
    // llama.cpp can't do with less.
    sandbox.apr("convert m -o m.gguf").fails(5, &[missing]);
    // What is there is judged as ever.
    let gamma = "model.layers.0.input_layernorm.weight";
    part.clone().resized(gamma, &[31]).write(&sandbox, "shape");
    sandbox.apr("convert shape -o x.apr").fails(5, &[gamma, "found [31]"]);
    part.map(gamma, |value| value + 20.0).write(&sandbox, "value");
    sandbox.apr("convert value -o x.apr").fails(5, &[gamma, "the mean of this norm weight"]);
}

#[test]
fn a_gguf_file_of_an_unknown_architecture_leaves_under_its_own_names() {
    let weights = f32s(&[0.5, -0.5, 0.25, -0.25]);
    // The type 0 is f32.
    let file = GgufBuilder::new()
        .text("general.architecture", "strange")
        .entry(GgufEntry::new("blk.0.odd.weight", 0, &[2, 2], &weights))
        .build();
    let sandbox = Sandbox::new().with("s.gguf", file);
    let unknown = "unknown architecture 'strange";
    sandbox.apr("convert s.gguf -o s.safetensors").fails(5, &[unknown]);
    let notice = "tensors keep GGUF's names and layout";
    sandbox.apr("convert s.gguf -o s.safetensors --relaxed").ok().says(&[notice, unknown]);
    sandbox.apr("export s.gguf -o again.safetensors").ok().says(&[notice]);
    for model in ["s.safetensors", "again.safetensors"] {
        sandbox.apr(&format!("tensors {model}")).clean().says(&["blk.0.odd.weight", "[2, 2]"]);
        assert!(sandbox.read(model).ends_with(&weights), "{model}");
    }
}

#[test]
fn a_vocabulary_without_tensors_is_refused_for_that() {
    let vocabulary = GgufBuilder::new()
        .text("general.architecture", "llama")
        .texts("tokenizer.ggml.tokens", &["<unk>", "a"])
        .build();
    let sandbox = Sandbox::new().with("v.gguf", vocabulary);
    for line in ["convert v.gguf -o v.safetensors", "export v.gguf -o v --format safetensors"] {
        sandbox
            .apr(line)
            .fails(4, &["E001", "the file contains only a vocabulary: there are no weights to"]);
    }
}

#[test]
fn null_metadata_are_ignored() {
    let header = br#"{"__metadata__":null,"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2]].concat();
    let sandbox = Sandbox::new().with("n.safetensors", file);
    sandbox.apr("inspect n.safetensors").clean();
    sandbox.apr("convert n.safetensors -o again.safetensors").ok();
    assert!(sandbox.read("again.safetensors").ends_with(&[1, 2]));
}
