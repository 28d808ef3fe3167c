//! What sound files hold.

use apr_core::{CheckpointReader, DType, Shape, keys};
use apr_gguf::{Array, KeyValue, Value};
use apr_testkit::CountingSource;
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use serde_json::json;

use crate::{contents, open, pairs};

fn of_every_type(version: u32) -> GgufBuilder {
    GgufBuilder::new()
        .version(version)
        .pair("u8", 0, &[200])
        .pair("i8", 1, &[200])
        .u16("u16", 50_000)
        .pair("i16", 3, &50_000_u16.to_le_bytes())
        .u32("u32", u32::MAX)
        .i32("i32", -5)
        .pair("f32", 6, &f32::MIN_POSITIVE.to_le_bytes())
        .pair("bool", 7, &[1])
        .text("text", "größe")
        .pair("u64", 10, &u64::MAX.to_le_bytes())
        .pair("i64", 11, &i64::MIN.to_le_bytes())
        .pair("f64", 12, &(-0.0_f64).to_le_bytes())
        .array("bools", 7, 2, &[1, 0])
        .array("shorts", 3, 2, &[1, 0, 255, 255])
        .texts("texts", &["", "a", "b\0c"])
        .array("none", 8, 0, b"")
}

fn every_value() -> Vec<KeyValue> {
    vec![
        KeyValue::new("u8", 200_u8),
        KeyValue::new("i8", -56_i8),
        KeyValue::new("u16", 50_000_u16),
        KeyValue::new("i16", -15_536_i16),
        KeyValue::new("u32", u32::MAX),
        KeyValue::new("i32", -5_i32),
        KeyValue::new("f32", f32::MIN_POSITIVE),
        KeyValue::new("bool", true),
        KeyValue::new("text", "größe"),
        KeyValue::new("u64", u64::MAX),
        KeyValue::new("i64", i64::MIN),
        KeyValue::new("f64", -0.0),
        KeyValue::new("bools", vec![true, false]),
        KeyValue::new("shorts", vec![1_i16, -1]),
        KeyValue::new("texts", ["", "a", "b\0c"].map(str::to_owned).to_vec()),
        KeyValue::new("none", Vec::<String>::new()),
    ]
}

#[test]
fn every_type_of_value_is_read_in_every_version() {
    for version in 1..=3 {
        let reader = open(of_every_type(version).build()).expect("a sound file");
        assert_eq!(pairs(&reader), every_value());
        let header = reader.metadata().object(keys::GGUF).expect("an object");
        assert_eq!(header["version"], version);
        assert_eq!(header["endian"], "little");
        assert!(!header.contains_key("alignment"), "none is stated");
        assert_eq!(reader.container().header_fields()["key_values"], 16);
    }
}

#[test]
fn nested_arrays_are_read() {
    let array = |kind: u32, count: u64, items: &[u8]| {
        [&kind.to_le_bytes()[..], &count.to_le_bytes(), items].concat()
    };
    let items = [array(0, 1, &[7]), array(9, 1, &array(1, 2, &[1, 255]))].concat();
    let reader = open(GgufBuilder::new().array("k", 9, 2, &items).build()).expect("a sound file");
    let expected =
        Array::Array(vec![Array::U8(vec![7]), Array::Array(vec![Array::I8(vec![1, -1])])]);
    assert_eq!(pairs(&reader), [KeyValue::new("k", Value::Array(expected))]);
}

#[test]
fn tensors_have_their_outermost_dimension_first() {
    let file = GgufBuilder::new()
        .u32("general.alignment", 64)
        .entry(GgufEntry::new("a", 0, &[2, 3], &[1; 24]))
        .entry(GgufEntry::new("q", 2, &[64, 1, 2], &[2; 72]))
        .entry(GgufEntry::new("scalar", 28, &[], &[3; 8]))
        .entry(GgufEntry::new("empty", 26, &[4, 0], &[]));
    let reader = open(GgufBuilder { alignment: 64, ..file }.build()).expect("a sound file");
    assert_eq!(reader.format(), &apr_gguf::FORMAT);
    let found: Vec<_> = contents(&reader)
        .into_iter()
        .map(|(it, bytes)| (it.name, it.dtype, it.shape, bytes))
        .collect();
    let expected = [
        ("a".to_owned(), DType::F32, Shape::from([3, 2]), vec![1; 24]),
        ("q".to_owned(), DType::Q4_0, Shape::from([2, 1, 64]), vec![2; 72]),
        ("scalar".to_owned(), DType::F64, Shape::from([]), vec![3; 8]),
        ("empty".to_owned(), DType::I32, Shape::from([0, 4]), vec![]),
    ];
    assert_eq!(found, expected);
    assert_eq!(reader.metadata().object(keys::GGUF).expect("an object")["alignment"], 64);
    assert!(reader.read_tensor(0, 20, &mut [0; 5]).is_err());
    assert!(reader.read_tensor(0, u64::MAX, &mut [0; 5]).is_err());
}

