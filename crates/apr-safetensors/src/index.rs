//! `*.index.json`: which tensor is in which shard.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use apr_core::{Error, Escaped, Limits, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Number;

use crate::json::{self, Object};
use crate::names::{check_file_name, duplicate};

/// A parsed index.
#[derive(Debug)]
pub(crate) struct Index {
    /// Plain names of the shards, sorted.
    pub(crate) shards: Vec<String>,
    /// Tensors sorted by name, each with its position in `shards`.
    pub(crate) weights: Vec<(String, usize)>,
    /// Bytes of all tensors, as far as the index says.
    pub(crate) total_size: Option<Number>,
    /// First few keys of `metadata` that nothing here has a use for.
    pub(crate) unread: Vec<String>,
}

impl Index {
    pub(crate) fn parse(bytes: &[u8], limits: &Limits) -> Result<Self> {
        const WHAT: &str = "the index";
        limits.check_metadata(bytes.len() as u64)?;
        let text = json::utf8(bytes, WHAT, 0)?;
        let Object(file): Object<IndexFile> =
            serde_json::from_str(text).map_err(|error| json::error(&error, WHAT, text, 0))?;

        let WeightMap { shards, mut weights } = file.weight_map;
        if let Some(name) = duplicate(weights.iter().map(|(name, _)| name.as_str())) {
            return Err(Error::format("the index has two tensors of this name").for_tensor(name));
        }
        shards.keys().try_for_each(|shard| check_file_name(shard))?;
        if shards.is_empty() {
            return Err(Error::format("the index names no shard"));
        }
        // Shards were numbered as they came.
        let mut sorted = vec![0; shards.len()];
        for (position, &number) in shards.values().enumerate() {
            sorted[number] = position;
        }
        for (_, shard) in &mut weights {
            *shard = sorted[*shard];
        }
        weights.sort_unstable();
        let IndexMetadata { total_size, unread } = file.metadata.unwrap_or_default();
        Ok(Self { shards: shards.into_keys().collect(), weights, total_size, unread })
    }
}

/// An index as transformers writes it: Python's `json.dumps` with sorted keys and an indent of 2.
pub(crate) fn encode(total_size: u64, weights: &BTreeMap<&str, &str>) -> Vec<u8> {
    let mut json = format!("{{\n  \"metadata\": {{\n    \"total_size\": {total_size}\n  }},\n  \"weight_map\": {{");
    for (i, (name, shard)) in weights.iter().enumerate() {
        json += if i == 0 { "\n    " } else { ",\n    " };
        push_ascii(&mut json, name);
        json += ": ";
        push_ascii(&mut json, shard);
    }
    json += "\n  }\n}\n";
    json.into_bytes()
}

/// A JSON string in ASCII, which is what Python writes unless told otherwise.
fn push_ascii(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            ' '..='~' => json.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(json, "\\u{unit:04x}").unwrap_or_else(|_| unreachable!("a string accepts every write"));
                }
            }
        }
    }
    json.push('"');
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: WeightMap,
    metadata: Option<IndexMetadata>,
}

/// Tensors with the number of their shard; a shard's name is kept once.
struct WeightMap {
    shards: BTreeMap<String, usize>,
    weights: Vec<(String, usize)>,
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WeightMapVisitor;

        impl<'de> Visitor<'de> for WeightMapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor names and file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let (mut shards, mut weights) = (BTreeMap::new(), Vec::new());
                while let Some((name, shard)) = map.next_entry::<String, String>()? {
                    let next = shards.len();
                    weights.push((name, *shards.entry(shard).or_insert(next)));
                }
                Ok(WeightMap { shards, weights })
            }
        }

        deserializer.deserialize_map(WeightMapVisitor)
    }
}

#[derive(Default)]
struct IndexMetadata {
    total_size: Option<Number>,
    unread: Vec<String>,
}

impl<'de> Deserialize<'de> for IndexMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A warning names so many keys.
        const MOST: usize = 8;

        struct MetadataVisitor;

        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = IndexMetadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IndexMetadata, A::Error> {
                let mut metadata = IndexMetadata::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "total_size" => {
                            if metadata.total_size.replace(map.next_value()?).is_some() {
                                return Err(A::Error::duplicate_field("total_size"));
                            }
                            continue;
                        }
                        // Follows from the shapes.
                        "total_parameters" => {}
                        _ if metadata.unread.len() < MOST => metadata.unread.push(Escaped::short(&key).to_string()),
                        _ => {}
                    }
                    map.next_value::<IgnoredAny>()?;
                }
                Ok(metadata)
            }
        }

        deserializer.deserialize_map(MetadataVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_written_as_python_writes_it() {
        let weights = BTreeMap::from([("ü\u{7f}\u{1f600}\"\\\n\u{1}", "m-1"), ("a", "m-2")]);
        let expected = "{\n  \"metadata\": {\n    \"total_size\": 7\n  },\n  \"weight_map\": {\n    \
            \"a\": \"m-2\",\n    \"\\u00fc\\u007f\\ud83d\\ude00\\\"\\\\\\n\\u0001\": \"m-1\"\n  }\n}\n";
        let json = encode(7, &weights);
        assert_eq!(str::from_utf8(&json), Ok(expected));

        let index = Index::parse(&json, &Limits::default()).expect("what we write");
        assert_eq!(index.shards, ["m-1", "m-2"]);
        assert!(index.weights.iter().map(|(name, shard)| (name.as_str(), index.shards[*shard].as_str())).eq(weights));
    }

    #[test]
    fn shards_are_sorted_and_other_keys_are_skipped() {
        let json = br#"{"x": [{}], "metadata": {"total_size": 8.0, "total_parameters": 2, "by": {"a": [1]}},
            "weight_map": {"a": "2", "b": "1", "c": "2"}}"#;
        let index = Index::parse(json, &Limits::default()).expect("a valid index");
        assert_eq!(index.shards, ["1", "2"]);
        assert_eq!(index.weights, [("a".into(), 1), ("b".into(), 0), ("c".into(), 1)]);
        assert_eq!((index.total_size.and_then(|size| size.as_f64()), index.unread), (Some(8.0), vec!["by".to_owned()]));
    }
}
