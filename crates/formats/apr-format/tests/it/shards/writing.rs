//! Shards as they are written: together, each apart, and encrypted.

use apr_core::{CheckpointReader, Code, Limits, Loss, MemoryFolder, Notes};
use apr_format::apr2::{self, Flags, WriteOptions};
use apr_testkit::FolderInMemory;
use serde_json::{Value, json};

use super::{cut, small};
use crate::support::Model;

/// Writes each shard apart, the last one first, and then their manifest.
fn cut_apart(model: &Model, shard_size: u64, options: &WriteOptions) -> FolderInMemory {
    let planned = apr2::plan_shards(
        &model.infos(),
        &model.metadata,
        model.companions.clone(),
        options,
        shard_size,
    );
    let planned = planned.expect("a model to be cut");
    let draft = planned.manifest().expect("there are several");
    let mut manifest =
        apr2::Manifest::parse(&draft, "model.apr", &Limits::default()).expect("a manifest");
    let mut files = std::collections::BTreeMap::new();
    for number in (0..manifest.shards.len()).rev() {
        let (infos, companions) = (model.infos(), model.companions.clone());
        let mut writer =
            apr2::plan_shard(&infos, &model.metadata, companions, options, shard_size, number)
                .expect("one of the shards");
        let mut folder = MemoryFolder::default();
        writer.begin(&mut folder).expect("memory takes everything");
        for planned in writer.layout().tensors.clone() {
            writer
                .write_chunk(&mut folder, &model.tensors[planned.source].bytes, None)
                .expect("the planned bytes");
        }
        writer
            .finish(&mut folder, &Notes { losses: model.losses.clone(), ..Notes::default() })
            .expect("all is there");
        let entry = &mut manifest.shards[number];
        let bytes = folder.files()[&entry.file].clone();
        let footer = &bytes[bytes.len() - apr2::FOOTER_LEN as usize..];
        (entry.size, entry.crc32) =
            (bytes.len() as u64, u32::from_le_bytes(footer[..4].try_into().expect("four bytes")));
        files.insert(entry.file.clone(), bytes);
    }
    manifest.note(&Notes { losses: model.losses.clone(), ..Notes::default() });
    files.insert("model.apr".to_owned(), manifest.encode());
    FolderInMemory(files)
}

#[test]
fn shards_that_are_written_apart_equal_shards_that_are_written_together() {
    let loss = Loss { name: "norm".into(), what: "a value".into(), why: "too large".into() };
    for (shard_size, losses) in [(40, Vec::new()), (60, vec![loss]), (250, Vec::new())] {
        let model = Model { losses, ..small() };
        assert_eq!(
            cut_apart(&model, shard_size, &WriteOptions::default()).0,
            cut(&model, shard_size).0
        );
    }
    let (infos, metadata) = (small().infos(), small().metadata);
    let count = |size| apr2::shard_count(&infos, &metadata, 32, size).expect("a size");
    assert_eq!((count(40), count(1 << 20)), (cut(&small(), 40).0.len() - 1, 1));
    let beyond = apr2::plan_shard(&infos, &metadata, Vec::new(), &WriteOptions::default(), 40, 99);
    assert_eq!(beyond.map(drop).expect_err("there are fewer").code(), Code::Format);
}

#[test]
fn shards_encrypted_apart_with_one_key_equal_shards_of_one_writer() {
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(7);
        Ok(())
    };
    let owner = apr_format::crypto::DecryptionKey::from_bytes(&[1; 32]);
    let locks = [apr_format::crypto::Lock::Recipient(owner.public_bytes())];
    let (block, key) = apr_format::crypto::EncrBlock::seal(&locks, &mut random).expect("a lock");
    let encryption = Some(apr2::Encrypt { block, key, hide_metadata: false });
    let options = WriteOptions { encryption, ..WriteOptions::default() };
    let model = small();
    let mut writer =
        apr2::plan_shards(&model.infos(), &model.metadata, model.companions.clone(), &options, 40)
            .expect("a model to be cut");
    let mut folder = MemoryFolder::default();
    writer.begin(&mut folder).expect("memory takes everything");
    for planned in writer.layout().tensors.clone() {
        writer
            .write_chunk(&mut folder, &model.tensors[planned.source].bytes, None)
            .expect("the planned bytes");
    }
    writer.finish(&mut folder, &Notes::default()).expect("all tensors are there");
    assert_eq!(&cut_apart(&model, 40, &options).0, folder.files());
}

#[test]
fn shards_are_apr2_files_of_their_own_and_the_manifest_is_the_seeds() {
    let folder = cut(&small(), 100);
    let names: Vec<&str> = folder.0.keys().map(String::as_str).collect();
    let shard = |number: usize| format!("model-{number:05}-of-00003.apr");
    assert_eq!(names, [&shard(1), &shard(2), &shard(3), "model.apr"]);
    let manifest: Value = serde_json::from_slice(&folder.0["model.apr"]).expect("JSON");
    assert_eq!(manifest["apr_version"], "2.0.0");
    assert_eq!((&manifest["sharded"], &manifest["shard_count"]), (&json!(true), &json!(3)));
    for (number, entry) in (1..).zip(manifest["shards"].as_array().expect("an array")) {
        let bytes = &folder.0[&shard(number)];
        let crc32 = format!("{:08x}", crc32fast::hash(&bytes[..bytes.len() - 16]));
        assert_eq!(*entry, json!({ "file": shard(number), "size": bytes.len(), "crc32": crc32 }));
        let alone =
            apr2::open(bytes.clone(), "shard.apr", &Limits::default()).expect("a file of its own");
        assert!(alone.header().flags.contains(Flags::SHARDED));
        assert_eq!(alone.metadata().text("model_type"), Some("toy"));
        assert_eq!(alone.companions().len(), if number == 1 { 2 } else { 0 });
    }
    // 32 bytes of companions and 12 of the norm leave room for the embedding, and its tie goes with
    // it.
    let expected = json!({ "head": 0, "norm": 0, "empty": 0, "embed": 0, "big": 1, "q": 2 });
    assert_eq!(manifest["tensor_shard_map"], expected);
}

#[test]
fn a_model_that_fits_into_one_shard_is_a_plain_file() {
    let folder = cut(&small(), 1000);
    assert_eq!(folder.0.len(), 1);
    let file = folder.0.values().next().expect("one file");
    let reader = apr2::open(file.clone(), "model.apr", &Limits::default()).expect("a file");
    assert!(!reader.header().flags.contains(Flags::SHARDED));
}
