//! What decoders share: tiles, elements of parts, streams of bits, scales on a grid.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result};
use apr_tensor::cast::cast_values;
use apr_tensor::element::widen_f32;

pub(super) use crate::strided::usize_of;

/// Part of a weight that is decoded at a time, with the weight seen as a matrix of all its rows.
///
/// It consists of whole rows or of a piece of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// Number of the first row.
    pub(super) row: u64,
    /// Number of rows.
    pub(super) rows: usize,
    /// The first column.
    pub(super) column: u64,
    /// Number of columns.
    pub(super) columns: usize,
}

/// Returns the groups of `group` columns that a tile's rows overlap.
///
/// Each item is the number of the group in a row of the weight, and its columns in a row of the
/// tile.
pub(super) fn groups(tile: Tile, group: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = tile.column + tile.columns as u64;
    let within = move |column: u64| {
        usize::try_from(column.clamp(tile.column, end) - tile.column).unwrap_or(tile.columns)
    };
    let numbers = tile.column / group..end.div_ceil(group);
    numbers.map(move |number| (number, within(number * group)..within((number + 1) * group)))
}

/// Bytes of a tensor.
///
/// # Errors
/// E002 past its end, E007 when reading fails.
pub(super) fn bytes_of(
    base: &dyn CheckpointReader,
    tensor: usize,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    base.read_tensor(tensor, offset, &mut bytes)?;
    Ok(bytes)
}

/// Returns elements of a tensor of floats or small integers, without decoding.
///
/// # Errors
/// E001 for a dtype that single precision does not hold, otherwise the errors of [`bytes_of`].
pub(super) fn floats_of(
    base: &dyn CheckpointReader,
    tensor: usize,
    elements: Range<u64>,
) -> Result<Vec<f32>> {
    let info = &base.tensors()[tensor];
    let width = info.dtype.block_bytes();
    if info.dtype.block_len() != 1 || matches!(info.dtype, DType::I32 | DType::U32) || width > 4 {
        let message = format!("its elements are {}, which is not a dtype of scales", info.dtype);
        return Err(Error::format(message).for_tensor(&info.name));
    }
    let len = usize_of((elements.end.saturating_sub(elements.start)) * width)?;
    let bytes = bytes_of(base, tensor, elements.start * width, len)?;
    let mut floats = Vec::new();
    widen_f32(info.dtype, &bytes, &mut floats);
    Ok(floats)
}

/// Words of 32 bits.
///
/// # Errors
/// Those of [`bytes_of`].
pub(super) fn words_of(
    base: &dyn CheckpointReader,
    tensor: usize,
    words: Range<u64>,
) -> Result<Vec<u32>> {
    let len = usize_of(words.end.saturating_sub(words.start) * 4)?;
    let bytes = bytes_of(base, tensor, words.start * 4, len)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// Returns code number `index` of a stream of codes of `bits` bits (1 to 8), lowest bits first.
///
/// `words` begins with the word `first`; a word past the end counts as zero.
pub(super) fn code_at(words: &[u32], first: u64, bits: u64, index: u64) -> u32 {
    let bit = index * bits;
    let at = usize::try_from((bit / 32).saturating_sub(first)).unwrap_or(usize::MAX);
    let word = |at: usize| u64::from(words.get(at).copied().unwrap_or_default());
    let pair = word(at) | word(at.saturating_add(1)) << 32;
    #[expect(clippy::cast_possible_truncation, reason = "a code has 8 bits at most")]
    let code = (pair >> (bit % 32) & ((1 << bits) - 1)) as u32;
    code
}

/// Fills `out` with the [codes](code_at) of a stream from number `index` on.
pub(super) fn codes_from(words: &[u32], first: u64, bits: u64, index: u64, out: &mut [u8]) {
    let start = usize::try_from((index * bits / 32).saturating_sub(first)).unwrap_or(usize::MAX);
    if let (4 | 8, 0, Some(words)) = (bits, index * bits % 32, words.get(start..)) {
        // Whole words from the first code on.
        let of_word = if bits == 4 { 8 } else { 4 };
        for (codes, word) in out.chunks_mut(of_word).zip(words) {
            let bytes = word.to_le_bytes();
            for (at, code) in codes.iter_mut().enumerate() {
                *code = if bits == 4 { bytes[at / 2] >> (at % 2 * 4) & 0xf } else { bytes[at] };
            }
        }
        return;
    }
    for (index, code) in (index..).zip(out) {
        #[expect(clippy::cast_possible_truncation, reason = "a code has 8 bits at most")]
        let found = code_at(words, first, bits, index) as u8;
        *code = found;
    }
}

/// Returns the words that contain the codes of a range of a stream.
pub(super) fn words_for(codes: Range<u64>, bits: u64) -> Range<u64> {
    codes.start * bits / 32..(codes.end * bits).div_ceil(32)
}

/// Numbers that a weight has for each row and each group of columns, `[.., rows, along]`.
///
/// The numbers of a tile are contiguous, because a tile is whole rows or a piece of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Groups {
    /// Columns of a group.
    pub(super) group: u64,
    /// Groups of a row.
    pub(super) along: u64,
}

