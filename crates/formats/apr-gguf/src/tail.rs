//! What follows the last tensor: zeros up to the alignment in most files, nothing or anything else
//! in some.
//!
//! A file that comes back byte for byte needs these bytes. Where they are not the usual ones,
//! metadata carry them along:
//!
//! ```text
//! "gguf": {"version": 3, "kv": [...], "tail": {"after": 96, "hex": "00ff"}}
//! ```

use apr_core::{ByteSource, Error, Loss, Metadata, Result, TensorInfo, keys, read_vec};
use serde_json::{Value as Json, json};

use crate::header::Header;

/// Key of the bytes in the metadata's [`keys::GGUF`].
pub(crate) const TAIL: &str = "tail";

/// Maximum number of bytes that are kept after the last tensor: twice the largest alignment that is
/// written.
const MAX_TAIL: u64 = 128 << 10;

/// Bytes after the last tensor that are not the usual zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Offset of the bytes in the data section.
    pub(crate) after: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Tail {
    /// Reads the tail of an opened file whose entries are in the order of their data.
    pub(crate) fn read(
        source: &dyn ByteSource,
        header: &Header,
        data_start: u64,
        file_len: u64,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Self>> {
        let Some(last) = header.entries.last() else { return Ok(None) };
        let len = last.info.byte_len()?;
        let after = last.offset + len;
        let start = data_start + after;
        let (Some(left), Some(padded)) =
            (file_len.checked_sub(start), after.checked_next_multiple_of(header.alignment))
        else {
            return Ok(None);
        };
        let padding = padded - after;
        if len == 0 || left > MAX_TAIL {
            return Ok(None);
        }

        let bytes = read_vec(source, start, left)?;
        if bytes.iter().zip(0..padding).any(|(&byte, _)| byte != 0) {
            warnings.push("the padding after the last tensor is not zero".into());
        }

        let is_usual = left == padding && bytes.iter().all(|&byte| byte == 0);
        Ok((!is_usual).then_some(Self { after, bytes }))
    }

    pub(crate) fn into_json(self) -> Json {
        json!({ "after": self.after, "hex": base16ct::lower::encode_string(&self.bytes) })
    }

    /// Reads the tail in the metadata.
    ///
    /// # Errors
    /// E001 for what is not of the form that readers give.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        let Some(json) = metadata.get(keys::GGUF).and_then(|gguf| gguf.get(TAIL)) else {
            return Ok(None);
        };
        let parse = || {
            let bytes = base16ct::mixed::decode_vec(json.get("hex")?.as_str()?).ok()?;
            if bytes.len() as u64 > MAX_TAIL {
                return None;
            }
            Some(Self { after: json.get("after")?.as_u64()?, bytes })
        };
        let message =
            "the metadata's 'gguf' has a malformed 'tail', the bytes after the last tensor";
        parse().map(Some).ok_or_else(|| Error::format(message))
    }

    /// Returns the loss of bytes that no longer follow the last tensor, unless they are all zero.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.bytes.iter().any(|&byte| byte != 0).then(|| Loss {
            name: format!("{}.{TAIL}", keys::GGUF),
            what: format!("{} bytes after the last tensor", self.bytes.len()),
            why: "the tensors end elsewhere now".into(),
        })
    }
}

/// Returns `true` if the last of these tensors, at `offset` in the data section, ends where the
/// tail was read.
pub(crate) fn still_follows(tail: &Tail, last: Option<&TensorInfo>, offset: u64) -> bool {
    let len = last.and_then(|info| info.byte_len().ok()).unwrap_or_default();
    len > 0 && offset.checked_add(len) == Some(tail.after)
}
