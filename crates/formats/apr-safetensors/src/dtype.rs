//! Dtypes of the format.

use apr_core::DType;

/// Names in the order the reference library sorts by: rising alignment.
const DTYPES: [(&str, DType); 22] = [
    ("BOOL", DType::BOOL),
    ("F4", DType::F4_E2M1),
    ("F6_E2M3", DType::F6_E2M3),
    ("F6_E3M2", DType::F6_E3M2),
    ("U8", DType::U8),
    ("I8", DType::I8),
    ("F8_E5M2", DType::F8_E5M2),
    ("F8_E4M3", DType::F8_E4M3),
    ("F8_E8M0", DType::F8_E8M0),
    ("F8_E4M3FNUZ", DType::F8_E4M3FNUZ),
    ("F8_E5M2FNUZ", DType::F8_E5M2FNUZ),
    ("I16", DType::I16),
    ("U16", DType::U16),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("I32", DType::I32),
    ("U32", DType::U32),
    ("F32", DType::F32),
    ("C64", DType::C64),
    ("F64", DType::F64),
    ("I64", DType::I64),
    ("U64", DType::U64),
];

/// Returns the dtype with this name in headers, or `None` for names that the format does not have.
///
/// ```
/// use apr_core::DType;
///
/// assert_eq!(apr_safetensors::dtype_from_name("F4"), Some(DType::F4_E2M1));
/// assert_eq!(apr_safetensors::dtype_from_name("f32"), None);
/// ```
#[must_use]
pub fn dtype_from_name(name: &str) -> Option<DType> {
    DTYPES.iter().find(|(known, _)| *known == name).map(|&(_, dtype)| dtype)
}

/// Returns the name of `dtype` in a header, or `None` for quantized blocks, which the format can't
/// describe.
///
/// ```
/// use apr_core::DType;
///
/// assert_eq!(apr_safetensors::dtype_name(DType::BF16), Some("BF16"));
/// assert_eq!(apr_safetensors::dtype_name(DType::Q4_0), None);
/// ```
#[must_use]
pub fn dtype_name(dtype: DType) -> Option<&'static str> {
    rank(dtype).map(|rank| DTYPES[rank].0)
}

/// Position in the reference library's order.
pub(crate) fn rank(dtype: DType) -> Option<usize> {
    DTYPES.iter().position(|&(_, known)| known == dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_but_the_quantized_has_a_name_that_leads_back() {
        for &dtype in DType::ALL {
            assert_eq!(dtype_name(dtype).is_none(), dtype.is_quantized(), "{dtype}");
            assert_eq!(
                dtype_name(dtype).and_then(dtype_from_name),
                (!dtype.is_quantized()).then_some(dtype)
            );
        }
    }
}
