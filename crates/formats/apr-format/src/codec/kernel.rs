//! The loops of the codec that every byte goes through.
//!
//! Each is written once, as a plain function that is always inlined, and compiled again for the
//! instruction sets that `multiversion` is described below. They work on integers alone, so all
//! versions return the same bytes.
#![allow(
    unsafe_code,
    reason = "multiversion calls the version for a processor's features after detecting them"
)]

use super::entropy::{self, Stream, Table};
use super::planes::{self, Element, MAX_PLANES};

macro_rules! for_several_targets {
    ($($function:tt)*) => {
        // Planes gain from AVX2, the entropy coder from the shifts of BMI2.
        #[cfg_attr(
            feature = "simd",
            multiversion::multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))
        )]
        $($function)*
    };
}

macro_rules! for_wide_targets {
    ($($function:tt)*) => {
        #[cfg_attr(feature = "simd", multiversion::multiversion(targets(
            "x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl+avx512vbmi",
            "x86_64+avx2",
        )))]
        $($function)*
    };
}

for_wide_targets! {
    /// [`planes::split_anywhere`].
    pub(super) fn split(element: Element, block: &[u8], planes: &mut [u8]) {
        planes::split_anywhere(element, block, planes);
    }
}

for_wide_targets! {
    /// [`planes::split_two_anywhere`].
    pub(super) fn split_two(element: Element, block: &[u8], low: &mut [u8], high: &mut [u8]) {
        planes::split_two_anywhere(element, block, low, high);
    }
}

for_wide_targets! {
    /// [`planes::merge_anywhere`].
    pub(super) fn merge(element: Element, planes: &[&[u8]; MAX_PLANES], block: &mut [u8]) {
        planes::merge_anywhere(element, planes, block);
    }
}

for_several_targets! {
    /// [`entropy::span_anywhere`].
    pub(super) fn span(symbols: &[u8]) -> (u8, u8) {
        entropy::span_anywhere(symbols)
    }
}

for_several_targets! {
    /// [`entropy::count_pairs_anywhere`].
    pub(super) fn count_pairs(symbols: &[u8], first: u8, counts: &mut [u32; 256]) {
        entropy::count_pairs_anywhere(symbols, first, counts);
    }
}

/// Writes pairs like [`entropy::write_pairs_anywhere`], with the processor's instructions for it if
/// it has some.
pub(super) fn write_pairs(
    symbols: &[u8],
    first: u8,
    codes: &entropy::Codes,
    out: &mut [u8],
) -> usize {
    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    if let Some((written, position, held)) =
        super::avx512::write(symbols, first, codes.singles(), out)
    {
        return entropy::write_rest(&symbols[written..], codes.singles(), (position, held), out);
    }
    write_pairs_compiled(symbols, first, codes, out)
}

for_several_targets! {
    fn write_pairs_compiled(
        symbols: &[u8],
        first: u8,
        codes: &entropy::Codes,
        out: &mut [u8],
    ) -> usize {
        entropy::write_pairs_anywhere(symbols, first, codes, out)
    }
}

for_several_targets! {
    /// [`entropy::write_singles_anywhere`].
    pub(super) fn write_singles(symbols: &[u8], codes: &[u32; 256], out: &mut [u8]) -> usize {
        entropy::write_singles_anywhere(symbols, codes, out)
    }
}

for_several_targets! {
    /// [`entropy::run_anywhere`].
    pub(super) fn run<T: Table, const N: usize>(
        table: &T,
        input: &[u8],
        streams: &mut [Stream<'_>],
    ) {
        entropy::run_anywhere::<T, N>(table, input, streams);
    }
}

for_wide_targets! {
    /// [`planes::merges_to_anywhere`].
    pub(super) fn merges_to(
        element: Element,
        planes: &[&[u8]; MAX_PLANES],
        block: &[u8],
    ) -> Option<bool> {
        planes::merges_to_anywhere(element, planes, block)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use apr_core::DType;

    use super::*;

    /// Returns symbols of a skewed distribution over a range, with some of the longest codes next
    /// to each other.
    fn symbols(len: usize, range: u8) -> Vec<u8> {
        let mut state = 1_u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let rare =
                if state >> 20 & 7 == 0 { state >> 8 } else { (state >> 30).min(state >> 27 & 3) };
            (rare % u32::from(range)).to_le_bytes()[0]
        };
        core::iter::repeat_with(next).take(len).collect()
    }

    #[test]
    fn streams_are_the_same_from_all_versions() {
        for (first, range) in [(0, 2), (100, 30), (190, 64), (250, 6)] {
            for len in [3, 31, 32, 33, 64, 1000, 5000] {
                let mut symbols: Vec<u8> =
                    symbols(len, range).iter().map(|symbol| first + symbol).collect();
                // All that occur, so that each has a code; and long ones in a row.
                (0..range)
                    .zip(&mut symbols)
                    .for_each(|(symbol, place)| *place = first + (range - 1 - symbol));
                let Some(codes) = entropy::codes_of(&symbols, first) else { continue };
                let mut out = [vec![0; 2 * len + 16], vec![0; 2 * len + 16]];
                let ours = write_pairs(&symbols, first, &codes, &mut out[0]);
                let plain = entropy::write_pairs_anywhere(&symbols, first, &codes, &mut out[1]);
                assert_eq!(
                    (ours, &out[0][..ours]),
                    (plain, &out[1][..plain]),
                    "{len} symbols of {range} from {first}"
                );
            }
        }
    }

    #[test]
    fn the_version_for_this_processor_gives_the_bytes_of_the_plain_one() {
        for dtype in [DType::U8, DType::BF16, DType::I16, DType::F32, DType::U32, DType::F64] {
            let element = Element::of(dtype);
            for elements in [0, 1, 2, 15, 16, 31, 33, 1001] {
                let len = elements * element.width();
                let block: Vec<u8> = (0..len).map(|i| (i * i / 8).to_le_bytes()[0]).collect();
                let (mut ours, mut plain) = (vec![0; len], vec![0; len]);
                split(element, &block, &mut ours);
                planes::split_anywhere(element, &block, &mut plain);
                assert_eq!(ours, plain, "{dtype} {elements}");

                let mut planes = [&[][..]; MAX_PLANES];
                planes
                    .iter_mut()
                    .zip(plain.chunks_exact(elements.max(1)))
                    .for_each(|(to, from)| *to = from);
                let (mut ours, mut back) = (vec![0; len], vec![0; len]);
                merge(element, &planes, &mut ours);
                planes::merge_anywhere(element, &planes, &mut back);
                assert!(ours == block && back == block, "{dtype} {elements}");

                assert_ne!(merges_to(element, &planes, &block), Some(false), "{dtype} {elements}");
                for at in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|&at| at < len) {
                    back[at] ^= 0x10;
                    let found = merges_to(element, &planes, &back);
                    assert_ne!(found, Some(true), "{dtype} {elements}");
                    assert_eq!(found, planes::merges_to_anywhere(element, &planes, &back));
                    back[at] ^= 0x10;
                }
            }
        }
    }
}
