//! Sixteen numbers side by side, one per sub-block, in loops that the compiler turns into vector
//! instructions.

use core::array;
use core::ops::{Add, Div, Mul, Sub};

/// Two registers of AVX2, one of AVX-512.
pub(super) const LANES: usize = 16;

/// A real number of each lane.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Reals<const N: usize = LANES>(pub(super) [f32; N]);

/// A condition for each lane: all bits are set if it holds.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Mask<const N: usize = LANES>([u32; N]);

/// Adding it leaves the integer nearest to a number below 2^22 in the sum's low bits.
pub(super) const ROUNDING: f32 = 12_582_912.0;

/// Rounds to nearest, ties to even, below 2^22; beyond, it returns what ggml does.
#[inline(always)]
pub(super) fn nearest(value: f32) -> i32 {
    ((value + ROUNDING).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// [`nearest`] within bounds, without a conversion from integers.
#[inline(always)]
pub(super) fn nearest_within(low: i32, high: i32, value: f32) -> f32 {
    const ZERO: i32 = ROUNDING.to_bits() as i32;
    // The exponent is restored, so that sums beyond 2^23 become the integer that `nearest` makes of
    // them.
    let rounded = ((value + ROUNDING).to_bits() & 0x007f_ffff | 0x4b00_0000) as i32;
    f32::from_bits(rounded.max(ZERO + low).min(ZERO + high) as u32) - ROUNDING
}

impl<const N: usize> Reals<N> {
    pub(super) const ZERO: Self = Self::all(0.0);

    #[inline(always)]
    pub(super) const fn all(value: f32) -> Self {
        Self([value; N])
    }

    #[inline(always)]
    pub(super) fn map(self, function: impl Fn(f32) -> f32) -> Self {
        Self(array::from_fn(|lane| function(self.0[lane])))
    }

    #[inline(always)]
    fn zip(self, other: Self, function: impl Fn(f32, f32) -> f32) -> Self {
        Self(array::from_fn(|lane| function(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    pub(super) fn abs(self) -> Self {
        self.map(f32::abs)
    }

    #[inline(always)]
    pub(super) fn nearest_within(self, low: i32, high: i32) -> Self {
        self.map(|value| nearest_within(low, high, value))
    }

    #[inline(always)]
    pub(super) fn less(self, other: Self) -> Mask<N> {
        Mask(array::from_fn(|lane| if self.0[lane] < other.0[lane] { u32::MAX } else { 0 }))
    }

    #[inline(always)]
    pub(super) fn equal(self, other: Self) -> Mask<N> {
        Mask(array::from_fn(|lane| if self.0[lane] == other.0[lane] { u32::MAX } else { 0 }))
    }

    /// Returns the lesser of two values; the first if one of them is not a number.
    #[inline(always)]
    pub(super) fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if b < a { b } else { a })
    }

    /// Returns the greater of two values; the first if one of them is not a number.
    #[inline(always)]
    pub(super) fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if b > a { b } else { a })
    }
}

impl<const N: usize> Mask<N> {
    #[inline(always)]
    pub(super) fn select(self, yes: Reals<N>, no: Reals<N>) -> Reals<N> {
        Reals(array::from_fn(|lane| if self.0[lane] != 0 { yes.0[lane] } else { no.0[lane] }))
    }

    #[inline(always)]
    pub(super) fn and(self, other: Self) -> Self {
        Self(array::from_fn(|lane| self.0[lane] & other.0[lane]))
    }

    #[inline(always)]
    pub(super) fn not(self) -> Self {
        Self(array::from_fn(|lane| !self.0[lane]))
    }

    pub(super) fn holds(&self, lane: usize) -> bool {
        self.0[lane] != 0
    }

    #[inline(always)]
    pub(super) fn any(self) -> bool {
        self.0.iter().fold(0, |any, mask| any | mask) != 0
    }
}

macro_rules! lane_by_lane {
    ($($trait:ident $method:ident $operator:tt),+) => {$(
        impl<const N: usize> $trait for Reals<N> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.zip(other, |a, b| a $operator b)
            }
        }
    )+};
}

lane_by_lane! { Add add +, Sub sub -, Mul mul *, Div div / }

/// Element `e` of sub-block `lane` from `[lane][e]` to `[e][lane]`, for eight or sixteen lanes of
/// `LEN` elements.
///
/// Perfect shuffles move the bits of the lane's number from the front of an element's index to its
/// end, one bit each.
#[inline(always)]
pub(super) fn transpose<const LEN: usize, const N: usize>(values: &[f32]) -> [Reals<N>; LEN] {
    let (mut once, mut twice) = ([[0.0; N]; LEN], [[0.0; N]; LEN]);
    shuffle(values, once.as_flattened_mut());
    shuffle(once.as_flattened(), twice.as_flattened_mut());
    shuffle(twice.as_flattened(), once.as_flattened_mut());
    let mut lanes = [Reals::ZERO; LEN];
    if N == 8 {
        for (lanes, values) in lanes.iter_mut().zip(&once) {
            lanes.0 = *values;
        }
    } else {
        shuffle(once.as_flattened(), twice.as_flattened_mut());
        for (lanes, values) in lanes.iter_mut().zip(&twice) {
            lanes.0 = *values;
        }
    }

    lanes
}

/// Elements of the first and of the second half in turns.
#[inline(always)]
fn shuffle(values: &[f32], shuffled: &mut [f32]) {
    let (first, second) = values.split_at(values.len() / 2);
    for ((pair, &first), &second) in
        shuffled.as_chunks_mut::<2>().0.iter_mut().zip(first).zip(second)
    {
        *pair = [first, second];
    }
}
