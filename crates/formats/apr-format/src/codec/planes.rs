//! Filter 1: the bytes of the elements sorted by significance.

use apr_core::DType;

/// Planes of the widest element.
pub(super) const MAX_PLANES: usize = 8;

/// Properties of a dtype that the byte planes depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Element {
    width: Width,
    /// `true` if the sign is rotated to the low end.
    rotated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
enum Width {
    One,
    Two,
    Four,
    Eight,
}

impl Element {
    /// Returns the element of a dtype. Blocks with scales and packed floats count as single bytes.
    #[must_use]
    pub const fn of(dtype: DType) -> Self {
        let width = match dtype {
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => Width::Two,
            DType::F32 | DType::I32 | DType::U32 => Width::Four,
            DType::F64 | DType::I64 | DType::U64 | DType::C64 => Width::Eight,
            _ => Width::One,
        };
        Self { width, rotated: matches!(dtype, DType::F16 | DType::BF16 | DType::F32) }
    }

    /// Returns the length of an element in bytes, which is also the number of planes.
    #[must_use]
    pub const fn width(self) -> usize {
        match self.width {
            Width::One => 1,
            Width::Two => 2,
            Width::Four => 4,
            Width::Eight => 8,
        }
    }
}

/// Puts the bytes of whole elements into planes, one after the other. `block` and `planes` are
/// equally long, a multiple of the element's width.
#[inline(always)]
pub(super) fn split_anywhere(element: Element, block: &[u8], planes: &mut [u8]) {
    match (element.width, element.rotated) {
        (Width::One, _) => planes.copy_from_slice(block),
        (Width::Two, _) => {
            let (low, high) = planes.split_at_mut(block.len() / 2);
            split_two_anywhere(element, block, low, high);
        }
        (Width::Four, true) => split_four(block, planes, |word| word.rotate_left(1)),
        (Width::Four, false) => split_four(block, planes, |word| word),
        (Width::Eight, _) => split_eight(block, planes),
    }
}

/// Puts elements together again: the reverse of [`split_anywhere`], from planes of
/// `block.len() / element.width()` bytes each.
#[inline(always)]
pub(super) fn merge_anywhere(element: Element, planes: &[&[u8]; MAX_PLANES], block: &mut [u8]) {
    match (element.width, element.rotated) {
        (Width::One, _) => block.copy_from_slice(planes[0]),
        (Width::Two, true) => merge_two(planes, block, |word| word.rotate_right(1)),
        (Width::Two, false) => merge_two(planes, block, |word| word),
        (Width::Four, true) => merge_four(planes, block, |word| word.rotate_right(1)),
        (Width::Four, false) => merge_four(planes, block, |word| word),
        (Width::Eight, _) => merge_eight(planes, block),
    }
}

/// Returns `true` if the planes merge to `block`, without merging them. Returns `None` if the check
/// requires the merged bytes.
#[inline(always)]
pub(super) fn merges_to_anywhere(
    element: Element,
    planes: &[&[u8]; MAX_PLANES],
    block: &[u8],
) -> Option<bool> {
    match (element.width, element.rotated) {
        (Width::Two, true) => Some(merges_to_two(planes, block, |word| word.rotate_right(1))),
        (Width::Two, false) => Some(merges_to_two(planes, block, |word| word)),
        _ => None,
    }
}

#[inline(always)]
fn merges_to_two(planes: &[&[u8]; MAX_PLANES], block: &[u8], turn: impl Fn(u16) -> u16) -> bool {
    let (words, _) = block.as_chunks();
    let complete = planes[0].len() == words.len() && planes[1].len() == words.len();
    let elements = words.iter().zip(planes[0]).zip(planes[1]);
    let differences = elements.fold(0, |differences, ((word, &low), &high)| {
        differences | (turn(u16::from_le_bytes([low, high])) ^ u16::from_le_bytes(*word))
    });
    complete && differences == 0
}

