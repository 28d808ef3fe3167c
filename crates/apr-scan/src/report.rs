//! What a scan found.

use serde::{Deserialize, Serialize};

use apr_pytorch::{Finding, Verdict};

use crate::content::UNKNOWN;
use crate::content::text::OF_TRANSFORMERS;

/// What a scan found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScanReport {
    /// Name the file was given.
    pub path: String,
    /// Judgement on the file.
    pub verdict: FileVerdict,
    /// Whether a baseline accepts what was found, so that it does not count for the summary.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accepted: bool,
    /// What it was read as: `pickle`, `ZIP archive`, and so on.
    pub kind: String,
    /// Each pickle of the file.
    pub pickles: Vec<PickleReport>,
    /// What was found in what is no pickle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<Remark>,
    /// What is odd about the file around its pickles, and what they hold that nothing reads.
    pub warnings: Vec<String>,
    /// What was looked at less closely than the rest, and why; no judgement on the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What could not be looked into, and why.
    pub problems: Vec<String>,
    /// Files beside this one that hold nothing but the numbers of its tensors.
    #[serde(skip)]
    pub(crate) data: Vec<String>,
}

/// The judgement on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileVerdict {
    /// All of it was looked into, and nothing in it would run anything but what tensors are made
    /// by.
    Clean,
    /// It is a script, a program or the like, which was not examined, and which loading a model
    /// does not run.
    NotRun,
    /// Some of it is of a kind that is not looked into, and the rest holds nothing odd.
    NotExamined,
    /// It uses names that are not known to be harmless, or is packed as no loader packs.
    Suspicious,
    /// Some of it could not be looked into, and the rest holds nothing dangerous.
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

/// What was found in bytes that are no pickle, or that nothing examined them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Where they are: the entry of an archive; empty where they are the file.
    pub entry: String,
    /// The judgement on them.
    pub verdict: FileVerdict,
    /// Why.
    pub message: String,
}

/// What one pickle would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PickleReport {
    /// Where it is: the entry of an archive, and what it is wrapped in; empty where it is the file.
    pub entry: String,
    /// Where it starts, in bytes from the start of the file.
    pub offset: u64,
    /// Whether offsets count decoded bytes instead, because it was compressed or encoded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decoded: bool,
    /// Who would load it.
    pub reached: Reached,
    /// Names it imports and calls, in order of appearance.
    pub findings: Vec<Finding>,
    /// Why it was not read to its end.
    pub problem: Option<String>,
}

/// Who would load a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Reached {
    /// Whoever loads the file.
    Loader,
    /// What the pickle around it calls, or a program that takes the value out.
    Value,
    /// No loader of this kind of archive; a program that asks for it by name.
    Nobody,
}

impl ScanReport {
    pub(crate) fn new(file: &str) -> Self {
        Self {
            path: file.to_owned(),
            verdict: FileVerdict::Clean,
            accepted: false,
            kind: "no pickle".to_owned(),
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

    /// The findings of all pickles.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.pickles.iter().flat_map(|pickle| &pickle.findings)
    }

    /// Whether nothing is known of the file, and nothing else was found.
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

    /// Whether it is a configuration that names sources of Python beside it.
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
                remark.message = "not examined: Python source; no configuration in its folder \
                                  names it"
                    .to_owned();
            }
        }
        self.judge();
    }

    /// Takes a file of an unknown format for what another file says that it is.
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
