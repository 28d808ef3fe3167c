//! Reading a header in pieces, in the byte order of its file.

use apr_core::{ByteSource, Error, Limits, Result};

/// Number of bytes per fetch; a longer value is fetched whole.
const FETCH_LEN: u64 = 1 << 18;

/// Number of items of an array that are decoded together.
const ITEMS: u64 = 1 << 13;

/// Maximum number of items that are reserved before they are read.
const RESERVED: u64 = 1 << 16;

/// The parts of a header, each with a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    KeyValues,
    Tensors,
}

/// A position in a file, moving forward.
pub(crate) struct Cursor<'a> {
    source: &'a dyn ByteSource,
    limits: &'a Limits,
    /// Length of the file, read once, because all checks must use the same value.
    file_len: u64,
    buffer: Vec<u8>,
    /// Offset of the buffer's first byte in the file.
    buffered_from: u64,
    /// Position in the buffer.
    at: usize,
    section: Section,
    section_start: u64,
    /// Number of array items that may still be read. An item takes up to 32 bytes unpacked, but as
    /// few as one in the file.
    items_left: u64,
    pub(crate) big_endian: bool,
    /// `true` if lengths and dimensions take 8 bytes instead of 4.
    pub(crate) wide: bool,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(source: &'a dyn ByteSource, file_len: u64, limits: &'a Limits) -> Self {
        Self {
            source,
            limits,
            file_len,
            buffer: Vec::new(),
            buffered_from: 0,
            at: 0,
            section: Section::KeyValues,
            section_start: 0,
            items_left: limits.max_metadata / 8,
            big_endian: false,
            wide: true,
        }
    }

    pub(crate) fn limits(&self) -> &'a Limits {
        self.limits
    }

    pub(crate) fn position(&self) -> u64 {
        self.buffered_from + self.at as u64
    }

    pub(crate) fn enter(&mut self, section: Section) {
        (self.section, self.section_start) = (section, self.position());
    }

    /// Rejects `count` things of at least `min_len` bytes that would end past the file or the
    /// limit.
    pub(crate) fn expect(&self, what: &str, count: u64, min_len: u64) -> Result<()> {
        let position = self.position();
        let Some(len) = count.checked_mul(min_len).filter(|&len| len <= self.file_len - position)
        else {
            let (bytes, end) = (u128::from(count) * u128::from(min_len), self.file_len);
            let message = format!(
                "{what} takes {bytes} bytes or more, but the file is truncated to \
                 {end} bytes"
            );
            return Err(Error::corrupt(message).at(position));
        };

        let taken = position + len - self.section_start;
        match self.section {
            Section::KeyValues => self.limits.check_metadata(taken),
            Section::Tensors => self.limits.check_index(taken),
        }
        .map_err(|error| error.at(position))
    }

    /// The next bytes.
    pub(crate) fn take(&mut self, what: &str, len: u64) -> Result<&[u8]> {
        self.expect(what, len, 1)?;
        let position = self.position();
        if len > (self.buffer.len() - self.at) as u64 {
            let fetched = len.max(FETCH_LEN).min(self.file_len - position);
            let fetched = usize::try_from(fetched)
                .map_err(|_| Error::memory(format!("{what} does not fit in memory")))?;
            self.buffer.resize(fetched, 0);
            (self.buffered_from, self.at) = (position, 0);
            self.source.read_at(position, &mut self.buffer)?;
        }

        let start = self.at;

        // It is at most what the buffer holds.
        self.at += usize::try_from(len).unwrap_or(self.buffer.len() - start);
        Ok(&self.buffer[start..self.at])
    }

    pub(crate) fn scalar<T: Scalar>(&mut self, what: &str) -> Result<T> {
        let big_endian = self.big_endian;
        Ok(T::decode(self.take(what, T::LEN)?, big_endian))
    }

    /// A length, a count or a dimension.
    pub(crate) fn length(&mut self, what: &str) -> Result<u64> {
        if self.wide { self.scalar(what) } else { self.scalar::<u32>(what).map(u64::from) }
    }

    /// Bytes that a length takes.
    pub(crate) fn length_len(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }

    pub(crate) fn text(&mut self, what: &str) -> Result<String> {
        let len = self.length(what)?;
        self.checked_text(what, len).map(str::to_owned)
    }

    fn checked_text(&mut self, what: &str, len: u64) -> Result<&str> {
        let position = self.position();
        str::from_utf8(self.take(what, len)?).map_err(|error| {
            let message = format!("{what} is not UTF-8");
            Error::format(message).at(position + error.valid_up_to() as u64)
        })
    }

    /// Counts the items of an array against what a header may hold.
    pub(crate) fn count_items(&mut self, count: u64) -> Result<()> {
        let Some(left) = self.items_left.checked_sub(count) else {
            let message = format!(
                "arrays hold more than {} items; raise the limit with {}",
                self.most_items(),
                self.limits.metadata_setting()
            );
            return Err(Error::memory(message).at(self.position()));
        };
        self.items_left = left;
        Ok(())
    }

    fn most_items(&self) -> u64 {
        self.limits.max_metadata / 8
    }

    /// Reads numbers, and packs them in little-endian order.
    pub(crate) fn copy_scalars<T: Scalar>(
        &mut self,
        what: &str,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.expect(what, count, T::LEN)?;
        let big_endian = self.big_endian;
        let mut left = count;
        while left > 0 {
            let now = left.min(ITEMS);
            let bytes = self.take(what, now * T::LEN)?;
            let start = out.len();
            out.extend_from_slice(bytes);
            if big_endian {
                let width = usize::try_from(T::LEN).unwrap_or(1);
                out[start..].chunks_exact_mut(width).for_each(<[u8]>::reverse);
            }
            left -= now;
        }

        Ok(())
    }

    /// Reads a text, and packs it with its length.
    pub(crate) fn copy_text(&mut self, what: &str, out: &mut Vec<u8>) -> Result<()> {
        let len = self.length(what)?;
        let bytes = self.checked_text(what, len)?;
        out.extend(len.to_le_bytes());
        out.extend_from_slice(bytes.as_bytes());
        Ok(())
    }
}

/// Returns the number of items to reserve in advance.
pub(crate) fn reserved(count: u64) -> usize {
    usize::try_from(count.min(RESERVED)).unwrap_or_default()
}

/// A number of fixed width.
pub(crate) trait Scalar: Sized {
    /// Bytes it takes.
    const LEN: u64;

    /// Decodes a number from its bytes.
    fn decode(bytes: &[u8], big_endian: bool) -> Self;

    fn decode_all(bytes: &[u8], big_endian: bool) -> impl Iterator<Item = Self>;
}

macro_rules! scalars {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            const LEN: u64 = size_of::<Self>() as u64;

            fn decode(bytes: &[u8], big_endian: bool) -> Self {
                Self::decode_all(bytes, big_endian).next().unwrap_or_default()
            }

            fn decode_all(bytes: &[u8], big_endian: bool) -> impl Iterator<Item = Self> {
                let (numbers, _) = bytes.as_chunks();
                let decode = move |&number| {
                    match big_endian {
                        true => Self::from_be_bytes(number),
                        false => Self::from_le_bytes(number),
                    }
                };
                numbers.iter().map(decode)
            }
        }
    )*};
}

scalars!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
