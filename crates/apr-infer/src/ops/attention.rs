//! Attention and rotary positions.

use std::sync::Mutex;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::moving::{joined, transposed};
use super::softmax::single_softmax_row;
use crate::call::Call;
use crate::matrix::{Left, Right, product};
use crate::registry::{Operator, computes};
use crate::shape::{broadcast, stretched};
use crate::workers::{Alone, try_in_pieces};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[computes("Attention", attention), computes("RotaryEmbedding", rotary)];

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
            return Err(Error::format(format!("heads of shape {:?} have not four dimensions", tensor.shape())));
        };
        Ok(Self { tensor, batch, heads, len, size })
    }

    /// From `[batch, length, heads * size]`, or with the heads apart already.
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
    let &[batch, heads, len, size] = tensor.shape() else { return Err(Error::format("heads are expected")) };
    transposed(tensor, &[0, 2, 1, 3])?.reshaped(vec![batch, len, heads * size])
}

/// Which scores are shown as an output.
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

/// How scores become probabilities.
pub(super) struct Rules<'a> {
    pub(super) scale: f32,
    pub(super) softcap: f32,
    /// Adds what a mask says to the scores of a query: batch, head, query, scores. Where nothing may be looked at, the
    /// whole row is negative infinity.
    pub(super) mask: &'a AddMask<'a>,
    pub(super) shown: Shown,
}

/// What queries find: `[batch, heads, queries, value size]`, and the scores that are shown.
pub(super) fn attend(call: &Call<'_>, q: &Heads, k: &Heads, v: &Heads, rules: &Rules<'_>) -> Result<(Tensor, Tensor)> {
    let fits = q.batch == k.batch && k.batch == v.batch && k.heads == v.heads && k.len == v.len && q.size == k.size;
    if !fits || k.heads == 0 || !q.heads.is_multiple_of(k.heads) {
        let shapes = [q, k, v].map(|heads| heads.tensor.shape().to_vec());
        return Err(Error::format(format!("queries, keys and values of {shapes:?} do not go together")));
    }
    let shape = vec![q.batch, q.heads, q.len, v.size];
    let mut out = vec![0.0; call.room(&shape, ElementType::F32)?];
    let score_shape = vec![q.batch, q.heads, q.len, k.len];
    call.room(&[call.workers().count(), q.len, k.len], ElementType::F32)?;
    let shown_len = if rules.shown == Shown::Nothing { 0 } else { call.room(&score_shape, ElementType::F32)? };
    let shown = Mutex::new(vec![0.0_f32; shown_len]);
    let (per_head, group) = (q.len * v.size, q.heads / k.heads);
    if per_head > 0 {
        try_in_pieces(call.workers(), &mut out, per_head, |number, out| {
            let (batch, head) = (number / q.heads, number % q.heads);
            let other = batch * k.heads + head / group;
            let mut scores = vec![0.0; q.len * k.len];
            let left = Left::in_rows(q.head(number)?, q.len, q.size);
            product(left, Right::Columns(k.head(other)?, k.len), &mut scores, &Alone)?;
            let show = |stage: Shown, scores: &[f32]| {
                if stage == rules.shown
                    && let Ok(mut shown) = shown.lock()
                {
                    shown[number * q.len * k.len..][..scores.len()].copy_from_slice(scores);
                }
            };
            rules.probabilities(&mut scores, (batch, head), k.len, show);
            let left = Left::in_rows(&scores, q.len, k.len);
            product(left, Right::Rows(v.head(other)?, v.size), out, &Alone)
        })?;
    }
    let shown = shown.into_inner().unwrap_or_default();
    let shown = if rules.shown == Shown::Nothing { Tensor::row(shown) } else { Tensor::new(score_shape, shown)? };
    Ok((Tensor::new(shape, out)?, shown))
}

