//! What every container comes down to: a pickle's values, and where each storage lies.

use std::collections::{BTreeMap, HashMap};

use apr_archive::Entry;
use apr_core::{ByteSource, DType, Error, Escaped, Result};
use serde_json::{Map, Value};

use crate::content::{Content, Joined};
use crate::flatten::PickledTensor;
use crate::pickle::{Derived, Heap, Id, Indices, Scale, Sparse, Storage, Tensor};
use crate::quantized::{Quantized, Scales};
use crate::sparse::{Cells, Places};
use crate::view::{PartTensor, Range, View};

/// CRC-32 of storages, by offset and length.
pub(crate) type Checksums = HashMap<(u64, u64), u32>;

/// An opened container.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) heap: Heap,
    pub(crate) root: Id,
    pub(crate) storages: HashMap<String, Range>,
    /// CRC-32 of storages, by offset and length. It is checked for every tensor that is made of the
    /// storage, such as a view or a scale.
    pub(crate) checksums: Checksums,
    pub(crate) header_fields: Map<String, Value>,
    pub(crate) warnings: Vec<String>,
    /// Content of the file besides tensors and values, which is not read.
    pub(crate) left_out: Vec<String>,
    /// The files of TorchScript's program, with their names as companions.
    pub(crate) code: Vec<(String, Entry)>,
    /// Mapping from the source to the file, or `None` if the source is the file.
    pub(crate) origin: Option<ContentOrigin>,
    /// Tensors that TorchScript's program has in itself, as a frozen module has all of its weights:
    /// the program calls those of this tuple `CONSTANTS.c0`, `CONSTANTS.c1`.
    pub(crate) constants: Option<Box<Contents>>,
}

/// Mapping from a source to its file.
///
/// The source consists of a part of the file, followed by the decoded bytes of compressed entries.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContentOrigin {
    /// Offset of the part in the file.
    pub(crate) base: u64,
    /// Bytes of the part.
    pub(crate) len: u64,
    /// Bytes of the file.
    pub(crate) file_len: u64,
    /// Ranges of compressed entries in the file, by the source offset of their decoded bytes.
    pub(crate) decoded: BTreeMap<u64, Range>,
}

impl ContentOrigin {
    /// Creates the mapping for a source that is the whole file.
    pub(crate) fn whole(len: u64) -> Self {
        Self { len, file_len: len, ..Self::default() }
    }

    /// Returns the mapping for a file that contains this one's file from `base` on.
    pub(crate) fn within(self, base: u64, file_len: u64) -> Self {
        let moved =
            |(at, place): (u64, Range)| (at, Range { offset: base + place.offset, ..place });
        Self { base, file_len, decoded: self.decoded.into_iter().map(moved).collect(), ..self }
    }

    /// Returns `true` if the source has the bytes at this offset exactly as the file has them.
    pub(crate) fn is_verbatim(&self, offset: u64) -> bool {
        offset < self.len
    }

    /// Returns the file range of these bytes, or of the compressed bytes that decode to them.
    pub(crate) fn place(&self, range: Range) -> Range {
        if self.is_verbatim(range.offset) {
            return Range { offset: self.base + range.offset, ..range };
        }
        let entry = self.decoded.range(..=range.offset).next_back();
        entry.map_or(Range { offset: self.base, len: 0 }, |(_, place)| *place)
    }

    /// The error with its offset in the file.
    pub(crate) fn located(&self, error: Error) -> Error {
        error.moved(|offset| self.place(Range { offset, len: 0 }).offset)
    }
}

