//! Weights whose codes are numbers of 8 bits at most, with a scale and perhaps a zero point for
//! each group of columns of a row: how they are decoded, and how they are kept in memory.
//!
//! What is kept are the codes, in bytes or half bytes in the order of rows, and the numbers of the
//! groups in single precision. Decoding goes through the same functions as reading does, so that
//! values have the same bits. A method says how its parts are read, and its [`Form`].

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, KeptCodes, Result, TensorInfo};
use apr_tensor::grouped::{
    Decoding, PACKED, RowGroups, gather, pack_nibbles, packed_len, unpack_nibbles,
};

use super::find::Decode;
use super::read::{Tile, usize_of};
use super::zero::Scaling;

/// Codes that are put in order at a time.
const AT_ONCE: u64 = 1 << 18;

/// Dimensions of a weight in grouped codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Form {
    /// Bits of a code.
    pub(super) bits: u64,
    /// Columns of a group.
    pub(super) group: u64,
    /// Groups of a row.
    pub(super) count: u64,
}

/// Scales and zero points, row by row and, within a row, group by group.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) scales: Vec<f32>,
    /// Zero points; empty if all are 0.
    pub(super) zeros: Vec<f32>,
}

/// A method that stores weights so.
pub(super) trait Grouped: Send + Sync {
    fn form(&self) -> Form;

    /// Returns the rule by which the codes are decoded.
    ///
    /// # Errors
    /// Returns the same errors as [`Decode::decode`].
    fn decoding(&self, base: &dyn CheckpointReader) -> Result<Decoding>;

    /// Fills `out` with the codes of a tile, a byte each.
    ///
    /// # Errors
    /// Those of [`Decode::decode`].
    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()>;

    /// The numbers of some rows and groups.
    ///
    /// # Errors
    /// E002 where one is infinite or no number, otherwise those of [`Decode::decode`].
    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers>;

    /// Returns the group of each of the columns, if a part stores it.
    ///
    /// # Errors
    /// E002 for a group that does not exist, otherwise the errors of [`Decode::decode`].
    fn groups_of(
        &self,
        base: &dyn CheckpointReader,
        columns: Range<u64>,
    ) -> Result<Option<Vec<u64>>> {
        let _ = (base, columns);
        Ok(None)
    }

    /// Returns the tensors of scales, each with the codes that it multiplies.
    fn scaling(&self) -> Vec<Scaling>;

    /// The tensor whose bytes are the codes of all rows.
    fn as_they_lie(&self) -> Option<usize> {
        None
    }
}

impl<T: Grouped> Decode for T {
    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let (form, decoding) = (self.form(), self.decoding(base)?);
        let rows = tile.row..tile.row + tile.rows as u64;
        let columns = tile.column..tile.column + tile.columns as u64;
        let mut codes = vec![0; out.len()];
        self.codes(base, tile, &mut codes)?;
        let rows_of_codes = codes.chunks_exact_mut(tile.columns);
        let of_rows = rows_of_codes.zip(out.chunks_exact_mut(tile.columns)).enumerate();

        if let Some(mut of_columns) = self.groups_of(base, columns.clone())? {
            let first = of_columns.iter().min().copied().unwrap_or_default();
            let last = of_columns.iter().max().copied().unwrap_or_default();
            let numbers = self.numbers(base, rows, first..last + 1)?;
            of_columns.iter_mut().for_each(|group| *group -= first);
            let order = Order::of(&of_columns, last + 1 - first);
            let mut scratch = Scratch::default();
            for (row, (codes, out)) in of_rows {
                order.sort(codes, &mut scratch.codes);
                let numbers = numbers.of_row(row, order.starts.len() - 1);
                order.decode(decoding, &mut scratch, numbers, 0, out);
            }
            return Ok(());
        }

