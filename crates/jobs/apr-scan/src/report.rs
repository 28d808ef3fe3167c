//! What a scan found.

use serde::{Deserialize, Serialize};

use apr_pytorch::{Finding, Verdict};

use crate::content::UNKNOWN;
use crate::content::text::OF_TRANSFORMERS;

/// Result of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScanReport {
    /// Name the file was given.
    pub path: String,
    /// Judgement on the file.
    pub verdict: FileVerdict,
    /// `true` if a baseline accepts the findings, so that they do not count for the summary.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accepted: bool,
    /// Detected format or kind: `pickle`, `ZIP archive`, `Python source`, `text`, and so on.
    pub kind: String,
    /// Each pickle of the file.
    pub pickles: Vec<PickleReport>,
    /// Findings in content that is not a pickle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<Remark>,
    /// Warnings about the file around its pickles, and about unread content of the pickles.
    pub warnings: Vec<String>,
    /// Notes on content that was examined less closely, with the reason.
    ///
    /// They do not affect the verdict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Content that could not be examined, with the reason.
    pub problems: Vec<String>,
    /// Companion files that contain only the numbers of this file's tensors.
    #[serde(skip)]
    pub(crate) data: Vec<String>,
}

/// The judgement on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileVerdict {
    /// The file was completely examined, and would run only the functions that create tensors.
    Clean,
    /// The file is a script, a program or similar.
    ///
    /// It was not examined; loading a model does not run it.
    NotRun,
    /// The file has content of a kind that is not examined. The rest has no findings.
    NotExamined,
    /// The file uses names that are not known to be harmless, or is packed in an unusual way.
    Suspicious,
    /// The file has content that could not be examined. The rest is not dangerous.
    Unreadable,
    /// Loading it runs code, or reaches files, processes or the network.
    Dangerous,
}

impl FileVerdict {
    /// The word for it in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::NotRun => "not run",
            Self::NotExamined => "not examined",
            Self::Suspicious => "suspicious",
            Self::Unreadable => "unreadable",
            Self::Dangerous => "dangerous",
        }
    }
}

/// A finding in bytes that are not a pickle, or a note that they were not examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Location of the bytes: the entry of an archive. Empty if they are the file.
    pub entry: String,
    /// The judgement on them.
    pub verdict: FileVerdict,
    /// Reason for the verdict.
    pub message: String,
}

/// Effects of one pickle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PickleReport {
    /// Location of the pickle: the archive entry and the layers around it. Empty if it is the file.
    pub entry: String,
    /// Start offset in bytes from the start of the file.
    pub offset: u64,
    /// `true` if offsets count decoded bytes, because the pickle is compressed or encoded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decoded: bool,
    /// Program that would load the pickle.
    pub reached: Reached,
    /// Names it imports and calls, in order of appearance.
    pub findings: Vec<Finding>,
    /// Reason for not reading the pickle to its end.
    pub problem: Option<String>,
}

/// Program that would load a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Reached {
    /// The loader of the file.
    Loader,
    /// A function that the enclosing pickle calls, or a program that extracts the value.
    Value,
    /// A program that requests the entry by name. Loaders of this kind of archive do not read it.
    Nobody,
}

impl ScanReport {
    pub(crate) fn new(file: &str) -> Self {
        Self {
            path: file.to_owned(),
            verdict: FileVerdict::Clean,
            accepted: false,
            kind: UNKNOWN.to_owned(),
            pickles: Vec::new(),
            remarks: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
            problems: Vec::new(),
            data: Vec::new(),
        }
    }

    /// A file that can't be looked into at all.
    #[must_use]
    pub fn unreadable(file: &str, kind: &str, problem: String) -> Self {
        let (kind, problems) = (kind.to_owned(), vec![problem]);
        Self { verdict: FileVerdict::Unreadable, kind, problems, ..Self::new(file) }
    }

    /// Adds what is found about the file beside its content, such as a link that leaves its folder.
    pub fn add(&mut self, verdict: FileVerdict, message: String) {
        self.verdict = self.verdict.max(verdict);
        self.remarks.push(Remark { entry: String::new(), verdict, message });
    }

    /// The worst verdict on any name; a file without names is [`Verdict::Allowed`].
    #[must_use]
    pub fn worst(&self) -> Verdict {
        self.findings().map(|finding| finding.verdict).max().unwrap_or(Verdict::Allowed)
    }

    /// Names of files beside this one that hold the numbers of its tensors.
    #[must_use]
    pub fn data(&self) -> &[String] {
        &self.data
    }

    /// The findings of all pickles.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.pickles.iter().flat_map(|pickle| &pickle.findings)
    }

    /// Returns `true` if the format is unknown and there are no other findings.
    pub(crate) fn is_unknown(&self) -> bool {
        self.pickles.is_empty()
            && self.warnings.is_empty()
            && self.problems.is_empty()
            && !self.remarks.is_empty()
            && self.remarks.iter().all(|remark| remark.message == UNKNOWN)
    }

    /// The paths of the files that hold the numbers of its tensors.
    pub(crate) fn data_paths(&self) -> impl Iterator<Item = String> {
        let folder = self.path.rsplit_once('/').map(|(folder, _)| folder);
        self.data.iter().map(move |name| match folder {
            Some(folder) => format!("{folder}/{name}"),
            None => name.clone(),
        })
    }

    /// The folder of the file.
    pub(crate) fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Returns `true` for a configuration that refers to Python source files in its folder.
    pub(crate) fn maps_code(&self) -> bool {
        self.remarks.iter().any(|remark| remark.message.contains("'auto_map'"))
    }

    /// Takes a source that transformers would run for one that it does not, because no
    /// configuration beside it names it.
    pub(crate) fn without_map(&mut self) {
        if !self.remarks.iter().any(|remark| remark.message.starts_with(OF_TRANSFORMERS)) {
            return;
        }
        for remark in &mut self.remarks {
            if remark.message.starts_with(OF_TRANSFORMERS) {
                remark.verdict = FileVerdict::NotRun;
                remark.message =
                    "Python source; no configuration in its folder names it".to_owned();
            }
        }
        self.judge();
    }

    /// Sets the kind of a file of an unknown format, if another file declares it.
    pub(crate) fn is_named(&mut self, kind: &str) {
        self.remarks.clear();
        kind.clone_into(&mut self.kind);
        self.judge();
    }

    /// Draws the conclusion from all that was found.
    pub(crate) fn judge(&mut self) {
        let worst = |reached: &dyn Fn(Reached) -> bool| {
            let pickles = self.pickles.iter().filter(|pickle| reached(pickle.reached));
            pickles.flat_map(|pickle| &pickle.findings).map(|finding| finding.verdict).max()
        };
        let remarked = self.remarks.iter().map(|remark| remark.verdict).max();
        let broken = self.pickles.iter().any(|pickle| pickle.problem.is_some());
        self.verdict = if worst(&|reached| reached != Reached::Nobody) == Some(Verdict::Dangerous) {
            FileVerdict::Dangerous
        } else if broken || !self.problems.is_empty() {
            FileVerdict::Unreadable
        } else if worst(&|_| true).is_some_and(|worst| worst > Verdict::Allowed)
            || !self.warnings.is_empty()
        {
            FileVerdict::Suspicious
        } else {
            FileVerdict::Clean
        };
        self.verdict = self.verdict.max(remarked.unwrap_or(FileVerdict::Clean));
    }
}