/// Puts the bytes of whole elements of two bytes into two planes of half the length of `block`.
#[inline(always)]
pub(super) fn split_two_anywhere(element: Element, block: &[u8], low: &mut [u8], high: &mut [u8]) {
    if element.rotated {
        split_two(block, low, high, |word| word.rotate_left(1));
    } else {
        split_two(block, low, high, |word| word);
    }
}

#[inline(always)]
fn split_two(block: &[u8], low: &mut [u8], high: &mut [u8], turn: impl Fn(u16) -> u16) {
    let (words, _) = block.as_chunks();
    for ((word, low), high) in words.iter().zip(low).zip(high) {
        [*low, *high] = turn(u16::from_le_bytes(*word)).to_le_bytes();
    }
}

#[inline(always)]
fn merge_two(planes: &[&[u8]; MAX_PLANES], block: &mut [u8], turn: impl Fn(u16) -> u16) {
    let (words, _) = block.as_chunks_mut();
    for ((word, &low), &high) in words.iter_mut().zip(planes[0]).zip(planes[1]) {
        *word = turn(u16::from_le_bytes([low, high])).to_le_bytes();
    }
}

#[inline(always)]
fn split_four(block: &[u8], planes: &mut [u8], turn: impl Fn(u32) -> u32) {
    let (words, _) = block.as_chunks();
    let (low, high) = planes.split_at_mut(2 * words.len());
    let (first, second) = low.split_at_mut(words.len());
    let (third, fourth) = high.split_at_mut(words.len());
    for ((((word, first), second), third), fourth) in
        words.iter().zip(first).zip(second).zip(third).zip(fourth)
    {
        [*first, *second, *third, *fourth] = turn(u32::from_le_bytes(*word)).to_le_bytes();
    }
}

#[inline(always)]
fn merge_four(planes: &[&[u8]; MAX_PLANES], block: &mut [u8], turn: impl Fn(u32) -> u32) {
    let (words, _) = block.as_chunks_mut();
    let [first, second, third, fourth, ..] = *planes;
    for ((((word, &first), &second), &third), &fourth) in
        words.iter_mut().zip(first).zip(second).zip(third).zip(fourth)
    {
        *word = turn(u32::from_le_bytes([first, second, third, fourth])).to_le_bytes();
    }
}

#[inline(always)]
fn split_eight(block: &[u8], planes: &mut [u8]) {
    let (words, _) = block.as_chunks::<8>();
    for (k, plane) in planes.chunks_exact_mut(words.len().max(1)).enumerate() {
        for (word, byte) in words.iter().zip(plane) {
            *byte = word[k];
        }
    }
}

#[inline(always)]
fn merge_eight(planes: &[&[u8]; MAX_PLANES], block: &mut [u8]) {
    let (words, _) = block.as_chunks_mut::<8>();
    for (k, plane) in planes.iter().enumerate() {
        for (word, &byte) in words.iter_mut().zip(*plane) {
            word[k] = byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_top_plane_of_a_rotated_float_is_its_exponent() {
        // 1.5 and -2.0: exponents 127 and 128, mantissas .5 and 0.
        let block: Vec<u8> = [1.5_f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut planes = [0; 8];
        split_anywhere(Element::of(DType::F32), &block, &mut planes);
        assert_eq!(planes, [0, 1, 0, 0, 0x80, 0, 127, 128]);

        // The same in BF16.
        split_anywhere(Element::of(DType::BF16), &[0xc0, 0x3f, 0x00, 0xc0], &mut planes[..4]);
        assert_eq!(planes[..4], [0x80, 1, 127, 128]);
    }

    #[test]
    fn integers_are_split_unchanged() {
        let mut planes = [0; 16];
        split_anywhere(Element::of(DType::U16), &[1, 2, 3, 4], &mut planes[..4]);
        assert_eq!(planes[..4], [1, 3, 2, 4]);
        split_anywhere(
            Element::of(DType::I64),
            &[1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18],
            &mut planes,
        );
        assert_eq!(planes, [1, 11, 2, 12, 3, 13, 4, 14, 5, 15, 6, 16, 7, 17, 8, 18]);
    }
}
