//! The loops of the codec that every byte goes through.
//!
//! Each is written once, as a plain function that is always inlined, and compiled again for the
//! instruction sets that `multiversion` is described below. They work on integers alone, so all
//! versions return the same bytes.
#![allow(unsafe_code, reason = "multiversion calls the version for a processor's features after detecting them")]

use super::entropy::{self, Stream, Table};
use super::planes::{self, Element, MAX_PLANES};

macro_rules! for_several_targets {
    ($($function:tt)*) => {
        // Planes gain from AVX2, the entropy coder from the shifts of BMI2.
        #[cfg_attr(feature = "std", multiversion::multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt")))]
        $($function)*
    };
}

for_several_targets! {
    /// [`planes::split_anywhere`].
    pub(super) fn split(element: Element, block: &[u8], planes: &mut [u8]) {
        planes::split_anywhere(element, block, planes);
    }
}

for_several_targets! {
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

for_several_targets! {
    /// [`entropy::write_pairs_anywhere`].
    pub(super) fn write_pairs(symbols: &[u8], first: u8, codes: &entropy::Codes, out: &mut [u8]) -> usize {
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
    pub(super) fn run<T: Table, const N: usize>(table: &T, input: &[u8], streams: &mut [Stream<'_>]) {
        entropy::run_anywhere::<T, N>(table, input, streams);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use apr_core::DType;

    use super::*;

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
                planes.iter_mut().zip(plain.chunks_exact(elements.max(1))).for_each(|(to, from)| *to = from);
                let (mut ours, mut back) = (vec![0; len], vec![0; len]);
                merge(element, &planes, &mut ours);
                planes::merge_anywhere(element, &planes, &mut back);
                assert!(ours == block && back == block, "{dtype} {elements}");
            }
        }
    }
}
