//! A source that opens an APR2 file in three reads instead of seven: each may be a request over a
//! network.
//!
//! The reader asks for the header, the metadata, the index, each trailer block and the footer. Here
//! the rest of the front comes in one read, and the trailer in another, as soon as its first bytes
//! are asked for. Nothing is read that the reader does not ask for in the end, and tensors pass
//! through.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use apr_core::{ByteSource, Limits, Result, SourceSet, read_vec};
use apr_format::apr2::Header;

/// Length of the head of a trailer block, and of the footer, in bytes.
const BLOCK_HEAD: usize = 16;

/// Maximum length of a trailer that is read in one request; the reader may need only the start of a
/// longer one.
const LONGEST_TRAILER: u64 = 64 << 20;

/// Switch for keeping the bytes read last, for callers that read them twice. A loader and its
/// sources share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hold(Arc<AtomicBool>);

impl Hold {
    /// Keeps them until the result is dropped.
    pub(crate) fn on(&self) -> impl Drop + use<> {
        struct Off(Arc<AtomicBool>);
        impl Drop for Off {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Relaxed);
            }
        }
        self.0.store(true, Ordering::Relaxed);
        Off(Arc::clone(&self.0))
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An APR2 file behind few reads.
pub(crate) struct FewReads<S> {
    inner: S,
    limits: Limits,
    held: Mutex<Held>,
    hold: Hold,
}

/// Bytes that were read ahead, until the file is open.
#[derive(Default)]
struct Held {
    header: Option<Header>,
    /// Offset of the bytes read last, and the bytes.
    range: Option<(u64, Vec<u8>)>,
    /// `true` once the trailer was read; later reads are for tensors.
    has_trailer: bool,
    is_open: bool,
}

impl Held {
    fn bytes(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let (start, bytes) = self.range.as_ref()?;
        let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
        bytes.get(from..from.checked_add(len)?)
    }
}

impl<S: ByteSource> FewReads<S> {
    pub(crate) fn new(inner: S, limits: &Limits, hold: &Hold) -> Self {
        Self { inner, limits: *limits, held: Mutex::default(), hold: hold.clone() }
    }

    /// Returns the length of the range to read instead of the requested one, if it is longer.
    fn longer(&self, held: &Held, offset: u64, len: usize) -> Option<u64> {
        let header = held.header.filter(|_| !held.has_trailer)?;
        let (metadata, index) = (u64::from(header.metadata_size), u64::from(header.index_size));
        if offset == u64::from(header.metadata_offset) {
            let is_allowed = self
                .limits
                .check_metadata(metadata)
                .and_then(|()| self.limits.check_index(index))
                .is_ok();
            return is_allowed.then(|| header.index_end() - offset);
        }

        let rest = self.inner.len().checked_sub(offset)?;

        // Tensors come after the trailer was walked, and so does a block at the very start of the
        // data section.
        let is_trailer =
            len == BLOCK_HEAD && offset > u64::from(header.data_offset) && rest <= LONGEST_TRAILER;
        is_trailer.then_some(rest)
    }

    /// Serves what was read before, and keeps what was not.
    fn read_held(&self, held: &mut Held, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(bytes) = held.bytes(offset, buf.len()) {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        self.inner.read_at(offset, buf)?;
        held.range = Some((offset, buf.to_vec()));
        Ok(())
    }

    fn read_opening(&self, held: &mut Held, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(bytes) = held.bytes(offset, buf.len()) {
            buf.copy_from_slice(bytes);
            return Ok(());
        }

        if held.has_trailer {
            *held = Held { is_open: true, ..Held::default() };
            return if self.hold.is_on() {
                self.read_held(held, offset, buf)
            } else {
                self.inner.read_at(offset, buf)
            };
        }

        match self.longer(held, offset, buf.len()).filter(|&longer| longer >= buf.len() as u64) {
            Some(longer) => {
                held.has_trailer =
                    held.header.is_some_and(|header| offset > u64::from(header.data_offset));
                let bytes = read_vec(&self.inner, offset, longer)?;
                buf.copy_from_slice(&bytes[..buf.len()]);
                held.range = Some((offset, bytes));
            }
            None => self.inner.read_at(offset, buf)?,
        }

        if offset == 0
            && let Ok(bytes) = <&[u8; Header::LEN as usize]>::try_from(&*buf)
        {
            held.header = Header::decode(bytes, self.inner.len()).ok();
        }
        Ok(())
    }
}

impl<S: ByteSource> ByteSource for FewReads<S> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_open {
            if self.hold.is_on() {
                return self.read_held(&mut held, offset, buf);
            }
            held.range = None;
            // Tensors may be read from several threads at once.
            drop(held);
            return self.inner.read_at(offset, buf);
        }
        self.read_opening(&mut held, offset, buf)
    }

    fn slice_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        self.inner.slice_at(offset, len)
    }
}

/// A folder whose files are read so.
pub(crate) struct FewReadsSet<'a> {
    inner: &'a dyn SourceSet,
    limits: Limits,
    hold: Hold,
}

impl<'a> FewReadsSet<'a> {
    pub(crate) fn new(inner: &'a dyn SourceSet, limits: &Limits, hold: &Hold) -> Self {
        Self { inner, limits: *limits, hold: hold.clone() }
    }
}

impl SourceSet for FewReadsSet<'_> {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        Ok(Box::new(FewReads::new(self.inner.open(name)?, &self.limits, &self.hold)))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.inner.list()
    }
}
