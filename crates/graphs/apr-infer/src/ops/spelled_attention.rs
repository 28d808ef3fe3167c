//! Attention that a graph spells out in products, a softmax and products, with the scores of some
//! queries at a time.

use apr_core::Result;
use apr_graph::ElementType;

use super::attention::query_blocks;
use super::layout::wanted_shape;
use super::matmul::{RightStacks, Stacks};
use super::softmax::single_softmax_row;
use crate::call::Call;
use crate::matrix::{Left, product};
use crate::shape::{broadcast, stretched, walk};
use crate::tensor::elements;
use crate::workers::{Alone, try_in_pieces};
use crate::{Tensor, Value, pool};

/// Computes attention, bit-identical to the computation operator by operator. Returns `None` if the
/// types or shapes of the inputs do not fit attention.
///
/// The inputs are queries, keys as columns, values, and optionally a number and a mask.
pub(crate) fn attend(call: &Call<'_>, divides: bool, axis: i64) -> Result<Option<Tensor>> {
    let Some([q]) = floats(call, [0]) else { return Ok(None) };
    let (Some(k), Some(v)) = (Side::of(call, 1)?, Side::of(call, 2)?) else { return Ok(None) };
    let Some((scores, mixed)) = products(call, q, &k, &v) else { return Ok(None) };
    let Some(shape) = shape_of_scores(call, &scores)? else { return Ok(None) };
    let in_a_row =
        mixed.starts.iter().enumerate().all(|(at, [a, _])| *a == at * scores.rows * scores.columns);
    let is_last = axis == -1 || usize::try_from(axis).is_ok_and(|axis| axis + 1 == shape.len());
    let (Some(number), Some(mask)) = (Number::of(call, divides, &shape), Mask::of(call, &shape)?)
    else {
        return Ok(None);
    };
    if mixed.starts.len() != scores.starts.len() || !in_a_row || !is_last {
        return Ok(None);
    }

    scores.count(call)?;
    mixed.count(call)?;
    call.work(&scores.shape)?;
    let mut out = pool::any(call.room(&mixed.shape, ElementType::F32)?);
    let most = query_blocks(scores.rows).map(|block| block.len()).max().unwrap_or(0);
    call.room(&[call.workers().count(), most, scores.columns], ElementType::F32)?;
    let attention =
        Spelled { q: q.values()?, k: k.matrices, v: v.matrices, scores, mixed, number, mask };
    let piece = attention.mixed.rows * attention.mixed.columns;
    if piece > 0 {
        try_in_pieces(call.workers(), &mut out, piece, |stack, out| {
            attention.stack(stack, most, out)
        })?;
    }

    Tensor::new(attention.mixed.shape, out).map(Some)
}

/// Inputs that are there as tensors of `f32`.
fn floats<'c, const N: usize>(
    call: &'c Call<'_>,
    positions: [usize; N],
) -> Option<[&'c Tensor; N]> {
    let of = |position: usize| match call.optional_value(position) {
        Some(Value::Tensor(tensor)) if tensor.element() == ElementType::F32 => Some(tensor),
        _ => None,
    };
    let found: Vec<&Tensor> = positions.iter().filter_map(|position| of(*position)).collect();
    found.try_into().ok()
}

/// Keys or values.
struct Side<'a> {
    shape: Vec<usize>,
    matrices: RightStacks<'a>,
}

impl<'a> Side<'a> {
    /// Reads an input. Returns `None` if its elements are not 32-bit floats.
    fn of(call: &'a Call<'_>, position: usize) -> Result<Option<Self>> {
        if let Some(Value::Cached(heads)) = call.optional_value(position) {
            let matrices = RightStacks::Heads(heads.matrices());
            return Ok(Some(Self { shape: heads.shape(), matrices }));
        }
        let Some([tensor]) = floats(call, [position]) else { return Ok(None) };
        let matrices = RightStacks::Floats(tensor.values()?);
        Ok(Some(Self { shape: tensor.shape().to_vec(), matrices }))
    }
}

/// Returns the product of queries with keys, and the product of its result with values.
fn products(call: &Call<'_>, q: &Tensor, k: &Side<'_>, v: &Side<'_>) -> Option<(Stacks, Stacks)> {
    if q.rank() < 2 || v.shape.len() < 2 {
        return None;
    }
    let scores = Stacks::of(call, q.shape(), &k.shape).ok()?;
    let mixed = Stacks::of(call, &scores.shape, &v.shape).ok()?;
    Some((scores, mixed))
}

