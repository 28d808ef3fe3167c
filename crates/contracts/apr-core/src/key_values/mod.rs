//! Typed key-value pairs, as GGUF files have them and metadata carry them from format to format.
//!
//! A vocabulary of 150,000 tokens is three arrays here, and a file may have a million pairs. So the
//! pairs stay packed as in the file, and are JSON only where JSON is written:
//!
//! ```text
//! pair:  key, type u32, value          key and text: length u64, UTF-8
//! array: type of its items u32, their number u64, the items
//! ```
//!
//! All numbers are little-endian: the encoding of GGUF version 3.

mod floats;
mod json;
mod parse;
mod value;
mod wire;

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

pub(crate) use self::json::{pack, pairs_of};
pub(crate) use self::parse::Header;
pub use self::value::{Array, KeyValue, Value};
use self::wire::{ARRAY, TEXT, Wire, WireValue};
use crate::json_pieces::JsonPieces;
use crate::{Error, Escaped, Result};

/// Arrays within each other; no known writer nests any.
pub(crate) const MAX_DEPTH: usize = 4;

/// Key-value pairs in the order of their file, packed; no key appears twice.
///
/// ```
/// use apr_core::{KeyValue, KeyValues, Value};
///
/// let pairs: KeyValues = [
///     KeyValue::new("general.architecture", "llama"),
///     KeyValue::new("llama.block_count", 22_u32),
/// ]
/// .into_iter()
/// .collect();
/// assert_eq!(pairs.text("general.architecture"), Some("llama"));
/// assert_eq!(pairs.get("llama.block_count"), Some(Value::U32(22)));
/// ```
#[derive(Clone, Default)]
pub struct KeyValues {
    bytes: Vec<u8>,
    /// Start of each pair.
    starts: Vec<u32>,
    /// Positions of the pairs, sorted by key.
    sorted: Vec<u32>,
}

impl KeyValues {
    /// Creates an empty list of pairs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns `true` if there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// All pairs, one after the other, in the encoding above.
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        &self.bytes
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Pair<'_>> {
        (0..self.len()).map(|position| self.pair(position))
    }

    fn pair(&self, position: usize) -> Pair<'_> {
        let start = self.starts.get(position).map_or(self.bytes.len(), |&start| start as usize);
        let end = self.starts.get(position + 1).map_or(self.bytes.len(), |&end| end as usize);
        Pair::new(self.bytes.get(start..end).unwrap_or_default())
    }

    fn list(&self, longest: u64) -> List<'_> {
        List { pairs: self, positions: 0..self.len(), longest }
    }

    fn search(&self, key: &str) -> core::result::Result<usize, usize> {
        self.sorted.binary_search_by(|&position| self.pair(position as usize).key.cmp(key))
    }

    /// The pair of a key.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Pair<'_>> {
        let place = self.search(key).ok()?;
        Some(self.pair(self.sorted[place] as usize))
    }

    /// The value of a key, unpacked.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value> {
        Some(self.find(key)?.value())
    }

    /// The text of a key, if it is one.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.find(key)?.text()
    }

    /// Sets the value of a key, in its place if the key exists, otherwise at the end.
    ///
    /// # Errors
    /// E008 for more than 4 GiB of pairs.
    pub fn set(&mut self, pair: &KeyValue) -> Result<()> {
        let Ok(place) = self.search(&pair.key) else {
            return self.push(pair);
        };
        let position = self.sorted[place] as usize;
        let start = self.starts[position] as usize;
        let end = self.starts.get(position + 1).map_or(self.bytes.len(), |&end| end as usize);
        let mut packed = Vec::new();
        wire::put_text(&mut packed, &pair.key);
        wire::put_value(&mut packed, &pair.value);
        u32::try_from(self.bytes.len() + packed.len()).map_err(|_| too_large())?;
        for later in &mut self.starts[position + 1..] {
            // Below 2^32, as was just checked.
            *later =
                u32::try_from(*later as usize - (end - start) + packed.len()).unwrap_or(u32::MAX);
        }

        drop(self.bytes.splice(start..end, packed));
        Ok(())
    }

    /// Keeps the pairs whose keys `wanted` accepts.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        if self.iter().all(|pair| wanted(pair.key)) {
            return;
        }
        let mut kept = KeyValuesBuilder::default();
        for pair in self.iter().filter(|pair| wanted(pair.key)) {
            kept.starts.push(u32::try_from(kept.bytes.len()).unwrap_or(u32::MAX));
            kept.bytes.extend_from_slice(pair.bytes);
        }
        *self = kept.sorted();
    }

    /// Adds a pair at the end and removes an existing pair of the same key.
    ///
    /// # Errors
    /// E008 for more than 4 GiB of pairs.
    pub fn push(&mut self, pair: &KeyValue) -> Result<()> {
        if self.search(&pair.key).is_ok() {
            self.retain(|key| key != pair.key);
        }
        let place = self.search(&pair.key).unwrap_or_else(|place| place);
        let position = u32::try_from(self.len()).map_err(|_| too_large())?;
        self.starts.push(u32::try_from(self.bytes.len()).map_err(|_| too_large())?);
        self.sorted.insert(place, position);
        wire::put_text(&mut self.bytes, &pair.key);
        wire::put_value(&mut self.bytes, &pair.value);
        Ok(())
    }

    /// The pairs, unpacked.
    #[must_use]
    pub fn to_vec(&self) -> Vec<KeyValue> {
        self.iter().map(|pair| pair.unpack()).collect()
    }
}

