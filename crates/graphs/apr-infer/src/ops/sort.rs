//! The largest elements, distinct elements, boxes that do not overlap.

use std::cmp::Ordering;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::gather::along;
use super::reduce::moved_last;
use crate::call::Call;
use crate::convert::Number;
use crate::moving::{picked, transposed};
use crate::operator::{Operator, moves};
use crate::shape::axis;
use crate::tensor::{with_numbers, with_storage};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] =
    &[moves("TopK", top), moves("Unique", unique), moves("NonMaxSuppression", non_max_suppression)];

/// Steps of work for each element that is sorted.
const COMPARISONS: usize = 40;

/// NaN is above all numbers, and like any other NaN, as in NumPy. Sorting panics without an order
/// of everything.
fn order<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    let is_nan = |value: &T| value.partial_cmp(value).is_none();
    a.partial_cmp(b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

fn top(call: &mut Call<'_>) -> Result<Vec<Value>> {
    fn chosen<T: Number>(values: &[T], len: usize, k: usize, largest: bool) -> Vec<usize> {
        let mut found = Vec::with_capacity(values.len() / len.max(1) * k);
        for (row, values) in values.chunks(len.max(1)).enumerate() {
            let mut places: Vec<usize> = (0..values.len()).collect();
            let compare = |a: &usize, b: &usize| {
                let order = order(&values[*a], &values[*b]);

                // Of equal elements the lower index comes first (ONNX's `TopK`).
                (if largest { order.reverse() } else { order }).then(a.cmp(b))
            };
            if k < places.len() && k > 0 {
                places.select_nth_unstable_by(k - 1, compare);
            }
            places.truncate(k);
            places.sort_unstable_by(compare);
            found.extend(places.iter().map(|at| row * len + at));
        }

        found
    }

    let tensor = call.tensor(0)?;
    let k = match call.optional(1)? {
        Some(k) => k.integer()?,
        None => call.int("k", -1),
    };
    let at = axis(call.int("axis", -1), tensor.rank())?;
    call.work(&[tensor.len(), COMPARISONS])?;
    let len = tensor.shape()[at];
    let k = usize::try_from(k).ok().filter(|&k| k <= len);
    let k = k.ok_or_else(|| Error::format(format!("there are {len} elements to choose from")))?;
    let moved = moved_last(tensor, &[at])?;
    let comparable = moved.widened()?;
    let largest = call.flag("largest", true);
    let found =
        with_numbers!(comparable.data(), values => chosen(values, len, k, largest), Vec::new());
    let mut shape = moved.shape().to_vec();
    let last = shape.len() - 1;
    shape[last] = k;
    let data = picked(moved.data(), found.len(), |visit| found.iter().for_each(|&at| visit(at)));
    let indices = found.iter().map(|at| (at % len) as i64).collect();

    // The chosen elements are along the last dimension now, and go back to the axis.
    let mut back: Vec<_> = (0..last).collect();
    back.insert(at, last);
    let values = transposed(&moved.like(shape.clone(), data)?, &back)?;
    Ok(vec![values.into(), transposed(&Tensor::new(shape, indices)?, &back)?.into()])
}

fn unique(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensor = call.tensor(0)?;
    call.work(&[tensor.len(), COMPARISONS])?;
    let (tensor, at) = match call.optional_int("axis") {
        Some(at) => (tensor.clone(), axis(at, tensor.rank())?),
        None => (tensor.clone().reshaped(vec![tensor.len()])?, 0),
    };
    let len = tensor.shape()[at];
    let mut dims: Vec<_> = vec![at];
    dims.extend((0..tensor.rank()).filter(|&dim| dim != at));
    let rows = transposed(&tensor, &dims)?.widened()?;
    let row = rows.len().checked_div(len).unwrap_or(0);
    let compare = |a: usize, b: usize| -> Ordering {
        with_storage!(rows.data(), values => {
            let (a, b) = (&values[a * row..][..row], &values[b * row..][..row]);
            let mut orders = a.iter().zip(b).map(|(a, b)| order(a, b));
            orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        })
    };

    let mut sorted: Vec<_> = (0..len).collect();

    // The sort is stable: the first of each group is the one that comes first.
    sorted.sort_by(|&a, &b| compare(a, b));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in sorted {
        match groups.last_mut() {
            Some(group) if compare(group[0], at).is_eq() => group.push(at),
            _ => groups.push(vec![at]),
        }
    }

    if !call.flag("sorted", true) {
        groups.sort_by_key(|group| group[0]);
    }

    let firsts: Vec<_> = groups.iter().map(|group| group[0]).collect();
    let mut inverse = vec![0; len];
    for (number, group) in groups.iter().enumerate() {
        group.iter().for_each(|&at| inverse[at] = number as i64);
    }

    let counts = groups.iter().map(|group| group.len() as i64).collect();
    Ok(vec![
        along(&tensor, at, &firsts, &[firsts.len()])?.into(),
        Tensor::row(firsts.iter().map(|&at| at as i64).collect()).into(),
        Tensor::row(inverse).into(),
        Tensor::row::<i64>(counts).into(),
    ])
}

/// Corners of a box: top, left, bottom, right.
type Corners = [f64; 4];

fn non_max_suppression(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (boxes, scores) = (call.tensor(0)?, call.tensor(1)?);
    let (&[batches, count, 4], &[score_batches, classes, score_count]) =
        (boxes.shape(), scores.shape())
    else {
        return Err(Error::format("boxes and scores are expected"));
    };
    if batches != score_batches || count != score_count {
        return Err(Error::format("boxes and scores are not as many"));
    }

    let number = |position: usize| call.optional(position)?.map(Tensor::number).transpose();
    let most = usize::try_from(number(2)?.unwrap_or(0.0) as i64).unwrap_or(0);
    let (overlap, least) = (number(3)?.unwrap_or(0.0), number(4)?);
    let centred = call.flag("center_point_box", false);
    let corners = |corner: &[f64; 4]| -> Corners {
        let [a, b, c, d] = *corner;
        if centred {
            return [b - d / 2.0, a - c / 2.0, b + d / 2.0, a + c / 2.0];
        }

        // The two corners may be any that lie across from each other (ONNX's `NonMaxSuppression`).
        [a.min(c), b.min(d), a.max(c), b.max(d)]
    };

    let boxes: Vec<Corners> = boxes.doubles()?.as_chunks::<4>().0.iter().map(corners).collect();
    let scores = scores.doubles()?;
    let mut chosen: Vec<i64> = Vec::new();
    for row in 0..batches * classes {
        let (batch, class) = (row / classes, row % classes);
        let (boxes, scores) = (&boxes[batch * count..][..count], &scores[row * count..][..count]);

        // Each box is compared with all that were chosen before it.
        call.work(&[count, most.min(count).saturating_add(COMPARISONS)])?;
        for at in chosen_boxes(boxes, scores, most, overlap, least) {
            chosen.extend([batch as i64, class as i64, at as i64]);
        }
    }

    call.room(&[chosen.len()], ElementType::I64)?;
    Ok(vec![Tensor::new(vec![chosen.len() / 3, 3], chosen)?.into()])
}

fn chosen_boxes(
    boxes: &[Corners],
    scores: &[f64],
    most: usize,
    overlap: f64,
    least: Option<f64>,
) -> Vec<usize> {
    let mut best: Vec<_> =
        (0..boxes.len()).filter(|&at| least.is_none_or(|least| scores[at] > least)).collect();

    // The best first. Negated, NaN is still above all others, and so it comes last.
    best.sort_by(|&a, &b| order(&-scores[a], &-scores[b]));
    let mut chosen: Vec<usize> = Vec::new();
    for at in best {
        if chosen.len() >= most {
            break;
        }
        if chosen.iter().all(|&other| common_share(&boxes[at], &boxes[other]) <= overlap) {
            chosen.push(at);
        }
    }
    chosen
}

/// Returns the intersection over union of two boxes.
fn common_share(a: &Corners, b: &Corners) -> f64 {
    let area = |corners: &Corners| (corners[2] - corners[0]) * (corners[3] - corners[1]);
    let height = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let width = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let both = height * width;
    if area(a) <= 0.0 || area(b) <= 0.0 { 0.0 } else { both / (area(a) + area(b) - both) }
}
