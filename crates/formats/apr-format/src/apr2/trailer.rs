//! What follows the tensors: blocks, then the footer (`docs/format/apr2.md`, "Trailer" and
//! "Footer").

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use apr_core::digest::{Digest, TensorDigest};
use apr_core::{ByteSource, Error, Result, Signed, read_vec};
use serde::Serialize;

use super::header::{Flags, Header};
use super::layout::{BLOCK_ALIGNMENT, FOOTER_LEN, align};

const FOOTER_MAGIC: [u8; 4] = *b"2RPA";
const BLOCK_HEADER_LEN: u64 = 16;
const BLOCK_VERSION: u32 = 1;
const DGST: [u8; 4] = *b"DGST";
const SIGN: [u8; 4] = *b"SIGN";
const LICN: [u8; 4] = *b"LICN";
/// More blocks than any version defines; a walk over more is a walk through garbage.
const MAX_BLOCKS: usize = 64;
const BLAKE3_256: u8 = 1;
const DIGEST_HEADER_LEN: usize = 8;
/// Longest SIGN or LICN block that is read: some ten thousand signers.
const MAX_BLOCK: u64 = 1 << 20;

/// The last 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Footer {
    /// CRC-32 (IEEE) of all bytes before the footer.
    pub crc32: u32,
    /// Length of the file, footer included, in bytes.
    pub file_size: u64,
}

impl Footer {
    /// Returns the footer's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; FOOTER_LEN as usize] {
        let mut bytes = [0; FOOTER_LEN as usize];
        bytes[..4].copy_from_slice(&self.crc32.to_le_bytes());
        bytes[4..8].copy_from_slice(&FOOTER_MAGIC);
        bytes[8..].copy_from_slice(&self.file_size.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; FOOTER_LEN as usize]) -> Option<Self> {
        let [crc32 @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *bytes;
        let [_, _, _, _, _, _, _, _, file_size @ ..] = *bytes;
        (bytes[4..8] == FOOTER_MAGIC).then(|| Self {
            crc32: u32::from_le_bytes(crc32),
            file_size: u64::from_le_bytes(file_size),
        })
    }
}

/// Contents of the trailer.
#[derive(Debug)]
pub(super) struct Trailer {
    /// Digests of the tensors, in index order.
    pub(super) digests: Option<Vec<Digest>>,
    /// Range of the DGST block in bytes, from its head to the end of its padding.
    digest_block: Option<(u64, u64)>,
    pub(super) signatures: Option<Vec<u8>>,
    /// The LICN block.
    pub(super) licence: Option<Vec<u8>>,
    pub(super) footer: Footer,
    /// Offset of the footer, in bytes.
    pub(super) footer_offset: u64,
    /// Offset and kind of the first block that this crate does not know.
    pub(super) unknown: Option<(u64, [u8; 4])>,
    pub(super) warnings: Vec<String>,
}

/// Walks the blocks from `start` (T) to the footer.
///
/// # Errors
/// E002 when the walk does not end at a footer, a block appears twice or does not fit, or a flag
/// and its block disagree; E003 for a version or digest algorithm that this crate does not read.
pub(super) fn read_trailer(
    source: &dyn ByteSource,
    header: &Header,
    start: u64,
    tensors: usize,
) -> Result<Trailer> {
    let mut blocks = Blocks::default();
    let mut position = start;
    let footer = loop {
        let head = read_head(source, position)?;
        if let Some(footer) = Footer::decode(&head) {
            break footer;
        }
        let block = decode_block_head(&head, position)?;
        let end = block.end(position).filter(|&end| end <= source.len());
        let end =
            end.ok_or_else(|| truncated("a trailer block ends past the file").at(position))?;
        blocks.read(source, &block, (position, end), tensors)?;
        position = end;
    };

    check_flags(header, &blocks.seen, position)?;
    let Blocks { digests, digest_block, signatures, licence, unknown, mut warnings, .. } = blocks;
    let end = position + u64::from(FOOTER_LEN);
    if footer.file_size != end {
        return Err(Error::corrupt(format!(
            "the footer states a file of {} bytes, but ends at byte {end}",
            footer.file_size
        ))
        .at(position + 8));
    }

    if source.len() > end {
        warnings.push(format!(
            "{} bytes follow the footer; they are not part of the model",
            source.len() - end
        ));
    }

    if signatures.is_some() && digests.is_none() {
        return Err(Error::corrupt(
            "the file is signed, but has no digests, so that its tensors are not covered",
        )
        .at(position));
    }

    Ok(Trailer {
        digests,
        digest_block,
        signatures,
        licence,
        footer,
        footer_offset: position,
        unknown,
        warnings,
    })
}

