//! Pools over windows, and over all of an image.

use apr_graph::{ElementType, ValueId};
use apr_lower::{Order, Placed};

use super::Lowering;
use super::convolution::windows;
use super::layer::Layer;

impl Lowering<'_> {
    pub(super) fn pool(&mut self, layer: &Layer) -> Option<Placed> {
        let class = layer.class.as_str();
        let (is_global, class) = match class.strip_prefix("Global") {
            Some(rest) => (true, rest),
            None => (false, class),
        };
        let (kind, dims) = ["1D", "2D", "3D"]
            .iter()
            .zip(1..)
            .find_map(|(suffix, dims)| Some((class.strip_suffix(suffix)?, dims)))?;
        let is_max = match kind {
            "MaxPooling" | "MaxPool" => true,
            "AveragePooling" | "AvgPool" | "AveragePool" => false,
            _ => return None,
        };
        match (is_global, is_max) {
            (true, true) => self.global(layer, "ReduceMax", dims),
            (true, false) if dims == 1 && layer.first_mask().is_some() => self.masked_mean(layer),
            (true, false) => self.global(layer, "ReduceMean", dims),
            (false, true) => self.windowed(layer, "MaxPool", dims),
            (false, false) => self.windowed(layer, "AveragePool", dims),
        }
    }

    fn windowed(&mut self, layer: &Layer, op: &str, spatial: usize) -> Option<Placed> {
        let size = layer.sizes("pool_size", spatial).or_else(|| layer.sizes("pool_length", 1))?;
        let strides = layer.sizes("strides", spatial).unwrap_or_else(|| size.clone());
        let (x, order) = self.channels_first(layer, layer.only()?, spatial)?;
        let windows = windows(&size, &strides, &vec![1; spatial]);
        let padding = self.padding(layer, x, &windows)?;
        let name = self.name_in(&layer.name, order, x);
        let node = self.out.main.op(op, [x]);
        let node = node.attribute("kernel_shape", size).attribute("strides", strides);
        Some(Placed { id: padding.add(node).output(&name), order })
    }

    /// The mean of the steps of a sequence that count.
    fn masked_mean(&mut self, layer: &Layer) -> Option<Placed> {
        let mask = layer.first_mask()?;
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let (steps, features) = if layer.is_channels_first() { (2, 1) } else { (1, 2) };
        let name = &layer.name;
        let keeps = i64::from(layer.is_set("keepdims"));
        let main = &mut self.out.main;
        let axis = main.ints(&[features]);
        let counts = main.op("Unsqueeze", [mask, axis]).output(&format!("{name}/counts"));
        let zero = main.float(0.0);
        let own = main.op("Where", [counts, x, zero]).output(&format!("{name}/own"));
        let ones = self.out.cast(counts, ElementType::F32, &format!("{name}/ones"));
        let axis = self.out.main.ints(&[steps]);
        let mut sum = |value: ValueId, name: String| {
            let node = self.out.main.op("ReduceSum", [value, axis]).attribute("keepdims", keeps);
            node.output(&name)
        };
        let (all, count) = (sum(own, format!("{name}/sum")), sum(ones, format!("{name}/count")));
        Some(Placed::natural(self.out.main.op("Div", [all, count]).output(name)))
    }

    /// Lowers a pooling over a whole image, with the dimensions in their present order.
    fn global(&mut self, layer: &Layer, op: &str, spatial: usize) -> Option<Placed> {
        let x = layer.only()?;
        let rank = spatial + 2;
        (self.out.rank(x.id)? == rank).then_some(())?;
        let first = if layer.is_channels_first() { 2 } else { 1 };
        let axes: Vec<i64> = (first..first + spatial)
            .filter_map(|axis| i64::try_from(x.axis(axis, rank)).ok())
            .collect();
        let keeps = layer.is_set("keepdims");
        let order = if keeps { x.order } else { Order::Natural };
        let name = self.name_in(&layer.name, order, x.id);
        let axes = self.out.main.ints(&axes);
        let node = self.out.main.op(op, [x.id, axes]);
        let id = node.attribute("keepdims", i64::from(keeps)).output(&name);
        Some(Placed { id, order })
    }
}
