//! Integers of 4 and 8 bits with 2:4 sparsity in the order of Marlin's matrix product, as
//! compressed-tensors stored them (`marlin-24`).
//!
//! ```text
//! X.weight_packed  i32 [in/32, out*bits/2]   half of each row's values, in tiles of 16 x 16
//! X.meta           i16 [in/32, 2*out]        for 16 columns of a row, which two of four they are
//! X.scale_packed   f16 [groups, out]
//! ```
//!
//! Rows are in blocks of 64: whatever is reordered stays within one, and within the 32 columns that
//! a row of the first two tensors stands for.

use std::sync::OnceLock;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};

use super::find::{Decode, Kind, Tensors, Weight};
use super::read::{Tile, bytes_of, scales_of, usize_of, words_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "marlin24", find };

/// Rows of a block, and columns of a row of packed values.
const BLOCK: u64 = 64;
const COLUMNS: u64 = 32;

/// Number of codes that one permutation reorders: the codes of four tiles.
const CODES: usize = 1024;

fn find(tensors: &Tensors<'_>, _: &Stated, codes: usize) -> Option<Result<Weight>> {
    let stem = tensors.stem(codes, ".weight_packed")?;
    let scale = tensors.beside(stem, &[".scale_packed"])?;
    Some(weight(tensors, stem, codes, scale))
}

fn weight(tensors: &Tensors<'_>, stem: &str, codes: usize, scale: usize) -> Result<Weight> {
    let name = format!("{stem}.weight");
    let meta = tensors.required(stem, ".meta")?;
    let [packed, words] = tensors.matrix(codes, &name)?;
    let [groups, rows] = tensors.matrix(scale, &name)?;
    tensors.check(scale, &name, &[DType::F16, DType::BF16], &[groups, rows])?;
    let unfit = || {
        let needed = format!("codes of 4 or 8 bits of {rows} rows in blocks of {BLOCK}");
        tensors.unfit(codes, &name, &needed)
    };
    let bits = [4, 8].into_iter().find(|bits| rows.checked_mul(bits / 2) == Some(words));
    let bits = bits.filter(|_| rows.is_multiple_of(BLOCK) && rows > 0).ok_or_else(unfit)?;
    tensors.check(codes, &name, &[DType::I32], &[packed, words])?;
    let twice = rows.checked_mul(2).ok_or_else(unfit)?;
    tensors.check(meta, &name, &[DType::I16], &[packed, twice])?;
    let columns = packed.checked_mul(COLUMNS).ok_or_else(unfit)?;
    if groups == 0 || !columns.is_multiple_of(groups) || columns == 0 {
        let needed = format!("one number for each group of {columns} columns");
        return Err(tensors.unfit(scale, &name, &needed));
    }
    let group = columns / groups;
    let groups_are =
        if groups == 1 { "a scale for each row".into() } else { format!("groups of {group}") };
    Ok(Weight {
        description: format!("marlin-24, {bits} bits, two of four, {groups_are}"),
        info: TensorInfo { name, dtype: tensors.info(scale).dtype, shape: [rows, columns].into() },
        parts: [codes, scale, meta].into_iter().chain(tensors.of_activations(stem)).collect(),
        decode: Box::new(Marlin { codes, scale, meta, bits, rows, group, columns }),
    })
}

struct Marlin {
    codes: usize,
    scale: usize,
    meta: usize,
    bits: u64,
    rows: u64,
    group: u64,
    columns: u64,
}

/// Values and places of 32 columns of some blocks of rows.
struct Strip {
    words: Vec<u32>,
    meta: Vec<u16>,
}

/// Returns the position of each code of four tiles among the stored codes.
fn places(bits: u64) -> &'static [u16] {
    static OF_4: OnceLock<Vec<u16>> = OnceLock::new();
    static OF_8: OnceLock<Vec<u16>> = OnceLock::new();
    let of = if bits == 4 { &OF_4 } else { &OF_8 };
    of.get_or_init(|| {
        let turns: &[usize] = if bits == 4 { &[0, 2, 4, 6, 1, 3, 5, 7] } else { &[0, 2, 1, 3] };
        let mut order = Vec::with_capacity(CODES);
        for thread in 0..32 {
            let (quad, half) = (thread / 4, thread % 4 * 2);
            for column in 0..4 {
                for block in [0, 4] {
                    let rows = [half, half + 1, half + 8, half + 9];
                    let tile = quad / 2 * 256 + quad % 2 * 8;
                    order.extend(rows.map(|row| 16 * row + tile + block + column));
                }
            }
        }
        let mut places = vec![0; CODES];
        for (run, codes) in order.chunks_exact(turns.len()).enumerate() {
            for (at, turn) in turns.iter().enumerate() {
                let stored = run * turns.len() + at;
                places[codes[*turn]] = u16::try_from(stored).unwrap_or_default();
            }
        }
        places
    })
}

