//! The packed encoding: values to bytes, and back.

use alloc::string::String;
use alloc::vec::Vec;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::floats::{F32, F64};
use super::value::name_of;
use super::{Array, Value};

/// GGUF's number of an array.
pub(super) const ARRAY: u32 = 9;
/// GGUF's number of a text.
pub(super) const TEXT: u32 = 8;

pub(crate) fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend((len as u64).to_le_bytes());
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend(text.as_bytes());
}

/// Type and value.
pub(crate) fn put_value(out: &mut Vec<u8>, value: &Value) {
    out.extend(value.type_number().to_le_bytes());
    match value {
        Value::U8(value) => out.push(*value),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push((*value).into()),
        Value::String(text) => put_text(out, text),
        Value::U64(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
        Value::Array(items) => put_array(out, items),
    }
}

fn put_array(out: &mut Vec<u8>, items: &Array) {
    out.extend(items.type_number().to_le_bytes());
    put_len(out, items.len());
    match items {
        Array::U8(items) => out.extend(items),
        Array::I8(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::U16(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::I16(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::U32(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::I32(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::F32(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::Bool(items) => out.extend(items.iter().map(|&item| u8::from(item))),
        Array::String(items) => items.iter().for_each(|text| put_text(out, text)),
        Array::U64(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::I64(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::F64(items) => out.extend(items.iter().flat_map(|item| item.to_le_bytes())),
        Array::Array(items) => items.iter().for_each(|nested| put_array(out, nested)),
    }
}

/// Packed bytes, read from the front. Only what this crate or a reader that has checked it packed
/// is ever read, so what is cut off reads as nothing.
#[derive(Debug, Clone)]
pub(super) struct Wire<'a>(&'a [u8]);

impl<'a> Wire<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at_checked(len).unwrap_or((self.0, &[]));
        self.0 = rest;
        taken
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().unwrap_or([0; N])
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.number())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.number())
    }

    fn len(&mut self) -> usize {
        usize::try_from(self.u64()).unwrap_or(usize::MAX)
    }

    pub(super) fn text(&mut self) -> &'a str {
        let len = self.len();
        core::str::from_utf8(self.take(len)).unwrap_or_default()
    }

    fn all<const N: usize, T>(&mut self, count: usize, from: fn([u8; N]) -> T) -> Vec<T> {
        let bytes = self.take(count.saturating_mul(N));
        bytes.as_chunks::<N>().0.iter().map(|&number| from(number)).collect()
    }

    pub(super) fn value(&mut self) -> Value {
        match self.u32() {
            0 => Value::U8(u8::from_le_bytes(self.number())),
            1 => Value::I8(i8::from_le_bytes(self.number())),
            2 => Value::U16(u16::from_le_bytes(self.number())),
            3 => Value::I16(i16::from_le_bytes(self.number())),
            4 => Value::U32(u32::from_le_bytes(self.number())),
            5 => Value::I32(i32::from_le_bytes(self.number())),
            6 => Value::F32(f32::from_le_bytes(self.number())),
            7 => Value::Bool(self.number::<1>() != [0]),
            8 => Value::String(String::from(self.text())),
            10 => Value::U64(self.u64()),
            11 => Value::I64(i64::from_le_bytes(self.number())),
            12 => Value::F64(f64::from_le_bytes(self.number())),
            _ => Value::Array(self.array()),
        }
    }

    fn array(&mut self) -> Array {
        let (number, count) = (self.u32(), self.len());
        match number {
            0 => Array::U8(self.all(count, u8::from_le_bytes)),
            1 => Array::I8(self.all(count, i8::from_le_bytes)),
            2 => Array::U16(self.all(count, u16::from_le_bytes)),
            3 => Array::I16(self.all(count, i16::from_le_bytes)),
            4 => Array::U32(self.all(count, u32::from_le_bytes)),
            5 => Array::I32(self.all(count, i32::from_le_bytes)),
            6 => Array::F32(self.all(count, f32::from_le_bytes)),
            7 => Array::Bool(self.all(count, |byte: [u8; 1]| byte != [0])),
            8 => Array::String((0..count).map_while(|_| self.next_text()).collect()),
            10 => Array::U64(self.all(count, u64::from_le_bytes)),
            11 => Array::I64(self.all(count, i64::from_le_bytes)),
            12 => Array::F64(self.all(count, f64::from_le_bytes)),
            _ => Array::Array((0..count).map_while(|_| self.next_array()).collect()),
        }
    }

    fn next_text(&mut self) -> Option<String> {
        (!self.0.is_empty()).then(|| String::from(self.text()))
    }

    fn next_array(&mut self) -> Option<Array> {
        (!self.0.is_empty()).then(|| self.array())
    }

    /// Passes an array, and gives its bytes.
    fn skip_array(&mut self) -> &'a [u8] {
        let all = self.0;
        let (number, count) = (self.u32(), self.len());
        match number {
            TEXT => (0..count).for_each(|_| _ = self.text()),
            ARRAY => (0..count).for_each(|_| _ = self.skip_array()),
            other => _ = self.take(count.saturating_mul(width(other))),
        }
        &all[..all.len() - self.0.len()]
    }
}

/// Bytes of a number.
fn width(number: u32) -> usize {
    match number {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        _ => 8,
    }
}

/// Type and value, as the JSON of the value.
pub(super) struct WireValue<'a>(pub(super) &'a [u8]);

/// Type and number of items, and these.
struct WireArray<'a>(&'a [u8]);

