//! Quantized tensors that stay quantized: integers, scales, and the nodes that multiply them.
//!
//! ggml's blocks of 32 elements mean `scale * quant`, or `scale * quant + minimum`, computed in
//! single precision. `DequantizeLinear` with blocks (operator set 21) computes the first; an `Add`
//! over the blocks makes the second of it. The scales are halves in the file and are widened first,
//! which changes no value, so the results are ggml's to the last bit.

use apr_graph::{Body, ElementType, Node, Op, ValueId, ValueOrigin, ValueType, View as Look};
use apr_registry::{DType, Result};
use apr_view::{Parts, TensorOrigin};

use crate::nodes::attribute;
use crate::storage::Blocks;
use crate::{Binding, Weight, typed};

/// Elements of a block.
const BLOCK: u64 = 32;
/// First opset version whose `DequantizeLinear` supports blocks.
const WITH_BLOCKS: i64 = 21;
/// The domain of onnxruntime's own operators.
const MICROSOFT: &str = "com.microsoft";

/// The stored values of a quantized tensor.
#[derive(Debug, Clone, Copy)]
struct Stored {
    quants: ValueId,
    scales: ValueId,
    mins: Option<ValueId>,
}

impl Binding<'_, '_> {
    /// Returns the parts of a quantized tensor, if nodes of this opset can dequantize it.
    ///
    /// Returns `None` if the options request a dtype for quantized tensors.
    pub(crate) fn parts(&self, position: usize) -> Option<Parts> {
        let parts = self.binder.parts[position]?;
        let info = &self.binder.base.tensors()[position];
        let rank = info.shape.dims().len();
        let is_known = match info.dtype {
            // A scale for each row is one for each index of the first dimension, if there are two.
            DType::I8_ROW => rank == 2 && self.opset >= 13,
            _ => rank > 0 && self.opset >= WITH_BLOCKS,
        };
        (is_known && self.binder.storage.dequantize.is_none()).then_some(parts)
    }

    /// Adds nodes that dequantize a tensor to single precision; returns `None` if that is not
    /// possible.
    pub(crate) fn of_blocks(
        &mut self,
        body: &mut Body,
        position: usize,
    ) -> Result<Option<ValueId>> {
        let Some(parts) = self.parts(position) else { return Ok(None) };
        let info = self.binder.base.tensors()[position].clone();
        let dims = info.shape.dims().to_vec();
        let stored = self.stored_parts(body, position, parts);

        // The result has the type of the scales (ONNX's `DequantizeLinear`): with those of half
        // precision, products would be rounded.
        let scales = self.cast_anew(body, stored.scales, Some(ElementType::F32));
        let attributes = if info.dtype == DType::I8_ROW {
            vec![attribute("axis", 0)]
        } else {
            vec![attribute("axis", -1), attribute("block_size", 32)]
        };
        let name = self.names.unique(format!("{}/values", info.name));
        let values =
            body.add_value(name, typed(Some(ElementType::F32), &dims), ValueOrigin::Missing);
        self.push(body, Op::onnx("DequantizeLinear"), &[stored.quants, scales], values, attributes);
        let Some(mins) = stored.mins else { return Ok(Some(values)) };
        let mins = self.cast_anew(body, mins, Some(ElementType::F32));

        // Zero points are integers, which minima are not: they are added afterwards. Blocks get a
        // dimension of their own, along which `Add` repeats the minimum.
        let (mut blocks, mut of_blocks) = (dims.clone(), dims.clone());
        if let Some(columns) = dims.last() {
            for (dims, inner) in [(&mut blocks, BLOCK), (&mut of_blocks, 1)] {
                dims.pop();
                dims.extend([columns / BLOCK, inner]);
            }
        }

        let (values, mins) =
            (self.reshaped(body, values, &blocks), self.reshaped(body, mins, &of_blocks));
        let sum = self.make(body, "Add", values, &[values, mins], Vec::new());
        Ok(Some(self.reshaped(body, sum, &dims)))
    }

