//! Chunks of arrays: bytes as they are, or one compressed stream.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apr_archive::{Inflated, Wrapper};
use apr_core::{ByteSource, Error, Result, Work, read_vec};

use crate::array::Compressor;
use crate::zstd::{INPUT, Stream};

/// Bytes of a page, which is decoded and kept as one.
const PAGE: u64 = 1 << 20;

/// Number of pages and streams that are kept. A row of an array may need this many chunks.
const MAX_PAGES: usize = 16;
const MAX_STREAMS: usize = 8;

/// Average number of times that a stream may be decoded; `FREE` more bytes are allowed.
const TIMES: u64 = 8;
const FREE: u64 = 16 << 20;

/// Bytes that a format makes of one: Zstandard's longest runs take four bytes for 128 KiB.
const ZSTD_RATIO: u64 = 1 << 15;

/// Maximum number of bytes read of a gzip header, and length of its trailer.
const GZIP_HEAD: u64 = 512;
const GZIP_TAIL: u64 = 8;

/// A chunk of an array.
///
/// A compressed stream has its checksum at its end: the first read decodes the whole stream.
pub(crate) struct Chunk {
    bytes: Bytes,
    len: u64,
    /// Result of the comparison with the checksum.
    compared: OnceLock<Result<()>>,
}

/// The bytes of a chunk.
enum Bytes {
    /// A chunk that has only the fill value.
    Filled,
    Plain {
        source: Arc<dyn ByteSource>,
        offset: u64,
    },
    Inflated(Box<Inflated<Arc<dyn ByteSource>>>),
    Zstd(Compressed),
}

/// A stream of Zstandard.
pub(crate) struct Compressed {
    source: Arc<dyn ByteSource>,
    offset: u64,
    encoded: u64,
    len: u64,
    /// Number of the chunk in the checkpoint.
    id: u64,
    work: Work,
}

/// The most recently decoded pages and streams.
#[derive(Default)]
pub(crate) struct Cache {
    inflated: Arc<apr_archive::Cache>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    pages: VecDeque<(u64, u64, Arc<[u8]>)>,
    streams: VecDeque<(u64, Decoder)>,
}

/// A stream in the middle.
struct Decoder {
    stream: Stream,
    /// Bytes that were read but not decoded; `at` is the offset of the bytes after them.
    input: Vec<u8>,
    at: u64,
    /// Number of the next page.
    page: u64,
}

impl Chunk {
    /// A chunk whose `encoded` bytes from `offset` on are `len` once they are decoded.
    pub(crate) fn new(
        source: Arc<dyn ByteSource>,
        (offset, encoded): (u64, u64),
        len: u64,
        compressor: Compressor,
        cache: &Cache,
    ) -> Result<Self> {
        let wrong = |what: &str| {
            Err(Error::corrupt(format!("{what} for {encoded} bytes of a chunk of {len}"))
                .at(offset))
        };
        let inflate = |source: &Arc<dyn ByteSource>, at: u64, encoded: u64, wrapper| {
            let shared = Arc::clone(source);
            let inflated = Inflated::new(shared, (at, encoded), len, wrapper, &cache.inflated)?;
            Ok(Bytes::Inflated(Box::new(inflated)))
        };
        let bytes = match compressor {
            Compressor::None if encoded != len => wrong("the length is wrong"),
            Compressor::None => Ok(Bytes::Plain { source, offset }),
            Compressor::Zlib => inflate(&source, offset, encoded, Wrapper::Zlib),
            Compressor::Gzip => {
                let head = read_vec(&source, offset, encoded.min(GZIP_HEAD))?;
                let start = gzip_header(&head)
                    .filter(|start| start + GZIP_TAIL <= encoded)
                    .ok_or_else(|| Error::corrupt("a header of gzip is damaged").at(offset))?;
                let stream = encoded - start - GZIP_TAIL;
                let tail = read_vec(&source, offset + encoded - GZIP_TAIL, GZIP_TAIL)?;
                let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| tail[at + byte]));
                match u64::from(word(4)) == len & u64::from(u32::MAX) {
                    true => inflate(&source, offset + start, stream, Wrapper::Summed(word(0))),
                    false => wrong("gzip states another length"),
                }
            }
            Compressor::Zstd if len > encoded.saturating_mul(ZSTD_RATIO) => wrong("too much"),
            Compressor::Zstd => {
                let mut kept = cache.kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.next += 1;
                let work = Work::of_file(len.saturating_mul(TIMES).saturating_add(FREE));
                Ok(Bytes::Zstd(Compressed { source, offset, encoded, len, id: kept.next, work }))
            }
        };
        Ok(Self { bytes: bytes?, len, compared: OnceLock::new() })
    }

    /// Creates a chunk that has only the fill value.
    pub(crate) fn filled() -> Self {
        Self { bytes: Bytes::Filled, len: 0, compared: OnceLock::new() }
    }

    /// Returns `true` if the chunk's bytes are in the file as they are.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.bytes, Bytes::Plain { .. })
    }

    /// Fills `buf` with the decoded bytes from `offset` on, which must exist. For a filled chunk,
    /// `buf` is left unchanged.
    ///
    /// # Errors
    /// E002 for a damaged stream, E004 for a wrong checksum, E007 when reading fails, E008 for
    /// reading back and forth too often.
    pub(crate) fn read(&self, cache: &Cache, offset: u64, buf: &mut [u8]) -> Result<()> {
        match &self.bytes {
            Bytes::Filled => Ok(()),
            Bytes::Plain { source, offset: start } => source.read_at(start + offset, buf),
            Bytes::Inflated(inflated) => {
                self.compare(|at, byte| inflated.read_at(at, byte))?;
                inflated.read_at(offset, buf)
            }
            Bytes::Zstd(compressed) => {
                self.compare(|at, byte| compressed.read(cache, at, byte))?;
                compressed.read(cache, offset, buf)
            }
        }
    }

    /// Decodes the stream to its end, once, where its checksum is compared. Other threads wait.
    fn compare(&self, read: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        let all = || match self.len.checked_sub(1) {
            Some(last) => read(last, &mut [0]),
            None => Ok(()),
        };
        self.compared.get_or_init(all).clone()
    }
}

