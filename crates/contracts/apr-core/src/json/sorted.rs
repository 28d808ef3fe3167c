//! JSON whose maps are in the order of their keys, whatever order they were made in.

#![expect(clippy::disallowed_methods, reason = "what all others go through")]

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::mem::take;

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::{Map, Value};

/// Serializes a value as compact JSON, sorted like [`Sorted`].
///
/// # Errors
/// Returns the errors of the value's own implementation.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Sorted(value))
}

/// Serializes a value as indented JSON, sorted like [`Sorted`].
///
/// # Errors
/// Returns the errors of the value's own implementation.
pub fn to_vec_pretty<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec_pretty(&Sorted(value))
}

/// Serializes a value as a string of compact JSON, sorted like [`Sorted`].
///
/// # Errors
/// Returns the errors of the value's own implementation.
pub fn to_string<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    serde_json::to_string(&Sorted(value))
}

/// Serializes a value as a string of indented JSON, sorted like [`Sorted`].
///
/// # Errors
/// Returns the errors of the value's own implementation.
pub fn to_string_pretty<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Sorted(value))
}

/// Returns a value as compact JSON, sorted like [`Sorted`].
#[must_use]
pub fn text(value: &Value) -> String {
    to_string(value).unwrap_or_else(|_| unreachable!("keys of objects are texts"))
}

/// The entries of an object by the order of their keys.
pub fn entries(object: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> + use<'_> {
    let mut entries: Vec<_> = object.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    entries.into_iter()
}

/// A value whose maps are serialized in the order of their keys, at every depth.
///
/// A [`Map`] has the order in which it was made, and so has what is parsed. What is written is the
/// same for the same value: bytes that are signed, digested or compared do not depend on it.
///
/// Fields of structs keep their order. So do the entries of a map that states no length
/// (`serialize_map(None)`), by which an implementation of `Serialize` says that their order counts,
/// and of one whose keys are no texts.
///
/// ```
/// use apr_core::json::Sorted;
///
/// let value: serde_json::Value = serde_json::from_str(r#"{"b": {"d": 1, "c": 2}, "a": 3}"#)?;
/// assert_eq!(serde_json::to_string(&Sorted(&value))?, r#"{"a":3,"b":{"c":2,"d":1}}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Sorted<T>(pub T);

impl<T: Serialize> Serialize for Sorted<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Sorting { inner: serializer, is_tree: false })
    }
}

/// A value nested in a sorted value.
struct Within<'a, T: ?Sized> {
    value: &'a T,
    is_tree: bool,
}

impl<T: Serialize + ?Sized> Serialize for Within<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Sorting { inner: serializer, is_tree: self.is_tree })
    }
}

/// Hands everything on, and maps in the order of their keys.
struct Sorting<S> {
    inner: S,
    /// `true` if the inner serializer creates a [`Value`], which has no single precision.
    is_tree: bool,
}

/// Hands on the parts of a list or a struct.
struct Parts<C> {
    inner: C,
    is_tree: bool,
}

/// Keeps the entries of a map until all are there.
struct Entries<C> {
    inner: C,
    is_tree: bool,
    key: String,
    /// Entries kept so far; `None` if entries are passed on immediately.
    kept: Option<Vec<(String, Value)>>,
}

macro_rules! hand_on {
    ($($name:ident: $kind:ty,)*) => {
        $(fn $name(self, value: $kind) -> Result<S::Ok, S::Error> {
            self.inner.$name(value)
        })*
    };
}

impl<S: Serializer> Serializer for Sorting<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Parts<S::SerializeSeq>;
    type SerializeTuple = Parts<S::SerializeTuple>;
    type SerializeTupleStruct = Parts<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Parts<S::SerializeTupleVariant>;
    type SerializeMap = Entries<S::SerializeMap>;
    type SerializeStruct = Parts<S::SerializeStruct>;
    type SerializeStructVariant = Parts<S::SerializeStructVariant>;

    hand_on! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_i128: i128,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_u128: u128,
        serialize_f64: f64,
        serialize_char: char,
        serialize_str: &str,
        serialize_bytes: &[u8],
    }

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        // A tree would widen it, and be written with digits that it does not have.
        match alloc::format!("{value}").parse() {
            Ok(digits) if self.is_tree => self.inner.serialize_f64(digits),
            _ => self.inner.serialize_f32(value),
        }
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.serialize_some(&Within { value, is_tree: self.is_tree })
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit()
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_struct(name)
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_newtype_struct(name, &Within { value, is_tree: self.is_tree })
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let value = Within { value, is_tree: self.is_tree };
        self.inner.serialize_newtype_variant(name, index, variant, &value)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        Ok(Parts { inner: self.inner.serialize_seq(len)?, is_tree: self.is_tree })
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        Ok(Parts { inner: self.inner.serialize_tuple(len)?, is_tree: self.is_tree })
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        let inner = self.inner.serialize_tuple_struct(name, len)?;
        Ok(Parts { inner, is_tree: self.is_tree })
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        let inner = self.inner.serialize_tuple_variant(name, index, variant, len)?;
        Ok(Parts { inner, is_tree: self.is_tree })
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        let inner = self.inner.serialize_map(len)?;
        let kept = len.map(|_| Vec::new());
        Ok(Entries { inner, is_tree: self.is_tree, key: String::new(), kept })
    }

    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, S::Error> {
        Ok(Parts { inner: self.inner.serialize_struct(name, len)?, is_tree: self.is_tree })
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        let inner = self.inner.serialize_struct_variant(name, index, variant, len)?;
        Ok(Parts { inner, is_tree: self.is_tree })
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! parts {
    ($($kind:ident: $name:ident,)*) => {
        $(impl<C: $kind> $kind for Parts<C> {
            type Ok = C::Ok;
            type Error = C::Error;

            fn $name<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
                self.inner.$name(&Within { value, is_tree: self.is_tree })
            }

            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
            }
        })*
    };
}

