//! A layer: attention, maybe attention to an encoder's states, and a feed-forward network, with
//! norms and sums.

use apr_core::{Error, Result};
use apr_graph::ValueId;

use super::attention::{Given, KeyValue};
use super::heads::Heads;
use super::latent::is_latent;
use super::mixer::{LayerBlocks, States};
use super::norm::Norm;
use super::rotary::Rotary;
use crate::model::BlockPosition;
use crate::writer::Writer;

/// Order in which a layer adds the outputs of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Residual {
    /// The feed-forward network reads the output of attention.
    Serial,
    /// Attention and the feed-forward network both read the layer's input (GPT-J,
    /// <https://github.com/kingoflolz/mesh-transformer-jax>).
    Parallel,
    /// Like `Serial`, but each block's output is added to its input after the norm (BLOOM's
    /// `apply_residual_connection_post_layernorm`).
    Normed,
}

impl Residual {
    fn of(place: BlockPosition<'_>) -> Result<Self> {
        match place.text_or_none("residual")?.as_deref() {
            None | Some("serial") => Ok(Self::Serial),
            Some("parallel") => Ok(Self::Parallel),
            Some("normed") => Ok(Self::Normed),
            Some(other) => Err(place.unknown("residual", other)),
        }
    }
}

/// Position of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norms {
    /// Before each block.
    Before,
    /// After each sum.
    After,
}

impl Norms {
    /// Option `norms`.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Self> {
        match place.text_or_none("norms")?.as_deref() {
            None | Some("before") => Ok(Self::Before),
            Some("after") => Ok(Self::After),
            Some(other) => Err(place.unknown("norms", other)),
        }
    }
}

/// Inputs of a layer from an encoder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encoded {
    pub(crate) source: Source,
    /// Added to the scores.
    pub(crate) mask: Option<ValueId>,
}

/// Source of the keys and values of an encoder's states.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    States(ValueId),
    Made(KeyValue),
}

/// Cached values of a layer for the tokens so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Kept {
    /// Keys and values of attention.
    pub(crate) pair: Option<KeyValue>,
    /// State of a block that has one instead of attention or beside it.
    pub(crate) states: Option<States>,
}

/// Outputs of a layer.
pub(crate) struct Made {
    pub(crate) x: ValueId,
    pub(crate) cache: Kept,
    /// Keys and values of the encoder's states.
    pub(crate) encoded: Option<KeyValue>,
}

