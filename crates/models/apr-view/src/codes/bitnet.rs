//! Ternary weights of BitNet b1.58: four codes of two bits in a byte.
//!
//! ```text
//! X.weight        u8 [out/4, in]   bits 2j and 2j+1 of row r: row r + j*out/4, the weight plus 1
//! X.weight_scale  bf16 [1]
//! ```
//!
//! Layers of the class `bitlinear`, and where no class is stated, divide by the scale;
//! `autobitlinear` multiplies. The tensors are the same in both: the configuration must say.
//!
//! In the mode `online`, weights are floats, of which the layer makes ternary ones whenever it
//! runs: `round(w / m)`, at most 1 and at least -1, times `m`, the mean of all magnitudes.

use std::ops::Range;
use std::sync::OnceLock;

use apr_core::{CheckpointReader, DType, Error, Escaped, Result, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Decode, Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Folded, Tile, floats_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "bitnet", find };
pub(super) const ONLINE: Kind = Kind { id: "bitnet-online", find: find_online };

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
                "it may be a BitNet weight, and the configuration does not state if '{}' \
                 multiplies or divides",
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

fn find_online(tensors: &Tensors<'_>, stated: &Stated, weight: usize) -> Option<Result<Weight>> {
    let is_online = stated.method().as_deref() == Some("bitnet")
        && stated.text("quantization_mode") == Some("online");
    let info = tensors.info(weight);
    let is_float = matches!(info.dtype, DType::F32 | DType::F16 | DType::BF16);
    let stem = tensors.stem(weight, ".weight").filter(|_| is_online && is_float)?;
    if info.shape.dims().len() != 2 || is_embedding(stem) || !is_converted(stated, stem) {
        return None;
    }
    if stated.text("linear_class") != Some("autobitlinear") {
        let message = "the configuration states that ternary weights are made of it while the \
                       model runs, but not by layers of the class autobitlinear, which do so";
        return Some(Err(Error::version(message).for_tensor(&info.name)));
    }
    Some(Ok(Weight {
        description: format!("ternary, made of {}", info.dtype),
        info: info.clone(),
        parts: [weight].into_iter().chain(tensors.of_activations(stem)).collect(),
        decode: Box::new(Online { weight, mean: OnceLock::new() }),
    }))
}

/// Returns `true` for a layer that looks vectors up, which no method makes ternary.
fn is_embedding(stem: &str) -> bool {
    let last = stem.rsplit('.').next().unwrap_or(stem);
    last.contains("embed") || ["wte", "wpe", "shared"].contains(&last)
}

/// Returns `true` if a layer is not one of those that the configuration leaves as they are.
///
/// Without a list, transformers leaves the output layer.
fn is_converted(stated: &Stated, stem: &str) -> bool {
    let listed = stated.get("modules_to_not_convert").and_then(|listed| listed.as_array());
    let Some(listed) = listed else { return stem.rsplit('.').next() != Some("lm_head") };
    // The names in `.apr` files are shorter.
    let is_named =
        |name: &str| stem.starts_with(name) || stem.ends_with(name) || name.ends_with(stem);
    !listed.iter().filter_map(|name| name.as_str()).any(is_named)
}

/// Elements that a mean is computed of at a time.
const AT_ONCE: u64 = 1 << 18;

/// A weight in floats, of which the layer makes a ternary one.
struct Online {
    weight: usize,
    /// The mean of all magnitudes, once they have been read.
    mean: OnceLock<Result<f32>>,
}

impl Online {
    fn mean(&self, base: &dyn CheckpointReader) -> Result<f32> {
        let compute = || {
            let count = base.tensors()[self.weight].shape.elements().unwrap_or_default();
            let (mut at, mut sum) = (0, 0.0_f64);
            while at < count {
                let end = count.min(at + AT_ONCE);
                let values = floats_of(base, self.weight, at..end)?;
                sum += values.iter().map(|value| f64::from(value.abs())).sum::<f64>();
                at = end;
            }
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 elements")]
            let mean = sum / count.max(1) as f64;
            #[expect(clippy::cast_possible_truncation, reason = "the layer computes in f32")]
            let mean = mean as f32;
            if mean.is_finite() {
                return Ok(mean.max(1e-5));
            }
            Err(Error::corrupt("the mean of its magnitudes is infinite or no number"))
        };
        self.mean.get_or_init(compute).clone()
    }
}

impl Decode for Online {
    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let scale = 1.0 / self.mean(base)?;
        let first = tile.row * base.tensors()[self.weight].shape.row_len() + tile.column;
        let values = floats_of(base, self.weight, first..first + out.len() as u64)?;
        for (out, value) in out.iter_mut().zip(values) {
            *out = (value * scale).round_ties_even().clamp(-1.0, 1.0) / scale;
        }
        Ok(())
    }

    fn scaling(&self) -> Vec<Scaling> {
        Vec::new()
    }
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
    use super::super::testing::{Part, error, f32s, first};
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
        has(&error(&parts(&codes, &FOUR), ""), &["E003", "multiplies", "'up.weight_scale'"]);
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

    #[test]
    fn weights_that_are_made_ternary_online_are_read_so() {
        let online = |more: &str| {
            format!(
                r#"{{"quantization_config":{{"quant_method":"bitnet","quantization_mode":"online",
                "linear_class":"autobitlinear"{more}}}}}"#
            )
        };
        // The mean of the magnitudes is 1; torch's WeightQuant gives these values.
        let values = f32s(&[0.25, -0.5, 1.75, -1.5]);
        let read = |name: &str, config: &str| {
            let parts: [Part<'_>; 1] = [(name, "F32", &[2, 2], &values)];
            first(&parts, config).map(|read| read.values).map_err(|error| error.to_string())
        };
        let ternary = vec![0.0, -0.0, 1.0, -1.0];
        assert_eq!(read("up.weight", &online("")), Ok(ternary.clone()));
        let dense = vec![0.25, -0.5, 1.75, -1.5];
        for name in ["lm_head.weight", "model.embed_tokens.weight"] {
            assert_eq!(read(name, &online("")), Ok(dense.clone()), "{name}");
        }
        let other = r#","modules_to_not_convert":["up"]"#;
        assert_eq!(read("up.weight", &online(other)), Ok(dense.clone()));
        assert_eq!(read("lm_head.weight", &online(other)), Ok(ternary));
        assert_eq!(read("up.weight", MULTIPLIES), Ok(dense));
        let divides = online("").replace("autobitlinear", "bitlinear");
        let error = read("up.weight", &divides).expect_err("another class");
        assert!(error.contains("autobitlinear"), "{error}");
    }
}
