//! What users see, word for word: transcripts in `tests/golden`, renewed by
//! `UPDATE_GOLDEN=1 cargo test -p apr-cli golden`.

use std::fs;
use std::path::Path;

use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::locate;
use serde_json::json;

use crate::support::{Run, Sandbox, f32s, safetensors, sound};

/// Runs the commands in turn and compares what they print with the file of this name.
#[track_caller]
fn assert_transcript(name: &str, sandbox: &Sandbox, lines: &[&str]) {
    let transcript: String = lines
        .iter()
        .map(|line| {
            transcript(
                line,
                &sandbox.with_env(&[("APR_CACHE", "cache"), ("HF_HUB_CACHE", "hub")], line),
            )
        })
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, transcript).expect("the folder is there");
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let differing = golden
        .lines()
        .chain([""])
        .zip(transcript.lines().chain([""]))
        .position(|(old, new)| old != new);
    let line = differing.map_or(0, |line| line + 1);
    assert!(
        golden == transcript,
        "{name}:{line} differs; UPDATE_GOLDEN=1 renews it. Now:\n{transcript}"
    );
}

fn transcript(line: &str, run: &Run) -> String {
    if line.contains("--json") {
        run.reports();
    }
    let mut text = format!("$ apr {line}\n{}", normalised(&run.text()));
    if !run.stderr.is_empty() {
        text += &format!("--- standard error\n{}", normalised(&run.stderr));
    }
    if run.code != Some(0) {
        text += &format!("--- exit code {}\n", run.code.expect("nothing killed it"));
    }
    text + "\n"
}

/// Without what changes with each version: its number, and checksums of files that carry it.
fn normalised(text: &str) -> String {
    let text = text.replace(concat!("apr ", env!("CARGO_PKG_VERSION")), "apr VERSION");
    let mut pieces = text.split("0x");
    let mut normal = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_hexdigit).count();
        let rest = if digits == 8 { &piece[8..] } else { piece };
        normal += if digits == 8 { "0x########" } else { "0x" };
        normal += rest;
    }
    normal
}

/// A model with something for every part of a report.
fn rich() -> Apr2Builder {
    let metadata = json!({
        "apr_version": "2.0.0",
        "model_type": "toy",
        "architecture": { "hidden_size": 3, "vocab_size": 4 },
        "license": "mit",
        "vocab": ["<s>", "</s>", "a", "\u{1b}[31mred"],
        "description": "a model made by hand, with a description that is longer than a line of \
                        a report has room for",
        "files": { "config.json": "{}" },
    });
    sound().metadata(apr_core::json::text(&metadata))
}

fn broken(sandbox: &Sandbox) {
    sandbox.write("version.apr", Apr2Builder { version: (3, 1), ..sound() }.build());
    let mut damaged = rich().build();
    damaged[rich().data_start() as usize] ^= 1;
    sandbox.write("damaged.apr", damaged);
    sandbox.write("truncated.apr", &rich().build()[..600]);
    sandbox.write("text.safetensors", "This is no model.\n");
    let odd = [
        ("a.nan", "F32", &[2_u64][..], f32s(&[f32::NAN, 1.0])),
        ("b.inf", "F16", &[2], vec![0x00, 0x7c, 0x00, 0x3c]),
        ("c.zero", "BF16", &[2, 2], vec![0; 8]),
    ];
    sandbox.write("odd.safetensors", safetensors(&odd));
}

/// The fixture without its scripts, which no model folder of the hub would have.
pub(crate) fn tiny_llama(sandbox: &Sandbox) {
    let fixture = locate::fixture("tiny-llama");
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        sandbox.write(
            &format!("tiny-llama/{name}"),
            fs::read(fixture.join(name)).expect("part of the fixture"),
        );
    }
}

#[test]
fn golden_inspect() {
    let sandbox = Sandbox::new().with("m.apr", rich().build());
    broken(&sandbox);
    tiny_llama(&sandbox);
    let lines = [
        "inspect m.apr",
        "inspect m.apr --header --vocab",
        "inspect m.apr --full",
        "inspect m.apr --json",
        "inspect odd.safetensors",
        "inspect odd.safetensors --vocab",
        "inspect tiny-llama",
        "inspect tiny-llama/model.safetensors",
        "inspect version.apr",
        "inspect text.safetensors",
    ];
    assert_transcript("inspect.txt", &sandbox, &lines);
}

