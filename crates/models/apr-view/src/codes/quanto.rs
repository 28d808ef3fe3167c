//! Weights of quanto in two and four bits.
//!
//! ```text
//! X.weight._data._data  u8 [.., group]  codes, folded: the first rows in the lowest bits
//! X.weight._scale       [n, 1]          a scale for each row of the matrix [n, group]
//! X.weight._shift       [n, 1]          float: scale * code - shift
//!                                       integer: scale * (code - shift)
//! ```
//!
//! The elements of the matrix are those of the weight in turn. The weight's shape is not stored: it
//! is the one that the model's configuration implies. Eight bits are in `scaled.rs`.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::expected::CODES;
use super::find::{Decode, Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::qweight::the_only;
use super::read::{Folded, Groups, Tile, round_to, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "quanto", find };

fn find(tensors: &Tensors<'_>, stated: &Stated, codes: usize) -> Option<Result<Weight>> {
    let name = tensors.stem(codes, CODES)?;
    Some(weight(tensors, stated, name, codes))
}

fn weight(tensors: &Tensors<'_>, stated: &Stated, name: &str, codes: usize) -> Result<Weight> {
    let info = tensors.info(codes);
    if info.dtype != DType::U8 {
        return Err(tensors.unfit(codes, name, "u8 with codes of 2 or 4 bits"));
    }
    let [packed, group] = tensors.matrix(codes, name)?;
    let [scale, shift] = ["._scale", "._shift"].map(|end| tensors.required_of(name, name, end));
    let (scale, shift) = (scale?, shift?);
    let dtype = tensors.info(scale).dtype;
    let rows = tensors.info(scale).shape.dims().first().copied().unwrap_or_default();
    tensors.check(scale, name, &[DType::F32, DType::F16, DType::BF16], &[rows, 1])?;
    tensors.check(shift, name, &[dtype, DType::I8, DType::U8], &[rows, 1])?;

    let elements = rows.checked_mul(group).filter(|&elements| elements > 0);
    let unfit = || {
        let bits = match stated.text("weights").filter(|said| said.ends_with(['2', '4'])) {
            Some(said) if said.ends_with('2') => "2 bits, which the configuration states,",
            Some(_) => "4 bits, which the configuration states,",
            None => "2 or 4 bits",
        };
        let needed = format!("codes of {bits} of {rows} rows");
        tensors.unfit(codes, name, &needed)
    };
    let elements = elements.ok_or_else(unfit)?;
    let bits = bits(stated, packed, rows).ok_or_else(unfit)?;
    let shape = tensors.expected_shape(name).ok_or_else(|| {
        let message = "its shape is unknown: the model's files do not state it, and the model \
                       family is unknown";
        Error::version(message).for_tensor(name)
    })?;
    if shape.elements() != Some(elements) {
        let message =
            format!("it has {elements} elements, but the configuration implies the shape {shape}");
        return Err(Error::format(message).for_tensor(name));
    }

    let words = packed.checked_mul(group).ok_or_else(unfit)?;
    let fields = 8 / bits;
    let layer = name.strip_suffix(".weight").unwrap_or(name);
    Ok(Weight {
        description: format!("quanto, {bits} bits, groups of {group}"),
        info: TensorInfo { name: name.to_owned(), dtype, shape: shape.clone() },
        parts: [codes, scale, shift].into_iter().chain(tensors.of_activations(layer)).collect(),
        decode: {
            let columns = shape.row_len();
            let codes = Folded { tensor: codes, bits, fields, words, is_highest_first: false };
            let of = Quanto { codes, scale, shift, group, columns };
            match columns.is_multiple_of(group) {
                true => Box::new(InRows(of)),
                false => Box::new(of),
            }
        },
    })
}

/// Returns the bits of a code: those that the configuration states, if they fit the number of
/// packed rows, or the only ones that fit.
fn bits(stated: &Stated, packed: u64, rows: u64) -> Option<u32> {
    let said = stated.text("weights");
    let is_stated = |bits: u32| said.is_none_or(|weights| weights.ends_with(&format!("int{bits}")));
    let fits = |(bits, fields): &(u32, u64)| rows.div_ceil(*fields) == packed && is_stated(*bits);
    the_only([(4, 2), (2, 4)].into_iter().filter(fits)).map(|(bits, _)| bits)
}

struct Quanto {
    codes: Folded,
    scale: usize,
    shift: usize,
    group: u64,
    columns: u64,
}

impl Quanto {
    /// Returns `true` if shifts are zero points, instead of offsets added to products.
    fn has_integer_shifts(&self, base: &dyn CheckpointReader) -> bool {
        matches!(base.tensors()[self.shift].dtype, DType::I8 | DType::U8)
    }
}

impl Decode for Quanto {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scale, codes: self.codes.tensor }]
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let first = tile.row * self.columns + tile.column;
        let end = first + out.len() as u64;
        let codes = self.codes.codes(base, first..end)?;
        let groups = first / self.group..end.div_ceil(self.group);
        let [of_scale, of_shift] = [self.scale, self.shift].map(|part| base.tensors()[part].dtype);
        let scales = scales_of(base, self.scale, of_scale, groups.clone())?;
        let shifts = scales_of(base, self.shift, of_shift, groups.clone())?;
        let is_integer = self.has_integer_shifts(base);
        let place = |element: u64| usize_of(element / self.group - groups.start);
        for ((element, code), value) in (first..).zip(codes).zip(&mut *out) {
            let at = place(element)?;
            let code = f32::from(code);
            *value = if is_integer { code - shifts[at] } else { scales[at] * code };
        }
        round_to(of_scale, out);
        for (element, value) in (first..).zip(out) {
            let at = place(element)?;
            *value = if is_integer { scales[at] * *value } else { *value - shifts[at] };
        }
        Ok(())
    }
}

