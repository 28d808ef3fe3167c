//! Stored elements as types, so that one generic kernel serves every dtype.

use crate::half_float;
use crate::small_float;

/// A dtype whose elements fill whole bytes.
pub(crate) trait Wire {
    /// One stored element: its bytes, or the value itself for data that is already in memory as
    /// floats.
    type Stored: Copy;
    /// The float that holds every value of the dtype exactly (64-bit integers: rounded to nearest
    /// even).
    type Value: Real;
    /// Decodes one element.
    fn load(stored: Self::Stored) -> Self::Value;
}

/// `f32` or `f64`.
pub(crate) trait Real: Copy + PartialOrd + Into<f64> {
    const ZERO: Self;
    const INFINITY: Self;
    const NEG_INFINITY: Self;
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const INFINITY: Self = Self::INFINITY;
    const NEG_INFINITY: Self = Self::NEG_INFINITY;
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const INFINITY: Self = Self::INFINITY;
    const NEG_INFINITY: Self = Self::NEG_INFINITY;
}

macro_rules! wires {
    ($($name:ident: $stored:ty => $value:ty, |$bytes:ident| $load:expr;)*) => {$(
        pub(crate) struct $name;

        impl Wire for $name {
            type Stored = $stored;
            type Value = $value;

            #[inline(always)]
            fn load($bytes: $stored) -> $value {
                $load
            }
        }
    )*};
}

wires! {
    NativeF32: f32 => f32, |value| value;
    NativeF64: f64 => f64, |value| value;
    F32: [u8; 4] => f32, |bytes| f32::from_le_bytes(bytes);
    F64: [u8; 8] => f64, |bytes| f64::from_le_bytes(bytes);
    F16: [u8; 2] => f32, |bytes| half_float::f16_to_f32(u16::from_le_bytes(bytes));
    Bf16: [u8; 2] => f32, |bytes| half_float::bf16_to_f32(u16::from_le_bytes(bytes));
    I8: [u8; 1] => f32, |bytes| f32::from(i8::from_le_bytes(bytes));
    U8: [u8; 1] => f32, |bytes| f32::from(bytes[0]);
    Bool: [u8; 1] => f32, |bytes| f32::from(u8::from(bytes[0] != 0));
    I16: [u8; 2] => f32, |bytes| f32::from(i16::from_le_bytes(bytes));
    U16: [u8; 2] => f32, |bytes| f32::from(u16::from_le_bytes(bytes));
    I32: [u8; 4] => f64, |bytes| f64::from(i32::from_le_bytes(bytes));
    U32: [u8; 4] => f64, |bytes| f64::from(u32::from_le_bytes(bytes));
    I64: [u8; 8] => f64, |bytes| i64::from_le_bytes(bytes) as f64;
    U64: [u8; 8] => f64, |bytes| u64::from_le_bytes(bytes) as f64;
    F8E4m3: [u8; 1] => f32, |bytes| small_float::f8_e4m3_to_f32(bytes[0]);
    F8E5m2: [u8; 1] => f32, |bytes| small_float::f8_e5m2_to_f32(bytes[0]);
    F8E4m3Fnuz: [u8; 1] => f32, |bytes| small_float::F8_E4M3FNUZ[usize::from(bytes[0])];
    F8E5m2Fnuz: [u8; 1] => f32, |bytes| small_float::F8_E5M2FNUZ[usize::from(bytes[0])];
    F8E8m0: [u8; 1] => f32, |bytes| small_float::e8m0_to_f32(bytes[0]);
}

/// Evaluates an expression with a name for the [`Wire`] of a dtype that `f32` holds exactly, byte
/// by whole byte.
macro_rules! with_f32_wire {
    ($dtype:expr, $wire:ident => $body:expr, $otherwise:expr) => {
        with_f32_wire!(@match $dtype, $wire, $body, $otherwise,
            F32 | C64 => F32, F16 => F16, BF16 => Bf16,
            I8 => I8, U8 => U8, BOOL => Bool, I16 => I16, U16 => U16,
            F8_E4M3 => F8E4m3, F8_E5M2 => F8E5m2,
            F8_E4M3FNUZ => F8E4m3Fnuz, F8_E5M2FNUZ => F8E5m2Fnuz, F8_E8M0 => F8E8m0)
    };
    (
        @match $dtype:expr, $wire:ident, $body:expr, $otherwise:expr,
        $($($variant:ident)|+ => $name:ident),*
    ) => {
        match $dtype {
            $($(apr_core::DType::$variant)|+ => {
                type $wire = crate::wire::$name;
                $body
            })*
            _ => $otherwise,
        }
    };
}

/// Same as `with_f32_wire`, for dtypes whose values only `f64` can represent.
macro_rules! with_f64_wire {
    ($dtype:expr, $wire:ident => $body:expr, $otherwise:expr) => {
        with_f32_wire!(@match $dtype, $wire, $body, $otherwise,
            F64 => F64, I32 => I32, U32 => U32, I64 => I64, U64 => U64)
    };
}
