//! Tensors as views of the file, and gathering the bytes of those that do not lie flat.

use apr_core::{ByteSource, DType, Error, Result, Strided};

use crate::pickle::Tensor;

/// Bytes of a storage held at a time while a view is gathered: few after a jump, and twice as many
/// each time that reading goes on.
const WINDOW: u64 = 1 << 18;
const AFTER_A_JUMP: u64 = 512;

/// Run length in bytes below which a view is gathered element by element.
const LONG_RUN: u64 = 64;
/// Cost of a gathered byte, in bytes of sequential reading.
const COST: u64 = 8;

/// A part of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Location of a tensor's elements in the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct View {
    /// Offset of the first element in the file.
    pub(crate) offset: u64,
    /// Bytes from the first element to the end of the last.
    pub(crate) span: u64,
    /// Bytes of the whole tensor.
    pub(crate) len: u64,
    width: u64,
    /// The elements from `offset` on, in as few dimensions as they take.
    elements: Strided,
}

impl View {
    /// Checks the tensor against the storage it is a view of.
    pub(crate) fn new(tensor: &Tensor, storage: Range) -> Result<Self> {
        let too_large = || {
            Error::corrupt(format!(
                "its shape {:?} has no valid length in bytes",
                tensor.elements.dims()
            ))
        };

        let width = width(tensor.dtype);
        let elements = &tensor.elements;
        let len = elements.checked_elements().and_then(|count| count.checked_mul(width));
        let len = len.ok_or_else(too_large)?;
        if len == 0 {
            let elements = elements.joined();
            return Ok(Self { offset: storage.offset, span: 0, len, width, elements });
        }

        let first = elements.start().checked_mul(width);
        let span = elements.span().and_then(|span| span.checked_mul(width));
        let (first, span) = first.zip(span).ok_or_else(too_large)?;
        if first.checked_add(span).is_none_or(|end| end > storage.len) {
            let message =
                format!("its elements reach past the end of its storage of {} bytes", storage.len);
            return Err(Error::corrupt(message).at(storage.offset));
        }
        Ok(Self { offset: storage.offset + first, span, len, width, elements: elements.joined() })
    }

    /// Returns `true` if the file has the bytes in the order of the tensor.
    pub(crate) fn is_flat(&self) -> bool {
        self.len == 0 || matches!(self.elements.strides(), [] | [1])
    }

    /// Fills `buf` with the tensor's bytes from `start` on, which must be there.
    pub(crate) fn read(&self, source: &dyn ByteSource, start: u64, buf: &mut [u8]) -> Result<()> {
        if self.is_flat() {
            return source.read_at(self.offset + start, buf);
        }

        let (outer, run) = self.runs();
        let mut window = Window {
            source,
            start: self.offset,
            end: self.offset + self.span,
            at: 0,
            len: AFTER_A_JUMP,
            bytes: Vec::new(),
        };

        if let Some(rows) = self.columns(start, buf.len() as u64) {
            return self.read_columns(rows, source, buf);
        }

        let (mut position, mut rest) = (start, buf);
        while !rest.is_empty() {
            let (index, within) = (position / run, position % run);
            let piece =
                usize::try_from(run - within).map_or(rest.len(), |left| left.min(rest.len()));
            let (head, tail) = rest.split_at_mut(piece);
            let place = self.offset + self.distance(outer, index);
            if self.repeats() {
                let mut element = [0; 16];
                let width = usize::try_from(self.width).unwrap_or_default();
                window.read(place, &mut element[..width])?;
                let element = element[..width].iter().cycle();
                let skipped = usize::try_from(within % self.width).unwrap_or_default();
                head.iter_mut().zip(element.skip(skipped)).for_each(|(to, byte)| *to = *byte);
            } else {
                window.read(place + within, head)?;
            }
            position += piece as u64;
            rest = tail;
        }

        Ok(())
    }

    /// Returns `true` if the innermost dimension repeats one element.
    fn repeats(&self) -> bool {
        self.elements.strides().last() == Some(&0) && self.width <= 16
    }

    /// Returns the number of dimensions around a run, and the bytes of the tensor in a run.
    ///
    /// A run is the innermost dimension if it is contiguous or repeats one element, or else a
    /// single element.
    fn runs(&self) -> (usize, u64) {
        match (self.elements.dims(), self.elements.strides()) {
            ([outer @ .., dim], [.., stride]) if *stride == 1 || self.repeats() => {
                (outer.len(), dim * self.width)
            }
            (all, _) => (all.len(), self.width),
        }
    }