/// Decoder of weights with whole groups in each row.
struct InRows(Quanto);

impl Grouped for InRows {
    fn scaling(&self) -> Vec<Scaling> {
        self.0.scaling()
    }

    fn form(&self) -> Form {
        let Self(of) = self;
        Form { bits: of.codes.bits.into(), group: of.group, count: of.columns / of.group }
    }

    fn decoding(&self, base: &dyn CheckpointReader) -> Result<Decoding> {
        // A product minus a shift is one plus its opposite.
        let is_integer = self.0.has_integer_shifts(base);
        let rule = if is_integer { Rule::Difference(1.0) } else { Rule::RoundedSum };
        let dtype = base.tensors()[self.0.scale].dtype;
        Ok(Decoding { code: Code::Number(DType::U8), rule, dtype })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let first = tile.row * self.0.columns + tile.column;
        out.copy_from_slice(&self.0.codes.codes(base, first..first + out.len() as u64)?);
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let of = Groups { group: self.0.group, along: self.0.columns / self.0.group };
        let range = of.of_rows(&rows, &groups);
        let of = |part: usize| scales_of(base, part, base.tensors()[part].dtype, range.clone());
        let (scales, mut zeros) = (of(self.0.scale)?, of(self.0.shift)?);
        if !self.0.has_integer_shifts(base) {
            zeros.iter_mut().for_each(|zero| *zero = -*zero);
        }
        Ok(Numbers { scales, zeros })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, f32s, first};
    use super::*;

