//! `apr imatrix`, and `--calibration` that runs the model. Expected sums are llama-imatrix's
//! (`fixtures/quality/imatrix.py`).

use std::fs;

use apr_quantize::{Imatrix, ImatrixSums};
use apr_registry::{CheckpointReader, Limits};
use apr_testkit::locate;

use crate::support::{Sandbox, damaged};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run");
const SOUND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/sound");

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let sums = fs::read(locate::fixture("quality/sums.txt")).expect("the fixture");
    sandbox.write("sums.txt", sums);
    sandbox
}

fn opened(bytes: Vec<u8>) -> Box<dyn CheckpointReader> {
    apr_registry::open(bytes, "i.gguf", &Limits::default()).expect("GGUF")
}

fn sums(sandbox: &Sandbox, file: &str) -> ImatrixSums {
    ImatrixSums::from_checkpoint(&*opened(sandbox.read(file))).expect("sums")
}

/// The largest difference of a mean from another, relative to the largest mean of its weight.
fn distance(ours: &Imatrix, theirs: &Imatrix) -> f32 {
    assert_eq!(ours.entries.keys().collect::<Vec<_>>(), theirs.entries.keys().collect::<Vec<_>>());
    let of_entry = |(ours, theirs): (&Vec<f32>, &Vec<f32>)| {
        assert_eq!(ours.len(), theirs.len());
        let most = theirs.iter().copied().fold(0.0, f32::max);
        let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
        differences.fold(0.0, f32::max) / most
    };
    ours.entries.values().zip(theirs.entries.values()).map(of_entry).fold(0.0, f32::max)
}

#[test]
fn statistics_are_those_of_llama_imatrix() {
    let sandbox = Sandbox::new();
    let theirs = fs::read(locate::fixture("quality/imatrix.gguf")).expect("the fixture");
    sandbox.write("i.gguf", theirs);
    let expected = fs::read(locate::fixture("quality/statistics.json")).expect("the fixture");
    let expected: serde_json::Value = serde_json::from_slice(&expected).expect("JSON");
    let report = sandbox.apr("inspect i.gguf --json").ok().json();
    let weights = report["imatrix"]["weights"].as_array().expect("a list");
    assert_eq!(weights.len(), expected.as_object().expect("an object").len());
    for weight in weights {
        let theirs = &expected[weight["weight"].as_str().expect("text")];
        for (key, value) in theirs.as_object().expect("an object") {
            let value = value.as_f64().expect("a number");
            let ours = weight[key].as_f64().unwrap_or_default();
            assert!((ours - value).abs() <= 1e-4 * value.abs().max(1e-3), "{key} of {weight}");
        }
    }
    assert_eq!(report["imatrix"]["layers"].as_array().map(Vec::len), Some(2));
    sandbox.apr("inspect i.gguf").ok().says(&["Importance of weights", "blk.1.attn_q.weight"]);
}

#[test]
fn sums_are_those_of_llama_imatrix_from_folders_and_gguf_files() {
    let sandbox = sandbox();
    let theirs = fs::read(locate::fixture("quality/imatrix.gguf")).expect("the fixture");
    let theirs = Imatrix::from_checkpoint(&*opened(theirs)).expect("means");
    sandbox.apr(&format!("export {LLAMA} --format gguf -o m.gguf")).ok();
    for model in [LLAMA, "m.gguf"] {
        let line = format!("imatrix {model} --text sums.txt --context 16 -o i.gguf -f --json");
        let report = sandbox.apr(&line).ok().json();
        assert_eq!(
            (&report["weight_count"], &report["context"]),
            (&14.into(), &16.into()),
            "{report}"
        );
        let ours = sums(&sandbox, "i.gguf").means().expect("means");
        assert_eq!((ours.chunk_count, ours.chunk_size), (theirs.chunk_count, theirs.chunk_size));
        assert_eq!(ours.datasets, theirs.datasets);
        let distance = distance(&ours, &theirs);
        assert!(distance < 1e-4, "{model}: {distance}");
    }

    sandbox.apr("lint i.gguf").ok().says(&["no findings"]);
    sandbox.apr(&format!("imatrix {LLAMA} --text sums.txt --context 16 -o i.dat")).ok();
    let legacy = Imatrix::from_legacy(&sandbox.read("i.dat")).expect("the legacy form");
    assert!(distance(&legacy, &theirs) < 1e-4);
}

#[test]
fn parts_of_a_text_add_up_to_the_whole() {
    let sandbox = sandbox();
    let line = format!("imatrix {LLAMA} --text sums.txt --context 16");
    sandbox.apr(&format!("{line} -o whole.gguf")).ok();
    sandbox.apr(&format!("{line} --part 1/3 -o 1.gguf")).ok();
    sandbox.apr(&format!("{line} --part 2/3 -o 2.gguf")).ok();
    sandbox.apr(&format!("{line} --part 3/3 --add 1.gguf --add 2.gguf -o all.gguf")).ok();
    let (all, whole) = (sums(&sandbox, "all.gguf"), sums(&sandbox, "whole.gguf"));
    assert_eq!(all.chunk_count(), whole.chunk_count());
    assert!(distance(&all.means().expect("means"), &whole.means().expect("means")) < 1e-6);
}

