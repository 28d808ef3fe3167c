//! Sparse weights of compressed-tensors: the values that are kept, and a bit for each column.
//!
//! ```text
//!                sparse-24-bitmask       sparse-bitmask
//! compressed     [out, in/2]             [kept]            values, row after row
//! bitmask        u8 [out, ceil(in/8)]    the same          column 8k + j is bit j of byte k
//! row_offsets                            i64 [out]         the first value of each row
//! shape          i64 [2, 1]              i64 [2, 1]        of the weight
//! ```
//!
//! The names follow the layer's, or the weight's. With 2:4 sparsity, two of each four columns are
//! kept, even if one of them is 0. Values of 8 bits are multiplied by `X.weight_scale` after.

use apr_core::{CheckpointReader, DType, Error, Result, Shape, TensorInfo};

use super::find::{Decode, Kind, Tensors, Weight};
use super::read::{Tile, bytes_of, floats_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "sparse", find };

/// Bytes of a bitmask that are read at a time.
const AT_ONCE: u64 = 1 << 15;

fn find(tensors: &Tensors<'_>, _: &Stated, kept: usize) -> Option<Result<Weight>> {
    let stem = tensors.stem(kept, ".compressed")?;
    tensors.beside(stem, &[".bitmask"])?;
    Some(weight(tensors, stem, kept))
}

fn weight(tensors: &Tensors<'_>, stem: &str, kept: usize) -> Result<Weight> {
    let layer = stem.strip_suffix(".weight").unwrap_or(stem);
    let name = format!("{layer}.weight");
    let part = |end| tensors.required_of(&name, stem, end);
    let (mask, shape_part) = (part(".bitmask")?, part(".shape")?);
    let [rows, columns] = shape(tensors, &name, shape_part)?;
    tensors.check(mask, &name, &[DType::U8], &[rows, columns.div_ceil(8)])?;

    let values = tensors.info(kept);
    let floats = [DType::F32, DType::F16, DType::BF16];
    let small = [DType::F8_E4M3, DType::I8];
    let scale = tensors.beside(layer, &[".weight_scale"]);
    let (dtypes, dtype) = match scale {
        Some(scale) => (&small[..], tensors.info(scale).dtype),
        None => (&floats[..], values.dtype),
    };
    let offsets = tensors.beside(stem, &[".row_offsets"]);
    match offsets {
        Some(offsets) => {
            tensors.check(offsets, &name, &[DType::I64], &[rows])?;
            let kept_count = values.shape.row_len();
            tensors.check(kept, &name, dtypes, &[kept_count])?;
        }
        None if columns.is_multiple_of(4) => {
            tensors.check(kept, &name, dtypes, &[rows, columns / 2])?;
        }
        None => {
            return Err(tensors.unfit(shape_part, &name, "a shape whose columns are fours"));
        }
    }
    if let Some(scale) = scale {
        let found = tensors.info(scale);
        let shape = if found.shape.elements() == Some(1) {
            found.shape.dims().to_vec()
        } else {
            vec![rows, 1]
        };
        tensors.check(scale, &name, &floats, &shape)?;
    }

    let parts = [kept, mask, shape_part].into_iter().chain(offsets).chain(scale);
    let of_four = if offsets.is_some() { "" } else { ", two of four" };
    Ok(Weight {
        description: format!("{} with a bit for each column{of_four}", values.dtype),
        info: TensorInfo { name: name.clone(), dtype, shape: [rows, columns].into() },
        parts: parts.chain(tensors.of_activations(layer)).collect(),
        decode: Box::new(Sparse { kept, mask, offsets, scale, columns }),
    })
}

/// The shape that a tensor of two integers holds.
fn shape(tensors: &Tensors<'_>, weight: &str, part: usize) -> Result<[u64; 2]> {
    let info = tensors.info(part);
    if info.dtype != DType::I64 {
        return Err(tensors.unfit(part, weight, "two i64"));
    }
    let bytes = tensors.small(part, weight, 16)?;
    let &[rows, columns] = bytes.as_chunks().0 else {
        return Err(tensors.unfit(part, weight, "two i64"));
    };
    let lengths = [rows, columns].map(u64::from_le_bytes);
    if Shape::from(lengths).elements().is_none_or(|elements| elements == 0) {
        let message = format!("'{}' holds {}", info.name, Shape::from(lengths));
        return Err(Error::corrupt(message).for_tensor(weight));
    }
    Ok(lengths)
}

