//! Where things lie: ranges, overlaps, the checksum at the end, and what it covers.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use apr_core::{
    ByteSource, Error, Escaped, Extent, ExtentKind, FileChecksum, Format, Metadata, Result,
    TensorInfo,
};
use serde_json::Value;

use super::Encoding;

/// Length of the checksum at the end, in bytes.
const CRC_LEN: u64 = 4;

/// A tensor of the index.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// The tensor as it is presented.
    pub(crate) info: TensorInfo,
    /// Offset from the start of the file, in bytes.
    pub(crate) offset: u64,
    /// Bytes stored.
    pub(crate) len: u64,
    pub(crate) encoding: Encoding,
}

/// Bytes after the front that belong to no tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Contents of the front of a file.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) format: &'static Format,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<Entry>,
    pub(crate) header: Value,
    pub(crate) warnings: Vec<String>,
    /// The front, and other ranges that are not tensors.
    pub(crate) sections: Vec<Section>,
    /// Bytes of tensors that the file has as text.
    pub(crate) made: Vec<Vec<u8>>,
    /// The end of the data is padded to a multiple of this, in bytes.
    pub(crate) alignment: u64,
}

impl Parts {
    /// Puts the tensors into the order of their bytes, and finds the checksum.
    ///
    /// # Errors
    /// E001 when two tensors share a name, E002 when ranges end past the file or share bytes, or
    /// the file ends inside its checksum; E007 when reading fails.
    pub(super) fn settle(&mut self, source: &dyn ByteSource) -> Result<Option<FileChecksum>> {
        check_names(&self.tensors)?;
        for entry in &self.tensors {
            check_range(entry, source.len())?;
        }
        self.tensors.sort_by_key(|entry| (entry.offset, entry.len));
        check_overlaps(&self.tensors)?;
        let ends = self.tensors.iter().map(|entry| entry.offset + entry.len);
        let end =
            ends.chain(self.sections.iter().map(|part| part.offset + part.len)).max().unwrap_or(0);
        let Some(crc_offset) = self.checksum_offset(end, source.len())? else { return Ok(None) };
        let mut crc = [0; 4];
        source.read_at(crc_offset, &mut crc)?;
        Ok(Some(FileChecksum::over(u32::from_le_bytes(crc), self.parts(), crc_offset)))
    }

    fn checksum_offset(&mut self, end: u64, len: u64) -> Result<Option<u64>> {
        let padded = end.checked_next_multiple_of(self.alignment).unwrap_or(end);
        if len == end || len == padded {
            self.warnings.push("no CRC-32 at the end of the file: damage can't be detected".into());
            return Ok(None);
        }

        if len < padded + CRC_LEN && len != end + CRC_LEN {
            return Err(
                Error::corrupt("the file is truncated: it ends inside its checksum").at(len)
            );
        }

        if len > padded + CRC_LEN {
            let unknown = len - padded - CRC_LEN;
            self.warnings.push(format!("{unknown} unknown bytes after the last tensor"));
        }

        Ok(Some(len - CRC_LEN))
    }

    /// Returns the parts without their padding. A tensor that is presented in another layout than
    /// it is stored in counts as structure, because a pass does not read its stored bytes.
    fn parts(&self) -> Vec<Extent> {
        let sections = self.sections.iter().map(|part| Extent {
            kind: ExtentKind::Structure,
            offset: part.offset,
            len: part.len,
        });
        let tensors = self.tensors.iter().enumerate().map(|(at, entry)| {
            let plain = entry.encoding == Encoding::Plain;
            let kind = if plain { ExtentKind::Tensor(at) } else { ExtentKind::Structure };
            Extent { kind, offset: entry.offset, len: entry.len }
        });
        sections.chain(tensors).collect()
    }
}

fn check_names(tensors: &[Entry]) -> Result<()> {
    let mut names = BTreeSet::new();
    match tensors.iter().find(|entry| !names.insert(entry.info.name.as_str())) {
        Some(twice) => Err(Error::format("duplicate tensor name").for_tensor(&twice.info.name)),
        None => Ok(()),
    }
}

fn check_range(entry: &Entry, file_len: u64) -> Result<()> {
    let Entry { offset, len, .. } = *entry;
    if offset.checked_add(len).is_some_and(|end| end <= file_len) {
        return Ok(());
    }
    let message =
        format!("its {len} bytes at {offset} end past the file, which has {file_len} bytes");
    Err(Error::corrupt(message).for_tensor(&entry.info.name))
}

fn check_overlaps(tensors: &[Entry]) -> Result<()> {
    let mut taken: Option<&Entry> = None;
    for entry in tensors.iter().filter(|entry| entry.len > 0) {
        if let Some(previous) =
            taken.filter(|previous| entry.offset < previous.offset + previous.len)
        {
            let other = Escaped::short(&previous.info.name);
            let message = format!("it shares bytes with '{other}'");
            return Err(Error::corrupt(message).for_tensor(&entry.info.name).at(entry.offset));
        }
        taken = Some(entry);
    }
    Ok(())
}
