//! Operators of ONNX Runtime's own domain that language models are exported with.

use std::ops::Range;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::attention::{Given, Heads, Mask, Rules, Shown, attend, heads_together};
use super::binary::{Sum, join};
use super::gather::position;
use super::rotary::Rotation;
use crate::call::Call;
use crate::cast::singles;
use crate::matrix::{Left, Right, Rows, Scratch, product};
use crate::moving::{part, transposed};
use crate::operator::{Operator, computes};
use crate::shape::count;
use crate::store::{Bytes, Store};
use crate::weight::Weight;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("com.microsoft::MultiHeadAttention", multi_head),
    computes("com.microsoft::GroupQueryAttention", grouped),
    computes("com.microsoft::MatMulNBits", matmul_n_bits).decodes(),
];

pub(super) fn unsupported(what: &str) -> Error {
    Error::version(format!("{what} is not computed here"))
}

pub(super) fn positive(call: &Call<'_>, name: &str) -> Result<usize> {
    let value = usize::try_from(call.int(name, 0)).unwrap_or(0);
    if value == 0 { Err(Error::format(format!("{name} is missing"))) } else { Ok(value) }
}

/// Returns one of several tensors that are adjacent along a dimension, as `[batch, heads, length,
/// size]`.
fn unpacked(packed: &Tensor, number: usize) -> Result<Heads> {
    let &[batch, len, heads, _, size] = packed.shape() else {
        return Err(Error::format("five dimensions are expected"));
    };
    let one = part(packed, 3, number, 1)?.reshaped(vec![batch, len, heads, size])?;
    Heads::new(transposed(&one, &[0, 2, 1, 3])?)
}

/// Queries, keys and values of an attention, before anything that is kept of earlier tokens.
fn projections(call: &Call<'_>, heads: usize) -> Result<[Heads; 3]> {
    let query = call.tensor(0)?;
    let bias = call.optional(3)?;
    if query.rank() == 5 || call.optional(1)?.is_some_and(|key| key.rank() == 5) {
        if bias.is_some() {
            return Err(unsupported("a bias of packed projections"));
        }
        return match call.optional(1)? {
            None => Ok([unpacked(query, 0)?, unpacked(query, 1)?, unpacked(query, 2)?]),
            Some(both) => {
                Ok([Heads::of(query, Some(heads as i64))?, unpacked(both, 0)?, unpacked(both, 1)?])
            }
        };
    }

    let mut start = 0;
    let mut one = |position: usize| -> Result<Heads> {
        let tensor = call.tensor(position)?;
        let width = tensor.shape().last().copied().unwrap_or(0);

        // One vector has the biases of all three, one after the other.
        let own = bias
            .filter(|_| tensor.rank() == 3)
            .map(|bias| part(bias, 0, start, width))
            .transpose()?;
        start += width;
        match own {
            Some(bias) => Heads::of(&join(call, tensor, &bias, Sum)?, Some(heads as i64)),
            None => Heads::of(tensor, Some(heads as i64)),
        }
    };

    Ok([one(0)?, one(1)?, one(2)?])
}

/// Keys that count, in the forms of ONNX Runtime: a length for each batch, or a number for each
/// key, with 0 for keys that do not count.
pub(super) struct Padding {
    keys: Vec<i64>,
    form: Form,
}

/// Form in which a padding mask marks the keys that count.
#[derive(Clone, Copy)]
enum Form {
    /// Number of keys of each batch that count.
    Lengths,
    /// Ends of all batches, and then their beginnings.
    Bounds(usize),
    /// A number for each key, with the steps along batch, query and key.
    Numbers([usize; 3]),
}

impl Padding {
    pub(super) fn of(mask: &Tensor, batch: usize, queries: usize, keys: usize) -> Result<Self> {
        let form = match *mask.shape() {
            [len] if len == batch => Form::Lengths,
            [rows, len] if rows == batch && len == keys => Form::Numbers([keys, 0, 1]),
            [rows, own, len] if rows == batch && own == queries && len == keys => {
                Form::Numbers([queries * keys, keys, 1])
            }
            _ => return Err(unsupported(&format!("a padding mask of {:?}", mask.shape()))),
        };
        Ok(Self { keys: mask.integers()?, form })
    }

