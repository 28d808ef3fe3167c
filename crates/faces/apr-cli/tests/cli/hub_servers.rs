//! Servers, machines and settings as they are found in the real world: no ranges, no digests, no
//! room, no hurry.

use std::fs;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use apr_testkit::hub::{Fault, Request, TestHub, git_sha1, sha256};
use apr_testkit::locate;
use serde_json::json;

use crate::hub::{at, hub_with_llama, sent};
use crate::hub_cache::is_linked;
use crate::support::{Sandbox, safetensors, safetensors_header, small_safetensors, wait_until};

/// Folder in which Hugging Face's client keeps the files of a repository.
const LLAMA: &str = "home/.cache/huggingface/hub/models--tiny--llama";

/// Returns the number of bytes sent, without those lost to a closed connection.
fn written(requests: &[Request]) -> u64 {
    requests.iter().map(|request| request.written.load(Ordering::Relaxed)).sum()
}

/// Bytes that no two parts of are equal.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|number| crate::support::scrambled(number).to_le_bytes()).collect()
}

fn blob(repo: &str, bytes: &[u8]) -> String {
    format!("home/.cache/huggingface/hub/models--{repo}/blobs/{}", sha256(bytes))
}

#[test]
fn a_server_without_ranges_sends_a_download_once() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = safetensors(&[("a", "U8", &[12 << 20], noise(12 << 20))]);
    hub.put("big/model", "model.safetensors", &bytes);
    hub.put_file("/m.safetensors", &bytes);
    hub.fault("/store/", Fault::NoRanges, 0, u32::MAX);
    hub.fault("/m.safetensors", Fault::NoRanges, 0, u32::MAX);
    let report = at(&hub, &sandbox, "download hf://big/model --json").ok();
    report
        .says(&["does not support range requests: each file is read from its beginning, as far \
                   as needed"]);
    let requests = hub.requests();
    let stored = requests.iter().filter(|request| request.at_store).count();
    assert_eq!((stored, written(&requests) / bytes.len() as u64), (1, 1), "{requests:#?}");
    assert!(sandbox.read(&blob("big--model", &bytes)) == bytes);

    // Of a URL, what was read to learn the length is the beginning of the one answer.
    let url = format!("{}/m.safetensors", hub.url());
    let report = sandbox.apr(&format!("download {url} --json")).ok().json();
    assert_eq!((&report["fetched"], hub.requests().len()), (&report["bytes"], 1));
}

#[test]
fn a_partial_read_without_ranges_stops_at_the_end_of_the_part() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let len = 60_u64 << 20;
    let header = safetensors_header(
        &json!({ "a": { "dtype": "U8", "shape": [len], "data_offsets": [0, len] } }),
    );
    hub.put_sparse("big/model", "model.safetensors", &header, header.len() as u64 + len);
    hub.fault("/store/", Fault::NoRanges, 0, u32::MAX);
    at(&hub, &sandbox, "inspect hf://big/model")
        .ok()
        .says(&["does not support range requests: each file is read from its"]);
    let requests = hub.requests();
    assert_eq!(requests.iter().filter(|request| request.at_store).count(), 1);
    assert!(written(&requests) < len / 2, "{}", written(&requests));

    // In any order: what is before comes too, once.
    at(&hub, &sandbox, "tensors hf://big/model --values a[62914550:62914560] --no-cache").ok();
    let requests = hub.requests();
    assert_eq!(requests.iter().filter(|request| request.at_store).count(), 1, "{requests:#?}");
}

#[test]
fn an_import_from_a_server_without_ranges_reads_each_file_once() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "import hf://tiny/llama -o a.apr").ok();
    let _ = hub.requests();
    for options in ["", "--no-cache"] {
        let _ = fs::remove_dir_all(sandbox.path("home"));
        hub.fault("/", Fault::NoRanges, 0, u32::MAX);
        let line = format!("import hf://tiny/llama -o b.apr -f {options}");
        let run = at(&hub, &sandbox, &line).ok();
        assert_eq!(run.to_string().matches("does not support range requests").count(), 1, "{run}");
        let requests = hub.requests();
        let stored = requests.iter().filter(|request| request.at_store).count();
        assert_eq!(stored, 1, "{options}: {requests:#?}");
        assert_eq!(sandbox.read("a.apr"), sandbox.read("b.apr"));
        hub.heal();
        // A cut answer begins anew, and what was there of it is not taken twice.
        let _ = fs::remove_dir_all(sandbox.path("home"));
        hub.fault("/store/", Fault::Cut(70_000), 0, 2);
        hub.fault("/store/", Fault::NoRanges, 0, u32::MAX);
        at(&hub, &sandbox, &format!("import hf://tiny/llama -o b.apr -f {options}")).ok();
        assert_eq!(sandbox.read("a.apr"), sandbox.read("b.apr"));
        hub.heal();
        let _ = hub.requests();
    }
}

