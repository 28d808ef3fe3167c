//! Integers in groups as blocks of ggml's types, where these hold the same values: the codes move,
//! and nothing is rounded.
//!
//! A weight is `(code - zero) * scale` in single precision, before it is rounded to its dtype.
//!
//! | | a block of 32 | holds such a weight |
//! |---|---|---|
//! | `q4_0` | `d` f16, 32 nibbles `q`: `d * (q - 8)` | if each `code - zero` is -8 to 7 |
//! | `q4_1` | `d`, `m` f16, 32 nibbles `q`: `d * q + m` | if `zero * scale` is a half float |
//! | `q8_0` | `d` f16, 32 bytes `q`: `d * q` | if each `code - zero` is -127 to 127 |
//!
//! All of them need scales that are half floats, and one group for each 32 columns. Which codes
//! there are is not read: every code of so many bits must fit. ggml writes no -128 in `q8_0`, and
//! its products on some processors overflow there.

use std::ops::Range;

use apr_core::{BlockFit, CheckpointReader, DType, Error, Result, Shape};
use apr_tensor::cast::cast_values;
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::grouped::{Form, Grouped};
use super::read::{Tile, round_to, usize_of};

/// Columns of a block.
const COLUMNS: u64 = 32;
const BLOCK: usize = 32;

/// Scales that are looked at together.
const AT_ONCE: u64 = 1 << 16;

const GROUPS: &str = "its groups are not a multiple of 32 columns";
const ORDER: &str = "its groups are spread over the columns";
const SCALES: &str = "its scales are not half floats";
const MIDDLE: &str = "its zero points are not in the middle of the codes";
const MINIMUM: &str = "its scales times zero points are not half floats";
const RANGE: &str = "its codes less zero points can be outside of -127 to 127";

/// Numbers of a group.
struct Group {
    scale: f32,
    /// The scale rounded to a half float.
    half: f32,
    zero: f32,
}

/// Returns how blocks of a type hold a weight of this shape.
///
/// # Errors
/// Those of reading scales and zero points.
pub(super) fn fit(
    of: &dyn Grouped,
    base: &dyn CheckpointReader,
    shape: &Shape,
    dtype: DType,
) -> Result<BlockFit> {
    let form = of.form();
    let codes = codes_of(of.decoding(base)?, &form).filter(|_| has_room(&form, dtype));
    let Some(codes) = codes else {
        return Ok(BlockFit::Narrower);
    };
    let [rows, columns] = matrix(shape);
    if columns == 0 || !columns.is_multiple_of(COLUMNS) {
        return Ok(BlockFit::Rounded(GROUPS));
    }
    if let Err(why) = groups_of_blocks(of, base, &form, 0..columns)? {
        return Ok(BlockFit::Rounded(why));
    }
    let at_once = usize_of((AT_ONCE / form.count.max(1)).max(1))?;
    for first in (0..rows).step_by(at_once) {
        let of_rows = first..rows.min(first + at_once as u64);
        let numbers = of.numbers(base, of_rows, 0..form.count)?;
        let mut halves = numbers.scales.clone();
        round_to(DType::F16, &mut halves);
        let zeros = numbers.zeros.iter().copied().chain(std::iter::repeat(0.0));
        for ((scale, half), zero) in numbers.scales.into_iter().zip(halves).zip(zeros) {
            if let Some(why) = (Group { scale, half, zero }).misfit(codes, dtype) {
                return Ok(BlockFit::Rounded(why));
            }
        }
    }
    Ok(BlockFit::Exact)
}

