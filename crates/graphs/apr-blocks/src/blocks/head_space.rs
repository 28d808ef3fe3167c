//! State spaces in heads (Mamba 2: Dao and Gu 2024, <https://arxiv.org/abs/2405.21060>).

use apr_core::{Error, Result};
use apr_graph::ValueId;

use super::activation::Activation;
use super::convolution::Causal;
use super::mixer::{Query, Recurrence, StateHeads, States};
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

impl Writer<'_> {
    /// Returns `out(norm(scan(activation(convolution(x))) * silu(gate)))`, where `in` computes the
    /// gate, `x`, B, C and the time steps, and the state.
    ///
    /// The norm takes each group of heads by itself. Options `mixer_in_scale`, a factor of the
    /// input, and `mixer_scales`, factors of the gate, `x`, B, C and the time steps (Falcon-H1).
    pub(crate) fn head_space(
        &mut self,
        place: BlockPosition<'_>,
        sizes: StateHeads,
        x: ValueId,
        counts: ValueId,
        past: Option<States>,
    ) -> Result<(ValueId, States)> {
        let StateHeads { heads, groups, head_dim, state, .. } = sizes;
        let (width, keys, shared) = (sizes.width(), sizes.keys(), sizes.shared());
        self.scope("mixer", |w| {
            let x = w.make("Mul", "counted", [x, counts]);
            let x = w.scaled_by(place, "mixer_in_scale", x)?;
            let all = w.linear_part(place, "mixer_in", x)?;
            let all = match place.numbers("mixer_scales")? {
                Some(scales) => w.scaled_parts(sizes, all, &scales)?,
                None => all,
            };
            let [gate, x, time] = w.split("parts", all, -1, [width, sizes.channels(), heads]);
            let causal = Causal {
                module: &place.module("mixer_convolution")?,
                channels: sizes.channels(),
                kernel: sizes.kernel,
                activation: Some(Activation::of_mixer(place)?),
            };
            let (x, convolution) =
                w.causal_convolution(causal, x, past.map(|past| past.convolution))?;
            let x = w.make("Mul", "convolved_and_counted", [x, counts]);
            let [x, input, output] = w.split("selected", x, -1, [width, keys, keys]);
            let x = w.matrices("values", x, [groups, shared, head_dim, 1]);
            let (time, decay) = w.faded_by_head(place, sizes, time)?;
            let of = Recurrence {
                decay,
                column: w.make("Mul", "timed", [x, time]),
                row: w.matrices("input", input, [groups, 1, 1, state]),
                query: Query::Column(w.matrices("output", output, [groups, 1, state, 1])),
                share: None,
            };
            let past = past.and_then(|past| past.state);
            let (mixed, last) =
                w.scope("scan", |w| w.recurrence(sizes, [head_dim, state], &of, past));
            let skip = w.tensor(&place.module("skip")?)?;
            let by_head = [signed(groups), signed(shared), 1, 1];
            let skip = w.reshape("skip_by_head", skip, &by_head);
            let skipped = w.make("Mul", "skipped", [x, skip]);
            let sum = w.make("Add", "sum", [mixed, skipped]);
            let sum = w.reshape("flat", sum, &[0, 0, -1]);
            let gated = w.gated_and_normed(place, sizes, sum, gate)?;
            let made = w.linear_part(place, "mixer_out", gated)?;
            Ok((made, States { convolution, state: Some(last) }))
        })
    }

    /// Multiplies each of the parts that a projection computes with a number.
    fn scaled_parts(&mut self, sizes: StateHeads, x: ValueId, scales: &[f64]) -> Result<ValueId> {
        let (width, keys) = (sizes.width(), sizes.keys());
        let lengths = [width, width, keys, keys, sizes.heads];
        if scales.len() != lengths.len() {
            return Err(Error::format(format!(
                "{} factors of the {} parts of a state space",
                scales.len(),
                lengths.len()
            )));
        }
        if scales.iter().all(|scale| *scale == 1.0) {
            return Ok(x);
        }
        let parts = self.split("parts_to_scale", x, -1, lengths);
        let scaled: Vec<ValueId> = parts
            .into_iter()
            .zip(scales)
            .map(|(part, by)| self.scaled("scaled", part, *by))
            .collect();
        Ok(self.concat("scaled_parts", &scaled, -1))
    }

    /// Returns time steps and the factors by which states fade, `[batch, sequence, groups, heads of
    /// a group, 1, 1]`: `softplus(t + bias)` and `exp(-exp(A) softplus(t + bias))`.
    ///
    /// Options `time_least` and `time_most` are the limits of time steps.
    pub(crate) fn faded_by_head(
        &mut self,
        place: BlockPosition<'_>,
        sizes: StateHeads,
        time: ValueId,
    ) -> Result<(ValueId, ValueId)> {
        let bias = self.tensor(&place.module("time_bias")?)?;
        let time = self.make("Add", "biased_time", [time, bias]);
        let mut time = self.make("Softplus", "time", [time]);
        if let Some(least) = place.number_or_none("time_least")?.filter(|least| *least > 0.0) {
            let least = self.float(least);
            time = self.make("Max", "time_not_below", [time, least]);
        }
        if let Some(most) = place.number_or_none("time_most")? {
            let most = self.float(most);
            time = self.make("Min", "time_not_above", [time, most]);
        }
        // The checkpoint has the logarithm of the decay.
        let decay = self.tensor(&place.module("decay")?)?;
        let decay = self.make("Exp", "decay", [decay]);
        let rate = self.make("Mul", "rate", [time, decay]);
        let rate = self.make("Neg", "fading", [rate]);
        let share = self.make("Exp", "kept_share", [rate]);
        let shape = [sizes.groups, sizes.shared(), 1, 1];
        Ok((self.matrices("time_by_head", time, shape), self.matrices("kept", share, shape)))
    }

    /// Returns `norm(x * silu(gate))`, or the product alone if the checkpoint has no norm. Option
    /// `mixer_norm_first` applies the norm before the gate.
    fn gated_and_normed(
        &mut self,
        place: BlockPosition<'_>,
        sizes: StateHeads,
        x: ValueId,
        gate: ValueId,
    ) -> Result<ValueId> {
        let gate = self.activate("gate", Activation::Silu, gate);
        let Some(module) = place.module_or_none("mixer_inner_norm") else {
            return Ok(self.make("Mul", "gated", [x, gate]));
        };
        let is_first = place.truth("mixer_norm_first")?;
        let x = if is_first { x } else { self.make("Mul", "gated", [x, gate]) };
        let eps = Norm::of(place)?.eps();
        let normal = self.scope("norm", |w| {
            let groups = w.reshape("groups", x, &[0, 0, signed(sizes.groups), -1]);
            let normal = w.bare_rms_norm(eps, groups);
            let flat = w.reshape("flat", normal, &[0, 0, -1]);
            let gamma = w.tensor(&format!("{module}.weight"))?;
            Ok::<_, Error>(w.make("Mul", "scaled", [flat, gamma]))
        })?;
        Ok(if is_first { self.make("Mul", "gated", [normal, gate]) } else { normal })
    }
}
