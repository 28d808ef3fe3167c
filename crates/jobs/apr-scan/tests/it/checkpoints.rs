//! Checkpoints that torch wrote: nothing in them is dangerous.

use apr_scan::{FileVerdict, Verdict};
use apr_testkit::locate;
use serde_json::Value;

use super::*;

/// The files of a list, which are its keys.
fn listed(list: &[u8]) -> Vec<String> {
    let list: Value = serde_json::from_slice(list).expect("valid JSON");
    list.as_object().expect("an object").keys().cloned().collect()
}

#[test]
fn checkpoints_of_every_kind_use_allowed_names_alone() {
    for name in listed(&golden("expected.json")) {
        let file = match name.split_once('/') {
            Some(("golden", file)) => golden(file),
            Some((_, file)) => match locate::shared_data("pytorch") {
                Some(folder) => std::fs::read(folder.join(file)).expect("listed"),
                None => continue,
            },
            None => panic!("{name} is in no folder"),
        };
        let expected =
            if name.contains("user_module") { Verdict::Unknown } else { Verdict::Allowed };
        assert_eq!(scan(file).worst(), expected, "{name}");
    }
    for name in ["numpy.pt", "numpy_protocol4.pt"] {
        assert_eq!(scan(golden(name)).worst(), Verdict::Allowed, "{name}");
    }
    let Some(folder) = locate::shared_data("pytorch") else { return };
    for file in std::fs::read_dir(folder).expect("a folder") {
        let path = file.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("readable");
        assert_eq!(scan(bytes).worst(), Verdict::Allowed, "{}", path.display());
    }
}

#[test]
fn names_in_checkpoints_of_todays_torch_are_found() {
    let folder = locate::fixture("torch");
    for name in listed(&std::fs::read(folder.join("expected.json")).expect("in the repository")) {
        let file = std::fs::read(folder.join(&name)).expect("in the repository");
        let report = scan_pickles(file, &name, &Limits::default()).expect("readable");
        assert!(report.findings().count() > 0, "{name}");
    }
}

#[test]
fn arrays_of_objects_are_values_of_the_same_pickle() {
    let report = scan(golden("numpy_objects.pt"));
    let verdicts = (report.worst(), report.verdict);
    assert_eq!(verdicts, (Verdict::Allowed, FileVerdict::Clean), "{report:?}");
}