        let groups = columns.start / form.group..columns.end.div_ceil(form.group);
        let width = usize_of(groups.end - groups.start)?;
        let numbers = self.numbers(base, rows, groups)?;
        let (group, skipped) = (usize_of(form.group)?, usize_of(columns.start % form.group)?);
        for (row, (codes, out)) in of_rows {
            let numbers = numbers.of_row(row, width).of(0..width, group, skipped);
            decoding.decode_row(codes, numbers, out);
        }
        Ok(())
    }

    fn scaling(&self) -> Vec<Scaling> {
        Grouped::scaling(self)
    }

    fn grouped(&self) -> Option<&dyn Grouped> {
        Some(self)
    }
}

/// The numbers of one row.
#[derive(Clone, Copy)]
struct OfRow<'a> {
    scales: &'a [f32],
    zeros: &'a [f32],
}

impl Numbers {
    /// Returns the numbers of a row with `width` groups.
    fn of_row(&self, row: usize, width: usize) -> OfRow<'_> {
        let range = row * width..(row + 1) * width;
        OfRow {
            zeros: if self.zeros.is_empty() { &[] } else { &self.zeros[range.clone()] },
            scales: &self.scales[range],
        }
    }
}

impl<'a> OfRow<'a> {
    /// Returns the numbers of groups of `group` columns each, of which the first lacks `skipped`
    /// columns.
    fn of(self, groups: Range<usize>, group: usize, skipped: usize) -> RowGroups<'a> {
        let zeros = if self.zeros.is_empty() { &[] } else { &self.zeros[groups.clone()] };
        RowGroups { group, skipped, scales: &self.scales[groups], zeros }
    }
}

/// A matrix whose codes are in memory.
struct Kept {
    decoding: Decoding,
    /// `true` if codes are half bytes.
    is_packed: bool,
    codes: Codes,
    columns: usize,
    /// Bytes of a row.
    row_len: usize,
    group: usize,
    /// Groups of a row.
    count: usize,
    numbers: Numbers,
    /// Order of the columns, if it differs from the order of the codes.
    order: Option<Order>,
}

/// Location of the codes, in bytes or half bytes.
enum Codes {
    Own(Vec<u8>),
    /// Tensor of the checkpoint, in its stored order.
    InBase(usize),
}

/// The order of columns in which groups follow one another.
struct Order {
    /// The column of each code.
    columns: Vec<usize>,
    /// The code that each group begins with, and the number of codes.
    starts: Vec<usize>,
    /// The code of each column, if all groups but the last have the same number of columns.
    positions: Option<Vec<u32>>,
}

/// Returns the place of each column among the columns.
fn positions(columns: &[usize]) -> Option<Vec<u32>> {
    let mut positions = vec![0; columns.len()];
    for (place, column) in columns.iter().enumerate() {
        positions[*column] = u32::try_from(place).ok()?;
    }
    Some(positions)
}

/// Rows and columns of a weight that can be kept: a matrix.
fn matrix(info: &TensorInfo) -> Option<[u64; 2]> {
    match *info.shape.dims() {
        [rows, columns] if rows > 0 && columns > 0 => Some([rows, columns]),
        _ => None,
    }
}

/// Returns the bytes that a weight takes in memory, or `None` if it cannot be kept there.
pub(super) fn kept_len(of: &dyn Grouped, info: &TensorInfo) -> Option<u64> {
    let (form, [rows, columns]) = (of.form(), matrix(info)?);
    let row = if form.bits > 4 { columns } else { packed_len(usize_of(columns).ok()?) as u64 };
    let numbers = form.count.checked_mul(2 * size_of::<f32>() as u64)?;
    rows.checked_mul(row.checked_add(numbers)?)
}