/// Returns the length of the header before a gzip member's stream (RFC 1952, section 2.3).
fn gzip_header(head: &[u8]) -> Option<u64> {
    let &[0x1f, 0x8b, 8, flags, ..] = head else { return None };
    let mut at = 10;
    if flags & 4 != 0 {
        at += 2 + usize::from(u16::from_le_bytes([*head.get(at)?, *head.get(at + 1)?]));
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            at += head.get(at..)?.iter().position(|&byte| byte == 0)? + 1;
        }
    }
    Some(at as u64 + if flags & 2 != 0 { 2 } else { 0 })
}

impl Compressed {
    fn read(&self, cache: &Cache, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let page = self.page(cache, at / PAGE)?;
            let from = usize::try_from(at % PAGE).unwrap_or_default();
            let bytes = page.get(from..).unwrap_or_default();
            let len = bytes.len().min(rest.len());
            if len == 0 {
                return Err(Error::corrupt("a range past the end of a chunk").at(self.offset));
            }
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(&bytes[..len]);
            at += len as u64;
            rest = tail;
        }
        Ok(())
    }

    /// Returns a page, from the cache or decoded.
    fn page(&self, cache: &Cache, number: u64) -> Result<Arc<[u8]>> {
        // The lock is held while pages are decoded, so that no two threads decode the same one.
        let mut kept = cache.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.pages.iter().position(|(id, page, _)| (*id, *page) == (self.id, number));
        if let Some((id, page, bytes)) = found.and_then(|at| kept.pages.remove(at)) {
            kept.pages.push_back((id, page, Arc::clone(&bytes)));
            return Ok(bytes);
        }

        let found = kept.streams.iter().position(|(id, _)| *id == self.id);
        let decoder = found.and_then(|at| kept.streams.remove(at)).map(|(_, decoder)| decoder);
        let mut decoder = match decoder.filter(|decoder| decoder.page <= number) {
            Some(decoder) => decoder,
            None => {
                let stream = Stream::new()?;
                let mut decoder = Decoder { stream, input: Vec::new(), at: self.offset, page: 0 };
                self.fill(&mut decoder)?;
                decoder
            }
        };
        loop {
            let page = decoder.page;
            let bytes: Arc<[u8]> = self.decode(&mut decoder)?.into();
            if kept.pages.len() == MAX_PAGES {
                kept.pages.pop_front();
            }
            kept.pages.push_back((self.id, page, Arc::clone(&bytes)));
            if page == number {
                if kept.streams.len() == MAX_STREAMS {
                    kept.streams.pop_front();
                }
                kept.streams.push_back((self.id, decoder));
                return Ok(bytes);
            }
        }
    }

    /// Decodes the next page.
    fn decode(&self, decoder: &mut Decoder) -> Result<Vec<u8>> {
        let len = PAGE.min(self.len.saturating_sub(decoder.page * PAGE));
        self.work.spend(len)?;
        let mut page = vec![0; usize::try_from(len).unwrap_or_default()];
        let mut filled = 0;
        while filled < page.len() {
            let written = self.step(decoder, &mut page[filled..])?;
            if written == 0 && (decoder.stream.is_finished() || !self.fill(decoder)?) {
                let message = format!("a chunk ends before the {} bytes that it has", self.len);
                return Err(Error::corrupt(message).at(self.offset));
            }
            filled += written;
        }
        decoder.page += 1;
        if decoder.page * PAGE >= self.len {
            self.finish(decoder)?;
        }
        Ok(page)
    }

    /// Checks that the stream, and nothing else, ends after the last byte.
    fn finish(&self, decoder: &mut Decoder) -> Result<()> {
        let mut more = self.step(decoder, &mut [0])?;
        while more == 0 && !decoder.stream.is_finished() && self.fill(decoder)? {
            more = self.step(decoder, &mut [0])?;
        }
        let ends = decoder.stream.is_finished() && decoder.input.is_empty();
        if more > 0 || !ends || decoder.at < self.offset + self.encoded {
            let message = format!("a chunk does not end after the {} bytes that it has", self.len);
            return Err(Error::corrupt(message).at(self.offset));
        }
        Ok(())
    }

    /// Decodes the available input as far as possible.
    fn step(&self, decoder: &mut Decoder, out: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        loop {
            let step = decoder.stream.step(&decoder.input, &mut out[filled..]);
            let (read, written) = step.map_err(|error| error.at(self.offset))?;
            decoder.input.drain(..read);
            filled += written;
            if (read == 0 && written == 0) || filled == out.len() {
                return Ok(filled);
            }
        }
    }

    /// Reads more input; `false` at its end.
    fn fill(&self, decoder: &mut Decoder) -> Result<bool> {
        let len = (self.offset + self.encoded - decoder.at).min(INPUT as u64);
        let bytes = read_vec(&self.source, decoder.at, len)?;
        decoder.input.extend_from_slice(&bytes);
        decoder.at += len;
        Ok(len > 0)
    }
}

