//! Integers of 2 to 8 bits that compressed-tensors packs in words (pack-quantized).
//!
//! ```text
//! X.weight_packed      i32 [.., out, words]    codes plus 2^(bits - 1), along the inputs
//! X.weight_scale           [.., out, groups]   f16, bf16 or f32; or one for all
//! X.weight_shape       i64 [2]                 out and in, without the padding of the last word
//! X.weight_zero_point  i32 [.., words, groups] the same packing, along the outputs
//! X.weight_g_idx       i32 [in]                the group of each input; -1 throughout for none
//! ```
//!
//! A weight is `(code - zero) * scale`, rounded to the scale's dtype. Since version 0.20 codes are
//! a stream of bits; before, a word held as many whole codes as fit. The number of words tells.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result, Shape, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Kind, Tensors, Weight};
use super::grids::{Grids, Shared, stated_grids};
use super::grouped::{Form, Grouped, Numbers};
use super::qweight::exact;
use super::read::{
    Tile, codes_from, columns_of_words, scales_in, turned, usize_of, words_for, words_in, words_of,
};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "packed", find };

/// Grids that are written, if the configuration states none.
const GRIDS: [Shared; 9] = [
    Shared::Row,
    Shared::All,
    Shared::Group(16),
    Shared::Group(32),
    Shared::Group(64),
    Shared::Group(128),
    Shared::Group(256),
    Shared::Group(512),
    Shared::Group(1024),
];

fn find(tensors: &Tensors<'_>, stated: &Stated, codes: usize) -> Option<Result<Weight>> {
    if !matches!(tensors.info(codes).dtype, DType::I32 | DType::U32) {
        return None;
    }
    let stem = tensors.stem(codes, ".weight_packed")?;
    // With those, half of the weights are left out, and the order is that of a GPU.
    let is_of_marlin = tensors.beside(stem, &[".scale_packed", ".meta"]).is_some();
    (!is_of_marlin).then(|| weight(tensors, stated, stem, codes))
}

/// Packing of codes in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packing {
    bits: u64,
    /// `true` if a code can begin in one word and end in the next.
    is_dense: bool,
}

impl Packing {
    /// Returns every packing. If a word has no bits left over, the dense packing represents both.
    fn all() -> impl Iterator<Item = Self> {
        let both = (2..=8).flat_map(|bits| [true, false].map(|is_dense| Self { bits, is_dense }));
        both.filter(|packing| packing.is_dense || 32 % packing.bits > 0)
    }

    /// The words of a range of codes.
    fn words(self, codes: Range<u64>) -> Range<u64> {
        if self.is_dense {
            return words_for(codes, self.bits);
        }
        let of_word = 32 / self.bits;
        codes.start / of_word..codes.end.div_ceil(of_word)
    }

    /// Fills `out` with codes from number `index` on; `words` begins with the word `first`.
    fn codes(self, words: &[u32], first: u64, index: u64, out: &mut [u8]) {
        if self.is_dense {
            return codes_from(words, first, self.bits, index, out);
        }
        let of_word = 32 / self.bits;
        for (index, code) in (index..).zip(out) {
            let word = usize::try_from((index / of_word).saturating_sub(first)).ok();
            let word = word.and_then(|word| words.get(word)).copied().unwrap_or_default();
            let found = word >> (index % of_word * self.bits) & ((1 << self.bits) - 1);
            *code = found.to_le_bytes()[0];
        }
    }
}

