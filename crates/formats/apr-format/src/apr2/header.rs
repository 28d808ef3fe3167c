//! The first 32 bytes (`docs/format/apr2.md`, "Header").

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use apr_core::{Error, Result};
use serde::Serialize;

/// First four bytes of a file.
pub const MAGIC: [u8; 4] = *b"APR2";

/// Major version this crate reads and writes.
pub(super) const VERSION_MAJOR: u16 = 2;

/// Feature flags (`docs/format/apr2.md`, "Header").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Flags(pub u32);

impl Flags {
    /// Some tensor is compressed.
    pub const COMPRESSED: Self = Self(1);
    /// Tensors start at multiples of 64.
    pub const ALIGNED_64: Self = Self(1 << 1);
    /// Tensors start at multiples of 32, as in GGUF.
    pub const ALIGNED_32: Self = Self(1 << 2);
    /// The file is one of several that a manifest names.
    pub const SHARDED: Self = Self(1 << 3);
    /// Tensor bytes are encrypted.
    pub const ENCRYPTED: Self = Self(1 << 4);
    /// A SIGN block is present.
    pub const SIGNED: Self = Self(1 << 5);
    /// Some tensor is quantized.
    pub const QUANTIZED: Self = Self(1 << 6);
    /// The layout suits a network reader.
    pub const STREAMING: Self = Self(1 << 7);
    /// A LICN block is present.
    pub const LICENSED: Self = Self(1 << 8);

    const NAMES: [(Self, &'static str); 9] = [
        (Self::COMPRESSED, "COMPRESSED"),
        (Self::ALIGNED_64, "ALIGNED_64"),
        (Self::ALIGNED_32, "ALIGNED_32"),
        (Self::SHARDED, "SHARDED"),
        (Self::ENCRYPTED, "ENCRYPTED"),
        (Self::SIGNED, "SIGNED"),
        (Self::QUANTIZED, "QUANTIZED"),
        (Self::STREAMING, "STREAMING"),
        (Self::LICENSED, "LICENSED"),
    ];

    /// Returns `true` if all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags that are set in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the bits that have no meaning.
    #[must_use]
    pub fn unknown(self) -> u32 {
        Self::NAMES.iter().fold(self.0, |bits, (flag, _)| bits & !flag.0)
    }

    /// Returns the names of the known flags that are set.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        Self::NAMES.iter().filter(|(flag, _)| self.contains(*flag)).map(|&(_, name)| name).collect()
    }

    /// Returns the alignment of tensors, in bytes.
    #[must_use]
    pub const fn alignment(self) -> u64 {
        if self.contains(Self::ALIGNED_32) && !self.contains(Self::ALIGNED_64) { 32 } else { 64 }
    }
}

/// The header's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Header {
    /// Format major version.
    pub version_major: u16,
    /// Format minor version.
    pub version_minor: u16,
    /// Feature flags.
    pub flags: Flags,
    /// Offset of the metadata in bytes; 32.
    pub metadata_offset: u32,
    /// Length of the metadata in bytes.
    pub metadata_size: u32,
    /// Offset of the tensor index in bytes.
    pub index_offset: u32,
    /// Length of the tensor index in bytes.
    pub index_size: u32,
    /// Offset of the data section in bytes.
    pub data_offset: u32,
}

impl Header {
    /// Length in bytes.
    pub const LEN: u32 = 32;

    /// Decodes the header and checks that the sections follow each other within `file_len` bytes.
    ///
    /// # Errors
    /// E001 without the magic or with a layout that is not APR2's, E003 for another major version,
    /// E002 when sections overlap or lie outside the file.
    pub fn decode(bytes: &[u8; Self::LEN as usize], file_len: u64) -> Result<Self> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[..4] != MAGIC {
            return Err(
                Error::format("this is not an APR2 file: it does not start with 'APR2'").at(0)
            );
        }

