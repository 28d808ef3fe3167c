//! Downloads that are copied into a folder.

use std::fs;

use apr_testkit::locate;

use crate::hub::{at, hub_with_llama};
use crate::support::Sandbox;

#[test]
fn files_are_copied_into_a_folder_and_chosen_among_all() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.put("tiny/llama", "onnx/notes.json", b"{}");
    let line = "download hf://tiny/llama --all --include *.json --exclude *token* --local-dir out";
    let report = at(&hub, &sandbox, &format!("{line} --json")).ok().json();
    assert_eq!(report["folder"], "out");
    assert_eq!(report["made_folders"], serde_json::json!(["out", "out/onnx"]));
    let mut files: Vec<String> =
        sandbox.files().into_iter().filter(|file| file.starts_with("out/")).collect();
    files.sort();
    assert_eq!(files, ["out/config.json", "out/generation_config.json", "out/onnx/notes.json"]);
    let folder = locate::fixture("tiny-llama");
    let config = fs::read(folder.join("config.json")).expect("a fixture");
    assert_eq!(sandbox.read("out/config.json"), config);

    // The same bytes stay, and others are replaced on request.
    at(&hub, &sandbox, line).ok();
    sandbox.write("out/config.json", "mine");
    at(&hub, &sandbox, line).fails(1, &["E007", "config.json", "already exists"]);
    assert_eq!(sandbox.read("out/config.json"), b"mine");
    at(&hub, &sandbox, &format!("{line} -f")).ok();
    assert_eq!(sandbox.read("out/config.json"), config);

    // Without --all, the files of the model.
    let run = at(&hub, &sandbox, "download hf://tiny/llama --local-dir model").ok();
    assert!(run.stderr.contains("made the folder model\n"), "{run}");
    assert!(sandbox.path("model/model.safetensors").exists());
    assert!(!sandbox.path("model/onnx").exists());
    at(&hub, &sandbox, "download hf://tiny/llama --all --include *.none")
        .fails(2, &["no file matches"]);
}
