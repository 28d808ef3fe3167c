//! Quantized numbers, and products of them.

use std::sync::Arc;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::cast::element_of;
use super::conv::{Sizes, filters_without_zero, multiply_plain};
use super::matmul::{plain, stacks, without_zero};
use crate::call::Call;
use crate::cast::{Rules, cast, from_floats, from_integers, singles};
use crate::convert::is_half;
use crate::matrix::{Scaling, Steps};
use crate::operator::{Operator, moves};
use crate::shape::{around, axis, count};
use crate::value::{Dequantization, WeightLook};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    moves("QuantizeLinear", quantize),
    moves("DequantizeLinear", dequantize).decodes(),
    moves("com.microsoft::QuantizeLinear", quantize),
    moves("com.microsoft::DequantizeLinear", dequantize).decodes(),
    moves("DynamicQuantizeLinear", dynamic),
    moves("QLinearMatMul", matmul),
    moves("QLinearConv", conv),
];

/// Assignment of scales to elements.
struct Scales {
    scales: Vec<f32>,
    /// Elements before, at and after the axis.
    sizes: (usize, usize, usize),
    /// Elements along the axis that share a scale; all, for one scale.
    block: usize,
    /// Scales along the axis.
    count: usize,
}

impl Scales {
    /// Creates the scales for `x`. `at` and `block` are the attributes `axis` and `block`.
    fn of(x: &Tensor, scale: &Tensor, at: i64, block: i64) -> Result<Self> {
        let wrong = || {
            Error::format(format!("a scale of {:?} does not fit {:?}", scale.shape(), x.shape()))
        };
        let scales = singles(scale)?;
        if scales.len() == 1 {
            return Ok(Self { scales, sizes: (1, x.len(), 1), block: x.len().max(1), count: 1 });
        }

        let at = axis(at, x.rank())?;
        let sizes = around(x.shape(), at);
        let block = usize::try_from(block).map_err(|_| wrong())?;
        if block == 0 || scale.rank() <= 1 && x.rank() != scale.rank() {
            if scales.len() != sizes.1 {
                return Err(wrong());
            }
            return Ok(Self {
                count: sizes.1,
                scales,
                sizes: (sizes.0, sizes.1, sizes.2),
                block: 1,
            }
            .without_blocks());
        }

        let count = sizes.1.div_ceil(block);
        let mut shape = x.shape().to_vec();
        shape[at] = count;
        if scale.shape() != shape {
            return Err(wrong());
        }

        Ok(Self { scales, sizes, block, count })
    }

    /// One scale for each place on the axis, whatever the other dimensions.
    fn without_blocks(mut self) -> Self {
        let (before, size, after) = self.sizes;
        let each = |at: usize| self.scales[at / after % size];
        self.scales = (0..before * size * after).map(each).collect();
        self
    }

    /// Returns the position of an element's scale.
    fn at(&self, element: usize) -> usize {
        let (_, size, after) = self.sizes;
        if self.count == 1 && self.scales.len() == 1 {
            return 0;
        }
        let (outer, along, inner) =
            (element / (size * after), element / after % size, element % after);
        (outer * self.count + along / self.block) * after + inner
    }
}

/// Zero points as numbers that are found like the scales.
fn zeros(scales: &Scales, zero: Option<&Tensor>) -> Result<Vec<i64>> {
    let Some(zero) = zero else { return Ok(vec![0; scales.scales.len()]) };
    // The zero point of an 8-bit float only names the type (ONNX's `QuantizeLinear`).
    let values = if zero.element().is_float() { vec![0; zero.len()] } else { zero.integers()? };
    if values.len() == scales.scales.len() {
        return Ok(values);
    }
    let (_, size, after) = scales.sizes;
    if values.len() == size && scales.block == 1 {
        return Ok((0..scales.scales.len()).map(|at| values[at / after % size]).collect());
    }
    Err(Error::format(format!("zero points of {:?} do not fit the scale", zero.shape())))
}

