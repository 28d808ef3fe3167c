//! Key-value pairs as JSON, typed and without loss, as metadata carry them from format to format.
//!
//! ```text
//! {"key": "llama.context_length", "type": "u32", "value": 4096}
//! {"key": "tokenizer.ggml.scores", "type": "array", "items": "f32", "value": [0.0, -1.5, {"bits": "0x7fc00000"}]}
//! {"key": "nested", "type": "array", "items": "array", "value": [{"items": "i8", "value": [1, 2]}]}
//! ```
//!
//! A float that JSON has no number for is given by its bits.

use apr_core::{Error, Escaped, Metadata, Result, keys};
use serde_json::{Map, Number, Value as Json, json};

use crate::header::{MAX_DEPTH, duplicate};
use crate::value::{Array, KeyValue, Value};

/// The pairs that metadata hold under [`keys::GGUF`], in the order of the file; `None` where the key is absent.
///
/// ```
/// use apr_core::Metadata;
/// use apr_gguf::{KeyValue, key_values};
///
/// let json = br#"{"gguf": {"kv": [{"key": "general.architecture", "type": "string", "value": "llama"}]}}"#;
/// let pairs = key_values(&Metadata::parse(json)?)?;
/// assert_eq!(pairs, Some(vec![KeyValue::new("general.architecture", "llama")]));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for what is not of the form that readers give, an empty key, or a key that is there twice.
pub fn key_values(metadata: &Metadata) -> Result<Option<Vec<KeyValue>>> {
    let Some(json) = metadata.get(keys::GGUF) else { return Ok(None) };
    let pairs = json.get("kv").and_then(Json::as_array);
    let pairs = pairs.ok_or_else(|| Error::format("the metadata's 'gguf' has no list 'kv' of key-value pairs"))?;
    let pairs = pairs.iter().map(KeyValue::from_json).collect::<Result<Vec<_>>>()?;
    if let Some(key) = duplicate(pairs.iter().map(|pair| pair.key.as_str())) {
        let message = format!("the metadata's 'gguf' has the key '{}' twice", Escaped::short(key));
        return Err(Error::format(message));
    }
    Ok(Some(pairs))
}

impl KeyValue {
    /// `{"key", "type", "value"}`, for arrays with the type of their `items`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        self.clone().into_json()
    }

    pub(crate) fn into_json(self) -> Json {
        let mut pair = Map::new();
        pair.insert("type".into(), self.value.type_name().into());
        if let Value::Array(items) = &self.value {
            pair.insert("items".into(), items.type_name().into());
        }
        pair.insert("value".into(), self.value.into_json());
        pair.insert("key".into(), self.key.into());
        pair.into()
    }

    /// The pair that [`to_json`](Self::to_json) gave.
    ///
    /// # Errors
    /// E001 for what it can't have given.
    pub fn from_json(json: &Json) -> Result<Self> {
        let text = |name: &str| json.get(name).and_then(Json::as_str);
        let key = text("key").filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| Error::format("a key-value pair of the metadata's 'gguf' has no key"))?;
        let value = || {
            let value = json.get("value")?;
            match text("type")? {
                "array" => Array::from_json(text("items")?, value, 1).map(Value::Array),
                name => Value::from_json(name, value),
            }
        };
        let value = value().ok_or_else(|| {
            let message = "is not of the type that it is said to be";
            Error::format(format!("the metadata's 'gguf': the value of '{}' {message}", Escaped::short(key)))
        })?;
        Ok(Self::new(key, value))
    }
}

impl Value {
    fn into_json(self) -> Json {
        match self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::F32(value) => f32_to_json(value),
            Self::Bool(value) => value.into(),
            Self::String(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            Self::F64(value) => f64_to_json(value),
            Self::Array(items) => items.into_json(),
        }
    }

