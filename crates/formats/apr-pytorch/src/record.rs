//! Entries of an archive as PyTorch writes them, byte for byte.
//!
//! Streaming decides the form: an entry's checksum is known only after its bytes, so it follows
//! them in a data descriptor (APPNOTE 4.3.9), and the header in front says zero. PyTorch writes
//! that too, since its ZIP library does. Everything else is known beforehand, the length of the
//! whole archive included. Where a number exceeds 32 bits its place is in the ZIP64 extra field;
//! `torch.load` may compute offsets from exactly these rules
//! (`torch.utils.serialization.config.load.calculate_storage_offsets`), so they are followed even
//! where APPNOTE leaves a choice. Only one of the two sizes in front of an entry over 4 GiB, which
//! PyTorch leaves zero, is as it is.

use apr_core::{Error, Result};

/// Contents start at multiples of this, for memory maps and wide loads.
const ALIGNMENT: u64 = 64;

const LOCAL_LEN: u64 = 30;
const CENTRAL_LEN: u64 = 46;
const END64_LEN: u64 = 56;
const LOCATOR_LEN: u64 = 20;
const END_LEN: u64 = 22;

/// Id and length in front of an extra field.
const EXTRA_HEAD: u64 = 4;

/// Smallest number that needs the ZIP64 extra field. Its 32-bit field then has this value.
const WIDE: u64 = u32::MAX as u64;

/// Flags: the name is UTF-8; checksum and sizes follow the content.
const UTF8: u16 = 1 << 11;
const SIZES_FOLLOW: u16 = 1 << 3;

/// A stored entry with its place in the archive.
#[derive(Debug)]
pub(crate) struct Record {
    name: String,
    pub(crate) len: u64,
    header: u64,
    /// Offset of the content.
    pub(crate) offset: u64,
    /// Offset of the byte after the entry.
    pub(crate) end: u64,
}

impl Record {
    /// An entry whose header is at this offset.
    pub(crate) fn new(name: String, len: u64, header: u64) -> Result<Self> {
        let mut record = Self { name, len, header, offset: 0, end: 0 };
        let fixed =
            LOCAL_LEN + record.name.len() as u64 + record.wide_fields().len() as u64 + EXTRA_HEAD;
        let offset =
            header.checked_add(fixed).and_then(|offset| offset.checked_next_multiple_of(ALIGNMENT));
        let end = offset.and_then(|offset| {
            offset.checked_add(len)?.checked_add(record.descriptor(0).len() as u64)
        });
        let places = offset.zip(end).ok_or_else(|| Error::memory("the archive exceeds 2^64 bytes"));
        (record.offset, record.end) = places?;
        Ok(record)
    }

    fn flags(&self) -> u16 {
        if self.len > 0 { UTF8 | SIZES_FOLLOW } else { UTF8 }
    }

    /// The ZIP64 extra field, which only large or far entries have.
    fn wide_fields(&self) -> Vec<u8> {
        let sizes = if self.len >= WIDE { &[self.len, self.len][..] } else { &[] };
        let place = (self.header >= WIDE).then_some(self.header);
        let values: Vec<u8> =
            sizes.iter().copied().chain(place).flat_map(u64::to_le_bytes).collect();
        if values.is_empty() {
            return values;
        }
        [&1_u16.to_le_bytes()[..], &narrow16(values.len() as u64), &values].concat()
    }

    /// Returns the bytes before the content: the header, and padding up to the alignment.
    pub(crate) fn local(&self) -> Vec<u8> {
        let wide = self.wide_fields();
        let start =
            self.header + LOCAL_LEN + self.name.len() as u64 + wide.len() as u64 + EXTRA_HEAD;
        let padding = self.offset - start;
        let mut bytes = b"PK\x03\x04\0\0".to_vec();
        bytes.extend(self.flags().to_le_bytes());

        // Method, time, checksum and sizes: stored, never, and after the content.
        bytes.extend([0; 18]);
        bytes.extend(narrow16(self.name.len() as u64));
        bytes.extend(narrow16(wide.len() as u64 + EXTRA_HEAD + padding));
        bytes.extend(self.name.as_bytes());
        bytes.extend(wide);

        // PyTorch's own field for padding, which it fills with `Z`.
        bytes.extend(b"FB");
        bytes.extend(narrow16(padding));
        bytes.extend((0..padding).map(|_| b'Z'));
        bytes
    }

