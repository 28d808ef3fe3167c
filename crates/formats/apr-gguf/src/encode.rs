//! Encoding headers: version 3, little-endian.

use apr_core::{Error, KeyValues, Result, TensorInfo};

use crate::dtype::ggml_type;
use crate::header::{MAGIC, MAX_DIMS, VERSION};
use crate::open_file::MAX_NAME;

/// Maximum number of bytes between the header and the data.
const LARGEST_PADDING: usize = 1 << 16;

/// Encodes everything that precedes the data, without the padding after it; offsets are from the
/// start of the data.
pub(crate) fn header(pairs: &KeyValues, entries: &[(&TensorInfo, u64)]) -> Result<Vec<u8>> {
    // Names are shorter than this, and the rest of an entry is at most 56 bytes.
    let mut out = Vec::with_capacity(
        pairs.encoded().len() + entries.len() * (MAX_NAME + 56) + LARGEST_PADDING,
    );
    out.extend_from_slice(&MAGIC);
    out.extend(VERSION.to_le_bytes());
    put_len(&mut out, entries.len());
    put_len(&mut out, pairs.len());
    out.extend_from_slice(pairs.encoded());
    for &(info, offset) in entries {
        put_text(&mut out, &info.name);
        let (dims, number) = check_tensor(info)?;
        out.extend(dims.to_le_bytes());
        // Innermost first.
        out.extend(info.shape.dims().iter().rev().flat_map(|dim| dim.to_le_bytes()));
        out.extend(number.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }

    Ok(out)
}

/// The number of dimensions and ggml's type of a tensor, which the format and llama.cpp can take.
pub(crate) fn check_tensor(info: &TensorInfo) -> Result<(u32, u32)> {
    let TensorInfo { name, dtype, shape } = info;
    let refuse = |problem: String| Err(Error::format(problem).for_tensor(name));
    let Some(number) = ggml_type(*dtype) else {
        return refuse(format!(
            "GGUF does not support {dtype}; cast or quantize it, or leave the tensor out"
        ));
    };
    if name.len() >= MAX_NAME {
        let limit = MAX_NAME - 1;
        return refuse(format!(
            "its name has {} bytes, and llama.cpp takes {limit} at most",
            name.len()
        ));
    }

    match u32::try_from(shape.dims().len()) {
        Ok(dims) if dims <= MAX_DIMS => Ok((dims, number)),
        _ => refuse(format!(
            "{} dimensions; a ggml tensor has {MAX_DIMS} at most",
            shape.dims().len()
        )),
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend((len as u64).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend(text.as_bytes());
}
