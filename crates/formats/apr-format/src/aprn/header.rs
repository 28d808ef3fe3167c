//! The first 32 bytes (`docs/format/older.md`, B).

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use apr_core::{Error, Result};

use super::ModelType;

/// The first four bytes of an APRN file.
pub const MAGIC: [u8; 4] = *b"APRN";

/// The only major version there is; a minor one may add to it.
const VERSION_MAJOR: u8 = 1;

/// Compression of the payload (`docs/format/older.md`, B).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    None,
    /// A Zstandard frame, made with level 3.
    #[default]
    Zstd,
    /// A Zstandard frame, made with level 19.
    ZstdMax,
    /// The length as `u32`, then an LZ4 block.
    Lz4,
}

impl Compression {
    const ALL: [Self; 4] = [Self::None, Self::Zstd, Self::ZstdMax, Self::Lz4];

    /// Returns the number in the header.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zstd => 1,
            Self::ZstdMax => 2,
            Self::Lz4 => 3,
        }
    }

    /// Returns the compression with this number in the header.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.code() == code)
    }

    /// Returns the lower-case name: `zstd`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zstd => "zstd",
            Self::ZstdMax => "zstd-max",
            Self::Lz4 => "lz4",
        }
    }
}

/// Feature bits (`docs/format/older.md`, B).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The payload is encrypted.
    pub const ENCRYPTED: Self = Self(1);
    /// A signature and the public key follow the payload.
    pub const SIGNED: Self = Self(2);
    /// May be loaded in pieces; a hint, ignored here.
    pub const STREAMING: Self = Self(4);
    /// The metadata hold a licence.
    pub const LICENSED: Self = Self(8);
    /// Tensors are aligned to 64 bytes; a hint, ignored here.
    pub const TRUENO_NATIVE: Self = Self(16);
    /// Weights are integers with scales.
    pub const QUANTIZED: Self = Self(32);
    /// The metadata hold a model card.
    pub const MODEL_CARD: Self = Self(64);

    const NAMES: [(Self, &'static str); 7] = [
        (Self::ENCRYPTED, "encrypted"),
        (Self::SIGNED, "signed"),
        (Self::STREAMING, "streaming"),
        (Self::LICENSED, "licensed"),
        (Self::TRUENO_NATIVE, "trueno_native"),
        (Self::QUANTIZED, "quantized"),
        (Self::MODEL_CARD, "model_card"),
    ];

    /// Returns `true` if all bits of `flags` are set.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns these flags, with `flags` added if `condition` holds.
    #[must_use]
    pub const fn with(self, flags: Self, condition: bool) -> Self {
        if condition { Self(self.0 | flags.0) } else { self }
    }

    /// Returns the names of the set bits that have a name.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        Self::NAMES
            .into_iter()
            .filter(|(flag, _)| self.contains(*flag))
            .map(|(_, name)| name)
            .collect()
    }
}

/// The header's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// Major version, 1.
    pub version_major: u8,
    /// Minor version, 0 as far as is known.
    pub version_minor: u8,
    /// Number of the model type; [`ModelType::from_code`] names the known ones.
    pub model_type: u16,
    /// Bytes of MessagePack.
    pub metadata_size: u32,
    /// Length of the stored payload in bytes, including salt, nonce and tag if it is encrypted.
    pub payload_size: u32,
    /// Bytes of the payload when it is decrypted and unpacked.
    pub uncompressed_size: u32,
    /// Compression of the payload.
    pub compression: Compression,
    /// Feature bits.
    pub flags: Flags,
    /// Quality score from 1 to 100; 0 if the model was not scored.
    pub quality_score: u8,
    /// The nine bytes that should be zero are not.
    pub reserved_used: bool,
}

impl Header {
    /// Length in bytes.
    pub const LEN: u32 = 32;

    /// Creates a header of version 1.0.
    #[must_use]
    pub const fn new(model_type: ModelType) -> Self {
        Self {
            version_major: VERSION_MAJOR,
            version_minor: 0,
            model_type: model_type.code(),
            metadata_size: 0,
            payload_size: 0,
            uncompressed_size: 0,
            compression: Compression::None,
            flags: Flags(0),
            quality_score: 0,
            reserved_used: false,
        }
    }

    /// Returns the header's bytes; the reserved ones are zero.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN as usize] {
        let mut bytes = [0; Self::LEN as usize];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[self.version_major, self.version_minor]);
        bytes[6..8].copy_from_slice(&self.model_type.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.metadata_size.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_size.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.uncompressed_size.to_le_bytes());
        bytes[20..23].copy_from_slice(&[self.compression.code(), self.flags.0, self.quality_score]);
        bytes
    }

    /// Reads the header.
    ///
    /// # Errors
    /// E001 without the magic, E003 for another major version or an unknown compression.
    pub fn decode(bytes: &[u8; Self::LEN as usize]) -> Result<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[..4] != MAGIC {
            return Err(Error::format("this is not APRN: it does not start with 'APRN'").at(0));
        }

        if bytes[4] != VERSION_MAJOR {
            return Err(Error::version(format!(
                "APRN version {}.{}; this build reads 1.x",
                bytes[4], bytes[5]
            ))
            .at(4));
        }

        let compression = Compression::from_code(bytes[20]).ok_or_else(|| {
            Error::version(format!("compression {} is unknown", bytes[20])).at(20)
        })?;
        Ok(Self {
            version_major: bytes[4],
            version_minor: bytes[5],
            model_type: u16::from_le_bytes([bytes[6], bytes[7]]),
            metadata_size: word(8),
            payload_size: word(12),
            uncompressed_size: word(16),
            compression,
            flags: Flags(bytes[21]),
            quality_score: bytes[22],
            reserved_used: bytes[23..].iter().any(|&byte| byte != 0),
        })
    }

    /// Returns the model type, or `None` if it is unknown.
    #[must_use]
    pub const fn kind(&self) -> Option<ModelType> {
        ModelType::from_code(self.model_type)
    }

    /// Returns warnings about a header that is unusual but readable.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.kind().is_none() {
            warnings.push(format!("the model type {:#06x} is unknown", self.model_type));
        }
        if self.flags.0 & 0x80 != 0 || self.reserved_used {
            warnings.push("reserved bits or bytes of the header are set".into());
        }
        if self.quality_score > 100 {
            warnings.push(format!("the quality score is {}, above 100", self.quality_score));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_is_set_stays_set() {
        let flags = Flags::SIGNED
            .with(Flags::SIGNED, true)
            .with(Flags::ENCRYPTED, true)
            .with(Flags::LICENSED, false);
        assert_eq!(flags.names(), ["encrypted", "signed"]);
    }
}
