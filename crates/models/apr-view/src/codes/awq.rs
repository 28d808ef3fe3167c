//! AWQ: codes of four bits in three layouts, with zero points as they are.
//!
//! ```text
//!              gemm                    gemv              gemv_fast
//! X.qweight    i32 [in, out / 8]       i32 [out, in / 8] i16 [out / 4, in]
//! X.qzeros     i32 [groups, out / 8]   i32 [out, zw]     f16 [8 * zw, out]
//! X.scales     f16 [groups, out]       f16 [out, 8 * zw] f16 [8 * zw, out]
//! ```
//!
//! `zw` are the words of eight zero points that the groups of a row are padded to. A weight is
//! `(code - zero) * scale`, rounded to the scale's dtype; gemv_fast stores `-(zero * scale)` as its
//! zero points, and a weight is `code * scale + zero`.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Result, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::qweight::{Layout, Parts, check_stated, exact, padded, parts, stated_group, the_only};
use super::read::{Tile, halves_in, scales_in, turned, usize_of, words_for, words_in};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "awq", find };

const BITS: u64 = 4;

/// The nibble of a word, lowest first, of each of eight outputs.
const NIBBLES: [u8; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The nibbles of codes in their order.
const IN_ORDER: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

fn find(tensors: &Tensors<'_>, stated: &Stated, codes: usize) -> Option<Result<Weight>> {
    match parts(tensors, stated, codes)? {
        Ok(parts) if parts.layout == Layout::Gptq => None,
        found => Some(found.and_then(|parts| weight(tensors, stated, parts))),
    }
}

fn weight(tensors: &Tensors<'_>, stated: &Stated, parts: Parts<'_>) -> Result<Weight> {
    let Parts { layout, stem, weight: name, codes, zeros, scales, shapes, .. } = parts;
    let unfit = || tensors.unfit(scales, &name, "a scale for each output and whole group");
    let [long, wide] = shapes.codes;
    let rows_and_columns = match layout {
        Layout::Gptq | Layout::Gemm => Some((shapes.scales[1], long)),
        Layout::Gemv => wide.checked_mul(8).map(|columns| (long, columns)),
        Layout::GemvFast => long.checked_mul(4).map(|rows| (rows, wide)),
    };
    let (rows, columns) = rows_and_columns.ok_or_else(unfit)?;
    let group = match layout {
        Layout::Gptq | Layout::Gemm => exact(columns, shapes.scales[0]),
        Layout::Gemv => shapes.gemv_group(stated),
        Layout::GemvFast => {
            let [count, outputs] = shapes.scales;
            let fits = |group: &u64| {
                let groups = exact(columns, *group);
                groups.is_some_and(|groups| padded(groups, *group).checked_mul(8) == Some(count))
            };
            let stated = stated_group(stated).filter(fits);
            let group = stated.or_else(|| the_only([32, 64, 128].into_iter().filter(fits)));
            let goes = outputs == rows && shapes.zeros == shapes.scales;
            group.filter(|_| goes && columns.is_multiple_of(64))
        }
    };
    let group = group.ok_or_else(unfit)?;
    let count = columns.div_ceil(group);
    check_stated(tensors, stated, &name, (codes, BITS), (scales, columns, count))?;

    let dtype = tensors.info(scales).dtype;
    let of_layout = match layout {
        Layout::Gptq | Layout::Gemm => "AWQ",
        Layout::Gemv => "AWQ gemv",
        Layout::GemvFast => "AWQ gemv_fast",
    };
    Ok(Weight {
        description: format!("{of_layout}, {BITS} bits, groups of {group}"),
        info: TensorInfo { name, dtype, shape: vec![rows, columns].into() },
        parts: [codes, zeros, scales].into_iter().chain(tensors.of_activations(stem)).collect(),
        decode: Box::new(Awq { layout, codes, zeros, scales, group, count }),
    })
}

struct Awq {
    layout: Layout,
    codes: usize,
    zeros: usize,
    scales: usize,
    /// Inputs of a group.
    group: u64,
    /// Groups of an output.
    count: u64,
}

impl Awq {
    /// Returns the scales, or the zero points of a layout that stores them like scales, output by
    /// output.
    fn scales(
        &self,
        base: &dyn CheckpointReader,
        tensor: usize,
        outputs: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Vec<f32>> {
        if self.layout == Layout::Gemv {
            return scales_in(base, tensor, outputs, groups);
        }
        let rows = usize_of(outputs.end - outputs.start)?;
        Ok(turned(&scales_in(base, tensor, groups, outputs)?, rows))
    }

    fn zeros(
        &self,
        base: &dyn CheckpointReader,
        outputs: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Vec<f32>> {
        let zeros = match self.layout {
            Layout::GemvFast => return self.scales(base, self.zeros, outputs, groups),
            Layout::Gemv => unpacked(base, self.zeros, outputs, groups, IN_ORDER)?,
            Layout::Gptq | Layout::Gemm => {
                let rows = usize_of(outputs.end - outputs.start)?;
                turned(&unpacked(base, self.zeros, groups, outputs, NIBBLES)?, rows)
            }
        };
        Ok(zeros.into_iter().map(f32::from).collect())
    }
}

impl Grouped for Awq {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scales, codes: self.codes }]
    }

    fn form(&self) -> Form {
        Form { bits: BITS, group: self.group, count: self.count }
    }

    fn decoding(&self, base: &dyn CheckpointReader) -> Result<Decoding> {
        let is_sum = self.layout == Layout::GemvFast;
        Ok(Decoding {
            code: Code::Number(DType::U8),
            rule: if is_sum { Rule::Sum } else { Rule::Difference(1.0) },
            dtype: base.tensors()[self.scales].dtype,
        })
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        outputs: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        Ok(Numbers {
            scales: self.scales(base, self.scales, outputs.clone(), groups.clone())?,
            zeros: self.zeros(base, outputs, groups)?,
        })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let outputs = tile.row..tile.row + tile.rows as u64;
        let inputs = tile.column..tile.column + tile.columns as u64;
        match self.layout {
            Layout::GemvFast => {
                let [first, top] = [inputs.start / 64 * 64, outputs.start / 4];
                let blocks = first..inputs.end.next_multiple_of(64);
                let len = blocks.end - first;
                let packed = halves_in(base, self.codes, top..outputs.end.div_ceil(4), blocks)?;
                let places = outputs.flat_map(|output| {
                    inputs.clone().map(move |input| (output / 4 - top, place(output, input)))
                });
                for (code, (row, (column, nibble))) in out.iter_mut().zip(places) {
                    let half = packed[usize_of(row * len + column - first)?];
                    *code = (half >> (4 * nibble) & 15).to_le_bytes()[0];
                }
            }
            Layout::Gemv => {
                let codes = unpacked(base, self.codes, outputs, inputs, IN_ORDER)?;
                out.copy_from_slice(&codes);
            }
            Layout::Gptq | Layout::Gemm => {
                let codes = unpacked(base, self.codes, inputs, outputs, NIBBLES)?;
                out.copy_from_slice(&turned(&codes, tile.rows));
            }
        }
        Ok(())
    }
}

