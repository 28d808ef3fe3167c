//! Output appears complete or not at all.

use std::fs;
use std::path::Path;

use apr_core::{IoCause, Sink};
use apr_io::{AtomicOutput, Target};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be listed").file_name().into_string().expect("plain names"))
        .collect();
    names.sort();
    names
}

#[test]
fn nothing_is_under_the_name_before_the_commit_and_nothing_left_after_a_drop() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.apr");
    fs::write(&path, "old").expect("writable");

    let mut output = AtomicOutput::create(Target::File(path.clone()), true, ["model.apr"]).expect("may be replaced");
    output.write_all(b"new content").expect("there is room");
    assert_eq!(fs::read(&path).expect("still there"), b"old");
    drop(output);
    assert_eq!(names(folder.path()), ["model.apr"]);
    assert_eq!(fs::read(&path).expect("still there"), b"old");

    let mut output = AtomicOutput::create(Target::File(path.clone()), true, ["model.apr"]).expect("may be replaced");
    output.write_all(b"new content").expect("there is room");
    output.patch(0, b"NEW").expect("within what was written");
    assert!(output.patch(9, b"too long").is_err());
    output.commit().expect("can be renamed");
    assert_eq!(names(folder.path()), ["model.apr"]);
    assert_eq!(fs::read(&path).expect("replaced"), b"NEW content");
}

#[test]
fn what_exists_is_refused_before_any_work() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("config.json"), "{}").expect("writable");
    let target = Target::Folder(folder.path().to_path_buf());
    let refused = AtomicOutput::create(target.clone(), false, ["model.safetensors", "config.json"]);
    assert_eq!(refused.map(drop).map_err(|error| error.cause()), Err(Some(IoCause::AlreadyExists)));
    assert!(AtomicOutput::create(target, true, ["model.safetensors", "config.json"]).is_ok());
}

#[test]
fn folders_are_made_for_the_files_and_vanish_with_them() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("a/b");
    let target = Target::Folder(folder.clone());
    let write = |commit: bool| {
        let mut output = AtomicOutput::create(target.clone(), false, ["model.safetensors"]).expect("nothing is there");
        for name in ["model.safetensors", "1_Pooling/config.json"] {
            output.next_file(name).expect("a new file");
            output.write_all(name.as_bytes()).expect("there is room");
        }
        if commit {
            output.commit().expect("can be renamed");
        }
    };
    write(false);
    assert_eq!(names(parent.path()), [""; 0]);
    write(true);
    assert_eq!(names(&folder), ["1_Pooling", "model.safetensors"]);
    assert_eq!(fs::read(folder.join("1_Pooling/config.json")).expect("written"), b"1_Pooling/config.json");
}

#[test]
fn a_link_keeps_pointing_at_what_was_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (real, link) = (folder.path().join("real.apr"), folder.path().join("link.apr"));
    fs::write(&real, "old").expect("writable");
    std::os::unix::fs::symlink(&real, &link).expect("links are supported");
    let mut output = AtomicOutput::create(Target::File(link.clone()), true, ["link.apr"]).expect("may be replaced");
    output.write_all(b"new").expect("there is room");
    output.commit().expect("can be renamed");
    assert!(link.is_symlink());
    assert_eq!(fs::read(&real).expect("replaced"), b"new");
}

#[test]
fn permissions_of_the_replaced_file_stay() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("secret.apr");
    fs::write(&path, "old").expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    let mut output = AtomicOutput::create(Target::File(path.clone()), true, ["secret.apr"]).expect("may be replaced");
    output.write_all(b"new").expect("there is room");
    output.commit().expect("can be renamed");
    assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
}
