//! A DEFLATE stream as a source that is read at any place.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use apr_core::{ByteSource, Error, Result, Work};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress_with_limit, inflate_flags};

/// Bytes that are decoded and kept together.
pub const PAGE: u64 = 1 << 20;

/// Pages that a [`Cache`] keeps.
pub const MAX_PAGES: usize = 16;

/// States of decoders that a [`Cache`] keeps, of some 48 KiB each.
pub const MAX_STATES: usize = 256;

/// Bytes that DEFLATE can make of one.
pub const MAX_RATIO: u64 = 1032;

/// States kept of one stream, besides the last ones.
const STATES_OF_ONE: u64 = 64;

/// Average number of times that a stream may be decoded; `FREE_PAGES` more pages are allowed.
///
/// This permits a few passes over all of it, and a state to start from for each piece. A view that
/// jumps from page to page would decode a page for each of its elements.
const TIMES: u64 = 8;
const FREE_PAGES: u64 = 64;

/// Maximum distance of DEFLATE's back-references, in bytes.
const WINDOW: usize = 1 << 15;

/// Compressed bytes read at a time.
const INPUT: u64 = 1 << 16;

/// Framing of a DEFLATE stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapper {
    /// No framing, as in a ZIP archive.
    Raw,
    /// Two bytes of header and a checksum (RFC 1950).
    Zlib,
    /// No framing, and the CRC-32 of the decoded bytes, as the end of a gzip member states it
    /// (RFC 1952).
    Summed(u32),
}

impl Wrapper {
    fn flags(self) -> u32 {
        match self {
            Self::Raw | Self::Summed(_) => 0,
            Self::Zlib => {
                inflate_flags::TINFL_FLAG_PARSE_ZLIB_HEADER
                    | inflate_flags::TINFL_FLAG_COMPUTE_ADLER32
            }
        }
    }
}

/// Position and framing of a stream.
#[derive(Debug, Clone, Copy)]
struct Stream {
    offset: u64,
    end: u64,
    wrapper: Wrapper,
}

/// A decoder in the middle of its stream.
#[derive(Clone)]
struct State {
    decoder: Box<DecompressorOxide>,
    window: Box<[u8; WINDOW]>,
    /// Position of the next byte in the window.
    at: usize,
    /// Offset of the next compressed byte.
    input: u64,
    /// Checksum of the decoded bytes so far, for a stream that states one.
    crc: crc32fast::Hasher,
    done: bool,
}

impl State {
    fn new(stream: &Stream) -> Self {
        let (decoder, window) = (Box::default(), Box::new([0; WINDOW]));
        let crc = crc32fast::Hasher::new();
        Self { decoder, window, at: 0, input: stream.offset, crc, done: false }
    }

    /// Passes up to `wanted` decoded bytes to `take`, in pieces, and returns their number. It is
    /// smaller only at the stream's end.
    fn decode(
        &mut self,
        stream: &Stream,
        source: &dyn ByteSource,
        wanted: u64,
        mut take: impl FnMut(&[u8]),
    ) -> Result<u64> {
        let mut decoded = 0;
        let mut input = Vec::new();
        let mut used = 0;
        while decoded < wanted && !self.done {
            if used == input.len() {
                input.resize(
                    usize::try_from((stream.end - self.input).min(INPUT)).unwrap_or_default(),
                    0,
                );
                source.read_at(self.input, &mut input)?;
                used = 0;
            }

            let left = usize::try_from(wanted - decoded).unwrap_or(usize::MAX);
            let (read, written) = self.step(stream, &input[used..], left)?;
            used += read;
            let piece = &self.window[self.at..self.at + written];
            take(piece);
            if let Wrapper::Summed(stated) = stream.wrapper {
                self.crc.update(piece);
                if self.done && self.crc.clone().finalize() != stated {
                    return Err(mismatch(self.input));
                }
            }

            // Without its flag for flat buffers, `miniz_oxide` takes the window for a ring.
            self.at = (self.at + written) % WINDOW;
            decoded += written as u64;
        }

        Ok(decoded)
    }

