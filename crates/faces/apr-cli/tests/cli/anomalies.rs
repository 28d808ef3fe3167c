//! `apr trace --detect-anomalies`. Points 36, 43 to 47 and 74 of `docs/qa.md`.

use serde_json::Value;

use crate::support::{Sandbox, damaged, scrambled};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures");
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
const LINE: &str = "trace broken --prompt 12+34=46,12+34= --detect-anomalies";

/// The report of a model that has anomalies, as JSON.
fn report(sandbox: &Sandbox, line: &str) -> Value {
    let run = sandbox.apr(&format!("{line} --json"));
    assert_eq!(run.code, Some(5), "{}", run.stderr);
    run.json()
}

/// The anomalies of a kind.
fn of_kind<'r>(report: &'r Value, kind: &str) -> Vec<&'r Value> {
    let anomalies = report["anomalies"].as_array().expect("anomalies").iter();
    anomalies.filter(|anomaly| anomaly["kind"] == kind).collect()
}

#[test]
fn valid_models_of_all_kinds_have_no_anomalies() {
    let sandbox = Sandbox::new();
    for (model, input) in [
        ("tiny-llama", "--prompt 12+34="),
        ("run/tiny-bert", "--prompt word"),
        ("run/tiny-vit", "--input {F}/picture/a.jpg"),
        ("run/tiny-convnext", "--input {F}/picture/a.jpg"),
        ("run/tiny-dinov2", "--input {F}/picture/a.jpg"),
        ("run/tiny-resnet", "--input {F}/picture/a.jpg"),
        ("run/tiny-swin", "--input {F}/picture/a.jpg"),
        ("run/tiny-wav2vec2", "--input {F}/sound/a.flac"),
        ("run/tiny-whisper", "--input {F}/sound/a.flac --max-tokens 4"),
    ] {
        let input = input.replace("{F}", FIXTURES);
        let line = format!("trace {FIXTURES}/{model} {input} --detect-anomalies");
        let shown = sandbox.apr(&line).ok().text();
        assert!(shown.contains("✓ No anomalies in "), "{model}: {shown}");
    }
}

#[test]
fn qa_36_rows_of_attention_sum_to_1() {
    let sandbox = Sandbox::new();
    for (model, prompt) in [("tiny-llama", "12+34="), ("run/tiny-bert", "word")] {
        let line = format!("trace {FIXTURES}/{model} --prompt {prompt} --trace-payload --json");
        let trace = sandbox.apr(&line).ok().json();
        let steps = trace["passes"][0]["steps"].as_array().expect("steps").iter();
        let attention: Vec<&Value> = steps.map(|step| &step["attention"]).collect();
        let attention = attention.iter().filter(|attention| attention.is_object());
        assert_eq!(attention.clone().count(), 2, "{model}");
        assert!(attention.clone().all(|attention| attention["sums_to_one"] == true), "{model}");
    }
}

#[test]
fn qa_43_dead_neurons_are_counted() {
    let sandbox = Sandbox::new();
    // Rows of a matrix of [128, 256] in BF16: an eighth of its outputs.
    let clear = |bytes: &mut [u8]| bytes[..16 * 256 * 2].fill(0);
    damaged(&sandbox, LLAMA, "model.layers.1.mlp.down_proj.weight", clear);
    let report = report(&sandbox, LINE);
    let [found] = of_kind(&report, "dead_neurons")[..] else { panic!("{report}") };
    assert_eq!((&found["dead"], &found["of"]), (&16.into(), &128.into()));
    assert_eq!(found["path"], "layers.1/mlp");
    let shown = sandbox.apr(LINE).text();
    let says = ["⚠ ANOMALY at layers.1/mlp (step ", "Dead neurons: 12% of outputs are exactly 0"];
    assert!(says.iter().all(|text| shown.contains(text)), "{shown}");
    assert!(shown.contains("✓ No anomalies in remaining 16 steps"), "{shown}");
}

#[test]
fn qa_44_an_explosion_is_found_where_it_begins() {
    let sandbox = Sandbox::new();
    // The exponents of BF16, 2^24 times as large.
    let explode = |bytes: &mut [u8]| {
        for value in bytes.chunks_exact_mut(2).filter(|value| value[1] & 0x7f != 0) {
            value[1] += 12;
        }
    };
    damaged(&sandbox, LLAMA, "model.layers.0.mlp.up_proj.weight", explode);
    let report = report(&sandbox, LINE);
    let found = of_kind(&report, "explosion");
    assert_eq!(found[0]["path"], "layers.0/mlp", "{report}");
    assert!(found[0]["max"].as_f64().is_some_and(|max| max > 1e6), "{report}");
}

