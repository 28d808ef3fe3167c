//! Layers of several inputs.

use apr_graph::ValueId;
use apr_lower::Placed;

use super::Lowering;
use super::activation::position;
use super::layer::Layer;

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn merge(&mut self, layer: &Layer) -> Option<Placed> {
        let count = layer.inputs.len();
        let op = match (layer.class.as_str(), count) {
            ("Concatenate", 1..) => return self.concatenate(layer),
            ("Add", 2) => "Add",
            ("Add", 3..) => "Sum",
            ("Subtract", 2) => "Sub",
            ("Multiply", 2..) => return self.multiply(layer),
            ("Average", 2..) => "Mean",
            ("Maximum", 2..) => "Max",
            ("Minimum", 2..) => "Min",
            _ => return None,
        };
        let (ids, order) = self.in_one_order(layer)?;
        Some(self.elements(op, ids, order, &layer.name))
    }

    /// The inputs in one order. They have as many dimensions each: of others Keras widens the
    /// lesser.
    fn in_one_order(&mut self, layer: &Layer) -> Option<(Vec<ValueId>, apr_lower::Order)> {
        let order = self.out.order_of(&layer.inputs);
        let ids: Option<Vec<ValueId>> =
            layer.inputs.iter().map(|one| self.out.ordered(*one, order)).collect();
        let ids = ids?;
        let rank = self.out.rank(*ids.first()?)?;
        ids.iter().all(|id| self.out.rank(*id) == Some(rank)).then_some((ids, order))
    }

    fn multiply(&mut self, layer: &Layer) -> Option<Placed> {
        let (ids, order) = self.in_one_order(layer)?;
        let (first, others) = ids.split_first()?;
        let mut product = *first;
        for (number, other) in others.iter().enumerate() {
            let name = match number + 1 == others.len() {
                true => layer.name.clone(),
                false => format!("{}/product{number}", layer.name),
            };
            product = self.elements("Mul", [product, *other], order, &name).id;
        }
        Some(Placed { id: product, order })
    }

    fn concatenate(&mut self, layer: &Layer) -> Option<Placed> {
        let (ids, order) = self.in_one_order(layer)?;
        let first = *ids.first()?;
        let rank = self.out.rank(first)?;
        let axis = position(layer.int("axis").unwrap_or(-1), rank)?;
        let axis = i64::try_from(Placed { id: first, order }.axis(axis, rank)).ok()?;
        let name = self.name_in(&layer.name, order, first);
        let id = self.out.main.op("Concat", ids).attribute("axis", axis).output(&name);
        Some(Placed { id, order })
    }
}
