//! A file that is fetched into the cache: in parallel ranges, going on where it was cut, checked
//! before it appears.
//!
//! It can be read while it comes: ranges that are wanted are fetched before others.

mod target;
mod work;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use apr_core::{Code, Error, IoCause, Progress, Result};
use apr_platform::{read_exact_at, replace, write_all_at};

use crate::digest::{Check, Checked, damaged, file_agrees, is_digest};
use crate::journal::Journal;
use crate::lock::{Lock, disk};
use crate::resource::Resource;
use crate::retry::check_interrupt;
use work::{BITE, LEAST_ASKED, bites};

pub(crate) use target::{Entry, Target};

/// Maximum time between two checks of the interrupt flag.
const GLANCE: Duration = Duration::from_millis(50);

/// A file that is on its way into the cache.
pub(crate) struct Download {
    resource: Arc<Resource>,
    len: u64,
    target: Target,
    /// First bytes of the file, if they were read before.
    known: Option<Vec<u8>>,
    /// The cache could not be read or written.
    is_lost: AtomicBool,
    /// Set when the file is complete and its digest matched.
    is_verified: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

enum Phase {
    /// The file was not requested yet.
    Waiting,
    /// A thread takes the lock and examines the existing data.
    Starting,
    /// Pieces are being received.
    Running,
    /// The file is complete and has its final name.
    Done,
    Failed(Error),
}

struct State {
    phase: Phase,
    file: Option<Arc<File>>,
    journal: Journal,
    /// Number of ranges requested.
    asked: u64,
    /// Pieces that are on their way.
    loading: Vec<u64>,
    /// Pieces that somebody waits for.
    wanted: VecDeque<u64>,
    /// Number of the first piece that may be missing.
    next: u64,
    lock: Option<Lock>,
    /// The digest is being computed.
    is_checking: bool,
    /// Position and state of the digest when a failure occurred.
    hashed: Option<(u64, Check)>,
}

impl Download {
    /// Creates the download of a file. `known` has its first bytes, if they were read before.
    pub(crate) fn new(
        resource: Arc<Resource>,
        len: u64,
        target: Target,
        known: Option<Vec<u8>>,
    ) -> Arc<Self> {
        let journal = Journal { len, etag: target.etag.clone(), done: Vec::new() };
        let state = State {
            phase: Phase::Waiting,
            file: None,
            journal,
            asked: 0,
            loading: Vec::new(),
            wanted: VecDeque::new(),
            next: 0,
            lock: None,
            is_checking: false,
            hashed: None,
        };

        Arc::new(Self {
            resource,
            len,
            target,
            known,
            is_lost: false.into(),
            is_verified: false.into(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the file is fetched by one request.
    pub(crate) fn is_small(&self) -> bool {
        self.len <= LEAST_ASKED
    }

    /// Returns the number of bytes of the file received over the network.
    pub(crate) fn received(&self) -> u64 {
        self.resource.received.load(Ordering::Relaxed)
    }

    /// Returns a message about the bytes from which the next run resumes, if this download is
    /// incomplete.
    pub(crate) fn kept(&self) -> Option<String> {
        let state = self.lock();
        let kept = state.journal.total();
        let is_partial = kept > 0 && !matches!(state.phase, Phase::Done);
        is_partial.then(|| {
            format!(
                "{}: {kept} of {} bytes are kept for the next run",
                self.resource.name, self.len
            )
        })
    }

    /// Returns the path of the complete file.
    pub(crate) fn path(&self) -> PathBuf {
        self.target.path.clone()
    }

    /// Begins to fetch; more than once is once.
    pub(crate) fn start(self: &Arc<Self>) {
        {
            let mut state = self.lock();
            if !matches!(state.phase, Phase::Waiting) {
                return;
            }
            state.phase = Phase::Starting;
        }
        let phase = match self.prepare() {
            Ok(true) => Phase::Done,
            Ok(false) => Phase::Running,
            Err(error) => Phase::Failed(error),
        };
        let is_running = matches!(phase, Phase::Running);
        let mut state = self.lock();
        (state.phase, state.is_checking) = (phase, is_running);
        drop(state);
        self.changed.notify_all();
        if !is_running {
            return;
        }

        self.fetch_pieces();
        let this = Arc::clone(self);
        thread::spawn(move || this.check());
    }

    /// Takes the lock and opens the existing data. Returns `true` if that is the whole file.
    fn prepare(&self) -> Result<bool> {
        let interrupt = &self.resource.client.settings.interrupt;
        let lock =
            Lock::take(&self.target.lock, &self.resource.name, &self.resource.notes, interrupt)
                .map_err(|error| self.lose_by(error))?;
        let path = &self.target.path;

        // Another program may have fetched it while this one waited for the lock.
        if self.target.entry.is_there(path, self.len) {
            let interrupt = &self.resource.client.settings.interrupt;
            let etag = &self.target.etag;
            if is_digest(etag) && !file_agrees(path, etag, &(), interrupt)? {
                return Err(damaged(path, etag));
            }
            self.lock().file =
                Some(Arc::new(File::open(path).map_err(|error| self.lose(&error, path))?));
            self.is_verified.store(true, Ordering::Relaxed);
            self.target.entry.add(path, None).map_err(|error| self.lose_by(error))?;
            return Ok(true);
        }

        let partial = self.target.partial();

        // A partial file has the whole length from its beginning; one of another length is not
        // ours.
        let journal = Journal::read(&self.target.journal(), self.len, &self.target.etag);
        let journal =
            journal.filter(|_| partial.metadata().is_ok_and(|found| found.len() == self.len));
        let open = || -> std::io::Result<File> {
            partial.parent().map_or(Ok(()), fs::create_dir_all)?;
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&partial)?;
            if journal.is_none() {
                // Emptied first: bytes of another state of the file would stay otherwise.
                file.set_len(0)?;
                file.set_len(self.len)?;
            }
            Ok(file)
        };

        let file = open().map_err(|error| self.lose(&error, &partial))?;
        let mut state = self.lock();
        if let Some(journal) = journal {
            let (kept, len) = (journal.total(), self.len);
            self.resource
                .notes
                .add(format!("{}: resuming at {kept} of {len} bytes", self.resource.name));
            state.journal = journal;
        }
        if let Some(bytes) = &self.known {
            write_all_at(&file, bytes, 0).map_err(|error| self.lose(&error, &partial))?;
            state.journal.add(0, bytes.len() as u64);
        }

        state.file = Some(Arc::new(file));
        state.lock = Some(lock);
        Ok(false)
    }

    /// Computes the digest as far as the file is there, and gives it its name when it is whole and
    /// right.
    fn check(&self) {
        let checked = self
            .digest()
            .and_then(|found| if found.agrees { self.publish(&found) } else { Err(self.reject()) });
        let mut state = self.lock();
        match checked {
            Ok(()) => state.phase = Phase::Done,
            Err(error) => state.fail(error),
        }
        (state.lock, state.is_checking) = (None, false);
        drop(state);
        self.changed.notify_all();
    }

    fn digest(&self) -> Result<Checked> {
        let mut check = Check::new(&self.target.etag, self.len);
        let mut bite = vec![0; BITE];
        for number in 0..self.count() {
            let piece = self.bytes_of(&(number..number + 1));
            let file = match self.wait_for(piece.start, piece.end, false) {
                Ok(file) => file,
                Err(error) => {
                    self.lock().hashed = Some((piece.start, check));
                    return Err(error);
                }
            };
            for (start, len) in bites(piece) {
                read_exact_at(&file, &mut bite[..len], start)
                    .map_err(|error| self.lose(&error, &self.target.partial()))?;
                check.update(&bite[..len]);
            }
        }
        Ok(check.finish())
    }

    fn publish(&self, checked: &Checked) -> Result<()> {
        self.is_verified.store(true, Ordering::Relaxed);
        let (partial, path) = (self.target.partial(), &self.target.path);
        let file = self.lock().file.clone();
        let rename = || -> std::io::Result<()> {
            // On disk before it gets its name, which would stand for anything after a crash
            // otherwise.
            file.map_or(Ok(()), |file| file.sync_all())?;
            replace(&partial, path)?;
            let _ = fs::remove_file(self.target.journal());
            Ok(())
        };
        rename().map_err(|error| self.lose(&error, path))?;
        self.target.entry.fetched(path);
        self.target.entry.add(path, Some(checked)).map_err(|error| self.lose_by(error))
    }

    /// Converts a file system error of the cache, after which the file is not kept there.
    fn lose(&self, error: &std::io::Error, path: &Path) -> Error {
        self.lose_by(disk(error, path))
    }

    fn lose_by(&self, error: Error) -> Error {
        if error.cause() != Some(IoCause::Interrupted) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        error
    }

    /// Returns the error if the cache failed to keep the file.
    pub(crate) fn lost(&self) -> Option<Error> {
        let mut state = self.lock();
        let Phase::Failed(error) = &state.phase else { return None };
        let error = error.clone();
        // How far the digest was computed is known in a moment.
        while state.is_checking {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.is_lost.load(Ordering::Relaxed).then_some(error)
    }

    /// Returns `true` if the file is complete and its digest matched.
    pub(crate) fn is_verified(&self) -> bool {
        self.is_verified.load(Ordering::Relaxed)
    }

    /// Takes the position and state of the digest at the time the cache failed.
    pub(crate) fn take_hashed(&self) -> Option<(u64, Check)> {
        self.lock().hashed.take()
    }

    /// Fills a buffer from bytes received before the cache failed. Returns `false` if they are not
    /// there.
    pub(crate) fn read_kept(&self, offset: u64, buf: &mut [u8]) -> bool {
        let state = self.lock();
        let is_there = state.journal.has(offset, offset + buf.len() as u64);
        let file = state.file.clone().filter(|_| is_there);
        drop(state);
        file.is_some_and(|file| read_exact_at(&file, buf, offset).is_ok())
    }

    /// Moves a file that does not match the hub's digest aside, and returns the error.
    fn reject(&self) -> Error {
        let rejected = self.target.rejected();
        let kept = fs::rename(self.target.partial(), &rejected).is_ok();
        let _ = fs::remove_file(self.target.journal());
        let aside =
            if kept { format!("; it is kept as {}", rejected.display()) } else { String::new() };
        let message =
            format!("digest mismatch of the download: expected {}{aside}", self.target.etag);
        Error::new(Code::Checksum, message).in_file(&self.resource.name)
    }

    /// Fills a buffer with the bytes from `offset` on, which are fetched first if need be.
    pub(crate) fn read(self: &Arc<Self>, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.start();
        let file = self.wait_for(offset, offset + buf.len() as u64, true)?;
        read_exact_at(&file, buf, offset)
            .map_err(|error| self.lose(&error, &self.target.partial()).at(offset))
    }

    /// Waits for a range; `first` has it fetched before others.
    fn wait_for(&self, start: u64, end: u64, first: bool) -> Result<Arc<File>> {
        let mut state = self.lock();
        loop {
            match (&state.phase, &state.file) {
                (Phase::Failed(error), _) => return Err(error.clone()),
                (Phase::Done, Some(file)) => return Ok(Arc::clone(file)),
                (Phase::Running, Some(file)) if state.journal.has(start, end) => {
                    return Ok(Arc::clone(file));
                }
                _ => {}
            }

            if first && matches!(state.phase, Phase::Running) {
                let pieces = start / self.piece_len()..end.div_ceil(self.piece_len());
                let missing: Vec<u64> =
                    pieces.filter(|piece| !state.wanted.contains(piece)).collect();
                state.wanted.extend(missing);
            }

            state = self.pause(state)?;
        }
    }

    fn pause<'a>(&self, state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        let interrupt = &self.resource.client.settings.interrupt;
        if let Err(error) = check_interrupt(interrupt) {
            let kept = state.journal.total();
            let message = match kept {
                0 => error.message().to_owned(),
                kept => {
                    format!(
                        "interrupted; {kept} of {} bytes are kept, and the next download resumes",
                        self.len
                    )
                }
            };
            return Err(Error::io(IoCause::Interrupted, message).in_file(&self.resource.name));
        }

        let (state, _) =
            self.changed.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner);
        Ok(state)
    }

    /// Waits until the file is complete and checked. Reports received bytes to `progress`.
    ///
    /// # Errors
    /// E007 when it can't be fetched or written, E004 when it is not what the hub has.
    pub(crate) fn finish(self: &Arc<Self>, progress: &dyn Progress) -> Result<()> {
        self.start();
        let mut told = 0;
        let mut state = self.lock();
        loop {
            let total =
                if matches!(state.phase, Phase::Done) { self.len } else { state.journal.total() };
            progress.advance(total.saturating_sub(told));
            told = total.max(told);
            match &state.phase {
                Phase::Done => return Ok(()),
                Phase::Failed(error) => return Err(error.clone()),
                _ => state = self.pause(state)?,
            }
        }
    }
}

impl State {
    /// Sets the error. Only the first one counts.
    fn fail(&mut self, error: Error) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Failed(error);
        }
    }
}
