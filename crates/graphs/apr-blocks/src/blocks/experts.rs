//! Mixtures of experts: a router gives each token to a few of many feed-forward networks
//! (Shazeer et al. 2017, <https://arxiv.org/abs/1701.06538>).

use apr_core::{Error, Result};
use apr_graph::{ElementType, ValueId, View};

use super::activation::Activation;
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Maximum number of experts in a layer; models have up to some hundreds.
const MAX_EXPERTS: u64 = 4096;

/// The error for more experts than a layer can have.
fn too_many(count: u64) -> Error {
    Error::memory(format!(
        "the configuration has {count} experts, and a layer has {MAX_EXPERTS} at most"
    ))
}

impl Writer<'_> {
    /// Returns the feed-forward network of a layer.
    ///
    /// It consists of experts if option `experts` is positive and the layer has a router, or else
    /// of one network.
    pub(crate) fn feed_forward_or_experts(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
    ) -> Result<ValueId> {
        let experts = place.size_or_none("experts")?;
        match experts.filter(|count| *count > 0 && place.module_or_none("router").is_some()) {
            None => self.feed_forward(place, "mlp", x),
            Some(count) if count > MAX_EXPERTS => Err(too_many(count)),
            Some(count) => self.scope("experts", |w| w.experts(place, count, x, x)),
        }
    }

    /// The sum of a feed-forward network and of experts beside it, each with norms of its own, in
    /// layers that have the weight `experts_norm` (Gemma 4). Other layers have one of the two.
    ///
    /// `x` is what the layer's norm makes of `before`. The network reads `x`, and the norm
    /// `network_post_norm` its output. The router reads `before`. The experts read what their norm
    /// `experts_norm` makes of it, and `experts_post_norm` their sum.
    pub(crate) fn feed_forward_and_experts(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        before: ValueId,
    ) -> Result<ValueId> {
        let count = place.size_or_none("experts")?.filter(|count| *count > 0);
        let (Some(count), Some(norm_of_input)) = (count, place.module_or_none("experts_norm"))
        else {
            return self.feed_forward_or_experts(place, x);
        };
        if count > MAX_EXPERTS {
            return Err(too_many(count));
        }
        let norm = Norm::of(place)?;
        let network = self.feed_forward(place, "mlp", x)?;
        let module = place.module("network_post_norm")?;
        let network = self.norm("network_post_norm", norm, network, &module)?;
        let made = self.scope("experts", |w| {
            let own = w.norm("experts_norm", norm, before, &norm_of_input)?;
            let made = w.experts(place, count, own, before)?;
            w.norm("experts_post_norm", norm, made, &place.module("experts_post_norm")?)
        })?;
        Ok(self.make("Add", "network_and_experts", [network, made]))
    }

    /// The sum over the chosen experts of `weight * expert(x)`, plus shared experts that every
    /// token goes through. `routed` is what the router reads. If the checkpoint has `experts_in`,
    /// the chosen experts read what that makes of `x`, and `experts_out` their sum (Nemotron 3).
    fn experts(
        &mut self,
        place: BlockPosition<'_>,
        count: u64,
        x: ValueId,
        routed: ValueId,
    ) -> Result<ValueId> {
        let tokens = self.flattened(place, "tokens", x)?;
        let routed = match routed == x {
            true => tokens,
            false => self.flattened(place, "routed_tokens", routed)?,
        };
        let weights = self.routing_weights(place, count, routed)?;
        let narrow = place.module_or_none("experts_in");
        let tokens = match &narrow {
            Some(module) => self.linear(place, "experts_in", tokens, module)?,
            None => tokens,
        };
        // Zeros for as many tokens as there are when the model runs.
        let mut sum = self.make("Sub", "zeros", [tokens, tokens]);
        for expert in 0..count {
            sum = self.expert(place, expert, tokens, weights, sum)?;
        }
        let sum = match narrow {
            Some(_) => self.linear_part(place, "experts_out", sum)?,
            None => sum,
        };
        let shape = self.make("Shape", "shape", [x]);
        let sum = self.make("Reshape", "sum", [sum, shape]);
        self.with_shared_expert(place, x, sum)
    }

    /// `[batch, sequence, hidden]` as `[batch * sequence, hidden]`.
    fn flattened(&mut self, place: BlockPosition<'_>, name: &str, x: ValueId) -> Result<ValueId> {
        let hidden = place.size("hidden")?;
        Ok(self.reshape(name, x, &[-1, signed(hidden)]))
    }

    /// Returns the routing weight of each expert for each token, `[tokens, experts]`.
    ///
    /// The weight is 0 if the expert is not among the `experts_per_token` highest. Option `router`
    /// selects how scores become weights: `softmax` of all scores, `softmax_of_chosen`, or
    /// `sigmoid` of each score. With `softmax_of_chosen` and `sigmoid_of_chosen`, experts are
    /// chosen by their scores. A tensor `router_bias` affects only the choice. Option
    /// `router_normal` divides the chosen weights by their sum. `router_scale` multiplies them, and
    /// a tensor `expert_scales` the weight of each expert. With a tensor `router_input_scale`, the
    /// router reads the norm of its input without weights, times that tensor and the inverse root
    /// of its width (Gemma 4).
    fn routing_weights(
        &mut self,
        place: BlockPosition<'_>,
        count: u64,
        tokens: ValueId,
    ) -> Result<ValueId> {
        self.scope("router", |w| {
            let input = w.router_input(place, tokens)?;
            let scores = w.linear_part(place, "router", input)?;
            let kind = place.text("router")?;
            if kind == "sparse_mixer" {
                let (places, best) = w.sparse_mixer(place, scores)?;
                return Ok(w.scattered(scores, places, best));
            }
            let ranked = match kind.as_str() {
                "softmax" => w.softmax("router_probs", scores),
                "softmax_of_chosen" | "sigmoid_of_chosen" => scores,
                "sigmoid" => w.make("Sigmoid", "router_probs", [scores]),
                other => return Err(place.unknown("router", other)),
            };
            let choice = w.for_choice(place, count, ranked)?;
            let [best, places] = w.best("topk", choice, place.size("experts_per_token")?);
            let mut best = if choice == ranked {
                best
            } else {
                w.op("GatherElements", [ranked, places]).attribute("axis", 1).output("chosen")
            };
            best = match kind.as_str() {
                "softmax_of_chosen" => w.softmax("topk_probs", best),
                "sigmoid_of_chosen" => w.make("Sigmoid", "topk_probs", [best]),
                _ => best,
            };
            if place.truth("router_normal")? {
                let sum = w.sum("sum", best, -1);
                best = w.make("Div", "normal", [best, sum]);
            }
            if let Some(scale) = place.number_or_none("router_scale")?.filter(|scale| *scale != 1.0)
            {
                best = w.scaled("scaled", best, scale);
            }
            if let Some(scales) = place.tensor_or_none("expert_scales") {
                let scales = w.tensor(&scales)?;
                let scales = w.make("Gather", "scale_of_expert", [scales, places]);
                best = w.make("Mul", "scaled_by_expert", [best, scales]);
            }
            Ok(w.scattered(scores, places, best))
        })
    }

    /// The input of a router: see [`routing_weights`](Self::routing_weights).
    fn router_input(&mut self, place: BlockPosition<'_>, tokens: ValueId) -> Result<ValueId> {
        let Some(scale) = place.tensor_or_none("router_input_scale") else { return Ok(tokens) };
        let eps = Norm::of(place)?.eps();
        let hidden = place.size("hidden")? as f64;
        let normal = self.scope("norm", |w| w.bare_rms_norm(eps, tokens));
        let scale = self.tensor(&scale)?;
        let wide = self.make("Mul", "input_scaled", [normal, scale]);
        Ok(self.scaled("input", wide, 1.0 / hidden.sqrt()))
    }

    /// The two best experts, and their weights (SparseMixer: Liu et al. 2023,
    /// <https://arxiv.org/abs/2310.00811>, as PhiMoE infers with it). The weight of each is its
    /// part of the softmax of those scores that are near enough to the best one: twice option
    /// `router_jitter` of the larger of the two numbers. The best expert takes no part in the
    /// second choice.
    fn sparse_mixer(
        &mut self,
        place: BlockPosition<'_>,
        scores: ValueId,
    ) -> Result<(ValueId, ValueId)> {
        let near = 2.0 * place.number("router_jitter")?;
        let sizes = self.make("Abs", "sizes", [scores]);
        let (first, best, weight) =
            self.scope("first", |w| w.best_near(near, scores, sizes, scores));
        let left = self.scope("second", |w| {
            // ScatterElements takes values in the shape of their places.
            let lowest = w.float(f64::from(f32::MIN));
            let zero = w.make("Sub", "zero", [best, best]);
            let nothing = w.make("Add", "nothing", [zero, lowest]);
            w.op("ScatterElements", [scores, first, nothing]).attribute("axis", 1).output("left")
        });
        let (second, _, other_weight) =
            self.scope("second", |w| w.best_near(near, scores, sizes, left));
        let places = self.concat("places", &[first, second], 1);
        Ok((places, self.concat("weights", &[weight, other_weight], 1)))
    }

    /// The place of the best of the scores that are `left`, that score, and its part of the softmax
    /// of those that are near it, each `[tokens, 1]`.
    fn best_near(
        &mut self,
        near: f64,
        scores: ValueId,
        sizes: ValueId,
        left: ValueId,
    ) -> (ValueId, ValueId, ValueId) {
        let [best, place] = self.best("best", left, 1);
        let larger = self.make("Max", "larger", [sizes, best]);
        let less = self.make("Sub", "less", [best, scores]);
        let distance = self.make("Div", "distance", [less, larger]);
        let near = self.float(near);
        let is_far = self.make("Greater", "is_far", [distance, near]);
        let lowest = self.float(f64::from(f32::MIN));
        let close = self.make("Where", "close", [is_far, lowest, left]);
        let probs = self.softmax("probs", close);
        let weight = self.op("GatherElements", [probs, place]).attribute("axis", 1);
        let weight = weight.output("weight");
        (place, best, weight)
    }

    fn softmax(&mut self, name: &str, x: ValueId) -> ValueId {
        self.op("Softmax", [x]).attribute("axis", -1).output(name)
    }

    /// Returns the values by which experts are chosen.
    ///
    /// They are the routing weights plus a bias, and the lowest number for groups that are not
    /// among the best.
    fn for_choice(
        &mut self,
        place: BlockPosition<'_>,
        count: u64,
        weights: ValueId,
    ) -> Result<ValueId> {
        let choice = match place.tensor_or_none("router_bias") {
            Some(bias) => {
                let bias = self.tensor(&bias)?;
                self.make("Add", "biased", [weights, bias])
            }
            None => weights,
        };

        match place.size_or_none("router_groups")?.filter(|groups| *groups > 1) {
            Some(groups) if count.is_multiple_of(groups) => {
                self.scope("groups", |w| w.in_best_groups(place, groups, choice))
            }
            Some(groups) => Err(Error::format(format!(
                "{count} experts can't be divided into {groups} groups of equal size"
            ))),
            None => Ok(choice),
        }
    }

    /// Keeps the experts of the `router_best_groups` best groups. Option `router_group_score`:
    /// `highest` of its experts, or `two_highest` together.
    fn in_best_groups(
        &mut self,
        place: BlockPosition<'_>,
        groups: u64,
        choice: ValueId,
    ) -> Result<ValueId> {
        let grouped = self.reshape("grouped", choice, &[0, signed(groups), -1]);
        let best = match place.text("router_group_score")?.as_str() {
            "highest" => 1,
            "two_highest" => 2,
            other => return Err(place.unknown("router_group_score", other)),
        };
        let [best, _] = self.best("best_of_group", grouped, best);
        let scores = self.sum("scores", best, -1);
        let axis = self.ints(&[-1]);
        let scores = self.make("Squeeze", "score_of_group", [scores, axis]);
        let [_, places] = self.best("best_groups", scores, place.size("router_best_groups")?);

        // ScatterElements takes values in the shape of their places: ones in that shape.
        let zeros = self.make("Sub", "zeros", [scores, scores]);
        let ones =
            self.op("GatherElements", [zeros, places]).attribute("axis", 1).output("zeros_of_best");
        let one = self.float(1.0);
        let ones = self.make("Add", "ones", [ones, one]);
        let kept =
            self.op("ScatterElements", [zeros, places, ones]).attribute("axis", 1).output("kept");
        let kept = self.cast("is_kept", kept, ElementType::Bool);
        let kept = self.unsqueeze("is_kept_by_expert", kept, &[2]);
        let lowest = self.float(f64::from(f32::MIN));
        let choice = self.make("Where", "choice", [kept, grouped, lowest]);
        Ok(self.reshape("flat", choice, &[0, -1]))
    }

    /// The highest values along the last axis, and their places.
    pub(crate) fn best(&mut self, name: &str, x: ValueId, count: u64) -> [ValueId; 2] {
        let count = self.ints(&[signed(count)]);
        self.op("TopK", [x, count]).attribute("axis", -1).outputs(name)
    }

    /// Zeros of the shape of `like`, with values at places along the last axis.
    fn scattered(&mut self, like: ValueId, places: ValueId, values: ValueId) -> ValueId {
        let zeros = self.make("Sub", "zeros", [like, like]);
        self.op("ScatterElements", [zeros, places, values])
            .attribute("axis", 1)
            .output("routing_weights")
    }

    /// Adds what an expert makes of the tokens that it has a weight for. Only those are computed.
    /// Option `expert_input_scaled`: the weight is a factor of what the expert reads (Llama 4), and
    /// not of what it makes.
    fn expert(
        &mut self,
        place: BlockPosition<'_>,
        expert: u64,
        tokens: ValueId,
        weights: ValueId,
        sum: ValueId,
    ) -> Result<ValueId> {
        let number = self.int(signed(expert));
        let inputs = [
            ("tokens", Some(tokens)),
            ("routing_weights", Some(weights)),
            ("sum", Some(sum)),
            ("expert", Some(number)),
        ];
        let results = self.call("Expert", &format!("expert.{expert}"), inputs, |w, inputs| {
            let [Some(tokens), Some(weights), Some(sum), Some(number)] = inputs else {
                return Err(Error::format("an expert needs tokens"));
            };
            let weight = w.op("Gather", [weights, number]).attribute("axis", 1).output("weight");
            let rows = w.make("NonZero", "row_numbers", [weight]);
            let rows = w.transpose("rows", rows, [1, 0]);
            let mine = w.make("GatherND", "mine", [tokens, rows]);
            let scales_input = place.truth("expert_input_scaled")?;
            let made =
                (!scales_input).then(|| w.expert_network(place, expert, mine)).transpose()?;
            let weight = w.make("GatherND", "my_weight", [weight, rows]);
            let weight = w.unsqueeze("weight_column", weight, &[1]);
            let part = match made {
                Some(made) => w.make("Mul", "part", [made, weight]),
                None => {
                    let mine = w.make("Mul", "my_part", [mine, weight]);
                    w.expert_network(place, expert, mine)?
                }
            };
            // ScatterND can add since opset 16. Before, what is there is added: each row comes
            // once.
            let sum = if w.model.wanted_opset < 16 {
                let there = w.make("GatherND", "there", [sum, rows]);
                let part = w.make("Add", "more", [there, part]);
                w.make("ScatterND", "next_sum", [sum, rows, part])
            } else {
                w.op("ScatterND", [sum, rows, part])
                    .attribute("reduction", "add")
                    .output("next_sum")
            };
            Ok(vec![("next_sum", sum)])
        })?;
        Ok(results[0])
    }

    /// The network of an expert, gated unless option `mlp` is `plain`, by modules of its own
    /// (`expert_gate`, `expert_up`, `expert_down`), or by its part of tensors of all experts
    /// (`experts_gate_up`, `experts_down`). Option `experts_order` says how the columns of such a
    /// tensor stand: those of gate and up `in_turn` (the default), or in `halves`, of option
    /// `expert_intermediate` each.
    fn expert_network(
        &mut self,
        place: BlockPosition<'_>,
        expert: u64,
        x: ValueId,
    ) -> Result<ValueId> {
        if place.tensor_or_none("experts_gate_up").is_some() {
            return match place.text_or_none("experts_order")?.as_deref() {
                None | Some("in_turn") => self.stacked_expert(place, expert, x),
                Some("halves") => self.halved_expert(place, expert, x),
                Some(other) => Err(place.unknown("experts_order", other)),
            };
        }

        let activation = Activation::of(place, "activation")?;
        let name = |part: &str| {
            let module = place.numbered(part, &[("expert", expert)]);
            module.ok_or_else(|| {
                Error::format(format!("[graph] does not name the weight of '{part}'"))
            })
        };

        if place.text("mlp")? == "plain" {
            let up = self.linear(place, "up", x, &name("expert_up")?)?;
            let inner = self.activate("activation", activation, up);
            return self.linear(place, "down", inner, &name("expert_down")?);
        }
        let gate = self.linear(place, "gate", x, &name("expert_gate")?)?;
        let up = self.linear(place, "up", x, &name("expert_up")?)?;
        let gated = self.gated(activation, gate, up);
        self.linear(place, "down", gated, &name("expert_down")?)
    }

    /// `down(gate sigmoid(alpha gate) (up + 1))`, with gate and up cut off at a limit, and columns
    /// of both in turn (gpt-oss, 2025, <https://github.com/openai/gpt-oss>). Options
    /// `expert_alpha`, `expert_limit`.
    fn stacked_expert(
        &mut self,
        place: BlockPosition<'_>,
        expert: u64,
        x: ValueId,
    ) -> Result<ValueId> {
        let both = self.stacked_linear(place, expert, "experts_gate_up", x)?;
        let gate = self.every_second("gate", both, 0);
        let up = self.every_second("up", both, 1);
        let limit = place.number("expert_limit")?;
        let (low, high) = (self.float(-limit), self.float(limit));
        let gate = self.make("Min", "gate_limited", [gate, high]);
        let up = self.make("Clip", "up_limited", [up, low, high]);
        let steep = self.scaled("steep", gate, place.number("expert_alpha")?);
        let weight = self.make("Sigmoid", "gate_share", [steep]);
        let gate = self.make("Mul", "activation", [gate, weight]);
        let one = self.float(1.0);
        let up = self.make("Add", "up_plus_one", [up, one]);
        let gated = self.make("Mul", "gated", [gate, up]);
        self.stacked_linear(place, expert, "experts_down", gated)
    }

    /// Returns `down(activation(gate) * up)`, with all columns of the gate before the columns of
    /// `up` (Llama 4).
    fn halved_expert(
        &mut self,
        place: BlockPosition<'_>,
        expert: u64,
        x: ValueId,
    ) -> Result<ValueId> {
        let activation = Activation::of(place, "activation")?;
        let both = self.stacked_linear(place, expert, "experts_gate_up", x)?;
        let width = place.size("expert_intermediate")?;
        let [gate, up] = self.split("parts", both, -1, [width, width]);
        let gated = self.gated(activation, gate, up);
        self.stacked_linear(place, expert, "experts_down", gated)
    }

    /// Every second element along the last axis.
    fn every_second(&mut self, name: &str, x: ValueId, first: i64) -> ValueId {
        let (start, end) = (self.ints(&[first]), self.ints(&[i64::MAX]));
        let (axis, step) = (self.ints(&[-1]), self.ints(&[2]));
        self.make("Slice", name, [x, start, end, axis, step])
    }

    /// A linear layer by an expert's part of a tensor of all, and of a bias `[experts, outputs]`.
    /// Option `experts_linear` says how the tensor stands: `in_out` (the default, `[experts,
    /// inputs, outputs]`) or `out_in`.
    fn stacked_linear(
        &mut self,
        place: BlockPosition<'_>,
        expert: u64,
        part: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        let of_expert = |w: &mut Self, tensor: &str, is_turned: bool| -> Result<ValueId> {
            let dims = w.model.using(tensor)?;
            let shape = dims.get(1..).unwrap_or_default().to_vec();
            let slice = View::Slice { axis: 0, start: expert, len: 1 };
            let mut views = vec![slice, View::Reshaped(shape.clone())];
            if let (true, &[outputs, inputs]) = (is_turned, shape.as_slice()) {
                views.push(View::Transposed(vec![1, 0]));
                return w.viewed(tensor, views, vec![inputs, outputs]);
            }
            w.viewed(tensor, views, shape)
        };
        let is_turned = match place.text_or_none("experts_linear")?.as_deref() {
            None | Some("in_out") => false,
            Some("out_in") => true,
            Some(other) => return Err(place.unknown("experts_linear", other)),
        };
        let weight = of_expert(self, &place.module(part)?, is_turned)?;
        let product = self.make("MatMul", part, [x, weight]);
        let Some(bias) = place.tensor_or_none(&format!("{part}_bias")) else { return Ok(product) };
        let bias = of_expert(self, &bias, false)?;
        Ok(self.scope(part, |w| w.make("Add", "bias", [product, bias])))
    }

    /// Adds the shared expert for all tokens, if the family has one.
    ///
    /// The expert's weight is the sigmoid of a score if the checkpoint has a weight for that score
    /// (Qwen 2 MoE), or else 1 (DeepSeek). It has no gate if the checkpoint has none for it
    /// (Nemotron). Option `shared_scale` is a factor of what it makes.
    fn with_shared_expert(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        sum: ValueId,
    ) -> Result<ValueId> {
        let both = place.module_or_none("shared_gate_up");
        let gate = place.module_or_none("shared_gate");
        if both.is_none() && gate.is_none() {
            let Some(up) = place.module_or_none("shared_up") else { return Ok(sum) };
            return self.scope("shared", |w| {
                let up = w.linear(place, "up", x, &up)?;
                let inner = w.activate("activation", Activation::of(place, "activation")?, up);
                let made = w.linear_part(place, "shared_down", inner)?;
                let made = w.scaled_by(place, "shared_scale", made)?;
                Ok(w.make("Add", "sum", [sum, made]))
            });
        }
        self.scope("shared", |w| {
            let activation = Activation::of(place, "activation")?;
            let [gate, up] = match (both, gate) {
                (Some(both), _) => {
                    let rows = w.model.using(&format!("{both}.weight"))?;
                    let width = rows.first().copied().unwrap_or(0) / 2;
                    let both = w.linear(place, "gate_up", x, &both)?;
                    w.split("parts", both, -1, [width, width])
                }
                (None, gate) => {
                    let gate = gate.map_or_else(|| place.module("shared_gate"), Ok)?;
                    let gate = w.linear(place, "gate", x, &gate)?;
                    [gate, w.linear(place, "up", x, &place.module("shared_up")?)?]
                }
            };
            let gated = w.gated(activation, gate, up);
            let mut made = w.linear(place, "down", gated, &place.module("shared_down")?)?;
            if let Some(module) = place.module_or_none("shared_share") {
                let score = w.linear(place, "score", x, &module)?;
                let weight = w.make("Sigmoid", "weight", [score]);
                made = w.make("Mul", "part", [weight, made]);
            }
            let made = w.scaled_by(place, "shared_scale", made)?;
            Ok(w.make("Add", "sum", [sum, made]))
        })
    }
}
