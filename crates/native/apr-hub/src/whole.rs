//! A file whose server sends no ranges: one answer, read in order and as far as somebody wants it,
//! as curl does.
//!
//! What was read is kept in a file without a name, so that it can be read again; a download takes
//! the answer over and reads the rest into its own file.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apr_core::{Error, IoCause, Result};
use apr_platform::{read_exact_at, write_all_at};

use crate::answer::{Answer, cut};
use crate::resource::{Resource, renamed};
use crate::retry::{Patience, Trouble};

/// Bytes of a file that are kept to be read again.
const MOST_KEPT: u64 = 8 << 30;

/// Bytes that are received at a time.
const BITE: usize = 1 << 17;

/// A file that is received as one response.
pub(crate) struct Whole(Mutex<Inner>);

struct Inner {
    answer: Option<Answer>,
    /// Number of bytes of the file received.
    at: u64,
    /// Holds the first bytes of the file, as far as they were kept.
    spool: File,
    kept: u64,
}

impl Whole {
    /// The answer that begins with the first byte of a file.
    pub(crate) fn new(answer: Answer, spool: File) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner { answer: Some(answer), at: 0, spool, kept: 0 })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the bytes from `offset` on, after the bytes before them. Returns `false` if they are
    /// not available here, because a download that took over the response has not kept them.
    ///
    /// # Errors
    /// The errors of [`Resource::read`], and E008 if too much would be kept.
    pub(crate) fn read_at(&self, resource: &Resource, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let end = offset + buf.len() as u64;
        let mut inner = self.lock();
        if end > inner.kept {
            if inner.at > inner.kept {
                return Ok(false);
            }
            if end > MOST_KEPT {
                let message = "the server does not support range requests, and the file is too \
                               long to buffer; `apr download` it first";
                return Err(Error::memory(message).in_file(&resource.name));
            }
            inner.keep(resource, end)?;
        }

        let read = read_exact_at(&inner.spool, buf, offset);
        read.map_err(|error| resource.disk(&error).at(offset))?;
        Ok(true)
    }

    /// Receives all bytes, if the server did not state their number.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at).
    pub(crate) fn keep_all(&self, resource: &Resource) -> Result<(), Trouble> {
        let mut inner = self.lock();
        let mut bite = vec![0; BITE];
        loop {
            let at = inner.at;
            let Some(answer) = &mut inner.answer else { return Ok(()) };
            let read = resource.receive_some(answer, &mut bite)?;
            if read == 0 {
                return resource.learn_end(answer, at);
            }
            if inner.at + read as u64 > MOST_KEPT {
                let message = format!(
                    "the server sends more than {MOST_KEPT} bytes, without support for \
                             range requests"
                );
                return Err(Trouble::Final(Error::memory(message).in_file(&resource.name)));
            }
            inner.put(&bite[..read]).map_err(|error| Trouble::Final(resource.disk(&error)))?;
        }
    }

    /// Fills a buffer with the bytes from `at` on, for a caller that reads in order and keeps them.
    ///
    /// # Errors
    /// The errors of [`Resource::read`].
    pub(crate) fn take(&self, resource: &Resource, at: u64, buf: &mut [u8]) -> Result<()> {
        let mut inner = self.lock();
        let kept = usize::try_from(inner.kept.saturating_sub(at)).unwrap_or(usize::MAX);
        let (before, rest) = buf.split_at_mut(kept.min(buf.len()));
        let read = read_exact_at(&inner.spool, before, at);
        read.map_err(|error| resource.disk(&error).at(at))?;

        let mut done = 0;
        let mut patience = resource.patience();
        while done < rest.len() {
            match inner.receive(resource, &mut rest[done..]) {
                Ok(read) => {
                    done += read;
                    patience.renew(read);
                }
                Err(trouble) => inner.again(trouble, &mut patience, resource)?,
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Receives up to `end`, and keeps it.
    fn keep(&mut self, resource: &Resource, end: u64) -> Result<()> {
        let mut bite = vec![0; BITE];
        let mut patience = resource.patience();
        while self.at < end {
            match self.receive(resource, &mut bite) {
                Ok(read) => {
                    self.at -= read as u64;
                    self.put(&bite[..read]).map_err(|error| resource.disk(&error))?;
                    patience.renew(read);
                }
                Err(trouble) => self.again(trouble, &mut patience, resource)?,
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        write_all_at(&self.spool, bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.kept = self.at;
        Ok(())
    }

    /// Receives some of the next bytes. Returns 0 only after requesting the response again.
    fn receive(&mut self, resource: &Resource, buf: &mut [u8]) -> Result<usize, Trouble> {
        let Some(answer) = &mut self.answer else {
            self.answer = Some(resource.open_from(self.at)?);
            return Ok(0);
        };
        let read = resource.receive_some(answer, buf)?;
        if read == 0 {
            return Err(Trouble::Passing(cut(&answer.url)));
        }
        self.at += read as u64;
        Ok(read)
    }

    /// Waits until another try makes sense.
    fn again(
        &mut self,
        trouble: Trouble,
        patience: &mut Patience<'_>,
        resource: &Resource,
    ) -> Result<()> {
        self.answer = None;
        patience.wait(trouble).map_err(|error| renamed(&error, &resource.name))
    }
}

/// Returns an unnamed file in the cache, or in the folder of temporary files.
pub(crate) fn spool(resource: &Resource) -> Result<File> {
    let folder = resource.client.settings.cache.join("spool");
    let file = std::fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
    file.or_else(|_| tempfile::tempfile()).map_err(|error| {
        let message = format!(
            "the server does not support range requests, and the file can't be buffered: \
             {error}; APR_CACHE sets the folder"
        );
        Error::io(IoCause::Other, message).in_file(&resource.name)
    })
}
