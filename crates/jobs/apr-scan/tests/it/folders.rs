//! Several files of one folder, which say what the others are.

use apr_core::Limits;
use apr_scan::{FileVerdict, ScanReport, ScanSummary, scan_file};

fn scanned(name: &str, bytes: &[u8]) -> ScanReport {
    scan_file(bytes.to_vec(), name, &Limits::default()).expect("in memory")
}

fn verdicts(files: &[(&str, &[u8])]) -> Vec<FileVerdict> {
    let reports = files.iter().map(|(name, bytes)| scanned(name, bytes)).collect();
    ScanSummary::of(reports).files.iter().map(|file| file.verdict).collect()
}

#[test]
fn transformers_sources_count_only_next_to_a_configuration_for_them() {
    use FileVerdict::{Clean, NotRun, Suspicious};
    let source = ("m/modeling_x.py", &b"import torch"[..]);
    let plain = ("m/config.json", &b"{}"[..]);
    let mapped = ("m/config.json", &br#"{"auto_map": {"AutoModel": "modeling_x.X"}}"#[..]);
    assert_eq!(verdicts(&[source]), [Suspicious]);
    assert_eq!(verdicts(&[source, plain]), [NotRun, Clean]);
    assert_eq!(verdicts(&[source, mapped]), [Suspicious, Suspicious]);
    let elsewhere = ("n/config.json", mapped.1);
    assert_eq!(verdicts(&[source, elsewhere]), [NotRun, Suspicious]);
}

#[test]
fn numbers_that_an_onnx_model_names_are_examined() {
    use FileVerdict::{Clean, Dangerous, NotExamined};
    let folder = apr_testkit::locate::fixture("onnx").join("external");
    let model = std::fs::read_dir(&folder).expect("a folder").find_map(|file| {
        let path = file.expect("an entry").path();
        (path.extension()? == "onnx").then_some(path)
    });
    let model = std::fs::read(model.expect("a model")).expect("readable");
    let numbers = std::fs::read(folder.join("weights.bin")).expect("readable");
    let model = ("m/model.onnx", model.as_slice());
    let data = ("m/weights.bin", numbers.as_slice());
    assert_eq!(verdicts(&[data]), [NotExamined]);
    assert_eq!(verdicts(&[model, data])[1], Clean);
    assert_eq!(verdicts(&[model, ("n/weights.bin", data.1)])[1], NotExamined);
    // What it holds counts all the same.
    let payload = b"cos\nsystem\n(S'id'\ntR.";
    assert_eq!(verdicts(&[model, ("m/weights.bin", payload)])[1], Dangerous);
}
