//! Codes of 8 bits that are numbers of their own (`i8`, 8-bit floats) and are multiplied by a scale
//! of the tensor, the row, the group or the block.
//!
//! | who writes it | codes | scale | product |
//! |---|---|---|---|
//! | FP8 in blocks (DeepSeek, Qwen), per tensor (vLLM, Mistral) | `X.weight` | `X.weight_scale_inv`, `X.weight_scale`, `X.qscale_weight`, `X.scale` | `f32` |
//! | compressed-tensors: float-, int-, naive-quantized, mxfp8 | `X.weight` | `X.weight_scale`, `X.weight_zero_point` | rounded to the scale's dtype |
//! | fbgemm, modelopt | `X.weight` | `X.weight_scale` | `f32` |
//! | ComfyUI | `X.weight` | `X.scale_weight` | `f32` |
//! | bitsandbytes, 8 bits | `X.weight` | `X.SCB` | `f32`, times 1/127 |
//! | torchao | `X._weight_qdata` | `X._weight_scale`, `X._weight_zero_point` | rounded to the dtype in the header, else to the scale's |
//! | quanto, 8 bits | `X.weight._data` | `X.weight._scale` | rounded to the scale's dtype |
//! | stacked experts | `X` | `X_scale_inv`, `X_scale` | `f32` |

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result, Shape, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};
use serde_json::Value;

use super::claims::check_codes;
use super::find::{Kind, Tensors, Weight};
use super::grids::{Grids, Shared, stated_grids};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Tile, bytes_of, floats_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const FP8: Kind = Kind {
    id: "fp8",
    find: |tensors, stated, codes| {
        let floats = [DType::F8_E4M3, DType::F8_E5M2, DType::F8_E4M3FNUZ];
        find(tensors, stated, codes, &floats)
    },
};
pub(super) const INT8: Kind =
    Kind { id: "int8", find: |tensors, stated, codes| find(tensors, stated, codes, &[DType::I8]) };

/// Factor of bitsandbytes' 8-bit integers: the reciprocal of 127, as in its kernels.
const PER_127: f32 = 0.007_874_016;

/// Blocks and groups that are written without a configuration that states them.
const BLOCK: Shared = Shared::Block([128, 128]);
const GROUPS: [Shared; 3] = [Shared::Group(32), Shared::Group(64), Shared::Group(128)];

/// Grids of stacked experts, of which some have inputs as rows.
const STACKED: &[Shared] =
    &[Shared::All, Shared::Row, Shared::Column, BLOCK, GROUPS[0], GROUPS[1], GROUPS[2]];

/// The end of the name of torchao's codes.
const QDATA: &str = "._weight_qdata";

/// Names of codes and of the tensors that belong to them.
struct Names {
    /// The end of the codes' name.
    codes: &'static str,
    /// The end of the weight's.
    weight: &'static str,
    /// Suffixes of the scale's name.
    scales: &'static [&'static str],
    /// Suffixes of the zero point's name.
    zeros: &'static [&'static str],
    /// `true` if the product is rounded to the scale's dtype.
    rounds: bool,
    /// Grids that are written under these names.
    grids: &'static [Shared],
}

const NAMES: [Names; 4] = [
    Names {
        codes: QDATA,
        weight: ".weight",
        scales: &["._weight_scale"],
        zeros: &["._weight_zero_point"],
        rounds: true,
        grids: &[
            Shared::All,
            Shared::Row,
            GROUPS[0],
            GROUPS[1],
            GROUPS[2],
            Shared::Group(256),
            BLOCK,
        ],
    },
    Names {
        codes: ".weight._data",
        weight: ".weight",
        scales: &[".weight._scale"],
        zeros: &[],
        rounds: true,
        grids: &[Shared::All, Shared::Row],
    },
    Names {
        codes: ".weight",
        weight: ".weight",
        scales: &[
            ".weight_scale_inv",
            ".weight_scale",
            ".scale_weight",
            ".qscale_weight",
            ".SCB",
            ".scale",
        ],
        zeros: &[".weight_zero_point"],
        rounds: false,
        grids: &[Shared::All, Shared::Row, BLOCK, GROUPS[0], GROUPS[1], GROUPS[2]],
    },
    Names {
        codes: "",
        weight: "",
        scales: &["_scale_inv", "_scale"],
        zeros: &[],
        rounds: false,
        grids: &[Shared::All, Shared::Row, BLOCK, GROUPS[0], GROUPS[1], GROUPS[2]],
    },
];

