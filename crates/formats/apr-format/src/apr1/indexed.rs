//! The layout of aprender 0.18 to 0.20: metadata and index are JSON.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use apr_core::{
    ByteSource, DType, Error, Limits, Metadata, Result, Shape, TensorInfo, json, keys, read_vec,
};
use serde::Deserialize;
use serde_json::json;

use crate::older::{Encoding, Entry, Fields, Parts, Section, checked_name, disarm, read_front};

/// An entry of the index.
#[derive(Debug, Deserialize)]
struct Described {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    /// Offset from the first tensor, in bytes.
    offset: u64,
    size: u64,
}

/// Reads everything but tensor data.
pub(super) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Parts> {
    let front = read_front(source, 8)?;
    let metadata_len = u64::from(Fields::new(&front[4..], 4).u32("the length of the metadata")?);
    limits.check_metadata(metadata_len).map_err(|error| error.at(4))?;
    let metadata = read_vec(source, 8, metadata_len)?;
    let mut metadata = Metadata::parse(&metadata).map_err(|error| error.at(8))?;
    disarm(&mut metadata);
    let counts_start = 8 + metadata_len;
    let counts = read_vec(source, counts_start, 8)?;
    let mut fields = Fields::new(&counts, counts_start);
    let count = fields.u32("the number of tensors")?;
    let index_len = u64::from(fields.u32("the length of the index")?);
    limits.check_index(index_len).map_err(|error| error.at(counts_start + 4))?;
    let index_start = counts_start + 8;
    let index = read_vec(source, index_start, index_len)?;
    let data_start = index_start + index_len;

    let mut tensors = read_index(&index, index_start, count)?
        .into_iter()
        .map(|json::Object(described)| entry(described, index_start, data_start))
        .collect::<Result<Vec<_>>>()?;
    let mut made = Vec::new();
    if let Some((shape, bytes)) = metadata.inline_filterbank() {
        let info =
            TensorInfo { name: keys::MEL_FILTERBANK_TENSOR.into(), dtype: DType::F32, shape };
        tensors.push(Entry { info, offset: data_start, len: 0, encoding: Encoding::Made(0) });
        made.push(bytes);
        metadata.set(keys::MEL_FILTERBANK, json!({ "tensor": keys::MEL_FILTERBANK_TENSOR }));
    }

    Ok(Parts {
        format: &super::FORMAT,
        metadata,
        tensors,
        header: json!({
            "program": "aprender 0.18 to 0.20",
            "metadata_size": metadata_len,
            "index_offset": index_start,
            "index_size": index_len,
            "data_offset": data_start,
        }),
        warnings: Vec::new(),
        sections: vec![Section { offset: 0, len: data_start }],
        made,
        alignment: 1,
    })
}

fn read_index(bytes: &[u8], start: u64, count: u32) -> Result<Vec<json::Object<Described>>> {
    // The program does not look at the index of no tensors.
    if count == 0 {
        return Ok(Vec::new());
    }
    let text = json::utf8(bytes, "the index", start)?;
    let index: Vec<json::Object<Described>> = serde_json::from_str(text)
        .map_err(|error| json::error(&error, "the index", text, start))?;
    if index.len() as u64 != u64::from(count) {
        let message = format!("the index has {} tensors, its header states {count}", index.len());
        return Err(Error::corrupt(message).at(start));
    }
    Ok(index)
}

fn entry(described: Described, index_start: u64, data_start: u64) -> Result<Entry> {
    let Described { name, dtype, shape, offset, size } = described;
    let name = checked_name(name.as_bytes(), index_start)?;
    let locate = |error: Error| error.for_tensor(&name).at(index_start);
    if shape.len() > Shape::MAX_DIMS {
        let message =
            format!("{} dimensions, more than the limit of {}", shape.len(), Shape::MAX_DIMS);
        return Err(locate(Error::format(message)));
    }

    let dtype = DTYPES
        .iter()
        .find(|(known, _)| *known == dtype)
        .map(|&(_, dtype)| dtype)
        .ok_or_else(|| {
            locate(Error::version(format!("unknown dtype '{}'", apr_core::Escaped::short(&dtype))))
        })?;
    let info = TensorInfo { name: name.clone(), dtype, shape: shape.into() };
    if info.byte_len()? != size {
        let message =
            format!("{size} bytes are not the length of the shape {} in {dtype}", info.shape);
        return Err(locate(Error::corrupt(message)));
    }

    let offset = data_start.checked_add(offset);
    let offset = offset.ok_or_else(|| locate(Error::corrupt("its offset exceeds 2^64")))?;
    Ok(Entry { info, offset, len: size, encoding: Encoding::Plain })
}

/// Names of dtypes; the program wrote the first alone, and names the third in its documentation.
const DTYPES: [(&str, DType); 8] = [
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("I8", DType::I8),
    ("BF16", DType::BF16),
    ("F64", DType::F64),
    ("I32", DType::I32),
    ("I64", DType::I64),
    ("U8", DType::U8),
];
