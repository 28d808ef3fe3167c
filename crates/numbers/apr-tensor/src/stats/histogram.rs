//! A histogram from one read whose result depends on the values alone, not on their order or
//! chunking.

use alloc::vec;
use alloc::vec::Vec;

use apr_core::DType;
use serde::Serialize;

use super::Scratch;
use crate::element::{is_decodable, len_of, widen_f64};
use crate::kernel;
use crate::scale::{MIN_EXPONENT, Scale, exponent_of, power_of_two};

/// Maximum number of bins.
const MAX_BINS: usize = 2048;
/// Elements decoded at a time.
const DECODED_ELEMENTS: usize = 2048;
/// Bits of a bin's number, so that edges are exact in `f64` and [`Scale::floor`] works.
const MAX_INDEX_BITS: i32 = 51;

/// Exact counts of the finite values of a tensor in bins of equal width; a complex element counts
/// as two.
///
/// The width is a power of two and the edges are its multiples, so that the bins of twice the width
/// are pairs of these. It is the smallest width for which at most 2048 bins reach from the smallest
/// value to the largest and every edge is exact in `f64`. A value outside the bins so far doubles
/// the width as often as needed and merges the pairs: the result is what it would have been had the
/// range been known before.
///
/// ```
/// use apr_core::DType;
/// use apr_tensor::stats::{Histogram, Scratch};
///
/// let mut histogram = Histogram::default();
/// histogram.add(DType::I8, &[0, 1, 2, 3, 3, 7], &mut Scratch::default());
/// let bins = histogram.bins(4);
/// assert_eq!((bins.start, bins.width, bins.counts), (0.0, 2.0, vec![2, 3, 0, 1]));
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    grid: Option<Grid>,
    counts: Vec<u64>,
}

/// Bins of a report.
///
/// `counts[i]` is the number of values with `start + i * width <= x < start + (i + 1) * width`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bins {
    /// Lower edge of the first bin.
    pub start: f64,
    /// Width of a bin, a power of two.
    pub width: f64,
    /// Values in each bin; the first and the last bin are occupied.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// Counts the elements in `bytes`; none for a quantized dtype.
    ///
    /// Bytes after the last whole element are ignored. NaN and infinities are not counted.
    pub fn add(&mut self, dtype: DType, bytes: &[u8], scratch: &mut Scratch) {
        if !is_decodable(dtype) {
            return;
        }
        for piece in bytes.chunks(len_of(dtype, DECODED_ELEMENTS)) {
            widen_f64(dtype, piece, &mut scratch.wide);
            self.add_piece(&scratch.wide);
        }
    }

    /// Adds values that are in memory already, such as dequantized ones.
    pub fn add_values(&mut self, values: &[f32], scratch: &mut Scratch) {
        for piece in values.chunks(DECODED_ELEMENTS) {
            scratch.wide.clear();
            scratch.wide.extend(piece.iter().copied().map(f64::from));
            self.add_piece(&scratch.wide);
        }
    }

    fn add_piece(&mut self, values: &[f64]) {
        let (min, max) = kernel::finite_range(values);
        if min > max {
            return;
        }
        let grid = self.cover(min, max);
        let mut offsets = [0; DECODED_ELEMENTS];
        kernel::bin_offsets(values, &Scale::new(grid.exponent), grid.first, &mut offsets);
        for &offset in &offsets[..values.len()] {
            // The offset of a value that is not finite is beyond all bins.
            if let Some(count) = self.counts.get_mut(offset as usize) {
                *count += 1;
            }
        }
    }

    /// Adds the counts of another part of the tensor.
    pub fn merge(&mut self, other: &Self) {
        let Some(theirs) = other.grid else { return };
        let grid = self.cover(theirs.min, theirs.max);
        theirs.pour(&other.counts, grid, &mut self.counts);
    }

    /// The counts in at most `at_most` bins, made wider by powers of two as needed.
    ///
    /// Fewer than 4 count as 4: zero stays an edge at any width, and the widest power of two that
    /// is an `f64` divides its range in 4. An edge beyond the largest `f64` is given as the largest
    /// `f64`.
    #[must_use]
    pub fn bins(&self, at_most: usize) -> Bins {
        let Some(grid) = self.grid else {
            return Bins { start: 0.0, width: 1.0, counts: Vec::new() };
        };
        let wider = Grid::finest(grid.min, grid.max, grid.exponent, at_most.clamp(4, MAX_BINS));
        let mut counts = vec![0; wider.len];
        grid.pour(&self.counts, wider, &mut counts);
        let width = power_of_two(wider.exponent);
        Bins { start: (wider.first as f64 * width).max(f64::MIN), width, counts }
    }

    /// Makes the bins reach from `min` to `max` at least.
    fn cover(&mut self, min: f64, max: f64) -> Grid {
        let grid = match self.grid {
            None => Grid::covering(min, max),
            Some(grid) if grid.min <= min && max <= grid.max => return grid,
            Some(grid) => Grid::covering(grid.min.min(min), grid.max.max(max)),
        };
        let mut counts = vec![0; grid.len];
        if let Some(finer) = self.grid {
            finer.pour(&self.counts, grid, &mut counts);
        }
        (self.grid, self.counts) = (Some(grid), counts);
        grid
    }
}

/// Bins from the smallest to the largest value, numbered by their lower edge in widths.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Grid {
    min: f64,
    max: f64,
    /// The width is `2^exponent`.
    exponent: i32,
    first: i64,
    len: usize,
}

impl Grid {
    /// The grid of a histogram of values in this range: a function of the range alone, and the
    /// wider the range, the wider the bins.
    fn covering(min: f64, max: f64) -> Self {
        let finest = (exponent_of(min.abs().max(max.abs())) + 1 - MAX_INDEX_BITS).max(MIN_EXPONENT);
        Self::finest(min, max, finest, MAX_BINS)
    }

    /// The narrowest bins, of width `2^exponent` at least, of which `at_most` reach from `min` to
    /// `max`.
    fn finest(min: f64, max: f64, mut exponent: i32, at_most: usize) -> Self {
        loop {
            let scale = Scale::new(exponent);
            let (first, last) = (scale.index(min), scale.index(max));
            match usize::try_from(last - first) {
                Ok(steps) if steps < at_most => {
                    return Self { min, max, exponent, first, len: steps + 1 };
                }
                _ => exponent += 1,
            }
        }
    }

    fn offset(&self, index: i64) -> usize {
        usize::try_from(index - self.first)
            .unwrap_or_else(|_| unreachable!("the grid covers the value"))
    }

    /// Adds the counts of this grid's bins to a covering grid with bins at least as wide.
    fn pour(&self, counts: &[u64], wider: Self, into: &mut [u64]) {
        // Beyond 63 doublings, only the sign of a 64-bit number is left.
        let doublings = (wider.exponent - self.exponent).min(63);
        for (index, &count) in (self.first..).zip(counts) {
            into[wider.offset(index >> doublings)] += count;
        }
    }
}
