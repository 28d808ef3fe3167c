//! Files of this machine become a commit of a repository on a hub.

use std::fs;

use apr_testkit::hub::{Fault, TestHub};
use apr_testkit::locate;
use serde_json::Value;

use crate::support::{Run, Sandbox};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
const WEIGHTS: &str = "model.safetensors";

/// Runs a command against a hub, with a token.
fn at(hub: &TestHub, sandbox: &Sandbox, line: &str) -> Run {
    sandbox.with_env(&[("HF_ENDPOINT", hub.url()), ("HF_TOKEN", "hf_secret")], line)
}

/// The states of the files in a report, by name.
fn state_of<'r>(report: &'r Value, name: &str) -> &'r str {
    let files = report["files"].as_array().expect("files");
    let file = files.iter().find(|file| file["name"] == name).expect("the file");
    file["state"].as_str().expect("a state")
}

fn weights() -> Vec<u8> {
    fs::read(locate::fixture("tiny-llama").join(WEIGHTS)).expect("a fixture")
}

#[test]
fn a_folder_becomes_a_repository_once() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let line = format!("upload {LLAMA} hf://org/new --json");
    at(&hub, &sandbox, &line).fails(3, &["E007", "no repository org/new"]);
    assert_eq!(hub.file("org/new", "main", WEIGHTS), None);

    let made = at(&hub, &sandbox, &format!("{line} --create private -m First")).clean().json();
    assert_eq!((&made["created"], &made["dry_run"]), (&true.into(), &false.into()));
    assert_eq!(made["commit"], hub.commit("org/new"));
    assert_eq!(hub.summaries(), ["First"]);
    for file in fs::read_dir(LLAMA).expect("a folder") {
        let path = file.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert_eq!(hub.file("org/new", "main", name), fs::read(&path).ok(), "{name}");
        assert_eq!(state_of(&made, name), "sent");
    }
    // It is private: without the token, it is not there.
    sandbox.with_env(&[("HF_ENDPOINT", hub.url())], "inspect hf://org/new").fails(3, &["E007"]);
    at(&hub, &sandbox, "validate hf://org/new").ok();

    let again = at(&hub, &sandbox, &format!("upload {LLAMA} hf://org/new")).ok();
    assert!(again.text().contains("no commit: the repository has all files"), "{again}");
    at(&hub, &sandbox, &format!("upload {LLAMA} hf://org/new --create public"))
        .says(&["--create has no effect"]);
    assert_eq!(hub.summaries().len(), 1);
}

#[test]
fn large_files_go_in_pieces_and_no_token_to_the_store() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.take_pieces(100_000);
    hub.put("org/model", "README.md", "old");
    // Both are tried again: a piece, and what tells the store that all have come.
    hub.fault("part=3", Fault::Status(503, Vec::new()), 0, 1);
    hub.fault("/complete", Fault::Status(502, Vec::new()), 0, 1);
    at(&hub, &sandbox, &format!("upload {LLAMA}/{WEIGHTS} hf://org/model/deep/er")).ok();
    assert_eq!(hub.file("org/model", "main", "deep/er/model.safetensors"), Some(weights()));
    assert_eq!(hub.file("org/model", "main", "README.md").as_deref(), Some(&b"old"[..]));
    let requests = hub.requests();
    let pieces = requests.iter().filter(|request| request.at_store);
    let pieces: Vec<_> = pieces.inspect(|piece| assert_eq!(piece.authorization, None)).collect();
    let expected = weights().len().div_ceil(100_000);
    assert!((expected..expected + 2).contains(&pieces.len()), "{pieces:?}");
}

#[test]
fn an_upload_that_failed_goes_on_where_it_ended() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new().with("m/b.bin", vec![7; 200_000]));
    sandbox.write("m/a.bin", vec![5; 300_000]);
    sandbox.write("m/config.json", "{}");
    hub.put("org/model", "README.md", "old");
    let before = hub.commit("org/model");
    hub.fault("/upload/1", Fault::Status(403, Vec::new()), 0, 1);
    at(&hub, &sandbox, "upload m hf://org/model").fails(1, &["E007", "b.bin", "status 403"]);
    assert_eq!(hub.commit("org/model"), before, "nothing was committed");

    let _ = hub.requests();
    let report = at(&hub, &sandbox, "upload m hf://org/model --json").ok().json();
    assert_eq!((state_of(&report, "a.bin"), state_of(&report, "b.bin")), ("stored", "sent"));
    let sent: u64 = hub.requests().iter().filter(|it| it.at_store).map(|it| it.received).sum();
    assert_eq!(sent, 200_000);
    assert_eq!(hub.file("org/model", "main", "a.bin"), Some(vec![5; 300_000]));
}

