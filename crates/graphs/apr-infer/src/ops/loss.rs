//! Losses, determinants, and the way back from columns to images.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::window::{Windows, positive};
use crate::call::Call;
use crate::cast::from_doubles;
use crate::operator::{Operator, computes};
use crate::shape::{around, count, sizes};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("NegativeLogLikelihoodLoss", |call| likelihood(call, false)),
    computes("SoftmaxCrossEntropyLoss", |call| likelihood(call, true)),
    computes("Det", determinant),
    computes("Col2Im", columns_to_image),
];

/// The loss of classes, `[batch, classes, ...]`, against labels, `[batch, ...]`.
fn likelihood(call: &mut Call<'_>, of_scores: bool) -> Result<Vec<Value>> {
    let (scores, labels) = (call.tensor(0)?, call.tensor(1)?.integers()?);
    let weights = call.optional(2)?.map(Tensor::doubles).transpose()?;
    let ignored = call.optional_int("ignore_index");
    if scores.rank() < 2 {
        return Err(Error::format("classes are the second dimension"));
    }

    let (batch, classes, after) = around(scores.shape(), 1);
    let mut logs = scores.doubles()?;
    if labels.len() != batch * after
        || weights.as_ref().is_some_and(|weights| weights.len() != classes)
    {
        return Err(Error::format("labels or weights do not fit the scores"));
    }
    if of_scores {
        for row in 0..batch * after {
            let at = |class: usize| (row / after * classes + class) * after + row % after;

            // Without the largest, no exponential overflows.
            let max = (0..classes).map(|class| logs[at(class)]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..classes).map(|class| libm::exp(logs[at(class)] - max)).sum();
            (0..classes).for_each(|class| logs[at(class)] -= max + libm::log(sum));
        }
    }

    let (mut losses, mut total) = (Vec::with_capacity(labels.len()), 0.0);
    for (row, &label) in labels.iter().enumerate() {
        if ignored == Some(label) {
            losses.push(0.0);
            continue;
        }
        let class = super::gather::position(label, classes)?;
        let weight = weights.as_ref().map_or(1.0, |weights| weights[class]);
        losses.push(-logs[(row / after * classes + class) * after + row % after] * weight);
        total += weight;
    }

    let element = scores.element();
    let loss = match call.text("reduction", "mean").as_str() {
        "none" => from_doubles(losses, [&[batch], &scores.shape()[2..]].concat(), element)?,
        "sum" => from_doubles(vec![losses.iter().sum()], Vec::new(), element)?,
        _ => from_doubles(vec![losses.iter().sum::<f64>() / total], Vec::new(), element)?,
    };
    Ok(vec![loss.into(), from_doubles(logs, scores.shape().to_vec(), element)?.into()])
}

fn determinant(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let (outer, &[rows, columns]) =
        x.shape().split_last_chunk::<2>().ok_or_else(|| Error::format("a matrix is expected"))?;
    if rows != columns {
        return Err(Error::format(format!("a matrix of {rows} x {columns} has no determinant")));
    }
    call.work(&[count(outer), rows, rows, rows])?;
    let values = x.doubles()?;
    let of =
        |number: usize| eliminated(values[number * rows * rows..][..rows * rows].to_vec(), rows);
    Ok(vec![from_doubles((0..count(outer)).map(of).collect(), outer.to_vec(), x.element())?.into()])
}

/// The determinant by elimination, the largest element of each column first.
fn eliminated(mut matrix: Vec<f64>, size: usize) -> f64 {
    let mut product = 1.0;
    for column in 0..size {
        let largest = |a: &usize, b: &usize| {
            matrix[a * size + column].abs().total_cmp(&matrix[b * size + column].abs())
        };
        let pivot = (column..size).max_by(largest).unwrap_or(column);
        if pivot != column {
            (0..size).for_each(|at| matrix.swap(pivot * size + at, column * size + at));
            product = -product;
        }

        let head = matrix[column * size + column];
        product *= head;
        if head == 0.0 {
            return 0.0;
        }

        for row in column + 1..size {
            let factor = matrix[row * size + column] / head;
            (column..size)
                .for_each(|at| matrix[row * size + at] -= factor * matrix[column * size + at]);
        }
    }

    product
}

fn columns_to_image(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let (image, block) =
        (sizes(&call.tensor(1)?.integers()?)?, sizes(&call.tensor(2)?.integers()?)?);
    let rank = image.len();
    let pads = sizes(&call.ints("pads").unwrap_or_else(|| vec![0; 2 * rank]))?;
    let &[batch, depth, places] = x.shape() else {
        return Err(Error::format("columns have three dimensions"));
    };
    if block.len() != rank || block.contains(&0) || pads.len() != 2 * rank {
        return Err(Error::format("the block or the pads do not fit the image"));
    }

    let mut windows = Windows {
        input: image.clone(),
        kernel: block,
        strides: positive(call, "strides", rank, 1)?,
        dilations: positive(call, "dilations", rank, 1)?,
        before: pads[..rank].to_vec(),
        after: pads[rank..].to_vec(),
        output: vec![0; rank],
    };

    for dim in 0..rank {
        let padded = image[dim].saturating_add(pads[dim]).saturating_add(pads[rank + dim]);
        let room = padded
            .checked_sub(windows.extent(dim)?)
            .ok_or_else(|| Error::format("the block does not fit"))?;
        windows.output[dim] = room / windows.strides[dim] + 1;
    }

    let len = windows.window_len();
    if depth % len != 0 || places != count(&windows.output) {
        return Err(Error::format(format!("columns of {:?} do not fit the image", x.shape())));
    }

    let channels = depth / len;
    let shape = [&[batch, channels], &image[..]].concat();
    let mut out = vec![0.0; call.room(&shape, ElementType::F64)?];
    let (values, pixels) = (x.doubles()?, count(&image));
    for row in 0..batch * channels {
        let out = &mut out[row * pixels..][..pixels];
        for place in 0..places {
            // Windows may overlap: what they share is added up.
            windows.at_place(place, |at, offset| {
                out[offset] += values[(row * len + at) * places + place];
            });
        }
    }

    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}
