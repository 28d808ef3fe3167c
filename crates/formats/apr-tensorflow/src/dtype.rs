//! TensorFlow's types of elements (`tensorflow/core/framework/types.proto`).

use apr_core::{DType, Error, Result};

/// The number of text.
pub(crate) const STRING: u64 = 7;

/// Names, and the dtypes that they are read as, from number 1 on.
const TYPES: [(&str, Option<DType>); 30] = [
    ("float32", Some(DType::F32)),
    ("float64", Some(DType::F64)),
    ("int32", Some(DType::I32)),
    ("uint8", Some(DType::U8)),
    ("int16", Some(DType::I16)),
    ("int8", Some(DType::I8)),
    ("string", None),
    ("complex64", Some(DType::C64)),
    ("int64", Some(DType::I64)),
    ("bool", Some(DType::BOOL)),
    ("qint8", Some(DType::I8)),
    ("quint8", Some(DType::U8)),
    ("qint32", Some(DType::I32)),
    ("bfloat16", Some(DType::BF16)),
    ("qint16", Some(DType::I16)),
    ("quint16", Some(DType::U16)),
    ("uint16", Some(DType::U16)),
    ("complex128", None),
    ("float16", Some(DType::F16)),
    ("resource", None),
    ("variant", None),
    ("uint32", Some(DType::U32)),
    ("uint64", Some(DType::U64)),
    ("float8_e5m2", Some(DType::F8_E5M2)),
    ("float8_e4m3fn", Some(DType::F8_E4M3)),
    ("float8_e4m3fnuz", Some(DType::F8_E4M3FNUZ)),
    ("float8_e4m3b11fnuz", None),
    ("float8_e5m2fnuz", Some(DType::F8_E5M2FNUZ)),
    ("int4", None),
    ("uint4", None),
];

/// Offset that is added to a type's number for references, such as the variables of TensorFlow 1.
const REFERENCE: u64 = 100;

fn entry(number: u64) -> Option<&'static (&'static str, Option<DType>)> {
    let number = if number > REFERENCE { number - REFERENCE } else { number };
    TYPES.get(usize::try_from(number).ok()?.checked_sub(1)?)
}

/// Returns the name of an element type, or its number for types of later versions.
pub(crate) fn name(number: u64) -> String {
    entry(number).map_or_else(|| format!("type {number}"), |(name, _)| (*name).to_owned())
}

/// The dtype of elements.
///
/// # Errors
/// E003 for those that no format here holds.
pub(crate) fn dtype(number: u64) -> Result<DType> {
    let dtype = entry(number).and_then(|(_, dtype)| *dtype);
    dtype
        .ok_or_else(|| Error::version(format!("no format here holds elements of {}", name(number))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_the_type_of_the_referenced_elements() {
        assert_eq!((name(103), dtype(103).unwrap()), ("int32".to_owned(), DType::I32));
        assert_eq!((name(100), name(200)), ("type 100".to_owned(), "type 200".to_owned()));
    }
}
