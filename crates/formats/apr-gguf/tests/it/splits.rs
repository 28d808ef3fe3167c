//! Models in several files.

use apr_core::{CheckpointReader, Code, IoCause, MemoryFolder};
use apr_gguf::{KeyValue, WriteOptions};
use apr_testkit::FolderInMemory;
use apr_testkit::gguf::{GgufBuilder, GgufEntry};

use crate::{assert_refused, contents, open, open_split, pairs, rewrite, write_to};

fn part(number: u16, count: u16, tensors: i32) -> GgufBuilder {
    let builder = GgufBuilder::new();
    let builder = if number == 0 {
        builder.text("general.architecture", "llama").u32("k", 7)
    } else {
        builder
    };
    builder.u16("split.no", number).i32("split.tensors.count", tensors).u16("split.count", count)
}

fn three() -> [(&'static str, GgufBuilder); 3] {
    [
        ("m-00001-of-00003.gguf", part(0, 3, 3).entry(GgufEntry::i8("a", &[1]))),
        ("m-00002-of-00003.gguf", part(1, 3, 3).entry(GgufEntry::i8("b", &[2, 2]))),
        ("m-00003-of-00003.gguf", part(2, 3, 3).entry(GgufEntry::i8("c", &[3; 40]))),
    ]
}

fn folder(parts: &[(&str, GgufBuilder)]) -> FolderInMemory {
    FolderInMemory(parts.iter().map(|(name, part)| ((*name).to_owned(), part.build())).collect())
}

#[test]
fn any_part_opens_the_whole_model() {
    for (name, _) in three() {
        let reader = open_split(&folder(&three()), name).expect("a sound model");
        let names: Vec<_> = reader.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(contents(&reader)[2].1, [3; 40]);
        assert_eq!(
            pairs(&reader),
            [KeyValue::new("general.architecture", "llama"), KeyValue::new("k", 7_u32)]
        );
        assert_eq!(reader.files().len(), 3);
        assert_eq!(reader.warnings(), [""; 0]);
    }
}

#[test]
fn a_part_opened_alone_has_a_warning() {
    let [(_, first), ..] = three();
    let reader = open(first.build()).expect("a sound file");
    assert!(reader.warnings()[0].contains("this is part 1 of 3 alone"), "{:?}", reader.warnings());
    let renamed = FolderInMemory::from([("renamed.gguf", first.build())]);
    let reader = open_split(&renamed, "renamed.gguf").expect("a sound file");
    assert!(reader.warnings()[0].contains("this is part 1 of 3 alone"), "{:?}", reader.warnings());
    // Its tensors are a whole model when they are written.
    let again = open(rewrite(&reader, &WriteOptions::default())).expect("what was written");
    assert_eq!(again.warnings(), [""; 0]);
    assert!(pairs(&again).iter().all(|pair| !pair.key.starts_with("split.")));
}

#[test]
fn a_model_that_was_put_together_is_whole_whatever_its_name() {
    let builder = part(0, 0, 1).entry(GgufEntry::i8("a", &[1]));
    let reader =
        open_split(&folder(&[("m-00001-of-00003.gguf", builder.clone())]), "m-00001-of-00003.gguf");
    let reader = reader.expect("a sound file");
    assert_eq!(reader.warnings(), [""; 0]);
    assert_eq!(rewrite(&reader, &WriteOptions::default()), builder.build());
}

#[test]
fn a_missing_part_is_reported() {
    let mut folder = folder(&three());
    folder.0.remove("m-00002-of-00003.gguf");
    let error = assert_refused(
        open_split(&folder, "m-00003-of-00003.gguf"),
        Code::Io,
        "m-00002-of-00003.gguf",
    );
    assert_eq!(error.cause(), Some(IoCause::NotFound));
    assert_refused(open_split(&folder, "absent.gguf"), Code::Io, "absent.gguf");
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let with = |position: usize, builder: GgufBuilder| {
        let mut parts = three();
        parts[position].1 = builder;
        folder(&parts)
    };
    let refused = |folder: &FolderInMemory, expected: &str| {
        assert_refused(open_split(folder, "m-00001-of-00003.gguf"), Code::Corrupt, expected)
    };
    let b = || GgufEntry::i8("b", &[2]);
    let error = refused(
        &with(1, part(2, 3, 3).entry(b())),
        "part 2 of 3, but split.no and split.count state part 3 of 3",
    );
    assert_eq!(error.file(), Some("m-00002-of-00003.gguf"));
    refused(&with(1, part(1, 4, 3).entry(b())), "part 2 of 4");
    refused(&with(0, part(0, 4, 3).entry(b())), "part 1 of 4");
    refused(&with(0, part(1, 3, 3).entry(b())), "part 2 of 3");
    refused(&with(1, GgufBuilder::new().entry(b())), "has no split.count");
    refused(
        &with(1, part(1, 3, 4).entry(b())),
        "split.tensors.count is 4, but all parts together hold 3",
    );
    let error = refused(
        &with(1, part(1, 3, 3).entry(GgufEntry::i8("a", &[2]))),
        "'m-00001-of-00003.gguf' also has a tensor of",
    );
    assert_eq!(error.tensor(), Some("a"));
    refused(
        &with(2, GgufBuilder { tensor_count: Some(9), ..part(2, 3, 3) }),
        "m-00003-of-00003.gguf",
    );
}

#[test]
fn unread_metadata_of_later_parts_have_a_warning() {
    let mut parts = three();
    parts[1].1 = parts[1].1.clone().u32("k", 8);
    let reader = open_split(&folder(&parts), "m-00001-of-00003.gguf").expect("harmless");
    assert_eq!(
        reader.warnings(),
        ["m-00002-of-00003.gguf: 'k' is not read; only the first part's metadata are"]
    );
}

#[test]
fn parts_are_written_as_they_were_read() {
    let reader = open_split(&folder(&three()), "m-00001-of-00003.gguf").expect("a sound model");
    let options = WriteOptions {
        file_name: "m.gguf".into(),
        shard_size: Some(64),
        ..WriteOptions::default()
    };
    let mut written = MemoryFolder::default();
    write_to(&mut written, &contents(&reader), reader.metadata(), &options).expect("a valid plan");
    // The first two fit into one part.
    let names: Vec<_> = written.files().keys().collect();
    assert_eq!(names, ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]);

    let options = WriteOptions { shard_size: Some(32), ..options };
    let mut written = MemoryFolder::default();
    write_to(&mut written, &contents(&reader), reader.metadata(), &options).expect("a valid plan");
    assert_eq!(written.files(), &folder(&three()).0);
}

#[test]
fn every_part_states_an_alignment_of_its_own() {
    let reader = open_split(&folder(&three()), "m-00001-of-00003.gguf").expect("a sound model");
    let options =
        WriteOptions { alignment: Some(64), shard_size: Some(1), ..WriteOptions::default() };
    let mut written = MemoryFolder::default();
    write_to(&mut written, &contents(&reader), reader.metadata(), &options).expect("a valid plan");
    let again = open_split(&FolderInMemory(written.files().clone()), "model-00002-of-00003.gguf")
        .expect("what was written");
    assert_eq!(contents(&again), contents(&reader));
    assert_eq!(again.warnings(), [""; 0]);
}
