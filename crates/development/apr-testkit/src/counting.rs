use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use apr_core::{ByteSource, Result};

/// A source that counts reads and the bytes of them; clones count together.
///
/// It lends no slices, so every byte that is looked at is counted.
#[derive(Debug, Clone)]
pub struct CountingSource<S> {
    inner: S,
    bytes_read: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
}

impl<S> CountingSource<S> {
    /// Counts what is read from `inner`.
    pub fn new(inner: S) -> Self {
        Self { inner, bytes_read: Arc::default(), reads: Arc::default() }
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Returns the number of reads so far. For network sources, these are requests.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl<S: ByteSource> ByteSource for CountingSource<S> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.bytes_read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read_at(offset, buf)
    }
}
