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
//! | torchao | `X._weight_qdata` | `X._weight_scale`, `X._weight_zero_point` | rounded to the scale's dtype |
//! | quanto, 8 bits | `X.weight._data` | `X.weight._scale` | rounded to the scale's dtype |
//! | stacked experts | `X` | `X_scale_inv`, `X_scale` | `f32` |

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Tile, bytes_of, floats_of, scales_of, usize_of};
use super::stated::Stated;

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

/// Side of a block if the configuration does not state one.
const BLOCK: u64 = 128;

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
}

const NAMES: [Names; 4] = [
    Names {
        codes: "._weight_qdata",
        weight: ".weight",
        scales: &["._weight_scale"],
        zeros: &["._weight_zero_point"],
        rounds: true,
    },
    Names {
        codes: ".weight._data",
        weight: ".weight",
        scales: &[".weight._scale"],
        zeros: &[],
        rounds: true,
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
    },
    Names { codes: "", weight: "", scales: &["_scale_inv", "_scale"], zeros: &[], rounds: false },
];

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
    if info.dtype == DType::I8 && scale_info.dtype.block_bytes() == 1 {
        // Two 4-bit floats in a byte, as DeepSeek-V4 has its experts.
        return Err(tensors.unfit(scale, &name, "a scale of 16 or 32 bits"));
    }
    if is_bitsandbytes {
        check_rows_in_order(tensors, stem)?;
    }

    let grid = Grid::of(tensors, &name, (info, scale), stated)?;
    if let Some(zero) = zero {
        tensors.check(zero, &name, &[DType::I8, DType::I64], scale_info.shape.dims())?;
    }
    let is_rounded = names.rounds || stated.method().as_deref() == Some("compressed-tensors");
    let dtype = match scale_info.dtype {
        // A power of two times an 8-bit float has few enough digits.
        _ if is_exponents => DType::BF16,
        DType::BF16 | DType::F16 if is_rounded => scale_info.dtype,
        _ => DType::F32,
    };
    let format = tensors.beside(stem, &[".weight_format"]).filter(|_| is_bitsandbytes);
    let parts = [codes, scale].into_iter().chain(zero).chain(format);
    let is_float = info.dtype != DType::I8;
    let codes_are = if is_float { format!("8-bit floats ({})", info.dtype) } else { "int8".into() };
    Ok(Weight {
        description: format!("{codes_are}, {}", grid.description(stated)),
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
                "'{}' is {order}: its integers are in the order of one kind of GPU, not in rows, \
                 which can't be decoded here",
                tensors.info(format).name
            );
            Err(Error::version(message).for_tensor(weight))
        }
        _ => Err(tensors.unfit(format, &weight, "one u8")),
    }
}

/// Rows and columns of a block, as a configuration states them.
fn block_of(stated: &Stated) -> Option<[u64; 2]> {
    let sides = stated.get("weight_block_size")?;
    let side = |at: usize| sides.get(at)?.as_u64().filter(|&side| side > 0);
    Some([side(0)?, side(1)?])
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
}

impl Grid {
    /// # Errors
    /// E001 where the scales do not go with the weight.
    fn of(
        tensors: &Tensors<'_>,
        weight: &str,
        (info, scale): (&TensorInfo, usize),
        stated: &Stated,
    ) -> Result<Self> {
        let dims = info.shape.dims();
        let (&columns, outer) = dims.split_last().unwrap_or((&1, &[]));
        let (&rows, experts) = outer.split_last().unwrap_or((&1, &[]));
        let scales = tensors.info(scale).shape.dims();
        let whole = Self { rows, down: 1, along: 1, block: [rows.max(1), columns.max(1)] };
        let unfit = || {
            let needed = format!("one number for all, a row, a group or a block of {}", info.shape);
            tensors.unfit(scale, weight, &needed)
        };
        let inner = match scales {
            [] => return if experts.is_empty() { Ok(whole) } else { Err(unfit()) },
            [1] if experts.is_empty() => return Ok(whole),
            [count] if *count == rows && experts.is_empty() => [rows, 1],
            [of_experts @ .., down, along] if of_experts == experts => [*down, *along],
            _ => return Err(unfit()),
        };
        let stated = block_of(stated);
        let of = |len: u64, count: u64, stated: Option<u64>| {
            let fits = |side: &u64| *side > 0 && len.div_ceil(*side) == count;
            let even = (count > 0 && len.is_multiple_of(count)).then(|| len / count.max(1));
            stated.filter(fits).or(even.filter(fits)).or(Some(BLOCK).filter(fits))
        };
        let [down, along] = inner;
        let block = [
            of(rows, down, stated.map(|sides| sides[0])),
            of(columns, along, stated.map(|sides| sides[1])),
        ];
        let [Some(high), Some(wide)] = block else { return Err(unfit()) };
        Ok(Self { rows, down, along, block: [high, wide] })
    }

    fn description(self, stated: &Stated) -> String {
        if let Some([high, wide]) = block_of(stated) {
            return format!("blocks of {high} x {wide}");
        }
        match (self.down, self.along, self.block) {
            (1, 1, _) => "a scale".to_owned(),
            (_, 1, [1, _]) => "a scale for each row".to_owned(),
            (_, _, [1, wide]) => format!("groups of {wide}"),
            (_, _, [high, wide]) => format!("blocks of {high} x {wide}"),
        }
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
    use super::super::testing::{Part, error, f32s, first};

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
}