#[test]
fn golden_tensors() {
    let sandbox = Sandbox::new().with("m.apr", rich().build());
    broken(&sandbox);
    tiny_llama(&sandbox);
    let lines = [
        "tensors m.apr",
        "tensors m.apr --sort size --offset",
        "tensors m.apr --stats --filter *.weight",
        "tensors m.apr --stats --sort name --json",
        "tensors m.apr --filter nothing*",
        "tensors m.apr --hist c.norm",
        "tensors m.apr --hist c.norm --json",
        "tensors m.apr --hist c.nrm",
        "tensors odd.safetensors --stats",
        "tensors odd.safetensors --hist a.nan",
        "tensors tiny-llama --stats",
        "tensors tiny-llama --hist model.norm.weight",
    ];
    assert_transcript("tensors.txt", &sandbox, &lines);
}

#[test]
fn golden_validate() {
    let sandbox = Sandbox::new().with("m.apr", rich().build());
    sandbox.write("tail.apr", Apr2Builder { tail: b"tail".to_vec(), ..rich() }.build());
    broken(&sandbox);
    let lines = [
        "validate m.apr",
        "validate m.apr --json",
        "validate m.apr --checksum",
        "validate damaged.apr",
        "validate damaged.apr --json",
        "validate odd.safetensors",
        "validate odd.safetensors --zero-check",
        "validate tail.apr",
        "validate tail.apr --strict",
        "validate truncated.apr",
    ];
    assert_transcript("validate.txt", &sandbox, &lines);
}

#[test]
fn golden_debug() {
    let sandbox = Sandbox::new().with("m.apr", rich().build());
    broken(&sandbox);
    let lines = [
        "debug m.apr",
        "debug m.apr --drama",
        "debug m.apr --hex --limit 40",
        "debug m.apr --hex --tensor b.weight",
        "debug m.apr --hex --tensor b.wait",
        "debug m.apr --strings --limit 3",
        "debug m.apr --json",
        "debug odd.safetensors --drama",
        "debug version.apr",
        "debug version.apr --drama",
        "debug version.apr --json",
        "debug text.safetensors",
    ];
    assert_transcript("debug.txt", &sandbox, &lines);
}

#[test]
fn golden_explain() {
    let mut lines: Vec<String> = (1..=8).map(|code| format!("explain E00{code}")).collect();
    lines.extend(
        ["explain E999", "explain E08", "explain E001 --json", "explain E999 --json"]
            .map(str::to_owned),
    );
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_transcript("explain.txt", &Sandbox::new(), &lines);
}

#[test]
fn golden_convert() {
    let sandbox = Sandbox::new().with("m.apr", rich().build());
    let large =
        Apr2Entry::new("large", apr_registry::DType::F32, &[4], &f32s(&[1e6, 1e-9, 0.1, 1.0]));
    sandbox.write("large.apr", rich().entry(large).build());
    broken(&sandbox);
    tiny_llama(&sandbox);
    let lines = [
        "convert m.apr -o m.safetensors",
        "convert m.apr -o m.safetensors",
        "convert m.apr -o m.safetensors -f --json",
        "convert m.apr -o h.safetensors --precision fp16 --dry-run",
        "convert large.apr -o h.apr --precision fp16",
        "inspect h.apr",
        "convert m.apr -o cut.safetensors --shard-size 16",
        "convert m.apr -o cut.apr --shard-size 16",
        "convert m.apr -o m.onnx",
        "convert damaged.apr -o d.apr",
        "convert damaged.apr -o d.apr --json",
        "import tiny-llama -o tiny.apr",
        "inspect tiny.apr",
        "validate tiny.apr",
        "export tiny.apr -o out",
        "export tiny.apr -o tiny.safetensors",
        "import text.safetensors -o text.apr",
        "cache info",
        "cache info --json",
    ];
    assert_transcript("convert.txt", &sandbox, &lines);
}
