//! `apr validate MODEL --quality`: the 100 points. Points 39, 49, 72 and 74 of `docs/qa.md`, and
//! what damage does to the score.

use std::collections::BTreeSet;
use std::fs;

use apr_testkit::apr2::Apr2Builder;
use apr_testkit::locate;
use serde_json::Value;

use crate::support::{Sandbox, damaged, small_safetensors, sound};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures");
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// A weight that is damaged.
const GATE: &str = "model.layers.1.mlp.gate_proj.weight";

/// Points that the trained model itself fails.
///
/// Its tensors are unaligned, and it answers a text that is not one of its known sums with
/// newlines.
const OF_LLAMA: [u64; 2] = [6, 45];

/// Points that this system can't judge: number 98 takes a shell that limits the length of files.
const UNJUDGED: u8 = if cfg!(unix) { 0 } else { 1 };

/// The report of a model.
#[track_caller]
fn report(sandbox: &Sandbox, model: &str) -> Value {
    sandbox.apr(&format!("validate {model} --quality --json")).ok().json()
}

/// Returns the points with a verdict, each with its observation.
fn with_verdict<'r>(report: &'r Value, verdict: &str) -> Vec<(u64, &'r str)> {
    let points = report["points"].as_array().expect("points").iter();
    let wanted = points.filter(|point| point["verdict"] == verdict);
    let number = |point: &Value| point["number"].as_u64().expect("a number");
    wanted.map(|point| (number(point), point["seen"].as_str().expect("a sentence"))).collect()
}

/// The numbers of points that failed.
fn failed(report: &Value) -> BTreeSet<u64> {
    with_verdict(report, "failed").into_iter().map(|(number, _)| number).collect()
}

/// Returns the observation of a point.
fn seen(report: &Value, number: usize) -> &str {
    report["points"][number - 1]["seen"].as_str().expect("a sentence")
}

/// A copy of the trained model as a folder.
fn copy(sandbox: &Sandbox) {
    damaged(sandbox, LLAMA, GATE, |_| {});
}

#[test]
fn a_model_has_a_score_of_100_points_under_four_headings() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    let run = sandbox.apr("validate m.apr --quality").ok();
    run.says(&[
        "SCORE: 99/100 (EXCELLENT)\n\n=== 100-Point Quality Assessment ===\n",
        "Structure (25 pts): 23/25",
        &format!("Security (25 pts):  {}/25", 22 - UNJUDGED),
        "Weights (25 pts):   21/25",
        "Metadata (25 pts):  21/25",
        &format!(
            "TOTAL: {}/100 points passed, 1 failed, {} n/a\nthis program cannot judge 4 points",
            87 - UNJUDGED,
            12 + UNJUDGED
        ),
        "Score: share of passed points among those that apply to the model",
        " 45  Repetition: tokens [10] were generated ",
        &format!("{} points not applicable; --json lists all points", 12 + UNJUDGED),
    ]);

    let report = report(&sandbox, "m.apr");
    let points = report["points"].as_array().expect("points");
    assert_eq!(points.len(), 100);
    for (point, number) in points.iter().zip(1..) {
        assert_eq!(point["number"], number);
        assert!(!seen(&report, number).is_empty(), "{point}");
    }
    let count = |verdict: &str| with_verdict(&report, verdict).len();
    let (passed, absent) = (87 - UNJUDGED, 12 + UNJUDGED);
    let counts = [count("passed"), count("failed"), count("not_applicable")];
    assert_eq!(counts, [passed.into(), 1, absent.into()]);
    assert_eq!((&report["passed"], &report["total"]), (&passed.into(), &100.into()));
    let headings = report["headings"].as_array().expect("headings").iter();
    let sum: u64 = headings.map(|score| score["passed"].as_u64().expect("a number")).sum();
    assert_eq!(sum, u64::from(passed));
    // Nothing is left behind, and nothing was written.
    assert_eq!(sandbox.files(), ["m.apr"]);
}

