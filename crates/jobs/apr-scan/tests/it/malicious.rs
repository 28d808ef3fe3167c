//! The scanners' own test files. Nothing here may ever load one with Python.

use apr_scan::Verdict;
use apr_testkit::locate;

use super::*;

/// File, error when opening it, and names that picklescan 1.0.5 lists (`picklescan -g -p FILE`).
const FILES: &[(&str, &str, &[&str])] = &[
    ("mmaitre314_picklescan__bad_pytorch.pt", "not a PyTorch file", &[]),
    ("mmaitre314_picklescan__benign0_v3.pkl", "magic number", &[]),
    (
        "mmaitre314_picklescan__malicious0.pkl",
        "__builtin__.globals",
        &[
            "__builtin__.apply",
            "__builtin__.compile",
            "__builtin__.dict",
            "__builtin__.eval",
            "__builtin__.getattr",
            "__builtin__.globals",
        ],
    ),
    ("mmaitre314_picklescan__malicious1.zip", "builtins.eval", &["builtins.eval"]),
    ("mmaitre314_picklescan__malicious1_0x20.zip", "no data.pkl", &["builtins.eval"]),
    ("mmaitre314_picklescan__malicious1_v0.pkl", "__builtin__.eval", &["__builtin__.eval"]),
    ("mmaitre314_picklescan__malicious1_v3.pkl", "builtins.eval", &["builtins.eval"]),
    ("mmaitre314_picklescan__malicious1_v4.pkl", "builtins.eval", &["builtins.eval"]),
    ("mmaitre314_picklescan__not_a_pickle.bin", "not a PyTorch file", &[]),
    (
        "mmaitre314_picklescan__pytorch_magic_bypass.pt",
        "__builtin__.eval",
        &["__builtin__.eval", "posix.system"],
    ),
    ("protectai_modelscan__password_protected.zip", "encrypted", &[]),
    (
        "protectai_modelscan__unsafe_zip_pytorch.pt",
        "posix.system",
        &["collections.OrderedDict", "posix.system"],
    ),
];

#[test]
fn malicious_files_are_rejected_and_scanned_to_the_names_of_picklescan() {
    let Some(folder) = locate::shared_data("malicious") else { return };
    let count = std::fs::read_dir(&folder).expect("a folder").count();
    assert_eq!(count, FILES.len(), "a file is not in the list");
    for (name, reason, expected) in FILES {
        let file = std::fs::read(folder.join(name)).expect("readable");
        let error = refused(file.clone());
        assert!(error.message().contains(reason), "{name}: {error}");
        let report = scan(file);
        assert_eq!(names(&report), *expected, "{name}");
        if !expected.is_empty() {
            assert_eq!(report.worst(), Verdict::Dangerous, "{name}");
            assert!(
                report.findings().any(|finding| error.offset() == Some(finding.offset))
                    || *reason == "no data.pkl"
            );
        }
    }
}
