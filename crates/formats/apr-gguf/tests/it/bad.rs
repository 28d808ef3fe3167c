//! Files that are refused: with the right code, naming the place, without a panic.

use apr_core::{CheckpointReader, Code, Error, Limits};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::{SparseSource, peak_memory};

use crate::{assert_refused, open};

fn sound() -> GgufBuilder {
    GgufBuilder::new().text("general.architecture", "llama").entry(GgufEntry::i8("a", &[1, 2, 3]))
}

#[track_caller]
fn refused(builder: &GgufBuilder, code: Code, expected: &str) -> Error {
    let error = assert_refused(open(builder.build()), code, expected);
    assert_eq!(error.file(), Some("model.gguf"), "{error}");
    error
}

#[test]
fn a_wrong_magic_is_refused() {
    refused(&GgufBuilder { magic: *b"FUGG", ..sound() }, Code::Format, "byte-swapped");
    refused(&GgufBuilder { magic: *b"GGML", ..sound() }, Code::Format, "not GGUF");
    refused(&GgufBuilder { magic: *b"APR2", ..sound() }, Code::Format, "not GGUF");
    assert_refused(open(Vec::new()), Code::Corrupt, "truncated to 0 bytes");
}

#[test]
fn versions_that_there_are_not_are_refused() {
    refused(&sound().version(0), Code::Format, "version is 0");
    for version in [4, 99, 0x0400, 0x0001_0003, u32::MAX] {
        refused(&sound().version(version), Code::Version, &format!("GGUF version {version};"));
    }
    // The swapped number of a version that there is not.
    refused(&sound().version(0x0400_0000), Code::Version, "GGUF version 4;");
    // A little-endian file whose version alone is swapped reads as a big-endian one, whose counts
    // are far too large.
    refused(&sound().version(0x0300_0000), Code::Corrupt, "truncated");
}

#[test]
fn counts_past_the_end_are_refused_before_anything_is_allocated() {
    for count in [2, 1 << 31, 1 << 40, 1 << 63, u64::MAX] {
        for version in [2, 3] {
            let tensors = GgufBuilder { tensor_count: Some(count), ..sound() }.version(version);
            let pairs = GgufBuilder { pair_count: Some(count), ..sound() }.version(version);
            for builder in [tensors, pairs] {
                let file = builder.build();
                let (result, peak) = peak_memory(|| open(file).map(drop));
                assert!(result.is_err());
                assert!(peak < 100_000, "{count}: {peak} bytes");
            }
        }
    }
    refused(
        &GgufBuilder { tensor_count: Some(u64::MAX), ..sound() },
        Code::Corrupt,
        "the list of tensors",
    );
    refused(
        &GgufBuilder { pair_count: Some(u64::MAX), ..sound() },
        Code::Corrupt,
        "the list of key-value pairs",
    );
}

#[test]
fn lengths_past_the_end_are_refused_naming_the_key() {
    let long = |len: u64| sound().pair("k", 8, &len.to_le_bytes());
    for len in [200, 1 << 32, 1 << 63, u64::MAX] {
        let error = refused(&long(len), Code::Corrupt, "the key 'k': its value takes");
        assert!(error.offset().is_some());
        for kind in 0..=12 {
            let error = refused(
                &sound().array("k", kind, len.max(1 << 20), &[0; 64]),
                Code::Corrupt,
                "the key 'k': ",
            );
            assert!(error.message().contains("truncated"), "{error}");
        }
    }
    let mut name = sound();
    name.entries[0].name = vec![b'n'; 10];
    let at = name.build().windows(10).position(|bytes| bytes == [b'n'; 10]).expect("the name") - 8;
    let file = apr_testkit::corrupt::overwrite(&name.build(), at, &u64::MAX.to_le_bytes());
    assert_refused(open(file), Code::Corrupt, "the name of a tensor takes");
}

