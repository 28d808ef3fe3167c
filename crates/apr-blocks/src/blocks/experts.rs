//! Mixtures of experts: a router gives each token to a few of many feed-forward networks
//! (Shazeer et al. 2017, <https://arxiv.org/abs/1701.06538>).

use apr_core::{Error, Result};
use apr_graph::ValueId;

use super::activation::Activation;
use crate::model::Place;
use crate::writer::{Writer, signed};

/// Most experts that a layer may have; models have up to some hundreds.
const MAX_EXPERTS: u64 = 4096;

impl Writer<'_> {
    /// The feed-forward network of a layer: experts where option `experts` counts any and the layer has a router, else one
    /// network.
    pub(crate) fn feed_forward_or_experts(&mut self, place: Place<'_>, x: ValueId) -> Result<ValueId> {
        let experts = place.size_or_none("experts")?;
        match experts.filter(|count| *count > 0 && place.module_or_none("router").is_some()) {
            None => self.feed_forward(place, "mlp", x),
            Some(count) if count > MAX_EXPERTS => Err(Error::memory(format!(
                "the configuration has {count} experts, and a layer has {MAX_EXPERTS} at most"
            ))),
            Some(count) => self.scope("experts", |w| w.experts(place, count, x)),
        }
    }

    /// The sum over the chosen experts of `share * expert(x)`, plus shared experts that every token goes through.
    fn experts(&mut self, place: Place<'_>, count: u64, x: ValueId) -> Result<ValueId> {
        let tokens = self.flattened(place, x)?;
        let shares = self.shares(place, tokens)?;
        let mut sum = self.make("Sub", "nothing", [tokens, tokens]);
        for expert in 0..count {
            sum = self.expert(place, expert, tokens, shares, sum)?;
        }
        let shape = self.make("Shape", "shape", [x]);
        let sum = self.make("Reshape", "sum", [sum, shape]);
        self.with_shared_expert(place, x, sum)
    }

    /// `[batch, sequence, hidden]` as `[batch * sequence, hidden]`.
    fn flattened(&mut self, place: Place<'_>, x: ValueId) -> Result<ValueId> {
        let hidden = place.size("hidden")?;
        Ok(self.reshape("tokens", x, &[-1, signed(hidden)]))
    }

    /// What share of a token goes to each expert, `[tokens, experts]`: 0 where it is not among the `experts_per_token`
    /// highest. Option `router` says how scores become shares: `softmax` of all scores, `softmax_of_chosen`.
    /// `router_normal`: the chosen shares are divided by their sum. `router_scale` is a factor of them.
    fn shares(&mut self, place: Place<'_>, tokens: ValueId) -> Result<ValueId> {
        self.scope("router", |w| {
            let scores = w.linear_part(place, "router", tokens)?;
            let chosen = place.size("experts_per_token")?;
            let of_chosen = match place.text("router")?.as_str() {
                "softmax" => false,
                "softmax_of_chosen" => true,
                other => return Err(place.unknown("router", other)),
            };
            let softmax =
                |w: &mut Self, name: &str, x: ValueId| w.op("Softmax", [x]).attribute("axis", -1).output(name);
            let ranked = if of_chosen { scores } else { softmax(w, "all_shares", scores) };
            let [mut best, places] = w.best("best", ranked, chosen);
            if of_chosen {
                best = softmax(w, "chosen_shares", best);
            }
            if place.truth("router_normal")? {
                let sum = w.sum("sum", best, -1);
                best = w.make("Div", "normal", [best, sum]);
            }
            if let Some(scale) = place.number_or_none("router_scale")?.filter(|scale| *scale != 1.0) {
                best = w.scaled("scaled", best, scale);
            }
            Ok(w.scattered(scores, places, best))
        })
    }

    /// The highest values along the last axis, and their places.
    pub(crate) fn best(&mut self, name: &str, x: ValueId, count: u64) -> [ValueId; 2] {
        let count = self.ints(&[signed(count)]);
        self.op("TopK", [x, count]).attribute("axis", -1).outputs(name)
    }

    /// Zeros of the shape of `like`, with values at places along the last axis.
    fn scattered(&mut self, like: ValueId, places: ValueId, values: ValueId) -> ValueId {
        let zeros = self.make("Sub", "zeros", [like, like]);
        self.op("ScatterElements", [zeros, places, values]).attribute("axis", 1).output("shares")
    }

    /// Adds what an expert makes of the tokens that it has a share of. Only those are computed.
    fn expert(
        &mut self,
        place: Place<'_>,
        expert: u64,
        tokens: ValueId,
        shares: ValueId,
        sum: ValueId,
    ) -> Result<ValueId> {
        let number = self.int(signed(expert));
        let inputs = [("tokens", Some(tokens)), ("shares", Some(shares)), ("sum", Some(sum)), ("expert", Some(number))];
        let results = self.call("Expert", &format!("expert.{expert}"), inputs, |w, inputs| {
            let [Some(tokens), Some(shares), Some(sum), Some(number)] = inputs else {
                return Err(Error::format("an expert needs tokens"));
            };
            let share = w.op("Gather", [shares, number]).attribute("axis", 1).output("share");
            let rows = w.make("NonZero", "row_numbers", [share]);
            let rows = w.transpose("rows", rows, [1, 0]);
            let mine = w.make("GatherND", "mine", [tokens, rows]);
            let made = w.expert_network(place, expert, mine)?;
            let share = w.make("GatherND", "my_share", [share, rows]);
            let share = w.unsqueeze("share_column", share, &[1]);
            let part = w.make("Mul", "part", [made, share]);
            let sum = w.op("ScatterND", [sum, rows, part]).attribute("reduction", "add").output("next_sum");
            Ok(vec![("next_sum", sum)])
        })?;
        Ok(results[0])
    }

    fn expert_network(&mut self, place: Place<'_>, expert: u64, x: ValueId) -> Result<ValueId> {
        let activation = Activation::of(place, "activation")?;
        let name = |part: &str| {
            let module = place.numbered(part, &[("expert", expert)]);
            module.ok_or_else(|| Error::format(format!("[graph] does not name the weight of '{part}'")))
        };
        let gate = self.linear(place, "gate", x, &name("expert_gate")?)?;
        let up = self.linear(place, "up", x, &name("expert_up")?)?;
        let gated = self.gated(activation, gate, up);
        self.linear(place, "down", gated, &name("expert_down")?)
    }

    /// Adds the expert of all tokens, where the family has one; its share is the sigmoid of a score where there is a weight
    /// for that (Qwen 2 MoE), else 1 (DeepSeek).
    fn with_shared_expert(&mut self, place: Place<'_>, x: ValueId, sum: ValueId) -> Result<ValueId> {
        let Some(gate) = place.module_or_none("shared_gate") else { return Ok(sum) };
        self.scope("shared", |w| {
            let activation = Activation::of(place, "activation")?;
            let gate = w.linear(place, "gate", x, &gate)?;
            let up = w.linear(place, "up", x, &place.module("shared_up")?)?;
            let gated = w.gated(activation, gate, up);
            let mut made = w.linear(place, "down", gated, &place.module("shared_down")?)?;
            if let Some(module) = place.module_or_none("shared_share") {
                let score = w.linear(place, "score", x, &module)?;
                let share = w.make("Sigmoid", "share", [score]);
                made = w.make("Mul", "part", [share, made]);
            }
            Ok(w.make("Add", "sum", [sum, made]))
        })
    }
}
