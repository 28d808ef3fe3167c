//! Rows of codes with numbers for each group of columns, as quantizers other than ggml's store
//! weights: from codes to values.
//!
//! The order of the operations is each method's own, so that values have the bits that its library
//! computes: see [`Rule`].

use alloc::vec::Vec;

use apr_core::DType;

use crate::kernel::{
    self, Brain, Difference, Half, RoundedDifference, RoundedSum, Single, Step, Sum,
};
use crate::small_float;
use crate::wire::{self, Wire};

/// Computation of a value from a code and the scale and zero point of its group.
///
/// Sums require codes that are `u8`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// `(code - zero) * scale`, then times this number, which is 1 for values that are not of
    /// single precision.
    Difference(f32),
    /// Like `Difference`, with the difference rounded to the dtype of the values.
    ///
    /// The codes must be `u8`.
    RoundedDifference,
    /// `code * scale + zero`, each in single precision.
    Sum,
    /// Like `Sum`, with the product rounded to the dtype of the values.
    RoundedSum,
}

/// Interpretation of a code as a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Code {
    /// A byte of this dtype: `u8`, `i8`, `f8_e4m3`, `f8_e5m2` or `f8_e4m3fnuz`.
    Number(DType),
    /// Index of four bits into a table of numbers, for which the rule must be a difference.
    Table([f32; 16]),
}

/// The floats of four bits that `f4_e2m1` has, as a [table](Code::Table).
#[must_use]
pub fn f4_e2m1() -> Code {
    Code::Table(small_float::F4_E2M1)
}

/// The numbers of a row's groups.
#[derive(Debug, Clone, Copy)]
pub struct RowGroups<'a> {
    /// Columns of a group.
    pub group: usize,
    /// Columns of the first group that are before the row's first.
    pub skipped: usize,
    /// A scale for each group.
    pub scales: &'a [f32],
    /// Zero points of the groups; empty if they are all 0.
    pub zeros: &'a [f32],
}

/// Decoding of a weight's codes to values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decoding {
    /// Interpretation of a code as a number.
    pub code: Code,
    /// Computation of a value from a code.
    pub rule: Rule,
    /// The dtype that values are rounded to: `f16`, `bf16` or `f32`.
    pub dtype: DType,
}

impl Decoding {
    /// Fills `out` with the values of a row of codes, a byte each.
    ///
    /// ```
    /// use apr_core::DType;
    /// use apr_tensor::grouped::{Code, Decoding, RowGroups, Rule};
    ///
    /// let code = Code::Number(DType::U8);
    /// let decoding = Decoding { code, rule: Rule::Difference(1.0), dtype: DType::F32 };
    /// let groups = RowGroups { group: 2, skipped: 0, scales: &[0.5, 2.0], zeros: &[8.0, 7.0] };
    /// let mut row = [0.0; 3];
    /// decoding.decode_row(&[9, 7, 8], groups, &mut row);
    /// assert_eq!(row, [0.5, -0.5, 2.0]);
    /// ```
    ///
    /// # Panics
    /// For another dtype of codes, and where there are fewer numbers or codes than columns.
    pub fn decode_row(&self, codes: &[u8], groups: RowGroups<'_>, out: &mut [f32]) {
        for (number, (codes, out)) in codes.chunks(AT_ONCE).zip(out.chunks_mut(AT_ONCE)).enumerate()
        {
            kernel::fetch(codes);
            self.decode_piece(codes, groups.part(number * AT_ONCE, out.len()), out);
        }
    }

    fn decode_piece(&self, codes: &[u8], groups: RowGroups<'_>, out: &mut [f32]) {
        let codes = codes.as_chunks().0;
        if let (Rule::Difference(unit), Code::Table(table)) = (self.rule, self.code) {
            let mut values = [0.0; AT_ONCE];
            let values = &mut values[..out.len()];
            kernel::look_up(codes, &table, values);
            self.differences::<wire::NativeF32>(values, groups, out);
            times(unit, out);
        } else {
            self.decode_numbers(codes, groups, out);
        }
    }