#[cfg(test)]
mod tests {
    use structured_zstd::encoding::{CompressionLevel, compress_slice_to_vec};

    use super::*;

    /// Returns three pages and a half, which compress a little.
    fn values() -> Vec<u8> {
        (0_u32..(7 << 19)).map(|at| (at.wrapping_mul(at >> 7) >> 5).to_le_bytes()[0]).collect()
    }

    fn chunk(stream: &[u8], len: u64, cache: &Cache) -> Result<Chunk> {
        let file = [b"before", stream, b"after"].concat();
        let encoded = (6, u64::try_from(stream.len()).unwrap_or(u64::MAX));
        Chunk::new(Arc::new(file), encoded, len, Compressor::Zstd, cache)
    }

    #[test]
    fn streams_are_read_at_any_place_in_any_order() {
        let (values, cache) = (values(), Cache::default());
        let stream = compress_slice_to_vec(&values, CompressionLevel::Fastest);
        let all = u64::try_from(values.len()).expect("small");
        let chunks: Vec<Chunk> =
            (0..12).map(|_| chunk(&stream, all, &cache).expect("a chunk")).collect();
        // More streams than are kept, each at several places, also back and over pages.
        for at in [0, all - 5, PAGE - 3, 2 * PAGE + 9, 17] {
            for chunk in &chunks {
                let mut read = [0; 5];
                chunk.read(&cache, at, &mut read).expect("in range");
                let from = usize::try_from(at).expect("small");
                assert_eq!(read, values[from..from + 5], "{at}");
            }
        }
        let mut read = vec![0; values.len()];
        chunks[0].read(&cache, 0, &mut read).expect("in range");
        assert!(read == values);
    }

    #[test]
    fn streams_of_another_length_are_errors() {
        let (values, cache) = (values(), Cache::default());
        let stream = compress_slice_to_vec(&values, CompressionLevel::Fastest);
        let all = u64::try_from(values.len()).expect("small");
        for (stream, len, message) in [
            (&stream[..], all + 1, "ends before"),
            (&stream[..], all - 1, "does not end"),
            (&stream[..], 4 * PAGE, "ends before"),
            (&stream[..stream.len() - 9], all, ""),
            (&[&stream[..], b"more"].concat(), all, "does not end"),
        ] {
            let chunk = chunk(stream, len, &cache).expect("a chunk");
            let error = chunk.read(&cache, len - 1, &mut [0]).expect_err("another length");
            assert_eq!(error.code(), apr_core::Code::Corrupt);
            assert!(error.to_string().contains(message), "{error}");
        }
        assert!(chunk(b"\x28\xb5\x2f\xfd", 1 << 40, &cache).is_err());
    }

    #[test]
    fn reading_back_and_forth_ends_at_the_budget() {
        let (mut values, cache) = (values(), Cache::default());
        values.truncate(3 << 19);
        let stream = compress_slice_to_vec(&values, CompressionLevel::Fastest);
        let all = u64::try_from(values.len()).expect("small");
        let chunks: Vec<Chunk> =
            (0..9).map(|_| chunk(&stream, all, &cache).expect("a chunk")).collect();
        let read = |_| {
            let mut all_read = chunks.iter().map(|chunk| {
                chunk.read(&cache, all - 1, &mut [0])?;
                chunk.read(&cache, 0, &mut [0])
            });
            all_read.try_for_each(|read| read)
        };
        let error = (0..100).map(read).find_map(Result::err).expect("too much work");
        assert_eq!(error.code(), apr_core::Code::Memory, "{error}");
    }
}
