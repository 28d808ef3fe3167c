//! Files that are refused: with the right code, naming the place, without a panic.

use apr_core::{CheckpointReader, Code, DType, Error, Metadata};
use apr_safetensors::WriteOptions;

use crate::{
    assert_refused, contents, entry, file, official, open, ours, padded_file, tensor, write,
};

const F32: &str = r#""dtype":"F32","shape":[1],"data_offsets":[0,4]"#;

#[track_caller]
fn assert_header_refused(
    header: impl AsRef<[u8]>,
    data: &[u8],
    code: Code,
    expected: &str,
) -> Error {
    let file = file(header, data);
    assert_refused(open(file.clone()), code, expected);
    let error = assert_refused(open(file), code, "model.safetensors: ");
    assert_eq!(error.file(), Some("model.safetensors"));
    error
}

#[test]
fn impossible_header_lengths_are_refused() {
    let with_length = |length: u64| [&length.to_le_bytes()[..], b"{}      "].concat();
    assert_refused(open(with_length(0)), Code::Format, "length is 0 (at byte 0)");
    for length in [9, 1 << 31, (1 << 32) - 1, 1 << 63, u64::MAX] {
        assert_refused(
            open(with_length(length)),
            Code::Corrupt,
            "truncated to 16 bytes (at byte 0)",
        );
    }
    assert_refused(open(with_length(1)), Code::Format, "(at byte 8)");
    let no_length = "the header's length takes 8 bytes, but the file is truncated to";
    assert_refused(open(Vec::new()), Code::Corrupt, &format!("{no_length} 0 bytes (at byte 0)"));
    assert_refused(
        open(vec![2, 0, 0, 0, 0, 0, 0]),
        Code::Corrupt,
        &format!("{no_length} 7 bytes (at byte 0)"),
    );
    assert_refused(open(2_u64.to_le_bytes().to_vec()), Code::Corrupt, "the header takes 2 bytes");
}

#[test]
fn bytes_of_other_formats_are_identified() {
    for start in [
        &b"GGUF\x03\0\0\0\0\0\0\0"[..],
        b"PK\x03\x04\0\0\0\0\0\0",
        b"\x80\x02}q\x01(X\x04\0\0\0",
        b"#!/bin/sh\n\n",
    ] {
        assert_refused(open(start.to_vec()), Code::Format, "this is not safetensors");
    }
    assert_header_refused(" {}", b"", Code::Format, "does not start with '{' (at byte 8)");
    assert_header_refused("[]", b"", Code::Format, "does not start with '{'");
}

#[test]
fn the_length_and_the_brace_of_a_header_are_what_files_are_recognised_by() {
    let head = file("{}", b"");
    assert!((apr_safetensors::FORMAT.recognises)(&head));
    for (at, other) in [(4, 1), (7, 1), (8, b'[')] {
        let mut head = head.clone();
        head[at] = other;
        assert!(!(apr_safetensors::FORMAT.recognises)(&head), "byte {at}");
    }
    assert!(!(apr_safetensors::FORMAT.recognises)(&head[..8]));
}

#[test]
fn the_data_offset_is_known_and_there_are_no_companions() {
    let file = padded_file(&format!("{{{}}}", entry("a", "U8", "[1]", "[0,1]")), &[7]);
    let data_start = file.len() as u64 - 1;
    let reader = open(file).expect("a good file");
    let fields = reader.container().header_fields();
    assert_eq!(
        (fields["files"].as_u64(), fields["header_size"].as_u64()),
        (Some(1), Some(data_start)),
        "{fields}"
    );
    assert!(reader.companions().is_empty());
    assert_eq!(reader.read_companion(0).expect_err("there is none").code(), Code::Format);
}

