//! `*.index.json`: which tensor is in which shard.
//!
//! ```text
//! {"metadata": {"total_size": 16}, "weight_map": {"a": "model-00001-of-00002.bin", …}}
//! ```
//!
//! Shards of several formats are listed so; the index is documented in the `transformers`
//! documentation, "Big models", section "Sharded checkpoints".

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::json::{self, Object};
use crate::{
    ByteSource, Code, Error, Escaped, IoCause, Limits, Result, SourceSet, check_file_name,
};

/// A shard index: the checked weight map, and the other contents of the file.
///
/// `S` is the type of `total_size`: a [`Number`](serde_json::Number), or [`IgnoredAny`] if any
/// value is accepted.
///
/// ```
/// use apr_core::{Limits, ShardIndex};
/// use serde_json::Number;
///
/// let json = br#"{"metadata": {"total_size": 6}, "weight_map": {"b": "m-2", "a": "m-1"}}"#;
/// let index = ShardIndex::<Number>::parse(json, "m.index.json", &Limits::default())?;
/// assert_eq!(index.shards(), ["m-1", "m-2"]);
/// assert_eq!(index.total_size(), Some(&6.into()));
///
/// index.check_tensors([["a"], ["b"]])?;
/// let error = index.check_tensors([["a"], ["c"]]).unwrap_err();
/// assert_eq!(error.to_string(), "E002: m-2: tensor 'c': m.index.json does not list it");
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug)]
pub struct ShardIndex<S> {
    name: String,
    /// Sorted file names of the shards.
    shards: Vec<String>,
    /// Tensors sorted by name, each with its position in `shards`.
    weights: Vec<(String, usize)>,
    total_size: Option<S>,
    /// The first few keys of `metadata` that are not used.
    unread: Vec<String>,
}

impl<S: DeserializeOwned> ShardIndex<S> {
    /// Parses an index; `name` is its file's, for errors and warnings.
    ///
    /// # Errors
    /// E001 for what is no such JSON, names a tensor or `total_size` twice, names a shard by other
    /// than a plain file name, or names none; E008 over [`Limits::max_metadata`].
    pub fn parse(json: &[u8], name: &str, limits: &Limits) -> Result<Self> {
        parse(json, name, limits).map_err(|error| error.in_file(name))
    }
}

fn parse<S: DeserializeOwned>(bytes: &[u8], name: &str, limits: &Limits) -> Result<ShardIndex<S>> {
    const WHAT: &str = "the index";

    limits.check_metadata(bytes.len() as u64)?;
    let text = json::utf8(bytes, WHAT, 0)?;
    let Object(file): Object<IndexFile<S>> =
        serde_json::from_str(text).map_err(|error| json::error(&error, WHAT, text, 0))?;

    let not_an_index = || {
        Error::format(
            "not a shard index: 'weight_map' is missing. To open a model, pass its folder",
        )
    };
    let WeightMap { shards, mut weights } = file.weight_map.ok_or_else(not_an_index)?;
    weights.sort_unstable();
    if let Some(pair) = weights.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::format("the index has two tensors of this name").for_tensor(&pair[0].0));
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

    let shards = shards.into_keys().collect();
    let (total_size, unread) =
        file.metadata.map_or_else(Default::default, |it| (it.total_size, it.unread));
    Ok(ShardIndex { name: name.into(), shards, weights, total_size, unread })
}

impl<S> ShardIndex<S> {
    /// File names of the shards, sorted; at least one.
    #[must_use]
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Names of the tensors, sorted, each with its shard's.
    pub fn weights(&self) -> impl Iterator<Item = (&str, &str)> {
        self.weights.iter().map(|(tensor, shard)| (tensor.as_str(), self.shards[*shard].as_str()))
    }

    /// Returns the number of bytes of all tensors, if the index states it.
    #[must_use]
    pub fn total_size(&self) -> Option<&S> {
        self.total_size.as_ref()
    }

    /// Returns a warning that lists keys of the index's metadata which a conversion loses.
    #[must_use]
    pub fn unread_warning(&self) -> Option<String> {
        let warning = || {
            format!(
                "{}: metadata not copied: {}",
                Escaped::short(&self.name),
                self.unread.join(", ")
            )
        };
        (!self.unread.is_empty()).then(warning)
    }

    /// Opens each shard through the set; `open` gets its source and its name.
    ///
    /// # Errors
    /// E007 for an absent shard, which says who asked for it; otherwise those of the set and of
    /// `open`.
    pub fn open_shards<T>(
        &self,
        set: &dyn SourceSet,
        open: impl Fn(Box<dyn ByteSource>, &str) -> Result<T>,
    ) -> Result<Vec<T>> {
        let open = |shard: &String| {
            open(set.open(shard).map_err(|error| self.asked_for(shard, error))?, shard)
        };
        self.shards.iter().map(open).collect()
    }

