//! Formats: what a reader can open, the scan can examine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use apr_core::Limits;
use apr_scan::{FileVerdict, ScanReport, ScanSummary, scan_file};
use apr_testkit::locate;

/// Formats of models in folders: the format, and a folder in the fixtures.
const FOLDERS: [(&str, &str); 6] = [
    ("coreml-package", "coreml/program16.mlpackage"),
    ("ctranslate2", "ctranslate2/int8"),
    ("orbax", "orbax/ocdbt"),
    ("saved-model", "tensorflow/saved"),
    ("tensorflow-checkpoint", "tensorflow/saved/variables"),
    ("tensorflow-js", "tensorflow/js"),
];

/// Files that name code, or that are damaged on purpose.
const HAZARDS: [&str; 5] = ["/scan/", "hazards", "refused", "/regression/", "/page/"];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder of the repository")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn scanned(path: &Path) -> ScanReport {
    let bytes = std::fs::read(path).expect("readable");
    scan_file(bytes, &path.to_string_lossy(), &Limits::default()).expect("in memory")
}

#[test]
fn files_of_every_format_that_a_reader_opens_are_examined() {
    let mut all = Vec::new();
    files(&locate::fixture(""), &mut all);
    let others = ["apr", "ggml"].map(locate::shared_data);
    let has_others = others.iter().all(Option::is_some);
    others.iter().flatten().for_each(|folder| files(folder, &mut all));
    let mut met: BTreeSet<&str> = BTreeSet::new();
    let mut wrong = Vec::new();
    for path in all {
        let name = path.to_string_lossy().into_owned();
        if HAZARDS.iter().any(|part| name.contains(part)) {
            continue;
        }
        let bytes = std::fs::read(&path).expect("readable");
        let Ok(reader) = apr_registry::open(bytes, &name, &Limits::default()) else { continue };
        met.insert(reader.format().id);
        // A file that wraps another one is read as that.
        let head = std::fs::read(&path).expect("readable");
        met.extend(apr_registry::recognise(&head).map(|format| format.id));
        let report = scanned(&path);
        // A model may refer to operators or classes of others, which is no question of format.
        let is_read = report.verdict != FileVerdict::Unreadable
            && report.problems.is_empty()
            && !report.remarks.iter().any(|remark| remark.message.contains("unknown format"));
        if !is_read || report.kind == "unknown format" {
            wrong.push(format!("{name}: {report:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);

    for (id, folder) in FOLDERS {
        let mut all = Vec::new();
        files(&locate::fixture(folder), &mut all);
        let reports = all.iter().map(|path| scanned(path)).collect();
        let summary = ScanSummary::of(reports);
        assert!(summary.verdict == FileVerdict::Clean, "{folder}: {summary:#?}");
        met.insert(id);
    }
    let known: BTreeSet<&str> = apr_registry::formats()
        .filter(|format| !NOT_OPENED.contains(&format.id))
        .filter(|format| has_others || !OF_OTHERS.contains(&format.id))
        .map(|format| format.id)
        .collect();
    let missing: Vec<&&str> = known.difference(&met).collect();
    assert!(missing.is_empty(), "no file of the fixtures is of these formats: {missing:?}");
}

/// Formats that are only detected or written, that are another one when they are opened, that are
/// not opened without the other files of their folder, or of which only tests of their readers have
/// a file.
const NOT_OPENED: [&str; 10] = [
    "aprdialect",
    "executorch",
    "ncnn",
    "onnx-tensor",
    "openvino",
    "rknn",
    "tar",
    "tensorrt",
    "torchscript",
    "zip",
];

/// Formats whose files are not in the repository.
const OF_OTHERS: [&str; 2] = ["apr1", "ggml"];
