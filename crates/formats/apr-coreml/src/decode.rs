//! Reads any range of a tensor, computing compressed ones as it goes.

use std::borrow::Cow;
use std::sync::Arc;

use apr_core::{ByteSource, DType, Error, Result, StoredRange};
use apr_tensor::cast::cast_values;
use apr_tensor::element::widen_f32;

use crate::tensor::{BitOrder, ByBlock, Bytes, Elements, Encoding, Linear, Tensor, Vectors};

/// The files of a model.
pub(crate) type Sources = [Arc<dyn ByteSource>];

/// Elements that are computed at a time.
const PIECE: usize = 4096;

/// Maximum distance of the first and last value that are read together.
const SPREAD: u64 = 16 * PIECE as u64;

/// Elements between the ranks of a mask that are kept.
const RANKED: u64 = PIECE as u64;

impl Tensor {
    /// Fills `buf` with the tensor's bytes from `offset` on, which were compared with its length.
    ///
    /// # Errors
    /// E002 for indices and masks that don't fit, E007 when reading fails.
    pub(crate) fn read(&self, sources: &Sources, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Elements::Stored { bytes, encoding: Encoding::Whole(_) } = &self.elements {
            return read_bytes(sources, bytes, offset, buf);
        }

        let width = self.dtype.block_bytes();
        let (mut at, mut rest) = (offset, buf);
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let first = at / width;
            let skipped = usize::try_from(at % width).unwrap_or_default();
            let wanted = (skipped + rest.len()).div_ceil(usize::try_from(width).unwrap_or(1));
            values.resize(wanted.min(PIECE), 0.0);
            self.floats(sources, first, &mut values)?;
            encode(self.dtype, &values, &mut bytes);
            let found = bytes.get(skipped..).unwrap_or_default();
            let len = found.len().min(rest.len());
            let (out, others) = rest.split_at_mut(len);
            out.copy_from_slice(&found[..len]);
            at += len as u64;
            rest = others;
        }
        Ok(())
    }

    /// Puts the values from element `first` on into `out`: at most [`PIECE`].
    fn floats(&self, sources: &Sources, first: u64, out: &mut [f32]) -> Result<()> {
        match &self.elements {
            Elements::Stored { bytes, encoding } => {
                stored_floats(sources, bytes, *encoding, first, out)
            }
            Elements::Cast { of } => of.floats(sources, first, out),
            Elements::Scaled { quants, scales, offsets, rule } => {
                quants.floats(sources, first, out)?;
                let scales = scales.of_elements(sources, first, out.len())?;
                let of_offset = offsets.as_ref().map(|offsets| offsets.values.dtype);
                let offsets = offsets.as_ref();
                let offsets = offsets.map(|of| of.of_elements(sources, first, out.len()));
                let offsets = offsets.transpose()?;
                if *rule == Linear::Blockwise && quants.dtype.is_float() {
                    round(self.dtype, out);
                }
                let differences = match (of_offset, quants.dtype.is_float()) {
                    (Some(DType::F16), _) | (Some(DType::I8 | DType::U8), true) => self.dtype,
                    _ => DType::F32,
                };
                let rule = (*rule, differences);
                dequantize(out, &scales, offsets.as_deref(), rule, self.dtype);
                Ok(())
            }
            Elements::Looked { indices, tables, entries, vectors } => {
                let Some(vectors) = vectors else {
                    indices.floats(sources, first, out)?;
                    let blocks = tables.blocks(first, out.len());
                    let tables = tables.window(sources, &blocks, *entries)?;
                    return look_up(out, &blocks, &tables, *entries, 1, |_| 0);
                };
                vectors.runs(first, out, |position, of_vector, run| {
                    let first = vectors.first(position);
                    let mut found = vec![0.0; vectors.span(position, run.len())];
                    indices.floats(sources, first, &mut found)?;
                    let of_index = tables.blocks(first, found.len());
                    let at = |element: usize| vectors.index(position, element, first);
                    let mut own = Vec::with_capacity(run.len());
                    for (element, value) in run.iter_mut().enumerate() {
                        *value = found[at(element)];
                        own.push(of_index[at(element)]);
                    }
                    let inside = |element: usize| vectors.inside(of_vector, position, element);
                    let tables = tables.window(sources, &own, *entries * vectors.len)?;
                    look_up(run, &own, &tables, *entries, vectors.len, inside)
                })
            }
            Elements::Masked { dense, mask } => {
                dense.floats(sources, first, out)?;
                let mut set = vec![0.0; out.len()];
                mask.floats(sources, first, &mut set)?;
                for (value, set) in out.iter_mut().zip(set) {
                    if set == 0.0 {
                        *value = 0.0;
                    }
                }
                Ok(())
            }
            Elements::Scattered { listed, mask, ranks } => {
                let ranks = ranks.get_or_init(|| ranked(sources, mask, listed.len()));
                let ranks = ranks.as_ref().map_err(Clone::clone)?;
                let start = first / RANKED;
                let base = usize::try_from(start).ok().and_then(|start| ranks.get(start));
                // From the element that the rank is of, at most as many as there are between two.
                let mut before = vec![0.0; usize::try_from(first % RANKED).unwrap_or_default()];
                mask.floats(sources, start * RANKED, &mut before)?;
                let rank = base.copied().unwrap_or_default() + set(&before);
                mask.floats(sources, first, out)?;
                let mut own = vec![0.0; usize::try_from(set(out)).unwrap_or_default()];
                listed.floats(sources, rank, &mut own)?;
                let mut own = own.into_iter();
                for value in out.iter_mut().filter(|value| **value != 0.0) {
                    *value = own.next().unwrap_or_default();
                }
                Ok(())
            }
            Elements::Repeated { of, vectors } => vectors.runs(first, out, |position, _, run| {
                let first = vectors.first(position);
                let mut found = vec![0.0; vectors.span(position, run.len())];
                of.floats(sources, first, &mut found)?;
                for (element, value) in run.iter_mut().enumerate() {
                    *value = found[vectors.index(position, element, first)];
                }
                Ok(())
            }),
        }
    }

    /// Returns all values, which remain in memory. Their number was checked against the limits.
    fn all(&self, sources: &Sources) -> Result<&[f32]> {
        let read = || {
            let len = usize::try_from(self.len()).map_err(|_| Error::memory("a table is too long"));
            let mut values = vec![0.0; len?];
            for (first, piece) in (0..).step_by(PIECE).zip(values.chunks_mut(PIECE)) {
                self.floats(sources, first, piece)?;
            }
            Ok(values)
        };
        self.values.get_or_init(read).as_deref().map_err(Clone::clone)
    }
}

