//! The programs do what they say, on the model of the repository.

use std::process::{Command, Output};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("it was built")
}

#[test]
fn a_model_shrinks_and_is_still_sound() {
    let folder = tempfile::tempdir().expect("a folder");
    let small = folder.path().join("small.apr");
    let small = small.to_str().expect("a plain name");
    let output = run(env!("CARGO_BIN_EXE_shrink"), &[MODEL, small]);
    assert!(output.status.success(), "{output:?}");
    let output = run(env!("CARGO_BIN_EXE_check"), &[small]);
    assert!(output.status.success(), "{output:?}");
    // What is there is not replaced.
    assert!(!run(env!("CARGO_BIN_EXE_shrink"), &[MODEL, small]).status.success());
}

#[test]
fn values_of_a_tensor_are_shown() {
    let output = run(env!("CARGO_BIN_EXE_read"), &[MODEL, "model.norm.weight"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.matches(',').count(), 7, "{text}");
}

#[test]
fn a_prompt_is_completed() {
    let output = run(env!("CARGO_BIN_EXE_generate"), &[MODEL, "12+34="]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "46", "{output:?}");
}

#[test]
fn a_model_that_writes_makes_no_vectors() {
    let output = run(env!("CARGO_BIN_EXE_embed"), &[MODEL, "12+34="]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no embeddings"), "{output:?}");
}