/// Returns `true` if products with codes take more than 1.3 times as long as products with values
/// of the weight's dtype. Times are of a token in milliseconds, on one thread with AVX-512, for 207
/// million weights (`fixtures/coded/speed.py`):
///
/// | codes | from codes | from values |
/// |---|---|---|
/// | 8-bit integers, values of 16 bits | 60 | 32 |
/// | 8-bit floats, values of 16 bits | 81 | 28 |
/// | 8-bit floats in blocks, values in `f32` | 62 | 63 |
/// | 4 bits, groups of 128 | 68 | 29 |
/// | 4 bits, groups of 16 | 116 | 25 |
/// | 4 bits, columns in an order of their own | 189 | 24 |
///
/// # Errors
/// Those of [`Decode::decode`].
pub(super) fn is_slow(
    of: &dyn Grouped,
    base: &dyn CheckpointReader,
    info: &TensorInfo,
) -> Result<bool> {
    let [_, columns] = matrix(info).unwrap_or_default();
    let is_slow = of.decoding(base)?.dtype != DType::F32 || of.form().group < 32;
    Ok(is_slow || of.groups_of(base, 0..columns)?.is_some())
}

/// Reads a weight that is kept.
///
/// # Errors
/// Those of [`Decode::decode`].
pub(super) fn keep(
    of: &dyn Grouped,
    base: &dyn CheckpointReader,
    info: &TensorInfo,
) -> Result<Box<dyn KeptCodes>> {
    let form = of.form();
    let [rows, columns] = matrix(info).unwrap_or_default();
    let order = of.groups_of(base, 0..columns)?.map(|groups| Order::of(&groups, form.count));
    let width = usize_of(columns)?;
    let is_in_memory = |tensor: &usize| base.tensor_slice(*tensor).is_some();
    let codes = match of.as_they_lie().filter(|_| order.is_none()).filter(is_in_memory) {
        Some(tensor) => Codes::InBase(tensor),
        None => Codes::Own(codes(of, base, [rows, columns], order.as_ref())?),
    };
    Ok(Box::new(Kept {
        decoding: of.decoding(base)?,
        is_packed: form.bits <= 4,
        codes,
        columns: width,
        row_len: if form.bits > 4 { width } else { packed_len(width) },
        group: usize_of(form.group)?,
        count: usize_of(form.count)?,
        numbers: of.numbers(base, 0..rows, 0..form.count)?,
        order,
    }))
}

/// All codes, packed.
fn codes(
    of: &dyn Grouped,
    base: &dyn CheckpointReader,
    [rows, columns]: [u64; 2],
    order: Option<&Order>,
) -> Result<Vec<u8>> {
    let (is_packed, width) = (of.form().bits <= 4, usize_of(columns)?);
    let row_len = if is_packed { packed_len(width) } else { width };
    let mut all = Vec::with_capacity(usize_of(rows)?.saturating_mul(row_len));
    // Codes along the outputs are in words of eight.
    let at_once = (AT_ONCE / columns).max(1).next_multiple_of(8);
    let (mut codes, mut in_order) = (Vec::new(), Vec::new());
    for row in (0..rows).step_by(usize_of(at_once)?) {
        let count = usize_of(at_once.min(rows - row))?;
        codes.resize(count * width, 0);
        of.codes(base, Tile { row, rows: count, column: 0, columns: width }, &mut codes)?;
        for codes in codes.chunks_exact(width) {
            let codes = match order {
                Some(order) => {
                    order.sort(codes, &mut in_order);
                    &in_order
                }
                None => codes,
            };
            if is_packed {
                pack_nibbles(codes, &mut all);
            } else {
                all.extend_from_slice(codes);
            }
        }
    }
    Ok(all)
}

/// Codes of a row in the order of their groups, and their values.
#[derive(Default)]
struct Scratch {
    codes: Vec<u8>,
    values: Vec<f32>,
}

impl Order {
    /// Returns the order of columns with these groups, of which there are `count`.
    fn of(groups: &[u64], count: u64) -> Self {
        let mut columns: Vec<usize> = (0..groups.len()).collect();
        columns.sort_by_key(|column| groups[*column]);
        let before = |group: u64| columns.partition_point(|column| groups[*column] < group);
        let starts: Vec<usize> = (0..=count).map(before).collect();
        let group = starts.get(1).copied().unwrap_or_default();
        let end_of = |at: usize| at.saturating_mul(group).min(columns.len());
        let are_equal = (0..).zip(&starts).all(|(at, start)| *start == end_of(at));
        let positions = are_equal.then(|| positions(&columns)).flatten();
        Self { columns, starts, positions }
    }

