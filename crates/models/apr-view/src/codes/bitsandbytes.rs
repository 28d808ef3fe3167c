//! Codes of four bits of bitsandbytes: NF4 and FP4.
//!
//! ```text
//! X.weight                                u8 [n/2, 1]   two codes in a byte, the first one high
//! X.weight.quant_map                      f32 [16]      what the codes stand for
//! X.weight.absmax                         f32 [blocks]  a factor for each block of elements
//! X.weight.quant_state.bitsandbytes__nf4  u8            JSON: shape, dtype, length of a block
//!
//! X.weight.absmax                         u8 [blocks]   where the factors are codes themselves
//! X.weight.nested_quant_map               f32 [256]
//! X.weight.nested_absmax                  f32 [blocks/256]
//! ```
//!
//! Blocks run over the elements of all rows, one after the other; the last may be short. The bytes
//! of the codes can be stored as elements of another dtype (`bnb_4bit_quant_storage`).

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Escaped, Result, Shape, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};
use serde_json::{Map, Value};

use super::find::{Decode, Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Groups, Tile, bytes_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "bitsandbytes", find };

/// Suffixes of the part's name that describes the other parts.
const STATES: [&str; 2] = [".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"];

/// Bytes of JSON that are read.
const MOST_JSON: usize = 1 << 16;

fn find(tensors: &Tensors<'_>, _: &Stated, codes: usize) -> Option<Result<Weight>> {
    let info = tensors.info(codes);
    if ![DType::U8, DType::BF16, DType::F16, DType::F32].contains(&info.dtype) {
        return None;
    }
    let state = tensors.beside(&info.name, &STATES).map(Ok).or_else(|| {
        let is_coded = tensors.beside(&info.name, &[".quant_map"]).is_some();
        is_coded.then(|| Err(missing(&info.name)))
    })?;
    Some(state.and_then(|state| weight(tensors, codes, state)))
}

fn missing(name: &str) -> Error {
    let [state, _] = STATES;
    let message = format!("its part '{name}{state}' is missing, which has its shape and its dtype");
    Error::format(message).for_tensor(name)
}

fn weight(tensors: &Tensors<'_>, codes: usize, state: usize) -> Result<Weight> {
    let info = tensors.info(codes);
    let name = info.name.as_str();
    let stated = State::of(tensors, name, state)?;
    let elements = stated.shape.elements().unwrap_or(u64::MAX);
    let width = info.dtype.block_bytes();
    if Some(elements.div_ceil(2).next_multiple_of(width)) != info.byte_len().ok() {
        let message = format!(
            "'{}' has the shape {}, but the codes are {} {}",
            tensors.info(state).name,
            stated.shape,
            info.dtype,
            info.shape
        );
        return Err(Error::corrupt(message).for_tensor(name));
    }

    let part = |end: &str| tensors.required_of(name, name, end);
    let (map, absmax) = (part(".quant_map")?, part(".absmax")?);
    tensors.check(map, name, &[DType::F32], &[16])?;
    let blocks = elements.div_ceil(stated.block);
    let nested = match stated.nested {
        None => {
            tensors.check(absmax, name, &[DType::F32], &[blocks])?;
            None
        }
        Some((block, offset)) => {
            tensors.check(absmax, name, &[DType::U8], &[blocks])?;
            let (map, absmax) = (part(".nested_quant_map")?, part(".nested_absmax")?);
            tensors.check(map, name, &[DType::F32], &[256])?;
            tensors.check(absmax, name, &[DType::F32], &[blocks.div_ceil(block)])?;
            Some(Nested { map, absmax, block, offset })
        }
    };

    let of_nested = nested.iter().flat_map(|nested| [nested.absmax, nested.map]);
    let scales = if nested.is_some() { ", with scales in 8 bits" } else { "" };
    Ok(Weight {
        description: format!("{}, blocks of {}{scales}", stated.kind, stated.block),
        parts: [codes, absmax, map].into_iter().chain(of_nested).chain([state]).collect(),
        info: TensorInfo {
            name: name.to_owned(),
            dtype: stated.dtype,
            shape: stated.shape.clone(),
        },
        decode: {
            let (block, columns) = (stated.block, stated.shape.row_len());
            let of = FourBits { codes, map, absmax, nested, block, columns, dtype: stated.dtype };
            match columns.is_multiple_of(block) {
                true => Box::new(InRows(of)),
                false => Box::new(of),
            }
        },
    })
}

