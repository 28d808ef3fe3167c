//! Elements picked out of a tensor at regular distances: transposed matrices, and parts that are cut out of groups of
//! rows; and the way back, parts woven into one.

use apr_core::{CheckpointReader, Error, Result};

/// Elements of a tensor, seen as `[groups, rows, columns]`, each index a number of elements apart in the source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strided {
    /// Position of the source.
    pub(crate) tensor: usize,
    /// The first element.
    pub(crate) start: u64,
    /// Groups, rows and columns.
    pub(crate) dims: [u64; 3],
    /// How many elements of the source lie between two groups, rows and columns.
    pub(crate) strides: [u64; 3],
    /// Bytes of an element.
    pub(crate) element: u64,
}

/// Parts that take turns: so many elements of the first, so many of the second, and again.
#[derive(Debug, Clone)]
pub(crate) struct Woven {
    /// The parts, and how many elements each gives at a time.
    pub(crate) parts: Vec<(Strided, u64)>,
}

impl Strided {
    /// Reads whole elements from byte `offset` on.
    pub(crate) fn read(self, base: &dyn CheckpointReader, offset: u64, buf: &mut [u8]) -> Result<()> {
        let [_, rows, columns] = self.dims;
        let mut filled = 0;
        while filled < buf.len() {
            let at = (offset + filled as u64) / self.element;
            let (group, within) = (at / (rows * columns), at % (rows * columns));
            let (row, column) = (within / columns, within % columns);
            let left = (buf.len() - filled) as u64 / self.element;
            let (taken_rows, taken) = if column == 0 && left >= columns {
                ((left / columns).min(rows - row), columns)
            } else {
                (1, left.min(columns - column))
            };
            let len = usize_of(taken_rows * taken * self.element)?;
            let first = self.start + group * self.strides[0] + row * self.strides[1] + column * self.strides[2];
            self.read_band(base, first, (taken_rows, taken), &mut buf[filled..filled + len])?;
            filled += len;
        }
        Ok(())
    }

    /// Reads `rows` rows of `columns` columns each, `first` being the source's element that the first one is.
    fn read_band(
        self,
        base: &dyn CheckpointReader,
        first: u64,
        (rows, columns): (u64, u64),
        out: &mut [u8],
    ) -> Result<()> {
        let [_, row_step, column_step] = self.strides;
        if column_step == 1 {
            return self.read_runs(base, first, columns, out);
        }
        // A column of the band lies together in the source, as far as the distance of its rows lets it.
        let stripe = usize_of(((rows - 1) * row_step + 1) * self.element)?;
        let whole = base.tensor_slice(self.tensor);
        let mut scratch = if whole.is_some() { Vec::new() } else { vec![0; stripe] };
        for column in 0..columns {
            let at = (first + column * column_step) * self.element;
            let input = match whole {
                Some(whole) => {
                    let input = usize_of(at).ok().and_then(|at| whole.get(at..)?.get(..stripe));
                    input.ok_or_else(|| Error::corrupt("the read ends past the tensor").at(at))?
                }
                None => {
                    base.read_tensor(self.tensor, at, &mut scratch)?;
                    &scratch
                }
            };
            let steps = (usize_of(row_step)?, usize_of(columns)?);
            match self.element {
                1 => scatter::<1>(input, out, usize_of(column)?, steps),
                2 => scatter::<2>(input, out, usize_of(column)?, steps),
                4 => scatter::<4>(input, out, usize_of(column)?, steps),
                _ => scatter::<8>(input, out, usize_of(column)?, steps),
            }
        }
        Ok(())
    }

    /// Rows whose columns lie together.
    fn read_runs(self, base: &dyn CheckpointReader, first: u64, columns: u64, out: &mut [u8]) -> Result<()> {
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

/// Takes every `from`th element, and puts them at `first` and every `to`th place after it.
fn scatter<const E: usize>(input: &[u8], out: &mut [u8], first: usize, (from, to): (usize, usize)) {
    let out = out.as_chunks_mut::<E>().0;
    let elements = input.as_chunks::<E>().0.iter().step_by(from);
    for (element, place) in elements.zip(out.iter_mut().skip(first).step_by(to)) {
        *place = *element;
    }
}

impl Woven {
    /// Bytes of an element.
    pub(crate) fn element(&self) -> u64 {
        self.parts.first().map_or(1, |(part, _)| part.element)
    }

    /// Reads whole elements from byte `offset` on.
    pub(crate) fn read(&self, base: &dyn CheckpointReader, offset: u64, buf: &mut [u8]) -> Result<()> {
        /// Bytes that are woven at once, where a turn is no longer.
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
            part.read(base, first * run as u64, scratch)?;
            for (from, to) in scratch.chunks(run).zip(woven.chunks_mut(turn)) {
                to[before..before + run].copy_from_slice(from);
            }
            before += run;
        }
        Ok(())
    }
}

/// Lengths within a buffer that exists.
fn usize_of(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::memory("a range is larger than memory can be"))
}
