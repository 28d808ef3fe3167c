//! A file that is fetched into the cache: in parallel ranges, going on where it was cut, checked before it appears.
//!
//! It can be read while it comes: ranges that are wanted are fetched before others.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use apr_core::{Code, Error, IoCause, Progress, Result};

use crate::digest::{Check, Checked};
use crate::hub_cache::SnapshotEntry;
use crate::journal::Journal;
use crate::lock::{Lock, disk};
use crate::resource::Resource;
use crate::retry::check_interrupt;
use crate::url_cache::ListedEntry;

/// Bytes that are asked for at once.
const PIECE: u64 = 4 << 20;

/// Pieces that are asked for at the same time.
const AT_ONCE: usize = 16;

/// How long the interrupt flag may be left unread.
const GLANCE: Duration = Duration::from_millis(50);

/// Where a file goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Its name when it is whole and checked.
    pub(crate) path: PathBuf,
    /// The file whose lock is held meanwhile.
    pub(crate) lock: PathBuf,
    /// By what it is checked; the state of a file whose server gives no digest.
    pub(crate) etag: String,
    /// What is done when it is there.
    pub(crate) entry: Entry,
}

/// How a cache says that a file is there.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// As a file of a commit, for which a revision stands.
    Snapshot(SnapshotEntry),
    /// In the list of what came from other servers.
    Listed(ListedEntry),
}

impl Entry {
    /// Whether the file is there as a whole.
    fn is_there(&self, path: &Path, len: u64) -> bool {
        match self {
            Self::Snapshot(_) => path.metadata().is_ok_and(|found| found.is_file() && found.len() == len),
            Self::Listed(entry) => entry.is_there(len),
        }
    }

    fn add(&self, path: &Path, checked: Option<&Checked>) -> Result<()> {
        match self {
            Self::Snapshot(entry) => entry.add(path),
            Self::Listed(entry) => entry.add(path, checked),
        }
    }
}

impl Target {
    /// What was fetched so far. The name is none that other programs use, which could not know of the holes in it.
    fn partial(&self) -> PathBuf {
        self.with_end("apr-part")
    }

    fn journal(&self) -> PathBuf {
        self.with_end("apr-journal")
    }

    /// What did not agree with its digest.
    fn rejected(&self) -> PathBuf {
        self.with_end("apr-rejected")
    }

    fn with_end(&self, end: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!("{name}.{end}"))
    }
}

/// A file that is on its way into the cache.
pub(crate) struct Download {
    resource: Arc<Resource>,
    len: u64,
    target: Target,
    state: Mutex<State>,
    changed: Condvar,
}

enum Phase {
    /// Nobody has asked for it.
    Waiting,
    /// Somebody gets the lock, and looks what is there.
    Starting,
    /// Pieces come.
    Running,
    /// It is whole and has its name.
    Done,
    Failed(Error),
}

struct State {
    phase: Phase,
    file: Option<Arc<File>>,
    journal: Journal,
    /// Pieces that are on their way.
    loading: Vec<u64>,
    /// Pieces that somebody waits for.
    wanted: VecDeque<u64>,
    /// No piece before this one is missing.
    next: u64,
    /// Bytes that came over the network.
    moved: u64,
    lock: Option<Lock>,
}

