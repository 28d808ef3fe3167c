//! The cache of downloads: shared with Hugging Face's client, resumed, verified, cleared.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::symlink;
#[cfg(unix)]
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use apr_hub::{Hub, Settings};
use apr_io::Sources;
use apr_testkit::hub::{TestHub, git_sha1, sha256};
use apr_testkit::locate;

use crate::hub::{at, hub_with_llama, sent};
use crate::support::{Run, Sandbox, safetensors, small_safetensors, wait_until};

/// Folder in which Hugging Face's client keeps the files of a repository.
pub(crate) const LLAMA: &str = "home/.cache/huggingface/hub/models--tiny--llama";

/// Asserts that a file of a snapshot is the blob with this name.
///
/// It is a link to the blob. On Windows, where not every user may create symbolic links, it can be
/// a hard link or a copy.
#[track_caller]
pub(crate) fn is_linked(sandbox: &Sandbox, name: &str, etag: &str) {
    match fs::read_link(sandbox.path(name)) {
        Ok(link) => assert_eq!(link, Path::new("../../blobs").join(etag)),
        Err(_) if cfg!(windows) => {
            assert_eq!(sandbox.read(name), sandbox.read(&format!("{LLAMA}/blobs/{etag}")));
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Bytes that no two parts of are equal.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|number| crate::support::scrambled(number).to_le_bytes()).collect()
}

#[test]
fn qa_92_a_second_import_comes_from_the_cache() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "import hf://tiny/llama -o a.apr").ok();
    let first = hub.requests();
    let weights =
        fs::metadata(locate::fixture("tiny-llama/model.safetensors")).expect("a fixture").len();
    assert!(sent(&first) > weights, "{first:#?}");
    at(&hub, &sandbox, "import hf://tiny/llama -o b.apr").ok();
    let second = hub.requests();
    // The hub is asked which commit is the newest, and nothing else.
    assert_eq!(second.len(), 1, "{second:#?}");
    assert!(second[0].target.starts_with("/api/models/") && sent(&second) < 10_000, "{second:#?}");
    assert_eq!(sandbox.read("a.apr"), sandbox.read("b.apr"));
}

#[test]
fn an_import_without_the_cache_downloads_the_model_once_and_keeps_nothing() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "import hf://tiny/llama -o a.apr --no-cache").ok();
    assert!(!sandbox.files().iter().any(|file| file.contains(".cache")), "{:?}", sandbox.files());
    let folder = locate::fixture("tiny-llama");
    let total: u64 = folder
        .read_dir()
        .expect("a folder")
        .map(|entry| entry.expect("one").metadata().expect("its length").len())
        .sum();
    assert!(sent(&hub.requests()) < total + 10_000);
    let local = sandbox.run(&["diff", "a.apr", folder.to_str().expect("UTF-8"), "--exit-code"]);
    local.ok();
}

#[test]
fn a_download_has_the_layout_of_the_python_client() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let report = at(&hub, &sandbox, "download hf://tiny/llama --json").ok().json();
    let commit = hub.commit("tiny/llama");
    assert_eq!(report["revision"], commit.as_str());
    let folder = locate::fixture("tiny-llama");
    for (name, is_large) in
        [("model.safetensors", true), ("config.json", false), ("tokenizer.json", false)]
    {
        let bytes = fs::read(folder.join(name)).expect("a fixture");
        let etag = if is_large { sha256(&bytes) } else { git_sha1(&bytes) };
        assert_eq!(sandbox.read(&format!("{LLAMA}/blobs/{etag}")), bytes);
        is_linked(&sandbox, &format!("{LLAMA}/snapshots/{commit}/{name}"), &etag);
    }
    assert_eq!(sandbox.read(&format!("{LLAMA}/refs/main")), commit.as_bytes());
    assert!(sandbox.path("home/.cache/huggingface/hub/CACHEDIR.TAG").exists());
    assert!(!sandbox.files().iter().any(|file| file.contains(".apr-")), "{:?}", sandbox.files());
    let again = at(&hub, &sandbox, "download hf://tiny/llama --json").ok().json();
    assert_eq!(again["fetched"], 0);
}

