//! The bytes of a tensor.

use std::sync::OnceLock;

use apr_core::{
    ByteSource, Crc32c, DType, Error, Result, Shape, SharedSource, Stored, StoredRange,
    TensorBytes, TensorDecoder, TensorInfo, read_pieces,
};

/// Bytes that are checked at a time.
const PIECE: u64 = 1 << 20;

/// Bytes of a file.
#[derive(Debug)]
pub(crate) struct Part {
    range: StoredRange,
    /// The masked CRC-32C of the bytes.
    sum: u32,
    /// Result of the comparison, after the bytes were read.
    checked: OnceLock<std::result::Result<(), Error>>,
}

impl Part {
    pub(crate) fn new(range: StoredRange, sum: u32) -> Self {
        Self { range, sum, checked: OnceLock::new() }
    }

    /// Compares the checksum when the part is first read, all of it. Returns the part's file.
    fn checked<'a>(&self, sources: &'a [SharedSource]) -> Result<&'a SharedSource> {
        let source = &sources[self.range.file];
        let check = || {
            let mut sum = Crc32c::new();
            let StoredRange { offset, len, .. } = self.range;
            if let Some(bytes) = source.slice_at(offset, len) {
                sum.update(bytes);
            } else {
                let mut piece = vec![0; usize::try_from(len.min(PIECE)).unwrap_or_default()];
                let mut at = 0;
                while at < len {
                    let count = usize::try_from((len - at).min(PIECE)).unwrap_or_default();
                    source.read_at(offset + at, &mut piece[..count])?;
                    sum.update(&piece[..count]);
                    at += count as u64;
                }
            }
            if sum.masked() == self.sum {
                return Ok(());
            }
            Err(Error::checksum("its checksum (CRC-32C) does not match its bytes").at(offset))
        };
        self.checked.get_or_init(check).clone().map(|()| source)
    }
}

/// Ranges of files with checksums, which follow each other. A partitioned variable has several.
pub(crate) struct Parts(pub(crate) Vec<Part>);

impl TensorDecoder for Parts {
    fn range(&self) -> StoredRange {
        let none = StoredRange { file: 0, offset: 0, len: 0 };
        self.0.first().map_or(none, |part| part.range)
    }

    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        let lens = self.0.iter().map(|part| part.range.len);
        read_pieces(lens, offset, buf, |part, within, buf| {
            let part = &self.0[part];
            part.checked(sources)?.read_at(part.range.offset + within, buf)
        })
    }

    fn stored<'a>(&'a self, _: &'a [SharedSource]) -> Stored<'a> {
        match self.0[..] {
            [_] => Stored::plain(self.range()),
            _ => Stored::derived(self.range()),
        }
    }

    fn slice<'a>(&'a self, sources: &'a [SharedSource]) -> Option<&'a [u8]> {
        let [part] = &self.0[..] else { return None };
        // A wrong checksum is an error, which reading the tensor gives.
        part.checked(sources).ok()?.slice_at(part.range.offset, part.range.len)
    }
}

/// Bytes whose last element repeats, with their range in the file.
pub(crate) struct Repeated {
    pub(crate) bytes: Vec<u8>,
    pub(crate) element: usize,
    pub(crate) range: StoredRange,
}

impl TensorDecoder for Repeated {
    fn range(&self) -> StoredRange {
        self.range
    }

    fn read(&self, _: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        let last = &self.bytes[self.bytes.len().saturating_sub(self.element)..];
        for (at, out) in (offset..).zip(buf) {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            *out = *self.bytes.get(at).unwrap_or_else(|| &last[at % self.element]);
        }
        Ok(())
    }
}

/// A tensor that was found, with the bytes that it is made of.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) bytes: TensorBytes,
}

impl Found {
    pub(crate) fn info(&self) -> TensorInfo {
        let shape = Shape::from(self.dims.clone());
        TensorInfo { name: self.name.clone(), dtype: self.dtype, shape }
    }

    /// Returns the file and offset of the start, which determine the order of tensors.
    pub(crate) fn place(&self) -> (usize, u64) {
        let StoredRange { file, offset, .. } = self.bytes.range();
        (file, offset)
    }
}