/// Quantization state, which the JSON beside the codes describes.
struct State {
    /// `NF4` or `FP4`.
    kind: String,
    dtype: DType,
    shape: Shape,
    /// Elements with one factor.
    block: u64,
    /// Number of factors that share one factor of their own, and the offset added to each.
    nested: Option<(u64, f32)>,
}

impl State {
    /// # Errors
    /// E002 for what is none, E003 for codes or a dtype that are not known.
    fn of(tensors: &Tensors<'_>, weight: &str, part: usize) -> Result<Self> {
        let part_name = &tensors.info(part).name;
        let lies =
            |what: &str| Error::corrupt(format!("'{part_name}' has no {what}")).for_tensor(weight);
        let unknown = |what: &str| {
            let message = format!("'{part_name}' has the {what}, which is not known here");
            Error::version(message).for_tensor(weight)
        };
        if tensors.info(part).dtype != DType::U8 {
            return Err(tensors.unfit(part, weight, "u8 with JSON"));
        }
        let json = tensors.small(part, weight, MOST_JSON)?;
        let json: Map<String, Value> =
            serde_json::from_slice(&json).map_err(|_| lies("JSON object"))?;
        let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default();
        let count = |key: &str| json.get(key).and_then(Value::as_u64).filter(|&count| count > 0);

        let kind = text("quant_type");
        if !part_name.ends_with(&format!("__{kind}")) || kind.is_empty() {
            return Err(unknown(&format!("codes '{}'", Escaped::short(kind))));
        }
        let dtype = match text("dtype") {
            "bfloat16" => DType::BF16,
            "float16" => DType::F16,
            "float32" => DType::F32,
            other => return Err(unknown(&format!("dtype '{}'", Escaped::short(other)))),
        };
        let dims = json.get("shape").and_then(Value::as_array).ok_or_else(|| lies("shape"))?;
        let dims: Option<Vec<u64>> = dims.iter().map(Value::as_u64).collect();
        let fits = |dims: &Vec<u64>| dims.len() <= Shape::MAX_DIMS;
        let shape = Shape::from(dims.filter(fits).ok_or_else(|| lies("shape"))?);
        shape.elements().ok_or_else(|| lies("shape that memory can hold"))?;
        let block = count("blocksize").ok_or_else(|| lies("length of a block"))?;
        let nested = json.get("nested_blocksize").filter(|value| !value.is_null()).map(|_| {
            if !["float32", ""].contains(&text("nested_dtype")) {
                return Err(unknown(&format!("dtype '{}'", Escaped::short(text("nested_dtype")))));
            }
            let block =
                count("nested_blocksize").ok_or_else(|| lies("length of a nested block"))?;
            let offset = json.get("nested_offset").and_then(Value::as_f64);
            #[expect(clippy::cast_possible_truncation, reason = "the library adds an f32")]
            let offset = offset.map(|offset| offset as f32).filter(|offset| offset.is_finite());
            Ok((block, offset.ok_or_else(|| lies("offset of its factors"))?))
        });
        let kind = kind.to_ascii_uppercase();
        Ok(Self { kind, dtype, shape, block, nested: nested.transpose()? })
    }
}

/// Factors that are codes of 8 bits.
struct Nested {
    map: usize,
    absmax: usize,
    block: u64,
    offset: f32,
}

struct FourBits {
    codes: usize,
    map: usize,
    absmax: usize,
    nested: Option<Nested>,
    /// Elements with one factor.
    block: u64,
    columns: u64,
    /// The dtype of the weight.
    dtype: DType,
}

/// Decoder of weights with whole blocks in each row.
struct InRows(FourBits);

impl FourBits {
    /// Fills `out` with the codes of elements from `first` on.
    fn codes(&self, base: &dyn CheckpointReader, first: u64, out: &mut [u8]) -> Result<()> {
        let end = first + out.len() as u64;
        let len = usize_of(end.div_ceil(2) - first / 2)?;
        let bytes = bytes_of(base, self.codes, first / 2, len)?;
        let codes = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
        for (out, code) in out.iter_mut().zip(codes.skip(usize_of(first % 2)?)) {
            *out = code;
        }
        Ok(())
    }

    /// Returns the 16 values that the codes represent.
    fn map(&self, base: &dyn CheckpointReader) -> Result<[f32; 16]> {
        let map = scales_of(base, self.map, DType::F32, 0..16)?;
        map.try_into().map_err(|_| Error::format("its codes must represent 16 numbers"))
    }

