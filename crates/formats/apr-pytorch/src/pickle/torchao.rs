//! Tensors of torchao: a wrapper without elements, and the tensors that it stands for in its state.
//!
//! ```text
//! _rebuild_from_type_v2(_rebuild_wrapper_subclass, AffineQuantizedTensor,
//!     (AffineQuantizedTensor, torch.bfloat16, shape, ...),
//!     {tensor_impl: the same of PlainAQTTensorImpl with the state
//!                   {int_data, scale, zero_point, _layout: PlainLayout()},
//!      block_size, quant_min, quant_max, zero_point_domain: ZeroPointDomain(1)})
//! _rebuild_from_type_v2(_rebuild_wrapper_subclass, Int8Tensor,
//!     (Int8Tensor, torch.bfloat16, shape, ...), {qdata, scale, zero_point, block_size, ...})
//! ```

use apr_core::Result;

use super::build::global_meaning;
use super::globals::Meaning;
use super::value::{Id, Node};
use super::vm::Vm;

/// Members of torchao's `ZeroPointDomain`: integer zero points, and no zero points.
const INTEGERS: u64 = 1;
const NO_POINTS: u64 = 3;

impl Vm<'_> {
    /// Returns the value of `_rebuild_wrapper_subclass` for a class with this state.
    pub(super) fn wrapper(&mut self, class: Id, args: &[Id], state: Id) -> Result<Id> {
        self.check_state(state)?;
        match global_meaning(self, class) {
            // Whatever its state is, the wrapper around it takes what it needs.
            Meaning::AffineParts => self.heap.add(Node::Object(Some(state))),
            meaning @ (Meaning::AffineTensor | Meaning::CodesTensor) => {
                let shape = args.get(2).copied();
                let shape = shape.ok_or_else(|| self.bad("rebuilds a tensor from too little"))?;
                let shape = self.numbers(shape)?;
                let parts = match meaning {
                    Meaning::AffineTensor => self.affine_parts(&shape, state),
                    _ => self.plain_parts(&shape, (state, "qdata"), true),
                };
                match parts {
                    Some(parts) => self.heap.add(Node::Parts(parts)),
                    None => self.heap.add(Node::Unsupported(
                        "a tensor of torchao with another layout than a plain one, or with zero \
                         points that are not integers"
                            .into(),
                    )),
                }
            }
            _ => self.heap.add(Node::Unsupported("a tensor that wraps others".into())),
        }
    }

    /// The tensors that a quantized one of this shape is stored in.
    fn affine_parts(&self, shape: &[u64], state: Id) -> Option<Box<[(&'static str, Id)]>> {
        let stored = self.heap.entry(state, "tensor_impl")?;
        let &Node::Object(Some(stored)) = self.heap.get(stored) else { return None };
        let domain = self.heap.entry(state, "zero_point_domain");
        let domain = domain.and_then(|domain| self.heap.unsigned(domain))?;
        let is_plain = [INTEGERS, NO_POINTS].contains(&domain);
        self.plain_parts(shape, (stored, "int_data"), domain == INTEGERS).filter(|_| is_plain)
    }

    /// The tensors in this state: codes of this shape by this name, scales and zero points.
    fn plain_parts(
        &self,
        shape: &[u64],
        (stored, codes): (Id, &str),
        has_points: bool,
    ) -> Option<Box<[(&'static str, Id)]>> {
        let tensor = |key: &str| {
            let part = self.heap.entry(stored, key)?;
            matches!(self.heap.get(part), Node::Tensor(_)).then_some(part)
        };
        let codes = tensor(codes)?;
        let &Node::Tensor(position) = self.heap.get(codes) else { return None };
        let dims = self.heap.tensors.get(position as usize)?.elements.dims();
        let zero_point = tensor("zero_point").filter(|_| has_points);
        let parts = [("qdata", codes), ("scale", tensor("scale")?)];
        let parts = parts.into_iter().chain(zero_point.map(|part| ("zero_point", part)));
        (dims == shape).then(|| parts.collect())
    }
}