#[cfg(unix)]
#[test]
fn files_fetched_by_the_python_client_are_not_fetched_again() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let (commit, folder) = (hub.commit("tiny/llama"), locate::fixture("tiny-llama"));
    for entry in folder.read_dir().expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        let bytes = fs::read(&path).expect("a file");
        let etag = if name.ends_with(".safetensors") { sha256(&bytes) } else { git_sha1(&bytes) };
        sandbox.write(&format!("{LLAMA}/blobs/{etag}"), &bytes);
        let link = sandbox.path(&format!("{LLAMA}/snapshots/{commit}/{name}"));
        fs::create_dir_all(link.parent().expect("a folder")).expect("room");
        symlink(format!("../../blobs/{etag}"), link).expect("room");
    }
    sandbox.write(&format!("{LLAMA}/refs/main"), &commit);
    at(&hub, &sandbox, "validate hf://tiny/llama").ok();
    assert_eq!(hub.requests().len(), 1);
    // And without a network at all.
    let offline = at(&hub, &sandbox, "validate hf://tiny/llama --offline --json").ok().json();
    assert_eq!(offline["valid"], true);
    sandbox
        .with_env(&[("HF_ENDPOINT", hub.url()), ("HF_HUB_OFFLINE", "1")], "inspect hf://tiny/llama")
        .ok()
        .says(&["offline, using the cache", &commit]);
    assert!(hub.requests().is_empty());
    sandbox
        .with_env(&[("HF_ENDPOINT", "http://127.0.0.1:9")], "inspect hf://tiny/llama")
        .ok()
        .says(&["no connection to '127.0.0.1'", "using the cache"]);
}

#[test]
fn offline_mode_reports_the_missing_files() {
    let sandbox = Sandbox::new();
    sandbox
        .apr("inspect hf://tiny/llama --offline")
        .fails(3, &["E007", "hf://tiny/llama", "not in the cache", "--offline"]);
    sandbox
        .apr("inspect https://example.com/m.gguf --offline")
        .fails(1, &["E007", "network access in offline mode (HF_HUB_OFFLINE or --offline)"]);
}

#[cfg(unix)]
#[test]
fn a_download_that_was_killed_goes_on_where_it_was() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = noise(40 << 20);
    hub.put("big/model", "model.safetensors", &bytes);
    hub.delay(Duration::from_millis(150));
    let mut command = sandbox.command(&["download", "hf://big/model"]);
    command.env("HF_ENDPOINT", hub.url()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the command starts");
    let journal = format!(
        "home/.cache/huggingface/hub/models--big--model/blobs/{}.apr-journal",
        sha256(&bytes)
    );
    wait_until("a piece", || sandbox.path(&journal).exists());
    child.kill().expect("it runs");
    assert_eq!(child.wait().expect("it ended").signal(), Some(9));
    let first = sent(&hub.requests());
    hub.heal();
    let report = at(&hub, &sandbox, "download hf://big/model --json").ok().json();
    assert!(
        report["fetched"].as_u64().expect("a number") < bytes.len() as u64,
        "{first}: {report}"
    );
    let blob = format!("home/.cache/huggingface/hub/models--big--model/blobs/{}", sha256(&bytes));
    assert_eq!(sandbox.read(&blob), bytes);
}

#[cfg(unix)]
#[test]
fn an_interrupted_job_reports_the_number_of_bytes_kept() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = safetensors(&[("a", "U8", &[60 << 20], noise(60 << 20))]);
    hub.put("big/model", "model.safetensors", &bytes);
    hub.delay(Duration::from_millis(200));
    for (home, line) in
        [("a", "download hf://big/model"), ("b", "import hf://big/model -o m.apr --relaxed")]
    {
        let mut command = sandbox.command(&line.split_whitespace().collect::<Vec<_>>());
        command.env("HF_ENDPOINT", hub.url()).env("HF_HOME", sandbox.path(home));
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let journal = format!("{home}/hub/models--big--model/blobs/{}.apr-journal", sha256(&bytes));
        wait_until("a piece", || sandbox.path(&journal).exists());
        assert!(
            Command::new("kill")
                .args(["-INT", &child.id().to_string()])
                .status()
                .expect("kill")
                .success()
        );
        let ended = child.wait_with_output().expect("it ended");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(130), "{said}");
        assert!(said.contains("bytes are kept for the next run"), "{said}");
        assert!(!sandbox.path("m.apr").exists());
    }
}

#[test]
fn the_library_converts_what_is_on_a_hub() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let settings = Settings {
        endpoint: hub.url().to_owned(),
        token: None,
        hub_cache: sandbox.path("hub"),
        cache: sandbox.path("cache"),
        offline: false,
        keep: true,
        insecure: false,
        timeout: Settings::TIMEOUT,
        interrupt: Arc::default(),
    };
    let convert = || {
        let settings = settings.clone();
        let sources = Sources::default().with_hub(move || Ok(Hub::new(settings.clone())));
        apr::convert("hf://tiny/llama")
            .sources(sources)
            .with_companions()
            .to_bytes()
            .expect("it is healthy")
            .0
    };
    let first = convert();
    let _ = hub.requests();
    assert!(convert() == first, "the same bytes");
    assert_eq!(hub.requests().len(), 1);
    let model =
        apr_registry::open(first, "m.apr", &apr_registry::Limits::default()).expect("a model");
    assert_eq!(
        model.metadata().object("source").and_then(|source| source.get("url")),
        Some(&"hf://tiny/llama".into())
    );
}

