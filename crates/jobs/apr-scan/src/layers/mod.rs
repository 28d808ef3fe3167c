//! Listing what the pickles of a file would import and call, whether the file opens or not.
//!
//! The bytes say what a file is, as they do for the loaders: a pickle, several of them, an archive
//! of them, an array of objects, any of these compressed. Each layer is taken off and what is
//! inside looked at in turn, so that a pickle is found in the value of a pickle in an entry of an
//! archive. Nothing is believed about names: an entry that starts like a pickle is read as one,
//! whatever it is called.

mod archives;
mod joined;
mod lz4;
mod npy;
mod packed;
mod stream;

use apr_archive::{Section, tar};
use apr_core::{ByteSource, Error, Escaped, Limits, Result, read_vec};

use crate::leaf::{Examine, Judgement, Leaf};
use crate::report::{Reached, Remark, ScanReport};

/// Pickles looked at in one file or archive.
const MAX_PICKLES: usize = 4096;

/// Layers in each other: archives, compressed streams, values.
const MAX_DEPTH: usize = 8;

/// Bytes to which a file's compressed streams may decode, plus [`MAX_GROWTH`] times its length.
const FREE_BYTES: u64 = 1 << 30;
const MAX_GROWTH: u64 = 64;

/// Number of items to examine in any file, plus one per [`BYTES_OF_A_LOOK`] bytes of the file.
///
/// An entry of an archive has more bytes, but entries can share their bytes.
const FREE_LOOKS: u64 = 10_000;
const BYTES_OF_A_LOOK: u64 = 64;

/// Number of bytes needed to detect the format: a TAR header.
const HEAD_LEN: u64 = 512;

/// Lists what a file's pickles would import and call, without doing it. Broken files are read as
/// far as they go.
///
/// ```
/// use apr_core::Limits;
/// use apr_scan::{FileVerdict, scan_pickles};
///
/// let pickle = b"cos\nsystem\n(S'echo hello'\ntR.".to_vec();
/// let report = scan_pickles(pickle, "model.bin", &Limits::default())?;
/// let finding = report.findings().next().unwrap();
/// assert_eq!((&*finding.module, &*finding.name, finding.offset), ("os", "system", 0));
/// assert_eq!(report.verdict, FileVerdict::Dangerous);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E007 when reading fails.
pub fn scan_pickles<S: ByteSource>(source: S, name: &str, limits: &Limits) -> Result<ScanReport> {
    scan_all(source, name, limits, None)
}

/// Does the same, with an examiner for content that is not a pickle.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn scan_with<S: ByteSource>(
    source: S,
    name: &str,
    limits: &Limits,
    examiner: &dyn Examine,
) -> Result<ScanReport> {
    scan_all(source, name, limits, Some(examiner))
}

fn scan_all<S: ByteSource>(
    source: S,
    name: &str,
    limits: &Limits,
    examiner: Option<&dyn Examine>,
) -> Result<ScanReport> {
    let mut head = [0; 2];
    let marked = source.read_at(0, &mut head).is_ok() && is_pickle(&head);
    let expected =
        if marked || is_surely_pickle(name) { Expected::Pickle } else { Expected::Anything };
    scan_by(&source, name, (limits, examiner), |scan, place| {
        scan.look(&ScannedBytes { expected, ..place })
    })
}

/// Scans a file of a format without pickles.
///
/// The file is only searched for a pickle that a loader could nevertheless find in it.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn scan_other<S: ByteSource>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<ScanReport> {
    // Its first bytes are a length or a number, and may be those of a compressed stream by chance.
    scan_by(&source, name, (limits, None), |scan, place| {
        let found = scan.stream(&place);
        scan.zip_at_the_end(&place);
        found.then_some("pickle")
    })
}

fn scan_by<'a>(
    source: &'a dyn ByteSource,
    name: &str,
    (limits, examiner): (&Limits, Option<&dyn Examine>),
    look: impl FnOnce(&mut Scan<'_>, ScannedBytes<'a>) -> Option<&'static str>,
) -> Result<ScanReport> {
    // A file that can't be read at all is an error, one that can't be read to its end a finding.
    read_vec(source, 0, source.len().min(HEAD_LEN)).map_err(|error| error.in_file(name))?;
    let mut scan = Scan { examiner, ..Scan::new(source, limits) };
    scan.report.path = name.to_owned();
    if let Some(kind) = look(&mut scan, ScannedBytes::whole(source)) {
        kind.clone_into(&mut scan.report.kind);
    }
    scan.report.judge();
    Ok(scan.report)
}

