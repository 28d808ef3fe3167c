//! Sparse tensors, read as the dense ones they stand for.
//!
//! The indices are decoded once, when the file is opened, into the sorted places of the values; any
//! range of the dense tensor is then zeros with the values that fall into it. Values are copied as
//! they are stored.

use apr_core::{ByteSource, DType, Error, Result};

use crate::view::{PartTensor, View};

/// Dense bytes allowed for any sparse tensor.
///
/// Larger tensors may have up to [`MAX_GROWTH`] times their stored bytes.
const FREE_BYTES: u64 = 64 << 20;
const MAX_GROWTH: u64 = 64;

/// Bytes of indices or values handled at a time.
const BATCH: u64 = 1 << 16;

/// Bytes that a place takes while the list is made: decoded, and beside its number.
const PLACE_BYTES: u64 = 24;

/// Positions of the values, as the file stores them.
pub(crate) enum Places<'a> {
    Coo(PartTensor<'a>),
    Csr(PartTensor<'a>, PartTensor<'a>),
}

impl Places<'_> {
    fn parts(&self) -> impl Iterator<Item = &PartTensor<'_>> {
        let (first, second) = match self {
            Self::Coo(indices) => (indices, None),
            Self::Csr(rows, columns) => (rows, Some(columns)),
        };
        std::iter::once(first).chain(second)
    }

    /// Splits a shape into the dimensions that the indices cover and the dimensions of each value.
    fn split<'s>(&self, shape: &'s [u64]) -> Option<(&'s [u64], &'s [u64])> {
        match self {
            Self::Coo(indices) => {
                shape.split_at_checked(usize::try_from(*indices.shape.first()?).ok()?)
            }
            Self::Csr(..) => shape.split_at_checked(2),
        }
    }

    /// Returns `true` if a tensor of this shape can have such indices.
    ///
    /// Indices by row require a matrix.
    fn go_with(&self, shape: &[u64]) -> bool {
        matches!(self, Self::Coo(_)) || shape.len() == 2
    }

    /// Refuses indices that are a view of fewer ones: decoded they would take more than the file's
    /// length justifies.
    fn check_distinct(&self) -> Result<()> {
        match self.parts().find(|part| !part.is_distinct()) {
            Some(part) => {
                Err(Error::corrupt("its indices overlap in their storage").at(part.view.offset))
            }
            None => Ok(()),
        }
    }
}

/// Sorts the positions and returns each with the number of its value.
///
/// Rejects duplicate positions.
fn sorted(places: Vec<u64>) -> Result<Vec<(u64, u64)>> {
    let mut places: Vec<_> = places.into_iter().zip(0..).collect();
    if !places.is_sorted() {
        places.sort_unstable();
    }
    if places.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(not_coalesced());
    }
    Ok(places)
}

/// A sparse tensor with its indices decoded.
#[derive(Debug, Clone)]
pub(crate) struct Cells {
    /// One cell for each index: an element, or what the dense dimensions hold.
    pub(crate) values: View,
    cell: u64,
    /// Place of a cell in the dense tensor, counted in cells, and its number among the values;
    /// sorted.
    places: Vec<(u64, u64)>,
    /// Bytes of the dense tensor.
    pub(crate) len: u64,
}

