//! Weights of HQQ: integers of 1 to 8 bits with a scale and a zero point, both floats, for each
//! group.
//!
//! ```text
//! X.W_q          u8 or i32    codes, folded: the first part of the matrix in the highest bits
//! X.scale        [n, 1]       where groups are the rows of the matrix [n, group]     (axis 1)
//!                [1, n]       where they are the columns of the matrix [group, n]    (axis 0)
//! X.zero         as the scale
//! X.shape        i64 [2]      of the weight, whose elements are those of the matrix in turn
//! X.nbits, X.axis, X.packing, ...
//! ```
//!
//! A weight is `(code - zero) * scale`. Three bits are folded ten times into words of 32 bits, with
//! rows of padding at the end.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Escaped, Result, Shape, TensorInfo};

use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Decode, Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Folded, Groups, Tile, round_to, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "hqq", find };

/// Suffixes of a layer's settings, each of which is a tensor.
const SETTINGS: [&str; 16] = [
    ".shape",
    ".nbits",
    ".axis",
    ".group_size",
    ".packing",
    ".compute_dtype",
    ".unpack_view_dtype",
    ".view_as_float",
    ".channel_wise",
    ".encoded_state_dict",
    ".offload_meta",
    ".optimize",
    ".quant_scale",
    ".quant_zero",
    ".round_zero",
    ".stores_quant_config",
];

/// Bytes of a setting.
const MOST: usize = 64;

fn find(tensors: &Tensors<'_>, _: &Stated, codes: usize) -> Option<Result<Weight>> {
    let stem = tensors.stem(codes, ".W_q")?;
    Some(Layer { tensors, stem, name: format!("{stem}.weight") }.weight(codes))
}

/// A layer whose weight is looked for.
struct Layer<'a> {
    tensors: &'a Tensors<'a>,
    stem: &'a str,
    name: String,
}