impl Names {
    /// Returns the grids that are written with scales of this name.
    fn grids_of(&self, scale: &str, shape: &Shape) -> &'static [Shared] {
        match scale {
            _ if scale.ends_with(".SCB") => &[Shared::Row],
            _ if scale.ends_with(".scale_weight") => &[Shared::All, Shared::Row],
            _ if self.weight.is_empty() && shape.dims().len() > 2 => STACKED,
            _ => self.grids,
        }
    }
}

fn find(
    tensors: &Tensors<'_>,
    stated: &Stated,
    codes: usize,
    dtypes: &[DType],
) -> Option<Result<Weight>> {
    let info = tensors.info(codes);
    if !dtypes.contains(&info.dtype) || info.shape.dims().is_empty() {
        return None;
    }
    NAMES.iter().find_map(|names| {
        let stem = tensors.stem(codes, names.codes)?;
        let scale = tensors.beside(stem, names.scales)?;
        Some(weight(tensors, stated, names, (stem, codes, scale)))
    })
}

fn weight(
    tensors: &Tensors<'_>,
    stated: &Stated,
    names: &Names,
    (stem, codes, scale): (&str, usize, usize),
) -> Result<Weight> {
    let info = tensors.info(codes);
    let name = format!("{stem}{}", names.weight);
    let zero = match names.codes {
        ".weight" => tensors.zero_point(stated, stem)?,
        _ => tensors.beside(stem, names.zeros),
    };
    let scale_info = tensors.info(scale);
    let is_exponents = matches!(scale_info.dtype, DType::U8 | DType::F8_E8M0);
    let is_bitsandbytes = scale_info.name.ends_with(".SCB");
    if !scale_info.dtype.is_float() && !is_exponents {
        return Err(tensors.unfit(scale, &name, "a scale in floats"));
    }
    if info.dtype == DType::I8 && scale_info.dtype.block_bytes() == 1 {
        // Two 4-bit floats in a byte, as DeepSeek-V4 has its experts.
        return Err(tensors.unfit(scale, &name, "a scale of 16 or 32 bits"));
    }
    if is_bitsandbytes {
        check_rows_in_order(tensors, stem)?;
    }

    let described = in_header(tensors, &name).filter(|_| names.codes == QDATA);
    check_order_of_scales(described.as_ref()).map_err(|error| error.for_tensor(&name))?;
    let kind = if info.dtype == DType::I8 { "int" } else { "float" };
    check_codes(tensors, stated, (&name, codes), (8, kind))?;
    let grid = Grid::of(tensors, &name, (info, scale), (stated, names))?;
    if let Some(zero) = zero {
        tensors.check(zero, &name, &[DType::I8, DType::I64], scale_info.shape.dims())?;
    }
    let of_header = described.as_ref().and_then(dtype_in_header);
    let is_rounded = names.rounds || stated.method().as_deref() == Some("compressed-tensors");
    let dtype = match (of_header, scale_info.dtype) {
        (Some(dtype), _) => dtype,
        // A power of two times an 8-bit float has few enough digits.
        _ if is_exponents => DType::BF16,
        (None, DType::BF16 | DType::F16) if is_rounded => scale_info.dtype,
        _ => DType::F32,
    };
    let format = tensors.beside(stem, &[".weight_format"]).filter(|_| is_bitsandbytes);
    let parts = [codes, scale].into_iter().chain(zero).chain(format);
    let is_float = info.dtype != DType::I8;
    let codes_are = if is_float { format!("8-bit floats ({})", info.dtype) } else { "int8".into() };
    Ok(Weight {
        description: format!("{codes_are}, {}", grid.shared),
        info: TensorInfo { name, dtype, shape: info.shape.clone() },
        parts: parts.chain(tensors.of_activations(stem)).collect(),
        decode: Box::new(Scaled { codes, scale, zero, grid, dtype, is_exponents, is_bitsandbytes }),
    })
}

