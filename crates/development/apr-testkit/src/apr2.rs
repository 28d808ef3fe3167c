//! APR2 files packed by hand from the specification (`docs/format/apr2.md`), sound or broken.
//!
//! Nothing here is shared with the crate that reads and writes the format, so the two check each
//! other.
#![allow(clippy::cast_possible_truncation, reason = "files made for tests are small")]

use apr_core::DType;

/// Builder of an APR2 file. Unchanged fields give a valid file with correct offsets, sizes and
/// digests.
///
/// ```
/// use apr_core::DType;
/// use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
///
/// let sound = Apr2Builder::new().entry(Apr2Entry::new("bias", DType::F32, &[2], &[0; 8]));
/// let broken = Apr2Builder { version: (3, 0), ..sound.clone() };
/// assert_eq!(sound.build()[4..8], [2, 0, 0, 0]);
/// assert_eq!(broken.build()[4..8], [3, 0, 0, 0]);
/// ```
#[derive(Debug, Clone)]
pub struct Apr2Builder {
    /// Major and minor version.
    pub version: (u16, u16),
    /// Header flags; `ALIGNED_64` alone unless changed. Tensors are placed at multiples of 32 when
    /// bit 2 alone says so.
    pub flags: u32,
    /// The metadata's bytes.
    pub metadata: Vec<u8>,
    /// Header field in place of 32.
    pub metadata_offset: Option<u32>,
    /// Header field in place of the metadata's length.
    pub metadata_size: Option<u32>,
    /// Header field in place of the metadata's end.
    pub index_offset: Option<u32>,
    /// Header field in place of the index's length.
    pub index_size: Option<u32>,
    /// Header field that replaces the offset of the data section.
    pub data_offset: Option<u32>,
    /// `tensor_count` in place of the number of entries.
    pub tensor_count: Option<u32>,
    /// The word after `tensor_count`.
    pub index_reserved: u32,
    /// `true` to write the index in the order of the entries instead of sorted by name.
    pub unsorted: bool,
    /// Tensors, in the order their bytes are stored.
    pub entries: Vec<Apr2Entry>,
    /// Bytes appended to the index.
    pub index_tail: Vec<u8>,
    /// Number of zeros between index and data section, in addition to the alignment.
    pub slack: usize,
    /// Byte that fills the gaps between tensors; 0 by default.
    pub padding: u8,
    /// `true` to begin the trailer with a DGST block of the tensors' digests.
    pub digests: bool,
    /// Further trailer blocks.
    pub blocks: Vec<Apr2Block>,
    /// Contents and presence of the footer.
    pub footer: Apr2Footer,
    /// Bytes after the footer.
    pub tail: Vec<u8>,
}

/// Tensor: its index entry and its bytes.
#[derive(Debug, Clone)]
pub struct Apr2Entry {
    /// Name, UTF-8 or not.
    pub name: Vec<u8>,
    /// Code of the dtype.
    pub dtype: u8,
    /// Dimensions of the tensor.
    pub dims: Vec<u64>,
    /// Value that replaces the offset of the bytes from the start of the data section.
    pub offset: Option<u64>,
    /// Value that replaces the number of bytes.
    pub size: Option<u64>,
    /// Size after decoding; 0 for plain tensors.
    pub raw_size: u64,
    /// Per-tensor flags.
    pub flags: u32,
    /// The stored bytes.
    pub bytes: Vec<u8>,
}

/// A trailer block.
#[derive(Debug, Clone)]
pub struct Apr2Block {
    /// Type of the block, four characters.
    pub kind: [u8; 4],
    /// Version of the block.
    pub version: u32,
    /// Value that replaces the length of the body.
    pub len: Option<u64>,
    /// Body of the block.
    pub body: Vec<u8>,
}

/// The last 16 bytes.
#[derive(Debug, Clone)]
pub struct Apr2Footer {
    /// `true` to write a footer.
    pub present: bool,
    /// Value that replaces the CRC-32 of all bytes before it.
    pub crc32: Option<u32>,
    /// Magic number, `2RPA`.
    pub magic: [u8; 4],
    /// Value that replaces the length of the file.
    pub file_size: Option<u64>,
}

impl Apr2Entry {
    /// A plain tensor.
    #[must_use]
    pub fn new(name: &str, dtype: DType, dims: &[u64], bytes: &[u8]) -> Self {
        let code = dtype.apr2_code();
        let (name, dims, bytes) = (name.into(), dims.to_vec(), bytes.to_vec());
        Self { name, dtype: code, dims, offset: None, size: None, raw_size: 0, flags: 0, bytes }
    }

    /// A tensor of U8 with one dimension.
    #[must_use]
    pub fn of_bytes(name: &str, bytes: &[u8]) -> Self {
        Self::new(name, DType::U8, &[bytes.len() as u64], bytes)
    }

    fn encode(&self, placed: usize) -> Vec<u8> {
        let mut out = (self.name.len() as u16).to_le_bytes().to_vec();
        out.extend(&self.name);
        out.extend([self.dtype, self.dims.len() as u8]);
        out.extend(self.dims.iter().flat_map(|dim| dim.to_le_bytes()));
        let (offset, size) =
            (self.offset.unwrap_or(placed as u64), self.size.unwrap_or(self.bytes.len() as u64));
        out.extend([offset, size, self.raw_size].into_iter().flat_map(u64::to_le_bytes));
        out.extend(self.flags.to_le_bytes());
        out
    }
}

