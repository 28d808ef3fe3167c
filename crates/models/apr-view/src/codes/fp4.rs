//! Floats of four and six bits with a scale for each group: NVFP4 and the MX formats.
//!
//! | who writes it | codes | scale | second scale | product |
//! |---|---|---|---|---|
//! | compressed-tensors, NVFP4 | `X.weight_packed` | `X.weight_scale` (E4M3, groups of 16) | divided by `X.weight_global_scale` | rounded to `bf16` |
//! | modelopt, NVFP4 | `X.weight` | the same | times `X.weight_scale_2` | `f32` |
//! | compressed-tensors, MXFP4 and MXFP6 | `X.weight_packed` | `X.weight_scale` (exponents, groups of 32) | | `bf16`, exact |
//! | DeepSeek-V4's experts, MXFP4 | `X.weight` (`i8`) | `X.scale` (exponents, groups of 32) | | `bf16`, exact |
//!
//! Elements are packed from the lowest bits up: the first of two is in the low half of a byte.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result, Shape, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule, f4_e2m1};

use super::claims::check_codes;
use super::find::{Decode, Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Groups, Tile, bytes_of, packed_of, scales_of, usize_of};
use super::refused;
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "fp4", find };

/// Dtypes of scales that are powers of two.
const EXPONENTS: [DType; 2] = [DType::F8_E8M0, DType::U8];

/// Columns per scale, for scales that are powers of two and for E4M3 scales.
const MX_GROUP: u64 = 32;
const NV_GROUP: u64 = 16;

fn find(tensors: &Tensors<'_>, stated: &Stated, codes: usize) -> Option<Result<Weight>> {
    let info = tensors.info(codes);
    match info.dtype {
        DType::U8 => {
            if let Some(stem) = tensors.stem(codes, ".weight_packed") {
                return Some(of_compressed_tensors(tensors, stated, stem, codes));
            }
            let stem = tensors.stem(codes, ".weight")?;
            let scale = tensors.beside(stem, &[".weight_scale"])?;
            let is_nvfp4 = tensors.info(scale).dtype == DType::F8_E4M3;
            is_nvfp4.then(|| of_modelopt(tensors, stated, stem, codes))
        }
        DType::I8 => {
            let stem = tensors.stem(codes, ".weight")?;
            let scale = tensors.beside(stem, &[".scale", ".weight_scale_inv"])?;
            let scales = tensors.info(scale);
            let half = |scales: &Shape| scales.row_len().checked_mul(MX_GROUP / 2);
            let is_two_a_byte = half(&scales.shape) == Some(info.shape.row_len());
            (is_two_a_byte && EXPONENTS.contains(&scales.dtype)).then(|| {
                let parts = Parts { stated, stem, codes, scale, second: None };
                parts.weight(tensors, (DType::F4_E2M1, MX_GROUP), &EXPONENTS)
            })
        }
        _ => None,
    }
}

/// Returns a weight of compressed-tensors; the number of codes per scale identifies the element
/// type.
fn of_compressed_tensors(
    tensors: &Tensors<'_>,
    stated: &Stated,
    stem: &str,
    codes: usize,
) -> Result<Weight> {
    let name = format!("{stem}.weight");
    let scale = tensors.required(stem, ".weight_scale")?;
    let scales = tensors.info(scale);
    let global = tensors.beside(stem, &[".weight_global_scale"]);
    if scales.dtype == DType::F8_E4M3 {
        let global = tensors.required(stem, ".weight_global_scale")?;
        let second = Some(Second { tensor: global, divides: true });
        let parts = Parts { stated, stem, codes, scale, second };
        return parts.weight(tensors, (DType::F4_E2M1, NV_GROUP), &[DType::F8_E4M3]);
    }
    if global.is_some() || !EXPONENTS.contains(&scales.dtype) {
        return Err(tensors.unfit(scale, &name, "f8_e4m3 with a global scale, or exponents"));
    }

    let bytes = tensors.info(codes).shape.row_len();
    let bytes_of = |dtype: DType| {
        let groups = scales.shape.row_len();
        groups.checked_mul(MX_GROUP / dtype.block_len() * dtype.block_bytes())
    };
    let fits = |dtype: &DType| bytes_of(*dtype) == Some(bytes);
    let Some(dtype) = [DType::F4_E2M1, DType::F6_E2M3].into_iter().find(fits) else {
        let info = tensors.info(codes);
        let needed = format!("a scale for {MX_GROUP} floats of 4 or 6 bits of {}", info.shape);
        return Err(tensors.unfit(scale, &name, &needed));
    };
    let parts = Parts { stated, stem, codes, scale, second: None };
    parts.weight(tensors, (dtype, MX_GROUP), &EXPONENTS)
}

