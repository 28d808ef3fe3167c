//! Blocks to bytes and back.

use alloc::boxed::Box;
use alloc::vec::Vec;

use apr_core::{Error, Result};
use lz4_flex::block::CompressTable;
use structured_zstd::decoding::FrameDecoder;

use super::planes::MAX_PLANES;
use super::{Codec, Coding, Element, Filter, entropy, kernel, zstd};

/// Bytes that are put together and compared at a time: whole elements of every width.
const COMPARED_LEN: usize = 16 << 10;

/// Top bit of a length: the bytes that follow are stored raw.
const RAW: u32 = 1 << 31;

/// The `u32 n` before a block or a plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockHead {
    /// `true` if the body is stored raw.
    pub raw: bool,
    /// Bytes of the body.
    pub len: usize,
}

impl BlockHead {
    /// Bytes of a head.
    pub const LEN: usize = 4;

    /// Reads the four bytes before a body.
    #[must_use]
    pub const fn read(bytes: [u8; Self::LEN]) -> Self {
        let n = u32::from_le_bytes(bytes);
        Self { raw: n & RAW != 0, len: (n & !RAW) as usize }
    }
}

/// Form in which a block was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Coded, and smaller for it.
    Coded,
    /// Stored raw, because coding would save nothing.
    Raw,
    /// Stored raw, because the coded block did not decode to the same bytes: a defect of the
    /// encoder.
    Mismatch,
}

/// Encodes the blocks of tensors of one coding and dtype. Its buffers are used again for every
/// block.
pub struct BlockEncoder {
    coder: Coder,
    coding: Coding,
    element: Element,
    planes: Vec<u8>,
    decoder: BlockDecoder,
    decoded: Vec<u8>,
}

impl BlockEncoder {
    /// Creates an encoder. `level` is Zstd's, -7 to 22, and 0 means its default; other codecs
    /// ignore it.
    #[must_use]
    pub fn new(coding: Coding, level: i32, element: Element) -> Self {
        Self {
            coder: Coder::new(coding.codec, level),
            coding,
            element,
            planes: Vec::new(),
            decoder: BlockDecoder::new(coding, element),
            decoded: Vec::new(),
        }
    }

    /// Appends `u32 n` and the body of one block to `out`.
    ///
    /// The result is decoded again and compared. If it differs, the block is stored raw. Equal
    /// blocks give equal bytes, whatever was encoded before.
    ///
    /// # Panics
    ///
    /// If the block is longer than [`Coding::block_len`].
    pub fn encode(&mut self, block: &[u8], out: &mut Vec<u8>) -> Outcome {
        let start = out.len();
        match self.encode_unchecked(block, out) {
            Outcome::Coded => self.keep_if_right(block, start, out),
            outcome => outcome,
        }
    }

    /// Decodes the coded form of a block, and replaces it with the raw block if they differ.
    fn keep_if_right(&mut self, block: &[u8], start: usize, out: &mut Vec<u8>) -> Outcome {
        let body = &out[start + BlockHead::LEN..];
        if self.decoder.decodes_to(body, block, &mut self.decoded) {
            return Outcome::Coded;
        }
        out.truncate(start);
        append_raw(block, out);
        Outcome::Mismatch
    }

    /// Encodes like [`Self::encode`], but does not decode the result to check it. That halves the
    /// work, for measuring what a coding would save. Never returns [`Outcome::Mismatch`].
    ///
    /// # Panics
    ///
    /// As [`Self::encode`].
    pub fn encode_unchecked(&mut self, block: &[u8], out: &mut Vec<u8>) -> Outcome {
        assert!(block.len() <= self.coding.block_len(), "a block of {} bytes", block.len());
        match self.coding.filter {
            Filter::None => encode_part(&mut self.coder, block, out),
            Filter::BytePlanes => self.encode_planes(block, out),
        }
    }

    fn encode_planes(&mut self, block: &[u8], out: &mut Vec<u8>) -> Outcome {
        let start = out.len();
        out.extend([0; BlockHead::LEN]);
        let plane_len = block.len() / self.element.width();
        let (whole, rest) = block.split_at(plane_len * self.element.width());
        self.planes.resize(whole.len(), 0);
        let written =
            if self.splits_low_first(whole) { self.split_low_first(whole, out) } else { 0 };
        if written == 0 {
            kernel::split(self.element, whole, &mut self.planes);
        }

        for plane in self.planes[written..].chunks_exact(plane_len.max(1)) {
            encode_part(&mut self.coder, plane, out);
        }

        out.extend_from_slice(rest);
        close(block, start, out)
    }

