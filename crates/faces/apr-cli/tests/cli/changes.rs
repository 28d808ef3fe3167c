//! Changes in place: what one that died leaves, what several at once do, and what else may lie
//! where an undo file belongs.

use std::fs::{self, File};
#[cfg(unix)]
use std::os::unix::fs::symlink;

use crate::container::{crc32, word, workshop};
use crate::support::{Sandbox, model_folder, small_safetensors};

/// Every way to read an `.apr` file.
const READERS: [&str; 14] = [
    "inspect m.apr",
    "tensors m.apr",
    "tensors m.apr --stats",
    "validate m.apr",
    "lint m.apr",
    "debug m.apr",
    "debug m.apr --hex",
    "debug m.apr --strings",
    "explain m.apr",
    "diff m.apr m.safetensors",
    "convert m.apr -o t.apr",
    "export m.apr -o t.safetensors",
    "verify m.apr --trusted signer.pub",
    "license show m.apr",
];

/// A file in which a change was interrupted.
struct Interrupted {
    sandbox: Sandbox,
    before: Vec<u8>,
    after: Vec<u8>,
    torn: Vec<u8>,
    undo: Vec<u8>,
}

impl Interrupted {
    /// The front is new, the tail is old.
    fn new() -> Self {
        let sandbox = workshop();
        sandbox.apr("convert m.safetensors -o m.apr").clean();
        let before = sandbox.read("m.apr");
        sandbox.apr("edit m.apr --set note=changed").clean().says(&["in place"]);
        let after = sandbox.read("m.apr");
        let (front, tail) = (word(&before, 28), before.len() - 64);
        assert!(
            before[..front] != after[..front]
                && before[tail..] != after[tail..]
                && before.len() == after.len()
        );
        let torn = [&after[..front], &before[front..]].concat();
        let undo = undo_file(&before, &after, front, tail);
        let this = Self { sandbox, before, after, torn, undo };
        this.sandbox.write("m.apr", &this.torn);
        this.sandbox.write(".m.apr.undo", &this.undo);
        this
    }
}

/// Returns the undo file of a change: both lengths, the positions of the ends, their old and new
/// bytes, and a checksum.
pub(crate) fn undo_file(before: &[u8], after: &[u8], front: usize, tail: usize) -> Vec<u8> {
    let mut undo = b"APRUNDO2".to_vec();
    for word in [before.len(), after.len(), front, tail] {
        undo.extend((word as u64).to_le_bytes());
    }
    for part in [&before[..front], &after[..front], &before[tail..], &after[tail..]] {
        undo.extend(part);
    }
    undo.extend(crc32(&undo).to_le_bytes());
    undo
}

#[test]
fn a_change_that_died_halfway_is_undone_by_the_next() {
    let Interrupted { sandbox, before, undo, .. } = Interrupted::new();
    let files = sandbox.files().len();
    sandbox.apr("edit m.apr --set model_type=unknown").ok().says(&[
        "warning",
        "interrupted",
        "undone",
    ]);
    assert!(sandbox.read("m.apr") == before);
    assert_eq!(sandbox.files().len(), files - 1);
    // Cut short, it was written before anything changed.
    sandbox.write(".m.apr.undo", &undo[..undo.len() - 9]);
    sandbox.apr("validate m.apr").clean();
    sandbox.apr("edit m.apr --set model_type=unknown").clean();
    assert!(sandbox.read("m.apr") == before);
    assert_eq!(sandbox.files().len(), files - 1);
}

/// Returns the text that an error puts in backquotes: the command that it advises.
fn advice(run: &crate::support::Run) -> String {
    let quoted = run.stderr.split('`').nth(1).unwrap_or_else(|| panic!("no command: {run}"));
    let arguments = quoted.strip_prefix("apr ").unwrap_or_else(|| panic!("{quoted}"));
    format!("\"$APR\" {arguments}")
}

