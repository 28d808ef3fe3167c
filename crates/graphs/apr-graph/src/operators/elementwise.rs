//! Operators that treat each element by itself: outputs have the shape of the input, or the inputs'
//! shapes together.

use super::call::{Call, Rule, broadcast, show};
use crate::gradient::{Rule as Gradient, Step};
use crate::{Dim, ValueId};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("Abs", like_first),
    ("Acos", like_first),
    ("Acosh", like_first),
    ("Add", together),
    ("And", together),
    ("Asin", like_first),
    ("Asinh", like_first),
    ("Atan", like_first),
    ("Atanh", like_first),
    ("Bernoulli", cast),
    ("BitCast", bit_cast),
    ("BitShift", together),
    ("BitwiseAnd", together),
    ("BitwiseNot", like_first),
    ("BitwiseOr", together),
    ("BitwiseXor", together),
    ("Cast", cast),
    ("CastLike", like_first),
    ("Ceil", like_first),
    ("Celu", like_first),
    ("Clip", like_first),
    ("Cos", like_first),
    ("Cosh", like_first),
    ("CumProd", like_first),
    ("CumSum", like_first),
    ("Div", together),
    ("Dropout", dropout),
    ("Elu", like_first),
    ("Equal", together),
    ("Erf", like_first),
    ("Exp", like_first),
    ("Floor", like_first),
    ("Gelu", like_first),
    ("Greater", together),
    ("GreaterOrEqual", together),
    ("HardSigmoid", like_first),
    ("HardSwish", like_first),
    ("Hardmax", like_first),
    ("IsInf", like_first),
    ("IsNaN", like_first),
    ("LRN", like_first),
    ("LeakyRelu", like_first),
    ("Less", together),
    ("LessOrEqual", together),
    ("Log", like_first),
    ("LogSoftmax", softmax),
    ("LpNormalization", like_first),
    ("Max", together),
    ("Mean", together),
    ("Min", together),
    ("Mish", like_first),
    ("Mod", together),
    ("Mul", together),
    ("Neg", like_first),
    ("Not", like_first),
    ("Or", together),
    ("PRelu", like_first),
    ("Pow", together),
    ("RandomNormalLike", cast),
    ("RandomUniformLike", cast),
    ("Reciprocal", like_first),
    ("RegexFullMatch", like_first),
    ("Relu", like_first),
    ("ReverseSequence", like_first),
    ("Round", like_first),
    ("Selu", like_first),
    ("Shrink", like_first),
    ("Sigmoid", like_first),
    ("Sign", like_first),
    ("Sin", like_first),
    ("Sinh", like_first),
    ("Softmax", softmax),
    ("Softplus", like_first),
    ("Softsign", like_first),
    ("Sqrt", like_first),
    ("StringConcat", together),
    ("Sub", together),
    ("Sum", together),
    ("SwiGLU", together),
    ("Swish", like_first),
    ("Tan", like_first),
    ("Tanh", like_first),
    ("TensorScatter", like_first),
    ("ThresholdedRelu", like_first),
    ("Trilu", like_first),
    ("Where", together),
    ("Xor", together),
];

