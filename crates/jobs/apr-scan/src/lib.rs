//! What loading a file would execute, found without executing any of it.
//!
//! ```text
//! file ─ layers/: ZIP, TAR, gzip, zlib, LZ4, .npy, values of pickles, one after the other
//!          ├─ a pickle     its names and calls, by apr-pytorch's machine, which calls nothing
//!          └─ a leaf       content/: programs, TensorFlow and TFLite graphs, TorchScript code,
//!                          Keras configurations, chat templates, YAML
//! ```
//!
//! [`scan_file`] takes a file of any format; [`scan_pickles`] looks for pickles alone. Nothing is
//! decided by names. A file is *dangerous* if something in it runs code or reaches files, processes
//! or the network; *unreadable* if some layer could not be taken off; *suspicious* if a name is not
//! known or the packing is odd; *not examined* if a part is of no known kind, which is never the
//! same as *clean*.
//!
//! # How malicious files are handled
//!
//! Offsets are `u64` and checked before they become `usize`. Every count is compared with the
//! length of its section, or with a `Limits` value, before it sizes an allocation. A block decodes
//! to at most 1 MiB. The cost of a password key is limited before the key is derived. Names of
//! other files are plain and stay in the model's folder (`apr_io::ModelFolder`). Text from files
//! is escaped when it is shown (`Escaped`). Every reader has a truncation sweep, a bit-flip sweep
//! and a fuzz target.
//!
//! `apr_scan` unpacks one layer after another (archive, compression, array, pickle value) and runs
//! the unpickler of `apr-pytorch` leniently on the contents. It continues past errors, so that a
//! payload cannot hide behind one. Files that are not pickles are examined in `content/`. The
//! verdict never depends on the file name. A file is *dangerous* if a name in it is, *unreadable*
//! if a layer could not be unpacked, *suspicious* if a name is unknown or the packing is unusual,
//! and otherwise *clean*.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod content;
mod layers;
mod leaf;
mod paths;
mod report;

use std::collections::HashSet;
use std::sync::Arc;

use apr_core::counted;
use apr_registry::coreml;
use apr_registry::numpy::{NPY, NPZ};
use apr_registry::onnx;
use apr_registry::pytorch::{PICKLE, TAR, ZIP};
use apr_registry::tensorflow::{GRAPH as TF_GRAPH, SAVED_MODEL};
use apr_registry::{
    ByteSource, Convention, Escaped, Format, HEAD_LEN, Limits, Metadata, Result, keys,
    may_hold_code, read_vec, recognise,
};
use serde::Serialize;

use content::{ContentRemarks, Examiner, jinja, tensorflow, text, tflite};
use leaf::Leaf;

pub use apr_pytorch::{Action, Finding, Verdict};
pub use layers::scan_pickles;
pub use report::{FileVerdict, PickleReport, Reached, Remark, ScanReport};

/// Metadata key under which an import stores the chat template of a model's tokenizer.
const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Summary of a scan of several files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScanSummary {
    /// The worst verdict on any file.
    pub verdict: FileVerdict,
    /// Number of clean files.
    pub clean: usize,
    /// Number of scripts, programs or notes that loading a model does not run.
    ///
    /// They were not examined. Next to clean files they do not count for the verdict.
    pub not_run: usize,
    /// Number of files that were not completely examined, without findings in the rest.
    pub not_examined: usize,
    /// Number of suspicious files.
    pub suspicious: usize,
    /// Number of files that a baseline accepts, whatever was found. The other counts exclude them.
    #[serde(skip_serializing_if = "is_zero")]
    pub accepted: usize,
    /// Number of files that the user left out. They are in no other count, and have no report.
    #[serde(skip_serializing_if = "is_zero")]
    pub excluded: usize,
    /// Number of files that could not be completely examined.
    pub unreadable: usize,
    /// Number of dangerous files.
    pub dangerous: usize,
    /// Reports of the files.
    pub files: Vec<ScanReport>,
}