    /// The factors of a range of blocks.
    fn factors(&self, base: &dyn CheckpointReader, blocks: Range<u64>) -> Result<Vec<f32>> {
        let Some(nested) = &self.nested else {
            return scales_of(base, self.absmax, DType::F32, blocks);
        };
        let codes =
            bytes_of(base, self.absmax, blocks.start, usize_of(blocks.end - blocks.start)?)?;
        let first = blocks.start / nested.block;
        let outer = first..blocks.end.div_ceil(nested.block);
        let outer = scales_of(base, nested.absmax, DType::F32, outer)?;
        let map = scales_of(base, nested.map, DType::F32, 0..256)?;
        let factor = |(block, code): (u64, &u8)| {
            let outer = outer[usize_of(block / nested.block - first)?];
            let factor = map[usize::from(*code)] * outer + nested.offset;
            let message = || format!("the factor of block {block} is {factor}");
            factor.is_finite().then_some(factor).ok_or_else(|| Error::corrupt(message()))
        };
        blocks.zip(&codes).map(factor).collect()
    }
}

impl Decode for FourBits {
    fn scaling(&self) -> Vec<Scaling> {
        let of_codes = |scales: usize| Scaling { scales, codes: self.codes };
        match &self.nested {
            None => vec![of_codes(self.absmax), of_codes(self.map)],
            Some(nested) => {
                let of_factors = |scales: usize| Scaling { scales, codes: self.absmax };
                vec![of_factors(nested.absmax), of_factors(nested.map), of_codes(self.map)]
            }
        }
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let first = tile.row * self.columns + tile.column;
        let end = first + out.len() as u64;
        let mut codes = vec![0; out.len()];
        self.codes(base, first, &mut codes)?;
        let map = self.map(base)?;
        let block = first / self.block;
        let factors = self.factors(base, block..end.div_ceil(self.block))?;
        for ((element, code), value) in (first..end).zip(codes).zip(out) {
            *value = map[usize::from(code)] * factors[usize_of(element / self.block - block)?];
        }
        Ok(())
    }
}

impl Grouped for InRows {
    fn scaling(&self) -> Vec<Scaling> {
        self.0.scaling()
    }

    fn form(&self) -> Form {
        let Self(of) = self;
        Form { bits: 4, group: of.block, count: of.columns / of.block }
    }

