//! Typed models in files.
#![cfg(feature = "typed")]

use std::fs;

use apr_io::typed;
use apr_registry::aprn::{LoadOptions, ModelType, SaveOptions, Signal};

#[test]
fn two_saves_with_a_password_share_no_salt_and_both_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["a.apr", "b.apr"].map(|name| folder.path().join(name));
    let options = SaveOptions::default().with_password("hunter2");
    let keys = LoadOptions { password: Some("hunter2".into()), ..LoadOptions::default() };
    for path in &paths {
        typed::save(&[1.0_f32, 2.0], ModelType::Pca, path, &options).expect("a saved model");
        assert_eq!(typed::load_with(path, ModelType::Pca, &keys), Ok([1.0_f32, 2.0]));
    }
    let [first, second] = paths.map(|path| fs::read(path).expect("a file"));
    assert_ne!(first[first.len() - 60..], second[second.len() - 60..]);
}

#[test]
fn a_failed_save_keeps_the_old_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.apr");
    typed::save(&1_u8, ModelType::Custom, &path, &SaveOptions::default()).expect("a saved model");
    let before = fs::read(&path).expect("a file");
    let error =
        typed::save(&2_u8, ModelType::Custom, &path, &SaveOptions::default().with_quality_score(0));
    assert!(
        error.expect_err("a score of zero").file().is_some_and(|file| file.ends_with("model.apr"))
    );
    assert_eq!(fs::read(&path).expect("the old file"), before);
    assert_eq!(
        fs::read_dir(folder.path()).expect("a folder").count(),
        1,
        "nothing is left beside it"
    );
}

#[test]
fn errors_name_the_file_and_keep_their_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.apr");
    let absent = typed::load::<u8>(&path, ModelType::Custom).expect_err("no such file");
    assert_eq!(absent.signal(), Signal::Other);
    typed::save(&1_u8, ModelType::Custom, &path, &SaveOptions::default()).expect("a saved model");
    let other = typed::load::<u8>(&path, ModelType::Knn).expect_err("another type");
    assert_eq!(other.signal(), Signal::ModelTypeMismatch);
    assert!(other.to_string().contains("model.apr"), "{other}");
    let created_at = typed::inspect(&path).expect("a model").metadata.created_at;
    assert!(created_at.parse::<u64>().is_ok_and(|seconds| seconds > 1_700_000_000), "{created_at}");
}
