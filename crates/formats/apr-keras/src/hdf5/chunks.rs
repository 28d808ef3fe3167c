//! Chunks of a dataset: where each is, and what it decodes to.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apr_core::{Error, Result, Work};
use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_zlib_with_limit};

use super::bytes::Bytes;
use super::dataset::{Chunks, Dataset, Filter, Place};
use super::file::File;
use super::tree;

/// Decoded bytes that are kept of one dataset, besides the last chunk.
const KEPT: u64 = 16 << 20;

/// Average number of times that a dataset may be decoded; [`FREE`] more bytes are allowed.
///
/// Views that alternate between chunks decode the same chunk repeatedly.
const TIMES: u64 = 8;
const FREE: u64 = 64 << 20;

const MISMATCH: &str = "the checksum of a chunk does not match its bytes";

/// Maximum ratio of a chunk's length to its packed length.
const MAX_RATIO: u64 = 1032;

/// Index of the chunks' locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Index {
    /// A tree with the offsets of each chunk for its keys.
    Tree(Option<u64>),
    /// A single chunk, with its packed length and filter mask if it is packed.
    Single { address: Option<u64>, packed: Option<(u64, u32)> },
    /// The chunks follow each other.
    Implicit(Option<u64>),
    /// An array of their addresses.
    Array { address: Option<u64>, page_bits: u8 },
}

impl Index {
    /// Reads the chunk index of layout version 4. Also returns the shape of the chunks.
    ///
    /// # Errors
    /// E002 for a damaged message, E003 for an index that is not supported.
    pub(crate) fn read(bytes: &mut Bytes<'_>) -> Result<(Self, Vec<u64>)> {
        let (flags, rank, width) = (bytes.u8()?, bytes.u8()?, usize::from(bytes.u8()?));
        if !(1..=8).contains(&width) {
            return Err(Error::corrupt("chunks have impossible sizes").at(bytes.at()));
        }
        let shape = (0..rank).map(|_| bytes.integer(width)).collect::<Result<_>>()?;
        let index = match bytes.u8()? {
            1 => {
                let packed = match flags & 2 {
                    0 => None,
                    _ => Some((bytes.length()?, bytes.u32()?)),
                };
                Self::Single { address: bytes.address()?, packed }
            }
            2 => Self::Implicit(bytes.address()?),
            3 => {
                let page_bits = bytes.u8()?;
                Self::Array { address: bytes.address()?, page_bits }
            }
            kind => {
                let name = ["an extensible array", "a tree of version 2"];
                let name = name.get(usize::from(kind).wrapping_sub(4)).unwrap_or(&"unknown");
                let message = format!("the index of its chunks is {name}, which is not supported");
                return Err(Error::version(message));
            }
        };
        Ok((index, shape))
    }
}

/// A chunk in the file.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    address: u64,
    len: u64,
    /// Filters that were not applied, by their bits.
    skipped: u32,
}

/// Reads the values of a dataset in chunks.
pub(crate) struct ChunkReader {
    /// Chunks by their numbers, row by row; read when the first is wanted.
    index: OnceLock<std::result::Result<HashMap<u64, Chunk>, Error>>,
    decoded: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
    work: Work,
}

impl ChunkReader {
    pub(crate) fn new(dataset: &Dataset, element: u64) -> Self {
        let len = dataset.dims.iter().fold(element, |product, &dim| product.saturating_mul(dim));
        Self {
            index: OnceLock::new(),
            decoded: Mutex::default(),
            work: Work::of_file(len.saturating_mul(TIMES).saturating_add(FREE)),
        }
    }