/// Checks that integers of bitsandbytes are in the order of rows: others are of one kind of GPU.
fn check_rows_in_order(tensors: &Tensors<'_>, stem: &str) -> Result<()> {
    let Some(format) = tensors.beside(stem, &[".weight_format"]) else { return Ok(()) };
    let weight = format!("{stem}.weight");
    if tensors.info(format).dtype != DType::U8 {
        return Err(tensors.unfit(format, &weight, "one u8"));
    }
    match *tensors.small(format, &weight, 1)? {
        [0] => Ok(()),
        [order] => {
            let message = format!(
                "'{}' is {order}: its integers are in the order of one GPU architecture, not in \
                 rows, which can't be decoded here",
                tensors.info(format).name
            );
            Err(Error::version(message).for_tensor(weight))
        }
        _ => Err(tensors.unfit(format, &weight, "one u8")),
    }
}

/// What torchao states of a weight in the file's header.
fn in_header(tensors: &Tensors<'_>, weight: &str) -> Option<Value> {
    serde_json::from_str(tensors.header_text(weight)?).ok()
}

/// Checks that torchao stores a weight's scales in the order of rows and columns.
fn check_order_of_scales(described: Option<&Value>) -> Result<()> {
    let class = described.and_then(|described| described.get("_type")?.as_str());
    match class.filter(|class| ["MXTensor", "NVFP4Tensor"].contains(class)) {
        None => Ok(()),
        Some(class) => Err(Error::version(format!(
            "torchao stores the scales of its {class} in the order of one GPU architecture, \
             which can't be decoded here"
        ))),
    }
}

/// The dtype that torchao rounds the values of a weight to.
fn dtype_in_header(described: &Value) -> Option<DType> {
    match described.get("_data")?.get("dtype")?.get("_data")?.as_str()? {
        "bfloat16" => Some(DType::BF16),
        "float16" => Some(DType::F16),
        "float32" => Some(DType::F32),
        _ => None,
    }
}

/// Rows and columns of a block, as torchao states them in the file's header for each weight.
fn block_in_header(tensors: &Tensors<'_>, weight: &str) -> Option<[u64; 2]> {
    let described = in_header(tensors, weight)?;
    let sides = described.get("_data")?.get("block_size")?.as_array()?;
    let [.., high, wide] = &sides[..] else { return None };
    Some([high, wide].map(Value::as_u64)).and_then(|[high, wide]| Some([high?, wide?]))
}

/// Mapping from elements to numbers of a tensor of scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    /// Rows of one matrix of the weight, and scales down its side.
    rows: u64,
    down: u64,
    /// Scales along a row.
    along: u64,
    /// Rows and columns with one scale.
    block: [u64; 2],
    shared: Shared,
}

impl Grid {
    /// # Errors
    /// E001 where the scales do not go with the weight, or with what the configuration states.
    fn of(
        tensors: &Tensors<'_>,
        weight: &str,
        (info, scale): (&TensorInfo, usize),
        (stated, names): (&Stated, &Names),
    ) -> Result<Self> {
        let dims = info.shape.dims();
        let (&columns, outer) = dims.split_last().unwrap_or((&1, &[]));
        let (&rows, experts) = outer.split_last().unwrap_or((&1, &[]));
        let matrix = [rows, columns];
        let counts = match tensors.info(scale).shape.dims() {
            [] | [1] if experts.is_empty() => Some([1, 1]),
            [count] if experts.is_empty() => Some([*count, 1]),
            [of_experts @ .., down, along] if of_experts == experts => Some([*down, *along]),
            _ => None,
        };

        let of_header = block_in_header(tensors, weight);
        let stated = match of_header.filter(|sides| !sides.contains(&0)) {
            Some(sides) => Some(vec![Shared::of_sides(sides, matrix)]),
            None => stated_grids(stated, names.weight.is_empty() && !experts.is_empty()),
        };
        let is_whole = |grid: &Shared| match grid {
            Shared::Group(wide) => columns.is_multiple_of(*wide) || *wide > columns,
            _ => true,
        };
        let written = names.grids_of(&tensors.info(scale).name, &info.shape);
        let grids = Grids { stated, written };
        let shared = grids.matching(tensors, (weight, scale), matrix, counts)?;
        if !is_whole(&shared) {
            let needed = format!("a scale for each whole group of {}", info.shape);
            return Err(tensors.unfit(scale, weight, &needed));
        }
        let [down, along] = shared.counts(matrix);
        Ok(Self { rows, down, along, block: shared.sides(matrix), shared })
    }

