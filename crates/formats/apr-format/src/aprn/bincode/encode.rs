//! Values to bytes.

use alloc::format;
use alloc::vec::Vec;

use serde::ser::{self, Serialize};

use super::{MAX_DEPTH, PayloadError};

type Result<T = (), E = PayloadError> = core::result::Result<T, E>;

/// Returns the bytes of `value`.
///
/// # Errors
/// When a sequence does not know its length, or values nest deeper than [`MAX_DEPTH`].
pub fn to_bytes<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    let mut encoder = Encoder { bytes: Vec::new(), depth: 0 };
    value.serialize(&mut encoder)?;
    Ok(encoder.bytes)
}

struct Encoder {
    bytes: Vec<u8>,
    depth: usize,
}

impl Encoder {
    fn len(&mut self, len: Option<usize>) -> Result {
        let len = len.ok_or_else(|| {
            PayloadError("a sequence without a known length can't be written".into())
        })?;
        self.bytes.extend_from_slice(&(len as u64).to_le_bytes());
        Ok(())
    }

    fn enter(&mut self) -> Result {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(PayloadError(format!("the model nests deeper than {MAX_DEPTH} levels")));
        }
        Ok(())
    }

    fn open(&mut self) -> Result<Fields<'_>> {
        self.enter()?;
        Ok(Fields(self))
    }

    fn nested<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        self.enter()?;
        value.serialize(&mut *self)?;
        self.depth -= 1;
        Ok(())
    }
}

macro_rules! fixed_width {
    ($($method:ident $type:ty),* $(,)?) => {$(
        fn $method(self, value: $type) -> Result {
            self.bytes.extend_from_slice(&value.to_le_bytes());
            Ok(())
        }
    )*};
}

impl<'a> ser::Serializer for &'a mut Encoder {
    type Ok = ();
    type Error = PayloadError;
    type SerializeSeq = Fields<'a>;
    type SerializeTuple = Fields<'a>;
    type SerializeTupleStruct = Fields<'a>;
    type SerializeTupleVariant = Fields<'a>;
    type SerializeMap = Fields<'a>;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Fields<'a>;

    fixed_width! {
        serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64,
        serialize_i128 i128, serialize_u128 u128,
        serialize_f32 f32, serialize_f64 f64,
    }

    fn serialize_bool(self, value: bool) -> Result {
        self.bytes.push(value.into());
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result {
        self.bytes.extend_from_slice(value.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result {
        self.serialize_bytes(value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result {
        self.len(Some(value.len()))?;
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    fn serialize_none(self) -> Result {
        self.bytes.push(0);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result {
        self.bytes.push(1);
        self.nested(value)
    }

    fn serialize_unit(self) -> Result {
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result {
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
    ) -> Result {
        self.nested(&index)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> Result {
        self.nested(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        value: &T,
    ) -> Result {
        self.serialize_u32(index)?;
        self.nested(value)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Fields<'a>> {
        self.len(len)?;
        self.open()
    }

    fn serialize_tuple(self, _len: usize) -> Result<Fields<'a>> {
        self.open()
    }

    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Fields<'a>> {
        self.open()
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Fields<'a>> {
        self.serialize_u32(index)?;
        self.open()
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Fields<'a>> {
        self.len(len)?;
        self.open()
    }

    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<Fields<'a>> {
        self.open()
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Fields<'a>> {
        self.serialize_u32(index)?;
        self.open()
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Serializer of the parts of a compound value, one after the other.
struct Fields<'a>(&'a mut Encoder);

macro_rules! compound {
    ($($trait:ident $method:ident),*) => {$(
        impl ser::$trait for Fields<'_> {
            type Ok = ();
            type Error = PayloadError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
                value.serialize(&mut *self.0)
            }

            fn end(self) -> Result {
                self.0.depth -= 1;
                Ok(())
            }
        }
    )*};
}

compound! {
    SerializeSeq serialize_element, SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field
}

macro_rules! named {
    ($($trait:ident),*) => {$(
        impl ser::$trait for Fields<'_> {
            type Ok = ();
            type Error = PayloadError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _key: &'static str,
                value: &T,
            ) -> Result {
                value.serialize(&mut *self.0)
            }

            fn end(self) -> Result {
                self.0.depth -= 1;
                Ok(())
            }
        }
    )*};
}

named! { SerializeStruct, SerializeStructVariant }

impl ser::SerializeMap for Fields<'_> {
    type Ok = ();
    type Error = PayloadError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result {
        key.serialize(&mut *self.0)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        value.serialize(&mut *self.0)
    }

    fn end(self) -> Result {
        self.0.depth -= 1;
        Ok(())
    }
}