#[test]
fn cuts_and_expired_addresses_do_not_stop_a_download() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = noise(30 << 20);
    hub.put("big/model", "model.safetensors", &bytes);
    hub.cut_every(3);
    hub.expire_after(2);
    at(&hub, &sandbox, "download hf://big/model").ok();
    let blob = format!("home/.cache/huggingface/hub/models--big--model/blobs/{}", sha256(&bytes));
    assert_eq!(sandbox.read(&blob), bytes);
}

/// A file that is fetched by ranges of more than one piece; its parts differ.
fn long() -> Vec<u8> {
    let pages = (0..150_u64 << 8).map(|number| crate::support::scrambled(number).to_le_bytes());
    pages.flat_map(|seed| [seed; 512]).flatten().collect()
}

#[test]
fn a_long_file_is_read_in_long_ranges_and_its_location_is_requested_once() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = long();
    hub.put("big/model", "model.safetensors", &bytes);
    at(&hub, &sandbox, "download hf://big/model").ok();
    let requests = hub.requests();
    let asked = requests.iter().filter(|request| !request.at_store).count();
    assert_eq!(asked, 2, "the repository, and where the file is: {requests:#?}");
    let stored = requests.iter().filter(|request| request.at_store);
    let (lens, total): (Vec<u64>, u64) =
        (stored.clone().map(|r| r.sent).collect(), stored.map(|r| r.sent).sum());
    assert!(lens.iter().any(|&len| len > 4 << 20) && total == bytes.len() as u64, "{lens:?}");
    let blob = format!("home/.cache/huggingface/hub/models--big--model/blobs/{}", sha256(&bytes));
    assert!(sandbox.read(&blob) == bytes);
    // Wherever they are cut, and however often the address expires.
    fs::remove_dir_all(sandbox.path("home")).expect("it is there");
    hub.cut_every(3);
    hub.expire_after(5);
    at(&hub, &sandbox, "download hf://big/model").ok();
    assert!(sandbox.read(&blob) == bytes);
}

#[test]
fn an_import_requests_nothing_twice() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "import hf://tiny/llama -o a.apr").ok();
    let requests = hub.requests();
    let mut targets: Vec<&str> = requests
        .iter()
        .filter(|request| !request.at_store)
        .map(|request| request.target.as_str())
        .collect();
    let count = targets.len();
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), count, "{requests:#?}");
    // The header, which is read first, and the whole file.
    assert_eq!(requests.iter().filter(|request| request.at_store).count(), 2, "{requests:#?}");
    // What was read ahead is in the cache, under its name and digest.
    let commit = hub.commit("tiny/llama");
    for name in ["config.json", "tokenizer.json", "README.md"] {
        let bytes = fs::read(locate::fixture("tiny-llama").join(name)).expect("a fixture");
        assert_eq!(sandbox.read(&format!("{LLAMA}/blobs/{}", git_sha1(&bytes))), bytes);
        assert_eq!(sandbox.read(&format!("{LLAMA}/snapshots/{commit}/{name}")), bytes);
    }
    assert!(!sandbox.files().iter().any(|file| file.contains(".apr-")), "{:?}", sandbox.files());
}

#[test]
fn two_processes_do_not_fetch_a_file_twice() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = noise(8 << 20);
    hub.put("big/model", "model.safetensors", &bytes);
    hub.delay(Duration::from_millis(100));
    let start = || {
        let mut command = sandbox.command(&["download", "hf://big/model"]);
        command.env("HF_ENDPOINT", hub.url()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("the command starts")
    };
    let mut children = [start(), start(), start()];
    assert!(children.iter_mut().all(|child| child.wait().expect("it ended").success()));
    let stored: u64 =
        hub.requests().iter().filter(|request| request.at_store).map(|request| request.sent).sum();
    assert_eq!(stored, bytes.len() as u64);
}