/// Fills `out` with whole blocks of this type, from a block's number on.
///
/// # Errors
/// Those of reading the weight's values, and E001 where the groups of its columns do not fit.
pub(super) fn read(
    of: &dyn Grouped,
    base: &dyn CheckpointReader,
    shape: &Shape,
    (dtype, first): (DType, u64),
    out: &mut [u8],
) -> Result<()> {
    let form = of.form();
    let columns = shape.row_len();
    let len = usize_of(dtype.block_bytes())?;
    let (of_row, mut block) = (columns / COLUMNS, first);
    if of_row == 0 || len == 0 {
        return Err(Error::format(GROUPS));
    }
    let mut rest = out;
    while !rest.is_empty() {
        let (row, within) = (block / of_row, block % of_row);
        let left = (rest.len() / len) as u64;
        // Whole rows, or a piece of one.
        let (rows, blocks) = match (within, left / of_row) {
            (0, rows) if rows > 0 => (rows, of_row),
            _ => (1, left.min(of_row - within)),
        };
        let tile = Tile {
            row,
            rows: usize_of(rows)?,
            column: within * COLUMNS,
            columns: usize_of(blocks * COLUMNS)?,
        };
        let (made, after) = rest.split_at_mut(usize_of(rows * blocks)? * len);
        read_tile(of, base, &form, tile, (dtype, made))?;
        (block, rest) = (block + rows * blocks, after);
    }
    Ok(())
}

fn read_tile(
    of: &dyn Grouped,
    base: &dyn CheckpointReader,
    form: &Form,
    tile: Tile,
    (dtype, out): (DType, &mut [u8]),
) -> Result<()> {
    let mut codes = vec![0; tile.rows * tile.columns];
    of.codes(base, tile, &mut codes)?;
    let columns = tile.column..tile.column + tile.columns as u64;
    let groups = groups_of_blocks(of, base, form, columns)?.map_err(Error::format)?;
    let rows = tile.row..tile.row + tile.rows as u64;
    let first = groups.iter().min().copied().unwrap_or_default();
    let last = groups.iter().max().copied().unwrap_or_default();
    let numbers = of.numbers(base, rows, first..last + 1)?;
    let width = usize_of(last + 1 - first)?;
    let groups: Vec<usize> =
        groups.into_iter().map(|group| usize_of(group - first)).collect::<Result<_>>()?;

    let decoding = of.decoding(base)?;
    let is_signed = decoding.code == Code::Number(DType::I8);
    let range = codes_of(decoding, form).unwrap_or_default();
    let len = usize_of(dtype.block_bytes())?;
    let blocks = out.chunks_exact_mut(len).zip(codes.as_chunks::<BLOCK>().0).enumerate();
    for (number, (out, codes)) in blocks {
        let (row, block) = (number / groups.len(), number % groups.len());
        let at = row * width + groups[block];
        let scale = numbers.scales[at];
        let zero = numbers.zeros.get(at).copied().unwrap_or_default();
        let group = Group { scale, half: scale, zero };
        // Where a block has no minimum, its codes are from -8 on.
        let least = match dtype {
            DType::Q4_1 => group.least(range).unwrap_or(zero),
            _ => 8.0,
        };
        write_block(dtype, (codes, is_signed), (scale, zero, least), out);
    }
    Ok(())
}

/// Writes a block of these codes.
fn write_block(
    dtype: DType,
    (codes, is_signed): (&[u8; BLOCK], bool),
    (scale, zero, least): (f32, f32, f32),
    out: &mut [u8],
) {
    let minimum = -(least * scale);
    let head = if dtype == DType::Q4_1 { &[scale, minimum][..] } else { &[scale] };
    let mut halves = Vec::new();
    cast_values(head, DType::F16, &mut halves);
    let (head, rest) = out.split_at_mut(halves.len());
    head.copy_from_slice(&halves);

    #[expect(clippy::cast_possible_truncation, reason = "a zero point is 256 at most")]
    let [zero, least] = [zero, least].map(|number| number as i16);
    let number = |code: u8| {
        if is_signed { i16::from(code.cast_signed()) } else { i16::from(code) }
    };
    let byte = |number: i16| number.to_le_bytes()[0];
    match dtype {
        DType::Q8_0 => {
            for (to, code) in rest.iter_mut().zip(codes) {
                *to = byte(number(*code) - zero);
            }
        }
        _ => {
            let less = zero - least;
            let (low, high) = codes.split_at(BLOCK / 2);
            for (to, (low, high)) in rest.iter_mut().zip(low.iter().zip(high)) {
                *to = byte(number(*low) - less) | byte(number(*high) - less) << 4;
            }
        }
    }
}

