//! Key-value pairs as JSON, alone and among metadata.

use apr_core::{Array, KeyValue, Metadata, Value, keys};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// Arrays within each other that are read at most.
const DEEPEST: usize = 4;

/// Returns `true` if both are equal to the last bit, including NaN and the sign of zero.
fn same(left: &KeyValue, right: &KeyValue) -> bool {
    format!("{left:?}") == format!("{right:?}") && left.to_json() == right.to_json()
}

/// Returns `true` if a pair round-trips through JSON, on its own and among the metadata that hold
/// it packed.
fn survives(pair: &KeyValue) -> bool {
    let text = serde_json::to_string(&pair.to_json()).expect("JSON");
    let json: Json = serde_json::from_str(&text).expect("JSON");
    let alone = same(&KeyValue::from_json(&json).expect("the form that was given"), pair);

    let mut metadata = Metadata::new();
    metadata.set(keys::GGUF, json!({ "version": 3 }));
    metadata.set_key_values([pair.clone()].into_iter().collect());
    let written = metadata.to_json();
    let mut pieces = Vec::new();
    let taken = metadata.write_json(&mut |piece| {
        pieces.extend_from_slice(piece);
        Ok(())
    });
    assert!(taken.is_ok() && pieces == written);
    let general: Json = serde_json::from_slice(&written).expect("JSON");
    assert_eq!(general, json!({ "gguf": { "kv": [json], "version": 3 } }));
    let read = Metadata::parse(&written).expect("metadata");
    let pairs = read.key_values().expect("pairs").expect("there").to_vec();
    alone && read == metadata && pairs.len() == 1 && same(&pairs[0], pair)
}

#[test]
fn special_floats_survive_bit_by_bit() {
    let bits = [
        0,
        1,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_1234,
        0x7f80_0001,
        0x7f7f_ffff,
    ];
    for bits in bits {
        let (single, double) = (f32::from_bits(bits), f64::from_bits(u64::from(bits) << 32 | 7));
        assert!(survives(&KeyValue::new("k", single)), "{bits:#x}");
        assert!(survives(&KeyValue::new("k", double)), "{bits:#x}");
        assert!(survives(&KeyValue::new("k", vec![single, single])), "{bits:#x}");
    }
    let nan = KeyValue::new("k", f32::from_bits(0x7fc0_0000));
    assert_eq!(nan.to_json()["value"], json!({"bits": "0x7fc00000"}));
}

#[test]
fn nested_arrays_survive_and_deeper_ones_are_refused() {
    let mut array = Array::I8(vec![1, -2]);
    for _ in 1..DEEPEST {
        array = Array::Array(vec![array, Array::String(Vec::new())]);
    }
    assert!(survives(&KeyValue::new("k", Value::Array(array.clone()))));
    let deeper = KeyValue::new("k", Value::Array(Array::Array(vec![array])));
    assert!(KeyValue::from_json(&deeper.to_json()).is_err());
}

#[test]
fn values_that_no_reader_produces_are_rejected() {
    for json in [
        json!(null),
        json!([]),
        json!({"type": "u8", "value": 1}),
        json!({"key": "", "type": "u8", "value": 1}),
        json!({"key": "k", "type": "u8", "value": 256}),
        json!({"key": "k", "type": "u8", "value": -1}),
        json!({"key": "k", "type": "i8", "value": 1.0}),
        json!({"key": "k", "type": "bool", "value": 1}),
        json!({"key": "k", "type": "f32", "value": 0.1}),
        json!({"key": "k", "type": "f32", "value": {"bits": "7fc00000"}}),
        json!({"key": "k", "type": "f32", "value": 1e300}),
        json!({"key": "k", "type": "x", "value": 1}),
        json!({"key": "k", "type": "array", "value": [1]}),
        json!({"key": "k", "type": "array", "items": "u8", "value": [1, "2"]}),
        json!({"key": "k", "type": "array", "items": "array", "value": [[1]]}),
    ] {
        assert!(KeyValue::from_json(&json).is_err(), "{json}");
    }
    for gguf in [json!(null), json!({}), json!({"kv": {}}), json!({"kv": [1]})] {
        let mut metadata = Metadata::new();
        metadata.set(keys::GGUF, gguf);
        assert!(metadata.key_values().is_err());
    }
    let pair = KeyValue::new("k", 1_u8).to_json();
    let mut metadata = Metadata::new();
    metadata.set(keys::GGUF, json!({ "kv": [pair, pair] }));
    assert!(metadata.key_values().is_err());
    assert_eq!(Metadata::new().key_values(), Ok(None));
}

