//! Matrices stored as the product of two smaller ones, as `docs/format/codecs.md`, "Layouts",
//! describes; little-endian throughout.
//!
//! ```text
//! u32 r, u32 0    left[rows * r]    right[r * columns]
//! ```
//!
//! The matrix of a tensor has `dims[0]` rows and the product of the other dimensions as columns.
//! Both factors are row-major and of the tensor's dtype. An element is the sum over `k` of
//! `left[row][k] * right[k][column]`, in single precision and in the order of `k`, each product and
//! each sum rounded, and then rounded to the dtype: so every reader gets the same bits.
//!
//! ```
//! use apr_core::{DType, Shape};
//! use apr_tensor::factors::{FactorsReader, encode};
//! use apr_tensor::sparse::Matrix;
//!
//! let (left, right) = ([1.0_f32, 2.0], [3.0_f32, 4.0, 5.0]);
//! let stored = encode(DType::F32, 1, &left, &right)?;
//! let read_at = |offset: u64, buf: &mut [u8]| {
//!     buf.copy_from_slice(&stored[offset as usize..][..buf.len()]);
//!     Ok(())
//! };
//! let matrix = Matrix::new(DType::F32, &Shape::from([2, 3]))?;
//! let reader = FactorsReader::open(matrix, DType::F32, stored.len() as u64, read_at)?;
//! let mut last = [0; 4];
//! reader.read(20, &mut last, read_at)?;
//! assert_eq!(f32::from_le_bytes(last), 10.0);
//! # Ok::<(), apr_core::Error>(())
//! ```

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use apr_core::{DType, Error, Result};

use crate::cast::cast_values;
use crate::element::widen_f32;
use crate::kernel;
use crate::sparse::Matrix;

/// Bytes before the factors.
const HEADER: u64 = 8;

/// Numbers of a factor that are in memory at a time, and of the product.
const BATCH: u64 = 1 << 18;

/// Returns `true` if tensors of a dtype can be stored as factors.
#[must_use]
pub const fn suits(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Bytes of a matrix that is stored as factors of this rank; `None` when `u64` does not count them.
#[must_use]
pub fn stored_len(matrix: Matrix, rank: u64) -> Option<u64> {
    let sides = matrix.rows().checked_add(matrix.columns())?;
    sides.checked_mul(rank)?.checked_mul(matrix.element_bytes())?.checked_add(HEADER)
}

/// Returns the stored bytes of factors: `left` has `rank` numbers per row, `right` has `rank` rows.
///
/// # Errors
/// E001 for a rank that does not fit in a `u32`, and for a dtype that does not [suit](suits).
pub fn encode(dtype: DType, rank: usize, left: &[f32], right: &[f32]) -> Result<Vec<u8>> {
    if !suits(dtype) {
        return Err(no_dtype(dtype));
    }
    let rank = u32::try_from(rank)
        .map_err(|_| Error::format("the rank is larger than the layout counts"))?;
    let mut stored = rank.to_le_bytes().to_vec();
    stored.extend_from_slice(&[0; 4]);
    let mut bytes = Vec::new();
    for factor in [left, right] {
        cast_values(factor, dtype, &mut bytes);
        stored.extend_from_slice(&bytes);
    }
    Ok(stored)
}

fn no_dtype(dtype: DType) -> Error {
    Error::format(format!("{dtype} elements are not stored as factors"))
}

/// Factors in a source with random access, read as their product.
///
/// Every method takes `read_at(offset, buf)`, which fills `buf` with stored bytes from `offset` on.
/// A few MiB are held at once, whatever the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FactorsReader {
    matrix: Matrix,
    dtype: DType,
    rank: u64,
}

impl FactorsReader {
    /// A matrix of `stored_len` bytes.
    ///
    /// # Errors
    /// E001 for a dtype that does not [suit](suits), E002 when the header asks for another length;
    /// what `read_at` says.
    pub fn open(
        matrix: Matrix,
        dtype: DType,
        stored_len: u64,
        read_at: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        if !suits(dtype) {
            return Err(no_dtype(dtype));
        }
        if stored_len < HEADER {
            return Err(Error::corrupt("the factors have no header").at(0));
        }
        let mut head = [0; 8];
        read_at(0, &mut head)?;
        let [r0, r1, r2, r3, reserved @ ..] = head;
        let rank = u64::from(u32::from_le_bytes([r0, r1, r2, r3]));
        if reserved != [0; 4] {
            return Err(Error::corrupt("the header of the factors does not end with zeros").at(4));
        }
        if self::stored_len(matrix, rank) != Some(stored_len) {
            let message = format!("factors of rank {rank} do not take {stored_len} bytes");
            return Err(Error::corrupt(message).at(0));
        }
        Ok(Self { matrix, dtype, rank })
    }

    /// Rows of the second factor.
    #[must_use]
    pub const fn rank(&self) -> u64 {
        self.rank
    }

    /// Fills `buf` with bytes of the product, from `offset` on.
    ///
    /// # Errors
    /// E002 past the matrix's end; what `read_at` says.
    pub fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        read_at: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let end =
            offset.checked_add(buf.len() as u64).filter(|&end| end <= self.matrix.dense_len());
        let end = end.ok_or_else(|| Error::corrupt("the read ends past the tensor").at(offset))?;
        if buf.is_empty() {
            return Ok(());
        }

