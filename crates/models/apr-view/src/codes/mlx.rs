//! MLX: codes in words of 32 bits, a stream along the inputs, also of embeddings and of stacked
//! experts.
//!
//! ```text
//! X.weight     u32 [.., out, words]    codes
//! X.scales         [.., out, groups]   the model's dtype, or u8 for floats
//! X.biases         [.., out, groups]   beside integers: code * scale + bias, rounded after each
//! ```
//!
//! | mode | codes | scales | group | product |
//! |---|---|---|---|---|
//! | affine | integers of 2, 3, 4, 5, 6 or 8 bits | the model's dtype | 32, 64, 128 | that dtype |
//! | mxfp4 | floats of 4 bits | exponents | 32 | `bf16`, exact |
//! | nvfp4 | floats of 4 bits | E4M3 | 16 | `bf16`, exact |
//! | mxfp8 | E4M3 | exponents | 32 | `bf16`, exact |
//!
//! Shapes tell bits times group. That is enough for the floats; for integers the configuration says
//! which two numbers it is the product of, for a module or for all.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};
use serde_json::Value;

use super::find::{Kind, Tensors, Weight};
use super::fp4;
use super::grouped::{Form, Grouped, Numbers};
use super::qweight::{exact, the_only};
use super::read::{Groups, Tile, codes_from, scales_in, usize_of, words_for, words_in};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: super::MLX_CODES, find };

/// Bits of integers to try; columns per scale to try if the configuration does not state them.
const BITS: [u64; 6] = [2, 3, 4, 5, 6, 8];
const GROUPS: [u64; 3] = [32, 64, 128];

/// Modes of floats: name, dtype of an element and of a scale, columns of a group.
const MODES: [(&str, DType, DType, u64); 3] = [
    ("mxfp4", DType::F4_E2M1, DType::F8_E8M0, 32),
    ("nvfp4", DType::F4_E2M1, DType::F8_E4M3, 16),
    ("mxfp8", DType::F8_E4M3, DType::F8_E8M0, 32),
];

fn find(tensors: &Tensors<'_>, stated: &Stated, codes: usize) -> Option<Result<Weight>> {
    if tensors.info(codes).dtype != DType::U32 {
        return None;
    }
    let stem = tensors.stem(codes, ".weight")?;
    let scales = tensors.beside(stem, &[".scales"])?;
    // What transformers writes of MLX has other names, and was not there to compare with.
    let is_other = tensors.beside(stem, &[".qbiases"]).is_some();
    (!is_other).then(|| weight(tensors, stated, stem, (codes, scales)))
}