impl Layer<'_> {
    fn weight(&self, codes: usize) -> Result<Weight> {
        let Self { tensors, stem, name } = self;
        for setting in [".quant_scale", ".quant_zero", ".view_as_float"] {
            if self.number(setting)?.is_some_and(|value| value != 0) {
                let message = format!(
                    "'{stem}{setting}' is on: quantized scales and bytes that are stored as \
                     floats can't be decoded here"
                );
                return Err(Error::version(message).for_tensor(name));
            }
        }
        let shape = self.shape()?;
        let elements = shape.elements().unwrap_or_default();
        let [scale, zero] = [tensors.required(stem, ".scale")?, tensors.required(stem, ".zero")?];
        let groups = self.groups(elements, codes, scale)?;
        let scales = tensors.info(scale);
        let floats = [DType::F32, DType::F16, DType::BF16];
        tensors.check(scale, name, &floats, scales.shape.dims())?;
        tensors.check(zero, name, &[scales.dtype], scales.shape.dims())?;

        let matrix = match groups {
            Along::Rows { group } => [elements / group, group],
            Along::Columns { count } => [elements / count, count],
        };
        let codes_of = self.folded(codes, matrix)?;
        let bits = self.number(".nbits")?.unwrap_or(codes_of.bits.into());
        if bits > codes_of.bits.into() {
            let message = format!("'{stem}.nbits' is {bits}, but its codes have {}", codes_of.bits);
            return Err(Error::version(message).for_tensor(name));
        }
        let settings = SETTINGS.iter().filter_map(|end| tensors.beside(stem, &[end]));
        Ok(Weight {
            description: format!(
                "HQQ, {bits} bits, groups of {}",
                match groups {
                    Along::Rows { group } => group,
                    Along::Columns { .. } => matrix[0],
                }
            ),
            info: TensorInfo {
                name: name.clone(),
                dtype: self.dtype(scales.dtype)?,
                shape: shape.clone(),
            },
            parts: [codes, scale, zero].into_iter().chain(settings).collect(),
            decode: {
                let (dtype, columns) = (self.dtype(scales.dtype)?, shape.row_len());
                let of = Hqq { codes: codes_of, scale, zero, groups, dtype, columns };
                match groups {
                    Along::Rows { group } if columns.is_multiple_of(group) => {
                        let groups = Groups { group, along: columns / group };
                        Box::new(InRows { of, groups, bits: codes_of.bits.into() })
                    }
                    _ => Box::new(of),
                }
            },
        })
    }

    /// A setting that is a number.
    fn number(&self, end: &str) -> Result<Option<i64>> {
        let Some(part) = self.tensors.beside(self.stem, &[end]) else { return Ok(None) };
        let info = self.tensors.info(part);
        let unfit = || self.tensors.unfit(part, &self.name, "one integer");
        let bytes = self.tensors.small(part, &self.name, MOST)?;
        let number = match (info.dtype, &*bytes) {
            (DType::U8 | DType::BOOL, [byte]) => i64::from(*byte),
            (DType::I32, &[a, b, c, d]) => i64::from(i32::from_le_bytes([a, b, c, d])),
            (DType::I64, bytes) => i64::from_le_bytes(bytes.try_into().map_err(|_| unfit())?),
            _ => return Err(unfit()),
        };
        Ok(Some(number))
    }

    /// A setting that is text.
    fn text(&self, end: &str) -> Result<Option<String>> {
        let Some(part) = self.tensors.beside(self.stem, &[end]) else { return Ok(None) };
        let bytes = self.tensors.small(part, &self.name, MOST)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn shape(&self) -> Result<Shape> {
        let part = self.tensors.required(self.stem, ".shape")?;
        self.tensors.check(part, &self.name, &[DType::I64], &[2])?;
        let bytes = self.tensors.small(part, &self.name, MOST)?;
        let lengths = bytes.as_chunks().0.iter().map(|len| u64::from_le_bytes(*len));
        let shape = Shape::from(lengths.collect::<Vec<_>>());
        if shape.elements().is_none_or(|elements| elements == 0) {
            let message = format!("'{}' holds {shape}", self.tensors.info(part).name);
            return Err(Error::corrupt(message).for_tensor(&self.name));
        }
        Ok(shape)
    }

    /// Returns the groups by the shape of the scales, which must match the settings.
    fn groups(&self, elements: u64, codes: usize, scale: usize) -> Result<Along> {
        let unfit = || {
            let needed = format!("one number for each group of {elements} elements");
            self.tensors.unfit(scale, &self.name, &needed)
        };
        let columns = self.tensors.info(codes).shape.row_len();
        let (axis, count) = match *self.tensors.info(scale).shape.dims() {
            // One group for all can be a row or a column.
            [1, count] if count == columns => (0, count),
            [count, 1] => (1, count),
            _ => return Err(unfit()),
        };
        if count == 0 || !elements.is_multiple_of(count) {
            return Err(unfit());
        }
        let group = elements / count;
        for (end, value) in [(".axis", axis), (".group_size", group)] {
            if self.number(end)?.is_some_and(|number| u64::try_from(number) != Ok(value)) {
                return Err(unfit());
            }
        }
        Ok(if axis == 1 { Along::Rows { group } } else { Along::Columns { count } })
    }

    /// Returns the codes of a matrix; the number of words determines the number of codes per word.
    fn folded(&self, tensor: usize, [rows, columns]: [u64; 2]) -> Result<Folded> {
        let info = self.tensors.info(tensor);
        let folds: &[(u32, u32, &str)] = match info.dtype {
            DType::U8 => {
                &[(8, 1, "8bit_u8"), (4, 2, "4bit_u8"), (2, 4, "2bit_u8"), (1, 8, "1bit_u8")]
            }
            DType::I32 => &[(3, 10, "3bit_32")],
            _ => &[],
        };
        let fold = folds.iter().find(|(bits, fields, _)| {
            let is_whole = *bits == 3 || rows.is_multiple_of((*fields).into());
            is_whole && info.shape.dims() == [rows.div_ceil((*fields).into()), columns]
        });
        let Some(&(bits, fields, packing)) = fold else {
            let needed = format!("codes of 1, 2, 3, 4 or 8 bits of a matrix [{rows}, {columns}]");
            return Err(self.tensors.unfit(tensor, &self.name, &needed));
        };
        if let Some(stated) = self.text(".packing")?.filter(|stated| stated != packing) {
            let message = format!(
                "'{}.packing' is '{}', but '{}' is {} {}, which is '{packing}'",
                self.stem,
                Escaped::short(&stated),
                info.name,
                info.dtype,
                info.shape
            );
            return Err(Error::version(message).for_tensor(&self.name));
        }
        let words = info.shape.elements().unwrap_or_default();
        Ok(Folded { tensor, bits, fields, words, is_highest_first: true })
    }

    /// Returns the dtype to which differences and products are rounded.
    ///
    /// It is the compute dtype, or single precision if the scales have another dtype.
    fn dtype(&self, scales: DType) -> Result<DType> {
        let dtype = match self.text(".compute_dtype")?.as_deref() {
            None => scales,
            Some("torch.float32") => DType::F32,
            Some("torch.float16") => DType::F16,
            Some("torch.bfloat16") => DType::BF16,
            Some(other) => {
                let other = Escaped::short(other).to_string();
                let message = format!("the dtype '{other}' of its computation is not known here");
                return Err(Error::version(message).for_tensor(&self.name));
            }
        };
        Ok(if dtype == scales { dtype } else { DType::F32 })
    }
}

