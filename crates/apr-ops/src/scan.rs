//! What loading files would run: one file, or many.

use apr_core::counted;
use apr_registry::numpy::{NPY, NPZ};
use apr_registry::onnx;
use apr_registry::pytorch::{self, FileVerdict, PICKLE, ScanReport, TAR, ZIP};
use apr_registry::{
    ByteSource, Escaped, HEAD_LEN, Limits, Result, may_hold_code, read_vec, recognise,
};
use serde::Serialize;

/// What a scan of several files found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScanSummary {
    /// The worst verdict on any file.
    pub verdict: FileVerdict,
    /// How many files are clean.
    pub clean: usize,
    /// How many are suspicious.
    pub suspicious: usize,
    /// How many could not be looked into as a whole.
    pub unreadable: usize,
    /// How many are dangerous.
    pub dangerous: usize,
    /// Each file.
    pub files: Vec<ScanReport>,
}

impl ScanSummary {
    /// Adds the reports up.
    #[must_use]
    pub fn of(files: Vec<ScanReport>) -> Self {
        let count = |verdict| files.iter().filter(|file| file.verdict == verdict).count();
        Self {
            verdict: files.iter().map(|file| file.verdict).max().unwrap_or(FileVerdict::Clean),
            clean: count(FileVerdict::Clean),
            suspicious: count(FileVerdict::Suspicious),
            unreadable: count(FileVerdict::Unreadable),
            dangerous: count(FileVerdict::Dangerous),
            files,
        }
    }
}

/// Whether a file that starts with these bytes is unpickled by the loaders of its format, or by any
/// loader as far as can be told.
#[must_use]
pub fn may_hold_pickles(head: &[u8]) -> bool {
    recognise(head).is_none_or(|format| [&ZIP, &PICKLE, &TAR, &NPY, &NPZ].contains(&format))
}

/// Lists what loading a file of any format would run. A file of a format that has no pickles is
/// looked at for one all the same, since a loader may take it for one.
///
/// ```
/// use apr_ops::scan::scan_file;
/// use apr_registry::{Limits, pytorch::FileVerdict};
///
/// let report = scan_file(b"GGUF\x03\0\0\0".to_vec(), "model.gguf", &Limits::default())?;
/// assert_eq!((report.verdict, &*report.kind), (FileVerdict::Clean, "GGUF"));
/// # Ok::<(), apr_registry::Error>(())
/// ```
///
/// # Errors
/// E007 when reading fails.
pub fn scan_file<S: ByteSource>(source: S, name: &str, limits: &Limits) -> Result<ScanReport> {
    let head =
        read_vec(&source, 0, source.len().min(HEAD_LEN)).map_err(|error| error.in_file(name))?;
    let format = match recognise(&head) {
        Some(format) if !may_hold_pickles(&head) => format,
        _ => return pytorch::scan(source, name, limits),
    };
    if may_hold_code(format) {
        let problem =
            format!("this is {}, which this version of apr does not look into", format.name);
        return Ok(ScanReport::unreadable(name, format.name, problem));
    }

    let mut report = pytorch::scan_other(&source, name, limits)?;
    if report.pickles.is_empty() {
        format.name.clone_into(&mut report.kind);
    }
    if *format == onnx::FORMAT {
        judge_onnx(&mut report, onnx::scan::scan(&source, limits));
    }

    Ok(report)
}

/// Adds what an ONNX model reaches besides its file: Python, and files outside of its folder.
fn judge_onnx(report: &mut ScanReport, found: Result<onnx::scan::Scan>) {
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            report.problems.push(error.to_string());
            report.verdict = report.verdict.max(FileVerdict::Unreadable);
            return;
        }
    };

    report.warnings.extend(found.warnings());
    if !found.python.is_empty() {
        report.verdict = report.verdict.max(FileVerdict::Suspicious);
    }

    if let [(tensor, location), ..] = found.outside.as_slice() {
        let (tensor, location) = (Escaped::short(tensor), Escaped::short(location));
        let count = counted(found.outside.len() as u64, "tensor");
        report
            .warnings
            .push(format!("{count} lie outside of the model's folder: '{tensor}' in '{location}'"));
        report.verdict = FileVerdict::Dangerous;
    }
}