fn weight(
    tensors: &Tensors<'_>,
    stated: &Stated,
    stem: &str,
    (codes, scales): (usize, usize),
) -> Result<Weight> {
    let name = format!("{stem}.weight");
    let (info, scales_info) = (tensors.info(codes), tensors.info(scales));
    let biases = tensors.beside(stem, &[".biases"]);
    let (&words, outer) = info
        .shape
        .dims()
        .split_last()
        .filter(|(words, outer)| **words > 0 && !outer.is_empty())
        .ok_or_else(|| tensors.unfit(codes, &name, "words for each row"))?;
    let along = scales_info.shape.row_len();
    let bits_of_row = words.checked_mul(32);
    let Some(bits_of_group) = bits_of_row.and_then(|bits| exact(bits, along)) else {
        let needed = format!("a scale for each whole group of {}", info.shape);
        return Err(tensors.unfit(scales, &name, &needed));
    };
    let dtypes = [DType::BF16, DType::F16, DType::F32, DType::U8];
    tensors.check(scales, &name, &dtypes, &[outer, &[along]].concat())?;

    let of = |columns: u64, dtype| TensorInfo {
        name: name.clone(),
        dtype,
        shape: [outer, &[columns]].concat().into(),
    };
    let unfit = |bits: &str| {
        let needed = format!("a scale for each group of {bits} of {}", info.shape);
        tensors.unfit(scales, &name, &needed)
    };
    let parts = [codes, scales].into_iter().chain(biases);
    let parts = parts.chain(tensors.of_activations(stem)).collect();
    if scales_info.dtype == DType::U8 {
        let (mode, element, scale, group) = mode(tensors, stem, bits_of_group)
            .ok_or_else(|| unfit("16 or 32 floats of 4 or 8 bits"))??;
        if let Some((bits, of)) = stated_numbers(stated, stem)
            && bits.checked_mul(of) != Some(bits_of_group)
        {
            return Err(unfit(&format!(
                "{of} floats of {bits} bits, which the configuration states,"
            )));
        }
        let columns = along.checked_mul(group).ok_or_else(|| unfit("whole columns"))?;
        let groups = Groups { group, along };
        return Ok(Weight {
            info: of(columns, DType::BF16),
            description: format!("MLX {mode}, groups of {group}"),
            parts,
            decode: fp4::of_one_scale((codes, element), (scales, scale), groups),
        });
    }

    let biases = tensors.required(stem, ".biases")?;
    tensors.check(biases, &name, &[scales_info.dtype], scales_info.shape.dims())?;
    let (bits, group) = bits_and_group(stated, stem, bits_of_group)
        .map_err(|error| error.for_tensor(&name))?
        .ok_or_else(|| match stated_numbers(stated, stem) {
            Some((bits, group)) => {
                unfit(&format!("{group} integers of {bits} bits, which the configuration states,"))
            }
            None => unfit("32, 64 or 128 integers of 2 to 8 bits"),
        })?;
    let columns = along.checked_mul(group).ok_or_else(|| unfit("whole columns"))?;
    Ok(Weight {
        info: of(columns, scales_info.dtype),
        description: format!("MLX, {bits} bits, groups of {group}"),
        parts,
        decode: Box::new(Affine { codes, scales, biases, bits, groups: Groups { group, along } }),
    })
}

/// Returns the float mode with this number of bits per group.
fn mode(
    tensors: &Tensors<'_>,
    stem: &str,
    bits_of_group: u64,
) -> Option<Result<(&'static str, DType, DType, u64)>> {
    let bits = |element: DType| element.block_bytes() * 8 / element.block_len();
    let mode = MODES.into_iter().find(|mode| bits(mode.1) * mode.3 == bits_of_group)?;
    Some(match tensors.beside(stem, &[".biases", ".global_scale"]) {
        None => Ok(mode),
        Some(other) => {
            let (mode, other) = (mode.0, &tensors.info(other).name);
            let message = format!("MLX's {mode} with '{other}' can't be decoded");
            Err(Error::version(message).for_tensor(format!("{stem}.weight")))
        }
    })
}

/// Bits and group length that the configuration states for a module, or for all.
fn stated_numbers(stated: &Stated, stem: &str) -> Option<(u64, u64)> {
    let module = stated.module(stem);
    let number = |key: &str| {
        let of_module = module.and_then(|of| of.get(key)).and_then(Value::as_u64);
        of_module.or_else(|| stated.number(key))
    };
    number("bits").zip(number("group_size"))
}

/// Returns the bits and the group length of integers with this number of bits per group, or `None`
/// if there are none, or if the configuration states others.
///
/// # Errors
/// E003 where there are several and the configuration does not say which, and for 1 bit.
fn bits_and_group(stated: &Stated, stem: &str, bits_of_group: u64) -> Result<Option<(u64, u64)>> {
    let fits = |&(bits, group): &(u64, u64)| {
        BITS.contains(&bits) && bits.checked_mul(group) == Some(bits_of_group)
    };
    if let Some(said) = stated_numbers(stated, stem) {
        if said.0 == 1 {
            let message = "the configuration states integers of 1 bit, which can't be decoded here";
            return Err(Error::version(message));
        }
        return Ok(Some(said).filter(fits));
    }

    let all = BITS.into_iter().flat_map(|bits| GROUPS.map(|group| (bits, group)));
    let fitting: Vec<_> = all.filter(fits).collect();
    let of_group = |(_, group): &(u64, u64)| stated.number("group_size") == Some(*group);
    match fitting[..] {
        [] => Ok(None),
        [only] => Ok(Some(only)),
        _ => the_only(fitting.into_iter().filter(of_group)).map(Some).ok_or_else(|| {
            let message = "its codes fit several numbers of bits and group sizes: a \
                           configuration with 'bits' and 'group_size' is required";
            Error::version(message)
        }),
    }
}

