//! Which parts of a file were fetched, on disk, so that a download goes on where it was cut.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Identity of a partial file, and the ranges of it that were received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    pub(crate) len: u64,
    /// The state of the file on its server.
    pub(crate) etag: String,
    /// Start and end of each range; sorted, and apart.
    pub(crate) done: Vec<(u64, u64)>,
}

impl Journal {
    /// Reads a journal. Returns `None` unless it belongs to this file in this state.
    pub(crate) fn read(path: &Path, len: u64, etag: &str) -> Option<Self> {
        let journal: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (journal.len == len && journal.etag == etag && journal.is_sound()).then_some(journal)
    }

    /// Returns `true` if the ranges are inside the file, sorted and separate.
    pub(crate) fn is_sound(&self) -> bool {
        let is_inside = self.done.iter().all(|(start, end)| start < end && *end <= self.len);
        is_inside && self.done.windows(2).all(|pair| pair[0].1 <= pair[1].0)
    }

    /// Writes it, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("new");
        fs::write(&beside, apr_core::json::to_vec(self)?)?;
        fs::rename(beside, path)
    }

    /// Returns `true` if a range was received.
    pub(crate) fn has(&self, start: u64, end: u64) -> bool {
        // Ranges that meet are merged, so that one holds all of it.
        self.done.iter().any(|(from, to)| *from <= start && end <= *to)
    }

    /// Returns the end of the received bytes that start at `at`, or `at` if that byte is missing.
    pub(crate) fn end_of(&self, at: u64) -> u64 {
        let holding = self.done.iter().find(|(from, to)| *from <= at && at < *to);
        holding.map_or(at, |(_, to)| *to)
    }

    /// Adds a range.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        let at = self.done.partition_point(|(from, _)| *from < start);
        self.done.insert(at, (start, end));
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.done.len());
        for (from, to) in self.done.drain(..) {
            match merged.last_mut() {
                Some((_, last)) if from <= *last => *last = to.max(*last),
                _ => merged.push((from, to)),
            }
        }
        self.done = merged;
    }

    /// Bytes that are there.
    pub(crate) fn total(&self) -> u64 {
        self.done.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_a_journal_of_another_state_is_ignored() {
        let mut journal = Journal { len: 100, etag: "x".into(), done: Vec::new() };
        for (start, end) in [(20, 30), (0, 10), (10, 20), (50, 60)] {
            journal.add(start, end);
        }
        assert_eq!(journal.done, [(0, 30), (50, 60)]);
        assert!(journal.has(5, 30) && !journal.has(25, 51));
        assert_eq!(journal.total(), 40);
        assert_eq!([0, 29, 30, 55].map(|at| journal.end_of(at)), [30, 30, 30, 60]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("j");
        journal.write(&path).expect("room");
        assert_eq!(Journal::read(&path, 100, "x"), Some(journal));
        assert_eq!(Journal::read(&path, 100, "y"), None);
        assert_eq!(Journal::read(&path, 99, "x"), None);
    }

    #[test]
    fn every_flipped_bit_of_a_journal_leaves_ranges_of_the_file_or_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("j");
        let journal = Journal { len: 100, etag: "x".into(), done: vec![(0, 30), (50, 60)] };
        let bytes = serde_json::to_vec(&journal).expect("JSON");
        for broken in apr_testkit::corrupt::bit_flips(&bytes, 0..bytes.len()) {
            fs::write(&path, broken).expect("room");
            let read = Journal::read(&path, 100, "x");
            assert!(read.is_none_or(|journal| {
                journal.done.iter().all(|(start, end)| start < end && *end <= 100)
            }));
        }
    }
}
