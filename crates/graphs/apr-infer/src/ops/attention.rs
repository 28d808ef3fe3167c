//! Attention: queries, keys and values in heads.

use std::ops::Range;
use std::sync::Mutex;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::softmax::single_softmax_row;
use crate::call::Call;
use crate::matrix::{Left, Right, product};
use crate::moving::{joined, transposed};
use crate::operator::{Operator, computes};
use crate::shape::{broadcast, stretched};
use crate::workers::{Alone, try_in_pieces};
use crate::{Tensor, Value, pool};

pub(super) const TABLE: &[Operator] = &[computes("Attention", attention)];

/// Queries whose scores are computed together, so that they stay in a cache.
const QUERIES: usize = 128;

/// The queries in blocks of nearly the same size. One is never alone, unless there is only one: the
/// products of a single row are added up in another order.
pub(super) fn query_blocks(queries: usize) -> impl Iterator<Item = Range<usize>> {
    let size = queries.div_ceil(queries.div_ceil(QUERIES).max(1)).max(1);
    (0..queries).step_by(size).map(move |first| first..queries.min(first + size))
}

/// A tensor of `[batch, heads, length, size]`.
pub(super) struct Heads {
    pub(super) tensor: Tensor,
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) len: usize,
    pub(super) size: usize,
}

impl Heads {
    pub(super) fn new(tensor: Tensor) -> Result<Self> {
        let &[batch, heads, len, size] = tensor.shape() else {
            return Err(Error::format(format!(
                "heads of shape {:?} have not four dimensions",
                tensor.shape()
            )));
        };
        Ok(Self { tensor, batch, heads, len, size })
    }

    /// Splits `[batch, length, heads * size]` into heads, or accepts a tensor whose heads are
    /// already separate.
    pub(super) fn of(tensor: &Tensor, heads: Option<i64>) -> Result<Self> {
        if tensor.rank() == 4 {
            return Self::new(tensor.clone());
        }
        let heads = heads.and_then(|heads| usize::try_from(heads).ok()).filter(|&heads| heads > 0);
        let (&[batch, len, width], Some(heads)) = (tensor.shape(), heads) else {
            return Err(Error::format(format!("{:?} can't be cut into heads", tensor.shape())));
        };
        if width % heads != 0 {
            return Err(Error::format(format!("{width} columns are not cut into {heads} heads")));
        }
        let apart = tensor.clone().reshaped(vec![batch, len, heads, width / heads])?;
        Self::new(transposed(&apart, &[0, 2, 1, 3])?)
    }

    /// These, then more along the length.
    pub(super) fn after(self, past: Option<&Tensor>) -> Result<Self> {
        match past {
            Some(past) => Self::new(joined(&[past, &self.tensor], 2)?),
            None => Ok(self),
        }
    }

    fn head(&self, number: usize) -> Result<&[f32]> {
        let len = self.len * self.size;
        Ok(&self.tensor.values::<f32>()?[number * len..][..len])
    }
}

/// `[batch, heads, length, size]` as `[batch, length, heads * size]`.
pub(super) fn heads_together(tensor: &Tensor) -> Result<Tensor> {
    let &[batch, heads, len, size] = tensor.shape() else {
        return Err(Error::format("heads are expected"));
    };
    transposed(tensor, &[0, 2, 1, 3])?.reshaped(vec![batch, len, heads * size])
}

/// Scores that are returned as an output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Nothing,
    Products,
    Capped,
    Masked,
    Probabilities,
}

/// Adds to the scores of a query: batch, head, query, scores.
pub(super) type AddMask<'a> = dyn Fn(usize, usize, usize, &mut [f32]) + Sync + 'a;

/// Rules by which scores become probabilities.
pub(super) struct Rules<'a> {
    pub(super) scale: f32,
    /// Bound of the scores, which a hyperbolic tangent brings them below; 0 for none.
    pub(super) softcap: f32,
    /// Function that adds a mask to the scores of a query: batch, head, query, scores. If a query
    /// may attend to no key, the whole row is negative infinity.
    pub(super) mask: &'a AddMask<'a>,
    pub(super) shown: Shown,
}

