//! TensorFlow's models, and those of Flax, NeMo and llamafile, by every command that reads tensors.

use std::fs;
use std::path::Path;

use apr_testkit::locate::fixture;

use crate::support::Sandbox;

/// Copies a folder of fixtures, with the folders in it.
fn copy(sandbox: &Sandbox, from: &Path, to: &str) {
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let to = format!("{to}/{name}");
        if path.is_dir() {
            copy(sandbox, &path, &to);
        } else {
            sandbox.write(&to, fs::read(&path).expect("a fixture"));
        }
    }
}

fn models() -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&sandbox, &fixture("tensorflow"), "tf");
    copy(&sandbox, &fixture("flax"), "flax");
    copy(&sandbox, &fixture("wrapped"), "wrapped");
    sandbox
}

#[test]
fn a_saved_model_is_a_folder_with_variables_and_signatures() {
    let sandbox = models();
    sandbox.apr("inspect tf/saved").ok().says(&["TensorFlow SavedModel"]);
    let report = sandbox.apr("inspect tf/saved --json").ok().json();
    assert_eq!(report["format"], "saved-model", "{report}");
    assert_eq!(report["metadata"]["tensorflow"]["tags"][0], "serve");
    sandbox.apr("validate tf/saved").ok();
    sandbox.apr("tensors tf/saved/saved_model.pb").ok().says(&["w", "[2, 3]"]);
    sandbox.apr("convert tf/saved -o out.safetensors").ok().says(&["asset 'words.txt'"]);
    sandbox.apr("diff tf/saved out.safetensors").ok().says(&["SAME"]);
    sandbox.apr("scan tf/saved").ok();
}

#[test]
fn checkpoints_and_graphs_become_tensors_of_other_formats() {
    let sandbox = models();
    let left = ["the optimizer's state (6 variables, such as beta1_power)"];
    sandbox.apr("convert tf/model.ckpt.index -o v1.safetensors").ok().says(&left);
    sandbox.apr("diff tf/model.ckpt.index v1.safetensors").ok().says(&["SAME"]);
    sandbox.apr("diff tf/objects.index tf/snappy.index").ok().says(&["SAME"]);
    sandbox.apr("import tf/objects.index -o objects.apr").ok();
    sandbox.apr("diff tf/objects.index objects.apr").ok().says(&["SAME"]);
    sandbox
        .apr("convert tf/frozen.pb -o frozen.safetensors")
        .ok()
        .says(&["model.graph (companion file)"]);
    sandbox.apr("diff tf/frozen.pb frozen.safetensors").ok().says(&["SAME"]);
    sandbox.apr("tensors tf/js/model.json").ok().says(&["dense/kernel", "u8", "f16"]);
    sandbox.apr("validate tf/js/model.json").ok();
}

#[test]
fn a_missing_shard_and_a_wrong_checksum_are_errors() {
    let sandbox = models();
    let data = "tf/objects.data-00000-of-00001";
    let mut bytes = sandbox.read(data);
    bytes[0] ^= 1;
    sandbox.write(data, bytes);
    sandbox.apr("convert tf/objects.index -o a.safetensors").fails(5, &["E004", "CRC-32C"]);
    fs::remove_file(sandbox.path(data)).expect("it was there");
    sandbox.apr("inspect tf/objects.index").fails(3, &["E007", "objects.data-00000-of-00001"]);
}

#[test]
fn weights_of_flax_nemo_and_llamafile_are_read_where_they_lie() {
    let sandbox = models();
    sandbox.apr("tensors flax/state.msgpack").ok().says(&["params/dense/kernel", "bf16"]);
    sandbox.apr("convert flax/state.msgpack -o flax.safetensors").ok();
    sandbox.apr("diff flax/state.msgpack flax.safetensors").ok().says(&["SAME"]);
    sandbox.apr("validate wrapped/small.nemo").ok();
    sandbox.apr("convert wrapped/small.nemo -o nemo.safetensors").ok();
    sandbox.apr("diff wrapped/small.nemo nemo.safetensors").ok().says(&["SAME"]);
    sandbox.apr("tensors wrapped/small.llamafile").ok();
}

#[test]
fn folders_of_orbax_word_vectors_and_paddle_are_read() {
    let sandbox = Sandbox::new();
    copy(&sandbox, &fixture("orbax"), "orbax");
    copy(&sandbox, &fixture("vectors"), "vectors");
    copy(&sandbox, &fixture("paddle"), "paddle");
    for name in ["orbax/ocdbt", "orbax/zarr/_METADATA", "orbax/deep", "orbax/codecs"] {
        sandbox.apr(&format!("tensors {name}")).ok().says(&["params/", "f32"]);
        sandbox.apr(&format!("convert {name} -o out.safetensors --overwrite")).ok();
        sandbox.apr(&format!("diff {name} out.safetensors")).ok().says(&["SAME"]);
    }
    sandbox.apr("inspect orbax/ocdbt").ok().says(&["Orbax (JAX)"]);
    for name in ["vectors/gensim.bin", "vectors/lines.bin", "vectors/supervised.bin"] {
        sandbox.apr(&format!("validate {name}")).ok();
        sandbox.apr(&format!("import {name} -o out.apr --overwrite")).ok();
        sandbox.apr(&format!("diff {name} out.apr")).ok().says(&["SAME"]);
    }
    sandbox.apr("inspect vectors/gensim.bin").ok().says(&["word2vec", "words.txt"]);
    sandbox.apr("tensors vectors/quantized.ftz").fails(4, &["quantized fastText models"]);
    for name in ["paddle/text.pdparams", "paddle/split2.pdparams"] {
        sandbox.apr(&format!("convert {name} -o out.safetensors --overwrite")).ok();
        sandbox.apr(&format!("diff {name} out.safetensors")).ok().says(&["SAME"]);
    }
    fs::remove_file(sandbox.path("orbax/zarr/params.dense.kernel/1.1")).expect("it was there");
    let missing = ["E002", "params.dense.kernel/1.1", "params/dense/kernel"];
    sandbox.apr("tensors orbax/zarr").fails(4, &missing);
}

#[test]
fn models_compiled_for_a_device_are_rejected_with_an_alternative() {
    let sandbox = Sandbox::new()
        .with("m.engine", b"ptrt\0\0\0\0\0\0\0\0")
        .with("m.pte", b"\x30\0\0\0ET12\0\0\0\0")
        .with("m.mlmodelc/coremldata.bin", "x");
    sandbox.apr("inspect m.engine").fails(4, &["TensorRT engine is recognized", "ONNX file"]);
    sandbox.apr("inspect m.pte").fails(4, &["schema 12", ".pt2"]);
    sandbox.apr("inspect m.mlmodelc").fails(4, &["compiled Core ML model", ".mlpackage"]);
}

#[test]
fn graphs_are_shown_and_checkpoints_have_none() {
    let sandbox = models();
    sandbox.apr("graph tf/saved").ok().says(&[
        "tensorflow::",
        "operators of TensorFlow (domain 'tensorflow') are shown and not checked",
    ]);
    sandbox.apr("import tf/saved -o saved.apr").ok();
    sandbox.apr("graph saved.apr").ok().says(&["tensorflow::"]);
    sandbox.apr("graph tf/saved --opset 18").ok().says(&["ai.onnx 18", "MatMul"]);
    sandbox
        .apr("graph tf/objects.index")
        .fails(4, &["E003", "no graph of its own (a checkpoint of TensorFlow has variables only)"]);
}