/// Gradient rules of the operators.
pub(super) const GRADIENTS: &[(&str, Gradient)] = &[
    ("Abs", |step| by_input(step, |step, x| Ok(step.op("Sign", &[x])))),
    ("Add", |step| operands(step, |_, _, gradient| Ok(gradient))),
    ("Cast", cast_gradient),
    ("Clip", clip_gradient),
    ("Cos", |step| {
        by_input(step, |step, x| {
            let sine = step.op("Sin", &[x]);
            Ok(step.op("Neg", &[sine]))
        })
    }),
    ("Div", quotient),
    ("Dropout", same),
    ("Erf", error_function),
    ("Exp", |step| by_output(step, |_, y| Ok(y))),
    ("Gelu", gelu),
    ("LeakyRelu", leaky_relu),
    ("Log", |step| by_input(step, |step, x| Ok(step.op("Reciprocal", &[x])))),
    ("LogSoftmax", log_softmax),
    ("Max", chosen),
    ("Min", chosen),
    ("Mul", product),
    ("Neg", |step| {
        let gradient = step.gradient()?;
        let negative = step.op("Neg", &[gradient]);
        step.give(0, negative);
        Ok(())
    }),
    ("Pow", power),
    ("Reciprocal", |step| {
        by_output(step, |step, y| {
            let square = step.times(y, y);
            Ok(step.op("Neg", &[square]))
        })
    }),
    ("Relu", |step| leaky(step, 0.0)),
    ("Sigmoid", |step| {
        by_output(step, |step, y| {
            let one = step.number(1.0);
            let rest = step.op("Sub", &[one, y]);
            Ok(step.times(y, rest))
        })
    }),
    ("Sin", |step| by_input(step, |step, x| Ok(step.op("Cos", &[x])))),
    ("Softmax", softmax_gradient),
    ("Softplus", |step| by_input(step, |step, x| Ok(step.op("Sigmoid", &[x])))),
    ("Sqrt", |step| {
        by_output(step, |step, y| {
            let half = step.number(0.5);
            Ok(step.op("Div", &[half, y]))
        })
    }),
    ("Sub", |step| {
        operands(step, |step, position, gradient| {
            Ok(if position == 0 { gradient } else { step.op("Neg", &[gradient]) })
        })
    }),
    ("Sum", |step| operands(step, |_, _, gradient| Ok(gradient))),
    ("Tanh", |step| {
        by_output(step, |step, y| {
            let (one, square) = (step.number(1.0), step.times(y, y));
            Ok(step.op("Sub", &[one, square]))
        })
    }),
    ("Where", choice),
];

/// The output has the shape of the first input.
pub(super) fn like_first(call: &mut Call<'_>) -> Result<(), String> {
    if let Some(shape) = call.shape(0) {
        call.set_shape(0, shape.to_vec());
    }
    Ok(())
}

/// The output has the shape that the inputs have together.
pub(super) fn together(call: &mut Call<'_>) -> Result<(), String> {
    if call.operator.setting("broadcast").is_some() {
        // Before version 7 the second input was widened to the first, if it was asked for.
        return like_first(call);
    }
    let mut shape: Vec<Dim> = Vec::new();
    for position in 0..call.inputs.len() {
        let Some(other) = call.shape(position) else { return Ok(()) };
        shape = broadcast(&shape, other)
            .map_err(|error| format!("shapes {} and {}: {error}", show(&shape), show(other)))?;
    }
    call.set_shape(0, shape);
    Ok(())
}

/// Sets the element type of the output to `to` or `dtype`, or to the input's type if neither is
/// set.
pub(super) fn cast(call: &mut Call<'_>) -> Result<(), String> {
    let to = if call.operator.setting("to").is_some() { "to" } else { "dtype" };
    let element = match call.text(to) {
        // Before version 6 by name.
        Some(name) => element_by_name(name),
        None => call.element_attribute(to)?.or_else(|| call.element(0)),
    };
    call.set_element(0, element);
    like_first(call)
}

fn element_by_name(name: &str) -> Option<crate::ElementType> {
    use crate::ElementType as E;

    let named = [
        ("FLOAT", E::F32),
        ("DOUBLE", E::F64),
        ("FLOAT16", E::F16),
        ("INT8", E::I8),
        ("INT16", E::I16),
        ("INT32", E::I32),
        ("INT64", E::I64),
        ("UINT8", E::U8),
        ("UINT16", E::U16),
        ("UINT32", E::U32),
        ("UINT64", E::U64),
        ("BOOL", E::Bool),
    ];
    named
        .into_iter()
        .find(|(other, _)| name.eq_ignore_ascii_case(other))
        .map(|(_, element)| element)
}

/// Infers the type of `BitCast`: the same bits as elements of another type of equal width.
fn bit_cast(call: &mut Call<'_>) -> Result<(), String> {
    let to = call.element_attribute("to")?;
    if let (Some(from), Some(to)) = (call.element(0), to)
        && from.bits() != to.bits()
    {
        return Err(format!("{from} has {} bits, and {to} has {}", from.bits(), to.bits()));
    }
    call.set_element(0, to);
    like_first(call)
}

/// Sets the shapes of a dropout. The second output is a mask of the elements that were kept.
fn dropout(call: &mut Call<'_>) -> Result<(), String> {
    if let Some(shape) = call.shape(0) {
        let shape = shape.to_vec();
        call.set_shape(1, shape.clone());
        call.set_shape(0, shape);
    }
    Ok(())
}

fn softmax(call: &mut Call<'_>) -> Result<(), String> {
    if let (Some(shape), Some(axis)) = (call.shape(0), call.int("axis"))
        && !shape.is_empty()
    {
        super::call::axis(axis, shape.len())?;
    }
    like_first(call)
}

