//! Files that differ from those on the hub, on their way or in the cache, become no model.

use std::fs;

use apr_testkit::hub::{Fault, TestHub, git_sha1, sha256};
use apr_testkit::locate;

use crate::hub::{at, hub_with_llama};
use crate::hub_cache::LLAMA;
use crate::support::{Sandbox, small_safetensors};

#[test]
fn a_companion_that_is_not_what_the_hub_has_ends_an_import() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    // A newline at its end becomes another character, so that only the digest shows it.
    hub.fault("/README.md", Fault::Flip, 0, 1);
    at(&hub, &sandbox, "import hf://tiny/llama -o m.apr")
        .fails(5, &["E004", "README.md", "apr-rejected"]);
    assert!(!sandbox.path("m.apr").exists());
}

#[test]
fn a_file_that_differs_from_the_hub_is_not_cached_and_is_set_aside() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.fault("/store/", Fault::Flip, 0, 1);
    let run = at(&hub, &sandbox, "download hf://tiny/llama/model.safetensors");
    run.fails(5, &["E004", "hf://tiny/llama/model.safetensors", "apr-rejected"]);
    let files = sandbox.files();
    assert!(files.iter().any(|file| file.ends_with(".apr-rejected")), "{files:?}");
    assert!(!files.iter().any(|file| file.contains("/snapshots/")), "{files:?}");
    at(&hub, &sandbox, "download hf://tiny/llama/model.safetensors").ok();
    // What is named is fetched, and nothing beside it.
    let fetched = at(&hub, &sandbox, "download hf://tiny/llama/config.json --json").ok().json();
    assert_eq!(fetched["files"].as_array().map(Vec::len), Some(1), "{fetched}");
}

#[test]
fn an_import_of_a_file_that_differs_from_the_hub_writes_nothing() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    // The header comes first, by itself; what is kept comes after it.
    hub.fault("/store/", Fault::Flip, 1, 1);
    at(&hub, &sandbox, "import hf://tiny/llama -o m.apr").fails(5, &["E004"]);
    assert!(!sandbox.path("m.apr").exists());
}

/// A cached blob is damaged after the download: its bytes must not become a model with the hub as
/// its recorded origin.
#[test]
fn what_the_cache_has_damaged_is_not_imported() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "download hf://tiny/llama").ok();
    for (name, is_large) in [("model.safetensors", true), ("generation_config.json", false)] {
        let good = fs::read(locate::fixture("tiny-llama").join(name)).expect("a fixture");
        let digest = if is_large { sha256(&good) } else { git_sha1(&good) };
        let blob = format!("{LLAMA}/blobs/{digest}");
        let mut bad = good.clone();
        let last = bad.len() - 5;
        bad[last] ^= 1;
        sandbox.write(&blob, &bad);
        for options in ["", " --no-cache", " --offline"] {
            at(&hub, &sandbox, &format!("import hf://tiny/llama -o m.apr{options}"))
                .fails(5, &["E004", "damaged", &digest, "apr cache verify"]);
            assert!(!sandbox.path("m.apr").exists());
        }
        at(&hub, &sandbox, "convert hf://tiny/llama -o m.gguf").fails(5, &["E004", &digest]);
        // What the error advises.
        at(&hub, &sandbox, "cache verify").fails(5, &[&digest]);
        fs::remove_file(sandbox.path(&blob)).expect("it is there");
        // Its second name, where it is no link.
        let linked =
            sandbox.path(&format!("{LLAMA}/snapshots/{}/{name}", hub.commit("tiny/llama")));
        if linked.is_file() {
            fs::remove_file(linked).expect("it is there");
        }
        at(&hub, &sandbox, "import hf://tiny/llama -o m.apr").ok();
        at(&hub, &sandbox, "validate m.apr --source").ok().says(&["Source", "1 digest"]);
        fs::remove_file(sandbox.path("m.apr")).expect("it is there");
    }
}

/// The cache contains copies on systems without links.
#[test]
fn files_that_are_second_names_of_blobs_have_digests_too() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "download hf://tiny/llama").ok();
    let name = "model.safetensors";
    let mut bytes = fs::read(locate::fixture("tiny-llama").join(name)).expect("a fixture");
    let digest = sha256(&bytes);
    let blob = format!("{LLAMA}/blobs/{digest}");
    let linked = sandbox.path(&format!("{LLAMA}/snapshots/{}/{name}", hub.commit("tiny/llama")));
    fs::remove_file(&linked).expect("it is there");
    fs::hard_link(sandbox.path(&blob), &linked).expect("a file system with second names");
    let import = "import hf://tiny/llama -o m.apr --offline -f";
    at(&hub, &sandbox, import).ok();
    at(&hub, &sandbox, "validate m.apr --source --offline").ok().says(&["1 digest"]);
    *bytes.last_mut().expect("bytes") ^= 1;
    sandbox.write(&blob, &bytes);
    at(&hub, &sandbox, import).fails(5, &["E004", "damaged", &digest]);
}

#[test]
fn files_read_without_the_cache_are_also_compared_with_their_digests() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "import hf://tiny/llama -o m.apr --no-cache").ok();
    let source = sandbox.apr("inspect m.apr --json").ok().json()["metadata"]["source"].clone();
    let bytes = fs::read(locate::fixture("tiny-llama/model.safetensors")).expect("a fixture");
    assert_eq!(source["sha256_of"]["model.safetensors"], sha256(&bytes).as_str());
    let part = "convert hf://tiny/llama -o part.apr --no-cache --prefix model.layers.0. --relaxed";
    at(&hub, &sandbox, part).ok();
    let part = sandbox.apr("inspect part.apr --json").ok().json()["metadata"]["source"].clone();
    // Most of the file was not read.
    assert!(part["sha256_of"].is_null() && part["revision"].is_string(), "{part}");
    // The header comes first, by itself.
    for (file, good) in [("/store/", 1), ("/README.md", 0)] {
        hub.fault(file, Fault::Flip, good, 1);
        at(&hub, &sandbox, "import hf://tiny/llama -o again.apr --no-cache")
            .fails(5, &["E004", "digest mismatch: expected"]);
        assert!(!sandbox.path("again.apr").exists());
    }
}

/// The cache of other servers stores the digest of each downloaded file.
#[test]
fn damaged_cached_files_of_a_server_are_not_imported() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.put_file("/m.safetensors", small_safetensors());
    let location = format!("{}/m.safetensors", hub.url());
    at(&hub, &sandbox, &format!("import {location} -o a.apr --insecure")).ok();
    let kept = sandbox.files().into_iter().find(|file| file.ends_with("/m.safetensors"));
    let kept = kept.expect("it is in the cache");
    let mut bad = sandbox.read(&kept);
    *bad.last_mut().expect("bytes") ^= 1;
    sandbox.write(&kept, &bad);
    at(&hub, &sandbox, &format!("import {location} -o b.apr --insecure")).fails(5, &["E004"]);
}
