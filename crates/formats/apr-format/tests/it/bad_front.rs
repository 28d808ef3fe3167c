//! Headers and metadata that are wrong or odd.

use crate::support::{open, refused, sound};
use apr_core::{CheckpointReader, Limits};
use apr_format::apr2;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::{SparseSource, corrupt, peak_memory};

/// Builder, expected error code of its file, offset of the error, and a part of the message.
type Case = (Apr2Builder, &'static str, u64, &'static str);

fn assert_refused(cases: impl IntoIterator<Item = Case>) {
    for (builder, code, offset, message) in cases {
        let error = refused(builder.build());
        assert_eq!((error.code().id(), error.offset()), (code, Some(offset)), "{message}: {error}");
        assert!(error.message().contains(message), "{message}: {error}");
    }
}

#[test]
fn versions_and_encodings_of_others_are_e003() {
    assert_refused([
        (Apr2Builder { version: (3, 0), ..sound() }, "E003", 4, "version 3.0"),
        (Apr2Builder { version: (0, 2), ..sound() }, "E003", 4, "version 0.2"),
        (Apr2Builder { version: (u16::MAX, 0), ..sound() }, "E003", 4, "version 65535.0"),
    ]);
    assert_eq!(open(Apr2Builder { version: (2, 9), ..sound() }.build()).header().version_minor, 9);
}

#[test]
fn other_files_are_e001() {
    for file in [
        &b""[..],
        b"A",
        b"APR",
        b"APR1",
        b"GGUF\x03\0\0\0",
        b"APR2",
        b"APR2\x02\0",
        &[0; 64],
        &[0xff; 64],
    ] {
        let code = if file.starts_with(b"APR2") { "E002" } else { "E001" };
        assert_eq!(refused(file.to_vec()).code().id(), code, "{file:?}");
    }
    let reversed = corrupt::overwrite(&sound().build(), 0, b"2RPA");
    assert_eq!(refused(reversed).code().id(), "E001");
}

#[test]
fn a_header_of_the_other_byte_order_is_reported() {
    let mut file = sound().build();
    file[4..8].chunks_exact_mut(2).for_each(<[u8]>::reverse);
    file[8..32].chunks_exact_mut(4).for_each(<[u8]>::reverse);
    let error = refused(file);
    assert_eq!((error.code().id(), error.offset()), ("E001", Some(4)));
    assert!(error.message().contains("big-endian"), "{error}");
}

#[test]
fn sections_that_overlap_or_leave_the_file_are_refused() {
    let metadata_end = 32 + u32::try_from(sound().metadata.len()).expect("small");
    assert_refused([
        (Apr2Builder { metadata_offset: Some(31), ..sound() }, "E001", 12, "byte 32, not at 31"),
        (Apr2Builder { metadata_offset: Some(64), ..sound() }, "E001", 12, "byte 32, not at 64"),
        (Apr2Builder { metadata_offset: Some(u32::MAX), ..sound() }, "E001", 12, "byte 32"),
        (Apr2Builder { metadata_size: Some(u32::MAX), ..sound() }, "E002", 12, "truncated"),
        (
            Apr2Builder { metadata_size: Some(metadata_end), ..sound() },
            "E002",
            20,
            "tensor index starts",
        ),
        (Apr2Builder { index_offset: Some(0), ..sound() }, "E002", 20, "tensor index starts"),
        (
            Apr2Builder { index_offset: Some(metadata_end - 1), ..sound() },
            "E002",
            20,
            "tensor index starts",
        ),
        (Apr2Builder { index_offset: Some(u32::MAX), ..sound() }, "E002", 20, "truncated"),
        (Apr2Builder { index_size: Some(u32::MAX), ..sound() }, "E002", 20, "truncated"),
        (Apr2Builder { index_size: Some(1000), ..sound() }, "E002", 20, "truncated"),
        (Apr2Builder { data_offset: Some(0), ..sound() }, "E002", 28, "data section starts"),
        (Apr2Builder { data_offset: Some(u32::MAX), ..sound() }, "E002", 28, "truncated"),
        (Apr2Builder { data_offset: Some(64), ..sound() }, "E002", 28, "data section starts"),
    ]);
}

