//! A tensor's bytes on their way out of the file: decrypted chunk by chunk, decoded block by block,
//! and made dense.
//!
//! ```text
//! verbatim ── AES-256-GCM, 64 KiB chunks ──▶ stored form
//!          ── codec, 64 KiB or 1 MiB blocks ──▶ layout ──▶ dense
//! ```
//!
//! Each step serves any range, so one row of a large tensor costs its blocks and chunks alone.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use apr_core::{ByteSource, DType, Error, Result, StoredForm, TensorInfo, check_range};
use once_cell::race::OnceBox;

use super::compression::Decoder;
use super::index::{BLOCK_HEADER_LEN, CODEC, LAYOUT, block_len};
use super::layout::EntryRange;
use super::pool::Pool;
use super::seal::Seal;
use crate::crypto::{SEALED_CHUNK, TAG_LEN};

/// Top bit of a block's length: its bytes are not compressed.
const RAW: u32 = 1 << 31;

/// Range of a tensor's bytes, and their encoding.
pub(super) struct StoredTensor {
    pub(super) place: EntryRange,
    /// Encoding; boxed, because most tensors have none and an index can have millions of entries.
    encoded: Option<Box<Encoded>>,
}

struct Encoded {
    form: Option<StoredForm>,
    /// The name that the bytes are encrypted under. For a tied tensor it is the target's. Empty if
    /// they are not encrypted.
    sealed_as: Box<str>,
    /// Offset of each block in the stored form, and the end of the last one. Filled by the first
    /// read.
    blocks: OnceBox<Vec<u64>>,
}

/// Context for reading a tensor.
#[derive(Clone, Copy)]
pub(super) struct Access<'a> {
    pub(super) source: &'a dyn ByteSource,
    pub(super) seal: &'a Seal,
    pub(super) scratch: &'a Pool<Scratch>,
}

impl StoredTensor {
    pub(super) fn new(place: EntryRange, form: Option<StoredForm>, sealed_as: &str) -> Self {
        let encoded = (form.is_some() || !sealed_as.is_empty()).then(|| {
            Box::new(Encoded { form, sealed_as: sealed_as.into(), blocks: OnceBox::new() })
        });
        Self { place, encoded }
    }

    /// Returns `true` if the bytes in the file differ from the tensor's bytes.
    pub(super) fn is_encoded(&self) -> bool {
        self.encoded.is_some()
    }

    /// Returns the stored form, or `None` if the bytes are stored plain.
    pub(super) fn form(&self) -> Option<StoredForm> {
        self.encoded.as_ref()?.form
    }

    /// Returns the name that the bytes are encrypted under; empty if they are not encrypted.
    fn sealed_as(&self) -> &str {
        self.encoded.as_ref().map_or("", |encoded| &encoded.sealed_as)
    }

    /// Bytes of the stored form.
    pub(super) fn len(&self, access: Access<'_>) -> u64 {
        match self.form() {
            Some(form) => form.len,
            None if self.sealed_as().is_empty() => self.place.len,
            None => access.seal.opened_len(self.place.len),
        }
    }

    /// Fills `buf` with bytes exactly as the file stores them.
    pub(super) fn read_verbatim(
        &self,
        access: Access<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        check_range(offset, buf.len(), self.place.len)?;
        access.source.read_at(self.place.offset + offset, buf)
    }

    /// Fills `buf` with bytes of the stored form.
    pub(super) fn read_stored(
        &self,
        access: Access<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        if self.sealed_as().is_empty() {
            return self.read_verbatim(access, offset, buf);
        }
        check_range(offset, buf.len(), self.len(access))?;
        let opened = access.seal.opened()?;
        opened.read(access.source, self.place, self.sealed_as(), offset, buf)
    }

    /// Returns the number of tensor bytes per chunk or block. `None` unless the tensor is either
    /// encrypted or compressed, but not both.
    pub(super) fn piece_len(&self) -> Option<u64> {
        match self.form() {
            None => (!self.sealed_as().is_empty()).then_some(SEALED_CHUNK as u64),
            Some(form) => {
                let coded = form.flags & LAYOUT == 0 && form.flags & CODEC != 0;
                (coded && self.sealed_as().is_empty()).then(|| block_len(form.flags))
            }
        }
    }