/// The smallest and largest integer of a type.
fn range(element: ElementType) -> Option<(i64, i64)> {
    Some(match element {
        ElementType::U8 => (0, 255),
        ElementType::I8 => (-128, 127),
        ElementType::U16 => (0, 65535),
        ElementType::I16 => (-32768, 32767),
        ElementType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        ElementType::U4 => (0, 15),
        ElementType::I4 => (-8, 7),
        ElementType::U2 => (0, 3),
        ElementType::I2 => (-2, 1),
        _ => return None,
    })
}

fn quantize(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, scale, zero) = (call.tensor(0)?, call.tensor(1)?, call.optional(2)?);
    let default = zero.map_or(ElementType::U8, Tensor::element);
    let to = element_of(call, "output_dtype", default)?;
    let scales = Scales::of(x, scale, call.int("axis", 1), call.int("block_size", 0))?;
    let zeros = zeros(&scales, zero)?;
    let shape = x.shape().to_vec();
    call.room(&shape, ElementType::I64)?;

    // The quotient is rounded to a type of its own, where one is named or the scale is less
    // precise.
    let precision = element_of(call, "precision", ElementType::F32)?;
    let half = [precision, scale.element()].into_iter().find(|&element| is_half(element));
    let values = singles(x)?;
    let quotient = |at: usize| values[at] / scales.scales[scales.at(at)];
    let quotients: Vec<f32> = (0..values.len()).map(quotient).collect();
    let quotients = match half {
        Some(half) => singles(&Tensor::new(vec![values.len()], quotients)?.narrowed(half)?)?,
        None => quotients,
    };
    let Some((low, high)) = range(to) else {
        let rules = Rules { saturate: call.flag("saturate", true), ..Rules::SATURATE };
        // The zero point is added: it makes a negative zero positive.
        let sums = quotients.iter().map(|quotient| quotient + 0.0).collect();
        return Ok(vec![cast(&Tensor::new(shape, sums)?, to, rules)?.into()]);
    };

    let of = |(at, quotient): (usize, &f32)| {
        (f64::from(*quotient).round_ties_even() as i64)
            .saturating_add(zeros[scales.at(at)])
            .clamp(low, high)
    };
    let integers = quotients.iter().enumerate().map(of).collect();
    Ok(vec![from_integers(integers, shape, to)?.into()])
}

fn dequantize(call: &mut Call<'_>) -> Result<Vec<Value>> {
    for position in [1, 2] {
        if let Some(Value::Weight(_)) = call.optional_value(position) {
            call.inputs[position] = Some(call.decoded(position)?.into());
        }
    }

    let (scale, zero) = (call.tensor(1)?, call.optional(2)?);
    let to = element_of(call, "output_dtype", scale.element())?;
    let (axis, block) = (call.int("axis", 1), call.int("block_size", 0));
    if let Value::Weight(handle) = call.value(0)? {
        if to == ElementType::F32
            && let Some(shape) = call.weight_shape(handle)
            && let Some(scaling) = scaling(&shape, scale, zero, (axis, block))?
        {
            let with =
                Dequantization { scale: scale.clone(), zero: zero.cloned(), axis, block, scaling };
            return Ok(vec![Value::Weight(handle.with(WeightLook::Scaled(with)))]);
        }
        call.inputs[0] = Some(call.decoded(0)?.into());
    }

    let (x, scale, zero) = (call.tensor(0)?, call.tensor(1)?, call.optional(2)?);
    call.room(x.shape(), ElementType::F64)?;
    Ok(vec![dequantized(x, scale, zero, (axis, block), to)?.into()])
}

/// The scales of a matrix that is decoded by rows, or of filters, which are one row each; `None`
/// where they do not lie so.
fn scaling(
    shape: &[usize],
    scale: &Tensor,
    zero: Option<&Tensor>,
    (at, block): (i64, i64),
) -> Result<Option<Arc<Scaling>>> {
    let steps = match usize::try_from(block) {
        Ok(0) => plain_steps(shape, scale, at)?,
        Ok(block) => block_steps(shape, scale, at, block)?,
        Err(_) => None,
    };
    let Some((rows, columns)) = steps else { return Ok(None) };
    let scales = singles(scale)?;
    let zeros = match zero {
        Some(zero) if zero.element().is_float() => return Ok(None),
        Some(zero) => zero.integers()?.into_iter().map(|zero| zero as f32).collect(),
        None => vec![0.0; scales.len()],
    };
    let scaling = Scaling::new(scales, zeros, rows, columns);
    let fits =
        scaling.fits(shape.first().copied().unwrap_or(0), shape.get(1).copied().unwrap_or(1));
    Ok(fits.then(|| Arc::new(scaling)))
}

