use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

const BEFORE: &[u8] = b"front-middle-tail";

fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.apr");
    fs::write(&path, BEFORE).expect("room");
    (folder, path)
}

fn revision(old_front: &[u8], front: &[u8], old_tail: &[u8], tail: &[u8]) -> Revision {
    let [old_front, front, old_tail, tail] = [old_front, front, old_tail, tail].map(<[u8]>::to_vec);
    Revision {
        front,
        tail_offset: 13,
        tail,
        old_front,
        old_tail,
        signatures: 0,
        dropped_signatures: 0,
        dropped_licence: false,
    }
}

#[test]
fn both_ends_are_replaced_and_no_extra_file_remains() {
    let (folder, path) = file();
    let change = |revision: &Revision| {
        LockedFile::open(&path).and_then(|locked| locked.replace_ends(revision))
    };
    change(&revision(b"front", b"FRONT", b"tail", b"longer tail")).expect("room");
    assert_eq!(fs::read(&path).expect("it is there"), b"FRONT-middle-longer tail");
    change(&revision(b"FRONT", b"front", b"longer tail", b"t")).expect("room");
    assert_eq!(fs::read(&path).expect("it is there"), b"front-middle-t");
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 1);
}

#[test]
fn a_second_process_can_not_change_a_file_that_is_locked() {
    let (_folder, path) = file();
    let first = LockedFile::open(&path).expect("nobody has it");
    let error = LockedFile::open(&path).map(drop).expect_err("the first has it");
    assert!(error.message().contains("another process is changing the file"), "{error}");
    drop(first);
    LockedFile::open(&path).expect("nobody has it");
}

#[test]
fn a_revision_of_other_bytes_is_rejected_without_changes() {
    for wrong in [
        revision(b"frond", b"FRONT", b"tail", b"TAIL"),
        revision(b"front", b"FRONT", b"tall", b"TAIL"),
        revision(b"front", b"FRONT", b"tail+", b"TAIL"),
        revision(b"front", b"FRONT", b"tai", b"TAIL"),
    ] {
        let (folder, path) = file();
        let error = LockedFile::open(&path)
            .and_then(|locked| locked.replace_ends(&wrong))
            .expect_err("it is another file");
        assert_eq!(error.code(), apr_core::Code::Io);
        assert_eq!(fs::read(&path).expect("it is there"), BEFORE);
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 1);
    }
}

#[test]
fn a_file_rewritten_or_replaced_without_the_lock_is_not_changed() {
    let right = revision(b"front", b"FRONT", b"tail", b"TAIL");
    let (folder, path) = file();
    let locked = LockedFile::open(&path).expect("nobody has it");
    // The same ends with another middle, and a later time.
    fs::write(&path, b"front-MIDDLE-tail").expect("room");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_modified(later))
        .expect("ours");
    assert!(locked.replace_ends(&right).is_err());
    assert_eq!(fs::read(&path).expect("it is there"), b"front-MIDDLE-tail");

    let (other_folder, path) = file();
    let locked = LockedFile::open(&path).expect("nobody has it");
    fs::write(other_folder.path().join("new"), BEFORE).expect("room");
    apr_platform::replace(&other_folder.path().join("new"), &path).expect("ours");
    assert!(locked.replace_ends(&right).is_err());
    // What was replaced while it was open vanishes when it is closed, at the latest.
    drop(locked);
    assert_eq!(fs::read(&path).expect("it is there"), BEFORE);
    for folder in [folder, other_folder] {
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 1);
    }
}