#[test]
fn files_of_other_servers_are_cached_and_listed_by_their_digest() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = small_safetensors();
    hub.put_file("/m/s.safetensors", &bytes);
    let url = format!("{}/m/s.safetensors", hub.url());
    let caching = |line: &str| {
        sandbox.with_env(&[("APR_CACHE", sandbox.path("cache").to_str().expect("UTF-8"))], line)
    };
    caching(&format!("download {url}?token=secret")).ok();
    let list = String::from_utf8(sandbox.read("cache/checksum.json")).expect("JSON");
    assert!(
        list.contains(&sha256(&bytes))
            && list.contains("/m/s.safetensors")
            && !list.contains("secret"),
        "{list}"
    );
    assert!(!sandbox.files().iter().any(|file| file.contains("secret")));
    let _ = hub.requests();
    caching(&format!("validate {url}?token=secret")).ok();
    let requests = hub.requests();
    assert!(requests.len() == 1 && sent(&requests) == 1, "{requests:#?}");
    caching(&format!("validate {url}?token=secret --offline")).ok().says(&["using the cache"]);
    // Another state of the file is another file.
    hub.put_file("/m/s.safetensors", crate::support::sound().build());
    caching(&format!("inspect {url}?token=secret")).ok().says(&["APR"]);
    caching("cache verify").ok();
}

#[test]
fn files_of_other_programs_are_removed_only_by_all_hub_and_after_a_question() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let cache = "home/.cache/huggingface/hub";
    at(&hub, &sandbox, "download hf://tiny/llama").ok();
    // As Hugging Face's client lays it out, whole and in part.
    let (blob, commit) = (sha256(b"theirs"), "c".repeat(40));
    sandbox.write(&format!("{cache}/models--o--m/blobs/{blob}"), "theirs");
    sandbox.write(&format!("{cache}/models--o--m/refs/main"), &commit);
    sandbox.write(&format!("{cache}/models--o--m/snapshots/{commit}/config.json"), "{}");
    let other = format!("{LLAMA}/blobs/{blob}");
    sandbox.write(&other, "theirs");

    let run = sandbox.apr("cache clear").ok();
    run.says(&["kept, because another program fetched it (--all-hub): hf://o/m"]);
    assert!(sandbox.path(&format!("{cache}/models--o--m/blobs/{blob}")).exists());
    assert_eq!(sandbox.read(&other), b"theirs");
    let left = fs::read_dir(sandbox.path(&format!("{LLAMA}/blobs"))).expect("a folder").count();
    assert_eq!(left, 1, "what apr fetched is gone");
    assert!(!sandbox.path(&format!("{LLAMA}/snapshots")).join(&commit).exists());

    sandbox.apr("cache clear o/m").fails(1, &["'o/m' was fetched by another program"]);
    sandbox.apr("cache clear o/m --all-hub").fails(2, &["hf://o/m", "6 B", "--yes"]);
    assert!(sandbox.path(&format!("{cache}/models--o--m")).exists());
    sandbox.apr("cache clear o/m --all-hub --yes").ok();
    assert!(!sandbox.path(&format!("{cache}/models--o--m")).exists());
    assert_eq!(sandbox.read(&other), b"theirs");
    // A cache of its own does not make it apr's.
    sandbox.with_env(&[("APR_CACHE", "elsewhere")], "cache clear").ok();
    assert_eq!(sandbox.read(&other), b"theirs");
}

#[test]
fn the_cache_is_shown_verified_and_cleared_by_model() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.put("other/model", "model.safetensors", small_safetensors());
    at(&hub, &sandbox, "download hf://tiny/llama hf://other/model").ok();
    let info = sandbox.apr("cache info --json").ok().json();
    let names: Vec<&str> = info["models"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|m| m["name"].as_str())
        .collect();
    assert_eq!(names, ["hf://other/model", "hf://tiny/llama"]);
    assert_eq!(info["models"][0]["bytes"], small_safetensors().len());
    sandbox.apr("cache info").ok().says(&["hf://tiny/llama", "today"]);
    let empty = Sandbox::new().apr("cache verify").ok();
    assert_eq!(empty.text(), "the cache has no models to verify\n");
    sandbox.apr("cache verify").ok().says(&["2 models"]);
    sandbox.apr("cache clear --older 30d").ok().says(&["cleared 0 files"]);
    sandbox.apr("cache clear hf://tiny/llama --dry-run").ok().says(&["would clear"]);
    assert!(sandbox.path(LLAMA).exists());
    sandbox.apr("cache clear tiny/llama").ok();
    assert!(!sandbox.path(LLAMA).exists());
    sandbox.apr("cache clear tiny/llama").fails(1, &["'tiny/llama' is not in the cache"]);
    let blob = format!(
        "home/.cache/huggingface/hub/models--other--model/blobs/{}",
        sha256(&small_safetensors())
    );
    sandbox.write(&blob, b"other bytes");
    sandbox
        .apr("cache verify hf://other/model")
        .fails(5, &["damaged", &sha256(&small_safetensors())]);
    sandbox.apr("cache clear").ok();
    assert_eq!(
        sandbox.apr("cache info --json").ok().json()["models"].as_array().map(Vec::len),
        Some(0)
    );
}

