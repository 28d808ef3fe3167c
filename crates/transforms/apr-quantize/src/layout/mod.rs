//! Layouts of quantized weights that servers and libraries load from safetensors folders: codes and
//! scales in tensors of their own, and a configuration that says how they are read.
//!
//! | layout | method | tensors of a weight `X.weight` | loaded by |
//! |---|---|---|---|
//! | [`Fp8`](Layout::Fp8) | compressed-tensors, `float-quantized` | `X.weight` (`f8_e4m3`), `X.weight_scale` (`bf16`, a row) | vLLM, SGLang, transformers |
//! | [`W8A8`](Layout::W8A8) | compressed-tensors, `int-quantized` | `X.weight` (`i8`), `X.weight_scale` (`bf16`, a row) | vLLM, SGLang, transformers |
//! | [`W4A16`](Layout::W4A16) | compressed-tensors, `pack-quantized` | `X.weight_packed` (`i32`), `X.weight_scale` (`bf16`, groups of 128), `X.weight_shape` | vLLM, SGLang, transformers |
//! | [`W4A16Asym`](Layout::W4A16Asym) | the same, with zero points | and `X.weight_zero_point` (`i32`, 8 rows a word) | vLLM, SGLang, transformers |
//! | [`MxFp4`](Layout::MxFp4) | compressed-tensors, `mxfp4-pack-quantized` | `X.weight_packed` (`u8`), `X.weight_scale` (`u8`: powers of two, groups of 32) | vLLM, transformers |
//! | [`NvFp4`](Layout::NvFp4) | compressed-tensors, `nvfp4-pack-quantized` | `X.weight_packed` (`u8`), `X.weight_scale` (`f8_e4m3`, groups of 16), `X.weight_global_scale` | vLLM, transformers |
//! | [`Gptq4`](Layout::Gptq4) | GPTQ, version 1, symmetric | `X.qweight` and `X.qzeros` (`i32`), `X.scales` (`f16`, groups of 128), `X.g_idx` | vLLM, SGLang, GPTQModel, llama.cpp's converter |
//! | [`Mlx`](Layout::Mlx) | MLX, affine | `X.weight` (`u32`), `X.scales`, `X.biases` (groups of 64) | mlx-lm |
//!
//! Values are rounded to the nearest code; of 4-bit integers and MXFP4, the scale of each group is
//! searched.
//! [`Laid`] is a checkpoint with these tensors in place of the weights, which are encoded as they
//! are read, some rows at a time.

mod affine;
mod errors;
mod global;
mod laid;
mod left;
mod rounding;
mod row;
mod rules;
mod stated;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::left::{has_inputs_first, is_position};
use crate::role::{Role, roles_of};
use crate::scheme::Scheme;
use apr_arch::FamilyModel;
use apr_core::{CheckpointReader, DType, Result, Shape, TensorInfo};

pub use errors::LaidErrors;
pub use global::{global_scale, joined};
pub use laid::Laid;
pub use left::{LeftReason, LeftWeight};
pub use rounding::{Rounded, Rounding, Scale};
use rules::Rules;
pub use rules::{LayoutRule, TensorType};

/// Selection of the weights of a checkpoint to lay out.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Chosen {
    /// Layout of each tensor, by position, that is a weight to lay out. Can be shorter than the
    /// list of tensors.
    pub weights: Vec<Option<Layout>>,
    /// Weights of layers that stay in floats. Other libraries would take their modules for
    /// quantized ones.
    pub left: Vec<LeftWeight>,
    /// Importance of the columns of each tensor, by position, if scales are searched. Can be
    /// shorter than the list of tensors.
    pub importance: Vec<Option<Arc<[f32]>>>,
    /// Weights that were [rounded](Rounding) before, by position.
    pub rounded: BTreeMap<usize, Rounded>,
    /// Names of weights in libraries that use other names, by position. Parts are named after them.
    pub names: BTreeMap<usize, String>,
    /// Rules that changed nothing.
    pub warnings: Vec<String>,
}