    /// Fills `buf` with the dataset's bytes from `offset` on, unchanged.
    ///
    /// The caller must check that the range is inside the dataset.
    ///
    /// # Errors
    /// E002 for damaged chunks, E004 for a wrong checksum, E007 when reading fails, E008 over the
    /// budget.
    pub(crate) fn read(
        &self,
        file: &File<'_>,
        dataset: &Dataset,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let Place::Chunked(chunks) = &dataset.place else { return Ok(()) };
        let grid = Grid::new(dataset, chunks, file.offset_size());
        let index = self.index.get_or_init(|| grid.index(file, chunks)).as_ref();
        let index = index.map_err(Clone::clone)?;
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            // The longest run that is in one chunk: along the last dimension.
            let (number, within, run) = grid.locate(at);
            let run = usize::try_from(run).unwrap_or(usize::MAX).min(rest.len());
            let (head, tail) = rest.split_at_mut(run);
            match index.get(&number) {
                None => fill(head, &dataset.fill, at),
                Some(chunk) if chunks.filters.is_empty() => {
                    if within + run as u64 > chunk.len {
                        return Err(Error::corrupt("a chunk is shorter than its shape"));
                    }
                    file.source.read_at(file.place(chunk.address)?.saturating_add(within), head)?;
                }
                Some(chunk) => {
                    let bytes = self.decoded(file, (number, chunk), chunks, &grid)?;
                    let within = usize::try_from(within).unwrap_or(usize::MAX);
                    let bytes = bytes.get(within..within.saturating_add(run));
                    let bytes = bytes.ok_or_else(|| Error::corrupt("a chunk is too short"))?;
                    head.copy_from_slice(bytes);
                }
            }
            at += run as u64;
            rest = tail;
        }
        Ok(())
    }

    fn decoded(
        &self,
        file: &File<'_>,
        (number, chunk): (u64, &Chunk),
        chunks: &Chunks,
        grid: &Grid,
    ) -> Result<Arc<[u8]>> {
        // The lock is held while a chunk is decoded, so that no two threads decode the same one.
        let mut kept = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = kept.iter().find(|(kept, _)| *kept == number) {
            return Ok(Arc::clone(bytes));
        }
        self.work.spend(grid.chunk_len)?;
        let place = file.place(chunk.address)?;
        let bytes: Arc<[u8]> = grid
            .decode(file, chunk, chunks)
            .map_err(|error| if error.offset().is_none() { error.at(place) } else { error })?
            .into();
        let most = usize::try_from(KEPT / grid.chunk_len.max(1)).unwrap_or(usize::MAX).max(1);
        kept.truncate(most.saturating_sub(1));
        kept.push_front((number, Arc::clone(&bytes)));
        Ok(bytes)
    }
}

/// The division of a dataset into chunks.
struct Grid {
    dims: Vec<u64>,
    shape: Vec<u64>,
    /// Chunks in each dimension.
    counts: Vec<u64>,
    element: u64,
    /// Bytes of a chunk.
    chunk_len: u64,
}

impl Grid {
    fn new(dataset: &Dataset, chunks: &Chunks, offset_size: u8) -> Self {
        let element = dataset.datatype.size(offset_size);
        let counts = dataset.dims.iter().zip(&chunks.shape).map(|(dim, size)| dim.div_ceil(*size));
        Self {
            dims: dataset.dims.clone(),
            shape: chunks.shape.clone(),
            counts: counts.collect(),
            element,
            chunk_len: chunks.shape.iter().fold(element, |len, &dim| len.saturating_mul(dim)),
        }
    }

    /// Returns the chunk of a byte, its offset there, and the length of the contiguous run.
    fn locate(&self, offset: u64) -> (u64, u64, u64) {
        let mut element = offset / self.element;
        let within_element = offset % self.element;
        let (mut number, mut within, mut run) = (0, 0, 1);
        let (mut chunk_stride, mut stride) = (1, 1);
        for axis in (0..self.dims.len()).rev() {
            let (dim, size) = (self.dims[axis], self.shape[axis]);
            let position = element % dim;
            element /= dim;
            if axis + 1 == self.dims.len() {
                run = (size - position % size).min(dim - position);
            }
            number += position / size * chunk_stride;
            within += position % size * stride;
            chunk_stride *= self.counts[axis];
            stride *= size;
        }
        let within = within * self.element + within_element;
        (number, within, run * self.element - within_element)
    }

    fn count(&self) -> u64 {
        self.counts.iter().fold(1, |count, &dim| count.saturating_mul(dim))
    }