fn too_large() -> Error {
    Error::memory("the key-value pairs exceed 4 GiB")
}

impl PartialEq for KeyValues {
    fn eq(&self, other: &Self) -> bool {
        // The rest follows from the bytes.
        self.bytes == other.bytes
    }
}

impl fmt::Debug for KeyValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|pair| pair.unpack())).finish()
    }
}

/// If there are several pairs with the same key, the last one is kept.
impl FromIterator<KeyValue> for KeyValues {
    fn from_iter<I: IntoIterator<Item = KeyValue>>(pairs: I) -> Self {
        let mut result = Self::new();
        for pair in pairs {
            // 4 GiB of pairs do not come from an iterator over unpacked ones.
            let _ = result.push(&pair);
        }
        result
    }
}

impl<'a> FromIterator<&'a KeyValue> for KeyValues {
    fn from_iter<I: IntoIterator<Item = &'a KeyValue>>(pairs: I) -> Self {
        let mut result = Self::new();
        for pair in pairs {
            // 4 GiB of pairs do not come from an iterator over unpacked ones.
            let _ = result.push(pair);
        }
        result
    }
}

/// Packs pairs one after the other, in the order in which a reader reads them.
#[derive(Debug, Default)]
pub struct KeyValuesBuilder {
    bytes: Vec<u8>,
    starts: Vec<u32>,
}

impl KeyValuesBuilder {
    /// Starts a pair. Its type and value are to follow in [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// E008 for more than 4 GiB of pairs.
    pub fn begin(&mut self, key: &str) -> Result<()> {
        self.starts.push(u32::try_from(self.bytes.len()).map_err(|_| too_large())?);
        wire::put_text(&mut self.bytes, key);
        Ok(())
    }

    /// Returns the bytes packed so far.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Returns the packed pairs.
    ///
    /// # Errors
    /// E001 for a key that appears twice, E008 for more than 4 GiB of pairs.
    pub fn finish(mut self) -> Result<KeyValues> {
        u32::try_from(self.bytes.len()).map_err(|_| too_large())?;
        self.bytes.shrink_to_fit();
        self.starts.shrink_to_fit();
        let pairs = self.sorted();
        let key = |place: usize| pairs.pair(pairs.sorted[place] as usize).key;
        match (1..pairs.len()).find(|&place| key(place - 1) == key(place)) {
            Some(place) => Err(Error::format(format!(
                "the key '{}' appears twice",
                Escaped::short(key(place))
            ))),
            None => Ok(pairs),
        }
    }

    fn sorted(self) -> KeyValues {
        let Self { bytes, starts } = self;
        let sorted = (0..u32::try_from(starts.len()).unwrap_or(u32::MAX)).collect();
        let mut pairs = KeyValues { bytes, starts, sorted };
        let mut sorted = core::mem::take(&mut pairs.sorted);
        sorted.sort_unstable_by_key(|&position| (pairs.pair(position as usize).key, position));
        pairs.sorted = sorted;
        pairs
    }
}

/// Key-value pair in packed form.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// Key of the pair, such as `llama.attention.head_count`.
    pub key: &'a str,
    bytes: &'a [u8],
    value: &'a [u8],
}