    /// Returns `true` if the lower bytes are likely to be stored raw and are long enough to be
    /// written straight to their final position.
    fn splits_low_first(&self, whole: &[u8]) -> bool {
        matches!(self.coder, Coder::Entropy)
            && self.element.width() == 2
            && whole.len() / 2 >= entropy::SAMPLED_LEN
    }

    /// Appends the lower bytes to `out` as a raw plane, and collects the upper ones in their plane.
    /// Returns the number of plane bytes in `out`.
    ///
    /// Returns 0 and leaves `out` unchanged if the lower bytes are worth coding.
    fn split_low_first(&mut self, whole: &[u8], out: &mut Vec<u8>) -> usize {
        let start = out.len();
        let plane_len = whole.len() / 2;
        out.reserve(whole.len());

        // Blocks are at most 1 MiB long.
        out.extend((u32::try_from(plane_len).unwrap_or(0) | RAW).to_le_bytes());
        let mut low = [0; COMPARED_LEN / 2];
        for (step, high) in
            whole.chunks(COMPARED_LEN).zip(self.planes[plane_len..].chunks_mut(COMPARED_LEN / 2))
        {
            let low = &mut low[..high.len()];
            kernel::split_two(self.element, step, low, high);
            out.extend_from_slice(low);
        }
        if entropy::is_noise(&out[start + BlockHead::LEN..]) {
            return plane_len;
        }

        out.truncate(start);
        0
    }
}

/// Appends a head and the coded bytes, or the raw bytes if they are shorter.
fn encode_part(coder: &mut Coder, bytes: &[u8], out: &mut Vec<u8>) -> Outcome {
    let start = out.len();
    out.extend([0; BlockHead::LEN]);
    if coder.encode(bytes, out) {
        return close(bytes, start, out);
    }
    out.truncate(start);
    append_raw(bytes, out);
    Outcome::Raw
}

/// Fills in the head of the coded form of `bytes`, or stores them raw if that is no longer.
fn close(bytes: &[u8], start: usize, out: &mut Vec<u8>) -> Outcome {
    let len = out.len() - start - BlockHead::LEN;
    match u32::try_from(len) {
        Ok(n) if len < bytes.len() => {
            out[start..start + BlockHead::LEN].copy_from_slice(&n.to_le_bytes());
            Outcome::Coded
        }
        _ => {
            out.truncate(start);
            append_raw(bytes, out);
            Outcome::Raw
        }
    }
}

fn append_raw(bytes: &[u8], out: &mut Vec<u8>) {
    // Blocks are at most 1 MiB long.
    let n = u32::try_from(bytes.len()).unwrap_or(0) | RAW;
    out.extend(n.to_le_bytes());
    out.extend_from_slice(bytes);
}

enum Coder {
    None,
    Lz4 { table: CompressTable },
    Zstd { level: i32 },
    Entropy,
}

impl Coder {
    fn new(codec: Codec, level: i32) -> Self {
        match codec {
            Codec::None => Self::None,
            Codec::Lz4 => Self::Lz4 { table: CompressTable::large() },
            Codec::Zstd => Self::Zstd { level },
            Codec::Entropy => Self::Entropy,
        }
    }

    /// Appends the coded form of `bytes`. Returns `false` if the codec produces none.
    fn encode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Self::None => false,
            Self::Lz4 { table } => {
                let start = out.len();
                out.resize(start + lz4_flex::block::get_maximum_output_size(bytes.len()), 0);
                let len =
                    lz4_flex::block::compress_into_with_table(bytes, &mut out[start..], table)
                        .unwrap_or(0);
                out.truncate(start + len);
                len > 0
            }
            Self::Zstd { level } => {
                // Without the encoder, all blocks are stored as they are, and no tensor is found to
                // be smaller so.
                let Some(frame) = zstd::encode(bytes, *level) else { return false };
                out.extend_from_slice(&frame);
                true
            }
            Self::Entropy => entropy::encode(bytes, out),
        }
    }
}

/// Decodes the blocks of tensors of one coding and dtype. Its buffers are used again for every
/// block.
pub struct BlockDecoder {
    part: PartDecoder,
    coding: Coding,
    element: Element,
    planes: Vec<u8>,
}