impl Groups {
    /// The numbers that a tile needs.
    pub(super) fn range(self, tile: Tile) -> Range<u64> {
        let end = tile.column + tile.columns as u64;
        let last = (tile.row + tile.rows as u64).saturating_sub(1) * self.along;
        tile.row * self.along + tile.column / self.group..last + end.div_ceil(self.group)
    }

    /// The numbers of some rows and groups of them: of several rows, all groups.
    pub(super) fn of_rows(self, rows: &Range<u64>, groups: &Range<u64>) -> Range<u64> {
        let last = rows.end.saturating_sub(1) * self.along;
        rows.start * self.along + groups.start..last + groups.end
    }

    /// Returns the runs of a tile's elements that share a number.
    ///
    /// Each item is the position in the [`range`](Self::range), and the elements.
    pub(super) fn runs(self, tile: Tile) -> impl Iterator<Item = (usize, Range<usize>)> {
        let first = tile.column / self.group;
        (0..tile.rows).flat_map(move |row| {
            let at = row as u64 * self.along;
            groups(tile, self.group).map(move |(number, run)| {
                let place = usize::try_from(at + number - first).unwrap_or(usize::MAX);
                let start = row * tile.columns;
                (place, start + run.start..start + run.end)
            })
        })
    }
}

/// Elements of a tensor of scales, whose bytes are read as elements of this dtype.
///
/// # Errors
/// E002 where one is infinite or no number, otherwise those of [`bytes_of`].
pub(super) fn scales_of(
    base: &dyn CheckpointReader,
    tensor: usize,
    dtype: DType,
    elements: Range<u64>,
) -> Result<Vec<f32>> {
    let start = elements.start;
    let scales = if dtype == base.tensors()[tensor].dtype {
        floats_of(base, tensor, elements)?
    } else {
        let len = usize_of(elements.end.saturating_sub(start) * dtype.block_bytes())?;
        let bytes = bytes_of(base, tensor, start * dtype.block_bytes(), len)?;
        let mut floats = Vec::new();
        widen_f32(dtype, &bytes, &mut floats);
        floats
    };
    if let Some((number, scale)) = (start..).zip(&scales).find(|(_, scale)| !scale.is_finite()) {
        let name = &base.tensors()[tensor].name;
        return Err(Error::corrupt(format!("number {number} of the scales '{name}' is {scale}")));
    }
    Ok(scales)
}

/// Elements of less than a byte, which a tensor of bytes holds from the lowest bits up.
///
/// # Errors
/// Those of [`bytes_of`].
pub(super) fn packed_of(
    base: &dyn CheckpointReader,
    tensor: usize,
    dtype: DType,
    elements: Range<u64>,
) -> Result<Vec<f32>> {
    let (len, width) = (dtype.block_len(), dtype.block_bytes());
    let first = elements.start / len;
    let blocks = usize_of(elements.end.div_ceil(len).saturating_sub(first) * width)?;
    let bytes = bytes_of(base, tensor, first * width, blocks)?;
    let mut floats = Vec::new();
    widen_f32(dtype, &bytes, &mut floats);
    floats.drain(..usize_of(elements.start - first * len)?);
    floats.truncate(usize_of(elements.end.saturating_sub(elements.start))?);
    Ok(floats)
}

/// Returns the bytes of a piece of a matrix, row by row, without reading other bytes.
///
/// # Errors
/// Returns the same errors as [`bytes_of`].
fn piece_of(
    base: &dyn CheckpointReader,
    tensor: usize,
    rows: Range<u64>,
    columns: &Range<u64>,
) -> Result<Vec<u8>> {
    let info = &base.tensors()[tensor];
    let (len, width) = (info.shape.row_len(), info.dtype.block_bytes());
    let count = columns.end.saturating_sub(columns.start);
    let of_row = usize_of(count * width)?;
    let all = usize_of(rows.end.saturating_sub(rows.start).saturating_mul(count * width))?;
    let start = |row: u64| (row * len + columns.start) * width;
    if count == len {
        return bytes_of(base, tensor, start(rows.start), all);
    }
    let mut bytes = vec![0; all];
    for (row, bytes) in rows.zip(bytes.chunks_exact_mut(of_row.max(1))) {
        base.read_tensor(tensor, start(row), bytes)?;
    }
    Ok(bytes)
}