    /// Reads a mask like [`of`](Self::of), but also accepts the ends of all batches before their
    /// beginnings.
    pub(super) fn bounded(
        mask: &Tensor,
        batch: usize,
        queries: usize,
        keys: usize,
    ) -> Result<Self> {
        match *mask.shape() {
            [len] if len == 2 * batch => {
                Ok(Self { keys: mask.integers()?, form: Form::Bounds(batch) })
            }
            _ => Self::of(mask, batch, queries, keys),
        }
    }

    fn counts(&self, batch: usize, query: usize, key: usize) -> bool {
        match self.form {
            Form::Lengths => (key as i64) < self.keys[batch],
            Form::Bounds(batches) => {
                (self.keys[batches + batch]..self.keys[batch]).contains(&(key as i64))
            }
            Form::Numbers(steps) => {
                self.keys[batch * steps[0] + query * steps[1] + key * steps[2]] > 0
            }
        }
    }

    /// Adds a number to the scores of keys that do not count. ONNX Runtime adds no negative
    /// infinity: a row without keys still has shares.
    pub(super) fn add(&self, batch: usize, query: usize, masked: f32, row: &mut [f32]) {
        for (key, score) in row.iter_mut().enumerate() {
            *score += if self.counts(batch, query, key) { 0.0 } else { masked };
        }
    }
}

/// Inputs: query, key, value, bias, padding mask, what is added to scores, past key, past value.
fn multi_head(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let heads = positive(call, "num_heads")?;
    let [q, k, v] = projections(call, heads)?;
    let past = call.optional(6)?.map_or(0, |past| past.shape().get(2).copied().unwrap_or(0));
    let (k, v) = (k.after(call.optional(6)?)?, v.after(call.optional(7)?)?);
    let padding = match call.optional(4)? {
        Some(mask) => Some(Padding::of(mask, q.batch, q.len, k.len)?),
        None => None,
    };
    let masked = call.float("mask_filter_value", -10000.0);
    let mask = Mask {
        given: Given::new(call.optional(5)?, [q.batch, q.heads, q.len])?,
        causal: call.flag("unidirectional", false),
        window: (-1, -1),
        offsets: vec![past as i64; q.batch],
        valid: None,
    };

    let add = |batch: usize, head: usize, query: usize, row: &mut [f32]| {
        mask.apply(batch, head, query, row);
        if let Some(padding) = &padding {
            padding.add(batch, query, masked, row);
        }
    };

    // 0 stands for the default in ONNX Runtime.
    let scale = Some(call.float("scale", 0.0)).filter(|&scale| scale != 0.0);
    let shown = if call.outputs() > 3 { Shown::Masked } else { Shown::Nothing };
    let rules = Rules {
        scale: scale.unwrap_or(1.0 / (q.size as f32).sqrt()),
        softcap: 0.0,
        mask: &add,
        shown,
    };

    let (y, scores) = attend(call, &q, &k, &v, &rules)?;
    Ok(vec![heads_together(&y)?.into(), k.tensor.into(), v.tensor.into(), scores.into()])
}

/// Positions of the tokens of an attention with a cache.
struct Places {
    /// Tokens of each batch that were there before.
    past: Vec<usize>,
    /// Tokens of each batch, with the new ones.
    total: Vec<usize>,
    /// Length of the resulting cache.
    capacity: usize,
}

impl Places {
    fn of(call: &Call<'_>, batch: usize, len: usize) -> Result<Self> {
        let sizes = |position: usize| -> Result<Vec<usize>> {
            let wrong = |_| Error::format("a length is negative");
            call.tensor(position)?
                .integers()?
                .into_iter()
                .map(|len| usize::try_from(len).map_err(wrong))
                .collect()
        };

        // `seqlens_k` names the last place of each text, not its length.
        let total: Vec<_> = sizes(5)?.into_iter().map(|last| last.saturating_add(1)).collect();
        let &[longest] = &sizes(6)?[..] else {
            return Err(Error::format("one total length is expected"));
        };
        if total.len() != batch {
            return Err(Error::format("a length is expected for each batch"));
        }

        let kept = call.optional(3)?.map_or(0, |past| past.shape().get(2).copied().unwrap_or(0));

        // Where all tokens are new, shorter texts are padded at their ends.
        let before = |total: &usize| if longest == len { 0 } else { total.saturating_sub(len) };
        let past: Vec<_> = total.iter().map(before).collect();
        let capacity = kept.max(longest);
        let fits = |past: &usize| {
            *past <= kept && past.checked_add(len).is_some_and(|end| end <= capacity)
        };
        if !past.iter().all(fits) || total.iter().any(|&total| total > capacity) {
            return Err(Error::format(format!(
                "the lengths do not fit a cache of {kept} tokens and {len} new ones"
            )));
        }

        Ok(Self { past, total, capacity })
    }

