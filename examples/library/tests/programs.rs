//! The programs do what they say, on the model of the repository.

use std::process::{Command, Output};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-llama");

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("it was built")
}

/// The page is `docs/start/program.md`; the tests below run the programs.
#[test]
fn programs_of_the_documentation_are_these() {
    const PROGRAMS: [&str; 10] = [
        include_str!("../src/bin/average.rs"),
        include_str!("../src/bin/check.rs"),
        include_str!("../src/bin/convert.rs"),
        include_str!("../src/bin/embed.rs"),
        include_str!("../src/bin/generate.rs"),
        include_str!("../src/bin/list.rs"),
        include_str!("../src/bin/prune_quantize.rs"),
        include_str!("../src/bin/read.rs"),
        include_str!("../src/bin/shrink.rs"),
        include_str!("../src/bin/write.rs"),
    ];
    let page = include_str!("../../../docs/start/program.md");
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).collect();
    assert!(blocks.len() > 3, "{} programs", blocks.len());
    for block in blocks {
        let program = block.split("```").next().expect("an end");
        let is_one = PROGRAMS.iter().any(|one| one.ends_with(&format!("\n\n{program}")));
        assert!(is_one, "not in examples/library/src/bin: {program}");
    }
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
fn models_are_pruned_and_quantized_and_merged_in_one_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain name").to_owned();
    let small = path("small.gguf");
    let output = run(env!("CARGO_BIN_EXE_prune_quantize"), &[MODEL, &small]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("weights are zero\n"), "{output:?}");
    let output = run(env!("CARGO_BIN_EXE_check"), &[&small]);
    assert!(output.status.success(), "{output:?}");

    let merged = path("merged.safetensors");
    let output = run(env!("CARGO_BIN_EXE_average"), &[MODEL, MODEL, &merged]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("100"), "{output:?}");
    // Models whose tensors are named by different conventions.
    let output = run(env!("CARGO_BIN_EXE_average"), &[MODEL, &small, &path("x.safetensors")]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("one format first"), "{output:?}");
}

#[test]
fn tensors_are_listed_and_one_is_shown() {
    let listed = run(env!("CARGO_BIN_EXE_list"), &[MODEL]);
    let listed = String::from_utf8(listed.stdout).expect("text");
    assert!(listed.contains("model.norm.weight bf16 [128]"), "{listed}");
    let shown = run(env!("CARGO_BIN_EXE_read"), &[MODEL, "model.norm.weight"]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.starts_with("bf16 [128] ["), "{shown}");
    assert_eq!(shown.matches(", ").count(), 127, "{shown}");
}

#[test]
fn a_conversion_tells_how_far_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("model.gguf");
    let output = run(env!("CARGO_BIN_EXE_convert"), &[MODEL, output.to_str().expect("plain")]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("converting 100 %"), "{output:?}");
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["model.safetensors", "model.gguf", "model.apr", "model.pt"] {
        let path = folder.path().join(name);
        let path = path.to_str().expect("a plain name");
        let output = run(env!("CARGO_BIN_EXE_write"), &[path]);
        assert!(output.status.success(), "{name}: {output:?}");
        let shown = run(env!("CARGO_BIN_EXE_read"), &[path, "weight"]);
        let expected = "f32 [2, 3] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n";
        assert_eq!(String::from_utf8_lossy(&shown.stdout), expected, "{name}: {shown:?}");
    }
}

#[test]
fn a_prompt_is_completed() {
    let output = run(env!("CARGO_BIN_EXE_generate"), &[MODEL, "12+34="]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "46", "{output:?}");
}

#[test]
fn a_model_that_writes_makes_no_vectors() {
    let output = run(env!("CARGO_BIN_EXE_embed"), &[MODEL, "12+34="]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("does not return embeddings"),
        "{output:?}"
    );
}
