//! Metadata of a checkpoint: one JSON object (`docs/format/apr2.md`, "Metadata").

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use crate::json;
use crate::json_pieces::JsonPieces;
use crate::key_values::{Entry, FIELD, Header, KeyValues, pack, pairs_of};
use crate::{Error, Result, Shape};

/// Keys this project reads and writes.
pub mod keys {
    /// Version of the container, required: `"2.0.0"`.
    pub const APR_VERSION: &str = "apr_version";
    /// Model family, required: `"whisper"`, `"llama"`.
    pub const MODEL_TYPE: &str = "model_type";
    /// Part of a larger model that the checkpoint is: `"images"` for the tower and the projector of
    /// a vision-language model, whose hyperparameters are those of the larger model.
    pub const PART: &str = "part";
    /// Hyperparameters, required, may be empty.
    pub const ARCHITECTURE: &str = "architecture";
    /// Origin of the checkpoint: `format`, `file`, `tool`.
    pub const SOURCE: &str = "source";
    /// Data that a conversion could not keep.
    pub const LOSS: &str = "loss";
    /// Errors in tensors that an import accepted anyway.
    pub const VIOLATIONS: &str = "violations";
    /// Quantization of the tensors.
    ///
    /// Its entries are `method`, `bits_per_weight`, `type`, `original_dtype`, `calibration_method`,
    /// `calibration_samples` and `degradation` (`docs/format/apr2.md`, "Metadata").
    pub const QUANTIZATION: &str = "quantization";
    /// Entry of [`QUANTIZATION`] with the quantization error, if it is more than 5 %.
    pub const DEGRADATION: &str = "degradation";
    /// Pruning of the checkpoint: method, share and scope, tensors, elements and zeros.
    pub const SPARSITY: &str = "sparsity";
    /// Factorization of weights: method, rank or energy, tensors, and the factorization error.
    pub const FACTORIZED: &str = "factorized";
    /// Integers that represent floats, `scale * (quant - zero_point)`.
    ///
    /// It contains for each tensor `scales`, `zero_points` (both names of tensors) and `axis` or
    /// `block_size`.
    pub const AFFINE: &str = "affine";
    /// Names of weights in codes and scales that differ from the names derived from their parts.
    ///
    /// It maps each derived name to the name of the weight.
    pub const CODED: &str = "coded";
    /// Names of tensors stored once and used twice: tensor to tensor.
    pub const TIED: &str = "tied";
    /// The mel filterbank that an import added: `{"tensor": NAME}`.
    pub const MEL_FILTERBANK: &str = "mel_filterbank";
    /// Shape of the filterbank: mels and frequencies.
    pub const MEL_FILTERBANK_SHAPE: &str = "mel_filterbank_shape";
    /// The tensor it is in.
    pub const MEL_FILTERBANK_TENSOR: &str = "audio.mel_filterbank";
    /// Companion files: maps names to texts, or to `{"tensor": NAME}` for files stored as tensors.
    pub const FILES: &str = "files";
    /// Name of the tensor that an encrypted file's other metadata are in.
    pub const HIDDEN_TENSOR: &str = "__metadata__";
    /// Data of a safetensors header: `metadata` is its `__metadata__`.
    pub const SAFETENSORS: &str = "safetensors";
    /// Data of a GGUF header: `version`, `alignment`, `endian`, and all key-value pairs as `kv`.
    ///
    /// The pairs are typed and in order.
    pub const GGUF: &str = "gguf";
    /// Data of an APRN file besides its payload: header fields, metadata, values that are not
    /// tensors.
    pub const APRN: &str = "aprn";
}

/// A JSON object with sorted keys, including nested objects.
///
/// ```
/// use apr_core::Metadata;
///
/// let metadata = Metadata::parse(br#"{"model_type": "llama"}"#)?;
/// assert_eq!(metadata.text("model_type"), Some("llama"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// The key-value pairs of a GGUF file, `kv` under [`keys::GGUF`], stay packed. They are part of the
/// JSON that is read and written, and [`key_values`](Self::key_values) returns them, but
/// [`get`](Self::get) returns that entry without them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    map: BTreeMap<String, Value>,
    /// `kv` of the entry under [`keys::GGUF`], which is an object then.
    pairs: Option<Arc<KeyValues>>,
}

