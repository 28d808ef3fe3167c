//! One pickle as a scan reads it: past every error, for the names in it and for the values that may
//! hold pickles themselves.

use apr_core::{ByteSource, Error, Limits, Result};

use super::blobs::Blob;
use super::build::storage_class;
use super::uses::{Action, Finding, Verdict};
use super::value::{Heap, Id, Node};
use super::vm::{Outcome, Persistent, Policy, run};
use crate::input::Input;
use crate::legacy::{MAGIC, sized};

/// What one pickle would import and call, and where it ends.
#[derive(Debug)]
#[non_exhaustive]
pub struct PickleSurvey {
    /// Names that it imports and calls, in order of appearance.
    pub findings: Vec<Finding>,
    /// Values that may be pickles, archives or compressed streams.
    pub values: Vec<Blob>,
    /// How many more there are: too many, or too long together.
    pub dropped: usize,
    /// Whether it places arrays between its opcodes, as joblib does.
    pub has_file_arrays: bool,
    /// Why only the names of the rest were looked at, where it is longer than is read.
    pub swept: Option<Error>,
    /// Where Python's unpickler raises an error for certain, so that nothing from there on is run:
    /// it takes a value from an empty stack, recalls one that was never stored, or reads a number
    /// without digits.
    pub stuck: Option<u64>,
    /// Where the stream goes on after it.
    pub end: u64,
    /// Why it was not read to its `STOP`.
    pub problem: Option<Error>,
    heap: Heap,
    root: Option<Id>,
}

impl PickleSurvey {
    /// Reads the pickle of a source that starts at `start` and reaches to `end` at most; nothing of
    /// it is run. With `joblib`, the bytes of joblib's arrays are gone past, as joblib does.
    #[must_use]
    pub fn read(
        source: &dyn ByteSource,
        (start, end): (u64, u64),
        joblib: bool,
        limits: &Limits,
    ) -> Self {
        let policy = Policy {
            lenient: true,
            joblib,
            arrays: false,
            classes: &[],
            persistent: Persistent::Storage,
        };
        let input = Input::new(source, start, end.min(source.len()), limits);
        let Outcome { heap, uses, blobs, has_file_arrays, swept, stuck, end, root } =
            run(input, &policy, limits);
        let (root, problem) = match root {
            Ok(root) => (Some(root), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            findings: uses.findings,
            values: blobs.list,
            dropped: blobs.dropped,
            has_file_arrays,
            swept,
            stuck,
            end,
            problem,
            heap,
            root,
        }
    }

    /// Whether it was read to its `STOP`.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.root.is_some()
    }

    /// Its value, where that is a number.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.heap.unsigned(self.root?)
    }

    /// Whether its value is the number that a pre-ZIP checkpoint starts with.
    #[must_use]
    pub fn is_checkpoint_magic(&self) -> bool {
        self.root.is_some_and(|root| matches!(self.heap.get(root), Node::Int(MAGIC)))
    }

    /// Where the elements end that follow the description of a storage (its key, device and class)
    /// in the TAR container.
    ///
    /// # Errors
    /// E001 where its value describes no storage, E002 where the file is too short for it, E007
    /// when reading fails.
    pub fn storage_end(&self, source: &dyn ByteSource) -> Result<u64> {
        let items = self.root.and_then(|root| self.heap.items(root));
        let class = items.and_then(|items| storage_class(&self.heap, *items.get(2)?));
        let class = class.ok_or_else(|| Error::format("a storage has no class").at(self.end))?;
        let range = sized(source, self.end, class.width)?;
        Ok(range.offset + range.len)
    }

    /// Whether names come from a pickle rather than from bytes that happen to be opcodes: Python
    /// gets to them and could import them, and they are used by a pickle that is whole or calls one
    /// of them.
    #[must_use]
    pub fn would_run(&self, findings: &[Finding]) -> bool {
        let odd = |finding: &&Finding| finding.verdict != Verdict::Allowed;
        let reached = |finding: &&Finding| self.stuck.is_none_or(|stuck| finding.offset < stuck);
        findings.iter().filter(odd).filter(reached).any(|finding| {
            (self.is_whole() || finding.action != Action::Import)
                && is_name(&finding.module)
                && is_name(&finding.name)
        })
    }
}

fn is_name(text: &str) -> bool {
    text.split('.').all(|part| {
        let mut letters = part.chars();
        letters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_alphanumeric() || "_-".contains(letter))
    })
}