/// Contents of the blocks before the footer.
#[derive(Default)]
struct Blocks {
    seen: Vec<[u8; 4]>,
    digests: Option<Vec<Digest>>,
    digest_block: Option<(u64, u64)>,
    signatures: Option<Vec<u8>>,
    licence: Option<Vec<u8>>,
    unknown: Option<(u64, [u8; 4])>,
    warnings: Vec<String>,
}

impl Blocks {
    /// Reads the block between two places in the file.
    fn read(
        &mut self,
        source: &dyn ByteSource,
        block: &BlockHead,
        (position, end): (u64, u64),
        tensors: usize,
    ) -> Result<()> {
        if self.seen.contains(&block.kind) {
            let kind = block.kind.escape_ascii();
            return Err(
                Error::corrupt(format!("the trailer block '{kind}' appears twice")).at(position)
            );
        }

        if self.seen.len() == MAX_BLOCKS {
            return Err(
                Error::corrupt(format!("more than {MAX_BLOCKS} trailer blocks")).at(position)
            );
        }

        self.seen.push(block.kind);
        match block.kind {
            DGST => {
                self.digests =
                    Some(read_digests(source, position + BLOCK_HEADER_LEN, block.len, tensors)?);
                self.digest_block = Some((position, end));
            }
            SIGN => self.signatures = Some(read_block(source, position, end)?),
            LICN => self.licence = Some(read_block(source, position, end)?),
            kind => {
                self.unknown = self.unknown.or(Some((position, kind)));
                self.warnings.push(format!(
                    "the trailer block '{}' is unknown and was skipped",
                    kind.escape_ascii()
                ));
            }
        }

        Ok(())
    }
}

impl Trailer {
    /// Signatures and licence with the digest that is signed; `None` without digests of the
    /// tensors.
    ///
    /// # Errors
    /// E007.
    pub(super) fn signed(
        &self,
        source: &dyn ByteSource,
        header: &Header,
        encr_len: u64,
    ) -> Result<Option<Signed>> {
        let Some((start, end)) = self.digest_block else { return Ok(None) };
        let section = |offset: u64, len: u64| read_vec(source, offset, len);
        let header_bytes = section(0, Header::LEN.into())?;
        let metadata = section(header.metadata_offset.into(), header.metadata_size.into())?;
        let index = section(header.index_offset.into(), header.index_size.into())?;
        let encr = section(header.data_offset.into(), encr_len)?;
        let digests = section(start, end - start)?;
        let digest = signed_digest([&header_bytes, &metadata, &index, &encr, &digests]);
        Ok(Some(Signed {
            digest,
            signatures: self.signatures.clone(),
            licence: self.licence.clone(),
        }))
    }
}

/// Returns the signed digest: BLAKE3-256 of header, metadata, index, ENCR block and DGST block, as
/// stored. Blocks include their heads and padding.
pub(super) fn signed_digest(parts: [&[u8]; 5]) -> Digest {
    let mut digest = TensorDigest::new();
    parts.into_iter().for_each(|part| digest.update(part));
    digest.value()
}

fn read_block(source: &dyn ByteSource, start: u64, end: u64) -> Result<Vec<u8>> {
    let len = end - start;
    if len > MAX_BLOCK {
        return Err(Error::corrupt(format!(
            "a trailer block of {len} bytes; {MAX_BLOCK} are allowed"
        ))
        .at(start));
    }
    read_vec(source, start, len)
}