#[cfg(unix)]
#[test]
fn the_command_that_readers_name_undoes_an_interrupted_change() {
    let Interrupted { sandbox, before, torn, undo, .. } = Interrupted::new();
    for name in ["m.apr", "it's a model.apr"] {
        sandbox.write(name, &torn);
        sandbox.write(&format!(".{name}.undo"), &undo);
        let refused = sandbox.run(&["inspect", name]).fails(4, &["E002", "interrupted"]);
        let command = advice(&refused);
        let undone = sandbox.shell(&command).ok().text();
        assert!(
            undone.contains("undone") && undone.contains("an interrupted change was undone"),
            "{undone}"
        );
        assert!(sandbox.read(name) == before);
        assert!(!sandbox.path(&format!(".{name}.undo")).exists());
        sandbox.run(&["validate", name]).clean();

        // Done once; a second time there is nothing to undo.
        sandbox
            .shell(&command)
            .fails(2, &["no change requested: pass --set, --unset, --rename, --drop, --keep"]);
    }

    sandbox.write("m.apr", &torn);
    sandbox.write(".m.apr.undo", &undo);
    let report = sandbox.apr("edit m.apr --json").ok().json();
    assert_eq!(report["undone"], true);
    assert!(sandbox.read("m.apr") == before);
}

/// Kills a change at each call of the system that changes something.
#[cfg(unix)]
#[test]
fn the_command_that_readers_name_undoes_a_change_that_was_killed_anywhere() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: there is no strace");
        return;
    }
    let sandbox = workshop();
    sandbox.apr("convert m.safetensors -o m.apr").clean();
    let before = sandbox.read("m.apr");
    let (mut torn, mut whole) = (0, 0);
    let lines = ["edit m.apr --set note=changed -q", "sign m.apr --key signer -q"];
    let calls =
        ["write", "pwrite64", "ftruncate", "fsync", "fdatasync", "unlink", "unlinkat", "linkat"];
    let turns = calls.iter().flat_map(|call| (1..8).map(move |turn| (call, turn)));
    for ((call, turn), line) in turns.flat_map(|at| lines.map(|line| (at, line))) {
        let kill = format!("inject={call}:signal=KILL:when={turn}");
        let run = sandbox.shell(&format!("strace -f -qq -o /dev/null -e {kill} \"$APR\" {line}"));
        let is_killed = run.code != Some(0);
        let read = sandbox.apr("inspect m.apr");
        if read.code == Some(0) {
            whole += u32::from(is_killed);
        } else {
            torn += 1;
            let command = advice(&read.fails(4, &["E002", "interrupted"]));
            sandbox.shell(&command).ok().says(&["undone"]);
            assert!(sandbox.read("m.apr") == before, "`{line}` killed at {call} {turn}");
        }
        sandbox.apr("validate m.apr").ok();
        // What was left is in nobody's way.
        sandbox.apr("edit m.apr --set note=again").ok();
        sandbox.apr("sign m.apr --key signer").ok();
        sandbox.write("m.apr", &before);
        let left = sandbox.files().into_iter().find(|name| name.ends_with(".undo"));
        assert_eq!(left, None, "`{line}` killed at {call} {turn}");
    }
    assert!(torn >= 4 && whole >= 8, "killed {torn} times amid the change, {whole} outside");
}

#[test]
fn every_command_that_edits_in_place_undoes_an_interrupted_change_first() {
    let Interrupted { sandbox, torn, undo, .. } = Interrupted::new();
    for line in [
        "sign m.apr --key signer",
        "license issue m.apr --licensee Ann --key signer",
        "edit m.apr --set a=1",
        "edit m.apr --drop steps --force",
    ] {
        sandbox.write("m.apr", &torn);
        sandbox.write(".m.apr.undo", &undo);
        sandbox.apr(line).ok().says(&["interrupted", "undone"]);
        sandbox.apr("validate m.apr").ok();
    }
}

#[cfg(unix)]
#[test]
fn every_reading_command_rejects_a_file_with_an_interrupted_change() {
    let Interrupted { sandbox, torn, .. } = Interrupted::new();
    let files = sandbox.files();
    for reader in READERS {
        sandbox
            .apr(reader)
            .fails(4, &["E002", "m.apr", "a change of this file was interrupted", "apr edit"]);
    }
    symlink("m.apr", sandbox.path("link.apr")).expect("links");
    sandbox.apr("inspect link.apr").fails(4, &["interrupted"]);
    fs::remove_file(sandbox.path("link.apr")).expect("ours");
    assert_eq!(sandbox.files(), files);
    assert!(sandbox.read("m.apr") == torn);
}

#[test]
fn a_running_change_is_distinguished_from_an_interrupted_one() {
    let Interrupted { sandbox, torn, .. } = Interrupted::new();
    let changing =
        File::options().read(true).write(true).open(sandbox.path("m.apr")).expect("ours");
    changing.lock().expect("nobody has it");
    for reader in READERS.iter().chain(&["edit m.apr --set a=1", "sign m.apr --key signer"]) {
        sandbox
            .apr(reader)
            .fails(1, &["E007", "m.apr", "another process is changing the file", "try again"]);
    }
    assert!(sandbox.read("m.apr") == torn);
}

