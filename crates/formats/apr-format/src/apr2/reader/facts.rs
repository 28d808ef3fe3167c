//! What the container of an APR2 file states, and the bytes that nothing covers.

use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use apr_core::{
    ByteSource, Code, ContainerFacts, Error, Extent, ExtentKind, Features, FileChecksum, Result,
    Signed,
};
use serde_json::{Value, json};

use super::Apr2Reader;
use crate::apr2::companion::CompanionBytes;
use crate::apr2::header::{Flags, Header};
use crate::apr2::layout::FOOTER_LEN;
use crate::apr2::seal::Seal;

/// Bytes of padding that are read at a time.
const PADDING_READ: u64 = 64 << 10;

impl ContainerFacts for Apr2Reader {
    fn features(&self) -> Features {
        let flags = self.header.flags;
        Features {
            encrypted: flags.contains(Flags::ENCRYPTED),
            signed: flags.contains(Flags::SIGNED) || flags.contains(Flags::LICENSED),
            streaming: flags.contains(Flags::STREAMING),
            alignment: Some(flags.alignment()),
        }
    }

    fn is_locked(&self) -> bool {
        matches!(self.encryption.seal, Seal::Locked)
    }

    fn signed(&self) -> Result<Option<Signed>> {
        let signed = self.trailer.signed(&self.source, &self.header, self.encryption.block_len);
        signed.map_err(|error| error.in_file(&self.files[0].name))
    }

    fn check_uncovered(&self) -> Result<()> {
        let end = self.trailer.footer_offset + u64::from(FOOTER_LEN);
        let stray = if let Some((offset, kind)) = self.trailer.unknown {
            Some((offset, format!("the trailer block '{}' is unknown", kind.escape_ascii())))
        } else if self.source.len() > end {
            Some((end, "bytes follow the file's end".to_string()))
        } else {
            let found = self.first_nonzero_padding(0..self.trailer_offset);
            found
                .map_err(|error| error.in_file(&self.files[0].name))?
                .map(|at| (at, "the padding is not zero".into()))
        };

        match stray {
            Some((offset, what)) => Err(self.uncovered(&what, offset)),
            None => Ok(()),
        }
    }

    fn checksum(&self) -> Option<FileChecksum> {
        let structure = |offset: u64, end: u64| Extent {
            kind: ExtentKind::Structure,
            offset,
            len: end - offset,
        };
        let mut parts = vec![
            structure(0, self.header.metadata_end()),
            structure(self.header.index_offset.into(), self.header.index_end()),
        ];
        let data_offset = u64::from(self.header.data_offset);
        parts.push(structure(data_offset, data_offset + self.encryption.block_len));
        let mut kinds = vec![ExtentKind::Structure; self.stored.len()];
        self.entries
            .iter()
            .enumerate()
            .for_each(|(tensor, &entry)| kinds[entry] = ExtentKind::Tensor(tensor));
        for (companion, bytes) in self.companion_bytes.iter().enumerate() {
            if let CompanionBytes::Tensor(entry, _) = bytes {
                kinds[*entry] = ExtentKind::Companion(companion);
            }
        }

        for (stored, kind) in self.stored.iter().zip(kinds).filter(|(stored, _)| !stored.place.tied)
        {
            parts.push(Extent { kind, offset: stored.place.offset, len: stored.place.len });
        }
        parts.push(structure(self.trailer_offset, self.trailer.footer_offset));
        Some(FileChecksum::over(self.footer.crc32, parts, self.trailer.footer_offset))
    }

    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.source.read_at(offset, buf).map_err(|error| error.in_file(&self.files[0].name))
    }

    fn header_fields(&self) -> Value {
        let Header { version_major, version_minor, flags, .. } = self.header;
        let mut fields = json!({
            "version": format!("{version_major}.{version_minor}"),
            "flags": flags.names(),
            "alignment": flags.alignment(),
            "metadata_offset": self.header.metadata_offset,
            "metadata_size": self.header.metadata_size,
            "index_offset": self.header.index_offset,
            "index_size": self.header.index_size,
            "data_offset": self.header.data_offset,
            "digests": self.trailer.digests.is_some(),
            "crc32": format!("{:#010x}", self.footer.crc32),
            "file_size": self.footer.file_size,
        });

        if self.header.flags.contains(Flags::ENCRYPTED) {
            let (locks, locked) = (&self.encryption.locks, self.is_locked());
            fields["encryption"] =
                json!({ "cipher": "AES-256-GCM", "locks": locks, "locked": locked });
        }
        fields
    }
}

impl Apr2Reader {
    /// Returns the offset of the first padding byte in a part of the file that is not zero.
    pub(in crate::apr2) fn first_nonzero_padding(&self, part: Range<u64>) -> Result<Option<u64>> {
        let extents = self.checksum().map(|checksum| checksum.extents).unwrap_or_default();
        let padding = extents.into_iter().filter(|extent| extent.kind == ExtentKind::Padding);
        for Extent { offset, len, .. } in padding {
            let (start, end) = (offset.max(part.start), (offset + len).min(part.end));
            if let Some(found) = self.first_nonzero_in(start, end)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the offset of the first byte in a part of the file that is not zero.
    pub(super) fn first_nonzero_in(&self, mut at: u64, end: u64) -> Result<Option<u64>> {
        let mut bytes = Vec::new();
        while at < end {
            bytes.resize(usize::try_from((end - at).min(PADDING_READ)).unwrap_or_default(), 0);
            self.source.read_at(at, &mut bytes)?;
            if let Some(found) = bytes.iter().position(|&byte| byte != 0) {
                return Ok(Some(at + found as u64));
            }
            at += bytes.len() as u64;
        }
        Ok(None)
    }

    pub(in crate::apr2) fn uncovered(&self, what: &str, offset: u64) -> Error {
        let message = match self.header.flags.contains(Flags::ENCRYPTED) {
            // Readers reject the file, so that no command writes it without them.
            true => format!(
                "{what}, and neither the encryption nor a signature covers these bytes: the file \
                 is not as it was written"
            ),
            false => format!(
                "{what}, and the signature does not cover these bytes; `apr convert` writes the \
                 model without them"
            ),
        };
        Error::new(Code::Signature, message).at(offset).in_file(&self.files[0].name)
    }
}
