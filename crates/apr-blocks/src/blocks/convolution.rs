//! Convolutions, and the norm of channels that goes with them.

use apr_core::Result;
use apr_graph::ValueId;

use crate::writer::{Writer, signed};

/// How a kernel moves. One entry for each dimension that it moves along.
#[derive(Debug, Clone)]
pub(crate) struct Convolution {
    pub(crate) strides: Vec<u64>,
    /// Zeros on either side.
    pub(crate) padding: Vec<u64>,
    /// Parts of the channels that are computed apart.
    pub(crate) groups: u64,
}

impl Writer<'_> {
    /// The convolution of a module; its bias where the checkpoint has one.
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

    /// The convolution with a kernel, and a bias where the checkpoint has that tensor.
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

    /// The root of the sum of squares along axes, which stay with length 1. Until opset 17 axes
    /// were an attribute.
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
