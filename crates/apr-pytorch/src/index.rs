//! `*.bin.index.json`: which tensor is in which shard.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use apr_core::{Error, Escaped, Limits, Result};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::names::check_file_name;

/// A warning names so many keys.
const MAX_UNREAD: usize = 8;

/// A parsed index.
#[derive(Debug)]
pub(crate) struct Index {
    /// Plain names of the shards, sorted.
    pub(crate) shards: Vec<String>,
    /// Tensors, each with the position of its shard in `shards`.
    pub(crate) weights: BTreeMap<String, usize>,
    /// First few keys of `metadata` that nothing here has a use for.
    pub(crate) unread: Vec<String>,
}

impl Index {
    pub(crate) fn parse(json: &[u8], limits: &Limits) -> Result<Self> {
        limits.check_metadata(json.len() as u64)?;
        let text = std::str::from_utf8(json)
            .map_err(|error| Error::format("the index is not UTF-8").at(error.valid_up_to() as u64))?;
        let file: Object<File> = serde_json::from_str(text).map_err(|error| {
            // The message may repeat a value of the file, which can be as long as the file.
            Error::format(format!("the index: {}", Escaped::short(&error.to_string())))
        })?;
        let File { weight_map: Weights { mut shards, mut weights }, metadata } = file.0;
        shards.keys().try_for_each(|shard| check_file_name(shard))?;
        if shards.is_empty() {
            return Err(Error::format("the index names no shard"));
        }
        // Shards were numbered as they came.
        let mut sorted = vec![0; shards.len()];
        for (position, number) in shards.values_mut().enumerate() {
            sorted[*number] = position;
        }
        weights.values_mut().for_each(|shard| *shard = sorted[*shard]);
        let unread = metadata.map(|Keys(unread)| unread).unwrap_or_default();
        Ok(Self { shards: shards.into_keys().collect(), weights, unread })
    }
}

#[derive(Deserialize)]
struct File {
    weight_map: Weights,
    metadata: Option<Keys>,
}

/// A `T` written as an object; the derived implementation alone would accept an array of the fields as well.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Tensors with the number of their shard; a shard's name is kept once.
struct Weights {
    shards: BTreeMap<String, usize>,
    weights: BTreeMap<String, usize>,
}

impl<'de> Deserialize<'de> for Weights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WeightsVisitor;

        impl<'de> Visitor<'de> for WeightsVisitor {
            type Value = Weights;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor names and file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Weights, A::Error> {
                let (mut shards, mut weights) = (BTreeMap::new(), BTreeMap::new());
                while let Some((name, shard)) = map.next_entry::<String, String>()? {
                    let next = shards.len();
                    let shard = *shards.entry(shard).or_insert(next);
                    if weights.contains_key(&name) {
                        let name = Escaped::short(&name);
                        return Err(A::Error::custom(format!("two tensors are named '{name}'")));
                    }
                    weights.insert(name, shard);
                }
                Ok(Weights { shards, weights })
            }
        }

        deserializer.deserialize_map(WeightsVisitor)
    }
}

/// Keys of `metadata` that say more than the tensors do.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor;

        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut unread = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry::<String, _>()? {
                    // Sizes follow from the shapes, and writers differ on whether tied tensors count twice.
                    let follows = matches!(key.as_str(), "total_size" | "total_parameters");
                    if !follows && unread.len() < MAX_UNREAD {
                        unread.push(Escaped::short(&key).to_string());
                    }
                }
                Ok(Keys(unread))
            }
        }

        deserializer.deserialize_map(KeysVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_sorted_and_other_keys_are_skipped() {
        let json = br#"{"x": [{}], "metadata": {"total_size": 8.0, "total_parameters": 2, "by": {"a": [1]}},
            "weight_map": {"a": "2", "b": "1", "c": "2"}}"#;
        let index = Index::parse(json, &Limits::default()).expect("a valid index");
        assert_eq!(index.shards, ["1", "2"]);
        assert!(index.weights.into_iter().eq([("a".into(), 1), ("b".into(), 0), ("c".into(), 1)]));
        assert_eq!(index.unread, ["by"]);
    }
}