parts! {
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field,
}

macro_rules! fields {
    ($($kind:ident,)*) => {
        $(impl<C: $kind> $kind for Parts<C> {
            type Ok = C::Ok;
            type Error = C::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), C::Error> {
                self.inner.serialize_field(key, &Within { value, is_tree: self.is_tree })
            }

            fn skip_field(&mut self, key: &'static str) -> Result<(), C::Error> {
                self.inner.skip_field(key)
            }

            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
            }
        })*
    };
}

fields! {
    SerializeStruct,
    SerializeStructVariant,
}

impl<C: SerializeMap> Entries<C> {
    /// Passes the kept entries on.
    fn hand_on(&mut self) -> Result<(), C::Error> {
        let kept = self.kept.take().into_iter().flatten();
        for (key, value) in kept {
            self.inner.serialize_entry(&key, &value)?;
        }
        Ok(())
    }
}

impl<C: SerializeMap> SerializeMap for Entries<C> {
    type Ok = C::Ok;
    type Error = C::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), C::Error> {
        if self.kept.is_none() {
            return self.inner.serialize_key(key);
        }
        match serde_json::to_value(key) {
            Ok(Value::String(key)) => {
                self.key = key;
                Ok(())
            }
            // The order of numbers is not that of their digits.
            _ => {
                self.hand_on()?;
                self.inner.serialize_key(key)
            }
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
        match &mut self.kept {
            Some(kept) => {
                let value = serde_json::to_value(Within { value, is_tree: true });
                kept.push((take(&mut self.key), value.map_err(C::Error::custom)?));
                Ok(())
            }
            None => self.inner.serialize_value(&Within { value, is_tree: self.is_tree }),
        }
    }

    fn end(mut self) -> Result<C::Ok, C::Error> {
        if let Some(kept) = &mut self.kept {
            kept.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        self.hand_on()?;
        self.inner.end()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    /// A report with the kinds of data for which serde derives different calls.
    #[derive(serde::Serialize)]
    struct Report {
        second: Value,
        first: f32,
        of_numbers: BTreeMap<u32, f32>,
        of_texts: BTreeMap<&'static str, Nested>,
        kind: Kind,
        #[serde(flatten)]
        rest: Nested,
    }

    #[derive(Clone, serde::Serialize)]
    struct Nested {
        z: Option<f32>,
        a: (u8, Value),
    }

    #[derive(serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Tagged { z: Value, a: () },
    }

    fn unsorted(text: &str) -> Value {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn maps_are_sorted_at_every_depth_and_structs_keep_their_order() {
        let nested = Nested { z: Some(0.1), a: (1, unsorted(r#"{"y":1,"x":{"c":1,"b":2}}"#)) };
        let report = Report {
            second: unsorted(r#"{"b":[{"d":1,"c":2}],"a":"é"}"#),
            first: 0.1,
            of_numbers: [(9, 0.1), (10, 1e-9)].into(),
            of_texts: [("n", nested.clone())].into(),
            kind: Kind::Tagged { z: unsorted(r#"{"b":1,"a":2}"#), a: () },
            rest: nested,
        };
        let expected = concat!(
            r#"{"second":{"a":"é","b":[{"c":2,"d":1}]},"first":0.1,"#,
            r#""of_numbers":{"9":0.1,"10":1e-9},"#,
            r#""of_texts":{"n":{"z":0.1,"a":[1,{"x":{"b":2,"c":1},"y":1}]}},"#,
            r#""kind":{"tagged":{"z":{"a":2,"b":1},"a":null}},"#,
            r#""z":0.1,"a":[1,{"x":{"b":2,"c":1},"y":1}]}"#,
        );
        assert_eq!(to_string(&report).expect("JSON"), expected);
        let pretty = to_string_pretty(&report).expect("JSON");
        let plain: Value = serde_json::from_str(expected).expect("JSON");
        assert_eq!(pretty, serde_json::to_string_pretty(&plain).expect("JSON"));
        assert_eq!(to_vec(&report).expect("JSON"), expected.as_bytes());
        assert_eq!(to_vec_pretty(&report).expect("JSON"), pretty.as_bytes());
    }

    #[test]
    fn sorting_changes_only_the_order() {
        let value = json!({ "b": [null, true, -1, 1.5, 18_446_744_073_709_551_615_u64], "a": {} });
        let sorted = to_string(&value).expect("JSON");
        assert_eq!(sorted, r#"{"a":{},"b":[null,true,-1,1.5,18446744073709551615]}"#);
        assert_eq!(unsorted(&sorted), value);
        let keys = entries(value.as_object().expect("an object")).map(|(key, _)| key.as_str());
        assert_eq!(keys.collect::<Vec<_>>(), ["a", "b"]);
    }
}