    /// Appends new keys or values to those that are kept.
    fn joined(&self, call: &Call<'_>, past: Option<&Tensor>, new: &Heads) -> Result<Heads> {
        let shape = vec![new.batch, new.heads, self.capacity, new.size];
        let mut out = crate::pool::zeros(call.room(&shape, ElementType::F32)?);
        let kept = past.map_or(0, |past| past.shape().get(2).copied().unwrap_or(0));
        if past.is_some_and(|past| past.shape() != [new.batch, new.heads, kept, new.size]) {
            return Err(Error::format("the cache does not fit the new keys or values"));
        }

        let fits = |past: &usize| {
            past.checked_add(new.len).is_some_and(|end| end <= self.capacity) && *past <= kept
        };
        if self.past.len() != new.batch || !self.past.iter().all(fits) {
            return Err(Error::format("the new keys or values do not fit the queries"));
        }

        let old = past.map_or(Ok(&[][..]), Tensor::values::<f32>)?;
        let values = new.tensor.values::<f32>()?;
        for (number, out) in out.chunks_mut((self.capacity * new.size).max(1)).enumerate() {
            let before = self.past[number / new.heads] * new.size;
            if before > 0 {
                out[..before].copy_from_slice(&old[number * kept * new.size..][..before]);
            }
            let len = new.len * new.size;
            out[before..before + len].copy_from_slice(&values[number * len..][..len]);
        }

        Heads::new(Tensor::new(shape, out)?)
    }
}

/// Returns queries, keys and values, which may be passed as one tensor.
fn grouped_projections(call: &Call<'_>, heads: usize, kv_heads: usize) -> Result<[Heads; 3]> {
    let query = call.tensor(0)?;
    let as_heads = |tensor: &Tensor, heads: usize| Heads::of(tensor, Some(heads as i64));
    if let (Some(key), Some(value)) = (call.optional(1)?, call.optional(2)?) {
        return Ok([as_heads(query, heads)?, as_heads(key, kv_heads)?, as_heads(value, kv_heads)?]);
    }
    let width = query.shape().get(2).copied().unwrap_or(0);
    let size = width / heads.saturating_add(kv_heads.saturating_mul(2));
    let cut =
        |first: usize, heads: usize| as_heads(&part(query, 2, first * size, heads * size)?, heads);
    Ok([cut(0, heads)?, cut(heads, kv_heads)?, cut(heads + kv_heads, kv_heads)?])
}

/// Turns heads by the positions of their tokens.
fn turned(call: &Call<'_>, heads: Heads, places: &Places) -> Result<Heads> {
    let (cos, sin) = (call.tensor(7)?, call.tensor(8)?);
    let turned = cos.shape().last().map_or(0, |pairs| 2 * pairs);
    let rotation =
        Rotation::new(cos, sin, (heads.size, turned), call.flag("rotary_interleaved", false))?;
    let given = call.optional(9)?.map(Tensor::integers).transpose()?;
    if given.as_ref().is_some_and(|given| given.len() != heads.batch * heads.len) {
        return Err(Error::format("a position is expected for each token"));
    }
    if given.is_none() && places.past.len() != heads.batch {
        return Err(Error::format("queries and keys are not as many"));
    }

    let Heads { tensor, batch, heads, len, size } = heads;
    let mut values = tensor.into_values::<f32>()?;
    for (number, row) in values.chunks_exact_mut(size.max(1)).enumerate() {
        let (batch, at) = (number / (heads * len), number % len);
        let id = given
            .as_ref()
            .map_or((places.past[batch] + at) as i64, |given| given[batch * len + at]);
        rotation.turn(row, position(id, rotation.rows())?);
    }

    Heads::new(Tensor::new(vec![batch, heads, len, size], values)?)
}

