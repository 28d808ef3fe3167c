//! Attention: `softmax(q k^T scale + mask) v` for each head
//! (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).

use apr_core::Result;
use apr_graph::ValueId;

use super::disentangled::Distances;
use super::heads::Heads;
use super::mixer::States;
use super::norm::Norm;
use super::rotary::{Rotary, Turn};
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Keys and values, `[batch, kv_heads, keys, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyValue {
    pub(crate) key: ValueId,
    pub(crate) value: ValueId,
}

/// Inputs of attention, or of the layer's replacement for it, besides the tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    /// Added to the scores.
    pub(crate) mask: Option<ValueId>,
    pub(crate) turn: Option<Turn>,
    /// Keys and values of earlier tokens.
    pub(crate) past: Option<KeyValue>,
    /// Keys and values of all tokens so far, of another layer that this one shares them with.
    pub(crate) shared: Option<KeyValue>,
    /// The state of earlier tokens.
    pub(crate) states: Option<States>,
    /// 0 for padding tokens, `[batch, sequence, 1]`, for a block with a state.
    pub(crate) counts: Option<ValueId>,
    /// Distances between tokens.
    pub(crate) distances: Option<Distances>,
    /// Factors of the queries, `[batch, 1, sequence, 1]`.
    pub(crate) growth: Option<ValueId>,
}

impl Given {
    /// No inputs besides the tokens.
    pub(crate) const NOTHING: Self = Self {
        mask: None,
        turn: None,
        past: None,
        shared: None,
        states: None,
        counts: None,
        distances: None,
        growth: None,
    };
}

/// Position of the norm of each head's queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NormPlace {
    /// Before they are turned (Qwen 3).
    BeforeRotary,
    /// Behind that (Hunyuan).
    BehindRotary,
}

impl NormPlace {
    /// Option `query_key_norm_place`.
    fn of(place: BlockPosition<'_>) -> Result<Self> {
        match place.text_or_none("query_key_norm_place")?.as_deref() {
            None | Some("before_rotary") => Ok(Self::BeforeRotary),
            Some("behind_rotary") => Ok(Self::BehindRotary),
            Some(other) => Err(place.unknown("query_key_norm_place", other)),
        }
    }
}

impl Writer<'_> {
    /// A block of attention of the tokens among themselves: projections, positions, scores, and the
    /// output. Returns that, and the keys and values of all tokens so far. Option
    /// `query_key_norm_place`: `before_rotary` (the default) or `behind_rotary`. `context_norm` is
    /// a norm before the output (BitNet, <https://arxiv.org/abs/2504.12285>).
    /// The context is weighed by a gate if there is one: see `query_gated`, or a linear layer
    /// `attention_gate` (Qiu et al. 2025, <https://arxiv.org/abs/2505.06708>).
    /// `relative_gate` is a linear layer that weighs the terms of relative positions. Option
    /// `query_key_norm` `unit`: scores are cosines, times a number of each head, `score_scale`.
    pub(crate) fn attention(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        rotary: Option<&Rotary>,
        given: Given,
    ) -> Result<(ValueId, KeyValue)> {
        let heads = Heads::of(place)?;
        if let Some(all) = given.shared {
            let output = self.attention_to(place, &heads, x, rotary, given, all)?;
            return Ok((output, all));
        }
        self.scope("attention", |w| {
            let (query, fresh, gate) = w.queries_keys_values(place, &heads, x)?;
            let mut query = w.by_head("query", query);
            let mut key = w.by_head("key", fresh.key);
            let value = w.by_head("value", fresh.value);
            if let (Some(rotary), Some(turn)) = (rotary, given.turn) {
                query = w.rotated("query_rotary", rotary, query, turn, heads.head_dim);
                key = w.rotated("key_rotary", rotary, key, turn, heads.head_dim);
            }
            if NormPlace::of(place)? == NormPlace::BehindRotary {
                query = w.norm_of_heads(place, "query_norm", query)?;
                key = w.norm_of_heads(place, "key_norm", key)?;
            }
            if place.text_or_none("query_key_norm")?.as_deref() == Some("unit") {
                let scale = w.tensor(&place.module("score_scale")?)?;
                query = w.unit("query_unit", query);
                key = w.unit("key_unit", key);
                query = w.with_score_scale(query, scale);
            }
            if let Some(growth) = given.growth {
                query = w.make("Mul", "query_grown", [query, growth]);
            }
            let all = w.with_past(KeyValue { key, value }, given.past);
            let sinks = place.tensor_or_none("sinks");
            // Nothing is hidden where terms of the scores have gates.
            let bias = match (given.mask, place.module_or_none("relative_gate")) {
                (Some(bias), Some(gate)) => Some(w.gated_bias(place, &heads, x, bias, &gate)?),
                (bias, _) => bias,
            };
            let mask = match given.distances {
                Some(distances) => w.with_distances(place, &heads, query, key, bias, distances)?,
                None => bias,
            };
            let context = w.context(&heads, query, all, mask, sinks.as_deref())?;
            let module = place.module_or_none("context_norm");
            let context = w.norm_part(Norm::of(place)?, "context_norm", context, module)?;
            let gate = match (gate, place.module_or_none("attention_gate")) {
                (None, Some(module)) => Some(w.linear(place, "attention_gate", x, &module)?),
                (gate, _) => gate,
            };
            let context = match gate {
                Some(gate) => w.gated_context(place, &heads, context, gate)?,
                None => context,
            };
            let output = w.linear_part(place, "output", context)?;
            Ok((output, all))
        })
    }

    /// The context times gates, of each of its numbers, or of each head. Option `gate_activation`:
    /// a gate is the `sigmoid` of its score (the default), or `softplus` (Laguna).
    fn gated_context(
        &mut self,
        place: BlockPosition<'_>,
        heads: &Heads,
        context: ValueId,
        score: ValueId,
    ) -> Result<ValueId> {
        let gate = match place.text_or_none("gate_activation")?.as_deref() {
            None | Some("sigmoid") => self.make("Sigmoid", "gate", [score]),
            Some("softplus") => self.make("Softplus", "gate", [score]),
            Some(other) => return Err(place.unknown("gate_activation", other)),
        };
        let by_head = match place.module_or_none("attention_gate") {
            Some(module) => {
                let rows = self.model.using(&format!("{module}.weight"))?;
                rows.first() == Some(&heads.heads) && heads.value_dim > 1
            }
            None => false,
        };
        if !by_head {
            return Ok(self.make("Mul", "context_gated", [context, gate]));
        }
        let count = signed(heads.heads);
        let split = self.reshape("context_heads", context, &[0, 0, count, signed(heads.value_dim)]);
        let gate = self.unsqueeze("gate_of_head", gate, &[3]);
        let gated = self.make("Mul", "heads_gated", [split, gate]);
        Ok(self.reshape("context_gated", gated, &[0, 0, -1]))
    }

    /// Attention to the keys and values of another layer, of which this one has queries alone.
    fn attention_to(
        &mut self,
        place: BlockPosition<'_>,
        heads: &Heads,
        x: ValueId,
        rotary: Option<&Rotary>,
        given: Given,
        all: KeyValue,
    ) -> Result<ValueId> {
        let Heads { heads: count, head_dim, .. } = *heads;
        self.scope("attention", |w| {
            let query = w.linear_part(place, "query", x)?;
            let query = w.head_norm(place, "query_norm", query, "query_heads", count, head_dim)?;
            let mut query = w.by_head("query", query);
            if let (Some(rotary), Some(turn)) = (rotary, given.turn) {
                query = w.rotated("query_rotary", rotary, query, turn, head_dim);
            }
            let context = w.context(heads, query, all, given.mask, None)?;
            w.linear_part(place, "output", context)
        })
    }

    /// Scales vectors to length 1 along the last axis.
    ///
    /// Vectors shorter than 1e-12 are divided by 1e-12, so they stay shorter than 1.
    fn unit(&mut self, name: &str, x: ValueId) -> ValueId {
        self.scope(name, |w| {
            let length = w.euclidean("length", x, [-1]);
            let least = w.float(1e-12);
            let length = w.make("Max", "length_or_least", [length, least]);
            w.make("Div", "unit", [x, length])
        })
    }

    /// Queries times `exp(min(scale, log(100)))` of their head (Swin V2: Liu et al. 2021,
    /// <https://arxiv.org/abs/2111.09883>).
    fn with_score_scale(&mut self, query: ValueId, scale: ValueId) -> ValueId {
        self.scope("score_scale", |w| {
            let most = w.float(100_f64.ln());
            let scale = w.make("Min", "scale", [scale, most]);
            let factor = w.make("Exp", "factor", [scale]);
            w.make("Mul", "query_scaled", [query, factor])
        })
    }

    /// The norm of queries or keys that are turned already, `[batch, heads, sequence, head_dim]`:
    /// that of a module, or one without weights where option `query_key_norm` is `bare_head`.
    fn norm_of_heads(
        &mut self,
        place: BlockPosition<'_>,
        part: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        let norm = Norm::of(place)?;
        if place.text_or_none("query_key_norm")?.as_deref() == Some("bare_head") {
            return Ok(self.scope(part, |w| w.bare_rms_norm(norm.eps(), x)));
        }
        self.norm_part(norm, part, x, place.module_or_none(part))
    }

    /// Returns queries, keys and values, `[batch, sequence, heads, head_dim]`, and gates of the
    /// context if the matrix of the queries computes them, too.
    ///
    /// Option `value_norm`: values go through a norm without weights, each head by itself. Option
    /// `key_scale` is a factor of the keys, `value_scale` of the values. Option `query_gated`: the
    /// matrix does, for each head behind its query (Qwen3-Next).
    /// Option `fused` is the order of a matrix that computes all three: `rows` (all queries, all
    /// keys, all values), `heads` (query, key and value of each head, GPT-NeoX), `groups` (the
    /// queries of a group, its key, its value, Falcon), `quarters` (queries, values and keys of the
    /// first quarter of the heads, and so on, CodeGen).
    fn queries_keys_values(
        &mut self,
        place: BlockPosition<'_>,
        heads: &Heads,
        x: ValueId,
    ) -> Result<(ValueId, KeyValue, Option<ValueId>)> {
        let Heads { heads: count, kv_heads, head_dim, value_dim, .. } = *heads;
        let mut gate = None;
        let (query, key, value) = match place.text_or_none("fused")?.as_deref() {
            None => {
                let mut query = self.linear_part(place, "query", x)?;
                if place.truth("query_gated")? {
                    let shape = [0, 0, signed(count), signed(2 * head_dim)];
                    let both = self.reshape("query_and_gate", query, &shape);
                    let [part, gates] = self.split("query_parts", both, -1, [head_dim, head_dim]);
                    gate = Some(self.reshape("gates", gates, &[0, 0, -1]));
                    query = part;
                }
                let key = self.linear_part(place, "key", x)?;
                let key = self.scaled_by(place, "key_scale", key)?;
                let value = self.linear_part(place, "value", x)?;
                let value = self.scaled_by(place, "value_scale", value)?;
                (query, key, value)
            }
            Some("rows") => {
                let all = self.linear_part(place, "qkv", x)?;
                let lengths = [count * head_dim, kv_heads * head_dim, kv_heads * value_dim];
                let [query, key, value] = self.split("qkv_parts", all, -1, lengths);
                (query, key, value)
            }
            Some(order @ ("heads" | "groups")) => {
                let all = self.linear_part(place, "qkv", x)?;
                let queries = if order == "heads" { 1 } else { count / kv_heads };
                let rows = signed((queries + 2) * head_dim);
                let groups = self.reshape("groups", all, &[0, 0, signed(kv_heads), rows]);
                let lengths = [queries * head_dim, head_dim, head_dim];
                let [query, key, value] = self.split("qkv_parts", groups, -1, lengths);
                (query, key, value)
            }
            Some("quarters") => {
                let all = self.linear_part(place, "qkv", x)?;
                let width = count * head_dim / 4;
                let quarters = self.reshape("quarters", all, &[0, 0, 4, signed(3 * width)]);
                let lengths = [width, width, width];
                let [query, value, key] = self.split("qkv_parts", quarters, -1, lengths);
                (query, key, value)
            }
            Some(other) => return Err(place.unknown("fused", other)),
        };

        let query = self.head_norm(place, "query_norm", query, "query_heads", count, head_dim)?;
        let key = self.head_norm(place, "key_norm", key, "key_heads", kv_heads, head_dim)?;
        let query = self.limited(place, "query_limited", query)?;
        let key = self.limited(place, "key_limited", key)?;
        let value = self.limited(place, "value_limited", value)?;
        let shape = [0, 0, signed(kv_heads), signed(value_dim)];
        let value = self.reshape("value_heads", value, &shape);
        let value = match place.truth("value_norm")? {
            true => {
                let eps = Norm::of(place)?.eps();
                self.scope("value_norm", |w| w.bare_rms_norm(eps, value))
            }
            false => value,
        };
        Ok((query, KeyValue { key, value }, gate))
    }

    /// Returns `min(max(x, -limit), limit)` if option `qkv_limit` has a value (OLMo, DBRX).
    ///
    /// OLMoE applies the limit after the norms of queries and keys.
    fn limited(&mut self, place: BlockPosition<'_>, name: &str, x: ValueId) -> Result<ValueId> {
        let Some(limit) = place.number_or_none("qkv_limit")? else { return Ok(x) };
        let (low, high) = (self.float(-limit), self.float(limit));
        Ok(self.make("Clip", name, [x, low, high]))
    }

    /// Splits into heads, and applies the norm of queries or keys if the checkpoint has one.
    ///
    /// Option `query_key_norm` selects the input of the norm: `head` (each head by itself, with one
    /// gamma), `each` (each head by itself, with a module for each head) or `all` (all heads
    /// together, before the split).
    fn head_norm(
        &mut self,
        place: BlockPosition<'_>,
        part: &str,
        x: ValueId,
        name: &str,
        heads: u64,
        head_dim: u64,
    ) -> Result<ValueId> {
        let shape = [0, 0, signed(heads), signed(head_dim)];

        let behind = NormPlace::of(place)?;
        // The norm of the first head says whether there are any.
        let each = place.numbered(part, &[("head", 0), ("kv_head", 0)]);
        let each = each.filter(|_| behind != NormPlace::BehindRotary);
        let Some(module) = each.filter(|name| self.model.has(&format!("{name}.weight"))) else {
            return Ok(self.reshape(name, x, &shape));
        };
        let norm = Norm::of(place)?;
        let norm =
            place.number_or_none("query_key_norm_eps")?.map_or(norm, |eps| norm.with_eps(eps));
        match place.text("query_key_norm")?.as_str() {
            "each" => {
                let modules = (0..heads)
                    .map(|head| place.numbered(part, &[("head", head), ("kv_head", head)]));
                let modules: Option<Vec<String>> = modules.collect();
                let split = self.reshape(name, x, &shape);
                self.norm_of_each(part, norm, split, &modules.unwrap_or_default())
            }
            "all" => {
                let normal = self.norm(part, norm, x, &module)?;
                Ok(self.reshape(name, normal, &shape))
            }
            "head" => {
                let split = self.reshape(name, x, &shape);
                self.norm(part, norm, split, &module)
            }
            other => Err(place.unknown("query_key_norm", other)),
        }
    }

    /// `[batch, sequence, heads, head_dim]` as `[batch, heads, sequence, head_dim]`.
    pub(crate) fn by_head(&mut self, name: &str, x: ValueId) -> ValueId {
        self.transpose(&format!("{name}_by_head"), x, [0, 2, 1, 3])
    }

    /// `[batch, tokens, heads * head_dim]` as `[batch, heads, tokens, head_dim]`.
    pub(crate) fn heads_of(
        &mut self,
        name: &str,
        x: ValueId,
        heads: u64,
        head_dim: u64,
    ) -> ValueId {
        let split =
            self.reshape(&format!("{name}_heads"), x, &[0, 0, signed(heads), signed(head_dim)]);
        self.by_head(name, split)
    }

    /// Keys and values of earlier tokens, then these.
    pub(crate) fn with_past(&mut self, fresh: KeyValue, past: Option<KeyValue>) -> KeyValue {
        let Some(past) = past else { return fresh };
        KeyValue {
            key: self.concat("keys", &[past.key, fresh.key], 2),
            value: self.concat("values", &[past.value, fresh.value], 2),
        }
    }

    /// Context: values weighted by the attention probabilities, `[batch, queries, heads *
    /// value_dim]`. With attention sinks, each head has one more score, of no token, that takes
    /// part in the softmax (Xiao et al. 2023, <https://arxiv.org/abs/2309.17453>, as gpt-oss has
    /// it).
    pub(crate) fn context(
        &mut self,
        heads: &Heads,
        query: ValueId,
        all: KeyValue,
        mask: Option<ValueId>,
        sinks: Option<&str>,
    ) -> Result<ValueId> {
        let key = self.transpose("key_transposed", all.key, [0, 1, 3, 2]);
        let scores = self.grouped(heads, "query_key", query, key);
        let scores = self.scaled("scores", scores, heads.scale);
        let scores = match heads.cap {
            Some(cap) => self.capped("capped_scores", scores, cap),
            None => scores,
        };
        let scores = match mask {
            Some(mask) => self.make("Add", "masked_scores", [scores, mask]),
            None => scores,
        };
        let probs = match sinks {
            Some(sinks) => self.probs_with_sinks(heads, scores, sinks)?,
            None => self.op("Softmax", [scores]).attribute("axis", -1).output("probs"),
        };
        let context = self.grouped(heads, "context_by_head", probs, all.value);
        let by_token = self.transpose("context_by_token", context, [0, 2, 1, 3]);
        Ok(self.reshape("context", by_token, &[0, 0, -1]))
    }

    /// `cap tanh(x / cap)`.
    pub(crate) fn capped(&mut self, name: &str, x: ValueId, cap: f64) -> ValueId {
        self.scope(name, |w| {
            let factor = w.float(cap);
            let narrow = w.make("Div", "narrow", [x, factor]);
            let tanh = w.make("Tanh", "tanh", [narrow]);
            w.make("Mul", "wide", [tanh, factor])
        })
    }

    /// Products of each head of the left, `[batch, heads, ..]`, with the head of the right that its
    /// group shares.
    fn grouped(&mut self, heads: &Heads, name: &str, left: ValueId, right: ValueId) -> ValueId {
        let (count, shared) = (heads.heads, heads.kv_heads);

        // One head for all is spread by the operator itself.
        if count == shared || shared == 1 {
            return self.make("MatMul", name, [left, right]);
        }

        self.scope(name, |w| {
            // The rows of a group's heads, one head after the other, are those of one matrix:
            // [batch, groups, queries of a group * rows, ..]. Nothing is copied, and what the group
            // shares is read once.
            let groups = w.reshape("groups", left, &[0, signed(shared), -1, 0]);
            let product = w.make("MatMul", "product", [groups, right]);
            w.reshape("flat", product, &[0, signed(count), -1, 0])
        })
    }

    /// The softmax of the scores and of one more for each head, without the probability of that
    /// one.
    fn probs_with_sinks(&mut self, heads: &Heads, scores: ValueId, sinks: &str) -> Result<ValueId> {
        let sinks = self.tensor(sinks)?;
        Ok(self.scope("sinks", |w| {
            let column = w.reshape("column", sinks, &[1, signed(heads.heads), 1, 1]);

            // Zeros for each query: a score less itself, since masks keep scores finite.
            let first = w.slice("first_scores", scores, -1, 0, 1);
            let zeros = w.make("Sub", "zeros", [first, first]);
            let column = w.make("Add", "sink_scores", [zeros, column]);
            let all = w.concat("with_sinks", &[scores, column], -1);
            let probs = w.op("Softmax", [all]).attribute("axis", -1).output("all_probs");
            w.slice("probs", probs, -1, 0, -1)
        }))
    }
}
