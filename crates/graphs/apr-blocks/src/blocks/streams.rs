//! Several vectors for each token, of which a layer computes with one and predicts the others
//! (AltUp: Baykal et al. 2023, <https://arxiv.org/abs/2301.13310>), as Gemma 3n has them.
//!
//! Beside attention, a layer has a learnt residual (LAuReL: Menghani et al. 2024,
//! <https://arxiv.org/abs/2411.07501>), and in the end it adds what a table of its own has for the
//! token.

use apr_core::{Error, Result};
use apr_graph::{Constant, ValueId};

use super::activation::Activation;
use super::attention::Given;
use super::layer::{Made, Norms};
use super::mixer::LayerBlocks;
use super::norm::Norm;
use super::rotary::Rotary;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Maximum number of vectors for a token; models have four.
const MAX_STREAMS: u64 = 64;
/// Least mean of squares that vectors are divided by the root of.
const LEAST_SQUARE: f64 = 1e-5;

/// Number of vectors for each token, and the one that layers compute with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    count: u64,
    active: u64,
}

impl Streams {
    /// Options `streams` and `active_stream`; `None` if the family has one vector for a token.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Option<Self>> {
        let Some(count) = place.size_or_none("streams")?.filter(|count| *count > 1) else {
            return Ok(None);
        };
        let active = place.size_or_none("active_stream")?.unwrap_or(0);
        if count > MAX_STREAMS || active >= count {
            return Err(Error::format(format!(
                "{count} vectors for a token, of which number {active} is computed with"
            )));
        }
        Ok(Some(Self { count, active }))
    }
}

