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

/// The names that a pickle would import and call, and the end of the pickle.
#[derive(Debug)]
#[non_exhaustive]
pub struct PickleSurvey {
    /// Names that it imports and calls, in order of appearance.
    pub findings: Vec<Finding>,
    /// Values that may be pickles, archives or compressed streams.
    pub values: Vec<Blob>,
    /// Number of dropped values, because of their count or their total length.
    pub dropped: usize,
    /// `true` if the pickle places arrays between its opcodes, as joblib does.
    pub has_file_arrays: bool,
    /// Reason for examining only the names of the rest, if the pickle exceeds the limit.
    pub swept: Option<Error>,
    /// Offset at which Python's unpickler certainly fails, so that nothing after it is run.
    ///
    /// The pickle takes a value from an empty stack there, recalls a value that was never stored,
    /// or has a number without digits.
    pub stuck: Option<u64>,
    /// Offset at which the stream continues after the pickle.
    pub end: u64,
    /// Reason for not reading the pickle up to its `STOP`.
    pub problem: Option<Error>,
    heap: Heap,
    root: Option<Id>,
}

impl PickleSurvey {
    /// Reads the pickle of a source from `start` up to `end` at most, without running it.
    ///
    /// With `joblib`, the bytes of joblib's arrays are skipped, as joblib does.
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

    /// Returns `true` if the pickle was read up to its `STOP`.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.root.is_some()
    }

    /// Returns the value of the pickle, if it is an unsigned number.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.heap.unsigned(self.root?)
    }

    /// Returns `true` if the value is the number that a pre-ZIP checkpoint starts with.
    #[must_use]
    pub fn is_checkpoint_magic(&self) -> bool {
        self.root.is_some_and(|root| matches!(self.heap.get(root), Node::Int(MAGIC)))
    }

    /// Returns the end offset of a storage's elements in a TAR container.
    ///
    /// The description has the key, the device and the class.
    ///
    /// # Errors
    /// E001 if the value does not describe a storage, E002 if the file is too short for it, E007
    /// when reading fails.
    pub fn storage_end(&self, source: &dyn ByteSource) -> Result<u64> {
        let items = self.root.and_then(|root| self.heap.items(root));
        let class = items.and_then(|items| storage_class(&self.heap, *items.get(2)?));
        let class = class.ok_or_else(|| Error::format("a storage has no class").at(self.end))?;
        let range = sized(source, self.end, class.width)?;
        Ok(range.offset + range.len)
    }

    /// Returns `true` if the names are from a pickle and not from bytes that happen to be opcodes.
    ///
    /// This requires a valid name that is not allowed and that Python would reach. The pickle must
    /// be whole, or it must call the name or change its state.
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