impl Rules<'_> {
    fn probabilities(
        &self,
        scores: &mut [f32],
        (batch, head): (usize, usize),
        len: usize,
        show: impl Fn(Shown, &[f32]),
    ) {
        scores.iter_mut().for_each(|score| *score *= self.scale);
        show(Shown::Products, scores);
        if self.softcap > 0.0 {
            scores.iter_mut().for_each(|score| *score = (*score / self.softcap).tanh() * self.softcap);
        }
        show(Shown::Capped, scores);
        for (query, row) in scores.chunks_mut(len.max(1)).enumerate() {
            (self.mask)(batch, head, query, row);
        }
        show(Shown::Masked, scores);
        for row in scores.chunks_mut(len.max(1)) {
            if row.iter().all(|&score| score == f32::NEG_INFINITY) {
                row.fill(0.0);
            } else {
                single_softmax_row(row);
            }
        }
        show(Shown::Probabilities, scores);
    }
}

/// What may be looked at from where.
struct Mask<'a> {
    /// Truth values, or what is added.
    given: Option<&'a Tensor>,
    /// Steps of the given mask along batch, head, query and key, and its number of keys.
    steps: Vec<usize>,
    keys: usize,
    causal: bool,
    /// How far back and ahead a query looks; -1 for no bound.
    window: (i64, i64),
    /// Where the first query of each batch is among the keys.
    offsets: Vec<i64>,
    /// Keys of each batch that count.
    valid: Option<Vec<i64>>,
}

impl Mask<'_> {
    fn allows(&self, batch: usize, query: usize, key: usize) -> bool {
        let distance = query as i64 + self.offsets[batch] - key as i64;
        let (left, right) = self.window;
        (!self.causal || distance >= 0)
            && (left < 0 || distance <= left)
            && (right < 0 || -distance <= right)
            && self.valid.as_ref().is_none_or(|valid| (key as i64) < valid[batch])
    }

    fn apply(&self, batch: usize, head: usize, query: usize, row: &mut [f32]) {
        let start = batch * self.steps[0] + head * self.steps[1] + query * self.steps[2];
        for (key, score) in row.iter_mut().enumerate() {
            let given = match self.given {
                None => 0.0,
                Some(_) if key >= self.keys => f32::NEG_INFINITY,
                Some(mask) => {
                    let at = start + key * self.steps[3];
                    match mask.data() {
                        crate::Data::F32(values) => values[at],
                        crate::Data::U8(values) if values[at] != 0 => 0.0,
                        _ => f32::NEG_INFINITY,
                    }
                }
            };
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
    let (past_key, past_value, lengths) = (call.optional(4)?, call.optional(5)?, call.optional(6)?);
    let past = past_key.and_then(|past| past.shape().get(2).copied()).unwrap_or(0);
    let k = Heads::of(call.tensor(1)?, kv_heads)?.after(past_key)?;
    let v = Heads::of(call.tensor(2)?, kv_heads)?.after(past_value)?;
    // Truth values stay; numbers are added.
    let given = match call.optional(3)? {
        Some(mask) if mask.element() == ElementType::Bool => Some(mask.clone()),
        Some(mask) => Some(mask.cast(ElementType::F32)?),
        None => None,
    };
    let given = given.as_ref();
    let valid = lengths.map(Tensor::integers).transpose()?;
    if valid.as_ref().is_some_and(|valid| valid.len() != q.batch) {
        return Err(Error::format("a length is expected for each batch"));
    }
    let offsets = match &valid {
        Some(valid) if past_key.is_none() => valid.iter().map(|len| len - q.len as i64).collect(),
        _ => vec![past as i64; q.batch],
    };
    let keys = given.and_then(|mask| mask.shape().last().copied()).unwrap_or(0);
    let target = [q.batch, q.heads, q.len, if given.is_some() { keys } else { k.len }];
    let steps = match given {
        Some(mask) if broadcast(&[mask.shape(), &target]).ok().as_deref() == Some(&target[..]) => {
            stretched(mask.shape(), &target)
        }
        Some(mask) => return Err(Error::format(format!("a mask of {:?} does not fit {target:?}", mask.shape()))),
        None => vec![0; 4],
    };
    let window = (call.int("left_window_size", -1), call.int("right_window_size", -1));
    let mask = Mask { given, steps, keys, causal: call.flag("is_causal", false), window, offsets, valid };
    let shown = match (call.outputs() > 3, call.int("qk_matmul_output_mode", 0)) {
        (false, _) => Shown::Nothing,
        (true, 0) => Shown::Products,
        (true, 1) => Shown::Capped,
        (true, 2) => Shown::Masked,
        (true, _) => Shown::Probabilities,
    };
    let rules = Rules {
        scale: call.float("scale", 1.0 / (q.size as f32).sqrt()),
        softcap: call.float("softcap", 0.0),
        mask: &|batch, head, query, row| mask.apply(batch, head, query, row),
        shown,
    };
    let (y, scores) = attend(call, &q, &k, &v, &rules)?;
    let y = if together { heads_together(&y)? } else { y };
    Ok(vec![y.into(), k.tensor.into(), v.tensor.into(), scores.into()])
}

/// Turns pairs of elements by the angle of their position.
pub(super) struct Rotation<'a> {
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    /// Number of pairs; elements after them stay.
    pub(super) pairs: usize,
    /// Whether the elements of a pair are neighbours, rather than half a row apart.
    pub(super) interleaved: bool,
}

