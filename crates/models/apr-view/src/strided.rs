//! Elements picked out of a tensor at regular distances: transposed matrices, and parts that are
//! cut out of groups of rows; and the way back, parts woven into one.

use apr_core::{CheckpointReader, Error, Result, Strided};

use crate::turned::{Stripes, TOGETHER, turn};
use crate::windows::Windows;

/// Gathering of elements of a base tensor as `[groups, rows, columns]`, with rows or columns
/// contiguous.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gather {
    /// Position of the source.
    pub(crate) tensor: usize,
    /// The first element.
    pub(crate) start: u64,
    /// Groups, rows and columns.
    pub(crate) dims: [u64; 3],
    /// Strides between groups, rows and columns, in elements of the source.
    pub(crate) strides: [u64; 3],
    /// Bytes of an element.
    pub(crate) element: u64,
}

/// Interleaved parts: a number of elements of the first, a number of the second, and so on
/// repeatedly.
#[derive(Debug, Clone)]
pub(crate) struct Woven {
    /// Parts, each with its number of elements per turn.
    pub(crate) parts: Vec<(Gather, u64)>,
}

impl Gather {
    /// Returns the gathering of these elements of a tensor.
    ///
    /// Returns `None` if it needs more than three dimensions, or if neither rows nor columns are
    /// contiguous.
    pub(crate) fn of(tensor: usize, elements: &Strided, element: u64) -> Option<Self> {
        let joined = elements.joined();
        let mut axes: Vec<(u64, u64)> =
            joined.dims().iter().copied().zip(joined.strides().iter().copied()).collect();
        while axes.len() < 3 {
            let all = axes.iter().map(|(dim, _)| dim).product::<u64>();
            // The innermost of one element has nothing next to it.
            if axes.is_empty() { axes.push((1, 1)) } else { axes.insert(0, (1, all)) }
        }
        let &[(groups, between), (rows, row), (columns, column)] = axes.as_slice() else {
            return None;
        };
        (row == 1 || column == 1).then_some(Self {
            tensor,
            start: joined.start(),
            dims: [groups, rows, columns],
            strides: [between, row, column],
            element,
        })
    }

    /// Reads whole elements from byte `offset` on; transposed elements are read through the
    /// windows, if any.
    pub(crate) fn read(
        &self,
        base: &dyn CheckpointReader,
        windows: Option<&Windows>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let [_, rows, columns] = self.dims;
        let windows =
            windows.filter(|_| self.is_turned() && base.tensor_slice(self.tensor).is_none());
        let mut filled = 0;
        while filled < buf.len() {
            let at = (offset + filled as u64) / self.element;
            let (group, within) = (at / (rows * columns), at % (rows * columns));
            let (row, column) = (within / columns, within % columns);
            let left = (buf.len() - filled) as u64 / self.element;
            let (mut taken_rows, taken) = if column == 0 && left >= columns {
                ((left / columns).min(rows - row), columns)
            } else {
                (1, left.min(columns - column))
            };
            if let Some(windows) = windows {
                let (first, count) = windows.rows_around(self, row);
                taken_rows = taken_rows.min(first + count - row);
            }

            let len = usize_of(taken_rows * taken * self.element)?;
            let out = &mut buf[filled..filled + len];
            match windows {
                Some(windows) => windows.read(base, self, (group, row, column), taken, out)?,
                None => self.read_band(base, (group, row, column), (taken_rows, taken), out)?,
            }

            filled += len;
        }

        Ok(())
    }

    /// Returns `true` if the elements of a column are contiguous and those of a row are not.
    fn is_turned(&self) -> bool {
        let [_, row_step, column_step] = self.strides;
        column_step != 1 && row_step == 1
    }

