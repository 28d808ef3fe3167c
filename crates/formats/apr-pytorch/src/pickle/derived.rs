//! Tensors that are computed from stored ones: quantized and sparse.

use apr_core::{DType, Escaped, Result, Strided};

use super::value::{Derived, Id, Indices, Node, Scale, Sparse, Tensor};
use super::vm::Vm;

impl Vm<'_> {
    fn unsupported(&mut self, what: &str) -> Result<Id> {
        self.heap.add(Node::Unsupported(what.into()))
    }

    /// `_rebuild_qtensor(storage, offset, size, stride, (scheme, scale, zero_point), ...)`
    pub(super) fn quantized(&mut self, args: &[Id]) -> Result<Id> {
        let [storage, offset, size, strides, quantizer, ..] = args else {
            return Err(self.bad("rebuilds a quantized tensor from too little"));
        };
        let Node::Storage(storage) = *self.heap.get(*storage) else {
            return Err(self.bad("rebuilds a tensor from a value that is not a storage"));
        };
        let Some(scale) = self.scale(*quantizer) else {
            return self.unsupported(
                "a quantized tensor of a scheme that is not affine by tensor or channel",
            );
        };
        let element = self.heap.storages[storage as usize].element;
        let dtype = match element.name {
            "QInt8Storage" => DType::I8,
            "QUInt8Storage" => DType::U8,
            // With another zero point, builds of PyTorch differ in how they round.
            "QInt32Storage" if matches!(scale, Scale::One(_, 0)) => DType::I32,
            name => return self.unsupported(&format!("a quantized tensor over {name}")),
        };

        let offset = self
            .heap
            .unsigned(*offset)
            .ok_or_else(|| self.bad("has an offset that is not a number"))?;
        let elements = Strided::new(offset, self.numbers(*size)?, self.numbers(*strides)?)
            .map_err(|_| self.bad("has a shape and strides of different lengths"))?;

        let stored = Tensor { storage, dtype, elements };
        self.heap.add_derived(Derived::Quantized { stored, scale })
    }

    /// `(scheme, scale, zero_point)`, or `(scheme, scales, zero_points, axis)` with two tensors.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "PyTorch keeps the scale as a double and computes in floats"
    )]
    fn scale(&self, quantizer: Id) -> Option<Scale> {
        let [scheme, scale, zero_point, axis @ ..] = self.heap.items(quantizer)? else {
            return None;
        };
        let scheme = self.heap.global(*scheme)?.name.as_str();
        match (scheme, self.heap.get(*scale), self.heap.get(*zero_point), axis) {
            ("per_tensor_affine", Node::Float(scale), Node::Int(zero_point), []) => {
                Some(Scale::One(*scale as f32, i32::try_from(*zero_point).ok()?.into()))
            }
            ("per_channel_affine", Node::Tensor(scales), Node::Tensor(zero_points), [axis]) => {
                let axis = usize::try_from(self.heap.unsigned(*axis)?).ok()?;
                Some(Scale::Channels { scales: *scales, zero_points: *zero_points, axis })
            }
            _ => None,
        }
    }

    /// `_rebuild_sparse_tensor(layout, (indices, values, size))`, and the same of CSR with two
    /// tensors of indices.
    pub(super) fn sparse(&mut self, args: &[Id]) -> Result<Id> {
        let [layout, data, ..] = args else {
            return Err(self.bad("rebuilds a sparse tensor from too little"));
        };
        let layout = self.heap.text(*layout).unwrap_or("?").to_owned();
        self.heap.charge(self.heap.size(*data))?;
        let parts = self.heap.items(*data).map(<[Id]>::to_vec).unwrap_or_default();
        let tensor = |id: Id| match self.heap.get(id) {
            Node::Tensor(tensor) => Some(*tensor),
            _ => None,
        };
        let (indices, values, size) = match (layout.as_str(), &parts[..]) {
            ("torch.sparse_coo", [indices, values, size, ..]) => {
                (tensor(*indices).map(Indices::Coo), *values, *size)
            }
            ("torch.sparse_csr", [rows, columns, values, size, ..]) => {
                let indices = tensor(*rows).zip(tensor(*columns));
                (indices.map(|(rows, columns)| Indices::Csr(rows, columns)), *values, *size)
            }
            _ => {
                return self.unsupported(&format!(
                    "a sparse tensor of layout {}",
                    Escaped::short(&layout)
                ));
            }
        };

        let Some((indices, values)) = indices.zip(tensor(values)) else {
            return self
                .unsupported("a sparse tensor whose indices or values are not plain tensors");
        };
        let shape = self.numbers(size)?;
        self.heap.add_derived(Derived::Sparse(Sparse { indices, values, shape }))
    }
}
