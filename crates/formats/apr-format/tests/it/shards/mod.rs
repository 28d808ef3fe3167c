//! Models cut into shards, and the manifest that names them.

mod bad_manifest;
mod bad_shards;
mod reading;
mod signatures;
mod writing;

use apr_core::{Code, DType, Error, Limits, MemoryFolder, Notes};
use apr_format::apr2::{self, CompanionFile, Keys, ShardedApr2, WriteOptions, open_manifest};
use apr_format::crypto::SigningKey;
use apr_testkit::{FolderInMemory, peak_memory, read_everything};
use serde_json::{Value, json};

use crate::support::{Model, Tensor, tensor};

/// Writes a model as shards, chunk by chunk, and gives the files.
fn cut(model: &Model, shard_size: u64) -> FolderInMemory {
    cut_and_signed(model, shard_size, &[])
}

fn cut_and_signed(model: &Model, shard_size: u64, signers: &[SigningKey]) -> FolderInMemory {
    let options = WriteOptions {
        align_32: model.align_32,
        signers: signers.to_vec(),
        ..WriteOptions::default()
    };
    let (metadata, companions) = (&model.metadata, model.companions.clone());
    let mut writer = apr2::plan_shards(&model.infos(), metadata, companions, &options, shard_size)
        .expect("a model to be cut");
    let mut folder = MemoryFolder::default();
    writer.begin(&mut folder).expect("memory takes everything");
    for planned in writer.layout().tensors.clone() {
        for chunk in model.tensors[planned.source].bytes.chunks(7) {
            writer.write_chunk(&mut folder, chunk, None).expect("the planned bytes");
        }
    }
    let planned = writer.layout().files.clone();
    let notes = Notes { losses: model.losses.clone(), ..Notes::default() };
    writer.finish(&mut folder, &notes).expect("all tensors are there");
    if folder.files().len() > 1 && model.losses.is_empty() {
        for file in &planned {
            assert_eq!(folder.files()[&file.name].len() as u64, file.len, "{}", file.name);
        }
    }
    FolderInMemory(folder.files().clone())
}

fn open(folder: &FolderInMemory) -> Result<ShardedApr2, Error> {
    open_manifest(&folder.0["model.apr"], "model.apr", folder, &Limits::default(), &Keys::default())
}

fn small() -> Model {
    let metadata = json!({
        "model_type": "toy", "architecture": { "n": 1 }, "tied": { "head": "embed" }, "x": [1],
    });
    let Value::Object(metadata) = metadata else { unreachable!("an object") };
    Model {
        tensors: vec![
            Tensor { bytes: Vec::new(), ..tensor("head", DType::F32, &[4, 3]) },
            tensor("norm", DType::F32, &[3]),
            tensor("empty", DType::I64, &[0, 4]),
            tensor("embed", DType::F32, &[4, 3]),
            tensor("big", DType::U8, &[200]),
            tensor("q", DType::Q8_0, &[1, 32]),
        ],
        metadata: metadata.into(),
        companions: vec![
            CompanionFile { name: "config.json".into(), bytes: b"{}".to_vec() },
            CompanionFile { name: "vocab.bin".into(), bytes: vec![0xff; 30] },
        ],
        ..Model::default()
    }
}

fn edit(folder: &FolderInMemory, change: impl FnOnce(&mut Value)) -> FolderInMemory {
    let mut manifest: Value =
        serde_json::from_slice(&folder.0["model.apr"]).expect("a manifest is JSON");
    change(&mut manifest);
    let mut folder = folder.clone();
    folder.0.insert("model.apr".into(), manifest.to_string().into_bytes());
    folder
}

/// Reduces the manifest to the required keys (`docs/format/apr2.md`, "Shards").
fn plain(folder: &FolderInMemory) -> FolderInMemory {
    edit(folder, |manifest| {
        let object = manifest.as_object_mut().expect("an object");
        object.retain(|key, _| !["metadata", "companions", "tensors"].contains(&key.as_str()));
    })
}

#[track_caller]
fn refused(folder: &FolderInMemory, code: Code, says: &str) {
    // Reading everything goes through a buffer of 64 KiB.
    let justified = 64 * folder.0["model.apr"].len() + (1 << 16) + 8192;
    let (opened, peak) =
        peak_memory(|| open(folder).and_then(|model| read_everything(&model).map(|()| model)));
    let error = opened.map(drop).expect_err(says);
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert!(peak < justified, "{peak} bytes: {error}");
}