/// Likelihood that bytes are a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// A loader reads the bytes as a pickle, so errors in them are reported.
    Pickle,
    /// The bytes may be anything. They count as a pickle if they would run something.
    Anything,
}

/// Bytes to look into.
#[derive(Clone)]
struct ScannedBytes<'a> {
    source: &'a dyn ByteSource,
    start: u64,
    end: u64,
    /// The way to them, from the outermost layer in.
    entry: String,
    /// `true` if the source is not the file itself.
    decoded: bool,
    reached: Reached,
    expected: Expected,
    /// Role of the bytes for a loader.
    kind: Content,
    /// `true` if the bytes are inside a PyTorch archive.
    torch: bool,
    /// `true` for a text of a known kind, which can import a name by chance.
    text: bool,
    depth: usize,
}

/// Role of bytes for a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// A file, which may be of any format.
    File,
    /// A part of TorchScript's code.
    Code,
    /// A part of something else: the value of a pickle, a storage.
    Part,
}

impl<'a> ScannedBytes<'a> {
    fn whole(source: &'a dyn ByteSource) -> Self {
        Self {
            source,
            start: 0,
            end: source.len(),
            entry: String::new(),
            decoded: false,
            reached: Reached::Loader,
            expected: Expected::Anything,
            kind: Content::File,
            torch: false,
            text: false,
            depth: 0,
        }
    }

    /// Returns the bytes inside this one, with a name of their own.
    fn within(&self, name: &str) -> Self {
        let entry = if self.entry.is_empty() {
            name.to_owned()
        } else {
            format!("{} > {name}", self.entry)
        };
        Self { entry, text: false, depth: self.depth + 1, ..self.clone() }
    }

    /// Returns the bytes of a source that was decoded from this one.
    fn decoded<'b>(&self, source: &'b dyn ByteSource, name: &str) -> ScannedBytes<'b> {
        let Self { entry, reached, expected, kind, torch, depth, .. } = self.within(name);
        ScannedBytes {
            kind,
            torch,
            text: false,
            source,
            start: 0,
            end: source.len(),
            entry,
            decoded: true,
            reached,
            expected,
            depth,
        }
    }

    fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    fn head(&self) -> Result<Vec<u8>> {
        read_vec(self.source, self.start, self.len().min(HEAD_LEN))
    }

    /// Formats a message about these bytes, with their location.
    fn says(&self, what: &str) -> String {
        if self.entry.is_empty() {
            what.to_owned()
        } else {
            format!("'{}': {what}", Escaped::short(&self.entry))
        }
    }
}

struct Scan<'a> {
    limits: &'a Limits,
    examiner: Option<&'a dyn Examine>,
    report: ScanReport,
    /// Bytes that may still be decoded.
    budget: u64,
    /// Places that may still be looked at.
    looks: u64,
}

impl<'a> Scan<'a> {
    fn new(source: &dyn ByteSource, limits: &'a Limits) -> Self {
        let budget = FREE_BYTES.saturating_add(source.len().saturating_mul(MAX_GROWTH));
        let looks = FREE_LOOKS.saturating_add(source.len() / BYTES_OF_A_LOOK);
        Self { limits, examiner: None, report: ScanReport::new(""), budget, looks }
    }

    /// Charges one item to the budget.
    ///
    /// Returns `false`, and reports it once, if the budget is used up.
    fn may_look(&mut self, place: &ScannedBytes<'_>) -> bool {
        if self.looks == 1 {
            self.problem(place, "the file has more in it than is looked through");
        }
        self.looks = self.looks.saturating_sub(1);
        self.looks > 0
    }

    /// Charges decoded bytes to the budget. Decoding stops when the budget is used up.
    ///
    /// # Errors
    /// E008 when the budget is exceeded.
    fn pay(&mut self, decoded: u64) -> Result<()> {
        let left = self.budget.checked_sub(decoded);
        self.budget = left.unwrap_or(0);
        match left {
            Some(_) => Ok(()),
            None => Err(Error::memory("it decodes to more bytes than are looked through")),
        }
    }

