//! Point 98 of `docs/qa.md`, and what else may end a conversion halfway: nothing under the target's
//! name is ever partial.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};

use crate::support::{Run, Sandbox, model_folder, small_safetensors, wait_until};

/// More than any machine writes before the test has seen the first byte of it.
const LARGE: u64 = 8 << 30;

#[test]
fn qa_98_a_full_disk_is_e007_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write_sparse("m.safetensors", 64 << 20);
    for output in ["m.apr", "o.safetensors", "new/folder"] {
        let run = sandbox.shell(&format!(
            r#"ulimit -f 2000; exec "$APR" export m.safetensors --format {} -o {output}"#,
            if output == "m.apr" { "apr" } else { "safetensors" }
        ));
        run.fails(1, &["E007", output, "File too large"]);
        assert_eq!(sandbox.files(), ["m.safetensors"]);
    }
    assert!(!sandbox.path("new").exists());
}

/// Runs a script with a file system of 256 KiB in the folder `disk`, or returns `None` if this
/// system does not allow it.
fn on_a_small_disk(sandbox: &Sandbox, script: &str) -> Option<Run> {
    let mount = "mkdir -p disk && mount -t tmpfs -o size=256k none disk";
    let probe = sandbox.shell(&format!("unshare -Urm sh -c '{mount}' 2> /dev/null"));
    if probe.code != Some(0) {
        eprintln!("skipped: unshare can't mount a file system here");
        return None;
    }
    Some(sandbox.shell(&format!("unshare -Urm sh -c '{mount} && {script}'")))
}

#[test]
fn qa_98_a_file_system_without_room_is_e007_and_leaves_nothing() {
    let sandbox = Sandbox::new().with("small.safetensors", small_safetensors());
    sandbox.write_sparse("m.safetensors", 8 << 20);
    let lines = [
        "convert m.safetensors -o disk/m.apr",
        "export m.safetensors -o disk/folder",
        "shard m.safetensors --size 1MB -o disk/s.apr",
    ];
    for line in lines {
        let script = format!(
            r#"echo precious > disk/old; "$APR" {line}; echo "exit $?"; ls -A disk; cat disk/old"#
        );
        let Some(run) = on_a_small_disk(&sandbox, &script) else { return };
        let run = run.ok().says(&["E007", "No space left on device"]);
        assert_eq!(run.text(), "exit 1\nold\nprecious\n", "{line}: {run}");
    }
    // What is there is replaced only by what is whole, in place too.
    let script = r#""$APR" convert small.safetensors -o disk/old.apr -q && cp disk/old.apr old.apr
        head -c 300000 /dev/zero > disk/rest 2> /dev/null
        "$APR" convert m.safetensors -o disk/old.apr -f
        "$APR" edit disk/old.apr --set note=1 -q
        cmp disk/old.apr old.apr || "$APR" validate disk/old.apr -q
        echo "exit $?"; ls -A disk"#;
    let Some(run) = on_a_small_disk(&sandbox, script) else { return };
    assert_eq!(run.ok().says(&["E007", "No space left"]).text(), "exit 0\nold.apr\nrest\n");
}

#[test]
fn qa_98_a_full_disk_leaves_the_old_file_whole() {
    let sandbox = Sandbox::new().with("old.apr", "the old file");
    sandbox.write_sparse("m.safetensors", 64 << 20);
    let run = sandbox.shell(r#"ulimit -f 2000; exec "$APR" convert m.safetensors -o old.apr -f"#);
    run.fails(1, &["E007", "old.apr", "File too large"]);
    assert_eq!(sandbox.read("old.apr"), b"the old file");
    assert_eq!(sandbox.files(), ["m.safetensors", "old.apr"]);
}

/// A folder that can be written to and not read, so that it can't be synced.
#[test]
fn a_folder_that_cannot_be_synced_is_a_warning_because_the_output_is_in_place() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    // Nothing is closed to root.
    let run = sandbox.shell(
        r#"mkdir blind && chmod 755 . && chmod 644 m.safetensors
        [ "$(id -u)" = 0 ] && chown 65534 blind && other="setpriv --reuid 65534 --clear-groups"
        chmod 300 blind
        $other "$APR" convert m.safetensors -o blind/m.apr; echo "exit $?"
        $other "$APR" validate blind/m.apr -q; echo "exit $?"
        chmod 700 blind"#,
    );
    if run.stderr.contains("setpriv:") {
        eprintln!("skipped: this user can't run programs as another one");
        return;
    }
    let run = run.says(&["warning", "blind", "the output is in place", "power failure"]);
    assert!(run.text().matches("exit 0").count() == 2, "{run}");
}