/// Returns the number of set elements of a mask.
fn set(mask: &[f32]) -> u64 {
    mask.iter().filter(|value| **value != 0.0).count() as u64
}

/// Returns the number of set elements before every [`RANKED`]th element of a mask.
///
/// Fails if the mask does not set `listed` elements.
fn ranked(sources: &Sources, mask: &Tensor, listed: u64) -> Result<Vec<u64>> {
    let (mut ranks, mut total, mut at) = (Vec::new(), 0, 0);
    let mut piece = Vec::new();
    while at < mask.len() {
        ranks.push(total);
        piece.resize(usize::try_from((mask.len() - at).min(RANKED)).unwrap_or_default(), 0.0);
        mask.floats(sources, at, &mut piece)?;
        total += set(&piece);
        at += RANKED;
    }
    if total != listed {
        let message = format!("its mask sets {total} elements, and {listed} are stored");
        return Err(Error::corrupt(message).at(mask.range().offset));
    }
    Ok(ranks)
}

/// A window of values that contains the requested ones.
struct Window<'a> {
    start: usize,
    values: Cow<'a, [f32]>,
}

impl Window<'_> {
    fn value(&self, at: usize) -> Option<f32> {
        self.values.get(at.checked_sub(self.start)?).copied()
    }
}

impl ByBlock {
    /// Returns the block of each of `len` elements.
    fn blocks(&self, first: u64, len: usize) -> Vec<usize> {
        let mut blocks = vec![0; len];
        self.grid.blocks(first, &mut blocks);
        blocks
    }

