//! `apr run --prompt-cache`.

use apr_testkit::corrupt::bit_flips;
use serde_json::json;

use crate::support::{Run, Sandbox};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
const MAMBA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-mamba");

fn run(sandbox: &Sandbox, prompt: &str, rest: &str) -> Run {
    sandbox.apr(&format!("run {LLAMA} --prompt-cache cache --prompt {prompt} {rest}"))
}

#[test]
fn a_prompt_that_is_in_the_file_is_not_read_again() {
    let sandbox = Sandbox::new();
    let first = run(&sandbox, "12+34=", "").ok();
    first.says(&["cache: 0 of 7 tokens of the prompt were in the prompt cache"]);
    assert!(sandbox.is_private("cache"), "what follows from a prompt is as private as the prompt");

    let written = sandbox.read("cache");
    let again = run(&sandbox, "12+34=", "").ok();
    assert_eq!(again.text(), "46\n");
    again.says(&["5 of 7 tokens"]);
    assert_eq!(sandbox.read("cache"), written);

    // What another prompt has in common with it is kept, and the file is that prompt's then.
    let other = run(&sandbox, "12+35=", "--json").ok().json();
    assert_eq!((&other["text"], &other["reused"]), (&json!("47\n"), &json!(5)));
    let longer = run(&sandbox, "12+35=47", "--json --max-tokens 1").ok().json();
    assert_eq!(longer["reused"], 7);
    let shown = sandbox.apr("tensors cache --json").ok().json();
    let tokens = shown["tensors"].as_array().expect("tensors");
    let tokens = tokens.iter().find(|tensor| tensor["name"] == "tokens").expect("the ids");
    assert_eq!(tokens["shape"], json!([9]));
}

#[test]
fn several_prompts_and_tokens_are_kept_one_after_the_other() {
    let sandbox = Sandbox::new();
    let both = run(&sandbox, "12+34=", "--prompt 12+35= --json").ok().reports();
    assert_eq!((&both[0]["reused"], &both[1]["reused"]), (&json!(0), &json!(5)));
    let line = format!("run {LLAMA} --tokens 256,49,50,43,51,53 --prompt-cache cache --json");
    assert_eq!(sandbox.apr(&line).ok().json()["reused"], 4);
}

#[test]
fn a_file_that_is_not_a_cache_of_this_model_is_rejected_and_kept() {
    let sandbox = Sandbox::new().with("text", "12+34=");
    sandbox.apr(&format!("quantize {LLAMA} --type q8_0 -o q.gguf")).ok();
    let of = |model: &str, rest: &str| {
        sandbox.apr(&format!("run {model} --prompt 12+34= --prompt-cache cache {rest}"))
    };
    of("q.gguf", "").ok();
    let whole = sandbox.read("cache");
    of(LLAMA, "").fails(2, &["cache: the prompt cache belongs to another model"]);
    of("q.gguf", "--exact").fails(2, &["another part, task, arithmetic or cache type"]);
    assert_eq!(sandbox.read("cache"), whole);

    let other = |file: &str| format!("run q.gguf --prompt 12+34= --prompt-cache {file}");
    sandbox.apr(&other("text")).fails(4, &["text"]);
    sandbox.apr(&other("q.gguf")).fails(4, &["q.gguf"]);
    sandbox.apr(&other(".")).fails(1, &["E007"]);
    assert_eq!(sandbox.read("text"), b"12+34=");
    sandbox.write("cache", &whole[..whole.len() - 1]);
    of("q.gguf", "").fails(4, &["E002", "cache"]);
    let last = whole.len() - 1;
    let flipped = bit_flips(&whole, last..last + 1).next().expect("a flip");
    sandbox.write("cache", flipped);
    of("q.gguf", "").fails(5, &["E004", "cache", "digest"]);
    of("q.gguf", "--max-memory 1KB").fails(4, &["E008"]);
}

