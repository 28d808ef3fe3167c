//! Products of matrices, and rows of tables.

use apr_graph::ElementType;
use apr_lower::{Order, Placed, with};

use super::Lowering;
use super::activation::position;
use super::layer::Layer;

impl Lowering<'_> {
    pub(super) fn matrix(&mut self, layer: &Layer) -> Option<Placed> {
        match layer.class.as_str() {
            "Dense" => self.dense(layer),
            "Embedding" => self.embedding(layer),
            "Dot" => self.dot(layer),
            _ => None,
        }
    }

    fn dense(&mut self, layer: &Layer) -> Option<Placed> {
        let kernel = layer.variable(&["kernel"], 0)?.clone();
        let bias = match layer.is_kept("use_bias") {
            true => Some(layer.variable(&["bias"], 1)?.clone()),
            false => None,
        };
        (kernel.dims.len() == 2).then_some(())?;
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let w = self.out.main.weight(&kernel.weight.tensor, ElementType::F32, kernel.dims.clone());
        let bias =
            bias.map(|b| self.out.main.weight(&b.weight.tensor, ElementType::F32, b.dims.clone()));
        let is_row = self.out.rank(x) == Some(2);
        self.end(layer, |this, name| {
            let main = &mut this.out.main;
            let y = match (is_row, bias) {
                (true, bias) => with(main.op("Gemm", [x, w]), bias).output(name),
                (false, None) => main.op("MatMul", [x, w]).output(name),
                (false, Some(bias)) => {
                    let product = main.op("MatMul", [x, w]).output(&format!("{name}/product"));
                    main.op("Add", [product, bias]).output(name)
                }
            };
            Some(Placed::natural(y))
        })
    }

    fn embedding(&mut self, layer: &Layer) -> Option<Placed> {
        let table = layer.variable(&["embeddings"], 0)?.clone();
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let is_index = matches!(self.out.element(x), Some(ElementType::I32 | ElementType::I64));
        let ids = match is_index {
            true => x,
            false => self.out.cast(x, ElementType::I64, &format!("{}/ids", layer.name)),
        };
        if layer.is_set("mask_zero") {
            let name = format!("{}/mask", layer.name);
            let same = self.equal(ids, 0.0, &name)?;
            self.mask_made = Some(self.out.main.op("Not", [same]).output(&name));
        }
        let table = self.out.main.weight(&table.weight.tensor, ElementType::F32, table.dims);
        Some(Placed::natural(self.out.main.op("Gather", [table, ids]).output(&layer.name)))
    }

    /// The product of two inputs along a dimension of each, for each row of the batch.
    fn dot(&mut self, layer: &Layer) -> Option<Placed> {
        let [a, b] = layer.inputs.as_slice() else { return None };
        let ids = [self.out.ordered(*a, Order::Natural)?, self.out.ordered(*b, Order::Natural)?];
        let axes = layer.sizes("axes", 2)?;
        let rank = self.out.rank(ids[0])?;
        (self.out.rank(ids[1])? == rank && matches!(rank, 2 | 3)).then_some(())?;
        let axes = [position(axes[0], rank)?, position(axes[1], rank)?];
        (axes[0] > 0 && axes[1] > 0).then_some(())?;
        let name = &layer.name;
        let mut sides = ids;
        if layer.is_set("normalize") {
            for (number, side) in sides.iter_mut().enumerate() {
                let axis = i64::try_from(axes[number]).ok()?;
                let norm = self.out.main.op("LpNormalization", [*side]).attribute("axis", axis);
                *side = norm.attribute("p", 2).output(&format!("{name}/normalized{number}"));
            }
        }
        let main = &mut self.out.main;
        if rank == 2 {
            let product = main.op("Mul", sides).output(&format!("{name}/product"));
            let axis = main.ints(&[1]);
            return Some(Placed::natural(main.op("ReduceSum", [product, axis]).output(name)));
        }
        // The rows of the first and the columns of the second.
        for (number, (side, wanted)) in sides.iter_mut().zip([2, 1]).enumerate() {
            if axes[number] != wanted {
                let turned = main.op("Transpose", [*side]).attribute("perm", [0, 2, 1]);
                *side = turned.output(&format!("{name}/transposed{number}"));
            }
        }
        Some(Placed::natural(main.op("MatMul", sides).output(name)))
    }
}