#[test]
fn damage_to_weights_fails_the_points_about_it_and_no_others() {
    let sandbox = Sandbox::new();
    copy(&sandbox);
    assert_eq!(failed(&report(&sandbox, "broken")), OF_LLAMA.into());
    let value = |bits: u16| move |bytes: &mut [u8]| bytes[..2].copy_from_slice(&bits.to_le_bytes());
    // What is generated from NaN is not judged, so the repetition is not found again.
    for (bits, number) in [(0x7fc0, 26), (0x7f80, 27)] {
        damaged(&sandbox, LLAMA, GATE, value(bits));
        let report = report(&sandbox, "broken");
        assert_eq!(failed(&report), [6, number, 44].into());
        let number = usize::try_from(number).expect("a small number");
        assert!(seen(&report, number).starts_with(&format!("tensor '{GATE}': 1 of ")));
        assert!(seen(&report, 44).contains("from layers.1/mlp/gate on"), "{report}");
        assert_eq!((&report["score"], &report["rating"]), (&20.into(), &"POOR".into()));
        assert_eq!(report["critical"][0]["number"], number);
    }
    damaged(&sandbox, LLAMA, "model.layers.1.mlp.up_proj.weight", |bytes| bytes.fill(0));
    assert_eq!(failed(&report(&sandbox, "broken")), [6, 31, 43].into());
    // 2^4 times as large in BF16.
    let scale = |bytes: &mut [u8]| bytes.iter_mut().skip(1).step_by(2).for_each(|high| *high += 2);
    damaged(&sandbox, LLAMA, "model.norm.weight", scale);
    let report = report(&sandbox, "broken");
    assert!(failed(&report).contains(&28));
    assert_eq!((&report["score"], &report["critical"][0]["cap"]), (&50.into(), &50.into()));
    let shown = sandbox.apr("validate broken --quality").ok();
    shown.says(&["UNFIT: Norm weights (28): tensor 'model.norm.weight': ", "SCORE: 50/100 (FAIR)"]);
}

#[test]
fn a_model_that_predicts_nothing_is_unfit() {
    let sandbox = Sandbox::new();
    copy(&sandbox);
    let sound = report(&sandbox, "broken");
    let [language, meaning, layers, blocks, orientation] =
        &sound["learnt"].as_array().expect("points")[..]
    else {
        panic!("{sound}")
    };
    assert_eq!((&language["number"], &language["verdict"]), (&101.into(), &"passed".into()));
    assert!(language["seen"].as_str().is_some_and(|seen| seen.starts_with("sums: ")), "{language}");
    assert_eq!(meaning["verdict"], "not_applicable");
    assert_eq!((&layers["verdict"], &blocks["verdict"]), (&"passed".into(), &"passed".into()));
    // Its keys have half of the queries' rows.
    assert_eq!(orientation["verdict"], "not_applicable");

    // The same values in another order: each statistic is what it was.
    damaged(&sandbox, LLAMA, "model.embed_tokens.weight", |bytes| {
        bytes.reverse();
        bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|value| value.reverse());
    });
    let shown = sandbox.apr("validate broken --quality").ok();
    shown.says(&[
        "UNFIT: Language (101): the best predicted of 9 built-in texts is less likely",
        "SCORE: 60/100 (FAIR)",
        "FAIL 101  Language: ",
    ]);
    sandbox.apr("validate broken --quality --min-score 61").fails(5, &["below the minimum"]);
}

#[test]
fn a_layer_out_of_line_makes_a_model_unfit() {
    let sandbox = Sandbox::new();
    copy(&sandbox);
    // 2^4 times as large in BF16: nothing but the other layer shows it.
    damaged(&sandbox, LLAMA, "model.layers.1.mlp.down_proj.weight", |bytes| {
        bytes.iter_mut().skip(1).step_by(2).for_each(|high| *high += 2);
    });
    let found = report(&sandbox, "broken");
    assert!(found["score"].as_u64() <= Some(60), "{found}");
    let layers = &found["learnt"][2];
    assert_eq!((&layers["number"], &layers["verdict"]), (&103.into(), &"failed".into()));
    let shown = sandbox.apr("validate broken").ok();
    shown.says(&["model.layers.1.mlp.down_proj.weight", "in other layers"]);

    // All values with the other sign: their statistics are a sound weight's, and without the block
    // the model predicts better.
    damaged(&sandbox, LLAMA, "model.layers.1.mlp.down_proj.weight", |bytes| {
        bytes.iter_mut().skip(1).step_by(2).for_each(|high| *high ^= 0x80);
    });
    let found = report(&sandbox, "broken");
    assert!(found["score"].as_u64() <= Some(60), "{found}");
}

#[test]
fn the_meaning_of_sentences_is_tested_where_a_model_makes_vectors() {
    let Some(folder) = locate::minilm() else { return };
    let sandbox = Sandbox::new();
    let report = report(&sandbox, folder.to_str().expect("a plain path"));
    assert_eq!(report["learnt"][0]["verdict"], "not_applicable");
    let meaning = &report["learnt"][1];
    assert_eq!((&meaning["verdict"], &meaning["number"]), (&"passed".into(), &102.into()));
    assert!(meaning["seen"].as_str().is_some_and(|seen| seen.contains("of 8 sentences")));
}

/// The values of a square matrix with rows and columns exchanged.
fn transposed(bytes: &mut [u8]) {
    let values: Vec<[u8; 4]> = bytes.as_chunks::<4>().0.to_vec();
    let side = values.len().isqrt();
    for (at, value) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *value = values[at % side * side + at / side];
    }
}

