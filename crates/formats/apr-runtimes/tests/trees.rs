//! Models of XGBoost and LightGBM (`fixtures/trees`); broken ones are errors.

use std::path::PathBuf;

use apr_core::{CheckpointReader, Code, Limits, Result, Table};
use apr_runtimes::trees::{graphs_of, lightgbm, xgboost};
use apr_testkit::{corrupt, peak_memory, read_everything};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/trees");
    std::fs::read(folder.join(name)).expect("the fixture is in the repository")
}

fn open(name: &str, file: Vec<u8>) -> Result<Table> {
    match name.ends_with(".txt") {
        true => lightgbm::open(file, name, &Limits::default()),
        false => xgboost::open(file, name, &Limits::default()),
    }
}

#[test]
fn both_encodings_of_xgboost_are_detected() {
    for name in ["binary.ubj", "classes.json", "linear.json"] {
        assert!((xgboost::FORMAT.recognises)(&fixture(name)[..64]), "{name}");
    }
    assert!((lightgbm::FORMAT.recognises)(&fixture("light_binary.txt")[..64]));
    for other in [&b"{\"weight_map\": {}}"[..], b"{\"version\": \"1.0\", \"x\": 1}", b"tree\nx"] {
        assert!(!(xgboost::FORMAT.recognises)(other) && !(lightgbm::FORMAT.recognises)(other));
    }
}

#[test]
fn the_lists_of_trees_lie_one_behind_the_other() {
    let reader = open("forest.json", fixture("forest.json")).expect("a model");
    let len = |name: &str| {
        let info = reader.tensors().iter().find(|info| info.name == name).expect(name);
        info.shape.dims()[0]
    };
    // Three rounds of two trees.
    assert_eq!((len("trees/nodes"), len("trees/groups")), (6, 6));
    assert_eq!(len("trees/left_children"), len("trees/split_conditions"));
    let learner = &reader.metadata().object("xgboost").expect("what the file says")["learner"];
    assert_eq!(learner["feature_names"], serde_json::json!(["a", "b", "c", "d"]));
    assert!(learner["gradient_booster"]["model"].get("trees").is_none(), "{learner}");
}

#[test]
fn broken_models_are_errors_or_readable_within_bounded_memory() {
    for (name, step) in
        [("several.json", 3), ("categories.json", 3), ("binary.ubj", 11), ("light_linear.txt", 5)]
    {
        let file = fixture(name);
        let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(step);
        for broken in corrupt::truncations(&file).step_by(step).chain(flips) {
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = open(name, broken) {
                    let _ = graphs_of(&reader, &Limits::default());
                    let _ = read_everything(&reader);
                }
            });
            assert!(peak < 1 << 20, "{name}: {peak} bytes");
        }
    }
}

#[test]
fn lists_that_contradict_each_other_are_errors() {
    let text = String::from_utf8(fixture("regression.json")).expect("text");
    let graph = |text: String| {
        let reader = open("m.json", text.into_bytes()).expect("a checkpoint");
        graphs_of(&reader, &Limits::default()).map(drop).expect_err("contradictory").code()
    };
    for (key, value) in [
        ("\"tree_info\":[", "\"tree_info\":[7,"),
        ("\"left_children\":[1", "\"left_children\":[1000"),
        ("\"right_children\":[", "\"right_children\":[1,"),
        ("\"default_left\":[", "\"default_left\":[0,"),
    ] {
        assert!(text.contains(key), "{key}");
        assert_eq!(graph(text.replacen(key, value, 1)), Code::Corrupt, "{key}");
    }
    let half = text.replacen("\"split_indices\":[", "\"split_indices\":[0.5,", 1);
    let error = open("m.json", half.into_bytes()).map(drop).expect_err("half a feature");
    assert_eq!(error.code(), Code::Corrupt, "{error}");
    for bad in ["tree\nversion=v4\n", "tree\nversion=v4\n\nTree=0\nnum_leaves=x\n"] {
        let error = open("m.txt", bad.as_bytes().to_vec()).map(drop).expect_err(bad);
        assert_eq!(error.code(), Code::Corrupt, "{error}");
    }
}