/// The gradient of each operand that is widened to the output's shape.
fn operands(
    step: &mut Step<'_>,
    of: impl Fn(&mut Step<'_>, usize, ValueId) -> Result<ValueId, String>,
) -> Result<(), String> {
    let (gradient, output) = (step.gradient()?, step.output(0)?);
    for position in 0..step.inputs() {
        if step.wants(position) {
            let wide = of(step, position, gradient)?;
            let operand = step.input(position)?;
            let narrow = step.narrowed(wide, output, operand)?;
            step.give(position, narrow);
        }
    }
    Ok(())
}

/// The gradient times the derivative, which is a function of the input.
fn by_input(
    step: &mut Step<'_>,
    derivative: impl Fn(&mut Step<'_>, ValueId) -> Result<ValueId, String>,
) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let derivative = derivative(step, x)?;
    let gradient = step.times(gradient, derivative);
    step.give(0, gradient);
    Ok(())
}

/// The gradient times the derivative, which is a function of the output.
fn by_output(
    step: &mut Step<'_>,
    derivative: impl Fn(&mut Step<'_>, ValueId) -> Result<ValueId, String>,
) -> Result<(), String> {
    let (gradient, y) = (step.gradient()?, step.output(0)?);
    let derivative = derivative(step, y)?;
    let gradient = step.times(gradient, derivative);
    step.give(0, gradient);
    Ok(())
}

pub(super) fn same(step: &mut Step<'_>) -> Result<(), String> {
    let gradient = step.gradient()?;
    step.give(0, gradient);
    Ok(())
}

/// Back to the type that was cast.
fn cast_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let gradient = step.op("CastLike", &[gradient, x]);
    step.give(0, gradient);
    Ok(())
}

fn product(step: &mut Step<'_>) -> Result<(), String> {
    let (a, b) = (step.input(0)?, step.input(1)?);
    operands(step, |step, position, gradient| {
        Ok(step.times(gradient, if position == 0 { b } else { a }))
    })
}

fn quotient(step: &mut Step<'_>) -> Result<(), String> {
    let (b, y) = (step.input(1)?, step.output(0)?);
    operands(step, |step, position, gradient| {
        let over = step.op("Div", &[gradient, b]);
        if position == 0 {
            return Ok(over);
        }
        let scaled = step.times(over, y);
        Ok(step.op("Neg", &[scaled]))
    })
}

/// Writes the gradient of a power, `p * x^(p-1)`. An exponent that depends on a parameter is not
/// supported.
fn power(step: &mut Step<'_>) -> Result<(), String> {
    if step.wants(1) {
        return Err("its exponent depends on a parameter".to_owned());
    }
    let (x, exponent) = (step.input(0)?, step.input(1)?);
    operands(step, |step, _, gradient| {
        let one = step.number(1.0);
        let exponent = step.op("CastLike", &[exponent, x]);
        let less = step.op("Sub", &[exponent, one]);
        let power = step.op("Pow", &[x, less]);
        let slope = step.times(power, exponent);
        Ok(step.times(gradient, slope))
    })
}

/// Writes the gradients of a minimum or maximum: the chosen operand receives the gradient, equal
/// operands share it.
fn chosen(step: &mut Step<'_>) -> Result<(), String> {
    let y = step.output(0)?;
    let (one, zero) = (step.number(1.0), step.number(0.0));
    let mut shares = Vec::new();
    for position in 0..step.inputs() {
        let input = step.input(position)?;
        let is_it = step.op("Equal", &[input, y]);
        shares.push(step.op("Where", &[is_it, one, zero]));
    }
    let count = step.op("Sum", &shares);
    operands(step, |step, position, gradient| {
        let part = step.times(gradient, shares[position]);
        Ok(step.op("Div", &[part, count]))
    })
}

/// The gradient within the bounds, and at them, as torch's `clamp` has it.
fn clip_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, x, y) = (step.gradient()?, step.input(0)?, step.output(0)?);
    if step.wants(1) || step.wants(2) {
        return Err("its bounds depend on a parameter".to_owned());
    }
    let is_within = step.op("Equal", &[x, y]);
    let zero = step.number(0.0);
    let gradient = step.op("Where", &[is_within, gradient, zero]);
    step.give(0, gradient);
    Ok(())
}