impl BlockDecoder {
    /// Creates a decoder for tensors of this coding and dtype.
    #[must_use]
    pub fn new(coding: Coding, element: Element) -> Self {
        Self { part: PartDecoder::new(coding.codec), coding, element, planes: Vec::new() }
    }

    /// Decodes the body of one block, without its [`BlockHead`], to exactly `out.len()` bytes.
    ///
    /// # Errors
    ///
    /// E002 if the body is not what an encoder makes of that many bytes; the contents of `out` then
    /// have no meaning.
    pub fn decode(&mut self, body: &[u8], raw: bool, out: &mut [u8]) -> Result<()> {
        if out.len() > self.coding.block_len() {
            return Err(Error::corrupt("a block is longer than its codec's"));
        }
        if raw {
            return copy_raw(body, out);
        }
        match self.coding.filter {
            Filter::None => self.part.decode(body, out),
            Filter::BytePlanes => self.decode_planes(body, out),
        }
    }

    /// Returns `true` if the body of a coded block decodes to `block`. `decoded` is a reusable
    /// buffer.
    fn decodes_to(&mut self, body: &[u8], block: &[u8], decoded: &mut Vec<u8>) -> bool {
        if self.coding.filter == Filter::None {
            decoded.resize(block.len(), 0);
            return self.part.decode(body, decoded).is_ok() && decoded == block;
        }

        let element = self.element;
        let width = element.width();
        let (whole, rest) = block.split_at(block.len() / width * width);
        let Ok((planes, after)) = self.planes(body, whole.len()) else { return false };
        if let Some(equal) = kernel::merges_to(element, &planes, whole) {
            return equal && after == rest;
        }

        // Put together and compared a step at a time, which stays in the first-level cache.
        decoded.resize(COMPARED_LEN, 0);
        let mut steps = whole.chunks(COMPARED_LEN).enumerate();
        after == rest
            && steps.all(|(i, step)| {
                let elements = i * COMPARED_LEN / width..(i * COMPARED_LEN + step.len()) / width;
                let part = planes.map(|plane| plane.get(elements.clone()).unwrap_or_default());
                let decoded = &mut decoded[..step.len()];
                kernel::merge(element, &part, decoded);
                decoded == step
            })
    }

    fn decode_planes(&mut self, body: &[u8], out: &mut [u8]) -> Result<()> {
        let element = self.element;
        let (whole, rest) = out.split_at_mut(out.len() / element.width() * element.width());
        let (planes, after) = self.planes(body, whole.len())?;
        copy_raw(after, rest)?;
        kernel::merge(element, &planes, whole);
        Ok(())
    }

    /// Returns the planes of elements of `len` bytes in total, and the bytes after them.
    fn planes<'a>(
        &'a mut self,
        mut body: &'a [u8],
        len: usize,
    ) -> Result<([&'a [u8]; MAX_PLANES], &'a [u8])> {
        let plane_len = len / self.element.width();
        self.planes.resize(len, 0);
        let mut planes = [&[][..]; MAX_PLANES];
        for (plane, decoded) in
            planes.iter_mut().zip(self.planes.chunks_exact_mut(plane_len.max(1)))
        {
            let (head, after) = body.split_first_chunk().ok_or_else(cut)?;
            let head = BlockHead::read(*head);
            let (part, after) = after.split_at_checked(head.len).ok_or_else(cut)?;
            body = after;
            // A raw plane is used where it lies.
            *plane = if !head.raw {
                self.part.decode(part, decoded)?;
                decoded
            } else if part.len() == plane_len {
                part
            } else {
                return Err(Error::corrupt("a plane is not of its block's length"));
            };
        }
        Ok((planes, body))
    }
}

fn cut() -> Error {
    Error::corrupt("a block's planes are cut off")
}

fn copy_raw(body: &[u8], out: &mut [u8]) -> Result<()> {
    if body.len() != out.len() {
        return Err(Error::corrupt("an uncompressed block has the wrong length"));
    }
    out.copy_from_slice(body);
    Ok(())
}

enum PartDecoder {
    None,
    Lz4,
    Zstd(Box<FrameDecoder>),
    Entropy,
}