fn of_modelopt(tensors: &Tensors<'_>, stated: &Stated, stem: &str, codes: usize) -> Result<Weight> {
    let scale = tensors.required(stem, ".weight_scale")?;
    let is_modelopt = stated.method().is_none_or(|method| method.starts_with("modelopt"));
    let for_kernels = tensors.beside(stem, &[".comfy_quant"]);
    let is_comfy = tensors.header_text("_quantization_metadata").is_some();
    if !is_modelopt || is_comfy || for_kernels.is_some() {
        // Others store these parts with the scales in the order of a GPU's matrix product.
        let part = for_kernels.unwrap_or(scale);
        return Err(refused::of_part(tensors, stated, stem, part));
    }
    let second = tensors.required(stem, ".weight_scale_2")?;
    let second = Some(Second { tensor: second, divides: false });
    let parts = Parts { stated, stem, codes, scale, second };
    parts.weight(tensors, (DType::F4_E2M1, NV_GROUP), &[DType::F8_E4M3])
}

/// Returns a decoder to `bf16` for elements of 4 or 8 bits with one scale per group, packed in any
/// tensor.
pub(super) fn of_one_scale(
    (codes, element): (usize, DType),
    (scale, scale_dtype): (usize, DType),
    groups: Groups,
) -> Box<dyn Decode> {
    Box::new(Fp4 {
        codes,
        element,
        scale,
        scale_dtype,
        second: None,
        groups,
        rows: 1,
        columns: groups.group * groups.along,
        dtype: DType::BF16,
    })
}

/// Tensors in which a weight is stored.
struct Parts<'a> {
    stated: &'a Stated,
    stem: &'a str,
    codes: usize,
    scale: usize,
    second: Option<Second>,
}

impl Parts<'_> {
    fn weight(
        self,
        tensors: &Tensors<'_>,
        (element, group): (DType, u64),
        scale_dtypes: &[DType],
    ) -> Result<Weight> {
        let Self { stated, stem, codes, scale, second } = self;
        let name = format!("{stem}.weight");
        let info = tensors.info(codes);
        let unfit = || {
            let needed = format!("rows of whole groups of {group} {element}");
            tensors.unfit(codes, &name, &needed)
        };
        let (&bytes, outer) = info.shape.dims().split_last().ok_or_else(unfit)?;
        let (&rows, experts) = outer.split_last().ok_or_else(unfit)?;
        let columns = Some(bytes / element.block_bytes())
            .filter(|_| bytes.is_multiple_of(element.block_bytes()))
            .and_then(|blocks| blocks.checked_mul(element.block_len()))
            .filter(|columns| columns.is_multiple_of(group))
            .ok_or_else(unfit)?;
        let along = columns / group;
        tensors.check(scale, &name, scale_dtypes, &[outer, &[along]].concat())?;
        if element == DType::F4_E2M1 {
            check_codes(tensors, stated, (&name, codes), (4, "float"))?;
        }
        let sizes = stated.of_groups("group_size");
        if !sizes.is_empty() && !sizes.iter().any(|size| size.as_u64() == Some(group)) {
            let needed = "a scale for each group that the configuration states";
            return Err(tensors.unfit(scale, &name, needed));
        }
        let of_experts = Shape::from(experts.to_vec());
        if let Some(Second { tensor, .. }) = second {
            let found = tensors.info(tensor);
            if found.dtype != DType::F32 || found.shape.elements() != of_experts.elements() {
                let needed = if experts.is_empty() {
                    "one f32".to_owned()
                } else {
                    format!("an f32 for each matrix of {}", info.shape)
                };
                return Err(tensors.unfit(tensor, &name, &needed));
            }
        }

        let parts = [codes, scale].into_iter().chain(second.map(|second| second.tensor));
        let is_exponents = EXPONENTS.contains(&tensors.info(scale).dtype);
        let multiplies = second.is_some_and(|second| !second.divides);
        let dtype = if multiplies { DType::F32 } else { DType::BF16 };
        let of = Fp4 {
            codes,
            element,
            scale,
            scale_dtype: if is_exponents { DType::F8_E8M0 } else { DType::F8_E4M3 },
            second,
            groups: Groups { group, along },
            rows,
            columns,
            dtype,
        };
        Ok(Weight {
            description: match element {
                DType::F6_E2M3 => format!("MXFP6, groups of {group}"),
                _ if is_exponents => format!("MXFP4, groups of {group}"),
                _ => format!("NVFP4, groups of {group}"),
            },
            info: TensorInfo { name, dtype, shape: [outer, &[columns]].concat().into() },
            parts: parts.chain(tensors.of_activations(stem)).collect(),
            decode: match element {
                DType::F6_E2M3 => Box::new(Fp6(of)),
                _ => Box::new(of),
            },
        })
    }
}

