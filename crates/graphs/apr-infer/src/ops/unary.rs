//! Functions of one element.

#![allow(
    clippy::redundant_closure,
    clippy::redundant_closure_for_method_calls,
    reason = "a closure serves several types, a function one"
)]

use apr_core::{Error, Result};

use super::elementwise::{change, change_rows};
use super::real::Real;
use super::vector::{erf_all, exp_all, sigmoid_all, tanh_all};
use crate::call::Call;
use crate::operator::{Operator, computes, moves};
use crate::tensor::Data;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("Abs", abs),
    computes("Acos", |call| real(call, libm::acosf, libm::acos)),
    computes("Acosh", |call| real(call, libm::acoshf, libm::acosh)),
    computes("Asin", |call| real(call, libm::asinf, libm::asin)),
    computes("Asinh", |call| real(call, libm::asinhf, libm::asinh)),
    computes("Atan", |call| real(call, libm::atanf, libm::atan)),
    computes("Atanh", |call| real(call, libm::atanhf, libm::atanh)),
    computes("Ceil", |call| real(call, f32::ceil, f64::ceil)),
    computes("Cos", |call| real(call, libm::cosf, libm::cos)),
    computes("Cosh", |call| real(call, libm::coshf, libm::cosh)),
    computes("Erf", |call| rows(call, erf_all, libm::erf)),
    computes("Exp", |call| rows(call, exp_all, libm::exp)),
    computes("Floor", |call| real(call, f32::floor, f64::floor)),
    computes("Log", |call| real(call, libm::logf, libm::log)),
    computes("Neg", neg),
    computes("Reciprocal", |call| real(call, |x| 1.0 / x, |x| 1.0 / x)),
    computes("Round", |call| real(call, f32::round_ties_even, f64::round_ties_even)),
    computes("Sigmoid", |call| rows(call, sigmoid_all, Real::sigmoid)),
    computes("Sign", sign),
    computes("Sin", |call| real(call, libm::sinf, libm::sin)),
    computes("Sinh", |call| real(call, libm::sinhf, libm::sinh)),
    computes("Softplus", |call| real(call, Real::softplus, Real::softplus)),
    computes("Softsign", |call| real(call, |x| x / (1.0 + x.abs()), |x| x / (1.0 + x.abs()))),
    computes("Sqrt", |call| real(call, f32::sqrt, f64::sqrt)),
    computes("Tan", |call| real(call, libm::tanf, libm::tan)),
    computes("Tanh", |call| rows(call, tanh_all, Real::tanh)),
    computes("IsNaN", |call| test(call, |x| x.is_nan())),
    computes("IsInf", is_inf),
    moves("Not", not),
    moves("BitwiseNot", bitwise_not),
];

/// Applies a function to floats. It changes many single-precision floats at a time.
pub(super) fn rows(
    call: &mut Call<'_>,
    single: impl Fn(&mut [f32]) + Sync,
    double: impl Fn(f64) -> f64 + Sync,
) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    let result = match tensor.data() {
        Data::F32(_) => change_rows(call, tensor, single)?,
        Data::F64(_) => change(call, tensor, double)?,
        _ => return Err(Error::format(format!("floats are expected, not {}", tensor.element()))),
    };
    Ok(vec![result.into()])
}

/// Runs a function on floats.
pub(super) fn real(
    call: &mut Call<'_>,
    single: impl Fn(f32) -> f32 + Sync,
    double: impl Fn(f64) -> f64 + Sync,
) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    let result = match tensor.data() {
        Data::F32(_) => change(call, tensor, single)?,
        Data::F64(_) => change(call, tensor, double)?,
        _ => return Err(Error::format(format!("floats are expected, not {}", tensor.element()))),
    };
    Ok(vec![result.into()])
}

macro_rules! change_numbers {
    (
        $call:expr, $tensor:expr,
        signed $signed:expr, unsigned $unsigned:expr, float $float:expr
    ) => {{
        let (call, tensor): (&Call<'_>, Tensor) = ($call, $tensor);
        match tensor.data() {
            Data::F32(_) => change::<f32>(call, tensor, $float),
            Data::F64(_) => change::<f64>(call, tensor, $float),
            Data::I8(_) => change::<i8>(call, tensor, $signed),
            Data::I16(_) => change::<i16>(call, tensor, $signed),
            Data::I32(_) => change::<i32>(call, tensor, $signed),
            Data::I64(_) => change::<i64>(call, tensor, $signed),
            Data::U8(_) => change::<u8>(call, tensor, $unsigned),
            Data::U16(_) => change::<u16>(call, tensor, $unsigned),
            Data::U32(_) => change::<u32>(call, tensor, $unsigned),
            Data::U64(_) => change::<u64>(call, tensor, $unsigned),
            Data::Text(_) => Err(Error::format("numbers are expected, not texts")),
        }
    }};
}

fn abs(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    let result = change_numbers!(
        call,
        tensor,
        signed | x | x.wrapping_abs(),
        unsigned | x | x,
        float | x | x.abs()
    )?;
    Ok(vec![result.into()])
}

fn neg(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    let result = change_numbers!(
        call,
        tensor,
        signed | x | x.wrapping_neg(),
        unsigned | x | x.wrapping_neg(),
        float | x | -x
    )?;
    Ok(vec![result.into()])
}

fn sign(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    let result = change_numbers!(
        call,
        tensor,
        signed | x | x.signum(),
        unsigned | x | x.min(1),
        float
            | x
            | if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
    )?;
    Ok(vec![result.into()])
}

fn test(call: &Call<'_>, test: impl Fn(f64) -> bool) -> Result<Vec<Value>> {
    let tensor = call.tensor(0)?;
    let values = tensor.doubles()?.into_iter().map(|value| u8::from(test(value))).collect();
    Ok(vec![Tensor::truths(tensor.shape().to_vec(), values)?.into()])
}

fn is_inf(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (negative, positive) =
        (call.flag("detect_negative", true), call.flag("detect_positive", true));
    test(call, |x| x.is_infinite() && if x > 0.0 { positive } else { negative })
}

fn not(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    Ok(vec![change::<u8>(call, tensor, |x| u8::from(x == 0))?.into()])
}

fn bitwise_not(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.take(0)?;
    let no_bits = || Err(Error::format("integers are expected"));
    let result = match tensor.data() {
        Data::I8(_) => change::<i8>(call, tensor, |x| !x),
        Data::I16(_) => change::<i16>(call, tensor, |x| !x),
        Data::I32(_) => change::<i32>(call, tensor, |x| !x),
        Data::I64(_) => change::<i64>(call, tensor, |x| !x),
        Data::U8(_) => change::<u8>(call, tensor, |x| !x),
        Data::U16(_) if tensor.element() == apr_graph::ElementType::U16 => {
            change::<u16>(call, tensor, |x| !x)
        }
        Data::U32(_) => change::<u32>(call, tensor, |x| !x),
        Data::U64(_) => change::<u64>(call, tensor, |x| !x),
        _ => no_bits(),
    }?;
    Ok(vec![result.into()])
}