/// Returns the layout of scales for rows or columns that have one scale each.
fn plain_steps(shape: &[usize], scale: &Tensor, at: i64) -> Result<Option<(Steps, Steps)>> {
    if scale.len() == 1 {
        return Ok(Some((Steps::NONE, Steps::NONE)));
    }
    let at = axis(at, shape.len())?;
    let one = Steps { block: 1, step: 1 };
    Ok(match at {
        _ if scale.len() != shape[at] => None,
        0 => Some((one, Steps::NONE)),
        1 if shape.len() == 2 => Some((Steps::NONE, one)),
        _ => None,
    })
}

/// Returns the layout of scales for blocks along a dimension of a matrix.
fn block_steps(
    shape: &[usize],
    scale: &Tensor,
    at: i64,
    block: usize,
) -> Result<Option<(Steps, Steps)>> {
    let &[rows, columns] = shape else { return Ok(None) };
    let at = axis(at, 2)?;
    let blocks =
        if at == 0 { [rows.div_ceil(block), columns] } else { [rows, columns.div_ceil(block)] };
    Ok((scale.shape() == blocks).then_some(match at {
        0 => (Steps { block, step: columns }, Steps { block: 1, step: 1 }),
        _ => (Steps { block: 1, step: blocks[1] }, Steps { block, step: 1 }),
    }))
}

impl Dequantization {
    /// Dequantizes the whole tensor.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        dequantized(x, &self.scale, self.zero.as_ref(), (self.axis, self.block), ElementType::F32)
    }
}

fn dequantized(
    x: &Tensor,
    scale: &Tensor,
    zero: Option<&Tensor>,
    (axis, block): (i64, i64),
    to: ElementType,
) -> Result<Tensor> {
    let scales = Scales::of(x, scale, axis, block)?;
    let shape = x.shape().to_vec();
    if x.element().is_float() {
        let values = singles(x)?.into_iter().enumerate();
        let values = values.map(|(at, value)| value * scales.scales[scales.at(at)]).collect();
        return from_floats(values, shape, to);
    }

    let zeros = zeros(&scales, zero)?;
    let of = |(at, value): (usize, i64)| {
        let at = scales.at(at);
        value.saturating_sub(zeros[at]) as f32 * scales.scales[at]
    };
    let values = x.integers()?.into_iter().enumerate().map(of).collect();
    from_floats(values, shape, to)
}

fn dynamic(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let values = x.values::<f32>()?;

    // The range always holds 0 (ONNX's `DynamicQuantizeLinear`).
    let min = values.iter().copied().fold(0.0, f32::min);
    let max = values.iter().copied().fold(0.0, f32::max);
    let scale = (max - min) / 255.0;
    let zero = if scale == 0.0 { 0.0 } else { (-min / scale).round_ties_even().clamp(0.0, 255.0) };
    let of = |value: &f32| {
        if scale == 0.0 {
            0
        } else {
            ((value / scale).round_ties_even() + zero).clamp(0.0, 255.0) as u8
        }
    };

    let out = values.iter().map(of).collect();
    let out = Tensor::new::<u8>(x.shape().to_vec(), out)?;
    Ok(vec![out.into(), Tensor::scalar(scale).into(), Tensor::scalar(zero as u8).into()])
}

/// Sums as quantized numbers: times a factor that `scale` gives for each element, plus a zero
/// point.
fn requantized(
    sums: &[i32],
    shape: Vec<usize>,
    zero: &Tensor,
    scale: impl Fn(usize) -> f64,
    point: impl Fn(usize, &[i64]) -> i64,
) -> Result<Value> {
    let zeros = zero.integers()?;
    let (low, high) =
        range(zero.element()).ok_or_else(|| Error::format("the zero point must be an integer"))?;
    let of = |(at, sum): (usize, &i32)| {
        // A sum of 32 bits does not fit single precision.
        ((f64::from(*sum) * scale(at)).round_ties_even() as i64)
            .saturating_add(point(at, &zeros))
            .clamp(low, high)
    };
    let values = sums.iter().enumerate().map(of).collect();
    Ok(from_integers(values, shape, zero.element())?.into())
}

