//! Tensors that are part of the graph itself, because shapes depend on them or because they are an
//! operator's setting.

use apr_core::protobuf::Walker;
use apr_core::{Error, Result};
use apr_graph::{Constant, ConstantData, ElementType, View, WeightRef};

use crate::proto::Tensor;
use crate::reader::{OnnxReader, fills_no_byte};

/// Reads small tensors.
pub(crate) struct SmallTensors<'a> {
    reader: &'a OnnxReader,
}

impl<'a> SmallTensors<'a> {
    pub(crate) fn new(reader: &'a OnnxReader) -> Self {
        Self { reader }
    }

    /// Returns a tensor as a constant if it is part of the graph or if no dtype can hold it.
    ///
    /// `path` is the name of the tensor in the file.
    pub(crate) fn constant(
        &self,
        path: &str,
        tensor: &Tensor,
        walker: &mut Walker<'_>,
    ) -> Result<Option<Constant>> {
        let Some(element) = ElementType::from_onnx_code(tensor.data_type) else { return Ok(None) };
        let shape = tensor.shape()?;
        let data = match element {
            // No dtype of a checkpoint holds these two, so the graph has them, however long.
            ElementType::Text => {
                let texts: Result<Vec<_>> =
                    tensor.texts.iter().map(|span| walker.bytes(*span)).collect();
                ConstantData::Texts(texts?)
            }
            ElementType::C128 => ConstantData::Bytes(self.bytes(tensor, element, &shape, walker)?),
            _ if self.reader.is_constant(path) || is_nowhere_else(element, &shape) => {
                ConstantData::Bytes(self.bytes(tensor, element, &shape, walker)?)
            }
            _ => return Ok(None),
        };

        Ok(Some(Constant { name: tensor.name.clone(), element, shape, data }))
    }

    fn bytes(
        &self,
        tensor: &Tensor,
        element: ElementType,
        shape: &[u64],
        walker: &mut Walker<'_>,
    ) -> Result<Vec<u8>> {
        let count = shape.iter().try_fold(1_u64, |count, dim| count.checked_mul(*dim));
        let len = count.and_then(|count| element.stored_len(count));
        let len = len
            .ok_or_else(|| Error::format("its elements can't be counted").at(tensor.span.offset))?;

        // Memory is counted before it is taken: the shape is the file's word.
        walker.keep(len)?;
        self.reader.packed(tensor, len)
    }

    /// A tensor of the checkpoint, as the graph uses it. `path` is its name in the file.
    pub(crate) fn weight(&self, path: &str) -> WeightRef {
        let Some(found) = self.reader.revealed(path) else { return WeightRef::whole(path) };
        let mut views = Vec::new();
        if found.transposed {
            views.push(View::Transposed(vec![1, 0]));
        }
        views.extend(found.stored_shape.clone().map(View::Reshaped));
        WeightRef { tensor: found.name.clone(), views }
    }
}

/// Returns `true` if no dtype of a checkpoint holds such elements.
fn is_nowhere_else(element: ElementType, shape: &[u64]) -> bool {
    let count = shape.iter().try_fold(1_u64, |count, dim| count.checked_mul(*dim));
    count.is_some_and(|count| fills_no_byte(element, count))
}