struct Sparse {
    kept: usize,
    mask: usize,
    /// The first value of each row; none with half of each row's.
    offsets: Option<usize>,
    scale: Option<usize>,
    columns: u64,
}

impl Sparse {
    /// The number of a row's first value.
    fn first_of(&self, base: &dyn CheckpointReader, row: u64) -> Result<u64> {
        let Some(offsets) = self.offsets else { return Ok(row * (self.columns / 2)) };
        let bytes = bytes_of(base, offsets, row * 8, 8)?;
        let offset = bytes.as_chunks().0.first().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let all = base.tensors()[self.kept].shape.row_len();
        if offset > all {
            let name = &base.tensors()[offsets].name;
            let message =
                format!("row {row} begins at {offset} of {all} values, according to '{name}'");
            return Err(Error::corrupt(message));
        }
        Ok(offset)
    }

    /// Bytes of a row's mask.
    fn mask_of(&self, base: &dyn CheckpointReader, row: u64, bytes: [u64; 2]) -> Result<Vec<u8>> {
        let [start, end] = bytes;
        let first = row * self.columns.div_ceil(8) + start;
        bytes_of(base, self.mask, first, usize_of(end - start)?)
    }

    /// Checks that the next row begins at the end of this one, whose first value is at `first`.
    ///
    /// If offsets overlap or decrease, the values of one of the two rows belong to another row.
    fn check_end(&self, base: &dyn CheckpointReader, row: u64, first: u64) -> Result<()> {
        let Some(offsets) = self.offsets else { return Ok(()) };
        let info = &base.tensors()[offsets];
        let is_last = row + 1 == info.shape.row_len();
        let all = base.tensors()[self.kept].shape.row_len();
        let next = if is_last { all } else { self.first_of(base, row + 1)? };
        let kept = self.kept_before(base, row, self.columns.div_ceil(8))?;
        if first + kept == next {
            return Ok(());
        }
        let name = &info.name;
        Err(Error::corrupt(format!(
            "row {row} keeps {kept} values from {first} on, but the next begins at {next}, \
             according to '{name}'"
        )))
    }

    /// The number of values that a row keeps before one of its bytes of the mask.
    fn kept_before(&self, base: &dyn CheckpointReader, row: u64, byte: u64) -> Result<u64> {
        if self.offsets.is_none() {
            return Ok(byte * 4);
        }
        let mut count = 0;
        let mut at = 0;
        while at < byte {
            let end = byte.min(at + AT_ONCE);
            let mask = self.mask_of(base, row, [at, end])?;
            count += mask.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
            at = end;
        }
        Ok(count)
    }

    /// Fills a piece of a row.
    fn piece(
        &self,
        base: &dyn CheckpointReader,
        row: u64,
        column: u64,
        out: &mut [f32],
    ) -> Result<()> {
        let end = column + out.len() as u64;
        let first_byte = column / 8;
        let mask = self.mask_of(base, row, [first_byte, end.div_ceil(8)])?;
        if self.offsets.is_none() {
            self.check_fours(row, first_byte, &mask)?;
        }
        let is_kept = |column: u64| {
            let byte = usize::try_from(column / 8 - first_byte).ok().and_then(|at| mask.get(at));
            byte.is_some_and(|byte| byte >> (column % 8) & 1 == 1)
        };
        let count = (first_byte * 8..end).filter(|column| is_kept(*column)).count() as u64;
        let first = self.first_of(base, row)?;
        self.check_end(base, row, first)?;
        let first = first + self.kept_before(base, row, first_byte)?;
        let mut kept = floats_of(base, self.kept, first..first + count)?.into_iter();
        for column in first_byte * 8..column {
            if is_kept(column) {
                kept.next();
            }
        }
        for (column, value) in (column..).zip(out) {
            *value = if is_kept(column) { kept.next().unwrap_or_default() } else { 0.0 };
        }
        Ok(())
    }

