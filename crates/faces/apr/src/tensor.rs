//! One tensor of a model, with its bytes.

use std::borrow::Cow;

use apr_core::{CheckpointReader, DType, DTypeKind, Error, Result, TensorInfo};
use apr_tensor::block;
use apr_tensor::cast::cast_float;
use apr_tensor::element::{is_decodable, widen_f32, widen_f64};

/// Tensor of a model: its description and its bytes, which stay in place in a mapped file.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
/// let model = apr::Model::open(path)?;
/// let norm = model.tensor("model.norm.weight")?;
/// assert_eq!(norm.dtype(), apr::DType::BF16);
/// assert_eq!(norm.shape().len(), 1);
/// let values: Vec<f32> = norm.to_vec()?;
/// assert_eq!(values.len() * 2, norm.bytes().len());
/// # Ok::<(), apr::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    info: &'a TensorInfo,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    pub(crate) fn read(reader: &'a dyn CheckpointReader, name: &str) -> Result<Self> {
        let found = reader.tensors().iter().position(|info| info.name == name);
        let tensor = found.ok_or_else(|| Error::format("no such tensor").for_tensor(name))?;
        let info = &reader.tensors()[tensor];
        if let Some(bytes) = reader.tensor_slice(tensor) {
            return Ok(Self { info, bytes: Cow::Borrowed(bytes) });
        }
        let too_large = |_| Error::memory("the tensor does not fit in memory").for_tensor(name);
        let len = usize::try_from(info.byte_len()?).map_err(too_large)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| {
            Error::memory("there is not enough memory for the tensor").for_tensor(name)
        })?;
        bytes.resize(len, 0);
        reader.read_tensor(tensor, 0, &mut bytes)?;
        Ok(Self { info, bytes: Cow::Owned(bytes) })
    }

    /// Returns the name in the model.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Type of the stored elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.info.dtype
    }

    /// Dimensions in elements, outermost first; none of a scalar.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        self.info.shape.dims()
    }

    /// The stored elements, little-endian, row by row; of quantized tensors the blocks.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the elements as numbers, row by row. Quantized tensors are dequantized.
    ///
    /// Floats can be read from every dtype of real numbers: values beyond the precision of `f32`
    /// are rounded to nearest even. Integers can be read from integers and booleans, if all values
    /// fit.
    ///
    /// # Errors
    /// E001 for a dtype or a value that `T` does not support.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        T::decode(self.info, &self.bytes).map_err(|error| error.for_tensor(self.name()))
    }

    /// The elements as an array of the tensor's shape, as [`to_vec`](Self::to_vec) reads them.
    ///
    /// # Errors
    /// Those of [`to_vec`](Self::to_vec), and E008 where a dimension does not fit in memory.
    #[cfg(feature = "ndarray")]
    pub fn to_array<T: Element>(&self) -> Result<ndarray::ArrayD<T>> {
        let too_large = || Error::memory("the shape does not fit in memory");
        let dims: Option<Vec<usize>> =
            self.shape().iter().map(|&dim| usize::try_from(dim).ok()).collect();
        let dims = dims.ok_or_else(too_large)?;
        ndarray::ArrayD::from_shape_vec(dims, self.to_vec()?).map_err(|_| too_large())
    }
}

/// A number that elements of a tensor are read as: floats of 32 and 64 bits, integers of 8 to 64.
pub trait Element: sealed::Element {}

impl<T: sealed::Element> Element for T {}

mod sealed {
    use super::{Result, TensorInfo};

    pub trait Element: Sized + Copy {
        fn decode(info: &TensorInfo, bytes: &[u8]) -> Result<Vec<Self>>;
    }
}

impl sealed::Element for f32 {
    fn decode(info: &TensorInfo, bytes: &[u8]) -> Result<Vec<Self>> {
        let mut values = Vec::new();
        match info.dtype {
            _ if !is_real(info.dtype) => return Err(no_reals(info.dtype)),
            DType::F64 => {
                let mut narrow = Vec::new();
                cast_float(DType::F64, DType::F32, bytes, &mut narrow);
                widen_f32(DType::F32, &narrow, &mut values);
            }
            DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                return Ok(integers(info.dtype, bytes).map(rounded).collect());
            }
            dtype if dtype.is_quantized() => dequantize(info, bytes, &mut values)?,
            dtype => {
                widen_f32(dtype, bytes, &mut values);
                values.truncate(elements(info));
            }
        }
        Ok(values)
    }
}

impl sealed::Element for f64 {
    fn decode(info: &TensorInfo, bytes: &[u8]) -> Result<Vec<Self>> {
        if !is_real(info.dtype) {
            return Err(no_reals(info.dtype));
        }
        if info.dtype.is_quantized() {
            let mut values = Vec::new();
            dequantize(info, bytes, &mut values)?;
            return Ok(values.into_iter().map(Self::from).collect());
        }
        let mut values = Vec::new();
        widen_f64(info.dtype, bytes, &mut values);
        values.truncate(elements(info));
        Ok(values)
    }
}

/// The nearest `f32`, ties to even.
#[expect(clippy::cast_precision_loss, reason = "that is what rounding is")]
fn rounded(value: i128) -> f32 {
    value as f32
}

/// Elements of a tensor that is in memory.
fn elements(info: &TensorInfo) -> usize {
    info.shape.elements().and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX)
}

