//! The writer's bytes and what it refuses.

use apr_core::{
    CheckpointWriter, Code, DType, FileInfo, MemoryFolder, Metadata, Notes, PlannedTensor,
    TensorInfo,
};
use apr_safetensors::{Order, WriteOptions, plan};
use serde_json::json;

use crate::{assert_refused, contents, open, padded_file, tensor, write, write_to};

fn plan_of(tensors: &[TensorInfo]) -> apr_core::Result<apr_safetensors::SafetensorsWriter> {
    plan(tensors, &Metadata::new(), &WriteOptions::default())
}

#[test]
fn bytes_match_the_reference_library() {
    let tensors = [
        (tensor("b\"", DType::F8_E4M3, &[2, 1]), b"bb".to_vec()),
        (tensor("a", DType::F32, &[]), b"aaaa".to_vec()),
    ];
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"#,
        r#""b\"":{"dtype":"F8_E4M3","shape":[2,1],"data_offsets":[0,2]},"#,
        r#""a":{"dtype":"F32","shape":[],"data_offsets":[2,6]}}"#,
    );
    let expected = padded_file(header, b"bbaaaa");
    for chunk in [1, 2, 3, 100] {
        let mut bytes = Vec::new();
        write_to(&mut bytes, &tensors, &Metadata::new(), &WriteOptions::default(), chunk)
            .expect("a valid plan");
        assert_eq!(bytes, expected, "in chunks of {chunk}");
    }

    let mut metadata = Metadata::new();
    metadata.set("safetensors", json!({}));
    let canonical = WriteOptions { order: Order::Canonical, ..WriteOptions::default() };
    let header = concat!(
        r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"#,
        r#""b\"":{"dtype":"F8_E4M3","shape":[2,1],"data_offsets":[4,6]}}"#,
    );
    assert_eq!(write(&tensors, &metadata, &canonical), padded_file(header, b"aaaabb"));
    assert_eq!(write(&[], &metadata, &canonical), padded_file("{}", b""));
}

#[test]
fn the_layout_states_every_offset_in_advance() {
    let canonical = WriteOptions {
        order: Order::Canonical,
        file_name: "x.bin".into(),
        ..WriteOptions::default()
    };
    let tensors = [
        (tensor("b", DType::U8, &[3]), b"bbb".to_vec()),
        (tensor("a", DType::U16, &[2]), b"aaaa".to_vec()),
        (tensor("e", DType::I8, &[0]), Vec::new()),
    ];
    let infos = tensors.each_ref().map(|(info, _)| info.clone());
    let writer = plan(&infos, &Metadata::new(), &canonical).expect("a valid plan");
    let layout = writer.layout();
    let bytes = write(&tensors, &Metadata::new(), &canonical);
    let start = bytes.len() as u64 - 7;
    assert_eq!(layout.files, [FileInfo { name: "x.bin".into(), len: bytes.len() as u64 }]);
    assert_eq!(layout.total_len(), bytes.len() as u64);
    assert_eq!(
        layout.tensors,
        [
            PlannedTensor { source: 1, file: 0, offset: start, len: 4 },
            PlannedTensor { source: 2, file: 0, offset: start + 4, len: 0 },
            PlannedTensor { source: 0, file: 0, offset: start + 4, len: 3 },
        ]
    );
}

#[test]
fn empty_tensors_are_due_and_done_at_once() {
    let all_empty =
        [(tensor("a", DType::F32, &[0]), vec![]), (tensor("b", DType::U8, &[2, 0]), vec![])];
    let reader =
        open(write(&all_empty, &Metadata::new(), &WriteOptions::default())).expect("what we write");
    assert_eq!(contents(&reader), all_empty);

    // Callers need not know: a chunk of nothing is as good as none.
    let mut writer = plan_of(&[tensor("a", DType::F32, &[0]), tensor("b", DType::U8, &[1])])
        .expect("a valid plan");
    let mut bytes = Vec::new();
    writer.begin(&mut bytes).expect("a header");
    writer.write_chunk(&mut bytes, &[], None).expect("nothing");
    writer.write_chunk(&mut bytes, &[7], None).expect("tensor b");
    writer.write_chunk(&mut bytes, &[], None).expect("nothing");
    writer.finish(&mut bytes, &Notes::default()).expect("the plan is fulfilled");
    assert!(open(bytes).is_ok());
}