    /// Returns the bytes after the content: its checksum and, twice, its size.
    ///
    /// Empty for empty content.
    pub(crate) fn descriptor(&self, crc32: u32) -> Vec<u8> {
        if self.len == 0 {
            return Vec::new();
        }
        let mut bytes = b"PK\x07\x08".to_vec();
        bytes.extend(crc32.to_le_bytes());
        // With a ZIP64 field, readers take eight bytes for each size (APPNOTE 4.3.9.2).
        if self.len >= WIDE || self.header >= WIDE {
            bytes.extend([self.len; 2].map(u64::to_le_bytes).as_flattened());
        } else {
            bytes.extend([narrow32(self.len); 2].as_flattened());
        }
        bytes
    }

    /// The entry of the directory.
    pub(crate) fn central(&self, crc32: u32) -> Vec<u8> {
        let wide = self.wide_fields();
        let mut bytes = b"PK\x01\x02\0\0\0\0".to_vec();
        bytes.extend(self.flags().to_le_bytes());
        bytes.extend([0; 6]);
        bytes.extend(crc32.to_le_bytes());
        bytes.extend([narrow32(self.len); 2].as_flattened());
        bytes.extend(narrow16(self.name.len() as u64));
        bytes.extend(narrow16(wide.len() as u64));

        // Comment, disk and attributes.
        bytes.extend([0; 10]);
        bytes.extend(narrow32(self.header));
        bytes.extend(self.name.as_bytes());
        bytes.extend(wide);
        bytes
    }

    pub(crate) fn central_len(&self) -> u64 {
        CENTRAL_LEN + self.name.len() as u64 + self.wide_fields().len() as u64
    }
}

/// Bytes of [`end_records`].
pub(crate) const END_RECORDS_LEN: u64 = END64_LEN + LOCATOR_LEN + END_LEN;

/// Returns the records after the directory. PyTorch writes the ZIP64 record in every archive.
pub(crate) fn end_records(count: u64, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = b"PK\x06\x06".to_vec();
    bytes.extend((END64_LEN - 12).to_le_bytes());
    // Made on Unix by a version 3.0, to be read by 4.5, which is when ZIP64 came; disks 0 and 0.
    bytes.extend(b"\x1e\x03\x2d\0\0\0\0\0\0\0\0\0");
    bytes.extend([count, count, len, offset].map(u64::to_le_bytes).as_flattened());
    bytes.extend(b"PK\x06\x07\0\0\0\0");
    bytes.extend((offset + len).to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([narrow16(count); 2].as_flattened());
    bytes.extend([len, offset].map(narrow32).as_flattened());
    bytes.extend([0; 2]);
    bytes
}

/// Encodes a number in 32 bits, or the largest value if the number is in a wider field.
fn narrow32(value: u64) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
}

fn narrow16(value: u64) -> [u8; 2] {
    u16::try_from(value).unwrap_or(u16::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_known_before_the_bytes() {
        let wide = u64::from(u32::MAX);
        for len in [0, 1, wide - 1, wide, wide + 1, 1 << 40] {
            for header in [0, 64, 65, wide - 1, wide, 1 << 40] {
                let record = Record::new("m/data/0".into(), len, header).expect("below 2^64");
                assert_eq!(record.offset % ALIGNMENT, 0);
                assert_eq!(record.offset, header + record.local().len() as u64);
                assert_eq!(record.end, record.offset + len + record.descriptor(0).len() as u64);
                assert_eq!(record.central_len(), record.central(0).len() as u64);
            }
        }
        assert!(Record::new("m".into(), u64::MAX - 64, 0).is_err());
        assert!(Record::new("m".into(), 0, u64::MAX - 64).is_err());
        assert_eq!(end_records(1, 2, 3).len() as u64, END_RECORDS_LEN);
    }
}
