//! What is written comes back: tensors, order, bytes, metadata, companions.

use crate::support::{Model, Tensor, bytes_of, open, pattern};
use apr_core::{
    CheckpointReader, CheckpointWriter, DType, Metadata, StoredRange, TensorInfo, keys,
};
use apr_format::apr2::CompanionFile;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

/// Returns any dtype and any matching shape, of at most a few thousand elements.
fn any_info() -> impl Strategy<Value = (DType, Vec<u64>)> {
    (prop::sample::select(DType::ALL), vec(0_u64..4, 0..=8)).prop_map(|(dtype, mut dims)| {
        if dtype.block_len() > 1 {
            // Whole blocks in each row; eight dimensions of blocks would be megabytes.
            dims.truncate(4);
            let row = dims.pop().unwrap_or(1);
            dims.push(row * dtype.block_len());
        }
        (dtype, dims)
    })
}

fn any_tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let name = prop_oneof![
        "[a-z]{1,6}(\\.[a-z0-9]{1,4}){0,3}",
        "\\PC{1,20}",
        "files/[a-z]{1,3}",
        ".{1,4}"
    ];
    (btree_set(name, 0..12), vec(any_info(), 12)).prop_flat_map(|(names, infos)| {
        let tensors =
            names.into_iter().zip(infos).enumerate().map(|(seed, (name, (dtype, dims)))| {
                let info = TensorInfo { name, dtype, shape: dims.into() };
                let len =
                    info.byte_len().expect("the strategy makes shapes that go with the dtype");
                Tensor { bytes: pattern(usize::try_from(len).expect("small"), seed), info }
            });
        Just(tensors.collect::<Vec<_>>()).prop_shuffle()
    })
}

fn any_metadata() -> impl Strategy<Value = Metadata> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<u64>().prop_map(serde_json::Value::from),
        any::<f64>().prop_map(serde_json::Value::from),
        ".{0,20}".prop_map(serde_json::Value::from),
    ];
    let value = leaf.prop_recursive(4, 20, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            vec((".{0,5}", inner), 0..4)
                .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
        ]
    });
    let key = "[a-z_]{1,8}".prop_filter("keys with a meaning of their own", |key| {
        ![keys::APR_VERSION, keys::FILES, keys::TIED, keys::LOSS].contains(&key.as_str())
    });
    vec((key, value), 0..6).prop_map(|pairs| serde_json::Map::from_iter(pairs).into())
}

fn any_companions() -> impl Strategy<Value = Vec<CompanionFile>> {
    let bytes = prop_oneof![
        4 => ".{0,40}".prop_map(String::into_bytes),
        4 => vec(any::<u8>(), 0..40),
        1 => Just(vec![b'x'; (1 << 20) + 1]),
        1 => Just(vec![b'y'; 1 << 20]),
    ];
    vec(("[A-Z]{1,3}(/[a-z]{1,5}\\.json)?", bytes), 0..4).prop_map(|files| {
        let files: std::collections::BTreeMap<_, _> = files.into_iter().collect();
        files.into_iter().map(|(name, bytes)| CompanionFile { name, bytes }).collect()
    })
}