    /// Returns the value of each of `len` elements.
    fn of_elements(&self, sources: &Sources, first: u64, len: usize) -> Result<Vec<f32>> {
        let blocks = self.blocks(first, len);
        let window = self.window(sources, &blocks, 1)?;
        let of_block = |block: &usize| window.value(*block);
        let values: Option<Vec<f32>> = blocks.iter().map(of_block).collect();
        values.ok_or_else(|| Error::corrupt("there are fewer scales than blocks"))
    }

    /// Returns the values of these blocks, with `of_each` values per block.
    fn window(&self, sources: &Sources, blocks: &[usize], of_each: u64) -> Result<Window<'_>> {
        let first = blocks.iter().min().copied().unwrap_or_default() as u64;
        let last = blocks.iter().max().copied().unwrap_or_default() as u64;
        let start = first.saturating_mul(of_each);
        let end = (last + 1).saturating_mul(of_each).min(self.values.len()).max(start);
        // Few values stay in memory, and so do those that lie far apart.
        if self.values.len() <= PIECE as u64 || end - start > SPREAD {
            return Ok(Window { start: 0, values: Cow::Borrowed(self.values.all(sources)?) });
        }
        let mut values = vec![0.0; usize::try_from(end - start).unwrap_or_default()];
        for (first, piece) in (start..).step_by(PIECE).zip(values.chunks_mut(PIECE)) {
            self.values.floats(sources, first, piece)?;
        }
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        Ok(Window { start, values: Cow::Owned(values) })
    }
}

fn encode(dtype: DType, values: &[f32], bytes: &mut Vec<u8>) {
    bytes.clear();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small integers")]
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            cast_values(values, dtype, bytes);
        }
        DType::I8 => bytes.extend(values.iter().map(|value| (*value as i8).cast_unsigned())),
        _ => bytes.extend(values.iter().map(|value| *value as u8)),
    }
}

fn read_bytes(sources: &Sources, bytes: &Bytes, offset: u64, buf: &mut [u8]) -> Result<()> {
    match bytes {
        Bytes::File(StoredRange { file, offset: start, .. }) => {
            sources[*file].read_at(start + offset, buf)
        }
        Bytes::Kept(bytes, _) => bytes.read_at(offset, buf),
    }
}

fn stored_floats(
    sources: &Sources,
    bytes: &Bytes,
    encoding: Encoding,
    first: u64,
    out: &mut [f32],
) -> Result<()> {
    let width = encoding.width();
    let start = first * width / 8;
    let end = ((first + out.len() as u64) * width).div_ceil(8);
    let mut raw = vec![0; usize::try_from(end - start).unwrap_or_default()];
    read_bytes(sources, bytes, start, &mut raw)?;
    let Encoding::Bits { bits, signed, order } = encoding else {
        let mut values = Vec::with_capacity(out.len());
        widen_f32(encoding.dtype(), &raw, &mut values);
        out.copy_from_slice(&values);
        return Ok(());
    };

    let mut at = usize::try_from(first * width - 8 * start).unwrap_or_default();
    for value in out {
        let (byte, shift) = (at / 8, at % 8);
        // At most eight bits, which are in at most two bytes.
        let next = raw.get(byte + 1).copied().unwrap_or_default();
        let bits_left = 16 - bits;
        let number = match order {
            BitOrder::LowestFirst => {
                (u16::from_le_bytes([raw[byte], next]) >> shift) << bits_left >> bits_left
            }
            BitOrder::HighestFirst => (u16::from_be_bytes([raw[byte], next]) << shift) >> bits_left,
        };
        *value = if signed {
            f32::from((number << bits_left).cast_signed() >> bits_left)
        } else {
            f32::from(number)
        };
        at += usize::try_from(width).unwrap_or_default();
    }
    Ok(())
}

