//! A checkpoint whose block-quantized tensors are read as plain floats.

use apr_core::{CheckpointReader, DType, Error, Result, Stored, pass_on};
use apr_tensor::cast::cast_float;

use crate::strided::usize_of;
use crate::values::read_quantized;

/// Reads the elements of quantized tensors as floats of `dtype`. Its descriptions of tensors are
/// the base's.
pub(crate) struct Decoded<'b> {
    pub(crate) base: &'b dyn CheckpointReader,
    pub(crate) dtype: DType,
}

impl CheckpointReader for Decoded<'_> {
    pass_on!(base: format, metadata, tensors, container, files, companions, read_companion);
    pass_on!(base: left_out, warnings);

    fn stored(&self, tensor: usize) -> Stored<'_> {
        Stored::derived_from(self.base, &[tensor])
    }

    /// Reads decoded elements if the tensor is quantized.
    ///
    /// In that case, `offset` and the buffer's length must be whole elements of `dtype`.
    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let info = &self.base.tensors()[tensor];
        if !info.dtype.is_quantized() {
            return self.base.read_tensor(tensor, offset, buf);
        }

        let element = self.dtype.block_bytes();
        let first = offset / element;
        let count = buf.len() as u64 / element;
        let block = info.dtype.block_len();
        let start = first / block * block;
        let past = || Error::corrupt("the read ends past the tensor").for_tensor(&info.name);
        let end = first.checked_add(count).ok_or_else(past)?;
        if end > info.shape.elements().unwrap_or_default() {
            return Err(past());
        }

        let mut values = Vec::new();
        let buffers = (&mut Vec::new(), &mut Vec::new());
        read_quantized(
            self.base,
            tensor,
            start..end.next_multiple_of(block),
            buffers,
            &mut values,
        )?;
        let wide: Vec<u8> = values
            .iter()
            .skip(usize_of(first - start)?)
            .take(usize_of(count)?)
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let mut narrow = Vec::new();
        if self.dtype == DType::F32 {
            narrow = wide;
        } else {
            cast_float(DType::F32, self.dtype, &wide, &mut narrow);
        }
        buf.copy_from_slice(narrow.get(..buf.len()).ok_or_else(past)?);
        Ok(())
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let is_plain = !self.base.tensors()[tensor].dtype.is_quantized();
        if is_plain { self.base.tensor_slice(tensor) } else { None }
    }
}