/// Layout of the quantized weights of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// 8-bit floats, a scale for each row.
    Fp8,
    /// 8-bit integers, a scale for each row.
    W8A8,
    /// 4-bit integers, a scale for each group of 128.
    W4A16,
    /// 4-bit integers, a scale and a zero point for each group of 128.
    W4A16Asym,
    /// 4-bit floats, a power of two as the scale of 32.
    MxFp4,
    /// 4-bit floats, an 8-bit float as the scale of 16, one for all.
    NvFp4,
    /// 4-bit integers, a scale for each group of 128; inputs are rows.
    Gptq4,
    /// Integers of 4, 6 or 8 bits, with a scale and a bias for each group of 64.
    Mlx(u32),
}

impl Layout {
    /// Returns the layout of a scheme in a safetensors folder, or `None` if the scheme has no
    /// layout.
    #[must_use]
    pub fn of(scheme: Scheme) -> Option<Self> {
        Some(match scheme {
            Scheme::Fp8 | Scheme::F8_E4M3 => Self::Fp8,
            Scheme::W8A8 | Scheme::Int8 => Self::W8A8,
            Scheme::W4A16 | Scheme::Int4 => Self::W4A16,
            Scheme::W4A16Asym => Self::W4A16Asym,
            Scheme::MXFP4 => Self::MxFp4,
            Scheme::NVFP4 => Self::NvFp4,
            Scheme::Gptq4 => Self::Gptq4,
            Scheme::Mlx4 => Self::Mlx(4),
            Scheme::Mlx6 => Self::Mlx(6),
            Scheme::Mlx8 => Self::Mlx(8),
            _ => return None,
        })
    }

