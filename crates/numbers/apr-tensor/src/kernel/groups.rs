//! Codes of a row, to which the numbers of their groups of columns are applied.
//!
//! There are no closures here: those that are compiled for a kind of processor are not inlined into
//! functions of the standard library, which are compiled for all.

use core::marker::PhantomData;

use super::{avx2, avx512};
use crate::grouped::PACKED;
use crate::half_float::{bf16_to_f32, f32_to_bf16, round_to_f16};
use crate::wire::Wire;

/// Computation of a value from a code.
pub(crate) trait Step {
    fn value(code: f32, scale: f32, zero: f32) -> f32;
}

/// Precision that intermediate values are rounded to.
pub(crate) trait Precision {
    fn round(value: f32) -> f32;
}

pub(crate) struct Single;
pub(crate) struct Half;
pub(crate) struct Brain;

impl Precision for Single {
    #[inline(always)]
    fn round(value: f32) -> f32 {
        value
    }
}

impl Precision for Half {
    #[inline(always)]
    fn round(value: f32) -> f32 {
        round_to_f16(value)
    }
}

impl Precision for Brain {
    #[inline(always)]
    fn round(value: f32) -> f32 {
        bf16_to_f32(f32_to_bf16(value))
    }
}

/// The difference from the zero point, times the scale, rounded.
pub(crate) struct Difference<P>(PhantomData<P>);
/// The difference from the zero point, rounded, times the scale, rounded.
pub(crate) struct RoundedDifference<P>(PhantomData<P>);
/// The product with the scale, and the sum with the zero point, which is rounded.
pub(crate) struct Sum<P>(PhantomData<P>);
/// The product with the scale, rounded, and the sum with the zero point, rounded.
pub(crate) struct RoundedSum<P>(PhantomData<P>);

impl<P: Precision> Step for RoundedDifference<P> {
    #[inline(always)]
    fn value(code: f32, scale: f32, zero: f32) -> f32 {
        P::round(P::round(code - zero) * scale)
    }
}

impl<P: Precision> Step for Difference<P> {
    #[inline(always)]
    fn value(code: f32, scale: f32, zero: f32) -> f32 {
        P::round((code - zero) * scale)
    }
}

impl<P: Precision> Step for Sum<P> {
    #[inline(always)]
    fn value(code: f32, scale: f32, zero: f32) -> f32 {
        P::round(code * scale + zero)
    }
}

impl<P: Precision> Step for RoundedSum<P> {
    #[inline(always)]
    fn value(code: f32, scale: f32, zero: f32) -> f32 {
        P::round(P::round(code * scale) + zero)
    }
}

for_several_targets! {
    /// Decodes the codes of a row into `out`, which is as long. `group` is the columns of a group,
    /// and those of the first that are before the row's; without zero points they are 0.
    pub(crate) fn scale_codes<W: Wire<Value = f32>, S: Step>(
        codes: &[W::Stored],
        (group, skipped): (usize, usize),
        (scales, zeros): (&[f32], &[f32]),
        out: &mut [f32],
    ) {
        let mut start = 0_usize;
        for (number, &scale) in scales.iter().enumerate() {
            let zero = if zeros.is_empty() { 0.0 } else { zeros[number] };
            let len = if number == 0 { group - skipped } else { group };
            let end = out.len().min(start.saturating_add(len));
            for (out, &code) in out[start..end].iter_mut().zip(&codes[start..end]) {
                *out = S::value(W::load(code), scale, zero);
            }
            start = end;
        }
    }
}

/// Fills `values` with the values of the codes in a table.
pub(crate) fn look_up(codes: &[[u8; 1]], table: &[f32; 16], values: &mut [f32]) {
    for (value, [code]) in values.iter_mut().zip(codes) {
        *value = table[usize::from(code & 0xf)];
    }
}

/// Columns that use one table of [`look_up_nibbles`] at a time: half of those that are packed
/// together.
pub(crate) const HALF: usize = PACKED / 2;

