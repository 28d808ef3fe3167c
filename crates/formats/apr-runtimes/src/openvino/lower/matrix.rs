//! Products of matrices, attention, and sums over products.

use apr_graph::{ElementType, ValueId};

use super::Lowering;
use super::call::Call;

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn matrix(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "MatMul" => self.matmul(call),
            "Einsum" => {
                let inputs = self.inputs(call)?;
                let equation = call.text_or("equation", "")?;
                let node = self.out.main.op("Einsum", inputs).attribute("equation", equation);
                Some(node.output(&call.name))
            }
            "ScaledDotProductAttention" => self.attention(call),
            _ => None,
        }
    }

    fn matmul(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let a = self.factor(call, 0, call.flag_or("transpose_a", false)?)?;
        let b = self.factor(call, 1, call.flag_or("transpose_b", false)?)?;
        Some(self.op(call, "MatMul", &[a, b]))
    }

    fn factor(&mut self, call: &Call<'_>, input: usize, is_exchanged: bool) -> Option<ValueId> {
        let id = call.inputs.get(input).copied().flatten()?;
        // A list has one order.
        if is_exchanged && self.from.value(id).shape().is_none_or(|shape| shape.len() != 1) {
            return self.exchanged(call, input);
        }
        self.input(call, input)
    }

    /// Attention: queries, keys, values, then a mask, and a scale.
    fn attention(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let is_causal = call.flag_or("causal", false)?;
        // A sixth input is a sink, which softmax does not have.
        (call.inputs.len() <= 5).then_some(())?;
        let query = self.input(call, 0)?;
        let keys = self.exchanged(call, 1)?;
        let values = self.input(call, 2)?;
        let rank = self.out.rank(query)?;
        let scale = match self.maybe(call, 4)? {
            Some(scale) => {
                let empty = self.out.main.ints(&[]);
                self.step(call, "scale", "Reshape", &[scale, empty])
            }
            None => {
                let size = self.out.size(query, rank.checked_sub(1)?)?;
                self.out.main.float(1.0 / (size as f32).sqrt())
            }
        };
        let scaled = self.step(call, "scaled", "Mul", &[query, scale]);
        let mut scores = self.step(call, "scores", "MatMul", &[scaled, keys]);
        if is_causal {
            (!call.has_input(3)).then_some(())?;
            scores = self.causal(call, scores)?;
        } else if let Some(mask) = self.maybe(call, 3)? {
            scores = match self.out.element(mask)? {
                ElementType::Bool => {
                    let least = self.out.main.float(f32::NEG_INFINITY);
                    self.step(call, "masked", "Where", &[mask, scores, least])
                }
                _ => self.step(call, "masked", "Add", &[scores, mask]),
            };
        }
        let node = self.out.main.op("Softmax", [scores]).attribute("axis", -1);
        let shares = node.output(&call.step("shares"));
        Some(self.op(call, "MatMul", &[shares, values]))
    }

    /// Scores of earlier keys alone: those whose number is not beyond the query's.
    fn causal(&mut self, call: &Call<'_>, scores: ValueId) -> Option<ValueId> {
        let shape = self.step(call, "sizes", "Shape", &[scores]);
        let mut numbers = Vec::new();
        for (axis, name) in [(-2, "queries"), (-1, "keys")] {
            let at = self.out.main.int(axis);
            let count = self.step(call, &format!("{name}/count"), "Gather", &[shape, at]);
            let (zero, one) = (self.out.main.int(0), self.out.main.int(1));
            numbers.push(self.step(call, name, "Range", &[zero, count, one]));
        }
        let axis = self.out.main.ints(&[1]);
        let rows = self.step(call, "rows", "Unsqueeze", &[numbers[0], axis]);
        let is_earlier = self.step(call, "earlier", "LessOrEqual", &[numbers[1], rows]);
        let least = self.out.main.float(f32::NEG_INFINITY);
        Some(self.step(call, "masked", "Where", &[is_earlier, scores, least]))
    }
}
