//! Point 98 of seed 001 §11, and what else may end a conversion halfway: nothing under the target's name is ever partial.

use std::process::{Child, Stdio};

use crate::support::{Sandbox, small_safetensors, wait_until};

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

#[test]
fn qa_98_a_full_disk_leaves_the_old_file_whole() {
    let sandbox = Sandbox::new().with("old.apr", "the old file");
    sandbox.write_sparse("m.safetensors", 64 << 20);
    let run = sandbox.shell(r#"ulimit -f 2000; exec "$APR" convert m.safetensors -o old.apr --force"#);
    run.fails(1, &["E007", "old.apr", "File too large"]);
    assert_eq!(sandbox.read("old.apr"), b"the old file");
    assert_eq!(sandbox.files(), ["m.safetensors", "old.apr"]);
}

#[test]
fn qa_98_a_pipe_that_does_not_fit_the_cache_is_e007_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let run = sandbox.shell(r#"ulimit -f 2000; head -c 8000000 /dev/zero | "$APR" convert - --format apr -o m.apr"#);
    run.fails(1, &["E007", "File too large"]);
    assert_eq!(sandbox.files(), [""; 0]);
}

/// A conversion of a large file over `old.apr`, caught while it writes its temporary file.
fn halfway(sandbox: &Sandbox) -> Child {
    sandbox.write("old.apr", "the old file");
    sandbox.write_sparse("m.safetensors", LARGE);
    let mut command = sandbox.command(&["convert", "m.safetensors", "-o", "old.apr", "--force"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    wait_until("the temporary file", || partial(sandbox).is_some());
    assert_eq!(sandbox.read("old.apr"), b"the old file");
    child
}

fn partial(sandbox: &Sandbox) -> Option<String> {
    sandbox.files().into_iter().find(|name| name.starts_with(".old.apr") && name.ends_with(".partial"))
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
    // What it wrote is hidden, and no obstacle to the next conversion.
    let left = partial(&sandbox).expect("nobody could remove it");
    assert_eq!(sandbox.files(), [left.as_str(), "m.safetensors", "old.apr"]);
    sandbox.write("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o old.apr -f").clean();
    sandbox.apr("validate old.apr").clean();
}

#[test]
fn ctrl_c_and_its_kin_end_a_conversion_with_130_and_leave_nothing() {
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
fn ctrl_c_ends_the_wait_for_a_pipe_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["inspect", "-"]);
    command.env("APR_CACHE", "x").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let stdin = child.stdin.take();
    wait_until("the copy", || !sandbox.files().is_empty());
    send("INT", &child);
    let output = child.wait_with_output().expect("it ends");
    drop(stdin);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(sandbox.files(), [""; 0]);
}