/// Fills `out` with the values that packed codes of four bits have in the table of their columns.
/// Returns `false`, and does nothing, if the processor has no instruction for that.
///
/// Each table serves `halves` times [`HALF`] columns; `skipped` of the first table's are before the
/// row's first column.
pub(crate) fn look_up_nibbles(
    packed: &[u8],
    tables: &[[f32; 16]],
    (halves, skipped): (usize, usize),
    out: &mut [f32],
) -> bool {
    let (whole, rest) = out.as_chunks_mut::<PACKED>();
    let (bytes, last) = packed.split_at(whole.len() * HALF);
    let bytes = bytes.as_chunks().0;
    let done = avx512::look_up_nibbles(bytes, tables, (halves, skipped), whole)
        || avx2::look_up_nibbles(bytes, tables, (halves, skipped), whole);
    if done {
        for (at, value) in rest.iter_mut().enumerate() {
            let byte = last[at % HALF];
            let code = if at < HALF { byte & 0xf } else { byte >> 4 };
            let table = (skipped + 2 * whole.len() + at / HALF) / halves;
            *value = tables[table][usize::from(code)];
        }
    }
    done
}

/// The table of the next columns, as [`look_up_nibbles`] counts them.
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
pub(super) struct Tables<'a> {
    tables: &'a [[f32; 16]],
    halves: usize,
    used: usize,
}

#[cfg(all(feature = "simd", target_arch = "x86_64"))]
impl<'a> Tables<'a> {
    pub(super) fn new(tables: &'a [[f32; 16]], (halves, used): (usize, usize)) -> Self {
        Self { tables, halves, used }
    }

    /// Returns the table of the next [`HALF`] columns.
    #[inline(always)]
    pub(super) fn next(&mut self) -> &'a [f32; 16] {
        if self.used == self.halves {
            (self.tables, self.used) = (&self.tables[1..], 0);
        }
        self.used += 1;
        &self.tables[0]
    }
}

for_several_targets! {
    /// Codes of four bits, of [`PACKED`] columns at a time, from the first of such columns on.
    pub(crate) fn unpack_nibbles(packed: &[u8], out: &mut [u8]) {
        let (whole, rest) = out.as_chunks_mut::<PACKED>();
        let (bytes, last) = packed.split_at(whole.len() * HALF);
        for (out, bytes) in whole.iter_mut().zip(bytes.as_chunks::<HALF>().0) {
            let (mut low, mut high) = (*bytes, *bytes);
            for code in &mut low {
                *code &= 0xf;
            }
            for code in &mut high {
                *code >>= 4;
            }
            if let [first, second] = out.as_chunks_mut().0 {
                (*first, *second) = (low, high);
            }
        }
        for (at, code) in rest.iter_mut().enumerate() {
            let byte = last[at % HALF];
            *code = if at < HALF { byte & 0xf } else { byte >> 4 };
        }
    }
}

/// Prefetches codes that will be needed soon.
///
/// Processors do not prefetch far enough when rows are decoded one after the other, and stop at the
/// end of each page.
#[inline(always)]
pub(crate) fn fetch(codes: &[u8]) {
    /// Distance in bytes from the decoded to the prefetched codes.
    const AHEAD: usize = 4096;
    /// Number of bytes in a cache line.
    const LINE: usize = 64;

    #[cfg(all(feature = "simd", target_arch = "x86_64"))]
    for line in (0..codes.len()).step_by(LINE) {
        let place = codes.as_ptr().wrapping_add(AHEAD + line);
        // SAFETY: asking for memory reads nothing, wherever the place is.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast());
        };
    }
    #[cfg(not(all(feature = "simd", target_arch = "x86_64")))]
    let _ = (codes, AHEAD, LINE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_look_up_codes_returns_the_value_of_their_table() {
        let mut packed = [[0; HALF]; 5];
        let mut state = 0_u8;
        for byte in packed.as_flattened_mut() {
            state = state.wrapping_mul(37).wrapping_add(91);
            *byte = state;
        }
        let tables: [[f32; 16]; 11] =
            core::array::from_fn(|at| core::array::from_fn(|code| (at * 16 + code) as f32));
        for (halves, skipped) in [(1, 0), (2, 1), (3, 2), (100, 7)] {
            let mut out = [[[f32::NAN; PACKED]; 5]; 2];
            let done = [
                avx512::look_up_nibbles(&packed, &tables, (halves, skipped), &mut out[0]),
                avx2::look_up_nibbles(&packed, &tables, (halves, skipped), &mut out[1]),
            ];
            for out in out.iter().zip(done).filter_map(|(out, done)| done.then_some(out)) {
                for (at, value) in out.as_flattened().iter().enumerate() {
                    let byte = packed[at / PACKED][at % HALF];
                    let code = if at % PACKED < HALF { byte & 0xf } else { byte >> 4 };
                    let table = &tables[(skipped + at / HALF) / halves];
                    assert_eq!(*value, table[usize::from(code)], "{halves}, {skipped}: {at}");
                }
            }
        }
    }
}