    /// Returns `true` if one model may have weights in both layouts, because libraries read both by
    /// one configuration.
    #[must_use]
    pub const fn mixes_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Gptq4, _) | (_, Self::Gptq4) => {
                matches!((self, other), (Self::Gptq4, Self::Gptq4))
            }
            (Self::Mlx(_), _) | (_, Self::Mlx(_)) => {
                matches!((self, other), (Self::Mlx(_), Self::Mlx(_)))
            }
            _ => true,
        }
    }

    /// Returns the layouts with more bits that a model may have beside this one, the smallest
    /// first.
    #[must_use]
    pub const fn larger(self) -> &'static [Self] {
        match self {
            Self::Mlx(..=4) => &[Self::Mlx(6), Self::Mlx(8)],
            Self::Mlx(..=6) => &[Self::Mlx(8)],
            Self::W4A16 | Self::W4A16Asym | Self::MxFp4 | Self::NvFp4 => &[Self::Fp8],
            Self::Mlx(_) | Self::Fp8 | Self::W8A8 | Self::Gptq4 => &[],
        }
    }

    /// Returns the number of columns per scale, or `None` if a scale covers a whole row.
    #[must_use]
    pub const fn group(self) -> Option<u64> {
        match self {
            Self::Fp8 | Self::W8A8 => None,
            Self::W4A16 | Self::W4A16Asym | Self::Gptq4 => Some(128),
            Self::MxFp4 => Some(32),
            Self::NvFp4 => Some(16),
            Self::Mlx(_) => Some(64),
        }
    }

    /// Returns `true` if all scales of a weight are multiplied by a factor before they are stored.
    #[must_use]
    pub const fn has_global(self) -> bool {
        matches!(self, Self::NvFp4)
    }

    /// The dtype by which reports name what weights become.
    pub(crate) const fn reported(self) -> DType {
        match self {
            Self::Fp8 => DType::F8_E4M3,
            Self::W8A8 | Self::Mlx(6 | 8) => DType::I8,
            Self::W4A16 | Self::W4A16Asym | Self::Gptq4 | Self::Mlx(_) => DType::I4_ROW,
            Self::MxFp4 => DType::MXFP4,
            Self::NvFp4 => DType::NVFP4,
        }
    }

    /// Returns the name of the layout, as the type of a quantization.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp8 => Scheme::Fp8.name(),
            Self::W8A8 => Scheme::W8A8.name(),
            Self::W4A16 => Scheme::W4A16.name(),
            Self::W4A16Asym => Scheme::W4A16Asym.name(),
            Self::MxFp4 => Scheme::MXFP4.name(),
            Self::NvFp4 => Scheme::NVFP4.name(),
            Self::Gptq4 => Scheme::Gptq4.name(),
            Self::Mlx(4) => Scheme::Mlx4.name(),
            Self::Mlx(6) => Scheme::Mlx6.name(),
            Self::Mlx(_) => Scheme::Mlx8.name(),
        }
    }

    /// Returns `true` if this layout supports a weight of this dtype and shape.
    fn takes(self, info: &TensorInfo) -> bool {
        let &[rows, columns] = info.shape.dims() else { return false };
        info.name.ends_with(".weight")
            && info.dtype.is_float()
            && rows > 0
            && columns > 0
            && self.misfit(info).is_none()
    }

    /// Returns how the shape of a matrix does not fit the layout.
    fn misfit(self, info: &TensorInfo) -> Option<LeftReason> {
        /// Outputs of GPTQ's kernels.
        const OUTPUTS: u64 = 32;
        let &[rows, columns] = info.shape.dims() else { return Some(LeftReason::Dimensions) };
        match self.group() {
            Some(group) if !columns.is_multiple_of(group) => Some(LeftReason::Columns(group)),
            _ if self == Self::Gptq4 && !rows.is_multiple_of(OUTPUTS) => {
                Some(LeftReason::Rows(OUTPUTS))
            }
            _ => None,
        }
    }

    /// The weights that are laid out.
    ///
    /// Embeddings and output matrices stay as they are but in MLX, as servers expect them. `names`
    /// are what libraries call the tensors that have another name here, by position. Weights that
    /// `rules` match have the layouts of the rules.
    #[must_use]
    pub fn choose(
        self,
        reader: &dyn CheckpointReader,
        model: Option<&FamilyModel<'_>>,
        names: BTreeMap<usize, String>,
        rules: &[LayoutRule],
    ) -> Chosen {
        let mut left = Vec::new();
        let roles = roles_of(reader, model);
        let named = named(reader.tensors(), &names);
        let mut rules = Rules::new(rules, reader.tensors(), &named);
        let chosen = named.iter().zip(roles).enumerate().map(|(tensor, (info, role))| {
            let is_wanted = match role {
                Some(Role::Matrix) => {
                    let is_of_layer = !is_router(&info.name) && !is_position(model, tensor);
                    is_of_layer && !has_inputs_first(model, tensor)
                }
                Some(Role::TokenEmbedding | Role::Output) => matches!(self, Self::Mlx(_)),
                _ => false,
            };
            let wanted = if is_wanted { rules.layout(tensor, self) } else { Some(self) };
            let chosen = wanted.filter(|wanted| is_wanted && wanted.takes(info));
            match (wanted, chosen) {
                (_, Some(_)) => {}
                (Some(wanted), None) => {
                    left.extend(LeftWeight::of(wanted, info, role, (tensor, model)));
                }
                (None, None) => left.push(LeftWeight::asked(info)),
            }
            chosen
        });
        let weights = chosen.collect();
        Chosen { weights, left, names, warnings: rules.warnings(), ..Chosen::default() }
    }

    /// Returns the bytes that a weight takes in this layout, each part a multiple of `alignment`.
    ///
    /// # Errors
    /// E002 for a shape of more elements than a file can have.
    pub fn stored_len(self, info: &TensorInfo, alignment: u64) -> Result<u64> {
        let lens = self.parts(info).into_iter().map(|(_, part)| part.byte_len());
        lens.map(|len| Ok(len?.next_multiple_of(alignment))).sum()
    }

    /// The tensors that a weight becomes.
    fn parts(self, info: &TensorInfo) -> Vec<(Part, TensorInfo)> {
        let (rows, columns) = match info.shape.dims() {
            &[rows, columns] => (rows, columns),
            _ => (1, info.shape.row_len()),
        };
        let stem = info.name.strip_suffix("weight").unwrap_or(&info.name);
        let part = |part: Part, name: &str, dtype: DType, shape: &[u64]| {
            let shape = Shape::from(shape.to_vec());
            (part, TensorInfo { name: format!("{stem}{name}"), dtype, shape })
        };
        let along = |group: u64| columns / group;
        match self {
            Self::Fp8 | Self::W8A8 => {
                let dtype = if self == Self::Fp8 { DType::F8_E4M3 } else { DType::I8 };
                vec![
                    part(Part::Codes, "weight", dtype, &[rows, columns]),
                    part(Part::Scales, "weight_scale", DType::BF16, &[rows, 1]),
                ]
            }
            Self::W4A16 => vec![
                part(Part::Codes, "weight_packed", DType::I32, &[rows, columns / 8]),
                part(Part::Scales, "weight_scale", DType::BF16, &[rows, along(128)]),
                part(Part::Shape, "weight_shape", DType::I64, &[2]),
            ],
            Self::W4A16Asym => vec![
                part(Part::Codes, "weight_packed", DType::I32, &[rows, columns / 8]),
                part(Part::Scales, "weight_scale", DType::BF16, &[rows, along(128)]),
                part(
                    Part::ZeroPoints,
                    "weight_zero_point",
                    DType::I32,
                    &[rows.div_ceil(8), along(128)],
                ),
                part(Part::Shape, "weight_shape", DType::I64, &[2]),
            ],
            Self::MxFp4 => vec![
                part(Part::Codes, "weight_packed", DType::U8, &[rows, columns / 2]),
                part(Part::Scales, "weight_scale", DType::U8, &[rows, along(32)]),
            ],
            Self::NvFp4 => vec![
                part(Part::Codes, "weight_packed", DType::U8, &[rows, columns / 2]),
                part(Part::Scales, "weight_scale", DType::F8_E4M3, &[rows, along(16)]),
                part(Part::Global, "weight_global_scale", DType::F32, &[1]),
            ],
            Self::Gptq4 => vec![
                part(Part::Codes, "qweight", DType::I32, &[columns / 8, rows]),
                part(Part::Scales, "scales", DType::F16, &[along(128), rows]),
                part(Part::Zeros, "qzeros", DType::I32, &[along(128), rows / 8]),
                part(Part::Groups, "g_idx", DType::I32, &[columns]),
            ],
            Self::Mlx(bits) => {
                let words = columns * u64::from(bits) / 32;
                let dtype = scale_dtype(info.dtype);
                vec![
                    part(Part::Codes, "weight", DType::U32, &[rows, words]),
                    part(Part::Scales, "scales", dtype, &[rows, along(64)]),
                    part(Part::Biases, "biases", dtype, &[rows, along(64)]),
                ]
            }
        }
    }
}

/// Returns the dtype of MLX's scales, which follows the dtype of the weight.
const fn scale_dtype(weight: DType) -> DType {
    match weight {
        DType::F16 | DType::BF16 => weight,
        _ => DType::F32,
    }
}

/// Part of a weight that a stored tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Codes,
    Scales,
    Biases,
    /// The weight's shape.
    Shape,
    /// The scale of all scales.
    Global,
    /// Zero points, all the same.
    Zeros,
    /// Zero points of groups, with 8 rows in one word.
    ZeroPoints,
    /// The group of each column.
    Groups,
}

/// The tensors as libraries call them.
fn named(tensors: &[TensorInfo], names: &BTreeMap<usize, String>) -> Vec<TensorInfo> {
    let named = tensors.iter().enumerate().map(|(tensor, info)| {
        let name = names.get(&tensor).unwrap_or(&info.name).clone();
        TensorInfo { name, ..info.clone() }
    });
    named.collect()
}

/// Returns `true` if a matrix selects experts. Servers keep such a matrix in floats.
fn is_router(name: &str) -> bool {
    const ENDS: [&str; 4] =
        [".gate.weight", ".router.weight", ".router.layer.weight", ".wg.weight"];
    ENDS.iter().any(|end| name.ends_with(end))
}