    /// Returns the distance in bytes from the first run to run `index`.
    ///
    /// `outer` is the number of dimensions around runs.
    fn distance(&self, outer: usize, mut index: u64) -> u64 {
        let mut elements = 0;
        let axes = self.elements.dims().iter().zip(self.elements.strides());
        for (dim, stride) in axes.take(outer).rev() {
            elements += index % dim * stride;
            index /= dim;
        }
        elements * self.width
    }

    /// Returns the cost of reading the whole view, in bytes of sequential reading.
    pub(crate) fn cost(&self) -> u64 {
        let is_slow = !self.is_flat() && !self.is_turned() && self.runs().1 < LONG_RUN;
        if is_slow { self.len.saturating_mul(COST) } else { self.len }
    }

    /// A request for whole rows of a transposed matrix: the first row and their number.
    fn columns(&self, start: u64, len: u64) -> Option<(u64, u64)> {
        let &[_, columns] = self.elements.dims() else { return None };
        let row = columns * self.width;
        let whole = start.is_multiple_of(row) && len.is_multiple_of(row) && len > row;
        (self.is_turned() && whole).then(|| (start / row, len / row))
    }

    /// Returns `true` if the view is a transposed matrix.
    fn is_turned(&self) -> bool {
        matches!(self.elements.strides(), [1, across] if *across > 1)
    }

    /// Reads rows of a transposed matrix column by column, in the order of the file.
    fn read_columns(
        &self,
        (first, rows): (u64, u64),
        source: &dyn ByteSource,
        buf: &mut [u8],
    ) -> Result<()> {
        let (columns, across) = (self.elements.dims()[1], self.elements.strides()[1] * self.width);
        let width = usize::try_from(self.width).unwrap_or(1);
        let row = buf.len() / usize::try_from(rows).unwrap_or(1);
        // No longer than `buf`, which holds a column of every row.
        let mut column = vec![0; buf.len() / (row / width)];
        for j in 0..columns {
            source.read_at(self.offset + first * self.width + j * across, &mut column)?;
            let at = usize::try_from(j).unwrap_or_default() * width;
            for (element, row) in column.chunks_exact(width).zip(buf.chunks_exact_mut(row)) {
                row[at..at + width].copy_from_slice(element);
            }
        }
        Ok(())
    }
}

/// A tensor with data about another tensor, and its shape.
pub(crate) struct PartTensor<'a> {
    pub(crate) view: View,
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [u64],
}

impl PartTensor<'_> {
    /// Returns `true` if each element has bytes of its own.
    ///
    /// The file's length then limits the size of results.
    pub(crate) fn is_distinct(&self) -> bool {
        self.view.span >= self.view.len
    }
}

/// The part of a storage that was read last: small steps then cost one read for many.
struct Window<'a> {
    source: &'a dyn ByteSource,
    start: u64,
    end: u64,
    at: u64,
    /// Bytes of the next read.
    len: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(slice) = self.source.slice_at(offset, buf.len() as u64) {
            buf.copy_from_slice(slice);
            return Ok(());
        }

        // A long read gains nothing by a window.
        if buf.len() as u64 >= WINDOW / 4 {
            return self.source.read_at(offset, buf);
        }

        if self.held(offset, buf.len()).is_none() {
            let before = self.at + self.bytes.len() as u64;
            let goes_on = (self.at..before + self.len).contains(&offset);
            self.len = if goes_on { WINDOW.min(self.len * 2) } else { AFTER_A_JUMP };
            self.at = offset.max(self.start);
            let wanted = self.len.max(buf.len() as u64);
            let len = usize::try_from(wanted.min(self.end - self.at)).unwrap_or_default();
            self.bytes.resize(len, 0);
            self.source.read_at(self.at, &mut self.bytes)?;
        }

        let held = self
            .held(offset, buf.len())
            .ok_or_else(|| Error::corrupt("a view past its storage").at(offset))?;
        buf.copy_from_slice(held);
        Ok(())
    }

    fn held(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.at)?).ok()?;
        self.bytes.get(from..from.checked_add(len)?)
    }
}

/// Bytes of an element; every dtype of PyTorch's has whole ones.
pub(crate) fn width(dtype: DType) -> u64 {
    dtype.block_bytes()
}