    /// Fills `buf` with whole pieces of the tensor and `verbatim` with their bytes in the file.
    /// Returns the offset of those bytes within the tensor's range.
    pub(super) fn read_both(
        &self,
        access: Access<'_>,
        info: &TensorInfo,
        offset: u64,
        buf: &mut [u8],
        verbatim: &mut Vec<u8>,
    ) -> Result<u64> {
        let raw_len = self.form().map_or_else(|| self.len(access), |form| form.raw_len);
        check_range(offset, buf.len(), raw_len)?;
        let end = offset + buf.len() as u64;
        let piece = self.piece_len();
        let piece = piece.filter(|&piece| {
            offset.is_multiple_of(piece) && (end.is_multiple_of(piece) || end == raw_len)
        });
        let (Some(piece), false) = (piece, buf.is_empty()) else {
            return Err(Error::corrupt(format!("bytes {offset} to {end} are not whole pieces"))
                .at(self.place.offset));
        };
        let (first, beyond) = (offset / piece, end.div_ceil(piece));
        let Some((form, encoded)) = self.form().zip(self.encoded.as_deref()) else {
            let start = first * (piece + TAG_LEN as u64);
            verbatim.resize(
                to_usize((beyond * (piece + TAG_LEN as u64)).min(self.place.len) - start),
                0,
            );
            self.read_verbatim(access, start, verbatim)?;
            let to_end = end == raw_len;
            access
                .seal
                .opened()?
                .open(self.sealed_as(), first, to_end, verbatim, buf)
                .map_err(|error| self.at(error, start))?;
            return Ok(start);
        };

        let blocks = self.blocks(encoded, access, form)?;
        let start = blocks[to_usize(first)];
        verbatim.resize(to_usize(blocks[to_usize(beyond)] - start), 0);
        self.read_verbatim(access, start, verbatim)?;
        let mut scratch = Scratch::take(access.scratch, form.flags, info.dtype)?;
        for (block, target) in (to_usize(first)..).zip(buf.chunks_mut(to_usize(piece))) {
            let block = to_usize(blocks[block] - start)..to_usize(blocks[block + 1] - start);
            scratch
                .decode(&verbatim[block], target)
                .map_err(|error| error.at(self.place.offset))?;
        }

        access.scratch.put_back(scratch);
        Ok(start)
    }

    fn at(&self, error: Error, within: u64) -> Error {
        error.at(self.place.offset + within)
    }

    /// Fills `buf` with bytes of the tensor.
    pub(super) fn read(
        &self,
        access: Access<'_>,
        info: &TensorInfo,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        match self.form() {
            None => self.read_stored(access, offset, buf),
            Some(form) if form.flags & LAYOUT == 0 => {
                self.read_decoded(access, form, info, offset, buf)
            }
            Some(form) => {
                let stream = |offset: u64, buf: &mut [u8]| {
                    self.read_decoded(access, form, info, offset, buf)
                };
                super::layouts::read(form, info, &stream, offset, buf)
            }
        }
    }

    /// Fills `buf` with bytes that the codec gives.
    fn read_decoded(
        &self,
        access: Access<'_>,
        form: StoredForm,
        info: &TensorInfo,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        check_range(offset, buf.len(), form.raw_len)?;
        if form.flags & CODEC == 0 {
            return self.read_stored(access, offset, buf);
        }

        let Some(encoded) = &self.encoded else { return self.read_stored(access, offset, buf) };
        let blocks = self.blocks(encoded, access, form)?;
        let block_len = block_len(form.flags);
        let mut scratch = Scratch::take(access.scratch, form.flags, info.dtype)?;
        let (mut done, mut position) = (0, offset);
        while done < buf.len() {
            let block = position / block_len;
            let start = block * block_len;
            let decoded_len = to_usize(block_len.min(form.raw_len - start));
            let skip = to_usize(position - start);
            let wanted = (decoded_len - skip).min(buf.len() - done);
            let at = to_usize(block);
            let mut body = core::mem::take(&mut scratch.body);
            self.read_block(access, (blocks[at], blocks[at + 1]), &mut body)?;
            let target = &mut buf[done..done + wanted];
            let decoded = if wanted == decoded_len {
                scratch.decode(&body, target)
            } else {
                scratch.decode_part(&body, decoded_len, skip, target)
            };
            scratch.body = body;
            decoded.map_err(|error| error.at(self.place.offset))?;
            done += wanted;
            position += wanted as u64;
        }

        access.scratch.put_back(scratch);
        Ok(())
    }

