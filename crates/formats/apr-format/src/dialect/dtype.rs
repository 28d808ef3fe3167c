//! Dtypes of aprender and apr-cli by their numbers, and how their bytes are presented.

use alloc::format;

use apr_core::{DType, Error, Result, Shape};

use crate::older::{Codec, Encoding, Packed, Scale};

/// Quants in a block of AprQ4, and its bytes.
const Q4_BLOCK: (u64, u64) = (32, 18);

/// Returns the dtype and encoding of a tensor with the dtype number `code` and `len` stored bytes.
/// `is_0_20` is the dialect that starts with `APR2`.
///
/// # Errors
/// E003 for an unknown number, E002 when length and shape do not go together.
pub(super) fn presented(
    code: u8,
    is_0_20: bool,
    shape: &Shape,
    len: u64,
) -> Result<(DType, Encoding)> {
    let plain = match code {
        0 => DType::F32,
        1 => DType::F16,
        2 if is_0_20 => DType::BF16,
        3 => DType::F64,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::I8,
        7 => DType::U8,
        8 | 128 => return aprq4(shape, len),
        9 | 129 => return aprq8(shape, len),
        12 => return k_quant(DType::Q4_K, shape, len),
        14 => return k_quant(DType::Q6_K, shape, len),
        30 => DType::BF16,
        _ => return Err(Error::version(format!("unknown dtype number {code}"))),
    };

    if plain.stored_len(shape) == Some(len) {
        Ok((plain, Encoding::Plain))
    } else {
        Err(unfit(shape, plain.name(), len))
    }
}

/// Returns `true` if the number is a quantized dtype with scales.
pub(super) fn is_quantized(code: u8) -> bool {
    matches!(code, 8 | 9 | 12 | 14 | 128 | 129)
}

fn unfit(shape: &Shape, name: &str, len: u64) -> Error {
    Error::corrupt(format!("{len} bytes are not the length of the shape {shape} in {name}"))
}

fn blocks(elements: u64, (quants, bytes): (u64, u64)) -> Option<u64> {
    elements.div_ceil(quants).checked_mul(bytes)
}

/// Returns the encoding of a tensor that is presented as floats and whose blocks run on across its
/// rows.
fn flat(shape: &Shape, codec: Codec, block: (u64, u64)) -> Option<(DType, Encoding)> {
    let row_bytes = DType::F32.stored_len(shape).filter(|&bytes| bytes > 0)?;
    let blocks_per_row = shape.elements()?.div_ceil(block.0);
    Some((DType::F32, Encoding::Packed(Packed { codec, blocks_per_row, row_bytes })))
}

fn aprq4(shape: &Shape, len: u64) -> Result<(DType, Encoding)> {
    let elements = shape.elements().filter(|&elements| blocks(elements, Q4_BLOCK) == Some(len));
    let elements = elements.ok_or_else(|| unfit(shape, "AprQ4", len))?;
    if elements == 0 || shape.row_len().is_multiple_of(Q4_BLOCK.0) {
        // Rows of whole blocks follow one another without padding: all of them are one.
        let packed = Packed {
            codec: Codec::Q4Turned,
            blocks_per_row: elements / Q4_BLOCK.0,
            row_bytes: len,
        };
        return Ok((
            DType::Q4_0,
            if elements == 0 { Encoding::Plain } else { Encoding::Packed(packed) },
        ));
    }

    flat(shape, Codec::Q4Floats, Q4_BLOCK).ok_or_else(|| unfit(shape, "AprQ4", len))
}

fn aprq8(shape: &Shape, len: u64) -> Result<(DType, Encoding)> {
    let elements = shape
        .elements()
        .filter(|elements| elements.checked_add(4) == Some(len) || (*elements, len) == (0, 0));
    let elements = elements.ok_or_else(|| unfit(shape, "AprQ8", len))?;
    DType::I8_ROW.stored_len(shape).ok_or_else(|| unfit(shape, "AprQ8", len))?;
    // One row is stored as it is presented.
    let is_row = elements > 0 && elements == shape.row_len();
    let scaled = Encoding::Scaled { scale: Scale::Stored, row_len: shape.row_len() };
    Ok((DType::I8_ROW, if is_row { Encoding::Plain } else { scaled }))
}

fn k_quant(dtype: DType, shape: &Shape, len: u64) -> Result<(DType, Encoding)> {
    if dtype.stored_len(shape) == Some(len) {
        return Ok((dtype, Encoding::Plain));
    }

    let block = (dtype.block_len(), dtype.block_bytes());
    let codec = Codec::KQuant(dtype);
    let unfit = || unfit(shape, dtype.name(), len);

    // Matrices are padded row by row, anything else at its end.
    let padded = blocks(shape.row_len(), block).and_then(|row| row.checked_mul(shape.rows()?));
    if shape.dims().len() == 2 && padded == Some(len) {
        DType::F32.stored_len(shape).filter(|&bytes| bytes > 0).ok_or_else(unfit)?;
        let blocks_per_row = shape.row_len().div_ceil(block.0);
        let packed = Packed { codec, blocks_per_row, row_bytes: 4 * shape.row_len() };
        return Ok((DType::F32, Encoding::Packed(packed)));
    }

    let is_flat = shape.elements().and_then(|elements| blocks(elements, block)) == Some(len);
    flat(shape, codec, block).filter(|_| is_flat).ok_or_else(unfit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: u8, dims: &[u64], len: u64) -> Result<DType> {
        presented(code, false, &dims.to_vec().into(), len).map(|(dtype, _)| dtype)
    }

    #[test]
    fn whole_blocks_stay_blocks_and_others_become_floats() {
        assert_eq!(of(128, &[2, 64], 4 * 18), Ok(DType::Q4_0));
        assert_eq!(of(8, &[2, 48], 3 * 18), Ok(DType::F32));
        assert_eq!(of(129, &[2, 48], 4 + 96), Ok(DType::I8_ROW));
        assert_eq!(of(9, &[0, 48], 0), Ok(DType::I8_ROW));
        assert_eq!(of(12, &[3, 256], 3 * 144), Ok(DType::Q4_K));
        assert_eq!(of(12, &[3, 32], 3 * 144), Ok(DType::F32));
        assert_eq!(of(14, &[300], 2 * 210), Ok(DType::F32));
        assert_eq!(of(14, &[2, 3, 100], 3 * 210), Ok(DType::F32));
        assert_eq!(presented(2, true, &[3].into(), 6).map(|(dtype, _)| dtype), Ok(DType::BF16));
    }

    #[test]
    fn lengths_that_do_not_fit_and_unknown_numbers_are_refused() {
        let huge = [u64::MAX, u64::MAX];
        for code in [0, 1, 3, 4, 5, 6, 7, 8, 9, 12, 14, 30, 128, 129] {
            assert!(of(code, &[3, 5], 1).is_err(), "{code}");
            assert!(of(code, &huge, 64).is_err(), "{code}");
            assert!(of(code, &[1 << 62], 4).is_err(), "{code}");
            assert!(of(code, &[u64::MAX - 2, 1], u64::MAX).is_err(), "{code}");
        }
        for code in [2, 10, 13, 31, 127, 255] {
            assert!(of(code, &[], 4).is_err(), "{code}");
        }
    }
}