impl Serialize for WireValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut wire = Wire::new(self.0);
        match wire.clone().u32() {
            TEXT => {
                wire.u32();
                serializer.serialize_str(wire.text())
            }
            ARRAY => {
                wire.u32();
                WireArray(wire.rest()).serialize(serializer)
            }
            _ => match wire.value() {
                Value::U8(value) => value.serialize(serializer),
                Value::I8(value) => value.serialize(serializer),
                Value::U16(value) => value.serialize(serializer),
                Value::I16(value) => value.serialize(serializer),
                Value::U32(value) => value.serialize(serializer),
                Value::I32(value) => value.serialize(serializer),
                Value::F32(value) => F32(value).serialize(serializer),
                Value::Bool(value) => value.serialize(serializer),
                Value::U64(value) => value.serialize(serializer),
                Value::I64(value) => value.serialize(serializer),
                Value::F64(value) => F64(value).serialize(serializer),
                Value::String(_) | Value::Array(_) => serializer.serialize_none(),
            },
        }
    }
}

impl Serialize for WireArray<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut wire = Wire::new(self.0);
        let (number, count) = (wire.u32(), wire.len());
        macro_rules! numbers {
            ($type:ty, $wrap:expr) => {{
                let (items, _) = wire.take(count.saturating_mul(size_of::<$type>())).as_chunks();
                serializer
                    .collect_seq(items.iter().map(|&item| $wrap(<$type>::from_le_bytes(item))))
            }};
        }
        match number {
            0 => serializer.collect_seq(wire.take(count)),
            1 => numbers!(i8, core::convert::identity::<i8>),
            2 => numbers!(u16, core::convert::identity::<u16>),
            3 => numbers!(i16, core::convert::identity::<i16>),
            4 => numbers!(u32, core::convert::identity::<u32>),
            5 => numbers!(i32, core::convert::identity::<i32>),
            6 => numbers!(f32, F32),
            7 => serializer.collect_seq(wire.take(count).iter().map(|&byte| byte != 0)),
            TEXT => serializer.collect_seq((0..count).map(|_| wire.text())),
            10 => numbers!(u64, core::convert::identity::<u64>),
            11 => numbers!(i64, core::convert::identity::<i64>),
            12 => numbers!(f64, F64),
            _ => serializer.collect_seq((0..count).map(|_| Nested(wire.skip_array()))),
        }
    }
}

/// An array in an array.
struct Nested<'a>(&'a [u8]);

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("items", name_of(Wire::new(self.0).u32()))?;
        map.serialize_entry("value", &WireArray(self.0))?;
        map.end()
    }
}