/// The groups of a matrix.
#[derive(Clone, Copy)]
enum Along {
    /// Groups along the rows, of this many elements each.
    Rows { group: u64 },
    /// Groups along the columns, this many of them.
    Columns { count: u64 },
}

impl Along {
    /// A range of elements in pieces whose groups follow one another: the elements, and the groups
    /// of which the scales are needed.
    fn pieces(self, elements: Range<u64>) -> Vec<(Range<u64>, Range<u64>)> {
        match self {
            Self::Rows { group } => {
                let groups = elements.start / group..elements.end.div_ceil(group);
                vec![(elements, groups)]
            }
            Self::Columns { count } if count <= elements.end - elements.start => {
                vec![(elements, 0..count)]
            }
            // Fewer elements than columns: they end in this row or the next.
            Self::Columns { count } => {
                let middle =
                    elements.start.next_multiple_of(count).clamp(elements.start, elements.end);
                let pieces = [elements.start..middle, middle..elements.end];
                let full = pieces.into_iter().filter(|piece| !piece.is_empty());
                let with_groups = full.map(|piece| {
                    let first = piece.start % count;
                    let groups = first..first + (piece.end - piece.start);
                    (piece, groups)
                });
                with_groups.collect()
            }
        }
    }

    fn group(self, element: u64) -> u64 {
        match self {
            Self::Rows { group } => element / group,
            Self::Columns { count } => element % count,
        }
    }
}

struct Hqq {
    codes: Folded,
    scale: usize,
    zero: usize,
    groups: Along,
    dtype: DType,
    columns: u64,
}

impl Decode for Hqq {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scale, codes: self.codes.tensor }]
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let first = tile.row * self.columns + tile.column;
        let end = first + out.len() as u64;
        let codes = self.codes.codes(base, first..end)?;
        let dtype = base.tensors()[self.scale].dtype;
        let mut scales_of_each = Vec::with_capacity(out.len());
        for (elements, groups) in self.groups.pieces(first..end) {
            let scales = scales_of(base, self.scale, dtype, groups.clone())?;
            let zeros = scales_of(base, self.zero, dtype, groups.clone())?;
            for element in elements {
                let at = usize_of(self.groups.group(element) - groups.start)?;
                let place = usize_of(element - first)?;
                out[place] = f32::from(codes[place]) - zeros[at];
                scales_of_each.push(scales[at]);
            }
        }
        round_to(self.dtype, out);
        for (value, scale) in out.iter_mut().zip(scales_of_each) {
            *value *= scale;
        }
        Ok(())
    }
}