#[test]
fn bytes_off_the_plan_are_refused() {
    let tensors = [tensor("a", DType::U8, &[4]), tensor("b", DType::U8, &[4])];
    let begun = || {
        let mut bytes = Vec::new();
        let mut writer = plan_of(&tensors).expect("a valid plan");
        writer.begin(&mut bytes).expect("a header");
        (writer, bytes)
    };
    let (mut writer, mut bytes) = begun();
    let written = bytes.clone();
    assert_refused(
        writer.write_chunk(&mut bytes, &[0; 5], None),
        Code::Corrupt,
        "tensor 'a': received 5 more bytes",
    );
    assert_eq!(bytes, written);
    writer.write_chunk(&mut bytes, &[0; 3], None).expect("three of four");
    assert_refused(
        writer.finish(&mut bytes, &Notes::default()),
        Code::Corrupt,
        "tensor 'a': it ends after 3 bytes, but 4 are planned",
    );
    assert_refused(
        writer.write_chunk(&mut bytes, &[0; 5], None),
        Code::Corrupt,
        "1 of the planned 4 are left",
    );

    let (mut writer, mut bytes) = begun();
    writer.write_chunk(&mut bytes, &[0; 4], None).expect("tensor a");
    assert_refused(
        writer.finish(&mut bytes, &Notes::default()),
        Code::Corrupt,
        "tensor 'b': it ends after 0 bytes",
    );
    writer.write_chunk(&mut bytes, &[0; 4], None).expect("tensor b");
    assert_refused(
        writer.write_chunk(&mut bytes, &[0], None),
        Code::Corrupt,
        "after the last planned tensor",
    );
    writer.finish(&mut bytes, &Notes::default()).expect("the plan is fulfilled");
}

#[test]
fn tensors_that_the_format_cannot_hold_are_rejected() {
    let format = Code::Format;
    assert_refused(
        plan_of(&[tensor("q", DType::Q4_0, &[32])]),
        format,
        "tensor 'q': safetensors does not support q4_0; `deq",
    );
    assert_refused(plan_of(&[tensor("", DType::U8, &[1])]), format, "an empty name");
    assert_refused(plan_of(&[tensor("__metadata__", DType::U8, &[1])]), format, "reserved");
    assert_refused(
        plan_of(&[tensor(&"n".repeat(65_536), DType::U8, &[1])]),
        format,
        "65536 bytes long",
    );
    assert_refused(
        plan_of(&[tensor("d", DType::U8, &[1; 65])]),
        format,
        "tensor 'd': 65 dimensions",
    );
    assert_refused(plan_of(&[tensor("p", DType::F4_E2M1, &[3])]), format, "tensor 'p'");
    let twice =
        [tensor("a", DType::U8, &[1]), tensor("b", DType::U8, &[1]), tensor("a", DType::F32, &[1])];
    assert_refused(plan_of(&twice), format, "tensor 'a': two tensors");
    let endless = [tensor("a", DType::U8, &[u64::MAX]), tensor("b", DType::U8, &[1])];
    assert_refused(plan_of(&endless), Code::Memory, "2^64");
    assert_refused(plan_of(&endless[..1]), Code::Memory, "2^64");

    let mut metadata = Metadata::new();
    metadata.set("safetensors", json!({"metadata": {"k": 1}}));
    assert_refused(
        plan(&[], &metadata, &WriteOptions::default()),
        format,
        "safetensors.metadata.k is not a string",
    );
    let zero = WriteOptions { shard_size: Some(0), ..WriteOptions::default() };
    assert_refused(
        plan(&[], &Metadata::new(), &zero),
        format,
        "the shard size must be 1 byte or more",
    );
    let outside = WriteOptions {
        file_name: "../m.safetensors".into(),
        named_files: true,
        ..WriteOptions::default()
    };
    assert_refused(plan(&[], &Metadata::new(), &outside), format, "not a plain file name");
}

#[test]
fn a_header_over_the_limit_is_refused() {
    let mut metadata = Metadata::new();
    metadata.set("safetensors", json!({"metadata": {"card": " ".repeat(100_000_000)}}));
    assert_refused(
        plan(&[], &metadata, &WriteOptions::default()),
        Code::Memory,
        "the format's limit is 100000000",
    );
}

#[test]
fn metadata_without_a_place_is_a_loss() {
    let mut metadata = Metadata::new();
    for key in [
        "apr_version",
        "model_type",
        "architecture",
        "source",
        "loss",
        "safetensors",
        "files",
        "tied",
    ] {
        metadata.set(key, json!({}));
    }
    metadata.set("tokenizer", "t");
    metadata.set("training", json!([]));
    let writer = plan(&[], &metadata, &WriteOptions::default()).expect("a valid plan");
    let lost: Vec<_> = writer.layout().losses.iter().map(|loss| loss.name.as_str()).collect();
    assert_eq!(lost, ["tokenizer", "training"]);
}

#[test]
fn folders_receive_the_name_of_a_single_file() {
    let tensors = [(tensor("a", DType::U8, &[1]), vec![1])];
    for (named_files, name) in [(true, "model.safetensors"), (false, "")] {
        let options = WriteOptions { named_files, shard_size: Some(1), ..WriteOptions::default() };
        let mut folder = MemoryFolder::default();
        write_to(&mut folder, &tensors, &Metadata::new(), &options, 9).expect("a valid plan");
        assert!(folder.files().keys().eq([name]), "{:?}", folder.files().keys());
    }
}