/// Fails each call in turn that puts the output, and the folder that it is in, on disk.
#[test]
fn qa_98_a_disk_that_fails_leaves_the_old_content_or_the_new_one_and_says_which() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: there is no strace");
        return;
    }
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o new.apr").clean();
    let (old, new) = (b"the old file".to_vec(), sandbox.read("new.apr"));
    let (mut refused, mut warned) = (0, 0);
    for turn in 1..5 {
        sandbox.write("m.apr", &old);
        let fail = format!("inject=fsync,fdatasync:error=EIO:when={turn}");
        let line = "convert m.safetensors -o m.apr -f";
        let run = sandbox.shell(&format!("strace -f -qq -o /dev/null -e {fail} \"$APR\" {line}"));
        if run.code == Some(0) {
            assert!(sandbox.read("m.apr") == new, "{run}");
            if run.stderr.contains("os error 5") {
                run.says(&["warning", "the output is in place", "power failure"]);
                warned += 1;
            }
        } else {
            run.fails(1, &["E007", "m.apr", "os error 5"]);
            assert!(sandbox.read("m.apr") == old);
            refused += 1;
        }
        assert_eq!(sandbox.files(), ["m.apr", "m.safetensors", "new.apr"]);
    }
    assert!(refused >= 1 && warned >= 1, "refused {refused} times, warned {warned} times");
}

#[test]
fn qa_98_a_pipe_that_does_not_fit_the_cache_is_e007_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let run = sandbox.shell(
        r#"ulimit -f 2000; head -c 8000000 /dev/zero | "$APR" convert - --format apr -o m.apr"#,
    );
    run.fails(1, &["E007", "File too large"]);
    assert_eq!(sandbox.files(), [""; 0]);
}

/// A conversion of a large file over `old.apr`, caught while it writes.
fn halfway(sandbox: &Sandbox) -> Child {
    sandbox.write("old.apr", "the old file");
    sandbox.write_sparse("m.safetensors", LARGE);
    let mut command = sandbox.command(&["convert", "m.safetensors", "-o", "old.apr", "-f"]);
    let child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    wait_until("the first bytes", || is_writing(&child));
    assert_eq!(sandbox.read("old.apr"), b"the old file");
    child
}

/// Returns `true` if a command has written to an unnamed or a hidden file.
fn is_writing(child: &Child) -> bool {
    let descriptors =
        fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
    descriptors.map(|descriptor| descriptor.path()).any(|descriptor| {
        let name = fs::read_link(&descriptor)
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let is_output = name.ends_with(" (deleted)") || name.ends_with(".partial");
        is_output && descriptor.metadata().is_ok_and(|file| file.is_file() && file.len() > 0)
    })
}

/// Waits until a command has opened its source and handles SIGTERM by cleaning up.
fn wait_until_it_works(child: &Child) {
    wait_until("the handler of SIGTERM", || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught
            .and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok())
            .is_some_and(|caught| caught >> 14 & 1 == 1)
    });
}

fn send(signal: &str, child: &Child) {
    let sandbox = Sandbox::new();
    sandbox.shell(&format!("kill -{signal} {}", child.id())).clean();
}

#[test]
fn qa_98_a_killed_conversion_leaves_the_old_file_whole() {
    let sandbox = Sandbox::new();
    let mut child = halfway(&sandbox);
    child.kill().expect("it runs");
    assert_eq!(child.wait().expect("it ended").code(), None);
    assert_eq!(sandbox.read("old.apr"), b"the old file");
    // What it wrote had no name; where the system has no such files, the next conversion removes
    // it.
    sandbox.write("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o old.apr -f").clean();
    sandbox.apr("validate old.apr").clean();
    assert_eq!(sandbox.files(), ["m.safetensors", "old.apr"]);
}

#[test]
fn leftovers_of_a_killed_conversion_are_removed_but_not_locked_files() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.write(".m.aprAbC123.partial", "left");
    sandbox.write(".m.aprlocked.partial", "being written");
    sandbox.write(".n.aprAbC123.partial", "of another file");
    let writing = File::open(sandbox.path(".m.aprlocked.partial")).expect("ours");
    writing.lock().expect("nobody has it");
    sandbox.apr("convert m.safetensors -o m.apr").clean();
    assert_eq!(
        sandbox.files(),
        [".m.aprlocked.partial", ".n.aprAbC123.partial", "m.apr", "m.safetensors"]
    );
}

