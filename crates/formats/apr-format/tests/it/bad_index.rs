//! Index entries that are wrong or odd.

use crate::support::{open, pattern, refused, sound};
use apr_core::{CheckpointReader, DType, Error};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::read_everything;

type Change = fn(&mut Apr2Entry);

/// Returns the sound file with its first entry, `b.weight`, changed.
fn changed(change: impl FnOnce(&mut Apr2Entry)) -> Apr2Builder {
    let mut builder = sound();
    change(&mut builder.entries[0]);
    builder
}

fn refused_for(tensor: &str, builder: &Apr2Builder) -> Error {
    let error = refused(builder.build());
    assert_eq!(error.tensor(), Some(tensor), "{error}");
    error
}

#[test]
fn counts_that_do_not_fit_into_the_index_are_corrupt() {
    let index = 32 + sound().metadata.len() as u64;
    for count in [4, 1000, 1 << 31, u32::MAX] {
        let error = refused(Apr2Builder { tensor_count: Some(count), ..sound() }.build());
        assert_eq!(error.code().id(), "E002", "{count}: {error}");
        assert!(error.offset() >= Some(index), "{count}: {error}");
    }
    for builder in [
        Apr2Builder { tensor_count: Some(2), ..sound() },
        Apr2Builder { tensor_count: Some(0), ..sound() },
        Apr2Builder { index_tail: vec![0], ..sound() },
        Apr2Builder { index_tail: vec![0; 100], ..sound() },
    ] {
        let error = refused(builder.build());
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains("follow the last index entry"), "{error}");
    }
    for index_size in 0..8 {
        assert_eq!(
            refused(Apr2Builder { index_size: Some(index_size), ..sound() }.build()).code().id(),
            "E002"
        );
    }
}

#[test]
fn names_that_are_not_text_or_not_unique_are_refused() {
    for name in [&b""[..], b"\xff", b"a\xc3", b"\xed\xa0\x80"] {
        let error = refused(changed(|entry| entry.name = name.to_vec()).build());
        assert_eq!(error.code().id(), "E001", "{error}");
    }
    let error = refused_for("a.bias", &changed(|entry| entry.name = b"a.bias".to_vec()));
    assert_eq!(error.code().id(), "E002");
    assert!(error.message().contains("twice"), "{error}");

    let error = refused_for("a.bias", &Apr2Builder { unsorted: true, ..sound() });
    assert_eq!(error.code().id(), "E002");
    assert!(
        error.message().contains("not sorted") && error.message().contains("b.weight"),
        "{error}"
    );
}

#[test]
fn names_are_escaped_in_messages_and_kept_in_the_model() {
    let name = "\u{1b}[31m\n\u{202e}<b>../\0";
    let error = refused(changed(|entry| (entry.name, entry.dtype) = (name.into(), 255)).build());
    assert_eq!(error.tensor(), Some(name));
    assert!(error.to_string().contains(r"\u{1b}[31m\n\u{202e}<b>../\u{0}"), "{error}");
    let long = "n".repeat(65_535);
    let error =
        refused(changed(|entry| (entry.name, entry.dtype) = (long.clone().into(), 255)).build());
    assert!(error.to_string().len() < 400);

    for name in [name, &long, "größe", " "] {
        let reader = open(changed(|entry| entry.name = name.into()).build());
        assert!(reader.position(name).is_some());
    }
}

#[test]
fn dimensions_and_dtypes_that_are_not_allowed_are_e001() {
    let cases: [(Change, &str); 9] = [
        (|entry| entry.dims = vec![1; 9], "9 dimensions"),
        (|entry| entry.dims = vec![1; 255], "255 dimensions"),
        (|entry| entry.dtype = 255, "dtype code 255"),
        (|entry| entry.dtype = 64, "dtype code 64"),
        (|entry| entry.dtype = 29, "dtype code 29"),
        (|entry| entry.dims = vec![u64::MAX], "is not compatible with"),
        (
            |entry| entry.dims = vec![4_194_305, 4_194_305, 211_106_198_978_564],
            "is not compatible with",
        ),
        (|entry| entry.dims = vec![1 << 32, 1 << 32], "is not compatible with"),
        (|entry| entry.dtype = DType::Q4_K.apr2_code(), "is not compatible with"),
    ];
    for (change, message) in cases {
        let error = refused_for("b.weight", &changed(change));
        assert_eq!(error.code().id(), "E001", "{message}: {error}");
        assert!(error.message().contains(message), "{message}: {error}");
        assert!(error.offset().is_some(), "{message}: {error}");
    }
}

#[test]
fn encodings_that_this_version_does_not_read_are_e003() {
    for flags in [4, 15, 2 << 4, 15 << 4, 4 << 8, 15 << 8] {
        let error = refused_for("b.weight", &changed(|entry| entry.flags = flags));
        assert_eq!(error.code().id(), "E003", "{flags:#x}: {error}");
        assert!(error.message().contains("newer version"), "{error}");
    }
    for flags in [1, 2, 3, 0x13, 1 << 8, 2 << 8] {
        let error = refused_for("b.weight", &changed(|entry| entry.flags = flags));
        assert_eq!(error.code().id(), "E002", "{flags:#x} without a raw size: {error}");
    }
    let error = refused_for("b.weight", &changed(|entry| entry.flags = 1 << 4));
    assert_eq!(error.code().id(), "E001", "a filter without a codec: {error}");
    let error = refused_for("b.weight", &changed(|entry| entry.flags = 1 << 12));
    assert_eq!(error.code().id(), "E002", "encrypted in a file that is not: {error}");
}

