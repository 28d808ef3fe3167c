//! Element and block types, with the numbers APR2 stores them under (`docs/format/apr2.md`,
//! "Dtypes").

use core::fmt;

use serde::{Serialize, Serializer};

use crate::Shape;

/// Kind of the elements of a dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DTypeKind {
    /// IEEE or bfloat floats of 16 to 64 bits.
    Float,
    /// Floats of 4 to 8 bits, without block scales of their own.
    MiniFloat,
    /// Signed or unsigned integers.
    Integer,
    /// One byte, 0 or 1.
    Bool,
    /// Pairs of floats.
    Complex,
    /// Blocks or rows of small integers with scales.
    Quantized,
}

macro_rules! dtypes {
    ($(
        $(#[$doc:meta])* $variant:ident =
            $code:expr, $name:literal, $kind:ident, $block_len:literal, $block_bytes:literal;
    )*) => {
        /// The type of a tensor's stored elements.
        ///
        /// A dtype stores `block_len` elements in `block_bytes` bytes, little-endian. Plain types
        /// have blocks of one element.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(non_camel_case_types, reason = "the field writes Q4_K and F8_E4M3")]
        #[non_exhaustive]
        pub enum DType { $($(#[$doc])* $variant,)* }

        impl DType {
            /// Every dtype, in the order of their APR2 codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number in an APR2 index entry.
            #[must_use]
            pub const fn apr2_code(self) -> u8 {
                match self { $(Self::$variant => $code,)* }
            }

            /// Lower-case name, as shown to users: `f32`, `bf16`, `q4_k`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the kind of the elements.
            #[must_use]
            pub const fn kind(self) -> DTypeKind {
                match self { $(Self::$variant => DTypeKind::$kind,)* }
            }

            /// Elements in a block.
            #[must_use]
            pub const fn block_len(self) -> u64 {
                match self { $(Self::$variant => $block_len,)* }
            }

            /// Returns the bytes of a block.
            ///
            /// For [`DType::I8_ROW`], returns the bytes of an element of a row, without the scale
            /// of the row.
            #[must_use]
            pub const fn block_bytes(self) -> u64 {
                match self { $(Self::$variant => $block_bytes,)* }
            }
        }
    };
}

dtypes! {
    /// IEEE 754 single precision.
    F32 = 0, "f32", Float, 1, 4;
    /// IEEE 754 half precision.
    F16 = 1, "f16", Float, 1, 2;
    /// The upper half of an F32.
    BF16 = 2, "bf16", Float, 1, 2;
    /// Signed 8-bit integer.
    I8 = 3, "i8", Integer, 1, 1;
    /// Signed 16-bit integer.
    I16 = 4, "i16", Integer, 1, 2;
    /// Signed 32-bit integer.
    I32 = 5, "i32", Integer, 1, 4;
    /// Signed 64-bit integer.
    I64 = 6, "i64", Integer, 1, 8;
    /// Unsigned 8-bit integer.
    U8 = 7, "u8", Integer, 1, 1;
    /// IEEE 754 double precision.
    F64 = 8, "f64", Float, 1, 8;
    /// One byte, 0 or 1.
    BOOL = 9, "bool", Bool, 1, 1;
    /// Unsigned 16-bit integer.
    U16 = 10, "u16", Integer, 1, 2;
    /// Unsigned 32-bit integer.
    U32 = 11, "u32", Integer, 1, 4;
    /// Unsigned 64-bit integer.
    U64 = 12, "u64", Integer, 1, 8;
    /// OCP 8-bit float, 4 exponent bits, finite (NaN but no infinity).
    F8_E4M3 = 13, "f8_e4m3", MiniFloat, 1, 1;
    /// OCP 8-bit float, 5 exponent bits.
    F8_E5M2 = 14, "f8_e5m2", MiniFloat, 1, 1;
    /// Two F32: real, imaginary.
    C64 = 15, "c64", Complex, 1, 8;
    /// ggml block of 32: f16 scale, 32 i8.
    Q8_0 = 16, "q8_0", Quantized, 32, 34;
    /// ggml block of 32: f16 scale, 16 bytes of nibbles.
    Q4_0 = 17, "q4_0", Quantized, 32, 18;
    /// ggml block of 32: f16 scale, f16 minimum, 16 bytes of nibbles.
    Q4_1 = 18, "q4_1", Quantized, 32, 20;
    /// ggml block of 32: f16 scale, 4 bytes of fifth bits, 16 bytes of nibbles.
    Q5_0 = 19, "q5_0", Quantized, 32, 22;
    /// ggml block of 32: f16 scale, f16 minimum, 4 bytes of fifth bits, 16 bytes of nibbles.
    Q5_1 = 20, "q5_1", Quantized, 32, 24;
    /// Rows of i8 after one f32 scale a row (`docs/format/apr2.md`, "Dtypes").
    I8_ROW = 21, "i8_row", Quantized, 1, 1;
    /// Groups of 32 along the row: f16 scale, 16 bytes of nibbles (`docs/format/apr2.md`,
    /// "Dtypes").
    I4_ROW = 22, "i4_row", Quantized, 32, 18;
    /// OCP MX scale: 8 exponent bits, no sign.
    F8_E8M0 = 23, "f8_e8m0", MiniFloat, 1, 1;
    /// OCP MX 6-bit float, 2 exponent bits; four elements in three bytes.
    F6_E2M3 = 24, "f6_e2m3", MiniFloat, 4, 3;
    /// OCP MX 6-bit float, 3 exponent bits; four elements in three bytes.
    F6_E3M2 = 25, "f6_e3m2", MiniFloat, 4, 3;
    /// OCP MX 4-bit float; two elements a byte.
    F4_E2M1 = 26, "f4_e2m1", MiniFloat, 2, 1;
    /// 8-bit float of AMD and Graphcore, 4 exponent bits, finite, without a negative zero.
    F8_E4M3FNUZ = 27, "f8_e4m3fnuz", MiniFloat, 1, 1;
    /// 8-bit float of AMD and Graphcore, 5 exponent bits, finite, without a negative zero.
    F8_E5M2FNUZ = 28, "f8_e5m2fnuz", MiniFloat, 1, 1;
    /// ggml type 9: Q8_0 with the block's sum.
    Q8_1 = 64 + 9, "q8_1", Quantized, 32, 36;
    /// ggml type 10.
    Q2_K = 64 + 10, "q2_k", Quantized, 256, 84;
    /// ggml type 11.
    Q3_K = 64 + 11, "q3_k", Quantized, 256, 110;
    /// ggml type 12.
    Q4_K = 64 + 12, "q4_k", Quantized, 256, 144;
    /// ggml type 13.
    Q5_K = 64 + 13, "q5_k", Quantized, 256, 176;
    /// ggml type 14.
    Q6_K = 64 + 14, "q6_k", Quantized, 256, 210;
    /// ggml type 15.
    Q8_K = 64 + 15, "q8_k", Quantized, 256, 292;
    /// ggml type 16.
    IQ2_XXS = 64 + 16, "iq2_xxs", Quantized, 256, 66;
    /// ggml type 17.
    IQ2_XS = 64 + 17, "iq2_xs", Quantized, 256, 74;
    /// ggml type 18.
    IQ3_XXS = 64 + 18, "iq3_xxs", Quantized, 256, 98;
    /// ggml type 19.
    IQ1_S = 64 + 19, "iq1_s", Quantized, 256, 50;
    /// ggml type 20.
    IQ4_NL = 64 + 20, "iq4_nl", Quantized, 32, 18;
    /// ggml type 21.
    IQ3_S = 64 + 21, "iq3_s", Quantized, 256, 110;
    /// ggml type 22.
    IQ2_S = 64 + 22, "iq2_s", Quantized, 256, 82;
    /// ggml type 23.
    IQ4_XS = 64 + 23, "iq4_xs", Quantized, 256, 136;
    /// ggml type 29.
    IQ1_M = 64 + 29, "iq1_m", Quantized, 256, 56;
    /// ggml type 34: ternary.
    TQ1_0 = 64 + 34, "tq1_0", Quantized, 256, 54;
    /// ggml type 35: ternary.
    TQ2_0 = 64 + 35, "tq2_0", Quantized, 256, 66;
    /// ggml type 39: OCP MXFP4.
    MXFP4 = 64 + 39, "mxfp4", Quantized, 32, 17;
    /// ggml type 40: NVFP4.
    NVFP4 = 64 + 40, "nvfp4", Quantized, 64, 36;
    /// ggml type 41: f16 scale, 128 signs.
    Q1_0 = 64 + 41, "q1_0", Quantized, 128, 18;
    /// ggml type 42: f16 scale, 64 values of 2 bits.
    Q2_0 = 64 + 42, "q2_0", Quantized, 64, 18;
}

impl DType {
    /// The dtype of an APR2 index entry.
    #[must_use]
    pub fn from_apr2_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.apr2_code() == code)
    }

    /// Returns the number of bytes that a tensor of this dtype and shape stores.
    ///
    /// Returns `None` if the two do not match: a length over `u64`, a row that is not a multiple of
    /// the block, or packed bits that do not fill the last byte.
    #[must_use]
    pub fn stored_len(self, shape: &Shape) -> Option<u64> {
        let elements = shape.elements()?;
        if elements == 0 {
            return Some(0);
        }

        match (self, self.kind()) {
            (Self::I8_ROW, _) => elements.checked_add(shape.rows()?.checked_mul(4)?),
            (_, DTypeKind::Quantized) => {
                let blocks = shape
                    .row_len()
                    .is_multiple_of(self.block_len())
                    .then_some(elements / self.block_len())?;
                blocks.checked_mul(self.block_bytes())
            }
            _ => {
                // Packed floats run on across rows; only the whole tensor must end on a byte.
                let bits = u128::from(elements) * u128::from(self.block_bytes()) * 8
                    / u128::from(self.block_len());
                bits.is_multiple_of(8)
                    .then_some(bits / 8)
                    .and_then(|bytes| u64::try_from(bytes).ok())
            }
        }
    }

    /// Returns `true` if an element is a signed floating-point number of at least one byte.
    ///
    /// Such elements can be cast to another precision, merged, pruned and adapted. The packed
    /// floats of 6 and 4 bits and the exponents of [`F8_E8M0`](Self::F8_E8M0) are parts of MX
    /// blocks and do not count.
    #[must_use]
    pub const fn is_float(self) -> bool {
        let is_packed = self.block_len() > 1;
        match self.kind() {
            DTypeKind::Float => true,
            DTypeKind::MiniFloat => !is_packed && !matches!(self, Self::F8_E8M0),
            _ => false,
        }
    }

    /// Returns `true` if elements are stored in blocks or rows with scales.
    #[must_use]
    pub const fn is_quantized(self) -> bool {
        matches!(self.kind(), DTypeKind::Quantized)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for DType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn codes_are_unique_and_found_again() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_apr2_code(dtype.apr2_code()), Some(dtype));
        }
        for unknown in [29, 63, 64, 66, 64 + 33, 255] {
            assert_eq!(DType::from_apr2_code(unknown), None, "code {unknown}");
        }
    }

    #[test]
    fn floats_of_8_bits_are_floats_and_parts_of_blocks_are_not() {
        let floats: alloc::vec::Vec<&str> =
            DType::ALL.iter().filter(|dtype| dtype.is_float()).map(|dtype| dtype.name()).collect();
        let expected =
            ["f32", "f16", "bf16", "f64", "f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz"];
        assert_eq!(floats, expected);
    }

    #[test]
    fn stored_len_follows_blocks_rows_and_packed_bits() {
        let len = |dtype: DType, dims: &[u64]| dtype.stored_len(&Shape::from(dims.to_vec()));
        assert_eq!(len(DType::F32, &[]), Some(4));
        assert_eq!(len(DType::F32, &[3, 0]), Some(0));
        assert_eq!(len(DType::Q4_K, &[2, 256]), Some(288));
        assert_eq!(len(DType::Q4_K, &[256, 2]), None);
        assert_eq!(len(DType::I8_ROW, &[3, 5]), Some(3 * (4 + 5)));
        assert_eq!(len(DType::F4_E2M1, &[3, 2]), Some(3));
        assert_eq!(len(DType::F4_E2M1, &[3]), None);
        assert_eq!(len(DType::F6_E2M3, &[4]), Some(3));
        assert_eq!(len(DType::F6_E2M3, &[2]), None);
        assert_eq!(len(DType::F64, &[1 << 61]), None);
        assert_eq!(len(DType::F32, &[4_194_305, 4_194_305, 211_106_198_978_564]), None);
    }
}