fn weight(tensors: &Tensors<'_>, stated: &Stated, stem: &str, codes: usize) -> Result<Weight> {
    let name = format!("{stem}.weight");
    let scale = tensors.required(stem, ".weight_scale")?;
    let shape = tensors.required(stem, ".weight_shape")?;
    let zero = tensors.zero_point(stated, stem)?;
    let g_idx = tensors.beside(stem, &[".weight_g_idx"]);
    if g_idx.is_none() && stated.all_groups_say("actorder", &"group".into()) {
        tensors.required(stem, ".weight_g_idx")?;
    }
    let info = tensors.info(codes);
    let unfit = || tensors.unfit(codes, &name, "words for each row");
    let (&words, outer) = info.shape.dims().split_last().ok_or_else(unfit)?;
    let (&rows, experts) = outer.split_last().ok_or_else(unfit)?;
    let columns = columns(tensors, &name, shape, rows)?;

    let scale_info = tensors.info(scale);
    let is_one = experts.is_empty() && scale_info.shape.elements() == Some(1);
    let count = if is_one { 1 } else { scale_info.shape.row_len() };
    let fits_columns = |count: &u64| exact(columns, *count).is_some() || g_idx.is_some();
    let Some(count) = Some(count).filter(|count| *count > 0).filter(fits_columns) else {
        let needed = format!("a scale for each row, or for each whole group of {columns} columns");
        return Err(tensors.unfit(scale, &name, &needed));
    };
    let counts = if is_one { [1, 1] } else { [rows, count] };
    let grids = Grids { stated: stated_grids(stated, false), written: &GRIDS };
    grids.matching(tensors, (&name, scale), [rows, columns], Some(counts))?;
    let scales = [outer, &[count]].concat();
    let dtypes = [DType::BF16, DType::F16, DType::F32];
    if !is_one || !dtypes.contains(&scale_info.dtype) {
        tensors.check(scale, &name, &dtypes, &scales)?;
    }
    if let Some(g_idx) = g_idx {
        tensors.check(g_idx, &name, &[DType::I32], &[columns])?;
    }

    let packing = packing(tensors, stated, &name, (codes, [rows, columns, words]), zero)?;
    if let Some(zero) = zero {
        let words = packing.words(0..rows).end;
        let zeros = [experts, &[words, count]].concat();
        tensors.check(zero, &name, &[DType::I32, DType::U32], &zeros)?;
    }
    let group = columns.div_ceil(count);
    let of = if count == 1 { "a scale for each row".into() } else { format!("groups of {group}") };
    let with = if zero.is_some() { ", with zero points" } else { "" };
    let order = if g_idx.is_some() { ", with the group of each input" } else { "" };
    let parts = [codes, scale, shape].into_iter().chain(zero).chain(g_idx);
    Ok(Weight {
        description: format!("packed integers, {} bits, {of}{with}{order}", packing.bits),
        info: TensorInfo {
            name,
            dtype: scale_info.dtype,
            shape: [outer, &[columns]].concat().into(),
        },
        parts: parts.chain(tensors.of_activations(stem)).collect(),
        decode: Box::new(Packed { codes, scale, is_one, zero, g_idx, packing, rows, group, count }),
    })
}

/// Returns the columns of the weight, which the part with its shape states.
fn columns(tensors: &Tensors<'_>, name: &str, shape: usize, rows: u64) -> Result<u64> {
    let unfit = || tensors.unfit(shape, name, &format!("a shape with {rows} rows, as i64"));
    if tensors.info(shape).dtype != DType::I64 {
        return Err(unfit());
    }
    let bytes = tensors.small(shape, name, 64)?;
    let lens: Vec<u64> = bytes.as_chunks().0.iter().map(|len| u64::from_le_bytes(*len)).collect();
    match *lens {
        [.., out, columns] if out == rows && columns > 0 => Ok(columns),
        _ => {
            let message = format!(
                "its part '{}' holds {}, expected a shape with {rows} rows",
                tensors.info(shape).name,
                Shape::from(lens)
            );
            Err(Error::format(message).for_tensor(name))
        }
    }
}

/// Returns the packing that gives this number of words, among the packings of the stated bits.
fn packing(
    tensors: &Tensors<'_>,
    stated: &Stated,
    name: &str,
    (codes, [rows, columns, words]): (usize, [u64; 3]),
    zero: Option<usize>,
) -> Result<Packing> {
    let of_zeros = zero.map(|zero| tensors.info(zero).shape.dims());
    let fits = |packing: &Packing| {
        // So many columns can't be in so few words, however they are packed, and a matrix without
        // rows may claim any number of words.
        let is_few = columns / 16 <= words && columns.checked_mul(packing.bits).is_some();
        let is_few = is_few && packing.words(0..columns).end == words;
        let zero_words = || packing.words(0..rows).end;
        is_few && of_zeros.is_none_or(|dims| dims.iter().nth_back(1) == Some(&zero_words()))
    };
    let said: Vec<u64> = stated_bits(stated).collect();
    let is_stated = |packing: &Packing| said.is_empty() || said.contains(&packing.bits);
    let fitting: Vec<Packing> = Packing::all().filter(fits).filter(is_stated).collect();
    match fitting[..] {
        [] => {
            let bits = match &said[..] {
                [] => "2 to 8 bits".to_owned(),
                said => {
                    let bits: Vec<String> = said.iter().map(ToString::to_string).collect();
                    format!("{} bits, which the configuration states,", bits.join(" or "))
                }
            };
            let needed = format!("words of {columns} codes of {bits} in each row");
            Err(tensors.unfit(codes, name, &needed))
        }
        [packing] => Ok(packing),
        _ => {
            let message = "its codes fit several numbers of bits: a configuration with \
                           'config_groups' is required";
            Err(Error::version(message).for_tensor(name))
        }
    }
}