impl Cells {
    /// Decodes the indices. `budget` is what the decoded places of all sparse tensors may still
    /// take, in bytes.
    pub(crate) fn new(
        source: &dyn ByteSource,
        indices: &Places<'_>,
        values: PartTensor<'_>,
        shape: &[u64],
        budget: &mut u64,
    ) -> Result<Self> {
        let bad = |what: &str| Error::corrupt(format!("its {what} do not match"));
        let (sparse, dense) = indices.split(shape).ok_or_else(|| bad("indices and size"))?;
        let [count, inner @ ..] = values.shape else { return Err(bad("values and size")) };
        if inner != dense || !indices.go_with(shape) {
            return Err(bad("values and size"));
        }

        indices.check_distinct()?;
        let len = dense_len(shape, values.dtype)?;
        check_growth(len, indices, &values)?;
        let cell = dense_len(dense, values.dtype)?;
        if len == 0 {
            return Ok(Self { values: values.view, cell, places: Vec::new(), len });
        }

        // More than there are cells; this bounds the list where no dimension is sparse and no index
        // stored.
        if *count > sparse.iter().product() {
            return Err(not_coalesced());
        }

        *budget = count
            .checked_mul(PLACE_BYTES)
            .and_then(|bytes| budget.checked_sub(bytes))
            .ok_or_else(|| {
                Error::memory(
                    "the indices of sparse tensors up to this one exceed the limit of an index",
                )
            })?;
        let places = match indices {
            Places::Coo(indices) => coo(source, indices, sparse, *count)?,
            Places::Csr(rows, columns) => csr(source, rows, columns, sparse, *count, budget)?,
        };
        Ok(Self { values: values.view, cell, places: sorted(places)?, len })
    }

    /// Fills `buf` with the dense tensor's bytes from `start` on, which must be there.
    pub(crate) fn read(&self, source: &dyn ByteSource, start: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        let end = start + buf.len() as u64;
        if self.cell == 0 || buf.is_empty() {
            return Ok(());
        }

        // Places are below the number of cells, so that no product is above `len`.
        let from = self.places.partition_point(|(place, _)| place * self.cell + self.cell <= start);
        let to = self.places.partition_point(|(place, _)| place * self.cell < end);
        let mut due = self.places.get(from..to).unwrap_or_default();
        let mut stored = Vec::new();
        while let Some(&first) = due.first() {
            let (run, rest) = due.split_at(self.run(due));
            let last = run.last().unwrap_or(&first);

            // The first and the last cell may be cut by the range that is asked for.
            let skip = start.saturating_sub(first.0 * self.cell);
            let drop = (last.0 * self.cell + self.cell).saturating_sub(end);
            let bytes = run.len() as u64 * self.cell - skip - drop;
            stored.resize(
                usize::try_from(bytes).map_err(|_| Error::memory("a cell exceeds memory"))?,
                0,
            );
            self.values.read(source, first.1 * self.cell + skip, &mut stored)?;
            let mut stored = &stored[..];
            for (place, _) in run {
                let (cell_start, cell_end) = (place * self.cell, place * self.cell + self.cell);
                let at = usize::try_from(cell_start.max(start) - start).unwrap_or_default();
                let len =
                    usize::try_from(cell_end.min(end) - cell_start.max(start)).unwrap_or_default();
                let (cell, rest) = stored.split_at(len);
                buf[at..at + len].copy_from_slice(cell);
                stored = rest;
            }

            due = rest;
        }

        Ok(())
    }

    /// Returns the number of cells whose values are contiguous in the file, up to one batch.
    ///
    /// It is at least one if `due` is not empty.
    fn run(&self, due: &[(u64, u64)]) -> usize {
        let first = due.first().map_or(0, |(_, value)| *value);
        let most = usize::try_from((BATCH / self.cell).max(1)).unwrap_or(1);
        due.iter()
            .zip(first..)
            .take(most)
            .take_while(|((_, value), expected)| value == expected)
            .count()
    }
}

fn not_coalesced() -> Error {
    Error::version(
        "sparse tensors with several values for one element (not coalesced) are not supported",
    )
}

fn dense_len(shape: &[u64], dtype: DType) -> Result<u64> {
    let len = if shape.contains(&0) {
        Some(0)
    } else {
        shape.iter().try_fold(dtype.block_bytes(), |len, &dim| len.checked_mul(dim))
    };
    len.ok_or_else(|| Error::corrupt(format!("its shape {shape:?} has no valid length in bytes")))
}