    fn decoding(&self, base: &dyn CheckpointReader) -> Result<Decoding> {
        let code = Code::Table(self.0.map(base)?);
        Ok(Decoding { code, rule: Rule::Difference(1.0), dtype: self.0.dtype })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        self.0.codes(base, tile.row * self.0.columns + tile.column, out)
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let of = Groups { group: self.0.block, along: self.0.columns / self.0.block };
        let scales = self.0.factors(base, of.of_rows(&rows, &groups))?;
        Ok(Numbers { scales, zeros: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, f32s, first};
    use super::*;

    #[rustfmt::skip]
    const NF4: [f32; 16] = [
        -1.0, -0.696_192_8, -0.525_073_05, -0.394_917_5, -0.284_441_38, -0.184_773_43,
        -0.091_050_04, 0.0, 0.079_580_3, 0.160_930_2, 0.246_112_3, 0.337_915_24, 0.440_709_83,
        0.562_617, 0.722_956_84, 1.0,
    ];
    const STATE: &str = "up.weight.quant_state.bitsandbytes__nf4";

    fn state(shape: &str, block: u64, more: &str) -> Vec<u8> {
        let text = format!(
            r#"{{"quant_type":"nf4","blocksize":{block},"dtype":"float32","shape":{shape}{more}}}"#
        );
        text.into_bytes()
    }

    #[test]
    fn codes_that_all_represent_zero_are_refused() {
        let (map, absmax, json) = (f32s(&[0.0; 16]), f32s(&[2.0]), state("[2, 2]", 64, ""));
        let parts: [Part<'_>; 4] = [
            ("up.weight", "U8", &[2, 1], &[0xf0, 0xc7]),
            ("up.weight.absmax", "F32", &[1], &absmax),
            ("up.weight.quant_map", "F32", &[16], &map),
            (STATE, "U8", &[json.len() as u64], &json),
        ];
        let found = error(&parts, "");
        assert!(found.contains("E002") && found.contains("up.weight.quant_map"), "{found}");
    }

    #[test]
    fn codes_are_read_from_the_high_half_and_blocks_cross_rows() {
        let (map, absmax) = (f32s(&NF4), f32s(&[2.0]));
        let json = state("[2, 2]", 64, "");
        for (dtype, shape) in [("U8", [2, 1]), ("BF16", [1, 1])] {
            let parts: [Part<'_>; 4] = [
                ("up.weight", dtype, &shape, &[0xf0, 0xc7]),
                ("up.weight.absmax", "F32", &[1], &absmax),
                ("up.weight.quant_map", "F32", &[16], &map),
                (STATE, "U8", &[json.len() as u64], &json),
            ];
            let read = first(&parts, "").expect("values");
            assert_eq!((&*read.name, read.dtype), ("up.weight", DType::F32));
            assert_eq!((read.shape, read.values), (vec![2, 2], vec![2.0, -2.0, 0.881_419_66, 0.0]));
        }

        // Five elements in blocks of two: three factors, the last of one element.
        let json = state("[1, 5]", 2, "");
        let absmax = f32s(&[1.0, 2.0, 4.0]);
        let parts: [Part<'_>; 4] = [
            ("up.weight", "U8", &[3, 1], &[0xf0, 0xf0, 0xf0]),
            ("up.weight.absmax", "F32", &[3], &absmax),
            ("up.weight.quant_map", "F32", &[16], &map),
            (STATE, "U8", &[json.len() as u64], &json),
        ];
        assert_eq!(first(&parts, "").expect("values").values, [1.0, -1.0, 2.0, -2.0, 4.0]);
    }

    #[test]
    fn factors_that_are_codes_are_decoded_first() {
        let (map, outer) = (f32s(&NF4), f32s(&[2.0, 3.0]));
        let bytes: Vec<f32> = (0..=255_u8).map(f32::from).collect();
        let nested_map = f32s(&bytes);
        let more = r#","nested_blocksize":2,"nested_dtype":"float32","nested_offset":0.5"#;
        let json = state("[3, 1]", 1, more);
        let parts: [Part<'_>; 6] = [
            ("up.weight", "U8", &[2, 1], &[0xff, 0xf0]),
            ("up.weight.absmax", "U8", &[3], &[1, 5, 7]),
            ("up.weight.nested_absmax", "F32", &[2], &outer),
            ("up.weight.nested_quant_map", "F32", &[256], &nested_map),
            ("up.weight.quant_map", "F32", &[16], &map),
            (STATE, "U8", &[json.len() as u64], &json),
        ];
        assert_eq!(first(&parts, "").expect("values").values, [2.5, 10.5, 21.5]);
        // Without its outer factors, every factor would be the offset.
        let outer = f32s(&[0.0, 0.0]);
        let mut lost = parts;
        lost[2].3 = &outer;
        let found = error(&lost, "");
        assert!(found.contains("E002") && found.contains("'up.weight.nested_absmax'"), "{found}");
        let outer = f32s(&[2.0, f32::NAN]);
        let mut broken = parts;
        broken[2].3 = &outer;
        let found = error(&broken, "");
        assert!(found.contains("E002") && found.contains("'up.weight.nested_absmax'"), "{found}");
    }

    #[test]
    fn a_state_that_does_not_match_its_codes_is_rejected() {
        let (map, absmax) = (f32s(&NF4), f32s(&[2.0]));
        let known = |json: &[u8], code: &str, words: &str| {
            let parts: [Part<'_>; 4] = [
                ("up.weight", "U8", &[2, 1], &[0xf0, 0xc7]),
                ("up.weight.absmax", "F32", &[1], &absmax),
                ("up.weight.quant_map", "F32", &[16], &map),
                (STATE, "U8", &[json.len() as u64], json),
            ];
            let found = error(&parts, "");
            assert!(found.contains(code) && found.contains(words), "{found}");
        };
        known(b"{", "E002", "no JSON object");
        known(b"{\"quant_type\":\"fp4\"}", "E003", "'fp4'");
        known(&state("[2, 3]", 64, ""), "E002", "has the shape [2, 3]");
        known(&state("[4294967296, 4294967296]", 64, ""), "E002", "no shape");
        known(&state("[2, -2]", 64, ""), "E002", "no shape");
        known(&state("[2, 2]", 0, ""), "E002", "no length of a block");
        known(&state("[2, 2]", 1, ""), "E001", "'up.weight.absmax' is f32 [1]");
        known(&state("[2, 2]", 64, r#","nested_blocksize":256"#), "E002", "no offset");

        let parts: [Part<'_>; 2] = [
            ("up.weight", "U8", &[2, 1], &[0xf0, 0xc7]),
            ("up.weight.quant_map", "F32", &[16], &map),
        ];
        assert!(error(&parts, "").contains("quant_state.bitsandbytes__nf4' is missing"));
    }
}
