//! Weights in codes and scales in models of several files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::codes::{LLAMAS, path, weights};
use crate::support::{Sandbox, tensors};

#[test]
fn a_sharded_model_keeps_weights_and_scales_of_several_shards() {
    let Some(path) = path("deepseek-fp8") else { return };
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("convert {path} -o m.apr --shard-size 60KB")).ok();
    sandbox.apr("validate m.apr").ok().says(&["pass  Tensor digests    BLAKE3 of 69 tensors"]);
    sandbox.apr("convert m.apr -o m --format safetensors").ok();
    let mut before =
        tensors(&fs::read(format!("{path}/model-00001-of-00002.safetensors")).expect("a shard"));
    before.extend(tensors(
        &fs::read(format!("{path}/model-00002-of-00002.safetensors")).expect("a shard"),
    ));
    assert!(before == weights(&sandbox.path("m")));

    // Its shards are shards, whatever their tensors stand for.
    sandbox.apr(&format!("convert {path} -o one.apr")).ok();
    sandbox.apr("join m.apr -o joined.apr").ok();
    assert!(sandbox.read("joined.apr") == sandbox.read("one.apr"));
    sandbox.apr("keygen -o signing.pem").ok();
    sandbox.apr("sign m.apr --key signing.pem").ok();
    sandbox.apr("verify m.apr --trusted signing.pem.pub --front").ok();
    let shard = sandbox.files().into_iter().find(|name| name.starts_with("m-00002"));
    fs::remove_file(sandbox.path(&shard.expect("a shard"))).expect("it is there");
    assert_ne!(sandbox.apr("verify m.apr --trusted signing.pem.pub --front").code, Some(0));
}

/// Returns the file of each tensor of a model in shards, by its index or manifest.
fn files_of(sandbox: &Sandbox, index: &str) -> BTreeMap<String, Value> {
    let index: Value = serde_json::from_slice(&sandbox.read(index)).expect("an index");
    let map = index.get("weight_map").or_else(|| index.get("tensor_shard_map"));
    let map = map.and_then(Value::as_object).expect("a map");
    map.iter().map(|(name, file)| (name.clone(), file.clone())).collect()
}

#[test]
fn shards_keep_the_parts_of_a_weight_together() {
    let sandbox = Sandbox::new();
    for name in LLAMAS.into_iter().chain(["gptoss-mxfp4", "deepseek-fp8"]) {
        let Some(source) = path(name) else { return };
        sandbox.apr(&format!("convert {source} -o one.apr -f")).ok();
        sandbox.apr("shard one.apr --size 100KB -o cut.apr -f").ok();
        drop(fs::remove_dir_all(sandbox.path("st")));
        sandbox.apr("convert cut.apr --format safetensors --shard-size 100KB -o st").ok();
        for (model, index) in [("cut.apr", "cut.apr"), ("st", "st/model.safetensors.index.json")] {
            let file_of = files_of(&sandbox, index);
            let report = sandbox.apr(&format!("tensors {model} --json")).ok().json();
            let rows = report["tensors"].as_array().expect("a list").iter();
            for row in rows.filter(|row| row["stored_bytes"].as_u64().unwrap_or(0) <= 100_000) {
                let parts = row["coding"]["parts"].as_array().into_iter().flatten();
                // The mark of ComfyUI is a tensor of the model, and a part of one weight.
                let parts = parts.filter(|part| **part != "scaled_fp8");
                let files: BTreeSet<String> =
                    parts.map(|part| file_of[part.as_str().expect("a name")].to_string()).collect();
                assert!(files.len() <= 1, "{name} {model}: {} {files:?}", row["name"]);
            }
        }
    }
}