    /// Examines bytes of any kind. Returns the detected format, if any.
    fn look(&mut self, place: &ScannedBytes<'_>) -> Option<&'static str> {
        if place.depth > MAX_DEPTH {
            self.problem(place, "is nested in more layers than are examined");
            return None;
        }
        if !self.may_look(place) {
            return None;
        }

        let head = match place.head() {
            Ok(head) => head,
            Err(error) => {
                self.problem(place, &error.to_string());
                return None;
            }
        };

        if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
            self.zip(place);
            self.also_pickle(place);
            return Some("ZIP archive");
        }

        if head.starts_with(b"\x93NUMPY") {
            self.npy(place, &head);
            self.also_pickle(place);
            return Some("NumPy array");
        }

        if let Some(kind) = self.packed(place, &head) {
            self.also_pickle(place);
            return Some(kind);
        }

        if tar::recognise(&head) {
            self.tar(place);
            self.also_pickle(place);
            return Some("TAR archive");
        }

        // Pickles come last: those of old protocols have no magic.
        let found = self.stream(&ScannedBytes { text: self.is_text(place), ..place.clone() });

        // Loaders find a ZIP archive by its end, whatever stands before it.
        let has_archive = self.zip_at_the_end(place);
        if !found && !has_archive {
            self.examine(place);
        }
        found.then_some("pickle").or_else(|| has_archive.then_some("ZIP archive"))
    }

    /// Examines the bytes also as a pickle.
    ///
    /// The magic numbers of other formats are valid opcodes, and `pickle.load` does not check
    /// anything else.
    fn also_pickle(&mut self, place: &ScannedBytes<'_>) {
        if place.depth == 0 || place.kind == Content::File {
            self.stream(&ScannedBytes { expected: Expected::Anything, ..place.clone() });
        }
    }

    /// Returns `true` if the examiner knows the bytes as a text.
    fn is_text(&self, place: &ScannedBytes<'_>) -> bool {
        self.as_leaf(place, |examiner, leaf| examiner.is_text(leaf)).unwrap_or(false)
    }

    /// Passes content that is not a pickle to the examiner.
    fn examine(&mut self, place: &ScannedBytes<'_>) {
        let judged = self.as_leaf(place, |examiner, leaf| examiner.examine(leaf));
        let Some(Judgement { kind, found }) = judged else { return };
        if place.depth == 0 {
            self.report.kind = kind;
        }
        let remark = |(verdict, message)| Remark { entry: place.entry.clone(), verdict, message };
        for found in found.into_iter().map(remark) {
            // A layer and a function within it may have the same name.
            if !self.report.remarks.contains(&found) {
                self.report.remarks.push(found);
            }
        }
    }

    /// Calls the examiner, if there is one for bytes of this role.
    fn as_leaf<R>(
        &self,
        place: &ScannedBytes<'_>,
        ask: impl FnOnce(&dyn Examine, &Leaf<'_>) -> R,
    ) -> Option<R> {
        let examiner = self.examiner.filter(|_| place.kind != Content::Part)?;
        let section = Section::new(place.source, place.start, place.len()).ok()?;
        let outermost = self.report.path.rsplit('/').next().unwrap_or_default();
        let name = match place.entry.rsplit(" > ").next() {
            None | Some("") => &self.report.path,
            Some(name) => name,
        };
        let is_torchscript = place.kind == Content::Code;
        let within = (place.depth > 0).then_some(outermost);
        Some(ask(examiner, &Leaf { source: &section, name, is_torchscript, within }))
    }

    fn problem(&mut self, place: &ScannedBytes<'_>, what: &str) {
        self.report.problems.push(place.says(what));
    }

    fn warn(&mut self, place: &ScannedBytes<'_>, what: &str) {
        self.report.warnings.push(place.says(what));
    }
}

fn has_suffix(name: &str, suffix: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, last)| last.eq_ignore_ascii_case(suffix))
}

/// Returns `true` for names under which loaders expect only pickles.
fn is_surely_pickle(name: &str) -> bool {
    ["pkl", "pickle", "p", "pk", "dill", "joblib", "ckpt", "pt", "pth"]
        .iter()
        .any(|s| has_suffix(name, s))
}

/// Returns `true` for the first bytes of a pickle that states its protocol, as all do from protocol
/// 2 on. Python also accepts 0 and 1 there, which nothing writes and other files begin with.
fn is_pickle(head: &[u8]) -> bool {
    matches!(head, [0x80, 2..=5, ..])
}