    /// Adds quants, scales and minima to the list as tensors.
    ///
    /// Quants of 8 bits are signed. Quants of 4 bits are signed unless minima are added.
    fn stored_parts(&mut self, body: &mut Body, position: usize, parts: Parts) -> Stored {
        // Signed elements need no zero point.
        let is_turned = parts.per_byte == 2 && parts.mins.is_none();
        let element = match (parts.per_byte, is_turned) {
            (1, _) => ElementType::I8,
            (_, true) => ElementType::I4,
            (_, false) => ElementType::U4,
        };
        let dims = self.binder.base.tensors()[position].shape.dims().to_vec();
        let of = if is_turned { parts.turned } else { parts.quants };
        let quants = self.part(body, position, of, "quants", typed(Some(element), &dims));
        let scales = self.field(body, position, parts.scales, "scales");
        let mins = parts.mins.map(|mins| self.field(body, position, mins, "mins"));
        Stored { quants, scales, mins }
    }

    /// Adds scales or minima to the list in their stored form.
    fn field(&mut self, body: &mut Body, position: usize, part: usize, what: &str) -> ValueId {
        let info = &self.binder.base.tensors()[part];
        let kind = typed(ElementType::from_dtype(info.dtype), info.shape.dims());
        self.part(body, position, part, what, kind)
    }

    /// A part of a tensor as a tensor of the list.
    fn part(
        &mut self,
        body: &mut Body,
        position: usize,
        part: usize,
        what: &str,
        kind: ValueType,
    ) -> ValueId {
        if let Some(known) = self.raw.get(&part) {
            return *known;
        }
        let name = format!("{}.{what}", self.binder.base.tensors()[position].name);
        let info = self.binder.base.tensors()[part].clone();
        let dtype = info.dtype;
        let value = self.stored_value(body, &name, info, TensorOrigin::Base(part), dtype, kind);
        self.raw.insert(part, value);
        value
    }

    /// Replaces reads of a quantized weight by reads of its parts if operators support that.
    ///
    /// These are row lookups and, if requested, matrix products. Returns `true` if all reads of the
    /// weight were replaced.
    pub(crate) fn read_by_parts(&mut self, body: &mut Body, weight: &Weight) -> bool {
        let Some(parts) = self.parts(weight.position).filter(|parts| parts.mins.is_none()) else {
            return false;
        };
        let Some(readers) = only_readers(body, weight.value) else { return false };
        let all = |is: fn(&Node, ValueId) -> bool| {
            readers.iter().all(|&at| is(&body.nodes[at], weight.value))
        };
        if self.rows_have_parts(weight, parts) && all(is_lookup) {
            // From the last one on: the nodes that are put in move those behind them.
            for reader in readers.into_iter().rev() {
                self.look_up(body, weight.position, parts, reader);
            }
            return true;
        }

        if self.is_multiplied_by_parts(weight) && all(is_product) {
            for reader in readers {
                self.multiply(body, weight.position, parts, reader);
            }
            return true;
        }

        false
    }

    /// Returns `true` if each row of the weight consists of a row of quants and a row of scales.
    fn rows_have_parts(&self, weight: &Weight, parts: Parts) -> bool {
        let dtype = self.binder.base.tensors()[weight.position].dtype;
        weight.reference.views.is_empty() && parts.per_byte == 1 && dtype != DType::I8_ROW
    }

    /// Returns `true` if `MatMulNBits` is requested and supports the weight: a transposed matrix in
    /// blocks.
    fn is_multiplied_by_parts(&self, weight: &Weight) -> bool {
        let info = &self.binder.base.tensors()[weight.position];
        let is_asked =
            self.binder.storage.blocks == Blocks::MatMulNBits && info.dtype != DType::I8_ROW;
        let is_turned = weight.reference.views == [Look::Transposed(vec![1, 0])];
        is_asked && is_turned && info.shape.dims().len() == 2
    }