    /// Returns the error of opening a shard, with the index that lists the shard.
    #[must_use]
    pub fn asked_for(&self, shard: &str, error: Error) -> Error {
        if error.code() != Code::Io {
            return error.in_file(shard);
        }
        let message = format!("{} names this shard: {}", self.name, error.message());
        Error::io(error.cause().unwrap_or(IoCause::Other), message)
            .in_file(error.file().unwrap_or(shard))
    }

    /// Checks that every tensor of the index is in its shard, and every tensor of a shard in the
    /// index, given the names that each of [`shards`](Self::shards) holds.
    ///
    /// # Errors
    /// E002 for the first tensor that is not.
    pub fn check_tensors<'a, N>(&self, names: impl IntoIterator<Item = N>) -> Result<()>
    where
        N: IntoIterator<Item = &'a str>,
    {
        let Self { name: index, shards, weights, .. } = self;
        let mut found = vec![false; weights.len()];
        for ((position, shard), names) in shards.iter().enumerate().zip(names) {
            for name in names {
                let problem = match weights.binary_search_by(|(known, _)| known.as_str().cmp(name))
                {
                    Ok(weight) if weights[weight].1 == position => {
                        found[weight] = true;
                        continue;
                    }
                    Ok(weight) => {
                        format!(
                            "{index} lists it in '{}'",
                            Escaped::short(&shards[weights[weight].1])
                        )
                    }
                    Err(_) => format!("{index} does not list it"),
                };
                return Err(Error::corrupt(problem).in_file(shard).for_tensor(name));
            }
        }

        if let Some(((name, shard), _)) = weights.iter().zip(&found).find(|(_, found)| !**found) {
            let message = format!("{index} lists it, but this shard has no such tensor");
            return Err(Error::corrupt(message).in_file(&shards[*shard]).for_tensor(name));
        }

        Ok(())
    }
}

/// Returns one warning for all shards that can't be read, if there are any.
///
/// `errors` are theirs, each with the name of the shard as its file; `total` is the number of all
/// shards.
#[must_use]
pub fn absence_warning(errors: &[&Error], total: usize) -> Option<String> {
    /// Maximum number of names in the warning.
    const SHOWN: usize = 4;

    let first = errors.first()?;
    if errors.len() == 1 {
        return Some(format!("one of {total} shards can't be read: {first}"));
    }
    let names = errors.iter().take(SHOWN).filter_map(|error| error.file());
    let names: Vec<String> = names.map(|name| Escaped::short(name).to_string()).collect();
    let (count, more) = (errors.len(), if errors.len() > SHOWN { ", ..." } else { "" });
    Some(format!(
        "{count} of {total} shards can't be read ({}{more}); the first: {first}",
        names.join(", ")
    ))
}

#[derive(Deserialize)]
struct IndexFile<S> {
    weight_map: Option<WeightMap>,
    metadata: Option<IndexMetadata<S>>,
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

struct IndexMetadata<S> {
    total_size: Option<S>,
    unread: Vec<String>,
}

impl<'de, S: Deserialize<'de>> Deserialize<'de> for IndexMetadata<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Maximum number of keys in a warning.
        const MOST: usize = 8;

        struct MetadataVisitor<S>(PhantomData<S>);

        impl<'de, S: Deserialize<'de>> Visitor<'de> for MetadataVisitor<S> {
            type Value = IndexMetadata<S>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<IndexMetadata<S>, A::Error> {
                let (mut total_size, mut unread) = (None, Vec::new());
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "total_size" => {
                            if total_size.replace(map.next_value()?).is_some() {
                                return Err(A::Error::duplicate_field("total_size"));
                            }
                            continue;
                        }
                        // Follows from the shapes.
                        "total_parameters" => {}
                        _ if unread.len() < MOST => unread.push(Escaped::short(&key).to_string()),
                        _ => {}
                    }
                    map.next_value::<IgnoredAny>()?;
                }

                Ok(IndexMetadata { total_size, unread })
            }
        }

        deserializer.deserialize_map(MetadataVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Number;

    use super::*;

    #[test]
    fn shards_are_sorted_and_other_keys_are_skipped() {
        let json = br#"{"x": [{}], "metadata": {"total_size": 8.0, "total_parameters": 2,
            "by": {"a": [1]}},
            "weight_map": {"c": "2", "b": "1", "a": "2"}}"#;
        let index =
            ShardIndex::<Number>::parse(json, "m", &Limits::default()).expect("a valid index");
        assert_eq!(index.shards(), ["1", "2"]);
        assert!(index.weights().eq([("a", "2"), ("b", "1"), ("c", "2")]));
        assert_eq!(index.total_size().and_then(Number::as_f64), Some(8.0));
        assert_eq!(index.unread_warning().as_deref(), Some("m: metadata not copied: by"));
    }

    #[test]
    fn the_total_size_must_be_a_number_only_for_readers_that_use_it() {
        let json = br#"{"metadata": {"total_size": null}, "weight_map": {"a": "1"}}"#;
        assert!(ShardIndex::<IgnoredAny>::parse(json, "m", &Limits::default()).is_ok());
        let error = ShardIndex::<Number>::parse(json, "m", &Limits::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "E001: m: the index: invalid type: null, expected a JSON number (at byte 31)"
        );
    }
}
