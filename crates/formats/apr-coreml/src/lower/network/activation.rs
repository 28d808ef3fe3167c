//! Activations.

use apr_graph::ValueId;

use super::Lowering;
use super::layer::{Blob, Layer};

/// Activations without parameters, with their ONNX operators.
const PLAIN: [(&str, &str); 5] = [
    ("ReLU", "Relu"),
    ("sigmoid", "Sigmoid"),
    ("softplus", "Softplus"),
    ("softsign", "Softsign"),
    ("tanh", "Tanh"),
];

impl Lowering<'_> {
    /// Lowers the layer of activations; `None` for another, and for one that can't be.
    pub(super) fn activation(&mut self, layer: &Layer<'_>) -> Option<Blob> {
        (layer.op() == "activation").then_some(())?;
        let x = layer.only()?;
        if let Some((_, op)) = PLAIN.iter().find(|(kind, _)| layer.has(kind)) {
            return Some(self.op(layer, op, &[x.id], x));
        }
        let alpha = |kind: &str| layer.float(&format!("{kind}.alpha"));
        let beta = |kind: &str| layer.float(&format!("{kind}.beta"));
        let kinds = [
            "linear",
            "leakyReLU",
            "thresholdedReLU",
            "PReLU",
            "scaledTanh",
            "sigmoidHard",
            "ELU",
            "parametricSoftplus",
        ];
        let kind = *kinds.iter().find(|kind| layer.has(kind))?;
        let (alpha, beta) = (alpha(kind), beta(kind));
        let main = &mut self.out.main;
        let made = match kind {
            "linear" => {
                let (alpha, beta) = (main.float(alpha), main.float(beta));
                let scaled = main.op("Mul", [x.id, alpha]).output(&layer.step("scaled"));
                main.op("Add", [scaled, beta]).output(&layer.name)
            }
            "leakyReLU" => {
                main.op("LeakyRelu", [x.id]).attribute("alpha", alpha).output(&layer.name)
            }
            "ELU" => main.op("Elu", [x.id]).attribute("alpha", alpha).output(&layer.name),
            "sigmoidHard" => {
                let node = main.op("HardSigmoid", [x.id]).attribute("alpha", alpha);
                node.attribute("beta", beta).output(&layer.name)
            }
            "thresholdedReLU" => {
                // ONNX's operator makes 0 of what is equal.
                let (alpha, zero) = (main.float(alpha), main.float(0.0));
                let below = main.op("Less", [x.id, alpha]).output(&layer.step("below"));
                main.op("Where", [below, zero, x.id]).output(&layer.name)
            }
            "scaledTanh" => {
                let (alpha, beta) = (main.float(alpha), main.float(beta));
                let scaled = main.op("Mul", [x.id, beta]).output(&layer.step("scaled"));
                let tanh = main.op("Tanh", [scaled]).output(&layer.step("tanh"));
                main.op("Mul", [tanh, alpha]).output(&layer.name)
            }
            "PReLU" => {
                let slope = self.channels(layer, "PReLU/alpha")?;
                self.out.main.op("PRelu", [x.id, slope]).output(&layer.name)
            }
            _ => {
                let alpha = self.channels(layer, "parametricSoftplus/alpha")?;
                let beta = self.channels(layer, "parametricSoftplus/beta")?;
                let main = &mut self.out.main;
                let scaled = main.op("Mul", [x.id, beta]).output(&layer.step("scaled"));
                let soft = main.op("Softplus", [scaled]).output(&layer.step("softplus"));
                main.op("Mul", [soft, alpha]).output(&layer.name)
            }
        };
        Some(x.with(made))
    }

    /// A weight for each channel, which is the third dimension from the end.
    pub(super) fn channels(&mut self, layer: &Layer<'_>, field: &str) -> Option<ValueId> {
        let count = self.sizes(layer, field)?.iter().product();
        self.weight(layer, field, &[count, 1, 1])
    }
}
