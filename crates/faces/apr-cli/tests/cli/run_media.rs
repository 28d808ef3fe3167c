//! `apr run` with sounds and pictures. Expected values are those of transformers and onnxruntime
//! (`fixtures/run`).

use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::Sandbox;

const SOUNDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/sound");
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/picture");
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run");

fn fixture(name: &str) -> Value {
    let text = fs::read_to_string(locate::fixture(name)).expect("the fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn numbers(json: &Value) -> Vec<f64> {
    json.as_array()
        .expect("a list")
        .iter()
        .map(|number| number.as_f64().expect("a number"))
        .collect()
}

#[test]
fn transcriptions_by_letters_match_transformers() {
    let sandbox = Sandbox::new();
    let line = format!("run {RUN}/tiny-wav2vec2 --input {SOUNDS}/a.wav");
    let report = sandbox.apr(&format!("{line} --json")).ok().json();
    assert_eq!(report["results"][0]["text"], fixture("run/listen.json")["ctc"]["text"]);
    let sound = &report["results"][0]["sound"];
    assert_eq!(
        (&sound["rate"], &sound["channels"], &sound["model_rate"]),
        (&json!(22050), &json!(2), &json!(16000))
    );
    assert_eq!(
        sandbox.apr(&line).ok().text().trim_end(),
        fixture("run/listen.json")["ctc"]["text"]
    );
}

#[test]
fn silero_detects_speech_where_onnxruntime_does() {
    let Some(model) = locate::shared_data("onnx/snakers4_silero-vad__silero_vad_16k_op15.onnx")
    else {
        return;
    };
    let Some(sound) = locate::shared_data("audio/ggml-org_whisper.cpp__jfk.wav") else { return };
    let line = format!("run {} --input {} --json", model.display(), sound.display());
    let report = Sandbox::new().apr(&line).ok().json();
    let ours = numbers(&report["results"][0]["probabilities"]);
    let theirs = numbers(&fixture("run/listen.json")["speech"]);
    assert_eq!(ours.len(), theirs.len());
    let off = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off <= 1e-4, "{off}");
    assert!(!report["results"][0]["spoken"].as_array().expect("parts").is_empty());
}

/// A WAV file of floats at 16 kHz.
#[expect(clippy::cast_possible_truncation, reason = "short sounds")]
/// A file of samples at 16 kHz.
pub(crate) fn wav(samples: &[f64]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|sample| (*sample as f32).to_le_bytes()).collect();
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + data.len() as u32).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x03\0\x01\0");
    bytes.extend(16_000_u32.to_le_bytes());
    bytes.extend(64_000_u32.to_le_bytes());
    bytes.extend(b"\x04\0\x20\0data");
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn a_whisper_writes_what_it_writes_in_transformers() {
    let sound = numbers(&fixture("sound/expected.json")["resampled"]);
    let levels = [1.0, 0.5, 1.5, 0.2, 0.9, 0.7, 1.2];
    let long: Vec<f64> =
        levels.iter().flat_map(|level| sound.iter().map(move |sample| sample * level)).collect();
    let sandbox = Sandbox::new().with("short.wav", wav(&sound)).with("long.wav", wav(&long));
    let expected = fixture("run/whisper.json");
    for (name, file, rest) in [
        ("plain", "short.wav", "--language en"),
        ("heard", "short.wav", ""),
        ("translated", "short.wav", "--language de --translate"),
        ("times", "short.wav", "--language en --timestamps"),
        ("long", "long.wav", "--language en --timestamps"),
    ] {
        let report = sandbox
            .apr(&format!("run {RUN}/tiny-whisper --input {file} {rest} --json"))
            .ok()
            .json();
        let made = &report["results"][0];
        assert_eq!(made["tokens"], expected[name]["tokens"], "{name}");
        let times: Vec<Vec<f64>> = made["segments"]
            .as_array()
            .expect("segments")
            .iter()
            .map(|part| ["start", "end"].map(|key| part[key].as_f64().expect("seconds")).to_vec())
            .collect();
        let theirs: Vec<Vec<f64>> =
            expected[name]["segments"].as_array().expect("segments").iter().map(numbers).collect();
        assert_eq!(times.len(), theirs.len(), "{name}");
        let off = times
            .concat()
            .iter()
            .zip(theirs.concat())
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        assert!(off < 0.011, "{name}: {times:?}, not {theirs:?}");
        if file == "short.wav" {
            let silence = made["segments"][0]["no_speech_prob"].as_f64().expect("a probability");
            let theirs = expected["no_speech"].as_f64().expect("a probability");
            assert!((silence / theirs - 1.0).abs() < 1e-4, "{name}: {silence}, not {theirs}");
        }
    }
    let run = |rest: &str| sandbox.apr(&format!("run {RUN}/tiny-whisper --input short.wav {rest}"));
    run("--language xx").fails(2, &["de, en"]);
    assert!(run("--timestamps --language en").ok().text().contains(" to "));
}

