//! Activations: functions of one element with settings.

use apr_core::{Error, Result};
use apr_graph::{AttributeValue, ElementType};

use super::binary::{Largest, Product, Smallest, Sum, join};
use super::elementwise::{change, zip};
use super::real::Real;
use super::unary::{real, rows};
use super::vector::{gelu_all, swish_all};
use crate::call::Call;
use crate::operator::{Operator, computes};
use crate::tensor::Data;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("Relu", relu),
    computes("LeakyRelu", |call| {
        let alpha = call.float("alpha", 0.01);
        both(call, move |x| if x < 0.0 { f64::from(alpha) * x } else { x })
    }),
    computes("ThresholdedRelu", |call| {
        let alpha = f64::from(call.float("alpha", 1.0));
        both(call, move |x| if x > alpha { x } else { 0.0 })
    }),
    computes("Elu", |call| {
        let alpha = f64::from(call.float("alpha", 1.0));
        both(call, move |x| if x < 0.0 { alpha * Real::exp_m1(x) } else { x })
    }),
    computes("Celu", |call| {
        let alpha = f64::from(call.float("alpha", 1.0));
        both(call, move |x| x.max(0.0) + (alpha * Real::exp_m1(x / alpha)).min(0.0))
    }),
    computes("Selu", |call| {
        let alpha = f64::from(call.float("alpha", 1.673_263_2));
        let gamma = f64::from(call.float("gamma", 1.050_701));
        both(call, move |x| gamma * if x > 0.0 { x } else { alpha * Real::exp_m1(x) })
    }),
    computes("HardSigmoid", |call| {
        let (alpha, beta) =
            (f64::from(call.float("alpha", 0.2)), f64::from(call.float("beta", 0.5)));
        both(call, move |x| (alpha * x + beta).clamp(0.0, 1.0))
    }),
    computes("HardSwish", |call| both(call, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0))),
    computes("Mish", |call| both(call, |x| x * Real::tanh(x.softplus()))),
    computes("Shrink", shrink),
    computes("Gelu", |call| {
        let tanh = call.text("approximate", "none") == "tanh";
        gelu(call, tanh)
    }),
    computes("com.microsoft::Gelu", |call| gelu(call, false)),
    computes("com.microsoft::BiasGelu", |call| biased(call, false)),
    computes("com.microsoft::FastGelu", |call| biased(call, true)),
    computes("com.microsoft::QuickGelu", |call| {
        let alpha = call.float("alpha", 1.702);
        rows(
            call,
            move |values| swish_all(values, alpha),
            move |x| x * (f64::from(alpha) * x).sigmoid(),
        )
    }),
    computes("Swish", |call| {
        let alpha = call.float("alpha", 1.0);
        rows(
            call,
            move |values| swish_all(values, alpha),
            move |x| x * (f64::from(alpha) * x).sigmoid(),
        )
    }),
    computes("PRelu", prelu),
    computes("Clip", clip),
    computes("SwiGLU", swiglu),
];

/// A function that is computed in double precision and rounded once.
fn both(call: &mut Call<'_>, function: impl Fn(f64) -> f64 + Sync) -> Result<Vec<Value>> {
    real(call, |x| function(f64::from(x)) as f32, &function)
}

fn relu(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    // NaN stays NaN, of which `max` would make 0.
    let result = match tensor.data() {
        Data::F32(_) => change::<f32>(call, tensor, |x| if x < 0.0 { 0.0 } else { x }),
        Data::F64(_) => change::<f64>(call, tensor, |x| if x < 0.0 { 0.0 } else { x }),
        Data::I8(_) => change::<i8>(call, tensor, |x| x.max(0)),
        Data::I16(_) => change::<i16>(call, tensor, |x| x.max(0)),
        Data::I32(_) => change::<i32>(call, tensor, |x| x.max(0)),
        Data::I64(_) => change::<i64>(call, tensor, |x| x.max(0)),
        _ => Err(Error::format(format!("signed numbers are expected, not {}", tensor.element()))),
    }?;
    Ok(vec![result.into()])
}