    /// Decodes up to `left` bytes into the window. Returns the numbers of bytes read and written.
    fn step(&mut self, stream: &Stream, input: &[u8], left: usize) -> Result<(usize, usize)> {
        let is_last = self.input + (input.len() as u64) >= stream.end;
        let more = if is_last { 0 } else { inflate_flags::TINFL_FLAG_HAS_MORE_INPUT };
        let flags = stream.wrapper.flags() | more;
        let window = &mut self.window[..];
        let (status, read, written) =
            decompress_with_limit(&mut self.decoder, input, window, self.at, left, flags);

        // Only what was used counts: the next call reads the rest of the piece again.
        self.input += read as u64;
        match status {
            TINFLStatus::Done => self.done = true,
            TINFLStatus::HasMoreOutput => {}
            // A step that moves nothing at the stream's end would be repeated for ever.
            TINFLStatus::NeedsMoreInput if read > 0 || written > 0 || self.input < stream.end => {}
            TINFLStatus::Adler32Mismatch => {
                return Err(mismatch(self.input));
            }
            _ => {
                return Err(
                    Error::corrupt("the compressed bytes are damaged or cut off").at(self.input)
                );
            }
        }

        Ok((read, written))
    }
}

fn mismatch(at: u64) -> Error {
    Error::checksum("the checksum of the compressed bytes is wrong").at(at)
}

/// A DEFLATE stream whose decoded length is known, as a source of its decoded bytes.
///
/// Errors have the offsets of the compressed bytes.
pub struct Inflated<S> {
    source: S,
    stream: Stream,
    len: u64,
    id: u64,
    cache: Arc<Cache>,
    /// Bytes that are decoded, however often.
    work: Work,
}

impl<S: ByteSource> Inflated<S> {
    /// Creates a source of the stream of `compressed` bytes from `offset` on, which decodes to
    /// `len` bytes. Several streams may share a cache.
    ///
    /// # Errors
    /// E002 when the source ends before the stream, or `compressed` bytes can't hold `len`.
    pub fn new(
        source: S,
        (offset, compressed): (u64, u64),
        len: u64,
        wrapper: Wrapper,
        cache: &Arc<Cache>,
    ) -> Result<Self> {
        let end = offset.checked_add(compressed).filter(|&end| end <= source.len());
        let end = end.ok_or_else(|| {
            Error::corrupt("the compressed bytes reach past the end of the file").at(offset)
        })?;

        // Callers make room by this length, and a hostile header can claim any.
        if len > compressed.saturating_mul(MAX_RATIO) {
            let message = format!(
                "{compressed} compressed bytes can't hold the {len} bytes that are declared"
            );
            return Err(Error::corrupt(message).at(offset));
        }

        let id = cache.next.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            source,
            stream: Stream { offset, end, wrapper },
            len,
            id,
            cache: Arc::clone(cache),
            work: Work::of_file(len.saturating_mul(TIMES).saturating_add(FREE_PAGES * PAGE)),
        })
    }

    /// Returns the page with this number, from the cache or decoded.
    fn page(&self, number: u64) -> Result<Arc<[u8]>> {
        // The lock is held while pages are decoded, so that no two threads decode the same one.
        let mut kept = self.cache.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = kept.page(self.id, number) {
            return Ok(page);
        }

        let (mut at, mut state) =
            kept.state_before(self.id, number).unwrap_or_else(|| (0, State::new(&self.stream)));
        loop {
            let page = self.decode_page(at, &mut state)?;
            kept.keep_page(self.id, at, &page);
            if at == number {
                kept.keep_state(self.id, at + 1, state, self.len.div_ceil(PAGE));
                return Ok(page);
            }
            at += 1;
            if at.is_multiple_of(stride(self.len.div_ceil(PAGE))) {
                kept.keep_state(self.id, at, state.clone(), self.len.div_ceil(PAGE));
            }
        }
    }

    fn decode_page(&self, number: u64, state: &mut State) -> Result<Arc<[u8]>> {
        let len = PAGE.min(self.len - number * PAGE);
        self.work.spend(len)?;
        let mut page = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
        let decoded =
            state.decode(&self.stream, &self.source, len, |bytes| page.extend_from_slice(bytes))?;
        if decoded < len {
            let message =
                format!("the compressed bytes end before the {} bytes that are declared", self.len);
            return Err(Error::corrupt(message).at(self.stream.offset));
        }

        // The end of the last block, and no byte more, must follow the last byte.
        if number * PAGE + len == self.len
            && state.decode(&self.stream, &self.source, 1, |_| ())? > 0
        {
            let message = format!(
                "the compressed bytes hold more than the {} bytes that are declared",
                self.len
            );
            return Err(Error::corrupt(message).at(self.stream.offset));
        }
        Ok(page.into())
    }
}

