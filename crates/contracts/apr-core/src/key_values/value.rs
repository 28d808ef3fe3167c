//! Typed values of GGUF's key-value pairs.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A key with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyValue {
    /// Key of the pair, such as `llama.attention.head_count`.
    pub key: String,
    /// Typed value of the pair.
    pub value: Value,
}

impl KeyValue {
    /// Creates a pair of a key and a value.
    #[must_use]
    pub fn new(key: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}

macro_rules! values {
    ($($(#[$doc:meta])* $variant:ident($rust:ty) = $number:literal, $name:literal;)*) => {
        /// A value of one of GGUF's types.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Value {
            $($(#[$doc])* $variant($rust),)*
            /// Many of one type.
            Array(Array),
        }

        /// Values of one type.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Array {
            $($(#[$doc])* $variant(Vec<$rust>),)*
            /// Arrays in an array.
            Array(Vec<Array>),
        }

        impl Value {
            /// GGUF's number of the type.
            #[must_use]
            pub const fn type_number(&self) -> u32 {
                match self { $(Self::$variant(_) => $number,)* Self::Array(_) => 9 }
            }

            /// Name of the type: `u32`, `string`, `array`.
            #[must_use]
            pub const fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* Self::Array(_) => "array" }
            }
        }

        impl Array {
            /// GGUF's number of the items' type.
            #[must_use]
            pub const fn type_number(&self) -> u32 {
                match self { $(Self::$variant(_) => $number,)* Self::Array(_) => 9 }
            }

            /// Name of the items' type.
            #[must_use]
            pub const fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* Self::Array(_) => "array" }
            }

            /// Number of items.
            #[must_use]
            pub const fn len(&self) -> usize {
                match self {
                    $(Self::$variant(items) => items.len(),)*
                    Self::Array(items) => items.len(),
                }
            }

            /// Returns `true` if there are no items.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }

        /// Name of the type of a number.
        pub(super) fn name_of(number: u32) -> &'static str {
            match number { $($number => $name,)* _ => "array" }
        }

        /// Number of the type of a name, of a scalar or a text.
        pub(super) fn number_of(name: &str) -> Option<u32> {
            match name { $($name => Some($number),)* _ => None }
        }

        $(
            impl From<$rust> for Value {
                fn from(value: $rust) -> Self {
                    Self::$variant(value)
                }
            }

            impl From<Vec<$rust>> for Value {
                fn from(items: Vec<$rust>) -> Self {
                    Self::Array(Array::$variant(items))
                }
            }
        )*
    };
}

values! {
    /// Unsigned, 8 bits.
    U8(u8) = 0, "u8";
    /// Signed, 8 bits.
    I8(i8) = 1, "i8";
    /// Unsigned, 16 bits.
    U16(u16) = 2, "u16";
    /// Signed, 16 bits.
    I16(i16) = 3, "i16";
    /// Unsigned, 32 bits.
    U32(u32) = 4, "u32";
    /// Signed, 32 bits.
    I32(i32) = 5, "i32";
    /// Single precision.
    F32(f32) = 6, "f32";
    /// One byte, 0 or 1.
    Bool(bool) = 7, "bool";
    /// UTF-8 text.
    String(String) = 8, "string";
    /// Unsigned, 64 bits.
    U64(u64) = 10, "u64";
    /// Signed, 64 bits.
    I64(i64) = 11, "i64";
    /// Double precision.
    F64(f64) = 12, "f64";
}

impl Value {
    /// The text, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is an integer of any type and not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::I8(value) => value.try_into().ok(),
            Self::U16(value) => Some(value.into()),
            Self::I16(value) => value.try_into().ok(),
            Self::U32(value) => Some(value.into()),
            Self::I32(value) => value.try_into().ok(),
            Self::U64(value) => Some(value),
            Self::I64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// The number, if it is an integer of any type, and not beyond `i64`.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::I64(value) => Some(value),
            _ => self.as_u64()?.try_into().ok(),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl fmt::Display for Value {
    /// Formats scalars as they are, and arrays by type and length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(value) => value.fmt(f),
            Self::I8(value) => value.fmt(f),
            Self::U16(value) => value.fmt(f),
            Self::I16(value) => value.fmt(f),
            Self::U32(value) => value.fmt(f),
            Self::I32(value) => value.fmt(f),
            Self::F32(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::String(value) => value.fmt(f),
            Self::U64(value) => value.fmt(f),
            Self::I64(value) => value.fmt(f),
            Self::F64(value) => value.fmt(f),
            Self::Array(items) => write!(f, "{} x {}", items.len(), items.type_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn integers_of_every_type_are_read_alike() {
        let unsigned = [Value::from(7_u8), 7_u16.into(), 7_u32.into(), 7_u64.into()];
        let signed = [Value::from(7_i8), 7_i16.into(), 7_i32.into(), 7_i64.into()];
        for value in unsigned.iter().chain(&signed) {
            assert_eq!((value.as_u64(), value.as_i64()), (Some(7), Some(7)), "{value:?}");
        }
        for value in [Value::from(-1_i8), (-1_i16).into(), (-1_i32).into(), (-1_i64).into()] {
            assert_eq!((value.as_u64(), value.as_i64()), (None, Some(-1)), "{value:?}");
        }
        for value in
            [Value::from(7.0_f32), 7.0_f64.into(), true.into(), "7".into(), vec![7_u8].into()]
        {
            assert_eq!((value.as_u64(), value.as_i64()), (None, None), "{value:?}");
        }
        assert_eq!(Value::from(u64::MAX).as_i64(), None);
    }

    #[test]
    fn scalars_are_shown_as_they_are_and_arrays_by_type_and_length() {
        let scalars = [
            (Value::from(200_u8), "200"),
            ((-3_i8).into(), "-3"),
            (60_000_u16.into(), "60000"),
            ((-300_i16).into(), "-300"),
            (4_000_000_000_u32.into(), "4000000000"),
            ((-70_000_i32).into(), "-70000"),
            (0.5_f32.into(), "0.5"),
            (false.into(), "false"),
            ("llama".into(), "llama"),
            (u64::MAX.into(), "18446744073709551615"),
            (i64::MIN.into(), "-9223372036854775808"),
            (0.25_f64.into(), "0.25"),
        ];
        for (value, shown) in scalars {
            assert_eq!(value.to_string(), shown);
        }
        assert_eq!(Value::from(vec![1.0_f32, 2.0]).to_string(), "2 x f32");
        assert_eq!(Value::from("text").as_str(), Some("text"));
        assert_eq!(Value::from(1_u8).as_str(), None);
    }
}
