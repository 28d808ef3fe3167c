//! A file on a server as a source of bytes: ranges that were fetched are kept, and the next ones
//! fetched ahead.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use apr_core::{ByteSource, Error, Result};

use crate::digest::{Check, is_digest};
use crate::download::{Download, Target};
use crate::resource::Resource;

/// Minimum number of bytes fetched of a header. They mostly include the bytes that the reader
/// requests next.
const HEAD: u64 = 64 << 10;

/// The most that a small read is made longer by while a header is read.
const LONGEST_HEAD: u64 = 1 << 20;

/// The longest file that is fetched whole before somebody reads it.
pub(crate) const LONGEST_COMPANION: u64 = 16 << 20;

/// Number of bytes per request if the whole model is going to be read, for files of any length.
const WINDOW: u64 = 8 << 20;

/// Maximum number of bytes per request.
const LONGEST_WINDOW: u64 = 32 << 20;

/// Number of requests for a whole file, if its windows can be long enough. Each request waits for
/// the server once.
const FEW: u64 = 5;

/// Maximum gap in bytes between two ranges that are read with one request.
const GAP: u64 = 4 << 10;

/// Windows of all files that are fetched at the same time.
const AT_ONCE: usize = 8;

/// Bytes of one file that are kept.
const KEPT: u64 = 80 << 20;

/// State shared by the files of one model.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The model is open. From now on, reads are for tensors, and only requested bytes are fetched.
    is_open: AtomicBool,
    /// All of the model is going to be read.
    is_whole: AtomicBool,
    /// The model is kept in the cache.
    is_kept: AtomicBool,
    /// The model is not kept, and received bytes are compared with their digest.
    is_compared: AtomicBool,
    /// Windows that are being fetched ahead.
    ahead: AtomicUsize,
}

impl Reading {
    pub(crate) fn opened(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    pub(crate) fn whole(&self) {
        self.is_whole.store(true, Ordering::Relaxed);
    }

    pub(crate) fn keep(&self) {
        self.whole();
        self.is_kept.store(true, Ordering::Relaxed);
    }

    pub(crate) fn compare(&self) {
        self.is_compared.store(true, Ordering::Relaxed);
    }

    pub(crate) fn compares(&self) -> bool {
        self.is_compared.load(Ordering::Relaxed)
    }

    /// Returns `true` if only some tensors are read, not the whole file.
    fn reads_tensors(&self) -> bool {
        self.is_open.load(Ordering::Relaxed) && !self.is_whole.load(Ordering::Relaxed)
    }

    pub(crate) fn keeps(&self) -> bool {
        self.is_kept.load(Ordering::Relaxed)
    }
}

/// A remote file. Clones share the fetched bytes.
#[derive(Clone)]
pub struct RemoteSource(Arc<Inner>);

struct Inner {
    resource: Arc<Resource>,
    len: u64,
    /// Destination of the file in the cache, if it is cached.
    target: Option<Target>,
    /// The file on its way into the cache: from then on it is read there.
    download: OnceLock<Arc<Download>>,
    reading: Arc<Reading>,
    windows: Mutex<Windows>,
    changed: Condvar,
    /// Digest of the received bytes, if it is requested and the file is not cached.
    streamed: Mutex<Option<Streamed>>,
}

/// Digest of the bytes of a file that were received without a gap.
struct Streamed {
    at: u64,
    check: Check,
}

/// Ranges of the file by their start; they do not overlap.
#[derive(Default)]
struct Windows {
    ranges: BTreeMap<u64, Window>,
    /// Counts uses, so that the least recent is known.
    clock: u64,
    /// End of the last read; `streak` counts the small reads that followed each other.
    last_end: u64,
    streak: u32,
    /// End of the bytes that were already fetched ahead. They may have been used up since, and are
    /// not fetched ahead again.
    frontier: u64,
    /// Ranges of tensors that are going to be read, sorted and apart.
    expected: Vec<(u64, u64)>,
}

enum Window {
    Loading { end: u64 },
    Ready { bytes: Vec<u8>, used: u64, served: u64 },
    Failed { end: u64, error: Error },
}

impl Window {
    fn end(&self, start: u64) -> u64 {
        match self {
            Self::Loading { end } | Self::Failed { end, .. } => *end,
            Self::Ready { bytes, .. } => start + bytes.len() as u64,
        }
    }
}

/// Next step of a read.
enum Step {
    /// This number of bytes was available.
    Copied(usize),
    /// Range to fetch, which is already marked as being fetched.
    Fetch(u64, u64),
}

impl RemoteSource {
    /// A file whose length is known.
    pub(crate) fn of_len(
        resource: Resource,
        len: u64,
        target: Option<Target>,
        reading: &Arc<Reading>,
    ) -> Self {
        resource.lock().len = Some(len);
        Self::new(resource, len, Vec::new(), target, reading)
    }