#[test]
fn a_mirror_that_lists_no_digests_names_them_where_the_files_are() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.list_names_alone();
    at(&hub, &sandbox, "import hf://tiny/llama -o a.apr").ok();
    let commit = hub.commit("tiny/llama");
    for (name, is_large) in [("model.safetensors", true), ("config.json", false)] {
        let bytes = fs::read(locate::fixture("tiny-llama").join(name)).expect("a fixture");
        let etag = if is_large { sha256(&bytes) } else { git_sha1(&bytes) };
        is_linked(&sandbox, &format!("{LLAMA}/snapshots/{commit}/{name}"), &etag);
        assert_eq!(sandbox.read(&format!("{LLAMA}/blobs/{etag}")), bytes);
    }
    let source = sandbox.apr("inspect a.apr --json").ok().json()["metadata"]["source"].clone();
    let bytes = fs::read(locate::fixture("tiny-llama/model.safetensors")).expect("a fixture");
    assert_eq!(source["sha256_of"]["model.safetensors"], sha256(&bytes).as_str(), "{source}");
    let _ = hub.requests();

    // What was kept is not fetched again.
    at(&hub, &sandbox, "import hf://tiny/llama -o b.apr").ok();
    assert_eq!(hub.requests().iter().filter(|request| request.at_store).count(), 0);
    let other = Sandbox::new();
    let report = at(&hub, &other, "download hf://tiny/llama --json").ok().json();
    assert_eq!(report["fetched"], report["bytes"]);
    assert_eq!(at(&hub, &other, "download hf://tiny/llama --json").ok().json()["fetched"], 0);

    // What comes is compared with the digest that was named.
    let third = Sandbox::new();
    hub.fault("/store/", Fault::Flip, 1, 1);
    at(&hub, &third, "import hf://tiny/llama -o c.apr").fails(5, &["E004"]);
}

#[test]
fn etags_that_are_not_digests_keep_files_apart() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.list_names_alone();
    hub.put("some/model", "config.json", br#"{"model_type": "toy"}"#);
    hub.put("some/model", "other_config.json", br#"{"model_type": "boy"}"#);
    hub.put("some/model", "model.safetensors", small_safetensors());
    hub.fault("config.json", Fault::OtherEtag, 0, u32::MAX);
    at(&hub, &sandbox, "download hf://some/model").ok();
    let snapshot = format!(
        "home/.cache/huggingface/hub/models--some--model/snapshots/{}",
        hub.commit("some/model")
    );
    assert_eq!(sandbox.read(&format!("{snapshot}/config.json")), br#"{"model_type": "toy"}"#);
    assert_eq!(sandbox.read(&format!("{snapshot}/other_config.json")), br#"{"model_type": "boy"}"#);
    let _ = hub.requests();
    assert_eq!(at(&hub, &sandbox, "download hf://some/model --json").ok().json()["fetched"], 0);
    at(&hub, &sandbox, "cache verify").ok();
}

#[cfg(unix)]
#[test]
fn an_import_goes_on_without_a_cache_that_cannot_be_written() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "import hf://tiny/llama -o a.apr --no-cache").ok();
    let once = sent(&hub.requests());
    // Nobody makes folders there.
    let env = [("HF_ENDPOINT", hub.url()), ("HF_HUB_CACHE", "/dev/null/cache")];
    let run = sandbox.with_env(&env, "import hf://tiny/llama -o b.apr").ok();
    assert_eq!(run.to_string().matches("can't write to the cache").count(), 1, "{run}");
    assert_eq!(sandbox.read("a.apr"), sandbox.read("b.apr"));
    let again = sent(&hub.requests());
    assert!(again <= once + 1000, "{once} bytes without a cache, {again} with a bad one");
    sandbox.with_env(&env, "download hf://tiny/llama").fails(1, &["E007", "/dev/null/cache"]);
    // What the warning advises.
    let quiet = |env: &[(&str, &str)], line: &str| {
        let run = sandbox.with_env(env, line).ok();
        assert!(!run.to_string().contains("can't be written"), "{run}");
    };
    quiet(&env, "import hf://tiny/llama -o b.apr -f --no-cache");
    for name in ["HF_HUB_CACHE", "APR_CACHE"] {
        let other = sandbox.path(name).display().to_string();
        quiet(&[env[0], (name, &other)], "import hf://tiny/llama -o b.apr -f");
    }
    // What comes is still compared with its digest.
    hub.fault("/store/", Fault::Flip, 1, 1);
    sandbox.with_env(&env, "import hf://tiny/llama -o c.apr").fails(5, &["E004"]);
    assert!(!sandbox.path("c.apr").exists());
}

#[cfg(unix)]
#[test]
fn an_import_goes_on_without_a_cache_that_becomes_full() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = safetensors(&[("a", "U8", &[6 << 20], noise(6 << 20))]);
    hub.put("big/model", "model.safetensors", &bytes);
    let mount = "mkdir -p disk && mount -t tmpfs -o size=2m none disk";
    if sandbox.shell(&format!("unshare -Urm sh -c '{mount}' 2> /dev/null")).code != Some(0) {
        eprintln!("skipped: unshare can't mount a file system here");
        return;
    }
    let import = format!(
        r#"HF_ENDPOINT={} HF_HUB_CACHE=disk "$APR" import hf://big/model -o m.apr --relaxed"#,
        hub.url()
    );
    let run = sandbox.shell(&format!("unshare -Urm sh -c '{mount} && {import}'")).ok();
    run.says(&["can't write to the cache (No space left on device"]);
    sandbox.write("model.safetensors", &bytes);
    sandbox.apr("diff m.apr model.safetensors --exit-code").ok();
    let moved = written(&hub.requests());
    // What was on its way when the disk was full comes again.
    assert!(moved < 3 * bytes.len() as u64, "{moved}");
}