struct Affine {
    codes: usize,
    scales: usize,
    biases: usize,
    bits: u64,
    groups: Groups,
}

impl Grouped for Affine {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scales, codes: self.codes }]
    }

    fn form(&self) -> Form {
        Form { bits: self.bits, group: self.groups.group, count: self.groups.along }
    }

    fn decoding(&self, base: &dyn CheckpointReader) -> Result<Decoding> {
        Ok(Decoding {
            code: Code::Number(DType::U8),
            // MLX rounds the product, then the sum: rounding the sum alone gives other values.
            rule: Rule::RoundedSum,
            dtype: base.tensors()[self.scales].dtype,
        })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let rows = tile.row..tile.row + tile.rows as u64;
        let columns = tile.column..tile.column + tile.columns as u64;
        let words = words_for(columns, self.bits);
        let packed = words_in(base, self.codes, rows, words.clone())?;
        let packed = packed.chunks_exact(usize_of(words.end - words.start)?.max(1));
        for (out, packed) in out.chunks_exact_mut(tile.columns).zip(packed) {
            codes_from(packed, words.start, self.bits, tile.column, out);
        }
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let of = |tensor| scales_in(base, tensor, rows.clone(), groups.clone());
        Ok(Numbers { scales: of(self.scales)?, zeros: of(self.biases)? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, first, u16s, u32s};
    use super::*;

    const FOUR: &str = r#"{"quantization":{"bits":4,"group_size":32}}"#;

    /// A row of 32 codes of four bits, from 0 to 7 four times.
    fn row() -> Vec<u8> {
        u32s(&[0x7654_3210; 4])
    }

    fn affine<'a>(codes: &'a [u8], scales: &'a [u8], biases: &'a [u8]) -> [Part<'a>; 3] {
        [
            ("up.weight", "U32", &[1, 4], codes),
            ("up.scales", "BF16", &[1, 1], scales),
            ("up.biases", "BF16", &[1, 1], biases),
        ]
    }

    #[test]
    fn integers_are_scaled_and_moved_by_a_bias() {
        let (codes, scales, biases) = (row(), u16s(&[0x3f00]), u16s(&[0xbf80]));
        let read = first(&affine(&codes, &scales, &biases), FOUR).expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::BF16));
        assert_eq!(read.shape, [1, 32]);
        assert_eq!(read.values, [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5].repeat(4));

        // The same words are 64 integers of two bits.
        let two = FOUR.replace("4,", "2,").replace("32", "64");
        let read = first(&affine(&codes, &scales, &biases), &two).expect("values");
        assert_eq!(read.values[..8], [-1.0, -1.0, -0.5, -1.0, 0.0, -1.0, 0.5, -1.0]);
        assert_eq!(read.shape, [1, 64]);
        let error = error(&affine(&codes, &scales, &biases), "");
        assert!(error.contains("E003") && error.contains("'group_size'"), "{error}");
    }

    #[test]
    fn the_product_is_rounded_and_then_the_sum() {
        let codes = u32s(&[0xcccc_cccc; 4]);
        let (scales, biases) = (u16s(&[0x3f81]), u16s(&[0x3d80]));
        let read = first(&affine(&codes, &scales, &biases), FOUR).expect("values");
        // 12 times 1.0078125 is 12.125 in bf16; rounding the sum alone gives 12.125.
        assert_eq!(read.values, [12.1875; 32]);
    }

    #[test]
    fn a_module_may_have_bits_of_its_own() {
        // 256 bits in a group: 4 bits in groups of 64, or 8 bits in groups of 32.
        let codes = u32s(&[0x7654_3210; 8]);
        let (scales, biases) = (u16s(&[0x3f80]), u16s(&[0]));
        let mut parts = affine(&codes, &scales, &biases);
        parts[0].2 = &[1, 8];
        let all = r#"{"quantization":{"bits":4,"group_size":64}}"#;
        assert_eq!(first(&parts, all).expect("values").shape, [1, 64]);
        parts[0].0 = "model.up.weight";
        parts[1].0 = "model.up.scales";
        parts[2].0 = "model.up.biases";
        for name in ["model.up", "language_model.model.up"] {
            let config = serde_json::json!({"quantization": {"bits": 4, "group_size": 64,
                name: {"bits": 8, "group_size": 32}}});
            let read = first(&parts, &config.to_string()).expect("values");
            assert_eq!(read.shape, [1, 32]);
            assert_eq!(read.values[..4], [16.0, 50.0, 84.0, 118.0]);
        }
        // Four bits in groups of 64 are not three bits, as a loader of MLX would read them.
        let three = all.replace('4', "3").replace("63", "64");
        let found = error(&parts, &three);
        let said = "64 integers of 3 bits, which the configuration states";
        assert!(found.contains("E001") && found.contains(said), "{found}");
        assert!(
            found.contains("'model.up.scales'") && found.contains("model.up.weight"),
            "{found}"
        );
    }

    #[test]
    fn floats_have_scales_that_are_bytes() {
        let [mx, nv, mx8] = [u32s(&[0xa021; 4]), u32s(&[0xa021; 2]), u32s(&[0xb838; 8])];
        let four: [f32; 8] = [1.0, 2.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0];
        let eight: Vec<f32> = [2.0, -2.0, 0.0, 0.0].repeat(8);
        for (codes, words, scale, columns, known) in [
            (&mx, 4, 128, 32, four.repeat(4)),
            (&nv, 2, 0x40, 16, four.repeat(2)),
            (&mx8, 8, 128, 32, eight),
        ] {
            let (codes, words) = (codes.repeat(2), [2, 1, words]);
            let parts = [
                ("switch.weight", "U32", &words[..], &codes[..]),
                ("switch.scales", "U8", &[2, 1, 1], &[scale, scale]),
            ];
            let read = first(&parts, "").expect("values");
            assert_eq!((read.dtype, &read.shape[..]), (DType::BF16, &[2, 1, columns][..]));
            assert_eq!(read.values, known.repeat(2));
        }
        let parts =
            [("up.weight", "U32", &[1, 4][..], &mx[..]), ("up.scales", "U8", &[1, 1], &[255])];
        let nan = error(&parts, "");
        assert!(nan.contains("E002") && nan.contains("'up.scales'"), "{nan}");
        let global = [&parts[..], &[("up.global_scale", "F32", &[], &[0; 4])]].concat();
        let global = error(&global, "");
        assert!(global.contains("E003") && global.contains("'up.global_scale'"), "{global}");
    }

    #[test]
    fn what_does_not_go_together_is_refused_by_name() {
        let (codes, scales, biases) = (row(), u16s(&[0x3f00]), u16s(&[0xbf80]));
        let good = affine(&codes, &scales, &biases);
        let without = error(&good[..2], FOUR);
        assert!(without.contains("E001") && without.contains("'up.biases'"), "{without}");
        let [nan, three, whole] = [u16s(&[0x7fc0]), u16s(&[0x3f80; 3]), vec![0; 4]];
        for (at, part, code, name) in [
            (1, ("up.scales", "BF16", &[1, 1][..], &nan[..]), "E002", "'up.scales'"),
            (2, ("up.biases", "BF16", &[1, 1], &nan), "E002", "'up.biases'"),
            (2, ("up.biases", "F16", &[1, 1], &biases), "E001", "'up.biases'"),
            (1, ("up.scales", "BF16", &[1, 3], &three), "E001", "'up.scales'"),
            (1, ("up.scales", "BF16", &[1], &scales), "E001", "'up.scales'"),
            (1, ("up.scales", "I32", &[1, 1], &whole), "E001", "'up.scales'"),
        ] {
            let mut parts = good.to_vec();
            parts[at] = part;
            let error = error(&parts, FOUR);
            assert!(error.contains(code) && error.contains(name), "{error}");
        }
    }
}
