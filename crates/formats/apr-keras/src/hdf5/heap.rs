//! Heaps: where names, texts, and the links and attributes of large objects are.

use std::sync::{Mutex, PoisonError};

use apr_core::{Error, Result};

use super::bytes::Bytes;
use super::checksum;
use super::file::{File, Followed};

/// The names of a group of the older form.
pub(crate) struct LocalHeap {
    names: Vec<u8>,
    address: u64,
}

impl LocalHeap {
    pub(crate) fn read(file: &File<'_>, address: u64) -> Result<Self> {
        let sizes = 2 * u64::from(file.length_size()) + u64::from(file.offset_size());
        let head = file.read(address, 8 + sizes)?;
        let mut bytes = file.bytes(&head, address);
        bytes.signature(b"HEAP")?;
        bytes.skip(4)?;
        let len = bytes.length()?;
        bytes.length()?;
        let names = bytes.address()?;
        let names = names.ok_or_else(|| Error::corrupt("a local heap has no data").at(address))?;
        Ok(Self { names: file.read(names, len)?, address })
    }

    /// The name at an offset, which counts against the budget: a million links may share one.
    pub(crate) fn name(&self, file: &File<'_>, offset: u64) -> Result<String> {
        let name = usize::try_from(offset).ok().and_then(|offset| self.names.get(offset..));
        let name = name.ok_or_else(|| {
            Error::corrupt("the name of a link is not in its heap").at(self.address)
        })?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        file.spend(name.len() as u64)?;
        Ok(String::from_utf8_lossy(name).into_owned())
    }
}

/// Text in a global heap.
///
/// # Errors
/// E002 where it is not there.
pub(crate) fn global_text(file: &File<'_>, bytes: &mut Bytes<'_>) -> Result<Vec<u8>> {
    let at = bytes.at();
    let (len, collection, index) = (bytes.u32()?, bytes.address()?, bytes.u32()?);
    let Some(address) = collection.filter(|&address| len > 0 && address > 0) else {
        return Ok(Vec::new());
    };
    let head = file.read(address, 8 + u64::from(file.length_size()))?;
    let mut bytes = file.bytes(&head, address);
    bytes.signature(b"GCOL")?;
    bytes.skip(4)?;
    let size = bytes.length()?;
    let collection = file.read_texts(address, size)?;
    let mut bytes = file.bytes(&collection, address);
    bytes.skip(head.len())?;
    while bytes.len() >= 8 + usize::from(file.length_size()) {
        let number = bytes.u16()?;
        bytes.skip(6)?;
        let size = usize::try_from(bytes.length()?).unwrap_or(usize::MAX);
        if number == 0 {
            break;
        }
        if u32::from(number) == index {
            let text = bytes.take(usize::try_from(len).unwrap_or(usize::MAX).min(size))?;
            return Ok(text.to_vec());
        }
        bytes.skip(size.checked_next_multiple_of(8).unwrap_or(usize::MAX))?;
    }
    Err(Error::corrupt("a text is not in its heap").at(at))
}

/// A heap of blocks that double in size.
pub(crate) struct FractalHeap {
    width: u64,
    first_block: u64,
    max_direct: u64,
    /// Bytes of an offset within the heap.
    offset_width: usize,
    /// Bytes of an object's length.
    length_width: usize,
    root: Option<u64>,
    /// Rows of the root block; 0 if the block itself contains the objects.
    rows: u64,
    /// `true` if the blocks of objects have checksums.
    has_sums: bool,
    /// Blocks that were compared with their checksums.
    compared: Mutex<Followed>,
}

/// The flag of a heap whose blocks of objects have checksums.
const SUMS: u8 = 2;

impl FractalHeap {
    pub(crate) fn read(file: &File<'_>, address: u64) -> Result<Self> {
        let (offset, length) = (u64::from(file.offset_size()), u64::from(file.length_size()));
        let head = file.read(address, 22 + 12 * length + 3 * offset)?;
        let mut bytes = file.bytes(&head, address);
        bytes.signature(b"FRHP")?;
        bytes.skip(3)?;
        let filters = bytes.u16()?;
        let flags = bytes.u8()?;
        let max_managed = bytes.u32()?;
        bytes.length()?;
        bytes.address()?;
        bytes.length()?;
        bytes.address()?;
        for _ in 0..8 {
            bytes.length()?;
        }
        let width = u64::from(bytes.u16()?);
        let (first_block, max_direct) = (bytes.length()?, bytes.length()?);
        let (bits, _starting_rows) = (bytes.u16()?, bytes.u16()?);
        let root = bytes.address()?;
        let rows = u64::from(bytes.u16()?);
        if filters > 0 {
            return Err(Error::version("heaps with filters are not supported").at(address));
        }
        file.read_summed(address, head.len() as u64)?;
        let is_possible = first_block.is_power_of_two() && max_direct.is_power_of_two();
        if !is_possible || width == 0 || bits > 64 || max_managed == 0 {
            return Err(Error::corrupt("a fractal heap has impossible sizes").at(address));
        }
        let offset_width = usize::from(bits.div_ceil(8));
        let by_block = max_direct.ilog2().div_ceil(8);
        let by_object = max_managed.ilog2() / 8 + 1;
        Ok(Self {
            width,
            first_block,
            max_direct,
            offset_width,
            length_width: by_block.min(by_object) as usize,
            root,
            rows,
            has_sums: flags & SUMS != 0,
            compared: Mutex::default(),
        })
    }