#[test]
fn a_small_download_that_was_killed_goes_on_where_it_was() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let bytes = noise(8 << 20);
    hub.put("big/model", "model.safetensors", &bytes);
    // Of each range a quarter comes.
    hub.fault("/store/", Fault::Stall(1 << 20, Duration::from_secs(60)), 0, u32::MAX);
    let mut command = sandbox.command(&["download", "hf://big/model"]);
    command.env("HF_ENDPOINT", hub.url()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the command starts");
    let journal = format!("{}.apr-journal", blob("big--model", &bytes));
    wait_until("a piece", || sandbox.path(&journal).exists());
    child.kill().expect("it runs");
    let _ = child.wait();
    hub.heal();
    let report = at(&hub, &sandbox, "download hf://big/model --json").ok().json();
    let fetched = report["fetched"].as_u64().expect("a number");
    assert!(fetched < bytes.len() as u64, "{report}");
    assert!(sandbox.read(&blob("big--model", &bytes)) == bytes);
}

#[test]
fn a_server_that_trickles_is_given_up() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let drop_by_drop = Fault::Trickle(1, Duration::from_millis(20));
    hub.fault("/store/", drop_by_drop.clone(), 0, u32::MAX);
    let other = hub_with_llama();
    other.fault("/api/models", drop_by_drop, 0, u32::MAX);
    sandbox.write("config.toml", "[hub]\ntimeout = 1\n");
    let path = sandbox.path("config.toml");
    let env = [("HF_ENDPOINT", other.url()), ("APR_CONFIG", path.to_str().expect("UTF-8"))];
    std::thread::scope(|scope| {
        let line = "download hf://tiny/llama/model.safetensors --timeout 1";
        let of_file = scope.spawn(|| at(&hub, &sandbox, line));
        let of_list = sandbox.with_env(&env, "inspect hf://tiny/llama");
        for run in [of_file.join().expect("it ends"), of_list] {
            run.fails(1, &["E007", "too slow", "bytes in 1 s", "--timeout"]);
        }
    });
    for timeout in ["0", "x"] {
        sandbox.apr(&format!("inspect hf://a/b --timeout {timeout}")).fails(2, &["--timeout"]);
    }
    sandbox
        .with_env(&[("HF_HUB_DOWNLOAD_TIMEOUT", "soon")], "inspect hf://a/b")
        .fails(4, &["HF_HUB_DOWNLOAD_TIMEOUT", "number of seconds"]);
}

