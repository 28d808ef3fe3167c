//! Gated convolutions over the last tokens, which layers of hybrids have instead of attention
//! (LFM2: <https://arxiv.org/abs/2511.23404>).

use apr_core::Result;
use apr_graph::ValueId;

use super::convolution::{Causal, kernel_of};
use crate::model::BlockPosition;
use crate::writer::Writer;

/// Sizes of a gated convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShortConvolution {
    /// Channels, as many as a token has.
    pub(crate) channels: u64,
    /// Tokens that it sees.
    pub(crate) kernel: u64,
}

impl ShortConvolution {
    /// Returns the convolution that replaces attention in a layer, or `None` if the checkpoint has
    /// none in this layer.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Option<Self>> {
        let Some(module) = place.module_or_none("short_convolution") else { return Ok(None) };
        let (channels, kernel) = (place.size("hidden")?, kernel_of(place, &module)?);
        Ok(Some(Self { channels, kernel }))
    }
}

impl Writer<'_> {
    /// Returns `out(c * convolution(b * x))`, where `in` computes `b`, `c` and `x`, and the
    /// convolution's last inputs. `past` are the inputs before.
    pub(crate) fn short_convolution(
        &mut self,
        place: BlockPosition<'_>,
        sizes: ShortConvolution,
        x: ValueId,
        counts: ValueId,
        past: Option<ValueId>,
    ) -> Result<(ValueId, ValueId)> {
        let ShortConvolution { channels, kernel } = sizes;
        let module = &place.module("short_convolution")?;
        self.scope("short_convolution", |w| {
            let x = w.make("Mul", "counted", [x, counts]);
            let all = w.linear_part(place, "short_in", x)?;
            let [before, behind, x] = w.split("parts", all, -1, [channels, channels, channels]);
            let gated = w.make("Mul", "gated", [before, x]);
            let causal = Causal { module, channels, kernel, activation: None };
            let (made, last) = w.causal_convolution(causal, gated, past)?;
            let gated = w.make("Mul", "gated_again", [behind, made]);
            Ok((w.linear_part(place, "short_out", gated)?, last))
        })
    }
}
