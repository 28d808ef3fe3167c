//! Normalization, by what was learnt or over the input itself.

use apr_graph::{Constant, ElementType, ValueId};
use apr_lower::{Order, Placed};

use super::Lowering;
use super::activation::position;
use super::layer::Layer;

impl Lowering<'_> {
    pub(super) fn normalization(&mut self, layer: &Layer) -> Option<Placed> {
        match layer.class.as_str() {
            "BatchNormalization" => self.batch(layer),
            "LayerNormalization" => self.of_layer(layer),
            "Normalization" => self.of_data(layer),
            "Rescaling" => self.rescaling(layer),
            "UnitNormalization" => self.unit(layer),
            _ => None,
        }
    }

    /// Returns a variable, or `count` equal numbers if the layer has no such variable.
    fn or_all(&mut self, layer: &Layer, name: &str, value: f32, count: u64) -> Option<ValueId> {
        if let Some(own) = layer.variable(&[name], usize::MAX).cloned() {
            return Some(self.out.main.weight(&own.weight.tensor, ElementType::F32, own.dims));
        }
        let name = format!("{}/{name}", layer.name);
        Some(self.repeated(value, &[i64::try_from(count).ok()?], &name))
    }

    /// One number in every place of a shape.
    pub(super) fn repeated(&mut self, value: f32, shape: &[i64], name: &str) -> ValueId {
        let (one, shape) = (self.out.main.float(value), self.out.main.ints(shape));
        self.out.main.op("Expand", [one, shape]).output(name)
    }

    fn batch(&mut self, layer: &Layer) -> Option<Placed> {
        let mean = layer.variable(&["moving_mean"], usize::MAX)?.clone();
        let [channels] = mean.dims.as_slice() else { return None };
        let scale = self.or_all(layer, "gamma", 1.0, *channels)?;
        let bias = self.or_all(layer, "beta", 0.0, *channels)?;
        let mean = self.out.main.weight(&mean.weight.tensor, ElementType::F32, mean.dims.clone());
        let variance = self.or_all(layer, "moving_variance", 1.0, *channels)?;
        let x = layer.only()?;
        let rank = self.out.rank(x.id)?;
        let axis = match layer.ints("axis").unwrap_or(vec![-1]).as_slice() {
            [axis] => position(*axis, rank)?,
            _ => return None,
        };
        // The channels are the second dimension there.
        let order = match axis {
            1 => Order::Natural,
            axis if axis + 1 == rank && rank > 2 => Order::ChannelsFirst,
            _ => return None,
        };
        let x = self.out.ordered(x, order)?;
        let name = self.name_in(&layer.name, order, x);
        let inputs = [x, scale, bias, mean, variance];
        let node = self.out.main.op("BatchNormalization", inputs);
        let id = node.attribute("epsilon", layer.float("epsilon").unwrap_or(1e-3)).output(&name);
        Some(Placed { id, order })
    }

    fn of_layer(&mut self, layer: &Layer) -> Option<Placed> {
        (!layer.is_set("rms_scaling")).then_some(())?;
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let rank = self.out.rank(x)?;
        let axes = layer.ints("axis").unwrap_or(vec![-1]);
        (axes.len() == 1 && position(axes[0], rank)? + 1 == rank).then_some(())?;
        let known = layer.variables.first().map(|own| own.dims.iter().product());
        let count = known.or_else(|| self.out.size(x, rank - 1))?;
        let scale = self.or_all(layer, "gamma", 1.0, count)?;
        let bias = self.or_all(layer, "beta", 0.0, count)?;
        let node = self.out.main.op("LayerNormalization", [x, scale, bias]);
        let epsilon = layer.float("epsilon").unwrap_or(1e-3);
        let node = node.attribute("axis", -1).attribute("epsilon", epsilon);
        Some(Placed::natural(node.output(&layer.name)))
    }

    /// Normalizes by the mean and variance that the layer was adapted to or configured with.
    fn of_data(&mut self, layer: &Layer) -> Option<Placed> {
        /// Minimum of a deviation in Keras.
        const EPSILON: f32 = 1e-7;

        (!layer.is_set("invert")).then_some(())?;
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let rank = self.out.rank(x)?;
        let is_last = layer.ints("axis").is_none_or(|axes| match axes.as_slice() {
            [axis] => position(*axis, rank).is_some_and(|axis| axis + 1 == rank),
            _ => false,
        });
        is_last.then_some(())?;
        let mut numbers = |name: &str| {
            if let Some(own) = layer.variable(&[name], usize::MAX).cloned() {
                (own.dims.len() <= 1).then_some(())?;
                return Some(self.out.main.weight(&own.weight.tensor, ElementType::F32, own.dims));
            }
            let given = layer.floats(name).or_else(|| layer.floats(&format!("input_{name}")))?;
            Some(self.out.main.constant(Constant::floats(&given)))
        };
        let (mean, variance) = (numbers("mean")?, numbers("variance")?);
        let name = &layer.name;
        let x = self.out.cast(x, ElementType::F32, &format!("{name}/floats"));
        let main = &mut self.out.main;
        let least = main.float(EPSILON);
        let deviation = main.op("Sqrt", [variance]).output(&format!("{name}/deviation"));
        let deviation = main.op("Max", [deviation, least]).output(&format!("{name}/divisor"));
        let centered = main.op("Sub", [x, mean]).output(&format!("{name}/centered"));
        Some(Placed::natural(main.op("Div", [centered, deviation]).output(name)))
    }

    fn rescaling(&mut self, layer: &Layer) -> Option<Placed> {
        let x = layer.only()?;
        let (scale, offset) = (layer.floats("scale")?, layer.floats("offset")?);
        let single = |values: &[f32]| values.len() == 1;
        // Several numbers are those of channels, which are last in the natural order.
        let order = if single(&scale) && single(&offset) { x.order } else { Order::Natural };
        let id = self.out.ordered(x, order)?;
        let name = &layer.name;
        let x = self.out.cast(id, ElementType::F32, &format!("{name}/floats"));
        let mut number = |values: &[f32]| match values {
            [one] => self.out.main.float(*one),
            all => self.out.main.constant(Constant::floats(all)),
        };
        let (scale, offset) = (number(&scale), number(&offset));
        let scaled = self.elements("Mul", [x, scale], order, &format!("{name}/scaled"));
        Some(self.elements("Add", [scaled.id, offset], order, name))
    }

    fn unit(&mut self, layer: &Layer) -> Option<Placed> {
        let x = self.out.ordered(layer.only()?, Order::Natural)?;
        let axes = layer.ints("axis").unwrap_or(vec![-1]);
        let [axis] = axes.as_slice() else { return None };
        let node = self.out.main.op("LpNormalization", [x]).attribute("axis", *axis);
        Some(Placed::natural(node.attribute("p", 2).output(&layer.name)))
    }
}
