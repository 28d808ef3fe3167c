//! Products of matrices, and attention.

use apr_graph::{ElementType, ValueId};

use super::super::call::Call;
use super::Lowering;

impl Lowering<'_> {
    /// Lowers an operation of this kind; `None` for another, and for one that can't be.
    pub(super) fn matrix(&mut self, call: &Call<'_>) -> Option<ValueId> {
        match call.op {
            "matmul" => self.matmul(call),
            "linear" => self.linear(call),
            "einsum" => {
                let values = self.tensors(call, "values")?;
                let equation = self.text(call, "equation")?;
                let node = self.out.main.op("Einsum", values);
                Some(node.attribute("equation", equation.as_str()).output(&call.name))
            }
            "scaled_dot_product_attention" => self.attention(call),
            _ => None,
        }
    }

    fn matmul(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let (x, y) = (self.tensor(call, "x")?, self.tensor(call, "y")?);
        let x = match self.flag(call, "transpose_x", false)? {
            true => self.turned(x, &call.step("x"))?,
            false => x,
        };
        let y = match self.flag(call, "transpose_y", false)? {
            true => self.turned(y, &call.step("y"))?,
            false => y,
        };
        Some(self.op(call, "MatMul", &[x, y]))
    }

    /// Exchanges the last two dimensions of a matrix. Returns a value of rank 1 unchanged.
    fn turned(&mut self, x: ValueId, name: &str) -> Option<ValueId> {
        let rank = i64::try_from(self.out.rank(x)?).ok()?;
        if rank < 2 {
            return Some(x);
        }
        let perm: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        Some(self.out.main.op("Transpose", [x]).attribute("perm", perm).output(name))
    }

    fn linear(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let x = self.tensor(call, "x")?;
        let weight = self.tensor(call, "weight")?;
        (self.out.rank(weight)? == 2).then_some(())?;
        let bias = self.maybe(call, "bias")?;
        let turned = self.turned(weight, &call.step("weight"))?;
        let Some(bias) = bias else {
            return Some(self.op(call, "MatMul", &[x, turned]));
        };
        let product = self.out.main.op("MatMul", [x, turned]).output(&call.step("product"));
        Some(self.op(call, "Add", &[product, bias]))
    }

    /// `softmax(query key^T / sqrt(size) + mask) value`.
    fn attention(&mut self, call: &Call<'_>) -> Option<ValueId> {
        let query = self.tensor(call, "query")?;
        let (key, value) = (self.tensor(call, "key")?, self.tensor(call, "value")?);
        let mask = self.maybe(call, "attn_mask")?;
        let last = self.out.rank(query)?.checked_sub(1)?;
        let size = self.out.size(query, last)?;
        let key = self.turned(key, &call.step("key"))?;
        let scaled = self.times(query, 1.0 / (size as f32).sqrt(), &call.step("query"));
        let mut scores = self.out.main.op("MatMul", [scaled, key]).output(&call.step("scores"));
        if let Some(mut mask) = mask {
            if self.out.element(mask)? == ElementType::Bool {
                let (zero, least) =
                    (self.out.main.float(0.0), self.out.main.float(f32::NEG_INFINITY));
                let name = call.step("mask");
                mask = self.out.main.op("Where", [mask, zero, least]).output(&name);
            }
            scores = self.out.main.op("Add", [scores, mask]).output(&call.step("masked"));
        }
        let node = self.out.main.op("Softmax", [scores]);
        let share = node.attribute("axis", -1).output(&call.step("share"));
        Some(self.op(call, "MatMul", &[share, value]))
    }
}