        let header = Self {
            version_major: u16_at(4),
            version_minor: u16_at(6),
            flags: Flags(u32_at(8)),
            metadata_offset: u32_at(12),
            metadata_size: u32_at(16),
            index_offset: u32_at(20),
            index_size: u32_at(24),
            data_offset: u32_at(28),
        };

        if header.version_major.swap_bytes() == VERSION_MAJOR {
            return Err(
                Error::format("the header is big-endian; APR2 files are little-endian").at(4)
            );
        }

        if header.version_major != VERSION_MAJOR {
            let (major, minor) = (header.version_major, header.version_minor);
            return Err(Error::version(format!(
                "version {major}.{minor} is not supported, only 2.x is"
            ))
            .at(4));
        }

        if header.metadata_offset != Self::LEN {
            let offset = header.metadata_offset;
            return Err(Error::format(format!(
                "the metadata should start at byte 32, not at {offset}"
            ))
            .at(12));
        }

        header.check_sections(file_len)?;
        Ok(header)
    }

    /// Returns the header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN as usize] {
        let mut bytes = [0; Self::LEN as usize];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version_major.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.version_minor.to_le_bytes());
        let words = [
            self.flags.0,
            self.metadata_offset,
            self.metadata_size,
            self.index_offset,
            self.index_size,
            self.data_offset,
        ];
        for (field, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }

        bytes
    }

    /// Returns the end of the metadata, in bytes.
    #[must_use]
    pub fn metadata_end(&self) -> u64 {
        u64::from(self.metadata_offset) + u64::from(self.metadata_size)
    }

    /// Returns the end of the tensor index, in bytes.
    #[must_use]
    pub fn index_end(&self) -> u64 {
        u64::from(self.index_offset) + u64::from(self.index_size)
    }

    /// Returns warnings about a header that is unusual but readable.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.flags.unknown() != 0 {
            warnings.push(format!(
                "the header has unknown flags set ({:#x}); they are ignored",
                self.flags.unknown()
            ));
        }

        if self.flags.contains(Flags::ALIGNED_64.union(Flags::ALIGNED_32)) {
            warnings.push("the header claims both 64- and 32-byte alignment; 64 is assumed".into());
        }

        if !u64::from(self.data_offset).is_multiple_of(self.flags.alignment()) {
            let (offset, alignment) = (self.data_offset, self.flags.alignment());
            warnings.push(format!(
                "the data section starts at byte {offset}, which is not a multiple of {alignment}"
            ));
        }

        warnings
    }

    fn check_sections(&self, file_len: u64) -> Result<()> {
        let sections = [
            ("metadata", u64::from(self.metadata_offset), self.metadata_end(), 12),
            ("tensor index", u64::from(self.index_offset), self.index_end(), 20),
            ("data section", u64::from(self.data_offset), u64::from(self.data_offset), 28),
        ];
        let mut previous_end = u64::from(Self::LEN);
        for (name, start, end, field) in sections {
            if start < previous_end {
                return Err(Error::corrupt(format!(
                    "the {name} starts at byte {start}, inside what ends at byte {previous_end}"
                ))
                .at(field));
            }

            if end > file_len {
                return Err(Error::corrupt(format!(
                    "the {name} ends at byte {end}, but the file is truncated to \
                 {file_len} bytes"
                ))
                .at(field));
            }

            previous_end = end;
        }

        Ok(())
    }
}

/// Returns the header as the MAC of an encrypted file covers it: without the flags SIGNED and
/// LICENSED, which are set after encryption.
#[cfg(feature = "encryption")]
#[must_use]
pub fn mac_header(header: &[u8; 32]) -> [u8; 32] {
    let mut header = *header;
    let [a, b, c, d] = [header[8], header[9], header[10], header[11]];
    let flags = u32::from_le_bytes([a, b, c, d]) & !Flags::SIGNED.union(Flags::LICENSED).0;
    header[8..12].copy_from_slice(&flags.to_le_bytes());
    header
}