/// The column of the word of 16 bits, and the nibble of it, that gemv_fast has a code in.
fn place(output: u64, input: u64) -> (u64, u64) {
    let [high, pair, low] = [input % 32 / 8, input % 8 / 2, input % 2];
    // Number n of each eight pairs of inputs comes before number n + 1 of any.
    let in_order = 8 * pair + 2 * high + low;
    let within = usize::try_from(in_order % 8).unwrap_or_default();
    let code = input % 64 / 32 * 32 + in_order / 8 * 8 + u64::from(NIBBLES[within]);
    (input / 64 * 64 + output % 4 * 16 + code / 4, code % 4)
}

/// Returns the codes of a piece of a matrix, row by row; `nibbles` are the places of eight codes in
/// their word.
fn unpacked(
    base: &dyn CheckpointReader,
    tensor: usize,
    rows: Range<u64>,
    columns: Range<u64>,
    nibbles: [u8; 8],
) -> Result<Vec<u8>> {
    let words = words_for(columns.clone(), BITS);
    let width = usize_of(words.end - words.start)?.max(1);
    let skipped = usize_of(columns.start % 8)?;
    let len = usize_of(columns.end - columns.start)?;
    let packed = words_in(base, tensor, rows, words)?;
    let mut codes = Vec::with_capacity(packed.len() / width * len);
    let mut row = vec![0; width * 8];
    for packed in packed.chunks_exact(width) {
        for (codes, word) in row.as_chunks_mut::<8>().0.iter_mut().zip(packed) {
            *codes = nibbles.map(|nibble| (word >> (4 * nibble) & 15).to_le_bytes()[0]);
        }
        codes.extend_from_slice(&row[skipped..skipped + len]);
    }
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, first, u16s, u32s};
    use apr_core::DType;

    const AWQ: &str = r#"{"quantization_config":{"quant_method":"awq","bits":4,"group_size":2}}"#;
    const GEMV: &str = r#"{"quantization_config":{"quant_method":"awq","version":"gemv"}}"#;

    #[test]
    fn outputs_of_a_word_have_an_order_of_their_own() {
        let codes = u32s(&[0x7654_3210, 0x7777_7777]);
        let zeros = u32s(&[0x0000_0010]);
        let scales = u16s(&[0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x4000]);
        let parts = [
            ("up.qweight", "I32", &[2, 1][..], &codes[..]),
            ("up.qzeros", "I32", &[1, 1], &zeros),
            ("up.scales", "F16", &[1, 8], &scales),
        ];
        let read = first(&parts, AWQ).expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::F16));
        assert_eq!(read.shape, [8, 2]);
        // The zero point 1 is that of output 2.
        let known = [[0_u8, 7], [4, 7], [0, 6], [5, 7], [2, 7], [6, 7], [3, 7], [14, 14]];
        assert_eq!(read.values, known.concat().into_iter().map(f32::from).collect::<Vec<_>>());
        assert_eq!(first(&parts, "").expect("the shapes say it"), read);

        let scales = u16s(&[0x3c00, 0x3c00, 0x3c00, 0x7e00, 0x3c00, 0x3c00, 0x3c00, 0x4000]);
        let mut parts = parts;
        parts[2].3 = &scales;
        let error = error(&parts, AWQ);
        assert!(error.contains("E002") && error.contains("number 3 of the scales"), "{error}");
    }

    #[test]
    fn gemv_pads_its_groups() {
        // Two groups of 128 inputs, with the zero points 1 and 2 and the scales 1 and 2.
        let codes = u32s(&[0x7654_3210; 64]);
        let zeros = u32s(&[0x21, 0x43]);
        let scales = u16s(&[0x3c00, 0x4000, 0, 0, 0, 0, 0, 0].repeat(2));
        let parts = [
            ("up.qweight", "I32", &[2, 32][..], &codes[..]),
            ("up.qzeros", "I32", &[2, 1], &zeros),
            ("up.scales", "F16", &[2, 8], &scales),
        ];
        let read = first(&parts, GEMV).expect("values");
        assert_eq!(read.shape, [2, 256]);
        let group = |zero: f32, scale: f32| {
            let eight: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
            eight.map(|code| (code - zero) * scale).repeat(16)
        };
        let known = [group(1.0, 1.0), group(2.0, 2.0), group(3.0, 1.0), group(4.0, 2.0)].concat();
        assert_eq!(read.values, known);
    }

    #[test]
    fn gemv_fast_has_four_outputs_in_a_row_of_half_words() {
        // A nibble at a time is set to 1: the first of each word, then the last.
        let mut halves = [0_u16; 64];
        halves[0] = 0x0001;
        halves[17] = 0x8000;
        halves[63] = 0x2000;
        let codes = u16s(&halves);
        let scales = u16s(&[0x4000; 32]);
        let zeros = u16s(&[0xbc00; 32]);
        let parts = [
            ("up.qweight", "I16", &[1, 64][..], &codes[..]),
            ("up.qzeros", "F16", &[8, 4], &zeros),
            ("up.scales", "F16", &[8, 4], &scales),
        ];
        let config = r#"{"quantization_config":{"quant_method":"awq","version":"gemv_fast",
                "group_size":128}}"#;
        let wrong = error(&parts, config);
        assert!(wrong.contains("E001") && wrong.contains("'up.scales'"), "{wrong}");
        let scales = u16s(&[0x4000; 64]);
        let zeros = u16s(&[0xbc00; 64]);
        let mut parts = parts;
        (parts[1].2, parts[1].3) = (&[16, 4], &zeros);
        (parts[2].2, parts[2].3) = (&[16, 4], &scales);
        let read = first(&parts, &config.replace("128", "64")).expect("values");
        assert_eq!(read.shape, [4, 64]);
        let known = |output: usize, input: usize| match (output, input) {
            (0, 0) => 1.0,
            (1, 25) => 15.0,
            (3, 63) => 3.0,
            _ => -1.0,
        };
        let all = (0..4).flat_map(|output| (0..64).map(move |input| (output, input)));
        for ((output, input), value) in all.zip(&read.values) {
            let is_known = value.to_bits() == f32::to_bits(known(output, input));
            assert!(is_known, "[{output}, {input}] is {value}");
        }
    }
}