#[test]
fn a_commit_whose_answer_is_lost_is_not_repeated() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new().with("m/config.json", "{}"));
    hub.put("org/model", "README.md", "old");
    hub.fault("/commit/", Fault::Cut(0), 0, 1);
    at(&hub, &sandbox, "upload m hf://org/model").fails(1, &["E007", "may have been made"]);
    assert_eq!(hub.summaries(), ["Upload m with apr"]);
    let report = at(&hub, &sandbox, "upload m hf://org/model --json").ok().json();
    assert_eq!((state_of(&report, "config.json"), &report["commit"]), ("unchanged", &Value::Null));
}

#[test]
fn a_pull_request_and_a_dry_run_leave_the_revision_as_it_is() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new().with("m/config.json", "{}"));
    sandbox.write("m/.git/HEAD", "ref");
    sandbox.write("m/secret.txt", "x");
    hub.put("org/model", ".gitignore", "secret.txt\n");
    let before = hub.commit("org/model");
    let dry = at(&hub, &sandbox, "upload m hf://org/model --dry-run").ok();
    assert!(dry.text().contains("1 file to upload, 2 B; 1 ignored"), "{dry}");
    let report = at(&hub, &sandbox, "upload m hf://org/model --pull-request --json").ok().json();
    assert_eq!(hub.commit("org/model"), before);
    assert_eq!(hub.file("org/model", "refs/pr/1", "config.json").as_deref(), Some(&b"{}"[..]));
    assert_eq!(hub.file("org/model", "refs/pr/1", "secret.txt"), None);
    assert_eq!((&report["excluded"], state_of(&report, "secret.txt")), (&1.into(), "ignored"));
    let address = report["pull_request"].as_str().expect("an address");
    assert!(address.ends_with("/org/model/discussions/1"), "{report}");
}

#[test]
fn files_are_chosen_and_links_that_lead_out_are_not_followed() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new().with("m/a.json", "1"));
    sandbox.write("m/b.bin", "2");
    sandbox.write("outside/key.pem", "3");
    hub.put("org/model", "README.md", "old");
    at(&hub, &sandbox, "upload m hf://org/model --include *.json").ok();
    assert_eq!(hub.file("org/model", "main", "b.bin"), None);
    assert_eq!(hub.file("org/model", "main", "a.json").as_deref(), Some(&b"1"[..]));
    at(&hub, &sandbox, "upload m hf://org/model --include *.txt").fails(2, &["--include"]);
    at(&hub, &sandbox, "upload m hf://org/model --exclude *.txt").says(&["no effect"]);

    #[cfg(unix)]
    {
        let link = sandbox.path("m/link.pem");
        std::os::unix::fs::symlink(sandbox.path("outside/key.pem"), link).expect("a link");
        at(&hub, &sandbox, "upload m hf://org/model").fails(4, &["E001", "link.pem", "outside"]);
        at(&hub, &sandbox, "upload m hf://org/model --exclude *.pem").ok();
        assert_eq!(hub.file("org/model", "main", "link.pem"), None);
    }
}

#[test]
fn uploads_that_can_not_be_made_say_why() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new().with("m/a.bin", "1"));
    hub.put("org/model", "README.md", "old");
    let without = |line: &str| sandbox.with_env(&[("HF_ENDPOINT", hub.url())], line);
    without("upload m hf://org/model").fails(1, &["requires a token", "HF_TOKEN"]);
    at(&hub, &sandbox, "upload m models/there").fails(2, &["hf://ORG/NAME"]);
    at(&hub, &sandbox, "upload m https://example.org/a").fails(4, &["a repository of a hub"]);
    at(&hub, &sandbox, "upload nothere hf://org/model").fails(3, &["E007", "nothere"]);
    at(&hub, &sandbox, "upload m hf://org/model@gone").fails(3, &["unknown revision 'gone'"]);
    at(&hub, &sandbox, "upload m hf://org/model --file x").fails(2, &["--file"]);
    at(&hub, &sandbox, "upload m hf://org/model --offline").fails(1, &["offline"]);
    // What leads elsewhere gets no file.
    let elsewhere = TestHub::start();
    let target = format!("{}/upload/0", elsewhere.url());
    hub.fault("/upload/", Fault::Redirect(target), 0, 9);
    at(&hub, &sandbox, "upload m hf://org/model").fails(1, &["redirects what is sent"]);
    assert!(elsewhere.requests().is_empty());
}