#[test]
fn claims_are_checked_against_the_limits_if_the_file_is_large_enough() {
    // 2^40 texts in a file of 2^44 bytes: there would be room for them.
    let claims = [
        GgufBuilder::new().array("k", 8, 1 << 40, b""),
        GgufBuilder::new().array("k", 0, 1 << 40, b""),
        GgufBuilder::new().array("k", 9, 1 << 40, b""),
        GgufBuilder::new().pair("k", 8, &(1_u64 << 40).to_le_bytes()),
        GgufBuilder { pair_count: Some(1 << 40), ..GgufBuilder::new() },
        GgufBuilder { tensor_count: Some(1 << 36), ..GgufBuilder::new() },
        // Within the limit on bytes, but as JSON 32 times as much.
        GgufBuilder::new().array("k", 0, 100 << 20, b""),
        GgufBuilder::new().array("k", 0, 50 << 20, b""),
    ];
    for builder in claims {
        let source = SparseSource::new(builder.build(), 1 << 44);
        let (result, peak) =
            peak_memory(|| apr_gguf::open(source, "", &Limits::default()).map(drop));
        assert_refused(result, Code::Memory, "limit");
        assert!(peak < 16 << 20, "{peak} bytes for {builder:?}");
    }
}

#[test]
fn values_of_no_type_are_refused() {
    for kind in [13, 255, 1 << 31, u32::MAX] {
        refused(
            &sound().pair("k", kind, &[0; 8]),
            Code::Format,
            &format!("the key 'k': {kind} is not the type"),
        );
        refused(
            &sound().array("k", kind, 1, &[0; 8]),
            Code::Format,
            &format!("the key 'k': {kind} is not the type"),
        );
    }
    refused(&sound().pair("k", 7, &[2]), Code::Format, "the key 'k': a bool is 2");
    refused(&sound().array("k", 7, 3, &[0, 1, 255]), Code::Format, "the key 'k': a bool is 255");
}

