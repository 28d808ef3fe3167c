//! Dtypes that llama.cpp needs tensors in, and the file type that it records.

use std::collections::BTreeMap;

use apr_quantize::{Scheme, recorded_scheme};
use apr_registry::{DType, Metadata, TensorInfo};

/// The file type of the scheme that the checkpoint was quantized by, as its metadata record it.
pub(super) fn recorded_file_type(metadata: &Metadata) -> Option<u32> {
    Scheme::parse(&recorded_scheme(metadata)?).ok()?.file_type()
}

/// Ends of names of matrices that stay in single precision.
const SINGLE: [&str; 7] = [
    ".ffn_gate_inp.weight",
    ".ffn_gate_inp_shexp.weight",
    "_norm.weight",
    ".ssm_conv1d.weight",
    ".shortconv.conv.weight",
    ".altup_correct_coef.weight",
    ".altup_predict_coef.weight",
];

/// Names of tables that stay in single precision, and of the second frame's kernel, which does not.
const TABLES: [&str; 3] = ["position_embd.weight", "token_types.weight", "v.position_embd.weight"];
const SECOND_FRAME: &str = "v.patch_embd.weight.1";

/// Beginnings of names of kernels over images, which are not computed with in `bfloat16`.
const KERNELS: [&str; 2] = ["v.patch_embd.weight", "mm.patch_merger.weight"];

/// The dtype that llama.cpp needs a tensor in: that which the family's table states, or single
/// precision for vectors, norms, routers and tables of positions. Doubles and 8-bit floats, which
/// it does not know, become what holds them best.
pub(super) fn required_dtype(info: &TensorInfo, stated: Option<DType>) -> Option<DType> {
    let name = info.name.as_str();
    let is_listed = SINGLE.iter().any(|end| name.ends_with(end))
        || TABLES.contains(&name)
        || !name.ends_with(".weight") && name != SECOND_FRAME;
    let is_kernel = KERNELS.iter().any(|beginning| name.starts_with(beginning));
    let dtype = match info.dtype {
        from if from.is_quantized() => return None,
        _ if info.shape.dims().len() <= 1 || is_listed => DType::F32,
        _ if let Some(stated) = stated => stated,
        DType::BF16 if is_kernel => DType::F32,
        DType::F64 => DType::F32,
        DType::F8_E4M3 | DType::F8_E5M2 | DType::F8_E4M3FNUZ | DType::F8_E5M2FNUZ => DType::BF16,
        from => from,
    };

    (dtype != info.dtype).then_some(dtype)
}

/// llama.cpp's number of a file whose matrices are mostly of one dtype, `general.file_type`: that
/// of most elements.
#[must_use]
pub fn file_type<'t>(tensors: impl Iterator<Item = (&'t TensorInfo, DType)>) -> u32 {
    let mut elements: BTreeMap<DType, u64> = BTreeMap::new();
    for (info, dtype) in tensors.filter(|(info, _)| info.shape.dims().len() > 1) {
        let count = elements.entry(dtype).or_default();
        *count = count.saturating_add(info.shape.elements().unwrap_or_default());
    }

    // Single precision is what stays beside every other dtype.
    let most =
        elements.iter().filter(|(dtype, _)| **dtype != DType::F32).max_by_key(|(_, count)| **count);
    match most.map_or(DType::F32, |(dtype, _)| *dtype) {
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q8_0 => 7,
        DType::Q5_0 => 8,
        DType::Q5_1 => 9,
        DType::Q2_K => 10,
        DType::Q3_K => 12,
        DType::Q4_K => 15,
        DType::Q5_K => 17,
        DType::Q6_K => 18,
        DType::IQ2_XXS => 19,
        DType::IQ2_XS => 20,
        DType::IQ3_XXS => 23,
        DType::IQ1_S => 24,
        DType::IQ4_NL => 25,
        DType::IQ3_S => 26,
        DType::IQ2_S => 28,
        DType::IQ4_XS => 30,
        DType::IQ1_M => 31,
        DType::BF16 => 32,
        DType::TQ1_0 => 36,
        DType::TQ2_0 => 37,
        DType::MXFP4 => 38,
        DType::NVFP4 => 39,
        DType::Q1_0 => 40,
        DType::Q2_0 => 41,
        _ => 0,
    }
}