impl<S: ByteSource> ByteSource for Inflated<S> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            let message =
                format!("{} bytes are expected here, but there are {} in all", buf.len(), self.len);
            return Err(Error::corrupt(message).at(self.stream.offset));
        }

        let (mut position, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let page = self.page(position / PAGE)?;
            let page: &[u8] = &page;
            let within = usize::try_from(position % PAGE).unwrap_or_default();
            let (head, tail) = rest.split_at_mut(rest.len().min(<[u8]>::len(page) - within));
            head.copy_from_slice(&page[within..within + head.len()]);
            position += head.len() as u64;
            rest = tail;
        }

        Ok(())
    }
}

impl<S> fmt::Debug for Inflated<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inflated")
            .field("stream", &self.stream)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Returns the decoded length of the stream in this range, and the offset of its end. Decodes the
/// stream once, without keeping the result.
///
/// # Errors
/// E002 when it is damaged, E004 when its checksum is wrong, E007 when reading fails, E008 when it
/// decodes to more than `most` bytes.
pub fn inflated_len(
    source: &dyn ByteSource,
    (offset, end): (u64, u64),
    wrapper: Wrapper,
    most: u64,
) -> Result<(u64, u64)> {
    let end = end.min(source.len());
    if offset > end {
        return Err(Error::corrupt("the compressed bytes are cut off before they begin").at(end));
    }

    let stream = Stream { offset, end, wrapper };
    let mut state = State::new(&stream);
    let mut len = 0;
    while !state.done {
        // A page at a time, so that a bomb is stopped soon after the limit.
        len += state.decode(&stream, source, PAGE, |_| ())?;
        if len > most {
            let message = format!(
                "the compressed bytes decode to more than {most} bytes, which is the limit here"
            );
            return Err(Error::memory(message).at(offset));
        }
    }

    Ok((len, state.input))
}

/// Pages and states of several streams. The least recently used ones are dropped.
#[derive(Default)]
pub struct Cache {
    next: AtomicU64,
    kept: Mutex<Kept>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

/// A page with its stream and number.
type Numbered = ((u64, u64), Arc<[u8]>);

/// Contents of a cache.
#[derive(Default)]
struct Kept {
    /// Pages with their stream and number, the most recently used last.
    pages: VecDeque<Numbered>,
    /// States of each stream, by the page that follows them.
    states: HashMap<u64, BTreeMap<u64, State>>,
    /// Streams with states, the one used last at the end.
    order: VecDeque<u64>,
    count: usize,
}

/// Returns the number of pages between two kept states of a stream of `pages` pages.
fn stride(pages: u64) -> u64 {
    pages.div_ceil(STATES_OF_ONE).max(1)
}

impl Kept {
    fn page(&mut self, stream: u64, number: u64) -> Option<Arc<[u8]>> {
        let at = self.pages.iter().position(|(key, _)| *key == (stream, number))?;
        let entry = self.pages.remove(at)?;
        let page = Arc::clone(&entry.1);
        self.pages.push_back(entry);
        Some(page)
    }

    fn keep_page(&mut self, stream: u64, number: u64, page: &Arc<[u8]>) {
        if self.pages.len() == MAX_PAGES {
            self.pages.pop_front();
        }
        self.pages.push_back(((stream, number), Arc::clone(page)));
    }

    fn state_before(&mut self, stream: u64, page: u64) -> Option<(u64, State)> {
        let (at, state) = self.states.get(&stream)?.range(..=page).next_back()?;
        // A copy, since decoding changes the state, and later reads may begin here too.
        let found = (*at, state.clone());
        self.used(stream);
        Some(found)
    }

    /// Keeps a state. Of the states between two strides, only the last is kept.
    fn keep_state(&mut self, stream: u64, page: u64, state: State, pages: u64) {
        self.used(stream);
        let states = self.states.entry(stream).or_default();
        let before = states.len();
        states.retain(|&at, _| at.is_multiple_of(stride(pages)));
        states.insert(page, state);
        self.count = self.count + states.len() - before;
        // The stream in use comes last and is kept; the stride bounds its own states.
        while self.count > MAX_STATES && self.order.len() > 1 {
            let oldest = self.order.pop_front().and_then(|oldest| self.states.remove(&oldest));
            self.count -= oldest.map_or(0, |states| states.len());
        }
    }

    fn used(&mut self, stream: u64) {
        self.order.retain(|&other| other != stream);
        self.order.push_back(stream);
    }
}