/// The numbers of bits that groups of the configuration have.
fn stated_bits(stated: &Stated) -> impl Iterator<Item = u64> {
    stated.of_groups("num_bits").into_iter().filter_map(serde_json::Value::as_u64)
}

struct Packed {
    codes: usize,
    scale: usize,
    /// `true` if there is one scale for the whole weight.
    is_one: bool,
    zero: Option<usize>,
    g_idx: Option<usize>,
    packing: Packing,
    /// Rows of one matrix.
    rows: u64,
    /// Columns per group, if no part stores the group of each column.
    group: u64,
    /// Number of groups.
    count: u64,
}

impl Packed {
    /// Returns the zero points of rows and groups as stored, row by row.
    #[expect(clippy::cast_precision_loss, reason = "half a code is 128 at most")]
    fn zeros(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Vec<f32>> {
        let width = usize_of(groups.end - groups.start)?;
        let count = width * usize_of(rows.end - rows.start)?;
        let Some(zero) = self.zero else {
            return Ok(vec![(1_u64 << (self.packing.bits - 1)) as f32; count]);
        };
        let mut zeros = Vec::with_capacity(count);
        let words_of_matrix = self.packing.words(0..self.rows).end;
        let (mut row, end) = (rows.start, rows.end);
        while row < end {
            let matrix = row / self.rows;
            let within =
                row - matrix * self.rows..end.min((matrix + 1) * self.rows) - matrix * self.rows;
            let words = self.packing.words(within.clone());
            let rows = [words.start, words.end].map(|word| matrix * words_of_matrix + word);
            let len = usize_of(words.end - words.start)?.max(1);
            let packed = columns_of_words(base, zero, rows[0]..rows[1], groups.clone())?;
            let mut of_group = vec![0; usize_of(within.end - within.start)?];
            let mut by_group = Vec::with_capacity(of_group.len() * width);
            for packed in packed.chunks_exact(len) {
                self.packing.codes(packed, words.start, within.start, &mut of_group);
                by_group.extend(of_group.iter().map(|zero| f32::from(*zero)));
            }
            zeros.extend(turned(&by_group, of_group.len()));
            row += within.end - within.start;
        }
        Ok(zeros)
    }
}

impl Grouped for Packed {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scale, codes: self.codes }]
    }

    fn form(&self) -> Form {
        Form { bits: self.packing.bits, group: self.group, count: self.count }
    }

    fn decoding(&self, base: &dyn CheckpointReader) -> Result<Decoding> {
        Ok(Decoding {
            code: Code::Number(DType::U8),
            rule: Rule::Difference(1.0),
            dtype: base.tensors()[self.scale].dtype,
        })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let rows = tile.row..tile.row + tile.rows as u64;
        let words = self.packing.words(tile.column..tile.column + tile.columns as u64);
        let packed = words_in(base, self.codes, rows, words.clone())?;
        let packed = packed.chunks_exact(usize_of(words.end - words.start)?.max(1));
        for (out, packed) in out.chunks_exact_mut(tile.columns).zip(packed) {
            self.packing.codes(packed, words.start, tile.column, out);
        }
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let scales = if self.is_one {
            let count = usize_of((rows.end - rows.start) * (groups.end - groups.start))?;
            scales_in(base, self.scale, 0..1, 0..1)?.repeat(count)
        } else {
            scales_in(base, self.scale, rows.clone(), groups.clone())?
        };
        Ok(Numbers { scales, zeros: self.zeros(base, rows, groups)? })
    }

    fn groups_of(
        &self,
        base: &dyn CheckpointReader,
        columns: Range<u64>,
    ) -> Result<Option<Vec<u64>>> {
        let Some(g_idx) = self.g_idx else { return Ok(None) };
        let groups = words_of(base, g_idx, columns)?;
        if groups.iter().all(|&group| group == u32::MAX) {
            return Ok(None);
        }
        match groups.iter().find(|&&group| u64::from(group) >= self.count) {
            Some(over) => {
                let name = &base.tensors()[g_idx].name;
                let (over, count) = (over.cast_signed(), self.count);
                let message = format!("'{name}' refers to group {over} of {count}");
                Err(Error::corrupt(message))
            }
            None => Ok(Some(groups.into_iter().map(u64::from).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, first, u16s, u32s};
    use super::*;

    /// The bytes of a shape.
    fn shape(lens: &[u64]) -> Vec<u8> {
        lens.iter().flat_map(|len| len.to_le_bytes()).collect()
    }

    /// Bytes of scales of one, as bf16.
    fn ones(count: usize) -> Vec<u8> {
        u16s(&vec![0x3f80; count])
    }

    /// Configuration that states four bits: in rows of a few codes, the number of words does not
    /// determine them.
    const FOUR: &str = r#"{"quantization_config":{"quant_method":"compressed-tensors",
        "config_groups":{"group_0":{"weights":{"num_bits":4}}}}}"#;

    const EIGHT: [f32; 8] = [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0];

    #[test]
    fn codes_are_stored_plus_half_and_padded_to_a_word() {
        let codes = u32s(&[0x7654_3210, 0xffff_ff10]);
        let parts = [
            ("up.weight_packed", "I32", &[1, 2][..], &codes[..]),
            ("up.weight_scale", "BF16", &[1, 1], &ones(1)),
            ("up.weight_shape", "I64", &[2], &shape(&[1, 10])),
            ("up.input_scale", "BF16", &[1], &ones(1)),
        ];
        let read = first(&parts, FOUR).expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::BF16));
        assert_eq!(read.shape, [1, 10]);
        assert_eq!(read.values, [&EIGHT[..], &[-8.0, -7.0]].concat());
        for (says, part) in
            [("\"symmetric\":false", "zero_point"), ("\"actorder\":\"group\"", "g_idx")]
        {
            let error = error(&parts, &FOUR.replace("\"num", &format!("{says},\"num")));
            let part = format!("'up.weight_{part}' is missing");
            assert!(error.contains("E001") && error.contains(&part), "{error}");
        }
    }

    #[test]
    fn zero_points_are_packed_along_the_outputs_of_each_matrix() {
        let codes = u32s(&[0x7654_3210; 16]);
        let zeros = u32s(&[0x7654_3210, 0x0123_4567]);
        let parts = [
            ("e.weight_packed", "I32", &[2, 8, 1][..], &codes[..]),
            ("e.weight_scale", "F16", &[2, 8, 1], &u16s(&[0x3800; 16])),
            ("e.weight_shape", "I64", &[2], &shape(&[8, 8])),
            ("e.weight_zero_point", "I32", &[2, 1, 1], &zeros),
        ];
        let read = first(&parts, FOUR).expect("values");
        assert_eq!((read.dtype, &read.shape[..]), (DType::F16, &[2, 8, 8][..]));
        let zeros = (0_u8..8).chain((0..8).rev());
        let known = zeros
            .flat_map(|zero| (0_u8..8).map(move |code| (f32::from(code) - f32::from(zero)) / 2.0));
        assert_eq!(read.values, known.collect::<Vec<_>>());
    }

    #[test]
    fn the_number_of_words_distinguishes_a_bit_stream_from_whole_codes_per_word() {
        let known = [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0].repeat(4);
        let dense = [0x88fa_c688, 0xc688_fac6, 0xfac6_88fa];
        let whole = [0x08fa_c688, 0x1a23_eb1a, 0x2c68_8fac, 0x3e];
        let three = FOUR.replace('4', "3");
        for (words, config) in [(&dense[..], ""), (&whole, &three)] {
            let shapes = [1, words.len() as u64];
            let codes = u32s(words);
            let parts = [
                ("up.weight_packed", "I32", &shapes[..], &codes[..]),
                ("up.weight_scale", "BF16", &[1, 1], &ones(1)),
                ("up.weight_shape", "I64", &[2], &shape(&[1, 32])),
            ];
            assert_eq!(first(&parts, config).expect("values").values, known);
        }
        // Four words of 32 codes are those of four bits, too.
        let parts = [
            ("up.weight_packed", "I32", &[1, 4][..], &u32s(&whole)[..]),
            ("up.weight_scale", "BF16", &[1, 1], &ones(1)),
            ("up.weight_shape", "I64", &[2], &shape(&[1, 32])),
        ];
        let error = error(&parts, "");
        assert!(error.contains("E003") && error.contains("'config_groups'"), "{error}");
    }

    #[test]
    fn the_group_of_each_input_may_be_stored() {
        let scales = u16s(&[0x3f80, 0x4000]);
        let mut parts = vec![
            ("up.weight_packed", "I32", &[1, 1][..], &[0x10, 0x32, 0x54, 0x76][..]),
            ("up.weight_scale", "BF16", &[1, 2], &scales[..]),
        ];
        let shape = shape(&[1, 8]);
        parts.push(("up.weight_shape", "I64", &[2], &shape));
        let four = FOUR.replace("\"num", r#""strategy":"group","group_size":4,"num"#);
        let even = first(&parts, &four).expect("values").values;
        assert_eq!(even, [-8.0, -7.0, -6.0, -5.0, -8.0, -6.0, -4.0, -2.0]);
        let with = |groups: [u32; 8]| {
            let groups = u32s(&groups);
            let mut parts = parts.clone();
            parts.push(("up.weight_g_idx", "I32", &[8], &groups));
            first(&parts, &four).map(|read| read.values)
        };
        assert_eq!(with([u32::MAX; 8]).expect("values"), even);
        let other = with([1, 0, 1, 0, 1, 0, 1, 0]).expect("values");
        assert_eq!(other, [-16.0, -7.0, -12.0, -5.0, -8.0, -3.0, -4.0, -1.0]);
        let over = with([0, 0, 0, 0, 0, 0, 0, 2]).expect_err("no group").to_string();
        assert!(over.contains("E002") && over.contains("refers to group 2"), "{over}");
    }

    #[test]
    fn what_does_not_go_together_is_refused_by_name() {
        let codes = u32s(&[0x7654_3210]);
        let (one, lens) = (ones(1), shape(&[1, 8]));
        let good: [Part<'_>; 3] = [
            ("up.weight_packed", "I32", &[1, 1], &codes),
            ("up.weight_scale", "BF16", &[1, 1], &one),
            ("up.weight_shape", "I64", &[2], &lens),
        ];
        assert_eq!(first(&good, FOUR).expect("values").values, EIGHT);
        let mut of_all = good;
        of_all[1].2 = &[1];
        assert_eq!(first(&of_all, FOUR).expect("values").values, EIGHT);
        let with = |at: usize, part: Option<Part<'_>>| {
            let mut parts = good.to_vec();
            match part {
                Some(part) => parts[at] = part,
                None => drop(parts.remove(at)),
            }
            error(&parts, FOUR)
        };
        // Eight codes of four bits in a word may be eight of two, but not where four are stated.
        let (half, sixteen) = (u32s(&[0x7654_3210]), shape(&[1, 16]));
        let mut few = good;
        (few[0].3, few[2].3) = (&half, &sixteen);
        let found = error(&few, FOUR);
        assert!(found.contains("E001") && found.contains("'up.weight_packed'"), "{found}");
        assert!(found.contains("4 bits, which the configuration states,"), "{found}");
        // Half of the scales are those of other groups.
        let group = FOUR.replace("\"num", r#""strategy":"group","group_size":2,"num"#);
        let [two, four] = [ones(2), ones(4)];
        for (scales, count, is_good) in [(&four, 4, true), (&two, 2, false)] {
            let shape = [1, count];
            let mut parts = good;
            (parts[1].2, parts[1].3) = (&shape, scales);
            match first(&parts, &group) {
                Ok(_) => assert!(is_good),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!is_good && error.contains("'up.weight_scale'"), "{error}");
                    assert!(error.contains("each group of 2 columns"), "{error}");
                }
            }
        }
        let [two, nine] = [ones(2), shape(&[1, 9])];
        let three = ones(3);
        let huge = shape(&[1, u64::MAX]);
        let nan = u16s(&[0x7fc0]);
        for (at, part, code, name) in [
            (1, None, "E001", "'up.weight_scale'"),
            (2, None, "E001", "'up.weight_shape'"),
            (1, Some(("up.weight_scale", "BF16", &[2, 1][..], &two[..])), "E001", "weight_scale"),
            (1, Some(("up.weight_scale", "BF16", &[1, 3], &three)), "E001", "whole group of 8"),
            (1, Some(("up.weight_scale", "I16", &[1, 1], &one)), "E001", "'up.weight_scale'"),
            (1, Some(("up.weight_scale", "BF16", &[1, 1], &nan)), "E002", "'up.weight_scale'"),
            (2, Some(("up.weight_shape", "I64", &[2], &huge)), "E001", "'up.weight_packed'"),
            (2, Some(("up.weight_shape", "F64", &[2], &nine)), "E001", "'up.weight_shape'"),
        ] {
            let error = with(at, part);
            assert!(error.contains(code) && error.contains(name), "{error}");
        }
    }
}
