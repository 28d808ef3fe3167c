//! Shards that are broken, absent or not those of their manifest.

use apr_core::{CheckpointReader, Code};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::{FolderInMemory, corrupt, read_everything};
use serde_json::{Value, json};

use super::{cut, edit, open, plain, refused, small};
use crate::support::bytes_of;

#[test]
fn shards_that_are_not_the_manifests_are_refused() {
    let folder = cut(&small(), 100);
    for folder in [folder.clone(), plain(&folder)] {
        let sized = edit(&folder, |m| m["shards"][1]["size"] = json!(1_u64 << 40));
        refused(&sized, Code::Corrupt, "but model.apr states 1099511627776");
        let summed = edit(&folder, |m| m["shards"][1]["crc32"] = json!("00000000"));
        refused(&summed, Code::Checksum, "model.apr states 00000000");
        let moved = edit(&folder, |m| m["tensor_shard_map"]["big"] = json!(2));
        refused(&moved, Code::Corrupt, "big");
        let replaced = {
            let mut folder = folder.clone();
            let manifest = folder.0["model.apr"].clone();
            folder.0.insert("model-00002-of-00003.apr".into(), manifest.clone());
            edit(&folder, |m| m["shards"][1]["size"] = json!(manifest.len()))
        };
        refused(&replaced, Code::Format, "not an APR2 file");
    }
    let mut absent = folder.clone();
    absent.0.remove("model-00002-of-00003.apr");
    refused(&absent, Code::Io, "model-00002-of-00003.apr");
}

/// Returns a manifest over files packed by hand.
fn by_hand(shards: &[(&str, Vec<u8>)], map: &Value) -> FolderInMemory {
    let entries: Vec<Value> = shards
        .iter()
        .map(|(name, bytes)| {
            let crc32 = format!("{:08X}", crc32fast::hash(&bytes[..bytes.len() - 16]));
            json!({ "file": name, "size": bytes.len(), "crc32": crc32 })
        })
        .collect();
    let manifest = json!({
        "apr_version": "2.0.0", "sharded": true, "shard_count": shards.len(), "shards": entries,
        "tensor_shard_map": map,
    });
    let mut folder = FolderInMemory::default();
    folder.0.insert("model.apr".into(), manifest.to_string().into_bytes());
    folder.0.extend(shards.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())));
    folder
}

#[test]
fn a_tensor_in_two_shards_or_in_none_is_e002() {
    let file = |names: &[&str]| {
        let entries = names.iter().map(|name| Apr2Entry::of_bytes(name, name.as_bytes()));
        entries
            .fold(Apr2Builder { flags: 1 << 1 | 1 << 3, ..Apr2Builder::new() }, Apr2Builder::entry)
            .build()
    };
    let good = by_hand(&[("x", file(&["a"])), ("y", file(&["b"]))], &json!({ "a": 0, "b": 1 }));
    let model = open(&good).expect("a sound model");
    assert_eq!(bytes_of(&model, 1), b"b");
    let twice =
        by_hand(&[("x", file(&["a"])), ("y", file(&["a", "b"]))], &json!({ "a": 0, "b": 1 }));
    refused(
        &twice,
        Code::Corrupt,
        "y: tensor 'a': it is in this shard, but model.apr lists it in 'x'",
    );
    let lacks =
        by_hand(&[("x", file(&["a"])), ("y", file(&["b"]))], &json!({ "a": 0, "b": 1, "c": 1 }));
    refused(
        &lacks,
        Code::Corrupt,
        "y: tensor 'c': model.apr lists it, but this shard has no such tensor",
    );
    let unlisted = by_hand(&[("x", file(&["a"])), ("y", file(&["b"]))], &json!({ "a": 0 }));
    refused(
        &unlisted,
        Code::Corrupt,
        "y: tensor 'b': it is in this shard, but model.apr does not list it",
    );
}

#[test]
fn a_broken_shard_is_an_error_or_leaves_a_model_that_reads() {
    let sound = cut(&small(), 100);
    let name = "model-00001-of-00003.apr";
    let shard = sound.0[name].clone();
    let with = |bytes: Vec<u8>| {
        let mut folder = sound.clone();
        folder.0.insert(name.into(), bytes);
        folder
    };
    for cut in corrupt::truncations(&shard).step_by(7) {
        let model = open(&with(cut)).expect("a shard that is too short is a warning");
        assert_eq!(model.warnings().len(), 1);
        let error = model.shard(0).map(drop).expect_err("another length");
        assert_eq!((error.code(), error.file()), (Code::Corrupt, Some(name)));
    }
    for flipped in corrupt::bit_flips(&shard, 0..shard.len()).step_by(3) {
        let Ok(model) = open(&with(flipped)) else { continue };
        if let Err(error) = read_everything(&model) {
            assert!(!error.to_string().contains(char::is_control), "{error}");
        }
    }
}
