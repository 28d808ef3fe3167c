//! Key-value pairs as JSON, typed and without loss, as metadata carry them from format to format.
//!
//! ```text
//! {"key": "llama.context_length", "type": "u32", "value": 4096}
//! {"key": "tokenizer.ggml.scores", "type": "array", "items": "f32",
//!  "value": [0.0, -1.5, {"bits": "0x7fc00000"}]}
//! {"key": "nested", "type": "array", "items": "array",
//!  "value": [{"items": "i8", "value": [1, 2]}]}
//! ```
//!
//! A float that JSON has no number for is given by its bits.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Map, Value as Json, json};

use super::floats::{f32_from_json, f32_to_json, f64_from_json, f64_to_json};
use super::{Array, FIELD, KeyValue, KeyValues, KeyValuesBuilder, MAX_DEPTH, Value, wire};
use crate::{Error, Escaped, Result};

/// Moves the pairs out of their entry if they have the form of [`KeyValue::to_json`].
pub(crate) fn pack(entry: &mut Map<String, Json>) -> Option<KeyValues> {
    let list = entry.get(FIELD)?.as_array()?;
    let pair = |json: &Json| KeyValue::from_json(json).ok().filter(|pair| pair.to_json() == *json);
    let pairs = packed(list.iter().map(pair)).and_then(Result::ok)?;
    entry.shift_remove(FIELD);
    Some(pairs)
}

/// The pairs of an entry.
///
/// # Errors
/// E001 for what is not of the form that [`KeyValue::to_json`] gives, an empty key, or a key that
/// appears twice.
pub(crate) fn pairs_of(entry: &Json) -> Result<KeyValues> {
    let list = entry.get(FIELD).and_then(Json::as_array);
    let list = list.ok_or_else(|| {
        Error::format("the metadata's 'gguf' has no list 'kv' of key-value pairs")
    })?;
    let pairs = list.iter().map(KeyValue::from_json).collect::<Result<Vec<_>>>()?;
    packed(pairs.into_iter().map(Some)).unwrap_or_else(|| Ok(KeyValues::new()))
}

fn packed(pairs: impl Iterator<Item = Option<KeyValue>>) -> Option<Result<KeyValues>> {
    let mut builder = KeyValuesBuilder::default();
    for pair in pairs {
        let pair = pair?;
        builder.begin(&pair.key).ok()?;
        wire::put_value(builder.bytes(), &pair.value);
    }
    Some(builder.finish())
}

impl KeyValue {
    /// `{"key", "type", "value"}`, for arrays with the type of their `items`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        self.clone().into_json()
    }

    fn into_json(self) -> Json {
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
        let key = key
            .ok_or_else(|| Error::format("a key-value pair of the metadata's 'gguf' has no key"))?;
        let value = || {
            let value = json.get("value")?;
            match text("type")? {
                "array" => Array::from_json(text("items")?, value, 1).map(Value::Array),
                name => Value::from_json(name, value),
            }
        };

        let value = value().ok_or_else(|| {
            let message = "does not match its declared type";
            Error::format(format!(
                "the metadata's 'gguf': the value of '{}' {message}",
                Escaped::short(key)
            ))
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
                let nested =
                    |items: Self| json!({ "items": items.type_name(), "value": items.into_json() });
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
