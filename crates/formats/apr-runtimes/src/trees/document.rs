//! JSON as XGBoost writes it: lists of numbers are kept as numbers alone.

use std::fmt;

use apr_core::{Error, Result};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::trees::numbers::whole;

/// Maximum number of lists and objects in each other.
pub(crate) const MAX_DEPTH: usize = 64;

/// A value of a document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    Nothing,
    Truth(bool),
    Number(f64),
    Text(String),
    Numbers(Vec<f64>),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Item {
    /// # Errors
    /// E001 for a document that is too deep, E002 for one that is malformed.
    pub(crate) fn of_json(bytes: &[u8]) -> Result<Self> {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let read = Depth(0).deserialize(&mut reader).and_then(|item| reader.end().map(|()| item));
        read.map_err(|error| {
            Error::corrupt(format!("the JSON is malformed: {}", apr_core::foreign(&error)))
        })
    }

    pub(crate) fn at(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(entries) => {
                entries.iter().find(|(own, _)| own == key).map(|(_, item)| item)
            }
            _ => None,
        }
    }

    /// Returns the value at a path of keys.
    pub(crate) fn under(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |item, key| item.at(key))
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the numbers of a list, which may be empty.
    pub(crate) fn numbers(&self) -> Option<&[f64]> {
        match self {
            Self::Numbers(numbers) => Some(numbers),
            Self::List(items) if items.is_empty() => Some(&[]),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            Self::Numbers(numbers) if numbers.is_empty() => Some(&[]),
            _ => None,
        }
    }

    /// Puts an item into a list, which is one of numbers as long as there is nothing else in it.
    pub(crate) fn push(&mut self, item: Self) {
        match (&mut *self, item) {
            (Self::Numbers(numbers), Self::Number(number)) => numbers.push(number),
            (Self::Numbers(numbers), item) => {
                let mut items: Vec<Self> = numbers.drain(..).map(Self::Number).collect();
                items.push(item);
                *self = Self::List(items);
            }
            (Self::List(items), item) => items.push(item),
            _ => {}
        }
    }

    /// Returns the value as metadata, without what `is_left_out` says of the keys.
    pub(crate) fn described(&self, is_left_out: &dyn Fn(&str) -> bool) -> Value {
        let number = |number: &f64| match whole(*number) {
            Some(whole) => Value::from(whole),
            None => serde_json::Number::from_f64(*number).map_or(Value::Null, Value::from),
        };
        match self {
            Self::Nothing => Value::Null,
            Self::Truth(truth) => (*truth).into(),
            Self::Number(one) => number(one),
            Self::Text(text) => text.as_str().into(),
            Self::Numbers(numbers) => numbers.iter().map(number).collect(),
            Self::List(items) => items.iter().map(|item| item.described(is_left_out)).collect(),
            Self::Object(entries) => {
                let entries = entries.iter().filter(|(key, _)| !is_left_out(key));
                let entries = entries.map(|(key, item)| (key.clone(), item.described(is_left_out)));
                entries.collect::<Map<String, Value>>().into()
            }
        }
    }
}

/// Reads an item within so many others.
#[derive(Clone, Copy)]
struct Depth(usize);

impl<'de> DeserializeSeed<'de> for Depth {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Item, D::Error> {
        if self.0 > MAX_DEPTH {
            return Err(serde::de::Error::custom("too many lists and objects are in each other"));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Depth {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item::Nothing)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Item, E> {
        Ok(Item::Truth(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Item, E> {
        Ok(Item::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Item, E> {
        Ok(Item::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Item, E> {
        Ok(Item::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
        let mut all = Item::Numbers(Vec::new());
        while let Some(item) = items.next_element_seed(Depth(self.0 + 1))? {
            all.push(item);
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Item, A::Error> {
        let mut all = Vec::new();
        while let Some(key) = entries.next_key::<Key>()? {
            all.push((key.0, entries.next_value_seed(Depth(self.0 + 1))?));
        }
        Ok(Item::Object(all))
    }
}

struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        String::deserialize(reader).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_are_kept_as_numbers() {
        let item = Item::of_json(br#"{"a": [1, 2.5], "b": [1, "x"], "c": {"d": []}}"#);
        let item = item.expect("JSON");
        assert_eq!(item.at("a").and_then(Item::numbers), Some(&[1.0, 2.5][..]));
        assert_eq!(item.at("b").and_then(Item::list).map(<[Item]>::len), Some(2));
        assert_eq!(item.under(&["c", "d"]).and_then(Item::numbers), Some(&[][..]));
        let described = item.described(&|key| key == "a");
        assert_eq!(described, serde_json::json!({"b": [1, "x"], "c": {"d": []}}));
    }

    #[test]
    fn malformed_and_deep_documents_are_errors() {
        for bad in [&b"{"[..], b"[1,]", b"{} x", b"\xff"] {
            assert!(Item::of_json(bad).is_err(), "{bad:?}");
        }
        let deep = [vec![b'['; 100], vec![b']'; 100]].concat();
        assert!(Item::of_json(&deep).is_err());
    }
}
