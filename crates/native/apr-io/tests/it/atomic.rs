//! Output appears complete or not at all.

use std::fs;
use std::path::Path;

use apr_core::{IoCause, Sink};
use apr_io::{AtomicOutput, LockedFile, Target};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| {
            entry.expect("it can be listed").file_name().into_string().expect("plain names")
        })
        .collect();
    names.sort();
    names
}

#[test]
fn no_file_has_the_name_before_the_commit_and_none_remains_after_a_drop() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.apr");
    fs::write(&path, "old").expect("writable");

    let mut output = AtomicOutput::create(Target::File(path.clone()), true, ["model.apr"])
        .expect("may be replaced");
    output.write_all(b"new content").expect("there is room");
    assert_eq!(fs::read(&path).expect("still there"), b"old");
    drop(output);
    assert_eq!(names(folder.path()), ["model.apr"]);
    assert_eq!(fs::read(&path).expect("still there"), b"old");

    let mut output = AtomicOutput::create(Target::File(path.clone()), true, ["model.apr"])
        .expect("may be replaced");
    output.write_all(b"new content").expect("there is room");
    output.patch(0, b"NEW").expect("within what was written");
    assert!(output.patch(9, b"too long").is_err());
    assert_eq!(output.commit().expect("can be renamed").warnings().count(), 0);
    assert_eq!(names(folder.path()), ["model.apr"]);
    assert_eq!(fs::read(&path).expect("replaced"), b"NEW content");
}

#[test]
fn existing_files_are_rejected_before_any_work() {
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
        let mut output = AtomicOutput::create(target.clone(), false, ["model.safetensors"])
            .expect("nothing is there");
        for name in ["model.safetensors", "1_Pooling/config.json"] {
            output.next_file(name).expect("a new file");
            output.write_all(name.as_bytes()).expect("there is room");
        }
        if commit {
            assert_eq!(output.commit().expect("can be renamed").warnings().count(), 0);
        }
    };
    write(false);
    assert_eq!(names(parent.path()), [""; 0]);
    write(true);
    assert_eq!(names(&folder), ["1_Pooling", "model.safetensors"]);
    assert_eq!(
        fs::read(folder.join("1_Pooling/config.json")).expect("written"),
        b"1_Pooling/config.json"
    );
}

#[cfg(unix)]
#[test]
fn a_link_keeps_pointing_at_the_file_that_was_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (real, link) = (folder.path().join("real.apr"), folder.path().join("link.apr"));
    fs::write(&real, "old").expect("writable");
    std::os::unix::fs::symlink(&real, &link).expect("links are supported");
    let mut output = AtomicOutput::create(Target::File(link.clone()), true, ["link.apr"])
        .expect("may be replaced");
    output.write_all(b"new").expect("there is room");
    assert_eq!(output.commit().expect("can be renamed").warnings().count(), 0);
    assert!(link.is_symlink());
    assert_eq!(fs::read(&real).expect("replaced"), b"new");
}

#[cfg(unix)]
#[test]
fn permissions_of_the_replaced_file_stay() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("secret.apr");
    fs::write(&path, "old").expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    let mut output = AtomicOutput::create(Target::File(path.clone()), true, ["secret.apr"])
        .expect("may be replaced");
    output.write_all(b"new").expect("there is room");
    assert_eq!(output.commit().expect("can be renamed").warnings().count(), 0);
    assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_that_another_process_changes_is_not_replaced_meanwhile() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("m.apr");
    fs::write(&path, "old").expect("writable");
    let write = || {
        let mut output = AtomicOutput::create(Target::File(path.clone()), true, ["m.apr"])
            .expect("may be replaced");
        output.write_all(b"new").expect("there is room");
        output.commit()
    };
    let locked = LockedFile::open(&path).expect("nobody has it");
    let error = write().expect_err("it is being changed");
    assert!(error.message().contains("another process is changing the file"), "{error}");
    assert_eq!(fs::read(&path).expect("still there"), b"old");
    drop(locked);
    assert_eq!(write().expect("nobody has it").warnings().count(), 0);
    assert_eq!(
        (fs::read(&path).expect("replaced"), names(folder.path())),
        (b"new".to_vec(), vec!["m.apr".to_owned()])
    );
}

#[test]
fn replacing_a_locked_file_keeps_the_lock_until_then() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("m.apr");
    fs::write(&path, "old").expect("writable");
    let mut output = AtomicOutput::replacing(LockedFile::open(&path).expect("nobody has it"));
    output.write_all(b"new").expect("there is room");
    assert!(LockedFile::open(&path).is_err());
    assert_eq!(output.commit().expect("it is ours").warnings().count(), 0);
    assert_eq!(fs::read(&path).expect("replaced"), b"new");
    LockedFile::open(&path).expect("nobody has it");

    // A program that takes no lock put another file there.
    let mut output = AtomicOutput::replacing(LockedFile::open(&path).expect("nobody has it"));
    output.write_all(b"lost").expect("there is room");
    fs::write(folder.path().join("n"), "theirs").expect("writable");
    apr_platform::replace(&folder.path().join("n"), &path).expect("ours");
    assert!(output.commit().is_err());
    assert_eq!(
        (fs::read(&path).expect("there"), names(folder.path())),
        (b"theirs".to_vec(), vec!["m.apr".to_owned()])
    );
}

#[test]
fn several_files_are_replaced_together_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["a", "c"] {
        fs::write(folder.path().join(name), "old").expect("writable");
    }
    let write = || {
        let mut output = AtomicOutput::create(Target::Folder(folder.path().into()), true, [])
            .expect("may be replaced");
        for name in ["a", "b", "c"] {
            output.next_file(name).expect("a file");
            output.write_all(b"new").expect("there is room");
        }
        output.commit()
    };
    // The last one can't be replaced.
    let locked = LockedFile::open(&folder.path().join("c")).expect("nobody has it");
    assert!(write().is_err());
    drop(locked);
    assert_eq!(names(folder.path()), ["a", "c"]);
    assert_eq!(fs::read(folder.path().join("a")).expect("there"), b"old");
    assert_eq!(write().expect("nobody has it").warnings().count(), 0);
    assert_eq!(names(folder.path()), ["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        assert_eq!(fs::read(folder.path().join(name)).expect("there"), b"new");
    }
}
