//! Products of matrices, and tables of vectors.

use apr_graph::{ElementType, ValueId};

use super::Lowering;
use super::layer::{Blob, Layer};

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn matrix(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        match layer.op() {
            "innerProduct" => self.inner_product(layer),
            "batchedMatmul" => self.matmul(layer),
            "embedding" | "embeddingND" => self.embedding(layer),
            _ => None,
        }
    }

    fn with_bias(&mut self, layer: &Layer<'_>, x: ValueId, name: &str) -> Option<ValueId> {
        if !layer.is_set("hasBias") {
            return Some(x);
        }
        let bias = self.whole(layer, "bias")?;
        Some(self.out.main.op("Add", [x, bias]).output(name))
    }

    /// The last three dimensions of four or five are one vector.
    fn inner_product(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        (!layer.is_set("int8DynamicQuantize")).then_some(())?;
        let x = layer.only()?;
        let weight = self.turned(layer, "weight")?;
        let [inputs, outputs] = [0, 1].map(|axis| self.out.size(weight, axis));
        let rank = self.out.rank(x.id)?;
        let product = layer.step("product");
        if rank < 4 {
            let made = self.out.main.op("MatMul", [x.id, weight]).output(&product);
            return Some(x.with(self.with_bias(layer, made, &layer.name)?));
        }
        (rank == 4).then_some(())?;
        let rows = self.shaped(x.id, &[0, i64::try_from(inputs?).ok()?], &layer.step("rows"));
        let kept = self.out.size(x.id, 0)?;
        // Sizes that do not fit would be another batch.
        let count = (1..4).try_fold(1_u64, |all, axis| all.checked_mul(self.out.size(x.id, axis)?));
        (count == inputs).then_some(())?;
        let made = self.out.main.op("MatMul", [rows, weight]).output(&product);
        let made = self.with_bias(layer, made, &layer.step("sum"))?;
        let sizes = [i64::try_from(kept).ok()?, i64::try_from(outputs?).ok()?, 1, 1];
        Some(x.with(self.shaped(made, &sizes, &layer.name)))
    }

    fn matmul(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        (!layer.is_set("int8DynamicQuantize")).then_some(())?;
        if let [x] = layer.inputs.as_slice() {
            let x = self.exact(*x, &layer.step("x"));
            // The file has the matrix with its output's dimension first.
            let weight = self.turned(layer, "weight")?;
            let first = layer.int("weightMatrixFirstDimension");
            (self.out.size(weight, 0) == u64::try_from(first).ok()).then_some(())?;
            let made = self.out.main.op("MatMul", [x, weight]).output(&layer.step("product"));
            return Some(Blob::exact(self.with_bias(layer, made, &layer.name)?));
        }
        let [a, b] = layer.pair()?;
        let mut ids = [self.exact(a, &layer.step("a")), self.exact(b, &layer.step("b"))];
        for (id, field) in ids.iter_mut().zip(["transposeA", "transposeB"]) {
            let rank = i64::try_from(self.out.rank(*id)?).ok()?;
            // A vector would become a matrix.
            (rank >= 2).then_some(())?;
            if layer.is_set(field) {
                let perm: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
                let node = self.out.main.op("Transpose", [*id]).attribute("perm", perm);
                *id = node.output(&layer.step(field));
            }
        }
        Some(Blob::exact(self.out.main.op("MatMul", ids).output(&layer.name)))
    }

    /// Looks up vectors by their indices, which are stored as floats.
    fn embedding(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?;
        let rank = self.out.rank(x.id)?;
        let table = self.turned(layer, "weight")?;
        let size = i64::try_from(self.out.size(table, 1)?).ok()?;
        let gone: &[i64] = match (layer.op(), rank) {
            ("embedding", 4) => &[1, 2, 3],
            ("embeddingND", 2..) => &[-1],
            _ => return None,
        };
        let axes = self.out.main.ints(gone);
        let flat = self.out.main.op("Squeeze", [x.id, axes]).output(&layer.step("flat"));
        let numbers = self.out.cast(flat, ElementType::I64, &layer.step("numbers"));
        let node = self.out.main.op("Gather", [table, numbers]).attribute("axis", 0);
        let found = node.output(&layer.step("found"));
        if layer.op() == "embeddingND" {
            return Some(Blob::exact(self.with_bias(layer, found, &layer.name)?));
        }
        let made = self.with_bias(layer, found, &layer.step("sum"))?;
        Some(x.with(self.shaped(made, &[-1, size, 1, 1], &layer.name)))
    }
}
