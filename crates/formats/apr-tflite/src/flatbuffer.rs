//! A flatbuffer, read field by field at the places where the fields are.
//!
//! Offsets count from where they are written, forwards, except for that from a table to the table
//! of its fields, which counts backwards. Integers are little-endian.

use std::cell::{Cell, RefCell};

use apr_core::{ByteSource, Error, Limits, Result, read_vec};

/// Number of bytes per read. Tables are usually close to each other.
const WINDOW: u64 = 64 << 10;

/// Cost of a table or a list item against the index limit in bytes, besides texts.
const ITEM: u64 = 32;

/// A flatbuffer in a file.
pub struct Flatbuffer<'a> {
    source: &'a dyn ByteSource,
    /// Offset and content of the bytes that were read last.
    window: RefCell<(u64, Vec<u8>)>,
    limits: &'a Limits,
    /// Bytes examined so far. Lists may overlap, so the file's length does not limit the work.
    spent: Cell<u64>,
}

impl<'a> Flatbuffer<'a> {
    /// Creates a flatbuffer over a source. Its use counts against [`Limits::max_index`].
    #[must_use]
    pub fn new(source: &'a dyn ByteSource, limits: &'a Limits) -> Self {
        Self { source, window: RefCell::new((0, Vec::new())), limits, spent: Cell::new(0) }
    }

    /// The table that all others are in.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn root(&self) -> Result<Table<'_>> {
        self.table(self.target(0)?)
    }

    fn spend(&self, cost: u64) -> Result<()> {
        self.spent.set(self.spent.get().saturating_add(cost));
        self.limits.check_index(self.spent.get())
    }

    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let mut out = [0; N];
        let mut window = self.window.borrow_mut();
        let within = |window: &(u64, Vec<u8>)| {
            let from = usize::try_from(at.checked_sub(window.0)?).ok()?;
            window.1.get(from..from.checked_add(N)?)?.try_into().ok()
        };
        if let Some(bytes) = within(&window) {
            return Ok(bytes);
        }
        let left = self.source.len().checked_sub(at).filter(|left| *left >= N as u64);
        let left = left.ok_or_else(|| Error::corrupt("the flatbuffer ends early").at(at))?;
        *window = (at, read_vec(self.source, at, left.min(WINDOW))?);
        if let Some(bytes) = within(&window) {
            out = bytes;
        }
        Ok(out)
    }

    fn u16(&self, at: u64) -> Result<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Result<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// Returns the target of an offset.
    fn target(&self, at: u64) -> Result<u64> {
        let offset = self.u32(at)?;
        if offset == 0 {
            return Err(Error::corrupt("an offset of the flatbuffer leads to itself").at(at));
        }
        Ok(at + u64::from(offset))
    }

    fn table(&self, at: u64) -> Result<Table<'_>> {
        self.spend(ITEM)?;
        let back = i64::from(self.u32(at)?.cast_signed());
        let bad = || Error::corrupt("a table of the flatbuffer has no list of fields").at(at);
        let fields = at.checked_add_signed(-back).ok_or_else(bad)?;
        let len = u64::from(self.u16(fields)?);
        if len < 4 || !len.is_multiple_of(2) {
            return Err(bad());
        }
        Ok(Table { buffer: self, at, fields, len })
    }

    fn text(&self, at: u64) -> Result<String> {
        let bytes = self.vector(at, 1)?;
        self.spend(bytes.len.saturating_add(ITEM))?;
        let bytes = read_vec(self.source, bytes.at, bytes.len)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn vector(&self, at: u64, width: u64) -> Result<Vector<'_>> {
        let len = u64::from(self.u32(at)?);
        let first = at + 4;
        let left = self.source.len().saturating_sub(first);
        if len * width > left {
            let message = format!("a list of {len} items ends past the file's end");
            return Err(Error::corrupt(message).at(at));
        }
        Ok(Vector { buffer: self, at: first, len })
    }
}

/// A table: fields by their numbers, all of which may be left out.
#[derive(Clone, Copy)]
pub struct Table<'b> {
    buffer: &'b Flatbuffer<'b>,
    at: u64,
    /// Offset of the list of fields, and its length in bytes.
    fields: u64,
    len: u64,
}