    /// A file of which only the address is known: its first bytes are fetched, and with them its
    /// length.
    pub(crate) fn open(
        resource: Resource,
        target: impl FnOnce(&Resource) -> Option<Target>,
        reading: &Arc<Reading>,
    ) -> Result<Self> {
        let bytes = resource.first_bytes(HEAD)?;
        let len = resource.lock().len.unwrap_or(bytes.len() as u64);
        let target = target(&resource);
        Ok(Self::new(resource, len, bytes, target, reading))
    }

    fn new(
        resource: Resource,
        len: u64,
        head: Vec<u8>,
        target: Option<Target>,
        reading: &Arc<Reading>,
    ) -> Self {
        // No read has ended anywhere yet.
        let mut windows = Windows { last_end: u64::MAX, ..Windows::default() };
        if !head.is_empty() {
            windows.ranges.insert(0, Window::Ready { bytes: head, used: 0, served: 0 });
        }

        Self(Arc::new(Inner {
            resource: Arc::new(resource),
            len,
            target,
            download: OnceLock::new(),
            reading: Arc::clone(reading),
            windows: Mutex::new(windows),
            changed: Condvar::new(),
            streamed: Mutex::default(),
        }))
    }

    /// Returns the state of the file as the server names it.
    pub(crate) fn etag(&self) -> Option<String> {
        self.0.resource.etag()
    }

    /// Announces that these ranges are going to be read whole, each from its beginning. They are
    /// fetched by long requests.
    pub(crate) fn expect(&self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        let mut windows = self.0.lock();
        windows.expected.extend(ranges.into_iter().filter(|(start, end)| start < end));
        windows.expected.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in windows.expected.drain(..) {
            match merged.last_mut() {
                Some((_, last)) if start <= *last + GAP => *last = end.max(*last),
                _ => merged.push((start, end)),
            }
        }
        windows.expected = merged;
    }

    /// Returns the digest that the bytes are compared with, if it is known.
    pub(crate) fn digest(&self) -> Option<String> {
        let etag = self.0.target.as_ref().map(|target| target.etag.clone());
        etag.filter(|etag| is_digest(etag))
    }

    /// The file on its way into the cache, if it is.
    pub(crate) fn begun(&self) -> Option<Arc<Download>> {
        self.0.download.get().cloned()
    }

    /// Returns the download of the file into the cache, or `None` if the file is not cached.
    pub(crate) fn download(&self) -> Option<Arc<Download>> {
        let inner = &self.0;
        let target = inner.target.clone()?;
        let begin = || Download::new(Arc::clone(&inner.resource), inner.len, target, inner.head());
        Some(Arc::clone(inner.download.get_or_init(begin)))
    }

    /// Starts hashing received bytes, if the file's digest is known.
    pub(crate) fn hash_what_comes(&self) {
        self.0.hash_what_comes();
    }

    /// Returns `true` if the cache can't keep the file. From then on the file is read without it,
    /// and received bytes are compared with their digest.
    pub(crate) fn leave_cache(&self, download: &Download) -> bool {
        self.0.leave_cache(download)
    }

    /// Compares the received bytes with the file's digest. Fetches the missing bytes.
    ///
    /// # Errors
    /// E004 when the digest differs, and the errors of a read.
    pub(crate) fn check_streamed(&self) -> Result<()> {
        self.hash_what_comes();
        let inner = &self.0;
        let mut rest = vec![0; 1 << 20];
        loop {
            let at = inner.streamed().as_ref().map_or(inner.len, |streamed| streamed.at);
            let left = usize::try_from(inner.len - at).unwrap_or(usize::MAX);
            if left == 0 {
                break;
            }
            let piece = left.min(rest.len());
            self.read_at(at, &mut rest[..piece])?;

            // Where a window of it came only now, that one was hashed already.
            if let Some(streamed) = inner.streamed().as_mut().filter(|found| found.at == at) {
                streamed.check.update(&rest[..piece]);
                streamed.at += piece as u64;
            }
        }

        let checked = inner.streamed().take().map(|streamed| streamed.check.finish());
        if checked.is_none_or(|checked| checked.agrees) {
            return Ok(());
        }
        let etag = inner.target.as_ref().map_or("", |target| &target.etag);
        let message = format!("digest mismatch: expected {etag}");
        Err(Error::checksum(message).in_file(&inner.resource.name))
    }
}

impl ByteSource for RemoteSource {
    fn len(&self) -> u64 {
        self.0.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let inner = &self.0;
        let end = offset.checked_add(buf.len() as u64).filter(|&end| end <= inner.len);
        let Some(end) = end else {
            let message = format!(
                "{} bytes wanted past the end of the file at byte {}",
                buf.len(),
                inner.len
            );
            return Err(Error::corrupt(message).at(offset).in_file(&inner.resource.name));
        };

        if let Some(download) = inner.download.get()
            && inner.read_cached(download, offset, buf)?
        {
            return Ok(());
        }

        let mut at = offset;
        while at < end {
            let rest = &mut buf[usize::try_from(at - offset).unwrap_or_default()..];
            match inner.step(at, end, rest)? {
                Step::Copied(copied) => at += copied as u64,
                Step::Fetch(start, end) => inner.fetch(start, end),
            }
        }

        if inner.reading.is_whole.load(Ordering::Relaxed) {
            Inner::fetch_ahead(inner, end);
        }

        Ok(())
    }
}

impl Inner {
    /// Reads through the cache. Returns `false` if the cache can't keep the file and does not have
    /// these bytes.
    fn read_cached(&self, download: &Arc<Download>, offset: u64, buf: &mut [u8]) -> Result<bool> {
        match download.read(offset, buf) {
            Err(_) if self.leave_cache(download) => Ok(download.read_kept(offset, buf)),
            read => read.map(|()| true),
        }
    }