#[test]
fn deeply_nested_arrays_are_refused() {
    for depth in [5, 10_000] {
        let level = [9_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes()].concat();
        let error = refused(
            &sound().pair("k", 9, &level.repeat(depth)),
            Code::Format,
            "the key 'k': arrays are nested",
        );
        assert!(error.offset().is_some());
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_naming_the_key() {
    let bytes = [&3_u64.to_le_bytes()[..], b"a\xff\xfe"].concat();
    refused(&sound().pair("k", 8, &bytes), Code::Format, "the key 'k': its value is not UTF-8");
    refused(
        &sound().array("k", 8, 1, &bytes),
        Code::Format,
        "the key 'k': a text of its array is not UTF-8",
    );
    let mut key = sound().u32("k", 1);
    key.pairs[1].0 = vec![0xff];
    refused(&key, Code::Format, "not UTF-8");
    let mut name = sound();
    name.entries[0].name = vec![0xff];
    refused(&name, Code::Format, "not UTF-8");
}

#[test]
fn keys_and_names_that_occur_twice_are_refused() {
    refused(&sound().u32("k", 1).text("k", "1"), Code::Format, "the key 'k' appears twice");
    refused(&sound().u32("", 1), Code::Format, "an empty key");
    let twice = sound().entry(GgufEntry::i8("b", &[1])).entry(GgufEntry::i8("a", &[2]));
    let error = refused(&twice, Code::Format, "two tensors of this name");
    assert_eq!(error.tensor(), Some("a"));
}

#[test]
fn alignments_other_than_powers_of_two_are_refused() {
    for alignment in [0, 13, 33, u32::MAX] {
        refused(&sound().u32("general.alignment", alignment), Code::Format, "not a power of two");
    }
    refused(&sound().text("general.alignment", "32"), Code::Format, "of type string");
    refused(&sound().i32("general.alignment", 32), Code::Format, "of type i32");
    refused(
        &sound().pair("general.alignment", 10, &32_u64.to_le_bytes()),
        Code::Format,
        "of type u64",
    );
    // Data would start at 2^31.
    refused(&sound().u32("general.alignment", 1 << 31), Code::Corrupt, "truncated");
}

fn of_tensor(entry: GgufEntry) -> GgufBuilder {
    GgufBuilder::new().entry(entry)
}

#[track_caller]
fn tensor_refused(entry: GgufEntry, code: Code, expected: &str) {
    let error = refused(&of_tensor(entry), code, expected);
    assert_eq!(error.tensor(), Some("t"), "{error}");
}

#[test]
fn shapes_that_no_tensor_has_are_refused() {
    tensor_refused(GgufEntry::new("t", 0, &[1; 5], &[0; 4]), Code::Format, "5 dimensions");
    for dims in [1 << 20, u32::MAX] {
        let entry = GgufEntry { dim_count: Some(dims), ..GgufEntry::i8("t", &[1]) };
        tensor_refused(entry, Code::Format, "dimensions");
    }
    tensor_refused(GgufEntry::new("t", 0, &[1 << 63], &[0; 4]), Code::Format, "over 2^63");
    tensor_refused(GgufEntry::new("t", 0, &[u64::MAX, 2], &[0; 4]), Code::Format, "over 2^63");
    // The product wraps to 4 in 64 bits.
    let wrapping = [211_106_198_978_564, 4_194_305, 4_194_305];
    tensor_refused(GgufEntry::new("t", 0, &wrapping, &[0; 16]), Code::Format, "2^64 bytes");
    tensor_refused(GgufEntry::new("t", 28, &[1 << 61], &[0; 16]), Code::Format, "2^64 bytes");
    for row in [1, 31, 33] {
        tensor_refused(
            GgufEntry::new("t", 2, &[row, 32], &[0; 18]),
            Code::Format,
            "not a multiple of the 32",
        );
    }
    tensor_refused(
        GgufEntry::new("t", 12, &[128, 2], &[0; 144]),
        Code::Format,
        "not a multiple of the 256",
    );
}

#[test]
fn removed_and_unknown_types_are_distinguished() {
    for (number, name) in [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (31, "Q4_0_4_4"),
        (33, "Q4_0_8_8"),
        (36, "IQ4_NL_4_4"),
        (38, "IQ4_NL_8_8"),
    ] {
        let entry = GgufEntry::new("t", number, &[32], &[0; 32]);
        tensor_refused(entry, Code::Version, &format!("type {number} ({name}) was removed"));
    }
    for number in [43, 255, 1 << 31, u32::MAX] {
        tensor_refused(
            GgufEntry::new("t", number, &[32], &[0; 32]),
            Code::Format,
            &format!("{number} is not the type"),
        );
    }
}

#[test]
fn tensors_outside_of_the_file_are_refused() {
    let at = |offset: u64| GgufEntry { offset: Some(offset), ..GgufEntry::i8("t", &[1, 2, 3]) };
    tensor_refused(at(1), Code::Format, "not a multiple of the alignment");
    tensor_refused(at(u64::MAX), Code::Format, "not a multiple of the alignment");
    for offset in [32, 1 << 62, u64::MAX - 31] {
        tensor_refused(at(offset), Code::Corrupt, "truncated");
    }
    let cut =
        GgufBuilder { pads_last: false, ..of_tensor(GgufEntry::new("t", 24, &[4], &[1, 2, 3])) };
    refused(&cut, Code::Corrupt, "truncated");
    // Two sizes that sum past 2^64.
    let half = GgufEntry::new("t", 24, &[(1 << 63) - 32], &[]);
    let other = GgufEntry { name: b"u".to_vec(), offset: Some((1 << 63) - 32), ..half.clone() };
    refused(&of_tensor(half).entry(other), Code::Corrupt, "truncated");
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let long = GgufEntry::new("a", 24, &[40], &[1; 40]);
    let within = GgufEntry { offset: Some(32), ..GgufEntry::i8("b", &[2]) };
    let error =
        refused(&of_tensor(long.clone()).entry(within), Code::Corrupt, "overlap the bytes of 'a'");
    assert_eq!(error.tensor(), Some("b"));
    let same = GgufEntry { name: b"b".to_vec(), offset: Some(0), ..long.clone() };
    refused(&of_tensor(long.clone()).entry(same), Code::Corrupt, "overlap");
    // An empty one takes no bytes, wherever it is.
    let empty = GgufEntry { offset: Some(0), ..GgufEntry::i8("b", &[]) };
    let reader = open(of_tensor(long).entry(empty).build()).expect("nothing is shared");
    assert_eq!(reader.tensors()[0].name, "b");
}

#[test]
fn names_and_keys_from_the_file_are_shown_escaped_and_short() {
    refused(&sound().pair("\u{1b}[31m", 99, b""), Code::Format, r"the key '\u{1b}[31m'");
    refused(&sound().pair(&"k".repeat(1 << 20), 99, b""), Code::Format, "99 is not the type");
    refused(
        &of_tensor(GgufEntry::new(&"\u{202e}".repeat(1 << 18), 99, &[1], &[1])),
        Code::Format,
        "99 is not the type",
    );
    let template = "{{ ''.__class__ }}\u{1b}]0;owned\u{7}";
    let reader =
        open(sound().text("tokenizer.chat_template", template).build()).expect("just text");
    assert_eq!(reader.metadata().text("tokenizer.chat_template"), Some(template));
}