impl ScanSummary {
    /// Adds the reports up. A file of an unknown format that another one names as the numbers of
    /// its tensors is one of those.
    #[must_use]
    pub fn of(mut files: Vec<ScanReport>) -> Self {
        let named: HashSet<String> = files.iter().flat_map(ScanReport::data_paths).collect();
        for file in files.iter_mut().filter(|file| named.contains(&file.path) && file.is_unknown())
        {
            file.is_named("numbers of tensors");
        }
        // Nothing imports a source of transformers that no configuration beside it names.
        let mapped: HashSet<String> = files
            .iter()
            .filter(|file| file.maps_code())
            .map(|file| file.folder().to_owned())
            .collect();
        if files.len() > 1 {
            for file in files.iter_mut().filter(|file| !mapped.contains(file.folder())) {
                file.without_map();
            }
        }
        let counted = || files.iter().filter(|file| !file.accepted);
        let count = |verdict| counted().filter(|file| file.verdict == verdict).count();
        let clean = count(FileVerdict::Clean);
        let accepted = files.iter().filter(|file| file.accepted).count();
        // Of no file at all, nothing was examined.
        let least = if files.is_empty() { FileVerdict::NotExamined } else { FileVerdict::Clean };
        let worst = counted().map(|file| file.verdict).max().unwrap_or(least);
        let verdict = match worst {
            FileVerdict::NotRun if clean > 0 => FileVerdict::Clean,
            worst => worst,
        };
        Self {
            verdict,
            clean,
            not_run: count(FileVerdict::NotRun),
            accepted,
            excluded: 0,
            not_examined: count(FileVerdict::NotExamined),
            suspicious: count(FileVerdict::Suspicious),
            unreadable: count(FileVerdict::Unreadable),
            dangerous: count(FileVerdict::Dangerous),
            files,
        }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Returns `true` if loaders may unpickle a file that starts with these bytes.
///
/// This is the case for formats whose loaders unpickle, and for unknown formats.
#[must_use]
pub fn may_hold_pickles(head: &[u8]) -> bool {
    recognise(head).is_none_or(|format| [&ZIP, &PICKLE, &TAR, &NPY, &NPZ].contains(&format))
}

/// Lists the code that loading a file of any format would run.
///
/// Files of formats without pickles are also searched for pickles, since a loader may read such a
/// file as a pickle.
///
/// ```
/// use apr_registry::Limits;
/// use apr_scan::{FileVerdict, scan_file};
///
/// let empty = [&b"GGUF\x03\0\0\0"[..], &[0; 16]].concat();
/// let report = scan_file(empty, "model.gguf", &Limits::default())?;
/// assert_eq!((report.verdict, &*report.kind), (FileVerdict::Clean, "GGUF"));
/// # Ok::<(), apr_registry::Error>(())
/// ```
///
/// # Errors
/// E007 when reading fails.
pub fn scan_file<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<ScanReport> {
    let source = Arc::new(source);
    let head =
        read_vec(&source, 0, source.len().min(HEAD_LEN)).map_err(|error| error.in_file(name))?;
    let examiner = Examiner { limits };
    let format = match recognise(&head) {
        Some(format)
            if !may_hold_pickles(&head) && !may_hold_code(format) && !text::is_plain(&head) =>
        {
            format
        }
        // What may hold code is examined as far as it can be.
        _ => {
            let mut report = layers::scan_with(Arc::clone(&source), name, limits, &examiner)?;
            if recognise(&head).is_some_and(|format| format.id == "openvino") {
                report.data.extend(weights_of_openvino(name));
            }
            if report.is_unknown() {
                known_otherwise(&mut report, source, name, limits);
            }
            return Ok(report);
        }
    };

    let mut report = layers::scan_other(&source, name, limits)?;
    if report.pickles.is_empty() {
        format.name.clone_into(&mut report.kind);
    }
    if [&TF_GRAPH, &SAVED_MODEL].contains(&format) {
        let leaf = Leaf { source: &source, name, is_torchscript: false, within: None };
        match tensorflow::judge(&leaf, limits) {
            Ok(found) => remark(&mut report, found.unwrap_or_default()),
            Err(error) => {
                report.problems.push(error.to_string());
                report.verdict = report.verdict.max(FileVerdict::Unreadable);
            }
        }
    }
    if *format == onnx::FORMAT {
        let found = onnx::scan::scan(&source, limits);
        // TensorFlow's graphs are messages of the same kind of fields.
        let leaf = Leaf { source: &source, name, is_torchscript: false, within: None };
        let graph = match &found {
            Err(_) => tensorflow::judge(&leaf, limits).ok().flatten(),
            Ok(_) => None,
        };
        match graph {
            Some(graph) => {
                "TensorFlow graph".clone_into(&mut report.kind);
                remark(&mut report, graph);
            }
            None => judge_onnx(&mut report, found),
        }
    }
    // Its mark may be in bytes that a reader of HDF5 goes past.
    let mut found = content::hdf5::judge(&source, limits)?.unwrap_or_default();
    if *format == coreml::MODEL {
        found.extend(content::coreml::judge(&source, limits)?);
    }
    if format.id == "flax" {
        found.extend(content::msgpack::judge(&source)?);
    }
    if format.id == "tflite" {
        found.extend(tflite::judge(&source, limits)?);
    }
    if format.id == "ort" {
        found.extend(content::onnx::judge_ort(&source, limits)?);
    }
    let is_graph = [&TF_GRAPH, &SAVED_MODEL].contains(&format) || *format == onnx::FORMAT;
    if !is_graph {
        let leaf = Leaf { source: &source, name, is_torchscript: false, within: None };
        found.extend(content::by_name(format, &leaf, limits)?);
    }
    match templates(Arc::clone(&source), name, format, limits) {
        Ok(more) => found.extend(more),
        Err(error) => {
            report.problems.push(error.to_string());
            report.verdict = report.verdict.max(FileVerdict::Unreadable);
        }
    }
    remark(&mut report, found);

    Ok(report)
}

/// Returns the name of the file beside a model of OpenVINO that has its weights.
fn weights_of_openvino(name: &str) -> Option<String> {
    let name = name.rsplit(['/', '\\']).next()?;
    Some(format!("{}.bin", name.strip_suffix(".xml")?))
}

/// Names a file of an unknown format that a reader opens all the same, or that holds only the
/// values of an array.
fn known_otherwise<S: ByteSource + 'static>(
    report: &mut ScanReport,
    source: S,
    name: &str,
    limits: &Limits,
) {
    let kind = match apr_registry::open(source, name, limits) {
        Ok(reader) => reader.format().name.to_owned(),
        Err(_) if paths::is_values(name) => "values of an array".to_owned(),
        Err(_) => return,
    };
    report.is_named(&kind);
}

fn remark(report: &mut ScanReport, found: ContentRemarks) {
    for (verdict, message) in found {
        report.add(verdict, message);
    }
}

/// Examines the templates and configurations inside a model.
///
/// # Errors
/// The errors of the reader: other readers may reach a template even if this one fails.
pub(crate) fn templates<S: ByteSource + 'static>(
    source: S,
    name: &str,
    format: &Format,
    limits: &Limits,
) -> Result<ContentRemarks> {
    match format.convention {
        // Their metadata holds what other formats have in files beside them.
        Convention::LlamaCpp | Convention::Canonical => {
            Ok(of_metadata(apr_registry::open(source, name, limits)?.metadata()))
        }
        _ => Ok(ContentRemarks::new()),
    }
}