    /// Returns the locations of all chunks.
    fn index(&self, file: &File<'_>, chunks: &Chunks) -> Result<HashMap<u64, Chunk>> {
        let mut found = HashMap::new();
        match &chunks.index {
            Index::Tree(None) | Index::Array { address: None, .. } | Index::Implicit(None) => {}
            Index::Tree(Some(root)) => {
                let key_len = 8 + 8 * (self.dims.len() + 1);
                tree::each_entry(file, *root, (1, key_len), &mut |mut key, address| {
                    let (len, skipped) = (u64::from(key.u32()?), key.u32()?);
                    let mut number = 0_u64;
                    for (axis, &count) in self.counts.iter().enumerate() {
                        let position = key.integer(8)?;
                        let place = position / self.shape[axis];
                        if place >= count {
                            return Ok(());
                        }
                        number = number.saturating_mul(count).saturating_add(place);
                    }
                    found.insert(number, Chunk { address, len, skipped });
                    Ok(())
                })?;
            }
            Index::Single { address, packed } => {
                if let Some(address) = *address {
                    let (len, skipped) = packed.unwrap_or((self.chunk_len, 0));
                    found.insert(0, Chunk { address, len, skipped });
                }
            }
            Index::Implicit(Some(first)) => {
                // As many as the file has room for.
                let room = file.source.len() / self.chunk_len.max(1) + 1;
                for number in 0..self.count().min(room) {
                    let address = first.saturating_add(number.saturating_mul(self.chunk_len));
                    found.insert(number, Chunk { address, len: self.chunk_len, skipped: 0 });
                }
            }
            Index::Array { address: Some(address), page_bits } => {
                self.array(file, (*address, *page_bits), !chunks.filters.is_empty(), &mut found)?;
            }
        }
        Ok(found)
    }

    /// The array of addresses (section VII.B).
    fn array(
        &self,
        file: &File<'_>,
        (address, page_bits): (u64, u8),
        is_packed: bool,
        found: &mut HashMap<u64, Chunk>,
    ) -> Result<()> {
        let widths = u64::from(file.offset_size()) + u64::from(file.length_size());
        let head = file.read_summed(address, 8 + widths)?;
        let mut bytes = file.bytes(&head, address);
        bytes.signature(b"FAHD")?;
        bytes.skip(2)?;
        let entry = usize::from(bytes.u8()?);
        bytes.skip(1)?;
        let count = bytes.length()?;
        let Some(block) = bytes.address()? else { return Ok(()) };
        let width = entry.saturating_sub(usize::from(file.offset_size()) + 4);
        let is_possible = if is_packed { (1..=8).contains(&width) } else { entry > 0 };
        if !is_possible || page_bits > 63 || count > file.source.len() {
            return Err(Error::corrupt("an array of chunks has impossible sizes").at(address));
        }

        let page = 1_u64 << page_bits;
        let prefix = 6 + u64::from(file.offset_size());
        // Pages have a checksum each, and a bit for each says whether it was written. Without
        // pages, the checksum is of the header and the entries.
        let pages = if count > page { count.div_ceil(page) } else { 0 };
        let entries = if pages > 0 { 0 } else { count.saturating_mul(entry as u64) };
        let front = prefix.saturating_add(pages.div_ceil(8));
        let header = file.read_summed(block, front.saturating_add(entries))?;
        file.bytes(&header, block).signature(b"FADB")?;
        let mut at = block + prefix + if pages > 0 { pages.div_ceil(8) + 4 } else { 0 };
        let written = file.read(block + prefix, pages.div_ceil(8))?;
        let mut number = 0;
        while number < count {
            let here = if pages > 0 { page.min(count - number) } else { count };
            let bit = number / page;
            let byte = usize::try_from(bit / 8).ok().and_then(|byte| written.get(byte));
            let len = here * entry as u64;
            if byte.is_none_or(|byte| byte & (0x80 >> (bit % 8)) != 0) {
                let entries = match pages {
                    0 => file.read(at, len)?,
                    _ => file.read_summed(at, len)?,
                };
                let mut bytes = file.bytes(&entries, at);
                for number in number..number + here {
                    let address = bytes.address()?;
                    let (len, skipped) = match is_packed {
                        true => (bytes.integer(width)?, bytes.u32()?),
                        false => (self.chunk_len, 0),
                    };
                    if let Some(address) = address {
                        found.insert(number, Chunk { address, len, skipped });
                    }
                }
            }
            at += len + 4;
            number += here;
        }
        Ok(())
    }

