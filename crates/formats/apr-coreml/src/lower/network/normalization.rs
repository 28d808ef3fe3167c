//! Layers that normalize, and weights for each channel.

use apr_graph::ValueId;

use super::super::length::by_length;
use super::Lowering;
use super::layer::{Blob, Layer};

impl Lowering<'_> {
    /// Lowers a layer of this kind; `None` for another, and for one that can't be.
    pub(super) fn normalization(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        match layer.op() {
            "batchnorm" => self.batchnorm(layer),
            "layerNormalization" => self.layer_norm(layer),
            "l2normalize" => {
                let x = layer.only()?;
                let epsilon = layer.float_or("epsilon", 1e-6);
                Some(x.with(by_length(&mut self.out.main, x.id, epsilon, &layer.name)))
            }
            "lrn" => {
                let x = layer.only()?;
                let size = layer.int("localSize");
                // A window of even size has no middle.
                (size % 2 == 1 && self.out.rank(x.id)? == 4).then_some(())?;
                let node = self.out.main.op("LRN", [x.id]).attribute("size", size);
                let node = node.attribute("alpha", layer.float("alpha"));
                let node = node.attribute("beta", layer.float("beta"));
                Some(x.with(node.attribute("bias", layer.float_or("k", 1.0)).output(&layer.name)))
            }
            "scale" => {
                let x = layer.only()?;
                let scale = self.spread(layer, "scale", "shapeScale")?;
                if !layer.is_set("hasBias") {
                    return Some(self.op(layer, "Mul", &[x.id, scale], x));
                }
                let bias = self.spread(layer, "bias", "shapeBias")?;
                let main = &mut self.out.main;
                let scaled = main.op("Mul", [x.id, scale]).output(&layer.step("scaled"));
                Some(self.op(layer, "Add", &[scaled, bias], x))
            }
            "bias" => {
                let x = layer.only()?;
                let bias = self.spread(layer, "bias", "shape")?;
                Some(self.op(layer, "Add", &[x.id, bias], x))
            }
            "mvn" => self.mvn(layer),
            "softmax" => {
                let x = layer.only()?;
                (self.out.rank(x.id)? >= 3).then_some(())?;
                let node = self.out.main.op("Softmax", [x.id]).attribute("axis", -3);
                Some(x.with(node.output(&layer.name)))
            }
            "softmaxND" => {
                let x = Blob::exact(self.exact(layer.only()?, &layer.step("x")));
                let node = self.out.main.op("Softmax", [x.id]);
                Some(x.with(node.attribute("axis", layer.int("axis")).output(&layer.name)))
            }
            _ => None,
        }
    }

    /// A weight of one number, of one for each channel, of one for each place, or of one for each
    /// element.
    fn spread(&mut self, layer: &Layer<'_>, field: &str, shape: &str) -> Option<ValueId> {
        let shape: Option<Vec<u64>> =
            layer.ints(shape).iter().map(|size| u64::try_from(*size).ok()).collect();
        let sizes = match shape?.as_slice() {
            [channels] => vec![*channels, 1, 1],
            [channels, height, width] => vec![*channels, *height, *width],
            _ => return None,
        };
        self.weight(layer, field, &sizes)
    }

    fn batchnorm(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?;
        let epsilon = layer.float_or("epsilon", 1e-5);
        (self.out.rank(x.id)? == 4).then_some(())?;
        let (gamma, beta) = (self.whole(layer, "gamma")?, self.whole(layer, "beta")?);
        if layer.is_set("computeMeanVar") {
            layer.is_set("instanceNormalization").then_some(())?;
            let node = self.out.main.op("InstanceNormalization", [x.id, gamma, beta]);
            return Some(x.with(node.attribute("epsilon", epsilon).output(&layer.name)));
        }
        let (mean, variance) = (self.whole(layer, "mean")?, self.whole(layer, "variance")?);
        let node = self.out.main.op("BatchNormalization", [x.id, gamma, beta, mean, variance]);
        Some(x.with(node.attribute("epsilon", epsilon).output(&layer.name)))
    }

    fn layer_norm(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = Blob::exact(self.exact(layer.only()?, &layer.step("x")));
        let (gamma, beta) = (self.whole(layer, "gamma")?, self.whole(layer, "beta")?);
        let count = i64::try_from(layer.ints("normalizedShape").len()).ok()?;
        (count > 0).then_some(())?;
        let node = self.out.main.op("LayerNormalization", [x.id, gamma, beta]);
        let node = node.attribute("axis", -count);
        Some(x.with(node.attribute("epsilon", layer.float_or("eps", 1e-5)).output(&layer.name)))
    }

    /// Subtracts the mean, and divides by the deviation if the layer requires it.
    fn mvn(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        let x = layer.only()?;
        (self.out.rank(x.id)? >= 3).then_some(())?;
        let axes: &[i64] = if layer.is_set("acrossChannels") { &[-3, -2, -1] } else { &[-2, -1] };
        let axes = self.out.main.ints(axes);
        let mean = self.out.main.op("ReduceMean", [x.id, axes]).output(&layer.step("mean"));
        if !layer.is_set("normalizeVariance") {
            return Some(self.op(layer, "Sub", &[x.id, mean], x));
        }
        // coremltools writes layer normalization so, whose small number is under the root.
        let epsilon = self.out.main.float(layer.float_or("epsilon", 1e-6));
        let main = &mut self.out.main;
        let rest = main.op("Sub", [x.id, mean]).output(&layer.step("rest"));
        let square = main.op("Mul", [rest, rest]).output(&layer.step("square"));
        let variance = main.op("ReduceMean", [square, axes]).output(&layer.step("variance"));
        let above = main.op("Add", [variance, epsilon]).output(&layer.step("above"));
        let deviation = main.op("Sqrt", [above]).output(&layer.step("deviation"));
        Some(self.op(layer, "Div", &[rest, deviation], x))
    }
}
