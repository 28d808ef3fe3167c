//! Normalisation.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::call::Call;
use crate::cast::{from_doubles, from_floats};
use crate::convert::is_half;
use crate::operator::{Operator, computes, moves};
use crate::shape::{around, axis, count, stretched, walk};
use crate::workers::in_pieces;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    moves("LayerNormalization", |call| layer(call, true)),
    moves("RMSNormalization", |call| layer(call, false)),
    moves("SimplifiedLayerNormalization", |call| layer(call, false)),
    computes("com.microsoft::SkipLayerNormalization", |call| skip(call, true)),
    computes("com.microsoft::SkipSimplifiedLayerNormalization", |call| skip(call, false)),
    computes("BatchNormalization", batch),
    computes("InstanceNormalization", instance),
    computes("GroupNormalization", group),
    computes("LpNormalization", lp),
    computes("MeanVarianceNormalization", mean_variance),
    computes("LRN", local_response),
];

/// The mean and the mean of squares about it, or about 0.
fn moments(row: impl ExactSizeIterator<Item = f64> + Clone, centred: bool) -> (f64, f64) {
    let count = row.len() as f64;
    let mean = if centred { row.clone().sum::<f64>() / count } else { 0.0 };
    (mean, row.map(|x| (x - mean) * (x - mean)).sum::<f64>() / count)
}

/// Brings rows of `len` elements to mean 0 (if `centred`) and deviation 1; returns means and
/// inverse deviations.
pub(super) fn normalise_rows(
    call: &Call<'_>,
    values: &mut [f32],
    len: usize,
    epsilon: f64,
    centred: bool,
    then: impl Fn(&mut [f32]) + Sync,
) -> Result<(Vec<f32>, Vec<f32>)> {
    if len == 0 {
        return Err(Error::format("empty rows have no mean"));
    }

    let mut statistics = vec![(0.0_f32, 0.0_f32); values.len() / len];

    // The first pass only reads; the second changes each row by itself.
    let shared = &*values;
    in_pieces(call.workers(), &mut statistics, 64, |number, statistics| {
        for (at, statistics) in statistics.iter_mut().enumerate() {
            let row = &shared[(number * 64 + at) * len..][..len];
            let (mean, variance) = single_moments(row, centred);
            *statistics = (mean as f32, (1.0 / (variance + epsilon).sqrt()) as f32);
        }
    });
    let found = &statistics;
    in_pieces(call.workers(), values, 64 * len, |number, rows| {
        for (at, row) in rows.chunks_mut(len).enumerate() {
            let (mean, inverse) = found[number * 64 + at];
            row.iter_mut().for_each(|value| *value = (*value - mean) * inverse);
            then(row);
        }
    });
    Ok(statistics.into_iter().unzip())
}

/// [`moments`] of single precision, in lanes that are added up in double precision.
fn single_moments(row: &[f32], centred: bool) -> (f64, f64) {
    const LANES: usize = 8;

    let count = row.len() as f64;
    let total = |of: &dyn Fn(f64) -> f64| {
        let (groups, rest) = row.as_chunks::<LANES>();
        let mut sums = [0.0_f64; LANES];
        for group in groups {
            for lane in 0..LANES {
                sums[lane] += of(f64::from(group[lane]));
            }
        }
        sums.iter().sum::<f64>() + rest.iter().map(|&value| of(f64::from(value))).sum::<f64>()
    };

    // The mean first: of large values, a mean of squares less a squared mean keeps few digits.
    let mean = if centred { total(&|x| x) / count } else { 0.0 };
    (mean, total(&|x| (x - mean) * (x - mean)) / count)
}