impl Apr2Block {
    /// A block of version 1.
    #[must_use]
    pub fn new(kind: [u8; 4], body: &[u8]) -> Self {
        Self { kind, version: 1, len: None, body: body.to_vec() }
    }

    fn encode(&self) -> Vec<u8> {
        let len = self.len.unwrap_or(self.body.len() as u64);
        [&self.kind[..], &self.version.to_le_bytes(), &len.to_le_bytes(), &self.body].concat()
    }
}

impl Default for Apr2Builder {
    fn default() -> Self {
        Self {
            version: (2, 0),
            flags: 1 << 1,
            metadata: br#"{"apr_version":"2.0.0","architecture":{},"model_type":"unknown"}"#
                .to_vec(),
            metadata_offset: None,
            metadata_size: None,
            index_offset: None,
            index_size: None,
            data_offset: None,
            tensor_count: None,
            index_reserved: 0,
            unsorted: false,
            entries: Vec::new(),
            index_tail: Vec::new(),
            slack: 0,
            padding: 0,
            digests: true,
            blocks: Vec::new(),
            footer: Apr2Footer { present: true, crc32: None, magic: *b"2RPA", file_size: None },
            tail: Vec::new(),
        }
    }
}

impl Apr2Builder {
    /// No tensors, and the metadata that every file must have.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor to the file.
    #[must_use]
    pub fn entry(mut self, entry: Apr2Entry) -> Self {
        self.entries.push(entry);
        self
    }

    /// Sets the metadata's bytes.
    #[must_use]
    pub fn metadata(mut self, json: impl Into<Vec<u8>>) -> Self {
        self.metadata = json.into();
        self
    }

    /// Adds a trailer block.
    #[must_use]
    pub fn block(mut self, block: Apr2Block) -> Self {
        self.blocks.push(block);
        self
    }

    /// Builds the bytes of the file.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let order = self.index_order();
        let (data, offsets) = self.data();
        let index = self.index(&order, &offsets);
        let mut file = self.header(index.len());
        file.extend(&self.metadata);
        file.extend(index);
        file.resize(file.len() + self.slack, 0);
        pad(&mut file, 64);
        file.extend(data);
        pad(&mut file, 64);
        if self.digests {
            let digests =
                order.iter().map(|&entry| *blake3::hash(&self.entries[entry].bytes).as_bytes());
            let body: Vec<u8> =
                [1, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(digests.flatten()).collect();
            file.extend(Apr2Block::new(*b"DGST", &body).encode());
            pad(&mut file, 64);
        }

        for block in &self.blocks {
            file.extend(block.encode());
            pad(&mut file, 64);
        }

        if self.footer.present {
            let crc32 = self.footer.crc32.unwrap_or_else(|| crc32fast::hash(&file));
            let file_size = self.footer.file_size.unwrap_or(file.len() as u64 + 16);
            file.extend(crc32.to_le_bytes());
            file.extend(self.footer.magic);
            file.extend(file_size.to_le_bytes());
        }

        file.extend(&self.tail);
        file
    }

    /// Returns the byte offset of the data section of the built file.
    #[must_use]
    pub fn data_start(&self) -> u32 {
        let (_, offsets) = self.data();
        let front =
            32 + self.metadata.len() + self.index(&self.index_order(), &offsets).len() + self.slack;
        front.next_multiple_of(64) as u32
    }

    fn index_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        if !self.unsorted {
            order.sort_by(|&a, &b| self.entries[a].name.cmp(&self.entries[b].name));
        }
        order
    }

    /// Returns the data section and the offset of each entry's bytes in it.
    ///
    /// An empty tensor gets an offset of its own, unless it is the last one.
    fn data(&self) -> (Vec<u8>, Vec<usize>) {
        let alignment = if self.flags & 0b110 == 0b100 { 32 } else { 64 };
        let (mut data, mut offsets) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            data.resize(data.len().next_multiple_of(alignment), self.padding);
            if offsets.last() == Some(&data.len()) {
                data.resize(data.len() + alignment, self.padding);
            }
            offsets.push(data.len());
            data.extend(&entry.bytes);
        }
        (data, offsets)
    }

    fn index(&self, order: &[usize], offsets: &[usize]) -> Vec<u8> {
        let count = self.tensor_count.unwrap_or(self.entries.len() as u32);
        let mut index = [count.to_le_bytes(), self.index_reserved.to_le_bytes()].concat();
        for &entry in order {
            index.extend(self.entries[entry].encode(offsets[entry]));
        }
        index.extend(&self.index_tail);
        index
    }

    fn header(&self, index_len: usize) -> Vec<u8> {
        let (major, minor) = self.version;
        let index_offset = 32 + self.metadata.len();
        let words = [
            self.flags,
            self.metadata_offset.unwrap_or(32),
            self.metadata_size.unwrap_or(self.metadata.len() as u32),
            self.index_offset.unwrap_or(index_offset as u32),
            self.index_size.unwrap_or(index_len as u32),
            self.data_offset.unwrap_or(self.data_start()),
        ];
        let mut header = b"APR2".to_vec();
        header.extend([major, minor].into_iter().flat_map(u16::to_le_bytes));
        header.extend(words.into_iter().flat_map(u32::to_le_bytes));
        header
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: usize) {
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
}
