//! Layers over maps of features, `[batch, channels, height, width]`.

use apr_core::{Error, Result};
use apr_graph::{ValueId, View};

use super::activation::Activation;
use super::convolution::Convolution;
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Maximum number of convolutions in a layer; ResNet has two or three.
const MAX_CONVOLUTIONS: u64 = 64;

impl Writer<'_> {
    /// The convolution of a module over a map with a step down and one to the side, and no zeros
    /// around.
    pub(crate) fn stepping_convolution(
        &mut self,
        name: &str,
        x: ValueId,
        module: &str,
        strides: Vec<u64>,
    ) -> Result<ValueId> {
        let convolution = Convolution { strides, padding: vec![0, 0], groups: 1 };
        self.convolution(name, &convolution, x, module)
    }

    /// Returns the convolution of a module whose kernel sees `frames` frames of a film, each of
    /// which is the map `x`. Its step is as large as the kernel.
    ///
    /// The kernel is `[filters, channels, frames, height, width]`.
    pub(crate) fn still_convolution(
        &mut self,
        name: &str,
        x: ValueId,
        module: &str,
        frames: u64,
    ) -> Result<ValueId> {
        let weight = format!("{module}.weight");
        let dims = self.model.using(&weight)?;
        let &[filters, channels, own, height, width] = dims.as_slice() else {
            let message = "a kernel over frames has five dimensions";
            return Err(Error::format(message).for_tensor(&weight));
        };
        if own != frames {
            let message = format!("the kernel sees {own} frames, the configuration says {frames}");
            return Err(Error::format(message).for_tensor(&weight));
        }
        let kernel = self.tensor(&weight)?;
        let sum = self.sum("frames_together", kernel, 2);
        let kernel = self.reshape("kernel", sum, &[filters, channels, height, width].map(signed));
        let convolution =
            Convolution { strides: vec![height, width], padding: vec![0, 0], groups: 1 };
        self.convolution_with(name, &convolution, x, kernel, &format!("{module}.bias"))
    }

    /// Returns the convolution of a module whose kernel is a matrix: each filter has the pixels of
    /// a square row by row, with the channels of a pixel next to each other. Its step is `side`.
    pub(crate) fn pixel_convolution(
        &mut self,
        name: &str,
        x: ValueId,
        module: &str,
        side: u64,
    ) -> Result<ValueId> {
        let weight = format!("{module}.weight");
        let dims = self.model.using(&weight)?;
        let area = side.saturating_mul(side);
        let (filters, channels) = match dims.as_slice() {
            &[filters, inputs] if area > 0 && inputs.is_multiple_of(area) => {
                (filters, inputs / area)
            }
            _ => {
                let message = format!("expected a matrix for patches of {side} x {side} pixels");
                return Err(Error::format(message).for_tensor(&weight));
            }
        };
        let views = vec![
            View::Reshaped(vec![filters, side, side, channels]),
            View::Transposed(vec![0, 3, 1, 2]),
        ];
        let kernel = self.viewed(&weight, views, vec![filters, channels, side, side])?;
        let convolution = Convolution { strides: vec![side, side], padding: vec![0, 0], groups: 1 };
        self.convolution_with(name, &convolution, x, kernel, &format!("{module}.bias"))
    }

    /// Returns the convolution of a module over a map, with the given stride or the kernel's size
    /// as stride.
    ///
    /// `padding` is the number of zeros on either side; `None` means half of the kernel's size,
    /// which keeps the size of the map at stride 1.
    pub(crate) fn map_convolution(
        &mut self,
        name: &str,
        x: ValueId,
        module: &str,
        stride: Option<u64>,
        padding: Option<u64>,
    ) -> Result<ValueId> {
        self.grouped_map_convolution(name, x, module, stride, padding, 1)
    }

    /// Returns the convolution of a module over a map, with separate groups of channels.
    ///
    /// The other parameters are the same as for [`map_convolution`](Self::map_convolution).
    fn grouped_map_convolution(
        &mut self,
        name: &str,
        x: ValueId,
        module: &str,
        stride: Option<u64>,
        padding: Option<u64>,
        groups: u64,
    ) -> Result<ValueId> {
        let weight = format!("{module}.weight");
        let dims = self.model.using(&weight)?;
        let &[_, _, height, width] = dims.as_slice() else {
            return Err(Error::format("a kernel over maps has four dimensions").for_tensor(&weight));
        };
        let around = |side: u64| padding.unwrap_or(side / 2);
        let convolution = Convolution {
            strides: vec![stride.unwrap_or(height), stride.unwrap_or(width)],
            padding: vec![around(height), around(width)],
            groups,
        };
        self.convolution(name, &convolution, x, module)
    }

    /// Applies a norm to each position of a map: option `norm` is `batch` for a batch norm, or else
    /// it is over the channels.
    pub(crate) fn map_norm(
        &mut self,
        place: BlockPosition<'_>,
        name: &str,
        x: ValueId,
        module: &str,
    ) -> Result<ValueId> {
        if place.text("norm")? == "batch" {
            return self.batch_norm(name, x, module, place.number("norm_eps")?);
        }
        let norm = Norm::of(place)?;
        self.scope(name, |w| {
            let last = w.transpose("channels_last", x, [0, 2, 3, 1]);
            let normal = w.norm("norm", norm, last, module)?;
            Ok(w.transpose("channels_first", normal, [0, 3, 1, 2]))
        })
    }

    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` of each channel, with the mean and the
    /// variance that training left (Ioffe and Szegedy 2015, <https://arxiv.org/abs/1502.03167>).
    #[expect(clippy::cast_possible_truncation, reason = "the operator takes single precision")]
    pub(crate) fn batch_norm(
        &mut self,
        name: &str,
        x: ValueId,
        module: &str,
        eps: f64,
    ) -> Result<ValueId> {
        let mut inputs = vec![x];
        for part in ["weight", "bias", "running_mean", "running_var"] {
            inputs.push(self.tensor(&format!("{module}.{part}"))?);
        }
        Ok(self.op("BatchNormalization", inputs).attribute("epsilon", eps as f32).output(name))
    }

    /// `activation(x' + convolutions(x))`, each convolution with its norm and all but the last with
    /// an activation (He et al. 2015, <https://arxiv.org/abs/1512.03385>). Options: `convolutions`,
    /// how many; `stride` of the one that is `strided`, and its `groups`, if it has several;
    /// `inner_activation`, `activation`; `shortcut`, whether `x'` is a convolution of `x` with the
    /// same stride, or `x` itself. Channels may be weighed before the last one (`squeeze_down`).
    pub(crate) fn residual_convolutions(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
    ) -> Result<ValueId> {
        let (count, stride) = (place.size("convolutions")?, place.size("stride")?);
        let strided = place.size("strided")?;
        let groups = place.size_or_none("groups")?.unwrap_or(1);
        let inner = Activation::of(place, "inner_activation")?;
        if count > MAX_CONVOLUTIONS {
            return Err(Error::memory(format!("a layer has {count} convolutions")));
        }

        let mut made = x;
        for number in 0..count {
            let part = |part| {
                let name = place.numbered(part, &[("conv", number)]);
                name.ok_or_else(|| Error::format("a convolution has no name"))
            };
            let (module, norm) = (part("convolution")?, part("convolution_norm")?);
            let (step, groups) = if number == strided { (stride, groups) } else { (1, 1) };
            if number + 1 == count {
                made = self.squeezed(place, made)?;
            }
            made = self.scope(&format!("convolution.{number}"), |w| -> Result<ValueId> {
                let step = Some(step);
                let made =
                    w.grouped_map_convolution("convolution", made, &module, step, None, groups)?;
                let made = w.map_norm(place, "norm", made, &norm)?;
                let is_last = number + 1 == count;
                Ok(if is_last { made } else { w.activate("activation", inner, made) })
            })?;
        }

        let kept = if place.truth("shortcut")? {
            let (module, norm) = (place.module("shortcut")?, place.module("shortcut_norm")?);
            self.scope("shortcut", |w| {
                let x = w.map_convolution("convolution", x, &module, Some(stride), None)?;
                w.map_norm(place, "norm", x, &norm)
            })?
        } else {
            x
        };
        let sum = self.make("Add", "sum", [made, kept]);
        Ok(self.activate("activation", Activation::of(place, "activation")?, sum))
    }

    /// `x sigmoid(up(relu(down(mean(x)))))`: each channel times a number that all of them make of
    /// their means over the map (Hu et al. 2017, <https://arxiv.org/abs/1709.01507>); `x` itself
    /// where the checkpoint has no `squeeze_down`.
    fn squeezed(&mut self, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
        let Some(down) = place.module_or_none("squeeze_down") else { return Ok(x) };
        let up = place.module("squeeze_up")?;
        self.scope("squeeze", |w| {
            let mean = w.map_mean("mean", x);
            let made = w.map_convolution("down", mean, &down, Some(1), Some(0))?;
            let made = w.activate("activation", Activation::Relu, made);
            let made = w.map_convolution("up", made, &up, Some(1), Some(0))?;
            let share = w.activate("share", Activation::Sigmoid, made);
            Ok(w.make("Mul", "squeezed", [x, share]))
        })
    }

    /// `x + scale * down(activation(up(norm(convolution(x)))))`: a convolution of each channel by
    /// itself, then a feed-forward network of each place (ConvNeXt: Liu et al. 2022,
    /// <https://arxiv.org/abs/2201.03545>). The scale where the checkpoint has `layer_scale`.
    pub(crate) fn depthwise_layer(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
    ) -> Result<ValueId> {
        let module = place.module("convolution")?;
        let weight = format!("{module}.weight");
        let dims = self.model.using(&weight)?;
        let &[channels, 1, height, width] = dims.as_slice() else {
            return Err(Error::format(
                "expected one kernel per channel, of shape [channels, 1, height, width]",
            )
            .for_tensor(&weight));
        };
        let convolution = Convolution {
            strides: vec![1, 1],
            padding: vec![height / 2, width / 2],
            groups: channels,
        };
        let made = self.convolution("convolution", &convolution, x, &module)?;
        let made = self.transpose("channels_last", made, [0, 2, 3, 1]);
        let made = self.norm("norm", Norm::of(place)?, made, &place.module("convolution_norm")?)?;
        let mut made = self.feed_forward(place, "mlp", made)?;
        if let Some(scale) = place.tensor_or_none("layer_scale") {
            let scale = self.tensor(&scale)?;
            made = self.make("Mul", "scaled", [made, scale]);
        }
        let made = self.transpose("channels_first", made, [0, 3, 1, 2]);
        Ok(self.make("Add", "sum", [x, made]))
    }

    /// Returns `x + gamma x n + beta`, or `x` itself if the checkpoint has no `response_norm`.
    ///
    /// `n` is the length of each channel over its map, divided by the mean length of all channels
    /// (Woo et al. 2023, <https://arxiv.org/abs/2301.00808>). `x` is `[batch, height, width,
    /// channels]`.
    pub(crate) fn response_norm(
        &mut self,
        place: BlockPosition<'_>,
        x: ValueId,
    ) -> Result<ValueId> {
        let Some(module) = place.module_or_none("response_norm") else { return Ok(x) };
        let gamma = self.tensor(&format!("{module}.weight"))?;
        let beta = self.tensor(&format!("{module}.bias"))?;
        Ok(self.scope("response_norm", |w| {
            let length = w.euclidean("length", x, [1, 2]);
            let mean = w.mean("mean_length", length);
            // The epsilon is a constant of transformers' class.
            let eps = w.float(1e-6);
            let mean = w.make("Add", "mean_above_zero", [mean, eps]);
            let share = w.make("Div", "share", [length, mean]);
            let normal = w.make("Mul", "normal", [x, share]);
            let scaled = w.make("Mul", "scaled", [normal, gamma]);
            let moved = w.make("Add", "moved", [scaled, beta]);
            w.make("Add", "sum", [moved, x])
        }))
    }

    /// The mean of each channel of a map, `[batch, channels, 1, 1]`.
    pub(crate) fn map_mean(&mut self, name: &str, x: ValueId) -> ValueId {
        self.make("GlobalAveragePool", name, [x])
    }

    /// The largest of each 3 x 3 places, every second of them.
    pub(crate) fn largest_nearby(&mut self, name: &str, x: ValueId) -> ValueId {
        let pool = self.op("MaxPool", [x]).attribute("kernel_shape", [3, 3]);
        pool.attribute("strides", [2, 2]).attribute("pads", [1, 1, 1, 1]).output(name)
    }

    /// `[batch, channels, 1, 1]` as `[batch, channels]`.
    pub(crate) fn flat(&mut self, name: &str, x: ValueId, channels: u64) -> ValueId {
        self.reshape(name, x, &[0, signed(channels)])
    }
}