    /// Decodes codes that are numbers themselves.
    fn decode_numbers(&self, codes: &[[u8; 1]], groups: RowGroups<'_>, out: &mut [f32]) {
        match (self.rule, self.code) {
            (Rule::Difference(unit), code) => {
                let dtype = if let Code::Number(dtype) = code { dtype } else { DType::U8 };
                self.numbers(dtype, codes, groups, out);
                times(unit, out);
            }
            (Rule::RoundedDifference, _) => match self.dtype {
                DType::F16 => apply::<wire::U8, RoundedDifference<Half>>(codes, groups, out),
                DType::BF16 => apply::<wire::U8, RoundedDifference<Brain>>(codes, groups, out),
                _ => apply::<wire::U8, RoundedDifference<Single>>(codes, groups, out),
            },
            (Rule::Sum, _) => match self.dtype {
                DType::F16 => apply::<wire::U8, Sum<Half>>(codes, groups, out),
                DType::BF16 => apply::<wire::U8, Sum<Brain>>(codes, groups, out),
                _ => apply::<wire::U8, Sum<Single>>(codes, groups, out),
            },
            (Rule::RoundedSum, _) => match self.dtype {
                DType::F16 => apply::<wire::U8, RoundedSum<Half>>(codes, groups, out),
                DType::BF16 => apply::<wire::U8, RoundedSum<Brain>>(codes, groups, out),
                _ => apply::<wire::U8, RoundedSum<Single>>(codes, groups, out),
            },
        }
    }

    fn numbers(&self, dtype: DType, codes: &[[u8; 1]], groups: RowGroups<'_>, out: &mut [f32]) {
        match dtype {
            DType::U8 => self.differences::<wire::U8>(codes, groups, out),
            DType::I8 => self.differences::<wire::I8>(codes, groups, out),
            DType::F8_E4M3 => self.differences::<wire::F8E4m3>(codes, groups, out),
            DType::F8_E5M2 => self.differences::<wire::F8E5m2>(codes, groups, out),
            DType::F8_E4M3FNUZ => self.differences::<wire::F8E4m3Fnuz>(codes, groups, out),
            other => panic!("codes of dtype {other} are not decoded"),
        }
    }

    fn differences<W: Wire<Value = f32>>(
        &self,
        codes: &[W::Stored],
        groups: RowGroups<'_>,
        out: &mut [f32],
    ) {
        match self.dtype {
            DType::F16 => apply::<W, Difference<Half>>(codes, groups, out),
            DType::BF16 => apply::<W, Difference<Brain>>(codes, groups, out),
            _ => apply::<W, Difference<Single>>(codes, groups, out),
        }
    }

    /// Same as [`decode_row`](Self::decode_row), for 4-bit codes that [`pack_nibbles`] packed.
    ///
    /// # Panics
    /// Those of [`decode_row`](Self::decode_row).
    pub fn decode_nibbles(&self, packed: &[u8], groups: RowGroups<'_>, out: &mut [f32]) {
        let mut codes = [0; AT_ONCE];
        let packed = packed.chunks(packed_len(AT_ONCE));
        for (number, (packed, out)) in packed.zip(out.chunks_mut(AT_ONCE)).enumerate() {
            let codes = &mut codes[..out.len()];
            let groups = groups.part(number * AT_ONCE, out.len());
            kernel::fetch(packed);
            if !self.look_up_nibbles(packed, groups, out) {
                unpack_nibbles(packed, codes);
                self.decode_piece(codes, groups, out);
            }
        }
    }

    /// Decodes a piece by a table of the values that the sixteen codes have in each group. Returns
    /// `false` if the groups don't allow that, or if the processor is not faster with it.
    ///
    /// The tables are decoded as codes are, so that values have the same bits.
    fn look_up_nibbles(&self, packed: &[u8], groups: RowGroups<'_>, out: &mut [f32]) -> bool {
        let RowGroups { group, skipped, scales, .. } = groups;
        let fits = group.is_multiple_of(kernel::HALF) && skipped.is_multiple_of(kernel::HALF);
        let mut tables = [[0.0; CODES]; AT_ONCE / kernel::HALF];
        let Some(tables) = tables.get_mut(..scales.len()).filter(|_| fits) else { return false };
        self.tables(groups, tables);
        let halves = (group / kernel::HALF, skipped / kernel::HALF);
        kernel::look_up_nibbles(packed, tables, halves, out)
    }

    /// Decodes the sixteen codes of each group.
    fn tables(&self, groups: RowGroups<'_>, tables: &mut [[f32; CODES]]) {
        const ALL: [[u8; 1]; AT_ONCE] = {
            let mut all = [[0]; AT_ONCE];
            let (mut at, mut code) = (0, 0_u8);
            while at < AT_ONCE {
                all[at] = [code];
                (at, code) = (at + 1, (code + 1) & 0xf);
            }
            all
        };
        let groups = RowGroups { group: CODES, skipped: 0, ..groups };
        let out = tables.as_flattened_mut();
        if let (Rule::Difference(unit), Code::Table(table)) = (self.rule, self.code) {
            let values = [table; AT_ONCE / CODES];
            self.differences::<wire::NativeF32>(&values.as_flattened()[..out.len()], groups, out);
            times(unit, out);
        } else {
            self.decode_numbers(&ALL[..out.len()], groups, out);
        }
    }
}