#[test]
fn sizes_that_do_not_add_up_are_corrupt() {
    for size in [0, 23, 25, 1 << 63, u64::MAX] {
        let error = refused_for("b.weight", &changed(|entry| entry.size = Some(size)));
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains("takes 24"), "{error}");
    }
    let error = refused_for("b.weight", &changed(|entry| entry.raw_size = 24));
    assert_eq!(error.code().id(), "E002", "{error}");
    // A shape and a size that agree, and are far more than the file.
    for (len, offset) in
        [(1 << 63, 0), (u64::MAX, 0), (u64::MAX, u64::MAX), (1 << 62, 1 << 63), (1 << 32, 64)]
    {
        let error = refused_for(
            "b.weight",
            &changed(|entry| {
                (entry.dtype, entry.dims) = (DType::U8.apr2_code(), vec![len]);
                (entry.size, entry.offset) = (Some(len), Some(offset));
            }),
        );
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains("end past the file"), "{error}");
    }
}

#[test]
fn offsets_past_the_end_are_corrupt() {
    let room = sound().build().len() - 16 - sound().data_start() as usize;
    for offset in [room as u64 - 23, room as u64, 1 << 32, 1 << 63, u64::MAX - 24, u64::MAX] {
        let error = refused_for("b.weight", &changed(|entry| entry.offset = Some(offset)));
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains(&format!("offset {offset} ")), "{error}");
    }
    // Empty tensors have a place as well.
    let mut builder = sound();
    builder.entries[2].offset = Some(u64::MAX);
    assert_eq!(refused_for("c.empty", &builder).code().id(), "E002");
}

#[test]
fn tensors_that_share_bytes_are_corrupt_even_with_a_right_checksum() {
    for offset in [41, 64, 72, 73] {
        let error = refused_for(
            if offset >= 64 { "b.weight" } else { "a.bias" },
            &changed(|entry| entry.offset = Some(offset)),
        );
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains("shares bytes"), "{error}");
    }
    // One tensor around two others: the overlap is with the one that reaches furthest.
    let mut around = Apr2Builder::new().entry(Apr2Entry::of_bytes("around", &pattern(200, 1)));
    for (name, offset) in [("inner.1", 64), ("inner.2", 128)] {
        around
            .entries
            .push(Apr2Entry { offset: Some(offset), ..Apr2Entry::of_bytes(name, &[0; 8]) });
    }
    assert!(refused_for("inner.1", &around).message().contains("'around'"));
}

#[test]
fn unaligned_tensors_and_unknown_flags_warn() {
    let cases = [
        (
            changed(|entry| entry.offset = Some(1)),
            "1 of 3 tensors do not start at a multiple of 64",
        ),
        (
            changed(|entry| entry.offset = Some(32)),
            "1 of 3 tensors do not start at a multiple of 64",
        ),
        (changed(|entry| entry.flags = 1 << 31), "unknown flags set (0x80000000)"),
    ];
    for (builder, message) in cases {
        let reader = open(builder.build());
        assert_eq!(reader.warnings().len(), 1, "{:?}", reader.warnings());
        assert!(reader.warnings()[0].contains(message), "{:?}", reader.warnings());
        read_everything(&reader).expect("readable anyway");
    }
    // Tensors one after the other without any padding, and a data section that starts anywhere.
    let mut packed = sound();
    let start = packed.data_start();
    packed.slack = 64;
    packed.data_offset = Some(start + 63);
    packed.entries[0].offset = Some(1);
    packed.entries[1].offset = Some(25);
    packed.entries[2].offset = Some(100);
    let reader = open(packed.build());
    assert_eq!(reader.warnings().len(), 2, "{:?}", reader.warnings());
    assert!(reader.warnings()[0].contains("data section starts"), "{:?}", reader.warnings());
}

#[test]
fn zero_dims_are_a_scalar_and_zero_sized_tensors_are_empty() {
    let builder = Apr2Builder::new()
        .entry(Apr2Entry::new("scalar", DType::F32, &[], &[1, 2, 3, 4]))
        .entry(Apr2Entry::new("eight", DType::U8, &[1; 8], &[5]))
        .entry(Apr2Entry::new("none", DType::F32, &[u64::MAX, 0, u64::MAX], &[]));
    let reader = open(builder.build());
    assert_eq!(reader.tensor_bytes("scalar").expect("it is there").as_ref(), [1, 2, 3, 4]);
    assert_eq!(reader.tensor_bytes("eight").expect("it is there").as_ref(), [5]);
    assert_eq!(reader.tensor_bytes("none").expect("it is there").as_ref(), [0; 0]);
}