#[test]
fn a_calibration_text_is_measured_on_the_way() {
    let sandbox = sandbox();
    sandbox.apr(&format!("imatrix {LLAMA} --text sums.txt -o i.gguf")).ok();
    let quantize = format!("quantize {LLAMA} --type q4_k_m");
    sandbox.apr(&format!("{quantize} --imatrix i.gguf -o two.apr")).ok();
    sandbox.apr(&format!("{quantize} --calibration sums.txt -o one.apr")).ok();
    sandbox.apr(&format!("{quantize} -o plain.apr")).ok();
    let same = |other: &str| {
        sandbox.apr(&format!("diff one.apr {other} --json")).ok().json()["tensors"]
            .as_array()
            .expect("tensors")
            .iter()
            .all(|tensor| tensor["verdict"] == "identical")
    };
    assert!(same("two.apr") && !same("plain.apr"));

    let piped = "quantize - --type q4_k_m --calibration sums.txt -o p.apr";
    sandbox.piped(piped, &[]).fails(2, &["standard input can be read once"]);
    let line = format!("plan --parts 2 -o p.json {quantize} --calibration sums.txt -o p.gguf");
    sandbox.apr(&line).fails(2, &["`apr imatrix`", "--imatrix"]);
}

#[test]
fn sounds_and_pictures_are_measured_too() {
    let sandbox = sandbox();
    let line = format!("imatrix {RUN}/tiny-whisper --text sums.txt -o i.gguf");
    sandbox.apr(&line).fails(2, &["a text measures models of one part only"]);
    for (model, input, name) in [
        ("tiny-whisper", format!("{SOUND}/a.wav"), "encoder.layers.0.self_attn.q_proj"),
        ("tiny-vit", format!("{RUN}/../picture/a.png"), "encoder.layer.0"),
    ] {
        let line = format!("imatrix {RUN}/{model} --input {input} -o i.gguf -f");
        sandbox.apr(&line).ok();
        let sums = sums(&sandbox, "i.gguf");
        assert!(sums.entries.keys().any(|key| key.contains(name)), "{:?}", sums.entries.keys());
        sums.means().expect("no zeros");
    }
}

#[test]
fn models_that_cannot_be_measured_are_rejected_and_nothing_is_written() {
    let sandbox = sandbox();
    let refused = |line: &str, code: i32, says: &[&str]| {
        sandbox.apr(line).fails(code, says);
        assert!(!sandbox.path("i.gguf").exists(), "{line}");
    };
    let line = format!("imatrix {LLAMA} -o i.gguf");
    refused(&line, 2, &["--text"]);
    refused(&format!("{line} --text sums.txt --part 4/3"), 2, &["K/N"]);
    refused(&format!("{line} --text sums.txt --part 1/9999"), 2, &["--part 1/9999", "window"]);
    sandbox.write("short.txt", "1+1=2");
    refused(&format!("{line} --text short.txt"), 2, &["the text has"]);
    refused(&format!("{line} --text sums.txt --chunks 0"), 2, &["--chunks"]);
    sandbox.apr(&format!("imatrix {LLAMA} --text sums.txt --context 8 -o 8.gguf")).ok();
    let other = format!("{line} --text sums.txt --context 16 --add 8.gguf");
    refused(&other, 4, &["8.gguf", "chunks of 8 tokens, not of 16"]);
    refused(&format!("{line} --text absent.txt"), 3, &["absent.txt"]);
    sandbox.write("other.gguf", "GGUF");
    refused(&format!("{line} --text sums.txt --add other.gguf"), 4, &["other.gguf"]);

    damaged(&sandbox, LLAMA, "model.layers.1.input_layernorm.weight", |bytes| {
        bytes[..2].copy_from_slice(&[0xc0, 0x7f]);
    });
    let nan = "imatrix broken --text sums.txt -o i.gguf";
    refused(nan, 4, &["blk.1.attn_q.weight", "NaN or infinite"]);

    sandbox.write("i.gguf", "there");
    sandbox.apr(&format!("{line} --text sums.txt")).fails(1, &["exist"]);
    assert_eq!(sandbox.read("i.gguf"), b"there");
}

/// A model that does not continue texts has no text windows: the lines of a text are its inputs.
#[test]
fn an_encoder_is_calibrated_on_lines() {
    let bert = locate::fixture("run/tiny-bert").display().to_string();
    let sandbox = Sandbox::new().with("t.txt", "the cat\n\nthe dog sat\n").with("empty.txt", "\n");
    let line = format!("quantize {bert} --type q8_0 -o m.apr --relaxed --calibration");
    sandbox.apr(&format!("{line} t.txt")).ok();
    sandbox.apr(&format!("{line} empty.txt -f")).fails(2, &["the calibration text is empty"]);
}
