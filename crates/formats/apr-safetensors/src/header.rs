//! The header: what it holds, its limits, and its bytes.

use std::fmt::Write;

use apr_core::{Error, Result, TensorInfo};

use crate::dtype::dtype_name;
use crate::names::METADATA;
use crate::text::Text;

/// Longest header the reference library reads, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Bytes of the header's length in front of it.
pub(crate) const LENGTH_BYTES: u64 = 8;

/// Maximum number of dimensions, as in NumPy and PyTorch. A shape of a million dimensions would
/// make any message about it as long.
pub(crate) const MAX_DIMS: usize = 64;

/// A parsed header; names are checked and unique, ranges are not checked.
#[derive(Debug, Default)]
pub(crate) struct Header {
    pub(crate) text: Option<Text>,
    pub(crate) entries: Vec<Entry>,
}

/// A tensor as the header describes it. The range counts from the first byte after the header.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) info: TensorInfo,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl Header {
    /// Returns the bytes before the data: length, JSON, padding. The range of each entry follows
    /// the range of the previous one.
    pub(crate) fn encode(text: Option<&Text>, entries: &[(&TensorInfo, u64)]) -> Result<Vec<u8>> {
        let mut json = String::from("{");
        if let Some(Text(pairs)) = text {
            push_quoted(&mut json, METADATA);
            json.push_str(":{");
            for (i, (key, text)) in pairs.iter().enumerate() {
                if i > 0 {
                    json.push(',');
                }
                push_quoted(&mut json, key);
                json.push(':');
                push_quoted(&mut json, text);
            }
            json.push('}');
        }

        let mut begin = 0_u64;
        for (info, len) in entries {
            let end = begin
                .checked_add(*len)
                .ok_or_else(|| Error::memory("the tensors exceed 2^64 bytes"))?;
            if json.len() > 1 {
                json.push(',');
            }
            encode_entry(&mut json, info, begin, end)?;
            begin = end;
        }

        json.push('}');

        let padded = json.len().next_multiple_of(8);
        check_header_len(padded as u64)?;
        let mut bytes = (padded as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.resize(8 + padded, b' ');
        Ok(bytes)
    }
}

fn encode_entry(json: &mut String, info: &TensorInfo, begin: u64, end: u64) -> Result<()> {
    let dtype = dtype_name(info.dtype).ok_or_else(|| {
        let message =
            format!("safetensors does not support {}; `dequantize` f16 writes floats", info.dtype);
        Error::format(message).for_tensor(&info.name)
    })?;
    let shape: Vec<_> = info.shape.dims().iter().map(u64::to_string).collect();
    push_quoted(json, &info.name);
    write!(
        json,
        r#":{{"dtype":"{dtype}","shape":[{}],"data_offsets":[{begin},{end}]}}"#,
        shape.join(",")
    )
    .unwrap_or_else(|_| unreachable!("a string accepts every write"));
    Ok(())
}

fn push_quoted(json: &mut String, text: &str) {
    *json += &apr_core::json::to_string(text)
        .unwrap_or_else(|_| unreachable!("every string has a JSON form"));
}

/// Refuses a header that no reader would take.
pub(crate) fn check_header_len(len: u64) -> Result<()> {
    if len > MAX_HEADER {
        return Err(Error::memory(format!(
            "the header takes {len} bytes; the format's limit is {MAX_HEADER}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use apr_core::Code;

    use super::*;

    #[test]
    fn the_formats_limit_is_the_longest_header_that_is_written() {
        assert!(check_header_len(100_000_000).is_ok());
        assert_eq!(check_header_len(100_000_001).expect_err("one too many").code(), Code::Memory);
    }
}
