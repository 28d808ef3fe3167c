//! Matrices stored without their zeros, as `docs/format/codecs.md`, "Layouts", describes;
//! little-endian throughout.
//!
//! ```text
//! CSR: u64 nnz                    u64 row_ptr[rows + 1]          u32 col[nnz]
//!      values[nnz]
//! BSR: u32 b, u32 0, u64 nblocks  u64 row_ptr[ceil(rows/b) + 1]  u32 col[nblocks]
//!      values[nblocks * b * b]
//! ```
//!
//! The matrix of a tensor has `dims[0]` rows and the product of the other dimensions as columns.
//! Entry `k` of row `r` is one with `row_ptr[r] <= k < row_ptr[r + 1]`; columns ascend within a
//! row. In BSR rows, columns and entries are those of blocks of `b * b` elements, row-major; what
//! the last ones have beyond the matrix is zero. CSR is BSR with `b = 1` but for its header, and
//! one code serves both.
//!
//! Zero is an element whose every bit is: `-0.0` and NaN are entries, so that the dense bytes come
//! back exactly.
//!
//! ```
//! use apr_core::{DType, Shape};
//! use apr_tensor::sparse::{Matrix, SparseLayout, SparseReader, encode};
//!
//! let matrix = Matrix::new(DType::U8, &Shape::from([2, 3]))?;
//! let stored = encode(matrix, SparseLayout::Csr, &[0, 7, 0, 0, 0, 9])?;
//! let read_at = |offset: u64, buf: &mut [u8]| {
//!     buf.copy_from_slice(&stored[offset as usize..][..buf.len()]);
//!     Ok(())
//! };
//! let reader = SparseReader::open_csr(matrix, stored.len() as u64, read_at)?;
//! let mut row = [0; 3];
//! reader.read(3, &mut row, read_at)?;
//! assert_eq!(row, [0, 0, 9]);
//! # Ok::<(), apr_core::Error>(())
//! ```

mod decode;
mod encode;
mod layout;

pub use decode::SparseReader;
pub use encode::{count_entries, encode};
pub use layout::{Matrix, Sections, SparseLayout};