/// Computes attention. Returns the result, `[batch, heads, queries, value size]`, and the shown
/// scores.
pub(super) fn attend(
    call: &Call<'_>,
    q: &Heads,
    k: &Heads,
    v: &Heads,
    rules: &Rules<'_>,
) -> Result<(Tensor, Tensor)> {
    let fits = q.batch == k.batch
        && k.batch == v.batch
        && k.heads == v.heads
        && k.len == v.len
        && q.size == k.size;
    if !fits || k.heads == 0 || !q.heads.is_multiple_of(k.heads) {
        let shapes = [q, k, v].map(|heads| heads.tensor.shape().to_vec());
        return Err(Error::format(format!(
            "queries, keys and values of shapes {shapes:?} do not match"
        )));
    }

    call.multiplications(&[q.batch, q.heads, q.len, k.len, q.size.saturating_add(v.size)])?;
    call.work(&[q.batch, q.heads, q.len, k.len])?;
    let shape = vec![q.batch, q.heads, q.len, v.size];
    let mut out = pool::any(call.room(&shape, ElementType::F32)?);

    // Each thread keeps the scores of one block of queries.
    call.room(&[call.workers().count(), QUERIES.min(q.len), k.len], ElementType::F32)?;
    let score_shape = match rules.shown {
        Shown::Nothing => vec![0],
        _ => vec![q.batch, q.heads, q.len, k.len],
    };
    let shown = Mutex::new(vec![0.0_f32; call.room(&score_shape, ElementType::F32)?]);
    let attention = Attention { q, k, v, rules, shown };
    let per_head = q.len * v.size;
    if per_head > 0 {
        try_in_pieces(call.workers(), &mut out, per_head, |number, out| {
            attention.head(number, out)
        })?;
    }

    let shown = attention.shown.into_inner().unwrap_or_default();
    Ok((Tensor::new(shape, out)?, Tensor::new(score_shape, shown)?))
}

/// Attention of all heads.
struct Attention<'a> {
    q: &'a Heads,
    k: &'a Heads,
    v: &'a Heads,
    rules: &'a Rules<'a>,
    shown: Mutex<Vec<f32>>,
}

impl Attention<'_> {
    /// Computes the attention of a head, some queries at a time.
    fn head(&self, number: usize, out: &mut [f32]) -> Result<()> {
        let Self { q, k, v, .. } = self;
        let (batch, head) = (number / q.heads, number % q.heads);

        // Several heads of queries may share one of keys and values.
        let other = batch * k.heads + head / (q.heads / k.heads);
        let (queries, keys, values) = (q.head(number)?, k.head(other)?, v.head(other)?);
        let mut scores = pool::any(QUERIES.min(q.len) * k.len);
        for block in query_blocks(q.len) {
            let (first, rows) = (block.start, block.len());
            let scores = &mut scores[..rows * k.len];
            let left = Left::in_rows(&queries[first * q.size..][..rows * q.size], rows, q.size);
            product(left, Right::Columns(keys, k.len), scores, &Alone)?;
            let start = (number * q.len + first) * k.len;
            self.rules.probabilities(scores, (batch, head, first), k.len, |stage, scores| {
                self.show(stage, start, scores);
            });
            let left = Left::in_rows(scores, rows, k.len);
            product(
                left,
                Right::Rows(values, v.size),
                &mut out[first * v.size..][..rows * v.size],
                &Alone,
            )?;
        }

        pool::give(scores);
        Ok(())
    }

    /// Copies scores to the shown output, if they are of the requested stage.
    fn show(&self, stage: Shown, start: usize, scores: &[f32]) {
        if stage == self.rules.shown
            && let Ok(mut shown) = self.shown.lock()
        {
            shown[start..][..scores.len()].copy_from_slice(scores);
        }
    }
}

impl Rules<'_> {
    /// Changes products of some queries of a head and all keys into probabilities.
    fn probabilities(
        &self,
        scores: &mut [f32],
        (batch, head, first): (usize, usize, usize),
        len: usize,
        show: impl Fn(Shown, &[f32]),
    ) {
        scores.iter_mut().for_each(|score| *score *= self.scale);
        show(Shown::Products, scores);
        if self.softcap > 0.0 {
            scores
                .iter_mut()
                .for_each(|score| *score = libm::tanhf(*score / self.softcap) * self.softcap);
        }

        show(Shown::Capped, scores);
        for (query, row) in scores.chunks_mut(len.max(1)).enumerate() {
            (self.mask)(batch, head, first + query, row);
        }

        show(Shown::Masked, scores);
        for row in scores.chunks_mut(len.max(1)) {
            // The softmax of such a row is not a number; ONNX's reference gives zeros.
            if row.iter().all(|&score| score == f32::NEG_INFINITY) {
                row.fill(0.0);
            } else {
                single_softmax_row(row);
            }
        }

        show(Shown::Probabilities, scores);
    }
}

/// Mask from an input: numbers that are added to scores, or Booleans that allow keys.
pub(super) struct Given {
    tensor: Tensor,
    /// Steps of the tensor along batch, head, query and key.
    steps: Vec<usize>,
    /// Number of its keys; later ones are not looked at.
    keys: usize,
}

impl Given {
    /// A mask for scores of `[batch, heads, queries]`, to each of which it may be stretched.
    pub(super) fn new(
        mask: Option<&Tensor>,
        [batch, heads, queries]: [usize; 3],
    ) -> Result<Option<Self>> {
        let Some(mask) = mask else { return Ok(None) };
        let tensor = if mask.element() == ElementType::Bool {
            mask.clone()
        } else {
            mask.cast(ElementType::F32)?
        };
        let keys = tensor.shape().last().copied().unwrap_or(0);
        let target = [batch, heads, queries, keys];
        if broadcast(&[tensor.shape(), &target])? != target {
            return Err(Error::format(format!(
                "a mask of {:?} does not fit {target:?}",
                tensor.shape()
            )));
        }

        Ok(Some(Self { steps: stretched(tensor.shape(), &target), tensor, keys }))
    }

