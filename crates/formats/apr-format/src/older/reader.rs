//! A file of an older APR format, opened.

use alloc::format;

use apr_core::{Result, SharedSource, StoredRange, Table, TensorBytes, TensorDecoder};
use serde_json::Value;

use super::{Encoding, Entry, Parts};

/// Returns the table of an APR1 file, or of one of a v2 dialect, after checking the position of
/// every part.
///
/// # Errors
/// See [`Parts::settle`].
pub(crate) fn table(source: SharedSource, name: &str, mut parts: Parts) -> Result<Table> {
    let checksum = parts.settle(&source)?;
    let Parts { format, metadata, tensors, header, warnings, mut made, .. } = parts;
    let mut table = Table::of_file(format, name, source);
    table.metadata = metadata;
    if let Value::Object(fields) = header {
        table.fields = fields;
    }
    let crc = checksum.as_ref().map(|checksum| format!("{:#010x}", checksum.crc32));
    table.show("crc32", crc);
    table.checksum = checksum;
    table.warnings = warnings;
    for Entry { info, offset, len, encoding } in tensors {
        let range = StoredRange { file: 0, offset, len };
        let bytes = match encoding {
            Encoding::Plain => TensorBytes::Plain(range),
            Encoding::Made(at) => {
                let bytes = made.get_mut(at).map(core::mem::take).unwrap_or_default();
                TensorBytes::in_memory(range, bytes)
            }
            encoding => TensorBytes::decoded(Encoded { encoding, range }),
        };
        table.add(info, bytes)?;
    }
    Ok(table)
}

/// A tensor in a layout of its format.
struct Encoded {
    encoding: Encoding,
    range: StoredRange,
}

impl TensorDecoder for Encoded {
    fn range(&self) -> StoredRange {
        self.range
    }

    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        self.encoding.read(&sources[0], self.range.offset, offset, buf)
    }
}
