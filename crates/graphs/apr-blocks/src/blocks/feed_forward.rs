//! Feed-forward networks.

use apr_core::Result;
use apr_graph::ValueId;

use super::activation::Activation;
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::Writer;

/// The activation that has learnt numbers.
const XIELU: &str = "xielu";

impl Writer<'_> {
    /// The feed-forward network that option `mlp` names:
    ///
    /// - `plain`: `down(activation(up(x)))` (Vaswani et al. 2017,
    ///   <https://arxiv.org/abs/1706.03762>);
    /// - `gated`: `down(activation(gate(x)) * up(x))` (Shazeer 2020,
    ///   <https://arxiv.org/abs/2002.05202>);
    /// - `gated_fused`: the same, `gate_up` being the rows of the gate and then those of `up`.
    ///
    /// `inner_norm` and `response_norm` are norms before `down`. The activation `xielu` has numbers
    /// of its own, and is known to `plain` alone. Options `gate_scale` and `down_scale` are factors
    /// of what those layers compute. Option `gate_sparsity` is the share of a gate that is cut off
    /// before its activation (Gemma 3n).
    pub(crate) fn feed_forward(
        &mut self,
        place: BlockPosition<'_>,
        name: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        let kind = place.text("mlp")?;
        if kind == "plain" && place.text("activation")? == XIELU {
            return self.scope(name, |w| {
                let up = w.linear_part(place, "up", x)?;
                let inner = w.xielu(place, up)?;
                w.linear_part(place, "down", inner)
            });
        }
        let activation = Activation::of(place, "activation")?;
        self.scope(name, |w| {
            let inner = match kind.as_str() {
                "plain" => {
                    let up = w.linear_part(place, "up", x)?;
                    w.activate("activation", activation, up)
                }
                "gated" => {
                    let gate = w.linear_part(place, "gate", x)?;
                    let gate = w.scaled_by(place, "gate_scale", gate)?;
                    let sparsity = place.number_or_none("gate_sparsity")?;
                    let gate = match sparsity.filter(|share| *share > 0.0 && *share < 1.0) {
                        Some(share) => w.sparse(gate, share),
                        None => gate,
                    };
                    let up = w.linear_part(place, "up", x)?;
                    w.gated(activation, gate, up)
                }
                "gated_fused" => {
                    let both = w.linear_part(place, "gate_up", x)?;
                    let width = place.size("intermediate")?;
                    let [gate, up] = w.split("parts", both, -1, [width, width]);
                    w.gated(activation, gate, up)
                }
                other => return Err(place.unknown("mlp", other)),
            };
            let module = place.module_or_none("inner_norm");
            let inner = w.norm_part(Norm::of(place)?, "inner_norm", inner, module)?;
            let inner = w.response_norm(place, inner)?;
            let down = w.linear_part(place, "down", inner)?;
            w.scaled_by(place, "down_scale", down)
        })
    }

    /// Returns xIELU: `a x^2 + s x` above zero and `b (exp(min(x, l)) - 1 - x) + s x` elsewhere.
    ///
    /// Here `a` and `b - s` are the softplus of learnt numbers (Huang and Schlag 2024,
    /// <https://arxiv.org/abs/2411.13010>). `s` and `l` are 0.5 and -0.000001 if the checkpoint
    /// does not contain them.
    fn xielu(&mut self, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
        self.scope("activation", |w| {
            let above = w.tensor(&place.module("activation_above")?)?;
            let above = w.make("Softplus", "above", [above]);
            let below = w.tensor(&place.module("activation_below")?)?;
            let below = w.make("Softplus", "below_less_slope", [below]);
            let mut stored = |part: &str, otherwise: f64| match place.tensor_or_none(part) {
                Some(tensor) => w.tensor(&tensor),
                None => Ok(w.float(otherwise)),
            };
            let slope = stored("activation_slope", 0.5)?;
            let limit = stored("activation_limit", -1e-6)?;
            let below = w.make("Add", "below", [below, slope]);

            let line = w.make("Mul", "line", [slope, x]);
            let square = w.make("Mul", "curve", [above, x]);
            let square = w.make("Mul", "square", [square, x]);
            let positive = w.make("Add", "positive", [square, line]);

            // The kernel makes the exponential of what is no larger than this.
            let low = w.make("Min", "low", [x, limit]);
            let power = w.make("Exp", "power", [low]);
            let one = w.float(1.0);
            let power = w.make("Sub", "power_less_one", [power, one]);
            let bent = w.make("Sub", "bent", [power, x]);
            let bent = w.make("Mul", "bent_below", [bent, below]);
            let negative = w.make("Add", "negative", [bent, line]);
            let zero = w.float(0.0);
            let is_above = w.make("Greater", "is_above", [x, zero]);
            Ok(w.make("Where", "xielu", [is_above, positive, negative]))
        })
    }

    /// `activation(gate) * up`.
    pub(crate) fn gated(&mut self, activation: Activation, gate: ValueId, up: ValueId) -> ValueId {
        let gate = self.activate("activation", activation, gate);
        self.make("Mul", "gated", [gate, up])
    }
}