    /// Returns the offset of each block.
    fn blocks<'a>(
        &self,
        encoded: &'a Encoded,
        access: Access<'_>,
        form: StoredForm,
    ) -> Result<&'a [u64]> {
        Ok(encoded.blocks.get_or_try_init(|| self.walk(access, form).map(Box::new))?)
    }

    fn read_block(
        &self,
        access: Access<'_>,
        (start, end): (u64, u64),
        body: &mut Vec<u8>,
    ) -> Result<()> {
        body.resize(to_usize(end - start), 0);
        self.read_stored(access, start, body)
    }

    /// Walks the lengths of the blocks.
    fn walk(&self, access: Access<'_>, form: StoredForm) -> Result<Vec<u64>> {
        let block_len = block_len(form.flags);
        let count = form.raw_len.div_ceil(block_len);

        // The sizes were held against each other when the index was read, so this is less than
        // twice the stored bytes.
        let mut starts = Vec::with_capacity(to_usize(count) + 1);
        let mut position = 0;
        for _ in 0..count {
            starts.push(position);
            let mut head = [0; BLOCK_HEADER_LEN as usize];
            if form.len - position < BLOCK_HEADER_LEN.into() {
                return Err(self.misfit("the last block is missing"));
            }

            self.read_stored(access, position, &mut head)?;
            let len = u64::from(u32::from_le_bytes(head) & !RAW);
            if len > block_len {
                return Err(self.misfit("a block is longer than the data that it encodes"));
            }

            position += u64::from(BLOCK_HEADER_LEN) + len;
            if position > form.len {
                return Err(self.misfit("a block ends past the tensor's bytes"));
            }
        }

        starts.push(position);
        if position == form.len {
            Ok(starts)
        } else {
            Err(self.misfit("bytes follow the last block"))
        }
    }

    fn misfit(&self, what: &str) -> Error {
        Error::corrupt(format!("its compressed blocks do not add up: {what}")).at(self.place.offset)
    }
}

/// Converts a number that is at most the length of a buffer.
fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Buffers of one read.
pub(super) struct Scratch {
    /// A block as stored, including its length field.
    body: Vec<u8>,
    decoded: Vec<u8>,
    decoder: Decoder,
}

impl Scratch {
    /// Returns buffers used before for such tensors, or new ones.
    ///
    /// # Errors
    /// E003 for a codec that is not supported.
    fn take(pool: &Pool<Self>, flags: u32, dtype: DType) -> Result<Self> {
        match pool.take(|scratch| scratch.decoder.suits(flags, dtype)) {
            Some(scratch) => Ok(scratch),
            None => Ok(Self {
                body: Vec::new(),
                decoded: Vec::new(),
                decoder: Decoder::new(flags, dtype)?,
            }),
        }
    }

    fn decode_part(
        &mut self,
        block: &[u8],
        decoded_len: usize,
        skip: usize,
        target: &mut [u8],
    ) -> Result<()> {
        let mut decoded = core::mem::take(&mut self.decoded);
        decoded.resize(decoded_len, 0);
        let result = self.decode(block, &mut decoded);
        target.copy_from_slice(&decoded[skip..skip + target.len()]);
        self.decoded = decoded;
        result
    }

    /// Decodes a block, which starts with its length.
    fn decode(&mut self, block: &[u8], target: &mut [u8]) -> Result<()> {
        let (head, body) = block.split_at(BLOCK_HEADER_LEN as usize);
        let raw = head[3] & 0x80 != 0;
        self.decoder.decode(body, raw, target)
    }
}
