//! How the pieces of a file are fetched: by parallel ranges, or from the one answer of a server
//! that sends none.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use apr_core::Result;
use apr_platform::write_all_at;

use super::{Download, Phase, State};
use crate::resource::Stream;
use crate::whole::Whole;

/// Bytes of a piece, which is recorded as complete or not at all. A killed run can lose one piece
/// of each range that it was receiving.
const PIECE_LEN: u64 = 4 << 20;

/// Bytes of a piece of files up to [`SMALL`], of which a larger piece would be the most part.
const SMALL_PIECE_LEN: u64 = 256 << 10;

/// The longest file with small pieces.
const SMALL: u64 = 256 << 20;

/// Minimum number of bytes per request, except at the end of the file.
pub(super) const LEAST_ASKED: u64 = 4 << 20;

/// Number of bytes that are received, written and hashed at a time. It fits the processor's cache.
pub(super) const BITE: usize = 512 << 10;

/// Number of ranges that are requested at the same time.
const AT_ONCE: usize = 16;

/// Maximum length of a requested range, in multiples of [`LEAST_ASKED`].
const LONGEST_RUN: u64 = 8;

/// Pieces that are requested as one range.
struct Run {
    pieces: Range<u64>,
    /// Offset of the first missing byte, in the first of the pieces.
    from: u64,
    file: Arc<File>,
}

impl Download {
    /// Starts to fetch the missing pieces.
    pub(super) fn fetch_pieces(self: &Arc<Self>) {
        let this = Arc::clone(self);
        if self.resource.is_ranged() {
            thread::spawn(move || this.work_with_others(None));
        } else {
            thread::spawn(move || this.work_first());
        }
    }

    /// Sends the first request alone, since a server without ranges would send the whole file to
    /// every thread.
    fn work_first(self: &Arc<Self>) {
        if let Some(whole) = self.resource.take_whole() {
            return self.work_in_order(&whole);
        }
        let Some(run) = self.take_run() else { return };
        let mut stream = self.resource.stream(run.from..self.bytes_of(&run.pieces).end);
        if let Err(error) = stream.begin() {
            self.note(run.pieces.start, Err(error));
            return;
        }
        match self.resource.take_whole() {
            Some(whole) => self.work_in_order(&whole),
            None => self.work_with_others(Some((run, stream))),
        }
    }