#[test]
fn a_shard_with_an_interrupted_change_is_rejected_by_every_reader() {
    let Interrupted { sandbox, .. } = Interrupted::new();
    sandbox.apr("edit m.apr --set model_type=unknown").ok();
    sandbox.apr("convert m.apr -o parts.apr --shard-size 700").clean();
    let shard = &sandbox
        .files()
        .into_iter()
        .find(|name| name.starts_with("parts-00001-of"))
        .expect("a shard");
    let file = sandbox.read(shard);
    let front = word(&file, 28);
    let mut after = file.clone();
    after[front - 1] ^= 1;
    after[file.len() - 16] ^= 1;
    let torn = [&after[..front], &file[front..]].concat();
    sandbox.write(shard, torn);
    sandbox.write(&format!(".{shard}.undo"), undo_file(&file, &after, front, file.len() - 16));
    for line in [
        "validate parts.apr",
        "tensors parts.apr --stats",
        "convert parts.apr -o t.apr",
        "join parts.apr -o t.apr",
    ] {
        sandbox.apr(line).says(&["E002", shard, "interrupted"]);
        assert!(!sandbox.path("t.apr").exists());
    }
}

#[test]
fn a_backup_that_was_put_back_over_a_torn_file_is_never_mixed_with_what_was_there() {
    let Interrupted { sandbox, before, after, undo, .. } = Interrupted::new();
    // Another model, into the same inode, as `cp` does it.
    sandbox.apr("convert m.safetensors -o other.apr --precision bf16").ok();
    let other = sandbox.read("other.apr");
    sandbox.write("m.apr", &other);
    for line in
        ["edit m.apr --set a=1", "sign m.apr --key signer", "edit m.apr --set model_type=unknown"]
    {
        sandbox
            .apr(line)
            .fails(1, &["E007", "m.apr", ".m.apr.undo", "change of another file", "delete"]);
        assert!(sandbox.read("m.apr") == other);
    }
    // What the error advises, here with a copy, since the next lines need what is deleted.
    sandbox.apr("validate m.apr").clean().says(&["VALID"]);
    let kept = sandbox.read(".m.apr.undo");
    fs::remove_file(sandbox.path(".m.apr.undo")).expect("it is there");
    sandbox.apr("edit m.apr --set a=1").ok();
    sandbox.write("m.apr", &other);
    sandbox.write(".m.apr.undo", kept);
    // What takes the file's place as a whole is free of it.
    sandbox.apr("convert m.safetensors -o m.apr -f").clean();
    assert!(!sandbox.path(".m.apr.undo").exists());
    // The very states before and after the change are sound.
    for state in [before, after] {
        sandbox.write("m.apr", &state);
        sandbox.write(".m.apr.undo", &undo);
        sandbox.apr("validate m.apr").clean();
        sandbox.apr("edit m.apr --set model_type=unknown").clean();
        assert!(sandbox.read("m.apr") == state);
        assert!(!sandbox.path(".m.apr.undo").exists());
    }
}

#[cfg(unix)]
#[test]
fn other_objects_at_the_path_of_the_undo_file_are_not_followed_or_waited_for() {
    let sandbox = workshop();
    let before = sandbox.read("plain.apr");
    let kinds: [&dyn Fn(); 3] = [
        &|| symlink("outside", sandbox.path(".plain.apr.undo")).expect("links"),
        &|| drop(sandbox.shell("mkfifo .plain.apr.undo").clean()),
        &|| sandbox.write(".plain.apr.undo", "mine"),
    ];
    for make in kinds {
        make();
        let files = sandbox.files();
        sandbox.apr("inspect plain.apr").clean();
        for line in ["edit plain.apr --set a=1", "sign plain.apr --key signer"] {
            sandbox.apr(line).fails(1, &["E007", ".plain.apr.undo", "move that file"]);
        }
        assert!(sandbox.read("plain.apr") == before);
        assert_eq!(sandbox.files(), files);
        fs::remove_file(sandbox.path(".plain.apr.undo")).expect("ours");
    }
}

