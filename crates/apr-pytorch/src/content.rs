//! What a tensor's bytes are made of: stored as they are, quantized, or sparse.

use apr_core::{ByteSource, Result};

use crate::quantized::Quantized;
use crate::sparse::Cells;
use crate::view::View;

/// Where a tensor's bytes come from.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Stored(View),
    Quantized(Quantized),
    Sparse(Cells),
}

impl Content {
    /// Bytes of the whole tensor.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Stored(view) => view.len,
            // As many elements of four bytes; checked when it was made.
            Self::Quantized(quantized) => quantized.len,
            Self::Sparse(cells) => cells.len,
        }
    }

    /// What reading all of it costs, as bytes that are read in a row.
    pub(crate) fn cost(&self) -> u64 {
        match self {
            Self::Stored(view) => view.cost(),
            Self::Quantized(quantized) => quantized.len.max(quantized.view.cost()),
            Self::Sparse(cells) => cells.len,
        }
    }

    /// The part of the file that holds the values.
    pub(crate) fn view(&self) -> &View {
        match self {
            Self::Stored(view) => view,
            Self::Quantized(quantized) => &quantized.view,
            Self::Sparse(cells) => &cells.values,
        }
    }

    /// Fills `buf` with the tensor's bytes from `start` on, which must be there.
    pub(crate) fn read(&self, source: &dyn ByteSource, start: u64, buf: &mut [u8]) -> Result<()> {
        match self {
            Self::Stored(view) => view.read(source, start, buf),
            Self::Quantized(quantized) => quantized.read(source, start, buf),
            Self::Sparse(cells) => cells.read(source, start, buf),
        }
    }

    /// What two tensors that are one have in common, besides dtype and shape. Those with
    /// scales or indices of their own are never compared.
    pub(crate) fn identity(&self) -> Option<(&View, Option<(u32, i64)>)> {
        match self {
            Self::Stored(view) => Some((view, None)),
            Self::Quantized(quantized) => Some((&quantized.view, Some(quantized.only_scale()?))),
            Self::Sparse(_) => None,
        }
    }
}