#[test]
fn a_server_that_sends_a_few_bytes_on_each_connection_is_given_up() {
    for fault in [Fault::Cut(3), Fault::Stall(3, Duration::from_secs(2))] {
        let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
        hub.fault("/store/", fault, 0, u32::MAX);
        at(&hub, &sandbox, "download hf://tiny/llama/model.safetensors --timeout 1")
            .fails(1, &["E007", "tried 5 times"]);
        assert!(hub.requests().len() < 60, "{}", hub.requests().len());
    }
}

#[test]
fn a_longer_timeout_helps_with_a_slow_server() {
    let line = "download hf://tiny/llama/config.json";
    // One that makes pauses, and one that sends a quarter of a kilobyte a second.
    for (fault, said) in [
        (Fault::Trickle(100, Duration::from_millis(1100)), "--timeout SECONDS waits longer"),
        (Fault::Trickle(5, Duration::from_millis(20)), "raise --timeout SECONDS"),
    ] {
        let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
        hub.fault("/config.json", fault, 0, u32::MAX);
        at(&hub, &sandbox, &format!("{line} --timeout 1")).fails(1, &["E007", said]);
        at(&hub, &sandbox, &format!("{line} --timeout 30")).ok();
    }
}

#[test]
fn a_branch_may_have_slashes_in_its_name() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    for branch in ["feature/branch", "refs/pr/1", "user/a b/c+d"] {
        hub.branch("tiny/llama", branch);
    }
    for name in [
        "hf://tiny/llama@feature/branch",
        "hf://tiny/llama@feature/branch/model.safetensors",
        "hf://tiny/llama@feature%2Fbranch/model.safetensors",
        "hf://tiny/llama@refs/pr/1",
        "hf://tiny/llama@refs%2Fpr%2F1/model.safetensors",
        "hf://tiny/llama@user/a%20b/c%2Bd/model.safetensors",
    ] {
        let report = at(&hub, &sandbox, &format!("inspect {name} --json")).ok().json();
        assert_eq!(report["family"]["title"], "LLaMA", "{name}: {report}");
    }
    let url = format!("{}/tiny/llama/blob/feature/branch/model.safetensors", hub.url());
    at(&hub, &sandbox, &format!("inspect {url}")).ok();
    at(&hub, &sandbox, "download hf://tiny/llama@feature/branch").ok();
    let commit = hub.commit("tiny/llama");
    assert_eq!(sandbox.read(&format!("{LLAMA}/refs/feature/branch")), commit.as_bytes());
    for name in ["hf://tiny/llama@feature/branch", "hf://tiny/llama@feature/branch/config.json"] {
        at(&hub, &sandbox, &format!("download {name} --json")).ok();
    }
    at(&hub, &sandbox, "inspect hf://tiny/llama@feature/branch --offline").ok();
    at(&hub, &sandbox, "inspect hf://tiny/llama@feature/brunch/model.safetensors")
        .fails(3, &["unknown revision 'feature'", "feature/branch"]);
    at(&hub, &sandbox, "inspect hf://tiny/llama@feature/branch/x.safetensors")
        .fails(3, &["file 'x.safetensors' not found at feature/branch"]);
    // A page of the hub has names as addresses have them.
    hub.put("tiny/llama", "a b.gguf", b"GGUF");
    at(&hub, &sandbox, &format!("inspect {}/tiny/llama/blob/main/a%20b.gguf", hub.url()))
        .fails(4, &["a b.gguf"]);
}

#[test]
fn line_ends_around_settings_are_not_part_of_them() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.make_private("tiny/llama", "hf_right");
    let url = format!("{}/\n", hub.url());
    for token in ["hf_right\n", "hf_right\r\n", "\nhf_right"] {
        let env = [("HF_ENDPOINT", url.as_str()), ("HF_TOKEN", token)];
        sandbox.with_env(&env, "inspect hf://tiny/llama").ok();
    }
    let env = [("HF_ENDPOINT", url.as_str()), ("HF_TOKEN", "hf_right now")];
    let run = sandbox.with_env(&env, "inspect hf://tiny/llama");
    let run = run.fails(4, &["the token of HF_TOKEN contains a space"]);
    assert!(!run.to_string().contains("hf_right"), "{run}");
}

#[test]
fn only_the_given_certificates_are_trusted() {
    let sandbox = Sandbox::new();
    sandbox.write("empty.pem", "no certificate");
    for name in ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"] {
        for path in ["empty.pem", "absent.pem"] {
            let run = sandbox.with_env(&[(name, path)], "inspect https://127.0.0.1:9/x");
            run.fails(1, &["E007", &format!("{name}={path} does not contain certificates")]);
        }
    }
}