/// Changes that no sample of the weights shows, beside the files that are the same.
#[test]
fn a_cache_is_bound_to_the_files_of_its_model_or_to_their_digests() {
    let sandbox = Sandbox::new();
    let copy = |name: &str| {
        for entry in std::fs::read_dir(LLAMA).expect("a folder") {
            let path = entry.expect("listed").path();
            let file = path.file_name().and_then(|name| name.to_str()).expect("plain");
            sandbox.write(&format!("{name}/{file}"), std::fs::read(&path).expect("a file"));
        }
    };
    copy("a");
    copy("b");
    let of = |model: &str, cache: &str| {
        sandbox.apr(&format!("run {model} --prompt 12+34= --prompt-cache {cache}"))
    };
    of("a", "cache").ok();
    of("a", "cache").ok().says(&["5 of 7 tokens"]);
    // Other files, of the same bytes, may have been changed anywhere.
    of("b", "cache").fails(2, &["belongs to another model", "remove it to create a new one"]);
    let mut weights = sandbox.read("a/model.safetensors");
    let at = weights.len() - 3000;
    weights[at] ^= 0x80;
    sandbox.write("a/model.safetensors", weights);
    of("a", "cache").fails(2, &["belongs to another model"]);

    // A file with digests is known by them, wherever it is.
    sandbox.apr("import b -o b.apr").ok();
    sandbox.write("c.apr", sandbox.read("b.apr"));
    of("b.apr", "digests").ok();
    of("c.apr", "digests").ok().says(&["5 of 7 tokens"]);

    // Without a comparison, the digests are of other weights than the ones that are used.
    let unverified = |model: &str, cache: &str| {
        let line = format!("run {model} --prompt 12+34= --prompt-cache {cache} --no-verify");
        sandbox.apr(&line)
    };
    unverified("c.apr", "unverified").ok();
    unverified("c.apr", "unverified").ok().says(&["5 of 7 tokens"]);
    let mut changed = sandbox.read("c.apr");
    let at = changed.len() / 2;
    changed[at] ^= 0x40;
    sandbox.write("c.apr", changed);
    unverified("c.apr", "unverified").fails(2, &["belongs to another model"]);
}

/// Changes a byte in the middle of a file, and restores its modification time.
#[cfg(unix)]
fn change_unnoticed(path: &std::path::Path) {
    use std::os::unix::fs::FileExt;
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(path);
    let file = open().expect("a file");
    let metadata = file.metadata().expect("metadata");
    let (modified, at) = (metadata.modified().expect("a time"), metadata.len() / 2);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x40], at).expect("written");
    file.set_modified(modified).expect("restored");
}

#[test]
#[cfg(unix)]
fn a_model_changed_in_place_with_its_old_time_is_another_one() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    sandbox.apr(&format!("convert {LLAMA} -o m.gguf")).ok();
    sandbox.apr(&format!("convert {LLAMA} --format safetensors --shard-size 200KB -o st")).ok();
    let changed = ["m.apr", "m.gguf", "st/model-00002-of-00004.safetensors"];
    for (model, file) in ["m.apr", "m.gguf", "st"].into_iter().zip(changed) {
        let run = || {
            sandbox
                .apr(&format!("run {model} --prompt 12+34= --prompt-cache c-{model} --no-verify"))
        };
        run().ok();
        run().ok().says(&["5 of 7 tokens"]);
        change_unnoticed(&sandbox.path(file));
        run().fails(2, &["belongs to another model"]);
    }
}

#[test]
fn a_prompt_cache_needs_keys_and_values_and_a_text_to_continue() {
    let sandbox = Sandbox::new();
    sandbox
        .apr(&format!("run {MAMBA} --tokens 1,2,3 --prompt-cache cache"))
        .fails(4, &["a prompt cache needs a model with keys and values of each token"]);
    sandbox
        .apr(&format!("run {LLAMA} --tokens 1,2,3 --want logits --prompt-cache cache"))
        .fails(2, &["--prompt-cache", "--want"]);
    assert!(!sandbox.path("cache").exists());
}