    fn from_json(type_name: &str, json: &Json) -> Option<Self> {
        Some(match type_name {
            "u8" => Self::U8(unsigned(json)?),
            "i8" => Self::I8(signed(json)?),
            "u16" => Self::U16(unsigned(json)?),
            "i16" => Self::I16(signed(json)?),
            "u32" => Self::U32(unsigned(json)?),
            "i32" => Self::I32(signed(json)?),
            "f32" => Self::F32(f32_from_json(json)?),
            "bool" => Self::Bool(json.as_bool()?),
            "string" => Self::String(json.as_str()?.to_owned()),
            "u64" => Self::U64(json.as_u64()?),
            "i64" => Self::I64(json.as_i64()?),
            "f64" => Self::F64(f64_from_json(json)?),
            _ => return None,
        })
    }
}

impl Array {
    fn into_json(self) -> Json {
        match self {
            Self::U8(items) => items.into(),
            Self::I8(items) => items.into(),
            Self::U16(items) => items.into(),
            Self::I16(items) => items.into(),
            Self::U32(items) => items.into(),
            Self::I32(items) => items.into(),
            Self::F32(items) => items.into_iter().map(f32_to_json).collect(),
            Self::Bool(items) => items.into(),
            Self::String(items) => items.into(),
            Self::U64(items) => items.into(),
            Self::I64(items) => items.into(),
            Self::F64(items) => items.into_iter().map(f64_to_json).collect(),
            Self::Array(items) => {
                let nested = |items: Self| json!({ "items": items.type_name(), "value": items.into_json() });
                items.into_iter().map(nested).collect()
            }
        }
    }

    fn from_json(items: &str, json: &Json, depth: usize) -> Option<Self> {
        if depth > MAX_DEPTH {
            return None;
        }
        let values = json.as_array()?;
        Some(match items {
            "u8" => Self::U8(all(values, unsigned)?),
            "i8" => Self::I8(all(values, signed)?),
            "u16" => Self::U16(all(values, unsigned)?),
            "i16" => Self::I16(all(values, signed)?),
            "u32" => Self::U32(all(values, unsigned)?),
            "i32" => Self::I32(all(values, signed)?),
            "f32" => Self::F32(all(values, f32_from_json)?),
            "bool" => Self::Bool(all(values, Json::as_bool)?),
            "string" => Self::String(all(values, |value| value.as_str().map(str::to_owned))?),
            "u64" => Self::U64(all(values, Json::as_u64)?),
            "i64" => Self::I64(all(values, Json::as_i64)?),
            "f64" => Self::F64(all(values, f64_from_json)?),
            "array" => Self::Array(all(values, |nested| {
                Self::from_json(nested.get("items")?.as_str()?, nested.get("value")?, depth + 1)
            })?),
            _ => return None,
        })
    }
}

fn all<T>(values: &[Json], from_json: impl Fn(&Json) -> Option<T>) -> Option<Vec<T>> {
    values.iter().map(from_json).collect()
}

fn unsigned<T: TryFrom<u64>>(json: &Json) -> Option<T> {
    json.as_u64()?.try_into().ok()
}

fn signed<T: TryFrom<i64>>(json: &Json) -> Option<T> {
    json.as_i64()?.try_into().ok()
}

fn f32_to_json(value: f32) -> Json {
    let number = Number::from_f64(value.into());
    number.map_or_else(|| json!({ "bits": format!("{:#010x}", value.to_bits()) }), Json::Number)
}

fn f64_to_json(value: f64) -> Json {
    let number = Number::from_f64(value);
    number.map_or_else(|| json!({ "bits": format!("{:#018x}", value.to_bits()) }), Json::Number)
}

fn f32_from_json(json: &Json) -> Option<f32> {
    if let Some(bits) = json.get("bits") {
        return u32::from_str_radix(bits.as_str()?.strip_prefix("0x")?, 16).ok().map(f32::from_bits);
    }
    #[allow(clippy::cast_possible_truncation, reason = "refused right after, where it changes the value")]
    let value = json.as_f64()? as f32;
    (Some(f64::from(value)) == json.as_f64()).then_some(value)
}

