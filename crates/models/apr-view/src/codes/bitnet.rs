//! Ternary weights of BitNet b1.58: four codes of two bits in a byte.
//!
//! ```text
//! X.weight        u8 [out/4, in]   bits 2j and 2j+1 of row r: row r + j*out/4, the weight plus 1
//! X.weight_scale  bf16 [1]
//! ```
//!
//! Layers of the class `bitlinear`, and where no class is stated, divide by the scale;
//! `autobitlinear` multiplies. The tensors are the same in both: the configuration must say.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Escaped, Result, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Folded, Tile, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "bitnet", find };

/// Codes of a byte.
const FIELDS: u32 = 4;

fn find(tensors: &Tensors<'_>, stated: &Stated, codes: usize) -> Option<Result<Weight>> {
    let info = tensors.info(codes);
    let stem = tensors.stem(codes, ".weight").filter(|_| info.dtype == DType::U8)?;
    let scale = tensors.beside(stem, &[".weight_scale"])?;
    let found = tensors.info(scale);
    match stated.method().as_deref() {
        Some("bitnet") => Some(weight(tensors, stated, (stem, codes, scale))),
        // As it would be in BitNet; nothing else has one such scale for a matrix of bytes.
        None if found.dtype == DType::BF16 && found.shape.dims() == [1] => {
            let message = format!(
                "it may be a weight of BitNet, with '{}' by which some layers multiply and others \
                 divide: no configuration states which",
                found.name
            );
            Some(Err(Error::version(message).for_tensor(&info.name)))
        }
        _ => None,
    }
}

fn weight(
    tensors: &Tensors<'_>,
    stated: &Stated,
    (stem, codes, scale): (&str, usize, usize),
) -> Result<Weight> {
    let info = tensors.info(codes);
    let name = info.name.clone();
    let [packed, columns] = tensors.matrix(codes, &name)?;
    let found = tensors.info(scale);
    let is_float = [DType::BF16, DType::F16, DType::F32].contains(&found.dtype);
    if !is_float || found.shape.elements() != Some(1) {
        return Err(tensors.unfit(scale, &name, "one float"));
    }
    let divides = match stated.text("linear_class") {
        None | Some("bitlinear") => true,
        Some("autobitlinear") => false,
        Some(other) => {
            let message = format!(
                "the configuration's linear_class '{}' is unknown: it determines whether the scale \
                 multiplies or divides",
                Escaped::short(other)
            );
            return Err(Error::version(message).for_tensor(name));
        }
    };
    let too_large = || tensors.unfit(codes, &name, "a matrix of fewer rows");
    let rows = packed.checked_mul(FIELDS.into()).ok_or_else(too_large)?;
    let words = packed.checked_mul(columns).ok_or_else(too_large)?;
    let codes_of =
        Folded { tensor: codes, bits: 2, fields: FIELDS, words, is_highest_first: false };
    // A product with -1, 0 or 1 is exact.
    let dtype = if divides { DType::F32 } else { found.dtype };
    Ok(Weight {
        description: format!(
            "ternary in 2 bits, {} by a scale",
            if divides { "divided" } else { "multiplied" }
        ),
        info: TensorInfo { name, dtype, shape: [rows, columns].into() },
        parts: [codes, scale].into_iter().chain(tensors.of_activations(stem)).collect(),
        decode: Box::new(Ternary { codes: codes_of, scale, divides, columns, dtype }),
    })
}

struct Ternary {
    codes: Folded,
    scale: usize,
    divides: bool,
    columns: u64,
    /// The dtype of the weight.
    dtype: DType,
}

impl Grouped for Ternary {
    fn scaling(&self) -> Vec<Scaling> {
        if self.divides {
            return Vec::new();
        }
        vec![Scaling { scales: self.scale, codes: self.codes.tensor }]
    }

    fn form(&self) -> Form {
        Form { bits: 2, group: self.columns.max(1), count: 1 }
    }

