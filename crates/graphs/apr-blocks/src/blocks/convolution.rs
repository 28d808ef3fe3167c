//! Convolutions, and the norm of channels that goes with them.

use apr_core::{Error, Result};
use apr_graph::ValueId;

use super::activation::Activation;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Parameters of a convolution, one entry for each dimension that the kernel moves along.
#[derive(Debug, Clone)]
pub(crate) struct Convolution {
    pub(crate) strides: Vec<u64>,
    /// Zeros on either side.
    pub(crate) padding: Vec<u64>,
    /// Parts of the channels that are computed apart.
    pub(crate) groups: u64,
}

/// A convolution of each channel over its own input and those before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Causal<'m> {
    /// Module of the kernel, `[channels, 1, kernel]`.
    pub(crate) module: &'m str,
    pub(crate) channels: u64,
    /// Inputs of a channel that it sees.
    pub(crate) kernel: u64,
    pub(crate) activation: Option<Activation>,
}

/// Inputs of a channel that the convolution of a module sees.
///
/// # Errors
/// E001 for a kernel that sees one alone, and for a tensor that is none.
pub(crate) fn kernel_of(place: BlockPosition<'_>, module: &str) -> Result<u64> {
    let tensor = format!("{module}.weight");
    let dims = place.model.using(&tensor)?;
    let kernel = dims.last().copied().filter(|kernel| dims.len() == 3 && *kernel > 1);
    kernel.ok_or_else(|| {
        Error::format("the kernel of a causal convolution sees two inputs at least")
            .for_tensor(tensor)
    })
}

impl Writer<'_> {
    /// A causal convolution, and its activation. `x` is `[batch, sequence, channels]`; `past` are
    /// the inputs before, `[batch, channels, kernel - 1]`. Returns the last inputs, too.
    pub(crate) fn causal_convolution(
        &mut self,
        causal: Causal<'_>,
        x: ValueId,
        past: Option<ValueId>,
    ) -> Result<(ValueId, ValueId)> {
        let Causal { module, channels, kernel, activation } = causal;
        let before = signed(kernel - 1);
        self.scope("convolution", |w| {
            let x = w.transpose("by_channel", x, [0, 2, 1]);
            let all = match past {
                Some(past) => w.concat("with_past", &[past, x], 2),
                None => {
                    let (pads, zero) = (w.ints(&[0, 0, before, 0, 0, 0]), w.float(0.0));
                    w.make("Pad", "with_zeros", [x, pads, zero])
                }
            };
            let last = w.slice("last_inputs", all, 2, -before, i64::MAX);
            let kernel = w.tensor(&format!("{module}.weight"))?;
            let bias = format!("{module}.bias");
            let bias = w.model.has(&bias).then(|| w.tensor(&bias)).transpose()?;
            let node = w.op("Conv", [all, kernel].into_iter().chain(bias));
            let made = node.attribute("group", signed(channels)).output("convolution");
            let made = w.transpose("by_token", made, [0, 2, 1]);
            let made = activation.map_or(made, |it| w.activate("activation", it, made));
            Ok((made, last))
        })
    }

    /// Returns the convolution of a module, with a bias if the checkpoint has one.
    pub(crate) fn convolution(
        &mut self,
        name: &str,
        convolution: &Convolution,
        x: ValueId,
        module: &str,
    ) -> Result<ValueId> {
        let kernel = self.tensor(&format!("{module}.weight"))?;
        self.convolution_with(name, convolution, x, kernel, &format!("{module}.bias"))
    }

    /// Returns the convolution with a kernel, and with a bias if the checkpoint has that tensor.
    pub(crate) fn convolution_with(
        &mut self,
        name: &str,
        convolution: &Convolution,
        x: ValueId,
        kernel: ValueId,
        bias: &str,
    ) -> Result<ValueId> {
        let bias = self.model.has(bias).then(|| self.tensor(bias)).transpose()?;
        let numbers =
            |sizes: &[u64]| -> Vec<i64> { sizes.iter().map(|size| signed(*size)).collect() };
        // Beginnings of all dimensions, then their ends.
        let pads = numbers(&[convolution.padding.as_slice(), &convolution.padding].concat());
        let node = self.op("Conv", [x, kernel].into_iter().chain(bias));
        let node = node.attribute("strides", numbers(&convolution.strides)).attribute("pads", pads);
        Ok(node.attribute("group", signed(convolution.groups)).output(name))
    }

    /// A norm of each channel over time, by a module (`torch.nn.GroupNorm` with as many groups as
    /// channels).
    pub(crate) fn channel_norm(&mut self, name: &str, x: ValueId, module: &str) -> Result<ValueId> {
        let gamma = self.tensor(&format!("{module}.weight"))?;
        let beta = self.tensor(&format!("{module}.bias"))?;
        // The epsilon is PyTorch's default, since transformers states none here.
        Ok(self
            .op("InstanceNormalization", [x, gamma, beta])
            .attribute("epsilon", 1e-5_f32)
            .output(name))
    }

    /// Returns the root of the sum of squares along axes, which are kept with length 1.
    ///
    /// Until opset 17 axes were an attribute.
    pub(crate) fn euclidean<const N: usize>(
        &mut self,
        name: &str,
        x: ValueId,
        axes: [i64; N],
    ) -> ValueId {
        if self.model.opset < 18 {
            return self.op("ReduceL2", [x]).attribute("axes", axes).output(name);
        }
        let axes = self.ints(&axes);
        self.make("ReduceL2", name, [x, axes])
    }
}
