//! Products of matrices.

use apr_graph::{Node, ValueId};

use super::Lowering;

impl Lowering<'_> {
    pub(super) fn matrix(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "MatMul" => self.product(node, ["transpose_a", "transpose_b"]),
            "Einsum" => self.einsum(node),
            _ => self.product(node, ["adj_x", "adj_y"]),
        }
    }

    fn product(&mut self, node: &Node, settings: [&str; 2]) -> Option<()> {
        let (_, name) = self.output(node)?;
        let mut sides = [self.natural(node, 0)?, self.natural(node, 1)?];
        for (side, setting) in settings.into_iter().enumerate() {
            if node.int(setting).unwrap_or_default() == 0 {
                continue;
            }
            let rank = self.rank(node, side)?;
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(rank.checked_sub(2)?, rank - 1);
            let source = self.source(node, side)?.clone();
            sides[side] = self.turned(&source, &order, None, &format!("{name}/{setting}"))?;
        }
        self.plain(node, "MatMul", &sides)
    }

    fn einsum(&mut self, node: &Node) -> Option<()> {
        let equation = node.text("equation")?.to_owned();
        let inputs: Option<Vec<ValueId>> =
            (0..node.inputs.len()).map(|input| self.natural(node, input)).collect();
        let (_, name) = self.output(node)?;
        let made = self.out.main.op("Einsum", inputs?);
        let y = made.attribute("equation", equation.as_str()).output(&name);
        self.set(node, y, apr_lower::Order::Natural)
    }
}
