//! The header of an array that is written.

use std::fmt::Write;

use apr_core::{DType, Error, Result};

use crate::header::MAGIC;

/// Returns NumPy's name of a dtype, with its byte order, or `None` if NumPy has no such dtype.
///
/// ```
/// use apr_core::DType;
///
/// assert_eq!(apr_numpy::descr(DType::F32), Some("<f4"));
/// assert_eq!(apr_numpy::descr(DType::BF16), None);
/// ```
#[must_use]
pub fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::BOOL => "|b1",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::I16 => "<i2",
        DType::U16 => "<u2",
        DType::I32 => "<i4",
        DType::U32 => "<u4",
        DType::I64 => "<i8",
        DType::U64 => "<u8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::C64 => "<c8",
        _ => return None,
    })
}

/// Returns the bytes of a `.npy` file before its elements, which follow row by row.
///
/// ```
/// let header = apr_numpy::header("<f4", &[2, 3])?;
/// assert_eq!(header.len() % 64, 0);
/// let text = std::str::from_utf8(&header[10..]).unwrap();
/// assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E003 for more dimensions than fit the header's length.
pub fn header(descr: &str, shape: &[u64]) -> Result<Vec<u8>> {
    const ALIGNMENT: usize = 64;

    let sizes: String = shape.iter().fold(String::new(), |mut text, size| {
        let _ = write!(text, "{size}, ");
        text
    });

    // A tuple of one has its comma; others do without the last.
    let sizes = if shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");

    // NumPy wants the ten bytes before the header, the header and its line break to be a multiple.
    let padding = (ALIGNMENT - (10 + header.len() + 1) % ALIGNMENT) % ALIGNMENT;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let len = u16::try_from(header.len())
        .map_err(|_| Error::version("an .npy header can't hold this many dimensions"))?;
    let mut bytes = [MAGIC, &[1, 0]].concat();
    bytes.extend(len.to_le_bytes());
    bytes.extend(header.as_bytes());
    Ok(bytes)
}