/// Decoder of weights with whole groups in each row.
struct InRows {
    of: Hqq,
    groups: Groups,
    bits: u64,
}

impl Grouped for InRows {
    fn scaling(&self) -> Vec<Scaling> {
        self.of.scaling()
    }

    fn form(&self) -> Form {
        Form { bits: self.bits, group: self.groups.group, count: self.groups.along }
    }

    fn decoding(&self, _: &dyn CheckpointReader) -> Result<Decoding> {
        let code = Code::Number(DType::U8);
        Ok(Decoding { code, rule: Rule::RoundedDifference, dtype: self.of.dtype })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let first = tile.row * self.of.columns + tile.column;
        out.copy_from_slice(&self.of.codes.codes(base, first..first + out.len() as u64)?);
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let range = self.groups.of_rows(&rows, &groups);
        let of = |part: usize| scales_of(base, part, base.tensors()[part].dtype, range.clone());
        Ok(Numbers { scales: of(self.of.scale)?, zeros: of(self.of.zero)? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, f32s, first};
    use super::*;

    fn i64s(values: [i64; 2]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// A layer whose zero points are 0 and whose scales are 1, 10, 100, ...
    fn decoded(
        codes: (&str, [u64; 2], &[u8]),
        scales: [u64; 2],
        shape: [i64; 2],
    ) -> Result<(Vec<u64>, Vec<f32>)> {
        let tens = std::iter::successors(Some(1.0_f32), |ten| Some(ten * 10.0));
        let tens: Vec<f32> =
            tens.take(usize::try_from(scales[0] * scales[1]).expect("few")).collect();
        let (scale, zero) = (f32s(&tens), f32s(&vec![0.0; tens.len()]));
        let parts: [Part<'_>; 4] = [
            ("up.W_q", codes.0, &codes.1, codes.2),
            ("up.scale", "F32", &scales, &scale),
            ("up.zero", "F32", &scales, &zero),
            ("up.shape", "I64", &[2], &i64s(shape)),
        ];
        let read = first(&parts, "")?;
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::F32));
        Ok((read.shape, read.values))
    }

    #[test]
    fn all_widths_are_folded_with_the_first_part_highest() {
        // One group of four elements in each row: the matrix is [4, 1] by columns.
        let four = decoded(("U8", [2, 1], &[0x13, 0x24]), [1, 1], [2, 2]);
        assert_eq!(four.expect("values"), (vec![2, 2], vec![1.0, 2.0, 3.0, 4.0]));
        let eight = decoded(("U8", [2, 2], &[1, 2, 3, 255]), [2, 1], [2, 2]);
        assert_eq!(eight.expect("values").1, [1.0, 2.0, 30.0, 2550.0]);
        let two = decoded(("U8", [1, 2], &[0b1101_1000, 0b0001_0111]), [4, 1], [2, 4]);
        assert_eq!(two.expect("values").1, [3.0, 0.0, 10.0, 10.0, 200.0, 100.0, 0.0, 3000.0]);
        let one = decoded(("U8", [1, 1], &[0b1010_0110]), [1, 1], [2, 4]);
        assert_eq!(one.expect("values").1, [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        // Twelve rows of three bits are two of words, with eight rows of padding.
        let words = [0o01_2345_0000_u32, 0o76_5432_0000].map(u32::to_le_bytes);
        let three = decoded(("I32", [2, 1], words.as_flattened()), [1, 1], [3, 4]);
        let known = [0.0, 7.0, 1.0, 6.0, 2.0, 5.0, 3.0, 4.0, 4.0, 3.0, 5.0, 2.0];
        assert_eq!(three.expect("values"), (vec![3, 4], known.to_vec()));
    }

    #[test]
    fn groups_are_rows_or_columns_of_the_matrix() {
        let columns = decoded(("U8", [2, 3], &[1, 2, 3, 4, 5, 6]), [1, 3], [3, 2]);
        assert_eq!(columns.expect("values").1, [1.0, 20.0, 300.0, 4.0, 50.0, 600.0]);
        let columns = Along::Columns { count: 5 };
        assert_eq!(columns.pieces(3..7), [(3..5, 3..5), (5..7, 0..2)]);
        assert_eq!(columns.pieces(5..9), [(5..9, 0..4)]);
        assert_eq!(columns.pieces(3..9), [(3..9, 0..5)]);
        assert_eq!(Along::Rows { group: 4 }.pieces(3..9), [(3..9, 0..3)]);
    }

    /// A layer of one code, 255, with these settings.
    fn one<'a>(
        scales: (&'a str, &'a [u8], &'a [u8]),
        shape: &'a [u8],
        settings: &[Part<'a>],
    ) -> Vec<Part<'a>> {
        let parts: [Part<'a>; 4] = [
            ("up.W_q", "U8", &[1, 1], &[255]),
            ("up.scale", scales.0, &[1, 1], scales.1),
            ("up.zero", scales.0, &[1, 1], scales.2),
            ("up.shape", "I64", &[2], shape),
        ];
        parts.iter().chain(settings).copied().collect()
    }

    #[test]
    fn differences_and_products_are_rounded_in_the_dtype_of_the_computation() {
        let shape = i64s([1, 1]);
        // 10 and 0.1: 254.9 is 254.875, and ten times that is 2548 in half precision.
        let half = ("F16", &[0x00, 0x49][..], &[0x66, 0x2e][..]);
        let settings: [Part<'_>; 2] = [
            ("up.compute_dtype", "U8", &[13], b"torch.float16"),
            ("up.nbits", "I32", &[], &[8, 0, 0, 0]),
        ];
        let read = first(&one(half, &shape, &settings), "").expect("values");
        assert_eq!((read.dtype, read.values), (DType::F16, vec![2548.0]));
        let settings: [Part<'_>; 1] = [("up.compute_dtype", "U8", &[14], b"torch.bfloat16")];
        let read = first(&one(half, &shape, &settings), "").expect("values");
        assert_eq!((read.dtype, read.values), (DType::F32, vec![2_549.000_2]));
    }

    #[test]
    fn unknown_settings_of_a_layer_are_rejected() {
        let (shape, one_and_zero) = (i64s([1, 1]), (f32s(&[1.0]), f32s(&[0.0])));
        let scales = ("F32", &*one_and_zero.0, &*one_and_zero.1);
        let known = |setting: Part<'_>, code: &str, words: &str| {
            let found = error(&one(scales, &shape, &[setting]), "");
            assert!(found.contains(code) && found.contains(words), "{found}");
        };
        known(("up.quant_scale", "U8", &[], &[1]), "E003", "'up.quant_scale'");
        known(("up.view_as_float", "BOOL", &[], &[1]), "E003", "'up.view_as_float'");
        known(("up.packing", "U8", &[7], b"4bit_u8"), "E003", "'4bit_u8'");
        known(("up.compute_dtype", "U8", &[5], b"torch"), "E003", "'torch'");
        known(("up.nbits", "U8", &[], &[9]), "E003", "'up.nbits' is 9");
        known(("up.group_size", "I32", &[], &[64, 0, 0, 0]), "E001", "'up.scale' is f32");
        known(("up.axis", "F32", &[], &one_and_zero.0), "E001", "'up.axis' is f32");

        let found = error(&one(scales, &shape, &[])[..3], "");
        assert!(found.contains("'up.shape' is missing"), "{found}");
        let large = i64s([i64::MAX, i64::MAX]);
        let found = error(&one(scales, &large, &[]), "");
        assert!(found.contains("E002") && found.contains("'up.shape'"), "{found}");
        let three = i64s([3, 1]);
        let found = error(&one(scales, &three, &[]), "");
        assert!(found.contains("E001") && found.contains("'up.W_q' is u8 [1, 1]"), "{found}");
        let infinite = f32s(&[f32::INFINITY]);
        let found = error(&one(("F32", &infinite, &one_and_zero.1), &shape, &[]), "");
        assert!(found.contains("E002") && found.contains("'up.scale' is inf"), "{found}");
    }
}
