//! What a tensor's bytes are made of: stored as they are, quantized, or sparse.

use apr_core::{ByteSource, Result};

use crate::quantized::Quantized;
use crate::sparse::Cells;
use crate::view::View;

/// Source of a tensor's bytes.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Stored(View),
    // Rare and large: most tensors need no place for them.
    Quantized(Box<Quantized>),
    Sparse(Box<Cells>),
    Joined(Joined),
}

/// The bytes of several parts, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Joined {
    /// Parts in order, each with its end offset in the tensor. There is at least one part.
    parts: Vec<(u64, View)>,
}

impl Joined {
    /// `None` for no parts, or for more bytes than there can be.
    pub(crate) fn new(parts: Vec<View>) -> Option<Self> {
        let mut end = 0_u64;
        let ends = parts.into_iter().map(|view| {
            end = end.checked_add(view.len)?;
            Some((end, view))
        });
        let parts: Vec<_> = ends.collect::<Option<_>>()?;
        (!parts.is_empty()).then_some(Self { parts })
    }

    fn len(&self) -> u64 {
        self.parts.last().map_or(0, |(end, _)| *end)
    }

    fn read(&self, source: &dyn ByteSource, start: u64, mut buf: &mut [u8]) -> Result<()> {
        let mut start = start;
        let first = self.parts.partition_point(|(end, _)| *end <= start);
        for (end, view) in &self.parts[first..] {
            let left = usize::try_from(end - start).unwrap_or(usize::MAX);
            let (head, tail) = buf.split_at_mut(left.min(buf.len()));
            view.read(source, start - (end - view.len), head)?;
            start += head.len() as u64;
            buf = tail;
            if buf.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

impl Content {
    /// Bytes of the whole tensor.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Stored(view) => view.len,
            // As many elements of four bytes; checked when it was made.
            Self::Quantized(quantized) => quantized.len,
            Self::Sparse(cells) => cells.len,
            Self::Joined(joined) => joined.len(),
        }
    }

    /// Returns the cost of reading the whole tensor, in bytes of sequential reading.
    pub(crate) fn cost(&self) -> u64 {
        match self {
            Self::Stored(view) => view.cost(),
            Self::Quantized(quantized) => quantized.len.max(quantized.view.cost()),
            Self::Sparse(cells) => cells.len,
            Self::Joined(joined) => joined.len(),
        }
    }

    /// The part of the file that holds the values, or the first of several.
    pub(crate) fn view(&self) -> &View {
        match self {
            Self::Stored(view) => view,
            Self::Quantized(quantized) => &quantized.view,
            Self::Sparse(cells) => &cells.values,
            Self::Joined(joined) => &joined.parts[0].1,
        }
    }

    /// Fills `buf` with the tensor's bytes from `start` on, which must be there.
    pub(crate) fn read(&self, source: &dyn ByteSource, start: u64, buf: &mut [u8]) -> Result<()> {
        match self {
            Self::Stored(view) => view.read(source, start, buf),
            Self::Quantized(quantized) => quantized.read(source, start, buf),
            Self::Sparse(cells) => cells.read(source, start, buf),
            Self::Joined(joined) => joined.read(source, start, buf),
        }
    }

    /// Returns the key that two tied tensors share, besides dtype and shape.
    ///
    /// Returns `None` for tensors with scales or indices of their own, which are never compared.
    pub(crate) fn identity(&self) -> Option<(&View, Option<(u32, i64)>)> {
        match self {
            Self::Stored(view) => Some((view, None)),
            Self::Quantized(quantized) => Some((&quantized.view, Some(quantized.only_scale()?))),
            Self::Sparse(_) | Self::Joined(_) => None,
        }
    }
}
