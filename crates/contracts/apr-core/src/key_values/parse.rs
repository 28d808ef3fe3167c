//! Reading the pairs from JSON straight into their packed form, so that a vocabulary is never JSON
//! in memory.
//!
//! Only what [`KeyValues`] writes is read like this; other forms are left to the general way.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};

use super::value::number_of;
use super::wire::{self, ARRAY, TEXT};
use super::{FIELD, KeyValues, KeyValuesBuilder, MAX_DEPTH};

/// The entry of metadata that holds pairs, and these.
pub(crate) struct Header {
    pub(crate) fields: Map<String, Json>,
    pub(crate) pairs: Option<KeyValues>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header { fields: Map::new(), pairs: None };
                while let Some(name) = map.next_key::<String>()? {
                    if name == FIELD {
                        header.pairs = Some(map.next_value_seed(List)?);
                    } else {
                        let value = map.next_value()?;
                        header.fields.insert(name, value);
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

struct List;

impl<'de> DeserializeSeed<'de> for List {
    type Value = KeyValues;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<KeyValues, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List {
    type Value = KeyValues;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of pairs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<KeyValues, A::Error> {
        let (mut builder, mut value) = (KeyValuesBuilder::default(), Vec::new());
        while let Some(key) = list.next_element_seed(PairSeed(&mut value))? {
            builder.begin(&key).map_err(A::Error::custom)?;
            builder.bytes().extend_from_slice(&value);
        }
        builder.finish().map_err(A::Error::custom)
    }
}

/// Deserializes a pair: returns the key and stores the value in the vector.
struct PairSeed<'a>(&'a mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for PairSeed<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl PairSeed<'_> {
    /// Replaces the stored value by the next one, preceded by the number of its type.
    fn read_value<'de, A: MapAccess<'de>>(
        &mut self,
        map: &mut A,
        kind: u32,
        items: Option<u32>,
    ) -> Result<(), A::Error> {
        self.0.clear();
        self.0.extend(kind.to_le_bytes());
        let out = &mut *self.0;
        match (kind, items) {
            (ARRAY, Some(number)) => map.next_value_seed(Items { number, depth: 1, out }),
            (ARRAY, None) => Err(A::Error::custom("an array before the type of its items")),
            (number, _) => map.next_value_seed(Scalar { number, out }),
        }
    }
}

impl<'de> Visitor<'de> for PairSeed<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pair")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<String, A::Error> {
        let (mut key, mut kind, mut items, mut is_read) = (String::new(), None, None, false);
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            match &*name {
                "key" => key = map.next_value()?,
                "type" => kind = Some(next_type(&mut map)?),
                "items" => items = Some(next_type(&mut map)?),
                "value" => {
                    let kind = kind.ok_or_else(|| A::Error::custom("a value before its type"))?;
                    self.read_value(&mut map, kind, items)?;
                    is_read = true;
                }
                other => return Err(A::Error::custom(format!("a pair with '{other}'"))),
            }
        }

        if key.is_empty() || !is_read || (items.is_some() != (kind == Some(ARRAY))) {
            return Err(A::Error::custom("a pair without a key or a value"));
        }

        Ok(key)
    }
}

/// Reads the number of the next type.
fn next_type<'de, A: MapAccess<'de>>(map: &mut A) -> Result<u32, A::Error> {
    type_number(&map.next_value::<Cow<'_, str>>()?).map_err(A::Error::custom)
}

fn type_number(name: &str) -> Result<u32, &'static str> {
    if name == "array" { Ok(ARRAY) } else { number_of(name).ok_or("no type of a value") }
}

/// Reads a scalar or a text.
struct Scalar<'a> {
    number: u32,
    out: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for Scalar<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        macro_rules! number {
            ($type:ty) => {
                self.out.extend(<$type>::deserialize(deserializer)?.to_le_bytes())
            };
        }
        match self.number {
            0 => number!(u8),
            1 => number!(i8),
            2 => number!(u16),
            3 => number!(i16),
            4 => number!(u32),
            5 => number!(i32),
            7 => self.out.push(bool::deserialize(deserializer)?.into()),
            TEXT => return deserializer.deserialize_str(Text(self.out)),
            10 => number!(u64),
            11 => number!(i64),
            // Floats that JSON has no number for are objects.
            number => {
                let json = Json::deserialize(deserializer)?;
                let wrong = || D::Error::custom("no float of its type");
                match number {
                    6 => self.out.extend(
                        super::floats::f32_from_json(&json).ok_or_else(wrong)?.to_le_bytes(),
                    ),
                    _ => self.out.extend(
                        super::floats::f64_from_json(&json).ok_or_else(wrong)?.to_le_bytes(),
                    ),
                }
            }
        }

        Ok(())
    }
}

struct Text<'a>(&'a mut Vec<u8>);

impl Visitor<'_> for Text<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        wire::put_text(self.0, text);
        Ok(())
    }
}

/// Reads the items of an array.
struct Items<'a> {
    number: u32,
    depth: usize,
    out: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom("arrays are nested too deep"));
        }
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { number, depth, out } = self;
        out.extend(number.to_le_bytes());
        let place = out.len();
        wire::put_len(out, 0);
        let mut count = 0_u64;
        loop {
            let next = match number {
                ARRAY => list.next_element_seed(Nested { depth: depth + 1, out: &mut *out })?,
                _ => list.next_element_seed(Scalar { number, out: &mut *out })?,
            };
            if next.is_none() {
                break;
            }
            count += 1;
        }

        out[place..place + 8].copy_from_slice(&count.to_le_bytes());
        Ok(())
    }
}

/// Reads an array in an array.
struct Nested<'a> {
    depth: usize,
    out: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for Nested<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Nested<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array with the type of its items")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut items, mut is_read) = (None, false);
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            match (&*name, items) {
                ("items", _) => {
                    items = Some(next_type(&mut map)?);
                }
                ("value", Some(number)) if !is_read => {
                    map.next_value_seed(Items { number, depth: self.depth, out: &mut *self.out })?;
                    is_read = true;
                }
                _ => return Err(A::Error::custom("no array in an array")),
            }
        }

        if is_read { Ok(()) } else { Err(A::Error::custom("an array without a value")) }
    }
}
