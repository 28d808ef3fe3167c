//! Types of elements, as ONNX has them.

use std::fmt;

use apr_core::DType;
use serde::{Serialize, Serializer};

macro_rules! elements {
    ($(
        $(#[$doc:meta])* $variant:ident =
            $code:literal, $name:literal, $bits:literal, $dtype:expr;
    )*) => {
        /// The type of a tensor's elements while a graph computes. Quantized blocks are not among
        /// them: a weight that is stored so is dequantized where it is used.
        ///
        /// Names and numbers are those of `TensorProto.DataType` in `onnx.proto`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ElementType { $($(#[$doc])* $variant,)* }

        impl ElementType {
            /// Every type, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number in an ONNX file.
            #[must_use]
            pub const fn onnx_code(self) -> i32 {
                match self { $(Self::$variant => $code,)* }
            }

            /// Short name, as shown to users: `f32`, `i64`, `text`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Bits of an element; 0 for texts, which have any length.
            #[must_use]
            pub const fn bits(self) -> u64 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// Returns the checkpoint dtype with the same elements, or `None` if there is none.
            #[must_use]
            pub const fn dtype(self) -> Option<DType> {
                match self { $(Self::$variant => $dtype,)* }
            }
        }
    };
}

elements! {
    /// IEEE 754 single precision.
    F32 = 1, "f32", 32, Some(DType::F32);
    /// Unsigned 8-bit integer.
    U8 = 2, "u8", 8, Some(DType::U8);
    /// Signed 8-bit integer.
    I8 = 3, "i8", 8, Some(DType::I8);
    /// Unsigned 16-bit integer.
    U16 = 4, "u16", 16, Some(DType::U16);
    /// Signed 16-bit integer.
    I16 = 5, "i16", 16, Some(DType::I16);
    /// Signed 32-bit integer.
    I32 = 6, "i32", 32, Some(DType::I32);
    /// Signed 64-bit integer.
    I64 = 7, "i64", 64, Some(DType::I64);
    /// Text: bytes in UTF-8.
    Text = 8, "text", 0, None;
    /// True or false, in a byte.
    Bool = 9, "bool", 8, Some(DType::BOOL);
    /// IEEE 754 half precision.
    F16 = 10, "f16", 16, Some(DType::F16);
    /// IEEE 754 double precision.
    F64 = 11, "f64", 64, Some(DType::F64);
    /// Unsigned 32-bit integer.
    U32 = 12, "u32", 32, Some(DType::U32);
    /// Unsigned 64-bit integer.
    U64 = 13, "u64", 64, Some(DType::U64);
    /// Two F32: real, imaginary.
    C64 = 14, "c64", 64, Some(DType::C64);
    /// Two F64: real, imaginary.
    C128 = 15, "c128", 128, None;
    /// The upper half of an F32.
    BF16 = 16, "bf16", 16, Some(DType::BF16);
    /// 8-bit float with 4 exponent bits, finite.
    F8E4M3 = 17, "f8_e4m3", 8, Some(DType::F8_E4M3);
    /// 8-bit float with 4 exponent bits, finite, one zero.
    F8E4M3Fnuz = 18, "f8_e4m3fnuz", 8, Some(DType::F8_E4M3FNUZ);
    /// 8-bit float with 5 exponent bits.
    F8E5M2 = 19, "f8_e5m2", 8, Some(DType::F8_E5M2);
    /// 8-bit float with 5 exponent bits, finite, one zero.
    F8E5M2Fnuz = 20, "f8_e5m2fnuz", 8, Some(DType::F8_E5M2FNUZ);
    /// Unsigned 4-bit integer, two in a byte, the first in the low half.
    U4 = 21, "u4", 4, None;
    /// Signed 4-bit integer, two in a byte, the first in the low half.
    I4 = 22, "i4", 4, None;
    /// 4-bit float with 2 exponent bits, two in a byte.
    F4E2M1 = 23, "f4_e2m1", 4, None;
    /// 8 bits of exponent: a power of two.
    F8E8M0 = 24, "f8_e8m0", 8, Some(DType::F8_E8M0);
    /// Unsigned 2-bit integer, four in a byte.
    U2 = 25, "u2", 2, None;
    /// Signed 2-bit integer, four in a byte.
    I2 = 26, "i2", 2, None;
}

impl ElementType {
    /// The type with this number in an ONNX file.
    #[must_use]
    pub fn from_onnx_code(code: i32) -> Option<Self> {
        Self::ALL.iter().copied().find(|element| element.onnx_code() == code)
    }

    /// The type with the same elements as a checkpoint's dtype; `None` for quantized blocks.
    #[must_use]
    pub fn from_dtype(dtype: DType) -> Option<Self> {
        Self::ALL.iter().copied().find(|element| element.dtype() == Some(dtype))
    }

    /// Bytes of `count` elements, packed as ONNX packs them; `None` for texts, or past `u64`.
    #[must_use]
    pub fn stored_len(self, count: u64) -> Option<u64> {
        match self {
            Self::Text => None,
            _ => count.checked_mul(self.bits()).map(|bits| bits.div_ceil(8)),
        }
    }

    /// Returns `true` if the elements are floats of any width.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F32
                | Self::F16
                | Self::BF16
                | Self::F64
                | Self::F8E4M3
                | Self::F8E4M3Fnuz
                | Self::F8E5M2
                | Self::F8E5M2Fnuz
                | Self::F4E2M1
                | Self::F8E8M0
        )
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for ElementType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_onnx_come_back() {
        for &element in ElementType::ALL {
            assert_eq!(ElementType::from_onnx_code(element.onnx_code()), Some(element));
        }
        assert_eq!(ElementType::from_onnx_code(0), None, "UNDEFINED is no type");
    }

    #[test]
    fn small_elements_are_packed() {
        assert_eq!(ElementType::I4.stored_len(3), Some(2));
        assert_eq!(ElementType::F32.stored_len(3), Some(12));
        assert_eq!(ElementType::Text.stored_len(3), None);
        assert_eq!(ElementType::C128.stored_len(u64::MAX), None);
    }
}
