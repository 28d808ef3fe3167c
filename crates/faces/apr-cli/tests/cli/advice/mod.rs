//! What an error tells its reader to do is done here, to the letter, and helps.
//!
//! Advice about servers is followed where servers are, in `hub.rs`, `hub_cache.rs` and
//! `hub_servers.rs`; that of an interrupted change in `changes.rs`. `complete.rs` looks whether
//! there is more.

use std::fs;

use apr_testkit::locate;

use crate::support::Sandbox;

mod complete;
mod hints;
mod models;
mod runs;
mod seals;

/// A failing or warning command, its exit code, its message, and the advised commands, which
/// succeed.
///
/// `apr` is the command, in lines of a shell.
type Advice = (&'static str, i32, &'static str, &'static str);

fn shell(sandbox: &Sandbox, line: &str) -> crate::support::Run {
    let fixtures = locate::fixture("");
    let families = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs/apr-arch/families");
    let names = format!("FIXTURES='{}'; FAMILIES='{families}'", fixtures.display());
    sandbox.shell(&format!("{names}; apr() {{ \"$APR\" \"$@\"; }}; {line}"))
}

#[track_caller]
fn followed(sandbox: &Sandbox, advice: &[Advice]) {
    for (refused, code, said, then) in advice {
        let run = shell(sandbox, refused);
        assert_eq!(run.code, Some(*code), "{refused}: {run}");
        let all = run.to_string();
        let all = all.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(all.contains(said), "{refused}: {said} is not in {run}");
        let run = shell(sandbox, &format!("set -e; {then}"));
        assert_eq!(run.code, Some(0), "{refused}, then {then}: {run}");
    }
}

/// The trained model of the fixtures as a folder, and packed.
fn with_llama() -> Sandbox {
    let sandbox = Sandbox::new();
    copy("tiny-llama", &sandbox, "llama");
    sandbox.apr("import llama -o m.apr -q").ok();
    sandbox
}

fn copy(fixture: &str, sandbox: &Sandbox, folder: &str) {
    for entry in fs::read_dir(locate::fixture(fixture)).expect("a fixture") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            continue;
        }
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        sandbox.write(&format!("{folder}/{name}"), fs::read(&path).expect("a file"));
    }
}

/// Returns the texts in backquotes that begin with the command's name.
fn backquoted(run: &crate::support::Run) -> Vec<String> {
    let quoted = run.stderr.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.starts_with("apr ")).map(str::to_owned).collect()
}