fn gelu(call: &mut Call<'_>, tanh: bool) -> Result<Vec<Value>> {
    /// The square root of 2 / pi.
    const SCALE: f64 = 0.797_884_560_802_865_4;
    if tanh {
        return both(call, |x| 0.5 * x * (1.0 + Real::tanh(SCALE * (x + 0.044_715 * x * x * x))));
    }
    rows(call, gelu_all, |x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)))
}

/// Computes GELU, after adding a bias if there is one.
fn biased(call: &mut Call<'_>, tanh: bool) -> Result<Vec<Value>> {
    if let Some(bias) = call.optional(1)? {
        call.inputs[0] = Some(join(call, call.tensor(0)?, bias, Sum)?.into());
    }
    gelu(call, tanh)
}

fn shrink(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (bias, lambda) = (f64::from(call.float("bias", 0.0)), f64::from(call.float("lambd", 0.5)));
    let tensor = call.tensor(0)?;
    let shrunk = |x: f64| {
        if x < -lambda {
            x + bias
        } else if x > lambda {
            x - bias
        } else {
            0.0
        }
    };
    let values = tensor.doubles()?.into_iter().map(shrunk).collect();
    Ok(vec![crate::cast::from_doubles(values, tensor.shape().to_vec(), tensor.element())?.into()])
}

fn prelu(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, slope) = (call.tensor(0)?, call.tensor(1)?);
    macro_rules! by {
        ($($variant:ident: $zero:expr, $times:expr;)*) => {
            match (x.data(), slope.data()) {
                $((Data::$variant(a), Data::$variant(b)) => {
                    let of = |x, slope| if x < $zero { $times(x, slope) } else { x };
                    let (shape, values) = zip(call, (x.shape(), a), (slope.shape(), b), of)?;
                    Tensor::new(shape, values)?
                })*
                _ => return Err(Error::format("both inputs must be numbers of one type")),
            }
        };
    }
    let result = by! {
        F32: 0.0, |x: f32, slope: f32| x * slope;
        F64: 0.0, |x: f64, slope: f64| x * slope;
        I32: 0, i32::wrapping_mul;
        I64: 0, i64::wrapping_mul;
    };

    Ok(vec![result.into()])
}

/// Bounds are attributes before version 11, inputs later.
fn clip(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let by_inputs = call.opset >= 11;
    let mut result = call.tensor(0)?.clone();
    let bounds = if by_inputs {
        [call.optional(1)?.cloned(), call.optional(2)?.cloned()]
    } else {
        let bound = |name: &str| match call.attribute(name) {
            Some(AttributeValue::Float(value)) => {
                crate::cast::from_doubles(vec![f64::from(*value)], Vec::new(), result.element())
                    .map(Some)
            }
            _ => Ok(None),
        };
        [bound("min")?, bound("max")?]
    };

    let [low, high] = bounds;
    let shape = result.shape().to_vec();
    for bound in [&low, &high].into_iter().flatten() {
        if bound.len() != 1 {
            return Err(Error::format("a bound is one number"));
        }
    }

    if let Some(low) = low {
        result = join(call, &result, &low.reshaped(Vec::new())?, Largest)?;
    }

    // The upper bound comes last, so that it wins where the two are crossed (ONNX's `Clip`).
    if let Some(high) = high {
        result = join(call, &result, &high.reshaped(Vec::new())?, Smallest)?;
    }

    Ok(vec![result.reshaped(shape)?.into()])
}

fn swiglu(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let alpha = call.float("alpha", 1.0);
    let gate = match call.take(0)? {
        gate if gate.element() == ElementType::F64 => {
            change::<f64>(call, gate, |x| x * (f64::from(alpha) * x).sigmoid())?
        }
        gate => change::<f32>(call, gate, |x| x * (alpha * x).sigmoid())?,
    };

    let other = call.tensor(1)?;
    if gate.shape() != other.shape() {
        return Err(Error::format(format!(
            "{:?} and {:?} are not the same",
            gate.shape(),
            other.shape()
        )));
    }

    Ok(vec![join(call, &gate, other, Product)?.into()])
}