/// Inputs: a, scale, zero, b, scale, zero, scale and zero of the result.
fn matmul(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.tensor(0)?, call.tensor(3)?);
    let x = without_zero(a, Some(call.tensor(2)?), true)?;
    let y = without_zero(b, Some(call.tensor(5)?), false)?;
    let scales = [1, 4, 6].map(|position| call.tensor(position).and_then(singles));
    let [a_scale, b_scale, y_scale] = scales;
    let (a_scale, b_scale, y_scale) = (a_scale?, b_scale?, y_scale?);
    if [&a_scale, &b_scale, &y_scale].into_iter().any(Vec::is_empty) || call.tensor(7)?.is_empty() {
        return Err(Error::format("a scale or a zero point is empty"));
    }

    let stacks = stacks(call, a.shape(), b.shape())?;
    let total = count(&stacks.shape);

    // ONNX lets sums of 32 bits overflow (`QLinearMatMul`).
    let sums = plain(&stacks, &x, &y, total, |sum: i32, a, b| sum.wrapping_add(a.wrapping_mul(b)));
    let (rows, columns) = (stacks.rows.max(1), stacks.columns.max(1));
    let of = |list: &[f32], at: usize| {
        f64::from(if list.len() == 1 { list[0] } else { list[at % list.len()] })
    };
    let factor = |at: usize| {
        of(&a_scale, at / columns % rows) * of(&b_scale, at % columns)
            / of(&y_scale, at / columns % rows)
    };
    let zero = call.tensor(7)?;
    let point = |at: usize, zeros: &[i64]| {
        zeros[if zeros.len() == 1 { 0 } else { at / columns % zeros.len() }]
    };
    Ok(vec![requantized(&sums, stacks.shape, zero, factor, point)?])
}

/// Inputs: x, scale, zero, filters, scale, zero, scale and zero of the result, bias.
fn conv(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, weights) = (call.tensor(0)?, call.tensor(3)?);
    let sizes = Sizes::of(call, x.shape(), weights.shape())?;
    let shape = sizes.shape();
    let mut sums = vec![0; call.room(&shape, ElementType::I32)?];
    let values = without_zero(x, Some(call.tensor(2)?), true)?;
    let filters = filters_without_zero(weights, Some(call.tensor(5)?))?;
    let add = |sum: i32, a: i32, b: i32| sum.wrapping_add(a.wrapping_mul(b));
    multiply_plain(call.workers(), &sizes, &values, &filters, &mut sums, add)?;
    let (channels, places) = (shape[1].max(1), count(&sizes.windows.output).max(1));
    if let Some(bias) = call.optional(8)? {
        let bias = bias.values::<i32>()?;
        if bias.len() != shape[1] {
            return Err(Error::format(format!(
                "{} biases do not fit {} filters",
                bias.len(),
                shape[1]
            )));
        }
        sums.iter_mut()
            .enumerate()
            .for_each(|(at, sum)| *sum = sum.wrapping_add(bias[at / places % channels]));
    }

    if call.tensor(4)?.is_empty() {
        return Err(Error::format("the scale of the filters is empty"));
    }

    let (x_scale, w_scale, y_scale) =
        (singles(call.tensor(1)?)?, singles(call.tensor(4)?)?, singles(call.tensor(6)?)?);
    let one = |list: &[f32]| list.first().copied().map_or(1.0, f64::from);
    let factor = |at: usize| {
        let filter = at / places % channels;
        let weight = if w_scale.len() == 1 { w_scale[0] } else { w_scale[filter % w_scale.len()] };
        one(&x_scale) * f64::from(weight) / one(&y_scale)
    };
    Ok(vec![requantized(&sums, shape, call.tensor(7)?, factor, |_, zeros| {
        zeros.first().copied().unwrap_or(0)
    })?])
}