proptest! {
    #[test]
    fn every_value_survives(
        u in any::<u64>(), i in any::<i64>(), f in any::<u32>(), d in any::<u64>(),
        text in any::<String>(), b in any::<bool>(),
    ) {
        let (f, d) = (f32::from_bits(f), f64::from_bits(d));
        let bytes = u.to_le_bytes();
        for value in [
            Value::U64(u), Value::I64(i), Value::F32(f), Value::F64(d),
            Value::String(text.clone()), Value::Bool(b),
            Value::U8(bytes[0]), Value::I8(bytes[1].cast_signed()),
            Value::U16(u16::from_le_bytes([bytes[0], bytes[1]])),
            Value::I16(i16::from_le_bytes([bytes[2], bytes[3]])),
            Value::U32(f.to_bits()), Value::I32(f.to_bits().cast_signed()),
            vec![u, 0].into(), vec![i, 0].into(), vec![f, -0.0].into(), vec![d, -0.0].into(),
            vec![text].into(), vec![b, true].into(), bytes.to_vec().into(),
            Value::Array(Array::I8(vec![bytes[1].cast_signed()])),
        ] {
            prop_assert!(survives(&KeyValue::new("k", value)));
        }
    }
}

#[test]
fn pairs_in_another_form_are_kept_and_rejected_only_when_used() {
    for gguf in [
        r#"{"kv":[{"key":"k","type":"u8","value":256}]}"#,
        r#"{"kv":[{"key":"k","more":1,"type":"u8","value":1}]}"#,
        r#"{"kv":{}}"#,
        "7",
    ] {
        let text = format!(r#"{{"gguf":{gguf},"x":1}}"#);
        let metadata = Metadata::parse(text.as_bytes()).expect("metadata");
        assert_eq!(String::from_utf8(metadata.to_json()).expect("UTF-8"), text);
        assert_eq!(metadata.key_values().is_ok(), gguf.contains("more"), "{gguf}");
    }
    // In another order of fields they are the same pairs.
    let text = br#"{"gguf":{"kv":[{"value":1,"type":"u8","key":"k"}]}}"#;
    let pairs =
        Metadata::parse(text).expect("metadata").key_values().expect("pairs").expect("there");
    assert_eq!(pairs.to_vec(), [KeyValue::new("k", 1_u8)]);
}

#[test]
fn pairs_are_found_replaced_and_taken_out() {
    let pair = |key: &str, value: u32| KeyValue::new(key, value);
    let mut metadata = Metadata::new();
    metadata.set_key_values([pair("b", 1), pair("a", 2), pair("c", 3)].into_iter().collect());
    let mut pairs = (*metadata.key_values().expect("pairs").expect("there")).clone();
    pairs.set(&KeyValue::new("a", "longer than before")).expect("small");
    pairs.push(&pair("b", 4)).expect("small");
    let expected = [KeyValue::new("a", "longer than before"), pair("c", 3), pair("b", 4)];
    assert_eq!(pairs.to_vec(), expected);
    for there in &expected {
        assert_eq!(pairs.get(&there.key).as_ref(), Some(&there.value));
    }
    assert_eq!(
        (pairs.text("a"), pairs.text("b"), pairs.get("d")),
        (Some("longer than before"), None, None)
    );
    pairs.retain(|key| key != "c");
    assert_eq!((pairs.len(), pairs.find("c").is_none()), (2, true));
    // What is taken out is all of it.
    let taken = metadata.remove(keys::GGUF).expect("there");
    assert_eq!(taken["kv"].as_array().map(Vec::len), Some(3));
    assert_eq!(metadata.key_values(), Ok(None));
    metadata.set("original", taken);
    assert_eq!(metadata.key_values(), Ok(None));
}
