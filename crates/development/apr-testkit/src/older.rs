//! Files of older APR formats packed by hand from the tables of `docs/format/older.md`.
//!
//! Nothing here is shared with the crate that reads the formats, so the two check each other.
#![allow(clippy::cast_possible_truncation, reason = "files made for tests are small")]

/// Tensor: name, dtype number (if the format has one), dimensions, stored bytes.
pub type OlderTensor<'a> = (&'a str, u8, &'a [u32], Vec<u8>);

/// Little-endian bytes of floats.
#[must_use]
pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A file with the CRC-32 of its bytes behind them.
#[must_use]
pub fn with_crc(mut file: Vec<u8>) -> Vec<u8> {
    file.extend(crc32fast::hash(&file).to_le_bytes());
    file
}

/// Tokens, and merges of two of them.
pub type Vocabulary<'a> = (Vec<&'a [u8]>, Vec<[&'a [u8]; 2]>);

/// A file of whisper-apr 0.1, or with `is_0_2` of 0.2 (table C).
#[derive(Debug, Clone, Default)]
pub struct Apr1Builder<'a> {
    /// The magic and header length of whisper-apr 0.2.
    pub is_0_2: bool,
    /// 0 f32, 1 f16, 2 int8, 3 int4.
    pub quantization: u8,
    /// The header's byte.
    pub compressed: u8,
    /// The dtype numbers are not written.
    pub tensors: Vec<OlderTensor<'a>>,
    /// Written after the index.
    pub scales: Vec<f32>,
    /// Tokens and merges.
    pub vocabulary: Option<Vocabulary<'a>>,
    /// Mels, frequencies, weights.
    pub filterbank: Option<(u32, u32, Vec<f32>)>,
}

impl Apr1Builder<'_> {
    /// Builds the file. Its hyperparameters are those of Whisper's tiny model: 51865, 1500, 384, 6,
    /// 4, 448, 384, 6, 4, 80.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let mut file = if self.is_0_2 { b"APR\0".to_vec() } else { b"APR1".to_vec() };
        file.extend([1, 0, 0, self.quantization, self.compressed]);
        file.extend((self.tensors.len() as u16).to_le_bytes());
        file.push(u8::from(self.vocabulary.is_some()) | u8::from(self.filterbank.is_some()) << 1);
        file.extend(
            [51_865_u32, 1500, 384, 6, 4, 448, 384, 6, 4, 80].map(u32::to_le_bytes).concat(),
        );
        file.resize(if self.is_0_2 { 68 } else { 52 }, 0);
        let mut offset = 0_u64;
        for (name, _, dims, bytes) in &self.tensors {
            let start = file.len();
            file.extend(name.as_bytes());
            file.resize(start + 48, 0);
            let elements: u64 = dims.iter().copied().map(u64::from).product();
            file.extend([offset, bytes.len() as u64, elements].map(u64::to_le_bytes).concat());
            (0..4).for_each(|at| {
                file.extend(dims.get(at).copied().unwrap_or_default().to_le_bytes());
            });
            file.push(dims.len() as u8);
            file.resize(start + 96, 0);
            offset += bytes.len() as u64;
        }

        file.extend(f32s(&self.scales));
        self.tensors.iter().for_each(|(.., bytes)| file.extend(bytes));
        if let Some((tokens, merges)) = &self.vocabulary {
            let mut section =
                [tokens.len() as u32, merges.len() as u32].map(u32::to_le_bytes).concat();
            for text in tokens.iter().chain(merges.iter().flatten()) {
                section.extend((text.len() as u16).to_le_bytes());
                section.extend(*text);
            }
            file.extend((section.len() as u32).to_le_bytes());
            file.extend(section);
        }

        if let Some((mels, freqs, weights)) = &self.filterbank {
            file.extend(
                [8 + 4 * weights.len() as u32, *mels, *freqs].map(u32::to_le_bytes).concat(),
            );
            file.extend(f32s(weights));
        }

        with_crc(file)
    }
}

/// A file of aprender 0.18 to 0.20 with a JSON index of `count` tensors.
#[must_use]
pub fn apr1_json(metadata: &str, count: u32, index: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"APR1".to_vec();
    file.extend((metadata.len() as u32).to_le_bytes());
    file.extend(metadata.as_bytes());
    file.extend(count.to_le_bytes());
    file.extend((index.len() as u32).to_le_bytes());
    file.extend(index.as_bytes());
    file.extend(data);
    with_crc(file)
}

/// A file of aprender or apr-cli (table A), with the magic given; names must ascend in a sound one.
#[must_use]
pub fn dialect_a(
    magic: [u8; 4],
    flags: u16,
    metadata: &str,
    tensors: &[OlderTensor<'_>],
) -> Vec<u8> {
    let pad = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(64), 0);
    let (mut index, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, dims, bytes) in tensors {
        index.extend((name.len() as u16).to_le_bytes());
        index.extend(name.as_bytes());
        index.extend([*dtype, dims.len() as u8]);
        dims.iter().for_each(|&dim| index.extend(u64::from(dim).to_le_bytes()));
        index.extend([data.len() as u64, bytes.len() as u64].map(u64::to_le_bytes).concat());
        data.extend(bytes);
        pad(&mut data);
    }

    let index_offset = 64 + metadata.len().next_multiple_of(64);
    let data_offset = index_offset + index.len().next_multiple_of(64);
    let mut file = magic.to_vec();
    file.extend([2, 0]);
    file.extend(flags.to_le_bytes());
    file.extend((tensors.len() as u32).to_le_bytes());
    file.extend(64_u64.to_le_bytes());
    file.extend((metadata.len() as u32).to_le_bytes());
    file.extend([index_offset as u64, data_offset as u64].map(u64::to_le_bytes).concat());
    file.resize(64, 0);
    set_header_crc(&mut file);
    file.extend(metadata.as_bytes());
    pad(&mut file);
    file.extend(index);
    pad(&mut file);
    file.extend(data);
    with_crc(file)
}

/// Writes the CRC-32 that the header of such a file has.
pub fn set_header_crc(file: &mut [u8]) {
    let crc = crc32fast::hash(&[&file[..40], &file[44..64]].concat());
    file[40..44].copy_from_slice(&crc.to_le_bytes());
}

/// A file of whisper-apr 0.3 (table D).
#[must_use]
pub fn dialect_d(family: u8, architecture: &[u8], tensors: &[OlderTensor<'_>]) -> Vec<u8> {
    let mut file = b"APR\0".to_vec();
    file.extend([2, 0, family, 0]);
    file.extend([tensors.len() as u32, architecture.len() as u32].map(u32::to_le_bytes).concat());

    // Quantization: method, group size, symmetric, and zeros.
    file.extend([0, 0, 0, 0, 0, 1, 0, 0]);
    file.extend(architecture);
    let mut offset = 0_u64;
    for (name, dtype, dims, bytes) in tensors {
        let start = file.len();
        file.extend(name.as_bytes());
        file.resize(start + 64, 0);
        (0..4).for_each(|at| file.extend(dims.get(at).copied().unwrap_or_default().to_le_bytes()));
        file.extend([dims.len() as u8, *dtype, 0, 0]);
        let elements: u64 = dims.iter().copied().map(u64::from).product();
        file.extend([offset, bytes.len() as u64, elements].map(u64::to_le_bytes).concat());
        file.resize(start + 128, 0);
        offset += bytes.len() as u64;
    }

    tensors.iter().for_each(|(.., bytes)| file.extend(bytes));
    with_crc(file)
}