    /// Looks rows up in quants and scales, and multiplies those.
    fn look_up(&mut self, body: &mut Body, position: usize, parts: Parts, reader: usize) {
        let stored = self.stored_parts(body, position, parts);
        let node = body.nodes[reader].clone();
        let Some(ids) = node.input(1) else { return };

        // These nodes read `ids`, which a node of the body may make: they can't come before all
        // others.
        let earlier = std::mem::take(&mut self.nodes);
        let quants = self.make(body, "Gather", stored.quants, &[stored.quants, ids], Vec::new());
        let scales = self.make(body, "Gather", stored.scales, &[stored.scales, ids], Vec::new());
        let scales = self.cast_anew(body, scales, Some(ElementType::F32));
        let attributes = vec![attribute("axis", -1), attribute("block_size", 32)];
        let op = Op::onnx("DequantizeLinear");
        let inputs = vec![Some(quants), Some(scales)];
        let mut made = std::mem::replace(&mut self.nodes, earlier);
        made.push(Node { op, inputs, attributes, ..node });
        body.nodes.splice(reader..=reader, made);
    }

    /// Multiplies by the quants without a copy of them in floats.
    fn multiply(&mut self, body: &mut Body, position: usize, parts: Parts, reader: usize) {
        let info = self.binder.base.tensors()[position].clone();
        let &[rows, columns] = info.shape.dims() else { return };
        let blocks = columns / BLOCK;
        let (part, bits, bytes) = if parts.per_byte == 1 {
            // Without zero points, the operator takes the middle of the unsigned range for zero.
            (parts.turned, 8, BLOCK)
        } else {
            (parts.quants, 4, BLOCK / 2)
        };
        let kind = typed(Some(ElementType::U8), &[rows, blocks, bytes]);
        let quants = self.part(body, position, part, "quants", kind);
        let scales = self.field(body, position, parts.scales, "scales");
        let scales = self.cast_anew(body, scales, Some(ElementType::F32));
        self.domains.push(MICROSOFT);
        let node = &mut body.nodes[reader];
        node.op = Op::new(MICROSOFT, "MatMulNBits");
        node.inputs = vec![node.input(0), Some(quants), Some(scales)];
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        node.attributes = vec![
            attribute("K", number(columns)),
            attribute("N", number(rows)),
            attribute("bits", bits),
            attribute("block_size", number(BLOCK)),
        ];
    }
}

/// Returns the positions of the nodes of a body that read a value.
///
/// Returns `None` if there are none, or if an inner body or an output of the body also reads the
/// value.
fn only_readers(body: &Body, value: ValueId) -> Option<Vec<usize>> {
    let mut bodies = body.nodes.iter().flat_map(Node::bodies);
    if body.outputs.contains(&value) || bodies.any(|inner| looks_out(inner, value)) {
        return None;
    }
    let reads = |node: &Node| node.inputs.contains(&Some(value));
    let readers =
        body.nodes.iter().enumerate().filter(|(_, node)| reads(node)).map(|(position, _)| position);
    let readers: Vec<usize> = readers.collect();
    (!readers.is_empty()).then_some(readers)
}

/// Returns `true` if a node looks up rows of a weight.
fn is_lookup(node: &Node, weight: ValueId) -> bool {
    node.op.is("Gather") && node.input(0) == Some(weight) && node.int("axis").unwrap_or(0) == 0
}

/// Returns `true` if a node multiplies by a weight as its right operand only.
fn is_product(node: &Node, weight: ValueId) -> bool {
    node.op.is("MatMul") && node.input(1) == Some(weight) && node.input(0) != Some(weight)
}

/// Returns `true` if an inner body reads a value of the enclosing body.
fn looks_out(inner: &Body, value: ValueId) -> bool {
    inner.values.iter().any(|inner| inner.origin == ValueOrigin::Outer(value))
}