/// A sparse tensor may claim any size; one that is worth reading densely is not almost empty.
fn check_growth(len: u64, indices: &Places<'_>, values: &PartTensor<'_>) -> Result<()> {
    let spans = indices.parts().map(|part| part.view.span);
    let stored = spans.fold(values.view.span, u64::saturating_add);
    if len > FREE_BYTES.max(stored.saturating_mul(MAX_GROWTH)) {
        let message = format!(
            "a sparse tensor of {stored} bytes would need {len} bytes as a dense tensor; over 64 \
             MiB, the limit is {MAX_GROWTH} times the stored bytes"
        );
        return Err(Error::memory(message));
    }
    Ok(())
}

/// Calls `each` with the position and value of every index, which is below `bound`.
fn for_each(
    source: &dyn ByteSource,
    part: &PartTensor<'_>,
    first: u64,
    count: u64,
    bound: u64,
    mut each: impl FnMut(usize, u64),
) -> Result<()> {
    let width = match part.dtype {
        DType::I64 => 8,
        DType::I32 => 4,
        other => {
            return Err(Error::corrupt(format!(
                "its indices are {other}, not integers of 32 or 64 bits"
            )));
        }
    };

    let mut bytes = vec![0; 0];
    let mut done = 0;
    while done < count {
        let batch = (BATCH / width).min(count - done);
        bytes.resize(usize::try_from(batch * width).unwrap_or_default(), 0);
        part.view.read(source, (first + done) * width, &mut bytes)?;
        for (number, position) in
            bytes.chunks_exact(usize::try_from(width).unwrap_or(8)).zip(done..)
        {
            // A negative number is larger than any bound.
            let number =
                number.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
            if number >= bound {
                let message = format!("one of its indices is {number}, but must be below {bound}");
                return Err(Error::corrupt(message).at(part.view.offset));
            }
            each(usize::try_from(position).unwrap_or(usize::MAX), number);
        }
        done += batch;
    }

    Ok(())
}

fn coo(
    source: &dyn ByteSource,
    indices: &PartTensor<'_>,
    dims: &[u64],
    count: u64,
) -> Result<Vec<u64>> {
    if indices.shape != [dims.len() as u64, count] {
        return Err(Error::corrupt("its indices and values do not match"));
    }
    let mut places = vec![0_u64; usize::try_from(count).unwrap_or_default()];
    for (row, &dim) in (0_u64..).zip(dims) {
        // Below the number of cells, which is known to fit.
        for_each(source, indices, row * count, count, dim, |at, index| {
            places[at] = places[at] * dim + index;
        })?;
    }
    Ok(places)
}

fn csr(
    source: &dyn ByteSource,
    rows: &PartTensor<'_>,
    columns: &PartTensor<'_>,
    dims: &[u64],
    count: u64,
    budget: &mut u64,
) -> Result<Vec<u64>> {
    let bad = || Error::corrupt("its rows, columns and values do not match");
    let [height, width] = dims else { return Err(bad()) };
    let ends =
        height.checked_add(1).filter(|&ends| rows.shape == [ends] && columns.shape == [count]);
    let ends = ends.ok_or_else(bad)?;
    *budget = ends.checked_mul(8).and_then(|bytes| budget.checked_sub(bytes)).ok_or_else(|| {
        Error::memory("the indices of sparse tensors up to this one exceed the limit of an index")
    })?;
    let mut starts = Vec::new();
    for_each(source, rows, 0, ends, count.saturating_add(1), |_, start| starts.push(start))?;
    if starts.first() != Some(&0) || starts.last() != Some(&count) || !starts.is_sorted() {
        return Err(bad());
    }

    let mut places = vec![0_u64; usize::try_from(count).unwrap_or_default()];
    for_each(source, columns, 0, count, *width, |at, column| places[at] = column)?;

    // The starts rise from 0 to `count`, so that every range is there.
    for (row, range) in (0_u64..).zip(starts.windows(2)) {
        let range = usize::try_from(range[0]).unwrap_or_default()
            ..usize::try_from(range[1]).unwrap_or_default();
        places
            .get_mut(range)
            .unwrap_or_default()
            .iter_mut()
            .for_each(|place| *place += row * width);
    }

    Ok(places)
}