/// Inputs: query, key, value, past key, past value, last place of each batch, total length,
/// cosines, sines, positions, what is added to scores.
fn grouped(call: &mut Call<'_>) -> Result<Vec<Value>> {
    if call.int("smooth_softmax", 0) > 0 || call.optional(11)?.is_some() {
        return Err(unsupported("a softmax with a sink"));
    }

    let (heads, kv_heads) = (positive(call, "num_heads")?, positive(call, "kv_num_heads")?);
    let [mut q, mut k, v] = grouped_projections(call, heads, kv_heads)?;
    let places = Places::of(call, q.batch, q.len)?;
    if call.flag("do_rotary", false) {
        (q, k) = (turned(call, q, &places)?, turned(call, k, &places)?);
    }

    let k = places.joined(call, call.optional(3)?, &k)?;
    let v = places.joined(call, call.optional(4)?, &v)?;
    let window = call.int("local_window_size", -1);
    let mask = Mask {
        given: Given::new(call.optional(10)?, [q.batch, q.heads, q.len])?,
        causal: true,
        // The window counts the token itself.
        window: (if window > 0 { window - 1 } else { -1 }, -1),
        offsets: places.past.iter().map(|&past| past as i64).collect(),
        valid: Some(places.total.iter().map(|&total| total as i64).collect()),
    };

    let scale = Some(call.float("scale", 0.0)).filter(|&scale| scale != 0.0);
    let rules = Rules {
        scale: scale.unwrap_or(1.0 / (q.size as f32).sqrt()),
        softcap: call.float("softcap", 0.0),
        mask: &|batch, head, query, row| mask.apply(batch, head, query, row),
        shown: Shown::Nothing,
    };

    let (y, _) = attend(call, &q, &k, &v, &rules)?;
    Ok(vec![heads_together(&y)?.into(), k.tensor.into(), v.tensor.into()])
}

/// A matrix of small integers, packed by blocks along its stored rows, each with a scale and a zero
/// point.
struct Packed<'a> {
    /// Bytes of all rows, or their location in the checkpoint.
    rows: Source<'a>,
    scales: Vec<f32>,
    zeros: Vec<f32>,
    sizes: PackedSizes,
}

/// Bytes of the packed matrix.
enum Source<'a> {
    Memory(&'a [u8]),
    Stored(&'a Weight<'a>, &'a Store<'a>),
}

#[derive(Clone, Copy)]
struct PackedSizes {
    /// Number of stored rows, which are the columns of the multiplied matrix. `depth` is the number
    /// of their elements.
    count: usize,
    depth: usize,
    bits: usize,
    block: usize,
}

impl PackedSizes {
    fn of(call: &Call<'_>) -> Result<Self> {
        let sizes = Self {
            count: positive(call, "N")?,
            depth: positive(call, "K")?,
            bits: usize::try_from(call.int("bits", 4)).unwrap_or(0),
            block: positive(call, "block_size")?,
        };

        let bits = sizes.block.checked_mul(sizes.bits).filter(|bits| bits.is_multiple_of(8));
        if ![2, 4, 8].contains(&sizes.bits) || bits.is_none() {
            return Err(unsupported(&format!(
                "blocks of {} elements of {} bits",
                sizes.block, sizes.bits
            )));
        }

        Ok(sizes)
    }

    fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block)
    }

    /// Bytes of a stored row.
    fn row_bytes(&self) -> usize {
        self.blocks().saturating_mul(self.block * self.bits / 8)
    }

    /// Elements of `bits` bits, the first in the lowest.
    fn element(&self, bytes: &[u8], at: usize) -> u8 {
        let per_byte = 8 / self.bits;
        let mask = ((1_u16 << self.bits) - 1) as u8;
        bytes[at / per_byte] >> (at % per_byte * self.bits) & mask
    }
}