/// Dequantizes integers in place, with a scale and an optional offset for each.
///
/// `differences` is the precision of the products: the precision of the scales if NumPy subtracts
/// in it, and single precision if integers of eight bits are exact.
fn dequantize(
    values: &mut [f32],
    scales: &[f32],
    offsets: Option<&[f32]>,
    (rule, differences): (Linear, DType),
    dtype: DType,
) {
    if rule == Linear::Network {
        for (at, (value, scale)) in values.iter_mut().zip(scales).enumerate() {
            let offset = offsets.and_then(|offsets| offsets.get(at)).copied().unwrap_or_default();
            let exact = f64::from(*value) * f64::from(*scale) + f64::from(offset);
            #[allow(clippy::cast_possible_truncation, reason = "rounded, as coremltools does")]
            let rounded = exact as f32;
            *value = rounded;
        }
        return;
    }

    if let Some(offsets) = offsets {
        values.iter_mut().zip(offsets).for_each(|(value, offset)| *value -= offset);
        if rule == Linear::Blockwise {
            round(differences, values);
        }
    }
    values.iter_mut().zip(scales).for_each(|(value, scale)| *value *= scale);
    // What is computed from them takes the rounded values.
    round(dtype, values);
}

/// Rounds values to a dtype.
fn round(dtype: DType, values: &mut [f32]) {
    if dtype != DType::F32 {
        let (mut bytes, mut rounded) = (Vec::new(), Vec::new());
        cast_values(values, dtype, &mut bytes);
        widen_f32(dtype, &bytes, &mut rounded);
        values.copy_from_slice(&rounded);
    }
}

/// Replaces indices by entries of their tables; `inside` is which element of an entry it is.
fn look_up(
    values: &mut [f32],
    blocks: &[usize],
    tables: &Window<'_>,
    entries: u64,
    vector: u64,
    inside: impl Fn(usize) -> u64,
) -> Result<()> {
    let entries = usize::try_from(entries).unwrap_or(usize::MAX);
    let vector = usize::try_from(vector).unwrap_or(usize::MAX);
    for (at, (value, block)) in values.iter_mut().zip(blocks).enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a byte")]
        let index = *value as usize;
        let within = usize::try_from(inside(at)).unwrap_or(usize::MAX);
        let position = block
            .checked_mul(entries)
            .filter(|_| index < entries)
            .and_then(|start| start.checked_add(index)?.checked_mul(vector)?.checked_add(within));
        *value = position.and_then(|at| tables.value(at)).ok_or_else(|| {
            Error::corrupt(format!("an index is {index}, and its table has {entries} entries"))
        })?;
    }
    Ok(())
}

impl Vectors {
    /// Calls `each` for each run of elements with contiguous indices.
    ///
    /// The arguments are the position of its first element, the index of that element in its
    /// vector, and the output slice.
    fn runs(
        &self,
        first: u64,
        out: &mut [f32],
        mut each: impl FnMut(u64, u64, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let left = match self.inner {
                1 => u64::MAX,
                inner => inner - at % inner,
            };
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            let (run, others) = rest.split_at_mut(len);
            each(at, at / self.inner % self.len, run)?;
            at += len as u64;
            rest = others;
        }
        Ok(())
    }

    /// The position of the index of an element.
    fn first(&self, position: u64) -> u64 {
        let row = position / self.inner / self.len;
        row * self.inner + position % self.inner
    }

    /// Returns the number of indices that a run requires.
    fn span(&self, position: u64, len: usize) -> usize {
        match self.inner {
            1 => {
                let last = position + (len as u64).saturating_sub(1);
                usize::try_from(last / self.len - position / self.len + 1).unwrap_or_default()
            }
            _ => len,
        }
    }

    /// Returns which of these indices belongs to an element of the run.
    fn index(&self, position: u64, element: usize, first: u64) -> usize {
        match self.inner {
            1 => {
                let at = (position + element as u64) / self.len - first;
                usize::try_from(at).unwrap_or_default()
            }
            _ => element,
        }
    }

    /// Returns the index of an element of the run in its vector.
    fn inside(&self, of_first: u64, position: u64, element: usize) -> u64 {
        match self.inner {
            1 => (position + element as u64) % self.len,
            _ => of_first,
        }
    }
}
