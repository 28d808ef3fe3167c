//! Tensors that are part of the graph itself, because shapes depend on them or because they are an operator's setting.

use apr_core::Result;
use apr_core::protobuf::Walker;
use apr_graph::{Constant, ConstantData, ElementType};

use crate::proto::Tensor;
use crate::reader::OnnxReader;

/// Longest tensor that is part of the graph, in bytes.
const SMALL: u64 = 1024;

/// Reads small tensors.
pub(crate) struct SmallTensors<'a> {
    reader: &'a OnnxReader,
}

impl<'a> SmallTensors<'a> {
    pub(crate) fn new(reader: &'a OnnxReader) -> Self {
        Self { reader }
    }

    /// A tensor as a constant, where it is small, or holds what no tensor of the checkpoint does.
    pub(crate) fn constant(&self, tensor: &Tensor, walker: &mut Walker<'_>) -> Result<Option<Constant>> {
        let Some(element) = ElementType::from_onnx_code(tensor.data_type) else { return Ok(None) };
        let shape = tensor.shape()?;
        let data = if element == ElementType::Text {
            let texts: Result<Vec<_>> = tensor.texts.iter().map(|span| walker.bytes(*span)).collect();
            ConstantData::Texts(texts?)
        } else {
            let count = shape.iter().try_fold(1_u64, |count, dim| count.checked_mul(*dim));
            let len = count.and_then(|count| element.stored_len(count)).filter(|len| *len <= SMALL);
            let Some(len) = len else { return Ok(None) };
            walker.keep(len)?;
            ConstantData::Bytes(self.reader.packed(tensor, len)?)
        };
        Ok(Some(Constant { name: tensor.name.clone(), element, shape, data }))
    }

    /// Whether an initializer is a constant of the graph: integers that shapes depend on, and what the checkpoint can't
    /// hold. Others are weights, however small.
    pub(crate) fn is_of_graph(tensor: &Tensor, decides_shapes: bool) -> bool {
        match ElementType::from_onnx_code(tensor.data_type) {
            Some(ElementType::I64 | ElementType::I32 | ElementType::Bool) => true,
            Some(ElementType::Text | ElementType::C128) => true,
            Some(_) => decides_shapes,
            None => false,
        }
    }
}