#[test]
fn damaged_layers_of_a_sentence_encoder_are_found() {
    let Some(folder) = locate::minilm() else { return };
    let folder = folder.to_str().expect("a plain path");
    let sandbox = Sandbox::new();
    // It computes almost the same: sentences keep their neighbours.
    damaged(&sandbox, folder, "encoder.layer.3.attention.self.query.weight", transposed);
    let found = report(&sandbox, "broken");
    let orientation = &found["learnt"][4];
    assert_eq!((&orientation["number"], &orientation["verdict"]), (&105.into(), &"failed".into()));
    let seen = orientation["seen"].as_str().expect("a sentence");
    assert!(seen.contains("layer.3.attention.self.key.weight is transposed"), "{seen}");
    assert_eq!((&found["score"], &found["critical"][0]["number"]), (&60.into(), &105.into()));

    damaged(&sandbox, folder, "encoder.layer.3.output.dense.weight", |bytes| {
        bytes.iter_mut().skip(3).step_by(4).for_each(|high| *high ^= 0x80);
    });
    let found = report(&sandbox, "broken");
    assert_eq!((&found["score"], &found["learnt"][3]["verdict"]), (&60.into(), &"failed".into()));
    let seen = found["learnt"][3]["seen"].as_str().expect("a sentence");
    assert!(seen.starts_with("without ") && seen.contains("nats per sentence"), "{seen}");
}

#[test]
fn a_speech_model_that_learnt_no_language_is_unfit() {
    let sandbox = Sandbox::new();
    let model = locate::fixture("run/tiny-whisper").display().to_string();
    let found = report(&sandbox, &model);
    let language = &found["learnt"][0];
    assert_eq!((&language["number"], &language["verdict"]), (&101.into(), &"failed".into()));
    assert!(found["score"].as_u64() <= Some(60), "{found}");
}

#[test]
fn damage_to_a_file_fails_the_points_about_it_and_no_others() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    let file = sandbox.read("m.apr");
    let fails = |bytes: Vec<u8>| {
        sandbox.write("broken.apr", bytes);
        failed(&report(&sandbox, "broken.apr"))
    };
    assert_eq!(fails(file.clone()), [45].into());
    let mut flipped = file.clone();
    flipped[file.len() / 2] ^= 1;
    // A model whose weights are damaged does not run, so that what a run shows fails, too.
    assert_eq!(fails(flipped), [4, 36, 39, 43, 44, 45, 46, 47, 49].into());
    assert_eq!(fails([&file[..], b"garbage"].concat()), [13, 45].into());

    // Of no family and no licence, as its other findings say.
    let of_sound = fails(sound().build());
    let mut padded = of_sound.clone();
    padded.insert(22);
    assert_eq!(fails(Apr2Builder { padding: 0xff, ..sound() }.build()), padded);
    let mut flagged = of_sound;
    flagged.insert(11);
    assert_eq!(fails(Apr2Builder { flags: 1 << 20 | 1 << 1, ..sound() }.build()), flagged);
}

#[test]
fn missing_metadata_fail_only_the_points_about_them() {
    let sandbox = Sandbox::new();
    copy(&sandbox);
    fs::remove_file(sandbox.path("broken/README.md")).expect("it is there");
    let report = report(&sandbox, "broken");
    assert_eq!(failed(&report), [6, 45, 52].into());
    assert_eq!(seen(&report, 52), "lint: Missing 'license' field");
}

/// The copy with another number in its configuration.
fn configured(sandbox: &Sandbox, key: &str, value: u64) {
    copy(sandbox);
    let config = sandbox.read("broken/config.json");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config[key] = value.into();
    sandbox.write("broken/config.json", config.to_string());
}

#[test]
fn qa_39_a_token_that_the_vocabulary_has_not_is_found() {
    let sandbox = Sandbox::new();
    copy(&sandbox);
    let whole = report(&sandbox, "broken");
    assert!(seen(&whole, 39).contains("; the vocabulary has 259; "), "{whole}");
    configured(&sandbox, "vocab_size", 5);
    let report = report(&sandbox, "broken");
    // The embedding has more rows than the configuration says, which is found as well.
    assert_eq!(failed(&report), [6, 32, 33, 39, 45].into());
    assert_eq!(seen(&report, 39), "token 10 was generated, and the vocabulary has 5");
}

#[test]
fn shapes_are_held_against_the_configuration() {
    let sandbox = Sandbox::new();
    configured(&sandbox, "intermediate_size", 255);
    let report = report(&sandbox, "broken");
    assert_eq!(failed(&report), [6, 32, 45].into());
    assert!(seen(&report, 32).contains("expected [128, 255]"), "{report}");
}