impl<'a> Pair<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let mut wire = Wire::new(bytes);
        let key = wire.text();
        Self { key, bytes, value: wire.rest() }
    }

    /// The value, unpacked.
    #[must_use]
    pub fn value(&self) -> Value {
        Wire::new(self.value).value()
    }

    /// The pair, unpacked.
    #[must_use]
    pub fn unpack(&self) -> KeyValue {
        KeyValue { key: String::from(self.key), value: self.value() }
    }

    /// Returns type and value in packed form.
    #[must_use]
    pub fn encoded_value(&self) -> &'a [u8] {
        self.value
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        let mut wire = Wire::new(self.value);
        (wire.u32() == TEXT).then(|| wire.text())
    }

    /// Number of items, if it is an array.
    #[must_use]
    pub fn items(&self) -> Option<u64> {
        let mut wire = Wire::new(self.value);
        (wire.u32() == ARRAY).then(|| {
            wire.u32();
            wire.u64()
        })
    }

    /// The texts, if it is an array of these.
    #[must_use]
    pub fn texts(&self) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
        let mut wire = Wire::new(self.value);
        let is_texts = wire.u32() == ARRAY && wire.u32() == TEXT;
        is_texts.then(|| {
            let count = wire.u64();
            (0..count).map(move |_| wire.text())
        })
    }

    /// The value as JSON, as the `value` of a pair has it.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(WireValue(self.value)).unwrap_or_default()
    }

    /// Writes `{"items", "key", "type", "value"}`; of an array of more than `longest` items `count`
    /// in the place of the value.
    fn serialize_brief<S: Serializer>(
        &self,
        longest: u64,
        serializer: S,
    ) -> core::result::Result<S::Ok, S::Error> {
        let mut wire = Wire::new(self.value);
        let number = wire.u32();
        let mut map = serializer.serialize_map(None)?;
        let count = self.items();
        if let Some(count) = count {
            if count > longest {
                map.serialize_entry("count", &count)?;
            }
            map.serialize_entry("items", value::name_of(wire.u32()))?;
        }

        map.serialize_entry("key", self.key)?;
        map.serialize_entry("type", value::name_of(number))?;
        if count.is_none_or(|count| count <= longest) {
            map.serialize_entry("value", &WireValue(self.value))?;
        }

        map.end()
    }
}

/// The entry of metadata that the pairs belong to, with them in their place.
pub(crate) struct Entry<'a> {
    pub(crate) fields: &'a serde_json::Map<String, serde_json::Value>,
    pub(crate) pairs: &'a KeyValues,
    /// Maximum number of array items that are written.
    pub(crate) longest: u64,
}

/// Name of the pairs in their entry.
pub(crate) const FIELD: &str = "kv";

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        let names: BTreeSet<&str> = self.fields.keys().map(String::as_str).chain([FIELD]).collect();
        let mut map = serializer.serialize_map(None)?;
        for name in names {
            match self.fields.get(name) {
                Some(value) => map.serialize_entry(name, value)?,
                None => map.serialize_entry(name, &self.pairs.list(self.longest))?,
            }
        }
        map.end()
    }
}

impl Entry<'_> {
    /// The JSON of the entry, a piece at a time.
    pub(crate) fn write(&self, pieces: &mut JsonPieces<'_>) -> Result<()> {
        let names: BTreeSet<&str> = self.fields.keys().map(String::as_str).chain([FIELD]).collect();
        let mut between = "{";
        for name in names {
            pieces.text(between)?;
            pieces.value(name)?;
            pieces.text(":")?;
            match self.fields.get(name) {
                Some(value) => pieces.value(value)?,
                None => self.write_pairs(pieces)?,
            }
            between = ",";
        }
        pieces.text("}")
    }

    fn write_pairs(&self, pieces: &mut JsonPieces<'_>) -> Result<()> {
        /// Pairs that are in memory as JSON at the same time.
        const BATCH: usize = 1024;
        pieces.text("[")?;
        for start in (0..self.pairs.len()).step_by(BATCH) {
            if start > 0 {
                pieces.text(",")?;
            }
            let positions = start..self.pairs.len().min(start + BATCH);
            pieces.items(&List { pairs: self.pairs, positions, longest: self.longest })?;
        }
        pieces.text("]")
    }
}

/// Some of the pairs, arrays of more than `longest` items as their number.
struct List<'a> {
    pairs: &'a KeyValues,
    positions: Range<usize>,
    longest: u64,
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        struct Brief<'a>(Pair<'a>, u64);
        impl Serialize for Brief<'_> {
            fn serialize<S: Serializer>(
                &self,
                serializer: S,
            ) -> core::result::Result<S::Ok, S::Error> {
                self.0.serialize_brief(self.1, serializer)
            }
        }
        let pairs = self.positions.clone().map(|position| self.pairs.pair(position));
        serializer.collect_seq(pairs.map(|pair| Brief(pair, self.longest)))
    }
}

/// `{"items", "key", "type", "value"}` for each pair.
impl Serialize for KeyValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        self.list(u64::MAX).serialize(serializer)
    }
}
