//! Where the parts of a file are, and whether its checksum holds.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use apr_core::digest::Crc32;
use apr_core::{ByteSource, Error, Limits, Result, read_vec};

use super::header::{Flags, Header};
use super::metadata::{DecodedMetadata, ModelMetadata};

/// Bytes of the CRC-32 that ends a file.
pub(super) const CRC_LEN: u32 = 4;
/// Bytes of an Ed25519 signature.
pub(super) const SIGNATURE_LEN: usize = 64;
/// Signature and public key.
const SIGNATURE_BLOCK_LEN: u64 = SIGNATURE_LEN as u64 + 32;

/// A file's structure, read without metadata and payload.
#[derive(Debug, Clone)]
pub(super) struct Container {
    pub(super) header: Header,
    /// Range of the stored payload.
    pub(super) payload: Range<u64>,
    /// Signature, and the key that the file names as its signer.
    pub(super) signature: Option<([u8; SIGNATURE_LEN], [u8; 32])>,
    /// Offset of the checksum, which is the end of the bytes that it covers.
    pub(super) crc_offset: u64,
    /// The checksum as the file states it.
    pub(super) crc32: u32,
    pub(super) warnings: Vec<String>,
}

impl Container {
    /// Reads header, signature and checksum.
    ///
    /// # Errors
    /// E001 when it is not APRN, E002 when parts are missing, E003 for another version.
    pub(super) fn locate(source: &dyn ByteSource) -> Result<Self> {
        let header = read_header(source)?;
        let metadata_end = u64::from(Header::LEN) + u64::from(header.metadata_size);
        let payload = metadata_end..metadata_end + u64::from(header.payload_size);
        let signed = header.flags.contains(Flags::SIGNED);
        let blocks_end = payload.end + if signed { SIGNATURE_BLOCK_LEN } else { 0 };
        let Some(crc_offset) =
            source.len().checked_sub(CRC_LEN.into()).filter(|&offset| offset >= blocks_end)
        else {
            let message = format!(
                "the file is truncated: by its header, it has {} bytes or more",
                blocks_end + u64::from(CRC_LEN)
            );
            return Err(Error::corrupt(message).at(source.len()));
        };

        let signature = if signed { Some(read_signature(source, payload.end)?) } else { None };
        let mut crc = [0; CRC_LEN as usize];
        source.read_at(crc_offset, &mut crc)?;
        let crc32 = u32::from_le_bytes(crc);

        let mut warnings = header.warnings();
        if crc_offset > blocks_end {
            let rest = crc_offset - blocks_end;
            warnings.push(format!(
                "{rest} bytes before the checksum belong to no known part (at byte {blocks_end})"
            ));
        }

        Ok(Self { header, payload, signature, crc_offset, crc32, warnings })
    }

    /// Reads the metadata.
    ///
    /// # Errors
    /// E001 when they are not a MessagePack map, E004 when that is because the file was damaged,
    /// E008 beyond `limits`.
    pub(super) fn read_metadata(
        &self,
        source: &dyn ByteSource,
        limits: &Limits,
    ) -> Result<DecodedMetadata> {
        let len = self.header.metadata_size.into();
        limits.check_metadata(len).map_err(|error| error.at(8))?;
        let bytes = read_vec(source, Header::LEN.into(), len)?;
        let mut decoded = match DecodedMetadata::decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => {
                self.check_crc(source)?;
                return Err(error.at(Header::LEN.into()));
            }
        };
        decoded.warnings.extend(disagreements(&self.header, &decoded.metadata));
        Ok(decoded)
    }

    /// Checks the file's bytes against its checksum.
    ///
    /// # Errors
    /// E004 when they differ, E007 when reading fails.
    pub(super) fn check_crc(&self, source: &dyn ByteSource) -> Result<()> {
        let mut crc = Crc32::new();
        each_piece(source, 0..self.crc_offset, |piece| crc.update(piece))?;
        if crc.value() == self.crc32 {
            return Ok(());
        }
        let message = format!(
            "the file's checksum is {:#010x}, but its bytes give {:#010x}",
            self.crc32,
            crc.value()
        );
        Err(Error::checksum(message).at(self.crc_offset))
    }

    /// Reads the payload as stored.
    pub(super) fn read_payload(&self, source: &dyn ByteSource) -> Result<Vec<u8>> {
        read_vec(source, self.payload.start, self.payload.end - self.payload.start)
    }

    /// Reads the bytes that a signature covers: header, metadata and payload.
    pub(super) fn read_signed(&self, source: &dyn ByteSource) -> Result<Vec<u8>> {
        read_vec(source, 0, self.payload.end)
    }
}

/// Calls `take` with the bytes of a range, piece by piece.
fn each_piece(
    source: &dyn ByteSource,
    range: Range<u64>,
    mut take: impl FnMut(&[u8]),
) -> Result<()> {
    if let Some(bytes) = source.slice_at(range.start, range.end - range.start) {
        take(bytes);
        return Ok(());
    }

    let mut buffer = vec![0; 1 << 16];
    let mut offset = range.start;
    while offset < range.end {
        let len =
            usize::try_from(range.end - offset).map_or(buffer.len(), |left| left.min(buffer.len()));
        source.read_at(offset, &mut buffer[..len])?;
        take(&buffer[..len]);
        offset += len as u64;
    }

    Ok(())
}

fn read_header(source: &dyn ByteSource) -> Result<Header> {
    let mut bytes = [0; Header::LEN as usize];
    let available = source.len().min(Header::LEN.into());
    source.read_at(0, &mut bytes[..usize::try_from(available).unwrap_or_default()])?;
    if available < Header::LEN.into() && bytes[..4] == super::MAGIC {
        return Err(
            Error::corrupt("the file is truncated: it ends inside the header").at(source.len())
        );
    }
    Header::decode(&bytes)
}

fn read_signature(source: &dyn ByteSource, offset: u64) -> Result<([u8; SIGNATURE_LEN], [u8; 32])> {
    let (mut signature, mut key) = ([0; SIGNATURE_LEN], [0; 32]);
    source.read_at(offset, &mut signature)?;
    source.read_at(offset + SIGNATURE_LEN as u64, &mut key)?;
    Ok((signature, key))
}

/// Returns warnings about flags that the file's parts contradict, and the reverse. Published
/// writers leave the bit of the model card unset, and the bit of the licence in signed and
/// encrypted files.
fn disagreements(header: &Header, metadata: &ModelMetadata) -> Vec<String> {
    let parts = [
        (Flags::MODEL_CARD, metadata.model_card.is_some(), "a model card"),
        (Flags::LICENSED, metadata.license.is_some(), "a licence"),
    ];
    let odd =
        parts.into_iter().filter(|(flag, present, _)| header.flags.contains(*flag) != *present);
    let message = |(_, present, what): (Flags, bool, &str)| match present {
        true => format!("the metadata hold {what}, but its flag is not set"),
        false => format!("the flag of {what} is set, but the metadata hold none"),
    };
    odd.map(message).collect()
}