impl Marlin {
    /// Reads 32 columns of the blocks from `first` on.
    fn strip(
        &self,
        base: &dyn CheckpointReader,
        number: u64,
        (first, blocks): (u64, u64),
    ) -> Result<Strip> {
        let of_block = BLOCK * self.bits / 2;
        let start = number * self.rows * self.bits / 2 + first * of_block;
        let words = words_of(base, self.codes, start..start + blocks * of_block)?;
        let start = (number * self.rows + first * BLOCK) * 2;
        let bytes = bytes_of(base, self.meta, start * 2, usize_of(blocks * BLOCK * 4)?)?;
        let meta = bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
        Ok(Strip { words, meta })
    }

    /// Fills 32 columns of a row of the strip's blocks with integers.
    fn row(&self, strip: &Strip, row: u64, out: &mut [f32; 32]) -> Result<()> {
        let broken = || Error::corrupt("a part is shorter than its shape");
        let places = places(self.bits);
        let (block, within) = (row / BLOCK, row % BLOCK);
        for half in 0..2 {
            let meta = meta_of(within, half);
            let meta = strip.meta.get(usize_of(block * BLOCK * 2 + meta)?).ok_or_else(broken)?;
            for four in 0..4_u64 {
                let pair = [meta >> (4 * four) & 3, meta >> (4 * four + 2) & 3];
                if pair[0] == pair[1] {
                    let message = format!("row {row} has two values in one of four columns");
                    return Err(Error::corrupt(message));
                }
                for (value, column) in (0..).zip(pair) {
                    // The tile's row is the column among the values that are kept.
                    let kept = half * 8 + four * 2 + value;
                    let code = within / 16 * 256 + kept * 16 + within % 16;
                    let place = u64::from(*places.get(usize_of(code)?).ok_or_else(broken)?);
                    let bit = (block * CODES as u64 + place) * self.bits;
                    let word = strip.words.get(usize_of(bit / 32)?).ok_or_else(broken)?;
                    let code = word >> (bit % 32) & ((1 << self.bits) - 1);
                    let zero = 1_u32 << (self.bits - 1);
                    let column = usize_of(half * 16 + four * 4)? + usize::from(column);
                    #[expect(clippy::cast_precision_loss, reason = "a code has 8 bits at most")]
                    let value = code as f32 - zero as f32;
                    *out.get_mut(column).ok_or_else(broken)? = value;
                }
            }
        }
        Ok(())
    }

    /// Returns the position of a row's scale among the scales of its group.
    fn scale_of(&self, row: u64) -> u64 {
        // One of few groups, or of each row, is not reordered.
        if self.group >= self.columns / 2 {
            return row;
        }
        row / 8 * 8 + row % 4 * 2 + row % 8 / 4
    }
}

/// Returns the position of the metadata of 16 columns, the first or the second of 32, in a row of a
/// block.
fn meta_of(row: u64, half: u64) -> u64 {
    let at = row % 2 * 2 + row % 8 / 4 + row % 4 / 2 * 32 + row / 8 * 4;
    match (at % 2, half) {
        (0, 1) => (at + 1) * 2,
        (1, 0) => (at - 1) * 2 + 1,
        _ => at * 2 + half,
    }
}

