//! Models cut into shards, and the manifest that names them.

use std::collections::BTreeSet;

use crate::support::{Model, Tensor, bytes_of, tensor};
use apr_core::{
    CheckpointReader, CheckpointWriter, Code, DType, Error, Limits, Loss, MemoryFolder, Metadata,
    Notes,
};
use apr_format::apr2::{
    self, CompanionFile, Flags, Keys, ShardedApr2, WriteOptions, open_manifest,
};
use apr_format::crypto::{PublicKey, SignBlock, SigningKey};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::{FolderInMemory, corrupt, peak_memory, read_everything};
use proptest::prelude::*;
use serde_json::{Value, json};

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
fn shards_that_are_written_apart_are_those_that_are_written_together() {
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
fn shards_that_are_encrypted_apart_with_one_key_are_those_of_one_writer() {
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

/// As a manifest that says only what is required (`docs/format/apr2.md`, "Shards").
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
fn what_fits_into_one_shard_is_a_plain_file() {
    let folder = cut(&small(), 1000);
    assert_eq!(folder.0.len(), 1);
    let file = folder.0.values().next().expect("one file");
    let reader = apr2::open(file.clone(), "model.apr", &Limits::default()).expect("a file");
    assert!(!reader.header().flags.contains(Flags::SHARDED));
}

#[test]
fn a_sharded_model_reads_as_the_single_file_does() {
    let model = small();
    let mut whole = model.clone();
    whole.tensors.remove(0);
    let file = {
        let mut writer = model.plan().expect("a model");
        let mut file = Vec::new();
        writer.begin(&mut file).expect("memory");
        for tensor in &whole.tensors {
            writer.write_chunk(&mut file, &tensor.bytes, None).expect("planned");
        }
        writer.finish(&mut file, &Notes::default()).expect("all tensors");
        crate::support::open(file)
    };
    for size in [1, 20, 60, 100, 300] {
        let folder = cut(&model, size);
        let sharded = open(&folder).expect("a sound model");
        assert_eq!(sharded.tensors(), file.tensors(), "{size}");
        assert_eq!(sharded.companions(), file.companions());
        assert_eq!(sharded.warnings(), [""; 0]);
        assert!(!sharded.container().is_locked());
        assert_eq!(sharded.container().features(), file.container().features());
        for tensor in 0..file.tensors().len() {
            assert_eq!(bytes_of(&sharded, tensor), bytes_of(&file, tensor));
            assert_eq!(sharded.stored(tensor).digest(), file.stored(tensor).digest());
            assert_eq!(sharded.stored(tensor).range.len, file.stored(tensor).range.len);
        }
        for companion in 0..2 {
            assert_eq!(sharded.read_companion(companion), file.read_companion(companion));
        }
        let mut metadata = file.metadata().clone();
        metadata.remove("files");
        assert_eq!(*sharded.metadata(), metadata);

        let from_shards = open(&plain(&folder)).expect("the seed's manifest");
        let names = |reader: &dyn CheckpointReader| -> BTreeSet<String> {
            reader.tensors().iter().map(|info| info.name.clone()).collect()
        };
        assert_eq!(names(&from_shards), names(&file));
        assert_eq!(from_shards.metadata(), file.metadata());
        read_everything(&from_shards).expect("all of it");
    }
}

#[test]
fn what_was_lost_on_the_way_is_noted_in_the_manifest() {
    let loss = Loss { name: "t".into(), what: "w".into(), why: "y".into() };
    let model = Model { losses: vec![loss], ..small() };
    let sharded = open(&cut(&model, 100)).expect("a sound model");
    assert_eq!(
        sharded.metadata().get("loss"),
        Some(&json!([{ "name": "t", "what": "w", "why": "y" }]))
    );
}

#[test]
fn only_the_shard_of_a_tensor_is_needed_for_it() {
    let sound = cut(&small(), 100);
    for (absent, lost) in
        [("1", &["head", "norm", "empty", "embed"][..]), ("2", &["big"]), ("3", &["q"])]
    {
        let mut folder = sound.clone();
        let absent = format!("model-0000{absent}-of-00003.apr");
        folder.0.remove(&absent);
        let sharded = open(&folder).expect("the manifest tells all but the bytes");
        assert!(sharded.warnings()[0].contains(&absent), "{:?}", sharded.warnings());
        assert_eq!(sharded.container().header_fields()["shards"], 3);
        for (position, info) in sharded.tensors().iter().enumerate() {
            let mut bytes =
                vec![0; usize::try_from(info.byte_len().expect("checked")).expect("small")];
            let read = sharded.read_tensor(position, 0, &mut bytes);
            assert_eq!(
                read.is_err(),
                lost.contains(&info.name.as_str()),
                "{absent}: {}",
                info.name
            );
            let Err(error) = read else { continue };
            assert_eq!(
                (error.code(), error.file(), error.tensor()),
                (Code::Io, Some(&*absent), Some(&*info.name))
            );
        }
        let error =
            open(&plain(&folder)).map(drop).expect_err("the seed's manifest does not tell shapes");
        assert_eq!((error.code(), error.file()), (Code::Io, Some(&*absent)));
        assert!(error.message().contains("model.apr names this shard"), "{error}");
    }
}

#[test]
fn hostile_manifests_are_refused() {
    let folder = cut(&small(), 100);
    for name in ["../m.apr", "/etc/passwd", "a/b.apr", "a\\b.apr", "..", "", "C:m.apr", "m\0.apr"] {
        refused(
            &edit(&folder, |manifest| manifest["shards"][1]["file"] = json!(name)),
            Code::Format,
            "plain file name",
        );
    }
    refused(
        &edit(&folder, |m| m["shards"][1]["file"] = json!("model.apr")),
        Code::Format,
        "names itself",
    );
    refused(&edit(&folder, |m| m["shards"][1] = m["shards"][0].clone()), Code::Format, "twice");
    for crc32 in ["", "0x123456", "+1234567", "123456789", "gggggggg"] {
        refused(
            &edit(&folder, |m| m["shards"][1]["crc32"] = json!(crc32)),
            Code::Format,
            "8 hexadecimal digits",
        );
    }
    for count in [0, 2, 1_u64 << 32, u64::MAX] {
        refused(&edit(&folder, |m| m["shard_count"] = json!(count)), Code::Corrupt, "but lists 3");
    }
    refused(
        &edit(&folder, |m| m["tensor_shard_map"]["q"] = json!(1_u64 << 32)),
        Code::Corrupt,
        "there are 3 shards",
    );
    refused(&edit(&folder, |m| m["sharded"] = json!(false)), Code::Format, "not sharded");
    refused(&edit(&folder, |m| m["apr_version"] = json!("3.0.0")), Code::Version, "'3.0.0'");
    let none = |m: &mut Value| {
        (m["shard_count"], m["shards"], m["tensor_shard_map"]) = (json!(0), json!([]), json!({}));
    };
    refused(&edit(&plain(&folder), none), Code::Format, "names no shard");
    for key in ["apr_version", "sharded", "shard_count", "shards", "tensor_shard_map"] {
        let without = |m: &mut Value| drop(m.as_object_mut().expect("an object").remove(key));
        refused(&edit(&folder, without), Code::Format, key);
    }
    for (old, new) in [
        (r#""big": 1"#, r#""big": 1, "big": 2"#),
        (r#""sharded": true"#, r#""sharded": true, "sharded": true"#),
        (r#""size": "#, r#""size": 1, "size": "#),
    ] {
        let mut folder = folder.clone();
        let text = String::from_utf8(folder.0["model.apr"].clone()).expect("JSON");
        assert!(text.contains(old));
        folder.0.insert("model.apr".into(), text.replace(old, new).into_bytes());
        let error = open(&folder).map(drop).expect_err("a key that appears twice");
        assert_eq!(error.code(), Code::Format, "{error}");
    }
    let limits = {
        let mut limits = Limits::default();
        limits.max_metadata = 100;
        limits
    };
    let error =
        open_manifest(&folder.0["model.apr"], "model.apr", &folder, &limits, &Keys::default())
            .map(drop)
            .expect_err("too long");
    assert_eq!(error.code(), Code::Memory);
}

#[test]
fn what_the_manifest_describes_must_be_what_it_maps() {
    let folder = cut(&small(), 100);
    let described = |change: fn(&mut Vec<Value>)| {
        edit(&folder, |m| change(m["tensors"].as_array_mut().expect("an array")))
    };
    refused(
        &described(|tensors| drop(tensors.pop())),
        Code::Corrupt,
        "'q': the manifest says its shard",
    );
    refused(&described(|tensors| tensors[1] = tensors[0].clone()), Code::Corrupt, "twice");
    refused(
        &described(|tensors| tensors[1]["name"] = json!("other")),
        Code::Corrupt,
        "no shard of it",
    );
    refused(&described(|tensors| tensors[1]["dtype"] = json!("f33")), Code::Format, "f33");
    refused(
        &described(|tensors| tensors[1]["shape"] = json!([1, 1, 1, 1, 1, 1, 1, 1, 1])),
        Code::Format,
        "dimensions",
    );
    refused(
        &described(|tensors| tensors[1]["shape"] = json!([u64::MAX, 2])),
        Code::Format,
        "'norm'",
    );
    refused(
        &described(|tensors| tensors[1]["shape"] = json!([4])),
        Code::Corrupt,
        "but model.apr says f32 of shape [4]",
    );
    refused(&described(|tensors| tensors[1]["dtype"] = json!("i32")), Code::Corrupt, "says i32");
    let huge = edit(&folder, |m| m["companions"][1]["len"] = json!(1_u64 << 60));
    refused(&huge, Code::Corrupt, "'vocab.bin' of 1152921504606846976 bytes");
}

#[test]
fn shards_that_are_not_the_manifests_are_refused() {
    let folder = cut(&small(), 100);
    for folder in [folder.clone(), plain(&folder)] {
        let sized = edit(&folder, |m| m["shards"][1]["size"] = json!(1_u64 << 40));
        refused(&sized, Code::Corrupt, "but model.apr says 1099511627776");
        let summed = edit(&folder, |m| m["shards"][1]["crc32"] = json!("00000000"));
        refused(&summed, Code::Checksum, "model.apr says 00000000");
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

/// A manifest over files packed by hand.
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
        "y: tensor 'a': it is in this shard, but model.apr says that it is in 'x'",
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

/// Whether the manifest and each of its shards is what `trusted` signed.
fn verify(folder: &FolderInMemory, trusted: &SigningKey) -> Result<(), Error> {
    let model = open(folder)?;
    let signed =
        model.container().signed()?.ok_or_else(|| Error::new(Code::Signature, "no signature"))?;
    let block = SignBlock::decode(&signed.signatures.unwrap_or_default())?;
    block.verify(&signed.digest, &[PublicKey::Verifying(trusted.public_bytes())]).check()?;
    (0..model.shard_count()).try_for_each(|shard| model.shard(shard).map(drop))
}

#[track_caller]
fn is_e006(folder: &FolderInMemory, trusted: &SigningKey, says: &str) {
    let error = verify(folder, trusted).expect_err(says);
    assert_eq!(error.code(), Code::Signature, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

fn text_of(folder: &FolderInMemory) -> String {
    String::from_utf8(folder.0["model.apr"].clone()).expect("a manifest is JSON")
}

fn with_text(folder: &FolderInMemory, text: String) -> FolderInMemory {
    let mut folder = folder.clone();
    folder.0.insert("model.apr".into(), text.into_bytes());
    folder
}

#[test]
fn a_signed_manifest_holds_for_these_shards_alone() {
    let (vendor, stranger) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
    let folder = cut_and_signed(&small(), 100, std::slice::from_ref(&vendor));
    verify(&folder, &vendor).expect("signed by the vendor");
    is_e006(&folder, &stranger, "not trusted");
    read_everything(&open(&folder).expect("sound")).expect("sound");

    // What nobody signed: other metadata, a shard less, no signature of the manifest.
    let text = text_of(&folder);
    is_e006(
        &with_text(&folder, text.replace("\"toy\"", "\"fox\"")),
        &vendor,
        "changed after signing",
    );
    let end = text.find(",\n  \"signatures\"").expect("signed");
    is_e006(&with_text(&folder, format!("{}\n}}\n", &text[..end])), &vendor, "no signature");

    // A shard that the vendor signed as part of another version of the model.
    let mut newer = small();
    newer.tensors[4].bytes[0] ^= 1;
    let newer = cut_and_signed(&newer, 100, std::slice::from_ref(&vendor));
    let name = "model-00002-of-00003.apr";
    let mut mixed = folder.clone();
    mixed.0.insert(name.into(), newer.0[name].clone());
    let crc32 = |folder: &FolderInMemory| {
        let manifest: Value = serde_json::from_str(&text_of(folder)).expect("JSON");
        manifest["shards"][1]["crc32"].as_str().expect("a text").to_owned()
    };
    is_e006(
        &with_text(&mixed, text.replace(&crc32(&folder), &crc32(&newer))),
        &vendor,
        "changed after signing",
    );

    // Though its CRC-32 be forged, since the footer is not signed.
    let file = mixed.0.get_mut(name).expect("the shard");
    let footer = file.len() - 16;
    file[footer..footer + 4]
        .copy_from_slice(&u32::from_str_radix(&crc32(&folder), 16).expect("hex").to_le_bytes());
    is_e006(&mixed, &vendor, "not the shard that model.apr was signed with");
}

#[test]
fn a_manifest_is_signed_later_and_by_several() {
    let keys = [SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32])];
    let at_once = cut_and_signed(&small(), 100, &keys);
    let unsigned = cut(&small(), 100);
    for folder in [unsigned.clone(), plain(&unsigned)] {
        let mut signed = folder;
        for key in &keys {
            let mut manifest =
                open(&signed).expect("sound").to_sign().expect("shards with digests");
            assert_eq!(manifest.sign(std::slice::from_ref(key)).expect("a signature"), 0);
            signed.0.insert("model.apr".into(), manifest.encode());
        }
        keys.iter().for_each(|key| verify(&signed, key).expect("both signed"));
        assert_eq!(
            open(&signed).expect("sound").metadata(),
            open(&at_once).expect("sound").metadata()
        );
    }
    // Signatures of what the manifest said before are dropped and counted.
    let changed = with_text(&at_once, text_of(&at_once).replace("\"toy\"", "\"fox\""));
    let mut manifest = open(&changed).expect("sound").to_sign().expect("shards with digests");
    assert_eq!(manifest.sign(&keys[..1]).expect("a signature"), 2);
    verify(&with_text(&changed, String::from_utf8(manifest.encode()).expect("JSON")), &keys[0])
        .expect("signed anew");
}

#[test]
fn signatures_end_the_manifest_and_cover_every_shard() {
    let vendor = SigningKey::from_bytes(&[1; 32]);
    let folder = cut_and_signed(&small(), 100, std::slice::from_ref(&vendor));
    let text = text_of(&folder);
    refused(
        &with_text(&folder, text.replace("\"\n}\n", "\", \"x\": 1\n}\n")),
        Code::Corrupt,
        "does not end with its",
    );
    refused(
        &with_text(&folder, text.replace("\"\n}\n", "\"}")),
        Code::Corrupt,
        "does not end with its",
    );
    let digest = text.find(", \"signed_digest\"").expect("signed");
    let bare = format!("{}{}", &text[..digest], &text[digest + 2 + 17 + 66..]);
    refused(
        &with_text(&folder, bare),
        Code::Corrupt,
        "has no signed_digest of 'model-00001-of-00003.apr'",
    );
    refused(
        &with_text(&folder, text.replace("\"5349474e", "\"Z349474e")),
        Code::Format,
        "lower-case hexadecimal",
    );
    let short = text.replacen("\"signed_digest\": \"", "\"signed_digest\": \"00", 1);
    refused(&with_text(&folder, short), Code::Format, "is not 64 hexadecimal digits");
}

#[test]
fn no_flipped_or_missing_byte_of_a_signed_manifest_verifies() {
    let vendor = SigningKey::from_bytes(&[1; 32]);
    let folder = cut_and_signed(&small(), 100, std::slice::from_ref(&vendor));
    let manifest = folder.0["model.apr"].clone();
    let with = |bytes: Vec<u8>| {
        FolderInMemory(
            [folder.0.clone(), [("model.apr".into(), bytes)].into()]
                .into_iter()
                .flatten()
                .collect(),
        )
    };
    for (len, cut) in corrupt::truncations(&manifest).enumerate() {
        assert!(verify(&with(cut), &vendor).is_err(), "cut at {len}");
    }
    for flipped in corrupt::bit_flips(&manifest, 0..manifest.len()) {
        assert!(
            verify(&with(flipped.clone()), &vendor).is_err(),
            "{}",
            String::from_utf8_lossy(&flipped)
        );
    }
}

#[test]
fn a_broken_manifest_is_an_error_or_leaves_a_model_that_reads_or_says_why_not() {
    let sound = cut(&small(), 100);
    let manifest = sound.0["model.apr"].clone();
    let json_end = manifest.trim_ascii_end().len();
    let attempt = |manifest: Vec<u8>, what: &str| {
        let justified = 64 * manifest.len() + 8192;
        let (opened, peak) = peak_memory(|| {
            open_manifest(&manifest, "model.apr", &sound, &Limits::default(), &Keys::default())
        });
        assert!(peak < justified, "{what}: {peak} bytes");
        let Ok(model) = opened else { return false };
        if let Err(error) = read_everything(&model) {
            assert!(!error.to_string().contains(char::is_control), "{error}");
        }
        true
    };
    for (len, cut) in corrupt::truncations(&manifest).enumerate() {
        assert_eq!(attempt(cut, "cut"), len >= json_end, "cut at {len}");
    }
    for flipped in corrupt::bit_flips(&manifest, 0..manifest.len()) {
        attempt(flipped, "flipped");
    }
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

proptest! {
    #[test]
    fn any_model_reads_back_from_shards_of_any_size(
        lens in prop::collection::vec(0_u64..200, 1..12),
        size in 1_u64..400,
        carried in 0_usize..300,
        align_32: bool,
    ) {
        let named = |(i, &len): (usize, &u64)| tensor(&format!("t{i}"), DType::U8, &[len]);
        let tensors: Vec<Tensor> = lens.iter().enumerate().map(named).collect();
        let companions = vec![CompanionFile { name: "c".into(), bytes: vec![0xfe; carried] }];
        let (metadata, losses) = (Metadata::new(), Vec::new());
        let model = Model { tensors, companions, align_32, metadata, losses };
        let folder = cut(&model, size);
        let reader: Box<dyn CheckpointReader> = match folder.0.get("model.apr") {
            Some(_) => Box::new(open(&folder).expect("a sound model")),
            None => {
                let file = folder.0.values().next().expect("a file");
                Box::new(crate::support::open(file.clone()))
            }
        };
        prop_assert_eq!(reader.tensors(), model.infos());
        for (position, tensor) in model.tensors.iter().enumerate() {
            prop_assert_eq!(&bytes_of(&*reader, position), &tensor.bytes);
        }
        for shard in 0..reader.container().shard_count() {
            let shard = reader.container().shard(shard).expect("it was written");
            let bytes: u64 = shard.tensors().iter().filter_map(|info| info.byte_len().ok()).sum();
            let filled = shard.tensors().iter().filter(|info| info.byte_len() != Ok(0)).count();
            prop_assert!(bytes <= size || filled == 1);
        }
    }
}