impl Download {
    pub(crate) fn new(resource: Arc<Resource>, len: u64, target: Target) -> Arc<Self> {
        let journal = Journal { len, etag: target.etag.clone(), done: Vec::new() };
        let state = State {
            phase: Phase::Waiting,
            file: None,
            journal,
            loading: Vec::new(),
            wanted: VecDeque::new(),
            next: 0,
            moved: 0,
            lock: None,
        };
        Arc::new(Self { resource, len, target, state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that came over the network.
    pub(crate) fn moved(&self) -> u64 {
        self.lock().moved
    }

    /// What the next run goes on from, where this one did not end.
    pub(crate) fn kept(&self) -> Option<String> {
        let state = self.lock();
        let kept = state.journal.total();
        let is_partial = kept > 0 && !matches!(state.phase, Phase::Done);
        is_partial.then(|| format!("{}: {kept} of {} bytes are kept for the next run", self.resource.name, self.len))
    }

    /// Where the file is when it is whole.
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
        self.lock().phase = phase;
        self.changed.notify_all();
        if !is_running {
            return;
        }
        for _ in 0..AT_ONCE.min(usize::try_from(self.len.div_ceil(PIECE)).unwrap_or(AT_ONCE)) {
            let this = Arc::clone(self);
            thread::spawn(move || this.work());
        }
        let this = Arc::clone(self);
        thread::spawn(move || this.check());
    }

    /// Gets the lock and opens what is there; whether that is the whole file.
    fn prepare(&self) -> Result<bool> {
        let interrupt = &self.resource.client.settings.interrupt;
        let lock = Lock::take(&self.target.lock, &self.resource.name, &self.resource.notes, interrupt)?;
        let path = &self.target.path;
        if self.target.entry.is_there(path, self.len) {
            self.lock().file = Some(Arc::new(File::open(path).map_err(|error| disk(&error, path))?));
            self.target.entry.add(path, None)?;
            return Ok(true);
        }
        let partial = self.target.partial();
        let journal = Journal::read(&self.target.journal(), self.len, &self.target.etag);
        let journal = journal.filter(|_| partial.metadata().is_ok_and(|found| found.len() == self.len));
        let open = || -> std::io::Result<File> {
            partial.parent().map_or(Ok(()), fs::create_dir_all)?;
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&partial)?;
            if journal.is_none() {
                file.set_len(0)?;
                file.set_len(self.len)?;
            }
            Ok(file)
        };
        let file = open().map_err(|error| disk(&error, &partial))?;
        let mut state = self.lock();
        if let Some(journal) = journal {
            let (kept, len) = (journal.total(), self.len);
            self.resource.notes.add(format!("{}: {kept} of {len} bytes are here already", self.resource.name));
            state.journal = journal;
        }
        state.file = Some(Arc::new(file));
        state.lock = Some(lock);
        Ok(false)
    }

    /// Fetches pieces until none is missing.
    fn work(&self) {
        let mut piece = Vec::new();
        while let Some((number, file)) = self.take_piece() {
            let start = number * PIECE;
            let end = (start + PIECE).min(self.len);
            piece.resize(usize::try_from(end - start).unwrap_or_default(), 0);
            let partial = self.target.partial();
            let fetched = self.resource.read(start, &mut piece);
            let written =
                fetched.and_then(|()| file.write_all_at(&piece, start).map_err(|error| disk(&error, &partial)));
            let mut state = self.lock();
            state.loading.retain(|&other| other != number);
            match written {
                Ok(()) => {
                    state.moved += end - start;
                    state.journal.add(start, end);
                    let noted = state.journal.write(&self.target.journal());
                    if let Err(error) = noted {
                        state.fail(disk(&error, &self.target.journal()));
                    }
                }
                Err(error) => state.fail(error),
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The piece to fetch next: one that somebody waits for, or the first that is missing.
    fn take_piece(&self) -> Option<(u64, Arc<File>)> {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Running) {
            return None;
        }
        let count = self.len.div_ceil(PIECE);
        while state.next < count && state.has_piece(state.next, self.len) {
            state.next += 1;
        }
        let wanted = std::mem::take(&mut state.wanted);
        let missing = |number: &u64| !state.has_piece(*number, self.len) && !state.loading.contains(number);
        let found = wanted.iter().copied().find(missing).or_else(|| (state.next..count).find(missing))?;
        state.wanted = wanted.into_iter().filter(|&number| number != found).collect();
        state.loading.push(found);
        let file = state.file.clone()?;
        Some((found, file))
    }

    /// Computes the digest as far as the file is there, and gives it its name when it is whole and right.
    fn check(&self) {
        let checked = self.digest();
        let checked = checked.and_then(|found| if found.agrees { self.publish(&found) } else { Err(self.reject()) });
        let mut state = self.lock();
        match checked {
            Ok(()) => state.phase = Phase::Done,
            Err(error) => state.fail(error),
        }
        state.lock = None;
        drop(state);
        self.changed.notify_all();
    }

    fn digest(&self) -> Result<Checked> {
        let mut check = Check::new(&self.target.etag, self.len);
        let mut piece = Vec::new();
        for number in 0..self.len.div_ceil(PIECE) {
            let start = number * PIECE;
            let end = (start + PIECE).min(self.len);
            let file = self.wait_for(start, end, false)?;
            piece.resize(usize::try_from(end - start).unwrap_or_default(), 0);
            file.read_exact_at(&mut piece, start).map_err(|error| disk(&error, &self.target.partial()))?;
            check.update(&piece);
        }
        Ok(check.finish())
    }

    fn publish(&self, checked: &Checked) -> Result<()> {
        let (partial, path) = (self.target.partial(), &self.target.path);
        let file = self.lock().file.clone();
        let rename = || -> std::io::Result<()> {
            file.map_or(Ok(()), |file| file.sync_all())?;
            fs::rename(&partial, path)?;
            let _ = fs::remove_file(self.target.journal());
            Ok(())
        };
        rename().map_err(|error| disk(&error, path))?;
        self.target.entry.add(path, Some(checked))
    }

    /// Puts aside what is not what the hub says that it is.
    fn reject(&self) -> Error {
        let rejected = self.target.rejected();
        let kept = fs::rename(self.target.partial(), &rejected).is_ok();
        let _ = fs::remove_file(self.target.journal());
        let aside = if kept { format!("; it is kept as {}", rejected.display()) } else { String::new() };
        let message = format!(
            "what was downloaded is not the file that the hub has: its digest is not {}{aside}",
            self.target.etag
        );
        Error::new(Code::Checksum, message).in_file(&self.resource.name)
    }

    /// Fills a buffer with the bytes from `offset` on, which are fetched first if need be.
    pub(crate) fn read(self: &Arc<Self>, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.start();
        let file = self.wait_for(offset, offset + buf.len() as u64, true)?;
        file.read_exact_at(buf, offset).map_err(|error| disk(&error, &self.target.partial()).at(offset))
    }

    /// Waits for a range; `first` has it fetched before others.
    fn wait_for(&self, start: u64, end: u64, first: bool) -> Result<Arc<File>> {
        let mut state = self.lock();
        loop {
            match (&state.phase, &state.file) {
                (Phase::Failed(error), _) => return Err(error.clone()),
                (Phase::Done, Some(file)) => return Ok(Arc::clone(file)),
                (Phase::Running, Some(file)) if state.journal.has(start, end) => return Ok(Arc::clone(file)),
                _ => {}
            }
            if first && matches!(state.phase, Phase::Running) {
                let pieces = start / PIECE..end.div_ceil(PIECE);
                let missing: Vec<u64> = pieces.filter(|piece| !state.wanted.contains(piece)).collect();
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
                    format!("interrupted; {kept} of {} bytes are kept, and the next download goes on there", self.len)
                }
            };
            return Err(Error::io(IoCause::Interrupted, message).in_file(&self.resource.name));
        }
        let (state, _) = self.changed.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner);
        Ok(state)
    }

    /// Waits until the file is whole and checked; bytes that come are reported.
    ///
    /// # Errors
    /// E007 when it can't be fetched or written, E004 when it is not what the hub has.
    pub(crate) fn finish(self: &Arc<Self>, progress: &dyn Progress) -> Result<()> {
        self.start();
        let mut told = 0;
        let mut state = self.lock();
        loop {
            let total = if matches!(state.phase, Phase::Done) { self.len } else { state.journal.total() };
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
    fn has_piece(&self, number: u64, len: u64) -> bool {
        let start = number * PIECE;
        self.journal.has(start, (start + PIECE).min(len))
    }

    /// The first error is the one that counts.
    fn fail(&mut self, error: Error) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Failed(error);
        }
    }
}