impl Rows for Packed<'_> {
    fn row_len(&self) -> usize {
        self.sizes.depth
    }

    fn depth(&self) -> usize {
        self.sizes.depth
    }

    fn width(&self) -> usize {
        self.sizes.count
    }

    fn is_transposed(&self) -> bool {
        true
    }

    fn decode(
        &self,
        rows: Range<usize>,
        first: usize,
        columns: usize,
        _: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (len, blocks) = (self.sizes.row_bytes(), self.sizes.blocks());
        let bytes = match self.rows {
            Source::Memory(bytes) => Bytes::Borrowed(&bytes[rows.start * len..rows.end * len]),
            Source::Stored(weight, store) => {
                weight.raw(store, rows.start * len, rows.len() * len)?
            }
        };

        for (row, bytes) in rows.zip(bytes.get().chunks_exact(len.max(1))) {
            let of = |at: usize| {
                let block = row * blocks + at / self.sizes.block;
                (f32::from(self.sizes.element(bytes, at)) - self.zeros[block]) * self.scales[block]
            };
            out.extend((first..first + columns).map(of));
        }

        Ok(())
    }
}

/// Zero points of all blocks: packed as the elements are, or of the type of the scales.
fn zero_points(zeros: Option<&Tensor>, sizes: PackedSizes) -> Result<Vec<f32>> {
    let (blocks, total) = (sizes.blocks(), sizes.blocks().saturating_mul(sizes.count));
    let wrong =
        || Error::format(format!("zero points do not fit {} rows of {blocks} blocks", sizes.count));

    // Without zero points, `MatMulNBits` takes the middle of the range.
    let Some(zeros) = zeros else { return Ok(vec![(1_u16 << (sizes.bits - 1)).into(); total]) };
    if zeros.element() != ElementType::U8 {
        let values = singles(zeros)?;
        return if values.len() == total { Ok(values) } else { Err(wrong()) };
    }

    // The zero points of each row begin at a byte of their own.
    let (bytes, len) = (zeros.values::<u8>()?, (blocks * sizes.bits).div_ceil(8));
    if bytes.len() != len * sizes.count {
        return Err(wrong());
    }

    let of = |at: usize| f32::from(sizes.element(&bytes[at / blocks * len..], at % blocks));
    Ok((0..total).map(of).collect())
}

/// Inputs: a, packed matrix, scales, zero points, groups, bias.
fn matmul_n_bits(call: &mut Call<'_>) -> Result<Vec<Value>> {
    // The matrix itself stays packed.
    call.decode_inputs(&[0, 2, 3, 5])?;
    if call.optional_value(4).is_some() {
        return Err(unsupported("an order of groups"));
    }

    let sizes = PackedSizes::of(call)?;
    let (a, scales) = (call.tensor(0)?, singles(call.tensor(2)?)?);
    let total = sizes.count.checked_mul(sizes.row_bytes());
    let (rows, len) = match call.value(1)? {
        Value::Weight(handle) => {
            let weight = call.environment.weight(handle);
            let len = weight.raw_len().filter(|_| handle.looks.is_empty());
            (Source::Stored(weight, call.environment.store()), len)
        }
        value => {
            let bytes = value.tensor()?.values::<u8>()?;
            (Source::Memory(bytes), Some(bytes.len()))
        }
    };

    if total.is_none() || len != total || scales.len() != sizes.count * sizes.blocks() {
        return Err(Error::format(format!(
            "the matrix is not {} rows of {} elements",
            sizes.count, sizes.depth
        )));
    }

    let Some((&depth, outer)) = a.shape().split_last() else {
        return Err(Error::format("rows are expected"));
    };
    if depth != sizes.depth {
        return Err(Error::format(format!(
            "rows of {depth} and a matrix of {} can't be multiplied",
            sizes.depth
        )));
    }

    let zeros = zero_points(call.optional(3)?, sizes)?;
    let shape = [outer, &[sizes.count]].concat();
    call.multiplications(&[count(outer), depth, sizes.count])?;
    call.work(&[depth, sizes.count])?;
    let mut out = crate::pool::any(call.room(&shape, ElementType::F32)?);
    let packed = Packed { rows, scales, zeros, sizes };
    product(
        Left::in_rows(a.values()?, count(outer), depth),
        Right::Stored(&packed),
        &mut out,
        call.workers(),
    )?;
    let result = Tensor::new(shape, out)?;
    match call.optional(5)? {
        Some(bias) => Ok(vec![join(call, &result, bias, Sum)?.into()]),
        None => Ok(vec![result.into()]),
    }
}