fn layer(call: &mut Call<'_>, centred: bool) -> Result<Vec<Value>> {
    let epsilon = f64::from(call.float("epsilon", 1e-5));
    let at = call.int("axis", -1);
    let x = call.take(0)?;
    let at = axis(at, x.rank())?;
    let (shape, element) = (x.shape().to_vec(), x.element());
    call.room(&shape, ElementType::F32)?;
    let len = count(&shape[at..]);
    let fits = |tensor: Option<&Tensor>| -> Result<Option<Vec<f32>>> {
        let Some(tensor) = tensor else { return Ok(None) };
        if tensor.rank() > shape.len() - at {
            return Err(Error::format(format!(
                "a scale of shape {:?} does not fit {shape:?}",
                tensor.shape()
            )));
        }
        let tensor = super::elementwise::expanded(tensor, &shape[at..])?;
        crate::cast::singles(&tensor).map(Some)
    };

    let (scale, bias) = (fits(call.optional(1)?)?, fits(call.optional(2)?)?);
    let mut values =
        if element == ElementType::F32 { x.into_values()? } else { crate::cast::singles(&x)? };
    let scaled = |row: &mut [f32]| {
        if let Some(scale) = &scale {
            row.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
        }
        if let Some(bias) = &bias {
            row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    };

    let (means, inverses) = normalise_rows(call, &mut values, len, epsilon, centred, scaled)?;
    let outer: Vec<_> =
        shape.iter().enumerate().map(|(dim, &size)| if dim < at { size } else { 1 }).collect();
    let stash = super::cast::element(call.int("stash_type", 1))?;
    let statistics = |values: Vec<f32>| {
        from_floats(values, outer.clone(), if is_half(stash) { stash } else { ElementType::F32 })
    };
    let y = from_floats(values, shape, element)?;
    if centred {
        return Ok(vec![y.into(), statistics(means)?.into(), statistics(inverses)?.into()]);
    }

    Ok(vec![y.into(), statistics(inverses)?.into()])
}

/// Adds the skipped layer's input (and a bias), then normalises.
fn skip(call: &mut Call<'_>, centred: bool) -> Result<Vec<Value>> {
    let epsilon = f64::from(call.float("epsilon", 1e-12));
    let x = call.tensor(0)?;
    let mut sum = super::binary::join(call, x, call.tensor(1)?, super::binary::Sum)?;

    // `SkipSimplifiedLayerNormalization` has no shift, so that its bias comes earlier.
    let bias_at = if centred { 4 } else { 3 };
    if let Some(bias) = call.optional(bias_at)? {
        sum = super::binary::join(call, &sum, bias, super::binary::Sum)?;
    }

    let shape = sum.shape().to_vec();
    let Some((&len, outer)) = shape.split_last() else {
        return Err(Error::format("a row is expected, not a number"));
    };
    let scale = call.tensor(2)?.values::<f32>()?;
    let shift =
        if centred { call.optional(3)?.map(Tensor::values::<f32>).transpose()? } else { None };
    if scale.len() != len || shift.is_some_and(|shift| shift.len() != len) {
        return Err(Error::format("scale and shift must be as long as a row"));
    }

    let mut values = sum.values::<f32>()?.to_vec();
    let (means, inverses) = normalise_rows(call, &mut values, len, epsilon, centred, |row| {
        row.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
        if let Some(shift) = shift {
            row.iter_mut().zip(shift).for_each(|(value, shift)| *value += shift);
        }
    })?;
    let outer = [outer, &[1]].concat();
    let statistics = |values| Tensor::new(outer.clone(), values).map(Value::from);
    Ok(vec![
        Tensor::new(shape, values)?.into(),
        statistics(means)?,
        statistics(inverses)?,
        sum.into(),
    ])
}

fn batch(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let epsilon = f64::from(call.float("epsilon", 1e-5));
    let momentum = f64::from(call.float("momentum", 0.9));
    let training = call.flag("training_mode", false);
    let x = call.tensor(0)?;
    let channels = x.shape().get(1).copied().unwrap_or(1);
    let of = |position| -> Result<Vec<f64>> {
        let values = call.tensor(position)?.doubles()?;
        if values.len() == channels {
            Ok(values)
        } else {
            Err(Error::format(format!("{channels} channels are expected")))
        }
    };

    let (scale, bias, mean, variance) = (of(1)?, of(2)?, of(3)?, of(4)?);
    let (before, len) =
        (x.shape().first().copied().unwrap_or(1), count(x.shape().get(2..).unwrap_or_default()));
    let (used_mean, used_variance) = if training {
        let values = x.doubles()?;
        let channel = |c: usize| -> Vec<f64> {
            (0..before)
                .flat_map(|n| values[(n * channels + c) * len..][..len].iter().copied())
                .collect()
        };
        (0..channels).map(|c| moments(channel(c).iter().copied(), true)).unzip()
    } else {
        (mean.clone(), variance.clone())
    };

    let element = x.element();
    let mut outputs = vec![affine(call, x, channels, len, |c| {
        let factor = scale[c] / (used_variance[c] + epsilon).sqrt();
        (factor, bias[c] - used_mean[c] * factor)
    })?];
    if training {
        // ONNX's momentum is the share of the old values, PyTorch's that of the new ones.
        let mix = |old: &[f64], new: &[f64]| -> Result<Value> {
            let values = old
                .iter()
                .zip(new)
                .map(|(old, new)| old * momentum + new * (1.0 - momentum))
                .collect();
            Ok(from_doubles(values, vec![channels], element)?.into())
        };
        outputs.push(mix(&mean, &used_mean)?);
        outputs.push(mix(&variance, &used_variance)?);
    }

    Ok(outputs)
}

/// Scales and shifts rows of `len` elements by the numbers of their channel.
fn affine(
    call: &Call<'_>,
    x: &Tensor,
    channels: usize,
    len: usize,
    of: impl Fn(usize) -> (f64, f64) + Sync,
) -> Result<Value> {
    let shape = x.shape().to_vec();
    call.room(&shape, x.element())?;
    if x.element() == ElementType::F64 {
        let mut values = x.values::<f64>()?.to_vec();
        for (row, values) in values.chunks_mut(len.max(1)).enumerate() {
            let (factor, shift) = of(row % channels);
            values.iter_mut().for_each(|value| *value = *value * factor + shift);
        }
        return Ok(Tensor::new(shape, values)?.into());
    }

    let mut values = x.values::<f32>()?.to_vec();
    in_pieces(call.workers(), &mut values, len.max(1), |row, values| {
        let (factor, shift) = of(row % channels);
        let (factor, shift) = (factor as f32, shift as f32);
        values.iter_mut().for_each(|value| *value = *value * factor + shift);
    });
    Ok(Tensor::new(shape, values)?.into())
}

fn instance(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let groups = call.tensor(0)?.shape().get(1).copied().unwrap_or(1);
    grouped(call, groups, false)
}

fn group(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let groups = usize::try_from(call.int("num_groups", 0)).unwrap_or(0);
    // Before version 21, scale and bias are those of a group.
    let by_group = call.opset < 21;
    grouped(call, groups, by_group)
}

fn grouped(call: &Call<'_>, groups: usize, by_group: bool) -> Result<Vec<Value>> {
    let epsilon = f64::from(call.float("epsilon", 1e-5));
    let x = call.tensor(0)?;
    let (scale, bias) = (call.tensor(1)?.doubles()?, call.tensor(2)?.doubles()?);
    let shape = x.shape();
    let (&[n, channels], inner) =
        shape.split_first_chunk::<2>().ok_or_else(|| Error::format("channels are expected"))?;
    let expected = if by_group { groups } else { channels };
    if groups == 0
        || groups > channels.max(1)
        || channels % groups != 0
        || scale.len() != expected
        || bias.len() != expected
    {
        return Err(Error::format(format!(
            "{channels} channels, {groups} groups and the scale do not match"
        )));
    }

    let (len, in_group) = (count(inner), channels / groups);
    let values = x.doubles()?;
    let mut out = Vec::with_capacity(values.len());
    for row in 0..n * groups {
        let part = &values[row * in_group * len..][..in_group * len];
        let (mean, variance) = moments(part.iter().copied(), true);
        let inverse = 1.0 / (variance + epsilon).sqrt();
        for (at, &value) in part.iter().enumerate() {
            let channel = row % groups * in_group + at / len.max(1);
            let channel = if by_group { channel / in_group } else { channel };
            out.push((value - mean) * inverse * scale[channel] + bias[channel]);
        }
    }

    Ok(vec![from_doubles(out, shape.to_vec(), x.element())?.into()])
}

fn lp(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let at = axis(call.int("axis", -1), x.rank())?;
    let squares = call.int("p", 2) == 2;
    let (before, len, after) = around(x.shape(), at);
    let mut values = x.doubles()?;
    for outer in 0..before {
        for inner in 0..after {
            let offset = |step: usize| (outer * len + step) * after + inner;
            let of = |step| {
                if squares {
                    values[offset(step)] * values[offset(step)]
                } else {
                    values[offset(step)].abs()
                }
            };
            let sum: f64 = (0..len).map(of).sum();
            let norm = if squares { sum.sqrt() } else { sum };

            // A line of zeros has no direction, and stays as it is.
            if norm != 0.0 {
                (0..len).for_each(|step| values[offset(step)] /= norm);
            }
        }
    }

    Ok(vec![from_doubles(values, x.shape().to_vec(), x.element())?.into()])
}

fn mean_variance(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let gone = crate::shape::axes(&call.ints("axes").unwrap_or_else(|| vec![0, 2, 3]), x.rank())?;
    let kept: Vec<_> =
        (0..x.rank()).map(|dim| if gone.contains(&dim) { 1 } else { x.shape()[dim] }).collect();
    let steps = stretched(&kept, x.shape());
    let values = x.doubles()?;
    let mut groups = Vec::with_capacity(values.len());
    walk(x.shape(), [&steps], |[at]| groups.push(at));
    let mut sums = vec![(0.0, 0.0, 0.0); count(&kept)];
    for (&group, &value) in groups.iter().zip(&values) {
        sums[group].0 += value;
        sums[group].2 += 1.0;
    }

    for (&group, &value) in groups.iter().zip(&values) {
        let mean = sums[group].0 / sums[group].2;
        sums[group].1 += (value - mean) * (value - mean);
    }

    let of = |(&group, &value): (&usize, &f64)| {
        let (sum, squares, count) = sums[group];

        // The function that ONNX defines this by adds to the deviation, not to the variance.
        (value - sum / count) / ((squares / count).sqrt() + 1e-9)
    };
    let out = groups.iter().zip(&values).map(of).collect();
    Ok(vec![from_doubles(out, x.shape().to_vec(), x.element())?.into()])
}

/// Divides each element by the squares of its neighbours among the channels.
fn local_response(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (alpha, beta) = (f64::from(call.float("alpha", 1e-4)), f64::from(call.float("beta", 0.75)));
    let (bias, size) =
        (f64::from(call.float("bias", 1.0)), usize::try_from(call.int("size", 0)).unwrap_or(0));
    let x = call.tensor(0)?;
    if x.rank() < 2 || size == 0 {
        return Err(Error::format("channels and a size are expected"));
    }

    let (before, channels, after) = around(x.shape(), 1);
    call.work(&[before, channels, after, size.min(channels)])?;
    let values = x.doubles()?;
    let mut out = Vec::with_capacity(values.len());
    for n in 0..before {
        for c in 0..channels {
            // ONNX's `ceil((size - 1) / 2)` is `size / 2`: an even window reaches one further
            // ahead.
            let (low, high) = (c.saturating_sub((size - 1) / 2), (c + size / 2).min(channels - 1));
            for at in 0..after {
                let of = |c: usize| values[(n * channels + c) * after + at];
                let sum: f64 = (low..=high).map(|c| of(c) * of(c)).sum();
                out.push(of(c) / libm::pow(bias + alpha / size as f64 * sum, beta));
            }
        }
    }

    Ok(vec![from_doubles(out, x.shape().to_vec(), x.element())?.into()])
}