#[test]
fn a_profile_that_does_not_exist_is_an_error() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "home/.aws/config",
        "[default]\nregion = x\n[profile lab]\nsso_session = s\n[profile half]\n\
         aws_access_key_id=a\n",
    );
    let with = |env: &[(&str, &str)]| {
        let endpoint = [("AWS_ENDPOINT_URL", "http://127.0.0.1:9")];
        sandbox.with_env(&[env, &endpoint].concat(), "inspect s3://models/x")
    };
    for name in ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"] {
        let said = format!("{name} is 'labb'");
        with(&[(name, "labb")]).fails(4, &["E001", &said, "profiles: default, half, lab"]);
    }
    with(&[("AWS_PROFILE", "half")]).fails(4, &["is set, but"]);
    with(&[("AWS_ACCESS_KEY_ID", "a")]).fails(4, &["AWS_SECRET_ACCESS_KEY is not"]);
    with(&[]).fails(1, &["no connection"]);

    let hub = TestHub::start();
    hub.fault("/models/", Fault::Status(403, Vec::new()), 0, u32::MAX);
    let env = [("AWS_PROFILE", "lab"), ("AWS_ENDPOINT_URL", hub.url())];
    sandbox.with_env(&env, "inspect s3://models/x/").fails(
        1,
        &["no key used: sso_session of the profile 'lab", "aws configure export-credentials"],
    );
}

#[test]
fn keys_with_several_slashes_are_unchanged() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let object = |key: &str, bytes: &[u8]| {
        let (etag, len) = (sha256(bytes), bytes.len());
        format!("<Contents><Key>{key}</Key><ETag>\"{etag}\"</ETag><Size>{len}</Size></Contents>")
    };
    let (first, second) = (small_safetensors(), crate::support::sound().build());
    let list = format!(
        "<ListBucketResult><IsTruncated>false</IsTruncated>{}{}{}</ListBucketResult>",
        object("a//m.safetensors", &first),
        object("a/m.safetensors", &second),
        object("a//", b""),
    );
    hub.put_file("/models/", list);
    hub.put_file("/models/a//m.safetensors", &first);
    hub.put_file("/models/a/m.safetensors", &second);
    let env = [("AWS_ENDPOINT_URL", hub.url())];
    for _ in 0..2 {
        let double = sandbox.with_env(&env, "inspect s3://models/a//m.safetensors --json").ok();
        assert_eq!(double.json()["tensor_count"], 5);
        let single = sandbox.with_env(&env, "inspect s3://models/a/m.safetensors --json").ok();
        assert_eq!(single.json()["tensor_count"], 3);
        sandbox.with_env(&env, "inspect s3://models/a//").ok().says(&["Tensors:     5"]);
        sandbox.with_env(&env, "download s3://models/a//m.safetensors").ok();
        sandbox.with_env(&env, "download s3://models/a/m.safetensors").ok();
    }
}

#[test]
fn one_long_tensor_is_read_by_few_requests() {
    let (sandbox, len) = (Sandbox::new(), 134_217_728_u64);
    let entry = |start: u64, len: u64| {
        json!({
            "dtype": "U8", "shape": [len], "data_offsets": [start, start + len],
        })
    };
    let header = safetensors_header(&json!({ "a": entry(0, 8 << 20), "b": entry(8 << 20, len) }));
    let hub = TestHub::start();
    let total = header.len() as u64 + (8 << 20) + len;
    hub.put_sparse("big/model", "model.safetensors", &header, total);
    at(&hub, &sandbox, "tensors hf://big/model --filter b --stats").ok();
    let requests = hub.requests();
    assert!(requests.len() <= 8, "{requests:#?}");
    // Its own bytes, and the beginning of the file.
    assert!(sent(&requests) <= len + 100_000, "{}", sent(&requests));
}

