//! Bytes to values.

use alloc::format;
use alloc::string::ToString;

use serde::de::value::U32Deserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};

use super::{MAX_DEPTH, PayloadError};

type Result<T, E = PayloadError> = core::result::Result<T, E>;

/// Decodes the value in `bytes`, which must contain nothing else.
///
/// # Errors
/// When the bytes are not a `T`: too few, too many, a tag that is neither 0 nor 1, a length past
/// the end, text that is not UTF-8, an unknown variant, or nesting deeper than [`MAX_DEPTH`]. A
/// sequence of values that take no bytes is rejected when it is longer than what follows it.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut decoder = Decoder { bytes, len: bytes.len(), depth: 0 };
    let value = T::deserialize(&mut decoder)?;
    match decoder.bytes.len() {
        0 => Ok(value),
        left => Err(decoder.error(&format!("{left} bytes are left over"))),
    }
}

struct Decoder<'de> {
    /// Bytes that are left.
    bytes: &'de [u8],
    /// Length of the whole payload.
    len: usize,
    depth: usize,
}

impl<'de> Decoder<'de> {
    fn error(&self, what: &str) -> PayloadError {
        PayloadError(format!("{what} (at byte {} of the payload)", self.len - self.bytes.len()))
    }

    fn take(&mut self, len: usize) -> Result<&'de [u8]> {
        let Some((taken, left)) = self.bytes.split_at_checked(len) else {
            return Err(
                self.error(&format!("{len} bytes are needed, {} are left", self.bytes.len()))
            );
        };
        self.bytes = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((taken, left)) = self.bytes.split_first_chunk() else {
            return Err(self.error(&format!("{N} bytes are needed, {} are left", self.bytes.len())));
        };
        self.bytes = left;
        Ok(*taken)
    }

    /// Reads a length prefix. It must not exceed the bytes left, since every counted item takes at
    /// least one byte.
    fn length(&mut self) -> Result<usize> {
        let stated = u64::from_le_bytes(self.array()?);
        let len = usize::try_from(stated).ok().filter(|&len| len <= self.bytes.len());
        len.ok_or_else(|| {
            self.error(&format!("a length of {stated}, with {} bytes left", self.bytes.len()))
        })
    }

    fn text(&mut self) -> Result<&'de str> {
        let len = self.length()?;
        let bytes = self.take(len)?;
        core::str::from_utf8(bytes).map_err(|_| self.error("text that is not UTF-8"))
    }

    /// Reads a tag byte, 0 or 1.
    fn tag(&mut self, what: &str) -> Result<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.error(&format!("{other} is not a valid {what}"))),
        }
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(&format!("the payload nests deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn items<V: Visitor<'de>>(&mut self, left: usize, visitor: V) -> Result<V::Value> {
        self.nested(|decoder| visitor.visit_seq(Items { decoder, left }))
    }
}

macro_rules! fixed_width {
    ($($method:ident $visit:ident $type:ty),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            visitor.$visit(<$type>::from_le_bytes(self.array()?))
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = PayloadError;

    fixed_width! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64, deserialize_i128 visit_i128 i128,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_u128 visit_u128 u128,
        deserialize_f32 visit_f32 f32, deserialize_f64 visit_f64 f64,
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value> {
        Err(self.error("a payload does not describe its contents; the type must know them"))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_bool(self.tag("bool")?)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let first = *self.bytes.first().unwrap_or(&0);
        let len = match first {
            0..0x80 => 1,
            0x80..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        let text = core::str::from_utf8(self.take(len)?).ok().and_then(|text| text.chars().next());
        visitor.visit_char(text.ok_or_else(|| self.error("a character that is not UTF-8"))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_string(self.text()?.to_string())
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let len = self.length()?;
        visitor.visit_borrowed_bytes(self.take(len)?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.tag("option's tag")? {
            false => visitor.visit_none(),
            true => self.nested(|decoder| visitor.visit_some(decoder)),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        self.nested(|decoder| visitor.visit_newtype_struct(decoder))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let len = self.length()?;
        self.items(len, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        self.items(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.items(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let left = self.length()?;
        self.nested(|decoder| visitor.visit_map(Items { decoder, left }))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.items(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.nested(|decoder| visitor.visit_enum(Variant(decoder)))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value> {
        Err(self.error("a payload holds no names of fields"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value> {
        Err(self.error("a payload has no fields that can be skipped"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The parts of a compound value.
struct Items<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'_, 'de> {
    type Error = PayloadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> de::MapAccess<'de> for Items<'_, 'de> {
    type Error = PayloadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        seed.deserialize(&mut *self.decoder)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// An enum's variant: its position, then its fields.
struct Variant<'a, 'de>(&'a mut Decoder<'de>);

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = PayloadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self)> {
        let index = u32::from_le_bytes(self.0.array()?);
        let index: U32Deserializer<PayloadError> = index.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = PayloadError;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        seed.deserialize(self.0)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        visitor.visit_seq(Items { decoder: self.0, left: len })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_seq(Items { decoder: self.0, left: fields.len() })
    }
}