    /// Checks that two of each four columns are kept, because the positions of a row's values
    /// depend on it.
    fn check_fours(&self, row: u64, first_byte: u64, mask: &[u8]) -> Result<()> {
        for (byte, bits) in (first_byte..).zip(mask) {
            let fours = [(byte * 8, bits & 0xf), (byte * 8 + 4, bits >> 4)];
            let wrong = fours
                .into_iter()
                .find(|(column, bits)| *column < self.columns && bits.count_ones() != 2);
            if let Some((column, bits)) = wrong {
                let kept = bits.count_ones();
                let message = format!(
                    "row {row} keeps {kept} of the four columns from {column} on, expected two"
                );
                return Err(Error::corrupt(message));
            }
        }
        Ok(())
    }
}

impl Decode for Sparse {
    fn scaling(&self) -> Vec<Scaling> {
        let scaling = |scales| Scaling { scales, codes: self.kept };
        self.scale.into_iter().map(scaling).collect()
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        for (row, out) in (tile.row..).zip(out.chunks_exact_mut(tile.columns)) {
            self.piece(base, row, tile.column, out)?;
        }
        let Some(scale) = self.scale else { return Ok(()) };
        let info = &base.tensors()[scale];
        let is_one = info.shape.elements() == Some(1);
        let rows = if is_one { 0..1 } else { tile.row..tile.row + tile.rows as u64 };
        let scales = scales_of(base, scale, info.dtype, rows)?;
        for (row, out) in out.chunks_exact_mut(tile.columns).enumerate() {
            let scale = scales[if is_one { 0 } else { row }];
            out.iter_mut().for_each(|value| *value *= scale);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, f32s, first, folder};
    use super::*;

    /// A known row of compressed-tensors: columns 1, 2, 6, 7, 8, 9, 12 and 14 are kept.
    const MASK: [u8; 2] = [198, 83];
    const KEPT: [f32; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    #[rustfmt::skip]
    const ROW: [f32; 16] = [
        0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 7.0, 0.0, 8.0, 0.0,
    ];

    fn i64s(values: &[i64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn two_of_four_columns_are_kept() {
        let (kept, shape) = (f32s(&[KEPT, KEPT].concat()), i64s(&[2, 16]));
        let masks = [MASK, MASK].concat();
        let read = first(
            &[
                ("up.compressed", "F32", &[2, 8], &kept),
                ("up.bitmask", "U8", &[2, 2], &masks),
                ("up.shape", "I64", &[2, 1], &shape),
            ],
            "",
        );
        let read = read.expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::F32));
        assert_eq!((read.shape, read.values), (vec![2, 16], [ROW, ROW].concat()));

        // 1.0 and 2.0 in eight bits, times 0.5 and 4.0 in bf16.
        let read = first(
            &[
                ("up.compressed", "F8_E4M3", &[2, 2], &[0x38, 0x40, 0x40, 0x38]),
                ("up.bitmask", "U8", &[2, 1], &[0b0101, 0b1010]),
                ("up.shape", "I64", &[2, 1], &i64s(&[2, 4])),
                ("up.weight_scale", "BF16", &[2, 1], &[0x00, 0x3f, 0x80, 0x40]),
            ],
            "",
        );
        let read = read.expect("values");
        assert_eq!(read.dtype, DType::BF16);
        assert_eq!(read.values, [0.5, 0.0, 1.0, 0.0, 0.0, 8.0, 0.0, 4.0]);
    }

    #[test]
    fn rows_without_a_pattern_begin_at_their_offsets() {
        let (kept, offsets) = (f32s(&KEPT), i64s(&[0, 6]));
        let parts = |offsets| -> [Part<'_>; 4] {
            [
                ("up.weight.compressed", "F32", &[8], &kept),
                ("up.weight.bitmask", "U8", &[2, 2], &[198, 0b11, 0, 0b11]),
                ("up.weight.row_offsets", "I64", &[2], offsets),
                ("up.weight.shape", "I64", &[2, 1], &[]),
            ]
        };
        let shape = i64s(&[2, 10]);
        let mut right = parts(&offsets);
        right[3].3 = &shape;
        let read = first(&right, "").expect("values");
        let mut known = ROW[..10].to_vec();
        known.extend([0.0; 8]);
        known.extend([7.0, 8.0]);
        assert_eq!((&*read.name, read.shape), ("up.weight", vec![2, 10]));
        assert_eq!(read.values, known);

        let has = |found: &str, words: &[&str]| {
            assert!(words.iter().all(|word| found.contains(word)), "{found}");
        };
        let offsets = i64s(&[0, -6]);
        let mut wrong = right;
        wrong[2].3 = &offsets;
        has(&error(&wrong, ""), &["E002", "row 1 begins at"]);
        for (second, words) in [(7, "the next begins at 7"), (5, "'up.weight.row_offsets'")] {
            let offsets = i64s(&[0, second]);
            let mut wrong = right;
            wrong[2].3 = &offsets;
            has(&error(&wrong, ""), &["E002", "row 0 keeps 6 values from 0 on", words]);
        }
        let offsets = i64s(&[1, 0]);
        wrong[2].3 = &offsets;
        has(&error(&wrong, ""), &["E002", "row 0 keeps 6 values from 1 on"]);
    }

    #[test]
    fn a_row_may_be_longer_than_what_is_decoded_at_once() {
        // Every fourth column is kept, more than two reads of the mask hold.
        let columns = 589_824;
        let numbers =
            (0..columns / 4).map(|at| f32::from(u16::try_from(at % 65_536).expect("small")));
        let kept: Vec<f32> = numbers.collect();
        let (kept, shape) = (f32s(&kept), i64s(&[1, 589_824]));
        let mask = vec![0x11; columns / 8];
        let parts: [Part<'_>; 4] = [
            ("x.weight.compressed", "F32", &[kept.len() as u64 / 4], &kept),
            ("x.weight.bitmask", "U8", &[1, mask.len() as u64], &mask),
            ("x.weight.row_offsets", "I64", &[1], &[0; 8]),
            ("x.weight.shape", "I64", &[2, 1], &shape),
        ];
        let model = folder(&parts, "");
        let mut value = [0; 4];
        for column in [0_u32, 262_140, 262_144, 262_148, 589_820] {
            model.read_tensor(0, u64::from(column) * 4, &mut value).expect("a value");
            let known = f32::from(u16::try_from(column / 4 % 65_536).expect("small"));
            assert_eq!(f32::from_le_bytes(value), known);
        }
    }

    #[test]
    fn masks_and_shapes_that_do_not_match_the_values_are_rejected() {
        let (kept, shape) = (f32s(&KEPT), i64s(&[1, 16]));
        let parts: [Part<'_>; 3] = [
            ("up.compressed", "F32", &[1, 8], &kept),
            ("up.bitmask", "U8", &[1, 2], &MASK),
            ("up.shape", "I64", &[2, 1], &shape),
        ];
        let has = |parts: &[Part<'_>], words: &[&str]| {
            let found = error(parts, "");
            assert!(words.iter().all(|word| found.contains(word)), "{found}");
        };
        has(&parts[..2], &["E001", "'up.shape' is missing"]);
        let mut wrong = parts;
        wrong[1].3 = &[198, 0x57];
        has(&wrong, &["E002", "row 0 keeps 3 of the four columns from 8 on"]);
        let long = i64s(&[1, 32]);
        let mut wrong = parts;
        wrong[2].3 = &long;
        has(&wrong, &["E001", "'up.bitmask' is u8 [1, 2]"]);
        let large = i64s(&[i64::MAX, i64::MAX]);
        wrong[2].3 = &large;
        has(&wrong, &["E002", "'up.shape' holds"]);
        let scale: Part<'_> = ("up.weight_scale", "F32", &[1], &[0, 0, 0xc0, 0x7f]);
        has(&[parts[0], parts[1], parts[2], scale], &["E001", "'up.compressed' is f32"]);
        let small: [Part<'_>; 4] = [
            ("up.compressed", "I8", &[1, 8], &[1, 2, 3, 4, 5, 6, 7, 8]),
            parts[1],
            parts[2],
            scale,
        ];
        has(&small, &["E002", "'up.weight_scale' is NaN"]);
    }
}