#[test]
fn only_the_header_is_read_at_first() {
    let file = GgufBuilder::new().entry(GgufEntry::i8("a", &vec![1; 4 << 20])).build();
    let source = CountingSource::new(file);
    apr_gguf::open(source.clone(), "", &apr_core::Limits::default()).expect("a sound file");
    assert!(source.bytes_read() <= 1 << 18, "{} bytes", source.bytes_read());
}

#[test]
fn a_text_longer_than_any_buffer_is_read() {
    let text = "é".repeat(1 << 19);
    let reader = open(GgufBuilder::new().text("a", "b").text("long", &text).text("c", "d").build())
        .expect("a sound file");
    assert_eq!(
        pairs(&reader),
        [("a", "b"), ("long", text.as_str()), ("c", "d")].map(|(k, v)| KeyValue::new(k, v))
    );
}

#[track_caller]
fn assert_warned(builder: &GgufBuilder, expected: &str) {
    let builder = builder.clone().text("general.architecture", "llama");
    let reader = open(builder.build()).expect("harmless");
    let [warning] = reader.warnings() else { panic!("{:?}", reader.warnings()) };
    assert!(warning.contains(expected) && warning.starts_with("model.gguf: "), "{warning}");
}

#[test]
fn unusual_but_harmless_files_have_warnings() {
    let two = || GgufBuilder::new().entry(GgufEntry::i8("a", &[1])).entry(GgufEntry::i8("b", &[2]));
    assert_warned(
        &GgufBuilder { tail: b"more".to_vec(), ..two() },
        "not read: 4 bytes after the data",
    );
    let long = "n".repeat(64);
    assert_warned(
        &two().entry(GgufEntry::i8(&long, &[3])),
        "tensor names of 64 bytes or more, which llama.cpp refuses: 'n",
    );
    let mut swapped = two();
    (swapped.entries[0].offset, swapped.entries[1].offset) = (Some(32), Some(0));
    assert_warned(&swapped, "not stored in the order of the header");
    let mut hole = two();
    hole.entries.remove(0);
    hole.entries[0].offset = Some(32);
    hole.entries[0].bytes = vec![0; 33];
    hole.entries[0].dims = vec![1];
    assert_warned(&hole, "32 bytes between tensors without an owner");
    let uneven = GgufBuilder::new().texts("tokenizer.ggml.tokens", &["a", "b"]).array(
        "tokenizer.ggml.scores",
        6,
        1,
        &[0; 4],
    );
    assert_warned(&uneven, "tokenizer.ggml.scores has 1 item for 2 tokens");

    let reader = open(two().build()).expect("a sound file");
    assert!(
        reader.warnings()[0].contains("missing general.architecture"),
        "{:?}",
        reader.warnings()
    );
    let matrix = open(two().text("general.type", "imatrix").build()).expect("a sound file");
    assert!(matrix.warnings().is_empty(), "{:?}", matrix.warnings());
}

#[test]
fn the_embedding_serves_as_output_if_there_is_none() {
    let model = GgufBuilder::new()
        .text("general.architecture", "llama")
        .entry(GgufEntry::i8("token_embd.weight", &[1]));
    let reader = open(model.build()).expect("a sound file");
    assert_eq!(
        reader.metadata().get(keys::ARCHITECTURE),
        Some(&json!({ "tie_word_embeddings": true }))
    );
    let reader =
        open(model.entry(GgufEntry::i8("output.weight", &[1])).build()).expect("a sound file");
    assert_eq!(reader.metadata().get(keys::ARCHITECTURE), None);
}