impl Contents {
    /// Dtype, shape and bytes of a tensor. Indices of sparse ones are decoded and scales of
    /// quantized ones read; `budget` is what those of all tensors may still take, in bytes.
    pub(crate) fn content(
        &self,
        source: &dyn ByteSource,
        found: PickledTensor,
        budget: &mut u64,
    ) -> Result<(DType, Vec<u64>, Content)> {
        let derived = match found {
            PickledTensor::Stored(tensor) => {
                let tensor = &self.heap.tensors[tensor as usize];
                return Ok((
                    tensor.dtype,
                    tensor.elements.dims().to_vec(),
                    Content::Stored(self.view(tensor)?),
                ));
            }
            PickledTensor::Derived(derived) => &self.heap.derived[derived as usize],
        };

        match derived {
            Derived::Quantized { stored, scale } => {
                let scales = self.scales(source, scale, stored.elements.dims(), budget)?;
                let quantized = Quantized::new(self.view(stored)?, stored.dtype, scales);
                let quantized = quantized
                    .ok_or_else(|| Error::corrupt("dequantized it takes over 2^64 bytes"))?;
                Ok((
                    DType::F32,
                    stored.elements.dims().to_vec(),
                    Content::Quantized(quantized.into()),
                ))
            }
            Derived::Sparse(Sparse { indices, values, shape }) => {
                let indices = match indices {
                    Indices::Coo(indices) => Places::Coo(self.part(*indices)?),
                    Indices::Csr(rows, columns) => {
                        Places::Csr(self.part(*rows)?, self.part(*columns)?)
                    }
                };
                let values = self.part(*values)?;
                let dtype = values.dtype;
                Ok((
                    dtype,
                    shape.clone(),
                    Content::Sparse(Cells::new(source, &indices, values, shape, budget)?.into()),
                ))
            }
            Derived::Joined { parts, shape } => {
                let parts: Vec<PartTensor<'_>> =
                    parts.iter().map(|part| self.part(*part)).collect::<Result<_>>()?;
                let dtype = parts.first().map(|part| part.dtype);
                let joined = Joined::new(parts.into_iter().map(|part| part.view).collect());
                let (dtype, joined) =
                    dtype.zip(joined).ok_or_else(|| Error::corrupt("it is joined of no parts"))?;
                Ok((dtype, shape.clone(), Content::Joined(joined)))
            }
        }
    }

    /// Returns the offsets of a tensor's scales or indices in the file.
    pub(crate) fn beside(&self, found: &PickledTensor) -> Result<Vec<u64>> {
        let PickledTensor::Derived(derived) = found else { return Ok(Vec::new()) };
        let tensors = match &self.heap.derived[*derived as usize] {
            Derived::Quantized { scale: Scale::Channels { scales, zero_points, .. }, .. } => {
                vec![scales, zero_points]
            }
            Derived::Quantized { .. } | Derived::Joined { .. } => Vec::new(),
            Derived::Sparse(Sparse { indices: Indices::Coo(indices), .. }) => vec![indices],
            Derived::Sparse(Sparse { indices: Indices::Csr(rows, columns), .. }) => {
                vec![rows, columns]
            }
        };

        tensors
            .into_iter()
            .map(|&tensor| Ok(self.view(&self.heap.tensors[tensor as usize])?.offset))
            .collect()
    }

    fn scales(
        &self,
        source: &dyn ByteSource,
        scale: &Scale,
        shape: &[u64],
        budget: &mut u64,
    ) -> Result<Scales> {
        match *scale {
            Scale::One(scale, zero_point) => Ok(Scales::One(scale, zero_point)),
            Scale::Channels { scales, zero_points, axis } => {
                let (scales, zero_points) = (self.part(scales)?, self.part(zero_points)?);
                Scales::read(source, [&scales, &zero_points], shape, axis, budget)
            }
        }
    }

    fn part(&self, tensor: u32) -> Result<PartTensor<'_>> {
        let tensor = &self.heap.tensors[tensor as usize];
        Ok(PartTensor {
            view: self.view(tensor)?,
            dtype: tensor.dtype,
            shape: tensor.elements.dims(),
        })
    }

    fn view(&self, tensor: &Tensor) -> Result<View> {
        View::new(tensor, self.locate(&self.heap.storages[tensor.storage as usize])?)
    }

    /// Returns the range of a storage's bytes, after a check that the file has its declared length.
    fn locate(&self, storage: &Storage) -> Result<Range> {
        let Storage { key, element, len, view } = storage;
        let key = Escaped::short(key);
        let range = self.storages.get(&storage.key);
        let range = range
            .ok_or_else(|| Error::corrupt(format!("its storage '{key}' is not in the file")))?;
        let declared = len.checked_mul(element.width);
        if declared.is_none_or(|declared| declared > range.len) {
            let message = format!(
                "its storage '{key}' has {} bytes, but {len} elements are declared",
                range.len
            );
            return Err(Error::corrupt(message).at(range.offset));
        }

        let Some((first, count)) = view else { return Ok(*range) };
        let part = first.checked_mul(element.width).zip(count.checked_mul(element.width));
        match part
            .filter(|(first, len)| first.checked_add(*len).is_some_and(|end| end <= range.len))
        {
            Some((first, len)) => Ok(Range { offset: range.offset + first, len }),
            None => {
                Err(Error::corrupt(format!("its view of storage '{key}' reaches past its end"))
                    .at(range.offset))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_an_entry_has_the_offset_in_the_file() {
        let origin = ContentOrigin::whole(100).within(40, 200);
        let error = origin.located(Error::corrupt("a break").at(3));
        assert_eq!(error.offset(), Some(43));
        assert_eq!(origin.located(Error::corrupt("a break")).offset(), None);
    }
}