/// Codes of four bits.
const CODES: usize = 16;

/// Multiplies values by a number that they all have as a factor.
fn times(unit: f32, out: &mut [f32]) {
    if unit.to_bits() != 1.0_f32.to_bits() {
        out.iter_mut().for_each(|value| *value *= unit);
    }
}

impl RowGroups<'_> {
    /// Returns the groups of some columns of the row.
    fn part(self, first: usize, columns: usize) -> Self {
        let Self { group, skipped, scales, zeros } = self;
        let first = skipped + first;
        let groups = first / group..(first + columns).div_ceil(group);
        let zeros = if zeros.is_empty() { zeros } else { &zeros[groups.clone()] };
        Self { group, skipped: first % group, scales: &scales[groups], zeros }
    }
}

fn apply<W: Wire<Value = f32>, S: Step>(
    codes: &[W::Stored],
    groups: RowGroups<'_>,
    out: &mut [f32],
) {
    let RowGroups { group, skipped, scales, zeros } = groups;
    assert!(skipped < group && codes.len() >= out.len(), "there are codes and groups of columns");
    assert!(scales.len() >= (skipped + out.len()).div_ceil(group), "each group has a scale");
    kernel::scale_codes::<W, S>(codes, (group, skipped), (scales, zeros), out);
}

/// Fills `out` with codes of four bits of a row that [`pack_nibbles`] packed.
pub fn unpack_nibbles(packed: &[u8], out: &mut [u8]) {
    kernel::unpack_nibbles(packed, out);
}

/// Fills `out` with the values at some positions.
///
/// # Panics
/// If there is no value at a position.
pub fn gather(values: &[f32], positions: &[u32], out: &mut [f32]) {
    for (out, position) in out.iter_mut().zip(positions) {
        *out = values[*position as usize];
    }
}

/// Number of columns that are decoded together: their codes stay in the first-level cache.
const AT_ONCE: usize = 16 * PACKED;

/// Columns that are packed together: the first half in the low four bits of as many bytes.
pub const PACKED: usize = 32;

/// Appends a row of four-bit codes, two per byte.
///
/// If the length of the row is not a multiple of 32, the last bytes are filled up with zeros.
pub fn pack_nibbles(codes: &[u8], out: &mut Vec<u8>) {
    for codes in codes.chunks(PACKED) {
        let code = |at: usize| codes.get(at).copied().unwrap_or_default() & 0xf;
        out.extend((0..PACKED / 2).map(|at| code(at) | code(at + PACKED / 2) << 4));
    }
}

