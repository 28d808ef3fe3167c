//! Products of matrices.

use apr_graph::{Node, ValueId};

use apr_lower::{Order, with};

use super::layout::Lowering;

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn matrix(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "FULLY_CONNECTED" => self.fully_connected(node),
            "BATCH_MATMUL" => self.batch_matmul(node),
            _ => None,
        }
    }

    fn fully_connected(&mut self, node: &Node) -> Option<()> {
        let is_plain = node.text("weights_format").is_none_or(|format| format == "DEFAULT");
        let (input, kernel) = (node.input(0)?, node.input(1)?);
        (is_plain && self.rank(kernel)? == 2).then_some(())?;
        let inner = i64::try_from(self.size(kernel, 1)?).ok()?;
        let name = self.name(node, Order::Natural)?;
        let mut x = self.floats(node, 0, Order::Natural)?;
        let is_row = self.rank(input)? == 2 && self.size(input, 1) == self.size(kernel, 1);
        if !is_row {
            // All dimensions are rows but for what a row of the matrix takes.
            let shape = self.out.main.ints(&[-1, inner]);
            x = self.out.main.op("Reshape", [x, shape]).output(&format!("{name}/rows"));
        }
        let w = self.floats(node, 1, Order::Natural)?;
        let bias = match node.input(2) {
            Some(_) => Some(self.floats(node, 2, Order::Natural)?),
            None => None,
        };
        let gemm = with(self.out.main.op("Gemm", [x, w]), bias).attribute("transB", 1);
        let mut y: ValueId = gemm.output(&name);
        let (output, _) = self.output(node)?;
        if self.rank(output)? != 2 {
            let shape = match self.target(output) {
                Some(shape) => self.out.main.ints(&shape),
                None => self.rows_of(node, &name)?,
            };
            y = self.out.main.op("Reshape", [y, shape]).output(&format!("{name}/shaped"));
        }
        self.end(node, y, Order::Natural)
    }

    /// Returns the shape of a product with several sizes that are not known: the input's shape with
    /// the width of the output.
    fn rows_of(&mut self, node: &Node, name: &str) -> Option<ValueId> {
        let (input, kernel) = (node.input(0)?, node.input(1)?);
        let (output, _) = self.output(node)?;
        let rank = self.rank(input)?;
        (rank == self.rank(output)? && self.size(input, rank - 1) == self.size(kernel, 1))
            .then_some(())?;
        let x = self.value(input, Order::Natural)?;
        let width = i64::try_from(self.size(kernel, 0)?).ok()?;
        let shape = self.out.main.op("Shape", [x]).output(&format!("{name}/shape"));
        let (start, end) = (self.out.main.ints(&[0]), self.out.main.ints(&[-1]));
        let rows = self.out.main.op("Slice", [shape, start, end]);
        let rows = rows.output(&format!("{name}/row_sizes"));
        let width = self.out.main.ints(&[width]);
        let joined = self.out.main.op("Concat", [rows, width]).attribute("axis", 0);
        Some(joined.output(&format!("{name}/sizes")))
    }

    fn batch_matmul(&mut self, node: &Node) -> Option<()> {
        let name = self.name(node, Order::Natural)?;
        let mut sides =
            [self.floats(node, 0, Order::Natural)?, self.floats(node, 1, Order::Natural)?];
        for (side, setting) in ["adj_x", "adj_y"].into_iter().enumerate() {
            if node.int(setting).unwrap_or_default() == 0 {
                continue;
            }
            let rank = i64::try_from(self.rank(node.input(side)?)?).ok()?;
            let mut perm: Vec<i64> = (0..rank).collect();
            let last = perm.len().checked_sub(2)?;
            perm.swap(last, last + 1);
            let name = format!("{name}/{setting}");
            sides[side] =
                self.out.main.op("Transpose", [sides[side]]).attribute("perm", perm).output(&name);
        }
        let y = self.out.main.op("MatMul", sides).output(&name);
        self.end_plain(node, y, Order::Natural)
    }

    /// The sizes of a value; -1 for one that is not known.
    pub(super) fn target(&self, id: ValueId) -> Option<Vec<i64>> {
        let shape = self.from.value(id).shape()?;
        let sizes: Vec<i64> = shape
            .iter()
            .map(|dim| dim.size().and_then(|size| i64::try_from(size).ok()).unwrap_or(-1))
            .collect();
        (sizes.iter().filter(|size| **size < 0).count() <= 1).then_some(sizes)
    }
}