    /// The row of scales that a row of the weight has.
    fn row(self, row: u64) -> u64 {
        let (matrix, within) = (row / self.rows.max(1), row % self.rows.max(1));
        matrix * self.down + within / self.block[0]
    }
}

struct Scaled {
    codes: usize,
    scale: usize,
    zero: Option<usize>,
    grid: Grid,
    /// The dtype of the weight.
    dtype: DType,
    is_exponents: bool,
    is_bitsandbytes: bool,
}

impl Grouped for Scaled {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scale, codes: self.codes }]
    }

    fn form(&self) -> Form {
        Form { bits: 8, group: self.grid.block[1], count: self.grid.along }
    }

    fn decoding(&self, base: &dyn CheckpointReader) -> Result<Decoding> {
        Ok(Decoding {
            code: Code::Number(base.tensors()[self.codes].dtype),
            rule: Rule::Difference(if self.is_bitsandbytes { PER_127 } else { 1.0 }),
            dtype: self.dtype,
        })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let columns = base.tensors()[self.codes].shape.row_len();
        base.read_tensor(self.codes, tile.row * columns + tile.column, out)
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let grid = self.grid;
        let top = grid.row(rows.start);
        let bottom = grid.row(rows.end - 1) + 1;
        let range = top * grid.along..bottom * grid.along;
        let read_as =
            if self.is_exponents { DType::F8_E8M0 } else { base.tensors()[self.scale].dtype };
        let scales = scales_of(base, self.scale, read_as, range.clone())?;
        let zeros = self.zero.map(|zero| zeros_of(base, zero, range)).transpose()?;
        let mut numbers = Numbers::default();
        for row in rows {
            let at = (grid.row(row) - top) * grid.along;
            let of_row = usize_of(at + groups.start)?..usize_of(at + groups.end)?;
            numbers.scales.extend_from_slice(&scales[of_row.clone()]);
            numbers.zeros.extend(zeros.iter().flat_map(|zeros| &zeros[of_row.clone()]));
        }
        Ok(numbers)
    }

    fn as_they_lie(&self) -> Option<usize> {
        Some(self.codes)
    }
}