#[test]
fn qa_49_qa_72_and_qa_74_are_judged_by_running_models() {
    let report = report(&Sandbox::new(), LLAMA);
    for (number, said) in [
        (49, "65 tokens given: "),
        (72, "a test model passes its canary, with a changed head: "),
        (74, "NaN in a test gate: 6 values are not finite from layers.0/mlp/gate on"),
    ] {
        assert_eq!(report["points"][number - 1]["verdict"], "passed");
        assert!(seen(&report, number).starts_with(said), "{}", seen(&report, number));
    }
}

#[test]
fn models_of_every_kind_are_scored_by_the_points_that_apply() {
    let sandbox = Sandbox::new();
    for (model, applies, does_not) in [
        ("run/tiny-bert", [29, 36, 38, 49], 45),
        ("run/tiny-whisper", [36, 39, 44, 46], 47),
        ("run/tiny-vit", [29, 36, 44, 47], 46),
        ("run/tiny-clip", [29, 36, 38, 44], 47),
    ] {
        let report = report(&sandbox, &format!("{FIXTURES}/{model}"));
        let absent = with_verdict(&report, "not_applicable");
        let absent: Vec<u64> = absent.into_iter().map(|(number, _)| number).collect();
        let wrong: Vec<u64> = applies.into_iter().filter(|it| absent.contains(it)).collect();
        assert_eq!((wrong, absent.contains(&does_not)), (Vec::new(), true), "{model}: {absent:?}");
    }
}

#[cfg(unix)]
#[test]
fn files_of_every_format_are_judged() {
    let sandbox = Sandbox::new().with("strange.safetensors", small_safetensors());
    sandbox.apr(&format!("quantize {LLAMA} --type q8_0 -o q.gguf")).ok();
    let gguf = report(&sandbox, "q.gguf");
    assert_eq!((failed(&gguf), &gguf["passed"]), ([45].into(), &80.into()));
    assert!(seen(&gguf, 34).starts_with("none of "), "{}", seen(&gguf, 34));

    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    sandbox.apr("shard m.apr --size 200KB -o cut.apr").ok();
    let cut = report(&sandbox, "cut.apr");
    assert_eq!(failed(&cut), [45].into());
    assert!(seen(&cut, 9).starts_with("all 5 shards of the model exist; "), "{cut}");
    fs::remove_file(sandbox.path("cut-00002-of-00005.apr")).expect("it is there");
    assert!(failed(&report(&sandbox, "cut.apr")).contains(&9));

    // What is not known to compute anything is not run, and that is no failure.
    let strange = report(&sandbox, "strange.safetensors");
    assert!(seen(&strange, 44).starts_with("the model was not run: E003"), "{strange}");
    let llama = format!("{LLAMA}/model.safetensors");
    let piped = sandbox.shell(&format!("\"$APR\" validate - --quality --json < {llama}"));
    assert_eq!(failed(&piped.ok().json()), [6, 52].into());
}

#[test]
fn a_signature_is_held_against_the_keys_that_it_names() {
    let sandbox = Sandbox::new();
    sandbox.apr("keygen -o key").ok();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    sandbox.apr("sign m.apr --key key").ok();
    let whole = report(&sandbox, "m.apr");
    assert!(seen(&whole, 23).starts_with("1 valid signature of the model"), "{whole}");
    let mut file = sandbox.read("m.apr");
    let at = file.windows(4).rposition(|window| window == b"SIGN").expect("a signature");
    file[at + 70] ^= 1;
    sandbox.write("m.apr", file);
    // The checksum of the file covers it, too.
    assert_eq!(failed(&report(&sandbox, "m.apr")), [4, 23, 45].into());
}

#[test]
fn a_score_below_the_minimum_is_exit_code_5() {
    let sandbox = Sandbox::new();
    let line = |least: u8| format!("validate {LLAMA} --quality --min-score {least}");
    let score = 98;
    sandbox.apr(&line(score)).ok();
    let minimum = format!("(EXCELLENT)\nbelow the minimum of {}", score + 1);
    sandbox.apr(&line(score + 1)).fails(5, &[&format!("SCORE: {score}/100"), &minimum]);
    sandbox.apr(&line(101)).fails(2, &["101", "100"]);
    let both = format!("validate {LLAMA} {LLAMA} --quality --min-score 50");
    sandbox.apr(&both).fails(2, &["--min-score"]);
    sandbox.apr(&format!("validate {LLAMA} --min-score 50")).fails(2, &["--quality"]);
}

#[test]
fn a_file_that_does_not_open_is_an_error_without_a_score() {
    let sandbox = Sandbox::new().with("text.safetensors", "a letter, and no model");
    sandbox.apr("validate text.safetensors --quality").fails(4, &["E00", "text.safetensors"]);
    sandbox.apr("validate absent --quality").fails(3, &["E007", "absent"]);
}