impl Writer<'_> {
    /// Returns all vectors of tokens, `[batch, sequence, streams, hidden]`, from the first:
    /// projections of it that are as long. Weight `stream_in`, with the placeholder `{stream}`.
    pub(crate) fn streams(
        &mut self,
        place: BlockPosition<'_>,
        streams: Streams,
        x: ValueId,
    ) -> Result<ValueId> {
        self.scope("streams", |w| {
            let length = w.root_mean_square("length", x);
            let mut all = vec![w.unsqueeze("stream.0", x, &[2])];
            for stream in 1..streams.count {
                let made = w.stream_projection(place, "stream_in", stream, x, length)?;
                all.push(w.unsqueeze(&format!("stream.{stream}"), made, &[2]));
            }
            Ok(w.concat("all", &all, 2))
        })
    }

    /// Returns the mean of a token's vectors, `[batch, sequence, hidden]`, the others projected and
    /// brought to the length of the first. Weight `stream_out`.
    pub(crate) fn merged_streams(
        &mut self,
        place: BlockPosition<'_>,
        streams: Streams,
        x: ValueId,
    ) -> Result<ValueId> {
        self.scope("streams", |w| {
            let mut sum = w.stream("first", x, 0);
            let length = w.root_mean_square("length", sum);
            for stream in 1..streams.count {
                let part = w.stream("stream", x, stream);
                let made = w.stream_projection(place, "stream_out", stream, part, length)?;
                sum = w.make("Add", "sum", [sum, made]);
            }
            Ok(w.scaled("mean", sum, 1.0 / streams.count as f64))
        })
    }

    /// One of a token's vectors.
    fn stream(&mut self, name: &str, x: ValueId, stream: u64) -> ValueId {
        let number = self.int(signed(stream));
        self.op("Gather", [x, number]).attribute("axis", 2).output(name)
    }

    /// A projection, brought to a length.
    fn stream_projection(
        &mut self,
        place: BlockPosition<'_>,
        part: &str,
        stream: u64,
        x: ValueId,
        length: ValueId,
    ) -> Result<ValueId> {
        let module = place.numbered(part, &[("stream", stream - 1)]).ok_or_else(|| {
            Error::format(format!("[graph] does not name the weight of '{part}'"))
        })?;
        let made = self.outer_linear(part, x, &module)?;
        let square = self.make("Mul", "square", [made, made]);
        let mean = self.mean("mean_square", square);
        let least = self.float(LEAST_SQUARE);
        let mean = self.make("Max", "mean_or_least", [mean, least]);
        let own = self.make("Sqrt", "own_length", [mean]);
        let scaled = self.make("Mul", "scaled", [made, length]);
        Ok(self.make("Div", "as_long", [scaled, own]))
    }

    fn root_mean_square(&mut self, name: &str, x: ValueId) -> ValueId {
        self.scope(name, |w| {
            let square = w.make("Mul", "square", [x, x]);
            let mean = w.mean("mean", square);
            w.make("Sqrt", "root", [mean])
        })
    }

    /// Returns what layers add in the end, for all layers, `[batch, sequence, layers, width]`: rows
    /// of a table and a projection of the token's vector.
    ///
    /// Weights `layer_tokens`, `layer_tokens_in` and `layer_tokens_norm`, option
    /// `layer_tokens_width`. Tokens that the table does not have are those of its first row.
    pub(crate) fn layer_tokens(
        &mut self,
        place: BlockPosition<'_>,
        tokens: ValueId,
        x: ValueId,
    ) -> Result<ValueId> {
        let (layers, width) = (place.layers()?, place.size("layer_tokens_width")?);
        let hidden = place.size("hidden")? as f64;
        self.scope("layer_tokens", |w| {
            let table = format!("{}.weight", place.module("layer_tokens")?);
            let rows = w.model.using(&table)?.first().copied().unwrap_or(0);
            let (rows, zero) = (w.int(signed(rows)), w.int(0));
            let is_there = w.make("Less", "is_there", [tokens, rows]);
            let tokens = w.make("Where", "row", [is_there, tokens, zero]);
            let table = w.tensor(&table)?;
            let found = w.make("Gather", "rows", [table, tokens]);
            let found = w.scaled("rows_scaled", found, (width as f64).sqrt());
            let made = w.outer_linear("projection", x, &place.module("layer_tokens_in")?)?;
            let made = w.scaled("projection_scaled", made, 1.0 / hidden.sqrt());
            let shape = [0, 0, signed(layers), signed(width)];
            let made = w.reshape("by_layer", made, &shape);
            let made =
                w.norm("norm", Norm::of(place)?, made, &place.module("layer_tokens_norm")?)?;
            let found = w.reshape("rows_by_layer", found, &shape);
            let sum = w.make("Add", "sum", [made, found]);
            Ok(w.scaled("mean", sum, std::f64::consts::FRAC_1_SQRT_2))
        })
    }

    /// A layer that computes with one of a token's vectors. `own` is what it adds in the end,
    /// `[batch, sequence, width]`.
    pub(crate) fn layer_of_streams(
        &mut self,
        place: BlockPosition<'_>,
        streams: Streams,
        x: ValueId,
        own: ValueId,
        rotary: Option<&Rotary>,
        given: Given,
    ) -> Result<Made> {
        let Streams { count, active } = streams;
        let routed = self.stream("active", x, active);
        let predicted = self.scope("predict", |w| {
            let shares = w.stream_shares(place, routed)?;
            let factors = w.linear_part(place, "stream_prediction", shares)?;
            let factors = w.reshape("factors", factors, &[0, 0, signed(count), signed(count)]);
            let change = w.make("MatMul", "change", [factors, x]);
            Ok::<_, Error>(w.make("Add", "predicted", [x, change]))
        })?;
        let before = self.stream("predicted_active", predicted, active);
        let normal = self.norm_before(place, "attention_norm", before)?;
        let learnt = self.scope("learnt_residual", |w| {
            let narrow = w.linear_part(place, "residual_down", normal)?;
            let wide = w.linear_part(place, "residual_up", narrow)?;
            let wide = w.norm("norm", Norm::of(place)?, wide, &place.module("residual_norm")?)?;
            Ok::<_, Error>(w.make("Add", "sum", [normal, wide]))
        })?;
        let blocks = LayerBlocks::of(place)?;
        let (attended, cache) = self.first_blocks(place, blocks, normal, rotary, given)?;
        let middle = self.added(place, Norms::Before, "attention", before, attended)?;
        let middle = self.make("Add", "with_learnt", [middle, learnt]);
        let middle = self.scaled("middle", middle, std::f64::consts::FRAC_1_SQRT_2);
        let into_mlp = self.norm_before(place, "mlp_norm", middle)?;
        let made = self.feed_forward_or_experts(place, into_mlp)?;
        let made = self.added(place, Norms::Before, "mlp", middle, made)?;

        let corrected = self.scope("correct", |w| {
            let shares = w.stream_shares(place, made)?;
            let factors = w.linear_part(place, "stream_correction", shares)?;
            let one = w.float(1.0);
            let factors = w.make("Add", "factors", [factors, one]);
            let factors = w.unsqueeze("factor_column", factors, &[3]);
            let error = w.make("Sub", "error", [made, before]);
            let error = w.unsqueeze("error_row", error, &[2]);
            let change = w.make("Mul", "change", [factors, error]);
            Ok::<_, Error>(w.make("Add", "corrected", [predicted, change]))
        })?;
        let x = self.scope("layer_token", |w| {
            let first = w.stream("active", corrected, active);
            let first = match place.tensor_or_none("stream_scale") {
                Some(scale) if place.truth_or("stream_scaled", true)? => {
                    let scale = w.tensor(&scale)?;
                    w.make("Mul", "scaled", [first, scale])
                }
                _ => first,
            };
            let made = w.made_of_layer_token(place, first, own)?;
            let made = w.unsqueeze("row", made, &[2]);
            // All vectors but the first.
            let others: Vec<f32> = (0..count).map(|at| if at == 0 { 0.0 } else { 1.0 }).collect();
            let others = w.body().constant(Constant::floats(&others));
            let others = w.unsqueeze("others", others, &[1]);
            let change = w.make("Mul", "change", [made, others]);
            Ok::<_, Error>(w.make("Add", "sum", [corrected, change]))
        })?;
        Ok(Made { x, cache, encoded: None })
    }

    /// Returns what a layer adds for the token: `norm(out(activation(gate(x)) own))`, `[batch,
    /// sequence, hidden]`.
    pub(crate) fn layer_token(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        own: ValueId,
    ) -> Result<ValueId> {
        self.scope("layer_token", |w| w.made_of_layer_token(place, x, own))
    }

    fn made_of_layer_token(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        own: ValueId,
    ) -> Result<ValueId> {
        let gate = self.linear_part(place, "layer_token_gate", x)?;
        let gate = self.activate("activation", Activation::of(place, "activation")?, gate);
        let gated = self.make("Mul", "gated", [gate, own]);
        let made = self.linear_part(place, "layer_token_out", gated)?;
        self.norm("norm", Norm::of(place)?, made, &place.module("layer_token_norm")?)
    }

    /// Shares of a token's vectors, `[batch, sequence, streams]`.
    fn stream_shares(&mut self, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
        let hidden = place.size("hidden")? as f64;
        let module = place.module("stream_router_norm")?;
        let normal = self.norm("router_norm", Norm::of(place)?, x, &module)?;
        let narrow = self.scaled("router_input", normal, 1.0 / hidden);
        let shares = self.linear_part(place, "stream_router", narrow)?;
        Ok(self.make("Tanh", "shares", [shares]))
    }

    /// Returns `max(x - m - k s, 0)` with the mean `m` and the standard deviation `s` of a token,
    /// where `k` leaves the share `1 - sparsity` of a normal distribution.
    pub(crate) fn sparse(&mut self, x: ValueId, sparsity: f64) -> ValueId {
        self.scope("sparse", |w| {
            let mean = w.mean("mean", x);
            let apart = w.make("Sub", "apart", [x, mean]);
            let square = w.make("Mul", "square", [apart, apart]);
            let variance = w.mean("variance", square);
            let deviation = w.make("Sqrt", "deviation", [variance]);
            let least = w.scaled("least", deviation, apr_arch::normal_quantile(sparsity));
            let more = w.make("Sub", "more", [apart, least]);
            w.make("Relu", "kept", [more])
        })
    }
}
