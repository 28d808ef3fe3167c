//! Statistics of a tensor from one read, in pieces that merge.

mod histogram;

use alloc::vec::Vec;

use apr_core::DType;
use serde::Serialize;

pub use histogram::{Bins, Histogram};

use crate::element::{is_decodable, len_of, widen_f32};
use crate::kernel::{self, BLOCK, Block};
use crate::square_root::square_root;
use crate::wire::{self, Wire};

/// Buffers that [`Moments::of`] and [`Histogram::add`] use again, 48 KiB at most.
#[derive(Debug, Default)]
pub struct Scratch {
    narrow: Vec<f32>,
    wide: Vec<f64>,
}

/// Counts, extrema, mean and sum of squared deviations of a part of a tensor.
///
/// Deviations are those from the mean of blocks of 4096 elements: the sum of squares less the
/// mean's where at least an eighth of it is left, and otherwise one by one. Blocks are joined by
/// the update of Chan, Golub and LeVeque 1979 ("Updating Formulae and a Pairwise Algorithm for
/// Computing Sample Variances"), so that no large squares cancel. Equal parts merged in the same
/// order give the same bits on every target.
///
/// ```
/// use apr_core::DType;
/// use apr_tensor::stats::{Moments, Scratch};
///
/// let mut scratch = Scratch::default();
/// let mut moments = Moments::of(DType::I8, &[1, 2], &mut scratch);
/// moments.merge(&Moments::of(DType::I8, &[3, 0xfe], &mut scratch));
/// let stats = moments.finish();
/// assert_eq!((stats.min, stats.max, stats.mean), (Some(-2.0), Some(3.0), Some(1.0)));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    finite: u64,
    nan: u64,
    inf: u64,
    zeros: u64,
    min: f64,
    max: f64,
    mean: f64,
    squares: f64,
}

/// Statistics of a tensor's elements; a complex element counts as two.
///
/// `min` to `l2` are over the finite values and are computed in `f64`. Where sums or squares of
/// `f64` elements exceed its range (magnitudes from about 1e150 on), `mean`, `std` and `l2` are
/// infinite or NaN.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// Number of elements.
    pub count: u64,
    /// Elements that are NaN.
    pub nan: u64,
    /// Elements that are infinite.
    pub inf: u64,
    /// Elements that are zero of either sign.
    pub zeros: u64,
    /// Smallest value; `None` if no element is finite.
    pub min: Option<f64>,
    /// Largest value; `None` if no element is finite.
    pub max: Option<f64>,
    /// Arithmetic mean; `None` if no element is finite.
    pub mean: Option<f64>,
    /// Population standard deviation (divided by the number of values); `None` if no element is
    /// finite.
    pub std: Option<f64>,
    /// Euclidean norm: the square root of the sum of squares.
    pub l2: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self {
            finite: 0,
            nan: 0,
            inf: 0,
            zeros: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: 0.0,
            squares: 0.0,
        }
    }
}

impl Moments {
    /// Returns the moments of the elements in `bytes`; the empty moments for a quantized dtype.
    ///
    /// Bytes after the last whole element are ignored. Chunks of a tensor must start at elements
    /// ([`chunk_len`](crate::element::chunk_len)).
    #[must_use]
    pub fn of(dtype: DType, bytes: &[u8], scratch: &mut Scratch) -> Self {
        let mut moments = Self::default();
        if !is_decodable(dtype) {
            return moments;
        }

        let Scratch { narrow, wide } = scratch;
        match dtype {
            DType::F16 => moments.add::<wire::F16>(bytes.as_chunks().0, wide, kernel::block_of_f16),
            DType::BF16 => {
                moments.add::<wire::Bf16>(bytes.as_chunks().0, wide, kernel::block_of_bf16);
            }
            _ => {
                with_f64_wire!(
                    dtype,
                    W => moments.add::<W>(bytes.as_chunks().0, wide, kernel::block::<W>),
                    for piece in bytes.chunks(len_of(dtype, BLOCK)) {
                        widen_f32(dtype, piece, narrow);
                        moments.add_values(narrow, wide);
                    }
                );
            }
        }

        moments
    }

    /// Moments of values that are in memory already, such as dequantized ones.
    #[must_use]
    pub fn of_values(values: &[f32], scratch: &mut Scratch) -> Self {
        let mut moments = Self::default();
        moments.add_values(values, &mut scratch.wide);
        moments
    }

    /// Elements that are NaN.
    #[must_use]
    pub const fn nan(&self) -> u64 {
        self.nan
    }

    /// Elements that are infinite.
    #[must_use]
    pub const fn inf(&self) -> u64 {
        self.inf
    }

    fn add_values(&mut self, values: &[f32], buffer: &mut Vec<f64>) {
        self.add::<wire::NativeF32>(values, buffer, kernel::block_of_values);
    }

    fn add<W: Wire>(
        &mut self,
        stored: &[W::Stored],
        buffer: &mut Vec<f64>,
        summarise: fn(&[W::Stored]) -> Block,
    ) {
        for stored in stored.chunks(BLOCK) {
            let block = summarise(stored);
            if block.mean.is_finite() {
                self.merge(&Self::of_block(stored.len(), block));
            } else {
                self.add_with_exceptions::<W>(stored, buffer);
            }
        }
    }

    /// Adds a block in which elements are NaN or infinite.
    #[cold]
    fn add_with_exceptions<W: Wire>(&mut self, stored: &[W::Stored], buffer: &mut Vec<f64>) {
        // Every value is written, and overwritten unless it was finite: there may be too many
        // exceptions to predict.
        buffer.resize(stored.len(), 0.0);
        let (mut finite, mut nan) = (0, 0);
        for &stored in stored {
            let value: f64 = W::load(stored).into();
            buffer[finite] = value;
            finite += usize::from(value.is_finite());
            nan += usize::from(value.is_nan());
        }

        self.nan += nan as u64;
        self.inf += (stored.len() - finite - nan) as u64;
        if finite > 0 {
            self.merge(&Self::of_block(
                finite,
                kernel::block::<wire::NativeF64>(&buffer[..finite]),
            ));
        }
    }

    fn of_block(len: usize, block: Block) -> Self {
        let Block { zeros, min, max, mean, squares } = block;
        Self { finite: len as u64, nan: 0, inf: 0, zeros: zeros.into(), min, max, mean, squares }
    }

    /// Adds the moments of another part of the tensor.
    pub fn merge(&mut self, other: &Self) {
        self.nan += other.nan;
        self.inf += other.inf;
        if other.finite == 0 {
            return;
        }

        let finite = self.finite + other.finite;
        let (ours, theirs) = (self.finite as f64, other.finite as f64);
        if self.finite == 0 {
            (self.mean, self.squares) = (other.mean, other.squares);
        } else {
            let distance = other.mean - self.mean;
            let share = theirs / finite as f64;
            self.mean += distance * share;
            self.squares += other.squares + distance * distance * (ours * share);
        }

        self.finite = finite;
        self.zeros += other.zeros;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// The statistics of everything merged.
    #[must_use]
    pub fn finish(&self) -> Stats {
        let finite = self.finite as f64;
        let any = |value: f64| (self.finite > 0).then_some(value);
        Stats {
            count: self.finite + self.nan + self.inf,
            nan: self.nan,
            inf: self.inf,
            zeros: self.zeros,
            min: any(self.min),
            max: any(self.max),
            mean: any(self.mean),
            std: any(square_root(self.squares / finite)),
            l2: square_root(self.squares + self.mean * self.mean * finite),
        }
    }
}