impl Group {
    /// Returns the reason for which blocks cannot represent these codes, or `None` if they can.
    fn misfit(&self, [least, most]: [f32; 2], dtype: DType) -> Option<&'static str> {
        let Self { scale, half, zero } = *self;
        let is_half = |value: f32, rounded: f32| value.to_bits() == rounded.to_bits();
        let is_whole = zero.fract() == 0.0 && zero.abs() <= 256.0;
        let spans = |from: f32, to: f32| is_whole && least - zero >= from && most - zero <= to;
        if !is_half(scale, half) {
            return Some(SCALES);
        }
        match dtype {
            DType::Q4_0 => (!spans(-8.0, 7.0)).then_some(MIDDLE),
            DType::Q8_0 => (!spans(-127.0, 127.0)).then_some(RANGE),
            _ => self.least([least, most]).is_none().then_some(MINIMUM),
        }
    }

    /// Returns what is subtracted from the codes of a block with a minimum, which is a half float:
    /// the zero point, or the middle of the codes.
    fn least(&self, [least, most]: [f32; 2]) -> Option<f32> {
        let Self { scale, zero, .. } = *self;
        let is_half = |number: f32| {
            let mut rounded = [number * scale];
            round_to(DType::F16, &mut rounded);
            rounded[0].to_bits() == (number * scale).to_bits()
        };
        let fits = |number: &f32| {
            let moved = [least, most].map(|code| code - zero + number);
            moved[0] >= 0.0 && moved[1] <= 15.0 && is_half(*number)
        };
        // A sum of opposites has no sign, where a product with a negative scale has one.
        let is_whole = zero.fract() == 0.0 && zero.abs() <= 256.0 && scale > 0.0;
        [zero, 8.0].into_iter().find(fits).filter(|_| is_whole)
    }
}

/// Returns the smallest and the largest code, or `None` if values are not differences of integers.
fn codes_of(decoding: Decoding, form: &Form) -> Option<[f32; 2]> {
    if decoding.rule != Rule::Difference(1.0) {
        return None;
    }
    match decoding.code {
        #[expect(clippy::cast_precision_loss, reason = "a code has 8 bits at most")]
        Code::Number(DType::U8) => Some([0.0, ((1_u64 << form.bits.min(8)) - 1) as f32]),
        Code::Number(DType::I8) => Some([-128.0, 127.0]),
        _ => None,
    }
}

/// Returns `true` if blocks of a type have at least as many bits as the codes.
fn has_room(form: &Form, dtype: DType) -> bool {
    match dtype {
        DType::Q8_0 => true,
        DType::Q4_0 | DType::Q4_1 => form.bits <= 4,
        _ => false,
    }
}

/// Rows and columns, with the rows of all matrices.
fn matrix(shape: &Shape) -> [u64; 2] {
    let columns = shape.row_len();
    [shape.elements().unwrap_or_default().checked_div(columns).unwrap_or_default(), columns]
}

/// The group of each block of some columns, or why a block has several.
fn groups_of_blocks(
    of: &dyn Grouped,
    base: &dyn CheckpointReader,
    form: &Form,
    columns: Range<u64>,
) -> Result<std::result::Result<Vec<u64>, &'static str>> {
    if let Some(groups) = of.groups_of(base, columns.clone())? {
        let of_block =
            |block: &[u64; BLOCK]| block.iter().all(|group| *group == block[0]).then_some(block[0]);
        let blocks: Option<Vec<u64>> = groups.as_chunks().0.iter().map(of_block).collect();
        return Ok(blocks.ok_or(ORDER));
    }
    if form.count > 1 && !form.group.is_multiple_of(COLUMNS) {
        return Ok(Err(GROUPS));
    }
    let blocks = columns.step_by(BLOCK).map(|column| column / form.group.max(1));
    Ok(Ok(blocks.collect()))
}