impl<'b> Table<'b> {
    /// Returns the offset of a field, or `None` if it is missing.
    fn field(&self, number: u64) -> Result<Option<u64>> {
        let entry = 4 + 2 * number;
        if entry + 2 > self.len {
            return Ok(None);
        }
        let offset = self.buffer.u16(self.fields + entry)?;
        Ok((offset != 0).then(|| self.at + u64::from(offset)))
    }

    /// Returns a field of one byte, or 0 if it is missing.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn u8(&self, number: u64) -> Result<u8> {
        let Some(at) = self.field(number)? else { return Ok(0) };
        self.buffer.bytes(at).map(|[byte]| byte)
    }

    /// Returns a field of four bytes, or 0 if it is missing.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn u32(&self, number: u64) -> Result<u32> {
        self.field(number)?.map_or(Ok(0), |at| self.buffer.u32(at))
    }

    /// Returns a field of eight bytes, or 0 if it is missing.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn u64(&self, number: u64) -> Result<u64> {
        let Some(at) = self.field(number)? else { return Ok(0) };
        self.buffer.bytes(at).map(u64::from_le_bytes)
    }

    /// A field that is a table.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn table(&self, number: u64) -> Result<Option<Self>> {
        let Some(at) = self.field(number)? else { return Ok(None) };
        self.buffer.table(self.buffer.target(at)?).map(Some)
    }

    /// Returns a list of items of `width` bytes, or an empty list if the field is missing.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn list(&self, number: u64, width: u64) -> Result<Vector<'b>> {
        match self.field(number)? {
            Some(at) => self.buffer.vector(self.buffer.target(at)?, width),
            None => Ok(Vector { buffer: self.buffer, at: self.at, len: 0 }),
        }
    }

    /// Returns `true` if a field is present.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn has(&self, number: u64) -> Result<bool> {
        self.field(number).map(|field| field.is_some())
    }

    /// A list of tables.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn tables(&self, number: u64) -> Result<impl Iterator<Item = Result<Self>> + use<'b>> {
        let Vector { buffer, at, len } = self.list(number, 4)?;
        Ok((0..len).map(move |item| buffer.table(buffer.target(at + 4 * item)?)))
    }

    /// A list of texts.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn texts(&self, number: u64) -> Result<Vec<String>> {
        let Vector { buffer, at, len } = self.list(number, 4)?;
        (0..len).map(|item| buffer.text(buffer.target(at + 4 * item)?)).collect()
    }

    /// A text; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn text(&self, number: u64) -> Result<Option<String>> {
        let Some(at) = self.field(number)? else { return Ok(None) };
        self.buffer.text(self.buffer.target(at)?).map(Some)
    }
}

/// A list of numbers.
#[derive(Clone, Copy)]
pub struct Vector<'b> {
    buffer: &'b Flatbuffer<'b>,
    /// Offset of the first item in the file.
    pub at: u64,
    /// Number of items.
    pub len: u64,
}

impl<'b> Vector<'b> {
    /// The table that an item leads to.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn table(&self, item: u64) -> Result<Table<'b>> {
        self.buffer.table(self.buffer.target(self.at + 4 * item)?)
    }

    /// The items, of eight bytes each.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn i64s(&self) -> Result<Vec<i64>> {
        self.buffer.spend(self.len.saturating_mul(8))?;
        let item = |item| self.buffer.bytes(self.at + 8 * item).map(i64::from_le_bytes);
        (0..self.len).map(item).collect()
    }

    /// The items, of four bytes each.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn i32s(&self) -> Result<Vec<i32>> {
        self.buffer.spend(self.len.saturating_mul(4))?;
        (0..self.len).map(|item| Ok(self.buffer.u32(self.at + 4 * item)?.cast_signed())).collect()
    }

    /// The items, of one byte each.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn u8s(&self) -> Result<Vec<u8>> {
        self.buffer.spend(self.len)?;
        read_vec(self.buffer.source, self.at, self.len)
    }

    /// Returns `true` if all items, of eight bytes each, are 0.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the limit.
    pub fn are_zero(&self) -> Result<bool> {
        self.buffer.spend(self.len.saturating_mul(8))?;
        for item in 0..self.len {
            if self.buffer.bytes::<8>(self.at + 8 * item)? != [0; 8] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