#[test]
fn one_process_at_a_time_changes_or_replaces_a_file() {
    let sandbox = workshop();
    sandbox.apr("convert plain.apr -o parts.apr --shard-size 700").clean();
    sandbox.write("template", "{{ messages }}".repeat(4000));
    let before = sandbox.files();
    for (file, lines) in [
        (
            "plain.apr",
            &[
                "edit plain.apr --set a=1",
                "edit plain.apr --drop steps --force",
                "edit plain.apr --chat-template template",
                "edit plain.apr --set a=1 -o plain.apr -f",
                "sign plain.apr --key signer",
                "license issue plain.apr --licensee Ann --key signer",
                "convert m.safetensors -o plain.apr -f",
            ][..],
        ),
        ("parts.apr", &["sign parts.apr --key signer"]),
    ] {
        let bytes = sandbox.read(file);
        let changing = File::open(sandbox.path(file)).expect("ours");
        changing.lock().expect("nobody has it");
        for line in lines {
            sandbox.apr(line).fails(1, &["E007", file, "another process is changing the file"]);
            assert!(sandbox.read(file) == bytes, "{line}");
            assert_eq!(sandbox.files(), before, "{line}");
        }
        drop(changing);
        sandbox.apr(lines[0]).clean();
    }
}

#[cfg(unix)]
#[test]
fn an_edit_that_does_not_fit_a_full_disk_leaves_the_file_as_it_was() {
    let sandbox = Sandbox::new();
    model_folder(&sandbox, "model");
    sandbox.apr("import model -o m.apr").ok();
    let before = sandbox.read("m.apr");
    let run = sandbox.shell(r#"ulimit -f 1; exec "$APR" edit m.apr --set a=1"#);
    run.fails(1, &["E007", "File too large"]);
    assert!(sandbox.read("m.apr") == before);
    sandbox.apr("validate m.apr").ok();
    assert!(!sandbox.path(".m.apr.undo").exists());
}

#[cfg(unix)]
#[test]
fn commands_that_write_a_copy_do_not_touch_the_source() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o m.apr").clean();
    let before = sandbox.read("m.apr");
    fs::set_permissions(sandbox.path("m.apr"), std::os::unix::fs::PermissionsExt::from_mode(0o444))
        .expect("ours");
    sandbox.apr("edit m.apr --set a=1 -o n.apr").clean();
    sandbox.apr("edit m.apr --set a=1 -o n.apr").fails(1, &["E007", "n.apr", "already exists"]);
    assert!(sandbox.read("m.apr") == before);
}

#[cfg(unix)]
#[test]
fn the_target_of_a_link_is_changed_and_rewritten() {
    let sandbox = workshop();
    fs::create_dir(sandbox.path("folder")).expect("room");
    fs::rename(sandbox.path("plain.apr"), sandbox.path("folder/real.apr")).expect("ours");
    symlink("folder/real.apr", sandbox.path("link.apr")).expect("links");
    sandbox.apr("edit link.apr --set a=1").clean().says(&["in place"]);
    sandbox.apr("edit link.apr --drop steps --force").ok().says(&["without 1 tensor"]);
    assert!(sandbox.path("link.apr").is_symlink());
    let left = sandbox.apr("tensors folder/real.apr --json").clean().json();
    assert_eq!(left["tensors"].as_array().map(Vec::len), Some(3));
    assert!(!sandbox.files().iter().any(|name| name == "folder/link.apr"));
}

#[test]
fn a_backup_by_hard_links_is_not_changed_through_the_other_name() {
    let sandbox = workshop();
    let before = sandbox.read("plain.apr");
    fs::hard_link(sandbox.path("plain.apr"), sandbox.path("backup.apr")).expect("links");
    let lines =
        ["edit plain.apr --set a=1", "sign plain.apr --key signer", "edit plain.apr --drop steps"];
    for line in &lines[..2] {
        sandbox.apr(line).fails(1, &["E007", "2 hard links", "-o", "--overwrite"]);
        assert!(sandbox.read("plain.apr") == before, "{line}");
    }

    // What the error advises, and what writes a new file anyway.
    sandbox.apr(&format!("{} -o plain.apr --overwrite", lines[0])).ok();
    assert!(sandbox.read("plain.apr") != before && sandbox.read("backup.apr") == before);
    sandbox.apr(&format!("{} --force", lines[2])).ok();
    assert!(sandbox.read("backup.apr") == before);
    assert!(!sandbox.path(".plain.apr.undo").exists());
}
