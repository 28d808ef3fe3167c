//! How far something is that is computed in the background, and whether it is to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use apr_core::{ByteSource, Phase, Progress};
use apr_io::Interrupt;
use apr_registry::Result;

/// Progress of a pass.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    done: AtomicU64,
    total: AtomicU64,
}

impl Meter {
    /// Bytes that are done, and all of them.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    pub(super) fn reset(&self) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
    }
}

impl Progress for Meter {
    fn begin(&self, _: Phase, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Handle by which work reports its progress to a screen, and by which the screen can stop it.
#[derive(Debug, Clone)]
pub struct Watch {
    interrupt: Interrupt,
    meter: Arc<Meter>,
}

impl Watch {
    pub(crate) fn new(interrupt: Interrupt, meter: Arc<Meter>) -> Self {
        Self { interrupt, meter }
    }

    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Sets the maximum number of bytes to read.
    pub fn begin(&self, bytes: u64) {
        self.meter.begin(Phase::Checking, bytes);
    }

    /// Wraps a file to count the bytes read; reads end with E007 if the screen stops the work.
    #[must_use]
    pub fn over(&self, file: Box<dyn ByteSource>) -> Box<dyn ByteSource> {
        Box::new(Watched { file, watch: self.clone() })
    }
}

struct Watched {
    file: Box<dyn ByteSource>,
    watch: Watch,
}

impl ByteSource for Watched {
    fn len(&self) -> u64 {
        self.file.len()
    }

    // No slices: what is read by them is not counted, and can't be stopped.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.watch.interrupt.check()?;
        self.file.read_at(offset, buf)?;
        self.watch.meter.advance(buf.len() as u64);
        Ok(())
    }
}
