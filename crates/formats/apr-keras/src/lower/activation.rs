//! Activations, as layers and at the end of others.

use apr_graph::{ElementType, ValueId};
use apr_lower::{Order, Placed, Writer};

use super::Lowering;
use super::layer::Layer;

/// Activations with the same meaning in ONNX.
const PLAIN: [(&str, &str); 7] = [
    ("exponential", "Exp"),
    ("relu", "Relu"),
    ("selu", "Selu"),
    ("sigmoid", "Sigmoid"),
    ("softplus", "Softplus"),
    ("softsign", "Softsign"),
    ("tanh", "Tanh"),
];

impl Lowering<'_> {
    /// Lowers a layer that is an activation.
    pub(super) fn activation_layer(&mut self, layer: &Layer) -> Option<Placed> {
        let x = layer.only()?;
        let name = layer.name.as_str();
        match layer.class.as_str() {
            "Activation" => self.activated(x, layer.text("activation")?, name),
            "ReLU" => self.relu(layer, x),
            "LeakyReLU" => {
                let alpha = layer.float("negative_slope").or_else(|| layer.float("alpha"))?;
                Some(self.unary("LeakyRelu", x, &[("alpha", alpha)], name))
            }
            "ELU" => {
                let alpha = layer.float("alpha").unwrap_or(1.0);
                Some(self.unary("Elu", x, &[("alpha", alpha)], name))
            }
            "ThresholdedReLU" => {
                let theta = layer.float("theta")?;
                Some(self.unary("ThresholdedRelu", x, &[("alpha", theta)], name))
            }
            "Softmax" => {
                let axis = layer.ints("axis").unwrap_or(vec![-1]);
                match axis.as_slice() {
                    [axis] => self.softmax("Softmax", x, *axis, name),
                    _ => None,
                }
            }
            "PReLU" => self.prelu(layer, x),
            _ => None,
        }
    }

    /// Applies the activation function of a layer to a value.
    ///
    /// Returns `None` for an unknown function.
    pub(super) fn activated(&mut self, x: Placed, function: &str, name: &str) -> Option<Placed> {
        if let Some((_, op)) = PLAIN.iter().find(|(own, _)| *own == function) {
            return Some(self.unary(op, x, &[], name));
        }
        Some(match function {
            "linear" => x,
            "elu" => self.unary("Elu", x, &[("alpha", 1.0)], name),
            "celu" => self.unary("Celu", x, &[("alpha", 1.0)], name),
            "leaky_relu" => self.unary("LeakyRelu", x, &[("alpha", 0.2)], name),
            "relu6" => self.clip(x, 0.0, 6.0, name),
            "hard_tanh" => self.clip(x, -1.0, 1.0, name),
            "hard_sigmoid" => {
                // Keras 3 has another slope than those before.
                let alpha = if self.version >= 3 { 1.0 / 6.0 } else { 0.2 };
                self.unary("HardSigmoid", x, &[("alpha", alpha), ("beta", 0.5)], name)
            }
            "softmax" => self.softmax("Softmax", x, -1, name)?,
            "log_softmax" => self.softmax("LogSoftmax", x, -1, name)?,
            "swish" | "silu" => self.gated("Sigmoid", x, &[], name),
            "hard_swish" | "hard_silu" => {
                self.gated("HardSigmoid", x, &[("alpha", 1.0 / 6.0), ("beta", 0.5)], name)
            }
            "mish" => {
                let soft = self.unary("Softplus", x, &[], &format!("{name}/softplus"));
                let gate = self.unary("Tanh", soft, &[], &format!("{name}/gate"));
                self.elements("Mul", [x.id, gate.id], x.order, name)
            }
            "gelu" => self.gelu(x, name),
            "log_sigmoid" => {
                let negative = self.unary("Neg", x, &[], &format!("{name}/negative"));
                let soft = self.unary("Softplus", negative, &[], &format!("{name}/softplus"));
                self.unary("Neg", soft, &[], name)
            }
            "tanh_shrink" => {
                let tanh = self.unary("Tanh", x, &[], &format!("{name}/tanh"));
                self.elements("Sub", [x.id, tanh.id], x.order, name)
            }
            "soft_shrink" => self.unary("Shrink", x, &[("lambd", 0.5), ("bias", 0.5)], name),
            "hard_shrink" => self.unary("Shrink", x, &[("lambd", 0.5)], name),
            _ => return None,
        })
    }

    /// Ends a layer with the activation that it is configured with.
    pub(super) fn end(
        &mut self,
        layer: &Layer,
        write: impl FnOnce(&mut Self, &str) -> Option<Placed>,
    ) -> Option<Placed> {
        match layer.text("activation").unwrap_or("linear") {
            "linear" => write(self, &layer.name),
            function => {
                let value = write(self, &format!("{}/linear", layer.name))?;
                self.activated(value, function, &layer.name)
            }
        }
    }

    /// A name for a value in an order.
    pub(super) fn name_in(&mut self, name: &str, order: Order, like: ValueId) -> String {
        let rank = self.out.rank(like).unwrap_or_default();
        Writer::name_in(name, order, rank)
    }

    /// An operator on each element, in the order that its input has.
    pub(super) fn unary(
        &mut self,
        op: &str,
        x: Placed,
        settings: &[(&str, f32)],
        name: &str,
    ) -> Placed {
        let name = self.name_in(name, x.order, x.id);
        let mut node = self.out.main.op(op, [x.id]);
        for (setting, value) in settings {
            node = node.attribute(setting, *value);
        }
        Placed { id: node.output(&name), order: x.order }
    }

    /// An operator on the elements of values in one order.
    pub(super) fn elements(
        &mut self,
        op: &str,
        inputs: impl IntoIterator<Item = ValueId>,
        order: Order,
        name: &str,
    ) -> Placed {
        let inputs: Vec<ValueId> = inputs.into_iter().collect();
        let name = match inputs.first() {
            Some(first) => self.name_in(name, order, *first),
            None => name.to_owned(),
        };
        Placed { id: self.out.main.op(op, inputs).output(&name), order }
    }

    fn clip(&mut self, x: Placed, low: f32, high: f32, name: &str) -> Placed {
        let (low, high) = (self.out.main.float(low), self.out.main.float(high));
        self.elements("Clip", [x.id, low, high], x.order, name)
    }

    /// A value times what an operator makes of it.
    fn gated(&mut self, op: &str, x: Placed, settings: &[(&str, f32)], name: &str) -> Placed {
        let gate = self.unary(op, x, settings, &format!("{name}/gate"));
        self.elements("Mul", [x.id, gate.id], x.order, name)
    }

    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    fn gelu(&mut self, x: Placed, name: &str) -> Placed {
        let root = self.out.main.float(std::f32::consts::FRAC_1_SQRT_2);
        let (one, half) = (self.out.main.float(1.0), self.out.main.float(0.5));
        let scaled = self.elements("Mul", [x.id, root], x.order, &format!("{name}/scaled"));
        let erf = self.unary("Erf", scaled, &[], &format!("{name}/erf"));
        let gate = self.elements("Add", [erf.id, one], x.order, &format!("{name}/gate"));
        let halved = self.elements("Mul", [x.id, half], x.order, &format!("{name}/half"));
        self.elements("Mul", [halved.id, gate.id], x.order, name)
    }

    /// Probabilities along a dimension of the natural order.
    fn softmax(&mut self, op: &str, x: Placed, axis: i64, name: &str) -> Option<Placed> {
        let axis = match x.order {
            Order::Natural => axis,
            Order::ChannelsFirst => {
                let rank = self.out.rank(x.id)?;
                let axis = position(axis, rank)?;
                i64::try_from(x.axis(axis, rank)).ok()?
            }
        };
        let name = self.name_in(name, x.order, x.id);
        let y = self.out.main.op(op, [x.id]).attribute("axis", axis).output(&name);
        Some(Placed { id: y, order: x.order })
    }

    /// A slope below 0, a greatest value, and a threshold below which all is slope.
    fn relu(&mut self, layer: &Layer, x: Placed) -> Option<Placed> {
        (layer.float("threshold").unwrap_or_default() == 0.0).then_some(())?;
        let slope = layer.float("negative_slope").unwrap_or_default();
        let name = layer.name.as_str();
        match (layer.float("max_value"), slope == 0.0) {
            (None, true) => Some(self.unary("Relu", x, &[], name)),
            (None, false) => Some(self.unary("LeakyRelu", x, &[("alpha", slope)], name)),
            (Some(most), true) => Some(self.clip(x, 0.0, most, name)),
            (Some(most), false) => {
                let leaky =
                    self.unary("LeakyRelu", x, &[("alpha", slope)], &format!("{name}/leaky"));
                let most = self.out.main.float(most);
                Some(self.elements("Min", [leaky.id, most], x.order, name))
            }
        }
    }

    fn prelu(&mut self, layer: &Layer, x: Placed) -> Option<Placed> {
        let slope = layer.variable(&["alpha"], 0)?.clone();
        let rank = self.out.rank(x.id)?;
        // One slope for each element of an input: the batch is not among its dimensions.
        let mut dims = slope.dims.clone();
        (dims.len() + 1 == rank).then_some(())?;
        dims.insert(0, 1);
        let mut weight = slope.weight;
        weight.views.push(apr_graph::View::Reshaped(dims.clone()));
        let slope = self.out.weight(&weight, ElementType::F32, &dims, x.order, rank)?;
        Some(self.elements("PRelu", [x.id, slope], x.order, &layer.name))
    }
}

/// Returns the position of an axis among `rank` dimensions. Negative axes count from the end.
pub(super) fn position(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis.checked_add(rank)? } else { axis };
    usize::try_from(axis).ok().filter(|_| axis < rank)
}
