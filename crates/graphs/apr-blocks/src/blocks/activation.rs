//! Activations, by the names that configurations have for them (`ACT2FN` in transformers).

use apr_core::Result;
use apr_graph::{BodyBuilder, ValueId};

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

    /// The activation behind the convolution of a block with a state.
    ///
    /// Option `mixer_activation`, or `activation`.
    pub(crate) fn of_mixer(place: BlockPosition<'_>) -> Result<Self> {
        let option = match place.text_or_none("mixer_activation")? {
            Some(_) => "mixer_activation",
            None => "activation",
        };
        Self::of(place, option)
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
        write(self.body(), name, activation, x)
    }
}

/// Applies the activation with this name in transformers configurations, or returns `None` if it is
/// not known.
pub fn activate(
    body: &mut BodyBuilder,
    name: &str,
    activation: &str,
    x: ValueId,
) -> Option<ValueId> {
    Some(write(body, name, Activation::named(activation)?, x))
}

fn write(body: &mut BodyBuilder, name: &str, activation: Activation, x: ValueId) -> ValueId {
    match activation {
        Activation::Relu => make(body, "Relu", name, [x]),
        Activation::Tanh => make(body, "Tanh", name, [x]),
        Activation::Sigmoid => make(body, "Sigmoid", name, [x]),
        Activation::Silu => body.scope(name, |body| gated_by_sigmoid(body, x, x)),
        Activation::QuickGelu => body.scope(name, |body| {
            let steep = scaled(body, "steep", x, 1.702);
            gated_by_sigmoid(body, x, steep)
        }),
        Activation::SquaredRelu => body.scope(name, |body| {
            let positive = make(body, "Relu", "positive", [x]);
            make(body, "Mul", "square", [positive, positive])
        }),
        Activation::Gelu => body.scope(name, |body| gelu(body, x)),
        Activation::GeluTanh => body.scope(name, |body| gelu_tanh(body, x)),
    }
}

fn make<const N: usize>(
    body: &mut BodyBuilder,
    op: &str,
    name: &str,
    inputs: [ValueId; N],
) -> ValueId {
    body.op(op, inputs).output(name)
}

/// The product with a number.
#[expect(clippy::cast_possible_truncation, reason = "graphs compute in single precision")]
fn scaled(body: &mut BodyBuilder, name: &str, x: ValueId, factor: f64) -> ValueId {
    let factor = body.float(factor as f32);
    make(body, "Mul", name, [x, factor])
}

fn gated_by_sigmoid(body: &mut BodyBuilder, x: ValueId, gate: ValueId) -> ValueId {
    let gate = make(body, "Sigmoid", "gate", [gate]);
    make(body, "Mul", "product", [x, gate])
}

fn gelu(body: &mut BodyBuilder, x: ValueId) -> ValueId {
    let root = body.float(std::f32::consts::SQRT_2);
    let narrow = make(body, "Div", "narrow", [x, root]);
    let erf = make(body, "Erf", "erf", [narrow]);
    half_of(body, x, erf)
}

fn gelu_tanh(body: &mut BodyBuilder, x: ValueId) -> ValueId {
    let square = make(body, "Mul", "square", [x, x]);
    let cube = make(body, "Mul", "cube", [square, x]);
    let cubic = scaled(body, "cubic", cube, 0.044_715);
    let sum = make(body, "Add", "sum", [x, cubic]);
    let inner = scaled(body, "inner", sum, (2.0 / std::f64::consts::PI).sqrt());
    let tanh = make(body, "Tanh", "tanh", [inner]);
    half_of(body, x, tanh)
}

/// `x/2 (1 + y)`.
fn half_of(body: &mut BodyBuilder, x: ValueId, y: ValueId) -> ValueId {
    let one = body.float(1.0);
    let share = make(body, "Add", "share", [y, one]);
    let product = make(body, "Mul", "product", [x, share]);
    scaled(body, "half", product, 0.5)
}
