//! Where the lines or the elements of a weight come from, found again in the original.

use std::borrow::Cow;
use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result};
use apr_view::values::read;

use super::sums::{Moves, Pair as PairSums, Sums};
use super::weights::CHUNK;

/// Elements by which a tensor is taken for another one, before all of both are compared.
const SAMPLE: u64 = 1 << 12;
/// Tensors of the original that are tried.
const CANDIDATES: usize = 256;
/// Cosine from which on lines are the same but for rounding to few bits.
const SAME_LINE: f64 = 0.8;
/// Relative difference up to which tensors of the same dtype are the same.
const SAME_TENSOR: f64 = 0.02;

/// The elements of a weight, row by row.
pub(super) enum Elements<'e> {
    /// Elements in memory, such as those of a transposed weight.
    Held(&'e [f64]),
    /// A tensor of a checkpoint.
    Stored(&'e dyn CheckpointReader, usize),
}

impl Elements<'_> {
    fn range(&self, range: Range<u64>) -> Result<Cow<'_, [f64]>> {
        match self {
            Self::Stored(reader, position) => Ok(read(*reader, *position, range)?.into()),
            Self::Held(values) => {
                let part = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
                let part = part.and_then(|(start, end)| values.get(start..end));
                Ok(part.ok_or_else(|| Error::format("a weight has fewer elements"))?.into())
            }
        }
    }
}

/// A weight of two models, both in the layout of the second.
pub(super) struct Pair<'p> {
    pub(super) original: Elements<'p>,
    pub(super) other: Elements<'p>,
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) dtypes: [DType; 2],
}

impl Pair<'_> {
    /// Ranges of elements to read one after the other: whole rows, or pieces of a vector.
    fn pieces(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let total = self.rows * self.columns;
        let has_lines = self.rows > 1 && self.columns > 1;
        let rows = (CHUNK / self.columns.max(1)).max(1);
        let at_once = if has_lines { rows * self.columns } else { CHUNK };
        let starts = (0..total.div_ceil(at_once)).map(move |piece| piece * at_once);
        starts.map(move |start| start..(start + at_once).min(total))
    }

    /// Sums over both.
    pub(super) fn sums(&self) -> Result<Sums> {
        let [rows, columns] = [self.rows, self.columns].map(|count| usize::try_from(count).ok());
        let sizes = rows.zip(columns);
        let (rows, columns) =
            sizes.ok_or_else(|| Error::memory("a weight does not fit the memory"))?;
        let mut sums = Sums::new(rows, columns, self.dtypes[1]);
        for piece in self.pieces() {
            let (a, b) = (self.original.range(piece.clone())?, self.other.range(piece)?);
            sums.add(&a, &b);
            sums.add_rooms(self.dtypes, [&a, &b]);
        }
        sums.finish();
        Ok(sums)
    }

    /// The moves of which each was undone, and gave the original's line.
    pub(super) fn verified(&self, moves: Moves) -> Result<Moves> {
        let mut sums = vec![PairSums::default(); moves.lines.len()];
        let add = |sum: &mut PairSums, a: &[f64], b: &[f64]| {
            a.iter().zip(b).for_each(|(a, b)| sum.add(*a, *b, 0.0));
        };
        if moves.what == "rows" {
            let row = |at: usize| at as u64 * self.columns..(at as u64 + 1) * self.columns;
            for (sum, (at, from)) in sums.iter_mut().zip(&moves.lines) {
                add(sum, &self.original.range(row(*from))?, &self.other.range(row(*at))?);
            }
        } else {
            let columns = usize::try_from(self.columns).unwrap_or(usize::MAX).max(1);
            for piece in self.pieces() {
                let (a, b) = (self.original.range(piece.clone())?, self.other.range(piece)?);
                for (a, b) in a.chunks_exact(columns).zip(b.chunks_exact(columns)) {
                    for (sum, (at, from)) in sums.iter_mut().zip(&moves.lines) {
                        sum.add(a[*from], b[*at], 0.0);
                    }
                }
            }
        }
        let lines = moves.lines.into_iter().zip(&sums);
        let lines = lines.filter(|(_, sum)| sum.cosine() > SAME_LINE).map(|(line, _)| line);
        Ok(Moves { lines: lines.collect(), ..moves })
    }

    /// Returns `true` if the second matrix is the transposed first, if both fit into `most` bytes.
    pub(super) fn is_transposed(&self, most: u64) -> Result<bool> {
        let total = self.rows.saturating_mul(self.columns);
        if self.rows != self.columns || self.rows < 2 || total.saturating_mul(16) > most {
            return Ok(false);
        }
        let (a, b) = (self.original.range(0..total)?, self.other.range(0..total)?);
        let width = usize::try_from(self.columns).unwrap_or(usize::MAX);
        let mut sum = PairSums::default();
        for (at, other) in b.iter().enumerate() {
            sum.add(a[at % width * width + at / width], *other, 0.0);
        }
        Ok(sum.cosine() > SAME_LINE)
    }

    /// The name of another tensor of the original that the second is, within what rounding allows,
    /// and far nearer than it is to its own.
    pub(super) fn replacement(
        &self,
        (reader, own): (&dyn CheckpointReader, usize),
        sums: &Sums,
    ) -> Result<Option<String>> {
        let shape = reader.tensors()[own].shape.dims();
        let others = reader.tensors().iter().enumerate();
        let others = others.filter(|(at, info)| *at != own && info.shape.dims() == shape);
        let limit = sums.allowed().max(SAME_TENSOR).min(0.5 * sums.all.relative());
        for (at, info) in others.take(CANDIDATES) {
            let candidate = Elements::Stored(reader, at);
            let total = self.rows * self.columns;
            let sample = self.distance(&candidate, std::iter::once(0..total.min(SAMPLE)))?;
            // A piece may be further off than the whole.
            if sample.relative() > 2.0 * limit || sample.squares == 0.0 {
                continue;
            }
            let whole = self.distance(&candidate, self.pieces())?;
            if whole.relative() <= limit && whole.cosine() > SAME_LINE {
                return Ok(Some(info.name.clone()));
            }
        }
        Ok(None)
    }

    fn distance(
        &self,
        candidate: &Elements<'_>,
        pieces: impl Iterator<Item = Range<u64>>,
    ) -> Result<PairSums> {
        let mut sum = PairSums::default();
        for piece in pieces {
            let (a, b) = (candidate.range(piece.clone())?, self.other.range(piece)?);
            a.iter().zip(&*b).for_each(|(a, b)| sum.add(*a, *b, 0.0));
        }
        Ok(sum)
    }
}