fn is_real(dtype: DType) -> bool {
    dtype.kind() != DTypeKind::Complex
        && if dtype.is_quantized() { block::can_dequantize(dtype) } else { is_decodable(dtype) }
}

fn no_reals(dtype: DType) -> Error {
    Error::format(format!("elements of {dtype} are not read as real numbers"))
}

fn dequantize(info: &TensorInfo, bytes: &[u8], values: &mut Vec<f32>) -> Result<()> {
    let row_len = usize::try_from(info.shape.row_len())
        .map_err(|_| Error::memory("a row does not fit in memory"))?;
    if row_len > 0 {
        block::dequantize(info.dtype, bytes, row_len, values);
    }
    Ok(())
}

/// Elements of a dtype of integers or truth values.
fn integers(dtype: DType, bytes: &[u8]) -> Box<dyn Iterator<Item = i128> + '_> {
    fn each<'a, const N: usize>(
        bytes: &'a [u8],
        value: impl Fn([u8; N]) -> i128 + 'a,
    ) -> Box<dyn Iterator<Item = i128> + 'a> {
        Box::new(bytes.as_chunks::<N>().0.iter().map(move |&bytes| value(bytes)))
    }

    match dtype {
        DType::I8 => each(bytes, |bytes| i8::from_le_bytes(bytes).into()),
        DType::U8 => each(bytes, |bytes| u8::from_le_bytes(bytes).into()),
        DType::I16 => each(bytes, |bytes| i16::from_le_bytes(bytes).into()),
        DType::U16 => each(bytes, |bytes| u16::from_le_bytes(bytes).into()),
        DType::I32 => each(bytes, |bytes| i32::from_le_bytes(bytes).into()),
        DType::U32 => each(bytes, |bytes| u32::from_le_bytes(bytes).into()),
        DType::I64 => each(bytes, |bytes| i64::from_le_bytes(bytes).into()),
        DType::U64 => each(bytes, |bytes| u64::from_le_bytes(bytes).into()),
        DType::BOOL => each(bytes, |[byte]| i128::from(byte != 0)),
        _ => Box::new(std::iter::empty()),
    }
}

macro_rules! integer_elements {
    ($($integer:ty)*) => {$(
        impl sealed::Element for $integer {
            fn decode(info: &TensorInfo, bytes: &[u8]) -> Result<Vec<Self>> {
                if !matches!(info.dtype.kind(), DTypeKind::Integer | DTypeKind::Bool) {
                    return Err(Error::format(format!(
                        "elements of {} are not read as integers",
                        info.dtype
                    )));
                }
                let convert = |value: i128| {
                    Self::try_from(value).map_err(|_| {
                        Error::format(format!("{value} does not fit {}", stringify!($integer)))
                    })
                };
                integers(info.dtype, bytes).map(convert).collect()
            }
        }
    )*};
}

integer_elements!(i8 i16 i32 i64 u8 u16 u32 u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: DType, shape: &[u64], bytes: &[u8]) -> (TensorInfo, Vec<u8>) {
        (TensorInfo { name: "w".to_owned(), dtype, shape: shape.to_vec().into() }, bytes.to_vec())
    }

    fn decoded<T: Element>((info, bytes): &(TensorInfo, Vec<u8>)) -> Result<Vec<T>> {
        Tensor { info, bytes: Cow::Borrowed(bytes) }.to_vec()
    }

    #[test]
    fn elements_are_read_as_the_numbers_they_are() {
        let half = tensor(DType::F16, &[2], &[0, 0x3c, 0, 0xc0]);
        assert_eq!(decoded::<f32>(&half).ok(), Some(vec![1.0, -2.0]));
        assert_eq!(decoded::<f64>(&half).ok(), Some(vec![1.0, -2.0]));
        let long = tensor(DType::I64, &[1], &(-5_i64).to_le_bytes());
        assert_eq!(decoded::<i8>(&long).ok(), Some(vec![-5]));
        assert_eq!(decoded::<f32>(&long).ok(), Some(vec![-5.0]));
        let bools = tensor(DType::BOOL, &[3], &[0, 1, 7]);
        assert_eq!(decoded::<u8>(&bools).ok(), Some(vec![0, 1, 1]));
        // Scale 2, quants 0 to 31.
        let mut block = vec![0, 0x40];
        block.extend(0..32_u8);
        let quantized = tensor(DType::Q8_0, &[1, 32], &block);
        let expected: Vec<f32> = (0..32_u8).map(|quant| 2.0 * f32::from(quant)).collect();
        assert_eq!(decoded::<f32>(&quantized).ok(), Some(expected));
    }

    #[test]
    fn a_value_that_does_not_fit_is_an_error_with_the_tensor_name() {
        let long = tensor(DType::I64, &[1], &300_i64.to_le_bytes());
        let error = decoded::<u8>(&long).unwrap_err();
        assert!(error.to_string().contains("300 does not fit u8"), "{error}");
        assert_eq!(error.tensor(), Some("w"));
        assert!(decoded::<i64>(&tensor(DType::F32, &[1], &[0; 4])).is_err());
        assert!(decoded::<f32>(&tensor(DType::C64, &[1], &[0; 8])).is_err());
    }

    #[test]
    fn packed_elements_end_where_the_shape_does() {
        let nibbles = tensor(DType::F4_E2M1, &[3], &[0x21, 0x02]);
        assert_eq!(decoded::<f32>(&nibbles).ok(), Some(vec![0.5, 1.0, 1.0]));
    }
}
