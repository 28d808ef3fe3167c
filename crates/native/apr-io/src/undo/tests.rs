use tempfile::TempDir;

use super::*;

/// A file of several pages whose ends change, one longer than the other.
struct Change {
    before: Vec<u8>,
    after: Vec<u8>,
    front: usize,
    tail: usize,
}

impl Change {
    fn new(before_tail: usize, after_tail: usize) -> Self {
        let (front, tail) = (5000, 9000);
        let bytes = |seed: usize, len: usize| {
            (0..len).map(move |at| (at * 7 + at / 251 + seed).to_le_bytes()[0])
        };
        let whole = |seed: usize, end: usize| -> Vec<u8> {
            bytes(seed, front).chain(bytes(1, tail - front)).chain(bytes(seed + 1, end)).collect()
        };
        Self { before: whole(10, before_tail), after: whole(20, after_tail), front, tail }
    }

    fn ends(&self) -> Ends<'_> {
        Ends {
            front: [&self.before[..self.front], &self.after[..self.front]],
            tail_offset: self.tail as u64,
            tail: [&self.before[self.tail..], &self.after[self.tail..]],
        }
    }

    /// Creates a folder with a file in this state, and the undo file of the change.
    fn interrupted(&self, state: &[u8]) -> (TempDir, PathBuf, File) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("a folder").join("m.apr");
        fs::write(&path, state).expect("room");
        let file = File::options().read(true).write(true).open(&path).expect("ours");
        write(&path, &file, &self.ends()).expect("room");
        (folder, path, file)
    }

    /// Returns every state in which a change that dies can leave the file, block by block.
    fn torn(&self) -> Vec<Vec<u8>> {
        let mut states = Vec::new();
        let mut state = self.before.clone();
        state.resize(self.before.len().max(self.after.len()), 0);
        for part in [self.tail..self.after.len(), 0..self.front] {
            for block in part
                .clone()
                .step_by(64)
                .map(|at| at / 512 * 512)
                .collect::<std::collections::BTreeSet<_>>()
            {
                let range = block.max(part.start)..(block + 512).min(part.end);
                state[range.clone()].copy_from_slice(&self.after[range]);
                states.push(state.clone());
            }
            if part.end == self.after.len() {
                state.truncate(self.after.len());
            }
        }
        states
    }
}

#[test]
fn a_change_that_died_after_any_block_is_undone() {
    for (before, after) in [(1000, 3000), (3000, 1000), (700, 700)] {
        let change = Change::new(before, after);
        let states = change.torn();
        assert!(states.len() > 10);
        for (at, state) in states.iter().enumerate() {
            let (_folder, path, file) = change.interrupted(state);
            let finished = *state == change.after;
            assert_eq!(check_readable(&file, &path).is_ok(), finished, "{at}");
            assert_eq!(roll_back(&file, &path).expect("it can be written"), !finished, "{at}");
            let expected = if finished { &change.after } else { &change.before };
            assert!(fs::read(&path).expect("it is there") == *expected, "{at}");
            assert!(!path_of(&path).exists());
            assert!(check_readable(&file, &path).is_ok());
        }
    }
}

#[test]
fn a_file_that_is_neither_state_nor_a_mix_of_both_is_left_alone() {
    let change = Change::new(1000, 3000);
    let flipped = |at: usize| {
        let mut state = change.before.clone();
        state[at] ^= 1;
        state
    };
    let others = [
        flipped(0),
        flipped(4999),
        flipped(9000),
        flipped(9999),
        change.before[..9999].to_vec(),
        vec![7; 11_000],
        Vec::new(),
    ];
    for (at, state) in others.iter().enumerate() {
        let (_folder, path, file) = change.interrupted(state);
        let error = roll_back(&file, &path).expect_err("the file is another one");
        assert!(error.message().contains("delete that undo file"), "{error}");
        assert!(fs::read(&path).expect("it is there") == *state, "{at}");
        // It can be looked at, which is how to find out whether it is sound.
        assert!(check_readable(&file, &path).is_ok());
        assert!(path_of(&path).exists());
    }
}

#[test]
fn a_file_in_its_state_before_the_change_needs_no_undo() {
    let change = Change::new(1000, 3000);
    let (_folder, path, file) = change.interrupted(&change.before);
    assert!(check_readable(&file, &path).is_ok());
    assert_eq!(roll_back(&file, &path), Ok(false));
    assert!(!path_of(&path).exists());
}