#[cfg(test)]
mod tests {
    use apr_core::CodesInBlocks;
    use apr_tensor::block::dequantize;

    use super::super::testing::{Part, first, folder, u16s, u32s};
    use super::*;

    const GPTQ: &str = r#"{"quantization_config":{"quant_method":"gptq","bits":4,"group_size":32,
        "checkpoint_format":"gptq_v2"}}"#;

    /// 8 rows of 64 inputs, in two groups: every row has the codes 0 to 15 again and again, and the
    /// groups have these zero points and half floats as scales.
    struct Layer {
        codes: Vec<u8>,
        zeros: Vec<u8>,
        scales: Vec<u8>,
        groups: Vec<u8>,
    }

    impl Layer {
        fn new(zeros: [u32; 2], scales: [u16; 2]) -> Self {
            let codes = [[0x7654_3210_u32; 8], [0xfedc_ba98; 8]].concat().repeat(4);
            let word = |zero: u32| (0..8).fold(0, |word, at| word | zero << (4 * at));
            let in_turn: Vec<u32> = (0..64).map(|input| input / 32).collect();
            Self {
                codes: u32s(&codes),
                zeros: u32s(&zeros.map(word)),
                scales: u16s(&scales.map(|scale| [scale; 8]).concat()),
                groups: u32s(&in_turn),
            }
        }

        fn parts(&self) -> [Part<'_>; 4] {
            [
                ("up.qweight", "I32", &[8, 8], &self.codes),
                ("up.qzeros", "I32", &[2, 1], &self.zeros),
                ("up.scales", "F16", &[2, 8], &self.scales),
                ("up.g_idx", "I32", &[64], &self.groups),
            ]
        }

        fn fit(&self, dtype: DType) -> BlockFit {
            let model = folder(&self.parts(), GPTQ);
            let coding = model.stored(0).coding().expect("a weight in codes");
            let codes: &dyn CodesInBlocks = coding.in_blocks.expect("integers");
            codes.fit(coding.base, dtype).expect("scales")
        }

        /// All blocks, which are the same however many are read at a time.
        fn blocks(&self, dtype: DType) -> Vec<u8> {
            assert_eq!(self.fit(dtype), BlockFit::Exact, "{dtype}");
            let model = folder(&self.parts(), GPTQ);
            let coding = model.stored(0).coding().expect("a weight in codes");
            let codes = coding.in_blocks.expect("integers");
            let len = usize_of(dtype.block_bytes()).expect("small");
            let mut all = vec![0; 16 * len];
            codes.read_blocks(coding.base, dtype, 0, &mut all).expect("blocks");
            for count in [1, 3] {
                let mut pieces = vec![0; all.len()];
                for (number, piece) in pieces.chunks_mut(count * len).enumerate() {
                    let first = (number * count) as u64;
                    codes.read_blocks(coding.base, dtype, first, piece).expect("blocks");
                }
                assert!(pieces == all, "{count} blocks of {dtype} at a time");
            }
            all
        }
    }

    const ONE: u16 = 0x3c00;
    const HALF: u16 = 0x3800;
    const MINUS: u16 = 0xbc00;
    /// A half float of eleven bits, 1.0009765625.
    const LONG: u16 = 0x3c01;

    #[test]
    fn symmetric_codes_are_the_nibbles_of_q4_0() {
        let blocks = Layer::new([8, 8], [LONG, HALF]).blocks(DType::Q4_0);
        // Input 16 has the code 0 again, so that both halves of a byte are equal.
        let nibbles: Vec<u8> = (0..16).map(|code| code << 4 | code).collect();
        let row = [&[0x01, 0x3c][..], &nibbles, &[0x00, 0x38], &nibbles].concat();
        assert_eq!(blocks, row.repeat(8));
    }

    #[test]
    fn zero_points_become_minima_if_these_are_half_floats() {
        let blocks = Layer::new([3, 0], [ONE, LONG]).blocks(DType::Q4_1);
        let nibbles: Vec<u8> = (0..16).map(|code| code << 4 | code).collect();
        let heads = [[0x00, 0x3c, 0x00, 0xc2], [0x01, 0x3c, 0x00, 0x80]];
        let row = [&heads[0][..], &nibbles, &heads[1], &nibbles].concat();
        assert_eq!(blocks, row.repeat(8));
    }

    #[test]
    fn values_of_blocks_equal_the_values_of_the_codes() {
        // Integers times a half float of one bit have no rounding in f16 either.
        let layer = Layer::new([3, 12], [ONE, HALF]);
        let known = first(&layer.parts(), GPTQ).expect("values").values;
        for dtype in [DType::Q4_1, DType::Q8_0] {
            let mut values = Vec::new();
            dequantize(dtype, &layer.blocks(dtype), 64, &mut values);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&values), bits(&known), "{dtype}");
        }
    }

    #[test]
    fn codes_that_do_not_fit_are_rounded_for_a_reason() {
        let fit = |zeros, scales, dtype| Layer::new(zeros, scales).fit(dtype);
        assert_eq!(fit([8, 7], [ONE; 2], DType::Q4_0), BlockFit::Rounded(MIDDLE));
        assert_eq!(fit([8, 7], [ONE, LONG], DType::Q4_1), BlockFit::Rounded(MINIMUM));
        // Zero times a negative scale is negative, and a sum of opposites is not.
        assert_eq!(fit([8, 8], [ONE, MINUS], DType::Q4_0), BlockFit::Exact);
        assert_eq!(fit([8, 8], [ONE, MINUS], DType::Q4_1), BlockFit::Rounded(MINIMUM));
        assert_eq!(fit([8, 7], [ONE; 2], DType::Q8_0), BlockFit::Exact);
        assert_eq!(fit([8, 8], [ONE; 2], DType::Q4_K), BlockFit::Narrower);
    }

    #[test]
    fn groups_in_another_order_fit_if_they_are_whole_blocks() {
        let turned: Vec<u32> = (0..64).map(|input| 1 - input / 32).collect();
        let layer = Layer { groups: u32s(&turned), ..Layer::new([8, 8], [ONE, HALF]) };
        let blocks = layer.blocks(DType::Q4_0);
        assert_eq!((&blocks[..2], &blocks[18..20]), (&[0x00, 0x38][..], &[0x00, 0x3c][..]));
        let spread: Vec<u32> = (0..64).map(|input| input % 2).collect();
        let layer = Layer { groups: u32s(&spread), ..layer };
        assert_eq!(layer.fit(DType::Q4_0), BlockFit::Rounded(ORDER));
    }

    #[test]
    fn scales_must_be_half_floats() {
        const FOUR: &str = r#"{"quantization_config":{"quant_method":"compressed-tensors",
            "config_groups":{"group_0":{"weights":{"num_bits":4}}}}}"#;
        let codes = u32s(&[0x7654_3210; 4]);
        let shape: Vec<u8> = [1_u64, 32].iter().flat_map(|len| len.to_le_bytes()).collect();
        // 1.0078125, which f16 holds, and 2^-30, which it does not.
        for (scale, fit) in [(0x3f81, BlockFit::Exact), (0x3080, BlockFit::Rounded(SCALES))] {
            let scale = u16s(&[scale]);
            let parts: [Part<'_>; 3] = [
                ("up.weight_packed", "I32", &[1, 4], &codes),
                ("up.weight_scale", "BF16", &[1, 1], &scale),
                ("up.weight_shape", "I64", &[2], &shape),
            ];
            let model = folder(&parts, FOUR);
            let coding = model.stored(0).coding().expect("a weight in codes");
            let codes = coding.in_blocks.expect("integers");
            assert_eq!(codes.fit(coding.base, DType::Q4_0).expect("scales"), fit);
        }
    }
}