/// A scale of a whole matrix.
#[derive(Clone, Copy)]
struct Second {
    tensor: usize,
    divides: bool,
}

struct Fp4 {
    codes: usize,
    element: DType,
    scale: usize,
    scale_dtype: DType,
    second: Option<Second>,
    groups: Groups,
    /// Rows of one matrix.
    rows: u64,
    columns: u64,
    /// The dtype of the values.
    dtype: DType,
}

impl Fp4 {
    /// The scale of each of the matrices that these rows are of.
    fn seconds(&self, base: &dyn CheckpointReader, rows: &Range<u64>) -> Result<Vec<f32>> {
        let Some(second) = self.second else { return Ok(Vec::new()) };
        let last = rows.end.saturating_sub(1) / self.rows;
        let range = rows.start / self.rows..last + 1;
        let seconds = scales_of(base, second.tensor, DType::F32, range)?;
        if second.divides && seconds.contains(&0.0) {
            let name = &base.tensors()[second.tensor].name;
            return Err(Error::corrupt(format!("'{name}', by which scales are divided, is 0")));
        }
        Ok(seconds)
    }
}

impl Grouped for Fp4 {
    fn scaling(&self) -> Vec<Scaling> {
        // One that divides is checked where it does.
        let second = self.second.filter(|second| !second.divides);
        let all = [Some(self.scale), second.map(|second| second.tensor)];
        let scaling = |scales| Scaling { scales, codes: self.codes };
        all.into_iter().flatten().map(scaling).collect()
    }

    fn form(&self) -> Form {
        let bits = self.element.block_bytes() * 8 / self.element.block_len();
        Form { bits, group: self.groups.group, count: self.groups.along }
    }

    fn decoding(&self, _: &dyn CheckpointReader) -> Result<Decoding> {
        let code = match self.element {
            DType::F4_E2M1 => f4_e2m1(),
            other => Code::Number(other),
        };
        Ok(Decoding { code, rule: Rule::Difference(1.0), dtype: self.dtype })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let first = tile.row * self.columns + tile.column;
        if self.element != DType::F4_E2M1 {
            return base.read_tensor(self.codes, first, out);
        }
        let end = first + out.len() as u64;
        let len = usize_of(end.div_ceil(2) - first / 2)?;
        let bytes = bytes_of(base, self.codes, first / 2, len)?;
        let codes = bytes.iter().flat_map(|byte| [byte & 0xf, byte >> 4]);
        for (out, code) in out.iter_mut().zip(codes.skip(usize_of(first % 2)?)) {
            *out = code;
        }
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let width = usize_of(groups.end - groups.start)?;
        let range = self.groups.of_rows(&rows, &groups);
        let mut scales = scales_of(base, self.scale, self.scale_dtype, range)?;
        let seconds = self.seconds(base, &rows)?;
        let first = rows.start / self.rows;
        for (row, scales) in rows.zip(scales.chunks_mut(width.max(1))) {
            let second = seconds.get(usize_of(row / self.rows - first)?).copied();
            let Some((Second { divides, .. }, second)) = self.second.zip(second) else { continue };
            scales.iter_mut().for_each(|scale| match divides {
                true => *scale /= second,
                false => *scale *= second,
            });
        }
        Ok(Numbers { scales, zeros: Vec::new() })
    }
}

/// Decoder of six-bit floats, whose table is longer than the table of [`Code`].
struct Fp6(Fp4);

