//! Which coding is best for a tensor.

use alloc::vec::Vec;

use apr_core::DType;

use super::{BlockEncoder, Codec, Coding, Element, Filter};

/// Compression that the user requested: `--compress`, `lz4`, `zstd[:N]`, `best`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The best coding for the tensor at the speed of the entropy coder.
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

/// Returns the coding for a tensor of `dtype`, and the level for its encoder.
///
/// They are found by coding `samples` of the tensor's bytes in all ways that `choice` permits.
/// Equal samples give the same coding. A sample begins with a whole element and is best as long as
/// a block (1 MiB), or is the whole tensor if that is shorter. Returns [`Coding::PLAIN`] if coding
/// saves nothing, or there are no samples.
#[must_use]
pub fn choose(choice: Choice, dtype: DType, samples: &[&[u8]]) -> (Coding, i32) {
    let element = Element::of(dtype);
    let stored = samples.iter().map(|sample| sample.len() as u64).sum();
    let mut search = Search { element, samples, best: (Coding::PLAIN, 0), stored };
    let filters: &[Filter] =
        if element.width() > 1 { &[Filter::None, Filter::BytePlanes] } else { &[Filter::None] };
    match choice {
        Choice::Auto => search.try_auto(filters),
        Choice::Lz4 => search.try_all(Codec::Lz4, 0, filters),
        #[cfg(feature = "zstd-encoder")]
        Choice::Zstd(level) => search.try_all(Codec::Zstd, level, filters),
        Choice::Best => {
            // The faster to decode first.
            for (codec, level) in
                [(Codec::Entropy, 0), (Codec::Lz4, 0), (Codec::Zstd, BEST_ZSTD_LEVEL)]
            {
                search.try_all(codec, level, filters);
            }
        }
    }

    search.best
}

/// The smallest coding of the samples so far.
struct Search<'a> {
    element: Element,
    samples: &'a [&'a [u8]],
    best: (Coding, i32),
    /// Bytes that the samples take by it.
    stored: u64,
}

impl Search<'_> {
    /// Takes a coding that saves more than `margin` bytes over the best; returns whether it saves
    /// any.
    fn attempt(&mut self, coding: Coding, level: i32, margin: u64) -> bool {
        let stored = stored_len(coding, level, self.element, self.samples);
        let saves = stored < self.stored;
        if stored + margin < self.stored {
            (self.best, self.stored) = ((coding, level), stored);
        }
        saves
    }

    fn try_all(&mut self, codec: Codec, level: i32, filters: &[Filter]) {
        for &filter in filters {
            self.attempt(Coding { codec, filter }, level, 0);
        }
    }

    /// Tries the entropy coder, and Zstd, which is slower and must save clearly more.
    ///
    /// Zstd gains by repeats, which occur with either filter. If it gains nothing with the filter
    /// that suits the entropy coder, it is not tried with the other one, because that takes longer
    /// than everything else.
    fn try_auto(&mut self, filters: &[Filter]) {
        self.try_all(Codec::Entropy, 0, filters);
        let zstd = |filter| Coding { codec: Codec::Zstd, filter };
        let likely = self.best.0.filter;
        if self.attempt(zstd(likely), DEFAULT_ZSTD_LEVEL, self.stored / CLEARLY) {
            for &other in filters.iter().filter(|&&filter| filter != likely) {
                self.attempt(zstd(other), DEFAULT_ZSTD_LEVEL, self.stored / CLEARLY);
            }
        }
    }
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
