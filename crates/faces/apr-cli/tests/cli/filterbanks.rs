//! The mel filterbank that travels with a model of speech: a tensor that an import adds, or numbers
//! in the metadata.

use std::fs;

use apr_core::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::{Sandbox, f32s, tensors};

const BANK: &str = "audio.mel_filterbank";

fn whisper() -> String {
    locate::fixture("run/tiny-whisper").display().to_string()
}

/// The names of a file's tensors with their digests.
fn listed(sandbox: &Sandbox, file: &str) -> Vec<(String, Value)> {
    let report = sandbox.apr(&format!("tensors {file} --stats --json")).ok().json();
    let tensors = report["tensors"].as_array().expect("a list").iter();
    let named = |tensor: &Value| {
        (tensor["name"].as_str().expect("a name").to_owned(), tensor["stats"].clone())
    };
    tensors.map(named).collect()
}

#[test]
fn data_that_an_import_adds_survive_every_transform() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {} -o w.apr", whisper())).ok();
    let imported = listed(&sandbox, "w.apr");
    let bank = imported.iter().find(|(name, _)| name == BANK).expect("there").clone();
    for options in [
        "--prune-layers 1",
        "--prune 0.5",
        "--prune-threshold 0.01",
        "--lowrank svd --rank 2",
        "--precision bf16",
        "--quantize f8_e4m3",
        "--prune-layers 1 --prune 0.5",
    ] {
        sandbox.apr(&format!("convert w.apr {options} -o o.apr -f")).ok();
        assert!(listed(&sandbox, "o.apr").contains(&bank), "{options}");
        sandbox.apr(&format!("convert {} {options} -o f.apr -f", whisper())).ok();
        sandbox.apr("convert o.apr -o o.safetensors -f").ok();
        sandbox.apr("convert f.apr -o f.safetensors -f").ok();
        let weights = |file: &str| tensors(&sandbox.read(file));
        let (packed, folder) = (weights("o.safetensors"), weights("f.safetensors"));
        assert!(packed == folder, "{options}: the folder and its import differ");
    }
}

#[test]
fn an_imported_model_of_speech_is_distilled() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {} -o w.apr", whisper())).ok();
    sandbox.write("a.wav", fs::read(locate::fixture("sound").join("a.wav")).expect("a sound"));
    sandbox.write("rows.jsonl", "{\"audio\": \"a.wav\", \"text\": \"one\"}\n");
    sandbox.apr("distill w.apr --distill-layers 1 --data rows.jsonl -o s.apr --steps 2").ok();
    assert!(listed(&sandbox, "s.apr").iter().any(|(name, _)| name == BANK));
    sandbox.apr("run s.apr --input a.wav --max-tokens 3").ok();
}

/// A file whose metadata have what imports put into tensors.
fn inline(bank: &[f64], shape: [u64; 2], tokens: u64) -> Vec<u8> {
    let metadata = json!({
        "apr_version": "2.0.0", "model_type": "whisper", "architecture": {"n_mels": shape[0]},
        "mel_filterbank": bank, "mel_filterbank_shape": shape, "vocab": ["a", "b"],
        "vocab_size": tokens,
    });
    Apr2Builder::new()
        .metadata(metadata.to_string())
        .entry(Apr2Entry::new("w", DType::F32, &[2], &f32s(&[1.0, 2.0])))
        .build()
}

#[test]
fn numbers_and_tokens_in_the_metadata_are_read_and_checked() {
    let bank = [0.0, 0.25, 0.5, 0.0, 0.75, 1.0];
    let sandbox = Sandbox::new().with("good.apr", inline(&bank, [2, 3], 2));
    sandbox.apr("inspect good.apr --filters").ok().says(&[
        "2 mels of 3 frequencies",
        "values from 0 to 1",
        "2 of 6 are zero",
    ]);
    let about = |file: &str| {
        let report = sandbox.apr(&format!("validate {file} --json")).json();
        let findings = report["findings"].as_array().cloned().unwrap_or_default();
        let about: Vec<String> = findings
            .iter()
            .map(|finding| finding["message"].as_str().unwrap_or_default().to_owned())
            .filter(|message| message.contains("filterbank") || message.contains("vocab"))
            .collect();
        about
    };
    assert_eq!(about("good.apr"), Vec::<String>::new());

    let negative = [0.0, -0.25, 0.5, 0.0, 0.75, 1.0];
    sandbox.write("bad.apr", inline(&negative, [2, 3], 9));
    assert_eq!(
        about("bad.apr"),
        [
            "'vocab' of the metadata has 2 tokens, 'vocab_size' is 9",
            "negative values in a filterbank, down to -0.25",
        ]
    );
    sandbox.write("bad.apr", inline(&bank[..5], [2, 3], 2));
    assert_eq!(
        about("bad.apr"),
        ["'mel_filterbank' of the metadata does not match 'mel_filterbank_shape'"]
    );
}