impl Metadata {
    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses a JSON object.
    ///
    /// # Errors
    /// E001 when the bytes are not UTF-8, not JSON, nested deeper than 128 levels, or not an
    /// object.
    pub fn parse(json: &[u8]) -> Result<Self> {
        // Pairs in another form than ours stay what they are.
        if let Ok(metadata) = serde_json::from_slice(json) {
            return Ok(metadata);
        }
        match serde_json::from_slice(json) {
            Ok(Value::Object(map)) => Ok(Self { map: sorted(map), pairs: None }),
            Ok(_) => Err(Error::format("the metadata is JSON, but not an object")),
            Err(error) => Err(Error::format(format!(
                "the metadata is not valid JSON: {}",
                crate::foreign(&error)
            ))),
        }
    }

    /// Returns the metadata as compact JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        json::to_vec(self)
            .unwrap_or_else(|_| unreachable!("a JSON map with string keys always serializes"))
    }

    /// Passes the bytes of [`to_json`](Self::to_json) to `take` in pieces.
    ///
    /// The JSON of a million key-value pairs is therefore never in memory as a whole.
    ///
    /// # Errors
    /// What `take` returns.
    pub fn write_json(&self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut pieces = JsonPieces::new(take);
        let mut between = "{";
        for (key, value) in &self.map {
            pieces.text(between)?;
            pieces.value(key)?;
            pieces.text(":")?;
            match (&self.pairs, value) {
                (Some(pairs), Value::Object(fields)) if key == keys::GGUF => {
                    Entry { fields, pairs, longest: u64::MAX }.write(&mut pieces)?;
                }
                _ => pieces.value(value)?,
            }
            between = ",";
        }

        pieces.text(if self.map.is_empty() { "{}" } else { "}" })?;
        pieces.finish()
    }

    /// Returns the key-value pairs of a GGUF file under [`keys::GGUF`], or `None` without that key.
    ///
    /// # Errors
    /// E001 for pairs in another form than readers produce, an empty key, or a key that appears
    /// twice.
    pub fn key_values(&self) -> Result<Option<Arc<KeyValues>>> {
        match (&self.pairs, self.get(keys::GGUF)) {
            (Some(pairs), _) => Ok(Some(Arc::clone(pairs))),
            (None, Some(entry)) => pairs_of(entry).map(|pairs| Some(Arc::new(pairs))),
            (None, None) => Ok(None),
        }
    }

    /// Sets the key-value pairs under [`keys::GGUF`], and leaves what else is there.
    pub fn set_key_values(&mut self, pairs: KeyValues) {
        let mut entry = self.object(keys::GGUF).cloned().unwrap_or_default();
        entry.shift_remove(FIELD);
        self.map.insert(keys::GGUF.into(), entry.into());
        self.pairs = Some(Arc::new(pairs));
    }

    /// The metadata as a report shows them: of arrays of key-value pairs with more than `longest`
    /// items the number.
    #[must_use]
    pub fn brief(&self, longest: u64) -> Brief<'_> {
        Brief { metadata: self, longest }
    }

    /// The value under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    /// The text under `key`.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// Returns the text under `key` in the `__metadata__` of a safetensors header.
    #[must_use]
    pub fn header_text(&self, key: &str) -> Option<&str> {
        self.object(keys::SAFETENSORS)?.get("metadata")?.get(key)?.as_str()
    }

    /// The object under `key`.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<&Map<String, Value>> {
        self.get(key).and_then(Value::as_object)
    }

    /// Name of the tensor that is not a weight of the model but data an import added: its mel
    /// filterbank.
    ///
    /// Only by the name that imports give it: metadata must not declare a weight to be dispensable.
    #[must_use]
    pub fn auxiliary_tensor(&self) -> Option<&str> {
        let name = self.object(keys::MEL_FILTERBANK)?.get("tensor")?.as_str()?;
        (name == keys::MEL_FILTERBANK_TENSOR).then_some(name)
    }

    /// The mel filterbank that the metadata have as a list of numbers, with its shape: the bytes of
    /// an F32 matrix. `None` where there is none, or list and shape do not go together.
    #[must_use]
    pub fn inline_filterbank(&self) -> Option<(Shape, Vec<u8>)> {
        let values = self.get(keys::MEL_FILTERBANK)?.as_array()?;
        let dims = self.get(keys::MEL_FILTERBANK_SHAPE)?.as_array()?.iter().map(Value::as_u64);
        let shape = Shape::from(dims.collect::<Option<Vec<_>>>()?);
        if shape.dims().len() != 2 || shape.elements() != Some(values.len() as u64) {
            return None;
        }

        #[expect(
            clippy::cast_possible_truncation,
            reason = "the weights are F32, written as decimal numbers"
        )]
        let weight = |value: &Value| value.as_f64().map(|value| (value as f32).to_le_bytes());
        Some((shape, values.iter().map(weight).collect::<Option<Vec<_>>>()?.concat()))
    }

    /// Sets `key`, replacing its value.
    ///
    /// The key-value pairs under [`keys::GGUF`] are kept unless there are new ones.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let mut value = value.into();
        value.sort_all_objects();
        if key == keys::GGUF {
            // An entry without pairs is what `get` gives: those that are here stay.
            self.pairs = match value.as_object_mut() {
                Some(entry) if entry.contains_key(FIELD) => pack(entry).map(Arc::new),
                Some(_) => self.pairs.take(),
                None => None,
            };
        }
        self.map.insert(key.into(), value);
    }

    /// Sets `key` unless it is there.
    pub fn set_default(&mut self, key: &str, value: impl Into<Value>) {
        if !self.map.contains_key(key) {
            self.set(key, value);
        }
    }

    /// Takes over the keys that are not here, from metadata that were kept apart.
    pub fn complete(&mut self, other: Self) {
        if !self.map.contains_key(keys::GGUF) {
            self.pairs = other.pairs;
        }
        for (key, value) in other.map {
            self.map.entry(key).or_insert(value);
        }
    }

    /// Takes `key` out, key-value pairs with it.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let mut value = self.map.remove(key);
        if let (Some(pairs), Some(Value::Object(entry))) =
            (self.pairs.take_if(|_| key == keys::GGUF), value.as_mut())
        {
            entry.insert(FIELD.into(), pairs.iter().map(|pair| pair.unpack().to_json()).collect());
            value.iter_mut().for_each(Value::sort_all_objects);
        }
        value
    }

    /// Adds the quantization error to the entry on quantization, if that entry exists.
    ///
    /// Returns `true` if it was added.
    pub fn note_degradation(&mut self, mut degradation: Value) -> bool {
        degradation.sort_all_objects();
        match self.map.get_mut(keys::QUANTIZATION) {
            Some(Value::Object(entry)) => {
                entry.insert(keys::DEGRADATION.into(), degradation);
                entry.sort_keys();
                true
            }
            _ => false,
        }
    }

    /// Keeps the keys that `wanted` accepts.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.map.retain(|key, _| wanted(key));
        if !self.map.contains_key(keys::GGUF) {
            self.pairs = None;
        }
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.map.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns `true` if there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

