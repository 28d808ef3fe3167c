//! Sharded models read as the single file does.

use std::collections::BTreeSet;

use apr_core::{CheckpointReader, CheckpointWriter, Code, DType, Loss, Metadata, Notes};
use apr_format::apr2::CompanionFile;
use apr_testkit::read_everything;
use proptest::prelude::*;
use serde_json::json;

use super::{cut, open, plain, small};
use crate::support::{Model, Tensor, bytes_of, tensor};

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
fn losses_of_a_conversion_are_noted_in_the_manifest() {
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