impl Decode for Fp6 {
    fn scaling(&self) -> Vec<Scaling> {
        Grouped::scaling(&self.0)
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let Self(of) = self;
        let first = tile.row * of.columns + tile.column;
        let codes = packed_of(base, of.codes, of.element, first..first + out.len() as u64)?;
        let scales = scales_of(base, of.scale, of.scale_dtype, of.groups.range(tile))?;
        for (at, run) in of.groups.runs(tile) {
            for (value, code) in out[run.clone()].iter_mut().zip(&codes[run]) {
                *value = code * scales[at];
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, f32s, first, folder};
    use super::*;

    /// Sixteen codes, of which the first is 1 (a half).
    const CODES: [u8; 8] = [0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x0f];
    /// Expected values, times two.
    #[rustfmt::skip]
    const TWICE: [f32; 16] = [
        1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0, 0.0,
    ];

    fn times(values: &[f32], factor: f32) -> Vec<u32> {
        values.iter().map(|value| (value * factor).to_bits()).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        times(values, 1.0)
    }

    #[test]
    fn compressed_tensors_divides_by_the_second_scale_and_modelopt_multiplies() {
        let scale: Part<'_> = ("up.weight_scale", "F8_E4M3", &[1, 1], &[0x40]);
        let [four, input] = [f32s(&[4.0]), f32s(&[3.0])];
        let read = first(
            &[
                ("up.weight_packed", "U8", &[1, 8], &CODES),
                scale,
                ("up.weight_global_scale", "F32", &[1], &four),
                ("up.input_global_scale", "F32", &[1], &input),
            ],
            "",
        );
        let read = read.expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::BF16));
        assert_eq!(read.shape, [1, 16]);
        assert_eq!(bits(&read.values), times(&TWICE, 0.25));

        let modelopt = |config| {
            let parts = [
                ("up.weight", "U8", &[1, 8][..], &CODES[..]),
                scale,
                ("up.weight_scale_2", "F32", &[], &four),
                ("up.input_scale", "F32", &[], &input),
            ];
            first(&parts, config)
        };
        let read = modelopt("").expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::F32));
        assert_eq!(bits(&read.values), times(&TWICE, 4.0));
        let smoothed = [
            ("up.weight", "U8", &[1, 8][..], &CODES[..]),
            scale,
            ("up.weight_scale_2", "F32", &[], &four),
            ("up.pre_quant_scale", "F32", &[1], &four),
        ];
        let comfy: Part<'_> = ("up.comfy_quant", "U8", &[2], b"{}");
        let found = error(&[smoothed[0], scale, smoothed[2], comfy], "");
        assert!(found.contains("E003") && found.contains("'up.comfy_quant'"), "{found}");
        let error = error(&smoothed, "");
        assert!(error.contains("E003") && error.contains("'up.pre_quant_scale'"), "{error}");
        let other = modelopt(r#"{"quantization_config":{"quant_method":"fouroversix"}}"#);
        assert!(other.expect_err("unknown").to_string().contains("'fouroversix'"));
    }

    #[test]
    fn each_matrix_of_a_stack_has_its_second_scale() {
        let codes = [CODES; 4].concat();
        let read = first(
            &[
                ("e.weight_packed", "U8", &[2, 2, 8], &codes),
                ("e.weight_scale", "F8_E4M3", &[2, 2, 1], &[0x40, 0x38, 0x40, 0x40]),
                ("e.weight_global_scale", "F32", &[2, 1], &f32s(&[4.0, 1.0])),
            ],
            "",
        );
        let read = read.expect("values");
        assert_eq!(read.shape, [2, 2, 16]);
        let factors = [0.25, 0.125, 1.0, 1.0];
        let known = factors.iter().flat_map(|factor| times(&TWICE, *factor));
        assert_eq!(bits(&read.values), known.collect::<Vec<_>>());
    }

    #[test]
    fn scales_of_powers_of_two_are_for_32_floats_of_4_or_6_bits() {
        let codes = [CODES, CODES, CODES, CODES].concat();
        let known = [0.5, 0.5, 1.0, 1.0].iter().flat_map(|factor| times(&TWICE, *factor));
        let known: Vec<u32> = known.collect();
        let exponents: &[u8] = &[127, 128];
        for (name, dtype, scale, scale_dtype) in [
            ("x.weight_packed", "U8", "x.weight_scale", "U8"),
            ("x.weight", "I8", "x.scale", "F8_E8M0"),
            ("x.weight", "I8", "x.scale", "U8"),
        ] {
            let parts =
                [(name, dtype, &[1, 32][..], &codes[..]), (scale, scale_dtype, &[1, 2], exponents)];
            let read = first(&parts, "").expect("values");
            assert_eq!((&*read.name, read.dtype), ("x.weight", DType::BF16));
            assert_eq!(read.shape, [1, 64]);
            assert_eq!(bits(&read.values), known);
        }

        // Codes 1, 8, 31 and 33 of six bits: 1/8, 1, 7.5, -1/8.
        let codes = [0x01, 0xf2, 0x85].repeat(8);
        let parts: [Part<'_>; 2] = [
            ("x.weight_packed", "U8", &[1, 24], &codes),
            ("x.weight_scale", "U8", &[1, 1], &[128]),
        ];
        let read = first(&parts, "").expect("values");
        assert_eq!(read.values, [0.25, 2.0, 15.0, -0.25].repeat(8));
    }

    #[test]
    fn a_row_may_be_longer_than_what_is_decoded_at_once() {
        let columns = (1 << 18) + 64;
        let codes = CODES.repeat(columns / 16);
        let exponents: Vec<u8> = (0..columns / 32).map(|at| [127, 128][at % 2]).collect();
        let parts: [Part<'_>; 2] = [
            ("x.weight_packed", "U8", &[1, columns as u64 / 2], &codes),
            ("x.weight_scale", "U8", &[1, columns as u64 / 32], &exponents),
        ];
        let model = folder(&parts, "");
        let mut bytes = vec![0; 2 * columns];
        model.read_tensor(0, 0, &mut bytes).expect("values");
        let repeated = bytes.chunks(128).all(|chunk| chunk == &bytes[..128]);
        assert!(repeated);
        assert_eq!(bytes[..4], [0x00, 0x3f, 0x80, 0x3f]);
        assert_eq!(bytes[64..68], [0x80, 0x3f, 0x00, 0x40]);
    }

    #[test]
    fn parts_that_do_not_go_together_are_refused_by_name() {
        let packed: Part<'_> = ("up.weight_packed", "U8", &[1, 8], &CODES);
        let scale: Part<'_> = ("up.weight_scale", "F8_E4M3", &[1, 1], &[0x40]);
        let one = f32s(&[1.0]);
        let global: Part<'_> = ("up.weight_global_scale", "F32", &[1], &one);
        let has = |found: &str, words: &[&str]| {
            assert!(words.iter().all(|word| found.contains(word)), "{found}");
        };
        has(&error(&[packed, scale], ""), &["E001", "'up.weight_global_scale' is missing"]);
        has(&error(&[packed, global], ""), &["E001", "'up.weight_scale' is missing"]);
        has(
            &error(&[packed, ("up.weight_scale", "U8", &[1, 1], &[127]), global], ""),
            &["E001", "'up.weight_scale' is u8"],
        );
        let short: Part<'_> = ("up.weight_packed", "U8", &[1, 7], &CODES[..7]);
        has(&error(&[short, scale, global], ""), &["E001", "'up.weight_packed' is u8", "16"]);
        let wide: Part<'_> = ("up.weight_scale", "F8_E4M3", &[1, 2], &[0x40, 0x40]);
        has(&error(&[packed, wide, global], ""), &["E001", "'up.weight_scale'", "[1, 1]"]);
        let odd: Part<'_> = ("up.weight_scale", "U8", &[1, 1], &[127]);
        has(&error(&[packed, odd], ""), &["E001", "4 or 6 bits"]);
        let zero = f32s(&[0.0]);
        let global: Part<'_> = ("up.weight_global_scale", "F32", &[1], &zero);
        has(&error(&[packed, scale, global], ""), &["E002", "up.weight_global_scale", "is 0"]);
        let scale: Part<'_> = ("up.weight_scale", "F8_E4M3", &[1, 1], &[0x7f]);
        let global: Part<'_> = ("up.weight_global_scale", "F32", &[1], &one);
        has(&error(&[packed, scale, global], ""), &["E002", "'up.weight_scale' is NaN"]);
    }
}