#[test]
fn an_undo_file_that_is_not_complete_was_written_before_anything_changed() {
    let change = Change::new(1000, 3000);
    for keep in [0, 5, 8, 39, 44, 1000, 14_043] {
        let torn = change.torn().swap_remove(3);
        let (_folder, path, file) = change.interrupted(&torn);
        let undo = fs::read(path_of(&path)).expect("it is there");
        assert!(undo.len() > keep);
        fs::write(path_of(&path), &undo[..keep]).expect("ours");
        assert!(check_readable(&file, &path).is_ok());
        assert_eq!(roll_back(&file, &path), Ok(false));
        assert!(fs::read(&path).expect("it is there") == torn);
        assert!(!path_of(&path).exists());
    }
}

#[test]
fn an_undo_file_with_any_field_flipped_has_no_effect() {
    let change = Change::new(1000, 3000);
    let torn = change.torn().swap_remove(3);
    let (_folder, path, file) = change.interrupted(&torn);
    let undo = fs::read(path_of(&path)).expect("it is there");
    for at in (0..40).chain([41, 9000, undo.len() - 1]) {
        let mut hostile = undo.clone();
        hostile[at] ^= 0x80;
        fs::write(path_of(&path), &hostile).expect("ours");
        assert!(!roll_back(&file, &path).is_ok_and(|undone| undone), "{at}");
        assert!(fs::read(&path).expect("it is there") == torn, "{at}");
    }
}

#[cfg(unix)]
#[test]
fn other_files_with_the_undo_name_are_not_followed_awaited_or_removed() {
    use rustix::fs::{CWD, FileType, mknodat};

    let change = Change::new(1000, 3000);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("a folder").join("m.apr");
    let outside = folder.path().join("outside");
    fs::write(&path, &change.before).expect("room");
    let file = File::options().read(true).write(true).open(&path).expect("ours");
    let make: [&dyn Fn(&Path); 4] = [
        &|undo| std::os::unix::fs::symlink(&outside, undo).expect("links"),
        &|undo| mknodat(CWD, undo, FileType::Fifo, 0o600.into(), 0).expect("pipes"),
        &|undo| fs::create_dir(undo).expect("room"),
        &|undo| fs::write(undo, "mine").expect("room"),
    ];
    for (at, make) in make.iter().enumerate() {
        let undo = path_of(&path);
        make(&undo);
        let kind = undo.symlink_metadata().expect("it was made").file_type();
        assert!(check_readable(&file, &path).is_ok());
        let error = roll_back(&file, &path).expect_err("it is in the way");
        assert!(error.message().contains("move that file"), "{error}");
        assert!(write(&path, &file, &change.ends()).is_err());
        forget(&path).expect("ours");
        assert_eq!(undo.symlink_metadata().expect("it stays").file_type(), kind, "{at}");
        assert!(!outside.exists());
        fs::remove_file(&undo).or_else(|_| fs::remove_dir(&undo)).expect("ours");
    }
}

#[cfg(unix)]
#[test]
fn an_undo_file_is_as_private_as_the_file() {
    use std::os::unix::fs::PermissionsExt;

    let change = Change::new(1000, 3000);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.apr");
    fs::write(&path, &change.before).expect("room");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    write(&path, &File::open(&path).expect("ours"), &change.ends()).expect("room");
    assert_eq!(path_of(&path).metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_being_changed_is_distinguished_from_an_interrupted_change() {
    let change = Change::new(1000, 3000);
    let (_folder, path, file) = change.interrupted(&change.torn()[3]);
    let reader = File::open(&path).expect("ours");
    file.lock().expect("nobody has it");
    let error = check_readable(&reader, &path).expect_err("it is being changed");
    assert!(error.message().contains("another process is changing the file"), "{error}");
    // Whether it is free shows below: Wine reports an error of an unlock that succeeds.
    let _ = file.unlock();
    let error = check_readable(&reader, &path).expect_err("the change was interrupted");
    assert!(error.message().contains("interrupted"), "{error}");
    // The look at it left no lock behind.
    file.try_lock().expect("nobody has it");
}
