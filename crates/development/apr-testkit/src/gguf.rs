//! GGUF files packed by hand from the specification (ggml's `docs/gguf.md`), sound or broken.
//!
//! Nothing here is shared with the crate that reads and writes the format, so the two check each
//! other.

/// Builder of a GGUF file. Unchanged fields give a valid file with correct counts and offsets.
///
/// ```
/// use apr_testkit::gguf::{GgufBuilder, GgufEntry};
///
/// let sound = GgufBuilder::new()
///     .text("general.architecture", "llama")
///     .entry(GgufEntry::i8("bias", &[1, 2]));
/// let broken = GgufBuilder { tensor_count: Some(2), ..sound.clone() };
/// assert_eq!(sound.build()[8], 1);
/// assert_eq!(broken.build()[8], 2);
/// ```
#[derive(Debug, Clone)]
pub struct GgufBuilder {
    /// The first four bytes.
    pub magic: [u8; 4],
    /// Version; 1 has counts and dimensions of 32 bits.
    pub version: u32,
    /// `true` to write numbers in big-endian order. Values and data must already be in this order.
    pub big_endian: bool,
    /// Value that replaces the number of entries.
    pub tensor_count: Option<u64>,
    /// Value that replaces the number of pairs.
    pub pair_count: Option<u64>,
    /// Key, number of the type, bytes of the value.
    pub pairs: Vec<(Vec<u8>, u32, Vec<u8>)>,
    /// Tensors, in the order of header and data.
    pub entries: Vec<GgufEntry>,
    /// Alignment of the data and of each tensor in it. The key-value pair that states it is
    /// separate.
    pub alignment: usize,
    /// `true` to write padding zeros after the last tensor.
    pub pads_last: bool,
    /// Bytes after the data.
    pub tail: Vec<u8>,
}

/// Tensor: its header entry and its bytes.
#[derive(Debug, Clone)]
pub struct GgufEntry {
    /// Name, UTF-8 or not.
    pub name: Vec<u8>,
    /// Dimensions in stored order, innermost first.
    pub dims: Vec<u64>,
    /// Value that replaces the number of dimensions.
    pub dim_count: Option<u32>,
    /// ggml's number of the type.
    pub kind: u32,
    /// Value that replaces the offset of the bytes from the start of the data.
    pub offset: Option<u64>,
    /// Bytes of the tensor.
    pub bytes: Vec<u8>,
}

impl GgufEntry {
    /// A tensor of the type that ggml numbers so; dimensions innermost first.
    #[must_use]
    pub fn new(name: &str, kind: u32, dims: &[u64], bytes: &[u8]) -> Self {
        let (name, dims, bytes) = (name.into(), dims.to_vec(), bytes.to_vec());
        Self { name, dims, dim_count: None, kind, offset: None, bytes }
    }

    /// A tensor of I8 with one dimension.
    #[must_use]
    pub fn i8(name: &str, bytes: &[u8]) -> Self {
        Self::new(name, 24, &[bytes.len() as u64], bytes)
    }
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            big_endian: false,
            tensor_count: None,
            pair_count: None,
            pairs: Vec::new(),
            entries: Vec::new(),
            alignment: 32,
            pads_last: true,
            tail: Vec::new(),
        }
    }
}

impl GgufBuilder {
    /// Version 3, without pairs and tensors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the version, which applies to the pairs that are added later.
    #[must_use]
    pub fn version(self, version: u32) -> Self {
        Self { version, ..self }
    }

    /// Sets big-endian order, which also applies to the pairs that are added later.
    #[must_use]
    pub fn big_endian(self) -> Self {
        Self { big_endian: true, ..self }
    }

    /// Adds a pair of any type.
    #[must_use]
    pub fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pairs.push((key.into(), kind, value.to_vec()));
        self
    }

    /// Adds a pair with a text.
    #[must_use]
    pub fn text(self, key: &str, text: &str) -> Self {
        let value = [self.length(text.len() as u64), text.into()].concat();
        self.pair(key, 8, &value)
    }

    /// Adds a pair with a `u32`.
    #[must_use]
    pub fn u32(self, key: &str, value: u32) -> Self {
        let value = self.word(value);
        self.pair(key, 4, &value)
    }

    /// Adds a pair with a `u16`.
    #[must_use]
    pub fn u16(self, key: &str, value: u16) -> Self {
        let value = if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        self.pair(key, 2, &value)
    }

    /// Adds a pair with an `i32`.
    #[must_use]
    pub fn i32(self, key: &str, value: i32) -> Self {
        let value = self.word(value.cast_unsigned());
        self.pair(key, 5, &value)
    }

    /// Adds an array: type number of the items, number of items, and their bytes.
    #[must_use]
    pub fn array(self, key: &str, kind: u32, count: u64, items: &[u8]) -> Self {
        let value = [self.word(kind).to_vec(), self.length(count), items.to_vec()].concat();
        self.pair(key, 9, &value)
    }

    /// Adds an array of texts.
    #[must_use]
    pub fn texts(self, key: &str, texts: &[&str]) -> Self {
        let items: Vec<u8> = texts
            .iter()
            .flat_map(|text| [self.length(text.len() as u64), text.as_bytes().to_vec()].concat())
            .collect();
        self.array(key, 8, texts.len() as u64, &items)
    }

    /// Adds a tensor to the file.
    #[must_use]
    pub fn entry(mut self, entry: GgufEntry) -> Self {
        self.entries.push(entry);
        self
    }

    /// Builds the bytes of the file.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let mut file = self.header();
        if self.entries.is_empty() {
            file.extend(&self.tail);
            return file;
        }

        pad(&mut file, self.alignment);
        for (at, entry) in self.entries.iter().enumerate() {
            file.extend(&entry.bytes);
            if self.pads_last || at + 1 < self.entries.len() {
                pad(&mut file, self.alignment);
            }
        }

        file.extend(&self.tail);
        file
    }

    /// Everything before the data, without the padding after it.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let mut file = self.magic.to_vec();
        file.extend(self.word(self.version));
        file.extend(self.length(self.tensor_count.unwrap_or(self.entries.len() as u64)));
        file.extend(self.length(self.pair_count.unwrap_or(self.pairs.len() as u64)));
        for (key, kind, value) in &self.pairs {
            file.extend(self.length(key.len() as u64));
            file.extend(key);
            file.extend(self.word(*kind));
            file.extend(value);
        }

        let mut placed = 0;
        for entry in &self.entries {
            file.extend(self.length(entry.name.len() as u64));
            file.extend(&entry.name);
            let count = entry.dims.iter().fold(0, |count, _| count + 1);
            file.extend(self.word(entry.dim_count.unwrap_or(count)));
            file.extend(entry.dims.iter().flat_map(|&dim| self.length(dim)));
            file.extend(self.word(entry.kind));
            file.extend(self.long(entry.offset.unwrap_or(placed)));
            placed += entry.bytes.len().next_multiple_of(self.alignment) as u64;
        }

        file
    }

    fn word(&self, value: u32) -> [u8; 4] {
        if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn long(&self, value: u64) -> [u8; 8] {
        if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    /// A length, a count or a dimension.
    #[must_use]
    pub fn length(&self, value: u64) -> Vec<u8> {
        match u32::try_from(value) {
            Ok(narrow) if self.version == 1 => self.word(narrow).to_vec(),
            _ => self.long(value).to_vec(),
        }
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: usize) {
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
}