    /// Reorders the codes of a row.
    fn sort(&self, codes: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend(self.columns.iter().map(|column| codes[*column]));
    }

    /// Decodes the codes that are in order, and fills `out` with the values from a column on.
    fn decode(
        &self,
        decoding: Decoding,
        Scratch { codes, values }: &mut Scratch,
        numbers: OfRow<'_>,
        first: usize,
        out: &mut [f32],
    ) {
        values.resize(codes.len(), 0.0);
        for (group, ends) in self.starts.windows(2).enumerate() {
            let codes_of_group = ends[0]..ends[1];
            let numbers = numbers.of(group..group + 1, usize::MAX, 0);
            let values = &mut values[codes_of_group.clone()];
            decoding.decode_row(&codes[codes_of_group], numbers, values);
        }
        if out.len() == self.columns.len() {
            for (column, value) in self.columns.iter().zip(values) {
                out[*column] = *value;
            }
            return;
        }
        for (column, value) in self.columns.iter().zip(values) {
            if let Some(out) = column.checked_sub(first).and_then(|at| out.get_mut(at)) {
                *out = *value;
            }
        }
    }
}

impl Kept {
    /// Decodes a piece of a row.
    fn decode_row(
        &self,
        (codes, numbers): (&[u8], OfRow<'_>),
        first: usize,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let Self { decoding, is_packed, .. } = self;
        if let Some(order) = &self.order {
            if let Some(positions) = &order.positions {
                let numbers = numbers.of(0..self.count, order.starts[1], 0);
                let values = &mut scratch.values;
                values.resize(self.columns, 0.0);
                if *is_packed {
                    decoding.decode_nibbles(codes, numbers, values);
                } else {
                    decoding.decode_row(codes, numbers, values);
                }
                return gather(values, &positions[first..], out);
            }
            scratch.codes.resize(self.columns, 0);
            if *is_packed {
                unpack_nibbles(codes, &mut scratch.codes);
            } else {
                scratch.codes.copy_from_slice(codes);
            }
            return order.decode(*decoding, scratch, numbers, first, out);
        }
        let of = |first: usize, len: usize| {
            let groups = first / self.group..(first + len).div_ceil(self.group);
            numbers.of(groups, self.group, first % self.group)
        };
        if !*is_packed {
            return decoding.decode_row(&codes[first..], of(first, out.len()), out);
        }
        // Half bytes are unpacked from the first of those that are packed together on.
        let before = first % PACKED;
        let packed = &codes[packed_len(first - before)..];
        if before == 0 {
            return decoding.decode_nibbles(packed, of(first, out.len()), out);
        }
        let values = &mut scratch.values;
        values.resize(before + out.len(), 0.0);
        decoding.decode_nibbles(packed, of(first - before, values.len()), values);
        out.copy_from_slice(&values[before..]);
    }
}

impl KeptCodes for Kept {
    fn decode(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<usize>,
        first_column: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let codes = match &self.codes {
            Codes::Own(codes) => codes,
            Codes::InBase(tensor) => base.tensor_slice(*tensor).ok_or_else(|| {
                let message = "its codes are no longer in memory";
                Error::format(message).for_tensor(&base.tensors()[*tensor].name)
            })?,
        };
        let columns = out.len() / rows.len().max(1);
        let mut scratch = Scratch::default();
        for (row, out) in rows.zip(out.chunks_exact_mut(columns.max(1))) {
            let codes = &codes[row * self.row_len..][..self.row_len];
            let numbers = self.numbers.of_row(row, self.count);
            self.decode_row((codes, numbers), first_column, &mut scratch, out);
        }
        Ok(())
    }
}
