//! Documents in JSON whose keys can come twice.
//!
//! Readers take different ones: Python's takes the last, others the first. So all are judged.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Key under which a document keeps the earlier values of keys that come twice. No library reads
/// it.
const TWICE: &str = "(given twice)";

/// The value of a document, with all values of each key.
pub(super) struct Document(pub(super) Value);

/// Adds an entry. An earlier value of the key is kept in an object of its own.
pub(super) fn insert(map: &mut Map<String, Value>, key: String, value: Value) {
    if let Some(old) = map.insert(key.clone(), value) {
        let twice = map.entry(TWICE).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(items) = twice {
            items.push(Value::Object(Map::from_iter([(key, old)])));
        }
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E>(self) -> Result<Document, E> {
        Ok(Document(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Document, E> {
        Ok(Document(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Document, E> {
        Ok(Document(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Document, E> {
        Ok(Document(Value::from(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Document, E> {
        Ok(Document(Value::from(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Document, E> {
        Ok(Document(Value::from(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Document, A::Error> {
        let mut list = Vec::new();
        while let Some(Document(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Document(Value::Array(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Document, A::Error> {
        let mut map = Map::new();
        while let Some((key, Document(value))) = entries.next_entry()? {
            insert(&mut map, key, value);
        }
        Ok(Document(Value::Object(map)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_twice_keep_all_values() {
        let text = r#"{"a": 1, "b": [{"c": "x", "c": null, "c": -2}], "a": 1.5}"#;
        let Document(value) = serde_json::from_str(text).expect("JSON");
        let expected = serde_json::json!({
            "a": 1.5,
            "b": [{ "c": -2, TWICE: [{ "c": "x" }, { "c": null }] }],
            TWICE: [{ "a": 1 }],
        });
        assert_eq!(value, expected);
    }
}