    fn leave_cache(&self, download: &Download) -> bool {
        let Some(error) = download.lost() else { return false };
        self.resource.notes.add(format!(
            "can't write to the cache ({}), downloads are not kept; HF_HUB_CACHE and APR_CACHE \
             set other folders, `no_cache` silences this",
            error.message()
        ));

        // What was hashed of the file in the cache need not come again.
        if let Some((at, check)) = download.take_hashed() {
            self.streamed().get_or_insert(Streamed { at, check });
        }
        self.hash_what_comes();
        true
    }

    /// Starts hashing received bytes, if the file's digest is known.
    fn hash_what_comes(&self) {
        let etag = self.target.as_ref().map(|target| &target.etag);
        let Some(etag) = etag.filter(|etag| is_digest(etag)) else { return };
        let windows = self.lock();
        self.streamed()
            .get_or_insert_with(|| Streamed { at: 0, check: Check::new(etag, self.len) });
        self.hash(&windows);
    }

    /// Returns the first bytes of the file, if they are in memory.
    fn head(&self) -> Option<Vec<u8>> {
        match self.lock().ranges.get(&0)? {
            Window::Ready { bytes, .. } => Some(bytes.clone()),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn streamed(&self) -> MutexGuard<'_, Option<Streamed>> {
        self.streamed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hashes the windows that follow without a gap.
    fn hash(&self, windows: &Windows) {
        let mut streamed = self.streamed();
        let Some(Streamed { at, check }) = streamed.as_mut() else { return };
        while let Some((&start, Window::Ready { bytes, .. })) =
            windows.ranges.range(..=*at).next_back()
        {
            let known = usize::try_from(*at - start).unwrap_or(usize::MAX);
            let Some(news) = bytes.get(known..).filter(|news| !news.is_empty()) else { return };
            check.update(news);
            *at += news.len() as u64;
        }
    }

    /// Copies the bytes from `at` on, waits for bytes that are being fetched, or returns the range
    /// to fetch.
    fn step(&self, at: u64, end: u64, buf: &mut [u8]) -> Result<Step> {
        let mut windows = self.lock();
        loop {
            let found = windows
                .ranges
                .range(..=at)
                .next_back()
                .map(|(&start, window)| (start, window.end(start)));
            let Some((start, _)) = found.filter(|&(_, window_end)| window_end > at) else {
                let next = windows.ranges.range(at..).next().map_or(self.len, |(&start, _)| start);
                let before = found.map_or(0, |(_, window_end)| window_end);
                let (from, until) = match windows.expected_around(at) {
                    Some((from, until)) if self.reading.reads_tensors() => {
                        (from.max(before), end.max(until).min(next))
                    }
                    _ => (at, self.until(&mut windows, at, end).min(next)),
                };
                windows.ranges.insert(from, Window::Loading { end: until });
                windows.frontier = windows.frontier.max(until);
                return Ok(Step::Fetch(from, until));
            };

            match windows.ranges.get(&start) {
                Some(Window::Loading { .. }) => {
                    windows = self.changed.wait(windows).unwrap_or_else(PoisonError::into_inner);
                }
                Some(Window::Failed { error, .. }) => {
                    let error = error.clone();
                    // Whoever asks next tries again.
                    windows.ranges.remove(&start);
                    return Err(error);
                }
                _ => return Ok(Step::Copied(self.serve(&mut windows, start, at, buf))),
            }
        }
    }

    /// Returns the end of a range that is to be fetched.
    fn until(&self, windows: &mut Windows, at: u64, end: u64) -> u64 {
        let follows = windows.last_end == at;
        windows.last_end = end;
        windows.streak = if follows { windows.streak + 1 } else { 0 };
        if self.reading.is_whole.load(Ordering::Relaxed) {
            return end.max(at + self.window()).min(self.len);
        }
        if self.reading.is_open.load(Ordering::Relaxed) {
            return end;
        }
        let least = (HEAD << windows.streak.min(4)).min(LONGEST_HEAD);
        // A header that is longer is asked for as a whole: what follows it are tensors.
        if end - at >= HEAD { end } else { (at + least).min(self.len) }
    }

    /// Returns the number of bytes per request if all of the file is going to be read: few requests
    /// for a short file, many concurrent ones for others.
    fn window(&self) -> u64 {
        let few = self.len.div_ceil(FEW);
        if few <= LONGEST_WINDOW { few.max(WINDOW) } else { WINDOW }
    }

    fn serve(&self, windows: &mut Windows, start: u64, at: u64, buf: &mut [u8]) -> usize {
        windows.clock += 1;
        let clock = windows.clock;
        let Some(Window::Ready { bytes, used, served }) = windows.ranges.get_mut(&start) else {
            return 0;
        };
        let from = usize::try_from(at - start).unwrap_or_default();
        let len = buf.len().min(bytes.len() - from);
        buf[..len].copy_from_slice(&bytes[from..from + len]);
        *used = clock;
        *served += len as u64;

        // Tensors are read once; a companion that was fetched ahead goes into the cache too.
        let is_companion =
            start == 0 && bytes.len() as u64 == self.len && self.len <= LONGEST_COMPANION;
        let is_done =
            *served >= bytes.len() as u64 && bytes.len() as u64 > LONGEST_HEAD && !is_companion;
        if is_done && self.reading.is_open.load(Ordering::Relaxed) {
            windows.ranges.remove(&start);
        }

        windows.last_end = at + len as u64;
        len
    }

    /// Fetches a range that is marked as being on the way.
    fn fetch(&self, start: u64, end: u64) {
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or_default()];
        let read = self.resource.read(start, &mut bytes);
        let mut windows = self.lock();
        windows.clock += 1;
        let used = windows.clock;
        let window = match read {
            Ok(()) => Window::Ready { bytes, used, served: 0 },
            Err(error) => Window::Failed { end, error },
        };
        windows.ranges.insert(start, window);
        self.hash(&windows);
        windows.forget();
        drop(windows);
        self.changed.notify_all();
    }

    /// Fetches the following bytes on separate threads, as far as there is space.
    fn fetch_ahead(inner: &Arc<Self>, from: u64) {
        let mut windows = inner.lock();
        let window = inner.window();
        for _ in 0..AT_ONCE {
            let at = windows.frontier.max(from);
            let next = windows.ranges.range(at..).next().map_or(inner.len, |(&start, _)| start);
            let end = (at + window).min(next);

            // With the window that is being read, what is fetched ahead is less than is kept, so
            // that nothing is dropped before it is read.
            let is_far = at + 2 * window > from + KEPT;
            if at >= end || is_far || inner.reading.ahead.load(Ordering::Relaxed) >= AT_ONCE {
                return;
            }

            windows.ranges.insert(at, Window::Loading { end });
            windows.frontier = end;
            inner.reading.ahead.fetch_add(1, Ordering::Relaxed);
            let (inner, start) = (Arc::clone(inner), at);
            std::thread::spawn(move || {
                inner.fetch(start, end);
                inner.reading.ahead.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

impl Windows {
    /// Returns the range to fetch around a position inside a range that is going to be read as a
    /// whole. It does not depend on which reader arrives first.
    fn expected_around(&self, at: u64) -> Option<(u64, u64)> {
        let after = self.expected.partition_point(|(start, _)| *start <= at);
        let (start, end) = self.expected[after.checked_sub(1)?];
        let from = start + (at - start) / LONGEST_WINDOW * LONGEST_WINDOW;
        (at < end).then(|| (from, end.min(from + LONGEST_WINDOW)))
    }

    /// Drops the ranges that were used least recently, while there are more bytes than are kept.
    fn forget(&mut self) {
        let len = |window: &Window| {
            if let Window::Ready { bytes, .. } = window { bytes.len() as u64 } else { 0 }
        };
        let mut total: u64 = self.ranges.values().map(len).sum();
        while total > KEPT {
            let oldest = self.ranges.iter().filter_map(|(&start, window)| match window {
                Window::Ready { used, .. } => Some((*used, start)),
                _ => None,
            });
            let Some((_, start)) = oldest.min() else { return };
            total -= self.ranges.remove(&start).as_ref().map_or(0, len);
        }
    }
}
