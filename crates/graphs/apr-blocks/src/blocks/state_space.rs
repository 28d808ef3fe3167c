//! Selective state spaces (Mamba: Gu and Dao 2023, <https://arxiv.org/abs/2312.00752>).

use apr_core::Result;
use apr_graph::{BodyBuilder, Meaning, ValueId};

use super::activation::Activation;
use super::convolution::{Causal, kernel_of};
use super::mixer::States;
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Sizes of a state space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateSpace {
    /// Channels, each of which has a state of its own.
    pub(crate) channels: u64,
    /// Numbers in a state.
    pub(crate) state: u64,
    /// Inputs of a channel that its convolution sees.
    pub(crate) kernel: u64,
    /// Width of the input from which the time steps are computed.
    time_rank: u64,
}

impl StateSpace {
    /// Options `mixer_width` (or `intermediate`), `state_size` and `time_rank`; the kernel is the
    /// one of the checkpoint.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Self> {
        Ok(Self {
            channels: match place.size_or_none("mixer_width")? {
                Some(width) => width,
                None => place.size("intermediate")?,
            },
            state: place.size("state_size")?,
            kernel: kernel_of(place, &place.module("mixer_convolution")?)?,
            time_rank: place.size("time_rank")?,
        })
    }
}

impl Writer<'_> {
    /// Returns `out(scan(activation(convolution(x))) * silu(gate))`, where `in` computes `x` and
    /// the gate, and the state.
    ///
    /// `counts` is 0 for padding tokens, `[batch, sequence, 1]`.
    pub(crate) fn state_space(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        counts: ValueId,
        past: Option<States>,
    ) -> Result<(ValueId, States)> {
        let sizes = StateSpace::of(place)?;
        let channels = sizes.channels;
        self.scope("mixer", |w| {
            let x = w.make("Mul", "counted", [x, counts]);
            let both = w.linear_part(place, "mixer_in", x)?;
            let [x, gate] = w.split("parts", both, -1, [channels, channels]);
            let moved = Causal {
                module: &place.module("mixer_convolution")?,
                channels,
                kernel: sizes.kernel,
                activation: Some(Activation::of_mixer(place)?),
            };
            let (x, convolution) =
                w.causal_convolution(moved, x, past.map(|past| past.convolution))?;
            let x = w.make("Mul", "convolved_and_counted", [x, counts]);

            let (mixed, state) =
                w.scope("scan", |w| w.scanned(place, sizes, x, past.and_then(|past| past.state)))?;
            let gate = w.activate("gate", Activation::Silu, gate);
            let gated = w.make("Mul", "gated", [mixed, gate]);
            let made = w.linear_part(place, "mixer_out", gated)?;
            Ok((made, States { convolution, state: Some(state) }))
        })
    }

    /// The norm of time steps, B or C: by a module (Jamba), without weights if option
    /// `selection_norm_eps` has a value (Falcon Mamba), or none.
    fn selection_norm(
        &mut self,
        place: BlockPosition<'_>,
        part: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        if let Some(eps) = place.number_or_none("selection_norm_eps")? {
            return Ok(self.scope(part, |w| w.bare_rms_norm(eps, x)));
        }
        self.norm_part(Norm::of(place)?, part, x, place.module_or_none(part))
    }

    /// Computes `h = exp(t A) h + t x B` from token to token, and returns `h C + D x` for each
    /// token and the last `h`.
    ///
    /// The time step `t`, `B` and `C` depend on the token. `x` is `[batch, sequence, channels]`.
    ///
    /// This is a `Scan`, because the closed form by cumulated sums loses all digits, and the memory
    /// of the form over pairs of tokens grows with the square of the length.
    fn scanned(
        &mut self,
        place: BlockPosition<'_>,
        sizes: StateSpace,
        x: ValueId,
        past: Option<ValueId>,
    ) -> Result<(ValueId, ValueId)> {
        let StateSpace { channels, state, time_rank, .. } = sizes;
        let selection = self.linear_part(place, "selection", x)?;
        let [time, input, output] =
            self.split("selected", selection, -1, [time_rank, state, state]);
        let time = self.selection_norm(place, "selection_time_norm", time)?;
        let input = self.selection_norm(place, "selection_input_norm", input)?;
        let output = self.selection_norm(place, "selection_output_norm", output)?;
        let time = self.linear_part(place, "time", time)?;
        let time = self.make("Softplus", "step", [time]);
        let timed = self.make("Mul", "timed", [time, x]);

        // The checkpoint has the logarithm of the decay.
        let decay = self.tensor(&place.module("decay")?)?;
        let decay = self.make("Exp", "decay", [decay]);
        let decay = self.make("Neg", "decay_rate", [decay]);

        let first = match past {
            Some(past) => past,
            None => {
                let batch = self.length("batch", x, 0);
                let rest = self.ints(&[signed(channels), signed(state)]);
                let shape = self.concat("state_shape", &[batch, rest], 0);
                let zero = self.float(0.0);
                self.make("Expand", "no_state", [zero, shape])
            }
        };
        let node = self.op("Scan", [first, decay, time, timed, input, output]);
        let node = node.attribute("body", scan_body().finish()).attribute("num_scan_inputs", 4);
        let node = node.attribute("scan_input_axes", [1, 1, 1, 1]);
        let [last, _, mixed] = node.attribute("scan_output_axes", [1]).outputs("scan");

        let skip = self.tensor(&place.module("skip")?)?;
        let skipped = self.make("Mul", "skipped", [x, skip]);
        Ok((self.make("Add", "sum", [mixed, skipped]), last))
    }
}

/// Returns the body for one token of the scan.
///
/// The decay is passed on unchanged as a state, because some runtimes do not let a body in a
/// function read outer values.
fn scan_body() -> BodyBuilder {
    let mut body = BodyBuilder::default();
    let (before, decay) = (body.parameter("state"), body.parameter("decay"));
    let (time, timed) = (body.parameter("time"), body.parameter("timed"));
    let (input, output) = (body.parameter("input"), body.parameter("output"));
    let (row, column) = (body.ints(&[1]), body.ints(&[-1]));
    let mut make =
        |op: &str, name: &str, inputs: &[ValueId]| body.op(op, inputs.iter().copied()).output(name);

    let time = make("Unsqueeze", "time_column", &[time, column]);
    let rate = make("Mul", "rate", &[time, decay]);
    let share = make("Exp", "share", &[rate]);
    let kept = make("Mul", "kept", &[share, before]);
    let timed = make("Unsqueeze", "timed_column", &[timed, column]);
    let input = make("Unsqueeze", "input_row", &[input, row]);
    let fresh = make("Mul", "fresh", &[timed, input]);
    let state = make("Add", "next_state", &[kept, fresh]);
    let output = make("Unsqueeze", "output_column", &[output, column]);
    let mixed = make("MatMul", "mixed_column", &[state, output]);
    let mixed = make("Squeeze", "mixed", &[mixed, column]);
    let same = make("Identity", "same_decay", &[decay]);
    for (name, value) in [("state_out", state), ("decay_out", same), ("mixed_out", mixed)] {
        body.output(name, value, Meaning::Unknown);
    }
    body
}