/// Templates among GGUF's pairs, what an import has learnt, and the files that it keeps.
fn of_metadata(metadata: &Metadata) -> ContentRemarks {
    let mut found = metadata.text(TEMPLATE_KEY).map(jinja::judge).unwrap_or_default();
    for pair in metadata.key_values().ok().flatten().iter().flat_map(|pairs| pairs.iter()) {
        found.extend(pair.text().map(jinja::judge).unwrap_or_default());
    }

    for (name, content) in metadata.object(keys::FILES).into_iter().flatten() {
        let judged = content.as_str().map(|text| text::judge(name, text.as_bytes(), false));
        found.extend(judged.and_then(Result::ok).flatten().unwrap_or_default());
    }

    // Nothing loads a file of an .apr model by itself.
    found.retain(|(verdict, _)| *verdict > FileVerdict::NotExamined);
    found.dedup();
    found
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

    report.data = found.data.iter().cloned().collect();
    report.warnings.extend(found.warnings());
    if !found.python.is_empty() {
        report.verdict = report.verdict.max(FileVerdict::Suspicious);
    }
    if found.unknown().is_some() {
        report.verdict = report.verdict.max(FileVerdict::NotExamined);
    }
    remark(report, content::onnx::contexts(&found));

    if let [(tensor, location), ..] = found.outside.as_slice() {
        let (tensor, location) = (Escaped::short(tensor), Escaped::short(location));
        let count = counted(found.outside.len() as u64, "tensor");
        report
            .warnings
            .push(format!("{count} outside the model's folder: '{tensor}' in '{location}'"));
        report.verdict = FileVerdict::Dangerous;
    }
}