impl Rotation<'_> {
    /// Turns a row by the angles in row `position` of the tables.
    pub(super) fn turn(&self, row: &mut [f32], position: usize) {
        let angles = position * self.pairs..(position + 1) * self.pairs;
        for (pair, (cos, sin)) in self.cos[angles.clone()].iter().zip(&self.sin[angles]).enumerate() {
            let (a, b) = if self.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + self.pairs) };
            let (x, y) = (row[a], row[b]);
            row[a] = cos * x - sin * y;
            row[b] = sin * x + cos * y;
        }
    }
}

fn rotary(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, cos, sin) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let shape = x.shape().to_vec();
    // Rows are heads at a position: [batch, heads, length, size], or [batch, length, heads * size].
    let (batch, len, size, by_length) = match shape[..] {
        [batch, _, len, size] => (batch, len, size, true),
        [batch, len, width] => {
            let heads = usize::try_from(call.int("num_heads", 0)).unwrap_or(0);
            let size = width.checked_div(heads).ok_or_else(|| Error::format("num_heads is missing"))?;
            (batch, len, size, false)
        }
        _ => return Err(Error::format(format!("{shape:?} has neither three nor four dimensions"))),
    };
    let wanted = usize::try_from(call.int("rotary_embedding_dim", 0)).unwrap_or(0);
    let turned = if wanted == 0 { size } else { wanted };
    let pairs = turned / 2;
    if turned > size || size == 0 || cos.shape() != sin.shape() || cos.shape().last() != Some(&pairs) {
        return Err(Error::format(format!("tables of {:?} do not fit {shape:?}", cos.shape())));
    }
    let rows = cos.len().checked_div(pairs).unwrap_or(0);
    let positions: Vec<usize> = match call.optional(3)? {
        Some(ids) => {
            let ids = ids.integers()?;
            ids.into_iter().map(|id| super::gather::position(id, rows)).collect::<Result<_>>()?
        }
        None => (0..rows).collect(),
    };
    if positions.len() != batch * len {
        return Err(Error::format(format!("{} positions do not fit {batch} x {len}", positions.len())));
    }
    let rotation =
        Rotation { cos: cos.values()?, sin: sin.values()?, pairs, interleaved: call.flag("interleaved", false) };
    let mut values = x.values::<f32>()?.to_vec();
    let heads = values.len().checked_div(batch * len * size).unwrap_or(0);
    for (number, row) in values.chunks_mut(size).enumerate() {
        let (batch, at) = if by_length {
            (number / (heads * len), number % len)
        } else {
            (number / (heads * len), number / heads % len)
        };
        rotation.turn(row, positions[batch * len + at]);
    }
    Ok(vec![Tensor::new(shape, values)?.into()])
}