fn f64_from_json(json: &Json) -> Option<f64> {
    match json.get("bits") {
        Some(bits) => u64::from_str_radix(bits.as_str()?.strip_prefix("0x")?, 16).ok().map(f64::from_bits),
        None => json.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Equal to the last bit, NaN and the sign of zero included.
    fn same(left: &KeyValue, right: &KeyValue) -> bool {
        format!("{left:?}") == format!("{right:?}") && left.to_json() == right.to_json()
    }

    fn survives(pair: &KeyValue) -> bool {
        let text = serde_json::to_string(&pair.to_json()).expect("JSON");
        let json: Json = serde_json::from_str(&text).expect("JSON");
        same(&KeyValue::from_json(&json).expect("the form that was given"), pair)
    }

    #[test]
    fn special_floats_survive_bit_by_bit() {
        let bits = [0, 1, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xffc0_1234, 0x7f80_0001, 0x7f7f_ffff];
        for bits in bits {
            let json = f32_to_json(f32::from_bits(bits)).to_string();
            let back = f32_from_json(&serde_json::from_str(&json).expect("JSON")).expect("a float");
            assert_eq!(back.to_bits(), bits, "{json}");
            let bits = u64::from(bits) << 32 | 7;
            let json = f64_to_json(f64::from_bits(bits)).to_string();
            let back = f64_from_json(&serde_json::from_str(&json).expect("JSON")).expect("a float");
            assert_eq!(back.to_bits(), bits, "{json}");
        }
        assert_eq!(f32_to_json(f32::from_bits(0x7fc0_0000)), json!({"bits": "0x7fc00000"}));
    }

    #[test]
    fn nested_arrays_survive_and_deeper_ones_are_refused() {
        let mut array = Array::I8(vec![1, -2]);
        for _ in 1..MAX_DEPTH {
            array = Array::Array(vec![array, Array::String(Vec::new())]);
        }
        assert!(survives(&KeyValue::new("k", Value::Array(array.clone()))));
        let deeper = KeyValue::new("k", Value::Array(Array::Array(vec![array])));
        assert!(KeyValue::from_json(&deeper.to_json()).is_err());
    }

    #[test]
    fn what_no_reader_gives_is_refused() {
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
            assert!(key_values(&metadata).is_err());
        }
        let pair = KeyValue::new("k", 1_u8).to_json();
        let mut metadata = Metadata::new();
        metadata.set(keys::GGUF, json!({ "kv": [pair, pair] }));
        assert!(key_values(&metadata).is_err());
        assert_eq!(key_values(&Metadata::new()), Ok(None));
    }

    proptest! {
        #[test]
        fn every_value_survives(
            u in any::<u64>(), i in any::<i64>(), f in any::<u32>(), d in any::<u64>(), text in any::<String>(), b in any::<bool>(),
        ) {
            let (f, d) = (f32::from_bits(f), f64::from_bits(d));
            let bytes = u.to_le_bytes();
            for value in [
                Value::U64(u), Value::I64(i), Value::F32(f), Value::F64(d), Value::String(text.clone()), Value::Bool(b),
                Value::U8(bytes[0]), Value::I8(bytes[1].cast_signed()),
                Value::U16(u16::from_le_bytes([bytes[0], bytes[1]])), Value::I16(i16::from_le_bytes([bytes[2], bytes[3]])),
                Value::U32(f.to_bits()), Value::I32(f.to_bits().cast_signed()),
                vec![u, 0].into(), vec![i, 0].into(), vec![f, -0.0].into(), vec![d, -0.0].into(), vec![text].into(),
                vec![b, true].into(), bytes.to_vec().into(), Value::Array(Array::I8(vec![bytes[1].cast_signed()])),
            ] {
                prop_assert!(survives(&KeyValue::new("k", value)));
            }
        }
    }
}