    /// Reads `rows` rows of `columns` columns each, from a place on.
    fn read_band(
        &self,
        base: &dyn CheckpointReader,
        (group, row, column): (u64, u64, u64),
        (rows, columns): (u64, u64),
        out: &mut [u8],
    ) -> Result<()> {
        let [group_step, row_step, column_step] = self.strides;
        let first = self.start + group * group_step + row * row_step + column * column_step;
        if column_step == 1 {
            return self.read_runs(base, first, columns, out);
        }

        // A column of the band lies together in the source, as far as the distance of its rows lets
        // it.
        let stripe = usize_of(((rows - 1) * row_step + 1) * self.element)?;
        let (step, of_row) = (usize_of(row_step)?, usize_of(columns)?);
        if let Some(whole) = base.tensor_slice(self.tensor) {
            let at = first * self.element;
            let last = ((columns - 1) * column_step * self.element).saturating_add(at);
            let end = usize_of(last)?.saturating_add(stripe);
            let bytes = usize_of(at).ok().and_then(|at| whole.get(at..end));
            let bytes =
                bytes.ok_or_else(|| Error::corrupt("the read ends past the tensor").at(at))?;
            turn(
                self.element,
                Stripes { bytes, count: of_row, apart: usize_of(column_step)?, step },
                out,
                of_row,
                0,
            );
            return Ok(());
        }

        let mut scratch = vec![0; stripe * TOGETHER.min(of_row)];
        let apart = stripe / usize_of(self.element)?;
        for (start, at) in (0..columns).step_by(TOGETHER).zip((0..).step_by(TOGETHER)) {
            let count = TOGETHER.min(of_row - at);
            for (column, stripe) in (start..).zip(scratch.chunks_exact_mut(stripe).take(count)) {
                base.read_tensor(
                    self.tensor,
                    (first + column * column_step) * self.element,
                    stripe,
                )?;
            }
            turn(self.element, Stripes { bytes: &scratch, count, apart, step }, out, of_row, at);
        }

        Ok(())
    }

    /// Reads rows whose columns are contiguous.
    fn read_runs(
        &self,
        base: &dyn CheckpointReader,
        first: u64,
        columns: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let row_step = self.strides[1];
        if row_step == columns {
            return base.read_tensor(self.tensor, first * self.element, out);
        }
        for (row, out) in out.chunks_mut(usize_of(columns * self.element)?).enumerate() {
            base.read_tensor(self.tensor, (first + row as u64 * row_step) * self.element, out)?;
        }
        Ok(())
    }
}

impl Woven {
    /// Bytes of an element.
    pub(crate) fn element(&self) -> u64 {
        self.parts.first().map_or(1, |(part, _)| part.element)
    }

    /// Reads whole elements from byte `offset` on.
    pub(crate) fn read(
        &self,
        base: &dyn CheckpointReader,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        /// Bytes to interleave at a time, unless one turn is longer.
        const AT_ONCE: u64 = 1 << 20;

        let turn = self.parts.iter().map(|(_, run)| run).sum::<u64>() * self.element();
        let end = offset + buf.len() as u64;
        let mut at = offset;
        let (mut woven, mut scratch) = (Vec::new(), Vec::new());
        while at < end {
            let first = at / turn;
            let turns = (AT_ONCE / turn).max(1).min(end.div_ceil(turn) - first);
            woven.resize(usize_of(turns * turn)?, 0);
            self.weave(base, first, turns, &mut woven, &mut scratch)?;
            let from = usize_of(at - first * turn)?;
            let len = (woven.len() - from).min(usize_of(end - at)?);
            let filled = usize_of(at - offset)?;
            buf[filled..filled + len].copy_from_slice(&woven[from..from + len]);
            at += len as u64;
        }

        Ok(())
    }

    fn weave(
        &self,
        base: &dyn CheckpointReader,
        first: u64,
        turns: u64,
        woven: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let turn = woven.len() / usize_of(turns)?;
        let mut before = 0;
        for (part, run) in &self.parts {
            let run = usize_of(run * part.element)?;
            scratch.resize(run * usize_of(turns)?, 0);
            part.read(base, None, first * run as u64, scratch)?;
            for (from, to) in scratch.chunks(run).zip(woven.chunks_mut(turn)) {
                to[before..before + run].copy_from_slice(from);
            }
            before += run;
        }
        Ok(())
    }
}

/// Lengths within a buffer that exists.
pub(crate) fn usize_of(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::memory("a range is larger than memory can be"))
}