impl Decode for Marlin {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scale, codes: self.codes }]
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let first = tile.row / BLOCK;
        let last = tile.row + tile.rows as u64;
        let blocks = (first, last.div_ceil(BLOCK) - first);
        let end = tile.column + tile.columns as u64;
        let dtype = base.tensors()[self.scale].dtype;
        for number in tile.column / COLUMNS..end.div_ceil(COLUMNS) {
            let strip = self.strip(base, number, blocks)?;
            let columns = tile.column.max(number * COLUMNS)..end.min((number + 1) * COLUMNS);
            let groups = columns.start / self.group..columns.end.div_ceil(self.group);
            let mut scales = Vec::new();
            for group in groups.clone() {
                let start = group * self.rows + first * BLOCK;
                scales.push(scales_of(base, self.scale, dtype, start..start + blocks.1 * BLOCK)?);
            }
            for (row, out) in (tile.row..).zip(out.chunks_exact_mut(tile.columns)) {
                let mut values = [0.0; 32];
                self.row(&strip, row - first * BLOCK, &mut values)?;
                let scale = usize_of(self.scale_of(row) - first * BLOCK)?;
                for column in columns.clone() {
                    let value = values[usize_of(column % COLUMNS)?];
                    let scales = &scales[usize_of(column / self.group - groups.start)?];
                    out[usize_of(column - tile.column)?] = value * scales[scale];
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, first};
    use super::*;

    /// Returns pseudorandom numbers that a script independent of this code can reproduce.
    fn numbers() -> impl FnMut() -> u32 {
        let mut state = 1_u32;
        move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        }
    }

    /// Codes, places and scales made of such numbers.
    fn parts(bits: u64, [rows, columns, groups]: [u64; 3]) -> [Vec<u8>; 3] {
        let mut next = numbers();
        let codes = (0..columns / 32 * rows * bits / 2).flat_map(|_| next().to_le_bytes());
        let codes = codes.collect();
        let mut two_of_four = || [4_u16, 8, 12, 9, 13, 14][(next() >> 16) as usize % 6];
        let meta = (0..columns / 32 * 2 * rows).flat_map(|_| {
            (0..4).fold(0, |meta, four| meta | two_of_four() << (4 * four)).to_le_bytes()
        });
        let meta = meta.collect();
        let scales: Vec<f32> =
            (0..groups * rows).map(|_| ((next() >> 16) % 64 + 1) as f32 / 32.0).collect();
        let mut bytes = Vec::new();
        apr_tensor::cast::cast_values(&scales, DType::F16, &mut bytes);
        [codes, meta, bytes]
    }

    fn read(bits: u64, [rows, columns, groups]: [u64; 3]) -> (Vec<f32>, f64) {
        let [codes, meta, scales] = parts(bits, [rows, columns, groups]);
        let parts: [Part<'_>; 3] = [
            ("up.weight_packed", "I32", &[columns / 32, rows * bits / 2], &codes),
            ("up.meta", "I16", &[columns / 32, 2 * rows], &meta),
            ("up.scale_packed", "F16", &[groups, rows], &scales),
        ];
        let read = first(&parts, "").expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::F16));
        assert_eq!(read.shape, [rows, columns]);
        let sum = (0_u32..).zip(&read.values);
        let sum = sum.map(|(at, value)| f64::from(*value) * f64::from(at % 1009)).sum();
        (read.values, sum)
    }

    #[test]
    fn every_value_is_where_another_decoder_has_it() {
        let (values, sum) = read(4, [64, 32, 1]);
        assert_eq!(values[..8], [1.0, 0.0, 0.0, 0.0, -2.0, 0.0, -2.0, 0.0]);
        assert_eq!(values[2040..], [1.4375, 0.0, 0.0, 7.1875, 4.3125, 0.0, -11.5, 0.0]);
        assert_eq!(sum, -263_288.437_5);
        let (values, sum) = read(8, [128, 64, 1]);
        assert_eq!(values[..8], [0.0, 0.0, -10.625, 4.25, 0.0, 0.0, 10.625, -38.25]);
        assert_eq!(sum, 602_307.125);
        // Scales of more than two groups are reordered.
        assert_eq!(read(4, [64, 128, 4]).1, -617_033.0);
    }

    #[test]
    fn parts_that_do_not_go_together_are_refused() {
        let [codes, meta, scales] = parts(4, [64, 32, 1]);
        let right: [Part<'_>; 3] = [
            ("up.weight_packed", "I32", &[1, 128], &codes),
            ("up.scale_packed", "F16", &[1, 64], &scales),
            ("up.meta", "I16", &[1, 128], &meta),
        ];
        let has = |parts: &[Part<'_>], words: &[&str]| {
            let found = error(parts, "");
            assert!(words.iter().all(|word| found.contains(word)), "{found}");
        };
        has(&right[..2], &["E001", "'up.meta' is missing"]);
        let mut wrong = right;
        wrong[0] = ("up.weight_packed", "I32", &[1, 96], &codes[..384]);
        has(&wrong, &["E001", "'up.weight_packed' is i32 [1, 96]", "4 or 8 bits"]);
        let mut wrong = right;
        wrong[2] = ("up.meta", "I16", &[2, 64], &meta);
        has(&wrong, &["E001", "'up.meta' is i16 [2, 64]"]);
        let zeros = [0; 256];
        let mut wrong = right;
        wrong[2].3 = &zeros;
        has(&wrong, &["E002", "row 0 has two values in one of four columns"]);
        let infinite = [0x00, 0x7c].repeat(64);
        let mut wrong = right;
        wrong[1].3 = &infinite;
        has(&wrong, &["E002", "'up.scale_packed' is inf"]);
    }
}
