//! Linear layers.

use apr_core::Result;
use apr_graph::{ValueId, View};

use crate::model::BlockPosition;
use crate::writer::Writer;

impl Writer<'_> {
    /// Returns `x W^T + b`, with the bias if the checkpoint has one, and with the limits of what
    /// the layer reads and makes that the checkpoint has.
    ///
    /// Option `linear` is the layout of W in the checkpoint: `out_in` (the default,
    /// `torch.nn.Linear`) or `in_out` (GPT-2's `Conv1D`).
    pub(crate) fn linear(
        &mut self,
        place: BlockPosition<'_>,
        name: &str,
        x: ValueId,
        module: &str,
    ) -> Result<ValueId> {
        let is_turned = match place.text_or_none("linear")?.as_deref() {
            None | Some("out_in") => false,
            Some("in_out") => true,
            Some(other) => return Err(place.unknown("linear", other)),
        };
        let x = self.clipped(&format!("{name}_input"), x, &format!("{module}.input"))?;
        let weight = self.matrix(&format!("{module}.weight"), is_turned)?;
        let product = self.make("MatMul", name, [x, weight]);
        let made = self.biased(name, product, &format!("{module}.bias"))?;
        self.clipped(&format!("{name}_output"), made, &format!("{module}.output"))
    }

    /// Returns `x` within the limits that the checkpoint has as the numbers `{limits}_min` and
    /// `{limits}_max`, or else `x` itself.
    fn clipped(&mut self, name: &str, x: ValueId, limits: &str) -> Result<ValueId> {
        let ends = ["min", "max"].map(|end| format!("{limits}_{end}"));
        if !ends.iter().all(|end| self.model.has(end)) {
            return Ok(x);
        }
        let [low, high] = ends.map(|end| {
            let dims = self.model.using(&end)?;
            // GGUF has no tensor without dimensions.
            let views = if dims.is_empty() { Vec::new() } else { vec![View::Reshaped(Vec::new())] };
            self.viewed(&end, views, Vec::new())
        });
        Ok(self.make("Clip", name, [x, low?, high?]))
    }

    /// Returns a linear layer outside of the layers, where every family stores `[outputs, inputs]`.
    pub(crate) fn outer_linear(&mut self, name: &str, x: ValueId, module: &str) -> Result<ValueId> {
        let weight = self.matrix(&format!("{module}.weight"), false)?;
        let product = self.make("MatMul", name, [x, weight]);
        self.biased(name, product, &format!("{module}.bias"))
    }

    /// The linear layer that plays a part.
    pub(crate) fn linear_part(
        &mut self,
        place: BlockPosition<'_>,
        part: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        let module = place.module(part)?;
        self.linear(place, part, x, &module)
    }

    /// Returns the sum with a bias if the checkpoint has it, or else `x` itself.
    pub(crate) fn biased(&mut self, name: &str, x: ValueId, bias: &str) -> Result<ValueId> {
        if !self.model.has(bias) {
            return Ok(x);
        }
        let bias = self.tensor(bias)?;
        Ok(self.scope(name, |w| w.make("Add", "bias", [x, bias])))
    }

    /// Returns the product with the number of an option, or `x` itself if the option has no value
    /// or is 1.
    pub(crate) fn scaled_by(
        &mut self,
        place: BlockPosition<'_>,
        option: &str,
        x: ValueId,
    ) -> Result<ValueId> {
        let factor = place.number_or_none(option)?.filter(|factor| *factor != 1.0);
        Ok(factor.map_or(x, |factor| self.scaled(option, x, factor)))
    }

    /// A linear layer of some of a tensor's rows, `x W[start..start + len]^T`.
    pub(crate) fn linear_rows(
        &mut self,
        name: &str,
        x: ValueId,
        tensor: &str,
        start: u64,
        len: u64,
    ) -> Result<ValueId> {
        let columns = self.model.using(tensor)?.get(1).copied().unwrap_or(1);
        let views = vec![View::Slice { axis: 0, start, len }, View::Transposed(vec![1, 0])];
        let weight = self.viewed(tensor, views, vec![columns, len])?;
        Ok(self.make("MatMul", name, [x, weight]))
    }
}