    /// Fetches pieces on several threads, starting with a run that is already being received.
    fn work_with_others(self: &Arc<Self>, begun: Option<(Run, Stream<'_>)>) {
        let requests = usize::try_from(self.len.div_ceil(LEAST_ASKED)).unwrap_or(AT_ONCE);
        for _ in 1..AT_ONCE.min(requests) {
            let this = Arc::clone(self);
            thread::spawn(move || this.work());
        }

        let is_running = begun
            .is_none_or(|(run, mut stream)| self.work_on(&run, &mut stream, &mut vec![0; BITE]));
        if is_running {
            self.work();
        }
    }

    /// Fetches pieces until none is missing.
    fn work(&self) {
        let mut bite = vec![0; BITE];
        while let Some(run) = self.take_run() {
            let mut stream = self.resource.stream(run.from..self.bytes_of(&run.pieces).end);
            if !self.work_on(&run, &mut stream, &mut bite) {
                return;
            }
        }
    }

    /// Fetches the pieces of a run; whether there is more to do.
    fn work_on(&self, run: &Run, stream: &mut Stream<'_>, bite: &mut [u8]) -> bool {
        run.pieces.clone().all(|number| {
            let mut bytes = self.bytes_of(&(number..number + 1));
            bytes.start = bytes.start.max(run.from);
            let fetched = self.fetch(bytes, &run.file, bite, |_, bite| stream.fill(bite));
            self.note(number, fetched)
        })
    }

    /// Receives the whole file from its beginning, including bytes that are already there.
    fn work_in_order(&self, whole: &Whole) {
        let Some(file) = self.lock().file.clone() else { return };
        let mut bite = vec![0; BITE];
        for number in 0..self.count() {
            let bytes = self.bytes_of(&(number..number + 1));
            let take = |at: u64, bite: &mut [u8]| whole.take(&self.resource, at, bite);
            let fetched = self.fetch(bytes, &file, &mut bite, take);
            if !self.note(number, fetched) {
                return;
            }
        }
    }

    /// Receives the next bytes into the file.
    fn fetch(
        &self,
        bytes: Range<u64>,
        file: &File,
        bite: &mut [u8],
        mut receive: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        for (start, len) in bites(bytes) {
            receive(start, &mut bite[..len])?;
            write_all_at(file, &bite[..len], start)
                .map_err(|error| self.lose(&error, &self.target.partial()))?;
        }
        Ok(())
    }

    /// Bytes of a piece.
    pub(super) fn piece_len(&self) -> u64 {
        if self.len <= SMALL { SMALL_PIECE_LEN } else { PIECE_LEN }
    }

    /// Returns the number of pieces of the file.
    pub(super) fn count(&self) -> u64 {
        self.len.div_ceil(self.piece_len())
    }

    /// Returns the byte range of pieces in the file.
    pub(super) fn bytes_of(&self, pieces: &Range<u64>) -> Range<u64> {
        let piece = self.piece_len();
        pieces.start * piece..(pieces.end * piece).min(self.len)
    }

    /// Records that a piece was received, or why it was not. Returns `true` if there is more to do.
    fn note(&self, number: u64, fetched: Result<()>) -> bool {
        let mut state = self.lock();
        state.loading.retain(|&other| other != number);
        match fetched {
            Ok(()) => {
                let Range { start, end } = self.bytes_of(&(number..number + 1));
                // After the bytes, so that what the journal claims is in the file.
                state.journal.add(start, end);
                let path = self.target.journal();
                if let Err(error) = state.journal.write(&path) {
                    state.fail(self.lose(&error, &path));
                }
            }
            Err(error) => state.fail(error),
        }

        let is_running = matches!(state.phase, Phase::Running);
        drop(state);
        self.changed.notify_all();
        is_running
    }

    /// Takes the pieces to request next: the pieces from one that a reader waits for, or the first
    /// missing one.
    fn take_run(&self) -> Option<Run> {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Running) {
            return None;
        }

        let count = self.count();
        while state.next < count && self.has_piece(&state, state.next) {
            state.next += 1;
        }

        let wanted = std::mem::take(&mut state.wanted);
        let is_missing =
            |number: &u64| !self.has_piece(&state, *number) && !state.loading.contains(number);
        let first = wanted
            .iter()
            .copied()
            .find(is_missing)
            .or_else(|| (state.next..count).find(is_missing))?;
        let coming = state.loading.len() as u64 * self.piece_len();
        let missing = (self.len - state.journal.total()).saturating_sub(coming);
        let run = run_length(state.asked, missing.div_ceil(LEAST_ASKED));
        let most = (first + run * (LEAST_ASKED / self.piece_len())).min(count);
        let run = first..(first + 1..most).find(|number| !is_missing(number)).unwrap_or(most);
        state.wanted = wanted.into_iter().filter(|number| !run.contains(number)).collect();
        state.loading.extend(run.clone());
        state.asked += 1;
        let file = state.file.clone()?;
        let from = state.journal.end_of(self.bytes_of(&run).start);
        Some(Run { pieces: run, from, file })
    }

    fn has_piece(&self, state: &State, number: u64) -> bool {
        let Range { start, end } = self.bytes_of(&(number..number + 1));
        state.journal.has(start, end)
    }
}

/// Returns the start and length of each step of a range.
pub(super) fn bites(range: Range<u64>) -> impl Iterator<Item = (u64, usize)> {
    let Range { start, end } = range;
    (start..end)
        .step_by(BITE)
        .map(move |at| (at, usize::try_from(end - at).map_or(BITE, |left| left.min(BITE))))
}

/// Returns the length of the next range in multiples of [`LEAST_ASKED`], for `asked` earlier
/// requests and `missing` such multiples still missing.
///
/// A long range waits only once for a distant server. The first ranges are short, so that the
/// beginning of the file arrives early and the ranges do not all end at the same moment, when no
/// data would flow. The last ones are also short, because they end together.
fn run_length(asked: u64, missing: u64) -> u64 {
    (1 + asked / 4).min(missing / AT_ONCE as u64).clamp(1, LONGEST_RUN)
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