/// The shape that scores have when a mask is added, in which each row is a row of the products.
/// `None` where the probabilities do not get the products' shape again.
fn shape_of_scores(call: &Call<'_>, products: &Stacks) -> Result<Option<Vec<usize>>> {
    let reshaped = |from: &[usize], position: usize| match call.optional(position)? {
        Some(shape) => wanted_shape(from, &shape.integers()?, false),
        None => Ok(from.to_vec()),
    };
    if call.optional_value(5).is_none() && call.optional_value(6).is_none() {
        return Ok(Some(products.shape.clone()));
    }
    let shape = reshaped(&products.shape, 5)?;
    // Without elements, the other sizes may be anything.
    let has_same_rows = shape.len() > 1
        && shape.last() == products.shape.last()
        && elements(&shape).is_some_and(|len| len > 0 && Some(len) == elements(&products.shape));
    let is_taken_back = has_same_rows && reshaped(&shape, 6)? == products.shape;
    Ok(is_taken_back.then_some(shape))
}

/// Factor or divisor of each product.
enum Number {
    Times(f32),
    Over(f32),
}

impl Number {
    /// Reads the number. Returns `None` if the input has more than one number.
    fn of(call: &Call<'_>, divides: bool, shape: &[usize]) -> Option<Self> {
        if call.optional_value(3).is_none() {
            return Some(Self::Times(1.0));
        }
        let [tensor] = floats(call, [3])?;
        let &[value] = tensor.values::<f32>().ok()? else { return None };
        // A number with more dimensions would give them to the scores too.
        let fits = tensor.rank() <= shape.len();
        fits.then_some(if divides { Self::Over(value) } else { Self::Times(value) })
    }

    fn apply(&self, scores: &mut [f32]) {
        match *self {
            Self::Times(1.0) => {}
            Self::Times(number) => scores.iter_mut().for_each(|score| *score *= number),
            Self::Over(number) => scores.iter_mut().for_each(|score| *score /= number),
        }
    }
}

/// Mask that is added to the scores.
struct Mask<'a> {
    values: &'a [f32],
    /// Start of each matrix of scores.
    starts: Vec<usize>,
    /// Rows of such a matrix.
    rows: usize,
    row_step: usize,
    column_step: usize,
}

impl<'a> Mask<'a> {
    /// Reads the mask. Returns `None` if it would enlarge the scores, and an empty mask if the
    /// input is missing.
    fn of(call: &'a Call<'_>, shape: &[usize]) -> Result<Option<Self>> {
        let nothing =
            Self { values: &[], starts: Vec::new(), rows: 1, row_step: 0, column_step: 0 };
        if call.optional_value(4).is_none() {
            return Ok(Some(nothing));
        }

        let Some([tensor]) = floats(call, [4]) else { return Ok(None) };
        if !broadcast(&[shape, tensor.shape()]).is_ok_and(|found| found == shape) {
            return Ok(None);
        }

        let steps = stretched(tensor.shape(), shape);
        let (outer, [row_step, column_step]) = match steps.split_last_chunk::<2>() {
            Some((outer, last)) => (outer, *last),
            None => return Ok(None),
        };
        let matrices = &shape[..outer.len()];
        let mut starts = Vec::with_capacity(call.room_for(matrices, size_of::<usize>() as u64)?);
        walk(matrices, [outer], |[start]| starts.push(start));
        let rows = shape[outer.len()];
        Ok(Some(Self { values: tensor.values()?, starts, rows, row_step, column_step }))
    }

    /// Adds to the scores of a row, counted through all matrices.
    fn add(&self, row: usize, scores: &mut [f32]) {
        let Some(start) = self.starts.get(row / self.rows.max(1)) else { return };
        let values = &self.values[start + row % self.rows * self.row_step..];
        if self.column_step == 0 {
            scores.iter_mut().for_each(|score| *score += values[0]);
        } else {
            scores.iter_mut().zip(values).for_each(|(score, value)| *score += value);
        }
    }
}

/// All stacks of matrices.
struct Spelled<'a> {
    q: &'a [f32],
    k: RightStacks<'a>,
    v: RightStacks<'a>,
    scores: Stacks,
    mixed: Stacks,
    number: Number,
    mask: Mask<'a>,
}

impl Spelled<'_> {
    /// Computes attention for the queries of a stack, at most `most` queries at a time.
    fn stack(&self, stack: usize, most: usize, out: &mut [f32]) -> Result<()> {
        let Stacks { rows, depth, columns, .. } = self.scores;
        let [q, k] = self.scores.starts[stack];
        let [_, v] = self.mixed.starts[stack];
        let width = self.mixed.columns;
        let (keys, values) = (self.k.at(k, depth, columns), self.v.at(v, columns, width));
        let mut scores = pool::any(most * columns);
        for block in query_blocks(rows) {
            let scores = &mut scores[..block.len() * columns];
            let queries = &self.q[q + block.start * depth..][..block.len() * depth];
            product(Left::in_rows(queries, block.len(), depth), keys, scores, &Alone)?;
            self.number.apply(scores);
            for (row, scores) in block.clone().zip(scores.chunks_mut(columns.max(1))) {
                self.mask.add(stack * rows + row, scores);
                single_softmax_row(scores);
            }

            let out = &mut out[block.start * width..][..block.len() * width];
            product(Left::in_rows(scores, block.len(), columns), values, out, &Alone)?;
        }

        pool::give(scores);
        Ok(())
    }
}