/// Sorts an object, and all within it.
fn sorted(map: Map<String, Value>) -> BTreeMap<String, Value> {
    let sorted = |(key, mut value): (String, Value)| {
        value.sort_all_objects();
        (key, value)
    };
    map.into_iter().map(sorted).collect()
}

impl From<Map<String, Value>> for Metadata {
    fn from(mut map: Map<String, Value>) -> Self {
        let pairs = map.get_mut(keys::GGUF).and_then(|entry| pack(entry.as_object_mut()?));
        Self { map: sorted(map), pairs: pairs.map(Arc::new) }
    }
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        self.brief(u64::MAX).serialize(serializer)
    }
}

/// Metadata with the number of their items in the place of long arrays, for reports.
#[derive(Debug, Clone, Copy)]
pub struct Brief<'a> {
    metadata: &'a Metadata,
    longest: u64,
}

impl Serialize for Brief<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        let Metadata { map, pairs } = self.metadata;
        // Without a length, nobody puts in order again what is in order: pairs never are a tree.
        let mut object = serializer.serialize_map(None)?;
        for (key, value) in map {
            match (pairs, value) {
                (Some(pairs), Value::Object(fields)) if key == keys::GGUF => {
                    object.serialize_entry(key, &Entry { fields, pairs, longest: self.longest })?;
                }
                _ => object.serialize_entry(key, value)?,
            }
        }
        object.end()
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> core::result::Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut object: A,
            ) -> core::result::Result<Metadata, A::Error> {
                let mut metadata = Metadata::new();
                while let Some(key) = object.next_key::<String>()? {
                    if key == keys::GGUF {
                        let header: Header = object.next_value()?;
                        let mut fields = Value::from(header.fields);
                        fields.sort_all_objects();
                        metadata.map.insert(key, fields);
                        metadata.pairs = header.pairs.map(Arc::new);
                    } else {
                        let mut value: Value = object.next_value()?;
                        value.sort_all_objects();
                        metadata.map.insert(key, value);
                    }
                }
                Ok(metadata)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use alloc::vec;
    use alloc::vec::Vec;

    use serde_json::json;

    use super::*;
    use crate::{Array, KeyValue, Value as Typed};

    #[test]
    fn the_pieces_make_the_whole() {
        let mut metadata = Metadata::new();
        let mut check = |change: &dyn Fn(&mut Metadata)| {
            change(&mut metadata);
            let mut pieces = Vec::new();
            let taken = metadata.write_json(&mut |piece| {
                pieces.push(piece.to_vec());
                Ok(())
            });
            taken.expect("nothing fails here");
            assert_eq!(pieces.concat(), metadata.to_json());
            pieces.len()
        };
        assert_eq!(check(&|_| {}), 1);
        check(&|metadata| metadata.set("a \"quoted\" key", json!({ "nested": [1, "two\n"] })));
        check(&|metadata| metadata.set(keys::GGUF, json!({ "version": 3, "endian": "little" })));
        check(&|metadata| metadata.set_key_values(KeyValues::new()));
        let pairs = |count: u32| {
            (0..count).map(|i| KeyValue { key: format!("key {i}"), value: vec![i; 3].into() })
        };
        check(&|metadata| metadata.set_key_values(pairs(2).collect()));
        check(&|metadata| metadata.set("z", "last"));
        assert!(check(&|metadata| metadata.set_key_values(pairs(5000).collect())) > 4);
    }

    /// Pairs of all types, with the values that JSON is worst at.
    fn pairs_of_all_types() -> Vec<KeyValue> {
        let nested = Array::Array(vec![
            Array::Array(vec![Array::I8(vec![-128, 127]), Array::I8(vec![])]),
            Array::F32(vec![-0.0, f32::MIN_POSITIVE / 8.0]),
        ]);
        vec![
            KeyValue::new("u8", u8::MAX),
            KeyValue::new("i8", i8::MIN),
            KeyValue::new("u16", u16::MAX),
            KeyValue::new("i16", i16::MIN),
            KeyValue::new("u32", u32::MAX),
            KeyValue::new("i32", i32::MIN),
            KeyValue::new("u64", u64::MAX),
            KeyValue::new("i64", i64::MIN),
            KeyValue::new("bool", true),
            KeyValue::new("f32", f32::from_bits(0xffc0_1234)),
            KeyValue::new("f64", f64::NEG_INFINITY),
            KeyValue::new("text", String::from("a \"quoted\" \u{0} \u{1f600}")),
            KeyValue::new("none", Vec::<String>::new()),
            KeyValue::new("texts", vec![String::new(), String::from("\n")]),
            KeyValue::new("floats", vec![0.1_f32, f32::INFINITY, 1e-45]),
            KeyValue::new("doubles", vec![0.1_f64, f64::from_bits(0x7ff8_0000_0000_0001)]),
            KeyValue::new("nested", Typed::Array(nested)),
        ]
    }

    #[test]
    fn pairs_of_every_type_come_back_from_json_bit_for_bit() {
        let pairs: KeyValues = pairs_of_all_types().into_iter().collect();
        let mut metadata = Metadata::new();
        metadata.set(keys::GGUF, json!({ "version": 3 }));
        metadata.set_key_values(pairs.clone());
        let back = Metadata::parse(&metadata.to_json()).expect("what was written");
        let read = back.key_values().expect("pairs").expect("there");
        assert_eq!(read.len(), pairs.len());
        for (read, written) in read.iter().zip(pairs.iter()) {
            // NaN is not equal to itself: what is compared is the form in files.
            assert_eq!((read.key, read.encoded_value()), (written.key, written.encoded_value()));
        }
        assert_eq!(back.to_json(), metadata.to_json());

        // Through a tree of JSON, as other programs hand it on.
        let tree: Value = serde_json::from_slice(&metadata.to_json()).expect("JSON");
        for (json, written) in
            tree[keys::GGUF]["kv"].as_array().expect("a list").iter().zip(pairs.iter())
        {
            let pair: KeyValues =
                [KeyValue::from_json(json).expect("a pair")].into_iter().collect();
            assert_eq!(
                pair.find(written.key).expect("there").encoded_value(),
                written.encoded_value()
            );
        }
    }

    #[test]
    fn pairs_of_another_form_stay_in_the_metadata_and_are_refused_as_pairs() {
        let list = |items: &str, value: Value| {
            json!({
                "key": "a", "type": "array", "items": items, "value": value,
            })
        };
        let deep = (0..6).fold(
            json!({ "items": "u8", "value": [1] }),
            |inner, _| json!({ "items": "array", "value": [inner] }),
        );
        for kv in [
            json!("pairs"),
            json!([1]),
            json!([{ "type": "u8", "value": 1 }]),
            json!([{ "key": "", "type": "u8", "value": 1 }]),
            json!([{ "key": "a", "value": 1 }]),
            json!([{ "key": "a", "type": "u8" }]),
            json!([{ "key": "a", "type": "u7", "value": 1 }]),
            json!([{ "key": "a", "type": "u8", "value": 256 }]),
            json!([{ "key": "a", "type": "i8", "value": -129 }]),
            json!([{ "key": "a", "type": "bool", "value": 1 }]),
            json!([{ "key": "a", "type": "string", "value": 1 }]),
            json!([{ "key": "a", "type": "f32", "value": "1.0" }]),
            json!([{ "key": "a", "type": "f32", "value": { "bits": "0x1ffffffff" } }]),
            json!([{ "key": "a", "type": "array", "value": [1] }]),
            json!([
                { "key": "a", "type": "u8", "value": 1 }, { "key": "a", "type": "u8", "value": 2 },
            ]),
            json!([list("u8", json!(1))]),
            json!([list("u8", json!([1, "2"]))]),
            json!([list("array", json!([[1]]))]),
            json!([list("array", json!([{ "value": [1] }]))]),
            json!([list("array", json!([{ "items": "u8" }]))]),
            json!([list("array", json!([deep]))]),
        ] {
            let whole = json!({ "before": 1, keys::GGUF: { "version": 3, "kv": kv.clone() } });
            let metadata = Metadata::parse(whole.to_string().as_bytes()).expect("an object");
            let written: Value = serde_json::from_slice(&metadata.to_json()).expect("JSON");
            assert_eq!(written, whole, "nothing gets lost");
            let error = metadata.key_values().expect_err("no pairs");
            assert_eq!(error.code(), crate::Code::Format, "{kv}");
        }
    }

    #[test]
    fn an_error_of_the_one_who_takes_ends_it() {
        let mut metadata = Metadata::new();
        metadata.set("key", "value");
        let error = metadata.write_json(&mut |_| Err(Error::format("full"))).expect_err("an error");
        assert_eq!(error.message(), "full");
    }
}