impl Writer<'_> {
    /// `x + attention(norm(x))`, then the same with the feed-forward network, or the blocks of
    /// [`LayerBlocks`]. Option `norms` says
    /// where the norms `attention_norm`, `cross_norm` and `mlp_norm` stand: `before` their block
    /// (the default), or `after` its sum, `norm(x + attention(x))`. `attention_post_norm` and so on
    /// are between a block and its sum. Option `residual`: `serial`, `parallel` where both blocks
    /// work on the layer's input, or `normed` where sums are with what the norms made of it.
    /// `residual_scale` is a factor of what is added, `attention_layer_scale` and so on are vectors
    /// of such factors (LayerScale: Touvron et al. 2021, <https://arxiv.org/abs/2103.17239>).
    pub(crate) fn layer(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        rotary: Option<&Rotary>,
        given: Given,
        encoded: Option<Encoded>,
    ) -> Result<Made> {
        let residual = Residual::of(place)?;
        let norms = Norms::of(place)?;
        let blocks = LayerBlocks::of(place)?;
        if !(blocks.attention || blocks.mixer.is_some()) {
            let x = self.feed_forward_part(place, norms, residual, [x, x], None)?;
            return Ok(Made { x, cache: Kept::default(), encoded: None });
        }
        let before = self.norm_of_block(place, norms, "attention", x)?;
        let (attended, cache) = self.first_blocks(place, blocks, before, rotary, given)?;
        let base = if residual == Residual::Normed { before } else { x };
        let mut middle = self.added(place, norms, "attention", base, attended)?;
        let mut made = None;
        if let Some(encoded) = encoded {
            let before = self.norm_of_block(place, norms, "cross", middle)?;
            let (attended, keys_values) = self.cross_attention(place, before, encoded)?;
            middle = self.added(place, norms, "cross", middle, attended)?;
            made = Some(keys_values);
        }

        let x = match blocks.mlp {
            true => self.feed_forward_part(place, norms, residual, [x, middle], Some(before))?,
            false => middle,
        };
        Ok(Made { x, cache, encoded: made })
    }

    /// Attention, or what keeps a state in its place or beside it, and what they keep: nothing if
    /// attention has the keys and values of another layer. Options
    /// `mixer_out_scale`, `attention_in_scale` and `attention_out_scale` are factors (Falcon-H1).
    pub(super) fn first_blocks(
        &mut self,
        place: BlockPosition<'_>,
        blocks: LayerBlocks,
        x: ValueId,
        rotary: Option<&Rotary>,
        given: Given,
    ) -> Result<(ValueId, Kept)> {
        let mut kept = Kept::default();
        let mut sum = None;
        if let Some(mixer) = blocks.mixer {
            let (made, states) = self.mixer(place, mixer, x, given)?;
            kept.states = Some(states);
            sum = Some(self.scaled_by(place, "mixer_out_scale", made)?);
        }
        if blocks.attention {
            let x = self.scaled_by(place, "attention_in_scale", x)?;
            let (made, pair) = match is_latent(place)? {
                true => self.latent_attention(place, x, rotary, given)?,
                false => self.attention(place, x, rotary, given)?,
            };
            kept.pair = given.shared.is_none().then_some(pair);
            let made = self.scaled_by(place, "attention_out_scale", made)?;
            sum = Some(match sum {
                Some(sum) => self.make("Add", "side_by_side", [sum, made]),
                None => made,
            });
        }
        let sum = sum.ok_or_else(|| Error::format("a layer without any block"))?;
        Ok((sum, kept))
    }

    /// The feed-forward network of a layer, added to its input. `normal` is the output of the norm
    /// before the first block.
    fn feed_forward_part(
        &mut self,
        place: BlockPosition<'_>,
        norms: Norms,
        residual: Residual,
        [x, middle]: [ValueId; 2],
        normal: Option<ValueId>,
    ) -> Result<ValueId> {
        let into_mlp = match (residual, normal) {
            // One norm serves both blocks where there is no second one.
            (Residual::Parallel, Some(normal)) if place.module_or_none("mlp_norm").is_none() => {
                normal
            }
            (Residual::Parallel, _) => self.norm_of_block(place, norms, "mlp", x)?,
            (Residual::Serial | Residual::Normed, _) => {
                self.norm_of_block(place, norms, "mlp", middle)?
            }
        };
        let made_by_mlp = self.feed_forward_and_experts(place, into_mlp, middle)?;
        let base = if residual == Residual::Normed { into_mlp } else { middle };
        self.added(place, norms, "mlp", base, made_by_mlp)
    }

    /// Applies a norm of a layer if the checkpoint has it, or else returns `x` itself.
    fn norm_of(&mut self, place: BlockPosition<'_>, part: &str, x: ValueId) -> Result<ValueId> {
        self.norm_part(Norm::of(place)?, part, x, place.module_or_none(part))
    }

    fn norm_of_block(
        &mut self,
        place: BlockPosition<'_>,
        norms: Norms,
        block: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        match norms {
            Norms::Before => self.norm_before(place, &format!("{block}_norm"), x),
            Norms::After => Ok(x),
        }
    }

    /// Returns the sum of `x` and the output of a block.
    pub(super) fn added(
        &mut self,
        place: BlockPosition<'_>,
        norms: Norms,
        block: &str,
        x: ValueId,
        made: ValueId,
    ) -> Result<ValueId> {
        let mut made = self.norm_of(place, &format!("{block}_post_norm"), made)?;
        if let Some(scale) = place.tensor_or_none(&format!("{block}_layer_scale")) {
            let scale = self.tensor(&scale)?;
            made = self.make("Mul", &format!("{block}_layer_scaled"), [made, scale]);
        }
        if let Some(scale) = place.number_or_none("residual_scale")?.filter(|scale| *scale != 1.0) {
            made = self.scaled(&format!("{block}_scaled"), made, scale);
        }
        let sum = self.make("Add", &format!("{block}_sum"), [x, made]);
        match norms {
            Norms::Before => Ok(sum),
            Norms::After => self.norm_of(place, &format!("{block}_norm"), sum),
        }
    }

    /// Attention of the tokens to an encoder's states. Returns its output, and the states' keys and
    /// values.
    fn cross_attention(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        encoded: Encoded,
    ) -> Result<(ValueId, KeyValue)> {
        let heads = Heads::of(place)?;
        self.scope("cross_attention", |w| {
            let query = w.linear_part(place, "cross_query", x)?;
            let query = w.heads_of("query", query, heads.heads, heads.head_dim);
            let all = match encoded.source {
                Source::Made(made) => made,
                Source::States(states) => {
                    let key = w.linear_part(place, "cross_key", states)?;
                    let key = w.heads_of("key", key, heads.kv_heads, heads.head_dim);
                    let value = w.linear_part(place, "cross_value", states)?;
                    KeyValue {
                        key,
                        value: w.heads_of("value", value, heads.kv_heads, heads.head_dim),
                    }
                }
            };
            let context = w.context(&heads, query, all, encoded.mask, None)?;
            Ok((w.linear_part(place, "cross_output", context)?, all))
        })
    }
}
