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
