//! What stands between two layers.

use apr_core::{Error, Result};
use apr_graph::{ElementType, ValueId};

use super::activation::Activation;
use super::convolution::Convolution;
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::Writer;

impl Writer<'_> {
    /// Adds a convolution over neighbouring tokens after the first layer, if option `between` is
    /// true.
    ///
    /// The result is `norm(layer + activation(convolution(x)))`, where `x` are the vectors before
    /// the first layer, and 0 for padding (DeBERTa v2: He et al. 2020,
    /// <https://arxiv.org/abs/2006.03654>). Modules `between` and `between_norm`, options
    /// `between_activation` and `between_groups`. `counts` are the keys that are not padding,
    /// `[batch, 1, 1, keys]`.
    pub(crate) fn with_neighbours(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
        layer: ValueId,
        counts: Option<ValueId>,
    ) -> Result<ValueId> {
        if !place.truth("between")? {
            return Ok(layer);
        }
        let module = place.module("between")?;
        let counts = counts
            .ok_or_else(|| Error::format("a convolution over tokens needs to know the padding"))?;
        let tensor = format!("{module}.weight");
        let &[_, _, width] = self.model.using(&tensor)?.as_slice() else {
            return Err(Error::format("the kernel over tokens has no width").for_tensor(&tensor));
        };
        let convolution = Convolution {
            strides: vec![1],
            padding: vec![width.saturating_sub(1) / 2],
            groups: place.size("between_groups")?,
        };
        let activation = Activation::of(place, "between_activation")?;
        let norm = (Norm::of(place)?, place.module("between_norm")?);
        self.scope("between", |w| {
            let counts = w.reshape("counts_by_token", counts, &[0, -1, 1]);
            let counts = w.cast("counts", counts, ElementType::F32);
            let channels = w.transpose("by_channel", x, [0, 2, 1]);
            let made = w.convolution("convolution", &convolution, channels, &module)?;
            let made = w.transpose("by_token", made, [0, 2, 1]);
            let made = w.make("Mul", "without_padding", [made, counts]);
            let made = w.activate("activation", activation, made);
            let sum = w.make("Add", "sum", [layer, made]);
            let normal = w.norm("norm", norm.0, sum, &norm.1)?;
            Ok(w.make("Mul", "output", [normal, counts]))
        })
    }
}