#[test]
fn malformed_json_is_refused_at_its_byte() {
    assert_header_refused(
        "{",
        b"",
        Code::Format,
        "the header: EOF while parsing an object (at byte 8)",
    );
    assert_header_refused("{}x", b"", Code::Format, "trailing characters (at byte 10)");
    assert_header_refused("{} \0", b"", Code::Format, "(at byte 11)");
    assert_header_refused(b"{\"a\":\xff", b"", Code::Format, "");
    let error =
        assert_header_refused(b"{\"a\xff\":{}}", b"", Code::Format, "not UTF-8 (at byte 11)");
    assert_eq!(error.tensor(), None);
    assert_header_refused(r#"{"a\ud800":{}}"#, b"", Code::Format, "");
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    assert_header_refused(deep, b"", Code::Format, "tensor 'a'");
    let deep = format!("{{\"a\":{{\"dtype\":{}", "{\"\":".repeat(100_000));
    assert_header_refused(deep, b"", Code::Format, "tensor 'a'");
}

#[test]
fn names_that_occur_twice_are_refused() {
    let twice =
        format!("{{{},{}}}", entry("a", "U8", "[1]", "[0,1]"), entry("a", "U8", "[1]", "[1,2]"));
    assert_header_refused(
        twice,
        b"12",
        Code::Format,
        "tensor 'a': the header has two tensors of this name",
    );
    let escaped = format!(
        "{{{},{}}}",
        entry("a", "U8", "[1]", "[0,1]"),
        entry("\\u0061", "U8", "[1]", "[0,1]")
    );
    assert_header_refused(escaped, b"1", Code::Format, "tensor 'a'");
    assert_header_refused(
        r#"{"__metadata__":{},"__metadata__":{}}"#,
        b"",
        Code::Format,
        "the header has __metadata__ twice (at byte ",
    );
    assert_header_refused(
        r#"{"__metadata__":{"k":"1","k":"2"}}"#,
        b"",
        Code::Format,
        "the key 'k' twice",
    );
    assert_header_refused(
        format!(r#"{{"a":{{{F32},"dtype":"F32"}}}}"#),
        b"1234",
        Code::Format,
        "duplicate field",
    );
}

#[test]
fn empty_and_endless_names_are_refused() {
    assert_header_refused(
        format!("{{{}}}", entry("", "U8", "[1]", "[0,1]")),
        b"1",
        Code::Format,
        "an empty name",
    );
    let long = |len: usize| format!("{{{}}}", entry(&"n".repeat(len), "U8", "[1]", "[0,1]"));
    assert!(open(file(long(65_535), b"1")).is_ok());
    assert_header_refused(long(65_536), b"1", Code::Format, "65536 bytes long");
    assert_header_refused(long(1 << 20), b"1", Code::Format, "tensor 'nnn");
}

#[test]
fn entries_that_are_not_exactly_an_entry_are_refused() {
    let refuse = |entry: &str, expected: &str| {
        let error = assert_header_refused(
            format!(r#"{{"tête":{entry}}}"#),
            b"1234",
            Code::Format,
            expected,
        );
        assert_eq!(error.tensor(), Some("tête"), "{error}");
        assert!(error.offset().is_some(), "{error}");
    };
    refuse(&format!("{{{F32},\"x\":1}}"), "unknown field 'x'");
    refuse(&format!("{{{F32},\"{}\":1}}", "x".repeat(1 << 20)), "unknown field 'xxx");
    refuse(r#"{"shape":[1],"data_offsets":[0,4]}"#, "missing field 'dtype'");
    refuse(r#"{"dtype":"F32","data_offsets":[0,4]}"#, "missing field 'shape'");
    refuse(r#"{"dtype":"F32","shape":[1]}"#, "missing field 'data_offsets'");
    refuse(r#"["F32",[1],[0,4]]"#, "expected an object");
    refuse("null", "expected an object");
    refuse(r#"{"dtype":7,"shape":[1],"data_offsets":[0,4]}"#, "name of a dtype");
    refuse(r#"{"dtype":"F32","shape":1,"data_offsets":[0,4]}"#, "array of dimensions");
    for dim in ["-1", "1.0", "\"1\"", "18446744073709551616", "null"] {
        refuse(&format!(r#"{{"dtype":"F32","shape":[{dim}],"data_offsets":[0,4]}}"#), "");
        refuse(&format!(r#"{{"dtype":"F32","shape":[1],"data_offsets":[0,{dim}]}}"#), "");
    }
    for offsets in ["[]", "[0]", "[0,4,8]", "{}", "4"] {
        refuse(&format!(r#"{{"dtype":"F32","shape":[1],"data_offsets":{offsets}}}"#), "");
    }
    let dims = vec!["1"; 65].join(",");
    refuse(
        &format!(r#"{{"dtype":"F32","shape":[{dims}],"data_offsets":[0,4]}}"#),
        "more than 64 dimensions",
    );
}

#[test]
fn metadata_other_than_text_is_refused() {
    for metadata in
        [r#"{"k":{}}"#, r#"{"k":1}"#, r#"{"k":null}"#, "[]", "1", "\"x\"", r#"{"k":["v"]}"#]
    {
        let header = format!(r#"{{"__metadata__":{metadata},"a":{{{F32}}}}}"#);
        assert_header_refused(header, b"1234", Code::Format, "__metadata__: invalid type");
    }
}

#[test]
fn unknown_dtypes_are_reported_by_name() {
    for dtype in ["f32", "F4_E2M1", "Q4_0", "", "F128"] {
        let header = format!("{{{}}}", entry("w", dtype, "[1]", "[0,4]"));
        let expected = format!("tensor 'w': this build does not know the dtype '{dtype}'");
        assert!(
            assert_header_refused(header, b"1234", Code::Version, &expected).offset().is_some()
        );
    }
    let header = format!("{{{}}}", entry("w", &"X".repeat(1 << 20), "[1]", "[0,4]"));
    assert_header_refused(header, b"1234", Code::Version, "tensor 'w'");
}

#[test]
fn shapes_that_contradict_their_range_are_refused() {
    let refuse = |dtype: &str, shape: &str, offsets: &str, expected: &str| {
        let header = format!("{{{}}}", entry("w", dtype, shape, offsets));
        let error = assert_header_refused(header, b"1234", Code::Corrupt, expected);
        assert_eq!(error.tensor(), Some("w"));
    };
    refuse("F32", "[2]", "[0,4]", "takes 8 bytes, but data_offsets [0, 4] hold 4");
    refuse("F32", "[0]", "[0,4]", "takes 0 bytes");
    refuse("F32", "[4194305,4194305,211106198978564]", "[0,4]", "has no valid length in bytes");
    refuse("U8", "[9223372036854775808,2]", "[0,4]", "has no valid length in bytes");
    refuse("F64", "[2305843009213693952]", "[0,0]", "has no valid length in bytes");
    refuse("U8", "[18446744073709551615]", "[0,4]", "takes 18446744073709551615 bytes");
    refuse("F4", "[7]", "[0,4]", "has no valid length in bytes");
    refuse("F6_E2M3", "[5]", "[0,4]", "has no valid length in bytes");
}

#[test]
fn ranges_that_do_not_tile_the_data_are_refused() {
    let refuse = |entries: &[(&str, u64, u64)], code, tensor: &str, expected: &str| {
        let entries: Vec<_> = entries
            .iter()
            .map(|(name, begin, end)| {
                entry(
                    name,
                    "U8",
                    &format!("[{}]", end.wrapping_sub(*begin)),
                    &format!("[{begin},{end}]"),
                )
            })
            .collect();
        let header = format!("{{{}}}", entries.join(","));
        let start = 8 + header.len() as u64;
        let error = assert_header_refused(header, &[7; 8], code, expected);
        assert_eq!(error.tensor(), Some(tensor), "{error}");
        error.offset().map(|offset| offset.wrapping_sub(start))
    };
    let corrupt = Code::Corrupt;
    assert_eq!(
        refuse(&[("a", 4, 0), ("b", 0, 8)], Code::Format, "a", "[4, 0] end before they begin"),
        None
    );
    assert_eq!(refuse(&[("a", 0, 4), ("b", 5, 8)], corrupt, "b", "the 1 bytes before it"), Some(5));
    assert_eq!(refuse(&[("a", 1, 8)], corrupt, "a", "the 1 bytes before it"), Some(1));
    assert_eq!(
        refuse(&[("a", 0, 4), ("b", 3, 8)], corrupt, "b", "overlap the bytes of 'a'"),
        Some(3)
    );
    assert_eq!(
        refuse(&[("b", 0, 8), ("a", 0, 8)], corrupt, "a", "overlap the bytes of 'b'"),
        Some(0)
    );
    assert_eq!(
        refuse(&[("a", 0, 8), ("e", 3, 3)], corrupt, "e", "overlap the bytes of 'a'"),
        Some(3)
    );
    assert_eq!(refuse(&[("a", 0, 4), ("b", 4, 7)], corrupt, "b", "1 bytes after it"), Some(7));
    assert_eq!(refuse(&[("a", 0, 4), ("b", 4, 9)], corrupt, "b", "the file is truncated"), Some(4));
    assert_eq!(
        refuse(&[("a", 0, 8), ("b", 8, u64::MAX)], corrupt, "b", "the file is truncated"),
        Some(8)
    );
    assert!(refuse(&[("a", 0, 8), ("b", u64::MAX, u64::MAX)], corrupt, "b", "truncated").is_some());
    assert_eq!(refuse(&[("a", 0, 8), ("e", 9, 9)], corrupt, "e", "truncated"), Some(9));

    let error = assert_header_refused("{}", b"hidden", corrupt, "no tensor, but 6 bytes follow");
    assert_eq!(error.offset(), Some(10));
}

#[test]
fn reads_past_a_tensor_are_refused() {
    let header =
        format!("{{{},{}}}", entry("a", "U8", "[4]", "[0,4]"), entry("b", "U8", "[4]", "[4,8]"));
    let reader = open(file(header, b"12345678")).expect("a valid file");
    for (offset, len) in [(0, 5), (4, 1), (5, 0), (u64::MAX, 1), (1 << 63, 0)] {
        assert_refused(
            reader.read_tensor(0, offset, &mut vec![0; len]),
            Code::Corrupt,
            "tensor 'a'",
        );
    }
    let mut end = [0; 3];
    assert_eq!(reader.read_tensor(1, 1, &mut end), Ok(()));
    assert_eq!(&end, b"678");
    assert_eq!(reader.read_tensor(1, 4, &mut []), Ok(()));
}

/// Returns a file with several dtypes, an empty tensor, metadata out of order, and escapes.
fn small() -> Vec<u8> {
    let mut metadata = Metadata::new();
    let text = serde_json::json!({
        "metadata": {"format": "pt", "a": "\"\n"}, "metadata_order": ["format", "a"],
    });
    metadata.set("safetensors", text);
    let tensors = [
        (tensor("w", DType::F32, &[2, 2]), (0..16).collect()),
        (tensor("none", DType::F16, &[3, 0]), Vec::new()),
        (tensor("\u{1b}ü\\", DType::F4_E2M1, &[4]), vec![16, 17]),
        (tensor("scalar", DType::BOOL, &[]), vec![1]),
    ];
    write(&tensors, &metadata, &WriteOptions::default())
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let whole = small();
    assert!(open(whole.clone()).is_ok());
    for len in 0..whole.len() {
        assert_refused(open(whole[..len].to_vec()), Code::Corrupt, "truncated");
    }
    for rest in [&[0][..], &[0; 8]] {
        assert_refused(open([&whole, rest].concat()), Code::Corrupt, "tensor 'scalar'");
    }
}

/// Tries every value of every byte, which includes every flipped bit.
#[test]
fn a_header_changed_anywhere_is_an_error_or_what_the_reference_reads() {
    let whole = small();
    let header_end = whole.len() - 19;
    let (mut read, mut refused) = (0, 0);
    for at in 0..header_end {
        for value in 0..=u8::MAX {
            let mut changed = whole.clone();
            changed[at] = value;
            match open(changed.clone()) {
                Ok(reader) => {
                    read += 1;
                    let official = official(&changed).expect("we are stricter than the reference");
                    assert_eq!(ours(&reader), official, "byte {at} set to {value}");
                }
                Err(error) => {
                    refused += 1;
                    assert!(
                        matches!(error.code(), Code::Format | Code::Corrupt | Code::Version),
                        "{error}"
                    );
                }
            }
        }
    }
    assert!(read > 1000 && refused > 10_000, "{read} read, {refused} refused");
}

#[test]
fn names_that_steer_terminals_stay_in_their_place() {
    let names = [
        "\u{1b}[31mred\u{1b}[0m",
        "two\nlines\r",
        "nul\0",
        "\u{202e}gnp.exe",
        "<b>&",
        "../../etc",
        "\u{200b}",
        "\u{feff}",
    ];
    let tensors: Vec<_> =
        names.iter().zip(0..).map(|(name, i)| (tensor(name, DType::U8, &[1]), vec![i])).collect();
    let bytes = write(&tensors, &Metadata::new(), &WriteOptions::default());
    let reader = open(bytes.clone()).expect("odd names are names");
    assert_eq!(contents(&reader), tensors);
    assert_eq!(Some(ours(&reader)), official(&bytes).ok());
    for (i, name) in names.iter().enumerate() {
        let error = assert_refused(reader.read_tensor(i, 9, &mut [0]), Code::Corrupt, "tensor '");
        assert_eq!(error.tensor(), Some(*name));
        let message = error.to_string();
        assert!(!message.contains(['\u{202e}', '\u{200b}', '\u{feff}', '\u{1b}']), "{message}");
    }
}