    fn decoding(&self, _: &dyn CheckpointReader) -> Result<Decoding> {
        let code = Code::Number(DType::U8);
        Ok(Decoding { code, rule: Rule::Difference(1.0), dtype: self.dtype })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let first = tile.row * self.columns + tile.column;
        let codes = self.codes.codes(base, first..first + out.len() as u64)?;
        if let Some((element, _)) = (first..).zip(&codes).find(|(_, code)| **code > 2) {
            let (row, column) = (element / self.columns, element % self.columns);
            let message = format!("the code of row {row}, column {column} is 3, not 0, 1 or 2");
            return Err(Error::corrupt(message));
        }
        out.copy_from_slice(&codes);
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let scale = scales_of(base, self.scale, base.tensors()[self.scale].dtype, 0..1)?;
        let mut scale = scale.first().copied().unwrap_or_default();
        if self.divides {
            // Quotients of 1, 0 and -1 are products with the reciprocal.
            scale = 1.0 / scale;
        }
        if !scale.is_finite() {
            let name = &base.tensors()[self.scale].name;
            let message = format!("'{name}', by which its codes are divided, is 0 or nearly 0");
            return Err(Error::corrupt(message));
        }
        let count = usize_of((rows.end - rows.start) * (groups.end - groups.start))?;
        Ok(Numbers { scales: vec![scale; count], zeros: vec![1.0; count] })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, first};
    use super::*;

    const DIVIDES: &str = r#"{"quantization_config":{"quant_method":"bitnet"}}"#;
    const MULTIPLIES: &str =
        r#"{"quantization_config":{"quant_method":"bitnet","linear_class":"autobitlinear"}}"#;
    /// The number 4.0 in `bf16`.
    const FOUR: [u8; 2] = [0x80, 0x40];

    fn parts<'a>(codes: &'a [u8], scale: &'a [u8]) -> [Part<'a>; 2] {
        [("up.weight", "U8", &[1, 2], codes), ("up.weight_scale", "BF16", &[1], scale)]
    }

    #[test]
    fn a_byte_has_a_weight_of_each_quarter_of_the_rows() {
        let codes = [0b1001_0010, 0b0001_0101];
        let read = first(&parts(&codes, &FOUR), DIVIDES).expect("values");
        assert_eq!((read.shape, read.dtype), (vec![4, 2], DType::F32));
        assert_eq!(read.values, [0.25, 0.0, -0.25, 0.0, 0.0, 0.0, 0.25, -0.25]);
        let read = first(&parts(&codes, &FOUR), MULTIPLIES).expect("values");
        assert_eq!(read.dtype, DType::BF16);
        assert_eq!(read.values, [4.0, 0.0, -4.0, 0.0, 0.0, 0.0, 4.0, -4.0]);
    }

    #[test]
    fn values_missing_in_the_configuration_are_not_guessed() {
        let has = |found: &str, words: &[&str]| {
            assert!(words.iter().all(|word| found.contains(word)), "{found}");
        };
        let codes = [0b1001_0010, 0b0001_0101];
        has(&error(&parts(&codes, &FOUR), ""), &["E003", "multiply", "'up.weight_scale'"]);
        let other = MULTIPLIES.replace("auto", "other");
        has(&error(&parts(&codes, &FOUR), &other), &["E003", "'otherbitlinear'"]);
        has(&error(&parts(&[0xff; 2], &FOUR), DIVIDES), &["E002", "row 0, column 0 is 3"]);
        has(&error(&parts(&codes, &[0, 0]), DIVIDES), &["E002", "'up.weight_scale'", "is 0"]);
        has(&error(&parts(&codes, &[0xc0, 0x7f]), MULTIPLIES), &["E002", "is NaN"]);
        let two: [Part<'_>; 2] = [
            ("up.weight", "U8", &[1, 2], &codes),
            ("up.weight_scale", "BF16", &[2], &[0x80, 0x40, 0x80, 0x40]),
        ];
        has(&error(&two, DIVIDES), &["E001", "'up.weight_scale' is bf16 [2]"]);
    }
}