fn choice(step: &mut Step<'_>) -> Result<(), String> {
    let which = step.input(0)?;
    operands(step, |step, position, gradient| {
        let zero = step.number(0.0);
        let parts = if position == 1 { [gradient, zero] } else { [zero, gradient] };
        Ok(step.op("Where", &[which, parts[0], parts[1]]))
    })
}

fn leaky_relu(step: &mut Step<'_>) -> Result<(), String> {
    let slope = step.float("alpha")?.unwrap_or(0.01);
    leaky(step, slope)
}

/// The gradient above 0, and a part of it below and at 0.
fn leaky(step: &mut Step<'_>, slope: f32) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let zero = step.number(0.0);
    let above = step.op("Greater", &[x, zero]);
    let below = if slope == 0.0 {
        zero
    } else {
        let slope = step.number(slope);
        step.times(gradient, slope)
    };
    let gradient = step.op("Where", &[above, gradient, below]);
    step.give(0, gradient);
    Ok(())
}

/// `2 / sqrt(pi) * exp(-x^2)`.
fn error_function(step: &mut Step<'_>) -> Result<(), String> {
    by_input(step, |step, x| {
        let square = step.times(x, x);
        let negative = step.op("Neg", &[square]);
        let bell = step.op("Exp", &[negative]);
        let scale = step.number(std::f32::consts::FRAC_2_SQRT_PI);
        Ok(step.times(bell, scale))
    })
}

/// Writes the gradient of GELU: `P(x) + x * p(x)`, with the normal distribution's `P` and density
/// `p`.
///
/// The approximation by `tanh` is differentiated as it is written.
fn gelu(step: &mut Step<'_>) -> Result<(), String> {
    use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

    let is_tanh = step.text("approximate")? == Some("tanh");
    by_input(step, |step, x| {
        let (half, one) = (step.number(0.5), step.number(1.0));
        let square = step.times(x, x);
        let (cumulative, slope) = if is_tanh {
            // u = c * (x + 0.044715 * x^3), and the derivative of (1 + tanh(u)) / 2.
            let (c, cubic) = (FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 0.044_715);
            let (scale, cubic_scale) = (step.number(c), step.number(cubic));
            let relative = step.times(square, cubic_scale);
            let relative = step.op("Add", &[relative, one]);
            let inner = step.times(x, relative);
            let inner = step.times(inner, scale);
            let tanh = step.op("Tanh", &[inner]);
            let shifted = step.op("Add", &[tanh, one]);
            let cumulative = step.times(shifted, half);
            let (linear, quadratic) = (step.number(c * 0.5), step.number(1.5 * c * cubic));
            let slope = step.times(square, quadratic);
            let slope = step.op("Add", &[slope, linear]);
            let tanh_square = step.times(tanh, tanh);
            let rest = step.op("Sub", &[one, tanh_square]);
            (cumulative, step.times(slope, rest))
        } else {
            let scale = step.number(FRAC_1_SQRT_2);
            let scaled = step.times(x, scale);
            let error = step.op("Erf", &[scaled]);
            let shifted = step.op("Add", &[error, one]);
            let cumulative = step.times(shifted, half);
            let minus_half = step.number(-0.5);
            let exponent = step.times(square, minus_half);
            let bell = step.op("Exp", &[exponent]);
            let density = step.number(0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
            (cumulative, step.times(bell, density))
        };
        let part = step.times(x, slope);
        Ok(step.op("Add", &[cumulative, part]))
    })
}

/// `y * (g - sum(g * y))`.
fn softmax_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, y) = (step.gradient()?, step.output(0)?);
    let axis = step.int("axis")?.unwrap_or(-1);
    let weighted = step.times(gradient, y);
    let sum = step.sum(weighted, &[axis], true);
    let centred = step.op("Sub", &[gradient, sum]);
    let gradient = step.times(y, centred);
    step.give(0, gradient);
    Ok(())
}

/// `g - exp(y) * sum(g)`.
fn log_softmax(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, y) = (step.gradient()?, step.output(0)?);
    let axis = step.int("axis")?.unwrap_or(-1);
    let sum = step.sum(gradient, &[axis], true);
    let probability = step.op("Exp", &[y]);
    let share = step.times(probability, sum);
    let gradient = step.op("Sub", &[gradient, share]);
    step.give(0, gradient);
    Ok(())
}
