//! Elements as other types of numbers, without ONNX's rules of casting.

use std::borrow::Cow;

use apr_core::{Error, Result};
use apr_graph::ElementType;
use apr_tensor::half_float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use crate::Tensor;
use crate::tensor::{Data, with_numbers};

/// A Rust number that other numbers become by `as`: cut off or rounded, and saturated from floats.
pub(crate) trait Number: crate::tensor::Element + Copy + PartialOrd {
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
    fn from_f64(value: f64) -> Self;
    fn from_i64(value: i64) -> Self;
}

macro_rules! numbers {
    ($($rust:ty)*) => {
        $(impl Number for $rust {
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn from_i64(value: i64) -> Self {
                value as Self
            }
        })*
    };
}

numbers!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64);

impl Tensor {
    /// The elements of floats of 16 or 32 bits as `f32`.
    pub fn floats(&self) -> Result<Cow<'_, [f32]>> {
        match (self.element(), self.data()) {
            (ElementType::F16, Data::U16(bits)) => {
                Ok(Cow::Owned(bits.iter().map(|&bits| f16_to_f32(bits)).collect()))
            }
            (ElementType::BF16, Data::U16(bits)) => {
                Ok(Cow::Owned(bits.iter().map(|&bits| bf16_to_f32(bits)).collect()))
            }
            _ => self.values::<f32>().map(Cow::Borrowed),
        }
    }

    /// The elements of integers of any width, or truth values.
    pub(crate) fn integers(&self) -> Result<Vec<i64>> {
        let floats = || Error::format(format!("integers are expected, not {}", self.element()));
        if self.element().is_float() {
            return Err(floats());
        }
        with_numbers!(
            self.data(),
            values => Ok(values.iter().map(|&value| value.to_i64()).collect()),
            Err(floats())
        )
    }

    /// The only element of an integer tensor.
    pub(crate) fn integer(&self) -> Result<i64> {
        match self.integers()?.as_slice() {
            [value] => Ok(*value),
            values => Err(Error::format(format!("one number is expected, not {}", values.len()))),
        }
    }

    /// The only element, a number of any type.
    pub(crate) fn number(&self) -> Result<f64> {
        match self.doubles()?.as_slice() {
            [value] => Ok(*value),
            values => Err(Error::format(format!("one number is expected, not {}", values.len()))),
        }
    }

    /// The elements as doubles, whatever number they are.
    pub(crate) fn doubles(&self) -> Result<Vec<f64>> {
        if matches!(self.element(), ElementType::F16 | ElementType::BF16) {
            return Ok(self.floats()?.iter().map(|&value| f64::from(value)).collect());
        }
        let text = || Err(Error::format("numbers are expected, not texts"));
        with_numbers!(
            self.data(),
            values => Ok(values.iter().map(|&value| value.to_f64()).collect()),
            text()
        )
    }

    /// Converts a tensor of 16-bit floats to `f32`. Other tensors are returned unchanged.
    pub(crate) fn widened(&self) -> Result<Self> {
        if !is_half(self.element()) {
            return Ok(self.clone());
        }
        Self::new(self.shape().to_vec(), self.floats()?.into_owned())
    }

    /// A tensor of `f32` rounded to floats of 16 bits.
    pub(crate) fn narrowed(&self, to: ElementType) -> Result<Self> {
        let values = self.values::<f32>()?;
        let bits = match to {
            ElementType::F16 => values.iter().map(|&value| f32_to_f16(value)).collect(),
            _ => values.iter().map(|&value| f32_to_bf16(value)).collect(),
        };
        Self::with_type(to, self.shape().to_vec(), Data::U16(bits))
    }
}

/// Returns `true` for 16-bit floats, which are computed as `f32`.
pub(crate) fn is_half(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::BF16)
}