    /// Returns the number that is added to a score.
    fn at(&self, start: usize, key: usize) -> f32 {
        if key >= self.keys {
            return f32::NEG_INFINITY;
        }
        let at = start + key * self.steps[3];
        match self.tensor.data() {
            crate::Data::F32(values) => values[at],
            crate::Data::U8(values) if values[at] != 0 => 0.0,
            _ => f32::NEG_INFINITY,
        }
    }
}

/// Rules for which keys each query may attend to.
pub(super) struct Mask {
    pub(super) given: Option<Given>,
    pub(super) causal: bool,
    /// Number of keys that a query may attend to back and ahead; -1 for no bound.
    pub(super) window: (i64, i64),
    /// Position of the first query of each batch among the keys.
    pub(super) offsets: Vec<i64>,
    /// Keys of each batch that count.
    pub(super) valid: Option<Vec<i64>>,
}

impl Mask {
    fn allows(&self, batch: usize, query: usize, key: usize) -> bool {
        let distance = self.offsets[batch].saturating_add(query as i64).saturating_sub(key as i64);
        let (left, right) = self.window;
        (!self.causal || distance >= 0)
            && (left < 0 || distance <= left)
            && (right < 0 || distance.saturating_neg() <= right)
            && self.valid.as_ref().is_none_or(|valid| (key as i64) < valid[batch])
    }

    pub(super) fn apply(&self, batch: usize, head: usize, query: usize, row: &mut [f32]) {
        let steps = self.given.as_ref().map_or(&[0, 0, 0, 0][..], |given| &given.steps);
        let start = batch * steps[0] + head * steps[1] + query * steps[2];
        for (key, score) in row.iter_mut().enumerate() {
            let given = self.given.as_ref().map_or(0.0, |given| given.at(start, key));
            let added = if self.allows(batch, query, key) { given } else { f32::NEG_INFINITY };
            // A masked score counts as nothing even where the product is not a number.
            *score = if added == f32::NEG_INFINITY { added } else { *score + added };
        }
    }
}

fn attention(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (q_heads, kv_heads) = (call.optional_int("q_num_heads"), call.optional_int("kv_num_heads"));
    let together = call.tensor(0)?.rank() == 3;
    let q = Heads::of(call.tensor(0)?, q_heads)?;
    let (past_key, past_value) = (call.optional(4)?, call.optional(5)?);
    let k = Heads::of(call.tensor(1)?, kv_heads)?.after(past_key)?;
    let v = Heads::of(call.tensor(2)?, kv_heads)?.after(past_value)?;
    let mask = mask(call, &q, past_key)?;
    let rules = Rules {
        scale: call.float("scale", 1.0 / (q.size as f32).sqrt()),
        softcap: call.float("softcap", 0.0),
        mask: &|batch, head, query, row| mask.apply(batch, head, query, row),
        shown: shown(call),
    };

    let (y, scores) = attend(call, &q, &k, &v, &rules)?;
    let y = if together { heads_together(&y)? } else { y };
    Ok(vec![y.into(), k.tensor.into(), v.tensor.into(), scores.into()])
}

/// Returns the mask that the inputs and attributes define together.
fn mask(call: &Call<'_>, q: &Heads, past: Option<&Tensor>) -> Result<Mask> {
    let valid = call.optional(6)?.map(Tensor::integers).transpose()?;
    if valid.as_ref().is_some_and(|valid| valid.len() != q.batch) {
        return Err(Error::format("a length is expected for each batch"));
    }

    let past_len = past.and_then(|past| past.shape().get(2).copied()).unwrap_or(0);

    // Lengths without past keys mean a cache outside of the graph (opset 24), which ends with these
    // queries.
    let offsets = match &valid {
        Some(valid) if past.is_none() => {
            valid.iter().map(|len| len.saturating_sub(q.len as i64)).collect()
        }
        _ => vec![past_len as i64; q.batch],
    };

    Ok(Mask {
        given: Given::new(call.optional(3)?, [q.batch, q.heads, q.len])?,
        causal: call.flag("is_causal", false),
        window: (call.int("left_window_size", -1), call.int("right_window_size", -1)),
        offsets,
        valid,
    })
}

fn shown(call: &Call<'_>) -> Shown {
    match (call.outputs() > 3, call.int("qk_matmul_output_mode", 0)) {
        (false, _) => Shown::Nothing,
        (true, 0) => Shown::Products,
        (true, 1) => Shown::Capped,
        (true, 2) => Shown::Masked,
        (true, _) => Shown::Probabilities,
    }
}