#[test]
fn a_download_with_missing_shards_fails_before_the_other_shards_are_fetched() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let shard = "model-00001-of-00002.safetensors";
    let map = json!({ "weight_map": { "a": shard, "b": "model-00002-of-00002.safetensors" } });
    hub.put("part/model", shard, small_safetensors());
    hub.put("part/model", "config.json", b"{}");
    let names = ["model-00002-of-00002.safetensors", "no such file"];
    at(&hub, &sandbox, "download hf://part/model").fails(3, &["E007", names[0], names[1]]);
    hub.put("part/model", "model.safetensors.index.json", map.to_string());
    for options in ["", " --all"] {
        let line = format!("download hf://part/model{options}");
        at(&hub, &sandbox, &line).fails(3, &["E007", names[0], names[1]]);
    }
    let requests = hub.requests();
    assert!(requests.iter().all(|request| !request.at_store), "{requests:#?}");
    // Of an index that is not the chosen model's, it is a warning.
    let map = json!({ "weight_map": { "a": "one.safetensors", "b": "two.safetensors" } });
    hub.put("odd/model", "one.safetensors", small_safetensors());
    hub.put("odd/model", "model.safetensors.index.json", map.to_string());
    let said = "index.json names 'two.safetensors', and no such file";
    at(&hub, &sandbox, "download hf://odd/model --all").ok().says(&[said]);
}

#[test]
fn the_bytes_that_came_over_the_network_are_counted() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let big = safetensors(&[("a", "U8", &[3 << 20], noise(3 << 20))]);
    for (name, bytes) in [("small", &small_safetensors()), ("big", &big)] {
        hub.put_file(&format!("/{name}.safetensors"), bytes);
        let line = format!("download {}/{name}.safetensors --json", hub.url());
        let report = sandbox.apr(&line).ok().json();
        assert_eq!(report["fetched"], bytes.len(), "{name}: {report}");
        assert_eq!(sent(&hub.requests()), bytes.len() as u64, "{name}");
        let again = sandbox.apr(&line).ok().json();
        assert_eq!((&again["fetched"], sent(&hub.requests())), (&json!(0), 1), "{name}");
    }
    let report = at(&hub, &sandbox, "download hf://tiny/llama --json").ok().json();
    let requests = hub.requests();
    let listed = requests.iter().filter(|request| request.target.starts_with("/api/"));
    assert_eq!(report["fetched"], sent(&requests) - listed.map(|r| r.sent).sum::<u64>());
    assert_eq!(report["fetched"], report["bytes"]);
}

#[test]
fn the_proxy_of_a_scheme_is_used_for_that_scheme() {
    let (hub, proxy, sandbox) = (TestHub::start(), TestHub::start(), Sandbox::new());
    hub.put_file("/m.safetensors", small_safetensors());
    proxy.put_file("/m.safetensors", small_safetensors());
    let line = format!("inspect {}/m.safetensors", hub.url());
    let used = |env: &[(&str, &str)]| {
        sandbox.with_env(env, &line).ok();
        (proxy.requests().is_empty(), hub.requests().is_empty())
    };
    let (through, past) = ((false, true), (true, false));
    for (env, expected) in [
        (&[("HTTP_PROXY", proxy.url())][..], through),
        (&[("all_proxy", proxy.url())], through),
        (&[("HTTPS_PROXY", proxy.url())], past),
        (&[("http_proxy", proxy.url()), ("ALL_PROXY", "http://127.0.0.1:9")], through),
        (&[("HTTP_PROXY", proxy.url()), ("NO_PROXY", ".example, 127.0.0.0/8")], past),
        (&[("HTTP_PROXY", proxy.url()), ("no_proxy", "localhost ,127.0.0.1")], past),
    ] {
        assert_eq!(used(env), expected, "{env:?}");
    }
    // Where variables have no case, the first name that is looked for finds it.
    let name = if cfg!(windows) { "all_proxy" } else { "ALL_PROXY" };
    for (url, said) in [
        (
            "socks5://u:secret@127.0.0.1:9",
            format!("{name} is 'socks5://127.0.0.1:9': only http:// and https://"),
        ),
        (
            "http://u:secret@127.0.0.1:9",
            format!("(through the proxy http://127.0.0.1:9 of {name})"),
        ),
    ] {
        let run = sandbox.with_env(&[("ALL_PROXY", url)], &line).fails(1, &["E007", &said]);
        assert!(!run.to_string().contains("secret"), "{run}");
    }
}

/// Hubs lead to stores by redirects, and the proxies of companies have private addresses.
#[test]
fn a_redirect_goes_through_a_proxy_of_a_private_network() {
    let (proxy, sandbox) = (TestHub::start(), Sandbox::new());
    proxy.put_file("/stored.safetensors", small_safetensors());
    let target = Fault::Redirect("http://example.org/stored.safetensors".to_owned());
    proxy.fault("/m.safetensors", target, 0, 1);
    sandbox
        .with_env(
            &[("HTTP_PROXY", proxy.url())],
            "inspect http://example.com/m.safetensors --insecure",
        )
        .ok()
        .says(&["Tensors:     5"]);
}