    /// The bytes of a packed chunk.
    fn decode(&self, file: &File<'_>, chunk: &Chunk, chunks: &Chunks) -> Result<Vec<u8>> {
        let place = file.place(chunk.address)?;
        if self.chunk_len > chunk.len.saturating_mul(MAX_RATIO) {
            let message = format!("{} bytes can't hold a chunk of {}", chunk.len, self.chunk_len);
            return Err(Error::corrupt(message).at(place));
        }
        let mut bytes = apr_core::read_vec(&file.source, place, chunk.len)?;
        // A checksum in front of DEFLATE is packed with the rest.
        let most = usize::try_from(self.chunk_len).unwrap_or(usize::MAX).saturating_add(16);
        for (bit, filter) in chunks.filters.iter().enumerate().rev() {
            if chunk.skipped >> bit.min(31) & 1 != 0 {
                continue;
            }
            bytes =
                match filter {
                    Filter::Deflate => decompress_to_vec_zlib_with_limit(&bytes, most).map_err(
                        |error| match error.status {
                            TINFLStatus::Adler32Mismatch => Error::checksum(MISMATCH),
                            _ => Error::corrupt(
                                "a compressed chunk is damaged, or longer than its shape",
                            ),
                        },
                    )?,
                    Filter::Shuffle => unshuffle(&bytes, self.element),
                    Filter::Fletcher32 => without_checksum(bytes)?,
                };
        }
        if (bytes.len() as u64) < self.chunk_len {
            return Err(Error::corrupt("a chunk decodes to less than its shape").at(place));
        }
        Ok(bytes)
    }
}

/// Restores the element order of bytes that are stored in planes.
///
/// The first plane has the first bytes of all elements.
///
/// Leftover bytes remain at the end.
fn unshuffle(bytes: &[u8], element: u64) -> Vec<u8> {
    let element = usize::try_from(element).unwrap_or(1).max(1);
    let count = bytes.len() / element;
    let mut out = bytes.to_vec();
    for (at, plane) in bytes.chunks_exact(count.max(1)).take(element).enumerate() {
        for (byte, out) in plane.iter().zip(out[at..].iter_mut().step_by(element)) {
            *out = *byte;
        }
    }
    out
}

/// Checks the sum at the end and takes it away.
fn without_checksum(mut bytes: Vec<u8>) -> Result<Vec<u8>> {
    let at = bytes.len().checked_sub(4);
    let at = at.ok_or_else(|| Error::corrupt("a chunk has no checksum"))?;
    let expected: Vec<u8> = bytes.split_off(at);
    let found = fletcher32(&bytes);
    // Files of HDF5 before 1.6.3 have the bytes of each half swapped.
    let swapped = found.rotate_left(16).swap_bytes();
    if ![found, swapped].iter().any(|sum| sum.to_le_bytes()[..] == expected[..]) {
        return Err(Error::checksum(MISMATCH));
    }
    Ok(bytes)
}

/// Fletcher's checksum over big-endian words of 16 bits.
fn fletcher32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (0_u32, 0_u32);
    // As many words as can be added before a sum overflows.
    for words in bytes.chunks(2 * 360) {
        for word in words.chunks(2) {
            let word = u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0));
            low += word;
            high += low;
        }
        low = (low & 0xffff) + (low >> 16);
        high = (high & 0xffff) + (high >> 16);
    }
    low = (low & 0xffff) + (low >> 16);
    high = (high & 0xffff) + (high >> 16);
    high << 16 | low
}

/// Fills bytes from `offset` of the dataset on with copies of an element.
pub(crate) fn fill(buf: &mut [u8], element: &[u8], offset: u64) {
    if element.is_empty() {
        return;
    }
    let start = usize::try_from(offset % element.len() as u64).unwrap_or_default();
    let bytes = element.iter().cycle().skip(start);
    buf.iter_mut().zip(bytes).for_each(|(out, byte)| *out = *byte);
}
