//! Packed little-endian elements as tensors.

use apr_core::{Error, Result};
use apr_graph::{Constant, ConstantData, ElementType};

use crate::Tensor;
use crate::tensor::{Data, elements};

/// A tensor that is in the graph itself.
pub(crate) fn tensor(constant: &Constant) -> Result<Tensor> {
    let too_large = |_| {
        Error::memory(format!("a constant of shape {:?} does not fit the memory", constant.shape))
    };
    let shape = constant
        .shape
        .iter()
        .map(|&dim| usize::try_from(dim).map_err(too_large))
        .collect::<Result<Vec<_>>>()?;
    match &constant.data {
        ConstantData::Bytes(bytes) => unpack(constant.element, shape, bytes),
        ConstantData::Texts(texts) => {
            let texts =
                texts.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
            Tensor::with_type(ElementType::Text, shape, Data::Text(texts))
        }
    }
}

impl Tensor {
    /// A tensor of packed little-endian elements, as in `raw_data` of an ONNX file.
    ///
    /// # Errors
    /// E001 when they do not fill the shape, E003 for types that are not computed with.
    pub fn unpack(element: ElementType, shape: Vec<usize>, bytes: &[u8]) -> Result<Self> {
        unpack(element, shape, bytes)
    }

    /// Returns the elements packed in little-endian order, as [`unpack`](Self::unpack) reads them;
    /// `None` for texts.
    #[must_use]
    pub fn pack(&self) -> Option<Vec<u8>> {
        macro_rules! words {
            ($values:expr) => {
                $values.iter().flat_map(|value| value.to_le_bytes()).collect()
            };
        }
        let bits = self.element().bits() as usize;
        Some(match self.data() {
            Data::F32(values) => words!(values),
            Data::F64(values) => words!(values),
            Data::I16(values) => words!(values),
            Data::I32(values) => words!(values),
            Data::I64(values) => words!(values),
            Data::U16(values) => words!(values),
            Data::U32(values) => words!(values),
            Data::U64(values) => words!(values),
            Data::I8(values) => {
                packed(bits, &values.iter().map(|value| value.cast_unsigned()).collect::<Vec<_>>())
            }
            Data::U8(values) => packed(bits, values),
            Data::Text(_) => return None,
        })
    }
}

/// Packs elements of a byte or less, the first in the lowest bits.
fn packed(bits: usize, values: &[u8]) -> Vec<u8> {
    if bits == 8 {
        return values.to_vec();
    }
    let part = |at: usize, value: &u8| (value & ((1 << bits) - 1)) << (at * bits);
    let byte = |values: &[u8]| {
        values.iter().enumerate().fold(0, |byte, (at, value)| byte | part(at, value))
    };
    values.chunks(8 / bits).map(byte).collect()
}

/// The tensor that packed elements are, as in `raw_data` of an ONNX file.
pub(crate) fn unpack(element: ElementType, shape: Vec<usize>, bytes: &[u8]) -> Result<Tensor> {
    let wrong = || {
        Error::format(format!("{} bytes of {element} do not fill the shape {shape:?}", bytes.len()))
    };
    let count = elements(&shape).ok_or_else(wrong)?;

    // Checked before anything is made: elements of less than a byte become a byte each.
    let bits = (count as u64).checked_mul(element.bits()).ok_or_else(wrong)?;
    if bits != 0 && bits.div_ceil(8) != bytes.len() as u64 {
        return Err(wrong());
    }

    macro_rules! words {
        ($variant:ident, $rust:ty) => {
            Data::$variant(
                bytes.as_chunks().0.iter().map(|word| <$rust>::from_le_bytes(*word)).collect(),
            )
        };
    }
    let data = match element {
        ElementType::F32 => words!(F32, f32),
        ElementType::F64 => words!(F64, f64),
        ElementType::I16 => words!(I16, i16),
        ElementType::I32 => words!(I32, i32),
        ElementType::I64 => words!(I64, i64),
        ElementType::U16 | ElementType::F16 | ElementType::BF16 => words!(U16, u16),
        ElementType::U32 => words!(U32, u32),
        ElementType::U64 => words!(U64, u64),
        ElementType::I8 => words!(I8, i8),
        ElementType::U4
        | ElementType::I4
        | ElementType::F4E2M1
        | ElementType::U2
        | ElementType::I2 => parts(element, count, bytes),
        ElementType::Bool => Data::U8(bytes.iter().map(|&byte| u8::from(byte != 0)).collect()),
        ElementType::C64 | ElementType::C128 | ElementType::Text => {
            return Err(Error::version(format!(
                "elements of type {element} are not computed with"
            )));
        }
        _ => Data::U8(bytes.to_vec()),
    };

    Tensor::with_type(element, shape, data)
}

/// Elements of 4 or 2 bits, the first in the lowest ones.
fn parts(element: ElementType, count: usize, bytes: &[u8]) -> Data {
    let bits = element.bits() as usize;
    let part = |at: usize| {
        bytes.get(at * bits / 8).map_or(0, |byte| byte >> (at * bits % 8) & ((1 << bits) - 1))
    };
    if matches!(element, ElementType::I4 | ElementType::I2) {
        let unused = 8 - bits;
        return Data::I8((0..count).map(|at| (part(at) << unused) as i8 >> unused).collect());
    }
    Data::U8((0..count).map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_elements_come_from_the_low_bits_up() {
        let tensor = unpack(ElementType::I4, vec![3], &[0x8f, 0x07]).unwrap();
        assert_eq!(tensor.values::<i8>().unwrap(), [-1, -8, 7]);
        let tensor = unpack(ElementType::U2, vec![4], &[0b1110_0100]).unwrap();
        assert_eq!(tensor.values::<u8>().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn packing_reverses_unpacking() {
        let bytes = [0x8f, 0x07, 0x31, 0xe4, 0, 1, 0x80, 0x3f];
        for element in ElementType::ALL {
            let count = 64_u64.checked_div(element.bits()).unwrap_or_default() as usize;
            let Ok(tensor) = unpack(*element, vec![count], &bytes) else { continue };
            let expected = match element {
                ElementType::Bool => vec![1, 1, 1, 1, 0, 1, 1, 1],
                _ => bytes.to_vec(),
            };
            assert_eq!(tensor.pack().unwrap(), expected, "{element}");
        }
    }

    #[test]
    fn bytes_that_do_not_fill_the_shape_are_an_error() {
        assert!(unpack(ElementType::F32, vec![2], &[0; 7]).is_err());
        assert!(unpack(ElementType::Text, vec![1], &[0]).is_err());
    }
}
