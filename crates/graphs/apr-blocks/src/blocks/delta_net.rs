//! Gated delta nets: a state of each head that answers keys with values, corrected by what it
//! answers wrongly (Yang, Kautz and Hatamizadeh 2024, <https://arxiv.org/abs/2412.06464>).

use apr_core::Result;
use apr_graph::ValueId;

use super::activation::Activation;
use super::convolution::Causal;
use super::mixer::{Query, Recurrence, StateHeads, States};
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Added to the sum of squares of queries and keys.
const UNIT_EPS: f64 = 1e-6;

/// What the projections of a delta net compute.
struct Projected {
    /// Queries, keys and values, `[batch, sequence, channels]`.
    qkv: ValueId,
    /// Gates of the output, `[batch, sequence, heads, head_dim]`.
    gate: ValueId,
    /// Shares of errors that are corrected, and time steps, before their activations, `[batch,
    /// sequence, heads]` or by group.
    share: ValueId,
    time: ValueId,
}

impl Writer<'_> {
    /// Returns `out(norm(read) * silu(gate))`, and the state.
    ///
    /// The state of a head fades by `exp(-exp(A) softplus(t + bias))`; what it gives for the key
    /// becomes more like the value, by the share `sigmoid(b)`; `read` is what it gives for the
    /// query. Queries and keys have length 1, after a convolution over the last tokens. Weights:
    /// `mixer_in` computes queries, keys, values and gates of each group, and `mixer_rates` shares
    /// and times (Qwen3-Next); or `mixer_qkv`, `mixer_gate`, `mixer_share` and `mixer_time` all of
    /// one kind each (Qwen3.5).
    pub(crate) fn delta_net(
        &mut self,
        place: BlockPosition<'_>,
        sizes: StateHeads,
        x: ValueId,
        counts: ValueId,
        past: Option<States>,
    ) -> Result<(ValueId, States)> {
        self.scope("delta_net", |w| {
            let x = w.make("Mul", "counted", [x, counts]);
            let Projected { qkv, gate, share, time } = w.delta_projections(place, sizes, x)?;
            let causal = Causal {
                module: &place.module("mixer_convolution")?,
                channels: sizes.channels(),
                kernel: sizes.kernel,
                activation: Some(Activation::of_mixer(place)?),
            };
            let (qkv, convolution) =
                w.causal_convolution(causal, qkv, past.map(|past| past.convolution))?;
            let keys = sizes.keys();
            let [query, key, value] = w.split("parts", qkv, -1, [keys, keys, sizes.width()]);
            let StateHeads { heads, groups, head_dim, state, .. } = sizes;
            let shared = sizes.shared();
            let query = w.matrices("query", query, [groups, 1, 1, state]);
            let query = w.of_length_one("query_unit", query, -1);
            let query = w.scaled("query_scaled", query, 1.0 / (state as f64).sqrt());
            let key = w.matrices("key", key, [groups, 1, state, 1]);
            let key = w.of_length_one("key_unit", key, -2);
            let value = w.matrices("value", value, [groups, shared, 1, head_dim]);
            let share = w.make("Sigmoid", "share", [share]);
            let share = w.matrices("share_by_head", share, [groups, shared, 1, 1]);
            let (_, decay) = w.faded_by_head(place, sizes, time)?;

            let of = Recurrence {
                decay,
                column: key,
                row: value,
                query: Query::Row(query),
                share: Some(share),
            };
            let past = past.and_then(|past| past.state);
            let (made, last) =
                w.scope("scan", |w| w.recurrence(sizes, [state, head_dim], &of, past));
            let made = w.reshape("read", made, &[0, 0, signed(heads), signed(head_dim)]);
            // The gamma of this norm is stored as it is, whatever those of others are.
            let norm = Norm::of(place)?.with_plain_gamma();
            let made = w.norm("norm", norm, made, &place.module("mixer_inner_norm")?)?;
            let gate = w.activate("gate", Activation::Silu, gate);
            let gated = w.make("Mul", "gated", [made, gate]);
            let gated = w.reshape("flat", gated, &[0, 0, -1]);
            let made = w.linear_part(place, "mixer_out", gated)?;
            Ok((made, States { convolution, state: Some(last) }))
        })
    }

    fn delta_projections(
        &mut self,
        place: BlockPosition<'_>,
        sizes: StateHeads,
        x: ValueId,
    ) -> Result<Projected> {
        let StateHeads { heads, groups, head_dim, state, .. } = sizes;
        let gates = [0, 0, signed(heads), signed(head_dim)];
        if place.module_or_none("mixer_in").is_none() {
            let qkv = self.linear_part(place, "mixer_qkv", x)?;
            let gate = self.linear_part(place, "mixer_gate", x)?;
            let gate = self.reshape("gates", gate, &gates);
            let share = self.linear_part(place, "mixer_share", x)?;
            let time = self.linear_part(place, "mixer_time", x)?;
            return Ok(Projected { qkv, gate, share, time });
        }

        let (shared, values) = (sizes.shared(), sizes.shared() * head_dim);
        let all = self.linear_part(place, "mixer_in", x)?;
        let all = self.reshape("groups", all, &[0, 0, signed(groups), -1]);
        let [query, key, value, gate] =
            self.split("group_parts", all, -1, [state, state, values, values]);
        let flat = [query, key, value].map(|part| self.reshape("all_groups", part, &[0, 0, -1]));
        let qkv = self.concat("queries_keys_values", &flat, -1);
        let gate = self.reshape("gates", gate, &gates);
        let rates = self.linear_part(place, "mixer_rates", x)?;
        let rates = self.reshape("rate_groups", rates, &[0, 0, signed(groups), -1]);
        let [share, time] = self.split("rates", rates, -1, [shared, shared]);
        let time = self.reshape("times", time, &[0, 0, signed(heads)]);
        Ok(Projected { qkv, gate, share, time })
    }

    /// Scales vectors along an axis to length 1, except short ones.
    fn of_length_one(&mut self, name: &str, x: ValueId, axis: i64) -> ValueId {
        self.scope(name, |w| {
            let square = w.make("Mul", "square", [x, x]);
            let sum = w.sum("sum", square, axis);
            let eps = w.float(UNIT_EPS);
            let sum = w.make("Add", "plus_eps", [sum, eps]);
            let length = w.make("Sqrt", "length", [sum]);
            w.make("Div", "unit", [x, length])
        })
    }
}