/// Words of 32 bits of a piece of a matrix, row by row.
///
/// # Errors
/// Those of [`bytes_of`].
pub(super) fn words_in(
    base: &dyn CheckpointReader,
    tensor: usize,
    rows: Range<u64>,
    columns: Range<u64>,
) -> Result<Vec<u32>> {
    let bytes = piece_of(base, tensor, rows, &columns)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// Elements of 16 bits of a piece of a matrix, row by row.
///
/// # Errors
/// Those of [`bytes_of`].
pub(super) fn halves_in(
    base: &dyn CheckpointReader,
    tensor: usize,
    rows: Range<u64>,
    columns: Range<u64>,
) -> Result<Vec<u16>> {
    let bytes = piece_of(base, tensor, rows, &columns)?;
    Ok(bytes.as_chunks().0.iter().map(|half| u16::from_le_bytes(*half)).collect())
}

/// The [words](words_in), column by column.
///
/// # Errors
/// Those of [`bytes_of`].
pub(super) fn columns_of_words(
    base: &dyn CheckpointReader,
    tensor: usize,
    rows: Range<u64>,
    columns: Range<u64>,
) -> Result<Vec<u32>> {
    let width = usize_of(columns.end.saturating_sub(columns.start))?;
    Ok(turned(&words_in(base, tensor, rows, columns)?, width))
}

/// A matrix in rows of this length, column by column. It is turned a square at a time, which caches
/// hold.
pub(super) fn turned<T: Copy + Default>(matrix: &[T], width: usize) -> Vec<T> {
    const SIDE: usize = 32;
    let rows = matrix.len() / width.max(1);
    let mut turned = vec![T::default(); rows * width];
    for top in (0..rows).step_by(SIDE) {
        let bottom = rows.min(top + SIDE);
        for left in (0..width).step_by(SIDE) {
            for column in left..width.min(left + SIDE) {
                let to = &mut turned[column * rows..][top..bottom];
                to.iter_mut().zip(top..).for_each(|(to, row)| *to = matrix[row * width + column]);
            }
        }
    }
    turned
}

/// Scales of a piece of a matrix, row by row.
///
/// # Errors
/// E002 where one is infinite or no number, otherwise those of [`bytes_of`].
pub(super) fn scales_in(
    base: &dyn CheckpointReader,
    tensor: usize,
    rows: Range<u64>,
    columns: Range<u64>,
) -> Result<Vec<f32>> {
    let info = &base.tensors()[tensor];
    let (first, len) = (rows.start, info.shape.row_len());
    let count = columns.end.saturating_sub(columns.start).max(1);
    let bytes = piece_of(base, tensor, rows, &columns)?;
    let mut scales = Vec::new();
    widen_f32(info.dtype, &bytes, &mut scales);
    if let Some((at, scale)) = (0..).zip(&scales).find(|(_, scale)| !scale.is_finite()) {
        let number = (first + at / count) * len + columns.start + at % count;
        let message = format!("number {number} of the scales '{}' is {scale}", info.name);
        return Err(Error::corrupt(message));
    }
    Ok(scales)
}

/// Codes of a matrix that is folded over itself: a word holds one of each of several equal parts,
/// which are as far apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Folded {
    /// The tensor of words, `u8` or `i32`.
    pub(super) tensor: usize,
    /// Bits of a code, 8 at most.
    pub(super) bits: u32,
    /// Codes of a word.
    pub(super) fields: u32,
    /// Words, or elements of a part.
    pub(super) words: u64,
    /// `true` if the first part is in the highest used bits.
    pub(super) is_highest_first: bool,
}

impl Folded {
    /// The codes of these elements, counted through all rows.
    ///
    /// # Errors
    /// Those of [`bytes_of`].
    pub(super) fn codes(
        self,
        base: &dyn CheckpointReader,
        elements: Range<u64>,
    ) -> Result<Vec<u8>> {
        let mask = u32::from(u8::MAX) >> 8_u32.saturating_sub(self.bits);
        let mut codes = Vec::with_capacity(usize_of(elements.end - elements.start)?);
        let mut at = elements.start;
        while at < elements.end {
            let (part, first) = (at / self.words, at % self.words);
            let end = elements.end.min((part + 1) * self.words);
            let words = first..first + (end - at);
            let words = if base.tensors()[self.tensor].dtype == DType::I32 {
                words_of(base, self.tensor, words)?
            } else {
                let bytes = bytes_of(base, self.tensor, words.start, usize_of(end - at)?)?;
                bytes.into_iter().map(u32::from).collect()
            };
            let part = u32::try_from(part).unwrap_or(u32::MAX).min(self.fields.saturating_sub(1));
            let field = if self.is_highest_first { self.fields - 1 - part } else { part };
            #[expect(clippy::cast_possible_truncation, reason = "a code has 8 bits at most")]
            codes.extend(words.iter().map(|word| (word >> (field * self.bits) & mask) as u8));
            at = end;
        }
        Ok(codes)
    }
}

/// Rounds values to a dtype of floats.
pub(super) fn round_to(dtype: DType, values: &mut [f32]) {
    if dtype != DType::F32 {
        let (mut bytes, mut rounded) = (Vec::new(), Vec::new());
        cast_values(values, dtype, &mut bytes);
        widen_f32(dtype, &bytes, &mut rounded);
        values.copy_from_slice(&rounded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_may_cross_words() {
        // Values -4..3 plus 4 in three bits, lowest first: a known word of compressed-tensors.
        let words = [0x88fa_c688, 0xc688_fac6, 0xfac6_88fa];
        let codes: Vec<u32> = (0..24).map(|index| code_at(&words, 0, 3, index)).collect();
        assert_eq!(codes[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(codes[8..16], codes[..8]);
        assert_eq!(words_for(8..16, 3), 0..2);
        assert_eq!(code_at(&words[1..], 1, 3, 11), codes[11]);
    }
}