    /// The object that an identifier names.
    ///
    /// # Errors
    /// E002 where it is not there, E003 for an object of its own.
    pub(crate) fn object(&self, file: &File<'_>, id: &[u8], at: u64) -> Result<(Vec<u8>, u64)> {
        let mut bytes = file.bytes(id, at);
        let first = bytes.u8()?;
        match first >> 4 & 3 {
            0 => {}
            2 => {
                let len = usize::from(first & 15) + 1;
                return Ok((bytes.take(len)?.to_vec(), at));
            }
            _ => return Err(Error::version("large objects in a heap are not supported").at(at)),
        }
        let (offset, len) = (bytes.integer(self.offset_width)?, bytes.integer(self.length_width)?);
        let (block, start, size) = self.block(file, offset, at)?;
        let within = offset.saturating_sub(start);
        if within.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::corrupt("an object reaches past its heap's block").at(at));
        }
        self.compare(file, block, size)?;
        let address = block.saturating_add(within);
        Ok((file.read(address, len)?, address))
    }

    /// Compares a block of objects with its checksum, once.
    fn compare(&self, file: &File<'_>, block: u64, size: u64) -> Result<()> {
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_sums || !compared.is_new(block) {
            return Ok(());
        }
        let mut bytes = file.read(block, size)?;
        file.bytes(&bytes, block).signature(b"FHDB")?;
        // The checksum follows the header, and is of the block with zeros in its place.
        let at = 5 + usize::from(file.offset_size()) + self.offset_width;
        let field = bytes.get_mut(at..at + checksum::LEN);
        let field = field.ok_or_else(|| {
            Error::corrupt("a block of a heap is shorter than its header").at(block)
        })?;
        let stated = field.to_vec();
        field.fill(0);
        checksum::compare(&bytes, &stated, file.place(block)?)
    }

    /// The direct block that holds an offset: its address, the offset of its first byte, and its
    /// size.
    fn block(&self, file: &File<'_>, offset: u64, at: u64) -> Result<(u64, u64, u64)> {
        let missing = || Error::corrupt("an object is in no block of its heap").at(at);
        let mut address = self.root.ok_or_else(missing)?;
        if self.rows == 0 {
            return Ok((address, 0, self.first_block));
        }
        let (mut start, mut rows) = (0_u64, self.rows);
        let mut followed = Followed::default();
        loop {
            followed.follow(address)?;
            let (row, column, row_start, size) = self.position(offset - start)?;
            if row >= rows {
                return Err(missing());
            }
            // Rows of an indirect block that hold direct blocks have no sizes without filters.
            let entry = row.checked_mul(self.width).and_then(|entry| entry.checked_add(column));
            let header = 5 + u64::from(file.offset_size()) + self.offset_width as u64;
            let place = entry.and_then(|entry| entry.checked_mul(file.offset_size().into()));
            let place = place.and_then(|place| place.checked_add(header)).ok_or_else(missing)?;
            let entries = rows.checked_mul(self.width).ok_or_else(missing)?;
            let len = entries.checked_mul(file.offset_size().into()).ok_or_else(missing)?;
            let block = file.read_summed(address, len.saturating_add(header))?;
            let mut bytes = file.bytes(&block, address);
            bytes.signature(b"FHIB")?;
            bytes.skip(usize::try_from(place - 4).map_err(|_| missing())?)?;
            let child = bytes.address()?.ok_or_else(missing)?;
            let child_start = start + row_start + column * size;
            if size <= self.max_direct {
                return Ok((child, child_start, size));
            }
            // An indirect block has the rows that its size comes to.
            rows = u64::from((size / self.first_block / self.width).max(1).ilog2()) + 1;
            (address, start) = (child, child_start);
        }
    }

    /// Returns the row and column of an offset, the start of the row, and its block size.
    fn position(&self, offset: u64) -> Result<(u64, u64, u64, u64)> {
        let first_row = self.first_block.checked_mul(self.width);
        let first_row = first_row.ok_or_else(|| Error::corrupt("a heap's row is too large"))?;
        if offset < first_row {
            return Ok((0, offset / self.first_block, 0, self.first_block));
        }
        let row = u64::from((offset / first_row).ilog2()) + 1;
        let size = self.first_block << (row - 1);
        let start = first_row << (row - 1);
        Ok((row, (offset - start) / size, start, size))
    }
}
