//! Activations, by the names that configurations have for them (`ACT2FN` in transformers).

use apr_core::Result;
use apr_graph::ValueId;

use crate::model::BlockPosition;
use crate::writer::Writer;

/// A function of each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    /// `x sigmoid(x)` (Elfwing et al. 2017, <https://arxiv.org/abs/1702.03118>).
    Silu,
    /// `x/2 (1 + erf(x / sqrt 2))` (Hendrycks and Gimpel 2016, <https://arxiv.org/abs/1606.08415>).
    Gelu,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, the same paper's approximation.
    GeluTanh,
    /// `x sigmoid(1.702 x)`, its other approximation.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (So et al. 2021, <https://arxiv.org/abs/2109.08668>).
    SquaredRelu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl Activation {
    /// The activation that an option names.
    pub(crate) fn of(place: BlockPosition<'_>, option: &str) -> Result<Self> {
        let name = place.text(option)?;
        Self::named(&name).ok_or_else(|| place.unknown(option, &name))
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "silu" | "swish" => Self::Silu,
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_accurate" => Self::GeluTanh,
            "quick_gelu" => Self::QuickGelu,
            "relu" => Self::Relu,
            "relu2" => Self::SquaredRelu,
            "tanh" => Self::Tanh,
            "sigmoid" => Self::Sigmoid,
            _ => return None,
        })
    }
}

impl Writer<'_> {
    /// Applies an activation under a name.
    pub(crate) fn activate(&mut self, name: &str, activation: Activation, x: ValueId) -> ValueId {
        match activation {
            Activation::Relu => self.make("Relu", name, [x]),
            Activation::Tanh => self.make("Tanh", name, [x]),
            Activation::Sigmoid => self.make("Sigmoid", name, [x]),
            Activation::Silu => self.scope(name, |w| w.gated_by_sigmoid(x, x)),
            Activation::QuickGelu => self.scope(name, |w| {
                let steep = w.scaled("steep", x, 1.702);
                w.gated_by_sigmoid(x, steep)
            }),
            Activation::SquaredRelu => self.scope(name, |w| {
                let positive = w.make("Relu", "positive", [x]);
                w.make("Mul", "square", [positive, positive])
            }),
            Activation::Gelu => self.scope(name, |w| w.gelu(x)),
            Activation::GeluTanh => self.scope(name, |w| w.gelu_tanh(x)),
        }
    }

    fn gated_by_sigmoid(&mut self, x: ValueId, gate: ValueId) -> ValueId {
        let gate = self.make("Sigmoid", "gate", [gate]);
        self.make("Mul", "product", [x, gate])
    }

    fn gelu(&mut self, x: ValueId) -> ValueId {
        let root = self.float(std::f64::consts::SQRT_2);
        let narrow = self.make("Div", "narrow", [x, root]);
        let erf = self.make("Erf", "erf", [narrow]);
        self.half_of(x, erf)
    }

    fn gelu_tanh(&mut self, x: ValueId) -> ValueId {
        let square = self.make("Mul", "square", [x, x]);
        let cube = self.make("Mul", "cube", [square, x]);
        let cubic = self.scaled("cubic", cube, 0.044_715);
        let sum = self.make("Add", "sum", [x, cubic]);
        let inner = self.scaled("inner", sum, (2.0 / std::f64::consts::PI).sqrt());
        let tanh = self.make("Tanh", "tanh", [inner]);
        self.half_of(x, tanh)
    }

    /// `x/2 (1 + y)`.
    fn half_of(&mut self, x: ValueId, y: ValueId) -> ValueId {
        let one = self.float(1.0);
        let share = self.make("Add", "share", [y, one]);
        let product = self.make("Mul", "product", [x, share]);
        self.scaled("half", product, 0.5)
    }
}