fn any_model() -> impl Strategy<Value = Model> {
    (any_tensors(), any_metadata(), any_companions(), any::<bool>()).prop_map(
        |(tensors, metadata, companions, align_32)| Model {
            tensors,
            metadata,
            companions,
            align_32,
            losses: Vec::new(),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_written_model_reads_back_the_same(model in any_model()) {
        let file = model.write();
        let layout = model.plan()?.layout().clone();
        prop_assert_eq!(layout.total_len(), file.len() as u64);
        let reader = open(file.clone());
        prop_assert_eq!(reader.warnings(), &[""; 0]);
        prop_assert_eq!(reader.tensors(), model.infos());

        let alignment = if model.align_32 { 32 } else { 64 };
        for (at, tensor) in model.tensors.iter().enumerate() {
            let stored = reader.stored(at).range;
            let planned = layout.tensors[at];
            let range = StoredRange { file: 0, offset: planned.offset, len: planned.len };
            prop_assert_eq!(stored, range);
            prop_assert_eq!((planned.source, planned.file), (at, 0));
            prop_assert_eq!(stored.offset % alignment, 0);
            prop_assert_eq!(&bytes_of(&reader, at), &tensor.bytes);
            prop_assert_eq!(reader.tensor_slice(at), Some(&tensor.bytes[..]));
            let digest = *blake3::hash(&tensor.bytes).as_bytes();
            prop_assert_eq!(reader.stored(at).digest(), Some(digest));
            prop_assert_eq!(reader.position(&tensor.info.name), Some(at));
        }

        for companion in &model.companions {
            let at = reader.companions().iter().position(|found| found.name == companion.name);
            let at = at.expect("every companion is listed");
            prop_assert_eq!(reader.companions()[at].len, companion.bytes.len() as u64);
            prop_assert_eq!(&reader.read_companion(at)?, &companion.bytes);
        }
        prop_assert_eq!(reader.companions().len(), model.companions.len());

        for (key, value) in model.metadata.iter() {
            prop_assert_eq!(reader.metadata().get(key), Some(value), "{}", key);
        }
        prop_assert_eq!(reader.metadata().text(keys::APR_VERSION), Some("2.0.0"));
    }

    #[test]
    fn padding_is_zero_and_the_checksum_right(model in any_model()) {
        let file = model.write();
        let reader = open(file.clone());
        let checksum = reader.container().checksum().expect("APR2 has one");
        prop_assert_eq!(checksum.crc32, crc32fast::hash(&file[..file.len() - 16]));
        let mut position = 0;
        for extent in checksum.extents {
            prop_assert_eq!(extent.offset, position);
            position += extent.len;
            if extent.kind == apr_core::ExtentKind::Padding {
                let range = usize::try_from(extent.offset)?..usize::try_from(position)?;
                prop_assert!(file[range].iter().all(|&byte| byte == 0));
            }
        }
        prop_assert_eq!(position, file.len() as u64 - 16);
    }

    #[test]
    fn writing_what_was_read_gives_the_same_file(mut model in any_model()) {
        let file = model.write();
        let reader = open(file.clone());
        model.metadata = reader.metadata().clone();
        model.companions = reader.companions().iter().enumerate().map(|(at, companion)| {
            Ok(CompanionFile { name: companion.name.clone(), bytes: reader.read_companion(at)? })
        }).collect::<apr_core::Result<_>>()?;
        prop_assert!(model.write() == file);
    }
}

#[test]
fn companions_that_are_tensors_stay_out_of_the_tensor_list() {
    let companions = vec![
        CompanionFile { name: "config.json".into(), bytes: b"{}".to_vec() },
        CompanionFile { name: "spiece.model".into(), bytes: vec![0xff; 10] },
    ];
    let reader = open(Model { companions, ..Model::default() }.write());
    assert!(reader.tensors().is_empty());
    assert_eq!(reader.position("files/spiece.model"), None);
    let names: Vec<&str> =
        reader.companions().iter().map(|companion| companion.name.as_str()).collect();
    assert_eq!(names, ["config.json", "spiece.model"]);
}

#[test]
fn text_of_a_mebibyte_stays_in_the_metadata_and_more_goes_into_a_tensor() {
    for (len, inline) in [(0, true), (1 << 20, true), ((1 << 20) + 1, false)] {
        let companions = vec![CompanionFile { name: "vocab.txt".into(), bytes: vec![b'v'; len] }];
        let reader = open(Model { companions, ..Model::default() }.write());
        let files = reader.metadata().object(keys::FILES).expect("a companion is listed");
        assert_eq!(files["vocab.txt"].is_string(), inline, "{len} bytes");
        assert_eq!(reader.companions()[0].len, len as u64);
    }
}
