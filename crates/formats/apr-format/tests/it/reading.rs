//! What a reader touches, and how it answers for single tensors.

use crate::support::{Model, open, sound, tensor};
use apr_core::{CheckpointReader, Code, DType, Limits};
use apr_format::apr2::{self, CompanionFile};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::{CountingSource, SparseSource, peak_memory};

#[test]
fn one_tensor_costs_the_front_the_trailer_and_that_tensor() {
    let tensors = vec![
        tensor("a", DType::F32, &[1000]),
        tensor("b", DType::U8, &[5000]),
        tensor("c", DType::I8, &[7]),
    ];
    let companions = vec![CompanionFile { name: "vocab.bin".into(), bytes: vec![0xfe; 3000] }];
    let source = CountingSource::new(Model { tensors, companions, ..Model::default() }.write());
    let reader = apr2::open(source.clone(), "model.apr", &Limits::default()).expect("a sound file");
    let header = reader.header();
    let digests = 16 + 8 + 32 * 4;
    let mut expected = u64::from(32 + header.metadata_size + header.index_size) + digests + 16;
    assert_eq!(source.bytes_read(), expected);

    assert_eq!(reader.tensor_bytes("c").expect("it is there").len(), 7);
    expected += 7;
    assert_eq!(source.bytes_read(), expected);
    reader.read_tensor(1, 4990, &mut [0; 10]).expect("the last ten bytes");
    expected += 10;
    assert_eq!(source.bytes_read(), expected);
    assert_eq!(reader.read_companion(0).expect("it is there").len(), 3000);
    assert_eq!(source.bytes_read(), expected + 3000);
}

#[test]
fn opening_allocates_no_memory_for_tensors() {
    // A tensor of 1 TiB after a small front: only the trailer is missing.
    let mut builder = Apr2Builder { digests: false, ..sound() };
    builder.entries.truncate(1);
    builder.entries[0].dims = vec![1 << 38];
    builder.entries[0].size = Some(1 << 40);
    let len = u64::from(builder.data_start()) + (1 << 40) + 16;
    let source = SparseSource::new(builder.build(), len);
    let (error, peak) =
        peak_memory(|| apr2::open(source, "model.apr", &Limits::default()).map(drop));
    assert_eq!(error.expect_err("zeros are not a footer").code(), Code::Corrupt);
    assert!(peak < 100_000, "{peak} bytes");
}

#[test]
fn a_hundred_thousand_tensors_open_in_memory_and_time_of_the_index() {
    let mut builder = Apr2Builder::new().metadata(format!(r#"{{"tied":{{{}}}}}"#, {
        let ties: Vec<String> = (0..50_000).map(|i| format!(r#""t{i:05}":"e00000""#)).collect();
        ties.join(",")
    }));
    for i in 0..50_000 {
        builder.entries.push(Apr2Entry::new(&format!("e{i:05}"), DType::F32, &[0], &[]));
        // All in one place: as many ties and empty tensors as can get in each other's way.
        builder
            .entries
            .push(Apr2Entry { flags: 1 << 13 | 1 << 30, ..builder.entries[2 * i].clone() });
        builder.entries[2 * i + 1].name = format!("t{i:05}").into();
    }
    builder.entries.iter_mut().for_each(|entry| entry.offset = Some(0));
    let last = builder.entries.len() as u64 - 1;
    builder.entries[1].offset = Some(64 * last);
    let file = builder.build();
    let front = builder.data_start() as usize;
    let (reader, peak) = peak_memory(|| open(file));
    assert_eq!(reader.tensors().len(), 100_000);
    assert_eq!(reader.warnings().len(), 2, "{:?}", reader.warnings());
    assert!(peak < 8 * front, "{peak} bytes for a front of {front}");
}

#[test]
fn reads_past_a_tensor_are_refused_and_named() {
    let reader = open(sound().build());
    for (offset, len) in [(0, 25), (24, 1), (25, 0), (u64::MAX, 1), (u64::MAX, 0)] {
        let error = reader.read_tensor(0, offset, &mut vec![0; len]).expect_err("past the end");
        assert_eq!(
            (error.code(), error.tensor(), error.file()),
            (Code::Corrupt, Some("b.weight"), Some("model.apr"))
        );
    }
    assert!(reader.read_tensor(0, 24, &mut []).is_ok());
    let error = reader.tensor_bytes("nobody").expect_err("no such tensor");
    assert_eq!(
        (error.code(), error.tensor(), error.file()),
        (Code::Format, Some("nobody"), Some("model.apr"))
    );
    assert_eq!(
        reader.container().read_raw(u64::MAX, &mut [0]).expect_err("past the end").code(),
        Code::Corrupt
    );
}

#[test]
fn companions_over_the_limit_are_refused_when_read() {
    let companions = vec![CompanionFile { name: "vocab.bin".into(), bytes: vec![0xfe; 3000] }];
    let mut limits = Limits::default();
    limits.max_companion = 2999;
    let reader = apr2::open(Model { companions, ..Model::default() }.write(), "model.apr", &limits)
        .expect("opens");
    let error = reader.read_companion(0).expect_err("over the limit");
    assert_eq!((error.code(), error.file()), (Code::Memory, Some("model.apr")));
}

#[test]
fn the_header_is_described_field_by_field() {
    let file = sound().build();
    let fields = open(file.clone()).container().header_fields();
    assert_eq!(fields["version"], "2.0");
    assert_eq!(fields["flags"], serde_json::json!(["ALIGNED_64"]));
    assert_eq!((&fields["alignment"], &fields["metadata_offset"]), (&64.into(), &32.into()));
    assert_eq!(fields["index_offset"], 32 + sound().metadata.len());
    assert_eq!(fields["data_offset"], sound().data_start());
    assert_eq!(fields["crc32"], format!("{:#010x}", crc32fast::hash(&file[..file.len() - 16])));
    assert_eq!(fields["file_size"], file.len());
    assert_eq!(fields["digests"], true);
    let reader = open(file);
    let features = reader.container().features();
    assert!(!features.encrypted && !features.signed && !features.streaming);
    assert_eq!(features.alignment, Some(64));
    assert!(!reader.container().is_locked());
}
