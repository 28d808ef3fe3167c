//! Feed-forward networks.

use apr_core::Result;
use apr_graph::ValueId;

use super::activation::Activation;
use crate::model::BlockPosition;
use crate::writer::Writer;

impl Writer<'_> {
    /// The feed-forward network that option `mlp` names:
    ///
    /// - `plain`: `down(activation(up(x)))` (Vaswani et al. 2017,
    ///   <https://arxiv.org/abs/1706.03762>);
    /// - `gated`: `down(activation(gate(x)) * up(x))` (Shazeer 2020,
    ///   <https://arxiv.org/abs/2002.05202>);
    /// - `gated_fused`: the same, `gate_up` being the rows of the gate and then those of `up`.
    pub(crate) fn feed_forward(
        &mut self,
        place: BlockPosition<'_>,
        name: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        let activation = Activation::of(place, "activation")?;
        self.scope(name, |w| {
            let inner = match place.text("mlp")?.as_str() {
                "plain" => {
                    let up = w.linear_part(place, "up", x)?;
                    w.activate("activation", activation, up)
                }
                "gated" => {
                    let gate = w.linear_part(place, "gate", x)?;
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
            w.linear_part(place, "down", inner)
        })
    }

    /// `activation(gate) * up`.
    pub(crate) fn gated(&mut self, activation: Activation, gate: ValueId, up: ValueId) -> ValueId {
        let gate = self.activate("activation", activation, gate);
        self.make("Mul", "gated", [gate, up])
    }
}
