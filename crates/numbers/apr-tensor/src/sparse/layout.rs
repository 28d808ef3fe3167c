//! Sizes, in checked arithmetic.

use apr_core::{DType, Error, Result, Shape};

/// A tensor as a matrix of elements of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub(super) element: u64,
    len: u64,
}

/// Layout of the stored entries of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SparseLayout {
    /// One by one: compressed sparse rows.
    Csr,
    /// Square blocks: block compressed sparse rows.
    Bsr {
        /// Rows and columns of a block, 1 at least.
        block: u32,
    },
}

impl Matrix {
    /// The matrix of a tensor.
    ///
    /// # Errors
    /// E001 for elements that share bytes or scales, for a scalar, and for more bytes than `u64`
    /// counts.
    pub fn new(dtype: DType, shape: &Shape) -> Result<Self> {
        if dtype.is_quantized() || dtype.block_len() != 1 {
            return Err(Error::format(alloc::format!(
                "{dtype} elements share bytes or scales, which sparse layouts do not support"
            )));
        }
        let (Some(&rows), Some(len)) = (shape.dims().first(), dtype.stored_len(shape)) else {
            return Err(Error::format(alloc::format!("the shape {shape} is not a matrix")));
        };
        // A dimension of zero leaves nothing, however large the others are.
        let columns =
            shape.dims()[1..].iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
        let columns = if len == 0 { columns.unwrap_or(0) } else { columns.unwrap_or(u64::MAX) };
        Ok(Self { rows, columns, element: dtype.block_bytes(), len })
    }

    /// Bytes of the dense matrix.
    #[must_use]
    pub const fn dense_len(self) -> u64 {
        self.len
    }

    /// Rows: the first dimension.
    #[must_use]
    pub const fn rows(self) -> u64 {
        self.rows
    }

    /// Columns: the product of the other dimensions.
    #[must_use]
    pub const fn columns(self) -> u64 {
        self.columns
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn element_bytes(self) -> u64 {
        self.element
    }

    /// Bytes of a row.
    #[must_use]
    pub const fn row_bytes(self) -> u64 {
        self.columns.saturating_mul(self.element)
    }
}

impl SparseLayout {
    /// Bytes that `entries` elements (of [`Csr`](Self::Csr)) or blocks take; `None` when `u64` does
    /// not count them, and for blocks of nothing.
    #[must_use]
    pub fn stored_len(self, matrix: Matrix, entries: u64) -> Option<u64> {
        Some(Sections::new(matrix, self, entries)?.end)
    }

    /// Returns the sections of a matrix with this many elements ([`Csr`](Self::Csr)) or blocks.
    ///
    /// Returns `None` if the number of bytes exceeds a `u64`, and for empty blocks.
    #[must_use]
    pub fn sections(self, matrix: Matrix, entries: u64) -> Option<Sections> {
        Sections::new(matrix, self, entries)
    }

    /// Returns `true` if that many entries take less space in this layout than the dense matrix.
    #[must_use]
    pub fn is_worth(self, matrix: Matrix, entries: u64) -> bool {
        self.stored_len(matrix, entries).is_some_and(|len| len < matrix.dense_len())
    }

    /// Rows and columns of a block.
    #[must_use]
    pub const fn block(self) -> u64 {
        match self {
            Self::Csr => 1,
            Self::Bsr { block } => block as u64,
        }
    }

    /// Bytes before the row pointers.
    pub(super) const fn header_len(self) -> u64 {
        match self {
            Self::Csr => 8,
            Self::Bsr { .. } => 16,
        }
    }
}

/// Offsets of the sections of a stored matrix, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sections {
    /// Rows of blocks.
    pub block_rows: u64,
    /// Columns of blocks.
    pub block_columns: u64,
    /// Bytes of a block's elements.
    pub block_bytes: u64,
    /// Offset of the row pointers.
    pub row_ptr: u64,
    /// Offset of the columns of entries.
    pub columns: u64,
    /// Offset of the values of entries.
    pub values: u64,
    /// Bytes of the whole.
    pub end: u64,
}

impl Sections {
    pub(super) fn new(matrix: Matrix, layout: SparseLayout, entries: u64) -> Option<Self> {
        let block = layout.block();
        if block == 0 {
            return None;
        }
        let (block_rows, block_columns) =
            (matrix.rows.div_ceil(block), matrix.columns.div_ceil(block));
        let block_bytes = block.checked_mul(block)?.checked_mul(matrix.element)?;
        let row_ptr = layout.header_len();
        let columns = block_rows.checked_add(1)?.checked_mul(8)?.checked_add(row_ptr)?;
        let values = entries.checked_mul(4)?.checked_add(columns)?;
        let end = entries.checked_mul(block_bytes)?.checked_add(values)?;
        Some(Self { block_rows, block_columns, block_bytes, row_ptr, columns, values, end })
    }
}