/// Zero points, which some writers store in 64 bits.
fn zeros_of(base: &dyn CheckpointReader, tensor: usize, range: Range<u64>) -> Result<Vec<f32>> {
    if base.tensors()[tensor].dtype != DType::I64 {
        return floats_of(base, tensor, range);
    }
    let bytes = bytes_of(base, tensor, range.start * 8, usize_of((range.end - range.start) * 8)?)?;
    let zero = |bytes: &[u8; 8]| {
        let zero = i64::from_le_bytes(*bytes);
        i16::try_from(zero).map(f32::from).map_err(|_| {
            let name = &base.tensors()[tensor].name;
            Error::corrupt(format!("'{name}' holds {zero}, which is not an 8-bit zero point"))
        })
    };
    bytes.as_chunks().0.iter().map(zero).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, f32s, first, folder, folder_with};

    /// Reads scales of a shape beside codes of another, under a configuration.
    fn with_scales(
        (codes, shape): (&str, &[u64]),
        (scale, of_scale): (&str, &[u64]),
        config: &str,
    ) -> Result<String, String> {
        let len = |shape: &[u64]| usize::try_from(shape.iter().product::<u64>()).expect("small");
        let (bytes, scales) = (vec![0x38; len(shape)], f32s(&vec![0.5; len(of_scale)]));
        let parts: [Part<'_>; 2] =
            [(codes, "F8_E4M3", shape, &bytes), (scale, "F32", of_scale, &scales)];
        let model = folder(&parts, config);
        let described = model.stored(0).coding().map(|coding| coding.description.to_owned());
        match first(&parts, config) {
            Ok(_) => Ok(described.unwrap_or_default()),
            Err(_) => Err(error(&parts, config)),
        }
    }

    #[test]
    fn scales_have_the_grid_that_the_configuration_states() {
        let group = |scheme: &str| {
            format!(
                r#"{{"quantization_config":{{"quant_method":"compressed-tensors","config_groups":
                {{"group_0":{{"weights":{{{scheme}}}}}}}}}}}"#
            )
        };
        let fp8 = r#"{"quantization_config":{"quant_method":"fp8","weight_block_size":[2,4]}}"#;
        let algorithm = |of: &str| format!(r#"{{"quantization_config":{{"quant_algo":"{of}"}}}}"#);
        let fbgemm = r#"{"quantization_config":{"quant_method":"fbgemm_fp8"}}"#.to_owned();
        for (config, right, needed) in [
            (group(r#""strategy":"tensor""#), &[1][..], "one scale of"),
            (group(r#""strategy":"channel""#), &[4, 1], "a scale for each row of"),
            (group(r#""strategy":"group","group_size":4"#), &[4, 2], "each group of 4 columns of"),
            (group(r#""strategy":"block","block_structure":[2,4]"#), &[2, 2], "block of 2 x 4 of"),
            (group(r#""strategy":"block","block_structure":"2x8""#), &[2, 1], "block of 2 x 8 of"),
            (fp8.to_owned(), &[2, 2], "a scale for each block of 2 x 4 of"),
            (fp8.replace("[2,", "[3,"), &[2, 2], "a scale for each block of 3 x 4 of"),
            (algorithm("FP8"), &[], "one scale of"),
            (algorithm("FP8_PER_CHANNEL_PER_TOKEN"), &[4], "a scale for each row of"),
            (fbgemm, &[4, 1], "a scale for each row of"),
        ] {
            let codes = ("up.weight", &[4, 8][..]);
            let found = with_scales(codes, ("up.weight_scale", right), &config);
            found.unwrap_or_else(|error| panic!("{config}: {error}"));
            for other in [&[1][..], &[4, 1], &[2, 1], &[1, 2], &[1, 4], &[4, 2], &[2, 2], &[1, 8]] {
                let is_right = other == right || right.is_empty() && other == [1];
                if is_right || right == [4] && other == [4, 1] {
                    continue;
                }
                let found = with_scales(codes, ("up.weight_scale", other), &config);
                let error = found.expect_err("another grid");
                assert!(error.contains("E001") && error.contains("'up.weight_scale'"), "{error}");
                let said = format!("{needed} [4, 8], which the configuration states,");
                assert!(error.contains(&said), "{error}");
            }
        }
    }

    #[test]
    fn without_a_configuration_scales_have_a_grid_that_is_written() {
        let wide = ("up.weight", &[256, 256][..]);
        for (shape, described) in [
            (&[][..], "a scale"),
            (&[1], "a scale"),
            (&[256], "a scale for each row"),
            (&[256, 1], "a scale for each row"),
            (&[2, 2], "blocks of 128 x 128"),
            (&[256, 4], "groups of 64"),
        ] {
            let found = with_scales(wide, ("up.weight_scale", shape), "");
            assert_eq!(found, Ok(format!("8-bit floats (f8_e4m3), {described}")));
        }
        for (scale, shape) in [
            ("up.weight_scale", &[128, 1][..]),
            ("up.weight_scale", &[1, 256]),
            ("up.weight_scale", &[1, 2]),
            ("up.weight_scale", &[256, 16]),
            ("up.weight_scale", &[128, 128]),
            ("up.weight_scale_inv", &[4, 4]),
            ("up.scale_weight", &[2, 2]),
            ("up.SCB", &[1]),
            ("up.SCB", &[128]),
        ] {
            let error = with_scales(wide, (scale, shape), "").expect_err("no grid");
            assert!(error.contains("E001") && error.contains(&format!("'{scale}'")), "{error}");
        }
        // Experts of which the inputs are rows.
        let experts = ("e.up", &[2, 4, 256][..]);
        let found = with_scales(experts, ("e.up_scale", &[2, 1, 256]), "");
        assert_eq!(found, Ok("8-bit floats (f8_e4m3), a scale for each column".to_owned()));
        let found = with_scales(experts, ("e.up_scale", &[2, 2, 1]), "");
        assert!(found.expect_err("half of the rows").contains("'e.up_scale'"));
    }

    #[test]
    fn scales_are_floats() {
        for (dtype, bytes) in [("I16", 2), ("I8", 1), ("I32", 4), ("BOOL", 1)] {
            let scales = vec![1; 4 * bytes];
            let parts: [Part<'_>; 2] = [
                ("up.weight", "F8_E4M3", &[4, 8], &[0x38; 32]),
                ("up.weight_scale", dtype, &[4, 1], &scales),
            ];
            let found = error(&parts, "");
            let is_named = found.contains("up.weight_scale") && found.contains("a scale in floats");
            assert!(found.contains("E001") && is_named, "{dtype}: {found}");
        }
    }

    #[test]
    fn codes_have_the_bits_and_the_type_that_the_configuration_states() {
        let config = |scheme: &str| {
            format!(
                r#"{{"quantization_config":{{"quant_method":"compressed-tensors","config_groups":
                {{"group_0":{{"weights":{{{scheme}}}}}}}}}}}"#
            )
        };
        let with = |config: &str| {
            with_scales(("up.weight", &[4, 8]), ("up.weight_scale", &[4, 1]), config)
        };
        for right in [r#""num_bits":8"#, r#""type":"float""#, ""] {
            with(&config(right)).unwrap_or_else(|error| panic!("{right}: {error}"));
        }
        let algorithm = |of: &str| format!(r#"{{"quantization_config":{{"quant_algo":"{of}"}}}}"#);
        for wrong in [
            config(r#""num_bits":4"#),
            config(r#""num_bits":8,"type":"int""#),
            algorithm("NVFP4"),
            algorithm("zzz"),
        ] {
            let error = with(&wrong).expect_err("another scheme");
            assert!(error.contains("which") || error.contains("states"), "{wrong}: {error}");
        }
    }

    #[test]
    fn quanto_has_a_scale_for_each_row() {
        let codes = ("up.weight._data", &[4, 8][..]);
        for (shape, is_good) in [(&[4, 1][..], true), (&[2, 1], false), (&[1, 4], false)] {
            let found = with_scales(codes, ("up.weight._scale", shape), "");
            assert_eq!(found.is_ok(), is_good, "{found:?}");
        }
    }

    #[test]
    fn integers_of_bitsandbytes_are_in_the_order_of_rows_or_refused() {
        let scales = f32s(&[127.0]);
        let parts = |format| -> [Part<'_>; 3] {
            [
                ("up.weight", "I8", &[1, 2], &[127, 0x81]),
                ("up.SCB", "F32", &[1], &scales),
                ("up.weight_format", "U8", &[], format),
            ]
        };
        let read = first(&parts(&[0]), "").expect("values");
        assert_eq!(read.values.iter().map(|v| v.round()).collect::<Vec<_>>(), [127.0, -127.0]);
        let found = error(&parts(&[3]), "");
        assert!(found.contains("E003") && found.contains("'up.weight_format' is 3"), "{found}");
    }

    #[test]
    fn torchao_rounds_values_to_the_dtype_in_the_header() {
        let scale = f32s(&[0.3]);
        let parts: [Part<'_>; 2] = [
            ("up._weight_qdata", "F8_E4M3", &[1, 2], &[0x39, 0xba]),
            ("up._weight_scale", "F32", &[1, 1], &scale),
        ];
        let header = |class: &str, dtype: &str| {
            let dtype = serde_json::json!({"_type": "torch.dtype", "_data": dtype});
            let data = serde_json::json!({"block_size": [1, 2], "dtype": dtype});
            let stated = serde_json::json!({"_type": class, "_data": data}).to_string();
            folder_with(&parts, &serde_json::json!({"up.weight": stated}))
        };
        // 1.125 and -1.25 times 0.3, as torch rounds the products.
        for (dtype, values) in [("float32", [0.3375, -0.375]), ("bfloat16", [0.337_890_63, -0.375])]
        {
            let model = header("Float8Tensor", dtype);
            let info = &model.tensors()[0];
            let mut bytes =
                vec![0; usize::try_from(info.byte_len().expect("a length")).expect("small")];
            model.read_tensor(0, 0, &mut bytes).expect("values");
            let mut read = Vec::new();
            apr_tensor::element::widen_f32(info.dtype, &bytes, &mut read);
            assert_eq!(read, values, "{dtype}");
        }
        let error =
            header("MXTensor", "bfloat16").read_tensor(0, 0, &mut []).expect_err("swizzled");
        assert_eq!(error.code(), apr_core::Code::Version, "{error}");
        assert!(error.to_string().contains("MXTensor"), "{error}");
    }
}