#[test]
fn qa_40_and_64_odd_sounds_are_said() {
    let sandbox =
        Sandbox::new().with("empty.wav", "").with("text.mp3", "no sound").with("cut.flac", &{
            let whole = fs::read(format!("{SOUNDS}/a.flac")).expect("a file");
            whole[..whole.len() / 2].to_vec()
        });
    let run = |file: &str| sandbox.apr(&format!("run {RUN}/tiny-wav2vec2 --input {file} --json"));
    run("empty.wav").fails(4, &["empty.wav", "empty"]);
    run("text.mp3").fails(4, &["text.mp3"]);
    run("nowhere.wav").fails(3, &["nowhere.wav"]);
    let cut = run("cut.flac");
    assert!(cut.stderr.contains("cut.flac"), "{}", cut.stderr);
    // A sound in floats, ten times too loud.
    let mut loud = fs::read(format!("{SOUNDS}/b.wav")).expect("a file");
    let data = loud.windows(4).position(|four| four == b"data").expect("a chunk") + 8;
    for sample in loud[data..].chunks_exact_mut(4) {
        let value = f32::from_le_bytes(sample.try_into().expect("four bytes"));
        sample.copy_from_slice(&(value * 10.0).to_le_bytes());
    }
    sandbox.write("loud.wav", loud);
    let loud = run("loud.wav").ok();
    assert!(loud.stderr.contains("not normalized"), "{}", loud.stderr);
    sandbox
        .apr(&format!("run {RUN}/tiny-wav2vec2 --prompt x"))
        .fails(2, &["the model has no text input"]);
    sandbox
        .apr(&format!("run {RUN}/tiny-bert --input {SOUNDS}/a.wav"))
        .fails(2, &["the model has no sound"]);
    run(&format!("{SOUNDS}/a.flac --max-memory 20KB")).fails(4, &["E008"]);
}

#[test]
fn labels_of_images_match_transformers() {
    let sandbox = Sandbox::new();
    let expected = fixture("run/look.json");
    let line = format!("run {RUN}/tiny-vit --input {PICTURES}/a.png --json");
    let report = sandbox.apr(&line).ok().json();
    for label in report["results"][0]["labels"].as_array().expect("labels") {
        let name = label["label"].as_str().expect("a name");
        let theirs = expected["vit"][name].as_f64().expect("a score");
        assert!((label["score"].as_f64().expect("a score") - theirs).abs() < 1e-4, "{report}");
    }
}

#[test]
fn texts_fit_a_picture_as_in_transformers() {
    let sandbox = Sandbox::new();
    let expected = fixture("run/look.json");
    let texts: Vec<&str> = expected["clip"]
        .as_array()
        .expect("texts")
        .iter()
        .filter_map(|row| row["text"].as_str())
        .collect();
    let (model, picture) = (format!("{RUN}/tiny-clip"), format!("{PICTURES}/a.png"));
    let mut line = vec!["run", &model, "--input", &picture, "--json"];
    line.extend(texts.iter().flat_map(|text| ["--prompt", text]));
    let report = sandbox.run(&line).ok().json();
    for fit in report["results"][0]["texts"].as_array().expect("texts") {
        let row = expected["clip"]
            .as_array()
            .expect("texts")
            .iter()
            .find(|row| row["text"] == fit["text"])
            .expect("a row");
        for key in ["score", "logit"] {
            let (ours, theirs) =
                (fit[key].as_f64().expect("a number"), row[key].as_f64().expect("a number"));
            assert!((ours - theirs).abs() < 1e-3, "{key}: {report}");
        }
    }
    sandbox.run(&["run", &model, "--input", &picture]).fails(2, &["--prompt"]);
}

#[test]
fn files_that_are_not_images_are_errors() {
    let sandbox = Sandbox::new().with("empty.png", "").with("text.jpg", "no picture");
    let run = |file: &str| sandbox.apr(&format!("run {RUN}/tiny-vit --input {file}"));
    run("empty.png").fails(4, &["empty.png", "empty"]);
    run("text.jpg")
        .fails(4, &["text.jpg", "unsupported image format: expected PNG, JPEG, WebP, GIF, BMP or"]);
    run(&format!("{PICTURES}/a.png --max-memory 5KB")).fails(4, &["E008"]);
    sandbox
        .apr(&format!("run {RUN}/tiny-bert --input {PICTURES}/a.png"))
        .fails(2, &["the model has no image input"]);
}
