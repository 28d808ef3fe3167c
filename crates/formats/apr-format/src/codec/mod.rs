//! Lossless compression of tensors, block by block (`docs/format/codecs.md`). All integers are
//! little-endian.
//!
//! ```text
//!  tensor  block, block, ...        every one decodes to block_len bytes, the last to what is left
//!  block   u32 n                    top bit: the body is the block's bytes as they are
//!          body, n & 0x7fffffff bytes
//!  body    filter 0                 the codec's output
//!          filter 1                 plane 0, plane 1, ...: u32 n (the same top bit), then n bytes;
//!                                   then the bytes of a last element that is not whole
//! ```
//!
//! | code | codec | output for the bytes of a block or plane |
//! |---|---|---|
//! | 0 | none | there is none: every block or plane is raw |
//! | 1 | LZ4 | an LZ4 block (not a frame) |
//! | 2 | Zstd | Zstandard frames, as `zstd` writes and reads them |
//! | 3 | entropy | see [`entropy`] |
//!
//! Filter 1, byte planes: plane `k` holds byte `k` of every element, in the order of the elements.
//! Of BF16, F16 and F32 the little-endian word is first rotated left by one bit, so that the sign
//! becomes bit 0 and the top byte is the exponent alone (BF16, F32) or the exponent and three bits
//! of mantissa (F16).
//!
//! Why so: a model's mantissas are noise that nothing compresses, its exponents carry two to three
//! bits of information in eight. Apart, the first are copied and the second are coded, at two
//! thirds of the size of BF16 and at the speed of memory. A block that gains nothing is stored as
//! it is, so what is stored is never more than 4 bytes a block longer.
//!
//! Limits: a block decodes to at most 1 MiB, or 64 KiB with LZ4; nothing a block says makes the
//! decoder allocate more than a small multiple of that.
//!
//! ```
//! use apr_core::DType;
//! use apr_format::codec::{BlockDecoder, BlockEncoder, Codec, Coding, Element, Filter, Outcome};
//!
//! let coding = Coding { codec: Codec::Entropy, filter: Filter::BytePlanes };
//! let block: Vec<u8> = (0..4096).flat_map(|i| (1.0 + (i % 7) as f32).to_le_bytes()).collect();
//!
//! let mut stored = Vec::new();
//! let mut encoder = BlockEncoder::new(coding, 0, Element::of(DType::F32));
//! assert_eq!(encoder.encode(&block, &mut stored), Outcome::Coded);
//!
//! let (head, body) = stored.split_first_chunk().expect("a block starts with its length");
//! let head = apr_format::codec::BlockHead::read(*head);
//! let mut decoded = vec![0; block.len()];
//! BlockDecoder::new(coding, Element::of(DType::F32)).decode(
//!     &body[..head.len],
//!     head.raw,
//!     &mut decoded,
//! )?;
//! assert_eq!(decoded, block);
//! # Ok::<(), apr_core::Error>(())
//! ```

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod avx512;
mod block;
mod choose;
pub mod entropy;
mod kernel;
mod planes;
#[cfg(feature = "zstd-encoder")]
pub(crate) mod zstd;
#[cfg(not(feature = "zstd-encoder"))]
#[path = "zstd_off.rs"]
pub(crate) mod zstd;

pub use block::{BlockDecoder, BlockEncoder, BlockHead, Outcome};
pub use choose::{Choice, DEFAULT_ZSTD_LEVEL, choose};
pub use planes::Element;

/// Codec of the bytes of a block, or of each of its planes: bits 0-3 of a tensor's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// Code 0: not at all.
    None,
    /// Code 1: LZ4 blocks.
    Lz4,
    /// Code 2: Zstandard frames.
    Zstd,
    /// Code 3: the entropy coder of [`entropy`].
    Entropy,
}

/// Transformation of a block before the codec: bits 4-7 of a tensor's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Filter {
    /// Code 0: no transformation.
    None,
    /// Code 1: bytes of equal significance are brought together.
    BytePlanes,
}

/// Codec and filter of a tensor's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Coding {
    /// The codec.
    pub codec: Codec,
    /// The filter before it.
    pub filter: Filter,
}

impl Coding {
    /// Plain bytes, without framing.
    pub const PLAIN: Self = Self { codec: Codec::None, filter: Filter::None };

    /// Returns the coding in bits 0-7 of a tensor's flags, whatever the other bits are. Returns
    /// `None` for an unknown codec or filter, which MUST fail E003.
    #[must_use]
    pub const fn from_flags(bits: u32) -> Option<Self> {
        let codec = match bits & 0xf {
            0 => Codec::None,
            1 => Codec::Lz4,
            2 => Codec::Zstd,
            3 => Codec::Entropy,
            _ => return None,
        };
        let filter = match bits >> 4 & 0xf {
            0 => Filter::None,
            1 => Filter::BytePlanes,
            _ => return None,
        };
        Some(Self { codec, filter })
    }

    /// Returns bits 0-7 of a tensor's flags.
    #[must_use]
    pub const fn to_flags(self) -> u32 {
        let codec = match self.codec {
            Codec::None => 0,
            Codec::Lz4 => 1,
            Codec::Zstd => 2,
            Codec::Entropy => 3,
        };
        let filter = match self.filter {
            Filter::None => 0,
            Filter::BytePlanes => 1,
        };
        codec | filter << 4
    }

    /// Returns `true` if the bytes are stored plain, without framing.
    #[must_use]
    pub const fn is_plain(self) -> bool {
        matches!(self, Self::PLAIN)
    }

    /// Returns the decoded length of every block except the last, in bytes.
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self.codec {
            Codec::Lz4 => 64 << 10,
            Codec::None | Codec::Zstd | Codec::Entropy => 1 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_match_the_specification() {
        let coding = Coding { codec: Codec::Entropy, filter: Filter::BytePlanes };
        assert_eq!(coding.to_flags(), 0x13);
        assert_eq!(Coding { codec: Codec::Lz4, filter: Filter::None }.to_flags(), 1);
        assert_eq!(Coding { codec: Codec::Zstd, filter: Filter::None }.to_flags(), 2);
        assert_eq!(Coding::PLAIN.to_flags(), 0);
    }

    #[test]
    fn known_flags_are_read_back_and_others_refused() {
        for bits in 0..=0xff {
            let known = bits & 0xf <= 3 && bits >> 4 <= 1;
            assert_eq!(
                Coding::from_flags(bits | 0x1100).map(Coding::to_flags),
                known.then_some(bits),
                "{bits:#x}"
            );
        }
    }
}
