//! The Rust of the README runs, on the model of the repository.

use std::env::set_current_dir;
use std::error::Error;
use std::os::unix::fs::symlink;
use std::path::Path;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");

/// The block of the README, letter for letter, and what it is to give.
#[rustfmt::skip]
fn readme() -> Result<(), Box<dyn Error>> {
    let report = apr::convert("fixtures/tiny-llama")
        .quantize(apr::Scheme::Q4_K_M)
        .compress(apr::Compression::Auto)
        .write("tiny-llama.apr")?;
    let model = apr::Model::open("tiny-llama.apr")?;
    let weight: Vec<f32> = model.tensor("layers.0.mlp.up_proj.weight")?.to_vec()?;
    let answer = model.generate("12+34=")?; // feature `infer`
    apr::write("bias.safetensors").tensor("bias", [2], &[0.5_f32, -0.5]).finish()?;

    assert!(report.conversion.bytes_out < report.conversion.bytes_in);
    assert_eq!(weight.len(), 256 * 128);
    assert_eq!(answer.trim_end(), "46");
    assert!(Path::new("bias.safetensors").exists());
    Ok(())
}

#[test]
fn the_rust_of_the_readme_runs() {
    let text = include_str!("../../../README.md");
    let block = text.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let block = block.expect("a block of Rust");
    let indented: String = block.lines().map(|line| format!("    {line}\n")).collect();
    assert!(include_str!("readme.rs").contains(&indented), "not in this file: {block}");

    let folder = tempfile::tempdir().expect("a folder");
    set_current_dir(folder.path()).expect("a folder");
    symlink(FIXTURES, "fixtures").expect("a link");
    readme().expect("it runs");
}