        let (row_bytes, element) = (self.matrix.row_bytes(), self.matrix.element_bytes());
        let mut window = Window { range: offset..end, buf, tile: Tile::default() };
        let rows = offset / row_bytes..end.div_ceil(row_bytes);
        // Within one row, only some columns are wanted.
        let columns = match rows.end - rows.start {
            1 => {
                let within = |at: u64| at - rows.start * row_bytes;
                within(offset) / element..within(end).div_ceil(element)
            }
            _ => 0..self.matrix.columns(),
        };
        let width = (columns.end - columns.start).min(BATCH);
        let height = (BATCH / width).max(1);
        for top in steps(rows, height) {
            for part in steps(columns.clone(), width) {
                self.multiply(top.clone(), part.clone(), &mut window.tile, &read_at)?;
                window.take(top.start, part, (row_bytes, element), self.dtype);
            }
        }
        Ok(())
    }

    /// Makes the product of some rows and columns.
    fn multiply(
        &self,
        rows: Range<u64>,
        columns: Range<u64>,
        tile: &mut Tile,
        read_at: &impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let element = self.matrix.element_bytes();
        let (height, width) = (rows.end - rows.start, columns.end - columns.start);
        tile.sums.clear();
        tile.sums.resize(in_memory(height * width), 0.0);
        let batch = (BATCH / width.max(height)).clamp(1, self.rank.max(1));
        for terms in steps(0..self.rank, batch) {
            let count = terms.end - terms.start;
            let left = Block {
                start: HEADER,
                stride: self.rank,
                rows: rows.clone(),
                columns: terms.clone(),
            };
            let right = Block {
                start: HEADER + self.matrix.rows() * self.rank * element,
                stride: self.matrix.columns(),
                rows: terms,
                columns: columns.clone(),
            };
            left.read(self.dtype, (&mut tile.bytes, &mut tile.left), read_at)?;
            right.read(self.dtype, (&mut tile.bytes, &mut tile.right), read_at)?;
            let of_rows = tile.left.chunks_exact(in_memory(count));
            for (coefficients, sums) in of_rows.zip(tile.sums.chunks_exact_mut(in_memory(width))) {
                kernel::add_products(coefficients, &tile.right, sums);
            }
        }
        Ok(())
    }
}

/// A range in steps; the last may be shorter.
fn steps(range: Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = range;
    (0..(end - start).div_ceil(step)).map(move |at| {
        let first = start + at * step;
        first..(first + step).min(end)
    })
}

/// Rows and columns of a factor.
struct Block {
    /// Start of the factor.
    start: u64,
    /// Elements of its rows.
    stride: u64,
    rows: Range<u64>,
    columns: Range<u64>,
}

impl Block {
    /// Replaces the contents of `values` by its elements, row by row.
    fn read(
        &self,
        dtype: DType,
        (bytes, values): (&mut Vec<u8>, &mut Vec<f32>),
        read_at: &impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let element = dtype.block_bytes();
        let width = self.columns.end - self.columns.start;
        let height = self.rows.end - self.rows.start;
        bytes.resize(in_memory(height * width * element), 0);
        let at = |row: u64| self.start + (row * self.stride + self.columns.start) * element;
        if width == self.stride {
            // One read, since a codec decodes whole blocks for each.
            read_at(at(self.rows.start), bytes)?;
        } else {
            let rows = bytes.chunks_exact_mut(in_memory(width * element));
            for (row, target) in self.rows.clone().zip(rows) {
                read_at(at(row), target)?;
            }
        }
        widen_f32(dtype, bytes, values);
        Ok(())
    }
}

/// Buffers of a part of the product.
#[derive(Default)]
struct Tile {
    bytes: Vec<u8>,
    left: Vec<f32>,
    right: Vec<f32>,
    sums: Vec<f32>,
}

/// A range of the product's bytes that is being filled.
struct Window<'a> {
    range: Range<u64>,
    buf: &'a mut [u8],
    tile: Tile,
}

impl Window<'_> {
    /// Takes what the window has of the rows from `top` on and these columns.
    fn take(&mut self, top: u64, columns: Range<u64>, (row, element): (u64, u64), dtype: DType) {
        let width = in_memory(columns.end - columns.start);
        let mut rounded = core::mem::take(&mut self.tile.bytes);
        for (row_start, sums) in (top..).map(|at| at * row).zip(self.tile.sums.chunks_exact(width))
        {
            cast_values(sums, dtype, &mut rounded);
            let first = row_start + columns.start * element;
            let last = row_start + columns.end * element;
            let (start, end) = (first.max(self.range.start), last.min(self.range.end));
            if start < end {
                let target = in_memory(start - self.range.start)..in_memory(end - self.range.start);
                let source = in_memory(start - first)..in_memory(end - first);
                self.buf[target].copy_from_slice(&rounded[source]);
            }
        }
        self.tile.bytes = rounded;
    }
}

/// Lengths of buffers that exist, or are a few MiB.
fn in_memory(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