impl PartDecoder {
    fn new(codec: Codec) -> Self {
        match codec {
            Codec::None => Self::None,
            Codec::Lz4 => Self::Lz4,
            Codec::Zstd => Self::Zstd(Box::new(FrameDecoder::new())),
            Codec::Entropy => Self::Entropy,
        }
    }

    fn decode(&mut self, body: &[u8], out: &mut [u8]) -> Result<()> {
        let decoded = match self {
            Self::None => {
                return Err(Error::corrupt("a block is coded, but the tensor has no codec"));
            }
            Self::Lz4 => lz4_flex::block::decompress_into(body, out).ok(),
            Self::Zstd(decoder) => decoder.decode_all(body, out).ok(),
            Self::Entropy => return entropy::decode(body, out),
        };
        if decoded != Some(out.len()) {
            return Err(Error::corrupt("a compressed block does not decode to its length"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use apr_core::DType;

    use super::*;

    #[test]
    fn lower_bytes_are_coded_unless_they_are_noise() {
        let len = 4 * entropy::SAMPLED_LEN + 2;
        let coding = Coding { codec: Codec::Entropy, filter: Filter::BytePlanes };
        for (low, at_most) in [(0xff_u32, len * 3 / 4), (7, len * 3 / 8), (0, len / 4)] {
            let words = (0..u32::try_from(len / 2).expect("short")).map(|i| {
                let [_, noise, .., top] = i.wrapping_mul(0x9e37_79b1).to_le_bytes();
                u16::from_le_bytes([(u32::from(noise) & low).to_le_bytes()[0], 0x38 + (top & 3)])
            });
            for dtype in [DType::BF16, DType::U16] {
                let block: Vec<u8> = words.clone().flat_map(u16::to_le_bytes).collect();
                let mut out = b"what was there".to_vec();
                let start = out.len();
                assert_eq!(
                    BlockEncoder::new(coding, 0, Element::of(dtype)).encode(&block, &mut out),
                    Outcome::Coded
                );
                assert!(
                    out.starts_with(b"what was there") && out.len() - start < at_most,
                    "{dtype} {low}: {}",
                    out.len()
                );
                let mut decoded = alloc::vec![0; block.len()];
                let mut decoder = BlockDecoder::new(coding, Element::of(dtype));
                assert_eq!(
                    decoder.decode(&out[start + BlockHead::LEN..], false, &mut decoded),
                    Ok(())
                );
                assert_eq!(decoded, block);
            }
        }
    }

    /// Simulates an encoder with a defect.
    #[test]
    fn a_block_that_decodes_to_something_else_is_stored_raw() {
        let block: Vec<u8> =
            (0..60_000_u32).map(|i| (i.wrapping_mul(i) >> 7).to_le_bytes()[0] & 0x3f).collect();
        for codec in [Codec::Lz4, Codec::Entropy] {
            for filter in [Filter::None, Filter::BytePlanes] {
                let mut encoder =
                    BlockEncoder::new(Coding { codec, filter }, 0, Element::of(DType::BF16));
                let mut out = b"what was there".to_vec();
                let start = out.len();
                assert_eq!(encoder.encode_unchecked(&block, &mut out), Outcome::Coded);
                let last = out.len() - 1;
                for damaged in [start + BlockHead::LEN, (start + last) / 2, last] {
                    let mut out = out.clone();
                    out[damaged] ^= 0x15;
                    let outcome = encoder.keep_if_right(&block, start, &mut out);
                    let head = BlockHead::read(out[start..][..4].try_into().expect("four bytes"));
                    if outcome == Outcome::Mismatch {
                        assert!(
                            head.raw && out[start + BlockHead::LEN..] == block,
                            "{codec:?} {filter:?} {damaged}"
                        );
                        assert!(out.starts_with(b"what was there"));
                    } else {
                        // A bit that nothing depends on.
                        let body = &out[start + BlockHead::LEN..];
                        let mut decoded = alloc::vec![0; block.len()];
                        let decoder = &mut BlockDecoder::new(
                            Coding { codec, filter },
                            Element::of(DType::BF16),
                        );
                        assert_eq!(decoder.decode(body, false, &mut decoded), Ok(()));
                        assert_eq!(decoded, block);
                    }
                }
                let mut out = out.clone();
                out[(start + last) / 2] ^= 0x15;
                assert_eq!(
                    encoder.keep_if_right(&block, start, &mut out),
                    Outcome::Mismatch,
                    "{codec:?} {filter:?}"
                );
            }
        }
    }
}
