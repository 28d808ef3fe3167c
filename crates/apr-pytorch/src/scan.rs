//! Listing what the pickles of a file would import and call, whether the file opens or not.

use apr_core::{ByteSource, Error, Escaped, Limits, Result, read_vec};
use serde::Serialize;

use crate::input::Input;
use crate::legacy::MAGIC;
use crate::pickle::uses::{Finding, Verdict};
use crate::pickle::{Node, Outcome, Persistent, Policy, run};
use crate::tar;
use crate::zip::Archive;

/// Pickles looked at in one file or archive.
const MAX_PICKLES: usize = 4096;

/// Pickles in front of a pre-ZIP file's storages.
const LEGACY_PICKLES: usize = 5;

/// What a scan found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ScanReport {
    /// Name the file was given.
    pub file: String,
    /// Each pickle of the file.
    pub pickles: Vec<PickleReport>,
    /// What could not be looked into, and why.
    pub problems: Vec<String>,
}

/// What one pickle would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PickleReport {
    /// Entry of the archive it is in; empty outside one.
    pub entry: String,
    /// Where it starts, in bytes from the start of the file.
    pub offset: u64,
    /// Names it imports and calls, in order of appearance.
    pub findings: Vec<Finding>,
    /// Why it was not read to its end.
    pub problem: Option<String>,
}

impl ScanReport {
    /// The worst verdict on any name; a file without names is [`Verdict::Allowed`].
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.findings().map(|finding| finding.verdict).max().unwrap_or(Verdict::Allowed)
    }

    /// The findings of all pickles.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.pickles.iter().flat_map(|pickle| &pickle.findings)
    }
}

/// Lists what a file's pickles would import and call, without doing it. Broken files are read as far as they go.
///
/// ```
/// use apr_core::Limits;
/// use apr_pytorch::{Verdict, scan};
///
/// let report = scan(b"cos\nsystem\n(S'echo hello'\ntR.".to_vec(), "model.bin", &Limits::default())?;
/// let finding = report.findings().next().unwrap();
/// assert_eq!((&*finding.module, &*finding.name, finding.offset), ("os", "system", 0));
/// assert_eq!(report.verdict(), Verdict::Dangerous);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E007 when reading fails.
pub fn scan<S: ByteSource>(source: S, name: &str, limits: &Limits) -> Result<ScanReport> {
    let mut scan = Scan { source: &source, limits, report: ScanReport { file: name.into(), ..ScanReport::default() } };
    let head = read_vec(&source, 0, source.len().min(512)).map_err(|error| error.in_file(name))?;
    if head.starts_with(b"PK") {
        scan.zip();
    } else if tar::recognise(&head) {
        scan.tar();
    } else {
        scan.stream("", 0, source.len());
    }
    Ok(scan.report)
}

struct Scan<'a> {
    source: &'a dyn ByteSource,
    limits: &'a Limits,
    report: ScanReport,
}

impl Scan<'_> {
    fn zip(&mut self) {
        let archive = Archive::read(self.source, self.limits).or_else(|error| {
            self.report.problems.push(error.to_string());
            Archive::read_leniently(self.source, self.limits)
        });
        // Said once where the careful reading failed in the same way.
        let Ok(archive) = archive else { return };
        for entry in &archive.entries {
            let head = entry.check_stored().and_then(|()| read_vec(self.source, entry.offset, entry.len.min(4)));
            let nested = ["zip", "7z", "tar", "gz"].iter().any(|suffix| has_suffix(&entry.name, suffix));
            let by_name = is_pickle_name(&entry.name);
            match head {
                Err(error) if by_name || nested => self.report.problems.push(error.to_string()),
                Ok(head) if nested || head.starts_with(b"PK\x03\x04") => {
                    let name = Escaped::short(&entry.name);
                    self.report.problems.push(format!("'{name}' is an archive in the archive; it is not looked into"));
                }
                // A storage may start like a pickle by chance.
                Ok(head) if by_name || is_pickle(&head) && !entry.name.contains("/data/") => {
                    self.stream(&entry.name, entry.offset, entry.offset.saturating_add(entry.len));
                }
                _ => {}
            }
        }
    }

    fn tar(&mut self) {
        match tar::members(self.source) {
            Err(error) => self.report.problems.push(error.to_string()),
            Ok(members) => {
                for member in members {
                    self.stream(&member.name, member.offset, member.offset + member.len);
                }
            }
        }
    }

    /// Pickles one after the other, as far as there are any.
    fn stream(&mut self, entry: &str, start: u64, end: u64) {
        let mut position = start;
        let mut legacy = false;
        for number in 0.. {
            if position >= end || (legacy && number == LEGACY_PICKLES) {
                return;
            }
            if self.report.pickles.len() == MAX_PICKLES {
                self.report.problems.push(format!("only the first {MAX_PICKLES} pickles are looked at"));
                return;
            }
            let Outcome { heap, uses, end: next, root } = lenient(self.source, position, end, self.limits);
            if number == 0 {
                legacy = root.as_ref().is_ok_and(|&root| matches!(heap.get(root), Node::Int(MAGIC)));
            }
            let problem = root.err().map(|error| error.to_string());
            // What follows a pickle need not be one.
            let broken = problem.is_some();
            if number == 0 || !broken || !uses.findings.is_empty() {
                let (entry, findings) = (entry.to_owned(), uses.findings);
                self.report.pickles.push(PickleReport { entry, offset: position, findings, problem });
            }
            if broken {
                return;
            }
            position = next;
        }
    }
}

fn lenient(source: &dyn ByteSource, start: u64, end: u64, limits: &Limits) -> Outcome {
    let policy = Policy { lenient: true, classes: &[], persistent: Persistent::Storage };
    run(Input::new(source, start, end.min(source.len()), limits), &policy, limits)
}

/// Refuses pickles between `start` and `end` that use a name which is not allowed; nobody needs to read them.
/// Gives a warning where bytes follow that are not a pickle.
pub(crate) fn check_rest(source: &dyn ByteSource, start: u64, end: u64, limits: &Limits) -> Result<Vec<String>> {
    if start >= end {
        return Ok(Vec::new());
    }
    let mut scan = Scan { source, limits, report: ScanReport::default() };
    scan.stream("", start, end);
    match scan.report.findings().find(|finding| finding.verdict != Verdict::Allowed) {
        Some(Finding { module, name, offset, .. }) => {
            let (module, name) = (Escaped::short(module), Escaped::short(name));
            let message = format!("a pickle in the file wants to import {module}.{name}; nothing of it was run");
            Err(Error::format(message).at(*offset))
        }
        None => Ok(vec![format!("{} bytes after the checkpoint's pickle are not read", end - start)]),
    }
}

fn has_suffix(name: &str, suffix: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, last)| last.eq_ignore_ascii_case(suffix))
}

/// Names under which loaders look for pickles.
fn is_pickle_name(name: &str) -> bool {
    ["pkl", "pickle", "p", "pk", "dill", "joblib", "ckpt", "pt", "pth", "dat", "bin"]
        .iter()
        .any(|s| has_suffix(name, s))
}

/// The same where a text file must not be mistaken for one.
pub(crate) fn is_surely_pickle(name: &str) -> bool {
    has_suffix(name, "pkl") || has_suffix(name, "pickle")
}

fn is_pickle(head: &[u8]) -> bool {
    matches!(head, [0x80, 0..=5, ..])
}