#[test]
fn a_data_offset_that_leads_elsewhere_misses_the_trailer() {
    let start = sound().data_start();
    let error = refused(Apr2Builder { data_offset: Some(start + 64), ..sound() }.build());
    assert_eq!(error.code().id(), "E002", "{error}");
    // One byte put in before the data moves the trailer; the header's fields still say where it
    // was.
    let file = sound().build();
    let error = refused(corrupt::insert(&file, start as usize, &[0]));
    assert_eq!(error.code().id(), "E002", "{error}");
}

#[test]
fn metadata_that_is_not_a_json_object_is_e001() {
    let deep = "[".repeat(10_000);
    let cases = [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (r#"{"a":1,}"#, "not valid JSON"),
        (r#"{"a":1} x"#, "not valid JSON"),
        (r#"{"a":"\ud800"}"#, "not valid JSON"),
        ("[]", "not an object"),
        ("null", "not an object"),
        (&deep, "not valid JSON"),
        (&format!(r#"{{"a":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000)), "not valid JSON"),
        (r#"{"files":{"a":7}}"#, "neither text nor in a tensor"),
        (r#"{"files":{"a":{"file":"b"}}}"#, "neither text nor in a tensor"),
    ];
    for (json, message) in cases {
        assert_refused([(sound().metadata(json), "E001", 32, message)]);
    }
    assert_refused([(sound().metadata(*b"{\"a\":\"\xff\"}"), "E001", 32, "not valid JSON")]);
}

#[test]
fn companions_in_tensors_that_do_not_fit_are_corrupt() {
    let cases = [
        (r#"{"files":{"a":{"tensor":"absent"}}}"#, "absent", "no U8 tensor"),
        (r#"{"files":{"a":{"tensor":"b.weight"}}}"#, "b.weight", "no U8 tensor"),
        (r#"{"files":{"a":{"tensor":"bytes"},"b":{"tensor":"bytes"}}}"#, "bytes", "two companions"),
    ];
    for (json, tensor, message) in cases {
        let error =
            refused(sound().entry(Apr2Entry::of_bytes("bytes", &[1, 2])).metadata(json).build());
        assert_eq!((error.code().id(), error.tensor()), ("E002", Some(tensor)), "{error}");
        assert!(error.message().contains(message), "{error}");
    }
}

#[test]
fn sections_over_the_limits_are_e008_before_they_are_read() {
    let cases = [
        (
            Apr2Builder {
                metadata_size: Some(200 << 20),
                index_offset: Some(300 << 20),
                ..sound()
            },
            16,
        ),
        (Apr2Builder { index_size: Some(300 << 20), ..sound() }, 24),
    ];
    for (mut builder, offset) in cases {
        builder.data_offset = Some(1 << 30);
        let source = SparseSource::new(builder.build(), 2 << 30);
        let (opened, peak) =
            peak_memory(|| apr2::open(source, "model.apr", &Limits::default()).map(drop));
        let error = opened.expect_err("over the limit");
        assert_eq!((error.code().id(), error.offset()), ("E008", Some(offset)), "{error}");
        assert!(peak < 10_000, "{peak} bytes");
    }
    let mut limits = Limits::default();
    limits.max_metadata = 10;
    let error =
        apr2::open(sound().build(), "model.apr", &limits).map(drop).expect_err("over the limit");
    assert_eq!(error.code().id(), "E008");
}

#[test]
fn oddities_warn_and_the_file_opens() {
    let cases = [
        (Apr2Builder { flags: 1 << 20 | 2, ..sound() }, "unknown flags set (0x100000)"),
        (Apr2Builder { flags: 0b110, ..sound() }, "both 64- and 32-byte"),
        (Apr2Builder { index_reserved: 7, ..sound() }, "reserved word"),
        (sound().metadata(r#"{"model_type":"x"}"#), "apr_version, architecture"),
        (Apr2Builder { tail: b"junk".to_vec(), ..sound() }, "4 bytes follow the footer"),
    ];
    for (builder, message) in cases {
        let reader = open(builder.build());
        assert_eq!(reader.warnings().len(), 1, "{:?}", reader.warnings());
        assert!(reader.warnings()[0].contains(message), "{:?}", reader.warnings());
        apr_testkit::read_everything(&reader).expect("readable anyway");
    }
    let neither = open(Apr2Builder { flags: 0, ..sound() }.build());
    assert_eq!(neither.header().flags.alignment(), 64);
    assert_eq!(neither.warnings(), [""; 0]);
}
