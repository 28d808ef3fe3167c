//! ggml's numbers of element and block types.

use apr_core::DType;

/// Returns ggml's number of a dtype, or `None` if ggml has no such dtype.
///
/// ```
/// assert_eq!(apr_gguf::ggml_type(apr_core::DType::Q4_K), Some(12));
/// ```
#[must_use]
pub fn ggml_type(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::I8 => 24,
        DType::I16 => 25,
        DType::I32 => 26,
        DType::I64 => 27,
        DType::F64 => 28,
        DType::BF16 => 30,
        // APR2 numbers those that it took over from ggml as 64 and ggml's number.
        other => u32::from(other.apr2_code().checked_sub(64)?),
    })
}

/// Returns the dtype with ggml's number.
#[must_use]
pub fn from_ggml_type(number: u32) -> Option<DType> {
    DType::ALL.iter().copied().find(|&dtype| ggml_type(dtype) == Some(number))
}

/// Returns the name of a type that ggml has removed, and advice for files that use it.
pub(crate) fn removed_type(number: u32) -> Option<(&'static str, &'static str)> {
    const NEVER_LONG: &str = "convert the original model again";
    const REPACKED: &str = "quantize the model again as Q4_0, which llama.cpp repacks on loading";
    const REPACKED_NL: &str =
        "quantize the model again as IQ4_NL, which llama.cpp repacks on loading";

    Some(match number {
        4 => ("Q4_2", NEVER_LONG),
        5 => ("Q4_3", NEVER_LONG),
        31 => ("Q4_0_4_4", REPACKED),
        32 => ("Q4_0_4_8", REPACKED),
        33 => ("Q4_0_8_8", REPACKED),
        36 => ("IQ4_NL_4_4", REPACKED_NL),
        37 => ("IQ4_NL_4_8", REPACKED_NL),
        38 => ("IQ4_NL_8_8", REPACKED_NL),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_ggml_is_a_dtype_or_a_removed_one() {
        for number in 0..43 {
            let dtype = from_ggml_type(number);
            assert!(dtype.is_some() != removed_type(number).is_some(), "{number}");
            assert_eq!(dtype.and_then(ggml_type), dtype.map(|_| number));
        }
        assert_eq!((43..200).filter_map(from_ggml_type).count(), 0);
    }
}