#[test]
fn a_full_disk_leaves_the_old_pair_of_keys_whole() {
    let sandbox = Sandbox::new();
    sandbox.apr("keygen -o key").clean();
    let pair = || (sandbox.read("key"), sandbox.read("key.pub"));
    let before = pair();
    sandbox
        .shell(r#"ulimit -f 0; exec "$APR" keygen -f -o key"#)
        .fails(1, &["E007", "File too large"]);
    assert!(pair() == before);
    // The public one can't be replaced.
    fs::remove_file(sandbox.path("key.pub")).expect("ours");
    fs::create_dir(sandbox.path("key.pub")).expect("ours");
    sandbox.apr("keygen -f -o key").fails(1, &["E007", "key.pub", "a folder"]);
    assert!(sandbox.read("key") == before.0);
    fs::remove_dir(sandbox.path("key.pub")).expect("ours");
    let changing = File::open(sandbox.path("key")).expect("ours");
    changing.lock().expect("nobody has it");
    sandbox.apr("keygen -f -o key").fails(1, &["E007"]);
    assert_eq!(sandbox.files(), ["key"]);
    drop(changing);
    sandbox.apr("keygen -f -o key").clean();
    assert!(pair() != before);
    assert_eq!(sandbox.files(), ["key", "key.pub"]);
}

/// A conversion into a pipe, which waits for the pipe's reader.
fn into_pipe(sandbox: &Sandbox, model: &str) -> Child {
    sandbox.shell("mkfifo pipe").clean();
    let mut command = sandbox.command(&["convert", model, "--format", "safetensors", "-o", "pipe"]);
    let child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    wait_until_it_works(&child);
    child
}

#[test]
fn signals_end_the_wait_for_the_reader_of_a_pipe() {
    for (signal, reads) in [("TERM", false), ("INT", true)] {
        let sandbox = Sandbox::new();
        sandbox.write_sparse("m.safetensors", LARGE);
        let child = into_pipe(&sandbox, "m.safetensors");
        // A reader that takes one byte and no more.
        let reader = reads.then(|| {
            let mut reader = File::open(sandbox.path("pipe")).expect("ours");
            reader.read_exact(&mut [0]).expect("it is written to");
            reader
        });
        send(signal, &child);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{signal}: {output:?}");
        drop(reader);
    }
}

#[test]
fn a_source_that_is_rewritten_during_a_conversion_is_noticed() {
    let later = SystemTime::now() + Duration::from_secs(5);
    for file in ["model.safetensors", "config.json"] {
        let sandbox = Sandbox::new();
        model_folder(&sandbox, "model");
        let child = into_pipe(&sandbox, "model");
        File::options()
            .write(true)
            .open(sandbox.path(&format!("model/{file}")))
            .and_then(|file| file.set_modified(later))
            .expect("ours");
        let mut bytes = Vec::new();
        File::open(sandbox.path("pipe"))
            .and_then(|mut pipe| pipe.read_to_end(&mut bytes))
            .expect("it is written to");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("E007")
                && said.contains(file)
                && said.contains("was changed by another program"),
            "{said}"
        );
    }
}

#[test]
fn ctrl_c_and_similar_signals_end_a_conversion_with_130_and_leave_no_files() {
    for signal in ["INT", "TERM", "HUP"] {
        let sandbox = Sandbox::new();
        let child = halfway(&sandbox);
        send(signal, &child);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{signal}: {output:?}");
        assert_eq!(output.stdout, b"");
        assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"), "{output:?}");
        assert_eq!(sandbox.read("old.apr"), b"the old file");
        assert_eq!(sandbox.files(), ["m.safetensors", "old.apr"]);
    }
}

#[test]
fn ctrl_c_ends_the_wait_for_a_pipe_and_leaves_no_files() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["inspect", "-"]);
    command
        .env("APR_CACHE", "x")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let stdin = child.stdin.take();
    wait_until("the copy", || !sandbox.files().is_empty());
    send("INT", &child);
    let output = child.wait_with_output().expect("it ends");
    drop(stdin);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn the_pipe_copy_of_a_killed_command_is_removed_by_the_next_one() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.write("x/spool/.tmpleft", "left");
    sandbox.write("x/spool/.tmpused", "being read");
    let reading = File::open(sandbox.path("x/spool/.tmpused")).expect("ours");
    reading.lock().expect("nobody has it");
    sandbox.shell(r#"cat m.safetensors | APR_CACHE=x "$APR" inspect -"#).clean();
    assert_eq!(sandbox.files(), ["m.safetensors", "x/spool/.tmpused"]);
}

#[test]
fn the_exit_code_is_right_where_standard_error_can_not_be_written_to() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.shell(r#""$APR" inspect absent.apr 2> /dev/full"#).code, Some(3));
}
