//! Operators that reduce dimensions, or find positions along them.

use apr_graph::{ElementType, Node};
use apr_lower::{Order, Placed, Writer};

use super::Lowering;
use super::elementwise::element;

const REDUCERS: [(&str, &str); 5] = [
    ("Max", "ReduceMax"),
    ("Mean", "ReduceMean"),
    ("Min", "ReduceMin"),
    ("Prod", "ReduceProd"),
    ("Sum", "ReduceSum"),
];

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn reduce(&mut self, node: &Node) -> Option<()> {
        if let Some((_, op)) = REDUCERS.iter().find(|(own, _)| *own == &*node.op.name) {
            return self.reduced(node, op);
        }
        match &*node.op.name {
            "All" => self.truth(node, "ReduceMin"),
            "Any" => self.truth(node, "ReduceMax"),
            "ArgMax" => self.arg(node, "ArgMax"),
            "ArgMin" => self.arg(node, "ArgMin"),
            "Cumsum" => self.cumsum(node),
            "TopKV2" => self.top(node),
            _ => None,
        }
    }

    fn reduced(&mut self, node: &Node, op: &str) -> Option<()> {
        let keeps = node.int("keep_dims").unwrap_or_default() != 0;
        let axes = self.ints(node, 1)?;
        let (_, name) = self.output(node)?;
        let (mut order, rank) = self.order_of(node, &[0])?;
        let mut own = axes.clone();
        if order == Order::ChannelsFirst {
            let positions: Option<Vec<usize>> =
                axes.iter().map(|axis| Self::position(*axis, rank)).collect();
            let positions = positions?;
            // What is left has one order where the dimensions of the image go.
            let is_image = (1..rank - 1).all(|axis| positions.contains(&axis));
            if keeps || is_image {
                let placed = Placed { id: apr_graph::ValueId(0), order };
                own = positions
                    .iter()
                    .filter_map(|axis| i64::try_from(placed.axis(*axis, rank)).ok())
                    .collect();
            } else {
                order = Order::Natural;
            }
        }
        let source = self.source(node, 0)?.clone();
        let x = self.written(&source, order, rank)?;
        let order = if keeps { order } else { Order::Natural };
        let name = Writer::name_in(&name, order, rank);
        if own.is_empty() {
            let y = self.out.main.op("Identity", [x]).output(&name);
            return self.set(node, y, order);
        }
        let axes = self.out.main.ints(&own);
        let y = self.out.main.op(op, [x, axes]).attribute("keepdims", i64::from(keeps));
        let y = y.output(&name);
        self.set(node, y, order)
    }

    /// Lowers a reduction to `true` if all or any elements are true.
    fn truth(&mut self, node: &Node, op: &str) -> Option<()> {
        let keeps = node.int("keep_dims").unwrap_or_default();
        let axes = self.ints(node, 1)?;
        (!axes.is_empty()).then_some(())?;
        let x = self.natural(node, 0)?;
        let (_, name) = self.output(node)?;
        let number = self.out.cast(x, ElementType::I32, &format!("{name}/numbers"));
        let axes = self.out.main.ints(&axes);
        let made = self.out.main.op(op, [number, axes]).attribute("keepdims", keeps);
        let made = made.output(&format!("{name}/number"));
        let y = self.out.cast(made, ElementType::Bool, &name);
        self.set(node, y, Order::Natural)
    }

    /// The position of the greatest or the least element, the first of them.
    fn arg(&mut self, node: &Node, op: &str) -> Option<()> {
        let axis = *self.ints(node, 1)?.first()?;
        let x = self.natural(node, 0)?;
        let (_, name) = self.output(node)?;
        let to = element(node.text("output_type").unwrap_or("int64"))?;
        let made = self.out.main.op(op, [x]).attribute("axis", axis).attribute("keepdims", 0);
        let long = match to {
            ElementType::I64 => made.output(&name),
            _ => made.output(&format!("{name}/long")),
        };
        let y = self.out.cast(long, to, &name);
        self.set(node, y, Order::Natural)
    }

    fn cumsum(&mut self, node: &Node) -> Option<()> {
        let axis = *self.ints(node, 1)?.first()?;
        let x = self.natural(node, 0)?;
        let (_, name) = self.output(node)?;
        let axis = self.out.main.int(axis);
        let made = self.out.main.op("CumSum", [x, axis]);
        let made = made
            .attribute("exclusive", node.int("exclusive").unwrap_or_default())
            .attribute("reverse", node.int("reverse").unwrap_or_default());
        let y = made.output(&name);
        self.set(node, y, Order::Natural)
    }

    /// Lowers `TopK`: the greatest elements along the last dimension, and their positions.
    fn top(&mut self, node: &Node) -> Option<()> {
        let count = *self.ints(node, 1)?.first()?;
        let x = self.natural(node, 0)?;
        let (_, name) = self.output(node)?;
        let count = self.out.main.ints(&[count]);
        let [values, long] =
            self.out.main.op("TopK", [x, count]).attribute("axis", -1).outputs(&name);
        self.set(node, values, Order::Natural)?;
        if let Some(output) = node.outputs.get(1).copied().flatten() {
            let to = element(node.text("index_type").unwrap_or("int32"))?;
            let indices = self.out.cast(long, to, &format!("{name}/indices"));
            let made = super::Source::Made(Placed::natural(indices));
            self.values[output.0 as usize] = Some(made);
        }
        Some(())
    }
}