/// Bytes of a row of packed codes of four bits.
#[must_use]
pub const fn packed_len(columns: usize) -> usize {
    columns.div_ceil(PACKED) * (PACKED / 2)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use half::{bf16, f16};

    use super::*;

    /// Numbers that are spread over some powers of two, with both signs.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(0x3c00_0000 | state >> 6 & 0x03ff_ffff | state & 0x8000_0000)
        };
        core::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn values_of_a_row_have_the_bits_of_one_operation_after_the_other() {
        let codes: Vec<u8> = (0..150_u8).map(|at| at.wrapping_mul(7) % 16).collect();
        let mut packed = Vec::new();
        pack_nibbles(&codes, &mut packed);
        let (scales, zeros) = (noise(16, 1), noise(16, 2));
        let round = |dtype: DType, value: f32| match dtype {
            DType::F16 => f16::from_f32(value).to_f32(),
            DType::BF16 => bf16::from_f32(value).to_f32(),
            _ => value,
        };
        for (group, skipped) in
            [(32, 0), (24, 5), (150, 0), (1 << 20, 7), (16, 0), (48, 16), (1 << 20, 48), (32, 16)]
        {
            let of = |at: usize| (at + skipped) / group;
            let with = RowGroups { group, skipped, scales: &scales, zeros: &zeros };
            for groups in [with, RowGroups { zeros: &[], ..with }] {
                for (rule, dtype) in [
                    (Rule::Difference(1.0), DType::F16),
                    (Rule::Difference(1.0), DType::BF16),
                    (Rule::Difference(0.3), DType::F32),
                    (Rule::RoundedDifference, DType::F16),
                    (Rule::RoundedDifference, DType::BF16),
                    (Rule::RoundedDifference, DType::F32),
                    (Rule::Sum, DType::F16),
                    (Rule::Sum, DType::F32),
                    (Rule::RoundedSum, DType::BF16),
                    (Rule::RoundedSum, DType::F16),
                ] {
                    let decoding = Decoding { code: Code::Number(DType::U8), rule, dtype };
                    let mut rows = [vec![0.0; codes.len()], vec![0.0; codes.len()]];
                    decoding.decode_row(&codes, groups, &mut rows[0]);
                    decoding.decode_nibbles(&packed, groups, &mut rows[1]);
                    for (at, code) in codes.iter().enumerate() {
                        let (code, scale) = (f32::from(*code), scales[of(at)]);
                        let zero = groups.zeros.get(of(at)).copied().unwrap_or_default();
                        let known = match rule {
                            Rule::Difference(unit) => round(dtype, (code - zero) * scale) * unit,
                            Rule::RoundedDifference => {
                                round(dtype, round(dtype, code - zero) * scale)
                            }
                            Rule::Sum => round(dtype, code * scale + zero),
                            Rule::RoundedSum => round(dtype, round(dtype, code * scale) + zero),
                        };
                        for row in &rows {
                            let same = row[at].to_bits() == known.to_bits();
                            assert!(same, "{rule:?} {group} {at}: {} {known}", row[at]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn codes_are_numbers_of_their_dtype() {
        let codes: Vec<u8> = (0..=u8::MAX).collect();
        let groups = RowGroups { group: 256, skipped: 0, scales: &[1.0], zeros: &[] };
        for code in [DType::U8, DType::I8, DType::F8_E4M3, DType::F8_E5M2, DType::F8_E4M3FNUZ] {
            let rule = Rule::Difference(1.0);
            let decoding = Decoding { code: Code::Number(code), rule, dtype: DType::F32 };
            let (mut row, mut known) = (vec![0.0; 256], Vec::new());
            decoding.decode_row(&codes, groups, &mut row);
            crate::element::widen_f32(code, &codes, &mut known);
            let is_same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
            assert!(row.iter().zip(&known).all(is_same), "{code}");
        }
    }

    #[test]
    fn codes_of_a_table_are_its_numbers() {
        let codes: Vec<u8> = (0..1500_u16).map(|at| (at * 7 % 16).to_le_bytes()[0]).collect();
        let scales = noise(25, 3);
        let groups = RowGroups { group: 64, skipped: 3, scales: &scales, zeros: &[] };
        let table: [f32; 16] = noise(16, 4).try_into().expect("sixteen");
        let (rule, dtype) = (Rule::Difference(1.0), DType::BF16);
        let mut packed = Vec::new();
        pack_nibbles(&codes, &mut packed);
        let decoding = Decoding { code: Code::Table(table), rule, dtype };
        for groups in [groups, RowGroups { skipped: 48, ..groups }] {
            let mut rows = [vec![0.0; codes.len()], vec![0.0; codes.len()]];
            decoding.decode_row(&codes, groups, &mut rows[0]);
            decoding.decode_nibbles(&packed, groups, &mut rows[1]);
            for (at, code) in codes.iter().enumerate() {
                let known = table[usize::from(*code)] * scales[(at + groups.skipped) / 64];
                let known = bf16::from_f32(known).to_f32().to_bits();
                assert_eq!(rows[0][at].to_bits(), known, "{at}");
                assert_eq!(rows[1][at].to_bits(), known, "{at}");
            }
        }
        // Zero has a sign.
        let one = RowGroups { group: 16, skipped: 0, scales: &[1.0], zeros: &[] };
        let mut row = [1.0; 2];
        Decoding { code: f4_e2m1(), rule, dtype }.decode_row(&[8, 15], one, &mut row);
        assert_eq!((row[0].to_bits(), row[1]), ((-0.0_f32).to_bits(), -6.0));
    }

    #[test]
    fn packed_codes_come_back() {
        for columns in [1, 16, 31, 32, 33, 100, 256] {
            let codes: Vec<u8> =
                (0..=u8::MAX).map(|at| at.wrapping_mul(7) % 16).take(columns).collect();
            let mut packed = Vec::new();
            pack_nibbles(&codes, &mut packed);
            assert_eq!(packed.len(), packed_len(columns));
            let mut out = vec![0; columns];
            unpack_nibbles(&packed, &mut out);
            assert_eq!(out, codes);
        }
    }
}
