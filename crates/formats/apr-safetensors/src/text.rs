//! `__metadata__`: text by key, and how a checkpoint's metadata carries it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use apr_core::{Error, Escaped, Metadata, Result, keys};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

/// Text by key, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Text(pub(crate) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Text(pairs))
    }
}

impl Text {
    /// Returns the value for [`keys::SAFETENSORS`]. JSON objects are sorted here, so any other
    /// order is stored separately.
    pub(crate) fn to_value(text: Option<&Self>) -> Value {
        let Some(Self(pairs)) = text else { return json!({}) };
        let map: Map<String, Value> =
            pairs.iter().map(|(key, text)| (key.clone(), text.as_str().into())).collect();
        if pairs.is_sorted_by(|a, b| a.0 < b.0) {
            return json!({ "metadata": map });
        }
        let order: Vec<&str> = pairs.iter().map(|(key, _)| key.as_str()).collect();
        json!({ "metadata": map, "metadata_order": order })
    }

    /// Returns the text of a header for a checkpoint with this metadata.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        let Some(value) = metadata.get(keys::SAFETENSORS) else {
            // From another format. transformers refuses files that do not say which framework they
            // are for.
            return Ok(Some(Self(vec![("format".into(), "pt".into())])));
        };
        let Some(text) = object(value, keys::SAFETENSORS)?.get("metadata") else {
            return Ok(None);
        };
        let text = object(text, "safetensors.metadata")?;

        let order = value.get("metadata_order").and_then(Value::as_array).into_iter().flatten();
        let order = order.filter_map(Value::as_str).chain(text.keys().map(String::as_str));
        let mut seen = BTreeSet::new();
        let mut pairs = Vec::with_capacity(text.len());
        for key in order {
            let Some(value) = text.get(key) else { continue };
            if seen.insert(key) {
                let value = value.as_str().ok_or_else(|| {
                    Error::format(format!(
                        "safetensors.metadata.{} is not a string",
                        Escaped::short(key)
                    ))
                })?;
                pairs.push((key.to_owned(), value.to_owned()));
            }
        }

        Ok(Some(Self(pairs)))
    }

    /// One text out of the shards', the first value of a key winning, and a warning for each shard
    /// that disagrees.
    pub(crate) fn merge<'a>(
        shards: impl Iterator<Item = (&'a str, Option<&'a Self>)>,
    ) -> (Option<Self>, Vec<String>) {
        let (mut merged, mut warnings) = (None, Vec::new());
        let mut first: BTreeMap<&str, &str> = BTreeMap::new();
        for (shard, text) in shards {
            let Some(Self(pairs)) = text else { continue };
            let Self(merged) = merged.get_or_insert_with(Self::default);
            let mut differing = Vec::new();
            for (key, value) in pairs {
                match first.get(key.as_str()) {
                    None => {
                        first.insert(key, value);
                        merged.push((key.clone(), value.clone()));
                    }
                    Some(kept) if kept != value => differing.push(key),
                    Some(_) => {}
                }
            }

            if let [key, others @ ..] = differing.as_slice() {
                let more = if others.is_empty() {
                    String::new()
                } else {
                    format!(" and {} more keys", others.len())
                };
                warnings.push(format!(
                    "{}: __metadata__ contradicts an earlier shard in '{}'{more}; the earlier text \
                     is kept",
                    Escaped::short(shard),
                    Escaped::short(key),
                ));
            }
        }

        (merged, warnings)
    }
}

fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Map<String, Value>> {
    value
        .as_object()
        .ok_or_else(|| Error::format(format!("{what} of the metadata is not an object")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pairs: &[(&str, &str)]) -> Text {
        Text(pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect())
    }

    #[test]
    fn every_text_comes_back_in_its_order() {
        for text in [
            None,
            Some(text(&[])),
            Some(text(&[("a", "1"), ("b", "2")])),
            Some(text(&[("b", ""), ("a", "1")])),
        ] {
            let mut metadata = Metadata::new();
            metadata.set(keys::SAFETENSORS, Text::to_value(text.as_ref()));
            assert_eq!(Text::from_metadata(&metadata), Ok(text), "{metadata:?}");
        }
    }

    #[test]
    fn the_order_is_kept_only_where_it_differs_from_the_sorted_one() {
        assert_eq!(Text::to_value(None), json!({}));
        assert_eq!(
            Text::to_value(Some(&text(&[("a", "1"), ("b", "2")]))),
            json!({"metadata": {"a": "1", "b": "2"}})
        );
        let unsorted = json!({"metadata": {"a": "1", "b": "2"}, "metadata_order": ["b", "a"]});
        assert_eq!(Text::to_value(Some(&text(&[("b", "2"), ("a", "1")]))), unsorted);
    }

    #[test]
    fn an_order_that_does_not_fit_the_keys_loses_none_of_them() {
        let mut metadata = Metadata::new();
        let value = json!({
            "metadata": {"a": "1", "b": "2", "c": "3"}, "metadata_order": ["c", "x", "c", 7],
        });
        metadata.set(keys::SAFETENSORS, value);
        assert_eq!(
            Text::from_metadata(&metadata),
            Ok(Some(text(&[("c", "3"), ("a", "1"), ("b", "2")])))
        );
    }

    #[test]
    fn metadata_that_is_not_text_is_refused() {
        for value in [json!("x"), json!({"metadata": []}), json!({"metadata": {"a": 1}})] {
            let mut metadata = Metadata::new();
            metadata.set(keys::SAFETENSORS, value);
            assert!(Text::from_metadata(&metadata).is_err(), "{metadata:?}");
        }
    }
}
