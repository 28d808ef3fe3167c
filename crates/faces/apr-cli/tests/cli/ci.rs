//! Reports as Markdown, and the files of `examples/ci`.

use std::path::PathBuf;

use crate::support::{Run, Sandbox, small_safetensors};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// A file of the examples.
fn example(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples/ci").join(name);
    path.canonicalize().expect("an example")
}

#[test]
fn a_judgement_is_printed_as_markdown() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let run = sandbox.apr("validate m.safetensors --markdown").ok();
    run.says(&["### apr validate: passed\n\n```text\n", "VALID\n```\n"]);
    sandbox.write("a.pkl", b"cos\nsystem\n(S'id'\ntR.");
    let run = sandbox.apr("scan a.pkl --markdown");
    assert_eq!(run.code, Some(5), "{run}");
    run.says(&["### apr scan: FAILED\n", "a.pkl", "system"]);
    let run = sandbox.apr("diff m.safetensors m.safetensors --markdown --color always").ok();
    assert!(!run.stdout.contains(&0x1b), "{run}");
    run.says(&["### apr diff\n"]);
    sandbox.apr("lint m.safetensors --markdown --json").fails(2, &["--markdown"]);
}

/// Runs the script that judges a model.
fn judge(sandbox: &Sandbox, model: &str) -> Run {
    let script = example("judge.sh");
    sandbox.shell(&format!(
        "export APR; sh {} {model} {LLAMA} canary.json summary.md",
        script.display()
    ))
}

#[test]
#[cfg(unix)]
fn the_script_judges_a_model_and_writes_a_summary() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("canary create {LLAMA} --prompt 12+34= -o canary.json")).ok();
    sandbox.apr(&format!("quantize {LLAMA} --type q8_0 -o small.gguf")).ok();
    let run = judge(&sandbox, "small.gguf");
    let summary = String::from_utf8(sandbox.read("summary.md")).expect("UTF-8");
    assert_eq!(run.code, Some(0), "{run}{summary}");
    for title in ["scan", "validate", "canary check"] {
        assert!(summary.contains(&format!("### apr {title}: passed\n")), "{summary}");
    }
    assert_eq!(summary.matches("### ").count(), 4, "{summary}");

    sandbox.write("summary.md", "");
    sandbox.write("bad.pkl", b"cos\nsystem\n(S'id'\ntR.");
    let run = judge(&sandbox, "bad.pkl");
    assert_eq!(run.code, Some(1), "{run}");
    let summary = String::from_utf8(sandbox.read("summary.md")).expect("UTF-8");
    assert!(summary.contains("### apr scan: FAILED\n"), "{summary}");
    // What can't be run is no passed test either.
    assert!(!summary.contains(": passed") && summary.contains(": exit code 4"), "{summary}");
}

/// Makes a repository in a Hugging Face cache, as Hugging Face's client lays it out.
#[cfg(unix)]
fn cached(sandbox: &Sandbox, repository: &str, files: &[(&str, Vec<u8>)]) {
    let folder = format!("hub/models--{repository}");
    for (number, (name, bytes)) in files.iter().enumerate() {
        sandbox.write(&format!("{folder}/blobs/{number}"), bytes.clone());
        let snapshot = sandbox.path(&format!("{folder}/snapshots/c0ffee"));
        std::fs::create_dir_all(&snapshot).expect("a folder");
        let target = format!("../../blobs/{number}");
        std::os::unix::fs::symlink(target, snapshot.join(name)).expect("links");
    }
    sandbox.write(&format!("{folder}/refs/main"), "c0ffee");
}

#[cfg(unix)]
fn in_cache(sandbox: &Sandbox, line: &str) -> Run {
    sandbox.shell(&format!("export HF_HUB_CACHE=$PWD/hub APR_CACHE=$PWD/own APR; {line}"))
}

#[test]
#[cfg(unix)]
fn the_files_of_the_cache_are_scanned_once_and_by_their_names() {
    let sandbox = Sandbox::new();
    in_cache(&sandbox, "$APR scan --cache").clean().says(&["0 files: nothing to scan"]);
    sandbox.write("m.safetensors", small_safetensors());
    let run = in_cache(&sandbox, "$APR scan m.safetensors --cache").ok();
    run.says(&["--cache has no effect: the caches have no files"]);
    cached(&sandbox, "org--good", &[("model.safetensors", small_safetensors())]);
    let run = in_cache(&sandbox, "$APR scan --cache --json").clean();
    let report = run.json();
    let files = report["files"].as_array().expect("files");
    assert_eq!((files.len(), &report["clean"]), (1, &1.into()), "{report}");
    let path = files[0]["path"].as_str().expect("a path");
    assert!(path.ends_with("models--org--good/snapshots/c0ffee/model.safetensors"), "{path}");

    let evil = b"cos\nsystem\n(S'id'\ntR.".to_vec();
    cached(&sandbox, "org--evil", &[("model.pkl", evil)]);
    in_cache(&sandbox, "$APR scan --cache").fails(5, &["org--evil", "os.system", "1 clean"]);
    in_cache(&sandbox, "$APR scan --cache --exclude '*.pkl'").clean().says(&["1 excluded"]);
}

#[test]
#[cfg(unix)]
fn the_script_that_watches_the_cache_prints_what_no_baseline_accepts() {
    let sandbox = Sandbox::new();
    cached(&sandbox, "org--good", &[("model.safetensors", small_safetensors())]);
    let script = example("watch-cache.sh");
    let watch = || in_cache(&sandbox, &format!("sh {} accepted.json", script.display()));
    let run = watch();
    assert!(run.code == Some(0) && run.stdout.is_empty(), "{run}");
    let map = br#"{"auto_map": {"AutoModel": "code.Model"}}"#.to_vec();
    cached(&sandbox, "org--custom", &[("config.json", map)]);
    let run = watch();
    assert_eq!(run.code, Some(5), "{run}");
    run.says(&["### apr scan: FAILED", "code.Model"]);
    in_cache(&sandbox, "$APR scan --cache --write-baseline accepted.json").clean();
    let run = watch();
    assert!(run.code == Some(0) && run.stdout.is_empty(), "{run}");
}