#[test]
fn masks_within_attention_are_not_anomalies() {
    let line = format!("trace {FIXTURES}/optimum/gemma --tokens 1,5,9,3 --detect-anomalies --json");
    let run = Sandbox::new().apr(&line);
    // A constant of -inf is added to the scores; a model without training repeats itself.
    assert!(of_kind(&run.json(), "not_finite").is_empty(), "{run}");
}

#[test]
fn attention_that_is_the_same_everywhere_is_found() {
    let sandbox = Sandbox::new();
    damaged(&sandbox, LLAMA, "model.layers.1.self_attn.q_proj.weight", |bytes| bytes.fill(0));
    let report = report(&sandbox, LINE);
    let [found] = of_kind(&report, "every_key")[..] else { panic!("{report}") };
    assert_eq!(found["path"], "layers.1/attention");
}

#[test]
fn qa_45_a_phrase_that_repeats_is_found() {
    let sandbox = Sandbox::new();
    // A model without training says one thing again and again.
    let line = format!("trace {FIXTURES}/run/tiny-t5 --prompt word --detect-anomalies");
    let report = report(&sandbox, &line);
    let [found] = of_kind(&report, "repetition")[..] else { panic!("{report}") };
    assert!(found["times"].as_u64().is_some_and(|times| times > 5), "{report}");
}

#[test]
fn qa_46_words_in_silence_are_found() {
    let sandbox = Sandbox::new();
    sandbox.write("silence.wav", sound(|_| 0));
    let line = format!("trace {FIXTURES}/run/tiny-whisper --input silence.wav --detect-anomalies");
    let report = report(&sandbox, &line);
    assert_eq!(of_kind(&report, "words_in_silence").len(), 1, "{report}");
    let warning = report["warnings"][0].as_str().expect("a warning");
    assert!(warning.contains("the audio is silent"), "{warning}");

    sandbox.write("noise.wav", sound(|at| scrambled(at).to_le_bytes()[0].into()));
    let line = line.replace("silence.wav", "noise.wav");
    let run = sandbox.apr(&format!("{line} --json"));
    assert!(of_kind(&run.json(), "words_in_silence").is_empty());
}

/// A second of sound at 16 kHz.
fn sound(sample: impl Fn(u64) -> i16) -> Vec<u8> {
    let samples: Vec<u8> = (0..16_000).flat_map(|at| sample(at).to_le_bytes()).collect();
    let mut bytes = b"RIFF".to_vec();
    bytes.extend(32_036_u32.to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend(16_000_u32.to_le_bytes());
    bytes.extend(32_000_u32.to_le_bytes());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend(32_000_u32.to_le_bytes());
    bytes.extend(samples);
    bytes
}

#[test]
fn qa_47_a_confident_answer_to_noise_is_found() {
    let sandbox = Sandbox::new();
    // A picture of the model's own size, so that no resampling makes neighbours alike.
    let mut picture = b"BM".to_vec();
    for number in [54 + 92 * 30, 0, 54, 40, 30, 30, 1 + (24 << 16), 0, 92 * 30, 0, 0, 0, 0_u32] {
        picture.extend(number.to_le_bytes());
    }
    picture.extend((0..92 * 30).map(|at| scrambled(at).to_le_bytes()[0]));
    sandbox.write("noise.bmp", picture);
    let vit = format!("{FIXTURES}/run/tiny-vit");
    let line = "--input noise.bmp --detect-anomalies";
    sandbox.apr(&format!("trace {vit} {line}")).ok();

    // A bias of 50, in F16: one class for every input.
    let certain = |bytes: &mut [u8]| bytes[..2].copy_from_slice(&0x5240_u16.to_le_bytes());
    damaged(&sandbox, &vit, "classifier.bias", certain);
    let report = report(&sandbox, &format!("trace broken {line}"));
    let [found] = of_kind(&report, "confident_on_noise")[..] else { panic!("{report}") };
    assert_eq!(found["class"], "fog");
    let line = format!("trace broken --input {FIXTURES}/picture/a.jpg --detect-anomalies");
    sandbox.apr(&line).ok();
}

#[test]
fn qa_74_a_corrupt_tensor_is_an_anomaly_where_nan_begins() {
    let sandbox = Sandbox::new();
    let corrupt = |bytes: &mut [u8]| bytes[..2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    damaged(&sandbox, LLAMA, "model.layers.1.mlp.gate_proj.weight", corrupt);
    let report = report(&sandbox, LINE);
    let [found] = of_kind(&report, "not_finite")[..] else { panic!("{report}") };
    assert_eq!(found["operator"], "layers.1/mlp/gate");
    let shown = sandbox.apr("trace broken --prompt 12+34= --trace-payload").ok().text();
    assert!(shown.contains("⚠ NaN or infinity from layers.1/mlp/gate"), "{shown}");
}
