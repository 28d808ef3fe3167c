//! Layers around others.

use apr_graph::Dim;
use apr_lower::{Order, Placed};

use super::Lowering;
use super::layer::Layer;

impl Lowering<'_> {
    /// A layer on each step of a sequence: the steps are rows of a larger batch.
    pub(super) fn time_distributed(&mut self, layer: &Layer) -> Option<Placed> {
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let name = &layer.name;
        let mut inner = layer.inner("layer", format!("{name}/step"), |_| true)?;
        let knows_masks = ["Bidirectional", "GRU", "LSTM", "SimpleRNN", "Softmax", "Masking"];
        let is_masked = layer.first_mask().is_some() && knows_masks.contains(&inner.class.as_str());
        if is_masked || inner.is_set("mask_zero") {
            return self.refuse("with a mask");
        }
        (inner.masks, inner.mask) = (Vec::new(), None);
        if matches!(inner.class.as_str(), "Dense" | "Activation" | "Dropout") {
            // They take any number of dimensions, and look at the last.
            inner.name.clone_from(name);
            inner.inputs = vec![Placed::natural(x)];
            return self.layer(&inner)?.first().copied();
        }
        let shape = self.out.shape(x)?;
        let steps = shape.get(1)?.size()?;
        let steps = i64::try_from(steps).ok()?;
        let rows = self.reshaped(x, -1, None, shape.get(2..)?, &format!("{name}/rows"))?;
        inner.inputs = vec![Placed::natural(rows)];
        let made = *self.layer(&inner)?.first()?;
        let made = self.out.ordered(made, Order::Natural)?;
        let shape = self.out.shape(made)?;
        let back = self.reshaped(made, -1, Some(steps), shape.get(1..)?, name)?;
        Some(Placed::natural(back))
    }

    fn reshaped(
        &mut self,
        x: apr_graph::ValueId,
        first: i64,
        second: Option<i64>,
        rest: &[Dim],
        name: &str,
    ) -> Option<apr_graph::ValueId> {
        let rest = rest.iter().map(|dim| i64::try_from(dim.size()?).ok());
        let sizes: Option<Vec<i64>> =
            [Some(first)].into_iter().chain(second.map(Some)).chain(rest).collect();
        let sizes = self.out.main.ints(&sizes?);
        Some(self.out.main.op("Reshape", [x, sizes]).output(name))
    }
}