    const CONFIG: &str = r#"{"model_type":"llama","hidden_size":4,"intermediate_size":4,
        "num_hidden_layers":1,"num_attention_heads":1,"vocab_size":4}"#;
    const CODES: &str = "model.layers.0.mlp.up_proj.weight._data._data";
    const SCALE: &str = "model.layers.0.mlp.up_proj.weight._scale";
    const SHIFT: &str = "model.layers.0.mlp.up_proj.weight._shift";
    const FOUR_BITS: [u8; 8] = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe];

    #[test]
    fn rows_are_folded_with_the_first_in_the_lowest_bits() {
        let (scale, shift) = (f32s(&[1.0, 2.0, 1.0, 1.0]), f32s(&[0.0, 1.0, 0.5, 0.0]));
        let mut parts: [Part<'_>; 3] = [
            (CODES, "U8", &[2, 4], &FOUR_BITS),
            (SCALE, "F32", &[4, 1], &scale),
            (SHIFT, "F32", &[4, 1], &shift),
        ];
        let read = first(&parts, CONFIG).expect("values");
        assert_eq!(read.name, "model.layers.0.mlp.up_proj.weight");
        assert_eq!((read.dtype, read.shape), (DType::F32, vec![4, 4]));
        let known = [
            [0.0, 2.0, 4.0, 6.0],
            [15.0, 19.0, 23.0, 27.0],
            [0.5, 2.5, 4.5, 6.5],
            [9.0, 11.0, 13.0, 15.0],
        ];
        assert_eq!(read.values, known.as_flattened());

        parts[2] = (SHIFT, "I8", &[4, 1], &[0, 8, 1, 0xff]);
        let read = first(&parts, CONFIG).expect("values");
        let known = [
            [0.0, 2.0, 4.0, 6.0],
            [0.0, 4.0, 8.0, 12.0],
            [0.0, 2.0, 4.0, 6.0],
            [10.0, 12.0, 14.0, 16.0],
        ];
        assert_eq!(read.values, known.as_flattened());

        parts[0] = (CODES, "U8", &[1, 4], &[0b1110_0100; 4]);
        parts[2] = (SHIFT, "F32", &[4, 1], &shift);
        let read = first(&parts, CONFIG).expect("values");
        let known = [[0.0; 4], [1.0; 4], [1.5; 4], [3.0; 4]];
        assert_eq!(read.values, known.as_flattened());
    }

    #[test]
    fn the_product_is_rounded_before_the_shift_is_subtracted() {
        // 3 * 1.0078125 is 3.03125 in bf16.
        let (scale, shift) = ([0x81, 0x3f].repeat(4), [0x40, 0x40].repeat(4));
        let parts: [Part<'_>; 3] = [
            (CODES, "U8", &[2, 4], &[0x33; 8]),
            (SCALE, "BF16", &[4, 1], &scale),
            (SHIFT, "BF16", &[4, 1], &shift),
        ];
        let read = first(&parts, CONFIG).expect("values");
        assert_eq!((read.dtype, read.values), (DType::BF16, vec![0.031_25; 16]));
    }

    #[test]
    fn a_shape_is_not_guessed() {
        let (scale, shift) = (f32s(&[1.0; 4]), f32s(&[0.0; 4]));
        let parts: [Part<'_>; 3] = [
            (CODES, "U8", &[2, 4], &FOUR_BITS),
            (SCALE, "F32", &[4, 1], &scale),
            (SHIFT, "F32", &[4, 1], &shift),
        ];
        let has = |found: &str, words: &[&str]| {
            assert!(words.iter().all(|word| found.contains(word)), "{found}");
        };
        has(&error(&parts, ""), &["E003", "its shape is unknown"]);
        let wide = CONFIG.replace(r#""intermediate_size":4"#, r#""intermediate_size":8"#);
        has(&error(&parts, &wide), &["E001", "16 elements", "[8, 4]"]);
        has(&error(&parts[..2], CONFIG), &["E001", "_shift' is missing"]);
        let mut three = parts;
        three[0] = (CODES, "U8", &[3, 4], &[0; 12]);
        has(&error(&three, CONFIG), &["E001", "_data._data' is u8 [3, 4]"]);
        // Half of the codes of four bits are all codes of two.
        let four = CONFIG.replace("{", r#"{"quantization_config":{"weights":"int4"},"#);
        assert_eq!(first(&parts, &four).expect("values").values.len(), 16);
        let mut half = parts;
        half[0] = (CODES, "U8", &[1, 4], &FOUR_BITS[..4]);
        assert_eq!(first(&half, CONFIG).expect("values").values.len(), 16);
        has(&error(&half, &four), &["E001", "_data._data' is u8 [1, 4]", "4 bits, which the"]);
        let scale = f32s(&[1.0, 1.0, f32::NAN, 1.0]);
        let mut broken = parts;
        broken[1].3 = &scale;
        has(&error(&broken, CONFIG), &["E002", "number 2", "_scale' is NaN"]);
    }
}
