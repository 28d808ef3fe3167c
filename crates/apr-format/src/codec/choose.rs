//! Which coding is best for a tensor.

use alloc::vec::Vec;

use apr_core::DType;

use super::{BlockEncoder, Codec, Coding, Element, Filter};

/// What the user asked for: `--compress`, `lz4`, `zstd[:N]`, `best`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// What is best for the tensor at the speed of the entropy coder.
    Auto,
    /// LZ4, with or without byte planes.
    Lz4,
    /// Zstd of this level, with or without byte planes.
    #[cfg(feature = "zstd-encoder")]
    Zstd(i32),
    /// The smallest, however long it takes.
    Best,
}

/// The level of `zstd` without a number, and of [`Choice::Auto`].
pub const DEFAULT_ZSTD_LEVEL: i32 = 3;

/// The level of [`Choice::Best`].
const BEST_ZSTD_LEVEL: i32 = 19;

/// A part in this many must be saved for a codec that decodes slower than the one before it.
const CLEARLY: u64 = 32;

/// The coding for a tensor of `dtype`, and the level for its encoder, found by coding `samples` of its bytes in all ways
/// that `choice` admits. The same samples give the same coding.
///
/// A sample begins with a whole element and is best as long as a block (1 MiB), or is the whole tensor if that is shorter.
/// [`Coding::PLAIN`] if nothing is saved, or there are no samples.
#[must_use]
pub fn choose(choice: Choice, dtype: DType, samples: &[&[u8]]) -> (Coding, i32) {
    let element = Element::of(dtype);
    let mut best = (Coding::PLAIN, 0);
    let mut least = samples.iter().map(|sample| sample.len() as u64).sum();
    for (coding, level) in candidates(choice, element) {
        let stored = stored_len(coding, level, element, samples);
        let margin = match (choice, coding.codec) {
            (Choice::Auto, Codec::Zstd) => least / CLEARLY,
            _ => 0,
        };
        if stored + margin < least {
            (best, least) = ((coding, level), stored);
        }
    }
    best
}

/// Codings to try, the faster to decode first.
fn candidates(choice: Choice, element: Element) -> Vec<(Coding, i32)> {
    let codecs: &[(Codec, i32)] = match choice {
        Choice::Auto => &[(Codec::Entropy, 0), (Codec::Zstd, DEFAULT_ZSTD_LEVEL)],
        Choice::Lz4 => &[(Codec::Lz4, 0)],
        #[cfg(feature = "zstd-encoder")]
        Choice::Zstd(level) => &[(Codec::Zstd, level)],
        Choice::Best => &[(Codec::Entropy, 0), (Codec::Lz4, 0), (Codec::Zstd, BEST_ZSTD_LEVEL)],
    };
    let filters: &[Filter] = if element.width() > 1 { &[Filter::None, Filter::BytePlanes] } else { &[Filter::None] };
    let of_codec =
        |&(codec, level): &(Codec, i32)| filters.iter().map(move |&filter| (Coding { codec, filter }, level));
    codecs.iter().flat_map(of_codec).collect()
}

fn stored_len(coding: Coding, level: i32, element: Element, samples: &[&[u8]]) -> u64 {
    let mut encoder = BlockEncoder::new(coding, level, element);
    let mut stored = Vec::new();
    let mut len = 0;
    for block in samples.iter().flat_map(|sample| sample.chunks(coding.block_len())) {
        stored.clear();
        encoder.encode_unchecked(block, &mut stored);
        len += stored.len() as u64;
    }
    len
}