#[test]
fn a_repository_with_several_models_gives_the_one_that_the_rules_choose() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    for name in ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-Q2_K.gguf"] {
        hub.put("many/gguf", name, locate_gguf());
    }
    hub.put("many/gguf", "config.json", b"{}");
    at(&hub, &sandbox, "inspect hf://many/gguf")
        .ok()
        .says(&["models found; selected m-Q4_K_M.gguf", "--file"]);
    let report = at(&hub, &sandbox, "inspect hf://many/gguf --file m-Q8_0.gguf --json").ok().json();
    assert_eq!(report["files"][0]["name"], "m-Q8_0.gguf");
    let report = at(&hub, &sandbox, "inspect hf://many/gguf --include *Q2* --json").ok().json();
    assert_eq!(report["files"][0]["name"], "m-Q2_K.gguf");
    let listed = at(&hub, &sandbox, "ls hf://many/gguf --json").ok().json();
    let kinds: Vec<_> = listed["files"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| file["kind"].clone())
        .collect();
    assert_eq!(kinds, ["companion", "other weights", "weights", "other weights"]);
    let fetched = at(&hub, &sandbox, "download hf://many/gguf --json").ok().json();
    let names: Vec<_> = fetched["files"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| file["name"].clone())
        .collect();
    assert_eq!(names, ["m-Q4_K_M.gguf", "config.json"]);
    at(&hub, &sandbox, "inspect hf://many/gguf --file m-Q8.gguf")
        .fails(3, &["no file 'm-Q8.gguf'", "m-Q8_0.gguf"]);
}

/// A small GGUF file.
fn locate_gguf() -> Vec<u8> {
    let sandbox = Sandbox::new();
    let model = locate::fixture("tiny-llama");
    let run: Run = sandbox.run(&[
        "export",
        model.to_str().expect("UTF-8"),
        "--format",
        "gguf",
        "-o",
        "m.gguf",
    ]);
    run.ok();
    sandbox.read("m.gguf")
}

#[test]
fn an_import_writes_down_where_the_model_comes_from() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "import hf://tiny/llama -o m.apr").ok();
    let source = sandbox.apr("inspect m.apr --json").ok().json()["metadata"]["source"].clone();
    let bytes = fs::read(locate::fixture("tiny-llama/model.safetensors")).expect("a fixture");
    assert_eq!(source["url"], "hf://tiny/llama");
    assert_eq!(source["revision"], hub.commit("tiny/llama").as_str());
    assert_eq!(source["sha256_of"]["model.safetensors"], sha256(&bytes).as_str());
    at(&hub, &sandbox, "validate m.apr --source").ok().says(&["Source", "1 digest"]);
    sandbox.apr("validate m.apr --source --offline").ok().says(&["as the cache has it"]);
    let digest = sha256(&sandbox.read("m.apr"));
    sandbox.apr(&format!("validate m.apr --sha256 {digest}")).ok().says(&["SHA-256"]);
    sandbox
        .apr(&format!("validate m.apr --sha256 {}", "0".repeat(64)))
        .fails(5, &["E004", &digest]);
    sandbox.write("s.safetensors", small_safetensors());
    sandbox
        .apr("validate s.safetensors --source")
        .fails(5, &["the file does not record its source, or not with digests"]);
}

#[test]
fn lint_requires_a_pinned_revision() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "lint hf://tiny/llama").says(&["its revision is not pinned"]);
    let pinned = at(&hub, &sandbox, &format!("lint hf://tiny/llama@{}", hub.commit("tiny/llama")));
    assert!(!pinned.to_string().contains("pinned"), "{pinned}");
    at(&hub, &sandbox, "import hf://tiny/llama -o m.apr").ok();
    let imported = sandbox.apr("lint m.apr");
    assert!(!imported.to_string().contains("pinned"), "{imported}");
    sandbox
        .run(&["edit", "m.apr", "--set", r#"source={"url":"hf://tiny/llama","revision":"main"}"#])
        .ok();
    sandbox.apr("lint m.apr").says(&["the model's source is hf://tiny/llama", "not pinned"]);
}