/// Encodes a block with its head and padding.
fn encode_block(kind: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut out = kind.to_vec();
    out.extend_from_slice(&BLOCK_VERSION.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(body);
    while !(out.len() as u64).is_multiple_of(BLOCK_ALIGNMENT) {
        out.push(0);
    }
    out
}

/// Returns the length of a block with a body of `body` bytes, including padding.
pub(super) const fn block_len(body: u64) -> u64 {
    (BLOCK_HEADER_LEN + body).next_multiple_of(BLOCK_ALIGNMENT)
}

/// Length of the DGST block over `tensors` digests, padding included, in bytes.
pub(super) fn digests_len(tensors: usize) -> u64 {
    block_len(DIGEST_HEADER_LEN as u64 + 32 * tensors as u64)
}

/// The DGST block, padded.
pub(super) fn encode_digests(digests: &[Digest]) -> Vec<u8> {
    let head = [BLAKE3_256, 0, 0, 0, 0, 0, 0, 0];
    encode_block(DGST, &[&head, digests.as_flattened()].concat())
}

fn truncated(what: &str) -> Error {
    Error::corrupt(format!("the file is truncated: {what}"))
}

fn read_head(source: &dyn ByteSource, position: u64) -> Result<[u8; 16]> {
    let mut head = [0; 16];
    if position.checked_add(16).is_none_or(|end| end > source.len()) {
        return Err(truncated("the footer is missing").at(position));
    }
    source.read_at(position, &mut head)?;
    Ok(head)
}

struct BlockHead {
    kind: [u8; 4],
    len: u64,
}

impl BlockHead {
    fn end(&self, position: u64) -> Option<u64> {
        align(position.checked_add(BLOCK_HEADER_LEN)?.checked_add(self.len)?, BLOCK_ALIGNMENT)
    }
}

fn decode_block_head(head: &[u8; 16], position: u64) -> Result<BlockHead> {
    let [k0, k1, k2, k3, v0, v1, v2, v3, len @ ..] = *head;
    let kind = [k0, k1, k2, k3];
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    if !kind.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit()) {
        return Err(
            Error::corrupt("missing footer or trailer block at the end of the data").at(position)
        );
    }

    if [DGST, SIGN, LICN].contains(&kind) && version != BLOCK_VERSION {
        let kind = kind.escape_ascii();
        return Err(Error::version(format!(
            "version {version} of the trailer block '{kind}' is not supported"
        ))
        .at(position));
    }

    Ok(BlockHead { kind, len: u64::from_le_bytes(len) })
}

fn read_digests(
    source: &dyn ByteSource,
    offset: u64,
    len: u64,
    tensors: usize,
) -> Result<Vec<Digest>> {
    if len != DIGEST_HEADER_LEN as u64 + 32 * tensors as u64 {
        return Err(Error::corrupt(format!(
            "the digest block has {len} bytes, which does not fit {tensors} tensors"
        ))
        .at(offset));
    }

    let body = read_vec(source, offset, len)?;
    let (head, digests) = body.split_at(DIGEST_HEADER_LEN);
    if head[0] != BLAKE3_256 {
        return Err(
            Error::version(format!("digest algorithm {} is not supported", head[0])).at(offset)
        );
    }

    Ok(digests.as_chunks().0.to_vec())
}

fn check_flags(header: &Header, seen: &[[u8; 4]], position: u64) -> Result<()> {
    for (flag, kind, name) in [(Flags::SIGNED, SIGN, "SIGN"), (Flags::LICENSED, LICN, "LICN")] {
        let (flagged, present) = (header.flags.contains(flag), seen.contains(&kind));
        if flagged != present {
            let (is, is_not) =
                if flagged { ("flags", "is missing") } else { ("does not flag", "is there") };
            return Err(Error::corrupt(format!("the header {is} a {name} block, which {is_not}"))
                .at(position));
        }
    }
    Ok(())
}
