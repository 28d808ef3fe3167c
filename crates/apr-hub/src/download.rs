//! A file that is fetched into the cache: in parallel ranges, going on where it was cut, checked
//! before it appears.
//!
//! It can be read while it comes: ranges that are wanted are fetched before others.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use apr_core::{Code, Error, IoCause, Progress, Result};

use crate::digest::{Check, Checked, damaged, file_agrees, is_digest};
use crate::hub_cache::SnapshotEntry;
use crate::journal::Journal;
use crate::lock::{Lock, disk};
use crate::resource::{Resource, Stream};
use crate::retry::check_interrupt;
use crate::url_cache::ListedEntry;

/// What is noted as being there, whole or not at all.
const PIECE_LEN: u64 = 4 << 20;

/// Bytes that are received, written and hashed at a time: few enough to stay in the processor's
/// cache.
const BITE: usize = 512 << 10;

/// Ranges that are asked for at the same time.
const AT_ONCE: usize = 16;

/// Pieces that are asked for as one range.
const LONGEST_RUN: u64 = 8;

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

impl Target {
    /// Where the bytes of this state of a file of a commit go.
    pub(crate) fn in_snapshot(entry: &SnapshotEntry, etag: &str) -> Self {
        let (path, lock) = (entry.folder.blob(etag), entry.folder.lock(etag));
        Self { path, lock, etag: etag.to_owned(), entry: Entry::Snapshot(entry.clone()) }
    }
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
            Self::Snapshot(_) => {
                path.metadata().is_ok_and(|found| found.is_file() && found.len() == len)
            }
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
    /// What was fetched so far. The name is none that other programs use, which could not know of
    /// the holes in it.
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
    /// All of its bytes, where they were read before.
    known: Option<Vec<u8>>,
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
    /// Ranges that were asked for.
    asked: u64,
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
    /// A file to be fetched; `known` are its bytes, where all of them were read before.
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
            moved: 0,
            lock: None,
        };

        Arc::new(Self {
            resource,
            len,
            target,
            known,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is fetched by one request.
    pub(crate) fn is_small(&self) -> bool {
        self.len <= PIECE_LEN
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
        is_partial.then(|| {
            format!(
                "{}: {kept} of {} bytes are kept for the next run",
                self.resource.name, self.len
            )
        })
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

        for _ in 0..AT_ONCE.min(usize::try_from(self.len.div_ceil(PIECE_LEN)).unwrap_or(AT_ONCE)) {
            let this = Arc::clone(self);
            thread::spawn(move || this.work());
        }

        let this = Arc::clone(self);
        thread::spawn(move || this.check());
    }

    /// Gets the lock and opens what is there; whether that is the whole file.
    fn prepare(&self) -> Result<bool> {
        let interrupt = &self.resource.client.settings.interrupt;
        let lock =
            Lock::take(&self.target.lock, &self.resource.name, &self.resource.notes, interrupt)?;
        let path = &self.target.path;

        // Another program may have fetched it while this one waited for the lock.
        if self.target.entry.is_there(path, self.len) {
            let interrupt = &self.resource.client.settings.interrupt;
            let etag = &self.target.etag;
            if is_digest(etag) && !file_agrees(path, etag, &(), interrupt)? {
                return Err(damaged(path, etag));
            }
            self.lock().file =
                Some(Arc::new(File::open(path).map_err(|error| disk(&error, path))?));
            self.target.entry.add(path, None)?;
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

        let file = open().map_err(|error| disk(&error, &partial))?;
        let mut state = self.lock();
        if let Some(bytes) = &self.known {
            file.write_all_at(bytes, 0).map_err(|error| disk(&error, &partial))?;
            state.journal.add(0, self.len);
        } else if let Some(journal) = journal {
            let (kept, len) = (journal.total(), self.len);
            self.resource
                .notes
                .add(format!("{}: {kept} of {len} bytes are here already", self.resource.name));
            state.journal = journal;
        }

        state.file = Some(Arc::new(file));
        state.lock = Some(lock);
        Ok(false)
    }

    /// Fetches pieces until none is missing.
    fn work(&self) {
        let mut bite = vec![0; BITE];
        while let Some((pieces, file)) = self.take_run() {
            let mut stream = self.resource.stream(self.bytes_of(&pieces));
            for number in pieces {
                let fetched = self.fetch_piece(number, &mut stream, &file, &mut bite);
                if !self.note(number, fetched) {
                    return;
                }
            }
        }
    }

    /// Where in the file some pieces are.
    fn bytes_of(&self, pieces: &Range<u64>) -> Range<u64> {
        pieces.start * PIECE_LEN..(pieces.end * PIECE_LEN).min(self.len)
    }

    fn fetch_piece(
        &self,
        number: u64,
        stream: &mut Stream<'_>,
        file: &File,
        bite: &mut [u8],
    ) -> Result<()> {
        for (start, len) in bites(self.bytes_of(&(number..number + 1))) {
            stream.fill(&mut bite[..len])?;
            file.write_all_at(&bite[..len], start)
                .map_err(|error| disk(&error, &self.target.partial()))?;
        }
        Ok(())
    }

    /// Notes that a piece is there, or why it is not; whether there is more to do.
    fn note(&self, number: u64, fetched: Result<()>) -> bool {
        let mut state = self.lock();
        state.loading.retain(|&other| other != number);
        match fetched {
            Ok(()) => {
                let Range { start, end } = self.bytes_of(&(number..number + 1));
                state.moved += end - start;

                // After the bytes, so that what the journal claims is in the file.
                state.journal.add(start, end);
                let noted = state.journal.write(&self.target.journal());
                if let Err(error) = noted {
                    state.fail(disk(&error, &self.target.journal()));
                }
            }
            Err(error) => state.fail(error),
        }

        let is_running = matches!(state.phase, Phase::Running);
        drop(state);
        self.changed.notify_all();
        is_running
    }

    /// The pieces to ask for next: from one that somebody waits for, or the first that is missing.
    fn take_run(&self) -> Option<(Range<u64>, Arc<File>)> {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Running) {
            return None;
        }

        let count = self.len.div_ceil(PIECE_LEN);
        while state.next < count && state.has_piece(state.next, self.len) {
            state.next += 1;
        }

        let wanted = std::mem::take(&mut state.wanted);
        let is_missing =
            |number: &u64| !state.has_piece(*number, self.len) && !state.loading.contains(number);
        let first = wanted
            .iter()
            .copied()
            .find(is_missing)
            .or_else(|| (state.next..count).find(is_missing))?;
        let missing = (self.len - state.journal.total())
            .div_ceil(PIECE_LEN)
            .saturating_sub(state.loading.len() as u64);
        let most = (first + run_length(state.asked, missing)).min(count);
        let run = first..(first + 1..most).find(|number| !is_missing(number)).unwrap_or(most);
        state.wanted = wanted.into_iter().filter(|number| !run.contains(number)).collect();
        state.loading.extend(run.clone());
        state.asked += 1;
        let file = state.file.clone()?;
        Some((run, file))
    }

    /// Computes the digest as far as the file is there, and gives it its name when it is whole and
    /// right.
    fn check(&self) {
        let checked = self.digest();
        let checked = checked
            .and_then(|found| if found.agrees { self.publish(&found) } else { Err(self.reject()) });
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
        let mut bite = vec![0; BITE];
        for number in 0..self.len.div_ceil(PIECE_LEN) {
            let piece = self.bytes_of(&(number..number + 1));
            let file = self.wait_for(piece.start, piece.end, false)?;
            for (start, len) in bites(piece) {
                file.read_exact_at(&mut bite[..len], start)
                    .map_err(|error| disk(&error, &self.target.partial()))?;
                check.update(&bite[..len]);
            }
        }
        Ok(check.finish())
    }

    fn publish(&self, checked: &Checked) -> Result<()> {
        let (partial, path) = (self.target.partial(), &self.target.path);
        let file = self.lock().file.clone();
        let rename = || -> std::io::Result<()> {
            // On disk before it gets its name, which would stand for anything after a crash
            // otherwise.
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
        let aside =
            if kept { format!("; it is kept as {}", rejected.display()) } else { String::new() };
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
        file.read_exact_at(buf, offset)
            .map_err(|error| disk(&error, &self.target.partial()).at(offset))
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
                let pieces = start / PIECE_LEN..end.div_ceil(PIECE_LEN);
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
                        "interrupted; {kept} of {} bytes are kept, and the next download goes on \
                         there",
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

    /// Waits until the file is whole and checked; bytes that come are reported.
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

/// Start and length of what is moved at a time of a range.
fn bites(range: Range<u64>) -> impl Iterator<Item = (u64, usize)> {
    let Range { start, end } = range;
    (start..end)
        .step_by(BITE)
        .map(move |at| (at, usize::try_from(end - at).map_or(BITE, |left| left.min(BITE))))
}

/// How many pieces are asked for at once, after so many requests and with so many pieces missing.
///
/// A long range waits once for a server that is far away. The first ones are short, so that the
/// beginning of the file is there early and not all ranges end at the same moment, when nothing
/// would flow; so are the last ones, which end together.
fn run_length(asked: u64, missing: u64) -> u64 {
    (1 + asked / 4).min(missing / AT_ONCE as u64).clamp(1, LONGEST_RUN)
}

impl State {
    fn has_piece(&self, number: u64, len: u64) -> bool {
        let start = number * PIECE_LEN;
        self.journal.has(start, (start + PIECE_LEN).min(len))
    }

    /// The first error is the one that counts.
    fn fail(&mut self, error: Error) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Failed(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_grow_at_the_beginning_shrink_at_the_end_and_are_never_empty() {
        assert_eq!(run_length(0, 1 << 40), 1);
        assert_eq!(run_length(1 << 40, 1 << 40), LONGEST_RUN);
        for missing in 0..2000 {
            for asked in 0..60 {
                let run = run_length(asked, missing);
                assert!((1..=LONGEST_RUN).contains(&run));
                // Enough is left for the others.
                assert!(run == 1 || run * AT_ONCE as u64 <= missing);
                assert!(
                    run <= run_length(asked + 1, missing) && run <= run_length(asked, missing + 1)
                );
            }
        }
    }

    #[test]
    fn bites_are_the_range_without_gaps() {
        for range in [0..0, 0..1, 5..BITE as u64 + 5, 7..3 * BITE as u64] {
            let mut at = range.start;
            for (start, len) in bites(range.clone()) {
                assert!(start == at && (1..=BITE).contains(&len));
                at += len as u64;
            }
            assert_eq!(at, range.end);
        }
    }
}
