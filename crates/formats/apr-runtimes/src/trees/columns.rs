//! Lists of numbers as tensors.

use std::collections::BTreeMap;

use apr_core::{DType, Error, Result, Shape, TensorInfo};

use crate::trees::numbers::{single, whole};

/// Tensors, and the bytes of each.
#[derive(Default)]
pub(crate) struct Columns {
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) bytes: Vec<Vec<u8>>,
    positions: BTreeMap<String, usize>,
}

impl Columns {
    /// Adds numbers behind those of the tensor with this name, which is made if it is not there.
    ///
    /// # Errors
    /// E002 for a number that the type does not have.
    pub(crate) fn extend(&mut self, name: &str, dtype: DType, numbers: &[f64]) -> Result<()> {
        let at = match self.positions.get(name) {
            Some(at) => *at,
            None => {
                let shape = Shape::from(vec![0]);
                self.tensors.push(TensorInfo { name: name.to_owned(), dtype, shape });
                self.bytes.push(Vec::new());
                self.positions.insert(name.to_owned(), self.bytes.len() - 1);
                self.bytes.len() - 1
            }
        };
        let bytes = &mut self.bytes[at];
        for number in numbers {
            put(bytes, dtype, *number).ok_or_else(|| {
                Error::corrupt(format!("{number} is not of the type {dtype}")).for_tensor(name)
            })?;
        }
        let count = bytes.len() as u64 / dtype.block_bytes();
        self.tensors[at].shape = Shape::from(vec![count]);
        Ok(())
    }
}

fn put(bytes: &mut Vec<u8>, dtype: DType, number: f64) -> Option<()> {
    match dtype {
        DType::F32 => bytes.extend(single(number).to_le_bytes()),
        DType::F64 => bytes.extend(number.to_le_bytes()),
        DType::U8 => bytes.push(u8::try_from(whole(number)?).ok()?),
        DType::I32 => bytes.extend(i32::try_from(whole(number)?).ok()?.to_le_bytes()),
        _ => bytes.extend(whole(number)?.to_le_bytes()),
    }
    Some(())
}
